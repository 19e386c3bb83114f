//! Watches the API server from the start of a run, so that no revision is missed.
//!
//! A watch gives every change, as long as it is never interrupted for longer than the API server's cache covers. When
//! it is (the server was restarted, a custom resource appeared only now), the gap is read from etcd's own history: the
//! list at each revision in between, compared with the one before. The control plane of the test cluster never compacts
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use models::names;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::facts::{Kind, Object};
use super::history::{Change, History};
use super::world::ClusterState;

/// Longest wait of [`Recorder::finish`] for the watches to catch up.
const CATCH_UP: Duration = Duration::from_secs(120);
/// Pause before the next try while the API server, or the resource, is not available.
const RETRY: Duration = Duration::from_millis(100);
/// Pause between looks for a kind that is not defined.
const UNDEFINED: Duration = Duration::from_millis(250);
/// Longest outage of the API server.
const PATIENCE: Duration = Duration::from_secs(120);
/// Widest gap that is read back revision by revision.
const WIDEST_GAP: u64 = 20_000;
/// Number of old lists read at once.
const LISTS_AT_ONCE: usize = 8;

/// Records the API server's history, until it is finished or dropped.
pub struct Recorder {
    client: Client,
    shared: Arc<Shared>,
    watches: JoinSet<()>,
}

struct Shared {
    history: Mutex<History>,
    /// The changes in the order in which they were seen, for those that follow them.
    seen: Mutex<Vec<Change>>,
    failure: Mutex<Option<String>>,
    /// Number of changes.
    progress: watch::Sender<usize>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Change>> {
        self.seen.lock()
    }

    fn add(&self, change: Change) {
        let mut history = self.lock();
        history.add(change.clone());
        self.seen().push(change);
        self.progress.send_replace(history.changes().len());
    }

    fn fail(&self, error: &anyhow::Error) {
        self.failure.lock().get_or_insert_with(|| format!("{error:#}"));
        self.progress.send_modify(|_| {});
    }

    fn check(&self) -> anyhow::Result<()> {
        match &*self.failure.lock() {
            Some(failure) => Err(anyhow!("the history is incomplete: {failure}")),
            None => Ok(()),
        }
    }

    fn history(&self) -> History {
        self.lock().clone()
    }
}

impl Recorder {
    /// Starts to record. To record everything, start it before anything is installed. `client` may read all objects,
    /// and belongs to no user whose requests are counted.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn start(client: Client) -> anyhow::Result<Self> {
        let progress = watch::Sender::new(0);
        let shared =
            Arc::new(Shared { history: Mutex::default(), seen: Mutex::default(), failure: Mutex::default(), progress });
        let mut watches = JoinSet::new();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let start = definitions.list_metadata(&ListParams::default()).await.context("cannot list what is installed")?;
        let start = revision(start.metadata.resource_version.as_deref())?;
        for kind in Kind::ALL {
            let mut source = Source {
                kind,
                api: Api::all_with(client.clone(), &resource(kind)),
                definitions: definitions.clone(),
                shared: Arc::clone(&shared),
                known: HashMap::new(),
                seen: start,
            };
            let shared = Arc::clone(&shared);
            // Existing objects have to be recorded before the caller continues.
            let first = source.list_if_there().await?;
            watches.spawn(async move {
                if let Err(error) = source.run(first).await {
                    shared.fail(&error.context(format!("watch of {kind:?}")));
                }
            });
        }
        Ok(Self { client, shared, watches })
    }

    /// The cluster state after the last recorded change.
    ///
    /// # Errors
    /// When something was missed.
    pub fn now(&self) -> anyhow::Result<ClusterState> {
        self.shared.check()?;
        Ok(self.shared.lock().end())
    }

    /// The history recorded so far; its end may be missing.
    ///
    /// # Errors
    /// When something was missed.
    pub fn so_far(&self) -> anyhow::Result<History> {
        self.shared.check()?;
        Ok(self.shared.history())
    }

    /// Returns the history so far, and goes on with one that begins with the objects that exist now: a long run is judged in pieces.
    /// Nothing waits for a condition meanwhile.
    ///
    /// # Errors
    /// When something was missed.
    pub fn take_piece(&self) -> anyhow::Result<History> {
        self.shared.check()?;
        let mut history = self.shared.lock();
        let next = history.at_end();
        self.shared.seen().clear();
        Ok(std::mem::replace(&mut *history, next))
    }

    /// Waits until the history meets a condition.
    ///
    /// # Errors
    /// When something was missed, or at the deadline.
    pub async fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&History) -> bool,
    ) -> anyhow::Result<History> {
        let mut progress = self.shared.progress.subscribe();
        let deadline = Instant::now() + limit;
        loop {
            progress.borrow_and_update();
            {
                // Dropped before the next change: adding to a history that is shared copies it.
                let history = self.so_far()?;
                if holds(&history) {
                    return Ok(history);
                }
            }
            let changed = tokio::time::timeout_at(deadline, progress.changed()).await;
            changed.with_context(|| format!("not within {limit:?}: {what}"))?.context("the recorder has ended")?;
        }
    }

    /// Waits until the cluster state meets a condition, and returns that state. The condition sees the state after every
    /// change from now on, so that a state which lasts for a moment is not missed on a busy machine.
    ///
    /// # Errors
    /// When something was missed, or at the deadline.
    pub async fn wait_until_state(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<ClusterState> {
        let mut progress = self.shared.progress.subscribe();
        let deadline = Instant::now() + limit;
        let (mut state, mut next) = {
            let history = self.shared.lock();
            (history.end(), self.shared.seen().len())
        };
        if holds(&state) {
            self.shared.check()?;
            return Ok(state);
        }
        loop {
            self.shared.check()?;
            progress.borrow_and_update();
            let changes = self.shared.seen()[next..].to_vec();
            next += changes.len();
            for change in &changes {
                state.apply(change);
                if holds(&state) {
                    return Ok(state);
                }
            }
            let changed = tokio::time::timeout_at(deadline, progress.changed()).await;
            changed.with_context(|| format!("not within {limit:?}: {what}"))?.context("the recorder has ended")?;
        }
    }

    /// Waits until all changes made by now are recorded, and stops. The recorded revisions end at a quorum read of each
    /// kind, made now.
    ///
    /// # Errors
    /// When something was missed.
    pub async fn finish(mut self) -> anyhow::Result<History> {
        for kind in Kind::ALL {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
            let Some((to, items)) = list(&api, &ListParams::default()).await? else { continue };
            let mut listed = HashMap::new();
            for item in items.iter().filter(|item| !is_earlier(kind, &item.data)) {
                listed.insert(identity(item), revision(item.metadata.resource_version.as_deref())?);
            }
            let caught_up = |history: &History| covers(history, kind, to, &listed);
            self.wait_until(&format!("the watch of {kind:?} reaches revision {to}"), CATCH_UP, caught_up).await?;
        }
        self.watches.shutdown().await;
        self.so_far()
    }
}

