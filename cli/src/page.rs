//! All output of the program. It is made plain first, since much of it was written by other clients, who may target the
//! terminal and not its reader. Nothing is printed by the macros of the standard library: they panic where the output is closed.

mod commands;
mod screen;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use models::plain::{plain, shown};
use serde_json::Value;
use textwrap::{Options, WordSplitter};

use self::commands::parts;
pub(crate) use commands::{lines_of, with_commands};
pub(crate) use screen::Screen;

thread_local! {
    // All pages are printed by one thread, and each unit test has its own.
    static COLOURS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Prints pages with colours from now on, or without.
pub(crate) fn use_colours(on: bool) {
    COLOURS.set(on);
}

/// Emphasis of a text on a terminal with colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// It is under way, or waits.
    Busy,
    /// A user has something to do.
    Warn,
    /// It has failed, or stands still.
    Bad,
    /// It matters less.
    Faint,
}

impl Style {
    /// The parameters of the terminal's control sequence.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "1",
            Self::Good => "32",
            Self::Busy => "36",
            Self::Warn => "33",
            Self::Bad => "31",
            Self::Faint => "2",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(text, Style::Plain)
    }
}

/// Takes a field: its label, the style of that, and its text.
pub(crate) type Fields<'a> = dyn FnMut(&str, Style, &str) + 'a;

/// Adds a field for each of these sentences up to a number, and one with the number of the others.
pub(crate) fn first_of(
    label: &str,
    style: Style,
    sentences: &[String],
    most: usize,
    left_out: &str,
    add: &mut Fields<'_>,
) {
    sentences.iter().take(most).for_each(|sentence| add(label, style, sentence));
    if let more @ 1.. = sentences.len().saturating_sub(most) {
        add("", Style::Plain, &format!("and {more} more{left_out}"));
    }
}

/// A part of a line, in characters, with its style.
type Span = (std::ops::Range<usize>, Style);

/// Lines and tables that are printed together. Whatever the input, a line is one line and a cell a part of one.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// With the control sequences of its styles.
    text: String,
    /// Maximum width of a line; `None`: every text in full.
    width: Option<usize>,
    /// True if a row of a table was wider.
    cut: bool,
    /// The command that has `-o`, where the one that prints the page has not.
    other: Option<String>,
}

impl Page {
    pub(crate) fn of_width(width: Option<usize>) -> Self {
        Self { width, ..Self::default() }
    }

    /// Names the command that has `-o`, where the one that prints the page has not.
    pub(crate) fn whole_in(mut self, command: Option<String>) -> Self {
        self.other = command;
        self
    }

    /// Returns the end of a sentence with the number of objects that are left out.
    pub(crate) fn left_out(&self) -> String {
        match &self.other {
            None => " (-o json has them)".to_owned(),
            Some(command) => format!(": {command} -o json"),
        }
    }

    pub(crate) fn line(&mut self, text: impl fmt::Display) {
        self.styled_line(&text.to_string(), &[]);
    }

    /// Adds a line with styles. The spans are in order and do not overlap.
    fn styled_line(&mut self, text: &str, spans: &[Span]) {
        let mut spans = spans.iter().filter(|(span, style)| !span.is_empty() && *style != Style::Plain);
        let mut next = spans.next();
        for (index, c) in text.chars().chain([' ']).enumerate() {
            if let Some((span, _)) = next
                && span.end == index
            {
                self.text.push_str("\u{1b}[0m");
                next = spans.next();
            }
            if let Some((span, style)) = next
                && span.start == index
            {
                self.text.push_str("\u{1b}[");
                self.text.push_str(style.code());
                self.text.push('m');
            }
            self.text.push(shown(c));
        }
        self.text.pop();
        self.text.push('\n');
    }

    /// Adds each line of a text.
    pub(crate) fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    /// Adds a text with a label before it. It is wrapped at words and before and after commands, and its further lines are indented like
    /// the first.
    pub(crate) fn field(&mut self, label: &str, style: Style, text: &str) {
        let indent = LABEL.max(label.chars().count() + 1);
        self.indented(label, indent, style, text);
    }

    /// Adds fields as [`first_of`] makes them.
    pub(crate) fn fields(&mut self, label: &str, style: Style, sentences: &[String], most: usize) {
        let left_out = self.left_out();
        let mut add = |label: &str, style: Style, text: &str| self.field(label, style, text);
        first_of(label, style, sentences, most, &left_out, &mut add);
    }

