//! The historian's loop: carries out the calls of [`planner::history`], and plans again after a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::Backoff;
use models::history::{RECORD_AUDIENCE, RecordClaims, record_digest};
use models::names;
use models::time::{after, signed};
use planner::history::{
    HistoryAction, HistoryPlan, HistorySnapshot, OpenPage, RowId, Waiting, ended_rollouts, is_settled, plan,
};
use planner::signature::signed_by;
use planner::view::{HistoryFacts, HistoryObject, OperatorFacts, RecordFacts, ShadowFacts};
use tokio::sync::watch;
use tokio::time::timeout;

use super::History;
use super::keys::Keys;
use super::objects::Objects;
use crate::apply::{Applier, ApplyError};
use crate::cache::Reading;
use crate::caches::Caches;

/// Time between two plans, after one without a call and after one with calls.
const REST: Duration = Duration::from_millis(500);
const SHORT_REST: Duration = Duration::from_millis(20);

/// The longest time between two plans: ages pass without an event.
const PERIOD: Duration = Duration::from_secs(60);

/// Pause after a call that failed, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time for the first list of the objects before their absence is reported.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// The first pause after a call that was decided on an old state.
const OUTDATED_PAUSE: Duration = Duration::from_millis(50);

/// The most results of deleted nodes that wait in memory.
const MOST_ORPHANS: usize = 512;

/// The condition while all is written, and those while it cannot be.
const RECORDED: &str = "Recorded";
const UNREADABLE: &str = "Unreadable";
const REFUSED: &str = "WriteFailed";

/// The end of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Well,
    /// A call was decided on an old state.
    Outdated,
    Failed,
}

/// The historian of a leader.
pub struct Historian {
    applier: Applier,
    caches: Caches,
    history: History,
    objects: Objects,
    keys: Keys,
    reading: Reading,
    records: BTreeMap<String, RecordFacts>,
    /// The records that this version cannot read, each with its resourceVersion.
    unreadable: BTreeMap<String, String>,
    /// The numbers of the ended records that were deleted while this process led.
    removed: BTreeSet<i64>,
    open: BTreeMap<String, OpenPage>,
    /// The results on shadows at the last plan.
    seen: BTreeMap<RowId, Waiting>,
    /// Results whose shadow was deleted with its node before a page held them.
    orphans: BTreeMap<RowId, Waiting>,
    /// The last failure, for users.
    failure: Option<String>,
}

/// The results on a shadow.
fn waiting(shadow: &ShadowFacts) -> impl Iterator<Item = Waiting> {
    let agent = &shadow.status.agent;
    let (variant, arch) = (agent.variant.clone().unwrap_or_default(), agent.arch.clone().unwrap_or_default());
    let uid = shadow.owner_uid.clone().unwrap_or_default();
    shadow.status.controller.results.iter().map(move |result| Waiting {
        node: shadow.node.clone(),
        uid: uid.clone(),
        variant: variant.clone(),
        arch: arch.clone(),
        result: result.clone(),
        bytes: 0,
        orphaned: false,
    })
}

impl Historian {
    /// Returns a historian that tells plans about the history by `history`. It writes nothing before the caches are known to
    /// be as new as this leadership.
    pub fn new(applier: Applier, caches: Caches, history: History, reading: Reading) -> Self {
        let (client, namespace) = (applier.client.clone(), applier.namespace.clone());
        let leadership = applier.leadership.clone();
        let objects = Objects::of(&applier, &caches);
        Self {
            keys: Keys { client, namespace, leadership },
            reading: reading.of(&caches.history),
            applier,
            caches,
            history,
            objects,
            records: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            removed: BTreeSet::new(),
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
            orphans: BTreeMap::new(),
            failure: None,
        }
    }

