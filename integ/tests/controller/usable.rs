//! Nodes that are Ready after their update and not as they were before.

use std::time::Duration;

use integ::bed::workload;
use integ::oracle::ClusterState;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource as _};
use models::condition::{ConditionStatus, find_condition};
use models::reason::Proof;
use models::shadow::{BLOCKED, HEALTHY, Step};
use serde_json::json;

use crate::bed::{NEW, PodRule, PodState, SHOP, ScriptedCluster};
use crate::health::driver;

crate::cases![
    canary_without_its_devices_proves_nothing_until_they_are_back,
    node_without_its_csi_driver_and_its_pod_of_a_daemon_set_waits_for_them_while_they_exist,
    canary_whose_kubelet_rejects_the_pods_of_a_workload_proves_nothing,
];

async fn canary_without_its_devices_proves_nothing_until_they_are_back(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(3, json!({"strategy": {"canary": [{"nodes": 1}]}})).await?;
    for node in ["node-1", "node-2", "node-3"] {
        cluster.fleet.script(node, |node| node.gpus = Some(8));
    }
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    let at = |world: &ClusterState, step| world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned();
    let world = cluster.until("a node is drained", |world| at(world, Step::Rebooting).is_some()).await?;
    let canary = at(&world, Step::Rebooting).unwrap_or_default();
    // Its kubelet knows of the device, and the plugin does not register after the boot.
    cluster.fleet.script(&canary, |node| node.gpus = Some(0));
    cluster.until_step(&canary, Step::Verifying).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let condition = |world: &ClusterState, type_| {
        let shadow = world.shadows.values().find(|shadow| shadow.node() == canary)?;
        find_condition(&shadow.status.conditions, type_).cloned()
    };
    let missing = "nvidia.com/gpu is 0 and was 8";
    let named = |world: &ClusterState| condition(world, BLOCKED).is_some_and(|c| c.message.contains(missing));
    cluster.until("what is missing is named", named).await?;
    cluster.pass(Duration::from_mins(15)).await?;
    cluster.until_event("UpdateFailed", &["NodeNotUsable", missing]).await?;
    let waits = |world: &ClusterState| world.status().slots.is_empty() && world.waiting("StepUnproven") == 2;
    let world = cluster.until("the others wait for the canary", waits).await?;
    assert_eq!(condition(&world, HEALTHY).map(|condition| condition.status), Some(ConditionStatus::Unknown));
    // Another leader knows it from the shadow, and verifies it again.
    cluster.replace_controller().await?;
    cluster.fleet.script(&canary, |node| node.gpus = Some(8));
    cluster.pass(Duration::from_hours(1)).await?;
    cluster.until_event("VerificationStarted", &["NodeNotUsable"]).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let world = cluster.until("the canary is proven", |world| {
        world.record(&canary).proof.is_some_and(|place| place.proof == Proof::Proven)
    });
    assert_eq!(world.await?.record(&canary).before, None);
    cluster.updated().await.map(drop)
}

