//! Decisions of the controller by policy, as a user sees them: the order of nodes, versions, reasons to wait, and
//! requests of users.

mod blocked;
mod canary;
mod expressions;
mod freeze;
mod leader_kills;
mod metrics;
mod mid_rollout_changes;
mod node_deletion;
mod other_clients;
mod percentages;
mod pinning;
mod pre_staging;
mod prometheus;
mod ranges;
mod support;
mod user_requests;
mod waves;
mod windows;
