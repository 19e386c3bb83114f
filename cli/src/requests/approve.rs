//! `kubectl brupop approve`: the canary step that waits for a user.

mod step;

use anyhow::{bail, ensure};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use models::condition::{Condition, find_condition};
use models::names::APPROVE_STEP_ANNOTATION;
use models::operator::{ActiveRollout, BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus, PROGRESSING};
use models::time::after;
use planner::annotations::{REQUEST_LENGTH, recorded_value};
use planner::policy::Policy;
use semver::Version;

use self::step::{NamedStep, NextStep, kind, next_step, next_steps, passed};
use super::operator::{carry_out, not_in_force, policy, status};
use super::stopped::nothing_moves;
use super::texts::{command, short_nonce};
use crate::write::{Decision, State, WriteOptions};

/// The length at which the message of a condition is cut.
const CUT: usize = 2000;

#[derive(Debug, Args)]
pub(crate) struct ApproveOptions {
    /// Number of the step, from 1: no other step is approved. Default: the one that waits.
    step: Option<usize>,
    /// Number of the rollout in the history. Default: the one whose step waits; required where steps of several versions wait.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..))]
    rollout: Option<i64>,
    /// Accept nodes that run the version and have not proven it: a hook did not answer, their health was not known, or a user
    /// released them.
    #[arg(long)]
    unproven: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// The canary step that a user requests to approve.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// Number of the step, from 1; `None`: the one that waits.
    number: Option<usize>,
    /// Number of the rollout's record; `None`: the one whose step waits.
    rollout: Option<i64>,
    /// True if nodes without proof are accepted.
    unproven: bool,
    now: Timestamp,
}

impl Wanted {
    fn is_of(&self, rollout: &ActiveRollout) -> bool {
        self.rollout.is_none_or(|number| rollout.number() == number)
    }

    fn may_pass(&self, step: &NextStep<'_>) -> bool {
        self.is_of(step.rollout) && step.waits(self.unproven)
    }

    /// Returns the steps that the approval may be for: those that the operator waits for, and without any, those in their soak; of several,
    /// those that the operator shows, and those with the number of the step.
    fn of<'s, 'a>(&self, steps: &'s [NextStep<'a>], shown: Option<&str>) -> Vec<&'s NextStep<'a>> {
        let waits = |step: &&NextStep<'_>| self.may_pass(step) && !step.rests(self.now, shown);
        let (soaking, waiting): (Vec<_>, Vec<_>) = steps.iter().filter(waits).partition(|step| step.soaks(self.now));
        let mut found = if waiting.is_empty() { soaking } else { waiting };
        let is_shown = |step: &&NextStep<'_>| shown.is_some_and(|shown| step.rollout.is_shown(shown));
        let is_numbered = |step: &&NextStep<'_>| self.number == Some(step.number);
        if found.iter().any(is_shown) {
            found.retain(is_shown);
        }
        if found.iter().any(is_numbered) {
            found.retain(is_numbered);
        }
        found
    }
}

/// An approval as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Approval {
    version: Version,
    /// Number of the step, from 1.
    number: usize,
    steps: Vec<NamedStep>,
    /// Variants and architectures whose steps wait too, and for which another approval is needed.
    left: Vec<String>,
    /// True if the rollouts of the version are of several variants or architectures.
    has_kinds: bool,
    /// Value of the annotation.
    value: String,
}

impl Approval {
    fn title(&self) -> String {
        format!("canary step {} of {}", self.number, self.version)
    }

    /// Returns the variants and architectures of these steps for a sentence; nothing if there is one alone.
    fn kinds(&self, steps: &[&NamedStep]) -> String {
        let kinds: Vec<&str> = steps.iter().map(|step| step.kind.as_str()).collect();
        if self.has_kinds { format!(" for {}", kinds.join(", ")) } else { String::new() }
    }

