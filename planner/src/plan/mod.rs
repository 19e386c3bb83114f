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

mod checks;
mod contents;
mod estimates;
mod evictions;
mod fleet;
mod follow;
mod freshness;
mod labels;
mod notices;
mod order;
mod report;
mod shadows;
mod silence;
mod slots;
mod states;
#[cfg(test)]
mod tests;

pub use crate::decision::{Action, Eviction, Evictions, Note};
pub use crate::phase::LISTED_PODS;
pub use crate::survey::agents::{AgentState, POD_GRACE_PERIOD, agent_state};
pub use crate::survey::brake::recorded_limit;
pub use crate::survey::fallen::began_again;
pub use crate::survey::key::key_of;
pub use crate::survey::quarantine::Quarantine;
pub use crate::survey::requests::{approval_news, continue_news, pending_migration, pending_rotations};
pub use crate::survey::targets;
pub use crate::survey::unavailable::kept_out;
pub use crate::survey::urgency::urgent_news;
pub use checks::{Check, CheckResult, PROVEN, TURN, checks, without_proof};
pub use contents::{Plan, Silence};
pub use fleet::{plan, plan_reporting};
pub use freshness::{Behind, FleetFreshness, freshness};
pub use notices::{TEST_NOTICE, test_notice_id};
pub use order::order_key;
pub use report::{APPROVAL, GROUP_HIDDEN, INVALID_POLICY, NOT_SERVED, can_wait, news};
pub use shadows::ShadowChange;
pub use slots::{not_begun, retracted};
pub use states::{RolloutState, deadlines, drain_refusals, long_grace_periods, rollouts};
