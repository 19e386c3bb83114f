//! A cache of slim projections that reads its own writes: a watch fills it, and the result of an own write goes in at
//! once.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Resource as _;
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use planner::view::Projection;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use watches::{Known, Sink};

/// The longest pause after failures in a row of a watch that no decision depends on.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

struct State<P> {
    known: Known<P>,
    /// Number of the last requested read before the last complete list began.
    listed: u64,
}

/// The cache. Clones share it.
pub struct Cache<P> {
    state: Arc<Mutex<State<P>>>,
    changed: Arc<watch::Sender<u64>>,
    asked: Arc<watch::Sender<u64>>,
}

impl<P> Clone for Cache<P> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), changed: self.changed.clone(), asked: self.asked.clone() }
    }
}

impl<P: Projection> Cache<P> {
    /// Returns an empty cache that notifies `changed` of each relevant change.
    pub fn new(changed: Arc<watch::Sender<u64>>) -> Self {
        let state = State { known: Known::new(P::resource_version), listed: 0 };
        Self { state: Arc::new(Mutex::new(state)), changed, asked: Arc::new(watch::channel(0).0) }
    }

    /// Requests a list that begins from now on, and returns its number for [`Cache::has_read`].
    pub fn read_again(&self) -> u64 {
        self.asked.send_modify(|asked| *asked += 1);
        *self.asked.borrow()
    }

    /// Returns whether a list that began after this call of [`Cache::read_again`] is complete. Lists are consistent
    /// reads, so the contents from then on are at least as new as anything that was written before that call.
    pub fn has_read(&self, number: u64) -> bool {
        self.lock().listed >= number
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change, and notifies of it if it is relevant.
    fn change(&self, make: impl FnOnce(&mut State<P>) -> bool) {
        let relevant = make(&mut self.lock());
        if relevant {
            self.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Returns whether the first list is complete.
    pub fn synced(&self) -> bool {
        self.lock().known.synced()
    }

    /// Returns all items.
    pub fn items(&self) -> BTreeMap<String, P> {
        self.lock().known.items().clone()
    }

    /// Returns the result of `look` on all items, without a copy of them.
    pub fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, P>) -> T) -> T {
        look(self.lock().known.items())
    }

    /// Returns the items that `wanted` selects.
    pub fn select(&self, wanted: impl Fn(&P) -> bool) -> Vec<P> {
        self.lock().known.items().values().filter(|item| wanted(item)).cloned().collect()
    }

    /// Returns one item.
    pub fn get(&self, key: &str) -> Option<P> {
        self.lock().known.items().get(key).cloned()
    }

    /// Takes in an object that an own write returned.
    pub fn written(&self, object: &P::Object) {
        let Some(item) = P::project(object) else { return };
        self.change(|state| state.known.answer(&item.key(), item, P::matters));
    }

    /// Watches for as long as it is polled. An unreadable object is left out and logged.
    pub fn run(
        &self,
        api: Api<DeserializeGuard<P::Object>>,
        config: watcher::Config,
    ) -> impl Future<Output = ()> + Send + use<P> {
        let (cache, asked) = (self.clone(), self.asked.subscribe());
        async move { watches::run(api, config, asked, &cache).await }
    }
}

impl<K, P> Cache<P>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    P: Projection<Object = PartialObjectMeta<K>>,
{
    /// Watches the metadata of objects, whose contents are never read.
    pub fn run_metadata(
        &self,
        api: Api<PartialObjectMeta<K>>,
        config: watcher::Config,
    ) -> impl Future<Output = ()> + Send + use<K, P> {
        let (cache, asked) = (self.clone(), self.asked.subscribe());
        async move { watches::run_metadata(api, config, asked, &cache).await }
    }
}

impl<P: Projection> Sink<P::Object> for Cache<P> {
    fn longest_pause(&self) -> Duration {
        if P::DECISIVE { watches::LONGEST_PAUSE } else { LONGEST_PAUSE }
    }

