//! Failures of an attempt.

use integ::host::{BootFault, Command, Fault, RebootFault, Worker};
use models::reason::FailureReason;
use models::shadow::HostState;
use semver::Version;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn fallback_boot_is_reported_as_boot_fell_back() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.script(Fault::boot(BootFault::NewImageFails));
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.issue_permit(&bench.claims(&request));
    bench.rebooted(&boot).await;
    let view = until_failed(&bench, FailureReason::BootFellBack).await;
    assert_eq!((view.status.report.armed, view.status.report.state), (None, Some(HostState::Idle)));
    // The next attempt starts over.
    bench.withdraw();
    bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    bench.stage_and_wait(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_download_failure_ends_attempt_with_host_message() {
    let bench = Bench::new().await;
    bench.host.script(Fault::fails(Command::Prepare, "out of space").times(3));
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::PrepareFailed).await;
    assert_eq!(view.status.report.failure.unwrap().message, "out of space");
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 3);
    bench.withdraw();
    bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    bench.stage_and_wait(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_of_wrong_version_fails_and_incomplete_one_is_repeated() {
    let bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Writes(Version::new(1, 20, 9))));
    bench.stage(1);
    let view = until_failed(&bench, FailureReason::WrongImageStaged).await;
    assert!(view.status.report.failure.unwrap().message.contains("1.20.9"));

    bench.host.script(Fault::command(Command::Prepare, Worker::Vanishes));
    bench.stage_and_wait(2).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("prepare")).count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn version_not_offered_fails_attempt_without_download() {
    let bench = Bench::new().await;
    bench.releases.withdraw(&NEW);
    bench.stage(1);
    until_failed(&bench, FailureReason::VersionNotOffered).await;
    assert!(!bench.calls().iter().any(|call| call.contains("prepare")));
}

#[tokio::test(flavor = "multi_thread")]
async fn single_arming_failure_and_lost_reboot_response_do_not_fail_attempt() {
    let mut bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.script(Fault::fails(Command::Activate, "busy"));
    bench.host.script(Fault::reboot(RebootFault::ReplyCut));
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.issue_permit(&bench.claims(&request));
    bench.rebooted(&boot).await;
    bench.web.until("the update is reached", |v| v.status.report.state == Some(HostState::RebootedIntoUpdate)).await;
    assert_eq!(bench.calls().iter().filter(|call| call.contains("/reboot")).count(), 1);
}
