//! The agent as a process, between a simulated host and a stand-in for the web API.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bench;
mod disarm;
mod drills;
mod failures;
mod faults;
mod permits;
mod refreshes;
mod reports;
mod settings;

use std::time::Duration;

use bench::{Bench, LIMIT, NEW, OLD};
use integ::host::{Command, Fault, UpdateState, Worker};
use models::condition::find_condition;
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, HOST_REACHABLE, HostState};
use models::wire::ShadowView;

fn failed(view: &ShadowView) -> Option<FailureReason> {
    view.status.report.failure.as_ref().map(|failure| failure.reason)
}

fn phase(view: &ShadowView) -> Option<ArmedPhase> {
    view.status.report.armed.as_ref().map(|armed| armed.phase)
}

fn acknowledged(view: &ShadowView) -> bool {
    view.status.report.observed_generation == Some(view.metadata.generation)
}

/// Returns the reason of the condition about the host.
fn reach(view: &ShadowView) -> String {
    find_condition(&view.status.conditions, HOST_REACHABLE).map(|c| c.reason.clone()).unwrap_or_default()
}

/// Stages and arms an image on the host as another client.
async fn arm_by_another(bench: &Bench) {
    for command in [Command::Refresh, Command::Prepare, Command::Activate] {
        bench.host.foreign(command).await.unwrap();
        bench.host.lock_free().await;
    }
}

async fn until_failed(bench: &Bench, reason: FailureReason) -> ShadowView {
    bench.web.until(reason.as_str(), |view| failed(view) == Some(reason) && acknowledged(view)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn update_takes_twelve_host_calls_and_five_reports() {
    let mut bench = Bench::new().await;
    let first = bench.web.view().status.report;
    assert_eq!((first.state, first.current_version), (Some(HostState::Idle), Some(OLD)));
    assert_eq!(first.boot_id, Some(bench.boot()));
    let (calls_before, writes_before) = (bench.calls().len(), bench.web.writes().len());
    assert_eq!((calls_before, writes_before), (2, 1), "{:?}", bench.calls());

    let boot = bench.boot();
    bench.stage_and_wait(1).await;
    let request = bench.permit_requested().await;
    assert_eq!(bench.host.snapshot().status.unwrap().update_state, UpdateState::Staged, "not before the permit");
    bench.issue_permit(&bench.claims(&request));
    bench.rebooted(&boot).await;
    let reached = |view: &ShadowView| view.status.report.state == Some(HostState::RebootedIntoUpdate);
    let back = bench.web.until("the update is reached", reached).await;
    assert_eq!(back.status.report.current_version, Some(NEW));
    assert_eq!(back.status.report.armed, None);
    assert!(acknowledged(&back));
    bench.withdraw();
    bench.web.until("it is idle again", |v| v.status.report.state == Some(HostState::Idle) && acknowledged(v)).await;

    assert_eq!(
        bench.calls()[calls_before..],
        [
            "GET /updates/status",
            "POST /actions/refresh-updates",
            "GET /updates/status",
            "POST /actions/prepare-update",
            "GET /updates/status",
            "GET /updates/status",
            "POST /actions/activate-update",
            "GET /updates/status",
            "GET /updates/status",
            "POST /actions/reboot",
            "GET /os",
            "GET /updates/status",
        ]
    );
    let states: Vec<_> = bench.web.writes()[writes_before..]
        .iter()
        .map(|w| (w.report.state.unwrap(), w.report.armed.as_ref().map(|a| a.phase)))
        .collect();
    assert_eq!(
        states,
        [
            (HostState::StagedUpdate, None),
            (HostState::StagedUpdate, Some(ArmedPhase::Arming)),
            (HostState::StagedUpdate, Some(ArmedPhase::Activated)),
            (HostState::RebootedIntoUpdate, None),
            (HostState::Idle, None),
        ]
    );
    assert!(bench.web.tokens().iter().all(|token| token.starts_with("Bearer h.")));
}

/// Returns true if any reboot boots the staged image.
fn disk_armed(bench: &Bench) -> bool {
    let disk = bench.host.snapshot().disk;
    disk.next() == Some(disk.inactive())
}

async fn until_disk_armed(bench: &Bench) {
    let wait = async {
        while !disk_armed(bench) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "the disk is not armed: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_agent_without_further_host_call() {
    let mut bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    bench.stage(1);
    bench.until_running(Command::Prepare).await;
    let pid = bench.agent().id().unwrap();
    assert!(std::process::Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    let ended = tokio::time::timeout(LIMIT, bench.agent().wait()).await.unwrap().unwrap();
    assert!(ended.success());
    assert!(!bench.calls().iter().any(|call| call.contains("deactivate") || call.contains("reboot")));
}

/// Names the agent's program as it ships.
const SHIPPED: &str = "BRUPOP_AGENT_BIN";

#[tokio::test(flavor = "multi_thread")]
async fn agent_memory_and_binary_size_stay_within_limits() {
    let Some(shipped) = std::env::var_os(SHIPPED) else {
        println!(
            "the agent's memory was not measured: a debug build says nothing about it, and {SHIPPED} names no other"
        );
        return;
    };
    let bench = Bench::without_agent().await;
    bench.web.create();
    let mut agent = tokio::process::Command::new(&shipped)
        .arg("--node-name=a")
        .arg(format!("--host-socket={}", bench.host.socket().display()))
        .arg(format!("--boot-id-file={}", bench.path("proc/sys/kernel/random/boot_id").display()))
        .arg(format!("--server-url={}", bench.web.url))
        .arg(format!("--token-file={}", bench.path("token").display()))
        .arg(format!("--trust-dir={}", bench.path("trust").display()))
        .env_clear()
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    bench.web.until("the agent has reported", |v| v.status.report.observed_generation == Some(1)).await;
    bench.stage_and_wait(1).await;
    bench.permit_requested().await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id().unwrap())).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (resident, anonymous, peak) = (field("VmRSS:"), field("RssAnon:"), field("VmHWM:"));
    let size = std::fs::metadata(&shipped).unwrap().len();
    println!("resident {resident} KiB, of it anonymous {anonymous} KiB; peak {peak} KiB; program {size} bytes");
    assert!(peak <= 6 * 1024, "{peak} KiB");
    assert!(size <= 4 * 1024 * 1024, "{size} bytes");
    agent.kill().await.unwrap();
}
