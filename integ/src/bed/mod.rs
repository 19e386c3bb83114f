//! The whole bed: a control plane, machines with kubelets, the proxy between pods and Services, the recorder for the
//! oracle, and the operator installed from its own manifests.

mod install;
mod programs;
mod witness;
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
use crate::host::{Host, HostOptions, Releases, Timings};
use crate::kubelet::{Addresses, Images, Kubelet, KubeletOptions, PodProcess};
use crate::oracle::{Field, History, Recorder};
use crate::proxy::ConnectProxy;

pub use install::merge;
pub use programs::Programs;
pub use witness::host_log;

/// How long the node controller may take to see that new nodes are Ready.
const UNTAINTED: Duration = Duration::from_secs(60);

/// What a bed is made of.
#[derive(Clone, Debug)]
pub struct BedOptions {
    /// How many nodes.
    pub nodes: usize,
    /// The version that they run at first.
    pub version: Version,
    /// How long the commands and the reboots of the hosts take.
    pub timings: Timings,
    /// Merged over `spec` of the default policy that is installed; `null` installs no policy at all.
    pub policy: Value,
    /// Labels that the nodes register with, beside the one that puts them under the operator.
    pub labels: BTreeMap<String, String>,
    /// Whether the nodes carry the label that puts them under the operator from the start.
    pub labelled: bool,
    /// What is installed.
    pub deploy: deploy::Options,
    /// The longest that a change of a ConfigMap or Secret takes to reach a pod's volume.
    pub volume_lag: Duration,
    /// The control plane.
    pub control_plane: control_plane::Options,
    /// Where pods on nodes that are added from now on find the API server, if not under its own URL.
    pub pods_api_server: Option<String>,
    /// The tag under which the images of the stand-in for the next version are there as well, if they are.
    pub next: Option<String>,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            version: Version::new(1, 20, 0),
            timings: Timings::instant(),
            policy: json!({
                "version": {"refreshInterval": "1s"},
                "health": {"after": {"soak": "1s"}},
                "failurePolicy": {"backOff": "2s"},
                // These hosts go down at once.
                "deadlines": {"shutdown": "5s"},
            }),
            labels: BTreeMap::new(),
            labelled: true,
            deploy: deploy::Options::default(),
            volume_lag: Duration::ZERO,
            control_plane: control_plane::Options::default(),
            pods_api_server: None,
            next: None,
        }
    }
}

/// One node: its machine and the kubelet on it.
pub struct Member {
    /// The node's name.
    pub name: String,
    /// Its machine.
    pub host: Host,
    /// Its kubelet.
    pub kubelet: Kubelet,
}

/// A running bed. Dropping it ends every process of it and removes its files.
pub struct Bed {
    /// The nodes, by number.
    pub members: Vec<Member>,
    /// What the hosts' update repository offers.
    pub releases: Releases,
    /// Records the server's history for the oracle.
    pub recorder: Recorder,
    /// An administrator's client.
    pub client: Client,
    /// What the bed was made from.
    pub options: BedOptions,
    proxy: ConnectProxy,
    addresses: Addresses,
    images: Images,
    /// The control plane; dropped last.
    pub control_plane: ControlPlane,
}

impl Bed {
    /// Starts the control plane and the machines. The operator is not installed yet.
    pub async fn start(options: BedOptions) -> anyhow::Result<Self> {
        let programs = Programs::find()?;
        let control_plane = ControlPlane::start(options.control_plane.clone()).await?;
        let client = control_plane.client();
        let recorder = Recorder::start(client.clone()).await?;
        let addresses = Addresses::claim()?;
        let proxy = ConnectProxy::start(client.clone(), addresses.clone()).await?;
        let mut images = programs.images(&options.deploy);
        if let Some(tag) = &options.next {
            images =
                images.with(Programs::next()?.images(&deploy::Options { tag: tag.clone(), ..options.deploy.clone() }));
        }
        let releases = Releases::of([options.version.clone()]);
        let mut bed =
            Self { members: Vec::new(), releases, recorder, client, proxy, addresses, images, control_plane, options };
        for number in 1..=bed.options.nodes {
            bed.add_node(&format!("node-{number}")).await?;
        }
        // A new node carries a taint until the node controller has seen that it is Ready. Pods that come earlier would all
        // go to the first node that has lost it.
        bed.wait("every node takes pods", UNTAINTED, |history| {
            history.end().nodes.values().all(|node| !node.fields.contains_key(&Field::Taints))
        })
        .await?;
        Ok(bed)
    }