    /// Returns the nodes of these steps that are accepted without proof, and what is left to approve, for the end of a sentence.
    fn rest(&self, steps: &[&NamedStep]) -> String {
        let accepted: Vec<&str> = steps.iter().filter_map(|step| step.accepted.as_deref()).collect();
        let accepted = if accepted.is_empty() {
            String::new()
        } else {
            format!("; accepted without proof: {}", accepted.join(", "))
        };
        let left = if self.left.is_empty() {
            String::new()
        } else {
            format!("; not approved yet for {}: run the command again", self.left.join(", "))
        };
        accepted + &left
    }
}

/// Returns the text in which the operator shows the steps that wait; none while updates are paused, and where it is cut, so that it may lack
/// some.
fn shown<'a>(policy: &Policy, status: &'a BottlerocketUpdateOperatorStatus) -> Option<&'a str> {
    let whole = |condition: &&Condition| policy.enabled && condition.message.chars().count() < CUT;
    find_condition(&status.conditions, PROGRESSING).filter(whole).map(|condition| condition.message.as_str())
}

/// Returns the steps with the command that approves each.
fn commands(steps: &[&NextStep<'_>], operator: &BottlerocketUpdateOperator) -> String {
    let each =
        steps.iter().map(|step| format!("{} for {}: {}", step.title(), kind(step.rollout), step.command(operator)));
    each.collect::<Vec<_>>().join("; ")
}

/// Returns the value of an earlier approval that the operator has not taken yet.
fn pending<'a>(
    operator: &'a BottlerocketUpdateOperator,
    status: &BottlerocketUpdateOperatorStatus,
) -> Option<&'a String> {
    let taken = status.requests.as_ref().and_then(|requests| requests.approve_step.as_ref());
    let value = operator.metadata.annotations.as_ref()?.get(APPROVE_STEP_ANNOTATION)?;
    Some(value).filter(|value| taken != Some(&recorded_value(value)))
}

