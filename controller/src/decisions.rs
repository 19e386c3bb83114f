//! The log of decisions about a node or the fleet, derived from what a write has changed, so that each decision is in
//! the leader's log once and that log alone shows a rollout.

use models::condition::{Condition, ConditionStatus, find_condition};
use models::operator::{
    ActiveRollout, BLOCKED, BRAKED, BottlerocketUpdateOperatorStatus, CONTAINED, DEGRADED, FROZEN, KnownVersion,
    LedgerNode,
};
use models::reason::EndEvent;
use models::shadow::{ControllerReport, DrainStatus, Mode, Place, Progress, Step, UPDATED};
use semver::Version;

use planner::claims::ClaimField;
use planner::phase::Phase;
use planner::plan::{approval_news, key_of};
use planner::view::{NodeFacts, ShadowFacts};
use planner::wait::WaitReason;

/// One log line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    warning: bool,
    text: &'static str,
    node: Option<String>,
    attempt: Option<i64>,
    version: Option<Version>,
    reason: Option<String>,
    detail: Option<String>,
}

impl Line {
    fn new(text: &'static str) -> Self {
        Self { text, ..Self::default() }
    }

    fn warning(text: &'static str) -> Self {
        Self { warning: true, ..Self::new(text) }
    }

    fn of(event: EndEvent) -> Self {
        Self { warning: event.is_warning(), ..Self::new(event.log_line()) }
    }

    fn about(self, node: &str, progress: Option<&Progress>) -> Self {
        Self {
            node: Some(node.to_owned()),
            attempt: progress.map(|p| p.attempt),
            version: progress.map(|p| p.version.clone()),
            ..self
        }
    }

    fn because(self, reason: &str, detail: &str) -> Self {
        let text = |text: &str| (!text.is_empty()).then(|| models::plain::plain(text));
        Self { reason: text(reason), detail: text(detail), ..self }
    }

    /// Writes the line.
    pub fn log(self) {
        let Self { warning, text, node, attempt, version, reason, detail } = self;
        let version = version.map(tracing::field::display);
        if warning {
            tracing::warn!(node, attempt, version, reason, detail, "{text}");
        } else {
            tracing::info!(node, attempt, version, reason, detail, "{text}");
        }
    }
}

/// A node with its shadow.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub facts: &'a NodeFacts,
    /// The shadow, if the node has one.
    pub shadow: Option<&'a ShadowFacts>,
}

/// Returns the decisions about a node, from its state before a write and after it. `claimed_before` is true if this leader has
/// claimed it in this attempt before.
pub fn of_node(before: Pair<'_>, after: Pair<'_>, claimed_before: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let name = &after.facts.name;
    let report = |pair: Pair<'_>| pair.shadow.map(|s| s.status.controller.clone()).unwrap_or_default();
    let (was, is) = (report(before), report(after));
    // What protects a node from autoscalers stays until it has proven its version.
    let out = |facts: &NodeFacts| facts.claims.has(ClaimField::Cordon) || facts.claims.has(ClaimField::Balancer);
    // The write of the step comes before that of the claim, with which the drain starts.
    let drains = is.progress.as_ref().filter(|progress| progress.step == Step::Draining && claims(progress.mode()));
    let begins = was.progress.as_ref().is_none_or(|progress| progress.step != Step::Draining);
    // A user who uncordons a node takes the cordon from all of its owners, so that it is claimed again.
    let again = claimed_before || was.drain.as_ref().is_some_and(has_evicted);
    if drains.is_none() || !begins || out(before.facts) || again {
        lines.extend(of_report(name, &was, &is));
    }
    let progress = is.progress.as_ref().or(was.progress.as_ref());
    if before.facts.uid == after.facts.uid {
        let cordoned = !before.facts.unschedulable && after.facts.unschedulable;
        match (out(before.facts), out(after.facts)) {
            (false, true) if !again => {
                lines.push(Line::new("node claimed").about(name, progress));
                let text = drains.map(|progress| of_step(Step::Draining, progress.mode()));
                lines.extend(text.map(|text| Line::new(text).about(name, progress)));
            }
            (true, false) => {
                let back = |place| matches!(place, Place::Away | Place::Booted | Place::Back);
                let rebooted = progress.is_some_and(|p| p.mode() == Mode::Update && back(p.step.place()));
                let text = if rebooted { "node rebooted: released" } else { "node released" };
                lines.push(Line::new(text).about(name, progress));
            }
            (had, true) if cordoned || !had => {
                lines.push(Line::warning("node claimed again: it was uncordoned by others").about(name, progress));
            }
            _ => {}
        }
    }
    lines.extend(of_hooks(before.facts, after.facts).map(|line| line.about(name, progress)));
    let permit = |pair: Pair<'_>| pair.shadow.and_then(|s| s.spec.permit.clone());
    if let Some(given) = permit(after)
        && permit(before).is_none_or(|before| before.nonce != given.nonce)
    {
        let rehearsed = progress.is_some_and(|progress| progress.drill.is_some());
        let text = if rehearsed { "rehearsal permit issued: the host is not rebooted" } else { "reboot permitted" };
        lines.push(Line::new(text).about(name, progress));
    }
    lines
}

