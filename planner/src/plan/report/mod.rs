//! The report on the fleet in the operator's status: counts, reasons, versions, the rollout, conditions.

mod events;
mod problems;

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, set_condition, true_condition};
use models::history::RolloutPhase;
use models::names::CONTINUE_OTHERS_ANNOTATION;
use models::operator::{
    ActiveRollout, BLOCKED, BRAKED, BottlerocketUpdateOperatorStatus, CONTAINED, Counts, DEGRADED, ENABLED, FROZEN,
    HISTORY_RECORDED, KnownVersion, NOTICES_SENT, PROGRESSING, RESUMED, STORAGE_MIGRATED, Slot, WINDOW_OPEN,
    WaitingCount, without_credentials,
};
use models::reason::{End, FailureClass};
use models::shadow::{self, Step};

use self::problems::{ConditionParts, degraded, joined};
use super::{Plan, estimates, follow};
use crate::gates;
use crate::pause::{EARLIER_GONE, EARLIER_RUNNING};
use crate::policy::WindowState;
use crate::revisions::{RevisionPlan, is_in_force};
use crate::survey::key::{Key, key_of, of_known};
use crate::survey::quarantine::{Cause, Quarantine};
use crate::survey::records::finish;
use crate::survey::{Survey, SurveyedNode, condition, requests};
use crate::view::{ClusterView, NodeView, OperatorFacts, ReportedFacts};
use crate::wait::{BEFORE_RESUME, Wait, WaitReason, request, resume, without_command};

pub use events::news;
pub use problems::{GROUP_HIDDEN, INVALID_POLICY, NOT_SERVED};

/// The number of reasons that the operator's status names.
const REASONS: usize = 32;

/// The number of failed nodes that a message names for each version.
const NAMED: usize = 8;

/// The maximum length of the policy in force, as JSON.
const POLICY_LENGTH: usize = 65_536;

/// Many nodes have fallen ill at once.
const CLUSTER_UNWELL: &str = WaitReason::ClusterUnwell.as_str();

/// Nodes that had fallen ill at once are well again, or have been ill for too long to say anything.
const CLUSTER_WELL: &str = "ClusterWell";

/// The message of the condition `Enabled` that is false.
const PAUSED: &str = "spec.enabled is false: no update starts; those with a slot are finished";

/// No expression keeps all nodes waiting.
const EXPRESSIONS_QUIET: &str = "ExpressionsQuiet";

/// The operator needs a user's approval to continue.
pub const APPROVAL: &str = "AwaitingApproval";

/// Returns whether nodes may start now.
pub(super) fn open(state: &WindowState) -> bool {
    matches!(state, WindowState::Open { .. })
}

/// The time at which a schedule changes.
pub(super) fn changes(state: &WindowState) -> Option<Timestamp> {
    match state {
        WindowState::Open { until } => *until,
        WindowState::Closed { opens, .. } => *opens,
    }
}

fn counts(survey: &Survey<'_>, plan: &Plan) -> Counts {
    let mut counts = Counts::default();
    for (node, wait) in survey.waits(&plan.waits).filter(|(node, _)| node.labelled) {
        counts.total += 1;
        // A node in a drill is out of service, and neither staged nor updated.
        let step = node.update().map(|progress| progress.step);
        counts.updating += i64::from(step.is_some() && node.past_staging());
        let waits = step == Some(Step::Staging) && wait.is_some_and(Wait::is_for_others);
        counts.staged += i64::from(step == Some(Step::Staged) || waits);
        counts.current += i64::from(follow::is_current(node, wait));
        counts.blocked += i64::from(match wait.filter(|wait| **wait != Wait::Acting) {
            Some(wait) => node.node.is_blocked_by(wait),
            // While something is written about it, it keeps its previous state.
            None => node_blocked(node.node).is_some(),
        });
        counts.failed += i64::from(has_failed(survey, node));
    }
    counts
}