    /// Keeps the history for as long as it is polled. A renewal of the Lease that comes late interrupts it.
    pub async fn run(mut self) {
        let changed: Arc<watch::Sender<u64>> = self.caches.changed.clone();
        while timeout(LIST_LIMIT, self.reading.wait(changed.subscribe())).await.is_err() {
            let message = "the objects of the history cannot be listed: their definition (crds.yaml), or a right of the \
                           controller, is missing. Updates go on; their results wait on the shadows";
            self.tell(HistoryFacts { state: Some((false, UNREADABLE, message.to_owned())), ..HistoryFacts::default() });
        }
        let mut changes = changed.subscribe();
        let mut backoff = Backoff::default();
        loop {
            while self.applier.leadership.check().is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            changes.mark_unchanged();
            let clock = self.applier.leadership.clock().clone();
            let now = clock.now();
            let plan = self.plan(now);
            let wake = plan.wake.map_or(after(now, signed(PERIOD)), |at| at.min(after(now, signed(PERIOD))));
            let acts = !plan.actions.is_empty();
            let ended = self.carry_out(plan).await;
            if ended != Passed::Well {
                let pause = if ended == Passed::Outdated { OUTDATED_PAUSE } else { PAUSE };
                tokio::time::sleep(backoff.next_delay((pause, LONGEST_PAUSE))).await;
                continue;
            }
            backoff.reset();
            if acts {
                tokio::time::sleep(SHORT_REST).await;
                continue;
            }
            tokio::time::sleep(REST).await;
            tokio::select! {
                _ = changes.changed() => {}
                () = clock.sleep_until(wake) => {}
            }
        }
    }

    /// Collects the results on shadows, and those of deleted shadows that wait.
    fn collect(&mut self) -> Vec<Waiting> {
        let mut present: BTreeMap<RowId, Waiting> = self
            .caches
            .shadows
            .read(|shadows| shadows.values().flat_map(waiting).map(|waiting| (waiting.id(), waiting)).collect());
        for (id, waiting) in &mut present {
            let known = self.seen.get(id).map(|before| before.bytes);
            let size = || serde_json::to_vec(&waiting.result).map_or(0, |text| text.len());
            waiting.bytes = known.unwrap_or_else(size);
        }
        let unreadable = self.caches.shadows.unreadable();
        for (id, before) in std::mem::take(&mut self.seen) {
            if present.contains_key(&id) {
                continue;
            }
            if unreadable.contains_key(&before.node) {
                present.insert(id, before);
                continue;
            }
            let shadow = self.caches.shadows.get(&before.node);
            if shadow.is_none_or(|shadow| shadow.owner_uid.as_ref() != Some(&before.uid)) {
                self.orphans.insert(id, Waiting { orphaned: true, ..before });
            }
        }
        let ended = self.ended_rollouts();
        self.orphans.retain(|_, orphan| !is_settled(&ended, orphan));
        while self.orphans.len() > MOST_ORPHANS {
            if let Some((_, dropped)) = self.orphans.pop_first() {
                tracing::warn!(
                    node = dropped.node,
                    "the result of an attempt on a deleted node is dropped: too many wait"
                );
            }
        }
        self.seen = present;
        self.seen.values().chain(self.orphans.values()).cloned().collect()
    }

    fn ended_rollouts(&self) -> BTreeSet<i64> {
        let uid = |operator: &OperatorFacts| operator.uid.clone();
        let uid = self.caches.operator.read(|operators| operators.get(names::OPERATOR_NAME).map(uid));
        ended_rollouts(&self.records, uid.as_deref())
    }

