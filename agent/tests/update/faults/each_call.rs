//! Each call to the host in an update, with each fault at it: the update ends as without one, in the same attempt, and
//! nothing is done twice. A few faults may end the attempt instead, and then the host is disarmed and not rebooted.

use integ::host::{Fault, Transport, VersionLock};
use models::permit::PERMIT_LIFETIME;
use models::reason::FailureReason;
use models::shadow::{HostPolicy, HostState};

use super::agent_exits::act_as_controller;
use super::*;
use crate::bench::{NEW, OLD};

/// A fault at one call.
#[derive(Clone, Copy)]
enum CallFault {
    /// Of the exchange with the host.
    Exchange(fn() -> Transport),
    /// The agent is killed while it waits for the answer, and started again.
    Crash(fn() -> Transport),
    /// Nothing listens on the socket: the host API was killed, and is back after a minute.
    Refused,
}

use CallFault::{Crash, Exchange, Refused};

const FAULTS: [(&str, CallFault); 17] = [
    ("fails", Exchange(|| Transport::Status(500, "no".to_owned()))),
    ("is refused for a lock", Exchange(|| Transport::Status(423, "locked".to_owned()))),
    ("is not allowed", Exchange(|| Transport::Status(409, "no".to_owned()))),
    ("is answered with 404", Exchange(|| Transport::Status(404, String::new()))),
    // The host's text for a command that a signal ended.
    ("is carried out and fails", Exchange(|| Transport::StatusAfter(500, "exit code: 15, stderr: ".to_owned()))),
    ("is carried out and has an odd answer", Exchange(|| Transport::StatusAfter(200, "{\"detail\":7}".to_owned()))),
    ("is answered with garbage", Exchange(|| Transport::Garbage)),
    ("is answered in half", Exchange(|| Transport::CutReply)),
    ("is lost", Exchange(|| Transport::LostBefore)),
    ("is carried out without an answer", Exchange(|| Transport::LostAfter)),
    ("hangs", Exchange(|| Transport::HeldBefore)),
    ("is carried out and hangs", Exchange(|| Transport::HeldAfter)),
    // Longer than the agent waits for an answer, and than a permit is valid.
    ("takes 30 s", Exchange(|| Transport::Slow(Duration::from_secs(30)))),
    ("takes 90 s", Exchange(|| Transport::Slow(Duration::from_secs(90)))),
    ("finds no server for a minute", Refused),
    ("is not carried out, and the agent crashes", Crash(|| Transport::HeldBefore)),
    ("is carried out, and the agent crashes", Crash(|| Transport::HeldAfter)),
];

/// The fault and the call that may end an attempt, and the reason that is reported. By this answer the host has run no command in
/// this boot: it has no image, or has lost the record of it.
const MAY_FAIL: [(&str, &str, FailureReason); 1] =
    [("is answered with 404", "GET /updates/status", FailureReason::NotStaged)];

/// End of a run.
struct End {
    /// Calls until the new boot was reported.
    calls: Vec<String>,
    /// Reason of the attempt's failure, if it failed.
    failure: Option<FailureReason>,
}

/// Injects a fault into the call after so many others.
fn script(bench: &Bench, calls: usize, transport: Transport) {
    let after = u32::try_from(calls).expect("a small number");
    bench.host.script(Fault::request("*", "/", transport).after(after));
}

/// Starts the agent. Nothing listens on the socket if its first call is to find no server.
async fn start(bench: &Bench, fault: Option<(usize, CallFault)>) -> InProcessAgent {
    if let Some((at, Refused)) = fault
        && bench.calls().len() == at
    {
        let host = bench.host.clone();
        tokio::spawn(async move { host.restart_api(false).await });
        settle(TURNS).await;
    }
    InProcessAgent::start(bench)
}