/// Returns whether the last attempt of a node failed, counts against the node, and is to be made again: there is a version for the
/// node that is not quarantined, or it is not known whether there is one, no user holds the node, and it is back from its reboot.
fn has_failed(survey: &Survey<'_>, node: &SurveyedNode<'_>) -> bool {
    let last = node.record().filter(|record| record.failures > 0).and_then(|record| record.last.as_ref());
    let of_node = |end: &End| end.class == FailureClass::Node;
    let counts = last.is_some_and(|last| End::of(&last.reason).is_none_or(of_node));
    let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
    let kind = agent.map_or((None, None), |agent| (agent.variant.as_deref(), agent.arch.as_deref()));
    let wanted = match node.wanted() {
        Ok(version) => !survey.quarantine.holds(kind.0, kind.1, version),
        Err(Wait::Pinning { version }) => !survey.quarantine.holds(kind.0, kind.1, &version),
        Err(wait) => matches!(wait, Wait::RefreshFails { .. }),
    };
    counts && wanted && !node.facts.held() && !node.may_still_reboot()
}

/// The reason of a node's `Blocked` condition, if it has one.
fn node_blocked(node: &NodeView) -> Option<&str> {
    true_condition(&node.shadow.as_ref()?.status.conditions, shadow::BLOCKED).map(|condition| condition.reason.as_str())
}

fn waiting(survey: &Survey<'_>, plan: &Plan) -> Vec<WaitingCount> {
    let mut reasons: BTreeMap<&str, i64> = BTreeMap::new();
    for (node, wait) in survey.waits(&plan.waits) {
        let reason = match wait {
            Some(Wait::UpToDate | Wait::NotLabelled) => continue,
            None | Some(Wait::Acting) => node_blocked(node.node),
            Some(wait) => Some(wait.as_str()),
        };
        if let Some(reason) = reason {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let mut waiting: Vec<WaitingCount> =
        reasons.into_iter().map(|(reason, nodes)| WaitingCount { reason: reason.to_owned(), nodes }).collect();
    waiting.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    waiting.truncate(REASONS);
    waiting
}

/// Returns the time at which the next window opens that a node has.
fn next_window(survey: &Survey<'_>) -> Option<Timestamp> {
    let (all, groups) = survey.windows_in_use();
    all.into_iter().chain(groups).filter(|state| !open(state)).filter_map(changes).min()
}

/// Returns the condition `WindowOpen`.
pub(super) fn window(survey: &Survey<'_>) -> ConditionParts {
    let (all, groups) = survey.windows_in_use();
    match (all, all.into_iter().chain(groups.iter().copied()).any(open)) {
        (Some(WindowState::Open { until: None }), _) => (true, "AlwaysOpen", String::new()),
        (Some(WindowState::Open { until: Some(until) }), _) => (true, "Open", format!("until {until}")),
        (_, true) => (true, "OpenForGroups", "a window of some node groups is open".to_owned()),
        (_, false) => {
            let opens = next_window(survey);
            let next = opens.map_or_else(|| "none is in sight".to_owned(), |at| format!("the next one opens at {at}"));
            let first = all.or_else(|| groups.first().copied());
            let is_blackout = matches!(first, Some(WindowState::Closed { blackout: true, .. }));
            (false, if is_blackout { "Blackout" } else { "Closed" }, next)
        }
    }
}

/// Returns versions with their kinds and the causes of their quarantine.
fn versions_of<'a>(spent: impl IntoIterator<Item = (&'a Key, &'a Cause)>) -> String {
    let version = |((variant, arch, version), cause): (&Key, &Cause)| {
        // The commands behind them are not to be cut.
        let named = models::plain::some(&cause.nodes, NAMED);
        let nodes = if named.is_empty() { String::new() } else { format!(" on {named}") };
        let reason = cause.reason.map_or_else(String::new, |reason| format!(" ({reason}{nodes})"));
        format!("{version} for {variant} {arch}{reason}")
    };
    spent.into_iter().map(version).collect::<Vec<_>>().join("; ")
}

/// Returns the sentence about versions that have stopped all updates.
pub(super) fn failed_too_often<'a>(spent: impl IntoIterator<Item = (&'a Key, &'a Cause)>) -> String {
    let versions = versions_of(spent);
    format!(
        "failed too often: {versions}. No update starts until the rollout is resumed, or nodes that failed prove the version"
    )
}

