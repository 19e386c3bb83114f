//! Tests of a simulated host through its API and its machine.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::*;

/// Longer than anything here takes on a busy machine; used in full only by a failing test.
const LIMIT: Duration = Duration::from_secs(30);

struct Bench {
    host: Host,
    releases: Releases,
    _folder: TempDir,
}

fn v(text: &str) -> Version {
    Version::parse(text).unwrap()
}

async fn bench() -> Bench {
    bench_with(|_| {}).await
}

async fn bench_with(change: impl FnOnce(&mut HostOptions)) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let releases = Releases::of([v("1.20.0"), v("1.20.5")]);
    let mut options = HostOptions::new("a", folder.path(), v("1.20.0"), releases.clone());
    change(&mut options);
    Bench { host: Host::start(options).await.unwrap(), releases, _folder: folder }
}

impl Bench {
    async fn call(&self, method: &str, target: &str, body: Option<&str>) -> client::Reply {
        client::call(&self.host.socket(), method, target, body).await.unwrap()
    }

    async fn post(&self, command: Command) -> u16 {
        self.call("POST", command.path(), None).await.status
    }

    async fn get(&self, target: &str) -> Value {
        let reply = self.call("GET", target, None).await;
        assert_eq!(reply.status, 200, "{target}: {}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    async fn status(&self) -> Value {
        self.get("/updates/status").await
    }

    async fn running_version(&self) -> String {
        self.get("/os").await["version_id"].as_str().unwrap().to_owned()
    }

    /// Runs commands that have to be accepted and to succeed.
    async fn run(&self, commands: &[Command]) {
        for command in commands {
            assert_eq!(self.post(*command).await, 204, "{command}");
            let status = self.status().await;
            assert_eq!(status["most_recent_command"]["cmd_type"], json!(command.to_string()));
            assert_eq!(status["most_recent_command"]["cmd_status"], "Success");
        }
    }

    async fn stage(&self) {
        self.run(&[Command::Refresh, Command::Prepare]).await;
    }

    async fn arm(&self) {
        self.stage().await;
        self.run(&[Command::Activate]).await;
    }

    async fn reboot(&self) {
        let boot = self.host.snapshot().boot_id;
        assert_eq!(self.call("POST", "/actions/reboot", None).await.status, 204);
        self.back(&boot).await;
    }

    async fn back(&self, boot: &str) {
        tokio::time::timeout(LIMIT, self.host.booted_after(boot)).await.unwrap();
    }

    async fn power(&self, power: Power) {
        let mut machine = self.host.core().machine.subscribe();
        tokio::time::timeout(LIMIT, machine.wait_for(|machine| machine.power == power)).await.unwrap().unwrap();
    }

    async fn set(&self, settings: &str) {
        assert_eq!(self.call("PATCH", "/settings?tx=t", Some(settings)).await.status, 204);
        assert_eq!(self.call("POST", "/tx/commit_and_apply?tx=t", None).await.status, 200);
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.host.log().into_iter().map(|event| event.kind).collect()
    }

    fn fell_back(&self) -> bool {
        matches!(self.kinds().last(), Some(EventKind::Booted { fell_back: true, .. }))
    }
}

fn inode(socket: &Path) -> u64 {
    std::fs::metadata(socket).unwrap().ino()
}

// The pitfalls of the update state machine.

#[tokio::test]
async fn failed_refresh_sets_idle_and_keeps_chosen_update() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.host.script(Fault::fails(Command::Refresh, "no network\n"));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Idle");
    assert_eq!(status["chosen_update"]["version"], "1.20.5");
    assert_eq!(status["most_recent_command"]["cmd_status"], "Failed");
    assert_eq!(status["most_recent_command"]["stderr"], "no network\n");
}

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
async fn staged_host_without_chosen_update_activates_staged_image_and_refuses_prepare() {
    let bench = bench().await;
    bench.stage().await;
    bench.set(r#"{"updates":{"version-lock":"9.9.9"}}"#).await;
    bench.run(&[Command::Refresh]).await;
    let refused = bench.call("POST", Command::Prepare.path(), None).await;
    assert_eq!((refused.status, refused.body.as_str()), (404, "Previously chosen Update no longer exists"));
    bench.run(&[Command::Activate]).await;
    assert_eq!(bench.host.snapshot().disk.next(), Some(disk::SetName::B));
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
async fn prepare_killed_by_signal_records_signal_number() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Killed { signal: 9 }));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    let command = &bench.status().await["most_recent_command"];
    assert_eq!((&command["cmd_status"], &command["exit_status"]), (&json!("Failed"), &json!(9)));
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
async fn rebooted_staged_host_runs_old_version() {
    let bench = bench().await;
    bench.stage().await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.0");
    assert!(!bench.fell_back());
}

