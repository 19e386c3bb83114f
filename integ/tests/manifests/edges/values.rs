//! Values at the edges of what a schema lets pass, and beyond: the API server decides which of them it accepts.

use rand::SeedableRng;
use rand::distr::Distribution;
use rand::rngs::StdRng;
use rand_regex::Regex;
use serde_json::{Map, Value, json};

use crate::samples::sample;

/// Moments that every schema of moments accepts.
pub(super) const MOMENTS: [&str; 6] = [
    "0000-01-01T00:00:00Z",
    "8999-12-31T23:59:59.999999999Z",
    "0000-01-01T00:00:00+14:59",
    "8999-12-31T23:59:59-14:59",
    "2024-02-29T23:59:59.1Z",
    "2026-11-28T20:00:00+00:00",
];

/// Texts that mean something to one reader or another, with blanks between them.
const WORDS: &str = "\
    a A ä null true 0 -0 -1 1 1.0 1e3 NaN 18446744073709551616 0% 1% 100% 101% Unknown Other / a/b a/b/c latest \
    0.0.0 v1.2.3 1.2 999999999999999999.999999999999999999.999999999999999999 1.2.3-0 1.2.3-00 1.2.3--.- \
    1.2.3-999999999999999999999999999999999999999999999999999999999 \
    1.2.3+001.000000000000000000000000000000000000000000000000000 0s 0ms 999999999h999999999h999999999h \
    999999999ms 1h1m1s1ms 0000-01-01 9999-12-31 2026-02-31 0000-01-01T00:00:00Z 9999-12-31T23:59:59Z \
    9999-12-31T23:59:59-23:59 2026-11-28T20:00:00Zgarbage 2026-11-28T20:00:00+99:99 \
    2026-11-28T20:00:00.1234567890123Z 2026-02-30T20:00:00Z 2016-12-31T23:59:60Z https://[::1";

/// More of them, which have blanks or characters that are not printed.
const TEXTS: [&str; 14] = [
    "",
    " ",
    "\u{0}",
    "a\nb",
    "\u{1b}[2J",
    "\u{202e}",
    LONE_SURROGATE,
    ">=1.20, <1.23",
    ">1, ^2, ~3 , =4",
    "1.20.5 on a/b",
    "1. on -/-",
    "2026-11-28 20:00:00Z",
    "* * * * *",
    "99 99 99 99 99",
];

/// Numbers as JSON can write them, with blanks between them. Go reads those with a point or an exponent as floating-point numbers, and
/// takes some for integers.
const NUMBERS: &str = "\
    0 -0 -0.0 0.0 1 -1 1.0 1e0 1e3 1e18 1.000000000001 0.9999999999999 9007199254740991.0 -2147483648 2147483648 \
    4294967296 -9223372036854775808 9223372036854775807 9223372036854775808 18446744073709551615 1e21";

/// Half of a character beyond the first plane, which JSON can write alone.
const LONE_SURROGATE: &str = "\u{e000}";

/// Strings that match a pattern, for each bound of its repetitions.
const MATCHES: usize = 6;

/// A number, or another part of JSON, that is to be sent as it is written here.
fn raw(text: &str) -> Value {
    format!("⟦{text}⟧").into()
}

/// Returns a value as JSON, with what [`raw`] has marked as it was written.
pub(super) fn json_of(value: &Value) -> String {
    value.to_string().replace("\"⟦", "").replace("⟧\"", "").replace(LONE_SURROGATE, "\\ud800")
}

/// Returns values for a field that has no fields of its own; `None` for others.
pub(super) fn of_leaf(schema: &Value) -> Option<Vec<Value>> {
    let mut values = match schema["type"].as_str() {
        Some("string") => texts(schema),
        Some("integer") => numbers(schema),
        Some("boolean") => vec![json!(true), json!(false), json!("true"), json!(0)],
        None if schema["x-kubernetes-int-or-string"] == true => [numbers(schema), texts(schema)].concat(),
        _ => return None,
    };
    values.push(Value::Null);
    Some(values)
}

/// Returns values for an object or a list.
pub(super) fn of_container(schema: &Value) -> Vec<Value> {
    let most = |limit: &str| schema[limit].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(0);
    if schema["type"] == "array" {
        let all = (0..most("maxItems")).map(|seed| sample(&schema["items"], "", seed));
        return vec![Value::Null, json!([]), json!([null]), json!([{}]), all.collect()];
    }
    let mut values = vec![Value::Null, json!({}), json!({"novelty": 1})];
    if schema["additionalProperties"].is_object() {
        let entry = |key: String, seed| (key, sample(&schema["additionalProperties"], "", seed));
        let keys = ["", "\u{0}", "a/b", "ä", " ", LONE_SURROGATE, &"k".repeat(1000)];
        values.extend(keys.map(|key| Value::Object(Map::from_iter([entry(key.to_owned(), 0)]))));
        let all: Map<_, _> = (0..most("maxProperties")).map(|seed| entry(format!("key-{seed}"), seed)).collect();
        values.push(all.into());
    }
    values
}

fn numbers(schema: &Value) -> Vec<Value> {
    let mut numbers: Vec<_> = NUMBERS.split(' ').map(str::to_owned).collect();
    for bound in [&schema["minimum"], &schema["maximum"]].into_iter().filter_map(Value::as_i64) {
        numbers.extend([(bound - 1).to_string(), bound.to_string(), (bound + 1).to_string(), format!("{bound}.0")]);
    }
    let mut values: Vec<_> = numbers.iter().map(|number| raw(number)).collect();
    values.extend([json!(""), json!("1"), json!(true)]);
    values
}

fn texts(schema: &Value) -> Vec<Value> {
    let mut values: Vec<Value> = TEXTS.into_iter().chain(MOMENTS).chain(WORDS.split(' ')).map(Value::from).collect();
    values.extend(schema["enum"].as_array().into_iter().flatten().cloned());
    values.extend([json!(0), raw("-0.0")]);
    if let Some(longest) = schema["maxLength"].as_u64().and_then(|longest| usize::try_from(longest).ok()) {
        values.extend(["a", "ä", "𝄞", "\u{0}"].map(|character| character.repeat(longest).into()));
        values.push("a".repeat(longest + 1).into());
        let pattern = schema["pattern"].as_str().unwrap_or_default();
        values.extend(matches(pattern, longest).into_iter().map(Value::from));
    }
    values
}

/// Returns strings that match a pattern, always the same.
fn matches(pattern: &str, longest: usize) -> Vec<String> {
    let Some(inside) = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$')) else { return Vec::new() };
    let mut random = StdRng::seed_from_u64(45);
    let mut found = Vec::new();
    for repetitions in [1, 2, 8, 60] {
        let Ok(texts) = Regex::compile(inside, repetitions) else { continue };
        found.extend((0..MATCHES).map(|_| -> String { texts.sample(&mut random) }));
    }
    found.retain(|text| text.chars().count() <= longest);
    found
}
