//! The field managers of what a write changes.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use planner::claims::owns;
use serde_json::Value;

/// Parts of the names of field managers that apply their source again and again, without server-side apply.
const TOOLS: [&str; 5] = ["helm", "argocd", "flux", "kustomize", "kubectl-client-side-apply"];

/// Parts of the names of field managers that do so by themselves, in minutes.
const RECONCILERS: [&str; 4] = ["argocd", "flux", "kustomize", "helm-controller"];

/// A field, as the keys that lead to it.
pub(crate) type Path = Vec<String>;

/// Returns the fields that a merge patch sets or removes.
pub(crate) fn fields(patch: &Value) -> Vec<Path> {
    fn collect(value: &Value, path: &mut Path, found: &mut Vec<Path>) {
        match value.as_object() {
            Some(object) => {
                for (key, value) in object {
                    path.push(key.clone());
                    collect(value, path, found);
                    path.pop();
                }
            }
            None => found.push(path.clone()),
        }
    }
    let mut found = Vec::new();
    collect(patch, &mut Path::new(), &mut found);
    found
}

/// Returns a field as users write it.
pub(crate) fn name(path: &[String]) -> String {
    match path {
        [metadata, annotations, name] if metadata == "metadata" && annotations == "annotations" => {
            format!("the annotation {name}")
        }
        path => path.join("."),
    }
}

/// Returns the value of a field in an object; null where it is absent.
pub(crate) fn value<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, key| &value[key.as_str()])
}

/// Returns the field managers that apply a field that a patch writes, and so put it back, each with the first such field.
pub(crate) fn appliers(entries: &[ManagedFieldsEntry], patch: &Value) -> Vec<(String, Path)> {
    let written = fields(patch);
    let is_tool = |entry: &ManagedFieldsEntry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        entry.operation.as_deref() == Some("Apply") || TOOLS.iter().any(|tool| manager.contains(tool))
    };
    let applied = |entry: &ManagedFieldsEntry| {
        let field = written.iter().find(|path| owns(entry, path))?;
        Some((entry.manager.clone()?, field.clone()))
    };
    entries.iter().filter(|entry| is_tool(entry)).filter_map(applied).collect()
}

/// Returns the other field managers that apply an object by themselves, with the first field of `spec` that a patch writes. They write nothing
/// where they find no difference, and own no field then whose value their source and another client have given it alike.
pub(crate) fn possible_appliers(entries: &[ManagedFieldsEntry], patch: &Value) -> Vec<(String, Path)> {
    let Some(field) = fields(patch).into_iter().find(|path| path.first().is_some_and(|first| first == "spec")) else {
        return Vec::new();
    };
    let known = appliers(entries, patch);
    let managers = entries.iter().filter_map(|entry| entry.manager.as_deref());
    let managers: BTreeSet<&str> = managers
        .filter(|manager| RECONCILERS.iter().any(|tool| manager.contains(tool)))
        .filter(|manager| !known.iter().any(|(applier, _)| applier == manager))
        .collect();
    managers.into_iter().map(|manager| (manager.to_owned(), field.clone())).collect()
}

#[cfg(test)]
mod tests {
    use planner::claims::last_owner;
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, second: u32, fields: &Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": manager, "operation": operation, "apiVersion": "x/v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
            "time": format!("2026-01-01T00:00:{second:02}Z"),
        }))
        .unwrap()
    }

    fn of_version(manager: &str, operation: &str, second: u32, field: &str) -> ManagedFieldsEntry {
        entry(manager, operation, second, &json!({"f:spec": {"f:version": {".": {}, field: {}}}}))
    }

    #[test]
    fn tool_that_applies_a_written_field_is_named_and_no_other() {
        let patch = json!({"spec": {"version": {"target": "latest", "exclude": null}}});
        let all = [
            of_version("argocd-controller", "Apply", 0, "f:target"),
            of_version("kubectl", "Apply", 0, "f:exclude"),
            of_version("helm", "Update", 0, "f:target"),
            of_version("kubectl-client-side-apply", "Update", 0, "f:target"),
            of_version("kubectl-edit", "Update", 0, "f:target"),
            of_version("kubectl", "Apply", 0, "f:minimumAge"),
            of_version("brupop-plugin", "Update", 0, "f:target"),
        ];
        let found = appliers(&all, &patch);
        let found: Vec<(&str, String)> = found.iter().map(|(manager, path)| (manager.as_str(), name(path))).collect();
        let target = || "spec.version.target".to_owned();
        assert_eq!(
            found,
            [
                ("argocd-controller", target()),
                ("kubectl", "spec.version.exclude".to_owned()),
                ("helm", target()),
                ("kubectl-client-side-apply", target()),
            ]
        );
    }

    #[test]
    fn tool_that_applies_other_fields_may_have_the_written_one_in_its_source() {
        let all = [
            of_version("kustomize-controller", "Apply", 0, "f:minimumAge"),
            of_version("argocd-controller", "Apply", 0, "f:target"),
            of_version("helm", "Update", 0, "f:minimumAge"),
            of_version("kubectl", "Apply", 0, "f:minimumAge"),
            of_version("brupop-plugin", "Update", 0, "f:target"),
        ];
        let of = |patch: Value| {
            let found = possible_appliers(&all, &patch);
            found.into_iter().map(|(manager, path)| format!("{manager} {}", name(&path))).collect::<Vec<_>>()
        };
        let requests = json!({"brupop.bottlerocket.aws/release": "now"});
        assert_eq!(
            of(json!({"metadata": {"annotations": requests}, "spec": {"version": {"target": "1.20.5"}}})),
            ["kustomize-controller spec.version.target"]
        );
        assert_eq!(
            of(json!({"spec": {"enabled": false}})),
            ["argocd-controller spec.enabled", "kustomize-controller spec.enabled"]
        );
        assert!(of(json!({"metadata": {"annotations": requests}})).is_empty(), "a request is in no source");
    }

    #[test]
    fn owner_of_a_field_is_the_manager_that_wrote_it_last() {
        let path = ["metadata", "annotations", "brupop.bottlerocket.aws/hold"].map(str::to_owned);
        let annotations = |key: &str| json!({"f:metadata": {"f:annotations": {key: {}}}});
        let all = [
            entry("kubectl-annotate", "Update", 1, &annotations("f:brupop.bottlerocket.aws/hold")),
            entry("ops", "Apply", 3, &annotations("f:brupop.bottlerocket.aws/hold")),
            entry("kubelet", "Update", 9, &annotations("f:other")),
        ];
        assert_eq!(last_owner(&all, &path), Some("ops"));
        assert_eq!(last_owner(&all[2..], &path), None);
        assert_eq!(name(&path), "the annotation brupop.bottlerocket.aws/hold");
    }
}
