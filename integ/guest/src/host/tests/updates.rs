//! The pitfalls of the update state machine.

use super::*;

#[tokio::test]
async fn refresh_of_staged_host_may_change_chosen_update_but_not_staged_image() {
    let bench = bench().await;
    bench.stage().await;
    bench.releases.publish(v("1.20.6"));
    bench.run(&[Command::Refresh]).await;
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Staged");
    assert_eq!(status["chosen_update"]["version"], "1.20.6");
    assert_eq!(status["staging_partition"]["image"]["version"], "1.20.5");
    bench.run(&[Command::Activate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.5");
}

#[tokio::test]
async fn refresh_with_invalid_configuration_succeeds_and_updates_only_available_list() {
    let bench = bench().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::BadConfig));
    bench.run(&[Command::Refresh]).await;
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Idle");
    assert_eq!(status["chosen_update"], Value::Null);
    assert_ne!(status["available_updates"], json!([]));
}

#[tokio::test]
async fn vanished_prepare_worker_keeps_status_and_releases_lock() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    let before = bench.status().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Vanishes));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    assert_eq!(bench.status().await, before);
}

#[tokio::test]
async fn failed_prepare_on_staged_host_leaves_no_image_to_activate() {
    let bench = bench().await;
    bench.stage().await;
    bench.host.script(Fault::fails(Command::Prepare, "disk full\n"));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    assert_eq!(bench.status().await["update_state"], "Staged");
    assert_eq!(bench.post(Command::Activate).await, 204);
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Staged");
    assert_eq!(status["most_recent_command"]["cmd_status"], "Failed");
    let stderr = status["most_recent_command"]["stderr"].as_str().unwrap();
    assert!(stderr.ends_with("has not been marked valid for upgrade\n"), "{stderr}");
    bench.run(&[Command::Prepare, Command::Activate]).await;
}

#[tokio::test]
async fn prepare_failure_before_write_keeps_staged_image() {
    let bench = bench().await;
    bench.stage().await;
    bench.host.script(Fault::command(
        Command::Prepare,
        Worker::Exits { status: 1, stderr: "Metadata error\n".to_owned(), overwrote: false },
    ));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    bench.run(&[Command::Activate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.5");
}

#[tokio::test]
async fn prepare_writes_newest_release_instead_of_chosen_update() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.releases.publish(v("1.20.6"));
    bench.run(&[Command::Prepare]).await;
    let status = bench.status().await;
    assert_eq!(status["staging_partition"]["image"]["version"], "1.20.5");
    assert_eq!(status["most_recent_command"]["stderr"], "Starting update to 1.20.6\n");
    bench.run(&[Command::Activate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.6");
}

#[tokio::test]
async fn release_withdrawn_before_prepare_leaves_staged_host_without_image() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.releases.withdraw(&v("1.20.5"));
    bench.run(&[Command::Prepare]).await;
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Staged");
    assert_eq!(status["most_recent_command"]["stderr"], "No update required\n");
    assert_eq!(bench.host.snapshot().disk.inactive_set().version, None);
    assert_eq!(bench.post(Command::Activate).await, 204);
    assert_eq!(bench.status().await["most_recent_command"]["cmd_status"], "Failed");
}

#[tokio::test]
async fn prepare_fault_can_write_other_version_or_nothing() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.host.script(Fault::command(Command::Prepare, Worker::WritesNothing));
    bench.host.script(Fault::command(Command::Prepare, Worker::Writes(v("1.19.0"))));
    bench.run(&[Command::Prepare]).await;
    assert_eq!(bench.status().await["most_recent_command"]["stderr"], "No update required\n");
    bench.run(&[Command::Prepare]).await;
    let snapshot = bench.host.snapshot();
    assert_eq!(snapshot.disk.inactive_set().version, Some(v("1.19.0")));
    assert_eq!(snapshot.status.unwrap().staging_partition.unwrap().image.version, v("1.20.5"));
}

#[tokio::test]
async fn armed_host_must_deactivate_before_preparing_other_version() {
    let bench = bench().await;
    bench.arm().await;
    bench.releases.publish(v("1.20.6"));
    bench.run(&[Command::Refresh]).await;
    assert_eq!(bench.status().await["update_state"], "Ready");
    assert_eq!(bench.post(Command::Prepare).await, 409);
    bench.run(&[Command::Deactivate, Command::Prepare, Command::Activate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.6");
}

#[tokio::test]
async fn armed_host_boots_new_image_after_power_loss() {
    let bench = bench().await;
    bench.arm().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.power_loss().await;
    bench.back(&boot).await;
    assert_eq!(bench.running_version().await, "1.20.5");
    assert!(!bench.fell_back());
}

#[tokio::test]
async fn rebooted_host_that_is_staged_or_disarmed_runs_old_version() {
    let bench = bench().await;
    bench.stage().await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.0");
    assert!(!bench.fell_back());
    bench.arm().await;
    bench.run(&[Command::Deactivate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.0");
}