    /// Adds a machine with a kubelet.
    pub async fn add_node(&mut self, name: &str) -> anyhow::Result<&Member> {
        let root = self.control_plane.dir().join("h").join(name);
        let mut host_options = HostOptions::new(name, root, self.options.version.clone(), self.releases.clone());
        host_options.timings = self.options.timings.clone();
        let host = Host::start(host_options).await.with_context(|| format!("host of {name}"))?;
        let number = u8::try_from(self.members.len() + 1).context("too many nodes for one bed")?;
        let kubelet = self.kubelet(name, &host, number).await?;
        self.members.push(Member { name: name.to_owned(), host, kubelet });
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
        if self.options.labelled {
            options.labels.insert(names::INTERFACE_LABEL.into(), names::INTERFACE_VERSION.into());
        }
        options.https_proxy = Some(self.proxy.url());
        Kubelet::start(options).await.with_context(|| format!("kubelet of {name}"))
    }

    /// Installs the operator as a user would: a server-side apply of everything that the manifest holds.
    pub async fn install(&self) -> anyhow::Result<()> {
        install::install(&self.client, &self.options).await
    }

    /// The proxy through which pods without API access reach Services, as `HTTPS_PROXY` has it.
    pub fn proxy_url(&self) -> String {
        self.proxy.url()
    }

    /// Leads the agents to a client who has taken the web API's place, or back to it.
    pub fn divert(&self, to: Option<std::net::SocketAddr>) {
        self.proxy.divert(to);
    }

    /// A node by its name.
    pub fn member(&self, name: &str) -> anyhow::Result<&Member> {
        self.members.iter().find(|m| m.name == name).with_context(|| format!("no node {name}"))
    }

    /// All processes of pods, over all nodes.
    pub fn processes(&self) -> Vec<PodProcess> {
        self.members.iter().flat_map(|m| m.kubelet.processes()).collect()
    }

    /// The processes of one part of the operator.
    pub fn processes_of(&self, component: deploy::Component) -> Vec<PodProcess> {
        let image = deploy::image(component, &self.options.deploy);
        self.processes().into_iter().filter(|p| p.image == image).collect()
    }

    /// Where the output of a pod's container is.
    pub fn log_files(&self) -> Vec<PathBuf> {
        self.members
            .iter()
            .flat_map(|m| {
                m.kubelet
                    .processes()
                    .into_iter()
                    .filter_map(|p| m.kubelet.log_file(&p.namespace, &p.pod, &p.container))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Waits until the history fulfils a condition.
    pub async fn wait(
        &self,
        what: &str,
        limit: Duration,
        holds: impl FnMut(&History) -> bool,
    ) -> anyhow::Result<History> {
        self.recorder.wait_until(what, limit, holds).await
    }

    /// Waits until every node runs `version`, idle and released.
    pub async fn wait_updated(&self, version: &Version, limit: Duration) -> anyhow::Result<History> {
        let nodes: Vec<String> = self.members.iter().map(|m| m.name.clone()).collect();
        self.wait(&format!("every node on {version}, idle and schedulable"), limit, |history| {
            let end = history.end();
            nodes.iter().all(|name| witness::is_updated(&end, name, version))
                && end.operator.as_ref().is_none_or(|o| o.status.slots.is_empty())
        })
        .await
    }
}
