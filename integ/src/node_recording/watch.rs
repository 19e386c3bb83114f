//! Collects the states of one Node, its Lease, and the pods of one namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use futures::TryStreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Line, Seen, sequences, states};

/// Pause between two looks at what was collected.
const LOOK: Duration = Duration::from_millis(100);

/// Everything that was collected.
#[derive(Debug, Default)]
pub struct Collected {
    /// The states, in order.
    pub seen: Vec<Seen>,
    /// The Node.
    pub node: Option<Node>,
    /// The Lease.
    pub lease: Option<Lease>,
    /// The pods that exist, by uid.
    pub pods: BTreeMap<String, Pod>,
    /// The time of the last change of a field of a pod.
    changed: Option<Instant>,
    step: String,
    boots: Vec<String>,
    /// The uids of the pods of each app, in order of creation.
    names: BTreeMap<String, Vec<String>>,
    /// The Lease's time when the step began.
    renewed: Option<MicroTime>,
}

impl Collected {
    /// Adds a state that was found otherwise.
    pub fn add(&mut self, object: &str, fields: states::Fields) {
        self.seen.push(Seen { step: self.step.clone(), object: object.to_owned(), fields });
    }

    fn renewal(&self) -> Option<MicroTime> {
        self.lease.as_ref()?.spec.as_ref()?.renew_time.clone()
    }

    /// Remembers the Lease's time, for [`Self::end_step`].
    fn begin_step(&mut self, step: &str) {
        step.clone_into(&mut self.step);
        self.renewed = self.renewal();
        if let Some(node) = self.node.take() {
            self.add_node(node);
        }
    }

    /// Adds `renewed` of the Lease to a step that is over.
    fn end_step(&mut self) {
        let renewed = self.renewal() != self.renewed;
        self.add("lease", [("renewed".to_owned(), renewed.to_string())].into());
    }

    fn add_node(&mut self, node: Node) {
        let fields = states::node(&node, &mut self.boots);
        self.add("node", fields);
        self.node = Some(node);
    }

    /// `pod web` for the first pod with the label `app: web`, `pod web 2` for the one that replaces it.
    fn add_pod(&mut self, pod: Pod, gone: bool) {
        let app = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).cloned().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let uids = self.names.entry(app.clone()).or_default();
        let number = uids.iter().position(|known| *known == uid).unwrap_or_else(|| {
            uids.push(uid.clone());
            uids.len() - 1
        });
        let name = if number == 0 { format!("pod {app}") } else { format!("pod {app} {}", number + 1) };
        let fields = states::pod(&pod, gone);
        let before = self.seen.iter().rev().find(|seen| seen.object == name);
        if before.is_none_or(|before| before.fields != fields) {
            self.changed = Some(Instant::now());
        }
        self.add(&name, fields);
        if gone {
            self.pods.remove(&uid);
        } else {
            self.pods.insert(uid, pod);
        }
    }
}

/// Collects until it is dropped.
pub struct Watch {
    collected: Arc<Mutex<Collected>>,
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Starts to collect.
    pub fn start(client: &Client, node: &str, namespace: &str) -> Self {
        let collected = Arc::new(Mutex::new(Collected::default()));
        let named = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let mut tasks = JoinSet::new();
        let nodes: Api<Node> = Api::all(client.clone());
        tasks.spawn(follow(nodes, named.clone(), collected.clone(), |all, node, gone| {
            if !gone {
                all.add_node(node);
            }
        }));
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        tasks.spawn(follow(leases, named, collected.clone(), |all, lease, _| all.lease = Some(lease)));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        tasks.spawn(follow(pods, watcher::Config::default(), collected.clone(), Collected::add_pod));
        Self { collected, _tasks: tasks }
    }

    /// Everything that was collected so far.
    pub fn lock(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock()
    }

    /// The sequences of what was collected.
    pub fn lines(&self) -> Vec<Line> {
        sequences(&self.lock().seen)
    }

    /// Begins a step: what is seen from now on belongs to it.
    pub fn begin(&self, step: &str) {
        self.lock().begin_step(step);
    }

    /// Waits until what was collected meets a condition.
    ///
    /// # Errors
    /// At the deadline.
    pub async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Collected) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while !holds(&self.lock()) {
            if Instant::now() >= deadline {
                let all = self.lock();
                let pods =
                    all.pods.values().map(|pod| format!("{:?}: {:?}", pod.metadata.name, states::pod(pod, false)));
                bail!("not within {limit:?}: {what}; {}", pods.collect::<Vec<_>>().join("\n"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until no pod has changed for so long, which is longer than a kubelet renews its Lease: then the step is over.
    pub async fn end(&self, quiet: Duration) {
        let began = Instant::now();
        while self.lock().changed.map_or(began, |changed| changed.max(began)).elapsed() < quiet {
            sleep(LOOK).await;
        }
        self.lock().end_step();
    }
}

async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    collected: Arc<Mutex<Collected>>,
    add: impl Fn(&mut Collected, K, bool),
) where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    let mut events = std::pin::pin!(watcher(api, config));
    loop {
        let (object, gone) = match events.try_next().await {
            Ok(Some(Event::Apply(object) | Event::InitApply(object))) => (object, false),
            Ok(Some(Event::Delete(object))) => (object, true),
            Ok(Some(Event::Init | Event::InitDone)) => continue,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "a watch is started again");
                sleep(LOOK).await;
                continue;
            }
        };
        add(&mut collected.lock(), object, gone);
    }
}