    fn take(&self, read: u64, event: Event<DeserializeGuard<P::Object>>) {
        self.change(|state| match event {
            Event::Init => {
                state.known.begin_list();
                false
            }
            Event::InitApply(guard) => {
                if let Some(item) = project::<P>(&guard) {
                    state.known.list(item.key(), item);
                }
                false
            }
            Event::InitDone => {
                state.known.end_list();
                state.listed = read;
                true
            }
            Event::Apply(guard) => match project::<P>(&guard) {
                Some(item) => state.known.observe(item.key(), item, P::matters),
                None => delete(state, &guard),
            },
            Event::Delete(guard) => delete(state, &guard),
        });
    }
}

/// Removes an object that was deleted or has become irrelevant.
fn delete<P: Projection>(state: &mut State<P>, guard: &DeserializeGuard<P::Object>) -> bool {
    let Ok(object) = &guard.0 else { return false };
    let version = object.meta().resource_version.as_deref().unwrap_or_default();
    state.known.delete(&P::key_of(object), version)
}

/// Reads of several caches, each requested by [`Cache::read_again`].
#[derive(Clone, Default)]
pub struct Reading(Vec<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Reading {
    /// Adds a read of this cache, requested now.
    #[must_use]
    pub fn of<P: Projection>(mut self, cache: &Cache<P>) -> Self {
        let (number, cache) = (cache.read_again(), cache.clone());
        self.0.push(Arc::new(move || cache.has_read(number)));
        self
    }

    /// Returns whether all of them are complete.
    pub fn done(&self) -> bool {
        self.0.iter().all(|done| done())
    }

    /// Waits until all of them are complete; `changed` receives the changes of the caches.
    pub async fn wait(&self, mut changed: watch::Receiver<u64>) {
        while !self.done() && changed.changed().await.is_ok() {}
    }
}

fn project<P: Projection>(guard: &DeserializeGuard<P::Object>) -> Option<P> {
    match &guard.0 {
        Ok(object) => P::project(object),
        Err(error) => {
            tracing::error!(object = ?error.metadata.name, %error, "an object cannot be read and is left out of all decisions");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use watches::Sink as _;

    fn node(version: &str) -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "node-1", "resourceVersion": version,
                "labels": {"bottlerocket.aws/updater-interface-version": "2.0.0"}}
        }))
        .unwrap()
    }

    #[test]
    fn response_after_deletion_does_not_restore_object() {
        use kube::core::DeserializeGuard;
        use kube::runtime::watcher::Event;
        let cache =
            super::Cache::<planner::view::NodeFacts>::new(std::sync::Arc::new(tokio::sync::watch::channel(0).0));
        cache.take(0, Event::Init);
        cache.take(0, Event::InitApply(DeserializeGuard(Ok(node("5")))));
        cache.take(0, Event::InitDone);
        // The claim makes version 6; the node is deleted at 7. The watch is faster than the answer to the claim.
        cache.take(0, Event::Apply(DeserializeGuard(Ok(node("6")))));
        cache.take(0, Event::Delete(DeserializeGuard(Ok(node("7")))));
        cache.written(&node("6"));
        assert!(cache.get("a").is_none(), "the deleted node is back, until the next re-list");
    }

    #[test]
    fn cache_is_read_only_after_list_started_since_request() {
        use kube::runtime::watcher::Event;
        let cache =
            super::Cache::<planner::view::NodeFacts>::new(std::sync::Arc::new(tokio::sync::watch::channel(0).0));
        let list = |number| {
            cache.take(number, Event::Init);
            cache.take(number, Event::InitDone);
        };
        list(0);
        let number = cache.read_again();
        assert!(cache.synced() && !cache.has_read(number));
        // The list that was under way already.
        list(0);
        assert!(!cache.has_read(number));
        list(number);
        assert!(cache.has_read(number));
        assert!(!cache.has_read(cache.read_again()));
    }

    /// Answers lists with one node each, of which some fail or are not answered, and keeps watches open.
    #[tokio::test(start_paused = true)]
    async fn failed_or_unanswered_list_is_retried() {
        use kube::client::Body;
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let client = kube::Client::new(service, "default");
        let cache =
            super::Cache::<planner::view::NodeFacts>::new(std::sync::Arc::new(tokio::sync::watch::channel(0).0));
        let run = cache.run(kube::Api::all(client), kube::runtime::watcher::Config::default());
        let watches = tokio::spawn(run);
        let mut kept = Vec::new();
        let (mut lists, mut number) = (0, 0);
        while lists < 6 {
            let (request, reply) = handle.next_request().await.unwrap();
            if request.uri().query().unwrap_or_default().contains("watch=") {
                assert!(cache.has_read(number), "before it is watched");
                number = cache.read_again();
                kept.push(reply);
                continue;
            }
            lists += 1;
            let (code, body) = match lists {
                1 | 4 => (500, serde_json::json!({"kind": "Status", "code": 500, "reason": "InternalError"})),
                2 | 5 => {
                    kept.push(reply);
                    continue;
                }
                version => (
                    200,
                    serde_json::json!({"kind": "NodeList", "apiVersion": "v1",
                        "metadata": {"resourceVersion": version.to_string()}, "items": [node(&version.to_string())]}),
                ),
            };
            assert!(number == 0 || !cache.has_read(number), "before it is listed again");
            reply.send_response(
                http::Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap(),
            );
        }
        let (request, _reply) = handle.next_request().await.unwrap();
        assert!(request.uri().query().unwrap_or_default().contains("watch="));
        assert!(cache.has_read(number));
        assert_eq!(cache.get("a").unwrap().resource_version, "6");
        watches.abort();
    }
}
