//! The migrator's loop: carries out the steps of [`plan`](super::plan), and begins again after a change of the
//! definition or of what users request, or after a pause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, WatchEvent, WatchParams};
use models::backoff::Backoff;
use models::names::{self, SHADOW_DEFINITION as DEFINITION};
use models::operator::{CompletedMigration, StorageMigration};
use planner::plan::pending_migration;
use planner::policy::Policy;
use planner::view::OperatorFacts;
use serde_json::json;

use super::Progress;
use super::objects::{CallError, Objects};
use super::plan::{Block, Definition, Known, Pass, Step, StorageFacts, next};
use super::report::MigrationState;
use super::rewrite::VERSION;
use crate::apply::{Applier, patch_params};
use crate::earlier::EarlierPods;

/// Pause while the renewal of the Lease is late.
const LOST_PAUSE: Duration = Duration::from_secs(1);

/// Time in which every API server has seen a change of the definition, which takes about a second: one that has not
/// stores objects in the old version.
const WAIT: Duration = Duration::from_secs(20);

/// Time for which changes of the definition are collected.
const SETTLED: Duration = Duration::from_secs(1);

/// Pause before the watch of the definition is opened again.
const WATCH_AGAIN: Duration = Duration::from_secs(10);

/// The mode and the request of the operator's resource that are in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requested {
    manual: bool,
    request: Option<String>,
}

pub struct Migrator {
    applier: Applier,
    objects: Objects,
    definitions: Api<CustomResourceDefinition>,
    progress: Progress,
    /// The last version of the definition that was read.
    seen: String,
    /// The state in which the last migration ended.
    ended: Option<MigrationState>,
}

impl Migrator {
    /// Returns a migrator that reports in `progress`. It may run once the caches have been read.
    pub fn new(applier: Applier, earlier: EarlierPods, progress: Progress) -> Self {
        Self {
            definitions: Api::all(applier.client.clone()),
            objects: Objects { applier: applier.clone(), earlier },
            applier,
            progress,
            seen: String::new(),
            ended: None,
        }
    }

    fn operator(&self) -> Option<OperatorFacts> {
        self.applier.caches.operator.get(names::OPERATOR_NAME)
    }

    /// Returns what users request and is not carried out yet.
    fn requested(&self, operator: Option<&OperatorFacts>) -> Requested {
        let mode = operator.and_then(|operator| operator.spec.storage_migration).unwrap_or_default();
        let done = self.progress.facts().carried_out;
        let request = operator.and_then(pending_migration).filter(|asked| Some(*asked) != done.as_ref()).cloned();
        // A resource that cannot be read may ask for that.
        let unknown = !self.applier.caches.operator.unreadable().is_empty();
        Requested { manual: unknown || mode == StorageMigration::Manual, request }
    }

