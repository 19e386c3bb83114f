//! Nodes that users and other controllers change.

use integ::bed::TestClusterOptions;
use models::shadow::Step;
use serde_json::json;

use crate::support::{nodes, run, shadow_of, step_of};

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
