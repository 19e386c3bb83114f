//! Snapshots of the output.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::page::{Page, use_colours};

/// With this environment variable the snapshots are written, and not compared.
const WRITE: &str = "BRUPOP_WRITE_SNAPSHOTS";

/// Compares a text with its snapshot, a file in `cli/snapshots`.
pub(crate) fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{} differs ({WRITE}=1 writes it):\n{text}\n--- expected:\n{expected}", path.display());
}

/// Checks that the lines of a page fit 80 and 200 columns, apart from those that may be long, and compares the page of 80 columns with
/// its snapshot in colours. Without them it is the plain page.
pub(crate) fn fitted(name: &str, page: impl Fn(usize) -> Page, may_be_long: impl Fn(&str) -> bool) {
    for width in [80, 200] {
        let plain = page(width).to_string();
        assert!(plain.lines().all(|line| line.chars().count() <= width || may_be_long(line)), "{plain}");
    }
    use_colours(true);
    let text = page(80).output();
    use_colours(false);
    let (first, rest) = text.split_once("\u{1b}[").unwrap();
    let rest = rest.split("\u{1b}[").filter_map(|part| part.split_once('m'));
    let without: String = std::iter::once(first).chain(rest.map(|(_, part)| part)).collect();
    assert_eq!(without, page(80).to_string());
    snapshot(&format!("{name}-80-colour.txt"), &text);
}

/// Returns the names of all fields in a value.
pub(crate) fn fields(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(object) => {
            object.iter().flat_map(|(name, value)| fields(value).into_iter().chain([name.clone()])).collect()
        }
        Value::Array(items) => items.iter().flat_map(fields).collect(),
        _ => BTreeSet::new(),
    }
}
