//! What the controller decides by policy, as a user sees it work: who updates next, to which version, why everybody else
//! waits, and what a user can ask for.

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