    /// Adds a field of commands, each whole on a line of its own, after its note.
    pub(crate) fn commands(&mut self, label: &str, style: Style, commands: &[String]) {
        let width = self.width.take();
        for (index, line) in commands.iter().flat_map(|command| lines_of(command)).enumerate() {
            self.field(if index == 0 { label } else { "" }, style, &line);
        }
        self.width = width;
    }

    /// Adds a text without a label, wrapped at words.
    pub(crate) fn paragraph(&mut self, text: &str) {
        self.indented("", 0, Style::Plain, text);
    }

    /// Adds a text that begins at this column, after its label.
    pub(crate) fn indented(&mut self, label: &str, indent: usize, style: Style, text: &str) {
        let text = plain(text);
        let lines = match self.width {
            Some(width) => wrap(&text, width.saturating_sub(indent).max(NARROWEST)),
            None => vec![text.split_whitespace().collect::<Vec<_>>().join(" ")],
        };
        for (index, line) in lines.into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.styled_line(&format!("{label:indent$}{line}"), &[(0..label.chars().count(), style)]);
        }
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

    pub(crate) fn yaml(&mut self, value: &Value) -> anyhow::Result<()> {
        self.text(&serde_saphyr::to_string(value).context("the output is no YAML")?);
        Ok(())
    }

    /// Adds a table. A row that is wider than the page is cut there, and ends with an ellipsis.
    pub(crate) fn table<const N: usize, C: Into<Cell>>(
        &mut self,
        header: [&str; N],
        rows: impl IntoIterator<Item = [C; N]>,
    ) {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        let mut styles: Vec<[Style; N]> = vec![[Style::Faint; N]];
        for row in rows {
            let cells = row.map(Into::into);
            styles.push(std::array::from_fn(|index| cells[index].style));
            table.add_row(cells.map(|cell| plain(&cell.text)));
        }
        // Each cell has a space before it and after it.
        let widths = table.column_max_content_widths();
        for (line, styles) in table.lines().zip(styles) {
            let line = line.trim_end();
            let kept = match self.width {
                Some(width) if line.chars().count() > width => {
                    self.cut = true;
                    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
                    format!("{}…", kept.trim_end())
                }
                _ => line.to_owned(),
            };
            let (length, mut from) = (kept.chars().count(), 1);
            let spans = widths.iter().zip(styles).map(|(width, style)| {
                let span = from..(from + usize::from(*width)).min(length);
                from += usize::from(*width) + 2;
                (span, style)
            });
            self.styled_line(&kept, &spans.collect::<Vec<_>>());
        }
    }

    pub(crate) fn cut_note(&mut self) {
        if self.cut {
            let text = match &self.other {
                None => "Lines that end with … are cut: -o wide shows them whole.".to_owned(),
                Some(command) => format!("Lines that end with … are cut. They are whole in: {command} -o wide"),
            };
            self.paragraph(&text);
        }
    }

    /// Returns what the output shows of it.
    pub(crate) fn output(&self) -> String {
        if COLOURS.get() { self.text.clone() } else { self.to_string() }
    }

    /// Prints it. A client that has closed the other end of a pipe is no error.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        match io::stdout().write_all(self.output().as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("the standard output cannot be written"),
        }
    }
}

/// The text without styles.
impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.text.split("\u{1b}[");
        f.write_str(parts.next().unwrap_or_default())?;
        parts.filter_map(|part| part.split_once('m')).try_for_each(|(_, text)| f.write_str(text))
    }
}

/// Column at which the text of a field begins.
const LABEL: usize = 11;

/// Least number of columns for the text of a field, however narrow the terminal is.
const NARROWEST: usize = 20;

/// Breaks a line at spaces. A word that is too long for a line is broken too. A command is a line of its own, and whole, so that it can be
/// copied.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width).word_splitter(WordSplitter::NoHyphenation);
    let mut lines = Vec::new();
    for (words, is_command) in parts(text) {
        let text = words.join(" ");
        if is_command {
            lines.push(text);
        } else {
            lines.extend(textwrap::wrap(&text, &options).into_iter().map(Cow::into_owned));
        }
    }
    if lines.is_empty() { vec![String::new()] } else { lines }
}

/// Prints a line of progress; a failure to print is ignored.
pub(crate) fn print_line(text: impl fmt::Display) {
    let _ = write_line(text);
}

