//! End-to-end scenarios: the operator, installed from its manifests, on a real control plane with simulated hosts. Each
//! runs on its own test cluster and ends with the oracle, which checks the safety properties at every revision. A start takes
//! longer than most of what is seen: what needs the same cluster is a step of one walk through it, and an error names its step.
//!
//! `support` lets at most eight of them run at a time, whatever number of threads the test runner has: a test cluster
//! is a dozen processes, and more of them on a small machine would only wait for each other.

mod aws;
mod commands;
mod crashes;
mod history;
mod hostile;
mod interfere;
mod leaders;
mod logs;
mod migration;
mod monitoring;
mod plugin;
mod quick_start;
mod requests;
mod rights;
mod rollout;
mod rotation;
mod silence;
mod support;
mod takeover;
mod takeover_preflight;
mod uninstall;
mod versions;
