//! The gauges that the leader alone exports.

use prometheus::GaugeVec;

use super::family::Register;

/// Gauges about the fleet, exported by the leader alone.
#[derive(Clone)]
pub(super) struct Fleet {
    pub(super) nodes: GaugeVec,
    pub(super) states: GaugeVec,
    pub(super) waiting: GaugeVec,
    pub(super) waiting_since: GaugeVec,
    pub(super) slots: GaugeVec,
    pub(super) slots_limit: GaugeVec,
    pub(super) frozen: GaugeVec,
    pub(super) quarantined: GaugeVec,
    pub(super) degraded: GaugeVec,
    pub(super) window: GaugeVec,
}

impl Fleet {
    pub(super) fn register(register: &mut Register) -> Result<Self, prometheus::Error> {
        Ok(Self {
            nodes: register.gauge(
                "nodes",
                &["step", "version"],
                "Nodes by the step of their update and the version that they run",
            )?,
            states: register.gauge(
                "nodes_by_state",
                &["state"],
                "Nodes by the counts of the operator's status, which overlap",
            )?,
            waiting: register.gauge("nodes_waiting", &["reason"], "Nodes by the reason why they wait")?,
            waiting_since: register.gauge(
                "waiting_since_timestamp_seconds",
                &["reason"],
                "Time since which the node that has waited longest for this reason has waited for it, in seconds since 1970",
            )?,
            slots: register.gauge("slots_in_use", &[], "Nodes that are, or are about to be, out of service")?,
            slots_limit: register.gauge(
                "slots_limit",
                &[],
                "Maximum number of nodes out of service at a time by maxUnavailable",
            )?,
            frozen: register.gauge("frozen", &[], "1 while failures have stopped the rollout")?,
            quarantined: register.gauge(
                "quarantined_versions",
                &[],
                "Versions that are not taken any more because nodes failed on them, per variant and architecture",
            )?,
            degraded: register.gauge(
                "policy_degraded",
                &[],
                "1 while the policy is invalid, so that an earlier one is in force",
            )?,
            window: register.gauge(
                "window_open",
                &[],
                "1 while the schedule of all nodes allows nodes to be taken out of service",
            )?,
        })
    }

    pub(super) fn reset(&self) {
        let Self { nodes, states, waiting, waiting_since, slots, slots_limit, frozen, quarantined, degraded, window } =
            self;
        for gauge in [nodes, states, waiting, waiting_since, slots, slots_limit, frozen, quarantined, degraded, window]
        {
            gauge.reset();
        }
    }
}

/// Gauges about keys and certificates, of the leader alone.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) expiry: GaugeVec,
    pub(super) rotation: GaugeVec,
    pub(super) problem: GaugeVec,
}

impl Tls {
    pub(super) fn register(register: &mut Register) -> Result<Self, prometheus::Error> {
        Ok(Self {
            expiry: register.gauge(
                "certificate_expiry_timestamp_seconds",
                &["certificate"],
                "When the certificates of the authority and of the web API end, in seconds since 1970",
            )?,
            rotation: register.gauge(
                "rotation",
                &["of", "phase"],
                "Phase of the rotation of certificates and of the signing key (1)",
            )?,
            problem: register.gauge(
                "certificates_degraded",
                &[],
                "1 while a key or certificate is invalid; the log and the condition Degraded name it",
            )?,
        })
    }

    pub(super) fn reset(&self) {
        let Self { expiry, rotation, problem } = self;
        for gauge in [expiry, rotation, problem] {
            gauge.reset();
        }
    }
}
