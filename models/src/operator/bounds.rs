//! The bounds of the policy's durations: one table, from which come the rules of the schema, the reading of stored values,
//! and the table in `docs/resources.md`.

use std::fmt;

use serde_json::Value;

use crate::duration::Duration;

/// The bounds of a duration in `spec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The field, as a path within `spec`, in which `[]` is each item of a list.
    pub field: &'static str,
    /// The shortest value.
    pub min: Duration,
    /// The longest value.
    pub max: Duration,
    /// The reason of the bounds, for users.
    pub why: &'static str,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_mins(60);
const DAY: Duration = days(1);
const WEEK: Duration = days(7);
const YEAR: Duration = days(365);

const fn days(count: u64) -> Duration {
    Duration::from_mins(count * 24 * 60)
}

const NO_ANSWER: &str = "Without time, no hook can answer. The node holds its slot meanwhile.";

const fn bound(field: &'static str, min: Duration, max: Duration, why: &'static str) -> Bound {
    Bound { field, min, max, why }
}

/// The bounds of every duration of the policy. The test bed relies on minimums of a second where no harm comes of them.
pub const BOUNDS: &[Bound] = &[
    bound("version.minimumAge", Duration::ZERO, YEAR, "With more, no release is ever taken."),
    bound(
        "version.refreshInterval",
        SECOND,
        WEEK,
        "Each check is a request to the repository. With more, releases are missed.",
    ),
    bound(
        "ignoreUnavailableAfter",
        MINUTE,
        WEEK,
        "Nodes that restart count. With more, a dead node stops all updates.",
    ),
    bound("schedule.windows[].duration", MINUTE, days(31), "Nodes start within a window."),
    bound("schedule.stopStartingBefore", Duration::ZERO, days(30), "It is shorter than a window."),
    bound("strategy.canary[].soak", Duration::ZERO, days(90), "With more, the next release comes first."),
    bound("drain.timeout", SECOND, WEEK, "Without time, no pod can leave. The node is cordoned meanwhile."),
    bound("drain.guardedTimeout", SECOND, WEEK, "Without time, no pod can leave. The node is cordoned meanwhile."),
    bound("drain.skipTerminatingAfter", Duration::ZERO, WEEK, "The drain is not longer."),
    bound("drain.gracePeriod", SECOND, WEEK, "Without one, pods are killed at once. The drain is not longer."),
    bound(
        "loadBalancer.leaveBeforeDrain",
        Duration::ZERO,
        HOUR,
        "Load balancers close connections within an hour. The node is cordoned meanwhile.",
    ),
    bound("hooks[].before.timeout", SECOND, WEEK, NO_ANSWER),
    bound("hooks[].after.timeout", SECOND, WEEK, NO_ANSWER),
    bound("health.after.soak", SECOND, DAY, "The node holds its slot meanwhile; canary steps have longer soaks."),
    bound("health.after.timeout", SECOND, days(2), "The node holds its slot meanwhile."),
    bound("prometheus.timeout", SECOND, MINUTE, "Prometheus itself gives up after two minutes."),
    bound("prometheus.interval", SECOND, HOUR, "Each evaluation is a query. With more, nodes wait for one."),
    bound("freshness.target", SECOND, YEAR, "With more, every node is within the target."),
    bound("notices.blockedAfter", SECOND, WEEK, "With more, receivers are notified too late."),
    bound(
        "failurePolicy.backOff",
        SECOND,
        DAY,
        "Without one, a broken node is drained again and again. The longest back-off is a day.",
    ),
    bound("deadlines.stage", MINUTE, DAY, "An image of hundreds of megabytes takes a while."),
    bound("deadlines.reboot", SECOND, DAY, "Without time, no host can reboot. The node holds its slot meanwhile."),
    bound(
        "deadlines.return",
        MINUTE,
        DAY,
        "No node is Ready at once, and one that is not in time freezes the rollout.",
    ),
    bound(
        "deadlines.shutdown",
        Duration::from_secs(5),
        HOUR,
        "No host is down at once. A withdrawn node waits for it.",
    ),
    bound("rolloutHistory.maxAge", HOUR, days(10 * 365), "Without time, nothing is kept."),
];

/// The parts of `spec` that a node group may have too.
const GROUP_PARTS: [&str; 3] = ["schedule.", "drain.", "health."];

