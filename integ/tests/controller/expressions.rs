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

use crate::bed::{ControllerOptions, Held, NEW, OLD, ScriptedCluster};
use crate::prometheus::Prometheus;

crate::cases![
    firing_or_failing_expression_blocks_updates,
    credentials_of_secret_reach_prometheus_and_are_shown_nowhere,
    firing_expression_is_version_failure_and_unreachable_prometheus_is_node_failure
];

fn policy(prometheus: &Prometheus, interval: &str, health: &Value) -> Value {
    json!({"prometheus": {"url": prometheus.url(), "interval": interval, "timeout": "5s"}, "health": health})
}

/// Reason and message of the failure of a node's last attempt.
fn last_failure(world: &ClusterState, node: &str) -> Option<(String, String)> {
    world.record(node).last.map(|last| (last.reason, last.message))
}

fn charged(world: &ClusterState, node: &str) -> Vec<FailureReason> {
    world.record(node).version_failures.iter().map(|failure| failure.reason).collect()
}

async fn firing_or_failing_expression_blocks_updates(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const QUERY: &str = r#"job:errors:burnrate1h{job="shop"} > 14"#;
    let mut prometheus = Prometheus::down()?;
    let health = json!({"before": {"expressions": [{"name": "error-budget", "query": QUERY}]}});
    cluster.start(1, policy(&prometheus, "1s", &health)).await?;
    cluster.fleet.release(NEW);
    // The same for all nodes: it is recorded once, in the operator's status.
    let blocked_for = |reason: &'static str| {
        move |world: &ClusterState| {
            let blocked = world.operator_condition(BLOCKED);
            blocked.is_some_and(|c| c.reason == reason && c.status == ConditionStatus::True)
                && world.waiting(reason) == 1
        }
    };
    let world = cluster.until("Prometheus does not answer", blocked_for("ExpressionFails")).await?;
    let message = &world.operator_condition(BLOCKED).context("just seen")?.message;
    assert!(message.contains("error-budget") && message.contains(&prometheus.url()), "{message}");

    prometheus.fire(QUERY, json!({"__name__": "job:errors:burnrate1h", "job": "shop"}));
    prometheus.start_serving()?;
    let world = cluster.until("the expression fires", blocked_for("ExpressionFires")).await?;
    let message = &world.operator_condition(BLOCKED).context("just seen")?.message;
    let series = r#"job:errors:burnrate1h{job="shop"} 1"#;
    assert!(message.contains("error-budget") && message.contains(series), "{message}");
    let world = cluster.planned().await?;
    assert!(world.condition("node-1", BLOCKED).is_none_or(|c| c.status != ConditionStatus::True));
    assert_eq!(world.step("node-1"), Some(Step::Staged), "the firing expression keeps it in that state");
    assert_eq!(cluster.recorder.so_far()?.max_out_of_service(), 0);

    prometheus.stop_firing(QUERY);
    cluster.updated().await?;
    assert_eq!(cluster.recorder.so_far()?.results("node-1"), [(NEW, UPDATED.to_owned())]);
    Ok(())
}

async fn credentials_of_secret_reach_prometheus_and_are_shown_nowhere(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const TOKEN: &str = "token-5d1c";
    let mut prometheus = Prometheus::down()?;
    prometheus.require(&format!("Bearer {TOKEN}"));
    prometheus.start_serving()?;
    let secret = tempfile::tempdir()?;
    cluster.add_node("node-1", &[]).await?;
    let health = json!({"before": {"expressions": [{"name": "errors", "query": "errors > 0"}]}});
    cluster.create_policy(policy(&prometheus, "1s", &health)).await?;
    let arguments = vec![format!("--prometheus-credentials-dir={}", secret.path().display())];
    cluster.start_controller(&ControllerOptions { arguments, ..ControllerOptions::default() })?;
    cluster.reported().await?;
    cluster.fleet.release(NEW);
    let world = cluster.until("the query is refused", |world| world.waiting("ExpressionFails") == 1).await?;
    let message = &world.operator_condition(BLOCKED).context("all nodes wait")?.message;
    assert!(message.contains("answered 401") && message.contains("the Secret brupop-prometheus"), "{message}");

    std::fs::write(secret.path().join("token"), TOKEN)?;
    cluster.updated().await?;
    let operator = serde_json::to_string(&cluster.operators().get(OPERATOR_NAME).await?)?;
    assert!(!operator.contains(TOKEN) && !cluster.controller()?.log().contains(TOKEN));
    Ok(())
}