    fn plan(&mut self, now: Timestamp) -> HistoryPlan {
        let objects: BTreeMap<String, HistoryObject> = self.caches.history.items();
        self.records.retain(|name, record| {
            let there = objects.get(name).is_some_and(|object| object.uid == record.uid);
            if !there && !record.runs() && !record.rollout.drill {
                self.removed.insert(record.rollout.number);
            }
            there
        });
        self.unreadable.retain(|name, version| objects.get(name).is_some_and(|o| o.resource_version == *version));
        let records = &self.records;
        let named = |name: &String, open: &OpenPage| {
            records.get(name).is_some_and(|record| !record.runs() || record.next_page() > open.number)
        };
        for (name, open) in &self.open {
            if named(name, open) {
                self.orphans.retain(|id, _| !open.rows.contains(id));
            }
        }
        self.open.retain(|name, open| records.contains_key(name) && !named(name, open));
        // Before the results: an attempt that ends in between is in both.
        let (under_way, nodes) = self.caches.shadows.read(|shadows| {
            let under_way: BTreeSet<i64> = shadows
                .values()
                .filter_map(|shadow| Some(shadow.status.controller.progress.as_ref()?.rollout.as_ref()?.rollout))
                .collect();
            let nodes = shadows.values().filter_map(|shadow| {
                let agent = &shadow.status.agent;
                Some((agent.variant.clone()?, agent.arch.clone()?, agent.current_version.clone()?))
            });
            (under_way, nodes.collect::<Vec<_>>())
        });
        let waiting = self.collect();
        if self.caches.operator.unreadable().contains_key(names::OPERATOR_NAME) {
            return HistoryPlan::default();
        }
        let operator = self.caches.operator.get(names::OPERATOR_NAME);
        let mut plan = plan(&HistorySnapshot {
            namespace: &self.applier.namespace,
            operator: operator.as_ref(),
            objects: &objects,
            records: &self.records,
            unreadable: &self.unreadable,
            removed: &self.removed,
            open: &self.open,
            waiting: &waiting,
            under_way: &under_way,
            nodes: &nodes,
            now,
        });
        if !self.caches.shadows.unreadable().is_empty() {
            // The results on it are not known: without them nothing ends, and no page is named.
            plan.actions
                .retain(|action| matches!(action, HistoryAction::ReadRecord { .. } | HistoryAction::ReadPage { .. }));
            plan.wake = None;
        }
        plan
    }

