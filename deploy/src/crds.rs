//! The custom resource definitions, made from the types in `models`.

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use models::history::BottlerocketRolloutHistory;
use models::operator::{BOUNDS, BottlerocketUpdateOperator, Bound};
use models::shadow::BottlerocketShadow;
use serde_json::{Map, Value, json};

use crate::object;

/// All custom resource definitions.
///
/// # Errors
/// If one cannot be written as JSON, which would be a defect.
pub fn all() -> anyhow::Result<Vec<Value>> {
    let crds = [BottlerocketShadow::crd(), BottlerocketUpdateOperator::crd(), BottlerocketRolloutHistory::crd()];
    crds.into_iter().map(definition).collect()
}

/// The definition of the resource `kind`.
///
/// # Errors
/// If there is none of that kind.
pub fn of_kind(kind: &str) -> anyhow::Result<Value> {
    all()?
        .into_iter()
        .find(|crd| crd["spec"]["names"]["kind"] == kind)
        .with_context(|| format!("there is no custom resource of kind {kind}"))
}

fn definition(crd: CustomResourceDefinition) -> anyhow::Result<Value> {
    let mut crd = serde_json::to_value(crd)?;
    // Distinguishes these definitions from those of the earlier operator, which have the same group and in part the
    // same names.
    crd["metadata"]["labels"] = object::cluster("")["labels"].take();
    // There is no conversion webhook that an upgrade could wait for or that could be down.
    crd["spec"]["conversion"] = json!({"strategy": "None"});
    let is_operator = crd["spec"]["names"]["kind"] == OPERATOR_KIND;
    let versions = crd["spec"]["versions"].as_array_mut().context("a definition without versions")?;
    for version in versions {
        let schema = &mut version["schema"]["openAPIV3Schema"];
        tidy(schema);
        if let Some(spec) = schema["properties"]["spec"].as_object_mut()
            && may_be_empty(spec)
        {
            // A spec is not optional to its readers, so an emptied one becomes `{}` again and not null.
            spec.insert("default".to_owned(), json!({}));
        }
        if is_operator {
            limit_durations(&mut schema["properties"]["spec"])?;
        }
    }
    Ok(crd)
}

/// The resource whose durations have bounds.
const OPERATOR_KIND: &str = "BottlerocketUpdateOperator";

/// Beginning of the rules that limit durations.
pub(crate) const DURATION_RULE: &str = "duration(self) >= ";

/// Adds the bounds of durations to the schema of the policy.
fn limit_durations(spec: &mut Value) -> anyhow::Result<()> {
    for bound in BOUNDS {
        for place in bound.places() {
            let pointer: String = place.split('.').fold(String::new(), |pointer, name| match name.strip_suffix("[]") {
                Some(list) => format!("{pointer}/properties/{list}/items"),
                None => format!("{pointer}/properties/{name}"),
            });
            let field = spec.pointer_mut(&pointer).with_context(|| format!("spec has no {place}"))?;
            let Bound { min, max, .. } = bound;
            field["x-kubernetes-validations"] = json!([{
                "rule": format!("{DURATION_RULE}duration('{min}') && duration(self) <= duration('{max}')"),
                "message": format!("write a duration from {min} to {max}"),
            }]);
        }
    }
    Ok(())
}

