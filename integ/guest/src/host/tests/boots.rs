//! The lock, reboots and boots.

use super::*;

#[tokio::test]
async fn command_holds_lock_until_it_ends_or_the_host_reboots() {
    let bench = bench().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    bench.reboot().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::NeverEnds));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    // The release is that of the earlier boot.
    bench.host.release_command();
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 423);
    bench.reboot().await;
    bench.stage().await;
}

#[tokio::test]
async fn command_of_other_host_client_changes_status_without_call_event() {
    let bench = bench().await;
    bench.host.foreign(Command::Refresh).await.unwrap();
    bench.host.foreign(Command::Prepare).await.unwrap();
    bench.host.foreign(Command::Activate).await.unwrap();
    assert_eq!(bench.host.foreign(Command::Prepare).await, Err(Refusal::NotAllowed));
    assert!(!bench.kinds().iter().any(|kind| matches!(kind, EventKind::Call { .. })));
    assert!(bench.kinds().contains(&EventKind::Armed { version: v("1.20.5") }));
    assert_eq!(bench.status().await["update_state"], "Ready");
}

// Reboots and boots.

#[tokio::test]
async fn reboot_clears_status_and_pending_transactions_and_keeps_settings() {
    let bench = bench().await;
    bench.arm().await;
    bench.set(r#"{"updates":{"version-lock":"v1.20.4"}}"#).await;
    assert_eq!(bench.call("PATCH", "/settings?tx=other", Some(r#"{"updates":{"seed":1}}"#)).await.status, 204);
    assert_eq!(bench.get("/tx/list").await, json!(["other"]));
    bench.reboot().await;
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 404);
    assert_eq!(bench.get("/tx/list").await, json!([]));
    assert_eq!(bench.get("/settings").await["updates"]["version-lock"], "v1.20.4");
    assert_eq!(bench.get("/settings").await["updates"]["seed"], 42);
}

#[tokio::test]
async fn reboot_creates_new_boot_id_and_socket() {
    let bench = bench().await;
    let root = bench.host.machine().root().to_owned();
    let file = root.join("proc/sys/kernel/random/boot_id");
    let first = std::fs::read_to_string(&file).unwrap();
    assert_eq!(first, format!("{}\n", bench.host.snapshot().boot_id));
    let (boot, socket) = (bench.host.snapshot().boot_id, inode(&bench.host.socket()));
    assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 204);
    bench.power(Power::ShuttingDown).await;
    bench.host.machine().release_shutdown();
    bench.back(&boot).await;
    assert_ne!(std::fs::read_to_string(&file).unwrap(), first);
    assert_ne!(inode(&bench.host.socket()), socket);
    let os_release = std::fs::read_to_string(root.join("etc/os-release")).unwrap();
    assert!(os_release.contains("PRETTY_NAME=\"Bottlerocket OS 1.20.0 (aws-k8s-1.37)\"\n"), "{os_release}");
}

#[tokio::test]
async fn kubelet_delays_shutdown_up_to_its_limit_while_api_keeps_answering() {
    let limited = bench_with(|options| options.shutdown_limit = Duration::from_millis(50)).await;
    let _machine = limited.host.machine();
    limited.reboot().await;

    let bench = bench().await;
    let machine = bench.host.machine();
    let boot = bench.host.snapshot().boot_id;
    // Left over from a shutdown that did not wait for it.
    machine.release_shutdown();
    assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 204);
    bench.power(Power::ShuttingDown).await;
    assert_eq!(bench.running_version().await, "1.20.0");
    let refused = bench.call("POST", "/actions/reboot", None).await;
    assert_eq!(refused.status, 500);
    assert_eq!(bench.host.snapshot().power, Power::ShuttingDown);
    machine.release_shutdown();
    bench.back(&boot).await;
}

#[tokio::test]
async fn power_loss_interrupts_shutdown() {
    let bench = bench().await;
    let _machine = bench.host.machine();
    let boot = bench.host.snapshot().boot_id;
    bench.host.foreign_reboot().await;
    assert_eq!(bench.host.snapshot().power, Power::ShuttingDown);
    bench.host.power_loss().await;
    bench.back(&boot).await;
    let kinds = bench.kinds();
    assert!(kinds.contains(&EventKind::ShutdownOrdered { by: ShutdownBy::Foreign }));
    assert_eq!(kinds.iter().filter(|kind| matches!(kind, EventKind::Down)).count(), 1);
}

#[tokio::test]
async fn boot_fault_applies_only_to_new_image() {
    let bench = bench().await;
    bench.host.script(Fault::boot(BootFault::NewImageFails));
    bench.reboot().await;
    assert!(!bench.fell_back());
    bench.arm().await;
    bench.reboot().await;
    assert!(bench.fell_back());
}

#[tokio::test]
async fn power_loss_during_first_boot_falls_back_to_old_image() {
    let bench = bench_with(|options| options.timings.boot = Duration::from_millis(300)).await;
    bench.arm().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.power_loss().await;
    // GRUB has taken the new set when its try is used.
    bench.wait(|bench| bench.host.snapshot().disk.active == disk::SetName::B).await;
    bench.host.power_loss().await;
    bench.back(&boot).await;
    assert!(bench.fell_back());
    assert_eq!(bench.running_version().await, "1.20.0");
}

#[tokio::test]
async fn power_loss_during_prepare_leaves_no_image() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    let boot = bench.host.snapshot().boot_id;
    bench.host.power_loss().await;
    bench.back(&boot).await;
    bench.host.release_command();
    assert_eq!(bench.host.snapshot().disk.inactive_set().version, None);
    assert_eq!(bench.running_version().await, "1.20.0");
}

