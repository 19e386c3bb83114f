//! The shared parts of the kubelets of a fleet: one client, the nodes, and the repetition of writes that fail.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config};
use models::names::{AGENT_NAMESPACE, TRUST_CA_KEY, TRUST_CONFIG_MAP, TRUST_PERMIT_KEYS};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::agents::AgentProgram;
use super::agents::Agents;
use super::pods::PodStep;
use super::spec::FleetSpec;
use crate::host::Host;

/// Number of requests of the kubelets under way at a time. Each has a connection.
const REQUESTS_AT_ONCE: usize = 32;

/// Shortest pause before a write is repeated; the longest is twice as long.
const RETRY: Duration = Duration::from_millis(1_000);

/// One node of the fleet, as its kubelet and the watch of pods share it.
pub(super) struct FleetNode {
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) host: Host,
    /// The agent's pod, as the API server showed it last.
    pub(super) agent_pod: watch::Sender<Option<Arc<Pod>>>,
}

/// The kubelets of a fleet.
pub(super) struct Kubelets {
    pub(super) spec: FleetSpec,
    pub(super) client: Client,
    pub(super) agents: Agents,
    pub(super) program: AgentProgram,
    pub(super) nodes: HashMap<String, Arc<FleetNode>>,
    /// The steps of pods that are under way, by the pod's uid.
    pub(super) steps: Mutex<HashSet<(String, PodStep)>>,
    /// Number of writes that failed and were repeated.
    pub(super) failures: AtomicUsize,
    turn: Semaphore,
}

/// A client of the cluster's administrator, past the proxy that the agents find in the environment.
pub(super) async fn client(spec: &FleetSpec) -> anyhow::Result<Client> {
    let file = kube::config::Kubeconfig::read_from(&spec.kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

impl Kubelets {
    pub(super) fn new(
        spec: FleetSpec,
        client: Client,
        program: AgentProgram,
        nodes: Vec<FleetNode>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            spec,
            client,
            agents: Agents::new(program)?,
            program,
            nodes: nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect(),
            steps: Mutex::default(),
            failures: AtomicUsize::new(0),
            turn: Semaphore::new(REQUESTS_AT_ONCE),
        })
    }

    /// Makes a request until it succeeds, or its object is gone.
    pub(super) async fn repeat<T, F>(&self, mut request: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        loop {
            let result = {
                // Never closed.
                let _turn = self.turn.acquire().await;
                request().await
            };
            match result {
                Ok(done) => return Some(done),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return None,
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%error, "a request of a kubelet is repeated");
                    sleep(RETRY.mul_f64(1.0 + rand::random::<f64>())).await;
                }
            }
        }
    }

    /// Keeps the trust of the agents as the ConfigMap has it, at once.
    pub(super) async fn follow_trust(self: Arc<Self>) {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        let only = watcher::Config::default().fields(&format!("metadata.name={TRUST_CONFIG_MAP}"));
        let mut maps = Box::pin(watcher(maps, only).default_backoff().applied_objects());
        while let Some(next) = futures::StreamExt::next(&mut maps).await {
            let Ok(map) = next else { continue };
            let data = map.data.unwrap_or_default();
            for key in [TRUST_CA_KEY, TRUST_PERMIT_KEYS] {
                let content = data.get(key).cloned().unwrap_or_default();
                if let Err(error) = replace(&self.spec.trust().join(key), &content) {
                    tracing::warn!(%error, key, "the trust of the agents cannot be written");
                }
            }
        }
    }
}

/// Replaces a file: a reader sees the old content or the new one.
pub(super) fn replace(file: &std::path::Path, content: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, content)?;
    std::fs::rename(&new, file)
}
