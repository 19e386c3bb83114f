//! Jobs of hooks. Who may create Jobs in a namespace may have pods of any spec there, with any of its service accounts. So a Job of the
//! controller has the spec of a `PodTemplate`, and only of one that a binding names: its label names the template, the binding for that label has the
//! template as its parameter, and refuses the Job where there is no such template. The binding of the namespace for all other values of the
//! label has no parameter, and refuses every Job. Both are part of what a user installs for a namespace (docs/hooks.md).
//!
//! A further binding, of the policy itself, refuses Jobs without the label in all namespaces. While a policy with a parameter has any binding, the
//! API server watches the kind of the parameter. Once it has none, it goes on with what it has read of a kind of Kubernetes for as long as it runs
//! (kubernetes/kubernetes#130887), also where the policy is bound again.

use models::names::{
    CONTROLLER, CONTROLLER_JOBS, HOOK_LABEL, JOB_ATTEMPT_ANNOTATION, JOB_NODE_ANNOTATION, JOB_NUMBER_ANNOTATION,
    JOB_PHASE_ANNOTATION, JOB_VERSION_ANNOTATION, POD_TEMPLATE_LABEL,
};
use planner::hooks::BEFORE;
use serde_json::{Value, json};

use super::limits::{Limits, list, validation};

/// Name of the policy for new Jobs, and of a binding of it.
pub(crate) const JOBS: &str = CONTROLLER_JOBS;

const PART: &str = "the controller";

/// Labels of the pods of a Job that Kubernetes adds itself.
const OF_KUBERNETES: [&str; 4] =
    ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// The policy for Jobs that are created, and that for Jobs that are changed, each with its binding.
pub(super) fn of_controller() -> [Value; 4] {
    let [mut created, mut lasting] = created().objects();
    created["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "PodTemplate"});
    lasting["spec"]["matchResources"] = json!({
        "matchPolicy": "Equivalent", "namespaceSelector": {},
        "objectSelector": {"matchExpressions": [{"key": POD_TEMPLATE_LABEL, "operator": "DoesNotExist"}]},
    });
    let [changed, binding] = changed().objects();
    [created, lasting, changed, binding]
}

fn rule(operation: &str) -> Value {
    json!({
        "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": [operation], "scope": "*",
    })
}

fn created() -> Limits {
    let annotations = [
        JOB_NODE_ANNOTATION,
        JOB_VERSION_ANNOTATION,
        JOB_ATTEMPT_ANNOTATION,
        JOB_PHASE_ANNOTATION,
        JOB_NUMBER_ANNOTATION,
    ];
    let labels = [&[HOOK_LABEL][..], &OF_KUBERNETES[..]].concat();
    let map = |name: &str, expression: String| json!({"name": name, "expression": expression});
    // A template with metadata has a spec, too: the API server defaults both, for a Job as for a PodTemplate.
    let of = |place: &str| format!("{place}.orValue({{}})");
    let same = |what: &str, free: &[&str]| {
        let (made, wanted) = (format!("variables.{what}Made"), format!("variables.{what}Wanted"));
        let is_free = format!("k in {}", list(free));
        format!(
            "dyn(params) == null || ({made}.all(k, {is_free} || {wanted}[?k] == {made}[?k]) && {wanted}.all(k, {is_free} || k in {made}))"
        )
    };
    let variables = vec![
        map("made", "dyn(object.spec.template)".to_owned()),
        map("wanted", "dyn(params) == null ? dyn({}) : dyn(params.template)".to_owned()),
        map("specMade", of("variables.made.?spec")),
        map("specWanted", of("variables.wanted.?spec")),
        map("labelsMade", of("variables.made.?metadata.?labels")),
        map("labelsWanted", of("variables.wanted.?metadata.?labels")),
        map("annotationsMade", of("variables.made.?metadata.?annotations")),
        map("annotationsWanted", of("variables.wanted.?metadata.?annotations")),
    ];
    Limits {
        name: JOBS,
        account: CONTROLLER,
        part: PART,
        rule: rule("CREATE"),
        variables,
        validations: vec![
            validation("dyn(params) != null", PART, "creates Jobs by the PodTemplates alone that were named for it"),
            // The node, for checks on the updated node itself.
            validation(&same("spec", &["nodeName"]), PART, "may not change the spec of a PodTemplate"),
            validation(&same("labels", &labels), PART, "may not change labels of a PodTemplate"),
            validation(&same("annotations", &annotations), PART, "may not change annotations of a PodTemplate"),
            // Finalizers of the template are those of its pods, which would stay for ever.
            validation(
                "!has(object.metadata.ownerReferences) && !has(object.metadata.finalizers) && (dyn(params) == null || variables.made.?metadata.?finalizers == variables.wanted.?metadata.?finalizers)",
                PART,
                "may not give a Job owners or finalizers, or its pods other finalizers than a PodTemplate",
            ),
            validation(
                "!object.spec.?manualSelector.orValue(false) && !object.spec.?suspend.orValue(false)",
                PART,
                "creates no Job that takes over other pods or whose pods can be changed later",
            ),
            // By another client's doing: it would count as taken back, and be deleted.
            validation(
                &format!(
                    "object.metadata.?annotations[?'{JOB_PHASE_ANNOTATION}'].orValue('') != '{BEFORE}' || !has(object.spec.ttlSecondsAfterFinished)"
                ),
                PART,
                "creates no Job before a drain with ttlSecondsAfterFinished, which another policy or webhook has set: the Job is the record of what is to be taken back",
            ),
        ],
    }
}

fn changed() -> Limits {
    let kept = |object: &str, other: &str| {
        format!("{object}.all(k, k == 'ttlSecondsAfterFinished' || {object}[?k] == {other}[?k])")
    };
    let same = ["labels", "annotations", "ownerReferences", "finalizers"]
        .map(|field| format!("object.metadata.?{field} == oldObject.metadata.?{field}"));
    let of = |name: &str, object: &str| json!({"name": name, "expression": format!("dyn({object}.spec)")});
    Limits {
        name: "brupop-controller-job-changes",
        account: CONTROLLER,
        part: PART,
        rule: rule("UPDATE"),
        variables: vec![of("before", "oldObject"), of("after", "object")],
        validations: vec![
            validation(
                &format!("'{HOOK_LABEL}' in oldObject.metadata.?labels.orValue({{}})"),
                PART,
                "changes no other Jobs than those of hooks",
            ),
            validation(
                &format!(
                    "{} && {} && {}",
                    kept("variables.after", "variables.before"),
                    kept("variables.before", "variables.after"),
                    same.join(" && ")
                ),
                PART,
                "changes nothing of a Job but ttlSecondsAfterFinished",
            ),
        ],
    }
}