#[tokio::test]
async fn machine_that_fails_to_boot_stays_down_until_powered_on() {
    let bench = bench().await;
    bench.host.script(Fault::boot(BootFault::NeverComesBack));
    let boot = bench.host.snapshot().boot_id;
    assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 204);
    bench.power(Power::Down).await;
    assert!(client::call(&bench.host.socket(), "GET", "/os", None).await.is_err());
    bench.host.power_on();
    bench.back(&boot).await;
}

#[tokio::test]
async fn socket_is_removed_by_clean_shutdown_and_refuses_connections_after_power_off() {
    for (clean, expected) in [(true, std::io::ErrorKind::NotFound), (false, std::io::ErrorKind::ConnectionRefused)] {
        let bench = bench_with(|options| options.timings.boot = Duration::from_secs(3600)).await;
        if clean {
            assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 204);
        } else {
            bench.host.power_off();
        }
        bench.wait(|bench| bench.kinds().contains(&EventKind::Down)).await;
        assert_eq!(UnixStream::connect(bench.host.socket()).await.unwrap_err().kind(), expected);
    }
}

#[tokio::test]
async fn refused_reboot_keeps_host_up_and_terminated_command_or_truncated_reply_still_reboots() {
    let bench = bench().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.script(Fault::reboot(RebootFault::Refused { stderr: "inhibited\n".to_owned() }));
    bench.host.script(Fault::reboot(RebootFault::Terminated));
    bench.host.script(Fault::reboot(RebootFault::ReplyCut));
    assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 500);
    assert_eq!(bench.host.snapshot().power, Power::Up);
    let reply = bench.call("POST", "/actions/reboot", None).await;
    assert_eq!((reply.status, reply.body.as_str()), (500, "Failed to reboot, exit code: 15, stderr: "));
    bench.back(&boot).await;
    let boot = bench.host.snapshot().boot_id;
    assert!(client::call(&bench.host.socket(), "POST", "/actions/reboot", None).await.is_err());
    bench.back(&boot).await;
    let cut = EventKind::Call {
        method: "POST".to_owned(),
        path: "/actions/reboot".to_owned(),
        status: None,
        body: String::new(),
    };
    assert!(bench.kinds().contains(&cut));
}

#[tokio::test]
async fn log_records_update_events_in_order() {
    let bench = bench().await;
    bench.arm().await;
    bench.reboot().await;
    let events: Vec<String> = bench
        .kinds()
        .into_iter()
        .filter_map(|kind| match kind {
            EventKind::Call { method, path, status, .. } if method == "POST" => {
                Some(format!("{path} {}", status.unwrap_or(0)))
            }
            EventKind::CommandFinished { command, ok, version } => {
                Some(format!("{command} {ok} {}", version.map_or_else(String::new, |version| version.to_string())))
            }
            EventKind::Armed { version } => Some(format!("armed {version}")),
            EventKind::ShutdownOrdered { by } => Some(format!("shutdown {by:?}")),
            EventKind::Down => Some("down".to_owned()),
            EventKind::Booted { version, fell_back, .. } => Some(format!("booted {version} {fell_back}")),
            _ => None,
        })
        .collect();
    assert_eq!(
        events,
        [
            "booted 1.20.0 false",
            "/actions/refresh-updates 204",
            "refresh true 1.20.5",
            "/actions/prepare-update 204",
            "prepare true 1.20.5",
            "/actions/activate-update 204",
            "armed 1.20.5",
            "activate true 1.20.5",
            "/actions/reboot 204",
            "shutdown Api",
            "down",
            "booted 1.20.5 false",
        ]
    );
}
