//! Decisions of the controller by policy, as a user sees them: the order of nodes, versions, reasons to wait, and
//! requests of users.

mod node_deletion;
mod pinning;
mod support;
