//! Comparison of the rights of the operator's components with those that they use: the installed roles against the API
//! server's audit log of a run that does everything.
//!
//! ```text
//! roles and bindings ──► granted ──► Right … ──┐
//!                                             ├──► findings
//! audit log ───────────────────────────────────┘   (pure)
//! ```
//!
//! [`writes`] checks in the same log how writes were made.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, bail};
use deploy::Component;
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::control_plane::audit::{Record, requests};
use crate::oracle::service_account;

pub mod writes;

/// The smallest thing that RBAC grants: one verb on one resource, in one namespace or in all, on one object or on any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The user that has it, by the API server's name.
    pub user: String,
    /// Namespace; empty: all of them, and cluster scope.
    pub namespace: String,
    /// API group; empty for the core group.
    pub group: String,
    /// The resource, with its subresource after a slash; or a non-resource path, which begins with one.
    pub resource: String,
    /// Verb.
    pub verb: String,
    /// Name of the one object; empty: any.
    pub name: String,
}

impl Right {
    /// Returns true if it allows a request; `verb` may differ from the request's own.
    fn allows(&self, record: &Record, verb: &str) -> bool {
        let Self { user, namespace, group, resource, verb: granted, name } = self;
        // A creation is authorised without the name in its body, and with it under its name.
        let named = if record.verb == "create" && record.subresource.is_empty() { "" } else { record.name.as_str() };
        *user == record.user
            && *granted == verb
            && *group == record.group
            && *resource == what(record)
            && (namespace.is_empty() || *namespace == record.namespace)
            && (name.is_empty() || *name == named)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, namespace, group, resource, verb, name } = self;
        let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
        let (group, name) = (or(group, "core"), or(name, "any"));
        write!(f, "{user}: {verb} {resource} ({group}), {name}, in {}", or(namespace, "all namespaces"))
    }
}

/// A deviation between granted and used rights.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// Never used, or only where a narrower right would have been enough.
    Unused(Right),
    /// Denied by RBAC.
    Forbidden(String),
    /// Allowed by RBAC, by a rule that is not the operator's.
    Foreign(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused(right) => write!(f, "granted and never used: {right}"),
            Self::Forbidden(request) => write!(f, "wanted and not granted: {request}"),
            Self::Foreign(request) => write!(f, "granted by another rule: {request}"),
        }
    }
}

/// The rights that the bindings among `objects` give, by the roles among them.
///
/// # Errors
/// If a binding names a role that is not there, or a subject that is not a service account, or a role has a wildcard.
pub fn granted(objects: &[Value]) -> anyhow::Result<BTreeSet<Right>> {
    let mut all = BTreeSet::new();
    for binding in objects {
        let kind = match binding["kind"].as_str() {
            Some("RoleBinding") => "Role",
            Some("ClusterRoleBinding") => "ClusterRole",
            _ => continue,
        };
        let id = deploy::yaml::id(binding);
        let namespace = text(&binding["metadata"]["namespace"]);
        let role = objects.iter().find(|object| {
            object["kind"] == kind
                && object["metadata"]["name"] == binding["roleRef"]["name"]
                && text(&object["metadata"]["namespace"]) == namespace
        });
        let role = role.with_context(|| format!("{id} binds a role that is not there"))?;
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            if subject["kind"] != "ServiceAccount" {
                bail!("{id} is not for a service account: {subject}");
            }
            let user = service_account(text(&subject["namespace"]), text(&subject["name"]));
            for rule in role["rules"].as_array().into_iter().flatten() {
                all.extend(of_rule(&user, namespace, rule).with_context(|| deploy::yaml::id(role))?);
            }
        }
    }
    Ok(all)
}

fn of_rule(user: &str, namespace: &str, rule: &Value) -> anyhow::Result<Vec<Right>> {
    let list = |key: &str| {
        let words: Vec<&str> = rule[key].as_array().into_iter().flatten().map(text).collect();
        if words.iter().any(|word| word.contains('*')) { bail!("a wildcard in {key}: {rule}") } else { Ok(words) }
    };
    let names = Some(list("resourceNames")?).filter(|names| !names.is_empty()).unwrap_or_else(|| vec![""]);
    let mut rights = Vec::new();
    let paths = list("nonResourceURLs")?;
    let groups = if paths.is_empty() { list("apiGroups")? } else { vec![""] };
    for group in groups {
        for resource in list("resources")?.into_iter().chain(paths.iter().copied()) {
            for verb in list("verbs")? {
                rights.extend(names.iter().map(|name| Right {
                    user: user.to_owned(),
                    namespace: namespace.to_owned(),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    verb: verb.to_owned(),
                    name: (*name).to_owned(),
                }));
            }
        }
    }
    Ok(rights)
}

