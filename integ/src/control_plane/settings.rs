//! Settings of each component of the control plane: arguments, kubeconfig, port.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rand::Rng;
use serde_json::json;

use super::Options;
use super::pki::{Identity, Pki};

/// The API server's audit policy.
pub(super) const AUDIT_POLICY: &str = include_str!("audit-policy.yaml");

/// The ports of one control plane, all on loopback. etcd, which does not authenticate clients, listens on a socket in
/// the private folder instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) apiserver: u16,
    pub(super) controller_manager: u16,
    pub(super) scheduler: u16,
}

/// Port of an API server for real nodes, which the NetworkPolicies of the operator allow.
const APISERVER_PORT: u16 = 6443;

impl Ports {
    /// Ports of a control plane with these options.
    pub(super) fn of(options: &Options) -> anyhow::Result<Self> {
        let ports = Self::choose()?;
        Ok(if options.for_nodes.is_some() { Self { apiserver: APISERVER_PORT, ..ports } } else { ports })
    }

    pub(super) fn choose() -> anyhow::Result<Self> {
        // All stay bound until all are chosen, so that they differ.
        let (one, two, three) = (free_port()?, free_port()?, free_port()?);
        Ok(Self {
            apiserver: one.local_addr()?.port(),
            controller_manager: two.local_addr()?.port(),
            scheduler: three.local_addr()?.port(),
        })
    }
}

/// Lowest port to choose from; many well-known services are below it.
const LOWEST_PORT: u16 = 15_000;

/// Finds a free port outside the kernel's range of ephemeral ports. While the API server is down on purpose, clients
/// that retry a port of that range end up connected to themselves, and then the server cannot bind it again.
fn free_port() -> anyhow::Result<TcpListener> {
    let limit = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    if limit > LOWEST_PORT + 1_000 {
        for _ in 0..100 {
            let port = rand::rng().random_range(LOWEST_PORT..limit);
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return Ok(listener);
            }
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on loopback")
}

/// etcd's socket in the folder of the test cluster.
pub(super) const ETCD_SOCKET: &str = "etcd.sock";

/// Limit of etcd's data where old revisions are not kept, in bytes: of a fleet, they are many within a minute.
const LARGE_QUOTA: u64 = 8 << 30;

/// Longest interval of the node controller's checks: Kubernetes' default.
const LONGEST_MONITOR_PERIOD: Duration = Duration::from_secs(5);

pub(super) fn etcd(bed: &Path, options: &Options) -> Vec<String> {
    let bed = bed.display();
    // The advertised addresses are for peers, and there are none: nothing listens there and nothing dials them.
    let mut all = arguments([
        "--name=bed".to_owned(),
        format!("--data-dir={bed}/etcd"),
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls=unix://{bed}/{ETCD_SOCKET}"),
        "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
        format!("--listen-peer-urls=unix://{bed}/etcd-peer.sock"),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=bed=http://127.0.0.1:2380".to_owned(),
        // A lone member elects itself after the election timeout; the default takes a second of every start.
        "--heartbeat-interval=20".to_owned(),
        "--election-timeout=200".to_owned(),
        "--log-level=warn".to_owned(),
    ]);
    if !options.keep_revisions {
        all.push(format!("--quota-backend-bytes={LARGE_QUOTA}"));
    }
    all
}

pub(super) fn apiserver(bed: &Path, pki: &Pki, ports: Ports, options: &Options) -> Vec<String> {
    let file = |name: &str| pki.file(name).display().to_string();
    let bed = bed.display();
    let mut all = arguments([
        format!("--etcd-servers=unix://{bed}/{ETCD_SOCKET}"),
        format!("--etcd-compaction-interval={}", if options.keep_revisions { "0" } else { "1m" }),
        format!("--watch-cache={}", options.watch_cache),
        format!("--secure-port={}", ports.apiserver),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={}", file("sa.pub")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        format!("--requestheader-client-ca-file={}", file("ca.crt")),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", file("front-proxy.crt")),
        format!("--proxy-client-key-file={}", file("front-proxy.key")),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
        format!("--audit-policy-file={bed}/audit-policy.yaml"),
        format!("--audit-log-path={bed}/audit.log"),
        // Never rotated: its readers remember their position.
        "--audit-log-maxsize=0".to_owned(),
    ]);
    all.extend(match options.for_nodes {
        None => vec![
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            // The API server refuses loopback addresses as endpoints, and it has no other.
            "--endpoint-reconciler-type=none".to_owned(),
        ],
        // On every address: the programs of this machine use loopback. Kubelets have certificates that they signed themselves.
        Some(address) => vec![
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={address}"),
            format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
        ],
    });
    all
}

pub(super) fn controller_manager(bed: &Path, pki: &Pki, ports: Ports, options: &Options) -> Vec<String> {
    let file = |name: &str| pki.file(name).display().to_string();
    let grace = options.node_monitor_grace.as_millis();
    // A large fleet costs the node controller as much in each of its checks as a small one does in many.
    let monitor_period = (options.node_monitor_grace / 10).min(LONGEST_MONITOR_PERIOD);
    let mut all = component(bed, pki, "controller-manager", ports.controller_manager);
    all.extend([
        "--use-service-account-credentials=true".to_owned(),
        format!("--service-account-private-key-file={}", file("sa.key")),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--cluster-signing-cert-file={}", file("ca.crt")),
        format!("--cluster-signing-key-file={}", file("ca.key")),
        format!("--controllers={}", options.controllers),
        format!("--node-monitor-period={}ms", monitor_period.as_millis()),
        format!("--node-monitor-grace-period={grace}ms"),
    ]);
    all
}

pub(super) fn scheduler(bed: &Path, pki: &Pki, ports: Ports) -> Vec<String> {
    component(bed, pki, "scheduler", ports.scheduler)
}

/// Common arguments of controller manager and scheduler. The request limits are far above their defaults, which make a
/// start four seconds slower.
fn component(bed: &Path, pki: &Pki, name: &str, port: u16) -> Vec<String> {
    let kubeconfig = bed.join(format!("{name}.kubeconfig")).display().to_string();
    let file = |name: &str| pki.file(name).display().to_string();
    arguments([
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file(&format!("{name}.crt"))),
        format!("--tls-private-key-file={}", file(&format!("{name}.key"))),
        "--leader-elect=false".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ])
}

fn arguments<const N: usize>(all: [String; N]) -> Vec<String> {
    all.into()
}

/// A kubeconfig that needs no other file, as JSON, which every YAML parser accepts.
pub(super) fn kubeconfig(
    url: &str,
    ca_pem: &str,
    identity: &Identity,
    namespace: Option<&str>,
) -> anyhow::Result<String> {
    let mut context = json!({"cluster": "bed", "user": "user"});
    if let Some(namespace) = namespace {
        context["namespace"] = namespace.into();
    }
    let data = |pem: &str| BASE64_STANDARD.encode(pem);
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": url, "certificate-authority-data": data(ca_pem)}}],
        "users": [{"name": "user", "user": {
            "client-certificate-data": data(&identity.certificate),
            "client-key-data": data(&identity.key),
        }}],
        "contexts": [{"name": "bed", "context": context}],
        "current-context": "bed",
    });
    Ok(serde_json::to_string_pretty(&content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_ports_are_distinct() {
        let ports = Ports::choose().unwrap();
        let mut all = [ports.apiserver, ports.controller_manager, ports.scheduler];
        all.sort_unstable();
        assert!(all[0] < all[1] && all[1] < all[2], "{all:?}");
    }
}
