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

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use models::names::{AGENT_NAMESPACE, METRICS_ENABLED, METRICS_LABEL, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::object::{namespaced, selector, value};
use crate::options::Component;
use crate::{apiserver, pod};

/// Ports of the cluster's API server: behind its Service, and where it listens in most clusters that are not managed.
/// It runs on the host's network or outside of the cluster, so no selector matches it, and its addresses change.
const CLUSTER_API_PORTS: [i32; 2] = [443, 6443];

/// Port of DNS. Its server may be a pod, or an address of the node's own (a cache on each node): any address is
/// allowed.
const DNS_PORT: i32 = 53;

/// Port of Prometheus' own pods, for the expressions of a policy. If policy names another one, a further NetworkPolicy
/// has to open it (`docs/expressions.md`).
const PROMETHEUS_PORT: i32 = 9090;

/// Label that Kubernetes puts on each namespace: its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    let scrapes = || from(in_namespaces(METRICS_LABEL, METRICS_ENABLED), [tcp(pod::PLAIN_PORT)]);
    let cluster_api = || to_anybody(CLUSTER_API_PORTS.map(tcp));
    let names = || to_anybody([udp(DNS_PORT), tcp(DNS_PORT)]);
    [
        nothing(SYSTEM_NAMESPACE),
        exactly(
            SYSTEM_NAMESPACE,
            Component::Apiserver,
            vec![from(pods_of(AGENT_NAMESPACE, Component::Agent), [tcp(apiserver::TLS_PORT)]), scrapes()],
            vec![cluster_api(), names()],
        ),
        exactly(
            SYSTEM_NAMESPACE,
            Component::Controller,
            vec![scrapes()],
            vec![cluster_api(), names(), to(in_namespaces(METRICS_LABEL, METRICS_ENABLED), [tcp(PROMETHEUS_PORT)])],
        ),
        nothing(AGENT_NAMESPACE),
        exactly(
            AGENT_NAMESPACE,
            Component::Agent,
            vec![],
            vec![to(pods_of(SYSTEM_NAMESPACE, Component::Apiserver), [tcp(apiserver::TLS_PORT)]), names()],
        ),
    ]
    .into_iter()
    .map(value)
    .collect()
}

/// Denies all connections of all pods of the namespace, also those of other users.
fn nothing(namespace: &str) -> NetworkPolicy {
    policy(namespace, "brupop-default-deny", LabelSelector::default(), None, None)
}

/// Allows further connections of the pods of one component. An empty list is omitted, as the API server omits it.
fn exactly(
    namespace: &str,
    component: Component,
    ingress: Vec<NetworkPolicyIngressRule>,
    egress: Vec<NetworkPolicyEgressRule>,
) -> NetworkPolicy {
    let ingress = Some(ingress).filter(|rules| !rules.is_empty());
    policy(namespace, component.name(), selector(component), ingress, Some(egress))
}

fn policy(
    namespace: &str,
    name: &str,
    pods: LabelSelector,
    ingress: Option<Vec<NetworkPolicyIngressRule>>,
    egress: Option<Vec<NetworkPolicyEgressRule>>,
) -> NetworkPolicy {
    NetworkPolicy {
        metadata: namespaced(namespace, name),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress,
            egress,
        }),
    }
}

fn from<const N: usize>(peer: NetworkPolicyPeer, ports: [NetworkPolicyPort; N]) -> NetworkPolicyIngressRule {
    NetworkPolicyIngressRule { from: Some(vec![peer]), ports: Some(ports.into()) }
}

fn to<const N: usize>(peer: NetworkPolicyPeer, ports: [NetworkPolicyPort; N]) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: Some(vec![peer]), ports: Some(ports.into()) }
}

fn to_anybody<const N: usize>(ports: [NetworkPolicyPort; N]) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: None, ports: Some(ports.into()) }
}

/// The pods of a component, by their namespace and their label: each alone would also match other pods.
fn pods_of(namespace: &str, component: Component) -> NetworkPolicyPeer {
    NetworkPolicyPeer { pod_selector: Some(selector(component)), ..in_namespaces(NAMESPACE_NAME, namespace) }
}

/// All pods of the namespaces with a label.
fn in_namespaces(label: &str, is: &str) -> NetworkPolicyPeer {
    let labels = [(label.to_owned(), is.to_owned())];
    NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector { match_labels: Some(labels.into()), ..LabelSelector::default() }),
        ..NetworkPolicyPeer::default()
    }
}

fn tcp(number: i32) -> NetworkPolicyPort {
    port("TCP", number)
}

fn udp(number: i32) -> NetworkPolicyPort {
    port("UDP", number)
}

fn port(protocol: &str, number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(number)),
        ..NetworkPolicyPort::default()
    }
}
