//! Takes one step towards the desired state.

use std::time::Duration;

use models::agent_step::{Step, step};
use models::shadow::HostState;
use tokio::time::Instant;

use super::next::{Next, Stop};
use super::turn::{Observed, Turn};
use super::{disarm, facts, fail, idle, permit, report, stage};
use crate::host::types::{UpdateState, UpdateStatus};
use crate::report::{Finding, HostCondition};
use crate::situation::{host_state, situation};

/// Interval of re-checks of a host in an unknown update state, or armed by another client: nothing signals when a user
/// has corrected it.
const RECHECK: Duration = Duration::from_secs(300);

/// Reads the facts and takes the step that the table has for them.
pub(super) async fn take_step(turn: &mut Turn<'_>) -> Result<Next, Stop> {
    let facts = facts::read_facts(turn).await?;
    turn.boot.take_over_activation(&turn.view);
    if let Some(UpdateStatus { state: UpdateState::Unknown(state), .. }) = &facts.status {
        let condition = HostCondition::unsupported(format!("the host's update state '{state}' is not known"));
        let finding = Finding::InProgress(turn.view.status.report.state.unwrap_or_default());
        turn.boot.status.expire();
        turn.boot.tries.announced = false;
        report::report_with(turn, &facts, &finding, &condition).await?;
        return Ok(Next::At(Instant::now() + RECHECK));
    }
    let situation = situation(&turn.view, &facts, &turn.boot.memory);
    let step = step(&situation);
    tracing::debug!(?situation, ?step, "next step");
    let found = &Observed { facts, situation };
    match step {
        Step::Reached(HostState::Idle) => idle::idle(turn, found).await,
        Step::Reached(HostState::StagedUpdate) => idle::wait_staged(turn, found).await,
        Step::Reached(state) => report_and_wait(turn, found, &Finding::Reached(state)).await,
        Step::Rest => report_and_wait(turn, found, &Finding::AtRest(host_state(&found.situation))).await,
        Step::LeaveArmed => {
            turn.boot.status.expire();
            report::report(turn, found, &Finding::AtRest(HostState::Idle)).await?;
            Ok(Next::At(Instant::now() + RECHECK))
        }
        Step::Unsupported => {
            let message = "the desired state is not known to this version of the agent";
            let finding = Finding::InProgress(host_state(&found.situation));
            report::report_with(turn, &found.facts, &finding, &HostCondition::unsupported(message)).await?;
            Ok(Next::Wait)
        }
        Step::Fail(reason) => {
            let message = fail::explain(reason, &turn.desired, &found.facts);
            fail::fail(turn, found, reason, message).await
        }
        Step::Deactivate => disarm::deactivate(turn, found).await,
        Step::PrepareAgain => disarm::prepare_again(turn, found).await,
        Step::Stage => stage::stage(turn, found).await,
        Step::Arm => permit::arm(turn, found).await,
        Step::RebootArmed => permit::reboot_armed(turn, found).await,
        Step::Rehearse => permit::rehearse(turn, found).await,
    }
}

async fn report_and_wait(turn: &mut Turn<'_>, found: &Observed, finding: &Finding) -> Result<Next, Stop> {
    report::report(turn, found, finding).await?;
    Ok(Next::Wait)
}
