//! The test cluster: a control plane, machines with kubelet stand-ins, the proxy between pods and Services, the
//! recorder for the oracle, and the operator, installed from its manifests.

mod install;
mod oracle_input;
mod programs;
pub mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use models::names;
use semver::Version;
use serde_json::{Value, json};

use crate::control_plane::{self, ControlPlane};
use crate::durations::ProcessorTimes;
use crate::host::{Host, HostOptions, Releases, Timings};
use crate::kubelet::{Addresses, Images, Kubelet, KubeletOptions, PodProcess};
use crate::oracle::{ClusterState, Field, History, Recorder};
use crate::proxy::{ConnectProxy, Sources};

pub use install::{install, prove};
pub use json_patch::merge;
pub use oracle_input::host_log;
pub use programs::Programs;

/// Longest wait until the node controller sees that new nodes are Ready.
const UNTAINTED: Duration = Duration::from_secs(240);

/// Options of a test cluster.
#[derive(Clone, Debug)]
pub struct TestClusterOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// The version that the nodes run at first.
    pub version: Version,
    /// Duration of the hosts' commands and reboots.
    pub timings: Timings,
    /// Merged over `spec` of the default policy that is installed, which is disabled; `null` installs no policy.
    pub policy: Value,
    /// A version that a node has proven already: otherwise the first node that is updated to it goes alone.
    pub proven: Option<Version>,
    /// Labels that the nodes register with, besides the operator's own.
    pub labels: BTreeMap<String, String>,
    /// Start with the operator's label on the nodes.
    pub labelled: bool,
    /// Options of the installation.
    pub deploy: deploy::Options,
    /// Install the shadows' definition that also serves the earlier operator's versions.
    pub takeover: bool,
    /// Longest time until a change of a ConfigMap or Secret reaches a pod's volume.
    pub volume_lag: Duration,
    /// The control plane.
    pub control_plane: control_plane::Options,
    /// API server address for pods on nodes added from now on, if it is not the server's own URL.
    pub pods_api_server: Option<String>,
    /// The addresses that the web API's clients come from.
    pub sources: Sources,
    /// Tag of the images of the next version's stand-in, if they are available.
    pub next: Option<String>,
}

impl Default for TestClusterOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            version: Version::new(1, 20, 0),
            timings: Timings::instant(),
            policy: json!({
                "version": {"refreshInterval": "1s"},
                "health": {"after": {"soak": "1s"}},
                "failurePolicy": {"backOff": "2s"},
                // These hosts shut down at once.
                "deadlines": {"shutdown": "5s"},
            }),
            proven: None,
            labels: BTreeMap::new(),
            labelled: true,
            deploy: deploy::Options::default(),
            takeover: false,
            volume_lag: Duration::ZERO,
            control_plane: control_plane::Options::default(),
            pods_api_server: None,
            sources: Sources::One,
            next: None,
        }
    }
}

/// One node: its machine and its kubelet stand-in.
pub struct TestNode {
    /// Name of the node.
    pub name: String,
    /// The machine.
    pub host: Host,
    /// The kubelet stand-in.
    pub kubelet: Kubelet,
}

/// A running test cluster. Dropping it ends all its processes and removes its files.
// The processor times are written first, while all processes run.
pub struct TestCluster {
    times: ProcessorTimes,
    /// The nodes, by number.
    pub members: Vec<TestNode>,
    /// The releases in the hosts' update repository.
    pub releases: Releases,
    /// Records the API server's history for the oracle.
    pub recorder: Recorder,
    /// An administrator's client.
    pub client: Client,
    /// The options that the test cluster was started with.
    pub options: TestClusterOptions,
    proxy: ConnectProxy,
    addresses: Addresses,
    images: Images,
    /// The control plane; dropped last.
    pub control_plane: ControlPlane,
}

impl TestCluster {
    /// Starts the control plane and the machines. The operator is not installed yet.
    pub async fn start(options: TestClusterOptions) -> anyhow::Result<Self> {
        let programs = Programs::find()?;
        let control_plane = ControlPlane::start(options.control_plane.clone()).await?;
        let times = ProcessorTimes::start(control_plane.dir());
        let client = control_plane.client();
        let recorder = Recorder::start(client.clone()).await?;
        let addresses = Addresses::claim()?;
        let proxy = ConnectProxy::start(client.clone(), addresses.clone(), options.sources).await?;
        let mut images = programs.images(&options.deploy);
        if let Some(tag) = &options.next {
            images =
                images.with(Programs::next()?.images(&deploy::Options { tag: tag.clone(), ..options.deploy.clone() }));
        }
        let releases = Releases::of([options.version.clone()]);
        let mut bed = Self {
            times,
            members: Vec::new(),
            releases,
            recorder,
            client,
            proxy,
            addresses,
            images,
            control_plane,
            options,
        };
        for number in 1..=bed.options.nodes {
            bed.add_node(&format!("node-{number}")).await?;
        }
        // A new node has a taint until the node controller has seen that it is Ready. Pods created earlier would all go
        // to the first node without the taint.
        bed.wait("every node takes pods", UNTAINTED, |history| {
            history.end().nodes.values().all(|node| !node.fields.contains_key(&Field::Taints))
        })
        .await?;
        Ok(bed)
    }

