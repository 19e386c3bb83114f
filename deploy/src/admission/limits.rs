//! The form of a policy: what one account may write of one kind of object.

use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::object::cluster;

/// A policy for the writes of one account.
pub(super) struct Limits {
    /// Name of the policy and of its binding.
    pub(super) name: &'static str,
    pub(super) account: &'static str,
    /// The account in the policy's own texts, such as `the controller`.
    pub(super) part: &'static str,
    /// The writes that it is about.
    pub(super) rule: Value,
    pub(super) variables: Vec<Value>,
    pub(super) validations: Vec<Value>,
}

impl Limits {
    /// The policy and its binding.
    pub(super) fn objects(self) -> [Value; 2] {
        let Self { name, account, part, rule, variables, validations } = self;
        let mut policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": cluster(name),
            "spec": {
                // A write that cannot be evaluated is refused. Each of them is repeated.
                "failurePolicy": "Fail",
                "matchConstraints": {
                    // Also writes through a version that this installation does not know.
                    "matchPolicy": "Equivalent",
                    // The server's defaults: the constraints are owned as a whole, so without them the same apply by another
                    // tool is a conflict.
                    "namespaceSelector": {},
                    "objectSelector": {},
                    "resourceRules": [rule],
                },
                "matchConditions": [{
                    "name": format!("by-{}", part.to_lowercase().replace(' ', "-")),
                    "expression": format!(
                        "request.userInfo.username == 'system:serviceaccount:{SYSTEM_NAMESPACE}:{account}'"
                    ),
                }],
                "validations": validations,
            },
        });
        if !variables.is_empty() {
            policy["spec"]["variables"] = variables.into();
        }
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": cluster(name),
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        [policy, binding]
    }
}

/// A rule of a policy, with the refusal if it is broken.
pub(super) fn validation(expression: &str, part: &str, message: &str) -> Value {
    json!({"expression": expression, "message": format!("{part} {message}"), "reason": "Forbidden"})
}

/// A list of texts in CEL, none of which contains a quote.
pub(super) fn list(texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", texts.join(", "))
}
