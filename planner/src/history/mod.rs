//! The history of rollouts (`docs/history.md`): the writes that are due, from a snapshot of the operator's status, the results
//! that wait on the shadows, and the objects of the history.
//!
//! The order of the writes makes each of them safe to repeat after a kill: a page is created under a name that follows from
//! its record, then its results are cleared from the shadows, then the record names it with its digest. A result is on a
//! shadow or on a page at each moment. A record ends when no attempt of it is under way and no result waits. The last page is named
//! in the write that ends the record: what has the number of an ended record is known to be on a page, so its results stay on
//! the shadows until these are written for another reason.

mod course;
mod limits;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::history::{
    HistoryPage, HistoryRow, LARGEST_OBJECT, MOST_PAGES, MOST_ROWS, PageSummary, RecordedOperator, RecordedRevision,
    RecordedRollout, RolloutPhase, VersionCount, page_name, record_name,
};
use models::names;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorSpec, RolloutRecord, without_credentials};
use models::resource_version::newer;
use models::time::after;
use semver::Version;

use crate::view::{HistoryFacts, HistoryObject, OperatorFacts, RecordFacts};

pub use limits::Limits;
pub use snapshot::{HistoryAction, HistorySnapshot, OpenPage, RowId, Waiting, row_id};

/// The size at which a page is full, in bytes. Metadata come on top.
const PAGE_BYTES: usize = 200 * 1024;

/// The largest row, in bytes.
const ROW_BYTES: usize = 240 * 1024;

/// The size of a node's name and uid in a row, about.
const OF_NODE: usize = 160;

/// The time for which a result may wait for others on its page. It doubles with each 64 pages, so that the record of a slow
/// rollout stays within its limit.
const PAGE_WAIT: Duration = Duration::from_secs(10 * 60);

/// The longest policy in a record.
const POLICY: usize = 65_536;

/// The reason of the condition `HistoryRecorded` while writes wait for what cannot be read.
pub const WAITING: &str = "Waiting";
/// The same while this version cannot read single records. All others are written.
pub const RECORD_UNREADABLE: &str = "RecordUnreadable";

/// The calls that are due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryPlan {
    /// Independent of each other; each leads to another plan.
    pub actions: Vec<HistoryAction>,
    /// The time to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
    /// Facts for the plans of updates.
    pub facts: HistoryFacts,
}

/// Returns the calls that are due.
pub fn plan(snapshot: &HistorySnapshot<'_>) -> HistoryPlan {
    let mut plan = HistoryPlan::default();
    let records = snapshot.objects.values().filter(|object| object.page.is_none());
    let number = |object: &HistoryObject| models::history::record_number(&object.name);
    plan.facts.highest = Some(records.clone().filter_map(number).max().unwrap_or(0));
    let known = |object: &&HistoryObject| {
        let record = snapshot.records.get(&object.name).filter(|record| record.uid == object.uid);
        record.is_some_and(|record| !newer(&object.resource_version, &record.resource_version))
    };
    let tried = |object: &HistoryObject| snapshot.unreadable.get(&object.name) == Some(&object.resource_version);
    let unread = records.filter(|object| !known(object) && !object.deleting && !tried(object));
    // One that was not read may run.
    plan.facts.running.extend(unread.clone().filter_map(number));
    let running = snapshot.records.values().filter(|record| record.runs());
    plan.facts.running.extend(running.map(|record| record.rollout.number));
    let rollouts = snapshot.records.values().map(|record| &record.rollout).filter(|rollout| !rollout.drill);
    plan.facts.begun = rollouts.map(|rollout| (rollout.number, rollout.begun)).collect();
    plan.actions.extend(unread.map(|object| HistoryAction::ReadRecord { name: object.name.clone() }));
    if !plan.actions.is_empty() {
        return plan;
    }
    plan.facts.ended = ended_rollouts(snapshot.records, snapshot.operator.map(|operator| operator.uid.as_str()));
    begin(snapshot, &mut plan);
    begin_drills(snapshot, &mut plan);
    for record in snapshot.records.values().filter(|record| record.runs()) {
        if record.status.pages.len() >= MOST_PAGES - 8 {
            plan.facts.full.insert(record.rollout.number);
        }
        go_on(snapshot, record, &mut plan);
    }
    drop_unknown(snapshot, &mut plan);
    if let Some(operator) = snapshot.operator {
        let limits = Limits::of(&operator.spec);
        plan.actions.extend(deletions(limits, snapshot, &plan.facts.ended));
    }
    plan
}

