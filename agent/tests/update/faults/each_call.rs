//! Each call to the host in a plain update, with each fault at it: the update ends as without one, in the same attempt, and
//! nothing is done twice.

use integ::host::{Fault, Transport};
use models::shadow::HostState;

use super::agent_exits::act_as_controller;
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

/// Updates a host, with a fault at the call after so many others. Returns all calls.
async fn update_with(fault: Option<(usize, Transport)>, what: &str) -> Vec<String> {
    let bench = Bench::without_agent().await;
    bench.web.create();
    if let Some((after, transport)) = fault {
        let after = u32::try_from(after).expect("a small number");
        bench.host.script(Fault::request("*", "/", transport).after(after));
    }
    let mut agent = InProcessAgent::start(&bench);
    let (mut runs_in, mut updated) = (bench.boot(), false);
    let end = Instant::now() + HOUR;
    loop {
        let view = bench.web.view();
        let report = &view.status.report;
        let acknowledged = report.observed_generation == Some(view.metadata.generation);
        assert_eq!(report.failure, None, "{what}");
        match view.spec.state {
            HostState::Idle if updated && acknowledged => break,
            HostState::Idle if acknowledged => bench.stage(1),
            HostState::RebootedIntoUpdate if report.state == Some(HostState::RebootedIntoUpdate) => {
                updated = true;
                bench.withdraw();
            }
            _ => act_as_controller(&bench),
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
    assert_eq!((arms(&log), reboots(&log)), (1, 1), "{what}: {log:#?}");
    assert_eq!((&bench.web.view().status.report.armed, bench.host.snapshot().running_version), (&None, NEW), "{what}");
    agent.end().await.unwrap();
    bench.calls()
}

#[test]
fn each_fault_at_each_call_of_an_update_is_survived() {
    let mut calls = Vec::new();
    simulate(async |_| calls = update_with(None, "no fault").await);
    let commands = ["refresh-updates", "prepare-update", "activate-update", "reboot"];
    let made = |command: &&str| calls.iter().any(|call| call.contains(command));
    assert!(calls.len() >= 12 && commands.iter().all(made), "{calls:#?}");
    for (name, transport) in FAULTS {
        for (at, call) in calls.iter().enumerate() {
            let what = format!("call {at}, {call}, {name}");
            simulate(async |_| _ = update_with(Some((at, transport())), &what).await);
        }
    }
}
