//! Objects as YAML, the same bytes for the same objects.

use anyhow::Context;
use serde_json::Value;
use textwrap::WordSplitter;

use crate::rights;

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

/// Longest line of a comment.
const WIDTH: usize = 120;

/// The objects as YAML documents, each after a separator line. Above each rule of a role is its reason.
///
/// # Errors
/// If an object cannot be written as YAML.
pub fn documents(objects: &[Value]) -> anyhow::Result<String> {
    objects.iter().map(|object| document(object, &rights::reasons(object))).collect()
}

/// An object as a YAML document after a separator line, with the reasons of its rules.
///
/// # Errors
/// If it cannot be written as YAML.
pub(crate) fn document(object: &Value, reasons: &[&str]) -> anyhow::Result<String> {
    let document = value(object).with_context(|| format!("cannot write {} as YAML", id(object)))?;
    Ok(format!("---\n{}", explained(document.trim_end(), reasons)))
}

/// A value as YAML, its keys in order, whatever order the JSON library keeps.
///
/// # Errors
/// If it cannot be written as YAML.
pub(crate) fn value(value: &Value) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut sorted = value.clone();
    sorted.sort_all_objects();
    Ok(serde_saphyr::to_string_with_options(&sorted, options)?)
}

/// A document with a reason above each item of `rules`. The items begin at the margin, and nothing within them does.
fn explained(document: &str, reasons: &[&str]) -> String {
    let (mut text, mut reasons, mut among_rules) = (String::new(), reasons.iter(), false);
    for line in document.lines() {
        if among_rules
            && line.starts_with("- ")
            && let Some(reason) = reasons.next()
        {
            text.push_str(&comment(reason));
        }
        among_rules |= line == "rules:";
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Wraps words as lines of a comment.
pub(crate) fn comment(words: &str) -> String {
    let options = textwrap::Options::new(WIDTH).initial_indent("# ").subsequent_indent("# ").break_words(false);
    textwrap::fill(words, options.word_splitter(WordSplitter::NoHyphenation)) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_output_round_trips() {
        let mut objects = crate::objects(&crate::Options::default()).unwrap();
        // Strings that look like something else.
        objects.push(serde_json::json!({
            "kind": "X", "metadata": {"name": "x"},
            "data": {"a": "true", "b": "2.0.0", "c": "1", "d": "1e3", "e": "on", "f": "", "g": "~", "h": "- a: b", "i": "two\nlines"},
        }));
        let text = documents(&objects).unwrap();
        let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(read, objects);
    }

    #[test]
    fn yaml_output_has_reason_above_each_rbac_rule() {
        let objects = crate::everything().unwrap();
        let text = documents(&objects).unwrap();
        let mut rules = 0;
        for document in text.split("---\n") {
            let lines: Vec<&str> = document.lines().skip_while(|line| *line != "rules:").collect();
            for pair in lines.windows(2).filter(|pair| pair[1].starts_with("- ")) {
                assert!(pair[0].starts_with("# ") && pair[0].len() <= WIDTH, "{pair:?}");
                rules += 1;
            }
        }
        let expected: usize = objects.iter().filter_map(|object| object["rules"].as_array()).map(Vec::len).sum();
        assert!(rules == expected && rules > 20, "{rules} of {expected}");
    }
}
