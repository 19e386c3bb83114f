//! The planner: from a snapshot to the next action of each node, or the reason why it waits.
//!
//! ```text
//!  Idle ─► Staging ─► (Staged) ─► Draining ─► Rebooting ─► (Returning) ─► Verifying ─► Idle
//!             │           │          │            │             │             │
//!             └───────────┴──────────┴── failure ─┴─────────────┴─────────────┘
//!                                        ▼
//!                                    Releasing ─► Idle
//! ```
//!
//! Each action is one write, and each write leaves a state from which this same function continues: this makes the
//! controller recover from a crash between any two of them. The writes of one attempt are in the order
//! slot → progress → claim → … → claim → progress → slot.

mod attempt;
#[cfg(test)]
mod attempt_cases;
#[cfg(test)]
mod blocker_cases;
#[cfg(test)]
mod canary_cases;
#[cfg(test)]
mod cases;
mod checks;
#[cfg(test)]
mod claim_cases;
mod context;
#[cfg(test)]
mod drain_cases;
#[cfg(test)]
mod drill_cases;
#[cfg(test)]
mod earlier_cases;
mod estimates;
mod evictions;
#[cfg(test)]
mod expression_cases;
mod fleet;
mod follow;
#[cfg(test)]
mod follow_cases;
#[cfg(test)]
mod forced_drain_cases;
mod freshness;
mod gates;
#[cfg(test)]
mod hand_over_cases;
#[cfg(test)]
mod health_cases;
#[cfg(test)]
mod hook_cases;
#[cfg(test)]
mod key_cases;
mod labels;
mod notices;
mod order;
#[cfg(test)]
mod overdue_cases;
#[cfg(test)]
mod permit_cases;
mod quarantine;
mod records;
#[cfg(test)]
mod release_cases;
mod report;
#[cfg(test)]
mod request_cases;
mod requests;
#[cfg(test)]
mod result_cases;
mod rollout;
mod shadows;
mod silence;
#[cfg(test)]
mod slot_cases;
mod slots;
#[cfg(test)]
mod stage_cases;
mod states;
mod survey;
mod urgency;
mod versions;
mod want;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{BottlerocketUpdateOperatorStatus, Slot};
use models::shadow::{BottlerocketShadowSpec, ControllerStatus};

use crate::claims::ClaimFields;
use crate::revisions::RevisionAction;
use crate::rules::Rules;
use crate::view::{Compared, NodeFacts, PodFacts};
use crate::wait::Wait;

pub use attempt::LISTED_PODS;
pub use checks::{Check, CheckResult, TURN, checks};
pub(crate) use fleet::begins_disruption;
pub use fleet::plan;
pub use freshness::{Behind, FleetFreshness, freshness};
pub use notices::{TEST_NOTICE, test_notice_id};
pub use order::order_key;
pub use quarantine::Quarantine;
pub use report::{NOT_SERVED, news};
pub use requests::{pending_migration, pending_rotations};
pub use rollout::key_of;
pub use shadows::ShadowChange;
pub use silence::{AgentState, Silence, agent_state};
pub use slots::{not_begun, retracted};
pub use states::{RolloutState, deadlines, drain_refusals, rollouts};
pub use survey::targets;
pub use urgency::urgent_news;

/// An Event that goes with a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// True for a warning.
    pub warning: bool,
    /// The reason, one fixed word.
    pub reason: &'static str,
    pub message: String,
}

/// One pod to evict, under the uid that was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Eviction {
    /// Returns the eviction of this pod.
    pub fn of(pod: &PodFacts) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

/// Pods to evict from one node. Each has its own request, which nothing else about the node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    pub pods: Vec<Eviction>,
    /// The grace period for all of them, in seconds; `None`: each pod's own.
    pub grace: Option<i64>,
    /// True if they are deleted regardless of their budgets, as policy may allow after the deadline of a drain.
    pub delete: bool,
    /// True if the API server is only asked whether they may be evicted, as in a drill.
    pub dry_run: bool,
}

