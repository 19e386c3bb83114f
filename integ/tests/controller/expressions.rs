//! Expressions for which Prometheus has to return nothing, before an update and after it.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::names::OPERATOR_NAME;
use models::operator::FROZEN;
use models::reason::FailureReason;
use models::shadow::{BLOCKED, Step, UPDATED};
use serde_json::{Value, json};

use crate::bed::{ControllerOptions, Held, NEW, ScriptedCluster, other};
use crate::prometheus::Prometheus;

crate::cases![
    firing_or_failing_expression_blocks_updates_and_its_credentials_are_shown_nowhere,
    expression_that_fires_after_the_update_of_its_node_counts_against_the_version,
];

fn policy(prometheus: &Prometheus, interval: &str, health: &Value) -> Value {
    json!({"prometheus": {"url": prometheus.url(), "interval": interval, "timeout": "5s"}, "health": health})
}

/// Waits until the operator's status says why no node is updated. The same for all nodes, it is recorded once.
async fn until_blocked(cluster: &ScriptedCluster, reason: &str, words: &[&str]) -> anyhow::Result<()> {
    let blocked = |world: &ClusterState| {
        let blocked = world.operator_condition(BLOCKED).filter(|c| c.status == ConditionStatus::True);
        blocked.is_some_and(|c| c.reason == reason && words.iter().all(|word| c.message.contains(word)))
            && world.waiting(reason) == 1
    };
    cluster.until(&format!("all nodes wait for {reason}: {words:?}"), blocked).await.map(drop)
}

async fn firing_or_failing_expression_blocks_updates_and_its_credentials_are_shown_nowhere(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const QUERY: &str = r#"job:errors:burnrate1h{job="shop"} > 14"#;
    const TOKEN: &str = "token-5d1c";
    let mut prometheus = Prometheus::down()?;
    prometheus.require(&format!("Bearer {TOKEN}"));
    let secret = tempfile::tempdir()?;
    let health = json!({"before": {"expressions": [{"name": "error-budget", "query": QUERY}]}});
    let arguments = vec![format!("--prometheus-credentials-dir={}", secret.path().display())];
    let options = ControllerOptions { arguments, ..ControllerOptions::default() };
    cluster.start_with(1, policy(&prometheus, "1s", &health), &options).await?;
    cluster.fleet.release(NEW);
    until_blocked(cluster, "ExpressionFails", &["error-budget", &prometheus.url()]).await?;

    prometheus.fire(QUERY, json!({"__name__": "job:errors:burnrate1h", "job": "shop"}));
    prometheus.start_serving()?;
    until_blocked(cluster, "ExpressionFails", &["answered 401", "the Secret brupop-prometheus"]).await?;

    std::fs::write(secret.path().join("token"), TOKEN)?;
    let series = r#"job:errors:burnrate1h{job="shop"} 1"#;
    until_blocked(cluster, "ExpressionFires", &["error-budget", series]).await?;
    let world = cluster.planned().await?;
    assert!(world.condition("node-1", BLOCKED).is_none_or(|c| c.status != ConditionStatus::True));
    assert_eq!(world.step("node-1"), Some(Step::Staged), "the firing expression keeps it in that state");
    assert_eq!(cluster.recorder.so_far()?.max_out_of_service(), 0);

    prometheus.stop_firing(QUERY);
    cluster.updated().await?;
    assert_eq!(cluster.recorder.so_far()?.results("node-1"), [(NEW, UPDATED.to_owned())]);
    let operator = serde_json::to_string(&cluster.operators().get(OPERATOR_NAME).await?)?;
    assert!(!operator.contains(TOKEN) && !cluster.controller()?.log().contains(TOKEN));
    Ok(())
}

async fn expression_that_fires_after_the_update_of_its_node_counts_against_the_version(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const QUERY: &str = r#"ALERTS{alertstate="firing",node="$node"}"#;
    const NODES: [&str; 2] = ["node-1", "node-2"];
    let mut prometheus = Prometheus::down()?;
    prometheus.start_serving()?;
    let expressions = json!([{"name": "node-alerts", "query": QUERY}]);
    let health = json!({"after": {"soak": "1s", "timeout": "15m", "expressions": expressions}});
    // An answer is used for twice the interval.
    cluster.start(2, policy(&prometheus, "1h", &health)).await?;
    let hold = |held| NODES.iter().for_each(|node| cluster.fleet.script(node, |node| node.held = held));
    hold(Some(Held::Activation));
    cluster.fleet.release(NEW);
    let drained = |world: &ClusterState| NODES.into_iter().find(|node| world.step(node) == Some(Step::Rebooting));
    let world = cluster.until("a node is drained", |world| drained(world).is_some()).await?;
    let node = drained(&world).context("just seen")?;
    // Before the drain nothing has fired, and nothing fires for the other node, which is like it.
    let labels = json!({"__name__": "ALERTS", "alertname": "KubeletDown", "alertstate": "firing", "node": node});
    prometheus.fire(&QUERY.replace("$node", node), labels);
    hold(None);
    cluster.until("the expression fires", |world| world.waiting("ExpressionFires") == 1).await?;
    let of_other = QUERY.replace("$node", other(node));
    assert!(!prometheus.was_queried(&of_other), "queried for a node that is not under test");
    cluster.pass(Duration::from_mins(15)).await?;
    let world = cluster
        .until("the node is released, and the other one does not take the version", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && NODES.iter().all(|node| world.is_released(node))
                && world.waiting("Quarantined") == 1
        })
        .await?;
    let record = world.record(node);
    let last = record.last.context("it has failed")?;
    let series = format!(r#"ALERTS{{alertname="KubeletDown",alertstate="firing",node="{node}"}}"#);
    assert_eq!(last.reason, "SoakFailed", "{}", last.message);
    assert!(last.message.contains("node-alerts") && last.message.contains(&series), "{}", last.message);
    assert!(prometheus.was_queried(&of_other), "it is compared before the expression counts");
    let charged: Vec<_> = record.version_failures.iter().map(|failure| failure.reason).collect();
    assert_eq!(charged, [FailureReason::SoakFailed]);
    assert_eq!(cluster.verdict().await?.stats.reboots, 1);
    Ok(())
}
