//! The agent ended at every moment of an update: nothing is caused by that, left half done, or done twice.

use models::shadow::{ArmedPhase, HostState};

use super::*;

/// Time that passes in each turn: the agent's waits for a command of the host end after some turns, and no time-out is reached.
const TICK: Duration = Duration::from_millis(25);

/// More turns than an update takes.
const LONGEST: usize = 3_000;

/// Permits the agent's nonce, if there is one without a permit.
fn issue_permit(bench: &Bench) {
    let view = bench.web.view();
    let Some(armed) = &view.status.report.armed else { return };
    let answered = view.spec.permit.as_ref().is_some_and(|permit| permit.nonce == armed.nonce);
    if view.spec.state == HostState::RebootedIntoUpdate && armed.attempt == view.spec.attempt && !answered {
        bench.issue_permit(&bench.claims(&view));
    }
}

/// Writes the next desired state, as a controller does.
pub(super) fn act_as_controller(bench: &Bench) {
    let view = bench.web.view();
    if view.spec.state == HostState::StagedUpdate
        && view.status.report.state == Some(HostState::StagedUpdate)
        && view.status.report.observed_generation == Some(view.metadata.generation)
    {
        bench.request_reboot();
    }
    issue_permit(bench);
}

/// Ends the agent after so many turns of an update, by `kill` or as a SIGTERM does; returns true if that was before the
/// reboot.
async fn end_agent_after(turns: usize, kill: bool, counts: &Counts) -> bool {
    let what = || format!("{} after {turns} turns", if kill { "killed" } else { "ended" });
    let bench = Bench::without_agent().await;
    bench.web.create();
    let agent = InProcessAgent::start(&bench);
    bench.stage(1);
    for _ in 0..turns {
        settle(1).await;
        tokio::time::advance(TICK).await;
        act_as_controller(&bench);
    }
    let before_reboot = reboots(&bench.host.log()) == 0;
    let calls = counts.calls();
    if kill {
        agent.kill().await;
    } else {
        agent.end().await.unwrap();
    }
    settle(50).await;
    assert_eq!(counts.calls(), calls, "{}: it called the host after that", what());
    // The host may still end what was begun; then the next process starts.
    pass(MINUTE / 6).await;
    let mut agent = InProcessAgent::start(&bench);
    let mut runs_in = bench.boot();
    let reached = |view: &models::wire::ShadowView| view.status.report.state == Some(HostState::RebootedIntoUpdate);
    let end = Instant::now() + HOUR;
    while !reached(&bench.web.view()) {
        assert!(Instant::now() < end, "{}: the update does not end: {:#?}", what(), bench.web.view());
        pass(STEP).await;
        act_as_controller(&bench);
        if bench.boot() != runs_in {
            // A boot ends every process.
            runs_in = bench.boot();
            agent.kill().await;
            agent = InProcessAgent::start(&bench);
        }
    }
    let log = bench.host.log();
    assert_eq!((arms(&log), reboots(&log)), (1, 1), "{}: armed and rebooted {log:#?}", what());
    let view = bench.web.view();
    assert_eq!((&view.status.report.armed, &view.status.report.failure), (&None, &None), "{}", what());
    let phases = bench.web.writes().iter().filter_map(|w| w.report.armed.as_ref().map(|a| a.phase)).collect::<Vec<_>>();
    assert!(phases.contains(&ArmedPhase::Activated), "{}: it did not report that before it rebooted", what());
    agent.end().await.unwrap();
    before_reboot
}

#[test]
fn agent_stopped_at_any_moment_makes_no_call_and_next_one_continues() {
    for kill in [false, true] {
        let mut moments = 0;
        for turns in 0..LONGEST {
            let mut before_reboot = false;
            simulate(async |counts| before_reboot = end_agent_after(turns, kill, counts).await);
            if !before_reboot {
                break;
            }
            moments += 1;
        }
        println!("{moments} moments");
        assert!(moments > 20, "an update of {moments} moments was not looked at closely");
    }
}
