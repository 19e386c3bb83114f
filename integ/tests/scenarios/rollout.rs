//! Updates without obstacles.

use integ::bed::TestClusterOptions;
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION};
use models::shadow::Step;
use serde_json::json;

use crate::support::{NEW, OLD, SHOP, is_updated, nodes, run, shadow_of, status};

/// The label that puts a node under the operator, as kubectl takes it.
fn label() -> String {
    format!("{INTERFACE_LABEL}={INTERFACE_VERSION}")
}

/// The reports of an agent in one update.
const AGENT_REPORTS: &str = include_str!("../../testdata/agent-reports.txt");

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_update_one_at_a_time_within_pdb() -> anyhow::Result<()> {
    const PODS: usize = 6;
    let ending = run(TestClusterOptions { nodes: 3, ..TestClusterOptions::default() }, async |ctx| {
        ctx.shop(PODS).await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        ctx.shop_is_ready(PODS).await
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
    for name in ["node-1", "node-2", "node-3"] {
        let shadow = shadow_of(&world, name).unwrap();
        assert_eq!(shadow.status.agent.current_version, Some(NEW));
        assert_eq!(shadow.status.agent.failure, None);
        let steps: Vec<_> = ending.history.transitions(name).into_iter().filter_map(|(_, step)| step).collect();
        let disruptive: Vec<_> = steps.iter().filter(|s| !matches!(s, Step::Staging | Step::Staged)).copied().collect();
        assert!(disruptive.starts_with(&[Step::Draining, Step::Rebooting]), "{name}: {steps:?}");
        assert!(disruptive.ends_with(&[Step::Verifying]), "{name}: {steps:?}");
        // The script of nodes, which replaces agents in the tests of the controller, is compared with the same recording.
        assert_eq!(ending.history.agent_reports(name).join("\n") + "\n", AGENT_REPORTS, "{name}");
    }
    assert_eq!(world.pods.values().filter(|p| p.namespace == SHOP && p.ready).count(), PODS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_labelled_node_gets_shadow_and_update() -> anyhow::Result<()> {
    let ending = run(TestClusterOptions { labelled: false, ..nodes(2) }, async |ctx| {
        ctx.bed.install().await?;
        ctx.release();
        ctx.kubectl(&["-n", "brupop-system", "rollout", "status", "deployment", "--timeout=240s"]).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert!(world.shadows.is_empty(), "no node is under the operator: {:?}", world.shadows);
        ctx.kubectl(&["label", "node", "node-1", &label()]).await?;
        ctx.until("node-1 is updated, and its slot free", |world| {
            is_updated(world, "node-1") && status(world).slots.is_empty()
        })
        .await?;
        Ok(())
    })
    .await?;

    let world = ending.world();
    assert!(shadow_of(&world, "node-2").is_none());
    assert_eq!(ending.history.attempts().len(), 1);
    assert_eq!(ending.verdict.stats.reboots, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_its_shadow() -> anyhow::Result<()> {
    let mut options = TestClusterOptions { labelled: false, ..nodes(2) };
    options.policy["maxUnavailable"] = json!(1);
    let ending = run(options, async |ctx| {
        ctx.bed.install().await?;
        ctx.release();
        // The certificates exist once one agent has reported; then the controller is removed, and no shadows are
        // created.
        ctx.kubectl(&["label", "node", "node-1", &label()]).await?;
        ctx.until("node-1 reports", |world| {
            shadow_of(world, "node-1").is_some_and(|s| s.status.agent.boot_id.is_some())
        })
        .await?;
        ctx.kubectl(&["-n", "brupop-system", "scale", "deployment/brupop-controller", "--replicas=0"]).await?;
        ctx.until("no controller runs", |world| !world.pods.values().any(|p| p.name.starts_with("brupop-controller")))
            .await?;
        ctx.kubectl(&["label", "node", "node-2", &label()]).await?;
        ctx.until("the agent of node-2 is Ready", |world| {
            world
                .pods
                .values()
                .any(|p| p.name.starts_with("brupop-agent") && p.node.as_deref() == Some("node-2") && p.ready)
        })
        .await?;
        assert!(shadow_of(&ctx.bed.recorder.so_far()?.end(), "node-2").is_none());
        ctx.kubectl(&["-n", "brupop-system", "scale", "deployment/brupop-controller", "--replicas=1"]).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.history.attempts().iter().any(|a| a.node == "node-2" && a.updated()));
    assert_eq!(ending.world().nodes.len(), 2);
    Ok(())
}
