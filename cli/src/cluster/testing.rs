//! Clusters for the unit tests.

use serde_json::{Value, json};

use super::*;

/// The time of the tests.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// A cluster of these objects, in which everything was read and every component is there.
pub(crate) fn cluster(operator: Option<Value>, shadows: Vec<Value>, nodes: Vec<Value>) -> Cluster {
    let mut cluster =
        Cluster { namespace: names::SYSTEM_NAMESPACE.to_owned(), nodes: Some(BTreeMap::new()), ..Cluster::default() };
    if let Some(operator) = operator {
        cluster.add_operator(&serde_json::from_value(operator).unwrap());
    }
    for shadow in shadows {
        cluster.add_shadow(&serde_json::from_value(shadow).unwrap());
    }
    for node in nodes {
        cluster.add_node(&serde_json::from_value(node).unwrap());
    }
    cluster
}

/// A Node under the operator that is Ready.
pub(crate) fn node(name: &str, annotations: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("uid of {name}"), "resourceVersion": "5", "annotations": annotations,
            "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "bootID": "b", "osImage": "Bottlerocket OS 1.20.0 (aws-k8s-1.37)", "architecture": "amd64",
                "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                "machineID": "", "operatingSystem": "", "systemUUID": "",
            },
        },
    })
}

/// The shadow of such a node.
pub(crate) fn shadow(name: &str, status: Value) -> Value {
    let mut shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {
            "name": format!("brs-{name}"), "uid": "s", "resourceVersion": "5", "generation": 1,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": format!("uid of {name}")}],
        },
        "spec": {"state": "Idle", "attempt": 0, "host": {"refreshInterval": "1h"}},
    });
    shadow["status"] = status;
    shadow
}

/// The status of an idle host that is offered 1.20.5.
pub(crate) fn idle() -> Value {
    json!({
        "state": "Idle", "observedGeneration": 1, "currentVersion": "1.20.0", "variant": "aws-k8s-1.37", "arch": "x86_64",
        "bootId": "b",
        "updates": {"chosenVersion": "1.20.5", "availableVersions": ["1.20.5"], "lastRefresh": "2026-01-01T00:00:00Z"},
    })
}

/// The operator's resource.
pub(crate) fn operator(spec: &Value, status: &Value) -> Value {
    json!({
        "metadata": {"name": "default", "uid": "o", "resourceVersion": "5", "generation": 1}, "spec": spec, "status": status,
    })
}