    /// Migrates whenever it is needed, for as long as it is polled.
    pub async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let operator = self.operator();
            let mut requested = self.requested(operator.as_ref());
            let state = match self.migrate(operator.as_ref(), &requested).await {
                Ok(state) => state,
                // The renewal of the Lease is late, or this process ends.
                Err(CallError::Lost(_)) => {
                    tokio::time::sleep(LOST_PAUSE).await;
                    continue;
                }
                Err(CallError::EarlierPods(pods)) => MigrationState::Blocked(Block::EarlierPods(pods)),
                Err(CallError::MissingRight(answer)) => MigrationState::MissingRight(answer),
                Err(error) => MigrationState::Unanswered(error.to_string()),
            };
            let pause = state.pause(&mut backoff);
            self.log(&state);
            self.publish(&state);
            self.ended = Some(state);
            if requested.request == self.progress.facts().carried_out {
                requested.request = None;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.definition_changes() => backoff.reset(),
                () = self.request_changes(&requested) => backoff.reset(),
            }
        }
    }

    /// Carries out steps until there are none.
    async fn migrate(
        &mut self,
        operator: Option<&OperatorFacts>,
        requested: &Requested,
    ) -> Result<MigrationState, CallError> {
        let policy = Policy::in_force(operator);
        let stored = operator.and_then(|operator| operator.status.storage_migration.clone());
        let completed = self.progress.facts().completed.or(stored);
        let mut definition = self.definition().await?;
        let mut known = Known::default();
        loop {
            let step = next(StorageFacts {
                definition: &definition,
                earlier_pods: &self.objects.earlier.names(),
                completed: completed.as_ref(),
                manual: requested.manual,
                requested: requested.request.is_some(),
                known: &known,
            });
            match step {
                Step::TryReadOnly => {
                    let mut read_only = true;
                    for version in definition.served_earlier() {
                        read_only &= self.objects.is_read_only(version).await?;
                    }
                    known.read_only = Some(read_only);
                }
                Step::Pass(work) => {
                    let retried = self.ended.as_ref().is_some_and(|ended| !ended.refused().is_empty());
                    let begun = AtomicBool::new(known.pass.is_some() || retried);
                    let left = |left| {
                        if !begun.swap(true, Ordering::Relaxed) {
                            tracing::info!(objects = left, storage = definition.storage, "storage migration begun");
                        }
                        self.publish(&MigrationState::Migrating(left));
                    };
                    let passed = self.objects.pass(work, &definition, &policy, left).await?;
                    let after_wait = known.waited;
                    known.waited &= passed.found == 0;
                    known.pass = Some(Pass { after_wait, ..passed });
                }
                Step::Wait => {
                    self.publish(&MigrationState::Migrating(0));
                    tokio::time::sleep(WAIT).await;
                    let before = std::mem::replace(&mut definition, self.definition().await?);
                    // The policy is tried again: what follows may be the prune.
                    let pass = known.pass.take().filter(|_| before.is_same(&definition));
                    known = Known { waited: pass.is_some(), pass, ..Known::default() };
                }
                Step::Prune(version) => match self.prune(&definition, &version).await {
                    Ok(pruned) => definition = pruned,
                    Err(CallError::Conflict) => {
                        definition = self.definition().await?;
                        known = Known::default();
                    }
                    Err(error) => return Err(error),
                },
                Step::Complete => return Ok(self.complete(&definition, completed, requested)),
                Step::Blocked(block) => return Ok(MigrationState::Blocked(block)),
            }
        }
    }

    fn complete(
        &self,
        definition: &Definition,
        known: Option<CompletedMigration>,
        requested: &Requested,
    ) -> MigrationState {
        let known = known.filter(|known| definition.is_completed_by(known) && requested.request.is_none());
        let completed = known.unwrap_or_else(|| CompletedMigration {
            uid: definition.uid.clone(),
            generation: definition.generation,
            storage_version: definition.storage.clone(),
            storage_version_hash: definition.hash.clone(),
            time: self.applier.leadership.now(),
        });
        self.progress.change(|facts| {
            facts.completed = Some(completed);
            if requested.request.is_some() {
                facts.carried_out.clone_from(&requested.request);
            }
        });
        MigrationState::Migrated(definition.storage.clone())
    }

    async fn definition(&mut self) -> Result<Definition, CallError> {
        let missing = |error| match CallError::from(error) {
            CallError::Gone => CallError::Unanswered(format!("there is no definition {DEFINITION}")),
            other => other,
        };
        let definition = self.definitions.get(DEFINITION).await.map_err(missing)?;
        self.seen = definition.metadata.resource_version.clone().unwrap_or_default();
        let group = format!("{}/{VERSION}", names::GROUP);
        // It is optional in the API, and so it is here.
        let listed = self.applier.client.list_api_group_resources(&group).await.ok();
        let resource = listed.into_iter().flat_map(|list| list.resources).find(|r| DEFINITION.starts_with(&r.name));
        Ok(Definition::of(&definition, resource.and_then(|resource| resource.storage_version_hash)))
    }

    /// Prunes `storedVersions` to the storage version, at the version of the definition that all objects were checked
    /// under.
    async fn prune(&mut self, definition: &Definition, version: &str) -> Result<Definition, CallError> {
        self.applier.leadership.check()?;
        let patch = json!({
            "metadata": {"uid": definition.uid, "resourceVersion": version},
            "status": {"storedVersions": [definition.storage]},
        });
        let pruned = self.definitions.patch_status(DEFINITION, &patch_params(), &Patch::Merge(patch)).await?;
        self.seen = pruned.metadata.resource_version.clone().unwrap_or_default();
        tracing::info!(from = definition.stored.join(","), to = definition.storage, "stored versions pruned");
        Ok(Definition::of(&pruned, definition.hash.clone()))
    }

    /// Waits for a change of the definition since it was read.
    async fn definition_changes(&self) {
        // Changes that come close together are handled together.
        tokio::time::sleep(SETTLED).await;
        let params = WatchParams::default().fields(&format!("metadata.name={DEFINITION}"));
        let mut version = self.seen.clone();
        loop {
            if let Ok(events) = self.definitions.watch(&params, &version).await {
                tokio::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    match event {
                        WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                        // The API server has no events since that version, as after its restart. The definition itself is older than
                        // that in most clusters, so the watch begins with its present state.
                        WatchEvent::Error(_) => {
                            version = String::new();
                            break;
                        }
                        WatchEvent::Added(present)
                            if present.metadata.resource_version.as_ref() == Some(&self.seen) => {}
                        _ => return,
                    }
                }
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    /// Waits until users request something else.
    async fn request_changes(&self, requested: &Requested) {
        let mut changes = self.applier.caches.changed.subscribe();
        while self.requested(self.operator().as_ref()) == *requested {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn publish(&self, state: &MigrationState) {
        let state = state.shown(self.ended.as_ref());
        self.applier.metrics.migration(state.reason(), state.left());
        if self.progress.change(|facts| facts.state = Some(state.condition())) {
            self.applier.caches.notify();
        }
    }

    /// Logs the state in which a migration ended, where it is new, and each object that cannot be migrated once.
    fn log(&self, state: &MigrationState) {
        let known = self.ended.as_ref().map_or(&[][..], MigrationState::refused);
        for refusal in state.refused().iter().filter(|refusal| known.binary_search(refusal).is_err()) {
            tracing::warn!(object = refusal.object, error = refusal.message, "shadow cannot be migrated");
        }
        if self.ended.as_ref().map(MigrationState::reason) == Some(state.reason()) {
            return;
        }
        let (migrated, reason, message) = state.condition();
        if migrated {
            tracing::info!(detail = message, "storage migration completed");
        } else {
            tracing::warn!(reason, detail = message, "storage migration blocked");
        }
    }
}