async fn firing_expression_is_version_failure_and_unreachable_prometheus_is_node_failure(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const QUERY: &str = r#"ALERTS{alertstate="firing",node="$node"}"#;
    const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
    const TIMEOUT: Duration = Duration::from_mins(15);
    let mut prometheus = Prometheus::down()?;
    let expressions = json!([{"name": "node-alerts", "query": QUERY}]);
    let health = json!({"after": {"soak": "1s", "timeout": "15m", "expressions": expressions}});
    // An answer is used for twice the interval.
    cluster.start(3, policy(&prometheus, "1h", &health)).await?;
    cluster.fleet.release(NEW);
    let awaited = |world: &ClusterState| world.waiting("ExpressionsPending") == 1;
    cluster.until("answers from before the drain are awaited", awaited).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let world = cluster.until("Prometheus does not answer", |world| world.waiting("ExpressionFails") == 1).await?;
    // The query at the begin of the verification has failed, and the next one is an hour away: its answer stays as it is.
    let verified = NODES.into_iter().find(|node| world.step(node) == Some(Step::Verifying));
    let others = || NODES.into_iter().filter(|node| Some(*node) != verified);
    others().for_each(|node| cluster.fleet.script(node, |node| node.held = Some(Held::Activation)));
    // Before the drain of the next node nothing fires.
    prometheus.start_serving()?;
    cluster.pass(TIMEOUT).await?;
    let failed = |world: &ClusterState| NODES.into_iter().find(|node| last_failure(world, node).is_some());
    let world = cluster.until("an attempt has failed", |world| failed(world).is_some()).await?;
    let silent = failed(&world).context("just seen")?;
    let (reason, message) = last_failure(&world, silent).context("just seen")?;
    assert!(reason == "HealthUnknown" && message.contains("node-alerts"), "{reason}: {message}");
    let drained = |world: &ClusterState| others().find(|node| world.step(node) == Some(Step::Rebooting));
    let world = cluster.until("the next node is drained", |world| drained(world).is_some()).await?;
    let second = drained(&world).context("just seen")?;
    // Not for the third, which is like it.
    for node in [silent, second] {
        let labels = json!({"__name__": "ALERTS", "alertname": "KubeletDown", "alertstate": "firing", "node": node});
        prometheus.fire(&QUERY.replace("$node", node), labels);
    }
    others().for_each(|node| cluster.fleet.script(node, |node| node.held = None));
    cluster.until("the expression fires", |world| world.waiting("ExpressionFires") == 1).await?;
    let third = others().find(|node| *node != second).context("one is left")?;
    let of_third = QUERY.replace("$node", third);
    assert!(!prometheus.was_queried(&of_third), "queried for a node that is not under test");
    cluster.pass(TIMEOUT).await?;
    let world = cluster
        .until("all are released, and no node takes the version any more", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && NODES.iter().all(|node| world.is_released(node))
                && world.waiting("Quarantined") == 1
        })
        .await?;
    let message = &world.operator_condition(FROZEN).context("just seen")?.message;
    assert!(message.contains("1.20.5"), "{message}");
    let runs = |node: &str| world.shadow(node).and_then(|shadow| shadow.status.agent.current_version.clone());
    let (on_new, on_old): (Vec<_>, Vec<_>) = NODES.into_iter().partition(|node| runs(node) == Some(NEW));
    let fired = on_new.into_iter().find(|node| *node != silent).context("one has failed")?;
    assert_eq!(on_old.len(), 1, "the third never began");
    assert_eq!(runs(on_old[0]), Some(OLD));
    let (reason, message) = last_failure(&world, fired).context("it has failed")?;
    let series = format!(r#"ALERTS{{alertname="KubeletDown",alertstate="firing",node="{fired}"}}"#);
    assert!(reason == "SoakFailed" && message.contains("node-alerts") && message.contains(&series), "{message}");
    assert!(prometheus.was_queried(&of_third), "it is compared before the expression counts");
    assert_eq!((charged(&world, silent), charged(&world, fired)), (vec![], vec![FailureReason::SoakFailed]));
    assert_eq!(cluster.verdict().await?.stats.reboots, 2);
    Ok(())
}