/// The resource of a request in RBAC's notation.
fn what(record: &Record) -> String {
    let path = record.uri.split('?').next().unwrap_or_default();
    if record.resource.is_empty() { path.to_owned() } else { record.what() }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The service accounts of the operator's components.
pub fn accounts() -> Vec<String> {
    Component::ALL
        .iter()
        .chain(&[Component::Aws])
        .map(|part| match part {
            Component::Agent => service_account(AGENT_NAMESPACE, part.name()),
            Component::Apiserver | Component::Controller | Component::Aws => {
                service_account(SYSTEM_NAMESPACE, part.name())
            }
        })
        .collect()
}

/// The verbs that RBAC was consulted about for a request: a patch or an update that creates its object needs that right
/// too.
fn verbs(record: &Record) -> Vec<&str> {
    let creates = matches!(record.verb.as_str(), "patch" | "update") && record.code == 201;
    [record.verb.as_str()].into_iter().chain(creates.then_some("create")).collect()
}

/// Rights that the operator's components have and did not use, and requests without a right.
pub fn findings(granted: &BTreeSet<Right>, audit: &[Record]) -> Vec<Finding> {
    let accounts = accounts();
    let (mut used, mut findings) = (BTreeSet::new(), BTreeSet::new());
    for record in requests(audit).filter(|record| accounts.contains(&record.user)) {
        let describe = || {
            let Record { user, verb, group, namespace, name, .. } = record;
            format!("{user}: {verb} {} ({group}), {namespace}/{name}", what(record))
        };
        match record.allowed {
            // RBAC was not consulted: the request was not authenticated.
            None => continue,
            Some(false) => {
                findings.insert(Finding::Forbidden(describe()));
                continue;
            }
            Some(true) => {}
        }
        let everybodys = record.resource.is_empty();
        for verb in verbs(record) {
            let right = granted
                .iter()
                .filter(|right| right.allows(record, verb))
                // If two allow it, the wider one is not needed for it.
                .max_by_key(|right| (!right.namespace.is_empty(), !right.name.is_empty()));
            match right {
                Some(right) => drop(used.insert(right)),
                // For example the server's version and API discovery.
                None if everybodys => {}
                None => drop(findings.insert(Finding::Foreign(describe()))),
            }
        }
    }
    findings.extend(granted.iter().filter(|right| !used.contains(right)).cloned().map(Finding::Unused));
    findings.into_iter().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::control_plane::audit::parse;

    pub(crate) const CONTROLLER: &str = "system:serviceaccount:brupop-system:brupop-controller";

    /// A request of the controller, allowed and successful; `more` is merged over the record.
    pub(crate) fn request(verb: &str, group: &str, what: &str, object: &str, more: &Value) -> Record {
        let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let mut event = json!({
            "auditID": format!("{:x}", rand::random::<u64>()), "stage": "ResponseComplete", "verb": verb,
            "requestURI": "/", "user": {"username": CONTROLLER},
            "objectRef": {"apiGroup": group, "resource": resource, "subresource": subresource, "namespace": namespace,
                "name": name},
            "responseStatus": {"code": 200}, "requestReceivedTimestamp": "2026-01-02T03:04:05Z",
            "stageTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {"authorization.k8s.io/decision": "allow"},
        });
        crate::bed::merge(&mut event, more);
        parse(&event.to_string()).unwrap()
    }

    fn install(rules: &Value) -> Vec<Value> {
        let subject = json!({"kind": "ServiceAccount", "name": "brupop-controller", "namespace": "brupop-system"});
        vec![
            json!({"kind": "Role", "metadata": {"name": "a", "namespace": "here"}, "rules": rules}),
            json!({"kind": "RoleBinding", "metadata": {"name": "a", "namespace": "here"},
                "roleRef": {"kind": "Role", "name": "a"}, "subjects": [subject]}),
            json!({"kind": "ClusterRole", "metadata": {"name": "a"}, "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "a"},
                "roleRef": {"kind": "ClusterRole", "name": "a"}, "subjects": [subject]}),
        ]
    }

    fn leases() -> Value {
        json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["one", "two"],
            "verbs": ["update"]}])
    }

    fn found(rules: &Value, audit: &[Record]) -> Vec<String> {
        findings(&granted(&install(rules)).unwrap(), audit).iter().map(ToString::to_string).collect()
    }

    fn nodes() -> Vec<Record> {
        vec![request("get", "", "nodes", "a", &json!({})), request("patch", "", "nodes", "b", &json!({}))]
    }

    #[test]
    fn run_that_uses_every_granted_permission_has_no_findings() {
        let mut audit = nodes();
        for name in ["here/one", "here/two"] {
            audit.push(request("update", "coordination.k8s.io", "leases", name, &json!({})));
        }
        assert_eq!(found(&leases(), &audit), [""; 0]);
        // Other users' requests are not the operator's, and non-resource paths are open to all.
        audit.push(request("delete", "", "nodes", "a", &json!({"user": {"username": "admin"}})));
        audit.push(request("get", "", "", "", &json!({"requestURI": "/version"})));
        assert_eq!(found(&leases(), &audit), [""; 0]);
    }

    #[test]
    fn unused_permission_is_reported_with_verb_and_object() {
        let mut audit = nodes();
        audit.push(request("update", "coordination.k8s.io", "leases", "here/one", &json!({})));
        audit.push(request("update", "coordination.k8s.io", "leases", "there/two", &json!({})));
        let found = found(&leases(), &audit);
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("granted and never used") && found[0].contains("two, in here"), "{found:#?}");
        assert!(found[1].starts_with("granted by another rule") && found[1].contains("there/two"), "{found:#?}");
    }

    #[test]
    fn forbidden_request_is_reported_also_for_non_resource_path() {
        for (what, uri) in [("secrets", "/api/v1/secrets"), ("", "/metrics")] {
            let no = json!({"annotations": {"authorization.k8s.io/decision": "forbid"},
                "responseStatus": {"code": 403}, "requestURI": uri});
            let mut audit = nodes();
            audit.push(request("list", "", what, "", &no));
            let found = found(&json!([]), &audit);
            assert!(found.len() == 1 && found[0].starts_with("wanted and not granted"), "{found:#?}");
        }
    }

    #[test]
    fn permission_covered_by_narrower_rule_is_reported() {
        let mut rules = leases();
        rules
            .as_array_mut()
            .unwrap()
            .push(json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}));
        let mut audit = nodes();
        for name in ["here/one", "here/two"] {
            audit.push(request("update", "coordination.k8s.io", "leases", name, &json!({})));
        }
        let found = found(&rules, &audit);
        assert!(found.len() == 1 && found[0].contains("any, in here"), "{found:#?}");
    }

    #[test]
    fn apply_that_creates_object_uses_create_permission() {
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["trust"],
            "verbs": ["create", "patch"]}]);
        let mut audit = nodes();
        audit.push(request("patch", "", "configmaps", "here/trust", &json!({})));
        let found_ = found(&rules, &audit);
        assert!(found_.len() == 1 && found_[0].contains("create configmaps"), "{found_:#?}");
        audit.push(request("patch", "", "configmaps", "here/trust", &json!({"responseStatus": {"code": 201}})));
        assert_eq!(found(&rules, &audit), [""; 0]);
    }

    #[test]
    fn non_resource_url_permission_is_used_by_matching_request() {
        let mut objects = install(&json!([]));
        objects[2]["rules"] = json!([{"nonResourceURLs": ["/openid/v1/jwks"], "verbs": ["get"]}]);
        let rights = granted(&objects).unwrap();
        let found = findings(&rights, &[]);
        assert!(found.len() == 1 && found[0].to_string().contains("get /openid/v1/jwks"), "{found:#?}");
        let asked = request("get", "", "", "", &json!({"requestURI": "/openid/v1/jwks?timeout=1s"}));
        assert_eq!(findings(&rights, &[asked]), []);
    }

    #[test]
    fn unsupported_rbac_rules_are_rejected() {
        for rules in [
            json!([{"apiGroups": ["*"], "resources": ["nodes"], "verbs": ["get"]}]),
            json!([{"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}]),
            json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["*"]}]),
            json!([{"nonResourceURLs": ["/metrics/*"], "verbs": ["get"]}]),
        ] {
            assert!(granted(&install(&rules)).is_err(), "{rules}");
        }
        let mut objects = install(&json!([]));
        objects[1]["roleRef"]["name"] = json!("other");
        assert!(granted(&objects).is_err());
        objects[1]["roleRef"]["name"] = json!("a");
        objects[1]["subjects"][0] = json!({"kind": "Group", "name": "system:authenticated"});
        assert!(granted(&objects).is_err());
    }

    #[test]
    fn installed_roles_are_supported_and_grant_agents_no_permission() {
        let rights = granted(&deploy::everything().unwrap()).unwrap();
        assert!(rights.iter().any(|right| right.resource == "pods/eviction"));
        assert!(rights.iter().all(|right| !right.user.contains("agent")));
    }
}
