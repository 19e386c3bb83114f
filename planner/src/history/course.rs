//! The course of a rollout: entries that follow from the operator's status. Each change is compared with the entries and
//! conditions that the record has already, so that none is lost and none is there twice under any leader.

use std::collections::BTreeSet;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, set_condition};
use models::history::{
    BottlerocketRolloutHistoryStatus, EntryKind, FROZEN, HistoryEntry, MOST_ENTRIES, RecordedRollout, RolloutPhase,
};
use models::operator::{
    ActiveRollout, BRAKED, CONTAINED, CompletionEstimate, ENABLED, KnownVersion, RESUMED, WINDOW_OPEN,
};
use models::plain::{counted, cut};
use models::time::between;

use crate::view::OperatorFacts;

/// The longest message of an entry.
const MESSAGE: usize = 256;

/// The most entries of a record that runs: there is room for the last one, and for those of one turn.
const MOST_KEPT: usize = MOST_ENTRIES - 8;

/// The messages of the entries `Resumed`, by which readers tell them apart.
const ENABLED_AGAIN: &str = "updates were enabled again";
const THAWED: &str = "failures no longer stop updates";
const PROVEN: &str =
    "failures no longer stop updates: the nodes that had failed have proven the version, or the policy changed";

/// The beginning of the message of an entry `Approved` that names accepted places.
const ACCEPTED: &str = "places without a proof were accepted: ";

/// The message of the entry `Resumed` at the end of a brake.
const UNBRAKED: &str = "the rollout is no longer braked";

/// Conditions of a record besides `Frozen`, whose changes are recorded.
const PAUSED: &str = "Paused";
const QUARANTINED: &str = "Quarantined";
const WINDOW_CLOSED: &str = "WindowClosed";
const URGENT: &str = "Urgent";

/// The message of the entry `UrgencyEnded`.
const NOT_URGENT: &str = "windows and soaks of canary steps apply again";

/// A state of the operator that entries are about.
struct RecordedState<'a> {
    type_: &'static str,
    holds: bool,
    /// Time since which it is so.
    since: Timestamp,
    begins: EntryKind,
    /// The entry of its end, with a message; `None`: its end is no entry of its own.
    ends: Option<(EntryKind, &'static str)>,
    manager: Option<&'a String>,
    message: String,
}

fn entry(time: Timestamp, kind: EntryKind, message: &str) -> HistoryEntry {
    HistoryEntry { time, kind, step: None, field_manager: None, message: cut(message, MESSAGE) }
}

/// Returns whether a `resume` has ended what held since this time, as the conditions of the operator say: one ends every freeze and brake.
fn is_resumed(operator: &OperatorFacts, since: Timestamp) -> bool {
    let ended = |found: &Condition| found.reason == RESUMED && found.last_transition_time >= since;
    [FROZEN, BRAKED].iter().any(|type_| find_condition(&operator.status.conditions, type_).is_some_and(ended))
}

