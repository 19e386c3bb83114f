//! Images that the next attempt uses without another download, and those that it downloads again.

use integ::host::{Command, Fault, Worker};
use integ::machine::Power;
use models::reason::FailureReason;
use semver::Version;

use super::*;
use crate::bench::NEW;
use crate::{acknowledged, failed};

/// A release that is newer than the staged one.
const NEWER: Version = Version::new(1, 20, 6);

/// Returns how often the agent has requested a command.
fn requests(bench: &Bench, command: Command) -> usize {
    bench.calls().iter().filter(|call| call.ends_with(command.path())).count()
}

/// Stages the image in an attempt, and returns the number of downloads so far.
async fn downloads_until_staged(bench: &Bench, attempt: i64) -> usize {
    bench.stage(attempt);
    until(bench, MINUTE, |view| is_staged(view) && acknowledged(view)).await;
    requests(bench, Command::Prepare)
}

/// Withdraws the attempt. The agent then refreshes the idle host.
async fn withdraw_and_refresh(bench: &Bench) {
    bench.withdraw();
    until(bench, MINUTE, acknowledged).await;
    until_refreshed(bench).await;
}

/// Lets time pass until the agent has refreshed the idle host.
async fn until_refreshed(bench: &Bench) {
    let before = requests(bench, Command::Refresh);
    assert!(pass_until(2 * HOUR, || requests(bench, Command::Refresh) > before).await, "{:?}", bench.calls());
    // The agent reads the outcome.
    pass(MINUTE).await;
    let last = bench.host.snapshot().status.and_then(|status| status.most_recent_command);
    assert_eq!(last.map(|last| last.cmd_type), Some(Command::Refresh));
}

#[test]
fn next_attempt_uses_the_staged_image_after_refreshes() {
    simulate_agent(async |bench| {
        for attempt in 1..=3 {
            assert_eq!(downloads_until_staged(bench, attempt).await, 1, "attempt {attempt}");
            withdraw_and_refresh(bench).await;
        }
        assert_eq!(downloads_until_staged(bench, 4).await, 1);
        bench.request_reboot();
        until(bench, MINUTE, |view| view.status.report.armed.is_some()).await;
        bench.issue_permit(&bench.claims(&bench.web.view()));
        let is_armed = |event: &Event| event.kind == EventKind::Armed { version: NEW };
        assert!(pass_until(MINUTE, || bench.host.log().iter().any(is_armed)).await, "{:?}", bench.calls());
    });
}

#[test]
fn next_attempt_uses_an_image_whose_download_outlived_its_attempt() {
    simulate_agent(async |bench| {
        bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
        bench.stage(1);
        let runs = || bench.host.snapshot().running_command == Some(Command::Prepare);
        assert!(pass_until(MINUTE, runs).await, "{:?}", bench.calls());
        bench.withdraw();
        pass(MINUTE).await;
        bench.host.release_command();
        until(bench, MINUTE, acknowledged).await;
        until_refreshed(bench).await;
        assert_eq!(downloads_until_staged(bench, 2).await, 1);
    });
}

/// An event between two attempts, after which the image of the first one may be incomplete, another one, or gone.
#[derive(Clone, Copy, Debug)]
enum Between {
    OtherClientRefreshed,
    OtherClientsDownloadFailed,
    OtherClientDownloadedAnotherVersion,
    OtherClientArmedAndDisarmed,
    HostRebooted,
}

