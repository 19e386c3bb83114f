//! The calls of the migrator about shadows, and what their answers mean.

use futures::{StreamExt as _, stream};
use http::Request as HttpRequest;
use kube::api::{GetParams, ListParams, Patch, PostParams, Request};
use kube::core::ObjectList;
use models::answer::is_of_rbac;
use models::earlier::READ_ONLY_POLICY;
use models::names::GROUP;
use planner::policy::Policy;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

use super::plan::{Definition, Pass, Refusal, Work};
use super::rewrite::{self, Next, VERSION};
use crate::apply::{Applier, create_params, patch_params};
use crate::earlier::EarlierPods;
use crate::leader::LostLease;

const PLURAL: &str = "bottlerocketshadows";

/// Objects per page of a list.
const PAGE: u32 = 500;

/// Number of times that a list is begun again because its pages are too old.
const LISTS: usize = 3;

/// Objects whose migration is under way at a time, and the pause between two that begin: a migration of thousands of
/// objects must not crowd out the updates of nodes.
const AT_A_TIME: usize = 4;
const PACE: Duration = Duration::from_millis(100);

/// Number of times that an object is read again because another client wrote first.
const CONFLICTS: u32 = 5;
const CONFLICT_PAUSE: Duration = Duration::from_millis(100);

/// The most writes that one object takes, and some more.
const WRITES: usize = 8;

/// Objects without an answer after which a pass ends: the API server is not available.
const UNANSWERED: usize = 16;

/// Name of the shadow that is never created: a dry run with it shows whether writes at a version are refused.
const TRIAL: &str = "brs-migration-trial";

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("it does not exist")]
    Gone,
    #[error("another client wrote first")]
    Conflict,
    /// The object, or the write, is invalid, or an admission check denies it.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    MissingRight(String),
    /// Nothing is known: not even that there is no object.
    #[error("{0}")]
    Unanswered(String),
    #[error("the list has expired")]
    Expired,
    #[error("pods of the earlier operator exist: {}", .0.join("; "))]
    EarlierPods(Vec<String>),
    #[error(transparent)]
    Lost(#[from] LostLease),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else { return Self::Unanswered(error.to_string()) };
        let message = status.message.clone();
        match status.code {
            404 => Self::Gone,
            409 => Self::Conflict,
            410 => Self::Expired,
            403 if is_of_rbac(&message) => Self::MissingRight(message),
            429 => Self::Unanswered(format!("429: {message}")),
            400..=499 => Self::Refused(message),
            code => Self::Unanswered(format!("{code}: {message}")),
        }
    }
}

/// Returns true for a denial of the read-only policy. Other policies may deny the trial object alone.
fn is_of_read_only_policy(answer: &str) -> bool {
    answer.contains("denied") && answer.contains(READ_ONLY_POLICY)
}

#[derive(Clone, Debug)]
struct Key {
    namespace: String,
    name: String,
}

#[derive(Clone)]
pub(super) struct Objects {
    pub(super) applier: Applier,
    pub(super) earlier: EarlierPods,
}

fn path(version: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
    format!("/apis/{GROUP}/{version}/{namespace}{PLURAL}")
}

fn unsendable(error: &dyn std::error::Error) -> CallError {
    CallError::Refused(format!("the request cannot be built: {error}"))
}

impl Objects {
    async fn call<E: std::error::Error>(&self, request: Result<HttpRequest<Vec<u8>>, E>) -> Result<Value, CallError> {
        let request = request.map_err(|error| unsendable(&error))?;
        Ok(self.applier.client.request::<Value>(request).await?)
    }

    async fn read(&self, version: &str, key: &Key) -> Result<Value, CallError> {
        self.call(Request::new(path(version, Some(&key.namespace))).get(&key.name, &GetParams::default())).await
    }

    async fn write(&self, version: &str, key: &Key, patch: &Patch<Value>) -> Result<Value, CallError> {
        self.applier.leadership.check()?;
        let (request, mut params) = (Request::new(path(version, Some(&key.namespace))), patch_params());
        if let Patch::Apply(_) = patch {
            params.force = true;
            return self.call(request.patch_subresource("status", &key.name, &params, patch)).await;
        }
        self.call(request.patch(&key.name, &params, patch)).await
    }

