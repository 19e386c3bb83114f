//! What happened to a host, in order: the witness that tests and the oracle ask.

use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use semver::Version;
use tokio::sync::broadcast;

use super::state::Command;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// In which boot.
    pub boot_id: String,
    /// What.
    pub kind: EventKind,
}

/// Who ordered a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownBy {
    /// `POST /actions/reboot`.
    Api,
    /// A client on the machine.
    Foreign,
}

/// What can happen to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request came in over the socket.
    Call {
        /// Its method.
        method: String,
        /// Its path with the query.
        path: String,
        /// The status answered; `None` when the caller got no answer.
        status: Option<u16>,
        /// The body that came with it.
        body: String,
    },
    /// A command of the update dispatcher ended, any client that started it.
    CommandFinished {
        /// Which.
        command: Command,
        /// Whether it did what it is for.
        ok: bool,
        /// What a refresh chose, a prepare really wrote, or an activate armed.
        version: Option<Version>,
    },
    /// From now on any boot takes this image.
    Armed {
        /// What is really on the armed set.
        version: Version,
    },
    /// The armed image is no longer the next to boot.
    Disarmed,
    /// A shutdown was ordered and has begun.
    ShutdownOrdered {
        /// By whom.
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
        /// What it runs.
        version: Version,
        /// It was to boot the other set and came back on this one.
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

    /// Adds an event; its time is never before that of the one before it.
    pub(super) fn add(&self, boot_id: &str, kind: EventKind) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::now();
        let at = events.last().map_or(now, |last| last.at.max(now));
        let event = Event { at, boot_id: boot_id.to_owned(), kind };
        events.push(event.clone());
        // No one may be listening.
        let _ = self.live.send(event);
    }

    pub(super) fn all(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.live.subscribe()
    }
}
