//! The script of nodes against recordings: of a real kubelet in a virtual machine, and of the real agent on a simulated host.

use std::collections::BTreeMap;
use std::time::Duration;

use integ::bed::workload;
use integ::node_recording::watch::{Collected, Watch};
use integ::node_recording::{Line, compare, read};
use integ::oracle::Shadow;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::EvictParams;
use models::shadow::HostState;
use serde_json::json;

use crate::bed::{LIMIT, NEW, SHOP, ScriptedCluster};

crate::cases![
    scripted_kubelet_writes_what_a_real_one_was_recorded_to_write,
    scripted_agent_reports_as_the_recorded_agent
];

/// The lines of a recording that the script has too. The node lifecycle controller, which says Unknown and taints, does not run.
fn comparable(lines: &[Line]) -> Vec<Line> {
    let kept = |line: &&Line| match line.step.as_str() {
        "start" => ["pod web", "node"].contains(&line.object.as_str()),
        "eviction" => line.object == "pod evicted",
        "reboot" => line.object == "node",
        "power on" => line.object == "pod web 2",
        _ => false,
    };
    let mut all: Vec<Line> = lines.iter().filter(kept).cloned().collect();
    for line in &mut all {
        line.fields
            .retain(|field, _| !(field.starts_with("taint ") || line.step == "reboot" && field.ends_with("Pressure")));
        let unknown = line.fields.get_mut("Ready").filter(|_| line.object == "node");
        unknown.into_iter().for_each(|states| states.retain(|state| !state.starts_with("Unknown")));
        if line.step == "power on" {
            // Ready turns False while the node is away, by the node lifecycle controller.
            line.fields.remove("Ready");
        }
    }
    all
}

fn pod(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "example.invalid/app:1"}]},
    })
}

async fn scripted_kubelet_writes_what_a_real_one_was_recorded_to_write(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.add_node("node-1", &[]).await?;
    let watch = Watch::start(&cluster.client, "node-1", SHOP);
    watch.until("the node is seen", LIMIT, |all| all.node.is_some()).await?;
    let is = |pod: &Pod, name: &str| pod.metadata.name.as_deref() == Some(name);
    // By the watch itself, which is what is compared. The pod runs after so many restarts.
    let runs = |all: &Collected, app: &str, restarts: i32| {
        let status = all.pods.values().find(|pod| is(pod, app)).and_then(|pod| pod.status.as_ref());
        let ready = status.and_then(|status| status.conditions.as_ref()).is_some_and(|conditions| {
            conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
        let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
        ready && containers.map(|container| container.restart_count).eq([restarts])
    };

    watch.begin("start");
    workload::apply(&cluster.client, vec![pod("web"), pod("evicted")]).await?;
    watch.until("both pods are Ready", LIMIT, |all| runs(all, "web", 0) && runs(all, "evicted", 0)).await?;
    watch.end(Duration::from_millis(300)).await;

    watch.begin("eviction");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    pods.evict("evicted", &EvictParams::default()).await?;
    watch.until("it is gone", LIMIT, |all| !all.pods.values().any(|pod| is(pod, "evicted"))).await?;
    watch.end(Duration::from_millis(300)).await;

    watch.begin("reboot");
    cluster.fleet.reboot("node-1");
    let rebooted = |boot: &str| boot == "node-1-boot-2";
    cluster
        .until("the node is back", |world| world.nodes["node-1"].ready && rebooted(&world.nodes["node-1"].boot_id))
        .await?;
    watch.until("its pod runs again", LIMIT, |all| runs(all, "web", 1)).await?;
    watch.end(Duration::from_millis(300)).await;

    let mut script = watch.lines();
    // The pod of the real node was replaced before; its restart is the one after the loss of power.
    let restart: BTreeMap<_, _> = script
        .iter()
        .find(|line| line.step == "reboot" && line.object == "pod web")
        .map(|line| line.fields.clone())
        .unwrap_or_default();
    script.push(Line { step: "power on".to_owned(), object: "pod web 2".to_owned(), fields: restart });
    let real = read(include_str!("../../testdata/real-node.jsonl"))?;
    let differences = compare(&comparable(&real), &comparable(&script));
    assert!(differences.is_empty(), "{differences:#?}");
    Ok(())
}

/// The reports of the real agent in one update, which `scenarios rollout::agent_reports_are_those_recorded` compares too.
const AGENT: &str = include_str!("../../testdata/agent-reports.txt");

async fn scripted_agent_reports_as_the_recorded_agent(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(1, json!({})).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    let idle = |shadow: &Shadow| shadow.status.agent.state == Some(HostState::Idle);
    cluster.until("the agent has reported that it is idle", |world| world.shadow("node-1").is_some_and(idle)).await?;
    let reports = cluster.recorder.so_far()?.agent_reports("node-1").join("\n") + "\n";
    assert_eq!(reports, AGENT);
    Ok(())
}
