//! Checks of objects of the cluster, before an update and after it.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use models::condition::ConditionStatus;
use models::names::SYSTEM_NAMESPACE;
use models::operator::DEGRADED;
use models::shadow::{BLOCKED, Step, UPDATED};
use semver::Version;
use serde_json::{Value, json};

use crate::bed::{NEW, SHOP, ScriptedCluster};

crate::cases![check_of_objects_waits_for_its_right_its_object_and_its_truth_and_a_missing_object_proves_nothing];

/// A policy whose health checks before or after an update have one of an object.
fn policy(when: &str) -> Value {
    let check = json!({
        "name": "storage", "apiVersion": "v1", "kind": "ConfigMap", "namespace": SHOP, "objectName": "storage",
        "expression": "self.data.health == 'OK'",
    });
    let mut health = json!({"before": {"objects": null}, "after": {"soak": "1s", "timeout": "15m"}});
    health[when]["objects"] = json!([check]);
    json!({"health": health})
}

fn maps(cluster: &ScriptedCluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), SHOP)
}

async fn set_health(cluster: &ScriptedCluster, health: &str) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "storage"}, "data": {"health": health, "other": "x"},
    });
    maps(cluster).patch("storage", &PatchParams::apply("storage").force(), &Patch::Apply(object)).await?;
    Ok(())
}

/// The message of the condition that says why no node is updated, if it has this reason.
fn blocked(world: &ClusterState, reason: &str) -> Option<String> {
    let condition = world.operator_condition(BLOCKED)?;
    (condition.reason == reason && condition.status == ConditionStatus::True).then(|| condition.message.clone())
}

async fn check_of_objects_waits_for_its_right_its_object_and_its_truth_and_a_missing_object_proves_nothing(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
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

    // As users grant the right.
    cluster.uses_up_stage = true;
    let granted = planner::objects::grant("", "configmaps", Some(SHOP), SYSTEM_NAMESPACE);
    let granted: Value = serde_saphyr::from_str(&granted)?;
    let roles: Api<Role> = Api::namespaced(cluster.client.clone(), SHOP);
    let bindings: Api<RoleBinding> = Api::namespaced(cluster.client.clone(), SHOP);
    let role = cluster.create(roles.clone(), granted["items"][0].clone()).await?;
    let binding = cluster.create(bindings.clone(), granted["items"][1].clone()).await?;
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

    maps(cluster).delete("storage", &DeleteParams::default()).await?;
    cluster.policy(&policy("after")).await?;
    cluster.fleet.release(NEWER);
    cluster.until("the node is verified", |world| world.waiting("ExpressionFails") == 1).await?;
    cluster.pass(Duration::from_mins(20)).await?;
    let ended = |world: &ClusterState| world.last_reason("node-1").as_deref() == Some("HealthUnknown");
    let record = cluster.until("the attempt has ended", ended).await?.record("node-1");
    let message = record.last.map(|last| last.message).unwrap_or_default();
    assert!(message.contains("shop/storage: no such object exists"), "{message}");
    assert!(record.version_failures.is_empty(), "it counts against no version");
    bindings.delete(&binding.name_any(), &DeleteParams::default()).await?;
    roles.delete(&role.name_any(), &DeleteParams::default()).await?;
    cluster.uses_up_stage = false;
    Ok(())
}
