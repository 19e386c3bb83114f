//! The historian's loop: carries out the calls of [`planner::history`], and plans again after a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::Backoff;
use models::history::{BottlerocketRolloutHistoryStatus, RECORD_AUDIENCE, RecordClaims, RolloutPhase, record_digest};
use models::names;
use models::operator::Slot;
use models::plain::{cut, some};
use models::time::{after, signed};
use planner::history::{
    HistoryAction, HistoryPlan, HistorySnapshot, OpenPage, RECORD_UNREADABLE, RowId, WAITING, Waiting, ended_rollouts,
    is_settled, plan,
};
use planner::signature::signed_by;
use planner::view::{HistoryFacts, HistoryObject, OperatorFacts, RecordFacts};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::History;
use super::keys::Keys;
use super::objects::Objects;
use super::results::{Results, Shadows, correct_kinds};
use crate::apply::{Applier, ApplyError};
use crate::cache::Reading;

/// Time between two plans, after one without a call and after one with calls.
const REST: Duration = Duration::from_millis(500);
const SHORT_REST: Duration = Duration::from_millis(20);

/// The longest time between two plans: ages pass without an event.
const PERIOD: Duration = Duration::from_secs(60);

/// Pause after a call that failed, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time after which a call without a result ends the pass, as behind a webhook that hangs: each of hundreds of calls
/// would last until its time limit, and the failure would be reported after the last one.
const PASS_LIMIT: Duration = Duration::from_secs(5);

/// Time for the first list of the objects before their absence is reported.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// The first pause after a call that was decided on an old state.
const OUTDATED_PAUSE: Duration = Duration::from_millis(50);

/// The number of nodes or records that a message names.
const NAMED: usize = 3;

/// The condition while all is written, and those while it cannot be.
const RECORDED: &str = "Recorded";
const UNREADABLE: &str = "Unreadable";
const REFUSED: &str = "WriteFailed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassEnd {
    Completed,
    /// A call was decided on an old state.
    Outdated,
    Failed,
}

pub struct Historian {
    applier: Applier,
    history: History,
    objects: Objects,
    keys: Keys,
    reading: Reading,
    records: BTreeMap<String, RecordFacts>,
    /// The records that this version cannot read, each with its resourceVersion.
    unreadable: BTreeMap<String, String>,
    /// The numbers of the ended records that were deleted while this process led.
    removed: BTreeSet<i64>,
    /// The uids of the objects that were deleted and that the watch still shows, by name.
    deleted: BTreeMap<String, String>,
    open: BTreeMap<String, OpenPage>,
    results: Results,
    /// The last failure, for users.
    failure: Option<String>,
    /// The reason for which writes that are due wait, for users.
    waits_for: Option<String>,
}

/// Removes the writes that may not be made while shadows cannot be read: the results on these are not known, so no record ends, and no
/// page is named. Returns what they wait for, as a sentence; `before` is what they waited for at the last plan.
fn hold_back(plan: &mut HistoryPlan, unreadable: &BTreeMap<String, String>, before: Option<String>) -> Option<String> {
    if unreadable.is_empty() {
        return None;
    }
    let reads =
        |action: &HistoryAction| matches!(action, HistoryAction::ReadRecord { .. } | HistoryAction::ReadPage { .. });
    let due = plan.actions.len();
    // While objects are read, it is not known which writes are due.
    let is_known = !plan.actions.iter().any(reads);
    plan.actions.retain(|action| reads(action) || matches!(action, HistoryAction::Begin { .. }));
    plan.wake = None;
    if plan.actions.len() == due {
        return before.filter(|_| !is_known);
    }
    let nodes: Vec<&str> = unreadable.keys().take(NAMED).map(String::as_str).collect();
    Some(format!(
        "the shadow of {} cannot be read, nor the results on it. Updates go on; the results of all nodes wait on the shadows until it \
         is repaired",
        nodes.join(", ")
    ))
}

