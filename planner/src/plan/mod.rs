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
#[cfg(test)]
mod release_cases;
mod report;
#[cfg(test)]
mod request_cases;
#[cfg(test)]
mod result_cases;
mod shadows;
mod silence;
#[cfg(test)]
mod slot_cases;
mod slots;
#[cfg(test)]
mod stage_cases;
mod states;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{BottlerocketUpdateOperatorStatus, Slot};

use crate::revisions::RevisionAction;
use crate::view::NodeFacts;
use crate::wait::Wait;

pub use crate::decision::{Action, Eviction, Evictions, Note};
pub use crate::phase::LISTED_PODS;
pub use crate::survey::agents::{AgentState, agent_state};
pub use crate::survey::key::key_of;
pub use crate::survey::quarantine::Quarantine;
pub use crate::survey::requests::{pending_migration, pending_rotations};
pub use crate::survey::targets;
pub use crate::survey::urgency::urgent_news;
pub use checks::{Check, CheckResult, TURN, checks};
pub use fleet::plan;
pub use freshness::{Behind, FleetFreshness, freshness};
pub use notices::{TEST_NOTICE, test_notice_id};
pub use order::order_key;
pub use report::{NOT_SERVED, news};
pub use shadows::ShadowChange;
pub use silence::Silence;
pub use slots::{not_begun, retracted};
pub use states::{RolloutState, deadlines, drain_refusals, rollouts};

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
