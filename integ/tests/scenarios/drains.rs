//! Drains and claims: order of evictions, deletions and their time, and the state of a node afterwards: as before.

use integ::bed::workload;
use integ::oracle::{ClusterState, Field};
use models::names::{
    AGENT_NAMESPACE, BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, SCALE_DOWN_ANNOTATION, SYSTEM_NAMESPACE,
};
use models::shadow::Step;
use serde_json::json;

use crate::interfere::{blocked_drain, poll, release_into_blocked_drain, unblock};
use crate::support::{EVENTS_OF_NODES, SHOP, is_updated, nodes, other, run, shadow_of, step_of, until_event};

fn balancer() -> Field {
    Field::Label(BALANCER_LABEL.to_owned())
}

fn annotation(name: &str) -> Field {
    Field::Annotation(name.to_owned())
}

/// The fields of a claim on a node, with their values.
fn claim_fields(world: &ClusterState, node: &str) -> Vec<Option<String>> {
    let found = &world.nodes[node].fields;
    let fields =
        [Field::Unschedulable, balancer(), annotation(SCALE_DOWN_ANNOTATION), annotation(DO_NOT_DISRUPT_ANNOTATION)];
    fields.iter().map(|field| found.get(field).cloned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn release_keeps_node_fields_set_by_user_and_removes_own_fields() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        let person = format!("{BALANCER_LABEL}=by-hand");
        ctx.kubectl(&["label", "node", "node-1", &person]).await?;
        let (same, other) = (format!("{DO_NOT_DISRUPT_ANNOTATION}=true"), format!("{SCALE_DOWN_ANNOTATION}=false"));
        ctx.kubectl(&["annotate", "node", "node-1", &same, &other]).await?;
        ctx.install().await?;
        ctx.policy(&json!({"loadBalancer": {"leaveBeforeDrain": "1s"}})).await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;

    let mut claimed = Vec::new();
    ending.history.replay(|_, _, world| {
        if world.nodes.contains_key("node-2") && step_of(world, "node-2") == Some(Step::LeavingLoadBalancer) {
            claimed = claim_fields(world, "node-2");
        }
    });
    let all = [Some("true"), Some("brupop"), Some("true"), Some("true")];
    assert_eq!(claimed, all.map(|value| value.map(str::to_owned)));
    let world = ending.world();
    assert_eq!(claim_fields(&world, "node-2"), vec![None; 4]);
    let kept = [None, Some("by-hand"), Some("false"), Some("true")];
    assert_eq!(claim_fields(&world, "node-1"), kept.map(|value| value.map(str::to_owned)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_is_released_after_managed_fields_reset() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        let reset = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
        ctx.kubectl(&["patch", "node", &target, "--type=json", "-p", reset]).await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(claim_fields(&ending.world(), &target), vec![None; 4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_uncordoned_by_user_during_drain_is_cordoned_again_with_event() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        let target = blocked_drain(ctx).await?;
        ctx.kubectl(&["uncordon", &target]).await?;
        let message = until_event(ctx, EVENTS_OF_NODES, "Uncordoned", &[]).await?;
        assert!(message.contains("1 of 3"), "{message}");
        let world = ctx
            .until("the node is cordoned again", |world| {
                world.nodes[&target].claimed() && world.nodes[&target].fields.contains_key(&Field::Unschedulable)
            })
            .await?;
        assert_eq!(step_of(&world, &target), Some(Step::Draining), "the same attempt goes on");
        unblock(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_deletion_needs_delete_permission() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        ctx.guarded_shop(4).await?;
        ctx.install().await?;
        ctx.policy(&json!({"drain": {"timeout": "8s", "atDeadline": "Force"}, "failurePolicy": {"backOff": "1s"}}))
            .await?;
        let target = release_into_blocked_drain(ctx).await?;
        let message = until_event(ctx, EVENTS_OF_NODES, "DrainForced", &[]).await?;
        assert!(message.contains("shop/web-"), "{message}");
        // The installation gives no right to delete pods.
        ctx.until("the drain fails and says what is missing", |world| {
            let record = shadow_of(world, &target).and_then(|s| s.status.controller.record.clone());
            record.and_then(|r| r.last).is_some_and(|last| {
                last.reason == "DrainTimedOut" && last.message.contains("deploy/manifests/force.yaml")
            })
        })
        .await?;
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
        ctx.kubectl(&["apply", "--server-side", "-f", manifest]).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let world = ending.world();
    assert!(world.nodes.values().all(|node| !node.claimed()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn critical_pods_are_evicted_after_all_other_pods() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        ctx.shop(4).await?;
        let mut dns = workload::deployment(SHOP, "dns", 2);
        dns["spec"]["template"]["spec"]["priorityClassName"] = json!("system-cluster-critical");
        workload::apply(&ctx.bed.client, vec![dns]).await?;
        ctx.until("the critical pods are Ready, one on each node", |world| {
            let ready = world.pods.values().filter(|pod| pod.name.starts_with("dns-") && pod.ready);
            ready.filter_map(|pod| pod.node.clone()).collect::<std::collections::BTreeSet<_>>().len() == 2
        })
        .await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let mut left_first = Vec::new();
    ending.history.replay(|_, _, world| {
        for dns in world.pods.values().filter(|pod| pod.name.starts_with("dns-") && pod.terminating) {
            let Some(node) = dns.node.as_deref().filter(|node| step_of(world, node) == Some(Step::Draining)) else {
                continue;
            };
            let others = world.pods.values().filter(|pod| {
                pod.namespace == SHOP
                    && pod.node.as_deref() == Some(node)
                    && pod.name.starts_with("web-")
                    && !pod.finished
            });
            left_first.extend(others.map(|pod| format!("{} was there when {} was told to go", pod.name, dns.name)));
        }
    });
    assert_eq!(left_first, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_continues_after_api_server_restart() -> anyhow::Result<()> {
    let mut options = nodes(2);
    // The recorder reads the changes during the outage from etcd's history.
    options.control_plane.watch_cache = false;
    let ending = run(options, async |ctx| {
        let target = blocked_drain(ctx).await?;
        ctx.bed.control_plane.restart_apiserver().await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        let attempts = ctx.bed.recorder.so_far()?.attempts();
        let of_target = attempts.iter().filter(|attempt| attempt.node == target).count();
        assert_eq!(of_target, 1, "the same attempt went on: {attempts:#?}");
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

/// Deletes everything but the shadows: as when the workloads are deleted by mistake, and restored by the next apply.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: the controller's tests have its half"]
async fn drain_continues_after_operator_is_deleted_and_reinstalled() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        let target = blocked_drain(ctx).await?;
        for namespace in [SYSTEM_NAMESPACE, AGENT_NAMESPACE] {
            ctx.kubectl(&["-n", namespace, "delete", "deployments,daemonsets", "--all"]).await?;
        }
        poll("no part of it is left", async || Ok(ctx.bed.processes().is_empty().then_some(()))).await?;
        let world = ctx.bed.recorder.now()?;
        assert!(world.nodes[&target].claimed(), "there was no operator to release the node");
        ctx.bed.install().await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_completes_when_only_other_node_loses_power() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.deploy.controller_replicas = 2;
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |ctx| {
        let target = blocked_drain(ctx).await?;
        let other = other(&target);
        ctx.bed.member(other)?.host.power_off();
        unblock(ctx).await?;
        ctx.until("the node is updated", |world| is_updated(world, &target)).await?;
        ctx.bed.member(other)?.host.power_on();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}
