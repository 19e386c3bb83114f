//! A cache of slim projections that reads its own writes: a watch fills it, and the result of an own write goes in at
//! once.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kube::Resource as _;
use kube::api::Api;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use planner::view::Projection;
use prometheus::IntCounter;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use watches::{Objects, Sink};

/// The longest pause after failures in a row of a watch that no decision depends on.
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

struct CacheState<P> {
    objects: Objects<P>,
    /// Number of the last requested read before the last complete list began.
    listed: u64,
}

/// The cache. Clones share it.
pub struct Cache<P> {
    state: Arc<Mutex<CacheState<P>>>,
    changed: Arc<watch::Sender<u64>>,
    asked: Arc<watch::Sender<u64>>,
    longest_pause: Duration,
    failures: IntCounter,
    /// The node that the objects are of, where they are of one.
    node: Option<Arc<str>>,
}

impl<P> Clone for Cache<P> {
    fn clone(&self) -> Self {
        let (state, changed, asked) = (self.state.clone(), self.changed.clone(), self.asked.clone());
        let (failures, node) = (self.failures.clone(), self.node.clone());
        Self { state, changed, asked, longest_pause: self.longest_pause, failures, node }
    }
}

impl<P: Projection> Cache<P> {
    /// Returns an empty cache that notifies `changed` of each relevant change, and counts the failures of its watches.
    pub fn new(changed: Arc<watch::Sender<u64>>, failures: &IntCounter) -> Self {
        let state = Arc::new(Mutex::new(CacheState { objects: Objects::new(P::VERSION), listed: 0 }));
        let asked = Arc::new(watch::channel(0).0);
        Self { state, changed, asked, longest_pause: watches::LONGEST_PAUSE, failures: failures.clone(), node: None }
    }

    /// Returns the same for objects that no decision depends on: a watch of them that fails is retried less often.
    pub fn rarely_retried(changed: Arc<watch::Sender<u64>>, failures: &IntCounter) -> Self {
        Self { longest_pause: LONGEST_PAUSE, ..Self::new(changed, failures) }
    }

    /// Returns the same for objects of one node, which the log names.
    #[must_use]
    pub fn of_node(self, node: &str) -> Self {
        Self { node: Some(node.into()), ..self }
    }

    /// Requests a list that begins from now on, and returns its number for [`Cache::has_read`].
    pub fn read_again(&self) -> u64 {
        self.asked.send_modify(|asked| *asked += 1);
        *self.asked.borrow()
    }

    /// Returns whether a list that began after this call of [`Cache::read_again`] is complete. Lists are consistent
    /// reads, so the contents from then on are at least as new as anything that was written before that call.
    pub fn has_read(&self, number: u64) -> bool {
        self.state.lock().listed >= number
    }

    /// Makes a change, and notifies of it if it is relevant.
    fn change(&self, make: impl FnOnce(&mut CacheState<P>) -> bool) {
        let relevant = make(&mut self.state.lock());
        if relevant {
            self.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Returns whether the first list is complete.
    pub fn synced(&self) -> bool {
        self.state.lock().objects.known.synced()
    }

    /// Returns all items.
    pub fn items(&self) -> BTreeMap<String, P> {
        self.state.lock().objects.known.items().clone()
    }

    /// Returns the reasons why objects cannot be read, by key. None of them is among the items, whatever was known before: a new
    /// leader knows no more.
    pub fn unreadable(&self) -> BTreeMap<String, String> {
        self.state.lock().objects.unreadable.clone()
    }

    /// Returns the result of `look` on all items, without a copy of them.
    pub fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, P>) -> T) -> T {
        look(self.state.lock().objects.known.items())
    }

    /// Returns the items that `wanted` selects.
    pub fn select(&self, wanted: impl Fn(&P) -> bool) -> Vec<P> {
        self.state.lock().objects.known.items().values().filter(|item| wanted(item)).cloned().collect()
    }

    /// Returns one item.
    pub fn get(&self, key: &str) -> Option<P> {
        self.state.lock().objects.known.items().get(key).cloned()
    }

    /// Records an object that an own write returned.
    pub fn written(&self, object: &P::Object) {
        let Some(item) = P::project(object) else { return };
        self.change(|state| state.objects.known.answer(&P::key_of(object.meta()), item, P::matters));
    }

