//! The update dispatcher of a Bottlerocket host (`thar-be-updates`) as a pure state machine: no clock, no disk, no
//! waiting.
//!
//! ```text
//! command     Idle                Available           Staged              Ready
//! refresh     Available or Idle   Available or Idle   stays               stays
//! prepare     refused             Staged              Staged              refused
//! activate    refused             refused             Ready               refused
//! deactivate  refused             refused             refused             Staged
//! ```

use std::fmt;

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

/// Commands of the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// Checks for updates and chooses a version.
    Refresh,
    /// Writes an image to the inactive partition set.
    Prepare,
    /// Arms the inactive set.
    Activate,
    /// Disarms the inactive set.
    Deactivate,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 4] = [Self::Refresh, Self::Prepare, Self::Activate, Self::Deactivate];

    /// The path that starts the command.
    pub fn path(self) -> &'static str {
        match self {
            Self::Refresh => "/actions/refresh-updates",
            Self::Prepare => "/actions/prepare-update",
            Self::Activate => "/actions/activate-update",
            Self::Deactivate => "/actions/deactivate-update",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refresh => "refresh",
            Self::Prepare => "prepare",
            Self::Activate => "activate",
            Self::Deactivate => "deactivate",
        })
    }
}

/// `update_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpdateState {
    /// Nothing is chosen, or the last refresh failed.
    Idle,
    /// A version is chosen.
    Available,
    /// An image is on the inactive set, as far as the dispatcher knows.
    Staged,
    /// The inactive set is armed.
    Ready,
}

/// An image in the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateImage {
    /// Architecture, for example `x86_64`.
    pub arch: String,
    /// Version.
    pub version: Version,
    /// Variant, for example `aws-k8s-1.37`.
    pub variant: String,
}

/// An image on a partition set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedImage {
    /// The image.
    pub image: UpdateImage,
    /// True if the next boot takes it.
    pub next_to_boot: bool,
}

/// `cmd_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandStatus {
    /// updog exited with 0.
    Success,
    /// updog did not exit with 0.
    Failed,
}

/// Result of the last command that left a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// The command.
    pub cmd_type: Command,
    /// Result of the command.
    pub cmd_status: CommandStatus,
    /// Time at which updog ended.
    pub timestamp: Timestamp,
    /// updog's exit code, or the number of the signal that killed it.
    pub exit_status: Option<i32>,
    /// updog's whole standard error.
    pub stderr: Option<String>,
}

/// The response to `GET /updates/status`. All six keys are always present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateStatus {
    /// The state.
    pub update_state: UpdateState,
    /// The list of the last good refresh.
    pub available_updates: Vec<Version>,
    /// The version that it chose. **Stays** when a later refresh fails.
    pub chosen_update: Option<UpdateImage>,
    /// The running image, read once, when the status was created.
    pub active_partition: Option<StagedImage>,
    /// The image that prepare recorded as written.
    pub staging_partition: Option<StagedImage>,
    /// The last command that left a record.
    pub most_recent_command: Option<CommandResult>,
}

impl UpdateStatus {
    /// The status of a boot without any command.
    pub fn fresh(running: UpdateImage, next_to_boot: bool) -> Self {
        Self {
            update_state: UpdateState::Idle,
            available_updates: Vec::new(),
            chosen_update: None,
            active_partition: Some(StagedImage { image: running, next_to_boot }),
            staging_partition: None,
            most_recent_command: None,
        }
    }
}

/// Reason why a command was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another command runs.
    LockHeld,
    /// Not allowed in this state.
    NotAllowed,
    /// Prepare without a chosen update.
    NoChosenUpdate,
    /// Activate or deactivate without a staged image.
    NoStagedImage,
}

/// Reason why the status cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A command runs.
    Locked,
    /// No command was sent in this boot.
    Uninitialized,
}

/// End of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The worker died, or could not start updog: there is no record.
    Unrecorded,
    /// updog failed or was killed.
    Failed {
        /// Exit code, or the signal's number.
        exit_status: i32,
        /// Standard error.
        stderr: String,
    },
    /// updog exited with 0.
    Succeeded {
        /// Standard error.
        stderr: String,
        /// Result of a refresh; `None` for the other commands.
        found: Option<Found>,
    },
}

/// Result of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All versions listed.
    pub available: Vec<Version>,
    /// The version that the lock selects; absent if the configuration could not be read, so that state and choice stay.
    pub chosen: Option<Option<UpdateImage>>,
}

/// The dispatcher: the status file and the lock.
#[derive(Clone, Debug, Default)]
pub struct Dispatcher {
    status: Option<UpdateStatus>,
    running: Option<Command>,
}