impl Bound {
    /// Returns the paths within `spec` of the fields that it bounds: the field, and that of node groups where they have it.
    pub fn places(&self) -> impl Iterator<Item = String> + use<> {
        let Self { field, .. } = *self;
        let of_groups = GROUP_PARTS.iter().any(|part| field.starts_with(part));
        std::iter::once(field.to_owned()).chain(of_groups.then(|| format!("nodeGroups[].{field}")))
    }

    /// Returns the value, or the nearest bound.
    pub fn nearest(&self, value: Duration) -> Duration {
        value.clamp(self.min, self.max)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// A stored duration that is outside its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value} and read as {read_as}: write {bound}")]
pub struct OutOfBounds {
    /// The field, as a path from the resource's root, such as `spec.nodeGroups[0].drain.timeout`.
    pub field: String,
    /// The stored value.
    pub value: Duration,
    /// The bound that is nearest to it.
    pub read_as: Duration,
    /// The bounds of the field.
    pub bound: Bound,
}

/// Sets each duration of this `spec` that is outside its bounds to the nearest one. Returns these fields.
pub(super) fn apply(spec: &mut Value) -> Vec<OutOfBounds> {
    let mut found = Vec::new();
    for bound in BOUNDS {
        for place in bound.places() {
            visit(spec, &place, "spec", &mut |field, stored| {
                let Some(value) = stored.as_str().and_then(|text| text.parse().ok()) else { return };
                let read_as = bound.nearest(value);
                if read_as != value {
                    *stored = read_as.to_string().into();
                    found.push(OutOfBounds { field: field.to_owned(), value, read_as, bound: *bound });
                }
            });
        }
    }
    found
}

/// Calls `apply` with each field at the path that exists, and with its place.
fn visit(value: &mut Value, path: &str, place: &str, apply: &mut dyn FnMut(&str, &mut Value)) {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Some(field) = value.get_mut(name.trim_end_matches("[]")) else { return };
    let place = format!("{place}.{}", name.trim_end_matches("[]"));
    match (field, rest) {
        (Value::Array(items), Some(rest)) => {
            for (index, item) in items.iter_mut().enumerate() {
                visit(item, rest, &format!("{place}[{index}]"), apply);
            }
        }
        (field, Some(rest)) => visit(field, rest, &place, apply),
        (field, None) => apply(&place, field),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stored_duration_outside_its_bounds_is_read_as_the_nearest_one() {
        let mut spec = json!({
            "drain": {"timeout": "0s"},
            "loadBalancer": {"leaveBeforeDrain": "60h"},
            "failurePolicy": {"backOff": "0h0m", "maxFailures": 2},
            "deadlines": {"return": "0s", "reboot": "30m"},
            "hooks": [{"name": "a", "before": {"timeout": "5m"}}, {"name": "b", "after": {"timeout": "0s"}}],
            "nodeGroups": [{"name": "db", "health": {"after": {"soak": "0s"}}, "schedule": {"windows": [{"duration": "800h"}]}}],
        });
        let found = apply(&mut spec);
        let mut sentences: Vec<_> = found.iter().map(ToString::to_string).collect();
        sentences.sort();
        assert_eq!(
            sentences,
            [
                "spec.deadlines.return is 0s and read as 1m: write 1m to 24h",
                "spec.drain.timeout is 0s and read as 1s: write 1s to 168h",
                "spec.failurePolicy.backOff is 0s and read as 1s: write 1s to 24h",
                "spec.hooks[1].after.timeout is 0s and read as 1s: write 1s to 168h",
                "spec.loadBalancer.leaveBeforeDrain is 60h and read as 1h: write 0s to 1h",
                "spec.nodeGroups[0].health.after.soak is 0s and read as 1s: write 1s to 24h",
                "spec.nodeGroups[0].schedule.windows[0].duration is 800h and read as 744h: write 1m to 744h",
            ]
        );
        assert_eq!(spec["drain"]["timeout"], "1s");
        assert_eq!(spec["nodeGroups"][0]["schedule"]["windows"][0]["duration"], "744h");
        assert_eq!(spec["deadlines"]["reboot"], "30m", "within its bounds");
        assert_eq!(apply(&mut spec), []);
    }

    #[test]
    fn bounds_leave_a_range() {
        for bound in BOUNDS {
            assert!(bound.min < bound.max && bound.why.ends_with('.'), "{bound:?}");
        }
    }
}
