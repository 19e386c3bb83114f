//! Updates without obstacles.

use integ::bed::TestClusterOptions;
use models::log::LogFormat;
use models::shadow::{HostState, Step};

use crate::logs::ensure_each_decision_is_logged_once;
use crate::support::{NEW, OLD, SHOP, run, shadow_of};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// The reports of an agent in one update.
const AGENT_REPORTS: &str = include_str!("../../testdata/agent-reports.txt");

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_update_one_at_a_time_within_pdb_and_their_log_has_each_decision_once() -> anyhow::Result<()> {
    const PODS: usize = 6;
    let deploy = deploy::Options { log_format: Some(LogFormat::Json), ..deploy::Options::default() };
    let options = TestClusterOptions { nodes: NODES.len(), deploy, ..TestClusterOptions::default() };
    let ending = run(options, async |ctx| {
        ctx.shop(PODS).await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        ctx.until("every agent has reported that it is idle", |world| {
            world.shadows.values().all(|shadow| shadow.status.agent.state == Some(HostState::Idle))
        })
        .await?;
        ctx.shop_is_ready(PODS).await?;
        ensure_each_decision_is_logged_once(ctx, &NODES)
    })
    .await?;

    let attempts = ending.history.attempts();
    assert_eq!(attempts.len(), 3, "one attempt per node: {attempts:#?}");
    for attempt in &attempts {
        assert!(attempt.updated(), "{attempt:?}");
        assert_eq!((attempt.from.as_ref(), &attempt.to), (Some(&OLD), &NEW));
    }
    assert_eq!(ending.history.shortfalls(SHOP), []);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (3, 3, 3));
    assert_eq!(stats.out_of_service, 1);
    assert!(stats.evictions >= PODS, "each pod of the workload moved at least once: {stats:?}");
    let world = ending.world();
    for name in NODES {
        let shadow = shadow_of(&world, name).unwrap();
        assert_eq!(shadow.status.agent.current_version, Some(NEW));
        assert_eq!(shadow.status.agent.failure, None);
        let steps: Vec<_> = ending.history.transitions(name).into_iter().filter_map(|(_, step)| step).collect();
        let disruptive: Vec<_> = steps.iter().filter(|s| !matches!(s, Step::Staging | Step::Staged)).copied().collect();
        assert!(disruptive.starts_with(&[Step::Draining, Step::Rebooting]), "{name}: {steps:?}");
        assert!(disruptive.ends_with(&[Step::Verifying]), "{name}: {steps:?}");
        // The script of nodes, which replaces agents in the tests of the controller, is compared with the same recording. An
        // agent that starts late after the reboot never sees that order: the Node's new boot is known before.
        let reports = ending.history.agent_reports(name);
        let seen = |line: &&str| !line.starts_with("RebootedIntoUpdate") || reports.iter().any(|report| report == line);
        assert_eq!(reports, AGENT_REPORTS.lines().filter(seen).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(world.pods.values().filter(|p| p.namespace == SHOP && p.ready).count(), PODS);
    Ok(())
}
