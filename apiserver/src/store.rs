//! This replica's copy of the shadows: one watch on the cluster, one channel per shadow.
//!
//! The watch may fall behind or break; the last known state stays until there is a newer one. So a stream that reads
//! from here survives a lost watch.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{Config, Event};
use models::shadow::BottlerocketShadow;
use parking_lot::Mutex;
use tokio::sync::watch;
use watches::{Known, Sink};

use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::shadow::Shadow;

type Object = DeserializeGuard<BottlerocketShadow>;

/// Known state of a shadow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// Unknown: the first list has not arrived.
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists, but this version cannot read it. Not the same as absent: nothing is sent to its agent.
    Unreadable,
    /// It exists.
    Present(Arc<Shadow>),
}

struct Inner {
    /// Resource version and state of each shadow that exists.
    known: Known<(String, Seen)>,
    /// Channels of the shadows that have subscribers.
    channels: HashMap<String, watch::Sender<Seen>>,
}

/// All shadows.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    metrics: Metrics,
}

impl Store {
    pub(crate) fn new(metrics: Metrics) -> Self {
        let inner = Inner { known: Known::new(|(version, _)| version), channels: HashMap::new() };
        Self { inner: Mutex::new(inner), metrics }
    }

    /// Returns true if the first list has arrived.
    pub(crate) fn synced(&self) -> bool {
        self.inner.lock().known.synced()
    }

    /// Returns the known state of a shadow.
    pub(crate) fn get(&self, name: &str) -> Seen {
        seen(&self.inner.lock().known, name)
    }

    /// Returns the known state of a shadow, and its changes.
    pub(crate) fn subscribe(&self, name: &str) -> watch::Receiver<Seen> {
        let Inner { known, channels } = &mut *self.inner.lock();
        channels.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(seen(known, name))).subscribe()
    }

    /// Stores the API server's answer to a call of this server, so that no stream of this replica shows anything older
    /// afterwards. Only the watch decides that a shadow exists or not: an answer can arrive after the deletion.
    pub(crate) fn learn(&self, shadow: &Arc<Shadow>) {
        let mut inner = self.inner.lock();
        if matches!(seen(&inner.known, &shadow.name), Seen::Present(known) if known.uid() == shadow.uid()) {
            let item = (shadow.resource_version().to_owned(), Seen::Present(Arc::clone(shadow)));
            inner.known.answer(&shadow.name, item, PartialEq::ne);
            inner.show(&shadow.name);
        }
    }

    /// Stores an event of the watch.
    pub(crate) fn observe(&self, event: Event<Object>) {
        let mut inner = self.inner.lock();
        match event {
            Event::Apply(object) => {
                let (name, item) = self.read(object);
                inner.known.observe(name.clone(), item, PartialEq::ne);
                inner.show(&name);
            }
            Event::Delete(object) => {
                let name = object.name_any();
                inner.known.delete(&name, &object.resource_version().unwrap_or_default());
                inner.show(&name);
                inner.forget_unwatched();
            }
            Event::Init => inner.known.begin_list(),
            Event::InitApply(object) => {
                let (name, item) = self.read(object);
                inner.known.list(name, item);
            }
            Event::InitDone => {
                inner.known.end_list();
                inner.forget_unwatched();
                inner.channels.keys().for_each(|name| inner.show(name));
            }
        }
    }

    fn read(&self, object: Object) -> (String, (String, Seen)) {
        let (name, version) = (object.name_any(), object.resource_version().unwrap_or_default());
        let error = match object.0 {
            Ok(object) => match Shadow::try_from(object) {
                Ok(shadow) => return (name, (version, Seen::Present(Arc::new(shadow)))),
                Err(error) => error.to_string(),
            },
            Err(invalid) => invalid.error,
        };
        self.metrics.unreadable_shadows.inc();
        tracing::warn!(shadow = name, error, "a shadow cannot be read; its agent gets no updates of it until it can");
        (name, (version, Seen::Unreadable))
    }

    /// Watches the cluster for ever.
    pub(crate) async fn run(&self, cluster: &Cluster) {
        watches::run(cluster.shadows(), Config::default(), watch::channel(0).1, self).await;
    }
}

impl Sink<BottlerocketShadow> for Store {
    fn take(&self, _: u64, event: Event<Object>) {
        self.observe(event);
    }

    fn failed(&self) {
        self.metrics.watch_errors.inc();
    }
}

fn seen(known: &Known<(String, Seen)>, name: &str) -> Seen {
    match known.items().get(name) {
        Some((_, seen)) => seen.clone(),
        None if known.synced() => Seen::Absent,
        None => Seen::Unknown,
    }
}

impl Inner {
    /// Sends the known state of a shadow to its subscribers, if it has changed.
    fn show(&self, name: &str) {
        if let Some(channel) = self.channels.get(name) {
            let seen = seen(&self.known, name);
            channel.send_if_modified(|shown| {
                *shown != seen && {
                    *shown = seen;
                    true
                }
            });
        }
    }

