//! Findings, as each check returns them.

use serde::Serialize;

use crate::shell::for_cluster;

/// Longest list of names in a sentence.
pub(super) const NAMED: usize = 10;

/// The importance of a finding, the greatest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Severity {
    /// The takeover cannot begin.
    Blocks,
    /// Something to do before the takeover, or to decide about.
    First,
    /// A fact to know.
    Note,
}

/// A fact with its consequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// One fixed word.
    pub(super) reason: &'static str,
    pub(super) text: String,
    pub(super) run: Vec<String>,
}

impl Finding {
    pub(super) fn new(severity: Severity, reason: &'static str, text: impl Into<String>) -> Self {
        Self { severity, reason, text: text.into(), run: Vec::new() }
    }

    pub(super) fn blocks(reason: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Blocks, reason, text)
    }

    pub(super) fn first(reason: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::First, reason, text)
    }

    pub(super) fn note(reason: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Note, reason, text)
    }

    pub(super) fn run(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.run.extend(commands.into_iter().map(|command| for_cluster(&command)));
        self
    }
}