/// Updates a host to the version that its settings are to be locked to, with a fault at the call after so many others.
async fn update_with(fault: Option<(usize, CallFault)>, what: &str) -> End {
    let bench = Bench::stopped(|options| options.timings.api_restart = MINUTE).await;
    bench.web.create();
    let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
    bench.web.change_spec(|spec| spec.host = Some(policy));
    bench.stage(1);
    let (mut crash, mut late) = (None, Duration::ZERO);
    match fault {
        Some((at, Exchange(transport))) => {
            if let Transport::Slow(delay) = transport() {
                late = delay;
            }
            script(&bench, at, transport());
        }
        Some((at, Crash(transport))) => {
            crash = Some(at);
            script(&bench, at, transport());
        }
        // A process begins with the first call, and none is before it.
        Some((at @ 1.., Refused)) => script(&bench, at - 1, Transport::RestartAfter),
        Some((0, Refused)) | None => {}
    }
    let mut agent = start(&bench, fault).await;
    let (mut runs_in, mut acts) = (bench.boot(), (0, 0));
    // The nonce of the newest permit, and when it was issued to the running process.
    let (mut nonce, mut permitted) = (None, None::<Instant>);
    let mut end = End { calls: Vec::new(), failure: None };
    let limit = Instant::now() + HOUR;
    loop {
        let view = bench.web.view();
        let report = &view.status.report;
        match (view.spec.state, &report.failure) {
            (HostState::Idle, _) if report.observed_generation == Some(view.metadata.generation) => break,
            (HostState::Idle, _) => {}
            (_, Some(failure)) => {
                end.failure = Some(failure.reason);
                bench.withdraw();
            }
            (HostState::RebootedIntoUpdate, None) if report.state == Some(HostState::RebootedIntoUpdate) => {
                end.calls = bench.calls();
                bench.withdraw();
            }
            _ => act_as_controller(&bench),
        }
        assert!(Instant::now() < limit, "{what}: the update does not end: {view:#?}");
        let issued = bench.web.view().spec.permit.map(|permit| permit.nonce);
        if issued.is_some() && issued != nonce {
            permitted = Some(Instant::now());
        }
        nonce = issued;
        pass(STEP).await;
        let log = bench.host.log();
        let new_acts = (arms(&log), reboots(&log));
        let is_valid = |since: Instant| since.elapsed() <= PERMIT_LIFETIME + late + STEP;
        assert!(new_acts == acts || permitted.is_some_and(is_valid), "{what}: an act without a valid permit: {log:#?}");
        acts = new_acts;
        let crashes = crash.is_some_and(|at| bench.calls().len() > at);
        // A boot ends every process, and a kubelet starts again one that has ended.
        if crashes || bench.boot() != runs_in || agent.has_ended() {
            if crashes {
                crash = None;
            }
            // A permit is for the process that requested it.
            (runs_in, permitted) = (bench.boot(), None);
            if agent.has_ended() {
                let _ = agent.end().await;
            } else {
                agent.kill().await;
            }
            agent = start(&bench, fault).await;
        }
    }
    agent.end().await.unwrap();
    assert_eq!(bench.host.clear_faults(), 0, "{what}: it did not occur");
    let (report, host) = (bench.web.view().status.report, bench.host.snapshot());
    let version = if end.failure.is_none() { NEW } else { OLD };
    assert_eq!((report.current_version, &host.running_version), (Some(version.clone()), &version), "{what}");
    assert_eq!((report.state, report.armed), (Some(HostState::Idle), None), "{what}");
    assert_eq!(host.disk.next(), Some(host.disk.active), "{what}: the disk is armed");
    // An agent that is started again knows the lock as the operator's, by what was reported before the change.
    let own = report.host.and_then(|found| found.applied).and_then(|own| own.version_lock);
    assert_eq!(own.as_deref(), Some("1.20.5"), "{what}");
    assert_eq!(host.settings.version_lock, VersionLock::parse("1.20.5").ok(), "{what}");
    let log = bench.host.log();
    if end.failure.is_none() {
        assert_eq!(acts, (1, 1), "{what}: armed and rebooted {log:#?}");
    } else {
        assert!(acts.0 <= 1 && acts.1 == 0, "{what}: armed and rebooted {acts:?} in an attempt that failed: {log:#?}");
    }
    end
}

#[test]
fn each_fault_at_each_call_of_an_update_is_survived() {
    let mut calls = Vec::new();
    simulate(async |_| calls = update_with(None, "no fault").await.calls);
    let kinds = [
        "GET /os",
        "GET /updates/status",
        "GET /settings?keys",
        "PATCH /settings?tx",
        "POST /tx/commit_and_apply",
        "POST /actions/refresh-updates",
        "POST /actions/prepare-update",
        "POST /actions/activate-update",
        "POST /actions/reboot",
    ];
    let is_made = |kind: &&str| calls.iter().any(|call| call.starts_with(kind));
    assert!(calls.len() >= 16 && kinds.iter().all(is_made), "{calls:#?}");
    let mut failures = Vec::new();
    for (name, fault) in FAULTS {
        for (at, call) in calls.iter().enumerate() {
            let what = format!("call {at}, {call}, {name}");
            let mut failure = None;
            simulate(async |_| failure = update_with(Some((at, fault)), &what).await.failure);
            if let Some(reason) = failure {
                assert!(MAY_FAIL.contains(&(name, call.as_str(), reason)), "{what}: the attempt failed: {reason:?}");
                failures.push(what);
            }
        }
    }
    println!("{} runs, with {} faults at each of {} calls", 1 + FAULTS.len() * calls.len(), FAULTS.len(), calls.len());
    println!("{} attempts failed: {failures:#?}", failures.len());
}