/// Returns the numbers of the rollouts of the operator's resource whose records have ended. Records of another one may have the same
/// numbers.
pub fn ended_rollouts(records: &BTreeMap<String, RecordFacts>, operator_uid: Option<&str>) -> BTreeSet<i64> {
    let own = |record: &&RecordFacts| {
        !record.rollout.drill && operator_uid.is_none_or(|uid| uid == record.rollout.operator.uid)
    };
    let numbers = |runs: bool| {
        let records = records.values().filter(own).filter(move |record| record.runs() == runs);
        records.map(|record| record.rollout.number).collect::<BTreeSet<_>>()
    };
    &numbers(false) - &numbers(true)
}

/// Returns whether the record of a result is among the `ended` ones: a page of it holds the result.
pub fn is_settled(ended: &BTreeSet<i64>, waiting: &Waiting) -> bool {
    waiting.result.drill.is_none() && ended.contains(&waiting.result.rollout)
}

/// Returns the deletions that are due. Before that of a record, its results are removed from the shadows: without it, nothing would
/// show that a page held them.
fn deletions(limits: Limits, snapshot: &HistorySnapshot<'_>, ended: &BTreeSet<i64>) -> Vec<HistoryAction> {
    let first = |object: &HistoryObject| {
        let number = snapshot.records.get(&object.name).map(|record| record.rollout.number);
        let of_it = |waiting: &&Waiting| {
            !waiting.orphaned && Some(waiting.result.rollout) == number && is_settled(ended, waiting)
        };
        let clear = |waiting: &Waiting| {
            let rows = BTreeSet::from([waiting.id()]);
            HistoryAction::Clear { node: waiting.node.clone(), rows }
        };
        let clear: Vec<_> = snapshot.waiting.iter().filter(of_it).map(clear).collect();
        let delete = || HistoryAction::Delete { name: object.name.clone(), uid: object.uid.clone() };
        if clear.is_empty() { vec![delete()] } else { clear }
    };
    limits::surplus(limits, snapshot).into_iter().flat_map(first).collect()
}

/// The rollouts of the operator's resource that have a number.
fn numbered(operator: &OperatorFacts) -> impl Iterator<Item = (&ActiveRollout, &RolloutRecord)> {
    operator.status.active_rollouts.iter().filter_map(|rollout| Some((rollout, rollout.record.as_ref()?)))
}

/// Returns the rollout of a record in the operator's status.
fn active<'a>(snapshot: &HistorySnapshot<'a>, record: &RecordFacts) -> Option<(&'a ActiveRollout, &'a RolloutRecord)> {
    let updates = !record.rollout.drill;
    let operator = snapshot.operator.filter(|operator| updates && operator.uid == record.rollout.operator.uid)?;
    numbered(operator).find(|(_, place)| place.number == record.rollout.number)
}

/// Returns whether a result belongs to the rollout with this number, and to one of the `same` version. One whose number was never recorded was
/// begun before its rollout had one.
fn is_of(snapshot: &HistorySnapshot<'_>, waiting: &Waiting, number: i64, same: bool) -> bool {
    let result = &waiting.result;
    result.drill.is_none() && (result.rollout == number || (same && !is_known(snapshot, result.rollout)))
}

/// Returns whether a result belongs to a record.
fn belongs(snapshot: &HistorySnapshot<'_>, waiting: &Waiting, rollout: &RecordedRollout) -> bool {
    let same = waiting.is_for(&rollout.variant, &rollout.arch, &rollout.version);
    if rollout.drill { same && waiting.result.drill.is_some() } else { is_of(snapshot, waiting, rollout.number, same) }
}

/// Returns the running record that a result goes to: the newest of those that it belongs to.
fn record_of<'a>(snapshot: &HistorySnapshot<'a>, waiting: &Waiting) -> Option<&'a RecordFacts> {
    let running = snapshot.records.values().filter(|record| record.runs());
    running.filter(|record| belongs(snapshot, waiting, &record.rollout)).max_by_key(|record| record.rollout.number)
}

/// Returns whether a rollout of this number is recorded, or was until a user deleted its record: what is deleted stays so.
fn is_recorded(snapshot: &HistorySnapshot<'_>, number: i64) -> bool {
    let recorded = |record: &RecordFacts| record.rollout.number == number && !record.rollout.drill;
    snapshot.removed.contains(&number) || snapshot.records.values().any(recorded)
}

/// Returns whether a rollout of this number is recorded, or will be.
fn is_known(snapshot: &HistorySnapshot<'_>, number: i64) -> bool {
    is_recorded(snapshot, number)
        || snapshot.operator.is_some_and(|operator| numbered(operator).any(|(_, place)| place.number == number))
}

