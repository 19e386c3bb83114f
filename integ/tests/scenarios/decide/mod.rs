//! The controller's policy, as a person sees it work: who starts when, who waits for what, and what a person can ask for.

mod ahead;
mod asked;
mod blocked;
mod canary;
mod freeze;
mod midway;
mod shares;
mod support;
mod windows;
