//! The agent and the replicas of the web API.

use std::collections::BTreeSet;

use integ::host::{Command, Fault, Worker};

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