impl Historian {
    /// Returns a historian that publishes the state of the history in `history`, for plans. It writes nothing before the caches are known to
    /// be as new as this leadership.
    pub fn new(applier: Applier, history: History, reading: Reading) -> Self {
        Self {
            reading: reading.of(&applier.caches.history),
            objects: Objects(applier.clone()),
            keys: Keys::new(&applier),
            applier,
            history,
            records: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            removed: BTreeSet::new(),
            deleted: BTreeMap::new(),
            open: BTreeMap::new(),
            results: Results::default(),
            failure: None,
            waits_for: None,
        }
    }

    /// Keeps the history for as long as it is polled. A renewal of the Lease that comes late interrupts it.
    pub async fn run(mut self) {
        let changed: Arc<watch::Sender<u64>> = self.applier.caches.changed.clone();
        let _watches = self.keys.watch();
        while timeout(LIST_LIMIT, self.reading.wait(changed.subscribe())).await.is_err() {
            let message = "the objects of the history cannot be listed: their definition (crds.yaml), or a right of the \
                           controller, is missing. Updates go on; their results wait on the shadows";
            self.publish(HistoryFacts {
                state: Some((false, UNREADABLE, message.to_owned())),
                ..HistoryFacts::default()
            });
        }
        // The key is made now, as a part of the installation and not of its first rollout.
        if let Err(error) = self.keys.signing(None).await {
            let error = &error as &dyn std::error::Error;
            tracing::info!(error, "the key of the history is not ready; it is tried again when a rollout ends");
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
            if ended != PassEnd::Completed {
                let pause = if ended == PassEnd::Outdated { OUTDATED_PAUSE } else { PAUSE };
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

    /// Collects the results on shadows and those that wait in memory. Returns them with the rollouts of attempts that may go on although their
    /// Node was deleted: those with a slot.
    fn collect(&mut self, operator: Option<&OperatorFacts>, now: Timestamp) -> (Vec<Waiting>, BTreeSet<i64>) {
        let unread = self.applier.caches.operator.unreadable().contains_key(names::OPERATOR_NAME);
        if let Some(operator) = operator.filter(|_| !unread) {
            self.results.take_over(&operator.status);
        }
        let has_slot = |waiting: &Waiting| {
            let own = |slot: &Slot| {
                let update = slot.update.as_ref().filter(|_| slot.node == waiting.node);
                update.is_some_and(|of| (of.attempt, &of.version) == (waiting.result.attempt, &waiting.result.to))
            };
            operator.is_some_and(|operator| operator.status.slots.iter().any(own))
        };
        let unreadable_nodes = self.applier.caches.nodes.unreadable();
        let awaited: BTreeMap<RowId, bool> = self.applier.caches.nodes.read(|nodes| {
            // The shadow alone was deleted, and is created again if the node is under the operator.
            let is_there = |waiting: &Waiting| {
                nodes.get(&waiting.node).is_some_and(|node| node.uid == waiting.uid)
                    || unreadable_nodes.contains_key(&waiting.node)
            };
            let may_go_on = |waiting: &Waiting| {
                let has_slot = unread || has_slot(waiting);
                (has_slot || is_there(waiting)).then(|| (waiting.id(), has_slot))
            };
            self.results.under_way.values().filter_map(may_go_on).collect()
        });
        let (ended, unreadable) = (self.ended_rollouts(), self.applier.caches.shadows.unreadable());
        let results = &mut self.results;
        let (mut waiting, going_on) = self.applier.caches.shadows.read(|readable| {
            let shadows = Shadows { readable, unreadable: &unreadable };
            results.collect(shadows, (&awaited, &ended), now)
        });
        self.applier.caches.nodes.read(|nodes| correct_kinds(&mut waiting, nodes));
        (waiting, going_on)
    }

    fn ended_rollouts(&self) -> BTreeSet<i64> {
        let uid = |operator: &OperatorFacts| operator.uid.clone();
        let uid = self.applier.caches.operator.read(|operators| operators.get(names::OPERATOR_NAME).map(uid));
        ended_rollouts(&self.records, uid.as_deref())
    }

    /// Returns the objects of the history. A watch may show for minutes what is deleted already: that is not deleted again.
    fn objects(&mut self) -> BTreeMap<String, HistoryObject> {
        let mut objects = self.applier.caches.history.items();
        self.deleted.retain(|name, uid| objects.get(name).is_some_and(|object| object.uid == *uid));
        objects.retain(|name, _| !self.deleted.contains_key(name));
        objects
    }

    fn plan(&mut self, now: Timestamp) -> HistoryPlan {
        let objects = self.objects();
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
                self.results.forget(&open.rows);
            }
        }
        self.open.retain(|name, open| records.contains_key(name) && !named(name, open));
        // Before the results: an attempt that ends in between is in both.
        let (mut under_way, mut nodes) = self.applier.caches.shadows.read(|shadows| {
            let under_way: BTreeSet<i64> = shadows
                .values()
                .filter_map(|shadow| Some(shadow.status.controller.progress.as_ref()?.rollout.as_ref()?.rollout))
                .collect();
            let nodes = shadows.values().filter_map(|shadow| {
                let agent = &shadow.status.agent;
                let kind = (agent.variant.clone()?, agent.arch.clone()?, agent.current_version.clone()?);
                Some((shadow.node.clone(), kind))
            });
            (under_way, nodes.collect::<Vec<_>>())
        });
        self.applier.caches.nodes.read(|known| {
            for (node, (variant, arch, _)) in &mut nodes {
                if let Some(facts) = known.get(&*node) {
                    facts.correct_kind(Some(variant), Some(arch));
                }
            }
        });
        let nodes: Vec<_> = nodes.into_iter().map(|(_, kind)| kind).collect();
        let operator = self.applier.caches.operator.get(names::OPERATOR_NAME);
        let (waiting, going_on) = self.collect(operator.as_ref(), now);
        under_way.extend(going_on);
        if self.applier.caches.operator.unreadable().contains_key(names::OPERATOR_NAME) {
            return HistoryPlan::default();
        }
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
        let unreadable = self.applier.caches.shadows.unreadable();
        self.waits_for = hold_back(&mut plan, &unreadable, self.waits_for.take());
        plan
    }

    /// Carries out the calls, and publishes the result for plans.
    async fn carry_out(&mut self, plan: HistoryPlan) -> PassEnd {
        let (mut failure, mut outdated) = (None, false);
        let began = Instant::now();
        for action in plan.actions {
            match self.act(action).await {
                Ok(()) => {}
                Err(ApplyError::Lost(_)) => return PassEnd::Outdated,
                Err(error) if error.code() == Some(409) || matches!(error, ApplyError::Changed(_)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "history decided on an old state");
                    outdated = true;
                }
                Err(error) => {
                    self.applier.metrics.rejected(error.what(), error.code());
                    failure = failure.or_else(|| Some(error.text()));
                    if error.is_unknown() && began.elapsed() >= PASS_LIMIT {
                        // The other calls are planned again.
                        break;
                    }
                }
            }
        }
        if failure != self.failure {
            match &failure {
                Some(failure) => tracing::warn!(failure, "the history of rollouts cannot be written"),
                None => tracing::info!("the history of rollouts is written again"),
            }
        }
        let state = match (&failure, &self.waits_for) {
            (None, Some(waits_for)) => (false, WAITING, waits_for.clone()),
            (None, None) => match self.unreadable_records() {
                Some(message) => (false, RECORD_UNREADABLE, message),
                None => (true, RECORDED, String::new()),
            },
            (Some(failure), _) => {
                let ended = self.ended_rollouts();
                let waiting = self.results.seen.values().filter(|waiting| !is_settled(&ended, waiting)).count();
                let message = format!(
                    "{failure}. Updates go on; {} results wait on the shadows, of which each keeps that of its last attempt, and \
                     {} of deleted nodes in memory",
                    waiting,
                    self.results.orphans.len()
                );
                (false, REFUSED, cut(&message, 2000))
            }
        };
        self.failure = failure;
        let mut facts = plan.facts;
        facts.state = Some(state);
        self.publish(facts);
        match (&self.failure, outdated) {
            (Some(_), _) => PassEnd::Failed,
            (None, true) => PassEnd::Outdated,
            (None, false) => PassEnd::Completed,
        }
    }