/// The states of the operator that a record follows, which has these conditions.
fn states<'a>(
    operator: &'a OperatorFacts,
    rollout: &RecordedRollout,
    active: &ActiveRollout,
    recorded: &[Condition],
    now: Timestamp,
) -> Vec<RecordedState<'a>> {
    let conditions = &operator.status.conditions;
    let of = |type_: &str, value: ConditionStatus| {
        let found = find_condition(conditions, type_);
        let since = found.map_or(now, |condition| condition.last_transition_time);
        let message = found.map(|condition| condition.message.clone()).unwrap_or_default();
        (found.is_some_and(|condition| condition.status == value), since, message)
    };
    let own = |known: &&KnownVersion| {
        (&known.variant, &known.arch, &known.version) == (&rollout.variant, &rollout.arch, &rollout.version)
    };
    let quarantined = operator.status.versions.iter().find(own).and_then(|known| known.quarantined.as_ref());
    let failed = quarantined.map(|quarantined| format!("{} on {}", quarantined.reason, quarantined.nodes.join(", ")));
    let managers = &operator.managers;
    let (paused, since, _) = of(ENABLED, ConditionStatus::False);
    let pause = RecordedState {
        type_: PAUSED,
        holds: paused,
        since,
        begins: EntryKind::Paused,
        ends: Some((EntryKind::Resumed, ENABLED_AGAIN)),
        manager: managers.enabled.as_ref(),
        message: "updates were disabled".to_owned(),
    };
    let quarantine = RecordedState {
        type_: QUARANTINED,
        holds: quarantined.is_some(),
        since: quarantined.map_or(now, |quarantined| quarantined.since),
        begins: EntryKind::Quarantined,
        ends: None,
        manager: None,
        message: failed.unwrap_or_default(),
    };
    let (frozen, since, message) = of(models::operator::FROZEN, ConditionStatus::True);
    let contained = find_condition(conditions, models::operator::FROZEN).is_some_and(|found| found.reason == CONTAINED);
    let held_since = find_condition(recorded, FROZEN).map_or(now, |condition| condition.last_transition_time);
    let resumed = is_resumed(operator, held_since);
    let thawed_by =
        if contained { managers.continue_others.as_ref() } else { managers.resume.as_ref().filter(|_| resumed) };
    let freeze = RecordedState {
        type_: FROZEN,
        // A rollout that a user has gone on without is still stopped.
        holds: frozen || quarantined.is_some_and(|quarantined| quarantined.contained),
        since,
        begins: EntryKind::Frozen,
        ends: Some((EntryKind::Resumed, if contained || resumed { THAWED } else { PROVEN })),
        manager: thawed_by.filter(|_| !frozen),
        message,
    };
    let (closed, since, message) = of(WINDOW_OPEN, ConditionStatus::False);
    let window = RecordedState {
        type_: WINDOW_CLOSED,
        holds: closed,
        since,
        begins: EntryKind::WindowClosed,
        ends: Some((EntryKind::WindowOpened, "")),
        manager: None,
        message,
    };
    let urgent = operator.status.urgent.as_ref().filter(|_| active.urgent_until.is_some());
    let urgency = RecordedState {
        type_: URGENT,
        holds: urgent.is_some(),
        since: urgent.map_or(now, |urgent| urgent.since),
        begins: EntryKind::Urgent,
        ends: Some((EntryKind::UrgencyEnded, NOT_URGENT)),
        manager: managers.urgent.as_ref().filter(|_| urgent.is_some()),
        message: urgent.map(|urgent| format!("{} {}", rollout.version, urgent.effect())).unwrap_or_default(),
    };
    vec![pause, quarantine, freeze, window, urgency]
}

fn follow(status: &mut BottlerocketRolloutHistoryStatus, begun: Timestamp, state: &RecordedState<'_>) {
    let stored = find_condition(&status.conditions, state.type_);
    let before = stored.map(|condition| condition.status);
    let holds = ConditionStatus::from(state.holds);
    // Another urgency is another override, with an entry of its own.
    let same =
        |stored: &Condition| !state.holds || state.type_ != URGENT || stored.message == cut(&state.message, MESSAGE);
    // That updates were enabled in between has waited for a write, and was not written.
    let is_other_pause =
        |stored: &Condition| state.type_ == PAUSED && state.since.max(begun) > stored.last_transition_time;
    if state.holds && before == Some(holds) && stored.is_some_and(is_other_pause) {
        status.entries.push(entry(state.since.max(begun), EntryKind::Resumed, ENABLED_AGAIN));
        status.conditions.retain(|condition| condition.type_ != PAUSED);
    } else if before == Some(holds) && stored.is_none_or(same) {
        return;
    }
    let ends = state.ends.filter(|_| before.is_some());
    let kind = if state.holds { Some(state.begins) } else { ends.map(|(kind, _)| kind) };
    let message =
        if state.holds { cut(&state.message, MESSAGE) } else { ends.map_or("", |(_, message)| message).to_owned() };
    if let Some(kind) = kind {
        let field_manager = state.manager.cloned();
        status.entries.push(HistoryEntry { field_manager, ..entry(state.since.max(begun), kind, &message) });
    }
    let condition = Condition {
        type_: state.type_.to_owned(),
        status: holds,
        reason: kind.map_or("AsExpected", EntryKind::as_str).to_owned(),
        message,
        last_transition_time: state.since.max(begun),
        observed_generation: None,
    };
    set_condition(&mut status.conditions, condition);
}

/// Removes entries beyond the limit: the oldest about windows first, and the first entry never.
fn limit(entries: &mut Vec<HistoryEntry>) {
    let window = |entry: &HistoryEntry| matches!(entry.kind, EntryKind::WindowOpened | EntryKind::WindowClosed);
    while entries.len() > MOST_KEPT {
        let oldest = entries.iter().position(window).unwrap_or(1);
        entries.remove(oldest);
    }
}