/// Returns what an approval writes for each step as far as there is room, and the variants and architectures of the others.
fn named(steps: &[&NextStep<'_>], nonce: &str) -> (Vec<NamedStep>, Vec<String>) {
    let (mut named, mut left) = (Vec::<NamedStep>::new(), Vec::new());
    let mut length = nonce.len();
    for step in steps {
        // Each name has a comma or the `@` behind it.
        let longer = |own: &NamedStep| length.saturating_add(own.name.len() + 1);
        match step.named().filter(|own| longer(own) <= REQUEST_LENGTH) {
            Some(own) => {
                length = longer(&own);
                named.push(own);
            }
            None => left.push(kind(step.rollout)),
        }
    }
    (named, left)
}

/// Returns the reason why nothing is approved where no step waits for it.
///
/// # Errors
/// The step that was named has not passed, or a user has something else to do first.
fn nothing_waits(
    operator: &BottlerocketUpdateOperator,
    wanted: Wanted,
    steps: &[NextStep<'_>],
    others: impl Fn() -> String,
) -> anyhow::Result<Decision> {
    if let Some(rests) = steps.iter().find(|step| wanted.may_pass(step)) {
        let (title, version) = (rests.title(), &rests.rollout.version);
        bail!("{title} waits for no approval: no node is to have {version} now; nothing was written{}", others());
    }
    let status = status(operator);
    let all = policy(operator).canary.len();
    let has_passed =
        |rollout: &ActiveRollout| wanted.number != Some(0) && passed(rollout) >= wanted.number.unwrap_or(all);
    let mut own = status.active_rollouts.iter().filter(|rollout| wanted.is_of(rollout));
    let left = steps.iter().filter(|step| wanted.is_of(step.rollout) && !has_passed(step.rollout));
    let left: Vec<&NextStep<'_>> = left.collect();
    let is_named = wanted.number.is_some() || wanted.rollout.is_some();
    if is_named && left.is_empty() && own.any(has_passed) {
        let what = wanted.number.map_or_else(|| "every canary step".to_owned(), |step| format!("canary step {step}"));
        return Ok(Decision::Nothing(format!("{what} is passed already")));
    }
    if let Some(number) = wanted.rollout.filter(|_| left.is_empty()) {
        bail!("rollout {number} is at no canary step; nothing was written{}", others());
    }
    let mut reasons: Vec<String> = left.iter().map(|step| step.reason(operator)).collect();
    reasons.dedup();
    let reasons = if reasons.is_empty() { "no rollout is at a canary step".to_owned() } else { reasons.join(", and ") };
    let reason = format!("no canary step waits for approval: {reasons}");
    let is_done = |step: &&NextStep<'_>| step.is_settled() && wanted.number.is_none_or(|number| number == step.number);
    let done = if left.is_empty() { !is_named } else { left.iter().all(is_done) };
    ensure!(done, "{reason}; nothing was written");
    Ok(Decision::Nothing(reason))
}

/// Returns the approval, if any, with what is written: the names of the steps, and what makes it a new value.
fn decide(
    operator: &BottlerocketUpdateOperator,
    wanted: Wanted,
    nonce: &str,
) -> anyhow::Result<(Option<Approval>, Decision)> {
    let (policy, status) = (policy(operator), status(operator));
    if policy.canary.is_empty() {
        bail!("the policy has no canary steps (spec.strategy.canary); nothing was written");
    }
    let mut of_rollout = status.active_rollouts.iter().filter(|rollout| wanted.is_of(rollout)).peekable();
    let (steps, shown) = (next_steps(&status.active_rollouts, &policy), shown(&policy, &status));
    // The record that is named may have ended, and the rollout go on in another one.
    let others = || {
        let any = Wanted { number: None, rollout: None, unproven: true, ..wanted };
        let each = commands(&any.of(&steps, shown), operator);
        if wanted.rollout.is_none() || each.is_empty() { String::new() } else { format!(". These wait: {each}") }
    };
    if let Some(number) = wanted.rollout.filter(|_| of_rollout.peek().is_none()) {
        let history = command(operator, "history");
        bail!("rollout {number} is not under way: see {history}; nothing was written{}", others());
    }
    let waiting = wanted.of(&steps, shown);
    let Some(next) = waiting.first() else {
        return Ok((None, nothing_waits(operator, wanted, &steps, others)?));
    };
    let (version, number) = (&next.rollout.version, next.number);
    // One approval is for the same step of each variant and architecture of a version.
    if waiting.iter().any(|step| (&step.rollout.version, step.number) != (version, number)) {
        let each = commands(&waiting, operator);
        bail!("several canary steps wait for approval; nothing was written. Name one: {each}");
    }
    if let Some(wanted) = wanted.number.filter(|wanted| *wanted != number) {
        let is_past = |rollout: &ActiveRollout| rollout.version == *version && passed(rollout) >= wanted;
        if wanted > 0 && of_rollout.any(is_past) {
            let reason =
                format!("canary step {wanted} of {version} is passed already; step {number} waits for approval now");
            return Ok((None, Decision::Nothing(reason)));
        }
        bail!("canary step {wanted} does not wait for approval, {} does; nothing was written", next.title());
    }
    let (named, left) = named(&waiting, nonce);
    if named.is_empty() {
        bail!(
            "{} cannot be approved yet, since the record of its rollout is not written; nothing was written. Try again shortly",
            next.title()
        );
    }
    // A second value would take the place of the first one.
    if let Some(value) = pending(operator, &status) {
        bail!(
            "the operator has not taken the approval '{value}' yet; nothing was written. Approve {} once it has",
            next.title()
        );
    }
    let names: Vec<&str> = named.iter().map(|step| step.name.as_str()).collect();
    let value = format!("{}@{nonce}", names.join(","));
    let has_kinds = steps.iter().filter(|step| step.rollout.version == *version).count() > 1;
    let approval = Approval { version: version.clone(), number, steps: named, left, has_kinds, value };
    let shown: Vec<&NamedStep> = approval.steps.iter().collect();
    let text = format!("{} approved{}{}", approval.title(), approval.kinds(&shown), approval.rest(&shown));
    let decision = Decision::annotate(APPROVE_STEP_ANNOTATION, approval.value.as_str(), text);
    Ok((Some(approval), decision))
}

/// Returns what came of an approval that the operator has taken.
fn outcome(now: &BottlerocketUpdateOperator, approval: &Approval) -> State {
    let (policy, status) = (policy(now), status(now));
    let title = approval.title();
    let (mut done, mut ends, mut without_effect) = (Vec::new(), Vec::new(), Vec::new());
    for step in &approval.steps {
        let rollout = status.active_rollouts.iter().find(|rollout| rollout.number() == step.rollout);
        // A step that few nodes have passed counts fewer places than they were.
        let is_passed = |rollout: &ActiveRollout| {
            let places = rollout.ledger.as_ref().map(|ledger| ledger.passed);
            passed(rollout) >= approval.number || places.is_some_and(|places| places >= step.places)
        };
        if rollout.is_some_and(is_passed) {
            done.push(step);
            continue;
        }
        let due = rollout.and_then(|rollout| next_step(rollout, &policy));
        let reason = match &due {
            Some(due) if step.is_approved(due) => {
                done.push(step);
                ends.push(due.rollout.step_done.map(|since| after(since, due.step.soak)));
                continue;
            }
            Some(due) => step.reason(due, now),
            None => "its rollout has ended, or has no canary step left".to_owned(),
        };
        without_effect.push((step, reason));
    }
    let kinds = approval.kinds(&done);
    let stopped = nothing_moves(now, |version| *version == approval.version) + &not_in_force(&status);
    let goes_on = if stopped.is_empty() { ": the rollout continues" } else { ", which takes effect" };
    let approved = match ends.iter().max() {
        _ if done.is_empty() => String::new(),
        None if stopped.is_empty() => format!("{title} is approved and passed{kinds}: the rollout continues"),
        None => format!("{title} is approved and passed{kinds}"),
        Some(end) => {
            let end = end.map(|end| format!(" at {end}")).unwrap_or_default();
            format!("{title} is approved{kinds}{goes_on} when its soak ends{end}")
        }
    };
    let rest = if done.is_empty() { approval.rest(&done) } else { approval.rest(&done) + &stopped };
    if without_effect.is_empty() {
        return State::Done(approved + &rest);
    }
    let reasons: Vec<String> = without_effect
        .iter()
        .map(|(step, reason)| {
            format!("the approval of {title} was taken without effect{}: {reason}", approval.kinds(&[step]))
        })
        .collect();
    let others = if done.is_empty() { String::new() } else { format!(". {approved}") };
    State::Failed(format!("{}{others}{rest}", reasons.join(", and ")))
}

pub(super) async fn approve(client: &Client, namespace: &str, options: &ApproveOptions) -> anyhow::Result<()> {
    let nonce = short_nonce(crate::clock::now());
    let written = std::cell::RefCell::new(None);
    let ApproveOptions { step: number, rollout, unproven, .. } = *options;
    let wanted = Wanted { number, rollout, unproven, now: crate::clock::now() };
    let decide = |operator: &BottlerocketUpdateOperator| {
        let (approval, decision) = decide(operator, wanted, &nonce)?;
        written.replace(approval);
        Ok(decision)
    };
    let acknowledged = async |_: &_, now: &BottlerocketUpdateOperator| {
        let done = status(now).requests.and_then(|requests| requests.approve_step);
        let approval = written.borrow();
        let taken = approval.as_ref().filter(|approval| done.as_ref() == Some(&approval.value));
        Ok(taken.map_or_else(
            || State::Pending("for the controller to take the approval".to_owned()),
            |approval| outcome(now, approval),
        ))
    };
    carry_out(client, namespace, &options.write, decide, acknowledged).await
}

#[cfg(test)]
mod tests;
