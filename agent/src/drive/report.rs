//! Reports: builds the agent status and writes it until it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::wire::{AgentStatus, ShadowView};

use super::turn::{Next, Observed, Turn};
use crate::desired_state::DesiredState;
use crate::report::{Finding, HostCondition, PrunedReport, build, differs};
use crate::retry::{Delays, Retry};
use crate::server::Written;
use crate::situation::Facts;
use crate::stream::chain;

/// Delay after a failed write, as upper limits.
const FAILED: Delays = (Duration::from_millis(100), Duration::from_secs(10));

/// Number of immediate rebuilds of a report because the shadow changed meanwhile.
const REBUILDS: u32 = 4;

/// State of the reports to the web API.
#[derive(Debug, Default)]
pub(super) struct ReportState {
    failures: Retry,
    /// The last report, if it was not stored whole, and the number of streams opened before it.
    pruned: Option<(u64, PrunedReport)>,
}

impl ReportState {
    /// Returns true if a write would store nothing that is not stored. Behind another stream there may be another web
    /// API, which stores more.
    fn is_stored(&self, stored: &AgentStatus, new: &AgentStatus, streams: u64) -> bool {
        let pruned = self.pruned.as_ref().filter(|(before, _)| *before == streams);
        !differs(stored, new) || pruned.is_some_and(|(_, pruned)| pruned.covers(stored, new))
    }

    /// Records a report that was accepted.
    fn accepted(&mut self, sent: &AgentStatus, stored: &AgentStatus, streams: u64) {
        self.failures.reset();
        self.pruned = PrunedReport::of(sent, stored).map(|pruned| (streams, pruned));
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
                tracing::info!(state = ?new.report.state, armed = ?new.report.armed.map(|a| a.phase), "status reported");
                views.answered((*answer).clone(), &view.etag);
                return Ok(Arc::new(*answer));
            }
            Ok(Written::Stale(answer)) => {
                tracing::debug!("the shadow changed meanwhile; the report is built again");
                views.answered(*answer, &view.etag);
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "the report did not arrive");
                break;
            }
        }
    }
    Err(Next::after(turn.reports.failures.jittered_delay(FAILED)))
}
