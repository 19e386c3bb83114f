//! Pages for browsers, complete in themselves: one frame and one style for all of them, light and dark.
//!
//! All text from the cluster is escaped. A content security policy lets no other script or style run, and lets the page load nothing.

use std::collections::HashMap;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use models::plain::plain;
use sha2::{Digest as _, Sha256};

use crate::page::{Cell, Style};

const FRAME: &str = include_str!("browser/page.html");
const STYLE: &str = include_str!("browser/page.css");

pub(crate) struct Document<'a> {
    pub(crate) title: &'a str,
    /// HTML below the title.
    pub(crate) head: String,
    /// HTML of the rest, which has the element `main`.
    pub(crate) main: String,
    /// The only script that may run.
    pub(crate) script: Option<&'a str>,
    pub(crate) footer: &'a str,
}

pub(crate) fn render(document: Document<'_>) -> anyhow::Result<String> {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())));
    let script = document.script.map(|script| format!("; script-src {}", hash(script))).unwrap_or_default();
    let parts = HashMap::from([
        ("policy", format!("default-src 'none'; style-src {}{script}", hash(STYLE))),
        ("title", escape(document.title)),
        ("style", STYLE.to_owned()),
        ("head", document.head),
        ("main", document.main),
        ("footer", escape(document.footer)),
    ]);
    fill(FRAME, &parts)
}

pub(crate) fn escape(text: &str) -> String {
    html_escape::encode_quoted_attribute(&plain(text)).into_owned()
}

/// Replaces each `{{name}}` of the template. What is put in is not looked at again.
pub(crate) fn fill(template: &str, parts: &HashMap<&str, String>) -> anyhow::Result<String> {
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

fn element(tag: &str, attribute: &str, cell: &Cell) -> String {
    let class = match cell.style {
        Style::Good => " class=\"good\"",
        Style::Busy => " class=\"busy\"",
        Style::Warn => " class=\"warn\"",
        Style::Bad => " class=\"bad\"",
        Style::Plain | Style::Strong | Style::Faint => "",
    };
    format!("<{tag}{attribute}{class}>{}</{tag}>", escape(&cell.text))
}

/// Returns names and values as HTML. A value without a name goes on with the one before it.
pub(crate) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, Cell)>) -> String {
    let fields = fields.into_iter().map(|(name, value)| {
        let name = if name.is_empty() { String::new() } else { element("dt", "", &Cell::new(name, value.style)) };
        format!("{name}{}\n", element("dd", "", &Cell::from(value.text)))
    });
    format!("<dl class=\"fields\">\n{}</dl>\n", fields.collect::<String>())
}

/// Returns a table as HTML: a head, and rows of cells, of which the first is the heading of its row.
pub(crate) fn table<const N: usize, C: Into<Cell>>(
    caption: &str,
    header: [&str; N],
    rows: impl Iterator<Item = [C; N]>,
) -> String {
    let header = header.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name)));
    let cell = |(index, cell): (usize, C)| match index {
        0 => element("th", " scope=\"row\"", &cell.into()),
        _ => element("td", "", &cell.into()),
    };
    let rows = rows.map(|row| format!("<tr>{}</tr>\n", row.into_iter().enumerate().map(cell).collect::<String>()));
    format!(
        "<table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>",
        escape(caption),
        header.collect::<String>(),
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_and_style_name_no_address() {
        for text in [FRAME, STYLE] {
            assert!(!text.contains("://") && !text.contains("@import"));
        }
    }
}
