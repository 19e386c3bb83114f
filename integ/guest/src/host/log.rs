//! The log of a host in order, for tests and the oracle.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use super::state::Command;

/// One event on a host. Its JSON is a line of the log that a virtual machine leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event.
    pub at: Timestamp,
    /// Boot in which it occurred.
    pub boot_id: String,
    /// The event.
    pub kind: EventKind,
}

/// Origin of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShutdownBy {
    /// `POST /actions/reboot`.
    Api,
    /// Another client on the machine.
    Foreign,
}

/// Kinds of events on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// A request was received on the socket.
    Call {
        /// Method.
        method: String,
        /// Path with the query.
        path: String,
        /// Status of the response; `None` if the caller got none.
        status: Option<u16>,
        /// Body of the request.
        body: String,
    },
    /// A command of the update dispatcher ended, whichever client started it.
    CommandFinished {
        /// The command.
        command: Command,
        /// True if the command succeeded.
        ok: bool,
        /// The version that a refresh chose, a prepare really wrote, or an activate armed.
        version: Option<Version>,
    },
    /// From now on any boot takes this image.
    Armed {
        /// The version that is really on the armed set.
        version: Version,
    },
    /// The armed image is no longer the next to boot.
    Disarmed,
    /// A shutdown has begun.
    ShutdownOrdered {
        /// Origin of the shutdown.
        by: ShutdownBy,
    },
    /// The power was cut.
    PowerLoss,
    /// Nothing runs any more.
    Down,
    /// The machine is up again.
    Booted {
        /// The new boot.
        boot_id: String,
        /// The version that it runs.
        version: Version,
        /// True if it was to boot the other set and fell back to this one.
        fell_back: bool,
    },
}

#[derive(Debug)]
pub(super) struct Log {
    events: Mutex<Vec<Event>>,
    live: broadcast::Sender<Event>,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { events: Mutex::default(), live: broadcast::Sender::new(4096) }
    }

    /// Adds an event; its time is never before that of the previous one.
    pub(super) fn add(&self, boot_id: &str, kind: EventKind) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::now();
        let at = events.last().map_or(now, |last| last.at.max(now));
        let event = Event { at, boot_id: boot_id.to_owned(), kind };
        events.push(event.clone());
        // There may be no subscriber.
        let _ = self.live.send(event);
    }

    pub(super) fn all(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.live.subscribe()
    }
}