/// Returns whether the record of a drain shows that it has begun, and so that its node was claimed, perhaps by an earlier leader. The
/// pods are listed before that.
fn has_evicted(drain: &DrainStatus) -> bool {
    let DrainStatus {
        removed, asked_first, blockers, evicted_owners, returned_owners, restarted, forced_since, ..
    } = drain;
    *removed > 0
        || asked_first.iter().any(|first| first.accepted.is_some())
        || !(blockers.is_empty() && evicted_owners.is_empty() && returned_owners.is_empty())
        || *restarted
        || forced_since.is_some()
}

/// Returns the decision about the request to hooks.
fn of_hooks(before: &NodeFacts, after: &NodeFacts) -> Option<Line> {
    let (was, is) = (before.hook_request.as_ref(), after.hook_request.as_ref());
    match is {
        _ if was == is || before.uid != after.uid => None,
        Some(request) => Some(Line::new("hooks requested").because("", request)),
        None => Some(Line::new("request to hooks withdrawn")),
    }
}

fn of_report(node: &str, before: &ControllerReport, after: &ControllerReport) -> Vec<Line> {
    let (was, is) = (before.progress.as_ref(), after.progress.as_ref());
    let step = |progress: Option<&Progress>| progress.map(|p| p.step);
    let last = after.record.as_ref().and_then(|r| r.last.as_ref());
    let about = |line: Line| vec![line.about(node, is.or(was))];
    if let Some(line) = end_of_drill(before, after) {
        return about(line);
    }
    let mode = is.or(was).map_or(Mode::Update, Progress::mode);
    let ended = || {
        let (reason, message) = last.map(|last| (last.reason.as_str(), last.message.as_str())).unwrap_or_default();
        about(Line::of(EndEvent::of_update(reason)).because(reason, message))
    };
    let text = match (step(was), step(is)) {
        (Some(was_at), None)
            if was_at.place() == Place::Back && !mode.is_drill() && last.is_some_and(|l| l.reason == UPDATED) =>
        {
            return ended();
        }
        (None, None) => return requests(node, before, after),
        (_, Some(Step::Releasing)) if step(was) != Some(Step::Releasing) => return ended(),
        (None, Some(is_at)) if mode == Mode::Update && is_at.place() > Place::Waiting => {
            "attempt continued: the Node was deleted and registered again"
        }
        (None, Some(_)) => match mode {
            Mode::Update => "attempt started",
            Mode::Drill { evict: true, .. } => {
                "drill started: its pods are to be evicted, and the host is not rebooted"
            }
            Mode::Drill { .. } => "drill started: no pod is evicted, and the host is not rebooted",
            Mode::Verification => "verification started: the node has not proven its version",
        },
        (Some(_), None) if mode.is_drill() => "drill over: the node is released",
        (Some(_), None) => "attempt ended",
        (Some(was_at), Some(is_at)) if was_at == is_at => {
            let forced = |report: &ControllerReport| report.drain.as_ref().and_then(|d| d.forced_since);
            if forced(before).is_none() && forced(after).is_some() {
                return about(Line::warning("drain forced: deleting the pods that are left"));
            }
            if is_at == Step::Verifying && was.map(|p| p.since) != is.map(|p| p.since) {
                return about(Line::new("soak restarted"));
            }
            let interrupted = |progress: Option<&Progress>| progress.is_some_and(|p| p.interrupted.is_some());
            if interrupted(is) && !interrupted(was) {
                return about(Line::new("soak interrupted"));
            }
            return requests(node, before, after);
        }
        (Some(Step::AfterUpdate), Some(Step::Verifying)) => "soak restarted",
        (Some(Step::Verifying), Some(Step::Returning)) => "verification interrupted: waiting for the node",
        (_, Some(step)) => of_step(step, mode),
    };
    about(Line::new(text))
}

/// Returns the line of a step that begins.
fn of_step(step: Step, mode: Mode) -> &'static str {
    Phase::of_step(step).map_or("step changed", |phase| (phase.log)(mode))
}

/// Returns whether a drain of this mode takes the node out of service.
fn claims(mode: Mode) -> bool {
    !matches!(mode, Mode::Drill { evict: false, .. })
}