/// Returns true if a history contains everything in a list at `to`, and nothing that the list no longer has.
fn covers(history: &History, kind: Kind, to: u64, listed: &HashMap<(String, String), u64>) -> bool {
    let mut known: HashMap<(String, String), (u64, bool)> = HashMap::new();
    for change in history.changes() {
        let (of, namespace, name) = change.object.key();
        if of == kind && (change.revision <= to || listed.contains_key(&(namespace.clone(), name.clone()))) {
            known.insert((namespace, name), (change.revision, change.gone));
        }
    }
    listed.iter().all(|(key, at)| known.get(key).is_some_and(|(seen, _)| seen >= at))
        && known.iter().all(|(key, (_, gone))| *gone || listed.contains_key(key))
}

fn resource(kind: Kind) -> ApiResource {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    match kind {
        Kind::Node => ApiResource::erase::<Node>(&()),
        Kind::Pod => ApiResource::erase::<Pod>(&()),
        Kind::Budget => ApiResource::erase::<PodDisruptionBudget>(&()),
        Kind::Shadow => ApiResource::erase::<models::shadow::BottlerocketShadow>(&()),
        Kind::Operator => ApiResource::erase::<models::operator::BottlerocketUpdateOperator>(&()),
    }
}

/// Returns true for a shadow of the earlier operator, which the history leaves out: it has no attempt.
fn is_earlier(kind: Kind, object: &Value) -> bool {
    kind == Kind::Shadow && object["spec"]["attempt"].is_null()
}

fn revision(text: Option<&str>) -> anyhow::Result<u64> {
    let text = text.context("no resourceVersion")?;
    text.parse().with_context(|| format!("resourceVersion '{text}' is no number"))
}

fn identity(object: &DynamicObject) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Lists all objects; `None` when the resource does not exist (yet).
async fn list(api: &Api<DynamicObject>, params: &ListParams) -> anyhow::Result<Option<(u64, Vec<DynamicObject>)>> {
    match api.list(params).await {
        Ok(list) => Ok(Some((revision(list.metadata.resource_version.as_deref())?, list.items))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).context("cannot list"),
    }
}

/// The changes of one kind.
struct Source {
    kind: Kind,
    api: Api<DynamicObject>,
    definitions: Api<CustomResourceDefinition>,
    shared: Arc<Shared>,
    /// The objects at `seen`.
    known: HashMap<(String, String), DynamicObject>,
    /// All changes up to this revision are recorded.
    seen: u64,
}