#[tokio::test]
async fn rebooted_disarmed_host_runs_old_version() {
    let bench = bench().await;
    bench.arm().await;
    bench.run(&[Command::Deactivate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.0");
}

// The lock.

#[tokio::test]
async fn running_command_returns_423_for_status_and_other_commands() {
    let bench = bench().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 423);
    for command in Command::ALL {
        assert_eq!(bench.post(command).await, 423);
    }
    assert_eq!(bench.running_version().await, "1.20.0");
    bench.host.release_command();
    assert_eq!(bench.status().await["update_state"], "Available");
}

#[tokio::test]
async fn first_status_after_lock_shows_result_of_command() {
    let bench = bench().await;
    bench.host.script(Fault::slow(Command::Refresh, Duration::from_millis(20)));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let reply = bench.call("GET", "/updates/status", None).await;
        if reply.status == 200 {
            assert!(reply.body.contains(r#""update_state":"Available""#), "{}", reply.body);
            break;
        }
        assert_eq!(reply.status, 423);
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn endless_command_holds_lock_until_reboot() {
    let bench = bench().await;
    bench.run(&[Command::Refresh]).await;
    bench.host.script(Fault::command(Command::Prepare, Worker::NeverEnds));
    assert_eq!(bench.post(Command::Prepare).await, 204);
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 423);
    bench.reboot().await;
    bench.stage().await;
}

#[tokio::test]
async fn worker_of_earlier_boot_does_not_end_command_of_later_boot() {
    let bench = bench().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::Waits));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    bench.reboot().await;
    bench.host.script(Fault::command(Command::Refresh, Worker::NeverEnds));
    assert_eq!(bench.post(Command::Refresh).await, 204);
    bench.host.release_command();
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 423);
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
async fn kubelet_delays_shutdown_while_api_keeps_answering() {
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
async fn kubelet_delays_shutdown_only_until_shutdown_limit() {
    let bench = bench_with(|options| options.shutdown_limit = Duration::from_millis(50)).await;
    let _machine = bench.host.machine();
    bench.reboot().await;
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
async fn boot_failure_falls_back_to_old_image_without_trace_in_api() {
    let bench = bench().await;
    bench.arm().await;
    bench.host.script(Fault::boot(BootFault::NewImageFails));
    bench.reboot().await;
    assert!(bench.fell_back());
    assert_eq!(bench.running_version().await, "1.20.0");
    bench.run(&[Command::Refresh]).await;
    let status = bench.status().await;
    assert_eq!(status["update_state"], "Available");
    assert_eq!(status["chosen_update"]["version"], "1.20.5");
    assert_eq!(status["active_partition"]["next_to_boot"], true);
    // It can be tried again.
    bench.run(&[Command::Prepare, Command::Activate]).await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.5");
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
    let deadline = tokio::time::Instant::now() + LIMIT;
    while bench.host.snapshot().disk.active != disk::SetName::B {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
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
async fn socket_refuses_connections_after_power_off() {
    let bench = bench().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.power_off();
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !bench.kinds().contains(&EventKind::Down) {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let error = UnixStream::connect(bench.host.socket()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    bench.host.power_on();
    bench.back(&boot).await;
}

#[tokio::test]
async fn socket_is_removed_after_clean_shutdown() {
    let bench = bench_with(|options| options.timings.boot = Duration::from_secs(3600)).await;
    assert_eq!(bench.call("POST", "/actions/reboot", None).await.status, 204);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !bench.kinds().contains(&EventKind::Down) {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let error = UnixStream::connect(bench.host.socket()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn refused_reboot_keeps_host_up_and_truncated_reply_still_reboots() {
    let bench = bench().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.script(Fault::reboot(RebootFault::Refused { stderr: "inhibited\n".to_owned() }));
    bench.host.script(Fault::reboot(RebootFault::ReplyCut));
    let refused = bench.call("POST", "/actions/reboot", None).await;
    assert_eq!(refused.status, 500);
    assert_eq!(refused.body, "Failed to reboot, exit code: 1, stderr: inhibited\n");
    assert_eq!(bench.host.snapshot().power, Power::Up);
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

// Settings and waves.

#[tokio::test]
async fn ignore_waves_reveals_release_of_later_wave() {
    let bench = bench().await;
    let later = Timestamp::now() + Duration::from_secs(3600);
    bench.releases.publish_in_waves(v("1.20.6"), [(2048, later)]);
    bench.set(r#"{"updates":{"version-lock":"1.20.6"}}"#).await;
    bench.run(&[Command::Refresh]).await;
    let status = bench.status().await;
    assert_eq!((&status["update_state"], &status["available_updates"]), (&json!("Idle"), &json!(["1.20.5", "1.20.0"])));
    bench.set(r#"{"updates":{"ignore-waves":true}}"#).await;
    bench.run(&[Command::Refresh]).await;
    assert_eq!(bench.status().await["chosen_update"]["version"], "1.20.6");
}

#[tokio::test]
async fn version_lock_downgrades_host() {
    let bench = bench().await;
    bench.arm().await;
    bench.reboot().await;
    bench.set(r#"{"updates":{"version-lock":"v1.20.0"}}"#).await;
    bench.arm().await;
    bench.reboot().await;
    assert_eq!(bench.running_version().await, "1.20.0");
}

#[tokio::test]
async fn committed_setting_takes_effect_after_applier_lag() {
    let bench = bench_with(|options| options.settings_lag = Duration::from_millis(200)).await;
    bench.set(r#"{"updates":{"version-lock":"9.9.9"}}"#).await;
    assert_eq!(bench.get("/settings").await["updates"]["version-lock"], "9.9.9");
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
    bench.run(&[Command::Refresh]).await;
    let deadline = tokio::time::Instant::now() + LIMIT;
    while bench.host.snapshot().effective_settings.version_lock != VersionLock::parse("9.9.9").ok() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bench.run(&[Command::Refresh]).await;
    assert_eq!(bench.status().await["update_state"], "Idle");
}

#[tokio::test]
async fn applier_start_failure_leaves_settings_committed_but_not_effective() {
    let bench = bench().await;
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    let lock = r#"{"updates":{"version-lock":"9.9.9"}}"#;
    assert_eq!(bench.call("PATCH", "/settings", Some(lock)).await.status, 204);
    let reply = bench.call("POST", "/tx/commit_and_apply", None).await;
    assert_eq!(reply.status, 500);
    assert!(reply.body.starts_with("Unable to start config applier: "), "{}", reply.body);
    assert_eq!(bench.get("/settings").await["updates"]["version-lock"], "9.9.9");
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
}

#[tokio::test]
async fn transactions_are_separate_and_empty_commit_is_rejected() {
    let bench = bench().await;
    for nothing in ["{}", r#"{"updates":{}}"#, r#"{"updates":{"version-lock":null}}"#] {
        assert_eq!(bench.call("PATCH", "/settings?tx=mine", Some(nothing)).await.status, 204);
        let reply = bench.call("POST", "/tx/commit_and_apply?tx=mine", None).await;
        assert_eq!((reply.status, reply.body.as_str()), (422, "Tried to commit with no pending changes"));
    }
    assert_eq!(bench.call("PATCH", "/settings?tx=mine", Some(r#"{"updates":{"seed":1}}"#)).await.status, 204);
    assert_eq!(bench.call("POST", "/tx/commit_and_apply", None).await.status, 422);
    assert_eq!(bench.get("/tx?tx=mine").await, json!({"updates": {"seed": 1}}));
    assert_eq!(bench.call("DELETE", "/tx?tx=mine", None).await.body, r#"["settings.updates.seed"]"#);
    assert_eq!(bench.call("POST", "/tx/commit_and_apply?tx=mine", None).await.status, 422);
}

#[tokio::test]
async fn invalid_json_or_unknown_setting_returns_400_with_error_type() {
    let bench = bench().await;
    for bad in
        ["{", r#"{"updates":{"version-lock":"1.0"}}"#, r#"{"updates":{"versionLock":"latest"}}"#, r#"{"settings":{}}"#]
    {
        let reply = bench.call("PATCH", "/settings", Some(bad)).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
        assert!(reply.body.starts_with("Json deserialize error: "), "{}", reply.body);
    }
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"PATCH /settings HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    let reply = client::read(&mut stream).await.unwrap();
    assert_eq!((reply.status, reply.body.as_str()), (400, "Content type error"));
}

#[tokio::test]
async fn settings_requests_are_validated_as_on_real_server() {
    let bench = bench().await;
    let pairs = r#"{"request_payload":["updates.version-lock=1.20.0"]}"#;
    let long = format!("/settings?tx={}", "t".repeat(300));
    let lock = Some(r#"{"updates":{"version-lock":"latest"}}"#);
    for (method, target, body, status) in [
        ("PATCH", "/settings/keypair?tx=t", Some(pairs), 404),
        ("GET", "/settings?keys=settings.updates", None, 500),
        ("GET", "/settings?keys=settings..updates", None, 400),
        ("PATCH", long.as_str(), lock, 500),
        ("PATCH", "/settings?tx=%C3%A4", lock, 400),
        ("PATCH", "/settings?tx=%22t%22", lock, 400),
        ("PATCH", "/settings?tx=t", Some(r#"{"updates":{"targets-base-url":"no url"}}"#), 400),
        ("PATCH", "/settings?tx=t", lock, 204),
    ] {
        assert_eq!(bench.call(method, target, body).await.status, status, "{method} {target}");
    }
}

#[tokio::test]
async fn action_and_oversized_body_are_answered_before_body_is_received() {
    let bench = bench().await;
    for (head, status) in [
        ("POST /actions/activate-update HTTP/1.1\r\ncontent-length: 9\r\n\r\n".to_owned(), 409),
        ("PATCH /settings HTTP/1.1\r\ncontent-type: text/json\r\ncontent-length: 9999999\r\n\r\n".to_owned(), 413),
    ] {
        let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(client::read(&mut stream).await.unwrap().status, status, "{head}");
    }
}

#[tokio::test]
async fn activation_with_lost_record_leaves_disk_armed_until_next_prepare() {
    let bench = bench().await;
    bench.stage().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    assert_eq!(bench.post(Command::Activate).await, 204);
    let armed = || {
        let disk = bench.host.snapshot().disk;
        disk.next() == Some(disk.inactive())
    };
    assert_eq!((bench.status().await["update_state"].clone(), armed()), (json!("Staged"), true));
    assert_eq!(bench.post(Command::Activate).await, 204);
    let last = &bench.status().await["most_recent_command"];
    assert_eq!(last["cmd_status"], "Failed");
    assert!(last["stderr"].as_str().unwrap().contains("is already marked for upgrade"));
    assert_eq!(bench.post(Command::Deactivate).await, 409);
    assert!(armed());
    bench.run(&[Command::Prepare]).await;
    assert!(!armed());
}

#[tokio::test]
async fn request_is_executed_after_client_disconnects() {
    let bench = bench().await;
    bench.stage().await;
    let slow = Transport::Slow(Duration::from_millis(50));
    bench.host.script(Fault::request("POST", "/actions/activate", slow));
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"POST /actions/activate-update HTTP/1.1\r\n\r\n").await.unwrap();
    drop(stream);
    let mut events = bench.host.subscribe();
    while !bench.kinds().iter().any(|kind| matches!(kind, EventKind::Armed { .. })) {
        let _ = events.recv().await;
    }
}

#[tokio::test]
async fn reboot_command_terminated_by_shutdown_returns_500_and_reboots() {
    let bench = bench().await;
    let boot = bench.host.snapshot().boot_id;
    bench.host.script(Fault::reboot(RebootFault::Terminated));
    let reply = bench.call("POST", "/actions/reboot", None).await;
    assert_eq!((reply.status, reply.body.as_str()), (500, "Failed to reboot, exit code: 15, stderr: "));
    bench.back(&boot).await;
}

#[tokio::test]
async fn settings_and_os_support_keys_and_prefix_queries() {
    let bench = bench().await;
    assert_eq!(bench.get("/os?prefix=ver").await, json!({"version_id": "1.20.0"}));
    assert_eq!(bench.get("/os?prefix=nothing").await, json!({}));
    assert_eq!(bench.call("GET", "/os?prefix=", None).await.status, 400);
    assert_eq!(bench.get("/settings?keys=settings.updates.seed").await, json!({"updates": {"seed": 42}}));
    assert_eq!(bench.get("/settings?keys=updates.seed").await, json!({}));
    assert_eq!(bench.call("GET", "/settings?keys=", None).await.status, 400);
    assert_eq!(bench.get("/settings?prefix=motd").await, json!({}));
}

// The transport.

#[tokio::test]
async fn unknown_paths_and_methods_return_404_with_empty_body() {
    let bench = bench().await;
    for (method, target) in [
        ("GET", "/settings/"),
        ("POST", "/settings"),
        ("GET", "/actions/refresh-updates"),
        ("POST", "/actions/nonsense"),
        ("POST", "/updates/status"),
        ("HEAD", "/os"),
    ] {
        let reply = bench.call(method, target, None).await;
        assert_eq!((reply.status, reply.body.as_str()), (404, ""), "{method} {target}");
        assert_eq!(reply.headers["content-length"], "0");
    }
}

#[tokio::test]
async fn connection_supports_keep_alive_and_chunked_bodies() {
    let bench = bench().await;
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(client::send(&mut stream, "GET", "/os", None).await.unwrap().status, 200);
    }
    stream
        .write_all(
            b"PATCH /settings HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
              5\r\n{\"upd\r\nf\r\nates\":{\"seed\":9\r\n2\r\n}}\r\n0\r\n\r\n",
        )
        .await
        .unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status, 204);
    let reply = client::send(&mut stream, "POST", "/tx/commit", None).await.unwrap();
    assert_eq!(reply.body, r#"["settings.updates.seed"]"#);
}

#[tokio::test]
async fn reqwest_client_understands_replies() {
    let bench = bench().await;
    let client = reqwest::Client::builder().unix_socket(bench.host.socket()).build().unwrap();
    let url = |path: &str| format!("http://localhost{path}");
    for command in [Command::Refresh, Command::Prepare] {
        let reply = client.post(url(command.path())).send().await.unwrap();
        assert_eq!((reply.status().as_u16(), reply.content_length()), (204, Some(0)));
    }
    let patch = client.patch(url("/settings?tx=t")).json(&json!({"updates": {"seed": 1}})).send().await.unwrap();
    assert_eq!(patch.status().as_u16(), 204);
    let status = client.get(url("/updates/status")).send().await.unwrap();
    assert_eq!(status.headers()["content-type"], "application/json");
    assert!(status.text().await.unwrap().contains(r#""update_state":"Staged""#));
}

#[tokio::test]
async fn http_1_0_is_accepted_and_http_2_is_rejected() {
    let bench = bench().await;
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"GET /os HTTP/1.0\r\n\r\n").await.unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status_line, "HTTP/1.0 200 OK");
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status, 400);
}

#[tokio::test]
async fn incomplete_request_head_returns_408_and_idle_connection_is_closed() {
    let bench = bench_with(|options| options.head_timeout = Duration::from_millis(100)).await;
    let mut half = UnixStream::connect(bench.host.socket()).await.unwrap();
    half.write_all(b"GET /os HTTP/1.1\r\n").await.unwrap();
    let reply = client::read(&mut half).await.unwrap();
    assert_eq!((reply.status, reply.headers["connection"].as_str()), (408, "close"));
    let mut silent = UnixStream::connect(bench.host.socket()).await.unwrap();
    assert_eq!(client::read(&mut silent).await.unwrap().status, 408);
    let mut idle = UnixStream::connect(bench.host.socket()).await.unwrap();
    client::send(&mut idle, "GET", "/os", None).await.unwrap();
    assert!(client::read(&mut idle).await.is_err());
}

#[tokio::test]
async fn transport_faults_occur_as_often_as_scripted() {
    let bench = bench().await;
    let status = |transport| Fault::request("GET", "/updates/status", transport);
    bench.run(&[Command::Refresh]).await;
    bench.host.script(status(Transport::Status(500, "Update dispatcher failed".to_owned())).times(2));
    bench.host.script(status(Transport::Garbage));
    bench.host.script(status(Transport::CutReply));
    bench.host.script(status(Transport::LostBefore));
    for _ in 0..2 {
        assert_eq!(bench.call("GET", "/updates/status", None).await.status, 500);
    }
    let garbage = bench.call("GET", "/updates/status", None).await;
    assert_eq!(garbage.status, 200);
    assert!(serde_json::from_str::<Value>(&garbage.body).is_err());
    for _ in 0..2 {
        assert!(client::call(&bench.host.socket(), "GET", "/updates/status", None).await.is_err());
    }
    assert_eq!(bench.status().await["update_state"], "Available");
    bench.host.script(Fault::connection());
    assert!(client::call(&bench.host.socket(), "GET", "/os", None).await.is_err());
    assert_eq!(bench.running_version().await, "1.20.0");
}

#[tokio::test]
async fn lost_reply_fault_may_drop_request_or_execute_it() {
    let bench = bench().await;
    bench.host.script(Fault::request("POST", "/actions/refresh", Transport::LostBefore));
    bench.host.script(Fault::request("POST", "/actions/refresh", Transport::LostAfter));
    let lost = || async { client::call(&bench.host.socket(), "POST", Command::Refresh.path(), None).await.is_err() };
    assert!(lost().await);
    assert_eq!(bench.call("GET", "/updates/status", None).await.status, 404);
    assert!(lost().await);
    assert_eq!(bench.status().await["update_state"], "Available");
}

#[tokio::test]
async fn host_api_restart_kills_running_command_and_creates_new_socket() {
    for clean in [true, false] {
        let bench = bench().await;
        bench.run(&[Command::Refresh]).await;
        let before = bench.status().await;
        let socket = inode(&bench.host.socket());
        let boot = bench.host.snapshot().boot_id;
        bench.host.script(Fault::command(Command::Prepare, Worker::NeverEnds));
        assert_eq!(bench.post(Command::Prepare).await, 204);
        bench.host.restart_api(clean).await;
        assert_ne!(inode(&bench.host.socket()), socket);
        assert_eq!(bench.status().await, before);
        assert_eq!(bench.host.snapshot().boot_id, boot);
    }
}

#[tokio::test]
async fn stopped_host_api_removes_socket_or_refuses_connections() {
    let expected = [(true, std::io::ErrorKind::NotFound), (false, std::io::ErrorKind::ConnectionRefused)];
    for (clean, kind) in expected {
        let bench = bench_with(|options| options.timings.api_restart = Duration::from_secs(3600)).await;
        let host = bench.host.clone();
        let restart = tokio::spawn(async move { host.restart_api(clean).await });
        let deadline = tokio::time::Instant::now() + LIMIT;
        // A connection that was made but not accepted yet is reset.
        while UnixStream::connect(bench.host.socket()).await.map_err(|error| error.kind()).err() != Some(kind) {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        restart.abort();
    }
}

#[tokio::test]
async fn host_stops_when_last_handle_is_dropped() {
    let bench = bench().await;
    let socket = bench.host.socket();
    let second = bench.host.clone();
    drop(bench.host);
    assert_eq!(client::call(&socket, "GET", "/os", None).await.unwrap().status, 200);
    drop(second);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while client::call(&socket, "GET", "/os", None).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline);
    }
}

#[tokio::test]
async fn too_long_socket_path_is_rejected() {
    let options = HostOptions::new("a", format!("/tmp/{}", "x".repeat(120)), v("1.20.0"), Releases::default());
    let error = Host::start(options).await.unwrap_err();
    assert!(error.to_string().contains("too long for a socket"), "{error}");
}