/// Returns the end of a drill; `None` if this write is not one.
fn end_of_drill(before: &ControllerReport, after: &ControllerReport) -> Option<Line> {
    let found = |report: &ControllerReport| report.record.as_ref().and_then(|record| record.drill.clone());
    let ended = found(after).filter(|ended| found(before).as_ref() != Some(ended))?;
    Some(Line::of(EndEvent::of_drill(&ended.result)).because(&ended.result, &ended.message))
}

/// Returns the requests that a write has carried out besides everything else.
fn requests(node: &str, before: &ControllerReport, after: &ControllerReport) -> Vec<Line> {
    let requests =
        |report: &ControllerReport| report.record.as_ref().and_then(|r| r.requests.clone()).unwrap_or_default();
    let (was, is) = (requests(before), requests(after));
    let unresolved = |report: &ControllerReport| {
        let failures = report.record.iter().flat_map(|r| &r.version_failures);
        failures.filter(|f| f.resolved_by.is_none()).count()
    };
    let mut lines = Vec::new();
    if was.retry != is.retry {
        lines.push(Line::new("retry requested"));
    }
    if was.release != is.release {
        lines.push(Line::new("release requested: there is nothing to release"));
    }
    if unresolved(after) < unresolved(before) {
        lines.push(Line::new("failures of the node resolved"));
    }
    lines.into_iter().map(|line| line.about(node, after.progress.as_ref())).collect()
}

/// Returns the node with which the soak of a rollout's canary step began again.
type BeganAgain<'a> = &'a dyn Fn(&ActiveRollout) -> Option<&'a str>;

/// Returns the decisions about the fleet, from the operator's status before a write and after it.
pub fn of_operator(
    before: &BottlerocketUpdateOperatorStatus,
    after: &BottlerocketUpdateOperatorStatus,
    began_again: BeganAgain<'_>,
) -> Vec<Line> {
    let mut lines = quarantines(before, after);
    lines.extend(conditions(before, after));
    lines.extend(rollouts(before, after, began_again));
    let requests = |status: &BottlerocketUpdateOperatorStatus| status.requests.clone().unwrap_or_default();
    let (was, is) = (requests(before), requests(after));
    if before.observed_generation.is_none() {
        // The annotations of a new resource are acknowledged without an effect.
        return lines;
    }
    let approval = if approval_news(before, after).is_none() {
        "canary step approved"
    } else {
        "approval acknowledged: no canary step waits for it"
    };
    for (text, was, is) in [
        (approval, was.approve_step, is.approve_step),
        ("rotation of certificates begun", was.rotate_certificates, is.rotate_certificates),
        ("rotation of the signing key begun", was.rotate_signing_key, is.rotate_signing_key),
    ] {
        if is.is_some() && was != is {
            lines.push(Line::new(text));
        }
    }
    lines
}

fn quarantines(before: &BottlerocketUpdateOperatorStatus, after: &BottlerocketUpdateOperatorStatus) -> Vec<Line> {
    let mut lines = Vec::new();
    for known in &after.versions {
        let Some(quarantined) = &known.quarantined else { continue };
        let same = |old: &&KnownVersion| {
            (&old.version, &old.variant, &old.arch) == (&known.version, &known.variant, &known.arch)
        };
        if before.versions.iter().find(same).is_none_or(|old| old.quarantined.is_none()) {
            let detail = format!("{} {}, failed on {}", known.variant, known.arch, quarantined.nodes.join(", "));
            let line = Line::warning("version quarantined").because(quarantined.reason.as_str(), &detail);
            lines.push(Line { version: Some(known.version.clone()), ..line });
        }
    }
    lines
}

