//! The operator's resource as decisions see it: every field with its default.

use std::time::Duration;

use models::operator::{AtDeadline, BottlerocketUpdateOperatorSpec, CountOrPercent};

/// The policy in force. Its defaults are the ones that the resource's documentation names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether the resource exists. Without it nothing new starts.
    pub present: bool,
    /// Whether new updates start.
    pub enabled: bool,
    /// How many nodes may be out of service because of us.
    pub max_unavailable: CountOrPercent,
    /// How often an idle host looks for updates.
    pub refresh_interval: models::duration::Duration,
    /// How long staging may take.
    pub stage: Duration,
    /// How long a drain may take.
    pub drain: Duration,
    /// What happens when a drain has taken that long.
    pub at_deadline: AtDeadline,
    /// How long the host may take from the order to reboot to another boot.
    pub reboot: Duration,
    /// How long the node may take from its new boot to being Ready.
    pub returning: Duration,
    /// How long a node is watched after its update.
    pub soak: Duration,
    /// How many nodes may fail on a version before the rollout freezes.
    pub max_failures: usize,
    /// How long a node waits after its first failed attempt.
    pub back_off: Duration,
}

/// The longest wait after failed attempts.
pub const BACK_OFF_LIMIT: Duration = Duration::from_secs(24 * 3600);

impl Default for Policy {
    fn default() -> Self {
        Self {
            present: false,
            enabled: true,
            max_unavailable: CountOrPercent::Count(1),
            refresh_interval: models::duration::Duration::from_mins(60),
            stage: Duration::from_secs(30 * 60),
            drain: Duration::from_secs(30 * 60),
            at_deadline: AtDeadline::Release,
            reboot: Duration::from_secs(15 * 60),
            returning: Duration::from_secs(10 * 60),
            soak: Duration::from_secs(60),
            max_failures: 1,
            back_off: Duration::from_secs(10 * 60),
        }
    }
}

impl Policy {
    /// The policy that a resource asks for.
    pub fn from_spec(spec: &BottlerocketUpdateOperatorSpec) -> Self {
        let default = Self::default();
        let drain = spec.drain.clone().unwrap_or_default();
        let deadlines = spec.deadlines.clone().unwrap_or_default();
        let failures = spec.failure_policy.clone().unwrap_or_default();
        let after = spec.health.clone().unwrap_or_default().after.unwrap_or_default();
        Self {
            present: true,
            enabled: spec.enabled.unwrap_or(default.enabled),
            max_unavailable: spec.max_unavailable.clone().unwrap_or(default.max_unavailable),
            refresh_interval: spec
                .version
                .as_ref()
                .and_then(|v| v.refresh_interval)
                .unwrap_or(default.refresh_interval),
            stage: deadlines.stage.map_or(default.stage, |d| d.0),
            drain: drain.timeout.map_or(default.drain, |d| d.0),
            at_deadline: drain.at_deadline.unwrap_or_default(),
            reboot: deadlines.reboot.map_or(default.reboot, |d| d.0),
            returning: deadlines.returning.map_or(default.returning, |d| d.0),
            soak: after.soak.map_or(default.soak, |d| d.0),
            max_failures: failures.max_failures.map_or(default.max_failures, |n| n as usize),
            back_off: failures.back_off.map_or(default.back_off, |d| d.0),
        }
    }

    /// How long a node waits after `failures` failed attempts in a row: doubled each time, up to a day.
    pub fn back_off_after(&self, failures: i64) -> Duration {
        let doublings = u32::try_from(failures.clamp(1, 20) - 1).unwrap_or(0);
        self.back_off.saturating_mul(1 << doublings).min(BACK_OFF_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_resource_means_the_documented_defaults() {
        let policy = Policy::from_spec(&BottlerocketUpdateOperatorSpec::default());
        assert_eq!(policy, Policy { present: true, ..Policy::default() });
    }

    #[test]
    fn the_wait_after_failures_doubles_up_to_a_day() {
        let policy = Policy::default();
        let minutes = |failures| policy.back_off_after(failures).as_secs() / 60;
        assert_eq!([minutes(1), minutes(2), minutes(3), minutes(20), minutes(i64::MAX)], [10, 20, 40, 1440, 1440]);
    }
}
