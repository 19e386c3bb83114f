//! Field managers of a shadow other than the operator's. A client that owns a field of the operator may write it again, such
//! as a permit that the operator has withdrawn.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use models::names::{self, AGENT_MANAGER, CONTROLLER_MANAGER, SILENCE_MANAGER};
use models::plain::cut;

use crate::claims::{last_owner, last_write, owns};

/// Manager under which the API server keeps the oldest entries once an object has more than ten of them; the operator's
/// own creation of the shadow is the oldest.
const FOLDED: &str = "ancient-changes";

/// A field of a shadow that belongs to the operator and that another manager owns too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedField {
    /// E.g. `spec.permit`.
    pub field: String,
    /// Field manager as the API server recorded it.
    pub manager: String,
}

/// Field managers of what users request in the operator's resource, as the API server recorded them: the names of clients,
/// not of persons. The last writer's where several own a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestManagers {
    /// Of `spec.enabled`.
    pub enabled: Option<String>,
    /// Of `spec.version`.
    pub version: Option<String>,
    /// Of `spec.version.urgent`.
    pub urgent: Option<String>,
    /// Of the annotation that approves a canary step.
    pub approve_step: Option<String>,
    /// Of the annotation that requests to resolve failures.
    pub resume: Option<String>,
    /// Of the annotation that requests to go on without the kinds of nodes that have failed.
    pub continue_others: Option<String>,
}

impl RequestManagers {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        let owner = |path: &[&str]| Some(cut(last_owner(meta.managed_fields.iter().flatten(), path)?, 128));
        let annotation = |name| owner(&["metadata", "annotations", name]);
        Self {
            enabled: owner(&["spec", "enabled"]),
            version: owner(&["spec", "version"]),
            urgent: owner(&["spec", "version", "urgent"]),
            approve_step: annotation(names::APPROVE_STEP_ANNOTATION),
            resume: annotation(names::RESUME_ANNOTATION),
            continue_others: annotation(names::CONTINUE_OTHERS_ANNOTATION),
        }
    }
}

/// Returns the time of the last write that changed `spec`.
pub(super) fn spec_changed(meta: &ObjectMeta) -> Option<Timestamp> {
    last_write(meta, |entry| owns(entry, &["spec"]))
}

/// Returns the time of the last write by a field manager that owns this annotation.
pub(super) fn annotated(meta: &ObjectMeta, name: &str) -> Option<Timestamp> {
    last_write(meta, |entry| owns(entry, &["metadata", "annotations", name]))
}

/// Returns the first such field in `spec` or `status`.
pub(super) fn shared_field(meta: &ObjectMeta) -> Option<SharedField> {
    let entries = meta.managed_fields.iter().flatten();
    let own = [CONTROLLER_MANAGER, AGENT_MANAGER, SILENCE_MANAGER, FOLDED];
    let others = entries.filter(|entry| entry.manager.as_deref().is_none_or(|manager| !own.contains(&manager)));
    let fields = others.flat_map(|entry| {
        let sections = ["spec", "status"].into_iter().flat_map(|section| {
            let owned = entry.fields_v1.as_ref().and_then(|fields| fields.0.get(format!("f:{section}"))?.as_object());
            let names = owned.into_iter().flat_map(|owned| owned.keys()).filter_map(|key| key.strip_prefix("f:"));
            names.map(move |name| format!("{section}.{name}"))
        });
        sections.map(|field| SharedField { field, manager: entry.manager.clone().unwrap_or_default() })
    });
    fields.min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_is_attributed_to_its_last_field_manager() {
        let fields = |time: &str, manager: &str, fields: serde_json::Value| json!({"manager": manager, "time": time, "fieldsV1": fields});
        let approve = json!({"f:metadata": {"f:annotations": {format!("f:{}", names::APPROVE_STEP_ANNOTATION): {}}}});
        let meta = json!({"managedFields": [
            fields("2026-01-02T00:00:00Z", "kubectl-edit", json!({"f:spec": {"f:version": {"f:target": {}}}})),
            fields("2026-01-01T00:00:00Z", "helm", json!({"f:spec": {"f:version": {}, "f:enabled": {}}})),
            fields("2026-01-03T00:00:00Z", "kubectl-annotate", approve),
            fields("2026-01-04T00:00:00Z", "brupop-plugin", json!({"f:metadata": {"f:annotations": {format!("f:{}", names::RESUME_ANNOTATION): {}}}})),
            fields("2026-01-01T00:00:00Z", "kubectl-patch", json!({"f:spec": {"f:version": {"f:urgent": {"f:from": {}}}}})),
        ]});
        let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
        assert_eq!(spec_changed(&meta).map(|at| at.to_string()).as_deref(), Some("2026-01-02T00:00:00Z"));
        let found = RequestManagers::of(&meta);
        let expected = |name: &str| Some(name.to_owned());
        assert_eq!((found.version, found.enabled), (expected("kubectl-edit"), expected("helm")));
        assert_eq!(found.urgent, expected("kubectl-patch"));
        assert_eq!((found.approve_step, found.continue_others), (expected("kubectl-annotate"), None));
        assert_eq!(found.resume, expected("brupop-plugin"));
    }

    #[test]
    fn field_of_another_manager_is_found_and_fields_of_the_operator_are_not() {
        let own = json!({"manager": "brupop-controller", "fieldsV1": {"f:spec": {"f:permit": {}}}});
        let agent = json!({"manager": "brupop-agent", "fieldsV1": {"f:status": {"f:state": {}}}});
        let labels = json!({"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}});
        let edit = json!({"manager": "kubectl-edit", "fieldsV1": {"f:spec": {".": {}, "f:permit": {}, "f:state": {}}}});
        let status = json!({"manager": "tool", "fieldsV1": {"f:status": {"f:drain": {}}}});
        let folded = json!({"manager": "ancient-changes", "fieldsV1": {"f:spec": {"f:state": {}}}});
        let odd = json!({"manager": "odd", "fieldsV1": {"f:spec": 7}});
        for (entries, expected) in [
            (json!([own, agent, labels, folded, odd]), None),
            (json!([own, edit, status]), Some(("spec.permit", "kubectl-edit"))),
            (json!([status]), Some(("status.drain", "tool"))),
            (json!([]), None),
        ] {
            let meta = serde_json::from_value(json!({"managedFields": entries})).unwrap();
            let found = shared_field(&meta);
            let expected =
                expected.map(|(field, manager)| SharedField { field: field.into(), manager: manager.into() });
            assert_eq!(found, expected, "{entries}");
        }
    }
}