impl Between {
    async fn happen(self, bench: &Bench) {
        let commands: &[Command] = match self {
            Self::OtherClientRefreshed => &[Command::Refresh],
            Self::OtherClientsDownloadFailed => {
                let failed = Worker::Exits { status: 1, stderr: "no network".into(), overwrote: true };
                bench.host.script(Fault::command(Command::Prepare, failed));
                &[Command::Prepare]
            }
            Self::OtherClientDownloadedAnotherVersion => {
                bench.releases.publish(NEWER);
                &[Command::Refresh, Command::Prepare]
            }
            Self::OtherClientArmedAndDisarmed => &[Command::Activate, Command::Deactivate],
            Self::HostRebooted => {
                let (host, boot) = (bench.host.clone(), bench.boot());
                // The request to the machine is carried out while time passes.
                tokio::spawn(async move { host.foreign_reboot().await });
                let is_up = || bench.boot() != boot && bench.host.snapshot().power == Power::Up;
                assert!(pass_until(5 * MINUTE, is_up).await, "the host does not come back");
                &[]
            }
        };
        for command in commands {
            bench.host.foreign(*command).await.unwrap();
            bench.host.lock_free().await;
        }
        bench.releases.withdraw(&NEWER);
    }
}

#[test]
fn next_attempt_downloads_again_after_a_command_of_another_client_or_a_reboot() {
    for between in [
        Between::OtherClientRefreshed,
        Between::OtherClientsDownloadFailed,
        Between::OtherClientDownloadedAnotherVersion,
        Between::OtherClientArmedAndDisarmed,
        Between::HostRebooted,
    ] {
        simulate_agent(async |bench| {
            assert_eq!(downloads_until_staged(bench, 1).await, 1, "{between:?}");
            bench.withdraw();
            until(bench, MINUTE, acknowledged).await;
            between.happen(bench).await;
            until_refreshed(bench).await;
            assert_eq!(downloads_until_staged(bench, 2).await, 2, "{between:?}");
        });
    }
}

#[test]
fn restarted_agent_downloads_again_for_the_next_attempt() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        assert_eq!(downloads_until_staged(&bench, 1).await, 1);
        withdraw_and_refresh(&bench).await;
        agent.kill().await;
        let agent = InProcessAgent::start(&bench);
        assert_eq!(downloads_until_staged(&bench, 2).await, 2);
        agent.end().await.unwrap();
    });
}

#[test]
fn next_attempt_downloads_again_after_a_download_without_a_record() {
    simulate_agent(async |bench| {
        assert_eq!(downloads_until_staged(bench, 1).await, 1);
        withdraw_and_refresh(bench).await;
        bench.releases.publish(NEWER);
        bench.host.script(Fault::command(Command::Prepare, Worker::Vanishes).times(3));
        bench.stage_version(2, NEWER);
        until(bench, 5 * MINUTE, |view| failed(view) == Some(FailureReason::PrepareFailed)).await;
        bench.releases.withdraw(&NEWER);
        withdraw_and_refresh(bench).await;
        let staged = bench.host.snapshot().status.and_then(|status| status.staging_partition);
        assert_eq!(staged.map(|staged| staged.image.version), Some(NEW), "the host does not know of the downloads");
        assert_eq!(downloads_until_staged(bench, 3).await, 5);
    });
}

#[test]
fn staged_image_that_the_host_does_not_choose_any_more_is_not_used() {
    simulate_agent(async |bench| {
        assert_eq!(downloads_until_staged(bench, 1).await, 1);
        bench.releases.publish(NEWER);
        withdraw_and_refresh(bench).await;
        bench.stage(2);
        until(bench, 5 * MINUTE, |view| failed(view) == Some(FailureReason::VersionNotOffered)).await;
        assert_eq!(requests(bench, Command::Prepare), 1);
    });
}

#[test]
fn next_attempt_uses_the_staged_image_once_a_refresh_has_succeeded() {
    simulate_agent(async |bench| {
        assert_eq!(downloads_until_staged(bench, 1).await, 1);
        bench.host.script(Fault::fails(Command::Refresh, "no network").times(u32::MAX));
        withdraw_and_refresh(bench).await;
        bench.stage(2);
        until(bench, 5 * MINUTE, |view| failed(view) == Some(FailureReason::RefreshFailed)).await;
        bench.host.clear_faults();
        assert_eq!(downloads_until_staged(bench, 3).await, 1);
    });
}
