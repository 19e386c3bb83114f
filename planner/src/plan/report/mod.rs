//! The report on the fleet in the operator's status: counts, reasons, versions, the rollout, conditions.

mod events;

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, set_condition, true_condition};
use models::history::RolloutPhase;
use models::names::{CONTINUE_OTHERS_ANNOTATION, RESUME_ANNOTATION};
use models::operator::{
    BLOCKED, BRAKED, BottlerocketUpdateOperatorStatus, CONTAINED, Counts, DEGRADED, ENABLED, FROZEN, HISTORY_RECORDED,
    NOTICES_SENT, PROGRESSING, RESUMED, STORAGE_MIGRATED, Slot, WINDOW_OPEN, WaitingCount, without_credentials,
};
use models::reason::{End, FailureClass};
use models::shadow::{self, Step};

use super::{Plan, estimates, follow};
use crate::gates;
use crate::pause::{EARLIER_GONE, EARLIER_RUNNING};
use crate::policy::{Policy, WindowState};
use crate::revisions::{RevisionPlan, is_in_force};
use crate::survey::condition;
use crate::survey::key::{Key, key_of, of_known};
use crate::survey::quarantine::{Cause, Quarantine};
use crate::survey::records::{UNRECORDED, finish};
use crate::survey::requests;
use crate::survey::{Survey, SurveyedNode};
use crate::view::{ClusterView, NodeView, OperatorFacts, ReportedFacts, SharedField, TlsFacts};
use crate::wait::Wait;
use crate::wait::{BEFORE_RESUME as COMMAND, WaitReason};

pub use events::news;

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

/// No expression keeps all nodes waiting.
const EXPRESSIONS_QUIET: &str = "ExpressionsQuiet";

/// The operator is degraded: its policy is invalid.
pub const INVALID_POLICY: &str = "InvalidPolicy";

/// The operator is degraded although its policy is valid.
const CERTIFICATES: &str = "CertificatesInvalid";

/// The operator is degraded: the shadows are not served.
pub const NOT_SERVED: &str = "ShadowsNotServed";

/// The operator is degraded: no agent can report or get a reboot permit.
const WEB_API: &str = WaitReason::WebApiNotReady.as_str();

/// The operator is degraded although its policy and its certificates are valid.
const MISUNDERSTOOD: &str = crate::annotations::UNKNOWN_REQUEST;

/// The operator is degraded: durations of its policy are outside their bounds, and read as the nearest one.
const OUT_OF_BOUNDS: &str = "DurationOutOfBounds";

/// The operator is degraded: its policy has credentials, which are not used.
const CREDENTIALS: &str = "CredentialsIgnored";

/// The operator is degraded: a node group takes every node, and the groups after it have none.
pub const GROUP_HIDDEN: &str = "NodeGroupHidden";

/// The operator is degraded: another field manager owns fields of the operator, which it then cannot remove.
const CONFLICT: &str = "FieldManagerConflict";

/// The operator is degraded: shadows or Nodes exist that it cannot read.
const UNREADABLE: &str = WaitReason::ShadowUnreadable.as_str();

/// The operator needs a user's approval to continue.
const APPROVAL: &str = "AwaitingApproval";

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
/// node that is not quarantined, or it is not known whether there is one, and no user holds the node.
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
    counts && wanted && !node.facts.held()
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

/// A condition: its truth, the reason in one word, the message.
type ConditionParts = (bool, &'static str, String);

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
    format!("failed too often: {}. No update starts until the rollout is resumed", versions_of(spent))
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
    let request =
        |name, value: &str| format!("kubectl annotate bruo default -n <namespace> --overwrite {name}={value}");
    let resume = request(RESUME_ANNOTATION, "<any new value>");
    let has_failed = |(variant, arch): &(&str, &str)| {
        quarantine.spent.keys().any(|(v, a, _)| (v.as_str(), a.as_str()) == (*variant, *arch))
    };
    let others = !survey.kinds.keys().all(has_failed);
    if quarantine.frozen_by().is_none() {
        let others = if others { "Other nodes go on" } else { "There are no nodes of another variant or architecture" };
        let held = versions_of(&quarantine.spent);
        let message =
            format!("failed too often, and held for these nodes alone: {held}. {others}. To try again: {resume}");
        return (false, CONTAINED, message.chars().take(2000).collect());
    }
    let mut message = format!("{}: {resume}", failed_too_often(quarantine.freezing()));
    if let Some(since) = models::operator::frozen_since(&survey.known).filter(|_| others) {
        let request = request(CONTINUE_OTHERS_ANNOTATION, &since.to_string());
        message += &format!(". To go on with the other nodes alone: {request}");
    }
    (true, "VersionFailed", message.chars().take(2000).collect())
}