impl Dispatcher {
    /// The dispatcher with the status file that it left in this boot; a command that ran is gone.
    pub(super) fn resume(status: Option<UpdateStatus>) -> Self {
        Self { status, running: None }
    }

    /// The status as a reader gets it.
    ///
    /// # Errors
    /// While a command runs, and before the first one of a boot.
    pub fn read(&self) -> Result<&UpdateStatus, Unreadable> {
        match (self.running, &self.status) {
            (Some(_), _) => Err(Unreadable::Locked),
            (None, None) => Err(Unreadable::Uninitialized),
            (None, Some(status)) => Ok(status),
        }
    }

    /// The status file, read past the lock: for an observer of the simulation.
    pub fn peek(&self) -> Option<&UpdateStatus> {
        self.status.as_ref()
    }

    /// The command that holds the lock.
    pub fn running(&self) -> Option<Command> {
        self.running
    }

    /// Starts a command: takes the lock, creates the status file if there is none (a refused command does so too), and
    /// then checks the state.
    ///
    /// # Errors
    /// A refusal starts nothing and leaves the record of the last command as it was.
    pub fn begin(&mut self, command: Command, fresh: impl FnOnce() -> UpdateStatus) -> Result<(), Refusal> {
        if self.running.is_some() {
            return Err(Refusal::LockHeld);
        }
        allowed(command, self.status.get_or_insert_with(fresh))?;
        self.running = Some(command);
        Ok(())
    }

    /// Ends the running command: the new status is there and the lock is free in one step. Returns the command.
    pub fn end(&mut self, ending: Ending, at: Timestamp) -> Option<Command> {
        let command = self.running.take()?;
        if let Some(status) = &mut self.status {
            conclude(status, command, ending, at);
        }
        Some(command)
    }

    /// Empties `/run`, as a boot does.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Checks that a command may start in this state.
fn allowed(command: Command, status: &UpdateStatus) -> Result<(), Refusal> {
    use {Command as C, UpdateState as S};
    let chosen = status.chosen_update.as_ref().map(drop).ok_or(Refusal::NoChosenUpdate);
    let staged = status.staging_partition.as_ref().map(drop).ok_or(Refusal::NoStagedImage);
    match (command, status.update_state) {
        (C::Refresh, _) => Ok(()),
        (C::Prepare, S::Available | S::Staged) => chosen,
        (C::Activate, S::Staged) => staged,
        (C::Deactivate, S::Ready) => staged,
        (C::Prepare, S::Idle | S::Ready)
        | (C::Activate, S::Idle | S::Available | S::Ready)
        | (C::Deactivate, S::Idle | S::Available | S::Staged) => Err(Refusal::NotAllowed),
    }
}

/// Applies the end of a command to the status.
fn conclude(status: &mut UpdateStatus, command: Command, ending: Ending, at: Timestamp) {
    use {Command as C, UpdateState as S};
    let early = matches!(status.update_state, S::Idle | S::Available);
    let (cmd_status, exit_status, stderr) = match ending {
        Ending::Unrecorded => return,
        Ending::Failed { exit_status, stderr } => {
            // The lists stay as they were: Idle with a chosen update is possible.
            if command == C::Refresh && early {
                status.update_state = S::Idle;
            }
            (CommandStatus::Failed, exit_status, stderr)
        }
        Ending::Succeeded { stderr, found } => {
            match (command, found) {
                (C::Refresh, Some(Found { available, chosen })) => {
                    status.available_updates = available;
                    if let Some(chosen) = chosen {
                        if early {
                            status.update_state = if chosen.is_some() { S::Available } else { S::Idle };
                        }
                        status.chosen_update = chosen;
                    }
                }
                (C::Refresh, None) => {}
                // The dispatcher records what it had chosen, not what updog wrote.
                (C::Prepare, _) => {
                    status.staging_partition =
                        status.chosen_update.clone().map(|image| StagedImage { image, next_to_boot: false });
                    status.update_state = S::Staged;
                }
                (C::Activate, _) => {
                    boot_staging(status, true);
                    status.update_state = S::Ready;
                }
                (C::Deactivate, _) => {
                    boot_staging(status, false);
                    status.update_state = S::Staged;
                }
            }
            (CommandStatus::Success, 0, stderr)
        }
    };
    status.most_recent_command = Some(CommandResult {
        cmd_type: command,
        cmd_status,
        timestamp: at,
        exit_status: Some(exit_status),
        stderr: Some(stderr),
    });
}

fn boot_staging(status: &mut UpdateStatus, staging: bool) {
    if let Some(image) = &mut status.staging_partition {
        image.next_to_boot = staging;
    }
    if let Some(image) = &mut status.active_partition {
        image.next_to_boot = !staging;
    }
}

#[cfg(test)]
mod tests;
