//! The shadow's definition while the operator takes over from the earlier one: the versions v1 and v2 are served as
//! well, for reading alone, until no object is stored in them any more.

use anyhow::Context as _;
use kube::Resource as _;
use models::earlier;
use models::names::GROUP;
use models::shadow::BottlerocketShadow;
use serde_json::{Value, json};

use crate::crds;
use crate::object::cluster;

/// Message with which the API server refuses a write at v1 or v2.
pub const READ_ONLY_MESSAGE: &str = "versions v1 and v2 of BottlerocketShadow are read-only: the operator has taken over from the \
     earlier one, and a write at these versions would lose data";

/// The definition that serves v1, v2 and v3, and stores v3.
///
/// # Errors
/// If it cannot be written as JSON, which would be a defect.
pub fn definition() -> anyhow::Result<Value> {
    let mut definition = crds::of_kind(&BottlerocketShadow::kind(&()))?;
    if let Some(versions) = definition["spec"]["versions"].as_array_mut() {
        versions.splice(0..0, earlier::VERSIONS.map(version));
    }
    Ok(definition)
}

/// The versions of a definition of the earlier operator, and v3 after them, which is served and not stored.
///
/// # Errors
/// If v3 cannot be written as JSON, which would be a defect, or the definition has no versions.
pub fn versions_with_own(earlier: &Value) -> anyhow::Result<Value> {
    let mut versions = earlier.as_array().context("the recorded definition has no versions")?.clone();
    let mut own = crds::of_kind(&BottlerocketShadow::kind(&()))?["spec"]["versions"].clone();
    for version in own.as_array_mut().into_iter().flatten() {
        version["storage"] = json!(false);
        versions.push(version.clone());
    }
    Ok(versions.into())
}

/// The admission policy that refuses every write at v1 and v2, and its binding. From the moment v3 is the storage
/// version such a write would store an object without all that only v3 has.
pub fn read_only_policy() -> [Value; 2] {
    let plural = BottlerocketShadow::plural(&());
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": cluster(earlier::READ_ONLY_POLICY),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                // Writes at v3 are the operator's own.
                "matchPolicy": "Exact",
                "resourceRules": [{
                    "apiGroups": [GROUP], "apiVersions": earlier::VERSIONS,
                    "resources": [plural, format!("{plural}/status")], "operations": ["CREATE", "UPDATE"],
                }],
            },
            "validations": [{"expression": "false", "message": READ_ONLY_MESSAGE}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": cluster(earlier::READ_ONLY_POLICY),
        "spec": {"policyName": earlier::READ_ONLY_POLICY, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

/// One of the earlier operator's versions, with the schema that its objects were written under.
fn version(name: &str) -> Value {
    let states = match name {
        "v1" => json!(["Idle", "StagedUpdate", "PerformedUpdate", "RebootedIntoUpdate", "MonitoringUpdate"]),
        _ => json!(["Idle", "StagedAndPerformedUpdate", "RebootedIntoUpdate", "MonitoringUpdate", "ErrorReset"]),
    };
    let text = json!({"type": "string"});
    let optional_text = json!({"type": "string", "nullable": true});
    let mut status = json!({
        "type": "object", "nullable": true, "required": ["current_state", "current_version", "target_version"],
        "properties": {
            "current_state": {"type": "string", "enum": states}, "current_version": text, "target_version": text,
        },
    });
    if name == "v2" {
        status["required"] = json!(["crash_count", "current_state", "current_version", "target_version"]);
        status["properties"]["crash_count"] = json!({"type": "integer", "format": "uint32", "minimum": 0});
        status["properties"]["state_transition_failure_timestamp"] = optional_text.clone();
    }
    json!({
        "name": name, "served": true, "storage": false, "deprecated": true,
        "deprecationWarning": "this version belongs to the earlier operator and is read-only; use v3",
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {
            "type": "object", "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object", "required": ["state"],
                    "properties": {
                        "state": {"type": "string", "enum": states},
                        "state_transition_timestamp": optional_text, "version": optional_text,
                    },
                },
                "status": status,
            },
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takeover_definition_is_the_installed_one_with_two_more_versions() {
        let mut takeover = definition().unwrap();
        let versions = takeover["spec"]["versions"].as_array_mut().unwrap();
        let names: Vec<_> = versions.iter().map(|version| version["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["v1", "v2", "v3"]);
        assert_eq!(versions.iter().filter(|version| version["storage"] == true).count(), 1);
        assert!(versions.drain(..2).all(|version| version["storage"] == false && version["served"] == true));
        assert_eq!(takeover, crds::of_kind("BottlerocketShadow").unwrap());
    }
}
