//! All output of the program. It is made plain first, since much of it was written by other clients, who may target the
//! terminal and not its reader.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "nothing else in this program prints")]

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use models::plain::{plain, shown};
use serde_json::Value;

/// Lines and tables that are printed together. Whatever the input, a line is one line and a cell a part of one.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// Adds a line.
    pub(crate) fn line(&mut self, text: impl fmt::Display) {
        self.0.push_str(&plain(&text.to_string()));
        self.0.push('\n');
    }

    /// Adds each line of a text.
    pub(crate) fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    /// Adds an object as JSON, for programs: what a terminal would obey is escaped, so that the value stays the same.
    pub(crate) fn json(&mut self, value: &Value) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value).context("the output is no JSON")?;
        let escaped = |c: char| -> String {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        };
        self.text(
            &text
                .chars()
                .map(|c| if c == '\n' || shown(c) == c { c.to_string() } else { escaped(c) })
                .collect::<String>(),
        );
        Ok(())
    }

    /// Adds a table. A row that is wider than `width` is cut there, and ends with an ellipsis; returns true if one was.
    pub(crate) fn table<const N: usize>(
        &mut self,
        header: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        width: Option<usize>,
    ) -> bool {
        let mut cut = false;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        for row in rows {
            table.add_row(row.map(|cell| plain(&cell)));
        }
        for line in table.lines() {
            match width {
                Some(width) if line.trim_end().chars().count() > width => {
                    cut = true;
                    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
                    self.line(format_args!("{}…", kept.trim_end()));
                }
                _ => self.line(line.trim_end()),
            }
        }
        cut
    }

    /// Prints it. A client that has closed the other end of a pipe is no error.
    pub(crate) fn print(&self) -> io::Result<()> {
        let written = io::stdout().write_all(self.0.as_bytes());
        written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints a line of progress; a failure to print is ignored.
pub(crate) fn print_line(text: impl fmt::Display) {
    let mut page = Page::default();
    page.line(text);
    let _ = page.print();
}

/// Prints a question, and stays on its line.
fn ask(question: &str) -> io::Result<()> {
    print!("{} ", plain(question));
    io::stdout().flush()
}

/// Asks a question; an error unless the answer is yes. `otherwise` is for a caller without a terminal.
pub(crate) fn confirm(otherwise: &str, question: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        anyhow::bail!("{otherwise}");
    }
    ask(question)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was done");
    Ok(())
}

/// Prints an error with all causes, on several lines. A server may have written some of it.
pub(crate) fn complain(error: &anyhow::Error) {
    eprint!("{}", complaint(error));
}

/// Prints a line of progress, on the standard error.
pub(crate) fn progress(text: impl fmt::Display) {
    eprintln!("{}", plain(&text.to_string()));
}

/// Prints a warning, on one line of the standard error.
pub(crate) fn warn(text: impl fmt::Display) {
    eprintln!("Warning: {}", plain(&text.to_string()));
}

fn complaint(error: &anyhow::Error) -> Page {
    let mut page = Page::default();
    for line in format!("Error: {error:?}").lines() {
        page.line(line);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\u{1b}[2J\r\nok\u{202e}";

    #[test]
    fn printed_lines_contain_no_line_breaks_or_control_characters() {
        let mut page = Page::default();
        page.line(HOSTILE);
        page.table(["A", "B"], [[HOSTILE.to_owned(), "b".to_owned()]], None);
        let text = page.to_string();
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn json_keeps_its_value_and_contains_no_control_characters() {
        let value = serde_json::json!({HOSTILE: [HOSTILE, "\u{e0041}"]});
        let mut page = Page::default();
        page.json(&value).unwrap();
        let text = page.to_string();
        assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn error_message_keeps_line_breaks_without_control_characters() {
        let error = anyhow::anyhow!("the server returned {HOSTILE}").context("nodes cannot be read:\n  a\n  b");
        let text = complaint(&error).to_string();
        assert!(text.starts_with("Error: nodes cannot be read:\n  a\n  b\n\nCaused by:\n"), "{text:?}");
        assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
    }
}
