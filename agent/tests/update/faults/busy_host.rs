//! Hosts whose commands take as long as on real machines: few calls, and no wait that outlives what it is for.

use integ::host::{Command, Fault, HostOptions, Worker};
use models::condition::{ConditionStatus, find_condition};
use models::operator::Deadlines;
use models::shadow::{ArmedPhase, HOST_ANSWERED, HOST_BUSY, HOST_REACHABLE, HostPolicy, HostState};

use super::*;
use crate::bench::NEW;
use crate::{acknowledged, failed, phase, reach};

/// A host with the timings of a real one, and an agent that knows what it offers.
async fn busy_host() -> (Bench, InProcessAgent) {
    let busy = |options: &mut HostOptions| {
        let timings = &mut options.timings;
        (timings.refresh, timings.prepare) = (Duration::from_secs(2), Duration::from_secs(20));
        timings.activate = Duration::from_millis(100);
    };
    let bench = Bench::stopped(busy).await;
    bench.web.create();
    let agent = InProcessAgent::start(&bench);
    let chosen = || bench.web.view().status.report.updates.and_then(|updates| updates.chosen_version);
    assert!(pass_until(5 * MINUTE, || chosen() == Some(NEW)).await, "{:#?}", bench.web.view());
    (bench, agent)
}

#[test]
fn withdrawal_during_long_download_is_noticed_at_once() {
    simulate(async |counts| {
        let (bench, agent) = busy_host().await;
        bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
        let before = counts.calls();
        bench.stage(1);
        pass(3 * MINUTE).await;
        let calls = counts.calls() - before;
        assert!((3..=7).contains(&calls), "{calls} calls in a download of three minutes");
        // The next read of the status is far away.
        bench.withdraw();
        pass(Duration::from_secs(1)).await;
        assert!(counts.calls() > before + calls, "the host is read for the other desired state");
        // The wait for a command that is not followed any more is short, too.
        pass(MINUTE).await;
        let calls = counts.calls() - before - calls;
        assert!(calls <= 9, "{calls} calls in a minute beside a command that is not followed");
        bench.host.release_command();
        until(&bench, MINUTE / 2, acknowledged).await;
        let view = bench.web.view();
        assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
        agent.end().await.unwrap();
    });
}

#[test]
fn command_that_does_not_end_is_reported_until_it_does() {
    simulate(async |_| {
        let (bench, agent) = busy_host().await;
        bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
        let before = bench.calls().len();
        let started = || bench.calls()[before..].iter().filter(|call| call.starts_with("POST")).count();
        let condition = || find_condition(&bench.web.view().status.conditions, HOST_REACHABLE).cloned().unwrap();
        // Without an attempt, the next refresh comes after an hour.
        pass(HOUR + 4 * MINUTE).await;
        assert_eq!(condition().reason, HOST_ANSWERED);
        assert!(pass_until(2 * MINUTE, || condition().reason == HOST_BUSY).await, "{:?}", condition());
        assert_eq!(condition().status, ConditionStatus::True);
        pass(HOUR).await;
        assert_eq!(started(), 1, "it is not started again");
        bench.host.release_command();
        assert!(pass_until(MINUTE, || condition().reason == HOST_ANSWERED).await, "{:#?}", bench.web.view());
        pass(5 * MINUTE).await;
        assert!(started() <= 2, "{} refreshes", started());
        agent.end().await.unwrap();
    });
}

/// A busy host with a staged image, and its agent.
async fn busy_staged_host() -> (Bench, InProcessAgent) {
    let (bench, agent) = busy_host().await;
    bench.stage(1);
    until(&bench, 5 * MINUTE, is_staged).await;
    (bench, agent)
}

fn is_busy(view: &ShadowView) -> bool {
    reach(view) == HOST_BUSY
}

#[test]
fn desired_reboot_of_a_busy_host_is_answered_with_the_cause_well_before_its_deadline() {
    simulate(async |counts| {
        let (bench, agent) = busy_staged_host().await;
        bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
        bench.host.foreign(Command::Refresh).await.unwrap();
        let warnings = counts.warnings();
        bench.request_reboot();
        until(&bench, Deadlines::REBOOT.0 / 4, is_busy).await;
        pass(HOUR).await;
        assert_eq!(counts.warnings() - warnings, 1, "it is in the log once");
        bench.host.release_command();
        until(&bench, MINUTE, |view| !is_busy(view) && phase(view) == Some(ArmedPhase::Arming)).await;
        agent.end().await.unwrap();
    });
}

