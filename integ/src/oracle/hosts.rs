//! What the hosts themselves saw: the one witness that does not speak through the API server.

use std::collections::BTreeSet;

use jiff::Timestamp;
use semver::Version;

use crate::host::{self, Command, EventKind, ShutdownBy};

/// What one host saw, in order.
#[derive(Clone, Debug, Default)]
pub struct HostLog {
    /// The name of its node.
    pub node: String,
    /// What happened.
    pub events: Vec<HostEvent>,
}

/// One thing that a host saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEvent {
    /// When.
    pub at: Timestamp,
    /// In which boot.
    pub boot_id: String,
    /// What.
    pub fact: HostFact,
}

/// What the oracle wants to know of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFact {
    /// A caller of the host API asked to arm the image, and was not refused.
    ActivateAsked,
    /// The command that arms has ended.
    ActivateEnded,
    /// From now on any boot takes this image.
    Armed {
        /// What it is.
        version: Version,
    },
    /// From now on no boot takes another image than the one that runs.
    Disarmed,
    /// A shutdown has begun.
    Shutdown {
        /// Whether the host API was asked for it.
        by_api: bool,
    },
    /// The machine is up.
    Booted {
        /// The boot.
        boot_id: String,
    },
    /// Something that no property speaks of. It still tells that the boot was.
    Other,
}

impl HostLog {
    /// What the host of `node` saw.
    pub fn of(node: &str, events: &[host::Event]) -> Self {
        let events = events.iter().map(|event| HostEvent {
            at: event.at,
            boot_id: event.boot_id.clone(),
            fact: fact(&event.kind),
        });
        Self { node: node.to_owned(), events: events.collect() }
    }

    /// All boots of the host.
    pub fn boots(&self) -> BTreeSet<&str> {
        let booted = self.events.iter().filter_map(|event| match &event.fact {
            HostFact::Booted { boot_id } => Some(boot_id.as_str()),
            _ => None,
        });
        self.events.iter().map(|event| event.boot_id.as_str()).chain(booted).collect()
    }

    /// Each time that a caller of the host API rebooted it: when, and in which boot.
    pub fn reboots_by_api(&self) -> impl Iterator<Item = (Timestamp, &str)> {
        self.events
            .iter()
            .filter(|event| event.fact == HostFact::Shutdown { by_api: true })
            .map(|event| (event.at, event.boot_id.as_str()))
    }

    /// Each time that a caller of the host API armed an image: when it asked, in which boot, and what was armed. An image
    /// that another client on the machine armed is not ours.
    pub fn arms_by_api(&self) -> Vec<(Timestamp, &str, &Version)> {
        let mut asked = None;
        let mut all = Vec::new();
        for event in &self.events {
            match &event.fact {
                HostFact::ActivateAsked => asked = Some(event.at),
                HostFact::Armed { version } => {
                    if let Some(at) = asked {
                        all.push((at, event.boot_id.as_str(), version));
                    }
                }
                HostFact::ActivateEnded | HostFact::Booted { .. } => asked = None,
                HostFact::Shutdown { .. } | HostFact::Disarmed | HostFact::Other => {}
            }
        }
        all
    }

    /// The image that any boot would take now, where that is not the one that runs, and the boot in which it was armed.
    pub fn armed_at_end(&self) -> Option<(&str, &Version)> {
        let mut armed = None;
        for event in &self.events {
            match &event.fact {
                HostFact::Armed { version } => armed = Some((event.boot_id.as_str(), version)),
                HostFact::Disarmed | HostFact::Booted { .. } => armed = None,
                HostFact::ActivateAsked | HostFact::ActivateEnded | HostFact::Shutdown { .. } | HostFact::Other => {}
            }
        }
        armed
    }
}

fn fact(kind: &EventKind) -> HostFact {
    match kind {
        // A caller that got no answer may have been heard all the same.
        EventKind::Call { method, path, status, .. }
            if method == "POST"
                && path.split('?').next() == Some("/actions/activate-update")
                && status.is_none_or(|status| status < 300) =>
        {
            HostFact::ActivateAsked
        }
        EventKind::CommandFinished { command: Command::Activate, .. } => HostFact::ActivateEnded,
        EventKind::Armed { version } => HostFact::Armed { version: version.clone() },
        EventKind::Disarmed => HostFact::Disarmed,
        EventKind::ShutdownOrdered { by } => HostFact::Shutdown { by_api: *by == ShutdownBy::Api },
        EventKind::Booted { boot_id, .. } => HostFact::Booted { boot_id: boot_id.clone() },
        EventKind::Call { .. } | EventKind::CommandFinished { .. } | EventKind::PowerLoss | EventKind::Down => {
            HostFact::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_armed_by_us_only_when_the_api_was_asked() {
        let armed = || EventKind::Armed { version: Version::new(1, 20, 5) };
        let ended = || EventKind::CommandFinished { command: Command::Activate, ok: true, version: None };
        let asked = |status| EventKind::Call {
            method: "POST".into(),
            path: "/actions/activate-update".into(),
            status,
            body: String::new(),
        };
        for (kinds, arms) in [
            (vec![asked(Some(204)), armed(), ended()], 1),
            (vec![asked(None), armed(), ended()], 1),
            (vec![armed(), ended()], 0),
            // Refused, and then another client did it.
            (vec![asked(Some(423)), armed(), ended()], 0),
            // It failed, and then another client did it.
            (vec![asked(Some(204)), ended(), armed(), ended()], 0),
        ] {
            let at = Timestamp::UNIX_EPOCH;
            let events: Vec<host::Event> =
                kinds.into_iter().map(|kind| host::Event { at, boot_id: "b".into(), kind }).collect();
            let log = HostLog::of("a", &events);
            assert_eq!(log.arms_by_api().len(), arms, "{events:?}");
            assert_eq!(log.boots(), BTreeSet::from(["b"]));
        }
    }
}
