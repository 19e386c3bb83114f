//! One rollout, as every other case builds on it.

use std::time::Duration;

use models::shadow::Step;
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![rollout_updates_all_nodes, soak_of_a_day_is_a_step_of_the_script];

async fn rollout_updates_all_nodes(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(3, json!({})).await?;
    cluster.shop(3, json!({"maxUnavailable": 1})).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    let attempts = cluster.recorder.so_far()?.attempts();
    assert!(attempts.len() == 3 && attempts.iter().all(integ::oracle::Attempt::updated), "{attempts:#?}");
    assert!(attempts.iter().map(|attempt| attempt.pods_moved).sum::<usize>() >= 3, "{attempts:#?}");
    Ok(())
}

async fn soak_of_a_day_is_a_step_of_the_script(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const DAY: Duration = Duration::from_hours(24);
    cluster.start(1, json!({"health": {"after": {"soak": "24h", "timeout": "48h"}}})).await?;
    cluster.fleet.release(NEW);
    cluster.until_step("node-1", Step::Verifying).await?;
    cluster.pass(DAY / 2).await?;
    let world = cluster.planned().await?;
    assert_eq!(world.step("node-1"), Some(Step::Verifying), "half of the soak is over");
    cluster.pass(DAY / 2).await?;
    cluster.updated().await?;
    Ok(())
}
