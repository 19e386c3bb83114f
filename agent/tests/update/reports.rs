//! Reports: written until they are stored, with the current token.

use std::time::Duration;

use integ::host::{Command, EventKind, Fault, Worker};
use models::condition::{ConditionStatus, find_condition};
use models::shadow::{Armed, ArmedPhase, HOST_REACHABLE, HostState};
use models::wire::ShadowView;

use super::*;
use crate::bench::web::{WebFault, WriteFault};
use crate::bench::{LIMIT, OLD};

#[tokio::test(flavor = "multi_thread")]
async fn report_is_delivered_once_despite_refusal_and_lost_response() {
    let bench = Bench::new().await;
    bench.web.fault(WriteFault::Refused);
    bench.web.fault(WriteFault::ResponseLost);
    bench.stage_and_wait(1).await;
    bench.permit_requested().await;
    let states: Vec<_> = bench.web.writes().iter().map(|write| write.report.state.unwrap()).collect();
    assert_eq!(states, [HostState::Idle, HostState::StagedUpdate, HostState::StagedUpdate], "none is written twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_report_is_rebuilt_on_current_status() {
    let bench = Bench::new().await;
    bench.host.script(Fault::command(Command::Prepare, Worker::Waits));
    bench.stage(1);
    bench.until_running(Command::Prepare).await;
    let theirs = Armed {
        attempt: 0,
        boot_id: "long ago".into(),
        version: OLD,
        phase: ArmedPhase::Activated,
        nonce: "theirs".into(),
    };
    bench.web.write_status_as_other_client(|status| status.report.armed = Some(theirs.clone()));
    bench.finish_command().await;
    let staged = |v: &ShadowView| v.status.report.state == Some(HostState::StagedUpdate);
    let view = bench.web.until("the image is staged", staged).await;
    assert_eq!((bench.web.stale(), view.status.report.armed), (1, Some(theirs)));
    bench.withdraw();
    let view = bench.web.until("it is idle", |v| acknowledged(v) && v.spec.state == HostState::Idle).await;
    assert_eq!(view.status.report.armed, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_ca_bundle_token_and_shadow() {
    let mut bench = Bench::without_agent().await;
    for name in ["trust/ca.crt", "token"] {
        std::fs::rename(bench.path(name), bench.path("away")).unwrap();
        bench.start_agent();
        bench.logged(&format!("cannot read the {}", if name == "token" { "token" } else { "CA bundle" })).await;
        std::fs::rename(bench.path("away"), bench.path(name)).unwrap();
    }
    bench.web.create();
    bench.web.until("it has reported", acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_token_is_used_for_next_report_and_stream() {
    let bench = Bench::new().await;
    for (signature, web_fault) in [("second", WebFault::UnknownLines), ("third", WebFault::None)] {
        let (reports, streams) = (bench.web.tokens_of("PUT").len(), bench.web.tokens_of("GET").len());
        let renewed = bench.renew_token(signature);
        bench.web.change_spec(|spec| spec.attempt += 1);
        bench.web.until("it has reported", acknowledged).await;
        let since = bench.web.tokens_of("PUT").split_off(reports);
        assert!(!since.is_empty() && since.iter().all(|token| *token == renewed), "{signature}: {since:?}");
        // The open stream was opened with the previous token; it ends with this.
        assert_eq!(bench.web.tokens_of("GET").len(), streams);
        bench.web.web_fault(web_fault);
        let next = async {
            while bench.web.tokens_of("GET").len() == streams {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, next).await.is_ok(), "no further stream: {}", bench.log());
        assert_eq!(bench.web.tokens_of("GET")[streams], renewed, "{signature}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_host_is_reported() {
    let bench = Bench::new().await;
    let boot = bench.boot();
    bench.host.power_off();
    let mut events = bench.host.subscribe();
    while !bench.host.log().iter().any(|e| e.boot_id == boot && e.kind == EventKind::Down) {
        events.recv().await.unwrap();
    }
    bench.stage(1);
    let view = bench
        .web
        .until("it is reported", |v| {
            find_condition(&v.status.conditions, HOST_REACHABLE).is_some_and(|c| c.status == ConditionStatus::False)
        })
        .await;
    assert_eq!(find_condition(&view.status.conditions, HOST_REACHABLE).unwrap().reason, "ConnectionRefused");
    assert!(bench.log().contains("does not answer"));
}
