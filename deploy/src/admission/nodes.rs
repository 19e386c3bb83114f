//! Writes to Nodes. The right to `patch` a Node is the right to its taints, with which a client has pods deleted past their
//! budgets; to its labels, by which DaemonSets keep their pods there; and to its owners, without whom the garbage
//! collector deletes it. Controller and hook for AWS need a few fields of it, and are limited to these here.
//!
//! The taint of a cordoned Node is not among them: the node lifecycle controller adds and removes it, by its own account.
//! `managedFields` is not compared: the API server changes it with each write. Neither is `status`, which the API server
//! ignores in these writes.

use models::names::{AWS, AWS_HOOK, CONTROLLER, HOOK_ANSWER_PREFIX, HOOKS_ANNOTATION, INTERFACE_LABEL};
use planner::claims::ClaimField;
use serde_json::{Value, json};

use super::limits::{Limits, list, validation};

/// The part of a Node that one account may write.
struct Own<'a> {
    part: &'static str,
    /// Fields of `spec`.
    spec: Vec<&'a str>,
    labels: Vec<&'a str>,
    /// Labels that it may add, and neither change nor remove.
    new_labels: Vec<&'a str>,
    annotations: Vec<&'a str>,
    /// True if it may write the answers of hooks that Jobs answer, whose names are the policy's.
    answers: bool,
}

/// The policy of the controller: its claims, its request to hooks, the answers of hooks that Jobs answer, and the label that puts a node under
/// the operator.
pub(super) fn of_controller() -> [Value; 2] {
    let claimed = |place: &[&str]| -> Vec<&'static str> {
        let there = ClaimField::ALL.into_iter().filter(|field| field.place() == place);
        there.map(ClaimField::name).collect()
    };
    let own = Own {
        part: "the controller",
        spec: vec![ClaimField::Cordon.place()[1]],
        labels: claimed(&["metadata", "labels"]),
        new_labels: vec![INTERFACE_LABEL],
        annotations: [claimed(&["metadata", "annotations"]), vec![HOOKS_ANNOTATION]].concat(),
        answers: true,
    };
    own.limits("brupop-controller-nodes", CONTROLLER).objects()
}

/// The policy of the hook for AWS: its answer.
pub(super) fn of_aws() -> [Value; 2] {
    let answer = format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}");
    let (spec, labels, new_labels) = Default::default();
    let own = Own { part: AWS, spec, labels, new_labels, annotations: vec![&answer], answers: false };
    own.limits(AWS, AWS).objects()
}

impl Own<'_> {
    fn limits(&self, name: &'static str, account: &'static str) -> Limits {
        let part = self.part;
        let kept = |what: &str, free: &[&str], added: &[&str], answers: bool| {
            let by_jobs: &[&str] = if answers { &["answers of hooks by Jobs"] } else { &[] };
            let but = [free, added, by_jobs].concat();
            let but = if but.is_empty() { String::new() } else { format!(" but {}", but.join(", ")) };
            validation(&unchanged(what, free, added, answers), part, &format!("may not change {what} of a Node{but}"))
        };
        let same = |field: &str| {
            let expression = format!("object.metadata.?{field} == oldObject.metadata.?{field}");
            validation(&expression, part, &format!("may not change {field} of a Node"))
        };
        Limits {
            name,
            account,
            part,
            rule: json!({
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes"], "operations": ["UPDATE"], "scope": "*",
            }),
            variables: variables(),
            validations: vec![
                kept("spec", &self.spec, &[], false),
                kept("labels", &self.labels, &self.new_labels, false),
                kept("annotations", &self.annotations, &[], self.answers),
                same("finalizers"),
                same("ownerReferences"),
            ],
        }
    }
}

/// The maps that are compared.
fn variables() -> Vec<Value> {
    let mut all = Vec::new();
    for (when, object) in [("Before", "oldObject"), ("After", "object")] {
        let map = |field: &str| format!("dyn({object}.metadata.?{field}.orValue({{}}))");
        let variables = [
            ("spec", format!("has({object}.spec) ? dyn({object}.spec) : dyn({{}})")),
            ("labels", map("labels")),
            ("annotations", map("annotations")),
        ];
        let named = |(name, expression)| json!({"name": format!("{name}{when}"), "expression": expression});
        all.extend(variables.map(named));
    }
    all
}

/// CEL expression: a map has the same entries as before, but for those that are free, and those that are added. With `answers`, those of
/// all hooks but that for AWS are free. Entries are compared first, which costs little, so that the evaluation of a Node with very many of them stays far below the API
/// server's limit.
fn unchanged(what: &str, free: &[&str], added: &[&str], answers: bool) -> String {
    let (before, after) = (format!("variables.{what}Before"), format!("variables.{what}After"));
    let or = |rule: String, keys: &[&str]| if keys.is_empty() { String::new() } else { format!(" || {rule}") };
    let is_free = or(format!("k in {}", list(free)), free);
    let is_answer = format!(" || (k.startsWith('{HOOK_ANSWER_PREFIX}') && k != '{HOOK_ANSWER_PREFIX}{AWS_HOOK}')");
    let is_free = if answers { is_free + &is_answer } else { is_free };
    let is_added = or(format!("(k in {} && !(k in {before}))", list(added)), added);
    format!("{after}.all(k, {before}[?k] == {after}[?k]{is_free}{is_added}) && {before}.all(k, k in {after}{is_free})")
}
