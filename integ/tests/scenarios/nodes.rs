//! Nodes that users and other controllers change.

use integ::bed::TestClusterOptions;
use integ::oracle::Field;
use models::condition::ConditionStatus;
use models::operator::DEGRADED;
use models::shadow::{BLOCKED, HOST_REACHABLE, Step, UPDATED};
use serde_json::{Value, json};

use crate::support::{NEW, condition_of, nodes, run, shadow_of, status, step_of};

#[tokio::test(flavor = "multi_thread")]
async fn update_keeps_cordon_labels_annotations_and_taints_of_user() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["drain"] = json!({"cordonedNodes": "Update"});
    let ending = run(options, async |ctx| {
        ctx.kubectl(&["cordon", "node-1"]).await?;
        ctx.kubectl(&["label", "node", "node-1", "example.com/team=blue"]).await?;
        ctx.kubectl(&["annotate", "node", "node-1", "cluster-autoscaler.kubernetes.io/scale-down-disabled=false"])
            .await?;
        ctx.kubectl(&["taint", "node", "node-2", "example.com/dedicated=shop:PreferNoSchedule"]).await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;

    let world = ending.world();
    let (one, two) = (&world.nodes["node-1"], &world.nodes["node-2"]);
    assert_eq!(one.fields.get(&Field::Unschedulable).map(String::as_str), Some("true"), "the person's cordon stays");
    assert_eq!(one.fields.get(&Field::Label("example.com/team".into())).map(String::as_str), Some("blue"));
    let annotation = Field::Annotation("cluster-autoscaler.kubernetes.io/scale-down-disabled".into());
    assert_eq!(one.fields.get(&annotation).map(String::as_str), Some("false"));
    assert!(!two.fields.contains_key(&Field::Unschedulable), "the other node is schedulable again");
    assert!(
        two.fields
            .get(&Field::Taints)
            .is_some_and(|t| t.contains("example.com/dedicated") && !t.contains("unschedulable"))
    );
    for name in ["node-1", "node-2"] {
        assert_eq!(shadow_of(&world, name).unwrap().status.agent.current_version, Some(NEW));
    }
    assert!(one.owners[&Field::Unschedulable].iter().all(|owner| !owner.starts_with("brupop")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of drains and shadows have its parts"]
async fn node_deletion_during_drain_frees_slot_and_recreated_node_gets_new_shadow() -> anyhow::Result<()> {
    let mut old_uids = (String::new(), String::new());
    let ending = run(TestClusterOptions { ..nodes(3) }, async |ctx| {
        // Pods on all nodes, none of which may be evicted: the first node is blocked in its drain.
        ctx.guarded_shop(3).await?;
        ctx.install().await?;
        ctx.release();
        let world = ctx
            .until("a node drains and cannot", |world| {
                world
                    .shadows
                    .values()
                    .any(|s| s.status.controller.drain.as_ref().is_some_and(|d| !d.blockers.is_empty()))
            })
            .await?;
        let shadow = world.shadows.values().find(|s| s.step() == Some(Step::Draining)).unwrap();
        let node = shadow.node().to_owned();
        let uid = world.nodes[&node].uid.clone();
        old_uids = (uid.clone(), shadow.uid.clone());
        assert!(world.operator.as_ref().is_some_and(|o| o.status.slots.iter().any(|s| s.uid == uid)));

        ctx.kubectl(&["delete", "node", &node]).await?;
        ctx.until("its slot is free, its shadow is gone and another node has the slot", |world| {
            let slots = world.operator.as_ref().map(|o| o.status.slots.clone()).unwrap_or_default();
            !slots.is_empty()
                && slots.iter().all(|s| s.uid != uid)
                && !world.shadows.values().any(|s| s.owner.as_ref().is_some_and(|(_, owner)| *owner == uid))
        })
        .await?;

        ctx.bed.member(&node)?.kubelet.register().await?;
        ctx.until("the new node has a shadow of its own", |world| {
            world.nodes.get(&node).is_some_and(|n| n.uid != uid) && shadow_of(world, &node).is_some()
        })
        .await?;
        // The token of the agent's pod names the deleted Node; a pod of the new Node has its own token.
        ctx.restart(deploy::Component::Agent).await?;
        let freed = json!({"spec": {"minAvailable": 0}}).to_string();
        ctx.kubectl(&["-n", crate::support::SHOP, "patch", "pdb", "web", "--type=merge", "-p", &freed]).await?;
        ctx.updated().await?;
        assert_eq!(step_of(&ctx.bed.recorder.so_far()?.end(), &node), None);
        Ok(())
    })
    .await?;
    let world = ending.world();
    assert!(world.nodes.values().all(|n| n.uid != old_uids.0));
    assert!(world.shadows.values().all(|s| s.uid != old_uids.1));
    assert_eq!(world.shadows.len(), 3);
    assert_eq!(ending.verdict.stats.reboots, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_agents_and_web_api_are_reported_and_block_updates() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["enabled"] = json!(false);
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        ctx.reported().await?;
        let agents = async |selector: Value| {
            let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"example.com/nowhere": selector}}}}});
            ctx.kubectl(&["-n", "brupop-agents", "patch", "ds/brupop-agent", "-p", &patch.to_string()]).await
        };
        let web_api = async |replicas: &str| {
            ctx.kubectl(&["-n", "brupop-system", "scale", "deployment/brupop-apiserver", replicas]).await
        };
        agents(json!("")).await?;
        ctx.until("each node says that its agent is missing", |world| {
            let is = |node, type_| condition_of(world, node, type_).is_some_and(|c| c.reason == "AgentNotReady");
            ["node-1", "node-2"].into_iter().all(|node| is(node, BLOCKED) && is(node, HOST_REACHABLE))
        })
        .await?;
        web_api("--replicas=0").await?;
        let degraded = ctx.until_operator(DEGRADED, ConditionStatus::True).await?;
        anyhow::ensure!(degraded.reason == "WebApiNotReady", "{degraded:?}");

        ctx.policy(&json!({"enabled": true})).await?;
        web_api("--replicas=2").await?;
        ctx.until_operator(DEGRADED, ConditionStatus::False).await?;
        let world = ctx
            .until("the operator says why both nodes wait", |world| {
                status(world).waiting.iter().any(|w| (w.reason.as_str(), w.nodes) == ("AgentNotReady", 2))
            })
            .await?;
        anyhow::ensure!(world.operator_condition(DEGRADED).is_some_and(|c| c.reason == "AsExpected"));
        agents(Value::Null).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2"] {
        let reasons: Vec<_> = ending.history.results(node).into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(reasons, [UPDATED], "{node} was tried without its agent");
        assert!(condition_of(&ending.world(), node, BLOCKED).is_none_or(|c| c.status == ConditionStatus::False));
    }
    Ok(())
}
