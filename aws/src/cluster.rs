//! The Nodes and the operator's resource, as watches show them, and the writes to the Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{DeserializeGuard, ObjectMeta};
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
use watches::{Objects, SILENCE, Sink};

use crate::facts::{Node, Operator, Policy, answer_annotation};

/// Longest note of an Event, in bytes.
const NOTE: usize = 1000;

/// The objects of one kind, as a watch shows them, each reduced to the facts that decisions need.
struct Cache<K, T> {
    state: Mutex<Objects<(String, T)>>,
    read: fn(&K) -> Option<T>,
    differs: fn(&T, &T) -> bool,
    changed: Arc<Notify>,
}

impl<K: Resource<DynamicType = ()> + Sync, T: Clone + Send> Cache<K, T> {
    fn new(read: fn(&K) -> Option<T>, differs: fn(&T, &T) -> bool, changed: &Arc<Notify>) -> Self {
        let state = Mutex::new(Objects::<(String, T)>::new(|(version, _)| version));
        Self { state, read, differs, changed: changed.clone() }
    }

    /// The objects by name, and the names of those that cannot be read; `None` before the first list is complete.
    fn items(&self) -> Option<(BTreeMap<String, T>, BTreeSet<String>)> {
        let state = self.state.lock();
        let items = || state.known.items().iter().map(|(name, (_, item))| (name.clone(), item.clone())).collect();
        state.known.synced().then(|| (items(), state.unreadable.keys().cloned().collect()))
    }

    fn item(&self, object: &K) -> Option<(String, T)> {
        Some((object.resource_version().unwrap_or_default(), (self.read)(object)?))
    }

    /// Records the answer to an own write.
    fn written(&self, object: &K) {
        if let Some(item) = self.item(object) {
            self.state.lock().known.answer(&object.name_any(), item, |_, _| true);
        }
    }
}

impl<K, T> Sink<K> for Cache<K, T>
where
    K: Resource<DynamicType = ()> + Send + Sync,
    T: Clone + Send,
{
    fn take(&self, _: u64, event: Event<DeserializeGuard<K>>) {
        let name = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
        let differs = |new: &(String, T), old: &(String, T)| (self.differs)(&new.1, &old.1);
        let changes = self.state.lock().take(event, name, |object| self.item(object), differs);
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

    /// The Nodes, the names of those that cannot be read, and the policy; `None` before all of this is known.
    pub(crate) fn read(&self) -> Option<(BTreeMap<String, Node>, BTreeSet<String>, Policy)> {
        let (mut operators, unread) = self.operator.items()?;
        let stands_in = if unread.contains(OPERATOR_NAME) { Operator::unreadable } else { Operator::missing };
        let operator = operators.remove(OPERATOR_NAME).unwrap_or_else(stands_in);
        let (mut nodes, unreadable) = self.nodes.items()?;
        for node in nodes.values_mut() {
            node.backing = operator.backing(node);
        }
        Some((nodes, unreadable, operator.policy))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that knew the Node decides like one that has been started since.
    #[test]
    fn node_that_cannot_be_read_is_named_and_not_among_the_others_until_it_can_be_or_is_gone() {
        let node = |version: &str, since: &str| -> DeserializeGuard<core::Node> {
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
            let metadata = json!({"name": "a", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [condition]}})).unwrap()
        };
        let (good, bad) = ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z");
        let new = || Cache::<core::Node, Node>::new(Node::read, Node::differs, &Arc::new(Notify::new()));
        let list = |cache: &Cache<core::Node, Node>, guard| {
            cache.take(0, Event::Init);
            cache.take(0, Event::InitApply(guard));
            cache.take(0, Event::InitDone);
        };
        let shown = |cache: &Cache<core::Node, Node>| {
            let (items, unreadable) = cache.items().unwrap();
            (items.contains_key("a"), unreadable.contains("a"))
        };
        let (running, restarted) = (new(), new());
        list(&running, node("5", good));
        assert_eq!(shown(&running), (true, false));
        running.take(0, Event::Apply(node("6", bad)));
        list(&restarted, node("6", bad));
        assert_eq!([shown(&running), shown(&restarted)], [(false, true); 2]);
        running.take(0, Event::Apply(node("7", good)));
        restarted.take(0, Event::Delete(node("8", bad)));
        assert_eq!([shown(&running), shown(&restarted)], [(true, false), (false, false)]);
        list(&running, node("9", bad));
        assert_eq!(shown(&running), (false, true));
    }
}
