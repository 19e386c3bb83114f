//! The outcome of the last reports.

use std::time::Duration;

use models::backoff::{Backoff, Delays, full_jitter};
use models::reason::FailureReason;
use models::wire::AgentStatus;
use rand::random;

use crate::failure_log::FailureLog;
use crate::report::differs;

/// Delay after a failed write, as upper limits.
const FAILED: Delays = (Duration::from_millis(100), Duration::from_secs(10));

/// A report that was not stored whole, because the web API or the cluster is of a version that does not know all of it.
/// Sending it again unchanged would store no more.
#[derive(Debug)]
struct PrunedReport {
    /// Number of streams opened before it.
    streams: u64,
    sent: AgentStatus,
    stored: AgentStatus,
}

#[derive(Debug, Default)]
pub(super) struct ReportState {
    failures: Backoff,
    log: FailureLog,
    pruned: Option<PrunedReport>,
    /// The last failure of an attempt in the log: it is found again at each try until its report is stored.
    failed: Option<(i64, FailureReason)>,
}

impl ReportState {
    /// Returns true if this failure of an attempt is not in the log yet.
    pub(super) fn is_news(&mut self, attempt: i64, reason: FailureReason) -> bool {
        self.failed.replace((attempt, reason)) != Some((attempt, reason))
    }

    /// Returns true if a write would store nothing that is not stored. Behind another stream there may be another web
    /// API, which stores more.
    pub(super) fn is_stored(&self, stored: &AgentStatus, new: &AgentStatus, streams: u64) -> bool {
        let is_pruned = |last: &PrunedReport| {
            last.streams == streams && !differs(&last.stored, stored) && !differs(&last.sent, new)
        };
        !differs(stored, new) || self.pruned.as_ref().is_some_and(is_pruned)
    }

    /// Records a report that was stored.
    pub(super) fn accepted(&mut self, sent: &AgentStatus, stored: &AgentStatus, streams: u64) {
        self.failures.reset();
        self.log.succeeded();
        self.failed = None;
        let is_pruned = differs(stored, sent);
        self.pruned = is_pruned.then(|| PrunedReport { streams, sent: sent.clone(), stored: stored.clone() });
    }

    /// Logs a report that was not stored.
    pub(super) fn log_failure(&mut self, error: &str) {
        self.log.failed("the report did not arrive", error);
    }

    /// Counts a report that was not stored, and returns the delay before the next one.
    pub(super) fn retry_delay(&mut self) -> Duration {
        full_jitter(self.failures.next_delay(FAILED), random())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use models::shadow::HostState;

    use super::*;
    use crate::report::Finding;
    use crate::report::tests::built;
    use crate::situation::tests::{NEW, OLD, facts, view};

    #[test]
    fn failure_of_an_attempt_is_logged_once_while_its_report_is_not_stored() {
        let mut reports = ReportState::default();
        for (attempt, reason, is_news) in [
            (1, FailureReason::NotStaged, true),
            (1, FailureReason::NotStaged, false),
            (1, FailureReason::ActivateFailed, true),
            (2, FailureReason::ActivateFailed, true),
            (2, FailureReason::ActivateFailed, false),
        ] {
            assert_eq!(reports.is_news(attempt, reason), is_news, "{attempt} {reason}");
            reports.log_failure("no answer");
        }
    }

    #[test]
    fn partially_stored_report_is_resent_only_after_a_change() {
        let at_rest = |stored: &AgentStatus, version| {
            built(stored, &facts("b1", version, None, ("", "")), &Finding::AtRest(HostState::Idle))
        };
        let sent = at_rest(&view(HostState::Idle).status, OLD);
        let mut reports = ReportState::default();
        reports.accepted(&sent, &sent, 1);
        assert!(reports.pruned.is_none() && reports.is_stored(&sent, &sent, 1));
        let mut pruned = sent.clone();
        pruned.conditions.clear();
        assert!(!reports.is_stored(&pruned, &sent, 1));
        reports.accepted(&sent, &pruned, 1);
        let mut later = sent.clone();
        later.conditions[0].last_transition_time = Timestamp::from_second(60).unwrap();
        assert!(reports.is_stored(&pruned, &later, 1), "the stored transition time counts");
        assert!(!reports.is_stored(&pruned, &later, 2), "another web API may store more");
        assert!(!reports.is_stored(&pruned, &at_rest(&pruned, NEW), 1));
        let mut other = sent.clone();
        other.report.variant = None;
        assert!(!reports.is_stored(&other, &sent, 1), "another client has written since");
    }
}