    /// Tries, without an effect, whether the read-only policy refuses to create a shadow at a version of the earlier
    /// operator.
    pub(super) async fn is_read_only(&self, version: &str) -> Result<bool, CallError> {
        let params = PostParams { dry_run: true, ..create_params() };
        let shadow = json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": "BottlerocketShadow",
            "metadata": {"name": TRIAL, "namespace": self.applier.namespace}, "spec": {"state": "Idle"},
        });
        let body = serde_json::to_vec(&shadow).map_err(|error| unsendable(&error))?;
        match self.call(Request::new(path(version, Some(&self.applier.namespace))).create(&params, body)).await {
            Ok(_) | Err(CallError::Conflict) => Ok(false),
            Err(CallError::Refused(answer)) => Ok(is_of_read_only_policy(&answer)),
            Err(error) => Err(error),
        }
    }

    /// Lists the objects that `wanted` selects, in all namespaces.
    async fn list(&self, wanted: impl Fn(&Value) -> bool) -> Result<Vec<Key>, CallError> {
        let first_page = || ListParams::default().limit(PAGE);
        let (mut found, mut params, mut begun) = (Vec::new(), first_page(), 1);
        loop {
            let list = match self.call(Request::new(path(VERSION, None)).list(&params)).await {
                Err(CallError::Expired) if begun < LISTS => {
                    (found, params, begun) = (Vec::new(), first_page(), begun + 1);
                    continue;
                }
                list => list?,
            };
            let page: ObjectList<Value> =
                serde_json::from_value(list).map_err(|error| CallError::Unanswered(error.to_string()))?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            found.extend(page.items.iter().filter(|object| wanted(object)).map(|object| Key {
                namespace: text(&object["metadata"]["namespace"]),
                name: text(&object["metadata"]["name"]),
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Goes over all objects. `left` receives the number of objects that are left, before the first and now and then.
    ///
    /// The objects are listed at the version that shows an attempt, which only migrated ones have; each old one is then
    /// read at its own version, which alone shows its fields.
    pub(super) async fn pass(
        &self,
        work: Work,
        definition: &Definition,
        policy: &Policy,
        left: impl Fn(usize),
    ) -> Result<Pass, CallError> {
        let keys = self.list(|object| work == Work::All || rewrite::is_due(object)).await?;
        let found = if work == Work::All { 0 } else { keys.len() };
        let mut passed = Pass { work, definition: definition.clone(), found, refused: Vec::new(), after_wait: false };
        if work == Work::Look || keys.is_empty() {
            return Ok(passed);
        }
        let total = keys.len();
        left(total);
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let paced = stream::unfold((keys.into_iter(), pace), async |(mut keys, mut pace)| {
            let key = keys.next()?;
            pace.tick().await;
            Some((key, (keys, pace)))
        });
        let results = paced
            .map(async |key| {
                let result = self.migrate(work, definition, policy, &key).await;
                (key, result)
            })
            .buffer_unordered(AT_A_TIME);
        tokio::pin!(results);
        let (mut done, mut unanswered) = (0, Vec::new());
        while let Some((key, result)) = results.next().await {
            done += 1;
            let object = format!("{}/{}", key.namespace, key.name);
            match result {
                Ok(written) if work == Work::All => passed.found += usize::from(written),
                Ok(_) | Err(CallError::Gone) => {}
                Err(CallError::Refused(message)) => passed.refused.push(Refusal { object, message }),
                Err(error @ (CallError::MissingRight(_) | CallError::EarlierPods(_) | CallError::Lost(_))) => {
                    return Err(error);
                }
                Err(error) => unanswered.push(format!("{object}: {error}")),
            }
            if unanswered.len() >= UNANSWERED {
                break;
            }
            if done % 25 == 0 {
                left(total - done);
            }
        }
        passed.refused.sort();
        match unanswered.first() {
            Some(first) => Err(CallError::Unanswered(format!("{} shadows: {first}", unanswered.len()))),
            None => Ok(passed),
        }
    }

    /// Migrates one object, and returns whether it was written. A conflict is resolved by another read.
    async fn migrate(
        &self,
        work: Work,
        definition: &Definition,
        policy: &Policy,
        key: &Key,
    ) -> Result<bool, CallError> {
        let mut conflicts = 0;
        loop {
            match self.migrate_once(work, definition, policy, key).await {
                Err(CallError::Conflict) if conflicts < CONFLICTS => conflicts += 1,
                result => return result,
            }
            tokio::time::sleep(CONFLICT_PAUSE * conflicts).await;
        }
    }

    async fn migrate_once(
        &self,
        work: Work,
        definition: &Definition,
        policy: &Policy,
        key: &Key,
    ) -> Result<bool, CallError> {
        let mut object = self.read(VERSION, key).await?;
        for writes in 0..WRITES {
            let next = rewrite::next(&object, policy, self.applier.leadership.now());
            object = match next.map_err(|error| CallError::Refused(error.to_string()))? {
                Next::Nothing if writes == 0 && work == Work::All => {
                    let stored =
                        self.write(&definition.storage, key, &Patch::Merge(rewrite::unchanged(&object))).await?;
                    return Ok(stored["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]);
                }
                Next::Nothing => return Ok(writes > 0),
                Next::Reset => {
                    // Without an earlier version there are no earlier fields to keep.
                    let earlier = self.read(definition.reads_earlier_at().unwrap_or(VERSION), key).await?;
                    if earlier["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                        return Err(CallError::Conflict);
                    }
                    // It may have returned since the pass began.
                    let pods = self.earlier.names();
                    if !pods.is_empty() {
                        return Err(CallError::EarlierPods(pods));
                    }
                    self.write(VERSION, key, &Patch::Merge(rewrite::reset(&earlier))).await?
                }
                Next::Own(patch) => {
                    let patch = serde_json::from_value(patch).map_err(|error| unsendable(&error))?;
                    self.write(VERSION, key, &Patch::Json(patch)).await?
                }
                Next::Carry(apply) => self.write(VERSION, key, &Patch::Apply(apply)).await?,
                Next::Finish(patch) => self.write(VERSION, key, &Patch::Merge(patch)).await?,
            };
        }
        Err(CallError::Refused("it is not migrated although every write was accepted".to_owned()))
    }
}

#[cfg(test)]
mod tests;
