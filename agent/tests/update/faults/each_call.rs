//! Each call to the host in an update, with each fault at it: the update ends as without one, in the same attempt, and
//! nothing is done twice. A few faults may end the attempt instead, and then the host is disarmed and not rebooted. Then
//! pairs of faults, drawn by a seed: the same holds of them, and either may end the attempt.

use std::collections::VecDeque;

use integ::host::{Fault, Transport, VersionLock};
use models::permit::PERMIT_LIFETIME;
use models::reason::FailureReason;
use models::shadow::{HostPolicy, HostState};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::agent_exits::act_as_controller;
use super::random_faults::SEED;
use super::*;
use crate::bench::{NEW, OLD};

/// Pairs of faults in a run of the tests.
const PAIRS: usize = 60;

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

/// Injects faults, each into the call after so many others. They are in the order of their calls, and a fault counts calls from the one
/// before it on.
fn script(bench: &Bench, faults: &[(usize, CallFault)]) {
    let mut counted = 0;
    for (at, fault) in faults {
        let (at, transport) = match fault {
            Exchange(transport) | Crash(transport) => (*at, transport()),
            // A process begins with the first call, and none is before it.
            Refused if *at == 0 => continue,
            Refused => (*at - 1, Transport::RestartAfter),
        };
        let after = u32::try_from(at - counted).expect("a small number");
        bench.host.script(Fault::request("*", "/", transport).after(after));
        counted = at + 1;
    }
}

/// Starts the agent. Nothing listens on the socket if its first call is to find no server.
async fn start(bench: &Bench, faults: &[(usize, CallFault)]) -> InProcessAgent {
    let calls = bench.calls().len();
    if faults.iter().any(|(at, fault)| matches!(fault, Refused) && *at == calls) {
        let host = bench.host.clone();
        tokio::spawn(async move { host.restart_api(false).await });
        settle(TURNS).await;
    }
    InProcessAgent::start(bench)
}

/// Updates a host to the version that its settings are to be locked to, with faults, each at the call after so many others.
async fn update_with(faults: &[(usize, CallFault)], what: &str) -> End {
    let bench = Bench::stopped(|options| options.timings.api_restart = MINUTE).await;
    bench.web.create();
    let policy = HostPolicy { refresh_interval: None, ..bench.policy(Some("1.20.5"), None) };
    bench.web.change_spec(|spec| spec.host = Some(policy));
    bench.stage(1);
    script(&bench, faults);
    let crash = |(at, fault): &(usize, CallFault)| matches!(fault, Crash(_)).then_some(*at);
    let mut crashes: VecDeque<usize> = faults.iter().filter_map(crash).collect();
    let delay = |(_, fault): &(usize, CallFault)| match fault {
        Exchange(transport) => {
            if let Transport::Slow(delay) = transport() {
                Some(delay)
            } else {
                None
            }
        }
        Crash(_) | Refused => None,
    };
    let late: Duration = faults.iter().filter_map(delay).sum();
    let mut agent = start(&bench, faults).await;
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
        let crashed = crashes.front().is_some_and(|at| bench.calls().len() > *at);
        // A boot ends every process, and a kubelet starts again one that has ended.
        if crashed || bench.boot() != runs_in || agent.has_ended() {
            if crashed {
                crashes.pop_front();
            }
            // A permit is for the process that requested it.
            (runs_in, permitted) = (bench.boot(), None);
            if agent.has_ended() {
                let _ = agent.end().await;
            } else {
                agent.kill().await;
            }
            agent = start(&bench, faults).await;
        }
    }
    agent.end().await.unwrap();
    // An attempt that the first of two ended may make fewer calls.
    let pending = bench.host.clear_faults();
    assert!(pending == 0 || (pending < faults.len() && end.failure.is_some()), "{what}: it did not occur");
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
    simulate(async |_| calls = update_with(&[], "no fault").await.calls);
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
            simulate(async |_| failure = update_with(&[(at, fault)], &what).await.failure);
            if let Some(reason) = failure {
                assert!(MAY_FAIL.contains(&(name, call.as_str(), reason)), "{what}: the attempt failed: {reason:?}");
                failures.push(what);
            }
        }
    }
    println!("{} runs, with {} faults at each of {} calls", 1 + FAULTS.len() * calls.len(), FAULTS.len(), calls.len());
    println!("{} attempts failed: {failures:#?}", failures.len());
}

#[test]
fn pairs_of_faults_at_calls_of_an_update_are_survived() {
    let mut calls = 0;
    simulate(async |_| calls = update_with(&[], "no fault").await.calls.len());
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("{SEED}={seed} repeats this run");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut failures = Vec::new();
    for _ in 0..PAIRS {
        let first = rng.random_range(0..calls - 2);
        // A call that finds no server has one before it, which was answered.
        let second = rng.random_range(first + 2..calls);
        let (&(one, first_fault), &(other, second_fault)) =
            (FAULTS.choose(&mut rng).unwrap(), FAULTS.choose(&mut rng).unwrap());
        let what = format!("call {first} {one}, and call {second} {other}");
        let mut failure = None;
        simulate(async |_| failure = update_with(&[(first, first_fault), (second, second_fault)], &what).await.failure);
        if let Some(reason) = failure {
            let may_fail = MAY_FAIL.iter().any(|(name, _, known)| *known == reason && [one, other].contains(name));
            assert!(may_fail, "{what}: the attempt failed: {reason:?}");
            failures.push(what);
        }
    }
    println!("{PAIRS} pairs; {} attempts failed: {failures:#?}", failures.len());
}