    /// Carries out the calls, and tells plans the result.
    async fn carry_out(&mut self, plan: HistoryPlan) -> Passed {
        let (mut failure, mut outdated) = (None, false);
        for action in plan.actions {
            match self.act(action).await {
                Ok(()) => {}
                Err(ApplyError::Lost(_)) => return Passed::Outdated,
                Err(error) if error.code() == Some(409) || matches!(error, ApplyError::Changed(_)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "history decided on an old state");
                    outdated = true;
                }
                Err(error) => {
                    self.applier.metrics.rejected(error.what(), error.code());
                    failure = failure.or_else(|| Some(error.text()));
                }
            }
        }
        if failure != self.failure {
            match &failure {
                Some(failure) => tracing::warn!(failure, "the history of rollouts cannot be written"),
                None => tracing::info!("the history of rollouts is written again"),
            }
        }
        let state = match &failure {
            None => (true, RECORDED, String::new()),
            Some(failure) => {
                let ended = self.ended_rollouts();
                let waiting = self.seen.values().filter(|waiting| !is_settled(&ended, waiting)).count();
                let message = format!(
                    "{failure}. Updates go on; {} results wait on the shadows, of which each keeps that of its last attempt, and \
                     {} of deleted nodes in memory",
                    waiting,
                    self.orphans.len()
                );
                (false, REFUSED, models::plain::cut(&message, 2000))
            }
        };
        self.failure = failure;
        let mut facts = plan.facts;
        facts.state = Some(state);
        self.tell(facts);
        match (&self.failure, outdated) {
            (Some(_), _) => Passed::Failed,
            (None, true) => Passed::Outdated,
            (None, false) => Passed::Well,
        }
    }

    /// Tells plans what is known.
    fn tell(&self, facts: HistoryFacts) {
        if self.history.set(facts) {
            self.caches.changed.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    async fn act(&mut self, action: HistoryAction) -> Result<(), ApplyError> {
        match action {
            HistoryAction::ReadRecord { name } => {
                let found = self.objects.read(&name).await?;
                match found.as_ref().map(|found| (&found.version, found.object.as_ref().map(RecordFacts::of))) {
                    Some((_, Ok(Some(record)))) => _ = self.records.insert(name, record),
                    Some((version, unreadable)) => {
                        let error = unreadable.err().map_or_else(|| "it is no record".to_owned(), ToString::to_string);
                        tracing::warn!(
                            object = name,
                            error,
                            "an object of the history cannot be read and is left alone"
                        );
                        self.unreadable.insert(name, version.clone());
                    }
                    None => {}
                }
            }
            HistoryAction::ReadPage { record, number } => {
                let page = self.objects.read_page(&record, number).await?;
                self.open.insert(record, page);
            }
            HistoryAction::Begin { name, rollout } => {
                tracing::info!(record = name, rollout = rollout.number, version = %rollout.version, "rollout recorded");
                let record = self.objects.begin(&name, *rollout).await?;
                self.records.insert(name, record);
            }
            HistoryAction::WritePage { record, owner, page } => {
                let page = self.objects.write_page(&record, owner, page).await?;
                self.open.insert(record, page);
            }
            HistoryAction::Clear { node, rows } => self.applier.clear_results(&node, &rows).await?,
            HistoryAction::Drop { node, rows } => {
                self.orphans.retain(|id, _| !rows.contains(id));
                self.applier.clear_results(&node, &rows).await?;
                tracing::warn!(node, "the result of an attempt belongs to no rollout that is recorded, and is dropped");
            }
            HistoryAction::Update { name, status } => {
                let Some(record) = self.records.get(&name) else { return Ok(()) };
                let written = self.objects.update(record, &status).await;
                self.read_again(&name, written).await?;
            }
            HistoryAction::End { name, status } => {
                let ended = self.end(&name, *status).await;
                self.read_again(&name, ended).await?;
                tracing::info!(record = name, "rollout ended, its record is signed");
            }
            HistoryAction::Delete { name, uid } => {
                self.objects.delete(&name, &uid).await?;
                tracing::info!(object = name, "history beyond its limits removed");
            }
        }
        Ok(())
    }

    /// Takes in a written record; after a failure what the API server has is read again.
    async fn read_again(&mut self, name: &str, written: Result<RecordFacts, ApplyError>) -> Result<(), ApplyError> {
        match written {
            Ok(record) => {
                self.records.insert(name.to_owned(), record);
                Ok(())
            }
            Err(error) => {
                if error.is_unknown() || error.code() == Some(409) {
                    let found = self.objects.read(name).await?;
                    let record = found.and_then(|found| RecordFacts::of(found.object.as_ref().ok()?));
                    self.records.extend(record.map(|record| (name.to_owned(), record)));
                }
                Err(error)
            }
        }
    }

    /// Signs and writes the end of a record. The digest is over what the API server has, and over the course as it is
    /// written.
    async fn end(
        &self,
        name: &str,
        mut status: models::history::BottlerocketRolloutHistoryStatus,
    ) -> Result<RecordFacts, ApplyError> {
        let known = self.records.get(name).ok_or(ApplyError::Changed("the record of a rollout"))?;
        let found = self.objects.read(name).await?.ok_or(ApplyError::Changed("the record of a rollout"))?;
        let live = found.object.as_ref().ok().and_then(RecordFacts::of);
        let live = live.filter(|live| live.resource_version == known.resource_version);
        let live = live.ok_or(ApplyError::Changed("the record of a rollout"))?;
        let named: BTreeSet<String> =
            self.records.values().filter_map(|record| signed_by(record.status.signature.as_deref()?)).collect();
        // A record that cannot be read may name any of them.
        let key = self.keys.signing(Some(&named).filter(|_| self.unreadable.is_empty())).await?;
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| ApplyError::Signing(error);
        let digest = record_digest(&found.spec, &status).map_err(|error| failed(Box::new(error)))?;
        let claims = RecordClaims { aud: RECORD_AUDIENCE.to_owned(), record: name.to_owned(), digest };
        status.signature = Some(key.sign(&claims).map_err(|error| failed(Box::new(error)))?);
        self.objects.update(&live, &status).await
    }
}
