//! The cluster of a fleet: the control plane, two nodes that run the operator's programs as processes, and the proxy to its
//! Services.

use std::time::Duration;

use anyhow::Context as _;
use deploy::Component;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::names::{APISERVER, COMPONENT_LABEL, CONTROLLER, SYSTEM_NAMESPACE};
use semver::Version;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::requests::OUTLINE;
use crate::bed::{Programs, TestClusterOptions, install, workload};
use crate::control_plane::{self, ControlPlane};
use crate::host::{Host, HostOptions, Releases};
use crate::kubelet::{Addresses, Kubelet, KubeletOptions, PodProcess};
use crate::proxy::{ConnectProxy, Sources};

/// Number of nodes that run the operator's programs.
const SYSTEM_NODES: u8 = 2;

/// Time without a heartbeat after which a node is not Ready: longer than a run, as the Leases of the fleet are left out.
const MONITOR_GRACE: Duration = Duration::from_secs(6 * 3600);

/// Longest wait until the operator runs.
const INSTALLED: Duration = Duration::from_secs(600);

/// The cluster. Dropping it ends all its processes.
pub(super) struct FleetCluster {
    kubelets: Vec<(Kubelet, Host)>,
    deploy: deploy::Options,
    proxy: ConnectProxy,
    addresses: Addresses,
    /// An administrator's client.
    pub client: Client,
    /// The control plane; dropped last.
    pub control_plane: ControlPlane,
}

impl FleetCluster {
    /// Starts the cluster with the operator, without nodes that it updates, so that its pods are bound to the two that run
    /// processes.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let control_plane = ControlPlane::start(control_plane::Options {
            node_monitor_grace: MONITOR_GRACE,
            keep_revisions: false,
            audit_policy: OUTLINE,
            ..control_plane::Options::default()
        })
        .await?;
        let client = control_plane.client();
        let addresses = Addresses::claim()?;
        let proxy = ConnectProxy::start(client.clone(), addresses.clone(), Sources::Each).await?;
        let deploy = deploy::Options::default();
        let mut cluster = Self { kubelets: Vec::new(), deploy, proxy, addresses, client, control_plane };
        for number in 1..=SYSTEM_NODES {
            cluster.add_node(number).await?;
        }
        let began = Instant::now();
        while !cluster.takes_pods().await? {
            anyhow::ensure!(began.elapsed() < INSTALLED, "the nodes take no pods");
            sleep(Duration::from_millis(500)).await;
        }
        let options = TestClusterOptions { policy: Value::Null, ..TestClusterOptions::default() };
        install(&cluster.client, &options).await?;
        let (controllers, web_apis) = (cluster.deploy.controller_replicas, cluster.deploy.apiserver_replicas);
        while cluster.ready_pods().await? < usize::from(controllers + web_apis) {
            anyhow::ensure!(began.elapsed() < INSTALLED, "the operator's pods are not Ready");
            sleep(Duration::from_millis(500)).await;
        }
        Ok(cluster)
    }

    async fn add_node(&mut self, number: u8) -> anyhow::Result<()> {
        let name = format!("system-{number}");
        let plane = &self.control_plane;
        let version = Version::new(1, 0, 0);
        let releases = Releases::of([version.clone()]);
        let root = plane.dir().join("h").join(&name);
        let host = Host::start(HostOptions::new(name.clone(), root, version, releases)).await?;
        let client = plane.client_as(&format!("system:node:{name}"), &["system:nodes"])?;
        let address = self.addresses.node(number);
        let mut options =
            KubeletOptions::new(client, plane.url(), plane.ca_file(), plane.dir(), host.machine(), address);
        options.images = Programs::find()?.images(&self.deploy);
        options.lease_period = Duration::from_secs(10);
        options.https_proxy = Some(self.proxy.url());
        let kubelet = Kubelet::start(options).await.with_context(|| format!("kubelet of {name}"))?;
        self.kubelets.push((kubelet, host));
        Ok(())
    }

    /// Returns true once the node controller has removed the first taint of all nodes.
    async fn takes_pods(&self) -> anyhow::Result<bool> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?;
        let untainted = |node: &Node| node.spec.as_ref().is_none_or(|spec| spec.taints.is_none());
        Ok(nodes.items.len() == usize::from(SYSTEM_NODES) && nodes.iter().all(untainted))
    }

    async fn ready_pods(&self) -> anyhow::Result<usize> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), SYSTEM_NAMESPACE).list(&ListParams::default()).await?;
        Ok(pods.iter().filter(|pod| super::pods::is_ready(pod)).count())
    }

    /// Applies the policy.
    pub(super) async fn apply_policy(&self, spec: &Value) -> anyhow::Result<()> {
        let operator = json!({
            "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
            "metadata": {"name": "default", "namespace": SYSTEM_NAMESPACE},
            "spec": spec,
        });
        workload::apply(&self.client, vec![operator]).await
    }

    /// The proxy of the agents.
    pub(super) fn proxy_url(&self) -> String {
        self.proxy.url()
    }

    /// The operator's processes of a component.
    pub(super) fn processes_of(&self, component: Component) -> Vec<PodProcess> {
        let image = deploy::image(component, &self.deploy);
        let all = self.kubelets.iter().flat_map(|(kubelet, _)| kubelet.processes());
        all.filter(|process| process.image == image).collect()
    }

    /// The addresses of the metrics of the controllers, and of the web APIs.
    pub(super) async fn metrics(&self) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), SYSTEM_NAMESPACE).list(&ListParams::default()).await?;
        let of = |component: &str| {
            pods.iter()
                .filter(|pod| pod.labels().get(COMPONENT_LABEL).is_some_and(|label| label == component))
                .filter_map(|pod| self.addresses.process_ip(pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?))
                .map(|ip| format!("http://{ip}:8080/metrics"))
                .collect()
        };
        Ok((of(CONTROLLER), of(APISERVER)))
    }
}
