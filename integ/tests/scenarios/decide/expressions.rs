//! Expressions for which Prometheus has to return nothing, before an update and after it.

use integ::bed::TestClusterOptions;
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::reason::FailureReason;
use models::shadow::{Step, UPDATED};
use serde_json::{Value, json};

use super::prometheus::Prometheus;
use super::support::{blocked, is_on, is_released, waiting};
use crate::support::{NEW, OLD, nodes, run, shadow_of, step_of};

/// A test cluster whose policy queries a server each second.
fn options_with_expressions(count: usize, prometheus: &Prometheus, health: &Value) -> TestClusterOptions {
    let mut options = nodes(count);
    options.policy["prometheus"] = json!({"url": prometheus.url(), "interval": "1s", "timeout": "5s"});
    options.policy["health"] = health.clone();
    options
}

/// Reason and message of the failure of a node's last attempt.
fn last_failure(world: &ClusterState, node: &str) -> Option<(String, String)> {
    let last = shadow_of(world, node)?.status.controller.record.as_ref()?.last.clone()?;
    Some((last.reason, last.message))
}

/// The failures that a node's record charges to versions.
fn charged(world: &ClusterState, node: &str) -> Vec<FailureReason> {
    let record = shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.as_ref());
    record.iter().flat_map(|record| &record.version_failures).map(|failure| failure.reason).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn firing_or_failing_expression_blocks_updates() -> anyhow::Result<()> {
    const QUERY: &str = r#"job:errors:burnrate1h{job="shop"} > 14"#;
    let mut prometheus = Prometheus::down().await?;
    let options = options_with_expressions(
        1,
        &prometheus,
        &json!({
            "before": {"expressions": [{"name": "error-budget", "query": QUERY}]},
            "after": {"soak": "1s"},
        }),
    );
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        // The same for all nodes: it is recorded once, in the operator's status.
        let condition = ctx.until_operator("Blocked", ConditionStatus::True).await?;
        assert_eq!(condition.reason, "ExpressionFails");
        let message = condition.message;
        assert!(message.contains("error-budget") && message.contains(&prometheus.url()), "{message}");

        prometheus.fire(QUERY, json!({"__name__": "job:errors:burnrate1h", "job": "shop"}));
        prometheus.start_serving().await?;
        let world = ctx
            .until("the node waits since the expression fires", |world| {
                let blocked = world.operator_condition("Blocked");
                blocked.is_some_and(|c| c.reason == "ExpressionFires") && waiting(world, "ExpressionFires") == 1
            })
            .await?;
        assert!(blocked(&world, "node-1").is_none());
        let message = &world.operator_condition("Blocked").unwrap().message;
        let series = r#"job:errors:burnrate1h{job="shop"} 1"#;
        assert!(message.contains("error-budget") && message.contains(series), "{message}");
        // It is staged, and the firing expression keeps it in that state.
        ctx.renewals(2).await?;
        let history = ctx.bed.recorder.so_far()?;
        assert_eq!((step_of(&history.end(), "node-1"), history.max_out_of_service()), (Some(Step::Staged), 0));
        assert_eq!(ctx.bed.member("node-1")?.host.snapshot().running_version, OLD);

        prometheus.stop_firing(QUERY);
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.results("node-1"), [(NEW, UPDATED.to_owned())]);
    assert!(blocked(&ending.world(), "node-1").is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn firing_expression_is_version_failure_and_unreachable_prometheus_is_node_failure() -> anyhow::Result<()> {
    const QUERY: &str = r#"ALERTS{alertstate="firing",node="$node"}"#;
    let mut prometheus = Prometheus::down().await?;
    let options = options_with_expressions(
        3,
        &prometheus,
        &json!({
            "after": {"soak": "1s", "timeout": "4s", "expressions": [{"name": "node-alerts", "query": QUERY}]},
        }),
    );
    let names = ["node-1", "node-2", "node-3"];
    let (mut silent, mut fired) = (String::new(), String::new());
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        let world = ctx
            .until("the first node is given up without a word from Prometheus", |world| {
                names.iter().any(|node| last_failure(world, node).is_some())
            })
            .await?;
        silent = names.into_iter().find(|node| last_failure(&world, node).is_some()).unwrap().to_owned();
        let (reason, message) = last_failure(&world, &silent).unwrap();
        assert!(reason == "HealthUnknown" && message.contains("node-alerts"), "{reason}: {message}");

        for node in names {
            let labels =
                json!({"__name__": "ALERTS", "alertname": "KubeletDown", "alertstate": "firing", "node": node});
            prometheus.fire(&QUERY.replace("$node", node), labels);
        }
        prometheus.start_serving().await?;
        let frozen = ctx.until_operator("Frozen", ConditionStatus::True).await?;
        assert!(frozen.message.contains("1.20.5"), "{frozen:?}");
        let world = ctx
            .until("all are released, and no node takes the version any more", |world| {
                names.iter().all(|node| is_released(world, node)) && waiting(world, "Quarantined") == 1
            })
            .await?;
        let (mut on_new, on_old): (Vec<_>, Vec<_>) = names.into_iter().partition(|node| is_on(&world, node, &NEW));
        on_new.retain(|node| *node != silent);
        assert_eq!((on_new.len(), on_old.len()), (1, 1), "the first is done, the second failed, the third never began");
        fired = on_new[0].to_owned();
        let (reason, message) = last_failure(&world, &fired).unwrap();
        assert_eq!(reason, "SoakFailed");
        let series = format!(r#"ALERTS{{alertname="KubeletDown",alertstate="firing",node="{fired}"}}"#);
        assert!(message.contains("node-alerts") && message.contains(&series), "{message}");
        assert!(
            !prometheus.was_queried(&QUERY.replace("$node", on_old[0])),
            "queried for a node that is not under test"
        );
        Ok(())
    })
    .await?;
    let world = ending.world();
    assert_eq!(charged(&world, &silent), []);
    assert_eq!(charged(&world, &fired), [FailureReason::SoakFailed]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}
