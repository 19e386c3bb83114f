//! Writes of users: each a merge patch of what was read, guarded by its uid and resourceVersion, so that nothing is written
//! on top of a change that was not seen. Of the fields that it writes, their field managers are named.

mod object;
mod owners;
mod wait;

use std::fmt;

use clap::{Args, ValueEnum};
use models::duration::Duration;
use models::names;
use serde_json::{Value, json};

use crate::page::progress;

pub(crate) use object::{Object, Outcome, annotated_by, reverted};
pub(crate) use wait::{State, Unacknowledged, all};

/// Field manager of these writes: it owns the fields that it has changed until another client applies them.
pub(crate) const MANAGER: &str = names::PLUGIN_MANAGER;

/// Field manager of what `undo` writes. By the beginning of the name it is known as the plugin's too.
pub(crate) const UNDO_MANAGER: &str = "brupop-plugin-undo";

/// Extent of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Writes.
    #[default]
    None,
    /// Only prints what would be written.
    Client,
    /// Sends the write without storing it, and prints what would be written.
    Server,
}

impl DryRun {
    /// Returns the note behind what is printed, as kubectl has it.
    pub(crate) const fn note(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// The option of commands that write.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DryRunOption {
    /// Write nothing: client only prints what would be written, server also sends it to the API server, which checks it
    /// and does not store it. Without a value: client.
    #[arg(
        long,
        value_enum,
        value_name = "none|client|server",
        hide_possible_values = true,
        default_value = "none",
        default_missing_value = "client",
        num_args = 0..=1,
        require_equals = true
    )]
    pub(crate) dry_run: DryRun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The objects alone, as kubectl names them.
    Name,
}

/// The option of commands that wait for what comes of a write.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct WaitOption {
    /// Wait for what comes of it, and print that.
    #[arg(
        long,
        value_name = "true|false",
        hide_possible_values = true,
        default_value = "true",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true
    )]
    pub(crate) wait: bool,
}

/// The options of commands that write and wait for what comes of it.
#[derive(Clone, Debug, Args)]
pub(crate) struct WriteOptions {
    #[command(flatten)]
    dry: DryRunOption,
    #[command(flatten)]
    wait: WaitOption,
    /// Time to wait for that, e.g. 90s or 5m.
    #[arg(long, default_value = "60s")]
    timeout: Duration,
    /// Print the names of the objects alone.
    #[arg(long, short, value_enum, value_name = "name", hide_possible_values = true)]
    output: Option<Output>,
}

impl WriteOptions {
    pub(crate) const fn dry_run(&self) -> DryRun {
        self.dry.dry_run
    }

    /// Returns true if nothing is written, and what would come of it is shown.
    pub(crate) fn is_preview(&self) -> bool {
        self.dry_run() != DryRun::None && self.output.is_none()
    }

    /// Returns the time to wait; `None`: the command does not wait.
    pub(crate) fn timeout(&self) -> Option<std::time::Duration> {
        self.wait.wait.then_some(self.timeout.0)
    }

    /// Prints the reason for which nothing was written for one object. Beside its name, it is on the standard error.
    pub(crate) fn print_nothing(&self, id: &str, reason: impl fmt::Display) {
        if self.output.is_some() {
            progress(&reason);
        }
        self.print(id, reason);
    }

    /// Prints the outcome for one object: the sentence, or the object's name.
    pub(crate) fn print(&self, id: &str, sentence: impl fmt::Display) {
        match self.output {
            Some(Output::Name) => crate::page::print_line(id),
            None => crate::page::print_line(sentence),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// Merge patch, without the object's uid and resourceVersion.
    pub(crate) patch: Value,
    /// The change as a participle, such as `held until 12:00`.
    pub(crate) what: String,
}

/// The decision of a command about an object that it has read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// Nothing would change, for this reason.
    Nothing(String),
    Write(Change),
}

impl Decision {
    pub(crate) fn write(patch: Value, what: impl Into<String>) -> Self {
        Self::Write(Change { patch, what: what.into() })
    }

    /// Sets an annotation; null removes it.
    pub(crate) fn annotate(annotation: &str, value: impl Into<Value>, what: impl Into<String>) -> Self {
        let value: Value = value.into();
        Self::write(json!({"metadata": {"annotations": {annotation: value}}}), what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kustomize-controller of Flux compares the beginnings of names.
    #[test]
    fn nothing_is_written_under_a_name_that_flux_takes_for_kubectl() {
        for manager in [MANAGER, UNDO_MANAGER] {
            assert!(manager.starts_with(names::PLUGIN_MANAGER) && !manager.starts_with("kubectl"), "{manager}");
        }
    }
}