/// Returns whether a rollout is braked, with the reason of its nodes, that of the newest version first, and the command once.
fn braked(survey: &Survey<'_>, stored: Option<&Condition>, resumed: bool) -> ConditionParts {
    let brakes = survey.rollouts.braked(&survey.quarantine);
    let Some((_, last)) = brakes.last().filter(|_| !resumed) else { return over(stored, resumed, "NotBraked") };
    let text = last.to_string();
    let command = text.rsplit_once(COMMAND).map_or("", |(_, command)| command);
    let parts = brakes.iter().map(|((variant, arch, version), wait)| {
        let text = wait.to_string();
        let text = text.split_once(COMMAND).map_or(text.as_str(), |(text, _)| text);
        format!("{version} for {variant} {arch}: {text}")
    });
    let message: String = parts.collect::<Vec<_>>().join("; ").chars().take(1800).collect();
    (true, WaitReason::Braked.as_str(), format!("{message}{COMMAND}{command}"))
}

fn progress(progressing: bool, plan: &Plan) -> ConditionParts {
    match plan.approvals.first() {
        Some(Wait::CanaryStep { .. }) => (progressing, APPROVAL, joined(&plan.approvals)),
        Some(wait) => (progressing, wait.as_str(), joined(&plan.approvals)),
        None => (progressing, if progressing { "Updating" } else { "Idle" }, String::new()),
    }
}

/// Returns the problems as one message.
fn joined(problems: &[impl ToString]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    models::plain::cut(&texts.join("; "), 2000)
}

fn degraded(policy: &Policy, tls: &TlsFacts, web_api_missing: bool, misunderstood: &[String]) -> ConditionParts {
    if policy.errors.is_empty() {
        return match &tls.problem {
            Some(problem) => (true, CERTIFICATES, models::plain::cut(problem, 2000)),
            None if web_api_missing => (true, WEB_API, Wait::WebApiNotReady.to_string()),
            None if !policy.ignored.is_empty() => (true, CREDENTIALS, joined(&policy.ignored)),
            None if !policy.bounded.is_empty() => (true, OUT_OF_BOUNDS, joined(&policy.bounded)),
            None if !policy.hiding.is_empty() => (true, GROUP_HIDDEN, joined(&policy.hiding)),
            None if !misunderstood.is_empty() => {
                (true, MISUNDERSTOOD, models::plain::cut(&misunderstood.join("; "), 2000))
            }
            None => (false, "AsExpected", String::new()),
        };
    }
    let errors: Vec<String> = policy.errors.iter().map(ToString::to_string).collect();
    let force = if policy.unusable {
        "nothing new starts, and updates and drills without a reboot permit end"
    } else {
        "nothing new starts, and updates under way are finished under the last valid policy"
    };
    let mut message: String = format!("{}; {force}", errors.join("; ")).chars().take(1400).collect();
    // One problem must not hide the other.
    if let Some(problem) = &tls.problem {
        message = format!("{message}. Keys and certificates: {}", models::plain::cut(problem, 500));
    }
    (true, INVALID_POLICY, message)
}

/// Returns the shadows with fields that another field manager owns too, where there are any.
fn conflict(view: &ClusterView) -> Option<ConditionParts> {
    let shadows = view.nodes.values().filter_map(|node| node.shadow.as_ref());
    let mut shared = shadows.filter_map(|shadow| Some((&shadow.node, shadow.shared_field.as_ref()?)));
    let (node, SharedField { field, manager }) = shared.next()?;
    let more = match shared.count() {
        0 => String::new(),
        more => format!(" (and {more} more shadows)"),
    };
    let message = format!(
        "field {field} of the shadow {} belongs to the operator, and the field manager {manager} owns it too{more}: the \
         next write of that client may bring back what the operator has removed. Stop that client; then, while no update of the node is \
         under way, delete the shadow: it is created again",
        models::names::shadow_name(node)
    );
    Some((true, CONFLICT, models::plain::cut(&message, 2000)))
}