    /// Names the records that this version cannot read, with what to do about them.
    fn unreadable_records(&self) -> Option<String> {
        let named: Vec<&str> = self.unreadable.keys().take(NAMED).map(String::as_str).collect();
        if named.is_empty() {
            return None;
        }
        Some(format!(
            "this version cannot read the records {}, and leaves them alone. Updates go on, and all other records are written. \
             Install the version that wrote them again, or delete them: kubectl delete brh -n {} {}",
            some(self.unreadable.keys(), NAMED),
            self.applier.namespace,
            named.join(" ")
        ))
    }

    fn publish(&self, facts: HistoryFacts) {
        if self.history.change(|known| *known = facts) {
            self.applier.caches.notify();
        }
    }

    async fn act(&mut self, action: HistoryAction) -> Result<(), ApplyError> {
        match action {
            HistoryAction::ReadRecord { name } => {
                let found = self.objects.read(&name).await?;
                match found.map(|found| (found.record(), found)) {
                    Some((Some(record), _)) => _ = self.records.insert(name, record),
                    Some((None, found)) => {
                        let error =
                            found.object.err().map_or_else(|| "it is no record".to_owned(), |error| error.to_string());
                        tracing::warn!(
                            object = name,
                            error,
                            "an object of the history cannot be read and is left alone"
                        );
                        self.unreadable.insert(name, found.version);
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
                self.results.forget(&rows);
                self.applier.clear_results(&node, &rows).await?;
                tracing::warn!(node, "the result of an attempt belongs to no rollout that is recorded, and is dropped");
            }
            HistoryAction::Update { name, status } => {
                let ends = status.phase != RolloutPhase::Running;
                let written = self.update(&name, *status).await;
                self.read_again(&name, written).await?;
                if ends {
                    tracing::info!(record = name, "rollout ended, its record is signed");
                }
            }
            HistoryAction::Delete { name, uid } => {
                self.objects.delete(&name, &uid).await?;
                tracing::info!(object = name, "history beyond its limits removed");
                self.deleted.insert(name, uid);
            }
        }
        Ok(())
    }

    /// Records a written record; after a failure what the API server has is read again.
    async fn read_again(&mut self, name: &str, written: Result<RecordFacts, ApplyError>) -> Result<(), ApplyError> {
        match written {
            Ok(record) => {
                self.records.insert(name.to_owned(), record);
                Ok(())
            }
            Err(error) => {
                if error.is_unknown() || error.code() == Some(409) {
                    let found = self.objects.read(name).await?;
                    let record = found.and_then(|found| found.record());
                    self.records.extend(record.map(|record| (name.to_owned(), record)));
                }
                Err(error)
            }
        }
    }

    /// Writes the course of a record, and signs that of one that ends. The digest is over its spec as the API server has it, which never
    /// changes, and over the course as it is written.
    async fn update(
        &self,
        name: &str,
        mut status: BottlerocketRolloutHistoryStatus,
    ) -> Result<RecordFacts, ApplyError> {
        let known = self.records.get(name).ok_or(ApplyError::Changed("the record of a rollout"))?;
        if status.phase != RolloutPhase::Running {
            let named: BTreeSet<String> =
                self.records.values().filter_map(|record| signed_by(record.status.signature.as_deref()?)).collect();
            // A record that cannot be read may name any of them.
            let key = self.keys.signing(Some(&named).filter(|_| self.unreadable.is_empty())).await?;
            let failed = |error: Box<dyn std::error::Error + Send + Sync>| ApplyError::Signing(error);
            let digest = record_digest(&known.spec, &status).map_err(|error| failed(Box::new(error)))?;
            let claims = RecordClaims { aud: RECORD_AUDIENCE.to_owned(), record: name.to_owned(), digest };
            status.signature = Some(key.sign(&claims).map_err(|error| failed(Box::new(error)))?);
        }
        self.objects.update(known, &status).await
    }
}

#[cfg(test)]
mod tests;
