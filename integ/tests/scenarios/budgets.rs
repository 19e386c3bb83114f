//! PodDisruptionBudgets that block a drain.

use std::time::Duration;

use integ::bed::{TestClusterOptions, workload};
use integ::oracle::{ClusterState, Expectations};
use models::condition::ConditionStatus;
use models::shadow::{BLOCKED, Step};
use serde_json::json;

use crate::support::{SHOP, condition_of, is_updated, nodes, other, run_expecting, shadow_of, step_of};

/// Time within which a blocked drain has to be reported.
const VISIBLE: Duration = Duration::from_secs(30);

/// The node with the pod of the workload.
fn home(world: &ClusterState) -> String {
    world.pods.values().filter(|p| p.namespace == SHOP).find_map(|p| p.node.clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_pdb_is_reported_while_other_node_updates() -> anyhow::Result<()> {
    let mut options = TestClusterOptions { ..nodes(2) };
    options.policy["maxUnavailable"] = json!(2);
    let expectations = Expectations { max_unavailable: Some(2), nothing_left: true };
    let mut blocked_node = String::new();
    let ending = run_expecting(options, expectations, async |ctx| {
        ctx.guarded_shop(1).await?;
        workload::apply(&ctx.bed.client, vec![workload::service(SHOP, "web")]).await?;
        ctx.install().await?;
        let home = home(&ctx.bed.recorder.so_far()?.end());
        let other = other(&home);
        ctx.release();
        ctx.until_step(&home, Step::Draining).await?;
        let world = ctx
            .bed
            .wait("the blocked drain says what blocks it", VISIBLE, |history| {
                let end = history.end();
                let drain = shadow_of(&end, &home).and_then(|s| s.status.controller.drain.clone());
                drain.is_some_and(|d| !d.blockers.is_empty())
                    && condition_of(&end, &home, BLOCKED).is_some_and(|c| c.status == ConditionStatus::True)
            })
            .await?
            .end();
        let pod = world.pods.values().find(|p| p.namespace == SHOP && p.node.is_some()).unwrap().title();
        let drain = shadow_of(&world, &home).unwrap().status.controller.drain.clone().unwrap();
        assert_eq!(drain.blockers.len(), 1);
        assert_eq!((&drain.blockers[0].pod, drain.blockers[0].budget.as_deref()), (&pod, Some("shop/web")));
        // What is known of the pod only before its eviction.
        let listed = drain.pods.iter().find(|listed| pod == format!("{}/{}", listed.namespace, listed.name)).unwrap();
        let address = ctx.kubectl(&["-n", SHOP, "get", "pod", &listed.name, "-o", "jsonpath={.status.podIP}"]).await?;
        assert_eq!(listed.ip.as_deref().unwrap_or_default(), address);
        assert_eq!(listed.owner.as_deref(), Some("Deployment/web"));
        assert_eq!((&listed.budgets[..], &listed.services[..]), (&["web".to_owned()][..], &["web".to_owned()][..]));
        assert_eq!(listed.moved, None);
        let condition = condition_of(&world, &home, BLOCKED).unwrap();
        assert_eq!(condition.reason, "DrainBlocked");
        assert!(condition.message.contains(&pod) && condition.message.contains("shop/web"), "{condition:?}");

        // The other node continues meanwhile.
        ctx.until("the other node is updated", |world| is_updated(world, other)).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert_eq!(step_of(&world, &home), Some(Step::Draining), "it still waits");
        assert_eq!(world.pods.values().filter(|p| p.namespace == SHOP && p.title() == pod && p.ready).count(), 1);

        let freed = json!({"spec": {"minAvailable": 0}}).to_string();
        ctx.kubectl(&["-n", SHOP, "patch", "pdb", "web", "--type=merge", "-p", &freed]).await?;
        ctx.updated().await?;
        blocked_node = home;
        Ok(())
    })
    .await?;

    let world = ending.world();
    assert!(condition_of(&world, &blocked_node, BLOCKED).is_none_or(|c| c.status != ConditionStatus::True));
    let attempts = ending.history.attempts();
    assert_eq!(attempts.iter().filter(|a| a.node == blocked_node).count(), 1, "it was one attempt: {attempts:#?}");
    assert!(attempts.iter().all(integ::oracle::Attempt::updated));
    Ok(())
}