/// Creates the records of rollouts that run, and of those that have ended while results of them wait.
fn begin(snapshot: &HistorySnapshot<'_>, plan: &mut HistoryPlan) {
    let Some(operator) = snapshot.operator else { return };
    for (active, place) in numbered(operator) {
        let has = |record: &RecordFacts| {
            let RecordedRollout { number, operator: of, drill, .. } = &record.rollout;
            *number == place.number && of.uid == operator.uid && !drill
        };
        let own = |waiting: &Waiting| {
            let same = waiting.is_for(&active.variant, &active.arch, &active.version);
            is_of(snapshot, waiting, place.number, same)
        };
        if place.ended.is_some() && snapshot.removed.contains(&place.number) {
            continue;
        }
        let waits = || place.ended.is_none() || snapshot.waiting.iter().any(own);
        if snapshot.records.values().any(has) || !waits() {
            continue;
        }
        let mut from: BTreeMap<&Version, i64> = BTreeMap::new();
        for (_, _, version) in
            snapshot.nodes.iter().filter(|(variant, arch, _)| (variant, arch) == (&active.variant, &active.arch))
        {
            *from.entry(version).or_default() += 1;
        }
        let policy = policy_of(operator);
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_str(&policy).unwrap_or_default();
        let rollout = RecordedRollout {
            number: place.number,
            operator: recorded_operator(snapshot, operator),
            revision: place.revision.clone(),
            variant: active.variant.clone(),
            arch: active.arch.clone(),
            version: active.version.clone(),
            from: from.into_iter().map(|(version, nodes)| VersionCount { version: version.clone(), nodes }).collect(),
            begun: place.begun,
            drill: false,
            first: place.first,
            steps: spec.strategy.unwrap_or_default().canary,
            policy,
        };
        create(snapshot, rollout, plan);
    }
}

/// Creates a record. One that is being deleted, or cannot be read, keeps its name until it is gone.
fn create(snapshot: &HistorySnapshot<'_>, rollout: RecordedRollout, plan: &mut HistoryPlan) {
    let name = record_name(&rollout);
    if !snapshot.objects.contains_key(&name) {
        plan.actions.push(HistoryAction::Begin { name, rollout: Box::new(rollout) });
    }
}

fn recorded_operator(snapshot: &HistorySnapshot<'_>, operator: &OperatorFacts) -> RecordedOperator {
    let (namespace, name) = (snapshot.namespace.to_owned(), names::OPERATOR_NAME.to_owned());
    RecordedOperator { namespace, name, uid: operator.uid.clone() }
}

/// The policy in force, as JSON without credentials. An invalid one is not what anything began under.
fn policy_of(operator: &OperatorFacts) -> String {
    let in_force = operator.status.policy_in_force.clone();
    let policy = in_force.or_else(|| serde_json::to_string(&operator.spec).ok());
    policy.map(without_credentials).filter(|text| text.len() <= POLICY).unwrap_or_default()
}

/// Creates records of drills, for their results: no rollout is theirs. Those of one version that end together share one.
fn begin_drills(snapshot: &HistorySnapshot<'_>, plan: &mut HistoryPlan) {
    let Some(operator) = snapshot.operator else { return };
    let drills = snapshot.waiting.iter().filter(|waiting| waiting.result.drill.is_some());
    let mut kinds: BTreeMap<(&str, &str, &Version), Timestamp> = BTreeMap::new();
    for waiting in drills.filter(|waiting| record_of(snapshot, waiting).is_none()) {
        let begun =
            kinds.entry((&waiting.variant, &waiting.arch, &waiting.result.to)).or_insert(waiting.result.started);
        *begun = waiting.result.started.min(*begun);
    }
    let assigned = numbered(operator).map(|(_, place)| place.number).max();
    let last = assigned.max(plan.facts.highest).unwrap_or(0);
    for (number, ((variant, arch, version), begun)) in (last + 1..).zip(kinds) {
        let rollout = RecordedRollout {
            number,
            operator: recorded_operator(snapshot, operator),
            revision: RecordedRevision::default(),
            variant: variant.to_owned(),
            arch: arch.to_owned(),
            version: version.clone(),
            from: Vec::new(),
            begun,
            drill: true,
            first: None,
            steps: Vec::new(),
            policy: policy_of(operator),
        };
        create(snapshot, rollout, plan);
    }
}

