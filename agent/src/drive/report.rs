//! Reports: builds the agent status and writes it until it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use models::failures::with_causes;
use models::wire::{AgentStatus, ShadowView};
use tokio::time::{sleep, timeout};
use tracing::field::debug;

use super::moment::Moment;
use super::next::Next;
use super::turn::{Observed, Turn};
use crate::desired_state::DesiredState;
use crate::report::{Finding, HostCondition, build};
use crate::server::{NOT_IN_TIME, Written};
use crate::situation::Facts;

/// Number of immediate rebuilds of a report because the shadow changed meanwhile.
const REBUILDS: u32 = 4;

/// Time-out of a report that nothing depends on, or nothing any more since the desired state was withdrawn: longer than
/// an admission webhook that hangs delays a write by default (10 s).
const IF_POSSIBLE: Duration = Duration::from_secs(15);

/// Makes a report that nothing depends on, if the web API answers soon: the next call to the host, which may be to disarm
/// it, waits no longer. A later turn reports again.
pub(super) async fn report_if_possible<'a>(
    turn: &mut Turn<'a>,
    report: impl AsyncFnOnce(&mut Turn<'a>) -> Result<Arc<ShadowView>, Next>,
) {
    if timeout(IF_POSSIBLE, report(turn)).await.is_err() {
        turn.reports.log_failure(NOT_IN_TIME);
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
        build(&view.status, view.metadata.generation, facts, &memory, finding, condition, Moment::now().wall)
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
/// has changed (15 s later while a write is not answered), or after a delay if the report was not stored, or the outcome
/// is unknown.
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
        let overdue = async {
            turn.withdrawn().await;
            sleep(IF_POSSIBLE).await;
        };
        let answer = tokio::select! {
            answer = server.put_status(&view.etag, &new) => answer,
            // The next call to the host may be to disarm it.
            () = overdue => {
                turn.reports.log_failure(NOT_IN_TIME);
                return Err(Next::Again);
            }
        };
        match answer {
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
                turn.reports.log_failure(&with_causes(&*error));
                break;
            }
        }
    }
    Err(Next::after(turn.reports.retry_delay()))
}
