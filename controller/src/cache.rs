//! A cache of slim projections that reads its own writes.
//!
//! A watch fills it; the result of an own write goes in at once. Of two versions of an object the newer one stays, so a
//! decision is never made on a state that this process has already changed.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Resource as _;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use planner::view::{Projection, newer};
use tokio::sync::watch;

struct State<P> {
    items: BTreeMap<String, P>,
    /// Keys seen since a re-list began; the others are removed when it ends.
    relisted: Option<BTreeMap<String, P>>,
    synced: bool,
    /// Number of the last requested read, of the list under way, and of the last complete list.
    listing: u64,
    listed: u64,
    /// Keys and versions of the last deletions: an answer to an own write may arrive after the watch reported the
    /// object's end, and must not bring it back.
    buried: VecDeque<(String, String)>,
}

/// Maximum number of recorded deletions. An answer is behind the watch by moments, not by a thousand deletions.
const BURIED: usize = 1024;

/// Deadline for a page of a list.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The longest pause after a failure: a watch is back within seconds after an outage, however long that was.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Returns the pause after this many failures in a row. A part of it is random, so that not all watches of all
/// processes come back at once.
pub(crate) fn retry_pause(failures: u32) -> Duration {
    let most = Duration::from_millis(250).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    most.mul_f64(rand::random_range(0.5..=1.0))
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
        let state = State {
            items: BTreeMap::new(),
            relisted: None,
            synced: false,
            listing: 0,
            listed: 0,
            buried: VecDeque::new(),
        };
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

    fn wake(&self) {
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Returns whether the first list is complete.
    pub fn synced(&self) -> bool {
        self.lock().synced
    }

    /// Returns whether this read is complete and no list is under way.
    fn watches(&self, number: u64) -> bool {
        let state = self.lock();
        state.synced && state.listed >= number && state.relisted.is_none()
    }

    /// Returns all items.
    pub fn items(&self) -> BTreeMap<String, P> {
        self.lock().items.clone()
    }

    /// Returns the result of `look` on all items, without a copy of them.
    pub fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, P>) -> T) -> T {
        look(&self.lock().items)
    }

    /// Returns the items that `wanted` selects.
    pub fn select(&self, wanted: impl Fn(&P) -> bool) -> Vec<P> {
        self.lock().items.values().filter(|item| wanted(item)).cloned().collect()
    }

    /// Returns one item.
    pub fn get(&self, key: &str) -> Option<P> {
        self.lock().items.get(key).cloned()
    }

    /// Takes in an object that an own write returned.
    pub fn written(&self, object: &P::Object) {
        let Some(item) = P::project(object) else { return };
        let key = item.key();
        let outlived =
            self.lock().buried.iter().any(|(k, version)| *k == key && !newer(item.resource_version(), version));
        if !outlived {
            self.upsert(item);
        }
    }

    /// Removes an object that this process has deleted.
    pub fn forget(&self, key: &str) {
        if self.lock().items.remove(key).is_some() {
            self.wake();
        }
    }

    fn upsert(&self, item: P) {
        let mut state = self.lock();
        let key = item.key();
        let matters = match state.items.get(&key) {
            Some(old) if !newer(item.resource_version(), old.resource_version()) => return,
            Some(old) => item.matters(old),
            None => true,
        };
        state.items.insert(key, item);
        drop(state);
        if matters {
            self.wake();
        }
    }

    pub(crate) fn take(&self, event: watcher::Event<DeserializeGuard<P::Object>>) {
        match event {
            watcher::Event::Init => self.lock().relisted = Some(BTreeMap::new()),
            watcher::Event::InitApply(guard) => {
                if let Some(item) = read::<P>(&guard) {
                    let mut state = self.lock();
                    if let Some(relisted) = state.relisted.as_mut() {
                        relisted.insert(item.key(), item);
                    }
                }
            }
            watcher::Event::InitDone => {
                let mut state = self.lock();
                let mut fresh = state.relisted.take().unwrap_or_default();
                // An own write may be newer than the list.
                for (key, item) in &state.items {
                    if let Some(listed) = fresh.get(key)
                        && newer(item.resource_version(), listed.resource_version())
                    {
                        fresh.insert(key.clone(), item.clone());
                    }
                }
                state.items = fresh;
                state.synced = true;
                state.listed = state.listing;
                drop(state);
                self.wake();
            }
            watcher::Event::Apply(guard) => match read::<P>(&guard) {
                Some(item) => self.upsert(item),
                None => self.gone(&guard),
            },
            watcher::Event::Delete(guard) => self.gone(&guard),
        }
    }

    /// Removes an object that was deleted or has become irrelevant. A successor of the same name, which an own write
    /// may have put here already, stays.
    fn gone(&self, guard: &DeserializeGuard<P::Object>) {
        let Ok(object) = &guard.0 else { return };
        let key = P::key_of(object);
        let version = object.meta().resource_version.as_deref().unwrap_or_default();
        {
            let mut state = self.lock();
            state.buried.push_back((key.clone(), version.to_owned()));
            if state.buried.len() > BURIED {
                state.buried.pop_front();
            }
        }
        if self.get(&key).is_some_and(|item| !newer(item.resource_version(), version)) {
            self.forget(&key);
        }
    }

    /// Watches for as long as it is polled. A lost watch is taken up again, an unreadable object is left out and
    /// logged.
    pub fn run(
        &self,
        api: Api<DeserializeGuard<P::Object>>,
        config: watcher::Config,
    ) -> impl Future<Output = ()> + Send + use<P> {
        let cache = self.clone();
        let kind = <P::Object as kube::Resource>::kind(&()).into_owned();
        let mut asked = self.asked.subscribe();
        async move {
            let mut failures = 0;
            loop {
                let number = *asked.borrow_and_update();
                cache.lock().listing = number;
                let mut events = watcher(api.clone(), config.clone()).boxed();
                loop {
                    let next = async {
                        // A quiet watch is no error, and kube ends a dead one.
                        if cache.watches(number) {
                            return Ok(events.next().await);
                        }
                        tokio::time::timeout(LIST_LIMIT, events.next()).await
                    };
                    let pause = tokio::select! {
                        Ok(()) = asked.changed() => break,
                        next = next => match next {
                            Ok(Some(Ok(event))) => {
                                // Each try of a list begins with an event of its own.
                                if !matches!(event, watcher::Event::Init) {
                                    failures = 0;
                                }
                                cache.take(event);
                                continue;
                            }
                            Ok(Some(Err(error))) => {
                                let pause = retry_pause(failures);
                                failures = failures.saturating_add(1);
                                let error = &error as &dyn std::error::Error;
                                tracing::warn!(%kind, error, ?pause, "watch failed, retrying");
                                pause
                            }
                            Ok(None) => return,
                            Err(_) => {
                                tracing::warn!(%kind, limit = ?LIST_LIMIT, "the API server does not answer the list, retrying");
                                break;
                            }
                        },
                    };
                    tokio::select! {
                        Ok(()) = asked.changed() => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }
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

fn read<P: Projection>(guard: &DeserializeGuard<P::Object>) -> Option<P> {
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
    fn node(version: &str) -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "node-1", "resourceVersion": version,
                "labels": {"bottlerocket.aws/updater-interface-version": "2.0.0"}}
        }))
        .unwrap()
    }

    #[test]
    fn an_answer_that_arrives_after_the_deletion_revives_nothing() {
        use kube::core::DeserializeGuard;
        use kube::runtime::watcher::Event;
        let cache =
            super::Cache::<planner::view::NodeFacts>::new(std::sync::Arc::new(tokio::sync::watch::channel(0).0));
        cache.take(Event::Init);
        cache.take(Event::InitApply(DeserializeGuard(Ok(node("5")))));
        cache.take(Event::InitDone);
        // The claim makes version 6; the node is deleted at 7. The watch is faster than the answer to the claim.
        cache.take(Event::Apply(DeserializeGuard(Ok(node("6")))));
        cache.take(Event::Delete(DeserializeGuard(Ok(node("7")))));
        cache.written(&node("6"));
        assert!(cache.get("a").is_none(), "the deleted node is back, until the next re-list");
    }

    #[test]
    fn a_cache_has_read_only_what_a_list_that_began_after_the_question_showed() {
        use kube::runtime::watcher::Event;
        let cache =
            super::Cache::<planner::view::NodeFacts>::new(std::sync::Arc::new(tokio::sync::watch::channel(0).0));
        let list = |number| {
            cache.lock().listing = number;
            cache.take(Event::Init);
            cache.take(Event::InitDone);
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

    #[test]
    fn pauses_grow_to_a_few_seconds_and_differ() {
        use std::time::Duration;
        assert!(super::retry_pause(0) <= Duration::from_millis(250));
        let pauses: Vec<_> = (0..100).map(|_| super::retry_pause(u32::MAX)).collect();
        assert!(pauses.iter().all(|pause| (Duration::from_secs(2)..=Duration::from_secs(4)).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    /// Answers lists with one node each, of which some fail or are not answered, and keeps watches open.
    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_refused_or_not_answered_is_asked_for_again() {
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
