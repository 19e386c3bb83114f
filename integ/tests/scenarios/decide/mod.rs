//! Decisions of the controller by policy, as a user sees them: the order of nodes, versions, reasons to wait, and
//! requests of users.

mod ahead;
mod asked;
mod blocked;
mod canary;
mod deleted;
mod expressions;
mod freeze;
mod metrics;
mod midway;
mod others;
mod pinning;
mod prometheus;
mod ranges;
mod shares;
mod succession;
mod support;
mod waves;
mod windows;
