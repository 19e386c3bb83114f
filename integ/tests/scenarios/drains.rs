//! Drains and claims: order of evictions, deletions and their time, and the state of a node afterwards: as before.

use integ::bed::workload;
use integ::oracle::{Field, World};
use models::names::{
    AGENT_NAMESPACE, BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, SCALE_DOWN_ANNOTATION, SYSTEM_NAMESPACE,
};
use models::shadow::Step;
use serde_json::json;

use crate::interfere::{blocked_drain, poll, release_into_a_blocked_drain, unblock};
use crate::support::{EVENTS_OF_NODES, SHOP, is_updated, nodes, other, run, shadow_of, step_of, until_event};

fn balancer() -> Field {
    Field::Label(BALANCER_LABEL.to_owned())
}

fn annotation(name: &str) -> Field {
    Field::Annotation(name.to_owned())
}

/// The fields of a claim on a node, with their values.
fn parts(world: &World, node: &str) -> Vec<Option<String>> {
    let fields = &world.nodes[node].fields;
    let parts =
        [Field::Unschedulable, balancer(), annotation(SCALE_DOWN_ANNOTATION), annotation(DO_NOT_DISRUPT_ANNOTATION)];
    parts.iter().map(|part| fields.get(part).cloned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_set_of_a_claim_stays_as_it_was_and_the_rest_is_taken_back() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        let person = format!("{BALANCER_LABEL}=by-hand");
        scene.kubectl(&["label", "node", "node-1", &person]).await?;
        let (same, other) = (format!("{DO_NOT_DISRUPT_ANNOTATION}=true"), format!("{SCALE_DOWN_ANNOTATION}=false"));
        scene.kubectl(&["annotate", "node", "node-1", &same, &other]).await?;
        scene.install().await?;
        scene.policy(&json!({"loadBalancer": {"leaveBeforeDrain": "1s"}})).await?;
        scene.release();
        scene.updated().await?;
        Ok(())
    })
    .await?;

    let mut claimed = Vec::new();
    ending.history.replay(|_, _, world| {
        if world.nodes.contains_key("node-2") && step_of(world, "node-2") == Some(Step::LeavingBalancer) {
            claimed = parts(world, "node-2");
        }
    });
    let all = [Some("true"), Some("brupop"), Some("true"), Some("true")];
    assert_eq!(claimed, all.map(|value| value.map(str::to_owned)));
    let world = ending.world();
    assert_eq!(parts(&world, "node-2"), vec![None; 4]);
    let kept = [None, Some("by-hand"), Some("false"), Some("true")];
    assert_eq!(parts(&world, "node-1"), kept.map(|value| value.map(str::to_owned)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_managed_fields_were_reset_is_taken_back_all_the_same() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let reset = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]"#;
        scene.kubectl(&["patch", "node", &target, "--type=json", "-p", reset]).await?;
        unblock(scene).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(parts(&ending.world(), &target), vec![None; 4]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_a_person_uncordons_in_mid_drain_is_cordoned_again_and_it_is_told() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        let target = blocked_drain(scene).await?;
        scene.kubectl(&["uncordon", &target]).await?;
        let said = until_event(scene, EVENTS_OF_NODES, "Uncordoned", &[]).await?;
        assert!(said.contains("1 of 3"), "{said}");
        let world = scene
            .until("the node is cordoned again", |world| {
                world.nodes[&target].claimed() && world.nodes[&target].fields.contains_key(&Field::Unschedulable)
            })
            .await?;
        assert_eq!(step_of(&world, &target), Some(Step::Draining), "the same attempt goes on");
        unblock(scene).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_past_their_budget_are_deleted_at_the_deadline_only_by_policy_and_only_with_the_right_to()
-> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        scene.guarded_shop(4).await?;
        scene.install().await?;
        scene
            .policy(&json!({"drain": {"timeout": "8s", "atDeadline": "Force"}, "failurePolicy": {"backOff": "1s"}}))
            .await?;
        let target = release_into_a_blocked_drain(scene).await?;
        let said = until_event(scene, EVENTS_OF_NODES, "DrainForced", &[]).await?;
        assert!(said.contains("shop/web-"), "{said}");
        // The installation gives no right to delete pods.
        scene
            .until("the drain fails and says what is missing", |world| {
                let record = shadow_of(world, &target).and_then(|s| s.status.controller.record.clone());
                record.and_then(|r| r.last).is_some_and(|last| {
                    last.reason == "DrainTimedOut" && last.message.contains("deploy/manifests/force.yaml")
                })
            })
            .await?;
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
        scene.kubectl(&["apply", "--server-side", "-f", manifest]).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    let world = ending.world();
    assert!(world.nodes.values().all(|node| !node.claimed()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_cluster_itself_runs_on_leaves_a_node_when_everything_else_has_left() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        scene.shop(4).await?;
        let mut dns = workload::deployment(SHOP, "dns", 2);
        dns["spec"]["template"]["spec"]["priorityClassName"] = json!("system-cluster-critical");
        workload::apply(&scene.bed.client, vec![dns]).await?;
        scene
            .until("the critical pods are Ready, one on each node", |world| {
                let ready = world.pods.values().filter(|pod| pod.name.starts_with("dns-") && pod.ready);
                ready.filter_map(|pod| pod.node.clone()).collect::<std::collections::BTreeSet<_>>().len() == 2
            })
            .await?;
        scene.install().await?;
        scene.release();
        scene.updated().await?;
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
async fn a_restart_of_the_api_server_in_mid_drain_is_survived() -> anyhow::Result<()> {
    let mut options = nodes(2);
    // The recorder reads the changes during the outage from etcd's history.
    options.control_plane.watch_cache = false;
    let ending = run(options, async |scene| {
        let target = blocked_drain(scene).await?;
        scene.bed.control_plane.restart_apiserver().await?;
        unblock(scene).await?;
        scene.updated().await?;
        let attempts = scene.bed.recorder.so_far()?.attempts();
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
async fn an_operator_that_is_deleted_in_mid_drain_goes_on_when_it_is_installed_again() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        let target = blocked_drain(scene).await?;
        for namespace in [SYSTEM_NAMESPACE, AGENT_NAMESPACE] {
            scene.kubectl(&["-n", namespace, "delete", "deployments,daemonsets", "--all"]).await?;
        }
        poll("no part of it is left", async || Ok(scene.bed.processes().is_empty().then_some(()))).await?;
        let world = scene.bed.recorder.now()?;
        assert!(world.nodes[&target].claimed(), "no one was there to give the node back");
        scene.bed.install().await?;
        unblock(scene).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_also_when_the_only_other_node_dies_meanwhile() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.deploy.controller_replicas = 2;
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |scene| {
        let target = blocked_drain(scene).await?;
        let other = other(&target);
        scene.bed.member(other)?.host.power_off();
        unblock(scene).await?;
        scene.until("the node is updated", |world| is_updated(world, &target)).await?;
        scene.bed.member(other)?.host.power_on();
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}
