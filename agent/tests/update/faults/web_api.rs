//! The agent beside a web API that ends streams, does not answer, or is away for long.

use std::collections::BTreeSet;

use integ::host::{Command, Fault, Transport, Worker};

use super::constant_faults::until_permit_requested;
use super::*;
use crate::bench::web::WebFault;
use crate::disk_armed;

#[test]
fn stream_after_one_that_has_ended_begins_on_another_connection() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        bench.web.web_fault(WebFault::PeriodicStreamEnds);
        let agent = InProcessAgent::start(&bench);
        let connections = || bench.web.stream_connections();
        assert!(pass_until(MINUTE, || connections().len() >= 5).await, "{:?}", connections());
        let distinct: BTreeSet<u64> = connections().into_iter().collect();
        assert_eq!(distinct.len(), connections().len(), "{:?}", connections());
        assert_eq!(bench.web.resumed_sessions(), 0, "each connection verifies the certificate");
        agent.end().await.unwrap();
    });
}

#[test]
fn host_that_may_be_armed_is_disarmed_while_no_report_is_answered() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
        bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
        bench.issue_permit(&bench.claims(&view));
        let failed = || bench.web.view().status.report.failure.is_some();
        assert!(pass_until(MINUTE, failed).await, "{:#?}", bench.web.view());
        assert!(disk_armed(&bench));
        bench.web.web_fault(WebFault::ReportsHang);
        bench.withdraw();
        assert!(pass_until(MINUTE, || !disk_armed(&bench)).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}

#[test]
fn armed_host_is_disarmed_soon_after_the_withdrawal_while_the_report_about_it_is_not_answered() {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        let view = until_permit_requested(&bench).await;
        bench.web.web_fault(WebFault::ReportsHang);
        bench.issue_permit(&bench.claims(&view));
        assert!(pass_until(MINUTE / 2, || disk_armed(&bench)).await, "{:#?}", bench.web.view());
        bench.withdraw();
        assert!(pass_until(MINUTE / 2, || !disk_armed(&bench)).await, "{:#?}", bench.web.view());
        agent.end().await.unwrap();
    });
}

#[test]
fn failure_that_lasts_is_no_warning_at_each_try() {
    type Failure = fn(&Bench);
    let cases: [(&str, Failure); 3] = [
        ("no stream is opened", |bench| bench.web.web_fault(WebFault::Rejects("503 Service Unavailable"))),
        ("no report is stored", |bench| bench.web.refuse(Some(|_| true))),
        ("the host does not answer", |bench| {
            bench.host.script(Fault::request("*", "/", Transport::Status(500, "no".into())).times(u32::MAX));
        }),
    ];
    for (what, fault) in cases {
        simulate(async |counts| {
            let bench = Bench::without_agent().await;
            bench.web.create();
            let agent = InProcessAgent::start(&bench);
            let reported = || bench.web.view().status.report.observed_generation == Some(1);
            assert!(pass_until(MINUTE, reported).await, "{what}");
            fault(&bench);
            bench.stage(1);
            let before = counts.warnings();
            pass(9 * MINUTE).await;
            let warnings = counts.warnings() - before;
            assert!((1..=3).contains(&warnings), "{what}: {warnings} warnings");
            agent.end().await.unwrap();
        });
    }
}