/// Returns the status of a running record with what has happened since it was written.
pub(super) fn continued(
    stored: &BottlerocketRolloutHistoryStatus,
    rollout: &RecordedRollout,
    active: &ActiveRollout,
    operator: &OperatorFacts,
    now: Timestamp,
) -> BottlerocketRolloutHistoryStatus {
    let mut status = stored.clone();
    status.first_estimate = active.record.as_ref().and_then(|record| record.first_estimate).or(status.first_estimate);
    let managers = &operator.managers;
    if status.entries.is_empty() {
        let from = rollout.from.iter().map(|from| format!("{} ({})", from.version, counted(from.nodes, "node")));
        let from: Vec<_> = from.collect();
        let continues = rollout.first.map(|first| format!("; continues rollout {first}")).unwrap_or_default();
        let message = format!("to {} from {}{continues}", rollout.version, from.join(", "));
        let field_manager = managers.version.clone();
        // Steps that were passed before are none of this record.
        let step = Some(active.steps_passed).filter(|passed| *passed > 0);
        status.entries.push(HistoryEntry { field_manager, step, ..entry(rollout.begun, EntryKind::Begun, &message) });
    }
    for state in states(operator, rollout, active, &stored.conditions, now) {
        follow(&mut status, rollout.begun, &state);
    }
    follow_brake(&mut status.entries, active, operator, now);
    follow_steps(&mut status.entries, active, managers.approve_step.as_ref(), now);
    limit(&mut status.entries);
    status
}

/// Returns since when a change of a record has waited for another one: its first estimate since the record began, and that updates are
/// enabled again. `None`: another change is there.
pub(super) fn waits_since(
    stored: &BottlerocketRolloutHistoryStatus,
    status: &BottlerocketRolloutHistoryStatus,
    begun: Timestamp,
) -> Option<Timestamp> {
    let mut same = status.clone();
    let mut since = (same.first_estimate != stored.first_estimate).then_some(begun);
    same.first_estimate = stored.first_estimate;
    let enabled = |last: &mut HistoryEntry| last.kind == EntryKind::Resumed && last.message == ENABLED_AGAIN;
    if same.entries.len() > stored.entries.len()
        && let Some(last) = same.entries.pop_if(enabled)
    {
        since = Some(since.map_or(last.time, |since| since.min(last.time)));
        let paused = same.conditions.iter_mut().filter(|condition| condition.type_ == PAUSED);
        for (condition, before) in paused.zip(find_condition(&stored.conditions, PAUSED)) {
            condition.clone_from(before);
        }
    }
    since.filter(|_| same == *stored)
}

/// Adds that the rollout is braked, or is no longer. The ledger of one whose record was replaced is that of the next one.
fn follow_brake(entries: &mut Vec<HistoryEntry>, active: &ActiveRollout, operator: &OperatorFacts, now: Timestamp) {
    let is_about_it = |entry: &&HistoryEntry| entry.kind == EntryKind::Braked || entry.message == UNBRAKED;
    let last = entries.iter().rev().find(is_about_it).filter(|entry| entry.kind == EntryKind::Braked);
    match last.map(|entry| entry.time) {
        None if active.is_braked() => {
            let row = active.ledger.iter().flat_map(|ledger| &ledger.row).map(ToString::to_string);
            let message = format!("ended without a proof, or lost it: {}", row.collect::<Vec<_>>().join(", "));
            entries.push(entry(now, EntryKind::Braked, &message));
        }
        Some(since) if !active.is_braked() && active.ended.is_none() => {
            let field_manager = operator.managers.resume.clone().filter(|_| is_resumed(operator, since));
            entries.push(HistoryEntry { field_manager, ..entry(now, EntryKind::Resumed, UNBRAKED) });
        }
        _ => {}
    }
}

/// Returns the last step that entries of this kind name, unless it is due again.
fn last_step(entries: &[HistoryEntry], kind: EntryKind) -> i64 {
    entries.iter().fold(0, |last, entry| match (entry.kind, entry.step) {
        (EntryKind::Begun, Some(step)) => step,
        (EntryKind::StepDueAgain, Some(step)) => last.min(step.saturating_sub(1)),
        (found, Some(step)) if found == kind => last.max(step),
        _ => last,
    })
}