#[test]
fn staged_host_whose_refresh_hangs_is_reported_before_it_is_drained_in_vain() {
    simulate(async |_| {
        let (bench, agent) = busy_staged_host().await;
        bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
        let before = bench.calls().len();
        let refreshes = || bench.calls()[before..].iter().filter(|call| call.starts_with("POST")).count();
        // It is refreshed each hour.
        assert!(pass_until(HOUR + MINUTE, || refreshes() == 1).await, "{:?}", bench.calls());
        until(&bench, Deadlines::REBOOT.0 / 4, is_busy).await;
        bench.host.release_command();
        until(&bench, MINUTE, |view| !is_busy(view) && is_staged(view)).await;
        agent.end().await.unwrap();
    });
}

/// A slow link: the attempt's own deadline is the controller's.
#[test]
fn download_that_takes_an_hour_is_followed_to_its_end() {
    simulate(async |_| {
        let (bench, agent) = busy_host().await;
        bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
        bench.stage(1);
        pass(HOUR).await;
        assert!(!is_busy(&bench.web.view()), "it is the agent's own");
        bench.host.release_command();
        until(&bench, 2 * MINUTE, is_staged).await;
        agent.end().await.unwrap();
    });
}

#[test]
fn host_that_answers_again_during_staging_is_reported_before_its_download_has_ended() {
    for (what, fails) in [("the same download goes on", false), ("another download follows", true)] {
        simulate(async |_| {
            let (bench, agent) = busy_host().await;
            let status = || bench.web.view().status;
            let reachable = || find_condition(&status().conditions, HOST_REACHABLE).map(|condition| condition.status);
            let held = || bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
            if fails {
                bench.host.script(Fault::fails(Command::Prepare, "no space").delayed(Duration::from_secs(20)));
            } else {
                held();
            }
            bench.stage(1);
            pass(Duration::from_secs(10)).await;
            bench.host.script(Fault::connection().times(u32::MAX));
            let lost = || reachable() == Some(ConditionStatus::False);
            assert!(pass_until(5 * MINUTE, lost).await, "{what}: {:#?}", status());
            bench.host.clear_faults();
            let before = bench.calls().len();
            if fails {
                held();
            }
            let answers = || reachable() == Some(ConditionStatus::True);
            assert!(pass_until(2 * MINUTE, answers).await, "{what}: {:#?}", status());
            assert_ne!(status().report.state, Some(HostState::StagedUpdate), "{what}");
            let downloads = || bench.calls()[before..].iter().any(|call| call.ends_with("prepare-update"));
            assert!(!fails || pass_until(HOUR, downloads).await, "{what}: {:#?}", status());
            bench.host.release_command();
            let staged = || status().report.state == Some(HostState::StagedUpdate);
            assert!(pass_until(5 * MINUTE, staged).await, "{what}: {:#?}", status());
            agent.end().await.unwrap();
        });
    }
}

#[test]
fn problem_with_settings_is_reported_again_for_a_busy_host_that_answers_again() {
    simulate(async |_| {
        let (bench, agent) = busy_host().await;
        let reason = || reach(&bench.web.view());
        let answers = || matches!(reason().as_str(), "SettingsUnsigned" | HOST_ANSWERED);
        let unsigned = HostPolicy { signature: None, ..bench.policy(Some("1.20.5"), None) };
        bench.web.change_spec(|spec| spec.host = Some(unsigned));
        until(&bench, MINUTE, |view| reach(view) == "SettingsUnsigned").await;
        bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
        let before = bench.calls().len();
        let refreshes = || bench.calls()[before..].iter().any(|call| call.starts_with("POST"));
        assert!(pass_until(2 * MINUTE, refreshes).await, "{:?}", bench.calls());
        bench.host.script(Fault::connection().times(u32::MAX));
        assert!(pass_until(10 * MINUTE, || !answers()).await, "{:?}", reason());
        bench.host.clear_faults();
        assert!(pass_until(10 * MINUTE, answers).await, "{:?}", reason());
        assert_eq!(reason(), "SettingsUnsigned");
        bench.host.release_command();
        agent.end().await.unwrap();
    });
}