    /// Adds a machine with a kubelet stand-in.
    pub async fn add_node(&mut self, name: &str) -> anyhow::Result<&TestNode> {
        let root = self.control_plane.dir().join("h").join(name);
        let mut host_options = HostOptions::new(name, root, self.options.version.clone(), self.releases.clone());
        host_options.timings = self.options.timings.clone();
        let host = Host::start(host_options).await.with_context(|| format!("host of {name}"))?;
        let number = u8::try_from(self.members.len() + 1).context("too many nodes for one bed")?;
        let kubelet = self.kubelet(name, &host, number).await?;
        self.members.push(TestNode { name: name.to_owned(), host, kubelet });
        self.members.last().context("just added")
    }

    async fn kubelet(&self, name: &str, host: &Host, number: u8) -> anyhow::Result<Kubelet> {
        let client = self.control_plane.client_as(&format!("system:node:{name}"), &["system:nodes"])?;
        let mut options = KubeletOptions::new(
            client,
            self.options.pods_api_server.as_deref().unwrap_or(self.control_plane.url()),
            self.control_plane.ca_file(),
            self.control_plane.dir(),
            host.machine(),
            self.addresses.node(number),
        );
        options.images = self.images.clone();
        options.labels = self.options.labels.clone();
        options.volume_lag = self.options.volume_lag;
        // The relation of a real kubelet's interval to the default grace period.
        options.lease_period = self.options.control_plane.node_monitor_grace / 5;
        options.status_period = options.status_period.max(options.lease_period);
        if self.options.labelled {
            options.labels.insert(names::INTERFACE_LABEL.into(), names::INTERFACE_VERSION.into());
        }
        options.https_proxy = Some(self.proxy.url());
        Kubelet::start(options).await.with_context(|| format!("kubelet of {name}"))
    }

    /// Installs the operator as a user does: by server-side apply of the manifests.
    pub async fn install(&self) -> anyhow::Result<()> {
        install::install(&self.client, &self.options).await
    }

    /// The proxy through which pods without API access reach Services, for `HTTPS_PROXY`.
    pub fn proxy_url(&self) -> String {
        self.proxy.url()
    }

    /// Diverts the agents to a client that impersonates the web API, or back.
    pub fn divert(&self, to: Option<std::net::SocketAddr>) {
        self.proxy.divert(to);
    }

    /// Returns a node by its name.
    pub fn member(&self, name: &str) -> anyhow::Result<&TestNode> {
        self.members.iter().find(|m| m.name == name).with_context(|| format!("no node {name}"))
    }

    /// All processes of pods on all nodes.
    pub fn processes(&self) -> Vec<PodProcess> {
        self.members.iter().flat_map(|m| m.kubelet.processes()).collect()
    }

    /// The processes of one component of the operator.
    pub fn processes_of(&self, component: deploy::Component) -> Vec<PodProcess> {
        let image = deploy::image(component, &self.options.deploy);
        self.processes().into_iter().filter(|p| p.image == image).collect()
    }

    /// The files with the output of the pods' containers.
    pub fn log_files(&self) -> Vec<PathBuf> {
        self.processes().iter().filter_map(|process| self.log_file(process).ok()).collect()
    }

    /// The file with the output of a process.
    pub fn log_file(&self, process: &PodProcess) -> anyhow::Result<PathBuf> {
        let PodProcess { namespace, pod, container, .. } = process;
        let found = self.members.iter().find_map(|member| member.kubelet.log_file(namespace, pod, container));
        found.with_context(|| format!("{namespace}/{pod} has no log"))
    }

    /// Waits until the history meets a condition.
    pub async fn wait(
        &self,
        what: &str,
        limit: Duration,
        holds: impl FnMut(&History) -> bool,
    ) -> anyhow::Result<History> {
        self.recorder.wait_until(what, limit, holds).await
    }

    /// Waits until the cluster state meets a condition, which sees the state after every change.
    pub async fn wait_state(
        &self,
        what: &str,
        limit: Duration,
        holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<ClusterState> {
        self.recorder.wait_until_state(what, limit, holds).await
    }

    /// Waits until every node runs `version`, idle and released.
    pub async fn wait_updated(&self, version: &Version, limit: Duration) -> anyhow::Result<History> {
        let nodes: Vec<String> = self.members.iter().map(|m| m.name.clone()).collect();
        self.wait(&format!("every node on {version}, idle and schedulable"), limit, |history| {
            let end = history.end();
            nodes.iter().all(|name| end.is_updated(name, version))
                && end.operator.as_ref().is_none_or(|o| o.status.slots.is_empty())
        })
        .await
    }
}