/// Returns which places a user has accepted without a proof that no approval names, as sentences that each fit an entry.
fn accepted(entries: &[HistoryEntry], active: &ActiveRollout) -> Vec<String> {
    let approvals = entries.iter().filter(|entry| entry.kind == EntryKind::Approved);
    let named = approvals.filter_map(|entry| entry.message.strip_prefix(ACCEPTED));
    let named: BTreeSet<&str> = named.flat_map(|nodes| nodes.split(", ")).collect();
    let nodes = active.ledger.iter().flat_map(|ledger| &ledger.nodes).filter(|node| node.accepted);
    let nodes = nodes.map(|node| cut(&node.to_string(), MESSAGE - ACCEPTED.len()));
    let mut sentences: Vec<String> = Vec::new();
    for node in nodes.filter(|node| !named.contains(node.as_str())) {
        match sentences.last_mut().filter(|last| last.len() + node.len() + 2 <= MESSAGE) {
            Some(last) => *last += &format!(", {node}"),
            None => sentences.push(format!("{ACCEPTED}{node}")),
        }
    }
    sentences
}

/// Adds what has happened to canary steps: the approval is a request of this field manager.
fn follow_steps(entries: &mut Vec<HistoryEntry>, active: &ActiveRollout, manager: Option<&String>, now: Timestamp) {
    let at = |step: i64, kind, message: &str| HistoryEntry { step: Some(step), ..entry(now, kind, message) };
    let is_due = active.ledger.as_ref().is_some_and(|ledger| ledger.due > 0);
    let passed = active.steps_passed;
    if is_due && passed < last_step(entries, EntryKind::StepPassed) {
        entries.push(at(passed.saturating_add(1), EntryKind::StepDueAgain, ""));
    }
    let approved = last_step(entries, EntryKind::Approved);
    if let Some(step) = active.approved_step {
        let mut messages = accepted(entries, active);
        let is_entry = |entry: &HistoryEntry| (entry.kind, entry.step) == (EntryKind::Approved, Some(step));
        if step > approved && messages.is_empty() {
            messages.push(String::new());
        } else if step <= approved && (entries.len() >= MOST_KEPT || !entries.iter().any(is_entry)) {
            // The places were accepted in an earlier record, or the entry that names them was removed.
            messages.clear();
        }
        let entry = |message: String| HistoryEntry {
            field_manager: manager.cloned(),
            ..at(step, EntryKind::Approved, &message)
        };
        entries.extend(messages.into_iter().map(entry));
    }
    let before = last_step(entries, EntryKind::StepPassed);
    for step in (before.saturating_add(1)..=passed).take(MOST_ENTRIES) {
        entries.push(at(step, EntryKind::StepPassed, ""));
    }
}

/// Returns the first estimate of a rollout held against its end, as the end of a sentence.
fn held(first: &CompletionEstimate, at: Timestamp) -> String {
    let CompletionEstimate { at: expected, earliest, latest, made } = first;
    let found = match at {
        at if at < *earliest => format!("{} s before", between(at, *earliest).as_secs()),
        at if at > *latest => format!("{} s after", between(*latest, at).as_secs()),
        _ => "within".to_owned(),
    };
    format!(
        ", {found} the range of the first estimate: {expected:.0} ({earliest:.0} to {latest:.0}), made at {made:.0}"
    )
}

/// Returns the status of a record that ends.
pub(super) fn ended(
    stored: &BottlerocketRolloutHistoryStatus,
    phase: RolloutPhase,
    at: Timestamp,
    message: &str,
) -> BottlerocketRolloutHistoryStatus {
    let kind = match phase {
        RolloutPhase::Completed => EntryKind::Completed,
        RolloutPhase::Superseded => EntryKind::Superseded,
        RolloutPhase::Stopped | RolloutPhase::Running | RolloutPhase::Unknown => EntryKind::Stopped,
    };
    let mut status = stored.clone();
    let held = status.first_estimate.filter(|_| phase == RolloutPhase::Completed).map(|first| held(&first, at));
    status.entries.push(entry(at, kind, &format!("{message}{}", held.unwrap_or_default())));
    (status.phase, status.ended) = (phase, Some(at));
    status
}