/// One write, or live read, for one node.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Writes the controller status of the shadow.
    Status { status: Box<ControllerStatus>, note: Option<Note> },
    /// Writes the shadow's spec.
    Spec { spec: Box<BottlerocketShadowSpec> },
    /// Claims these fields of the node.
    Claim { fields: ClaimFields, note: Option<Note> },
    /// Releases the operator's claim on the node.
    Release,
    /// Sets the request to hooks on the Node; without one, removes it.
    Hook { request: Option<String> },
    /// Reads the node and its pods live, and if no pod is left to evict, signs a permit for the agent's nonce: of the reboot,
    /// or, under the desired state of a drill, a rehearsal permit.
    Permit {
        nonce: String,
        /// The rules for the pods that prevent the permit.
        rules: Rules,
        /// True in a drill that evicts no pods: they prevent no rehearsal permit.
        pods_stay: bool,
    },
    /// Reads the state of an owner's pods on other nodes.
    ReadOwner {
        /// The uid of the owner.
        owner: String,
        namespace: String,
        /// Labels that select its pods.
        labels: BTreeMap<String, String>,
        nodes: BTreeMap<String, Compared>,
    },
    /// Checks that the node's own Lease is still renewed.
    ReadLease,
}

/// The actions that are due now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The next action of each node that has one.
    pub actions: BTreeMap<String, Action>,
    /// The pods to evict now, by node.
    pub evictions: BTreeMap<String, Evictions>,
    /// The reason why each other node waits.
    pub waits: BTreeMap<String, Wait>,
    /// The nodes whose pods have to be watched.
    pub pods: BTreeSet<String>,
    /// The staged nodes that are not drained because of their pods, budgets or expressions, all of which were checked.
    pub refused: BTreeMap<String, Wait>,
    /// The expressions to query.
    pub expressions: BTreeSet<String>,
    pub shadows: Vec<ShadowChange>,
    /// The nodes to label with `bottlerocket.aws/updater-interface-version`.
    pub labels: Vec<NodeFacts>,
    /// The writes of the policy's history, in their order. Nothing waits for them.
    pub revisions: Vec<RevisionAction>,
    /// The idle nodes whose shadow gets the label of another revision of the policy, with its name. Nothing else about the
    /// shadow changes.
    pub relabelled: BTreeMap<String, String>,
    /// `HostReachable` of the nodes whose agent is newly found to be silent.
    pub silent: BTreeMap<String, Silence>,
    /// True if another replica has to lead when this plan is carried out: only the leader's own node is left to update.
    pub hand_over: bool,
    pub quarantine: Quarantine,
    /// The slots to record; `None` if they are unchanged, or if there is no resource to hold them.
    pub slots: Option<Vec<Slot>>,
    /// The operator's status to write (with `slots` in it), if there is a resource to hold it.
    pub status: Option<BottlerocketUpdateOperatorStatus>,
    /// The canary step that only a user's approval passes, if there is one.
    pub approval: Option<Wait>,
    /// True if the schedule of all nodes is open.
    pub window_open: bool,
    /// The time to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// The decision about one node.
#[derive(Clone, Debug, Default, PartialEq)]
struct Decision {
    verdict: Verdict,
    /// The pods to evict now, whatever else is done.
    evictions: Option<Evictions>,
    /// True if its pods have to be watched.
    pods: bool,
    /// True if the node keeps its slot, which it does not use yet: it is being checked.
    keeps_slot: bool,
    /// The expressions that it waits for.
    expressions: Vec<String>,
    /// The time to decide again.
    wake: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Act(Action),
    Wait(Wait),
    /// Idle, and its own facts allow an attempt to this version.
    Candidate(semver::Version),
    /// Idle, and its own facts allow the requested drill, which this action begins.
    Drill(Action),
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

    fn keeping_slot(self) -> Self {
        Self { keeps_slot: true, ..self }
    }

    fn querying(self, queries: impl IntoIterator<Item = String>) -> Self {
        Self { expressions: self.expressions.into_iter().chain(queries).collect(), ..self }
    }

    fn waking_at(self, at: Timestamp) -> Self {
        Self { wake: Some(self.wake.map_or(at, |w| w.min(at))), ..self }
    }
}
