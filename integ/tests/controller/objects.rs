//! Checks of objects of the cluster, before an update and after it.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams};
use models::condition::ConditionStatus;
use models::names::SYSTEM_NAMESPACE;
use models::operator::DEGRADED;
use models::shadow::{BLOCKED, Step, UPDATED};
use serde_json::{Value, json};

use crate::bed::{NEW, SHOP, ScriptedCluster};

crate::cases![
    check_of_objects_waits_for_its_right_its_object_and_its_truth_before_an_update,
    check_of_objects_that_is_false_after_an_update_proves_nothing,
    check_of_a_missing_object_after_an_update_proves_nothing
];

fn policy(when: &str) -> Value {
    let check = json!({
        "name": "storage", "apiVersion": "v1", "kind": "ConfigMap", "namespace": SHOP, "objectName": "storage",
        "expression": "self.data.health == 'OK'",
    });
    let mut health = json!({"after": {"soak": "1s", "timeout": "15m"}});
    health[when]["objects"] = json!([check]);
    json!({"health": health})
}

/// Grants the right as users do.
async fn grant(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.uses_up_stage = true;
    let granted = planner::objects::grant("", "configmaps", Some(SHOP), SYSTEM_NAMESPACE);
    let granted: Value = serde_saphyr::from_str(&granted)?;
    let [role, binding] = [0_usize, 1].map(|index| granted["items"][index].clone());
    cluster.create(Api::<Role>::namespaced(cluster.client.clone(), SHOP), role).await?;
    cluster.create(Api::<RoleBinding>::namespaced(cluster.client.clone(), SHOP), binding).await?;
    Ok(())
}

async fn set_health(cluster: &ScriptedCluster, health: &str) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), SHOP);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "storage"}, "data": {"health": health, "other": "x"},
    });
    maps.patch("storage", &PatchParams::apply("storage").force(), &Patch::Apply(object)).await?;
    Ok(())
}

/// The message of the condition that says why no node is updated, if it has this reason.
fn blocked(world: &ClusterState, reason: &str) -> Option<String> {
    let condition = world.operator_condition(BLOCKED)?;
    (condition.reason == reason && condition.status == ConditionStatus::True).then(|| condition.message.clone())
}

async fn check_of_objects_waits_for_its_right_its_object_and_its_truth_before_an_update(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, policy("before")).await?;
    let degraded = |world: &ClusterState| {
        let condition = world.operator_condition(DEGRADED)?;
        (condition.reason == "ObjectsUnread").then(|| condition.message.clone())
    };
    let world = cluster.until("the right is missing", |world| degraded(world).is_some()).await?;
    let message = degraded(&world).context("just seen")?;
    for part in ["ConfigMap of v1", "configmaps", "kind: RoleBinding", "verbs: [get, list, watch]"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    cluster.fleet.release(NEW);
    let without =
        |world: &ClusterState| blocked(world, "ExpressionFails").is_some_and(|m| m.contains("kind: RoleBinding"));
    cluster.until("the node waits, and why is named", without).await?;
    cluster.pass(Duration::from_hours(2)).await?;
    let world = cluster.planned().await?;
    assert_eq!(world.step("node-1"), Some(Step::Staged), "it waits without an end");

    grant(cluster).await?;
    let missing =
        |world: &ClusterState| blocked(world, "ExpressionFails").is_some_and(|m| m.contains("no such object"));
    cluster.until("the object is missing", missing).await?;
    set_health(cluster, "ERR").await?;
    let world = cluster.until("it is false", |world| blocked(world, "ExpressionFires").is_some()).await?;
    let message = blocked(&world, "ExpressionFires").context("just seen")?;
    assert_eq!(message, "the expression storage returned false for ConfigMap shop/storage");
    assert!(world.operator_condition(DEGRADED).is_some_and(|condition| condition.status == ConditionStatus::False));
    assert_eq!(cluster.recorder.so_far()?.max_out_of_service(), 0);

    set_health(cluster, "OK").await?;
    cluster.updated().await?;
    assert_eq!(cluster.recorder.so_far()?.results("node-1"), [(NEW, UPDATED.to_owned())]);
    Ok(())
}

/// Updates a node under a check that is not true, and expects that its end has this in its message.
async fn ends_without_a_proof(cluster: &mut ScriptedCluster, reason: &str, words: &str) -> anyhow::Result<()> {
    cluster.start(1, policy("after")).await?;
    cluster.fleet.release(NEW);
    cluster.until("the node is verified", |world| world.waiting(reason) == 1).await?;
    cluster.pass(Duration::from_mins(20)).await?;
    let last = |world: &ClusterState| world.record("node-1").last;
    let world = cluster.until("the attempt has ended", |world| last(world).is_some()).await?;
    let last = last(&world).context("just seen")?;
    assert!(last.reason == "HealthUnknown" && last.message.contains(words), "{}: {}", last.reason, last.message);
    assert!(world.record("node-1").version_failures.is_empty(), "it counts against no version");
    Ok(())
}

async fn check_of_objects_that_is_false_after_an_update_proves_nothing(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    grant(cluster).await?;
    set_health(cluster, "ERR").await?;
    let words = "the expression storage returned false for ConfigMap shop/storage, and is the same for all nodes";
    ends_without_a_proof(cluster, "ExpressionFires", words).await
}

async fn check_of_a_missing_object_after_an_update_proves_nothing(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    grant(cluster).await?;
    ends_without_a_proof(cluster, "ExpressionFails", "shop/storage: no such object exists").await
}