/// Returns a condition that does not hold: a `resume` that has ended it is its reason until it holds again, also under another leader.
fn over(stored: Option<&Condition>, resumed: bool, reason: &'static str) -> ConditionParts {
    let is_resumed = |condition: &Condition| {
        let held = condition.status == ConditionStatus::True || condition.reason == CONTAINED;
        condition.reason == RESUMED || (resumed && held)
    };
    (false, if stored.is_some_and(is_resumed) { RESUMED } else { reason }, String::new())
}

/// Returns whether failures have stopped the rollout, as it is once a pending `continue-others` is acknowledged.
fn frozen(survey: &Survey<'_>, quarantine: &Quarantine, stored: Option<&Condition>, resumed: bool) -> ConditionParts {
    if quarantine.is_empty() || resumed {
        return over(stored, resumed, "NoFailures");
    }
    let has_failed = |(variant, arch): &(&str, &str)| {
        quarantine.spent.keys().any(|(v, a, _)| (v.as_str(), a.as_str()) == (*variant, *arch))
    };
    let others = !survey.kinds.keys().all(has_failed);
    if quarantine.frozen_by().is_none() {
        let others = if others { "Other nodes go on" } else { "There are no nodes of another variant or architecture" };
        let held = versions_of(&quarantine.spent);
        let message =
            format!("failed too often, and held for these nodes alone: {held}. {others}. To try again: {}", resume());
        return (false, CONTAINED, message.chars().take(2000).collect());
    }
    let mut message = format!("{}. To try again: {}", failed_too_often(quarantine.freezing()), resume());
    if let Some(since) = models::operator::frozen_since(&survey.known).filter(|_| others) {
        let request = request(CONTINUE_OTHERS_ANNOTATION, &since.to_string());
        message += &format!(". To go on with the other nodes alone: {request}");
    }
    (true, "VersionFailed", message.chars().take(2000).collect())
}

/// Returns whether a rollout is braked, with the reason of its nodes, that of the newest version first, and the command once. A brake that comes
/// with a quarantine, which holds back more, is left out; one that was there before goes on.
fn braked(survey: &Survey<'_>, stored: Option<&Condition>, resumed: bool) -> ConditionParts {
    let held = stored.is_some_and(|condition| condition.status == ConditionStatus::True);
    let mut brakes = survey.rollouts.braked();
    brakes.retain(|(key, _)| held || !survey.quarantine.spent.contains_key(*key));
    if resumed || brakes.is_empty() {
        return over(stored, resumed, "NotBraked");
    }
    let parts = brakes.iter().map(|((variant, arch, version), wait)| {
        format!("{version} for {variant} {arch}: {}", without_command(&wait.to_string()))
    });
    let message: String = parts.collect::<Vec<_>>().join("; ").chars().take(1800).collect();
    (true, WaitReason::Braked.as_str(), format!("{message}{BEFORE_RESUME}{}", resume()))
}

fn progress(progressing: bool, plan: &Plan) -> ConditionParts {
    match plan.approvals.first() {
        Some(Wait::CanaryStep { .. }) => (progressing, APPROVAL, joined(&plan.approvals)),
        Some(wait) => (progressing, wait.as_str(), joined(&plan.approvals)),
        None => (progressing, if progressing { "Updating" } else { "Idle" }, String::new()),
    }
}

