//! Allowed connections, by the NetworkPolicies in the API server and the pods that its controllers created. No plugin
//! enforces them here: the test evaluates their content.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, COMPONENT_LABEL, CONTROLLER, METRICS_ENABLED, METRICS_LABEL, SYSTEM_NAMESPACE,
};

type Labels = BTreeMap<String, String>;

/// A source or destination of connections: a pod, or an address outside of the cluster.
#[derive(Clone, Debug, Default)]
struct NetworkPeer {
    title: String,
    namespace: String,
    namespace_labels: Labels,
    labels: Labels,
    is_pod: bool,
}

/// A pod.
fn peer(title: &str, namespace: &str, namespace_labels: Labels, labels: Labels) -> NetworkPeer {
    NetworkPeer { title: title.to_owned(), namespace: namespace.to_owned(), namespace_labels, labels, is_pod: true }
}

/// Source, destination, protocol and port.
type AllowedConnection = (String, String, &'static str, i32);

const OUTSIDE: &str = "outside";
const MONITORING: &str = "monitoring";
const OTHER: &str = "default";

pub(super) async fn network_policies_allow_only_required_connections(client: Client) -> anyhow::Result<()> {
    let policies: Vec<NetworkPolicy> = Api::<NetworkPolicy>::all(client.clone()).list(&Default::default()).await?.items;
    let ours = operator_pods(&client).await?;
    let api = port(&ours[APISERVER], "https")?;
    let metrics: Vec<i32> =
        [APISERVER, CONTROLLER].iter().map(|of| port(&ours[*of], "metrics")).collect::<Result<_, _>>()?;
    ensure!(ours[AGENT].spec.iter().flat_map(|s| &s.containers).all(|c| c.ports.is_none()), "an agent serves nothing");
    let namespaces = Api::<Namespace>::all(client).list(&Default::default()).await?;
    let labels_of = |name: &str| {
        let found = namespaces.iter().find(|namespace| namespace.name_any() == name);
        found.map(|namespace| namespace.labels().clone()).unwrap_or_default()
    };
    let pod = |title: &str, namespace: &str, labels: Labels| peer(title, namespace, labels_of(namespace), labels);
    let component = |of: &str| Labels::from([(COMPONENT_LABEL.to_owned(), of.to_owned())]);
    let mut all: Vec<NetworkPeer> = ours
        .iter()
        .map(|(title, pod_)| pod(title, &pod_.namespace().unwrap_or_default(), pod_.labels().clone()))
        .collect();
    let mut monitoring = pod(MONITORING, MONITORING, Labels::new());
    monitoring.namespace_labels.insert(METRICS_LABEL.to_owned(), METRICS_ENABLED.to_owned());
    all.extend([
        monitoring,
        pod(OTHER, OTHER, Labels::new()),
        // Pods with the operator's labels in another namespace, and other pods in the operator's namespace.
        pod("impostor", OTHER, component(AGENT)),
        pod("guest of the system", SYSTEM_NAMESPACE, component("guest")),
        pod("guest of the agents", AGENT_NAMESPACE, Labels::new()),
        NetworkPeer { title: OUTSIDE.to_owned(), ..NetworkPeer::default() },
    ]);

    let ports = [
        ("TCP", api),
        ("TCP", metrics[0]),
        ("TCP", 9090),
        ("TCP", 443),
        ("TCP", 6443),
        ("TCP", 53),
        ("UDP", 53),
        ("UDP", api),
        ("TCP", 22),
    ];
    let ours = |party: &NetworkPeer| [SYSTEM_NAMESPACE, AGENT_NAMESPACE].contains(&party.namespace.as_str());
    let mut allowed = BTreeSet::new();
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
        if from.title == to.title || !(ours(from) || ours(to)) {
            continue;
        }
        for (protocol, number) in ports {
            if allows_egress(&policies, from, to, protocol, number)
                && allows_ingress(&policies, from, to, protocol, number)
            {
                allowed.insert((from.title.clone(), to.title.clone(), protocol, number));
            }
        }
    }
    assert_eq!(allowed, expected_connections(api, &metrics));
    Ok(())
}

/// Checks that the documented policy for a Prometheus in another place opens the way to it, and nothing else.
pub(super) async fn documented_network_policy_allows_custom_prometheus(client: Client) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(super::docs("expressions.md"))?;
    let block = super::blocks(&text).into_iter().find(|block| block.contains("kind: NetworkPolicy"));
    let shown: NetworkPolicy = serde_saphyr::from_str(block.context("no NetworkPolicy is shown")?)?;
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let held = policies.create(&PostParams { dry_run: true, ..PostParams::default() }, &shown).await?;
    let mut all = Api::<NetworkPolicy>::all(client).list(&Default::default()).await?.items;
    let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
    let pod = |title: &str, namespace: &str, own: Labels| {
        peer(title, namespace, labels("kubernetes.io/metadata.name", namespace), own)
    };
    let controller = pod(CONTROLLER, SYSTEM_NAMESPACE, labels(COMPONENT_LABEL, CONTROLLER));
    let thanos = pod("thanos", "observability", Labels::new());
    assert!(!allows_egress(&all, &controller, &thanos, "TCP", 10902));
    all.push(held);
    assert!(allows_egress(&all, &controller, &thanos, "TCP", 10902));
    assert!(!allows_egress(&all, &controller, &pod("other", OTHER, Labels::new()), "TCP", 10902));
    assert!(!allows_egress(&all, &controller, &thanos, "TCP", 22));
    Ok(())
}

