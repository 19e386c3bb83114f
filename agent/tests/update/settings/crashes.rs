//! Changes that are interrupted, lost, or not used by the tools of the host.

use super::*;
use crate::faults::{HOUR, InProcessAgent, MINUTE, pass, pass_until, simulate};

#[tokio::test(flavor = "multi_thread")]
async fn commit_with_failed_file_write_is_repeated_once() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    bench.request_settings(Some("1.20.5"), None);
    let view = until_chosen(&bench, NEW).await;
    assert_eq!(view.status.report.host, Some(set("1.20.5")));
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, VersionLock::parse("1.20.5").ok());
    let calls = bench.calls();
    let commits: Vec<_> = (0..calls.len()).filter(|at| calls[*at].contains("commit")).collect();
    assert_eq!(commits.len(), 2);
    let refreshes = calls[commits[0]..commits[1]].iter().filter(|call| call.contains("refresh")).count();
    assert!(refreshes < 5, "the failure is known without looking: {calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_detects_unwritten_settings_files() {
    // The previous process learned of the failure and crashed: the new one sees settings that are as requested.
    let mut bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    bench.request_settings(Some("1.20.5"), None);
    until_called(&bench, COMMIT, 1).await;
    bench.kill_agent().await;
    assert!(locked(&bench, "1.20.5"));
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
    bench.start_agent();
    until_chosen(&bench, NEW).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_lost_before_commit_is_repeated() {
    let bench = Bench::new().await;
    bench.releases.publish(NEWEST);
    let lost = Transport::Status(422, "Tried to commit with no pending changes".into());
    bench.host.script(Fault::request("POST", "/tx", lost));
    bench.request_settings(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    assert!(locked(&bench, "1.20.5"));
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call == STAGE).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn host_with_delayed_settings_is_refreshed_again() {
    let bench = Bench::with(|options| options.settings_lag = Duration::from_millis(2500)).await;
    bench.releases.publish(NEWEST);
    bench.request_settings(Some("1.20.5"), None);
    until_chosen(&bench, NEW).await;
    let refreshes = bench.calls().iter().filter(|call| call.contains("refresh")).count();
    assert!(refreshes >= 2, "the first look still went by the old lock: {:?}", bench.calls());
    assert_eq!(settings_calls(&bench).iter().filter(|call| *call == COMMIT).count(), 1);
    bench.stage_and_wait(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_to_version_not_offered_is_committed_at_most_twice() {
    let bench = Bench::new().await;
    bench.request_settings(Some("9.9.9"), None);
    bench.logged("the host chooses another version than its settings require").await;
    let commits = || settings_calls(&bench).iter().filter(|call| *call == COMMIT).count();
    assert_eq!(commits(), 2, "once to lock it, and once more in case the files were never written");
    until_looked(&bench, 3).await;
    assert_eq!(commits(), 2);
    let view = bench.web.view();
    assert_eq!((reach(&view).as_str(), chosen(&view)), ("Answered", None));
    assert_eq!(view.status.report.host, Some(set("9.9.9")));
}

fn refreshes(bench: &Bench) -> usize {
    bench.calls().iter().filter(|call| call.contains("refresh")).count()
}

/// A host with a refresh each hour, after its first one, and its agent. Policy requests a lock now, and the host has this fault.
async fn host_with_lock_and_fault(fault: Fault) -> (Bench, InProcessAgent) {
    let bench = Bench::without_agent().await;
    bench.releases.publish(NEWEST);
    bench.web.create();
    let agent = InProcessAgent::start(&bench);
    let is_newest = || chosen(&bench.web.view()) == Some(NEWEST);
    assert!(pass_until(2 * MINUTE, is_newest).await, "{:#?}", bench.web.view());
    bench.host.script(fault);
    let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
    bench.web.change_spec(|spec| spec.host = Some(policy));
    (bench, agent)
}

#[test]
fn commit_that_fails_for_an_hour_causes_few_refreshes() {
    for failure in [
        Transport::Status(500, "no".into()),
        Transport::Status(422, "no pending changes".into()),
        Transport::LostBefore,
    ] {
        simulate(async |_| {
            let fault = Fault::request("POST", "/tx", failure.clone()).times(u32::MAX);
            let (bench, agent) = host_with_lock_and_fault(fault).await;
            let before = refreshes(&bench);
            pass(HOUR).await;
            let commits = settings_calls(&bench).iter().filter(|call| *call == COMMIT).count();
            let refreshes = refreshes(&bench) - before;
            assert!(commits >= 10 && refreshes <= 2, "{failure:?}: {refreshes} refreshes with {commits} commits");
            assert_eq!(reach(&bench.web.view()), "SettingsFailed", "{failure:?}");
            agent.end().await.unwrap();
        });
    }
}

#[test]
fn lock_whose_commit_is_carried_out_without_an_answer_is_verified_within_minutes() {
    simulate(async |_| {
        let (bench, agent) = host_with_lock_and_fault(Fault::request("POST", "/tx", Transport::LostAfter)).await;
        let is_shown = || chosen(&bench.web.view()) == Some(NEW);
        assert!(pass_until(3 * MINUTE, is_shown).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}