/// Writes what is due of a running record: its course, a page, or its end.
fn go_on(snapshot: &HistorySnapshot<'_>, record: &RecordFacts, plan: &mut HistoryPlan) {
    let now = snapshot.now;
    let active = active(snapshot, record);
    let mut status = match (snapshot.operator, active) {
        (Some(operator), Some((active, _))) => {
            course::continued(&record.status, &record.rollout, active, operator, now)
        }
        _ => record.status.clone(),
    };
    let goes_to = |waiting: &Waiting| record_of(snapshot, waiting).is_some_and(|of| of.name == record.name);
    let mut rows: Vec<&Waiting> = snapshot.waiting.iter().filter(|waiting| goes_to(waiting)).collect();
    rows.sort_by(|a, b| (a.result.ended, &a.node).cmp(&(b.result.ended, &b.node)));
    let number = record.next_page();
    let over = active.is_none_or(|(_, place)| place.ended.is_some());
    let busy = snapshot.under_way.contains(&record.rollout.number) && !record.rollout.drill;
    let exists = |object: &&HistoryObject| object.owner.as_deref().is_none_or(|owner| owner == record.uid);
    let mut pending = true;
    match snapshot.open.get(&record.name).filter(|open| open.number == number) {
        Some(open) => {
            let left: Vec<_> = rows.iter().filter(|waiting| open.rows.contains(&waiting.id())).collect();
            // The record ends with this page. A result without the number of the record would not be known to be on it.
            let last = over && !busy && active.is_some() && left.len() == rows.len();
            let stays = |waiting: &Waiting| last && waiting.result.rollout == record.rollout.number;
            for waiting in left.iter().filter(|waiting| !waiting.orphaned && !stays(waiting)) {
                let rows = open.rows.iter().filter(|(uid, _)| *uid == waiting.uid).cloned().collect();
                let clear = HistoryAction::Clear { node: waiting.node.clone(), rows };
                if !plan.actions.contains(&clear) {
                    plan.actions.push(clear);
                }
            }
            if left.iter().all(|waiting| waiting.orphaned || stays(waiting)) {
                pending = !last;
                status.nodes += open.summary.nodes;
                status.pods += open.summary.pods;
                status.pages.push(open.summary.clone());
            }
        }
        None if snapshot.objects.get(&page_name(&record.name, number)).filter(exists).is_some() => {
            plan.actions.push(HistoryAction::ReadPage { record: record.name.clone(), number });
        }
        None => {
            let due = due(&rows, record, over && !busy, now);
            if let Some(at) = due.filter(|at| *at > now) {
                plan.wake = Some(plan.wake.map_or(at, |wake| wake.min(at)));
            }
            pending = !rows.is_empty() && record.status.pages.len() < MOST_PAGES;
            if due.is_some_and(|at| at <= now) && record.status.pages.len() < MOST_PAGES {
                let page = HistoryPage { number, rows: page(&rows) };
                let owner = record.uid.clone();
                plan.actions.push(HistoryAction::WritePage { record: record.name.clone(), owner, page });
            }
        }
    }
    if over && !busy && !pending {
        let (phase, at, message) = match active.map(|(_, place)| (place.phase, place.ended.unwrap_or(now))) {
            Some((phase @ (RolloutPhase::Completed | RolloutPhase::Superseded), at)) => (phase, at, end_of(phase)),
            Some((_, at)) if plan.facts.full.contains(&record.rollout.number) => {
                (RolloutPhase::Stopped, at, "this record is full: another one continues it")
            }
            Some((_, at)) => (RolloutPhase::Stopped, at, end_of(RolloutPhase::Stopped)),
            None if record.rollout.drill => (RolloutPhase::Completed, now, "the drills have ended"),
            None => (RolloutPhase::Stopped, now, "the operator's resource was deleted, or no longer knows it"),
        };
        let status = Box::new(course::ended(&status, phase, at, message));
        plan.actions.push(HistoryAction::Update { name: record.name.clone(), status });
        return;
    }
    // Some changes go with the next write, or after the time that a page may wait.
    let waits_since = course::waits_since(&record.status, &status, record.rollout.begun);
    let due = waits_since.map_or(now, |since| after(since, PAGE_WAIT));
    if status != record.status && due <= now {
        plan.actions.push(HistoryAction::Update { name: record.name.clone(), status: Box::new(status) });
    } else if status != record.status {
        plan.wake = Some(plan.wake.map_or(due, |wake| wake.min(due)));
    }
}

