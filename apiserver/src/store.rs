//! This replica's copy of the shadows: one watch on the cluster, one channel per shadow.
//!
//! The watch may fall behind or break; the last known state stays until there is a newer one. So a stream that reads
//! from here survives a lost watch.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::{Resource as _, ResourceExt as _};
use models::shadow::BottlerocketShadow;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::shadow::Shadow;

/// Maximum delay after a failure: the watch is back within seconds after an outage, however long that was.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Returns the delay after so many consecutive failures. A part of it is random, so that not all replicas come back at
/// once.
fn retry_pause(failures: u32) -> Duration {
    let most = Duration::from_millis(250).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    most.mul_f64(rand::random_range(0.5..=1.0))
}

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

type Object = DeserializeGuard<BottlerocketShadow>;

#[derive(Default)]
struct Inner {
    entries: HashMap<String, watch::Sender<Seen>>,
    synced: bool,
    /// The list that is being read.
    listing: Option<HashMap<String, Seen>>,
    /// Shadows whose newest state came from an answer to this server's write or read since the list began.
    learned: HashSet<String>,
}

/// All shadows.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    metrics: Metrics,
}

impl Store {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { inner: Mutex::default(), metrics }
    }

    /// Returns true if the first list has arrived.
    pub(crate) fn synced(&self) -> bool {
        self.lock().synced
    }

    /// Returns the known state of a shadow.
    pub(crate) fn get(&self, name: &str) -> Seen {
        let inner = self.lock();
        match inner.entries.get(name) {
            Some(entry) => entry.borrow().clone(),
            None if inner.synced => Seen::Absent,
            None => Seen::Unknown,
        }
    }

    /// Returns the known state of a shadow, and its changes.
    pub(crate) fn subscribe(&self, name: &str) -> watch::Receiver<Seen> {
        let mut inner = self.lock();
        let first = if inner.synced { Seen::Absent } else { Seen::Unknown };
        inner.entries.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(first)).subscribe()
    }

    /// Stores the API server's answer to a call of this server, so that no stream of this replica shows anything older
    /// afterwards. Only the watch decides that a shadow exists or not: an answer can arrive after the deletion.
    pub(crate) fn learn(&self, shadow: &Arc<Shadow>) {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get(&shadow.name) else { return };
        let newer = entry.send_if_modified(|seen| match seen {
            Seen::Present(old) if old.uid() == shadow.uid() && old.resource_version < shadow.resource_version => {
                *seen = Seen::Present(Arc::clone(shadow));
                true
            }
            Seen::Present(_) | Seen::Unknown | Seen::Absent | Seen::Unreadable => false,
        });
        if newer {
            inner.learned.insert(shadow.name.clone());
        }
    }

    /// Stores an event of the watch.
    pub(crate) fn observe(&self, event: Event<Object>) {
        let mut inner = self.lock();
        match event {
            Event::Apply(object) => {
                let (name, seen) = self.read(object);
                inner.put(name, seen, Source::Watch);
            }
            Event::Delete(object) => {
                inner.put(object.name_any(), Seen::Absent, Source::Watch);
                inner.forget_unwatched();
            }
            Event::Init => {
                inner.listing = Some(HashMap::new());
                inner.learned.clear();
            }
            Event::InitApply(object) => {
                let (name, seen) = self.read(object);
                if let Some(listing) = &mut inner.listing {
                    listing.insert(name, seen);
                }
            }
            Event::InitDone => {
                let listing = inner.listing.take().unwrap_or_default();
                let gone: Vec<_> = inner.entries.keys().filter(|name| !listing.contains_key(*name)).cloned().collect();
                for name in gone {
                    inner.put(name, Seen::Absent, Source::List);
                }
                for (name, seen) in listing {
                    inner.put(name, seen, Source::List);
                }
                inner.synced = true;
                inner.forget_unwatched();
            }
        }
    }

    fn read(&self, DeserializeGuard(object): Object) -> (String, Seen) {
        let (name, error) = match object {
            Ok(object) => {
                let name = object.name_any();
                match Shadow::try_from(object) {
                    Ok(shadow) => return (name, Seen::Present(Arc::new(shadow))),
                    Err(error) => (name, error.to_string()),
                }
            }
            Err(invalid) => (invalid.metadata.name.clone().unwrap_or_default(), invalid.error),
        };
        self.metrics.unreadable_shadows.inc();
        tracing::warn!(shadow = name, error, "a shadow cannot be read; its agent gets no updates of it until it can");
        (name, Seen::Unreadable)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the cluster for ever.
    pub(crate) async fn run(self: Arc<Self>, cluster: Cluster) {
        // The list is consistent (no resource version is given), so it is never older than the watch before it.
        let mut events = watcher::watcher(cluster.shadows(), watcher::Config::default()).boxed();
        let mut failures: u32 = 0;
        let mut missing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // Each try of a list begins with a separate event.
                    if !matches!(event, Event::Init) {
                        failures = 0;
                    }
                    self.observe(event);
                }
                Err(error) => {
                    self.metrics.watch_errors.inc();
                    let was_missing = std::mem::replace(&mut missing, is_not_served(&error));
                    if !missing {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the watch on shadows was interrupted"
                        );
                    } else if !was_missing {
                        tracing::warn!(
                            "the API server does not serve bottlerocketshadows in version {}: their definition is missing, or is the \
                             earlier operator's (docs/install.md); waiting for it",
                            BottlerocketShadow::version(&())
                        );
                    }
                    tokio::time::sleep(retry_pause(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }
}

/// Returns true if a watch failed because its resource is not served at all.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Watch,
    List,
}

