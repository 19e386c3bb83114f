//! Slots: only the controller gives them.

use kube::api::{Api, Patch, PatchParams};
use models::names::{SYSTEM_NAMESPACE, shadow_name};
use models::reason::FailureReason;
use models::shadow::{BottlerocketShadow, Step};
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![attempts_written_by_other_client_end_without_cordon];

async fn attempts_written_by_other_client_end_without_cordon(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    // To the oracle an attempt in a shadow is one of the controller's.
    cluster.expectations.max_unavailable = None;
    cluster.start(4, json!({"maxUnavailable": 4})).await?;
    let shadows: Api<BottlerocketShadow> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let (now, steps) = (cluster.time.now(), [Step::Draining, Step::Rebooting, Step::Rebooting, Step::Verifying]);
    for (number, step) in (1..).zip(steps) {
        let status = json!({"progress": {
            "step": step, "since": now, "started": now, "attempt": 1, "bootId": format!("node-{number}-boot-1"),
            "version": NEW, "disruptive": true,
        }});
        let patch = Patch::Merge(json!({"status": status}));
        shadows.patch_status(&shadow_name(&format!("node-{number}")), &PatchParams::default(), &patch).await?;
    }
    cluster
        .until("each of them has ended", |world| {
            world.nodes.keys().all(|node| {
                world.last_reason(node).as_deref() == Some(FailureReason::ProgressLost.as_str())
                    && world.is_released(node)
            })
        })
        .await?;
    cluster.recorder.so_far()?.replay(|change, _, world| {
        assert!(!world.nodes.values().any(|node| node.claimed()), "a cordon at {}", change.revision);
        assert_eq!(world.status().slots.len(), 0, "at {}", change.revision);
    });
    Ok(())
}
