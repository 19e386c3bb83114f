//! Common parts of the workloads and pods of all components.

use serde_json::{Value, json};

use crate::object::{labels, namespaced, selector};
use crate::options::{Component, Options, image};

/// An arbitrary user other than root: nothing in the images belongs to it.
const USER: i64 = 65532;

/// Name of [`PLAIN_PORT`] in the pods.
pub(crate) const METRICS_PORT: &str = "metrics";

/// Port of health, readiness and metrics, plain HTTP.
pub(crate) const PLAIN_PORT: i32 = 8080;

/// Number of old replica sets or revisions of a workload that are kept: enough to roll back once or twice.
const REVISIONS: i32 = 3;

/// Time in seconds that a pod stays on a node that does not respond before it is replaced; Kubernetes' default is 300.
/// While it stays it uses up its budget, and so blocks the drain of the node of the other replica.
const SILENT: i64 = 30;

/// Name of the taint that Kubernetes gives a cordoned node, without its prefix.
const UNSCHEDULABLE: &str = "unschedulable";

/// Returns a workload of this kind without replicas and strategy.
pub(crate) fn workload(kind: &str, namespace: &str, component: Component, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": namespaced(namespace, component.name()),
        "spec": {
            "revisionHistoryLimit": REVISIONS,
            "selector": selector(component),
            "template": {"metadata": {"labels": labels(component)}, "spec": pod},
        },
    })
}

/// Returns a Deployment that replaces one pod at a time, with a new one beside it. Its pods are spread over nodes if
/// possible: a cluster of one node runs everything.
pub(crate) fn deployment(namespace: &str, component: Component, replicas: u16, container: &Value) -> Value {
    let spread = json!({
        "weight": 100,
        "podAffinityTerm": {"labelSelector": selector(component), "topologyKey": "kubernetes.io/hostname"},
    });
    let pod = json!({
        "serviceAccountName": component.name(),
        "automountServiceAccountToken": true,
        "securityContext": restricted_pod(),
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        // Cordoned nodes, since these pods uncordon them; unresponsive ones for a short time only.
        "tolerations": [
            tolerates(UNSCHEDULABLE, "NoSchedule", None),
            tolerates("not-ready", "NoExecute", Some(SILENT)),
            tolerates("unreachable", "NoExecute", Some(SILENT)),
        ],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [spread]}},
        // Long enough for the controller to finish the writes that are under way and to release the Lease, and for the
        // web API to end its streams one after the other.
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
    });
    let mut deployment = workload("Deployment", namespace, component, &pod);
    // For a Prometheus without its operator. With deploy/monitoring/podmonitor.yaml they are not read.
    deployment["spec"]["template"]["metadata"]["annotations"] = json!({
        "prometheus.io/scrape": "true", "prometheus.io/port": PLAIN_PORT.to_string(), "prometheus.io/path": "/metrics",
    });
    deployment["spec"]["replicas"] = replicas.into();
    // Rounded down: of up to three pods none ends before another is Ready.
    deployment["spec"]["strategy"] =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1}});
    deployment
}

/// Returns a container with these arguments and those that all programs have. Requests are CPU and memory; CPU has no
/// limit: throttling during a drain is harmful. It meets the container's share of the `restricted` pod security
/// standard, and its root file system is read-only.
pub(crate) fn container(
    name: &str,
    component: Component,
    options: &Options,
    mut args: Vec<String>,
    [cpu, memory, memory_limit]: [&str; 3],
) -> Value {
    args.extend(options.log_format.iter().map(|format| format!("--log-format={format}")));
    json!({
        "name": name,
        "image": image(component, options),
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory_limit}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

/// An environment variable with a field of the pod, for use in arguments as `$(NAME)`. The version is the server's default: a
/// reference is owned as a whole, so without it the same apply by another tool is a conflict.
pub(crate) fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}

/// A port. The protocol is the server's default, and part of the key of the list: an apply without it conflicts with
/// itself.
pub(crate) fn port(name: &str, number: i32) -> Value {
    json!({"name": name, "containerPort": number, "protocol": "TCP"})
}

/// A probe of [`PLAIN_PORT`].
pub(crate) fn probe(path: &str, period_seconds: i32) -> Value {
    json!({
        "httpGet": {"path": path, "port": PLAIN_PORT},
        "periodSeconds": period_seconds, "timeoutSeconds": 2, "failureThreshold": 3,
    })
}

/// The pod's share of the `restricted` pod security standard.
pub(crate) fn restricted_pod() -> Value {
    json!({
        "runAsNonRoot": true,
        // In the pod and not in the container, so that the kubelet makes projected tokens readable for this user.
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Returns the tolerations of a pod in two parts: that of a cordon, which users cannot replace, and the others. The
/// pods that uncordon nodes have it: without it, they would be Pending where all nodes that may run them are cordoned.
pub(crate) fn tolerations(pod: &Value) -> (Vec<Value>, Vec<Value>) {
    let all = pod["tolerations"].as_array().cloned().unwrap_or_default();
    all.into_iter().partition(|toleration| toleration["key"] == taint(UNSCHEDULABLE))
}

fn taint(name: &str) -> String {
    format!("node.kubernetes.io/{name}")
}

fn tolerates(name: &str, effect: &str, seconds: Option<i64>) -> Value {
    let mut toleration = json!({"key": taint(name), "operator": "Exists", "effect": effect});
    if let Some(seconds) = seconds {
        toleration["tolerationSeconds"] = seconds.into();
    }
    toleration
}
