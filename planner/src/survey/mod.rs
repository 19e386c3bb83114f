//! Facts that the rules for one node read: the node itself ([`NodeContext`]), and a summary of the fleet, made once for each plan
//! ([`Survey`]).

pub(crate) mod agents;
pub(crate) mod brake;
pub(crate) mod budgets;
pub(crate) mod control_plane;
pub(crate) mod ended;
pub(crate) mod fallen;
mod fleet;
pub(crate) mod key;
pub(crate) mod ledger;
mod node;
pub(crate) mod quarantine;
pub(crate) mod records;
pub(crate) mod requests;
pub(crate) mod rollout;
pub(crate) mod settled;
pub(crate) mod unavailable;
pub(crate) mod unwell;
pub(crate) mod urgency;
pub(crate) mod versions;
mod vouched;
pub(crate) mod want;

pub use fleet::targets;
pub(crate) use fleet::{Survey, SurveyedNode};
pub(crate) use node::{NodeContext, condition};
