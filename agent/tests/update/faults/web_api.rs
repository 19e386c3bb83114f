//! The agent and the replicas of the web API.

use std::collections::BTreeSet;

use super::*;
use crate::bench::web::WebFault;

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
