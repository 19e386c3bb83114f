//! Objects without what does not belong into a support bundle: values of environment variables, copies of the object in
//! annotations, and what is large and says nothing.

use models::names::{GROUP, INTERFACE_LABEL};
use planner::claims::ClaimField;
use planner::view::{NodeFacts, Projection as _};
use serde_json::{Value, json};

/// The value in place of one that was left out.
const LEFT_OUT: &str = "(left out)";

/// Annotations that hold a copy of the object.
const COPIES: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "objectset.rio.cattle.io/applied"];

/// Fields whose values are left out wherever they are: of Secrets, which are not read, and of ConfigMaps.
const CONTENTS: [&str; 3] = ["stringData", "binaryData", "data"];

/// Returns any object without what does not belong in a bundle.
pub(super) fn trim(mut object: Value) -> Value {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
        if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !COPIES.contains(&name.as_str()));
        }
    }
    if matches!(object["kind"].as_str(), Some("Secret" | "ConfigMap")) {
        for field in CONTENTS {
            if let Some(fields) = object.get_mut(field).and_then(Value::as_object_mut) {
                fields.values_mut().for_each(|value| *value = json!(LEFT_OUT));
            }
        }
    }
    hide_variables(&mut object);
    object
}

/// Replaces the values of environment variables, whatever contains the container.
fn hide_variables(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "env"
                    && let Some(variables) = value.as_array_mut()
                {
                    for variable in variables {
                        if let Some(value) = variable.get_mut("value") {
                            *value = json!(LEFT_OUT);
                        }
                    }
                } else {
                    hide_variables(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_variables),
        _ => {}
    }
}

/// Returns a Node as far as it concerns updates: without addresses, images, volumes, and annotations of others.
pub(super) fn node(node: &k8s_openapi::api::core::v1::Node) -> Value {
    let value = serde_json::to_value(node).unwrap_or_default();
    let of_updates = |name: &str| name.contains(GROUP) || ClaimField::ALL.iter().any(|field| field.name() == name);
    let kept = |map: &str, is_kept: &dyn Fn(&str) -> bool| -> serde_json::Map<String, Value> {
        let all = value["metadata"][map].as_object().into_iter().flatten().filter(|(name, _)| is_kept(name));
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let of_labels = |name: &str| of_updates(name) || name == INTERFACE_LABEL || name.contains("kubernetes.io/");
    let facts = NodeFacts::project(node).unwrap_or_default();
    let names = |fields: planner::claims::ClaimFields| fields.iter().map(ClaimField::name).collect::<Vec<_>>();
    json!({
        "metadata": {
            "name": value["metadata"]["name"],
            "uid": value["metadata"]["uid"],
            "creationTimestamp": value["metadata"]["creationTimestamp"],
            "deletionTimestamp": value["metadata"]["deletionTimestamp"],
            "labels": kept("labels", &of_labels),
            "annotations": kept("annotations", &of_updates),
        },
        "spec": {"unschedulable": value["spec"]["unschedulable"], "taints": value["spec"]["taints"]},
        "status": {"conditions": value["status"]["conditions"], "nodeInfo": value["status"]["nodeInfo"]},
        "claims": {
            "operator": names(facts.claims),
            "others": names(facts.set_by_others),
            "since": facts.claimed_since,
        },
        "volumes": facts.volumes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_and_copies_of_objects_are_left_out() {
        let object = json!({
            "kind": "Deployment",
            "metadata": {
                "name": "a",
                "managedFields": [{"manager": "x"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret-1", "kept": "x"},
            },
            "spec": {"template": {"spec": {
                "containers": [{"name": "c", "env": [
                    {"name": "TOKEN", "value": "secret-2"},
                    {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ]}],
                "initContainers": [{"name": "i", "env": [{"name": "TOKEN", "value": "secret-3"}]}],
            }}},
        });
        let text = trim(object).to_string();
        assert!(!text.contains("secret-") && !text.contains("managedFields"), "{text}");
        assert!(text.contains("secretKeyRef") && text.contains("kept") && text.contains("TOKEN"), "{text}");
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"key": "secret-4"}});
        assert_eq!(trim(map)["data"], json!({"key": LEFT_OUT}));
    }

    #[test]
    fn node_is_kept_as_far_as_it_concerns_updates() {
        let object = json!({
            "metadata": {
                "name": "a",
                "labels": {INTERFACE_LABEL: "2.0.0", "topology.kubernetes.io/zone": "1", "team": "secret"},
                "annotations": {models::names::HOLD_ANNOTATION: "x", "other": "secret"},
                "managedFields": [{"manager": "x"}],
            },
            "spec": {"unschedulable": true, "providerID": "secret"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "secret"}],
                "images": [{"names": ["secret"]}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let kept = node(&serde_json::from_value(object).unwrap());
        let text = kept.to_string();
        assert!(!text.contains("secret") && !text.contains("managedFields"), "{text}");
        for part in [models::names::HOLD_ANNOTATION, "topology.kubernetes.io/zone", "\"unschedulable\":true", "Ready"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
