//! The Nodes and the operator's resource, as watches show them, and the writes to the Nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::events::{Event as Notice, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt as _};
use models::limits;
use models::names::{AWS, OPERATOR_NAME};
use models::operator::BottlerocketUpdateOperator;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use watches::{Known, Sink};

use crate::facts::{Node, Operator, Policy, answer_annotation};

/// Time without any data after which a connection must be dead: a watch gets a bookmark about every minute.
const SILENCE: Duration = Duration::from_secs(150);

/// Longest note of an Event, in bytes.
const NOTE: usize = 1000;

/// The objects of one kind, as a watch shows them, each reduced to the facts that decisions need.
struct Cache<K, T> {
    known: Mutex<Known<(String, T)>>,
    read: fn(&K) -> Option<T>,
    differs: fn(&T, &T) -> bool,
    changed: Arc<Notify>,
}

impl<K: Resource<DynamicType = ()> + Sync, T: Clone + Send> Cache<K, T> {
    fn new(read: fn(&K) -> Option<T>, differs: fn(&T, &T) -> bool, changed: &Arc<Notify>) -> Self {
        Self { known: Mutex::new(Known::new(|(version, _)| version)), read, differs, changed: changed.clone() }
    }

    /// The objects by name; `None` before the first list is complete.
    fn items(&self) -> Option<BTreeMap<String, T>> {
        let known = self.known.lock();
        known.synced().then(|| known.items().iter().map(|(name, (_, item))| (name.clone(), item.clone())).collect())
    }

    fn item(&self, object: &K) -> Option<(String, (String, T))> {
        let version = object.resource_version().unwrap_or_default();
        Some((object.name_any(), (version, (self.read)(object)?)))
    }

    /// Takes in the answer to an own write.
    fn written(&self, object: &K) {
        if let Some((name, item)) = self.item(object) {
            self.known.lock().answer(&name, item, |_, _| true);
        }
    }
}

impl<K, T> Sink<K> for Cache<K, T>
where
    K: Resource<DynamicType = ()> + Send + Sync,
    T: Clone + Send,
{
    fn take(&self, _: u64, event: Event<DeserializeGuard<K>>) {
        let mut known = self.known.lock();
        let item = |guard: DeserializeGuard<K>| match guard.0 {
            Ok(object) => self.item(&object),
            Err(error) => {
                let object = error.metadata.name.as_deref();
                tracing::error!(object, %error, "an object cannot be read and is left out");
                None
            }
        };
        let changes = match event {
            Event::Init => {
                known.begin_list();
                false
            }
            Event::InitApply(guard) => {
                item(guard).into_iter().for_each(|(name, item)| known.list(name, item));
                false
            }
            Event::InitDone => {
                known.end_list();
                true
            }
            Event::Apply(guard) => item(guard)
                .is_some_and(|(name, item)| known.observe(name, item, |new, old| (self.differs)(&new.1, &old.1))),
            Event::Delete(guard) => guard
                .0
                .ok()
                .is_some_and(|object| known.delete(&object.name_any(), &object.resource_version().unwrap_or_default())),
        };
        if changes {
            self.changed.notify_one();
        }
    }
}

/// The cluster.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Notified of each change.
    pub(crate) changed: Arc<Notify>,
    nodes: Cache<core::Node, Node>,
    operator: Cache<BottlerocketUpdateOperator, Operator>,
    recorder: Recorder,
    namespace: String,
}

impl Cluster {
    /// Sets the client up.
    ///
    /// # Errors
    /// If there is no configuration, or an invalid one.
    pub(crate) async fn connect(namespace: &str) -> anyhow::Result<Self> {
        let mut config = kube::Config::infer().await?;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(SILENCE);
        let client = Client::try_from(config)?;
        let changed = Arc::new(Notify::new());
        let reporter = Reporter { controller: AWS.to_owned(), instance: None };
        Ok(Self {
            nodes: Cache::new(Node::read, Node::differs, &changed),
            operator: Cache::new(|operator| Some(Operator::read(operator)), |new, old| new != old, &changed),
            recorder: Recorder::new(client.clone(), reporter),
            namespace: namespace.to_owned(),
            changed,
            client,
        })
    }

    /// Watches for as long as it is polled.
    pub(crate) async fn watch(&self) {
        let operators: Api<DeserializeGuard<BottlerocketUpdateOperator>> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let (_asked, once) = watch::channel(0);
        let only = watcher::Config::default().fields(&format!("metadata.name={OPERATOR_NAME}"));
        tokio::join!(
            watches::run(Api::all(self.client.clone()), watcher::Config::default(), once.clone(), &self.nodes),
            watches::run(operators, only, once, &self.operator),
        );
    }

    /// The Nodes and the policy; `None` before both are known.
    pub(crate) fn read(&self) -> Option<(BTreeMap<String, Node>, Policy)> {
        let operator = self.operator.items()?.remove(OPERATOR_NAME).unwrap_or_else(Operator::missing);
        let mut nodes = self.nodes.items()?;
        for node in nodes.values_mut() {
            node.backing = operator.backing(node);
        }
        Some((nodes, operator.policy))
    }

    /// Sets or removes the answer of a Node, unless it was written since it was read.
    pub(crate) async fn answer(&self, node: &Node, text: Option<&str>) -> anyhow::Result<()> {
        let api: Api<core::Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {
            "uid": node.uid, "resourceVersion": node.version, "annotations": {answer_annotation(): text},
        }}));
        let params = PatchParams { field_manager: Some(AWS.to_owned()), ..PatchParams::default() };
        let written = timeout(limits::WRITE, api.patch(&node.name, &params, &patch)).await??;
        self.nodes.written(&written);
        Ok(())
    }

    /// Publishes an Event about a Node. A failure has no further effect.
    pub(crate) async fn notice(&self, node: &Node, reason: &str, text: &str, warning: bool) {
        let note = text[..text.floor_char_boundary(NOTE)].to_owned();
        let event = Notice {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(note),
            action: "Update".to_owned(),
            secondary: None,
        };
        let about = core::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.name.clone()),
            uid: Some(node.uid.clone()),
            ..core::ObjectReference::default()
        };
        match timeout(limits::WRITE, self.recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(node = node.name, %error, "an Event could not be published"),
            Err(_) => tracing::warn!(node = node.name, "an Event could not be published in time"),
        }
    }
}