async fn node_without_its_csi_driver_and_its_pod_of_a_daemon_set_waits_for_them_while_they_exist(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    let csi_nodes: Api<CSINode> = Api::all(cluster.client.clone());
    for node in ["node-1", "node-2"] {
        let drivers = json!([{"name": "ebs.csi.aws.com", "nodeID": node}]);
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
            "spec": {"drivers": drivers}});
        cluster.create(csi_nodes.clone(), object).await?;
    }
    driver(cluster, &["node-1", "node-2"]).await?;
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    let at = |world: &ClusterState, step| world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned();
    let world = cluster.until("a node is drained", |world| at(world, Step::Rebooting).is_some()).await?;
    let first = at(&world, Step::Rebooting).unwrap_or_default();
    let before = world.record(&first).before.unwrap_or_default();
    assert_eq!(before.csi_drivers, ["ebs.csi.aws.com"]);
    assert!(before.daemon_sets.iter().any(|set| set.name == "shop/driver"), "{:?}", before.daemon_sets);
    let patch = |drivers| Patch::Merge(json!({"spec": {"drivers": drivers}}));
    csi_nodes.patch(&first, &PatchParams::default(), &patch(json!([]))).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    pods.delete(&format!("driver-{first}"), &DeleteParams::default().grace_period(0)).await?;
    cluster.until_step(&first, Step::Verifying).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let named = |world: &ClusterState, words: &[&str]| {
        let message = world.condition(&first, BLOCKED).map(|condition| condition.message.clone()).unwrap_or_default();
        words.iter().all(|word| message.contains(word))
    };
    let both = ["the CSI driver ebs.csi.aws.com is missing", "the DaemonSet shop/driver has no Ready pod"];
    cluster.until("what is missing is named", |world| named(world, &both)).await?;
    let drivers = json!([{"name": "ebs.csi.aws.com", "nodeID": first}]);
    csi_nodes.patch(&first, &PatchParams::default(), &patch(drivers)).await?;
    let rest = |world: &ClusterState| named(world, &both[1..]) && !named(world, &both[..1]);
    cluster.until("the driver is back", rest).await?;
    // The DaemonSet is uninstalled.
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), SHOP);
    sets.delete("driver", &DeleteParams::background()).await?;
    cluster.until("the node is proven", |world| world.is_updated(&first, &NEW)).await?;
    cluster.updated().await.map(drop)
}

async fn canary_whose_kubelet_rejects_the_pods_of_a_workload_proves_nothing(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    // The soak outlasts the time until the controller has seen the first pod.
    let health = json!({"after": {"soak": "10m", "timeout": "20m"}});
    cluster.start(3, json!({"strategy": {"canary": [{"nodes": 1}]}, "health": health})).await?;
    // An object that no controller creates pods for: those below are all that there are.
    let set = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": SHOP}});
    let set: ConfigMap = cluster.create(Api::namespaced(cluster.client.clone(), SHOP), set).await?;
    let owner = set.controller_owner_ref(&());
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    let at = |world: &ClusterState, step| world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned();
    let world = cluster.until("a node is verified", |world| at(world, Step::Verifying).is_some()).await?;
    let canary = at(&world, Step::Verifying).unwrap_or_default();
    let rejects = PodRule { app: "web".to_owned(), node: None, version: Some(NEW), state: PodState::Rejected };
    cluster.fleet.pods(rejects);
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {
                "nodeName": canary, "containers": [{"name": "app", "image": "example.invalid/app:1"}],
            },
            "metadata": {"name": name, "namespace": SHOP, "labels": {"app": "web"}, "ownerReferences": [owner]}})
    };
    let named = |world: &ClusterState, name: &str| {
        let words = [name, "UnexpectedAdmissionError"];
        world.condition(&canary, BLOCKED).is_some_and(|found| words.iter().all(|word| found.message.contains(word)))
    };
    // Pods that come up after the boot are not reported.
    cluster.pass(Duration::from_mins(3)).await?;
    cluster.planned().await?;
    workload::apply(&cluster.client, vec![pod("web-1-a")]).await?;
    cluster.until("the rejected pod is named", |world| named(world, "shop/web-1-a")).await?;
    cluster.pass(Duration::from_mins(15)).await?;
    // The owner creates others, and the deadline comes.
    for name in ["web-1-b", "web-1-c", "web-1-d", "web-1-e"] {
        workload::apply(&cluster.client, vec![pod(name)]).await?;
        cluster.planned().await?;
        cluster.pass(Duration::from_mins(1)).await?;
    }
    cluster.until_event("UpdateFailed", &["HealthUnknown", "shop/web-1-", "(UnexpectedAdmissionError)"]).await?;
    let waits = |world: &ClusterState| world.status().slots.is_empty() && world.waiting("StepUnproven") == 2;
    let world = cluster.until("the others wait for the canary", waits).await?;
    assert!(!world.record(&canary).without_workloads);
    Ok(())
}
