//! The hosts' logs: the only evidence that does not come through the API server.

use std::collections::BTreeSet;

use jiff::Timestamp;
use semver::Version;

use crate::host::{self, Command, EventKind, ShutdownBy};

/// The events of one host, in order.
#[derive(Clone, Debug, Default)]
pub struct HostLog {
    /// Name of its node.
    pub node: String,
    /// Events.
    pub events: Vec<HostEvent>,
}

/// One event on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Boot in which it occurred.
    pub boot_id: String,
    /// The event.
    pub fact: HostFact,
}

/// Events of a host that the oracle needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFact {
    /// A client of the host API requested to arm the image, and was not refused.
    ActivateAsked,
    /// The command that arms has ended.
    ActivateEnded,
    /// From now on any boot takes this image.
    Armed {
        /// Version of the image.
        version: Version,
    },
    /// From now on no boot takes another image than the running one.
    Disarmed,
    /// A shutdown has begun.
    Shutdown {
        /// True if the shutdown was requested through the host API.
        by_api: bool,
    },
    /// The machine is up.
    Booted {
        /// The boot.
        boot_id: String,
    },
    /// An event that no property uses. It still proves that the boot existed.
    Other,
}

impl HostLog {
    /// Converts the log of the host of `node`.
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

    /// Each reboot requested through the host API: time and boot.
    pub fn reboots_by_api(&self) -> impl Iterator<Item = (Timestamp, &str)> {
        self.events
            .iter()
            .filter(|event| event.fact == HostFact::Shutdown { by_api: true })
            .map(|event| (event.at, event.boot_id.as_str()))
    }

    /// Each image armed through the host API: time of the request, boot, and version. An image that another client on
    /// the machine armed is not included.
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

    /// The image that any boot would take now, if it is not the running one, and the boot in which it was armed.
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
        // A request without a response may have been received all the same.
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
    fn arming_is_attributed_to_api_only_after_accepted_request() {
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
