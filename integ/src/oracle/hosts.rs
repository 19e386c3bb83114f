//! What the hosts themselves saw: the one witness that does not speak through the API server.

use std::collections::BTreeSet;

use jiff::Timestamp;
use semver::Version;

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
    /// that somebody else on the machine armed is not ours.
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
                HostFact::Shutdown { .. } | HostFact::Other => {}
            }
        }
        all
    }
}
