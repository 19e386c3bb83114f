//! The operator's resource as a whole: without it, nothing is updated.

use integ::oracle::ClusterState;
use kube::api::DeleteParams;
use models::shadow::HostState;
use serde_json::json;

use crate::bed::{NEW, OLD, ScriptedCluster};
use crate::leaders::blocked_drain;

crate::cases![deleted_resource_ends_attempt_before_permit_until_recreated];

async fn deleted_resource_ends_attempt_before_permit_until_recreated(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    let node = blocked_drain(cluster).await?;
    cluster.delete_policy(&DeleteParams::default()).await?;
    let idle = |world: &ClusterState| {
        world.operator.is_none()
            && world.nodes.values().all(|node| !node.claimed())
            && world.shadows.values().all(|shadow| shadow.step().is_none() && shadow.spec.state == HostState::Idle)
    };
    cluster.until("every node is released", idle).await?;
    cluster.unblock_shop().await?;
    // It has planned since: a new node has its shadow.
    cluster.add_node("node-3", &[]).await?;
    cluster.reported().await?;
    let world = cluster.now()?;
    assert!(idle(&world), "{:#?}", world.shadows);
    assert!(world.shadows.values().all(|shadow| shadow.status.agent.current_version == Some(OLD)));
    assert_eq!(world.last_reason(&node).as_deref(), Some("Disabled"));
    cluster.create_policy(json!({})).await?;
    cluster.updated().await?;
    let results = cluster.recorder.so_far()?.results(&node);
    let reasons: Vec<_> = results.iter().map(|(version, reason)| (version, reason.as_str())).collect();
    assert_eq!(reasons, [(&NEW, "Disabled"), (&NEW, "Updated")]);
    Ok(())
}
