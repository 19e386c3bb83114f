//! Objects as YAML, the same bytes for the same objects.

use anyhow::Context;
use serde_json::Value;

/// Kind, namespace and name of an object, for messages and comments.
pub fn id(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let kind = text(&object["kind"]);
    let name = text(&object["metadata"]["name"]);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// The objects as YAML documents, each after a line of its own.
///
/// # Errors
/// If an object cannot be written as YAML.
pub fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text = String::new();
    for object in objects {
        let document = serde_saphyr::to_string_with_options(&sorted(object), options.clone())
            .with_context(|| format!("cannot write {} as YAML", id(object)))?;
        text.push_str("---\n");
        text.push_str(document.trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// The same value with the keys of its maps in order, whatever order the JSON library keeps.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same_objects() {
        let objects = crate::objects(&crate::Options::default()).unwrap();
        let text = documents(&objects).unwrap();
        let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(read, objects);
    }

    #[test]
    fn strings_that_look_like_something_else_stay_strings() {
        let object = serde_json::json!({
            "kind": "X", "metadata": {"name": "x"},
            "data": {"a": "true", "b": "2.0.0", "c": "1", "d": "1e3", "e": "on", "f": "", "g": "~", "h": "- a: b", "i": "two\nlines"},
        });
        let text = documents(std::slice::from_ref(&object)).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, object);
    }
}
