//! The workload of a fleet: Deployments of the same size on its nodes, each with a PodDisruptionBudget.

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, ListParams};
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::bed::workload;

const NAMESPACE: &str = "shop";

/// Longest wait until all pods are Ready.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Creates Deployments of `replicas` pods each, with budgets that let this share of them be disrupted, and waits until all pods
/// are Ready.
pub(super) async fn deploy_workload(
    client: &Client,
    deployments: usize,
    replicas: usize,
    max_unavailable: &str,
) -> anyhow::Result<()> {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})];
    for number in 0..deployments {
        let name = format!("web-{number:04}");
        objects.push(deployment(&name, replicas));
        objects.push(workload::budget(NAMESPACE, &name, json!({"maxUnavailable": max_unavailable})));
    }
    workload::apply(client, objects).await?;
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let began = Instant::now();
    loop {
        let all = api.list(&ListParams::default()).await?;
        let ready = all.iter().filter_map(|found| found.status.as_ref()?.ready_replicas);
        let ready: usize = ready.filter_map(|ready| usize::try_from(ready).ok()).sum();
        if ready >= deployments * replicas {
            return Ok(());
        }
        ensure!(began.elapsed() < LIMIT, "{ready} of {} pods are Ready", deployments * replicas);
        sleep(Duration::from_secs(1)).await;
    }
}

fn deployment(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "automountServiceAccountToken": false,
                    "nodeSelector": {INTERFACE_LABEL: INTERFACE_VERSION},
                    "containers": [{
                        "name": "app", "image": "example.invalid/app:1",
                        // The scheduler spreads pods by what they request.
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    }],
                },
            },
        },
    })
}
