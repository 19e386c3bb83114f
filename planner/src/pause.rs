//! The pause beside the earlier operator: as long as one of its pods exists, and then as long as a host may take to go
//! down, because a host whose reboot it has requested goes down after its pod is gone.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::{ConditionStatus, find_condition};
use models::operator::BLOCKED;
use models::time::after;

use crate::view::OperatorFacts;
use crate::wait::{Wait, WaitReason};

/// The reason of the operator's condition while pods exist.
pub(crate) const EARLIER_RUNNING: &str = WaitReason::EarlierOperatorRunning.as_str();

/// The reason after that: the status is `Unknown` until the hosts have had their time, and then `False`.
pub(crate) const EARLIER_GONE: &str = WaitReason::EarlierOperatorGone.as_str();

/// The state of the pause.
#[derive(Debug, PartialEq)]
pub struct Pause {
    /// The reason why every node waits; `None` without a pause.
    pub wait: Option<Wait>,
    /// The end of the last pause. A step that began before it gets its whole time from then on.
    pub resumed: Option<Timestamp>,
}

impl Pause {
    /// Derives the state from the operator's stored condition, so that a new leader continues the pause, and from the
    /// time at which this process last saw a pod, because the condition may not be written yet. A host goes down within
    /// `shutdown`.
    pub fn of(
        operator: Option<&OperatorFacts>,
        pods: &[String],
        seen: Option<Timestamp>,
        shutdown: Duration,
        now: Timestamp,
    ) -> Self {
        if let Some(wait) = Wait::for_earlier_operator(pods) {
            return Self { wait: Some(wait), resumed: None };
        }
        let stored = operator.and_then(|operator| find_condition(&operator.status.conditions, BLOCKED));
        let gone = match stored.map(|c| (c.status, c.reason.as_str(), c.last_transition_time)) {
            Some((ConditionStatus::False, EARLIER_GONE, since)) if seen <= Some(since) => {
                return Self { wait: None, resumed: Some(since) };
            }
            Some((ConditionStatus::Unknown, EARLIER_GONE, since)) => Some(since),
            // The time is about to be recorded.
            Some((ConditionStatus::True, EARLIER_RUNNING, _)) => Some(now),
            _ => None,
        };
        match gone.max(seen).map(|gone| after(gone, shutdown)) {
            Some(until) if now < until => Self { wait: Some(Wait::EarlierOperatorGone { until }), resumed: None },
            resumed => Self { wait: None, resumed },
        }
    }
}

#[cfg(test)]
mod tests {
    use models::condition::Condition;

    use super::*;
    use crate::fixtures::t;

    #[test]
    fn pause_lasts_until_hosts_of_earlier_operator_are_down() {
        use ConditionStatus::{False, True, Unknown};
        let until = |second| Pause { wait: Some(Wait::EarlierOperatorGone { until: t(second) }), resumed: None };
        let over = |second: Option<i64>| Pause { wait: None, resumed: second.map(t) };
        for (sentence, stored, seen, now, expected) in [
            ("no pod was ever seen", None, None, 1000, over(None)),
            ("something else kept nodes waiting", Some((False, "ExpressionsQuiet", 900)), None, 1000, over(None)),
            ("the last pod is just gone", Some((True, EARLIER_RUNNING, 10)), Some(999), 1000, until(1240)),
            ("a new leader finds no pod", Some((True, EARLIER_RUNNING, 10)), None, 1000, until(1240)),
            ("it is recorded", Some((Unknown, EARLIER_GONE, 1000)), Some(999), 1100, until(1240)),
            ("a new leader reads it", Some((Unknown, EARLIER_GONE, 1000)), None, 1239, until(1240)),
            ("the hosts are down", Some((Unknown, EARLIER_GONE, 1000)), None, 1240, over(Some(1240))),
            ("the end is recorded", Some((False, EARLIER_GONE, 1241)), Some(999), 1300, over(Some(1241))),
            ("a new leader reads the end", Some((False, EARLIER_GONE, 1241)), None, 9000, over(Some(1241))),
            ("a pod came and went, and was not recorded", None, Some(1000), 1239, until(1240)),
            ("another came after the end", Some((False, EARLIER_GONE, 1241)), Some(2000), 2001, until(2240)),
            ("that one is over, too", Some((False, EARLIER_GONE, 1241)), Some(2000), 2240, over(Some(2240))),
        ] {
            let conditions = stored.map(|(status, reason, since)| Condition {
                type_: BLOCKED.to_owned(),
                status,
                reason: reason.to_owned(),
                message: String::new(),
                last_transition_time: t(since),
                observed_generation: None,
            });
            let mut operator = OperatorFacts::default();
            operator.status.conditions.extend(conditions);
            let pause = |pods: &[String]| Pause::of(Some(&operator), pods, seen.map(t), Duration::from_mins(4), t(now));
            assert_eq!(pause(&[]), expected, "{sentence}");
            let pods = ["old/agent".to_owned()];
            let running = Pause { wait: Wait::for_earlier_operator(&pods), resumed: None };
            assert_eq!(pause(&pods), running, "{sentence}, and a pod exists");
        }
    }
}
