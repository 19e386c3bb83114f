//! Reports: builds the agent status and writes it until it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::{Backoff, Delays, full_jitter};
use models::wire::{AgentStatus, ShadowView};
use rand::random;
use tracing::field::debug;

use super::turn::{Next, Observed, Turn};
use crate::desired_state::DesiredState;
use crate::report::{Finding, HostCondition, build, differs};
use crate::server::Written;
use crate::situation::Facts;
use crate::stream::chain;

/// Delay after a failed write, as upper limits.
const FAILED: Delays = (Duration::from_millis(100), Duration::from_secs(10));

/// Number of immediate rebuilds of a report because the shadow changed meanwhile.
const REBUILDS: u32 = 4;

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
    pruned: Option<PrunedReport>,
}

impl ReportState {
    /// Returns true if a write would store nothing that is not stored. Behind another stream there may be another web
    /// API, which stores more.
    fn is_stored(&self, stored: &AgentStatus, new: &AgentStatus, streams: u64) -> bool {
        let is_pruned = |last: &PrunedReport| {
            last.streams == streams && !differs(&last.stored, stored) && !differs(&last.sent, new)
        };
        !differs(stored, new) || self.pruned.as_ref().is_some_and(is_pruned)
    }

    fn accepted(&mut self, sent: &AgentStatus, stored: &AgentStatus, streams: u64) {
        self.failures.reset();
        let is_pruned = differs(stored, sent);
        self.pruned = is_pruned.then(|| PrunedReport { streams, sent: sent.clone(), stored: stored.clone() });
    }
}

/// Reports under the turn's desired state, with the usual content of the condition. Returns the shadow in which the
/// report is stored; writes nothing if nothing has changed.
pub(super) async fn report(turn: &mut Turn<'_>, found: &Observed, finding: &Finding) -> Result<Arc<ShadowView>, Next> {
    let condition = turn.condition(&found.situation);
    report_with(turn, &found.facts, finding, &condition).await
}

/// Reports with this content of the condition.
pub(super) async fn report_with(
    turn: &mut Turn<'_>,
    facts: &Facts,
    finding: &Finding,
    condition: &HostCondition,
) -> Result<Arc<ShadowView>, Next> {
    let memory = turn.boot.memory.clone();
    let make = |view: &ShadowView| {
        build(&view.status, view.metadata.generation, facts, &memory, finding, condition, Timestamp::now())
    };
    let view = put(turn, make).await?;
    let armed = matches!(finding, Finding::Armed(_));
    if armed {
        // What is stored from here on was armed by this process.
        turn.boot.memory.took_over = true;
    }
    if armed || view.status.report.armed.is_none() {
        turn.boot.memory.disarmed = false;
    }
    Ok(view)
}

/// Writes what `make` builds, until it is stored. Otherwise returns when to decide again: at once if the desired state
/// has changed, or after a delay if the report was not stored, or the outcome is unknown.
pub(super) async fn put(
    turn: &mut Turn<'_>,
    make: impl Fn(&ShadowView) -> AgentStatus,
) -> Result<Arc<ShadowView>, Next> {
    let (server, views) = (turn.clients.server, turn.clients.views);
    for _ in 0..REBUILDS {
        let Some(view) = views.newest().filter(|view| DesiredState::of(view) == turn.desired) else {
            return Err(Next::Again);
        };
        if turn.boot.take_over_activation(&view) {
            return Err(Next::Again);
        }
        let new = make(&view);
        if turn.reports.is_stored(&view.status, &new, views.streams()) {
            return Ok(view);
        }
        match server.put_status(&view.etag, &new).await {
            Ok(Written::Stored(answer)) => {
                turn.reports.accepted(&new, &answer.status, views.streams());
                let armed = new.report.armed.map(|armed| debug(armed.phase));
                tracing::info!(state = new.report.state.map(debug), armed, "status reported");
                views.answered((*answer).clone(), &view.etag);
                return Ok(Arc::new(*answer));
            }
            Ok(Written::Stale(answer)) => {
                tracing::debug!("the shadow changed meanwhile; the report is built again");
                views.answered(*answer, &view.etag);
            }
            Err(error) => {
                tracing::warn!(error = chain(&*error), "the report did not arrive");
                break;
            }
        }
    }
    Err(Next::after(full_jitter(turn.reports.failures.next_delay(FAILED), random())))
}

#[cfg(test)]
mod tests {
    use models::shadow::HostState;

    use super::*;
    use crate::report::tests::built;
    use crate::situation::tests::{NEW, OLD, facts, view};

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
