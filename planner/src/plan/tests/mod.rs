//! Whole plans: what is done about the nodes of a small cluster, and why the others wait.

mod attempt;
mod blocker;
mod brake;
mod brake_ends;
mod canary;
mod claim;
mod comparison;
mod drain;
mod drill;
mod earlier;
mod expression;
mod follow;
mod forced_drain;
mod guarded;
mod hand_over;
mod health;
mod hook;
mod key;
mod ledger;
mod overdue;
mod permit;
mod registered_again;
mod release;
mod request;
mod result;
mod slot;
mod stage;
mod unavailable;
mod verification;
mod whole;

use crate::decision::*;
use crate::plan::*;
use crate::survey::quarantine::Quarantine;
use crate::view::NodeFacts;
use crate::wait::Wait;