    /// Watches for as long as it is polled. An unreadable object is logged, and named by [`Cache::unreadable`].
    pub fn run(
        &self,
        api: Api<DeserializeGuard<P::Object>>,
        config: watcher::Config,
    ) -> impl Future<Output = ()> + Send + use<P> {
        let (cache, asked) = (self.clone(), self.asked.subscribe());
        async move { watches::run(api, config, asked, &cache).await }
    }

    /// Does the same as [`Self::run`] in one request, unless the API server has refused that (`lists_first`).
    pub fn run_as_watch_list(
        &self,
        api: Api<DeserializeGuard<P::Object>>,
        config: watcher::Config,
        lists_first: Arc<AtomicBool>,
    ) -> impl Future<Output = ()> + Send + use<P> {
        let (cache, asked) = (self.clone(), self.asked.subscribe());
        async move { watches::run_as_watch_list(api, config, lists_first, asked, &cache).await }
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
        self.longest_pause
    }

    fn failed(&self) {
        self.failures.inc();
    }

    fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    fn take(&self, read: u64, event: Event<DeserializeGuard<P::Object>>) {
        self.change(|state| {
            let is_listed = matches!(event, Event::InitDone);
            let relevant = state.objects.take(event, P::key_of, P::project, P::matters);
            if is_listed {
                state.listed = read;
            }
            relevant
        });
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

/// Returns a counter of failures of watches that no metric has.
#[cfg(test)]
pub(crate) fn uncounted() -> IntCounter {
    IntCounter::new("failures", "of watches").unwrap()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use kube::core::DeserializeGuard;
    use kube::runtime::watcher::Event;
    use planner::view::{NodeFacts, Projection, ShadowFacts};
    use watches::Sink as _;

    use super::{Cache, uncounted};

    fn cache<P: Projection>() -> Cache<P> {
        Cache::new(Arc::new(tokio::sync::watch::channel(0).0), &uncounted())
    }

    fn node(version: &str) -> k8s_openapi::api::core::v1::Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "uid": "node-1", "resourceVersion": version,
                "labels": {"bottlerocket.aws/updater-interface-version": "2.0.0"}}
        }))
        .unwrap()
    }

    #[test]
    fn response_after_deletion_does_not_restore_object() {
        let cache = cache::<NodeFacts>();
        cache.take(0, Event::Init);
        cache.take(0, Event::InitApply(DeserializeGuard(Ok(node("5")))));
        cache.take(0, Event::InitDone);
        // The claim makes version 6; the node is deleted at 7. The watch is faster than the answer to the claim.
        cache.take(0, Event::Apply(DeserializeGuard(Ok(node("6")))));
        cache.take(0, Event::Delete(DeserializeGuard(Ok(node("7")))));
        cache.written(&node("6"));
        assert!(cache.get("a").is_none(), "the deleted node is back, until the next re-list");
    }

    /// A running leader that knew the object decides like a new one, which never did.
    #[test]
    fn unreadable_object_is_named_and_not_among_the_items_until_it_can_be_read_or_is_gone() {
        let shadow = |version: &str, not_before: &str| -> DeserializeGuard<models::shadow::BottlerocketShadow> {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
                "metadata": {"name": "brs-a", "namespace": "brupop-system", "uid": "u", "resourceVersion": version},
                "spec": {"attempt": 0}, "status": {"record": {"failures": 1, "notBefore": not_before}},
            }))
            .unwrap()
        };
        let (good, bad) = ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z");
        let list = |cache: &Cache<ShadowFacts>, object| {
            cache.take(0, Event::Init);
            cache.take(0, Event::InitApply(object));
            cache.take(0, Event::InitDone);
        };
        let (running, later) = (cache(), cache());
        list(&running, shadow("5", good));
        assert!(running.get("a").is_some() && running.unreadable().is_empty());
        running.take(0, Event::Apply(shadow("6", bad)));
        list(&later, shadow("6", bad));
        for cache in [&running, &later] {
            assert!(cache.get("a").is_none());
            assert!(cache.unreadable()["a"].contains("timestamp"), "{:?}", cache.unreadable());
        }
        // An answer to a write before that one.
        running.written(&shadow("5", good).0.unwrap());
        assert!(running.get("a").is_none());
        running.take(0, Event::Apply(shadow("7", good)));
        assert!(running.get("a").is_some() && running.unreadable().is_empty());
        later.take(0, Event::Delete(shadow("8", bad)));
        assert!(later.get("a").is_none() && later.unreadable().is_empty());
        list(&running, shadow("9", bad));
        assert!(running.get("a").is_none() && running.unreadable().len() == 1);
    }

    #[test]
    fn cache_is_read_only_after_list_started_since_request() {
        let cache = cache::<NodeFacts>();
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

    /// An API server whose feature is on, one that refuses, and one whose answer ends too early.
    #[tokio::test(start_paused = true)]
    async fn objects_come_with_their_watch_and_are_listed_where_they_do_not() {
        use kube::client::Body;
        use serde_json::json;
        const FIRST: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
        let added = json!({"type": "ADDED", "object": node("5")});
        let end = json!({"resourceVersion": "6", "annotations": {"k8s.io/initial-events-end": "true"}});
        let end = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Node", "metadata": end}});
        let refusal = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "WatchList is off"});
        for (sentence, code, lines, complete, remembered) in [
            ("the feature is on", 200, vec![&added, &end], true, false),
            ("it is off", 422, vec![&refusal], false, true),
            ("the answer ends too early", 200, vec![&added], false, false),
        ] {
            let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
            let lists_first = Arc::new(AtomicBool::new(false));
            let begin = || {
                let cache = cache::<NodeFacts>();
                let api = kube::Api::all(kube::Client::new(service.clone(), "default"));
                let run = cache.run_as_watch_list(api, super::watcher::Config::default(), lists_first.clone());
                (cache, tokio::spawn(run))
            };
            let (cache, watches) = begin();
            let (request, reply) = handle.next_request().await.unwrap();
            // No version: as new as the request.
            assert!(request.uri().query().unwrap_or_default().ends_with(FIRST), "{sentence}: {}", request.uri());
            let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let answer = http::Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap();
            reply.send_response(answer);
            let (next, _reply) = handle.next_request().await.unwrap();
            assert_eq!(next.uri().query().unwrap_or_default().ends_with(FIRST), complete, "{sentence}: {}", next.uri());
            assert_eq!((cache.synced(), cache.get("a").is_some()), (complete, complete), "{sentence}");
            watches.abort();
            let (_other, watches) = begin();
            let (next, _reply) = handle.next_request().await.unwrap();
            assert_eq!(next.uri().query().unwrap_or_default().contains("watch="), !remembered, "{sentence}");
            watches.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_fails_again_and_again_is_logged_once_with_its_node_and_counted_each_time() {
        use kube::client::Body;
        let log = tempfile::NamedTempFile::new().unwrap();
        // With one subscriber alone, a line of the log that another test reaches first is disabled for this one too.
        let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.reopen().unwrap()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let service = tower::service_fn(|_: http::Request<Body>| async {
            let refusal = serde_json::json!({"kind": "Status", "status": "Failure", "code": 429, "message": "busy"});
            let answer = http::Response::builder().status(429).body(Body::from(refusal.to_string().into_bytes()));
            Ok::<_, std::convert::Infallible>(answer.unwrap())
        });
        let cache = cache::<NodeFacts>().of_node("a");
        let api = kube::Api::all(kube::Client::new(service, "default"));
        let run = cache.run(api, kube::runtime::watcher::Config::default());
        assert!(tokio::time::timeout(std::time::Duration::from_mins(5), run).await.is_err(), "it watches on");
        let all = std::fs::read_to_string(log.path()).unwrap();
        let lines: Vec<&str> = all.lines().filter(|line| line.contains("watch failed, retrying")).collect();
        assert!(matches!(lines[..], [line] if line.contains("kind=Node node=\"a\"") && line.contains("busy")), "{all}");
        let failures = cache.failures.get();
        assert!(failures >= 75, "{failures} failures");
    }

    /// Answers lists with one node each, of which some fail or are not answered, and keeps watches open.
    #[tokio::test(start_paused = true)]
    async fn failed_or_unanswered_list_is_retried() {
        use kube::client::Body;
        let (service, mut handle) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let client = kube::Client::new(service, "default");
        let cache = cache::<NodeFacts>();
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