/// Returns the reason for which a rollout has ended in this phase.
pub(crate) const fn end_of(phase: RolloutPhase) -> &'static str {
    match phase {
        RolloutPhase::Completed => "every node runs the version",
        RolloutPhase::Superseded => "nodes update to another version",
        RolloutPhase::Stopped | RolloutPhase::Running | RolloutPhase::Unknown => {
            "the policy changed, failures were resolved, or no node is left"
        }
    }
}

/// Returns the time at which a page is due; `None` without results.
fn due(rows: &[&Waiting], record: &RecordFacts, last: bool, now: Timestamp) -> Option<Timestamp> {
    let first = rows.first()?;
    let bytes: usize = rows.iter().map(|waiting| waiting.bytes + OF_NODE).sum();
    if last || rows.len() >= MOST_ROWS || bytes >= PAGE_BYTES || rows.iter().any(|waiting| waiting.orphaned) {
        return Some(now);
    }
    let doublings = u32::try_from(record.status.pages.len() / 64).unwrap_or(0);
    Some(after(first.result.ended, PAGE_WAIT.saturating_mul(1 << doublings.min(16))))
}

fn bytes(row: &HistoryRow) -> usize {
    serde_json::to_vec(row).map_or(ROW_BYTES, |text| text.len())
}

/// Returns the rows of the next page: as many as fit.
fn page(rows: &[&Waiting]) -> Vec<HistoryRow> {
    let mut size = 0;
    let mut page = Vec::new();
    for row in rows.iter().take(MOST_ROWS).map(|waiting| fitting(waiting.row())) {
        size += bytes(&row);
        if size > PAGE_BYTES && !page.is_empty() {
            break;
        }
        page.push(row);
    }
    page
}

/// Returns a row that fits a page: of one that does not, the last pods are left out.
fn fitting(mut row: HistoryRow) -> HistoryRow {
    if bytes(&row) <= ROW_BYTES {
        return row;
    }
    row.result.running.clear();
    let pods = row.result.pods.len();
    while bytes(&row) > ROW_BYTES && !row.result.pods.is_empty() {
        let most = row.result.pods.len() * 9 / 10;
        row.result.pods = row.result.pods[..most].into();
    }
    let message = format!("{} ({} pods are not listed)", row.result.message, pods - row.result.pods.len());
    row.result.message = models::plain::cut(&message, 512);
    row
}

/// Gives up results of which no rollout is known, or whose record has ended: their shadow would keep them for ever.
fn drop_unknown(snapshot: &HistorySnapshot<'_>, plan: &mut HistoryPlan) {
    let expected = |waiting: &Waiting| {
        let number = waiting.result.rollout;
        let running = record_of(snapshot, waiting).is_some();
        let begins = is_known(snapshot, number) && !is_recorded(snapshot, number);
        if waiting.result.drill.is_some() {
            return running || snapshot.operator.is_some();
        }
        let unnumbered = snapshot.operator.iter().flat_map(|operator| &operator.status.active_rollouts).any(|active| {
            waiting.is_for(&active.variant, &active.arch, &active.version)
                && !is_known(snapshot, number)
                && (number == 0 && active.ended.is_none()
                    || active.record.as_ref().is_none_or(|place| place.ended.is_none()))
        });
        running || begins || unnumbered
    };
    // A resource that was deleted and created again leaves results whose records have ended; so does a record that was deleted.
    let is_on_page = |waiting: &Waiting| {
        let number = waiting.result.rollout;
        let holds = |record: &RecordFacts| {
            let of = &record.rollout;
            let same = waiting.is_for(&of.variant, &of.arch, &of.version);
            !record.runs() && !of.drill && of.number == number && same
        };
        snapshot.removed.contains(&number) || snapshot.records.values().any(holds)
    };
    let ended = plan.facts.ended.clone();
    for waiting in snapshot.waiting.iter().filter(|waiting| !is_settled(&ended, waiting) && !expected(waiting)) {
        let (node, rows) = (waiting.node.clone(), BTreeSet::from([waiting.id()]));
        let clears = is_on_page(waiting) && !waiting.orphaned;
        plan.actions.push(if clears {
            HistoryAction::Clear { node, rows }
        } else {
            HistoryAction::Drop { node, rows }
        });
    }
}

/// Returns what a record names of a page.
pub fn summary(page: &HistoryPage, digest: String, bytes: usize) -> PageSummary {
    let pods: usize = page.rows.iter().map(|row| row.result.pods.len()).sum();
    PageSummary {
        digest,
        nodes: i64::try_from(page.rows.len()).unwrap_or(i64::MAX),
        pods: i64::try_from(pods).unwrap_or(i64::MAX),
        bytes: i64::try_from(bytes).unwrap_or(LARGEST_OBJECT),
    }
}