fn conditions(before: &BottlerocketUpdateOperatorStatus, after: &BottlerocketUpdateOperatorStatus) -> Vec<Line> {
    let holds = |status: &BottlerocketUpdateOperatorStatus, type_: &str| {
        find_condition(&status.conditions, type_).filter(|c| c.status == ConditionStatus::True).cloned()
    };
    let mut lines = Vec::new();
    let earlier = |c: &Condition| {
        [WaitReason::EarlierOperatorRunning, WaitReason::EarlierOperatorGone].iter().any(|is| c.reason == is.as_str())
    };
    let paused = |status: &BottlerocketUpdateOperatorStatus| {
        let blocked = find_condition(&status.conditions, BLOCKED).filter(|c| c.status != ConditionStatus::False);
        blocked.filter(|c| earlier(c)).cloned()
    };
    match (paused(before), paused(after)) {
        (None, Some(is)) => {
            lines.push(Line::warning("paused: earlier operator running").because(&is.reason, &is.message));
        }
        (Some(_), None) => lines.push(Line::new("resumed: earlier operator gone")),
        _ => {}
    }
    let contained = |status: &BottlerocketUpdateOperatorStatus| {
        find_condition(&status.conditions, FROZEN).is_some_and(|condition| condition.reason == CONTAINED)
    };
    for (type_, begins, ends) in [
        (FROZEN, "rollout frozen", "rollout resumed"),
        (BRAKED, "rollout braked", "rollout no longer braked"),
        (BLOCKED, "rollout blocked", "rollout no longer blocked"),
    ] {
        match (holds(before, type_), holds(after, type_)) {
            (was, is) if was.iter().chain(is.iter()).any(earlier) => {}
            (None, Some(is)) => lines.push(Line::warning(begins).because(&is.reason, &is.message)),
            (Some(_), None) if type_ == FROZEN && contained(after) => {
                lines.push(Line::new("rollout continues without the nodes that failed"));
            }
            (Some(_), None) => lines.push(Line::new(ends)),
            (None, None) if type_ == FROZEN && contained(before) && !contained(after) => lines.push(Line::new(ends)),
            _ => {}
        }
    }
    match (holds(before, DEGRADED), holds(after, DEGRADED)) {
        (was, Some(is)) if was.as_ref().is_none_or(|was| was.message != is.message) => {
            let text = if is.reason == "InvalidPolicy" { "policy rejected" } else { "operator degraded" };
            lines.push(Line::warning(text).because(&is.reason, &is.message));
        }
        (Some(was), None) if was.reason != "InvalidPolicy" => {
            lines.push(Line::new("operator no longer degraded").because(&was.reason, ""));
        }
        (Some(_), None) => lines.push(Line::new("policy accepted")),
        (None, None) if before.policy_in_force != after.policy_in_force => {
            lines.push(Line::new("policy accepted"));
        }
        _ => {}
    }
    lines
}

fn same_rollout(one: &ActiveRollout, other: &ActiveRollout) -> bool {
    (key_of(one), one.started) == (key_of(other), other.started)
}

fn rollouts(
    before: &BottlerocketUpdateOperatorStatus,
    after: &BottlerocketUpdateOperatorStatus,
    began_again: BeganAgain<'_>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    // One that has ended may be beside another rollout of its version.
    for rollout in after.active_rollouts.iter().filter(|rollout| rollout.ended.is_none()) {
        let old = before.active_rollouts.iter().find(|old| same_rollout(old, rollout));
        let kind = format!("{}/{}", rollout.variant, rollout.arch);
        let own = match old {
            None => vec![Line::new("rollout started").because("", &kind)],
            Some(old) => of_rollout(old, rollout, &kind, began_again),
        };
        lines.extend(own.into_iter().map(|line| Line { version: Some(rollout.version.clone()), ..line }));
    }
    lines
}

/// Returns the nodes of a rollout that had proven its version, and were not Ready any more or under pressure.
fn fallen(rollout: &ActiveRollout) -> impl Iterator<Item = &LedgerNode> {
    rollout.ledger.iter().flat_map(|ledger| &ledger.nodes).filter(|node| node.has_fallen())
}

fn of_rollout(before: &ActiveRollout, after: &ActiveRollout, kind: &str, began_again: BeganAgain<'_>) -> Vec<Line> {
    let about =
        |line: Line, node: &LedgerNode| Line { node: Some(node.node.clone()), ..line.because(&node.reason, kind) };
    let lost = fallen(after).filter(|node| !fallen(before).any(|was| was.node == node.node));
    let mut lines: Vec<Line> = lost.map(|node| about(Line::warning("proof lost"), node)).collect();
    // One that is gone may give its name to another one, without a proof. Those that are lost in the same write are proven no more.
    let proven = |rollout: &ActiveRollout| rollout.ledger.as_ref().map_or(0, |ledger| ledger.proven);
    let still_proven = proven(before).saturating_sub(i64::try_from(lines.len()).unwrap_or(i64::MAX));
    let is_named = |node: &str| after.ledger.iter().flat_map(|ledger| &ledger.nodes).any(|named| named.node == node);
    let back = fallen(before).filter(|was| proven(after) > still_proven && !is_named(&was.node));
    lines.extend(back.map(|node| about(Line::new("proof back"), node)));
    if before.steps_passed < after.steps_passed {
        let detail = format!("{} step(s) passed on {kind}", after.steps_passed);
        lines.push(Line::new("canary step passed").because("", &detail));
    } else if before.step_done.zip(after.step_done).is_some_and(|(was, is)| is > was) {
        let node = began_again(after).map(str::to_owned);
        lines.push(Line { node, ..Line::new("soak begins again").because("", kind) });
    } else if !before.soak_repeated && after.soak_repeated {
        lines.push(Line::new("soak repeated with another node").because("", kind));
    }
    lines
}

#[cfg(test)]
mod tests;
