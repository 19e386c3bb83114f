//! Each call to the host in an update, with each fault at it: the update ends as without one, or with a failure that it
//! tells, and nothing is done twice.

use integ::host::{Fault, Transport};
use models::shadow::HostState;

use super::*;
use crate::bench::NEW;

/// A fault that a call can meet, and its name.
type CallFault = (&'static str, fn() -> Transport);

const FAULTS: [CallFault; 8] = [
    ("is lost", || Transport::LostBefore),
    ("is carried out without an answer", || Transport::LostAfter),
    ("is answered in half", || Transport::CutReply),
    ("is answered with garbage", || Transport::Garbage),
    ("takes 5 s", || Transport::Slow(Duration::from_secs(5))),
    ("takes 90 s", || Transport::Slow(Duration::from_secs(90))),
    ("fails", || Transport::Status(500, "no".to_owned())),
    ("is refused for a lock", || Transport::Status(423, "locked".to_owned())),
];

/// The course of an update with a fault.
struct Course {
    calls: Vec<String>,
    /// Attempts that failed before the one that went through.
    failures: Vec<String>,
}

/// Updates a host, with a fault at the call after so many others.
async fn update_with(after: usize, transport: Option<Transport>, what: &str) -> Course {
    let bench = Bench::without_agent().await;
    bench.web.create();
    if let Some(transport) = transport {
        let after = u32::try_from(after).expect("a small number");
        bench.host.script(Fault::request("*", "/", transport).after(after));
    }
    let mut agent = InProcessAgent::start(&bench);
    let mut runs_in = bench.boot();
    let (mut attempt, mut failures, mut updated) = (0, Vec::new(), false);
    let end = Instant::now() + HOUR;
    loop {
        let view = bench.web.view();
        let (report, spec) = (&view.status.report, &view.spec);
        let acknowledged = report.observed_generation == Some(view.metadata.generation);
        let failure = report.failure.as_ref().filter(|failure| failure.attempt == attempt);
        match spec.state {
            HostState::Idle if updated && acknowledged => break,
            HostState::Idle if acknowledged && !updated => {
                attempt += 1;
                bench.stage(attempt);
            }
            HostState::StagedUpdate | HostState::RebootedIntoUpdate if failure.is_some() => {
                failures.extend(failure.map(|failure| failure.reason.to_string()));
                bench.withdraw();
            }
            HostState::StagedUpdate if acknowledged && report.state == Some(HostState::StagedUpdate) => {
                bench.request_reboot();
            }
            HostState::RebootedIntoUpdate if report.state == Some(HostState::RebootedIntoUpdate) => {
                updated = true;
                bench.withdraw();
            }
            HostState::RebootedIntoUpdate => {
                let armed = report.armed.as_ref().filter(|armed| armed.attempt == attempt);
                let answered = |nonce: &str| spec.permit.as_ref().is_some_and(|permit| permit.nonce == nonce);
                if armed.is_some_and(|armed| !answered(&armed.nonce)) {
                    bench.issue_permit(&bench.claims(&view));
                }
            }
            _ => {}
        }
        assert!(Instant::now() < end, "{what}: the update does not end: {view:#?}");
        pass(STEP).await;
        // A boot ends every process, and a kubelet starts again one that has ended.
        if bench.boot() != runs_in || agent.has_ended() {
            runs_in = bench.boot();
            if agent.has_ended() {
                let _ = agent.end().await;
            } else {
                agent.kill().await;
            }
            agent = InProcessAgent::start(&bench);
        }
    }
    assert_eq!(bench.host.clear_faults(), 0, "{what}: it did not occur");
    let log = bench.host.log();
    // An attempt that fails after it armed the host disarms it; its next one arms it again.
    assert!((1..=1 + failures.len()).contains(&arms(&log)), "{what}: armed {} times, {failures:?}", arms(&log));
    assert_eq!(reboots(&log), 1, "{what}: {log:#?}");
    assert!(failures.len() <= 1, "{what}: {failures:?}");
    assert_eq!((&bench.web.view().status.report.armed, bench.host.snapshot().running_version), (&None, NEW), "{what}");
    agent.end().await.unwrap();
    Course { calls: bench.calls(), failures }
}

#[test]
fn each_fault_at_each_call_of_an_update_is_survived() {
    let mut calls = Vec::new();
    simulate(async |_| calls = update_with(0, None, "no fault").await.calls);
    assert!(calls.len() >= 12, "{calls:#?}");
    for (name, transport) in FAULTS {
        for (at, call) in calls.iter().enumerate() {
            let what = format!("call {at}, {call}, {name}");
            simulate(async |_| {
                let failures = update_with(at, Some(transport()), &what).await.failures;
                if !failures.is_empty() {
                    println!("{what}: {failures:?}");
                }
            });
        }
    }
}
