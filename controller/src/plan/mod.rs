//! The planner: from a snapshot to the next action of each node, or the reason why it waits.
//!
//! ```text
//!  Idle ─► Staging ─► (Staged) ─► Draining ─► Rebooting ─► (Returning) ─► Monitoring ─► Idle
//!             │           │          │            │             │             │
//!             └───────────┴──────────┴── failure ─┴─────────────┴─────────────┘
//!                                        ▼
//!                                    Releasing ─► Idle
//! ```
//!
//! Each action is one write, and each write leaves a state from which this same function finds the way: that is what
//! makes a crash between any two of them heal. The order of the writes of one attempt is
//! slot → progress → claim → … → claim → progress → slot.

mod attempt;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod drain_cases;
mod evictions;
#[cfg(test)]
mod expression_cases;
#[cfg(test)]
pub(crate) mod fixtures;
mod fleet;
mod gates;
#[cfg(test)]
mod hand_over_cases;
#[cfg(test)]
mod health_cases;
#[cfg(test)]
mod key_cases;
mod order;
mod quarantine;
#[cfg(test)]
mod release_cases;
mod report;
mod requests;
mod rollout;
#[cfg(test)]
mod simulation;
mod slots;
mod survey;
mod versions;
mod wait;
mod want;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{BottlerocketUpdateOperatorStatus, Slot};
use models::shadow::{BottlerocketShadowSpec, ControllerStatus};

use crate::claims::Parts;
use crate::drain::filter::Rules;
use crate::view::{Compared, PodFacts};

pub(crate) use attempt::LISTED_PODS;
pub use fleet::plan;
pub use quarantine::Quarantine;
pub use report::news;
pub(crate) use requests::pending_rotations;
pub(crate) use slots::{not_begun, retracted};
pub use wait::Wait;

/// An Event that goes with a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub warning: bool,
    /// Its reason, one fixed word.
    pub reason: &'static str,
    /// Its text.
    pub message: String,
}

/// One pod to be evicted, under the uid that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

impl Eviction {
    /// Of this pod.
    pub fn of(pod: &PodFacts) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

/// Pods of one node that are to leave it. Each has a request of its own, which nothing else about the node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    /// The pods.
    pub pods: Vec<Eviction>,
    /// How long they may take to end, in seconds; `None`: as each says.
    pub grace: Option<i64>,
    /// Whether they are deleted past their budgets, as policy may say for a drain that has taken too long.
    pub delete: bool,
}

/// One write, or look, about one node.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the controller's half of the shadow's status.
    Status {
        /// All of it.
        status: Box<ControllerStatus>,
        /// What to tell.
        note: Option<Note>,
    },
    /// Write the shadow's spec.
    Spec {
        /// All of it.
        spec: Box<BottlerocketShadowSpec>,
    },
    /// Claim these parts of the node.
    Claim {
        /// All that is wanted.
        parts: Parts,
        /// What to tell.
        note: Option<Note>,
    },
    /// Take back what we claimed on the node.
    Release,
    /// Look at the node and its pods once more, live, and if nothing is left, sign a permit for the agent's nonce.
    Permit {
        /// The nonce.
        nonce: String,
        /// Which pods are in the way.
        rules: Rules,
    },
    /// Read how the pods of an owner are on other nodes.
    ReadOwner {
        /// The uid of the owner.
        owner: String,
        /// Its namespace.
        namespace: String,
        /// Labels that its pods have.
        labels: BTreeMap<String, String>,
        /// The nodes that count.
        nodes: BTreeMap<String, Compared>,
    },
    /// Look whether the node's own Lease is still renewed.
    LookAtLease,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The next action of each node that has one.
    pub actions: BTreeMap<String, Action>,
    /// The pods that are to leave their nodes now, by node.
    pub evictions: BTreeMap<String, Evictions>,
    /// Why each other node waits.
    pub waits: BTreeMap<String, Wait>,
    /// The nodes whose pods have to be watched.
    pub pods: BTreeSet<String>,
    /// The staged nodes whose pods, budgets or expressions were looked at and speak against draining them.
    pub refused: BTreeMap<String, Wait>,
    /// The expressions that a client waits for.
    pub expressions: BTreeSet<String>,
    /// Whether another replica is to lead when this plan is carried out: nothing is left to do but the leader's own node.
    pub hand_over: bool,
    /// The versions that have failed too often.
    pub quarantine: Quarantine,
    /// The slots as they have to be; `None` if they are so already, or if there is no resource to hold them.
    pub slots: Option<Vec<Slot>>,
    /// The operator's status as it has to be (with `slots` in it), if there is a resource to hold it.
    pub status: Option<BottlerocketUpdateOperatorStatus>,
    /// When to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// What the rules say about one node.
#[derive(Clone, Debug, Default, PartialEq)]
struct Decision {
    verdict: Verdict,
    /// The pods that are to leave now, whatever else is done.
    evictions: Option<Evictions>,
    /// Whether its pods have to be watched.
    pods: bool,
    /// The expressions that it waits for.
    expressions: Vec<String>,
    /// When to think again.
    wake: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Act(Action),
    Wait(Wait),
    /// Idle, and its own facts allow an attempt to this version.
    Candidate(semver::Version),
    /// Staged, and its own facts allow the disruption.
    WantsSlot,
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Wait(Wait::Acting)
    }
}

impl Decision {
    fn act(action: Action) -> Self {
        Self { verdict: Verdict::Act(action), ..Self::default() }
    }

    fn wait(wait: Wait) -> Self {
        Self { verdict: Verdict::Wait(wait), ..Self::default() }
    }

    fn evicting(self, evictions: Evictions) -> Self {
        Self { evictions: Some(evictions).filter(|evictions| !evictions.pods.is_empty()), ..self }
    }

    fn watching_pods(self) -> Self {
        Self { pods: true, ..self }
    }

    fn asking(self, queries: impl IntoIterator<Item = String>) -> Self {
        Self { expressions: self.expressions.into_iter().chain(queries).collect(), ..self }
    }

    fn waking_at(self, at: Timestamp) -> Self {
        Self { wake: Some(self.wake.map_or(at, |w| w.min(at))), ..self }
    }
}
