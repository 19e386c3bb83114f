//! The part of a terminal that is drawn again and again.

use std::fmt;
use std::io::{self, Write as _};

use models::plain::plain;
use textwrap::core::display_width;

use super::{Page, write_line};

#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// Number of rows of the last drawing.
    rows: usize,
    /// The last note, which stays below the drawing.
    note: Option<String>,
}

impl Screen {
    /// Sets the note below the drawing, and shows it.
    pub(crate) fn note(&mut self, text: impl fmt::Display, width: usize) -> io::Result<()> {
        let text = plain(&text.to_string());
        write_line(&text)?;
        self.rows += rows(&text, width);
        self.note = Some(text);
        Ok(())
    }

    /// Draws a page over the one before. What does not fit into `height` is left out.
    pub(crate) fn draw(&mut self, page: &Page, width: usize, height: Option<usize>) -> io::Result<()> {
        let text = page.output();
        let mut lines: Vec<&str> = text.lines().chain(self.note.as_deref()).collect();
        let total = |lines: &[&str]| lines.iter().map(|line| rows(line, width)).sum::<usize>();
        let room = height.map_or(usize::MAX, |height| height.saturating_sub(1).max(1));
        let mut free = room - 1;
        let fitting = lines.iter().map(|line| rows(line, width)).take_while(|rows| {
            let fits = *rows <= free;
            free = free.saturating_sub(*rows);
            fits
        });
        let fitting = fitting.count();
        let more = format!("… and {} more lines", lines.len() - fitting);
        if total(&lines) > room {
            lines.truncate(fitting);
            lines.push(&more);
        }
        let mut out = io::stdout().lock();
        if self.rows > 0 {
            write!(out, "\u{1b}[{}A\u{1b}[J", self.rows)?;
        }
        for line in &lines {
            writeln!(out, "{line}")?;
        }
        self.rows = total(&lines);
        out.flush()
    }
}

/// Returns the number of rows of a terminal of this width that a line takes up: a command is not wrapped.
fn rows(line: &str, width: usize) -> usize {
    display_width(line).div_ceil(width.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_is_wider_than_the_terminal_takes_several_rows() {
        for (line, expected) in [
            ("", 1),
            ("12345678", 1),
            ("123456789", 2),
            ("\u{1b}[31mLabel:\u{1b}[0m 1", 1),
            ("\u{1b}[31mLabel:\u{1b}[0m a command of 30", 3),
            ("日本語の名", 2),
        ] {
            assert_eq!(rows(line, 8), expected, "{line:?}");
        }
    }
}
