//! Findings, as each check returns them.

use serde::Serialize;

/// Number of objects that the text of a finding names.
pub(super) const NAMED: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Severity {
    /// Something does not work.
    Error,
    /// Something will not work, or is not as it should be.
    Warning,
    /// A fact to know.
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// One fixed word.
    pub(super) reason: &'static str,
    /// The objects that it is about, as `kind/name` or `kind/namespace/name`.
    pub(super) objects: Vec<String>,
    pub(super) message: String,
    pub(super) next: Vec<String>,
}

impl Finding {
    pub(super) fn new(severity: Severity, reason: &'static str, message: impl Into<String>) -> Self {
        Self { severity, reason, objects: Vec::new(), message: message.into(), next: Vec::new() }
    }

    pub(super) fn error(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, reason, message)
    }

    pub(super) fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, reason, message)
    }

    pub(super) fn of(mut self, object: impl Into<String>) -> Self {
        self.objects.push(object.into());
        self
    }

    pub(super) fn of_nodes<'a>(mut self, nodes: impl IntoIterator<Item = &'a str>) -> Self {
        self.objects.extend(nodes.into_iter().map(|name| format!("node/{name}")));
        self
    }

    pub(super) fn next(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.next.extend(commands);
        self
    }
}