/// Returns what keeps all nodes waiting: the earlier operator, trouble of the cluster, or an expression that is the same for all of them.
/// Recorded here once, and on no node.
fn blocked(
    view: &ClusterView,
    survey: &Survey<'_>,
    plan: &Plan,
    stored: Option<&Condition>,
) -> Option<(ConditionStatus, &'static str, String)> {
    if let Some(wait) = &survey.pause.wait {
        // Another status from the moment at which the last pod is gone: its time is what the next leader reads.
        let status = if view.earlier_pods.is_empty() { ConditionStatus::Unknown } else { ConditionStatus::True };
        return Some((status, wait.as_str(), wait.to_string()));
    }
    let mut asked = survey.policy.checks().flat_map(|check| {
        let of_all = plan.expressions.iter().filter(move |question| check.is_asked_of_all(question));
        of_all.filter_map(move |question| Some((check, view.expressions.get(question)?)))
    });
    let wait = asked.find_map(|(check, answer)| gates::objection(answer, check.name().to_owned(), true));
    // Of the cluster's trouble the first message is kept: nodes come and go meanwhile. It blocks nothing where a rollout goes on.
    let is_waited = || plan.waits.values().any(|wait| matches!(wait, Wait::ClusterUnwell { .. }));
    let unwell = survey.unwell.of_starts().filter(|_| is_waited()).map(Wait::of_unwell);
    let Some(wait) = unwell.or(wait) else {
        if stored.is_some_and(|c| matches!(c.reason.as_str(), CLUSTER_UNWELL | CLUSTER_WELL)) {
            return Some((ConditionStatus::False, CLUSTER_WELL, String::new()));
        }
        let earlier = stored.is_some_and(|c| matches!(c.reason.as_str(), EARLIER_RUNNING | EARLIER_GONE));
        let reason = if earlier { EARLIER_GONE } else { EXPRESSIONS_QUIET };
        return stored.map(|_| (ConditionStatus::False, reason, String::new()));
    };
    let keeps = |c: &&Condition| {
        let goes_on =
            c.status == ConditionStatus::True && c.reason == CLUSTER_UNWELL && wait.as_str() == CLUSTER_UNWELL;
        goes_on || wait.is_recorded(&c.message)
    };
    let same = stored.filter(keeps);
    let message = same.map_or_else(|| wait.to_string(), |c| c.message.clone());
    Some((ConditionStatus::True, wait.as_str(), message.chars().take(2000).collect()))
}

/// Returns whether a status may wait for another change of it: updates are under way, and nothing differs from the recorded one but
/// counts, reasons and estimates, which change with each step of each node.
pub fn can_wait(recorded: &BottlerocketUpdateOperatorStatus, planned: &BottlerocketUpdateOperatorStatus) -> bool {
    if true_condition(&planned.conditions, PROGRESSING).is_none() {
        return false;
    }
    let mut rest = BottlerocketUpdateOperatorStatus {
        counts: recorded.counts.clone(),
        waiting: recorded.waiting.clone(),
        freshness: recorded.freshness.clone(),
        ..planned.clone()
    };
    for (rollout, before) in rest.active_rollouts.iter_mut().zip(&recorded.active_rollouts) {
        rollout.estimated_completion = before.estimated_completion;
        if let (Some(record), Some(before)) = (&mut rollout.record, &before.record) {
            record.first_estimate = before.first_estimate;
        }
    }
    rest == *recorded
}

/// Returns the versions and the rollouts as they are recorded. Where a user has resolved the failures, they have none.
fn followed(
    survey: &Survey<'_>,
    quarantine: &Quarantine,
    resumed: bool,
    now: Timestamp,
) -> (Vec<KnownVersion>, Vec<ActiveRollout>) {
    let mut active_rollouts = survey.rollouts.active.clone();
    let mut versions = survey.known.clone();
    for known in &mut versions {
        let cause = quarantine.spent.get(&of_known(known));
        if let (Some(quarantined), Some(cause)) = (&mut known.quarantined, cause) {
            quarantined.contained = cause.contained;
        }
    }
    if resumed {
        for known in &mut versions {
            known.quarantined = None;
            known.failed.clear();
        }
        for ledger in active_rollouts.iter_mut().filter_map(|rollout| rollout.ledger.as_mut()) {
            ledger.forgive();
        }
        // A version that is tried again is another rollout.
        for rollout in active_rollouts.iter_mut().filter(|r| survey.quarantine.spent.contains_key(&key_of(r))) {
            finish(rollout, RolloutPhase::Stopped, now);
        }
    }
    (versions, active_rollouts)
}

/// Returns the policy in force as JSON, which is that of the resource if it is valid. Longer than the field may be, there is none to go back
/// to, which is better than no status.
fn in_force(operator: &OperatorFacts, is_valid: bool) -> Option<String> {
    let own = || serde_json::to_string(&operator.spec).ok();
    let text = if is_valid { own() } else { operator.status.policy_in_force.clone() };
    text.map(without_credentials).filter(|text| text.len() <= POLICY_LENGTH)
}