/// Returns the shadows and Nodes that cannot be read, where there are any, with the repair.
fn unreadable(view: &ClusterView) -> Option<ConditionParts> {
    let mut unreadable = view.unreadable.objects();
    let (object, error) = unreadable.next()?;
    let more = match unreadable.count() {
        0 => String::new(),
        more => format!(" (and {more} more objects)"),
    };
    let error = models::plain::cut(error, 500);
    let message = format!(
        "this version of the operator cannot read {object}{more}: {error}. Nothing is decided about its node, and a slot of it stays. Where \
         a newer version wrote it, install that version again; otherwise correct the field: kubectl edit {object} -n <namespace> \
         --subresource=status (without --subresource for another field)"
    );
    Some((true, UNREADABLE, models::plain::cut(&message, 2000)))
}

/// Returns the reason for which the policy has no revision, if there is one.
fn unrecorded(history: &RevisionPlan) -> Option<ConditionParts> {
    Some((true, UNRECORDED, models::plain::cut(history.problem.as_ref()?, 2000)))
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
    let policy = survey.policy;
    let policies = policy.groups.iter().map(|group| &group.policy).chain([&policy.all]);
    let expressions = policies.flat_map(|policy| policy.before.expressions.iter().chain(&policy.after.expressions));
    // A query with a node's name in it differs from the one that was written.
    let mut asked = expressions.filter(|expression| plan.expressions.contains(&expression.query));
    let wait = asked.find_map(|expression| {
        gates::objection(view.expressions.get(&expression.query)?, expression.name.clone(), true)
    });
    // Of the cluster's trouble the first message is kept: nodes come and go meanwhile. It blocks nothing where a rollout goes on.
    let is_waited = || plan.waits.values().any(|wait| matches!(wait, Wait::ClusterUnwell { .. }));
    let unwell = survey.unwell.open().filter(|_| is_waited()).map(Wait::of_unwell);
    let Some(wait) = unwell.or(wait) else {
        if stored.is_some_and(|c| matches!(c.reason.as_str(), CLUSTER_UNWELL | CLUSTER_WELL)) {
            return Some((ConditionStatus::False, CLUSTER_WELL, String::new()));
        }
        let earlier = stored.is_some_and(|c| matches!(c.reason.as_str(), EARLIER_RUNNING | EARLIER_GONE));
        let reason = if earlier { EARLIER_GONE } else { EXPRESSIONS_QUIET };
        return stored.map(|_| (ConditionStatus::False, reason, String::new()));
    };
    let same = stored.filter(|c| wait.is_recorded(&c.message));
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
    let switched =
        if policy.enabled { "new updates start" } else { "spec.enabled is false: running updates end, none starts" };

    let mut conditions = operator.status.conditions.clone();
    let blocked = blocked(view, survey, plan, find_condition(&conditions, BLOCKED));
    let degraded = match degraded(policy, &reported.tls, survey.web_api_missing, &operator.misunderstood) {
        // A request that is not understood is no error of the operator, and hides none.
        (holds, reason, message) if !holds || reason == MISUNDERSTOOD => {
            let others = unreadable(view).or_else(|| conflict(view)).or_else(|| unrecorded(history?));
            others.unwrap_or((holds, reason, message))
        }
        // These reasons stop no node.
        (true, reason @ (OUT_OF_BOUNDS | CREDENTIALS | GROUP_HIDDEN), message) => {
            unreadable(view).unwrap_or((true, reason, message))
        }
        degraded => degraded,
    };
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
    estimates::record(reported, &mut active_rollouts);
    let policy_in_force = if policy.errors.is_empty() {
        serde_json::to_string(&operator.spec).ok()
    } else {
        operator.status.policy_in_force.clone()
    };
    // Longer than the field may be: then there is no valid one to go back to, which is better than no status.
    let policy_in_force = policy_in_force.map(without_credentials).filter(|text| text.len() <= POLICY_LENGTH);
    let counts = counts(survey, plan);
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
        counts: Some(counts),
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
        policy_in_force,
        conditions,
    }
}

#[cfg(test)]
mod tests;
