//! The `enabled` switch, and the operator's resource as a whole.

use integ::bed::TestClusterOptions;
use integ::oracle::ClusterState;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::support::ScenarioContext;

/// Returns true if the operator's status counts so many nodes that wait for this reason.
pub(crate) fn wait_for(world: &ClusterState, reason: &str, nodes: i64) -> bool {
    world.operator.as_ref().is_some_and(|o| o.status.waiting.iter().any(|w| w.reason == reason && w.nodes == nodes))
}

/// Creates the operator's resource: the test cluster's own policy with a change.
pub(crate) async fn create_policy(ctx: &ScenarioContext, change: &Value) -> anyhow::Result<()> {
    let mut spec = TestClusterOptions::default().policy;
    spec["enabled"] = json!(true);
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let operator = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": OPERATOR_NAME, "namespace": SYSTEM_NAMESPACE},
        "spec": spec,
    });
    integ::bed::workload::apply(&ctx.bed.client, vec![operator]).await
}
