//! JSON schemas of values.

use serde_json::{Value, json};

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn pattern(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

pub(super) fn one_of(texts: &[&str]) -> Value {
    json!({"type": "string", "enum": texts})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn integer(minimum: i64, maximum: i64) -> Value {
    json!({"type": "integer", "minimum": minimum, "maximum": maximum})
}

/// A map whose content is the API server's to check.
pub(super) fn map() -> Value {
    json!({"type": "object"})
}

/// Texts by name, such as labels.
pub(super) fn texts() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

#[expect(clippy::needless_pass_by_value, reason = "schemas are made where they are used")]
pub(super) fn list_of(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Quantities of resources by name, for requests and limits.
pub(super) fn resources() -> Value {
    let quantities = json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {"requests": quantities, "limits": quantities, "claims": {"type": "array"}},
    })
}

/// A schema of a custom resource definition as one that refuses what the API server would drop or refuse. Validation rules
/// are the API server's alone.
pub(super) fn strict(schema: &Value) -> Value {
    let Some(fields) = schema.as_object() else { return schema.clone() };
    let mut strict = json!({});
    for key in [
        "type",
        "format",
        "enum",
        "required",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "maxItems",
        "maxProperties",
        "pattern",
    ] {
        if let Some(value) = fields.get(key) {
            strict[key] = value.clone();
        }
    }
    if fields.get("x-kubernetes-int-or-string").is_some_and(|is| is == true) {
        strict["type"] = json!(["integer", "string"]);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = fields.get(key) {
            strict[key] = self::strict(child);
        }
    }
    if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
        let properties = properties.iter().map(|(name, property)| (name.clone(), self::strict(property)));
        strict["properties"] = Value::Object(properties.collect());
        strict["additionalProperties"] = false.into();
    }
    strict
}