/// The operator's status without its freshness, with the slots that it is to record.
pub(super) fn status(
    view: &ClusterView,
    reported: &ReportedFacts,
    (operator, slots): (&OperatorFacts, Vec<Slot>),
    survey: &Survey<'_>,
    plan: &Plan,
    history: Option<&RevisionPlan>,
    now: Timestamp,
) -> BottlerocketUpdateOperatorStatus {
    let policy = survey.policy;
    let resumed = requests::resumed(view).is_some();
    let quarantine = survey.quarantine.with_request(operator);
    // It changes with the first write of an attempt, however long that is under way, and with that of the slot that is taken back, and
    // by no write of its own.
    let under_way = survey.nodes.iter().any(|node| node.step.is_some()) || !slots.is_empty();
    let starts = || {
        let before = true_condition(&operator.status.conditions, PROGRESSING).is_some();
        plan.actions.values().any(Plan::starts) || (before && view.busy.iter().any(|name| !view.paused.contains(name)))
    };
    let progressing = under_way || starts();
    let switched = if policy.enabled { "new updates start" } else { PAUSED };

    let mut conditions = operator.status.conditions.clone();
    let blocked = blocked(view, survey, plan, find_condition(&conditions, BLOCKED));
    let degraded = degraded((view, policy, now), reported, survey.web_api_missing, &operator.misunderstood, history);
    let new = [
        (ENABLED, (policy.enabled, if policy.enabled { "Enabled" } else { "Disabled" }, switched.to_owned())),
        (WINDOW_OPEN, window(survey)),
        (PROGRESSING, progress(progressing, plan)),
        (FROZEN, frozen(survey, &quarantine, find_condition(&conditions, FROZEN), resumed)),
        (BRAKED, braked(survey, find_condition(&conditions, BRAKED), resumed)),
        (DEGRADED, degraded),
    ];
    let migrated = reported.migration.state.clone().map(|state| (STORAGE_MIGRATED, state));
    let history_recorded = view.history.state.clone().map(|state| (HISTORY_RECORDED, state));
    let notices_sent = reported.notices.state.clone().map(|state| (NOTICES_SENT, state));
    if policy.notices.is_none() {
        conditions.retain(|condition| condition.type_ != NOTICES_SENT);
    }
    let new = new.into_iter().chain(migrated).chain(history_recorded).chain(notices_sent);
    let new = new.map(|(type_, (holds, reason, message))| (type_, (holds.into(), reason, message)));
    for (type_, (holds, reason, message)) in new.chain(blocked.map(|new| (BLOCKED, new))) {
        set_condition(&mut conditions, condition(now, type_, holds, reason, &message));
    }

    let (versions, mut active_rollouts) = followed(survey, &quarantine, resumed, now);
    estimates::record(reported, &mut active_rollouts);
    let recorded = &operator.status;
    let (current_revision, update_revision) = match history {
        Some(history) => (history.current.clone(), history.update.clone()),
        None => (
            recorded.current_revision.clone(),
            recorded.update_revision.clone().filter(|_| is_in_force(recorded, policy)),
        ),
    };
    BottlerocketUpdateOperatorStatus {
        observed_generation: Some(operator.generation),
        counts: Some(counts(survey, plan)),
        current_revision,
        update_revision,
        collision_count: history.and_then(follow::raised_count).or(recorded.collision_count),
        slots,
        waiting: waiting(survey, plan),
        versions,
        active_rollouts,
        budget_back_offs: survey.budget_back_offs.clone(),
        unwell: survey.unwell.spans.clone(),
        urgent: survey.urgency.record.clone(),
        freshness: None,
        rollout_count: survey.rollouts.count.filter(|count| *count > 0).or(recorded.rollout_count),
        next_window: next_window(survey),
        requests: requests::acknowledged(view, reported, survey.rollouts.approval_taken),
        storage_migration: reported.migration.completed.clone().or_else(|| operator.status.storage_migration.clone()),
        notices: None,
        policy_in_force: in_force(operator, policy.errors.is_empty()),
        conditions,
    }
}

#[cfg(test)]
mod tests;
