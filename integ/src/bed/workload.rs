//! Workloads besides the operator: Deployments and Jobs of pods without dependencies, their budgets and Services.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::{Value, json};

use super::install;

/// A Deployment `web` of `pods` pods in `namespace`, with a budget that lets `max_unavailable` of them be disrupted.
pub fn web(namespace: &str, pods: usize, max_unavailable: Value) -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        deployment(namespace, "web", pods),
        budget(namespace, "web", Value::Object([("maxUnavailable".to_owned(), max_unavailable)].into_iter().collect())),
    ]
}

/// A Deployment whose pods carry the label `app: <name>` and spread over the nodes.
pub fn deployment(namespace: &str, name: &str, pods: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"app": name}},
                    }],
                    "containers": [{"name": "app", "image": "example.invalid/app:1"}],
                },
            },
        },
    })
}

/// A PodDisruptionBudget over the pods with the label `app: <name>`; `limit` is its `maxUnavailable` or `minAvailable`.
pub fn budget(namespace: &str, name: &str, limit: Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}}},
    });
    if let (Value::Object(spec), Value::Object(limit)) = (&mut budget["spec"], limit) {
        spec.extend(limit);
    }
    budget
}

/// A Service of the pods with the label `app: <name>`.
pub fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}

/// A Job `name` of one pod that does not end.
pub fn job(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "app", "image": "example.invalid/app:1"}],
        }}},
    })
}

/// Applies objects in order.
pub async fn apply(client: &Client, objects: Vec<Value>) -> anyhow::Result<()> {
    let mut known = BTreeMap::new();
    for object in objects {
        install::apply(client, &mut known, object).await?;
    }
    Ok(())
}