/// The connections that each component needs, and nothing else.
fn expected_connections(api: i32, metrics: &[i32]) -> BTreeSet<AllowedConnection> {
    let connection = |from: &str, to: &str, protocol, port| (from.to_owned(), to.to_owned(), protocol, port);
    let mut expected_connections = BTreeSet::from([
        connection(AGENT, APISERVER, "TCP", api),
        connection(MONITORING, APISERVER, "TCP", metrics[0]),
        connection(MONITORING, CONTROLLER, "TCP", metrics[1]),
        connection(CONTROLLER, MONITORING, "TCP", 9090),
    ]);
    // The cluster's API server and DNS have no address that a policy could name.
    for peer in [OUTSIDE, MONITORING, OTHER, "impostor"] {
        for of in [APISERVER, CONTROLLER] {
            expected_connections.extend([443, 6443].map(|port| connection(of, peer, "TCP", port)));
        }
        for of in [AGENT, APISERVER, CONTROLLER] {
            expected_connections.extend(["TCP", "UDP"].map(|protocol| connection(of, peer, protocol, 53)));
        }
    }
    expected_connections
}

/// A pod of each component, by component.
async fn operator_pods(client: &Client) -> anyhow::Result<BTreeMap<String, Pod>> {
    let mut ours = BTreeMap::new();
    for (namespace, part) in [(SYSTEM_NAMESPACE, APISERVER), (SYSTEM_NAMESPACE, CONTROLLER), (AGENT_NAMESPACE, AGENT)] {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&Default::default()).await?;
        let of_part = |pod: &Pod| pod.metadata.owner_references.iter().flatten().any(|o| o.name.starts_with(part));
        let pod = pods.items.into_iter().find(of_part).with_context(|| format!("no pod of {part}"))?;
        ours.insert(part.to_owned(), pod);
    }
    Ok(ours)
}

/// The number of a pod's named port.
fn port(pod: &Pod, name: &str) -> anyhow::Result<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref() == Some(name));
    Ok(found.with_context(|| format!("{} has no port {name}", pod.name_any()))?.container_port)
}

/// The policies about a pod in one direction; none about an address outside of the cluster.
fn policies_for<'a>(
    policies: &'a [NetworkPolicy],
    party: &'a NetworkPeer,
    direction: &'a str,
) -> impl Iterator<Item = &'a NetworkPolicy> {
    policies.iter().filter(move |policy| {
        let Some(spec) = &policy.spec else { return false };
        party.is_pod
            && policy.metadata.namespace.as_ref() == Some(&party.namespace)
            && spec.policy_types.iter().flatten().any(|type_| type_ == direction)
            && spec.pod_selector.as_ref().is_none_or(|selector| selects(selector, &party.labels))
    })
}

fn allows_egress(policies: &[NetworkPolicy], from: &NetworkPeer, to: &NetworkPeer, protocol: &str, port: i32) -> bool {
    let rules: Vec<_> = policies_for(policies, from, "Egress").collect();
    let mut egress = rules.iter().flat_map(|policy| policy.spec.iter().flat_map(|spec| spec.egress.iter().flatten()));
    rules.is_empty()
        || egress.any(|rule| is_peer(rule.to.as_deref(), from, to) && is_port(rule.ports.as_deref(), protocol, port))
}

fn allows_ingress(policies: &[NetworkPolicy], from: &NetworkPeer, to: &NetworkPeer, protocol: &str, port: i32) -> bool {
    let rules: Vec<_> = policies_for(policies, to, "Ingress").collect();
    let mut ingress = rules.iter().flat_map(|policy| policy.spec.iter().flat_map(|spec| spec.ingress.iter().flatten()));
    rules.is_empty()
        || ingress.any(|rule| is_peer(rule.from.as_deref(), to, from) && is_port(rule.ports.as_deref(), protocol, port))
}

/// Returns true if a rule of a policy in the namespace of `own` includes `party`. A rule without peers includes all.
fn is_peer(peers: Option<&[NetworkPolicyPeer]>, own: &NetworkPeer, party: &NetworkPeer) -> bool {
    let Some(peers) = peers.filter(|peers| !peers.is_empty()) else { return true };
    peers.iter().any(|peer| {
        let namespace = match &peer.namespace_selector {
            Some(selector) => selects(selector, &party.namespace_labels),
            None => party.namespace == own.namespace,
        };
        party.is_pod
            && peer.ip_block.is_none()
            && namespace
            && peer.pod_selector.as_ref().is_none_or(|selector| selects(selector, &party.labels))
    })
}

fn is_port(ports: Option<&[NetworkPolicyPort]>, protocol: &str, number: i32) -> bool {
    let Some(ports) = ports.filter(|ports| !ports.is_empty()) else { return true };
    ports.iter().any(|port| {
        port.protocol.as_deref() == Some(protocol)
            && port.port == Some(IntOrString::Int(number))
            && port.end_port.is_none()
    })
}

/// Evaluates a selector; the operator's select by equality alone.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    assert!(selector.match_expressions.is_none(), "not looked at here");
    selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
}
