//! A rollout as a page for browsers: nodes over time, with their phases.
//!
//! The script of the page puts text from the cluster, which is JSON without `<`, into text nodes only.

use std::collections::HashMap;

use anyhow::Context as _;
use serde_json::Value;

use crate::browser::{self, Document, fields, fill};
use crate::page::Cell;

pub(crate) const TEMPLATE: &str = include_str!("timeline/main.html");
pub(crate) const SCRIPT: &str = include_str!("timeline/page.js");

/// Returns a value as JSON that may be inside a `script` element.
fn embedded(value: &Value) -> anyhow::Result<String> {
    let text = serde_json::to_string(value).context("the data of the page is no JSON")?;
    // Outside of strings, JSON has none of these.
    Ok(text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

pub(crate) struct Sheet {
    pub(crate) title: String,
    /// Names and values, shown above the timeline.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// The nodes and their attempts, as the script reads them.
    pub(crate) data: Value,
    /// Tables, as HTML of [`browser::table`].
    pub(crate) tables: Vec<String>,
    pub(crate) footer: String,
}

pub(crate) fn render(sheet: &Sheet) -> anyhow::Result<String> {
    let parts = HashMap::from([
        ("script", SCRIPT.to_owned()),
        ("data", embedded(&sheet.data)?),
        ("tables", sheet.tables.join("\n")),
    ]);
    browser::render(Document {
        title: &sheet.title,
        head: fields(sheet.fields.iter().map(|(name, value)| (*name, Cell::from(value.clone())))),
        main: fill(TEMPLATE, &parts)?,
        script: Some(SCRIPT),
        footer: &sheet.footer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_no_other_address() {
        for text in [TEMPLATE, SCRIPT] {
            assert!(!text.replace("http://www.w3.org/2000/svg", "").contains("://"));
            assert!(!text.contains("innerHTML") && !text.contains("@import"));
        }
    }
}
