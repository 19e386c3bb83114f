//! The agent beside a web API that does not answer, or is away for long.

use integ::host::{Command, Fault, Transport, Worker};

use super::*;
use crate::bench::web::WebFault;
use crate::{acknowledged, disk_armed, failed};

#[test]
fn host_that_may_be_armed_is_disarmed_while_no_report_is_answered() {
    simulate_agent(async |bench| {
        let view = until_permit_requested(bench).await;
        bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
        bench.issue_permit(&bench.claims(&view));
        until(bench, MINUTE, |view| failed(view).is_some()).await;
        assert!(disk_armed(bench));
        bench.web.web_fault(WebFault::ReportsHang);
        bench.withdraw();
        assert!(pass_until(MINUTE, || !disk_armed(bench)).await, "{:#?}", bench.web.view());
    });
}

#[test]
fn armed_host_is_disarmed_soon_after_the_withdrawal_while_the_report_about_it_is_not_answered() {
    simulate_agent(async |bench| {
        let view = until_permit_requested(bench).await;
        bench.web.web_fault(WebFault::ReportsHang);
        bench.issue_permit(&bench.claims(&view));
        assert!(pass_until(MINUTE / 2, || disk_armed(bench)).await, "{:#?}", bench.web.view());
        bench.withdraw();
        assert!(pass_until(MINUTE / 2, || !disk_armed(bench)).await, "{:#?}", bench.web.view());
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
            until(&bench, MINUTE, acknowledged).await;
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