impl Inner {
    fn put(&mut self, name: String, new: Seen, source: Source) {
        let learned = self.learned.contains(&name);
        let Some(entry) = self.entries.get(&name) else {
            if new != Seen::Absent {
                self.entries.insert(name, watch::Sender::new(new));
            }
            return;
        };
        entry.send_if_modified(|seen| {
            if let (Seen::Present(old), Seen::Present(new)) = (&*seen, &new)
                && old.uid() == new.uid()
            {
                if old.resource_version == new.resource_version {
                    return false;
                }
                // An answer to this server's own write is newer, and the watch will catch up. But an object that is
                // older in a list than it was before the list means that the cluster itself was restored: the list is
                // right.
                if old.resource_version > new.resource_version && (source == Source::Watch || learned) {
                    return false;
                }
            }
            let changed = *seen != new;
            *seen = new;
            changed
        });
    }

    /// Drops shadows that neither exist nor are subscribed to.
    fn forget_unwatched(&mut self) {
        self.entries.retain(|_, entry| entry.receiver_count() > 0 || *entry.borrow() != Seen::Absent);
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
            Seen::Present(shadow) => Some(shadow.resource_version.0.clone()),
            Seen::Unknown | Seen::Absent | Seen::Unreadable => None,
        }
    }

    #[test]
    fn nothing_is_known_before_the_first_list_and_absence_only_after_it() {
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
    fn a_shadow_that_is_missing_from_a_new_list_is_gone() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-a");
        store.observe(Event::Init);
        assert!(version(&store).is_some(), "kept while the list is read");
        store.observe(Event::InitDone);
        assert_eq!(*watching.borrow(), Seen::Absent);
    }

    #[test]
    fn an_older_event_never_replaces_the_answer_to_our_own_write() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        store.learn(&Arc::new(shadow("u", 9, 1, json!({"state": "Idle"}))));
        assert_eq!(version(&store).as_deref(), Some("9"));
        store.observe(Event::Apply(at(7, "StagedUpdate")));
        assert_eq!(version(&store).as_deref(), Some("9"));
        store.observe(Event::Apply(at(10, "StagedUpdate")));
        assert_eq!(version(&store).as_deref(), Some("10"));
    }

    #[test]
    fn an_answer_that_arrives_after_the_deletion_revives_nothing() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-a");
        store.observe(Event::Delete(at(8, "Idle")));
        store.learn(&Arc::new(shadow("u", 7, 1, json!({}))));
        assert_eq!(*watching.borrow(), Seen::Absent);
        assert_eq!(store.get("brs-a"), Seen::Absent);
    }

    #[test]
    fn an_answer_of_an_earlier_shadow_does_not_replace_its_successor() {
        let store = store(vec![stored("u2", 5, 1, json!({}))]);
        store.learn(&Arc::new(shadow("u", 9, 1, json!({}))));
        assert_eq!(version(&store).as_deref(), Some("5"));
    }

    #[test]
    fn a_cluster_that_was_set_back_is_believed_at_the_next_list() {
        let store = store(vec![stored("u", 50, 1, json!({}))]);
        store.observe(Event::Init);
        store.observe(Event::InitApply(at(20, "Idle")));
        store.observe(Event::InitDone);
        assert_eq!(version(&store).as_deref(), Some("20"));
    }

    #[test]
    fn a_list_that_began_before_our_write_does_not_undo_it() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        store.observe(Event::Init);
        store.observe(Event::InitApply(at(5, "Idle")));
        store.learn(&Arc::new(shadow("u", 9, 1, json!({}))));
        store.observe(Event::InitDone);
        assert_eq!(version(&store).as_deref(), Some("9"));
    }

    #[test]
    fn one_bad_object_stalls_no_other() {
        let mut bad = stored("u", 6, 1, json!({}));
        bad["metadata"]["name"] = json!("brs-bad");
        bad["spec"] = json!({"attempt": "many"});
        let store = store(vec![bad, stored("u", 5, 1, json!({}))]);
        assert_eq!(version(&store).as_deref(), Some("5"));
        assert_eq!(store.get("brs-bad"), Seen::Unreadable);
        assert_eq!(store.metrics.unreadable_shadows.get(), 1);
    }

    #[test]
    fn what_is_gone_and_unwatched_takes_no_memory() {
        let store = store(vec![stored("u", 5, 1, json!({}))]);
        let watching = store.subscribe("brs-b");
        store.observe(Event::Delete(at(8, "Idle")));
        assert_eq!(store.lock().entries.keys().collect::<Vec<_>>(), ["brs-b"]);
        drop(watching);
        store.observe(Event::Delete(at(9, "Idle")));
        assert!(store.lock().entries.is_empty());
    }
}