impl Source {
    /// Records the initial state; earlier changes do not matter.
    async fn list_if_there(&mut self) -> anyhow::Result<bool> {
        let Some((at, items)) = list(&self.api, &ListParams::default()).await? else { return Ok(false) };
        for item in items {
            self.record(revision(item.metadata.resource_version.as_deref())?, false, item)?;
        }
        self.seen = at;
        Ok(true)
    }

    async fn run(&mut self, mut there: bool) -> anyhow::Result<()> {
        loop {
            if !there {
                tokio::time::sleep(RETRY).await;
                self.catch_up().await?;
            }
            there = self.watch().await?;
        }
    }

    /// Records all changes between the last one seen and now.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        let mut since = Instant::now();
        let to = loop {
            // Without its definition there can be no object of it: no gap opens. Other kinds are always there.
            while resource(self.kind).group == names::GROUP
                && let Ok(defined) = self.definitions.list_metadata(&ListParams::default()).await
                && !defined.items.iter().any(|definition| definition.name_any() == self.definition())
            {
                self.seen = self.seen.max(revision(defined.metadata.resource_version.as_deref())?);
                tokio::time::sleep(UNDEFINED).await;
                since = Instant::now();
            }
            match list(&self.api, &ListParams::default().limit(1)).await {
                Ok(Some((to, _))) => break to,
                Ok(None) => since = Instant::now(),
                Err(error) if since.elapsed() > PATIENCE => return Err(error),
                Err(_) => {}
            }
            tokio::time::sleep(RETRY).await;
        };
        ensure!(to.saturating_sub(self.seen) <= WIDEST_GAP, "a gap from revision {} to {to}", self.seen);
        let api = self.api.clone();
        let lists = stream::iter(self.seen + 1..=to).map(move |at| {
            let api = api.clone();
            async move { anyhow::Ok((at, list_at(&api, at).await?)) }
        });
        let mut lists = std::pin::pin!(lists.buffered(LISTS_AT_ONCE));
        while let Some((at, items)) = lists.try_next().await? {
            let mut gone = std::mem::take(&mut self.known);
            for item in items {
                let made = revision(item.metadata.resource_version.as_deref())?;
                match gone.remove(&identity(&item)) {
                    Some(old) if old.metadata.resource_version == item.metadata.resource_version => {
                        self.known.insert(identity(&item), old);
                    }
                    _ => self.record(made, false, item)?,
                }
            }
            for (_, object) in gone {
                self.record(at, true, object)?;
            }
            self.seen = at;
        }
        Ok(())
    }

    fn definition(&self) -> String {
        format!("{}.{}", resource(self.kind).plural, names::GROUP)
    }

    /// Watches from the last revision seen. Returns true if the next watch can continue from where this one ended.
    async fn watch(&mut self) -> anyhow::Result<bool> {
        let params = WatchParams::default();
        let Ok(events) = self.api.watch(&params, &self.seen.to_string()).await else {
            // Refused, gone, or not reachable: the list decides.
            return Ok(false);
        };
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (gone, object) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (false, object),
                Ok(WatchEvent::Deleted(object)) => (true, object),
                Ok(WatchEvent::Bookmark(mark)) => {
                    self.seen = self.seen.max(revision(Some(&mark.metadata.resource_version))?);
                    continue;
                }
                Ok(WatchEvent::Error(_)) | Err(_) => return Ok(false),
            };
            let at = revision(object.metadata.resource_version.as_deref())?;
            self.record(at, gone, object)?;
            self.seen = self.seen.max(at);
        }
        Ok(true)
    }

    fn record(&mut self, revision: u64, gone: bool, object: DynamicObject) -> anyhow::Result<()> {
        let value = serde_json::to_value(&object).context("an object that is no JSON")?;
        if gone {
            self.known.remove(&identity(&object));
        } else {
            self.known.insert(identity(&object), object);
        }
        if is_earlier(self.kind, &value) {
            return Ok(());
        }
        let object = Object::parse(self.kind, value)?;
        self.shared.add(Change { revision, at: Timestamp::now(), gone, object });
        Ok(())
    }
}

/// The list at a revision, straight from etcd. The server may still be starting.
async fn list_at(api: &Api<DynamicObject>, at: u64) -> anyhow::Result<Vec<DynamicObject>> {
    let params = ListParams::default().at(&at.to_string()).matching(VersionMatch::Exact);
    let since = Instant::now();
    loop {
        match list(api, &params).await {
            Ok(Some((_, items))) => return Ok(items),
            // The resource is gone again, and its objects with it.
            Ok(None) => return Ok(Vec::new()),
            Err(error) => {
                let lost =
                    matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status)) if status.code == 410);
                if lost || since.elapsed() > PATIENCE {
                    return Err(error.context(format!("revision {at}")));
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
