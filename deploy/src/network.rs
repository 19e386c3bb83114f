//! NetworkPolicies: all connections are denied except those that each component needs.
//!
//! ```text
//!  agents ──8443──► web API ──┐
//!                      ▲      ├──443, 6443──► the cluster's API server
//!  metrics ──8080──────┤      │
//!  metrics ──8080──► controller ──9090──► Prometheus
//!                                          all of them ──53──► DNS
//! ```
//!
//! Probes come from the kubelet of the pod's own node, which NetworkPolicies do not block.

use models::names::{AGENT_NAMESPACE, METRICS_ENABLED, METRICS_LABEL, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::object::{namespaced, selector};
use crate::options::Component;
use crate::{apiserver, pod};

/// Ports of the cluster's API server: behind its Service, and where it listens in most clusters that are not managed.
/// It runs on the host's network or outside of the cluster, so no selector matches it, and its addresses change.
pub(crate) const CLUSTER_API_PORTS: [i32; 2] = [443, 6443];

/// Port of DNS. Its server may be a pod, or an address of the node's own (a cache on each node): any address is
/// allowed, to agents unless a value of the chart names others.
pub(crate) const DNS_PORT: i32 = 53;

/// Port of Prometheus' own pods, for the expressions of a policy. If policy names another one, a further NetworkPolicy
/// has to open it (`docs/expressions.md`).
pub(crate) const PROMETHEUS_PORT: i32 = 9090;

/// Addresses of the agent of EKS Pod Identity and of the metadata of an instance.
const CREDENTIALS: [&str; 4] = ["169.254.170.23/32", "169.254.169.254/32", "fd00:ec2::23/128", "fd00:ec2::254/128"];

/// Label that Kubernetes puts on each namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

pub(crate) fn all() -> [Value; 5] {
    let scrapes = || from(&in_namespaces(METRICS_LABEL, METRICS_ENABLED), pod::PLAIN_PORT);
    let cluster_api = || json!({"ports": cluster_api_ports()});
    let names = || json!({"ports": [{"protocol": "UDP", "port": DNS_PORT}, tcp(DNS_PORT)]});
    let prometheus = to(&in_namespaces(METRICS_LABEL, METRICS_ENABLED), PROMETHEUS_PORT);
    let agents = from(&pods_of(AGENT_NAMESPACE, Component::Agent), apiserver::TLS_PORT);
    let web_api = to(&pods_of(SYSTEM_NAMESPACE, Component::Apiserver), apiserver::TLS_PORT);
    [
        nothing(SYSTEM_NAMESPACE),
        exactly(SYSTEM_NAMESPACE, Component::Apiserver, &[agents, scrapes()], &[cluster_api(), names()]),
        exactly(SYSTEM_NAMESPACE, Component::Controller, &[scrapes()], &[cluster_api(), names(), prometheus]),
        nothing(AGENT_NAMESPACE),
        exactly(AGENT_NAMESPACE, Component::Agent, &[], &[web_api, names()]),
    ]
}

/// The connections of the optional component [`Component::Aws`]: the cluster's API server, AWS, and on the node the sources of
/// credentials, EKS Pod Identity and the metadata of the instance.
pub(crate) fn aws() -> Value {
    let credentials = json!({"to": CREDENTIALS.map(|cidr| json!({"ipBlock": {"cidr": cidr}})), "ports": [tcp(80)]});
    let names = json!({"ports": [{"protocol": "UDP", "port": DNS_PORT}, tcp(DNS_PORT)]});
    let rules = [json!({"ports": cluster_api_ports()}), json!({"ports": [tcp(443)]}), credentials, names];
    exactly(SYSTEM_NAMESPACE, Component::Aws, &[], &rules)
}

/// [`CLUSTER_API_PORTS`], as a rule has them.
pub(crate) fn cluster_api_ports() -> Value {
    json!(CLUSTER_API_PORTS.map(tcp))
}

/// Denies all connections of all pods of the namespace, also those of other users.
fn nothing(namespace: &str) -> Value {
    policy(namespace, "brupop-default-deny", &json!({}))
}

/// Allows further connections of the pods of one component. An empty list is omitted, as the API server omits it.
fn exactly(namespace: &str, component: Component, ingress: &[Value], egress: &[Value]) -> Value {
    let mut policy = policy(namespace, component.name(), &selector(component));
    policy["spec"]["egress"] = json!(egress);
    if !ingress.is_empty() {
        policy["spec"]["ingress"] = json!(ingress);
    }
    policy
}

fn policy(namespace: &str, name: &str, pods: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": namespaced(namespace, name),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress", "Egress"]},
    })
}

fn from(peer: &Value, port: i32) -> Value {
    json!({"from": [peer], "ports": [tcp(port)]})
}

fn to(peer: &Value, port: i32) -> Value {
    json!({"to": [peer], "ports": [tcp(port)]})
}

/// The pods of a component, by their namespace and their label: each alone would also match other pods.
fn pods_of(namespace: &str, component: Component) -> Value {
    let mut peer = in_namespaces(NAMESPACE_NAME, namespace);
    peer["podSelector"] = selector(component);
    peer
}

/// All pods of the namespaces with a label.
fn in_namespaces(label: &str, is: &str) -> Value {
    json!({"namespaceSelector": {"matchLabels": {label: is}}})
}

fn tcp(number: i32) -> Value {
    json!({"protocol": "TCP", "port": number})
}