    fn forget_unwatched(&mut self) {
        self.channels.retain(|_, channel| channel.receiver_count() > 0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::shadow::tests::{shadow, stored};

    fn object(value: Value) -> Object {
        serde_json::from_value(value).unwrap()
    }

    fn at(resource_version: u64, state: &str) -> Object {
        object(stored("u", resource_version, 1, json!({"state": state})))
    }

    pub(crate) fn store(objects: Vec<Value>) -> Store {
        let store = Store::new(Metrics::new().unwrap());
        store.observe(Event::Init);
        for value in objects {
            store.observe(Event::InitApply(object(value)));
        }
        store.observe(Event::InitDone);
        store
    }

    fn version(store: &Store) -> Option<String> {
        match store.get("brs-a") {
            Seen::Present(shadow) => Some(shadow.resource_version().to_owned()),
            Seen::Unknown | Seen::Absent | Seen::Unreadable => None,
        }
    }

    #[test]
    fn store_reports_unknown_before_first_list_and_absent_after_it() {
        let store = Store::new(Metrics::new().unwrap());
        let waiting = store.subscribe("brs-a");
        assert_eq!(store.get("brs-a"), Seen::Unknown);
        store.observe(Event::Init);
        store.observe(Event::InitApply(at(5, "Idle")));
        assert_eq!(*waiting.borrow(), Seen::Unknown);
        assert!(!store.synced());
        store.observe(Event::InitDone);
        assert!(store.synced());
        assert!(matches!(*waiting.borrow(), Seen::Present(_)));
        assert_eq!(store.get("brs-b"), Seen::Absent);
    }

    #[test]
    fn shadow_missing_from_new_list_is_removed() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-a");
        store.observe(Event::Init);
        assert!(version(&store).is_some(), "kept while the list is read");
        store.observe(Event::InitDone);
        assert_eq!(*watching.borrow(), Seen::Absent);
    }

    #[test]
    fn older_event_does_not_replace_write_response() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        store.learn(&Arc::new(shadow("u", 9, 1, json!({"state": "Idle"}))));
        assert_eq!(version(&store).as_deref(), Some("9"));
        store.observe(Event::Apply(at(7, "StagedUpdate")));
        assert_eq!(version(&store).as_deref(), Some("9"));
        store.observe(Event::Apply(at(10, "StagedUpdate")));
        assert_eq!(version(&store).as_deref(), Some("10"));
    }

    #[test]
    fn response_after_deletion_does_not_restore_object() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-a");
        store.observe(Event::Delete(at(8, "Idle")));
        store.learn(&Arc::new(shadow("u", 7, 1, json!({}))));
        assert_eq!(*watching.borrow(), Seen::Absent);
        assert_eq!(store.get("brs-a"), Seen::Absent);
    }

    #[test]
    fn response_for_deleted_shadow_does_not_replace_successor() {
        let store = store(vec![stored("u2", 5, 1, json!({}))]);
        store.learn(&Arc::new(shadow("u", 9, 1, json!({}))));
        assert_eq!(version(&store).as_deref(), Some("5"));
    }

    #[test]
    fn next_list_replaces_store_with_older_versions() {
        let store = store(vec![stored("u", 50, 1, json!({}))]);
        store.observe(Event::Init);
        store.observe(Event::InitApply(at(20, "Idle")));
        store.observe(Event::InitDone);
        assert_eq!(version(&store).as_deref(), Some("20"));
    }

    #[test]
    fn list_started_before_write_does_not_undo_it() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        store.observe(Event::Init);
        store.observe(Event::InitApply(at(5, "Idle")));
        store.learn(&Arc::new(shadow("u", 9, 1, json!({}))));
        store.observe(Event::InitDone);
        assert_eq!(version(&store).as_deref(), Some("9"));
    }

    #[test]
    fn unreadable_object_does_not_affect_others() {
        let mut bad = stored("u", 6, 1, json!({}));
        bad["metadata"]["name"] = json!("brs-bad");
        bad["spec"] = json!({"attempt": "many"});
        let store = store(vec![bad, stored("u", 5, 1, json!({}))]);
        assert_eq!(version(&store).as_deref(), Some("5"));
        assert_eq!(store.get("brs-bad"), Seen::Unreadable);
        assert_eq!(store.metrics.unreadable_shadows.get(), 1);
    }

    #[test]
    fn deleted_unwatched_shadow_is_removed_from_store() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-b");
        store.observe(Event::Delete(at(8, "Idle")));
        assert_eq!(store.inner.lock().channels.keys().collect::<Vec<_>>(), ["brs-b"]);
        drop(watching);
        store.observe(Event::Delete(at(9, "Idle")));
        assert!(store.inner.lock().channels.is_empty() && store.inner.lock().known.items().is_empty());
    }
}
