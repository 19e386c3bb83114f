//! The terminal that the output goes to: its width, and colours, and the form of the output.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ColorChoice, ValueEnum};
use serde::Serialize;

use crate::page::Page;

/// Maximum width of a line where the output is no terminal, and COLUMNS is not set.
const WIDTH: usize = 120;

/// Returns the maximum width of a line of the standard output.
pub(crate) fn width() -> usize {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let terminal = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    terminal.filter(|width| *width > 0).or_else(columns).unwrap_or(WIDTH)
}

/// Form of the output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Every text in full.
    Wide,
    Json,
    Yaml,
}

impl Format {
    /// Parses the option of a command that has these forms alone.
    pub(crate) fn only<const N: usize>(forms: [Self; N]) -> impl TypedValueParser<Value = Self> {
        let parser = PossibleValuesParser::new(forms.iter().filter_map(Self::to_possible_value));
        parser.map(|name| Self::from_str(&name, false).unwrap_or(Self::Json))
    }

    /// Makes the output: the report in a form for programs, or what `text` makes of it for this width.
    pub(crate) fn show(
        format: Option<Self>,
        report: &impl Serialize,
        text: impl FnOnce(Option<usize>) -> Page,
    ) -> anyhow::Result<Page> {
        match format.and_then(Self::for_programs) {
            Some(format) => format.page(report),
            None => Ok(text(Self::width(format))),
        }
    }

    /// Returns the maximum width of a line; `None` for every text in full.
    pub(crate) fn width(format: Option<Self>) -> Option<usize> {
        (format != Some(Self::Wide)).then(width)
    }

    /// Returns the form if it is one for programs.
    pub(crate) fn for_programs(self) -> Option<Self> {
        Some(self).filter(|format| *format != Self::Wide)
    }

    pub(crate) fn page(self, value: &impl Serialize) -> anyhow::Result<Page> {
        let (mut page, value) = (Page::default(), serde_json::to_value(value).context("the output is no JSON")?);
        match self {
            Self::Yaml => page.yaml(&value)?,
            Self::Json | Self::Wide => page.json(&value)?,
        }
        Ok(page)
    }
}

/// Returns the number of lines of the terminal that the standard output is.
pub(crate) fn height() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stdout()).map(|(_, height)| usize::from(height.0))
}

/// Returns whether the standard output is to have colours: by `auto` on a terminal, unless NO_COLOR is set.
pub(crate) fn colour(choice: ColorChoice) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    decide(choice, std::io::stdout().is_terminal() && !dumb(), set("NO_COLOR"))
}

fn decide(choice: ColorChoice, terminal: bool, no_color: bool) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => terminal && !no_color,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_used_on_a_terminal_unless_no_color_is_set() {
        for (choice, terminal, no_color, expected) in [
            (ColorChoice::Auto, true, false, true),
            (ColorChoice::Auto, true, true, false),
            (ColorChoice::Auto, false, false, false),
            (ColorChoice::Always, false, true, true),
            (ColorChoice::Never, true, false, false),
        ] {
            assert_eq!(decide(choice, terminal, no_color), expected, "{choice:?} {terminal} {no_color}");
        }
    }
}