/// Converts the output of schemars and kube into the form that the API server requires:
///
/// * An optional field is absent, never null: a null would count as present for `has()` in a rule. The exceptions
///   are optional objects that may be empty: server-side apply of `{}` over fields that the same manager had applied
///   leaves null behind, and would otherwise be refused.
/// * Bounds of integers are integers.
/// * A description is a line of text, not source text with line breaks.
fn tidy(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    if !may_be_empty(schema) {
        schema.remove("nullable");
    }
    schema.remove("title");
    for bound in ["minimum", "maximum"] {
        if let Some(bound) = schema.get_mut(bound) {
            whole(bound);
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get_mut(key) {
            tidy(child);
        }
    }
}

/// Returns true if `{}` is valid for this schema.
fn may_be_empty(schema: &Map<String, Value>) -> bool {
    schema.get("type").is_some_and(|type_| type_ == "object") && !schema.contains_key("required")
}

/// Writes `1.0` as `1`.
fn whole(number: &mut Value) {
    if let Some(float) = number.as_f64()
        && let Ok(integer) = format!("{float:.0}").parse::<i64>()
        && number.as_i64().is_none()
        && float.fract() == 0.0
    {
        *number = integer.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Violations of the API server's rules (errors and warnings) and of this project's, with the path.
    fn complaints(schema: &Value, path: &str, found: &mut Vec<String>) {
        const KEYS: &[&str] = &[
            "type",
            "description",
            "properties",
            "required",
            "items",
            "enum",
            "format",
            "default",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "maxItems",
            "maxProperties",
            "additionalProperties",
            "pattern",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-validations",
            "x-kubernetes-int-or-string",
        ];
        let mut complain = |what: &str| found.push(format!("{path}: {what}"));
        let Some(object) = schema.as_object() else { return complain("is no object") };
        for key in object.keys() {
            let allowed = KEYS.contains(&key.as_str()) || (key == "nullable" && may_be_empty(object));
            if !allowed {
                complain(&format!("has {key}"));
            }
        }
        if schema["description"].as_str().is_none_or(str::is_empty) && !path.ends_with("[]") && !path.is_empty() {
            complain("has no description");
        }
        if let Some(values) = schema["enum"].as_array()
            && !path.ends_with(".conditions[].status")
            && values.iter().any(|value| value.is_null() || value == "Unknown")
        {
            complain("lets null or Unknown be written");
        }
        match (schema["type"].as_str(), schema["format"].as_str()) {
            (None, None) if schema["x-kubernetes-int-or-string"] == true && schema["maxLength"].is_u64() => {}
            (Some("string"), Some("date-time")) if schema["pattern"].is_string() => {}
            (Some("string"), Some("date-time")) => complain("lets moments be written that no program can read"),
            (Some("string"), None) if schema["enum"].is_array() || schema["maxLength"].is_u64() => {}
            (Some("string"), None) => complain("has no maxLength"),
            (Some("integer"), Some("int64" | "int32")) | (Some("boolean"), None) => {}
            (Some("array"), None) => {
                if !schema["maxItems"].is_u64() {
                    complain("has no maxItems");
                }
                match schema["x-kubernetes-list-type"].as_str() {
                    Some("atomic") => {}
                    Some("map") if schema["x-kubernetes-list-map-keys"].is_array() => {}
                    other => complain(&format!("is a list of type {other:?}")),
                }
                complaints(&schema["items"], &format!("{path}[]"), found);
            }
            (Some("object"), None) if schema["additionalProperties"].is_object() => {
                if !schema["maxProperties"].is_u64() {
                    complain("has no maxProperties");
                }
                complaints(&schema["additionalProperties"], &format!("{path}[]"), found);
            }
            (Some("object"), None) => {
                let Some(properties) = schema["properties"].as_object() else {
                    return complain("has no properties");
                };
                for (name, property) in properties {
                    complaints(property, &format!("{path}.{name}"), found);
                }
            }
            (type_, format) => complain(&format!("has type {type_:?} and format {format:?}")),
        }
    }

    #[test]
    fn schemas_are_structural_with_limits_and_descriptions() {
        for crd in all().unwrap() {
            assert_eq!(crd["spec"]["conversion"]["strategy"], "None");
            for version in crd["spec"]["versions"].as_array().unwrap() {
                let mut found = Vec::new();
                complaints(&version["schema"]["openAPIV3Schema"], "", &mut found);
                assert!(found.is_empty(), "{}: {found:#?}", crd["metadata"]["name"]);
                assert!(version["subresources"]["status"].is_object());
            }
        }
        assert_eq!(schema("BottlerocketUpdateOperator")["properties"]["spec"]["default"], json!({}));
        assert!(schema("BottlerocketShadow")["properties"]["spec"]["properties"]["permit"]["nullable"].is_null());
    }

    fn schema(kind: &str) -> Value {
        of_kind(kind).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
    }

    /// The paths of the durations in a schema that have bounds, and of those that have none.
    fn durations(schema: &Value, path: &str, bounded: &mut [Vec<String>; 2]) {
        let pattern =
            serde_json::to_value(schemars::schema_for!(models::duration::Duration)).unwrap()["pattern"].take();
        if schema["pattern"] == pattern {
            let rule = schema["x-kubernetes-validations"][0]["rule"].as_str().unwrap_or_default();
            bounded[usize::from(!rule.starts_with(DURATION_RULE))].push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            durations(property, &format!("{path}.{name}"), bounded);
        }
        if schema["items"].is_object() {
            durations(&schema["items"], &format!("{path}[]"), bounded);
        }
    }

    #[test]
    fn every_duration_of_policy_has_bounds() {
        let operator = schema("BottlerocketUpdateOperator");
        let mut found = [Vec::new(), Vec::new()];
        durations(&operator["properties"]["spec"], "spec", &mut found);
        let [bounded, unbounded] = found;
        assert_eq!(unbounded, [""; 0]);
        assert_eq!(bounded.len(), BOUNDS.iter().flat_map(Bound::places).count());
        let timeout = &operator["properties"]["spec"]["properties"]["drain"]["properties"]["timeout"];
        assert_eq!(
            timeout["x-kubernetes-validations"],
            json!([{
                "rule": "duration(self) >= duration('1s') && duration(self) <= duration('168h')",
                "message": "write a duration from 1s to 168h",
            }])
        );
    }

    #[test]
    fn field_description_overrides_type_description() {
        let shadow = schema("BottlerocketShadow");
        let state = &shadow["properties"]["status"]["properties"]["state"]["description"];
        assert!(state.as_str().unwrap().starts_with("State reached"), "{state}");
        let operator = schema("BottlerocketUpdateOperator");
        let end = &operator["properties"]["spec"]["properties"]["drain"]["properties"]["atDeadline"]["description"];
        assert!(end.as_str().unwrap().contains("Default Release"), "{end}");
    }
}