/// Prints a line. It is an error that a client has closed the other end of a pipe.
pub(crate) fn write_line(text: impl fmt::Display) -> io::Result<()> {
    let mut page = Page::default();
    page.line(text);
    io::stdout().write_all(page.text.as_bytes())
}

/// Asks a question; an error unless the answer is yes. `otherwise` is for a caller without a terminal.
pub(crate) fn confirm(otherwise: &str, question: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        anyhow::bail!("{otherwise}");
    }
    let mut out = io::stdout();
    write!(out, "{} ", plain(question))?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was done");
    Ok(())
}

/// Prints an error with all causes, on several lines. A server may have written some of it.
pub(crate) fn complain(error: &anyhow::Error) {
    let _ = write!(io::stderr(), "{}", complaint(error));
}

/// Prints a line of progress, on the standard error.
pub(crate) fn progress(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", plain(&text.to_string()));
}

/// Prints a warning, on one line of the standard error.
pub(crate) fn warn(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "Warning: {}", plain(&text.to_string()));
}

/// Makes a page of an error with its causes. Without a backtrace, also where the environment has `RUST_BACKTRACE`.
fn complaint(error: &anyhow::Error) -> Page {
    let mut page = Page::default();
    let mut lines = |text: String| text.lines().for_each(|line| page.line(line));
    lines(format!("Error: {error}"));
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    if !causes.is_empty() {
        lines("\nCaused by:".to_owned());
    }
    for (number, cause) in causes.iter().enumerate() {
        let number = if causes.len() > 1 { format!("{number}: ") } else { String::new() };
        lines(format!("    {number}{}", cause.replace('\n', "\n    ")));
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
        page.table(["A", "B"], [[HOSTILE.to_owned(), "b".to_owned()]]);
        let text = page.to_string();
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn fields_are_wrapped_at_words_and_indented() {
        let mut page = Page::of_width(Some(31));
        page.field("Frozen:", Style::Bad, "1.20.5 failed too often on a-node-with-a-very-long-name and b");
        assert_eq!(
            page.to_string(),
            "Frozen:    1.20.5 failed too\n           often on\n           a-node-with-a-very-l\n           ong-name and b\n"
        );
        let mut whole = Page::default();
        whole.field("A:", Style::Plain, "one two");
        assert_eq!(whole.to_string(), "A:         one two\n");
    }

    #[test]
    fn command_in_a_field_is_a_line_of_its_own_and_whole() {
        let text = "1.20.5 failed. To skip it, first: kubectl brupop quarantine 1.20.5 --kubeconfig 'a, b'. To try again: kubectl \
                    brupop resume (docs), or the field manager kubectl owns it";
        let mut page = Page::of_width(Some(31));
        page.field("Frozen:", Style::Bad, text);
        let lines = [
            "1.20.5 failed. To",
            "skip it, first:",
            "kubectl brupop quarantine 1.20.5 --kubeconfig 'a, b'",
            "To try again:",
            "kubectl brupop resume",
            "(docs), or the field",
            "manager kubectl owns",
            "it",
        ];
        assert_eq!(page.to_string(), format!("Frozen:    {}\n", lines.join("\n           ")));
        let mut whole = Page::default();
        whole.field("Frozen:", Style::Bad, text);
        assert_eq!(whole.to_string(), format!("Frozen:    {text}\n"));
    }

    #[test]
    fn styles_colour_whole_cells_and_leave_the_text_as_it_is() {
        let rows = [
            [Cell::new("a", Style::Bad), Cell::new(HOSTILE, Style::Good)],
            [Cell::from("bb".to_owned()), Cell::default()],
        ];
        let mut page = Page::default();
        page.table(["A", "B"], rows);
        page.field("Label:", Style::Warn, "text");
        assert_eq!(page.output(), page.to_string());
        use_colours(true);
        let text = page.output();
        assert!(text.contains(" \u{1b}[31ma \u{1b}[0m") && text.contains("\u{1b}[33mLabel:\u{1b}[0m"), "{text:?}");
        let mut stripped = text;
        for style in [Style::Strong, Style::Good, Style::Busy, Style::Warn, Style::Bad, Style::Faint] {
            stripped = stripped.replace(&format!("\u{1b}[{}m", style.code()), "");
        }
        assert_eq!(stripped.replace("\u{1b}[0m", ""), page.to_string());
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
