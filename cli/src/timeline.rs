//! A rollout as a page for browsers, complete in itself: nodes over time, with their phases.
//!
//! All text from the cluster is either escaped HTML or JSON without `<`, which the script of the page puts into text nodes
//! only. A content security policy lets no other script or style run, and lets the page load nothing.

use std::collections::HashMap;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use models::plain::plain;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub(crate) const TEMPLATE: &str = include_str!("timeline/page.html");
const STYLE: &str = include_str!("timeline/page.css");
pub(crate) const SCRIPT: &str = include_str!("timeline/page.js");

fn escape(text: &str) -> String {
    html_escape::encode_quoted_attribute(&plain(text)).into_owned()
}

/// Returns a value as JSON that may be inside a `script` element.
fn embedded(value: &Value) -> anyhow::Result<String> {
    let text = serde_json::to_string(value).context("the data of the page is no JSON")?;
    // Outside of strings, JSON has none of these.
    Ok(text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

/// Replaces each `{{name}}` of the template. What is put in is not looked at again.
fn fill(template: &str, parts: &HashMap<&str, String>) -> anyhow::Result<String> {
    let mut filled = String::new();
    let mut pieces = template.split("{{");
    filled.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").context("the template has a name without an end")?;
        filled.push_str(parts.get(name).with_context(|| format!("the template names {name}, which is unknown"))?);
        filled.push_str(rest);
    }
    Ok(filled)
}

/// Returns a table as HTML: a head, and rows of cells.
pub(crate) fn table<const N: usize>(
    caption: &str,
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let cells = |cells: &[String], tag: &str| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let header: String = header.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
    let rows: String = rows.map(|row| format!("<tr>{}</tr>\n", cells(&row, "td"))).collect();
    format!(
        "<table><caption>{}</caption><thead><tr>{header}</tr></thead><tbody>\n{rows}</tbody></table>",
        escape(caption)
    )
}

pub(crate) struct Sheet {
    pub(crate) title: String,
    /// Names and values, shown above the timeline.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// The nodes and their attempts, as the script reads them.
    pub(crate) data: Value,
    /// Tables, as HTML of [`table`].
    pub(crate) tables: Vec<String>,
    pub(crate) footer: String,
}

pub(crate) fn render(sheet: &Sheet) -> anyhow::Result<String> {
    let fields = sheet.fields.iter();
    let fields = fields.map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value)));
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())));
    let parts = HashMap::from([
        ("policy", format!("default-src 'none'; style-src {}; script-src {}", hash(STYLE), hash(SCRIPT))),
        ("title", escape(&sheet.title)),
        ("style", STYLE.to_owned()),
        ("script", SCRIPT.to_owned()),
        ("fields", fields.collect()),
        ("data", embedded(&sheet.data)?),
        ("tables", sheet.tables.join("\n")),
        ("footer", escape(&sheet.footer)),
    ]);
    fill(TEMPLATE, &parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_no_other_address() {
        for text in [TEMPLATE, STYLE, SCRIPT] {
            assert!(!text.replace("http://www.w3.org/2000/svg", "").contains("://"));
            assert!(!text.contains("innerHTML") && !text.contains("@import"));
        }
    }
}
