//! The gauges that the leader alone exports.

use std::collections::BTreeMap;

use prometheus::GaugeVec;

use super::family::{Labels, Register};

/// Name, labels and help of a gauge.
type Entry = (&'static str, Labels, &'static str);

/// Name of a gauge, the value of its label, if it has one, and the value of the gauge, if there is one now.
pub(super) type Sample = (&'static str, Option<&'static str>, Option<f64>);

pub(super) const FLEET: [Entry; 33] = [
    ("nodes", &["step", "version"], "Nodes by the step of their update and the version that they run"),
    ("nodes_by_state", &["state"], "Nodes by the counts of the operator's status, which overlap"),
    ("nodes_waiting", &["reason"], "Nodes by the reason why they wait"),
    (
        "waiting_since_timestamp_seconds",
        &["reason"],
        "Time since which the node that has waited longest for this reason has waited for it, in seconds since 1970",
    ),
    ("slots_in_use", &[], "Nodes that are, or are about to be, out of service"),
    ("slots_limit", &[], "Maximum number of nodes out of service at a time by maxUnavailable"),
    ("frozen", &[], "1 while failures have stopped the rollout"),
    (
        "braked",
        &[],
        "1 while updates that ended without a proof, or updated nodes that were not well any more, have braked a rollout",
    ),
    ("cluster_unwell", &[], "1 while no update starts because many nodes have fallen ill at once"),
    (
        "budget_stays",
        &[],
        "Greatest number of times in a row that guarded pods of one PodDisruptionBudget stayed when they were asked",
    ),
    (
        "quarantined_versions",
        &[],
        "Versions that are not taken any more because nodes failed on them, per variant and architecture",
    ),
    ("policy_degraded", &[], "1 while the policy is invalid, so that an earlier one is in force"),
    ("window_open", &[], "1 while the schedule of some nodes allows them to be taken out of service"),
    ("nodes_behind", &[], "Nodes that run an earlier version than policy lets them take"),
    (
        "behind_since_timestamp_seconds",
        &[],
        "Time since which the node that has been behind for the longest time has been behind, in seconds since 1970",
    ),
    (
        "lagging_since_timestamp_seconds",
        &[],
        "Like behind_since_timestamp_seconds, of nodes that have themselves been behind, since their creation, for the target, or for a week \
         without one",
    ),
    ("freshness_target_seconds", &[], "Time by spec.freshness.target for which a node may be behind"),
    ("nodes_within_freshness_target", &[], "Nodes that are not behind, or not for longer than spec.freshness.target"),
    ("freshness_ratio", &[], "Share of the nodes that are within spec.freshness.target, from 0 to 1"),
    (
        "estimated_completion_timestamp_seconds",
        &[],
        "Time at which the last running rollout is expected to be completed, in seconds since 1970",
    ),
    ("agents", &["state"], "Nodes by the state of their agent: Connected, Connecting, Silent, or NodeNotReady"),
    (
        "agent_silent_since_timestamp_seconds",
        &["reported"],
        "Time at which the agent that has been silent for the longest time was last heard, in seconds since 1970, of those that \
         have reported before (true) and of those of new nodes (false)",
    ),
    ("hosts", &["reason"], "Nodes by the reason of the condition HostReachable of their shadow"),
    ("web_api_ready", &[], "1 while a pod of the web API is Ready"),
    (
        "web_api_silent_since_timestamp_seconds",
        &[],
        "Time since which no pod of the web API has been Ready, in seconds since 1970",
    ),
    ("enabled", &[], "1 if spec.enabled lets new updates start"),
    ("next_window_timestamp_seconds", &[], "Time at which the next window opens, in seconds since 1970"),
    (
        "awaiting_approval",
        &[],
        "1 while a canary step waits for a user: for an approval, or since its places have no proof",
    ),
    ("history_failing", &[], "1 while the history of rollouts is not written: the condition HistoryRecorded is False"),
    (
        "notices_failing",
        &[],
        "1 while a receiver does not take notices, or cannot be used: the condition NoticesSent is False",
    ),
    ("versions_behind", &[], "Largest number of offered versions that are later than the one that a node runs"),
    ("unreadable_objects", &["kind"], "Objects that this version of the operator cannot read"),
    ("earlier_operator_pods", &[], "Pods of the earlier operator; while there is one, nothing is done"),
];

pub(super) const TLS: [Entry; 3] = [
    (
        "certificate_expiry_timestamp_seconds",
        &["certificate"],
        "When the certificates of the authority and of the web API end, in seconds since 1970",
    ),
    ("rotation", &["of", "phase"], "Phase of the rotation of certificates and of the signing key (1)"),
    (
        "certificates_degraded",
        &[],
        "1 while a key or certificate is invalid, or cannot be written; the log and the condition Degraded say which",
    ),
];

pub(super) const MIGRATION: [Entry; 2] = [
    ("storage_migration", &["state"], "State of the migration of stored shadows (1), as the reason of its condition"),
    ("storage_migration_objects_left", &[], "Shadows that are left to migrate, where their number is known"),
];

/// Gauges that are set together, by their names.
#[derive(Clone)]
pub(super) struct Gauges(BTreeMap<&'static str, GaugeVec>);

impl Gauges {
    pub(super) fn register(register: &mut Register, table: &[Entry]) -> Result<Self, prometheus::Error> {
        let gauge = |(name, labels, help): &Entry| Ok((*name, register.gauge(name, labels, help)?));
        table.iter().map(gauge).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn reset(&self) {
        self.0.values().for_each(GaugeVec::reset);
    }

    /// Adds to one of them, all of which begin at 0. A name that is not in the table fails the tests, and is left out
    /// otherwise.
    pub(super) fn add(&self, name: &str, labels: &[&str], value: f64) {
        debug_assert!(self.0.contains_key(name), "{name}");
        if let Some(gauge) = self.0.get(name) {
            gauge.with_label_values(labels).add(value);
        }
    }
}
