//! Values that the schema of a custom resource accepts.

use models::names;
use regex::Regex;
use serde_json::{Map, Value, json};

/// The fields that an object of samples has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The required ones.
    Required,
    /// All objects and lists, each list with one item, and of the other fields the required ones.
    Containers,
    /// All.
    Whole,
}

/// An object with `value` at a path, and with all required fields on the way.
pub(super) fn nested(schema: &Value, path: &[&str], value: &Value) -> Value {
    let Some((name, rest)) = path.split_first() else { return value.clone() };
    if *name == "[]" {
        return json!([nested(&schema["items"], rest, value)]);
    }
    // The status is written without the spec.
    let mut object = if *name == "status" { Map::new() } else { fields(schema, 0, Extent::Required) };
    if *name == "values" {
        object.insert("operator".to_owned(), "In".into());
    }
    object.insert((*name).to_owned(), nested(&schema["properties"][*name], rest, value));
    object.into()
}

/// Returns a value, another one for each seed.
pub(super) fn sample(schema: &Value, name: &str, seed: usize) -> Value {
    value(schema, name, seed, Extent::Required)
}

/// Returns the first value with these fields.
pub(super) fn object(schema: &Value, extent: Extent) -> Value {
    value(schema, "", 0, extent)
}

fn fields(schema: &Value, seed: usize, extent: Extent) -> Map<String, Value> {
    let required = |name: &String| schema["required"].as_array().is_some_and(|all| all.contains(&name.as_str().into()));
    let is_container = |property: &Value| matches!(property["type"].as_str(), Some("object" | "array"));
    let wanted = |name: &String, property: &Value| match extent {
        Extent::Required => required(name),
        Extent::Containers => required(name) || is_container(property),
        Extent::Whole => true,
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let wanted = properties.filter(|(name, property)| wanted(name, property));
    let mut found: Map<_, _> =
        wanted.map(|(name, property)| (name.clone(), value(property, name, seed, extent))).collect();
    if found.contains_key("objectName") {
        // One object has no selector.
        found.remove("selector");
    }
    found
}

fn value(schema: &Value, name: &str, seed: usize, extent: Extent) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        // A requirement has values where it asks for some.
        let operator = if extent == Extent::Required { "Exists" } else { "In" };
        return words.iter().find(|word| **word == operator).unwrap_or(&words[seed % words.len()]).clone();
    }
    match schema["type"].as_str() {
        Some("string") => text(schema, name, seed).into(),
        Some("integer") => {
            let number = schema["minimum"].as_i64().unwrap_or(0) + i64::try_from(seed).unwrap_or(0);
            number.min(schema["maximum"].as_i64().unwrap_or(number)).into()
        }
        Some("boolean") => (seed == 0).into(),
        Some("array") => json!([value(&schema["items"], name, seed, extent)]),
        Some("object") if schema["additionalProperties"].is_object() && extent != Extent::Required => {
            json!({"key": value(&schema["additionalProperties"], "key", seed, extent)})
        }
        Some("object") => fields(schema, seed, extent).into(),
        _ => json!(seed + 1),
    }
}

/// Returns the first text of these that fits the pattern.
fn text(schema: &Value, name: &str, seed: usize) -> String {
    let day = format!("2026-01-{:02}", seed % 28 + 1);
    match name {
        "record" => return names::OPERATOR_NAME.to_owned(),
        "query" => return "up".to_owned(),
        // A query of Prometheus has a shorter time than any other duration.
        "timeout" => return "1m".to_owned(),
        _ => {}
    }
    let all = [
        format!("name-{seed}"),
        format!("1.20.{seed}"),
        "1h".to_owned(),
        "Word".to_owned(),
        day.clone(),
        format!("{day}T00:00:00Z"),
        format!("0 {} * * *", seed % 24),
        format!("https://name-{seed}"),
        // A version of an API.
        format!("v{}", seed + 1),
    ];
    let pattern = schema["pattern"].as_str().and_then(|pattern| Regex::new(pattern).ok());
    let fits = |text: &String| pattern.as_ref().is_none_or(|pattern| pattern.is_match(text));
    all.into_iter().find(fits).unwrap_or_default()
}
