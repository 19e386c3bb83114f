//! Hosts that have to be disarmed, and those that another client armed.

use integ::host::{Command, Fault, Transport, UpdateState, Worker};
use models::reason::FailureReason;
use models::shadow::HostState;
use models::wire::ShadowView;

use super::*;
use crate::bench::OLD;

#[tokio::test(flavor = "multi_thread")]
async fn image_armed_for_withdrawn_attempt_is_disarmed_after_restart() {
    let mut bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.host.script(Fault::command(Command::Activate, Worker::Waits));
    bench.issue_permit(&bench.claims(&request));
    bench.until_running(Command::Activate).await;
    bench.kill_agent().await;
    bench.finish_command().await;
    bench.host.lock_free().await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    bench.withdraw();
    bench.start_agent();
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!(idle.status.report.armed, None);
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")));
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_armed_without_record_is_reported_and_disarmed_by_new_download() {
    let bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    bench.issue_permit(&bench.claims(&request));
    until_failed(&bench, FailureReason::ActivateFailed).await;
    let status = bench.host.snapshot().status.unwrap();
    assert!(disk_armed(&bench) && status.update_state == UpdateState::Staged);
    bench.host.script(Fault::command(
        Command::Prepare,
        Worker::Exits { status: 1, stderr: "no network".into(), overwrote: false },
    ));
    bench.withdraw();
    let pending = |v: &ShadowView| reach(v) == "DeactivateFailed" && v.status.report.armed.is_some();
    let view = bench.web.until("it is reported", pending).await;
    assert!(!acknowledged(&view) && disk_armed(&bench));
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!((idle.status.report.armed, disk_armed(&bench)), (None, false));
    assert!(!bench.calls().iter().any(|call| call.contains("reboot")));
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_armed_without_record_is_disarmed_by_restarted_agent() {
    let mut bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    bench.issue_permit(&bench.claims(&request));
    until_disk_armed(&bench).await;
    bench.kill_agent().await;
    bench.withdraw();
    bench.start_agent();
    let idle = bench.web.until("it is disarmed", acknowledged).await;
    assert_eq!((idle.status.report.armed, disk_armed(&bench)), (None, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn host_disarmed_by_other_client_before_activation_is_observed_is_not_armed_again() {
    let bench = Bench::new().await;
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    bench.host.script(Fault::command(Command::Activate, Worker::Waits));
    bench.issue_permit(&bench.claims(&request));
    bench.until_running(Command::Activate).await;
    // The agent's next read of the status is answered after the other client's command.
    bench.host.script(Fault::request("GET", "/updates/status", Transport::Slow(Duration::from_secs(1))));
    bench.finish_command().await;
    bench.host.lock_free().await;
    bench.host.foreign(Command::Deactivate).await.unwrap();
    until_failed(&bench, FailureReason::DisarmedByOther).await;
    let activations = bench.calls().iter().filter(|call| call.contains("activate-update")).count();
    assert_eq!((activations, crate::faults::arms(&bench.host.log())), (1, 1), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn host_armed_by_other_client_is_reported_and_not_disarmed() {
    let mut bench = Bench::new().await;
    bench.kill_agent().await;
    arm_by_another(&bench).await;
    bench.start_agent();
    bench.web.until("it is reported", |v| reach(v) == "HostArmedByOther").await;
    bench.stage(1);
    until_failed(&bench, FailureReason::HostArmedByOther).await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    assert!(!bench.calls().iter().any(|call| call.starts_with("POST")), "{:?}", bench.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn host_armed_by_other_client_is_disarmed_with_permission_for_current_boot() {
    let mut bench = Bench::new().await;
    bench.kill_agent().await;
    arm_by_another(&bench).await;
    bench.start_agent();
    bench.web.until("it is reported", |v| reach(v) == "HostArmedByOther").await;
    let permit = |boot: String| {
        let policy = models::shadow::HostPolicy { disarm_in_boot: Some(boot), ..Default::default() };
        bench.web.change_spec(|spec| spec.host = Some(policy));
    };
    permit("another boot".into());
    bench.web.until("it is read", acknowledged).await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Ready);
    permit(bench.boot());
    let view = bench.web.until("it is disarmed", |v| acknowledged(v) && reach(v) == "Answered").await;
    assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged);
    bench.stage_and_wait(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn update_or_downgrade_by_other_client_is_reported_without_failure() {
    let mut bench = Bench::new().await;
    for (lock, version) in [("latest", NEW), ("1.20.0", OLD)] {
        let boot = bench.boot();
        let version_lock = integ::host::VersionLock::parse(lock).ok();
        bench.host.foreign_settings(integ::host::UpdatesSettings { version_lock, ..Default::default() });
        arm_by_another(&bench).await;
        bench.host.foreign_reboot().await;
        bench.rebooted(&boot).await;
        let runs = |v: &ShadowView| {
            v.status.report.current_version == Some(version.clone()) && v.status.report.boot_id.as_ref() != Some(&boot)
        };
        let view = bench.web.until("it is reported", runs).await;
        assert_eq!((view.status.report.state, failed(&view)), (Some(HostState::Idle), None));
        assert_eq!(view.status.report.armed, None);
        assert!(acknowledged(&view));
    }
    // Also under an attempt to stage that was open meanwhile: it is staged again.
    let version_lock = Some(integ::host::VersionLock::latest());
    bench.host.foreign_settings(integ::host::UpdatesSettings { version_lock, ..Default::default() });
    bench.stage_and_wait(1).await;
    let boot = bench.boot();
    bench.host.foreign_reboot().await;
    bench.rebooted(&boot).await;
    let staged = |v: &ShadowView| v.status.report.state == Some(HostState::StagedUpdate);
    let again = |v: &ShadowView| staged(v) && v.status.report.boot_id.as_ref() != Some(&boot);
    let view = bench.web.until("it is staged again", again).await;
    assert_eq!(failed(&view), None);
}
