//! `kubectl brupop approve`: the canary step that waits for a user.

use anyhow::{bail, ensure};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use models::condition::{Condition, find_condition};
use models::names::APPROVE_STEP_ANNOTATION;
use models::operator::{
    ActiveRollout, BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus, LedgerNode, PROGRESSING, RolloutLedger,
};
use models::reason::Proof;
use models::time::after;
use planner::annotations::{REQUEST_LENGTH, recorded_value};
use planner::policy::{CanaryStep, Policy};
use planner::wait::StepRequest;
use semver::Version;
use serde_json::json;

use super::operator::{carry_out, policy, status};
use super::texts::{command, short_nonce};
use crate::write::{Decision, State, WriteOptions};

/// The number of nodes that a text names.
const NAMED: usize = 8;

/// The length at which the message of a condition is cut.
const CUT: usize = 2000;

/// Options of `approve`.
#[derive(Debug, Args)]
pub(crate) struct Options {
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

#[derive(Clone, Debug, PartialEq)]
struct NextStep<'a> {
    rollout: &'a ActiveRollout,
    ledger: RolloutLedger,
    /// Number of the step, from 1.
    number: usize,
    step: &'a CanaryStep,
}

impl NextStep<'_> {
    /// Returns true if nothing but nodes without proof, or an approval, is waited for.
    fn is_full(&self) -> bool {
        self.ledger.failed == 0 && self.ledger.used() >= self.ledger.due
    }

    /// Returns true if its places are used up, some of them by nodes without proof.
    fn is_unproven(&self) -> bool {
        self.is_full() && self.ledger.good() < self.ledger.due
    }

    /// Returns true if an approval is for this step.
    fn waits(&self, unproven: bool) -> bool {
        let manual = self.step.manual && !self.rollout.approved && self.rollout.step_done.is_some();
        manual || (unproven && self.is_unproven())
    }

    /// Returns true if the operator shows that the step waits. It shows none of a rollout whose version no node is to have any more.
    fn is_shown(&self, shown: &str) -> bool {
        self.rollout.approvable().is_some_and(|name| shown.contains(&format!("{APPROVE_STEP_ANNOTATION}={name}@")))
    }

    /// Returns true if its soak is not over, so that the operator does not wait for a user yet.
    fn soaks(&self, now: Timestamp) -> bool {
        let since = self.rollout.step_done.filter(|_| self.rollout.urgent_until.is_none());
        since.is_some_and(|since| after(since, self.step.soak) > now)
    }

    /// Returns the command that approves this step and no other.
    fn command(&self, operator: &BottlerocketUpdateOperator) -> String {
        let number = self.rollout.number();
        let request =
            if self.is_unproven() { StepRequest::ApproveUnproven(number) } else { StepRequest::Approve(number) };
        command(operator, &request.arguments(self.number, ""))
    }

    /// Returns true if a user has nothing to do for the step to pass, now or later.
    fn is_settled(&self) -> bool {
        let approved = self.rollout.approved || !self.step.manual;
        approved && self.ledger.failed == 0 && !self.is_unproven()
    }

    fn title(&self) -> String {
        format!("canary step {} of {}", self.number, self.rollout.version)
    }

    /// Returns what an approval writes for this step; `None` while the number of the rollout's record is not known.
    fn named(&self) -> Option<NamedStep> {
        Some(NamedStep {
            name: self.rollout.approvable()?,
            rollout: self.rollout.number(),
            places: self.ledger.due,
            accepted: self.is_unproven().then(|| self.without_proof()),
            kind: kind(self.rollout),
        })
    }

    /// Returns the nodes without proof that no user has accepted, each with the end of its attempt.
    fn without_proof(&self) -> String {
        self.nodes(self.ledger.open(), |node| node.proof != Proof::Failed && !node.accepted)
    }

    /// Returns so many nodes, the first few by name, as far as the ledger names them.
    fn nodes(&self, count: i64, is_meant: impl Fn(&LedgerNode) -> bool) -> String {
        let named: Vec<String> =
            self.ledger.nodes.iter().filter(|node| is_meant(node)).take(NAMED).map(ToString::to_string).collect();
        match usize::try_from(count).unwrap_or(0).saturating_sub(named.len()) {
            _ if named.is_empty() => format!("{count} node(s)"),
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Returns the reason why an approval is not for this step, or did not pass it.
    fn reason(&self, operator: &BottlerocketUpdateOperator) -> String {
        let title = self.title();
        if self.ledger.failed > 0 {
            let nodes = self.nodes(self.ledger.failed, |node| node.proof == Proof::Failed);
            let again = command(operator, &format!("resume --failures {}", self.rollout.version));
            format!("{title} has failed on {nodes}; to try again: {again}")
        } else if self.is_unproven() {
            let nodes = self.without_proof();
            format!("{title} is not proven by {nodes}; to accept that: {}", self.command(operator))
        } else if !self.step.manual {
            format!("{title} needs no approval")
        } else if self.rollout.approved {
            format!("{title} is approved already")
        } else if self.rollout.step_done.is_some() {
            format!("{title} still waits for approval")
        } else {
            format!("the nodes of {title} are not updated yet")
        }
    }
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

    /// Returns the steps that the approval may be for: those that the operator waits for, and without any, those in their soak; of several,
    /// those that the operator shows, and those with the number of the step.
    fn of<'s, 'a>(&self, steps: &'s [NextStep<'a>], shown: &str) -> Vec<&'s NextStep<'a>> {
        let waits = |step: &&NextStep<'_>| self.is_of(step.rollout) && step.waits(self.unproven);
        let (soaking, waiting): (Vec<_>, Vec<_>) = steps.iter().filter(waits).partition(|step| step.soaks(self.now));
        let mut found = if waiting.is_empty() { soaking } else { waiting };
        let is_shown = |step: &&NextStep<'_>| step.is_shown(shown);
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

/// A canary step as an approval names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedStep {
    name: String,
    /// Number of the rollout's record.
    rollout: i64,
    /// Places of the step.
    places: i64,
    /// Nodes that are accepted without proof, as a text; `None` if the approval accepts none.
    accepted: Option<String>,
    /// Variant and architecture of the rollout.
    kind: String,
}

impl NamedStep {
    /// Returns true if the approval is in force for the step that its rollout is at.
    fn is_approved(&self, now: &NextStep<'_>) -> bool {
        let ledger = &now.ledger;
        let accepted = ledger.open() == 0 && ledger.good() >= ledger.due;
        let approved = match self.accepted {
            None => now.rollout.approved,
            Some(_) => accepted && (now.rollout.approved || !now.step.manual),
        };
        approved && ledger.due == self.places
    }

    /// Returns the reason why the approval is not in force there.
    fn reason(&self, now: &NextStep<'_>, operator: &BottlerocketUpdateOperator) -> String {
        let ledger = &now.ledger;
        if ledger.due != self.places {
            "the step has another number of places now".to_owned()
        } else if self.accepted.is_some() && ledger.failed == 0 && ledger.open() > 0 {
            format!("{} is not proven by {}", now.title(), now.without_proof())
        } else {
            now.reason(operator)
        }
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

/// Returns the variant and architecture of a rollout as a text.
fn kind(rollout: &ActiveRollout) -> String {
    format!("{} {}", rollout.variant, rollout.arch)
}

/// Returns the number of canary steps that a rollout has passed.
fn passed(rollout: &ActiveRollout) -> usize {
    usize::try_from(rollout.steps_passed).unwrap_or(0)
}

/// Returns the canary step due of a rollout; `None` if it or its record has ended, so that no node waits for it, or if it has passed all.
fn next_step<'a>(rollout: &'a ActiveRollout, policy: &'a Policy) -> Option<NextStep<'a>> {
    let has_ended = rollout.ended.is_some() || rollout.record.as_ref().is_some_and(|record| record.ended.is_some());
    let step = policy.canary.get(passed(rollout)).filter(|_| !has_ended)?;
    let ledger = rollout.ledger.clone().unwrap_or_default();
    Some(NextStep { rollout, ledger, number: passed(rollout) + 1, step })
}

/// Returns the next steps of the rollouts under way, the newest version first.
fn next_steps<'a>(rollouts: &'a [ActiveRollout], policy: &'a Policy) -> Vec<NextStep<'a>> {
    let mut all: Vec<NextStep<'_>> = rollouts.iter().filter_map(|rollout| next_step(rollout, policy)).collect();
    all.sort_by(|a, b| b.rollout.version.cmp(&a.rollout.version));
    all
}

/// Returns the text in which the operator shows the steps that wait; none where it is cut, so that it may lack some.
fn shown(status: &BottlerocketUpdateOperatorStatus) -> &str {
    let whole = |condition: &&Condition| condition.message.chars().count() < CUT;
    find_condition(&status.conditions, PROGRESSING).filter(whole).map_or("", |condition| &condition.message)
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
    let steps = next_steps(&status.active_rollouts, &policy);
    // The record that is named may have ended, and the rollout go on in another one.
    let others = || {
        let any = Wanted { number: None, rollout: None, unproven: true, ..wanted };
        let each = commands(&any.of(&steps, shown(&status)), operator);
        if wanted.rollout.is_none() || each.is_empty() { String::new() } else { format!(". These wait: {each}") }
    };
    if let Some(number) = wanted.rollout.filter(|_| of_rollout.peek().is_none()) {
        let history = command(operator, "history");
        bail!("rollout {number} is not under way: see {history}; nothing was written{}", others());
    }
    let waiting = wanted.of(&steps, shown(&status));
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
    let patch = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: value}}});
    let has_kinds = steps.iter().filter(|step| step.rollout.version == *version).count() > 1;
    let approval = Approval { version: version.clone(), number, steps: named, left, has_kinds, value };
    let shown: Vec<&NamedStep> = approval.steps.iter().collect();
    let text = format!("{} approved{}{}", approval.title(), approval.kinds(&shown), approval.rest(&shown));
    Ok((Some(approval), Decision::write(patch, text)))
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
    let approved = match ends.iter().max() {
        _ if done.is_empty() => String::new(),
        None => format!("{title} is approved and passed{kinds}: the rollout continues"),
        Some(end) => {
            let end = end.map(|end| format!(" at {end}")).unwrap_or_default();
            format!("{title} is approved{kinds}: the rollout continues when its soak ends{end}")
        }
    };
    let rest = approval.rest(&done);
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

pub(super) async fn approve(client: &Client, namespace: &str, options: &Options) -> anyhow::Result<()> {
    let nonce = short_nonce(Timestamp::now());
    let written = std::cell::RefCell::new(None);
    let Options { step: number, rollout, unproven, .. } = *options;
    let wanted = Wanted { number, rollout, unproven, now: Timestamp::now() };
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
mod tests {
    use models::operator::OperatorRequests;
    use serde_json::Value;

    use super::super::operator::testing::{condition, nothing, operator, patch};
    use super::*;

    /// A rollout of 6 nodes: `passed` steps are passed, and those of the step due are updated if `done`.
    fn rollout(version: &str, passed: i64, done: bool, approved: bool) -> Value {
        let (before, due) = [(0, 1), (1, 3), (3, 6), (6, 0)][usize::try_from(passed).unwrap()];
        json!({
            "version": version, "variant": "aws-k8s-1.37", "arch": "x86_64", "started": "2026-01-01T00:00:00Z",
            "stepsPassed": passed, "stepDone": done.then_some("2026-01-01T01:00:00Z"), "approved": approved,
            "record": {"number": 7, "begun": "2026-01-01T00:00:00Z", "revision": {"name": "", "number": 0}},
            "ledger": {"base": 6, "passed": before, "due": due, "proven": if done { due } else { before }},
        })
    }

    fn with(rollouts: &[Value]) -> BottlerocketUpdateOperator {
        let manual = |nodes: i64| json!({"nodes": nodes, "soak": "1h", "approval": "Manual"});
        let canary = json!([manual(1), manual(3), {"nodes": 6}]);
        operator(&json!({"strategy": {"canary": canary}}), &json!({"activeRollouts": rollouts}))
    }

    /// The same of another kind, with the record of this number.
    fn of_kind(mut rollout: Value, arch: &str, number: i64) -> Value {
        rollout["arch"] = json!(arch);
        rollout["record"]["number"] = json!(number);
        rollout
    }

    /// A rollout whose first step is used up by a node without proof.
    fn unproven(nodes: &Value) -> Value {
        let mut rollout = rollout("1.20.5", 0, false, false);
        rollout["ledger"] = json!({"base": 6, "due": 1, "unproven": 1, "nodes": nodes});
        rollout
    }

    /// An hour after the end of the soaks.
    fn wanted(number: Option<usize>, unproven: bool) -> Wanted {
        Wanted { number, rollout: None, unproven, now: "2026-01-01T03:00:00Z".parse().unwrap() }
    }

    fn decided(rollouts: &[Value], number: Option<usize>, unproven: bool) -> (Option<Approval>, Decision) {
        decide(&with(rollouts), wanted(number, unproven), "nonce").unwrap()
    }

    /// Returns the error of an approval that finds no step.
    fn refused(rollouts: &[Value], number: Option<usize>, unproven: bool) -> String {
        decide(&with(rollouts), wanted(number, unproven), "nonce").unwrap_err().to_string()
    }

    fn approved(rollouts: &[Value], wanted: Option<usize>, name: &str) -> (String, usize) {
        let (approval, decision) = decided(rollouts, wanted, false);
        let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: format!("{name}@nonce")}}});
        assert_eq!(patch(decision), expected, "{approval:?}");
        let approval = approval.unwrap();
        (approval.version.to_string(), approval.number)
    }

    /// Returns what is printed about an approval that is written.
    fn printed(decision: &Decision) -> &str {
        match decision {
            Decision::Write(change) => &change.what,
            Decision::Nothing(reason) => panic!("nothing is written: {reason}"),
        }
    }

    /// Returns what comes of the approval of the steps that wait in `before`, once the operator's status has `after`.
    fn result(before: &[Value], unproven: bool, after: &[Value]) -> State {
        outcome(&with(after), &decided(before, None, unproven).0.unwrap())
    }

    /// The same with the record of this number, and with places that were proven half an hour before the approval.
    fn soaking(mut rollout: Value, number: i64) -> Value {
        rollout["record"]["number"] = json!(number);
        rollout["stepDone"] = json!("2026-01-01T02:30:00Z");
        rollout
    }

    #[test]
    fn approval_is_for_the_step_that_waits_and_has_not_ended() {
        let older = || rollout("1.20.4", 1, true, false);
        let newer = |done| of_kind(rollout("1.20.5", 0, done, false), "x86_64", 8);
        let ended = |field: &str| {
            let mut ended = newer(true);
            match field {
                "record" => ended["record"]["ended"] = json!("2026-01-01T02:00:00Z"),
                field => ended[field] = json!("2026-01-01T02:00:00Z"),
            }
            ended
        };
        for (sentence, other) in [
            ("the nodes of a newer version are not updated yet", newer(false)),
            ("a newer version soaks", soaking(newer(true), 8)),
            ("the rollout of a newer version has ended", ended("ended")),
            ("the record of a newer version has ended", ended("record")),
        ] {
            for rollouts in [[other.clone(), older()], [older(), other]] {
                for number in [None, Some(2)] {
                    assert_eq!(approved(&rollouts, number, "7/3"), ("1.20.4".to_owned(), 2), "{sentence}");
                }
            }
        }
        // Without another one, a step is approved in its soak; an urgent one has none.
        assert_eq!(approved(&[soaking(newer(true), 8)], None, "8/1").0, "1.20.5");
        let mut urgent = soaking(newer(true), 8);
        urgent["urgentUntil"] = json!("2026-01-02T00:00:00Z");
        assert_eq!(approved(&[urgent, soaking(older(), 7)], None, "8/1").0, "1.20.5");
    }

    #[test]
    fn nodes_without_proof_are_accepted_before_a_step_in_its_soak_is_approved() {
        let other = soaking(of_kind(rollout("1.20.5", 0, true, false), "aarch64", 8), 8);
        let (_, decision) = decided(&[other, unproven(&json!([]))], None, true);
        assert_eq!(patch(decision)["metadata"]["annotations"][APPROVE_STEP_ANNOTATION], "7/1/unproven@nonce");
    }

    #[test]
    fn steps_of_several_versions_are_approved_by_the_number_of_their_rollout_alone() {
        let older = rollout("1.20.4", 1, true, false);
        let newer = of_kind(rollout("1.20.5", 0, true, false), "x86_64", 8);
        let unproven = of_kind(unproven(&json!([])), "aarch64", 9);
        let operator = with(&[newer, older, unproven]);
        let decide = |wanted| decide(&operator, wanted, "nonce");
        let commands = [
            (7, "approve 2 --rollout 7", "7/3@nonce"),
            (8, "approve 1 --rollout 8", "8/1@nonce"),
            (9, "approve 1 --rollout 9 --unproven", "9/1/unproven@nonce"),
        ];
        for number in [None, Some(3)] {
            let error = decide(wanted(number, true)).unwrap_err().to_string();
            assert!(
                error.contains("nothing was written. Name one: canary step 1 of 1.20.5 for aws-k8s-1.37"),
                "{error}"
            );
            for (_, command, _) in commands {
                assert!(error.contains(&format!(": kubectl brupop {command}")), "{error}");
            }
        }
        // The number of a step that one version alone waits at is enough.
        for (number, value) in [(1, "8/1,9/1/unproven@nonce"), (2, "7/3@nonce")] {
            let (approval, _) = decide(wanted(Some(number), true)).unwrap();
            assert_eq!(approval.unwrap().value, value);
        }
        for (rollout, command, value) in commands {
            let of = |number| Wanted { rollout: Some(rollout), ..wanted(number, command.ends_with("--unproven")) };
            let (approval, _) = decide(of(None)).unwrap();
            assert_eq!(approval.unwrap().value, value);
            let error = decide(of(Some(3))).unwrap_err().to_string();
            assert!(error.starts_with("canary step 3 does not wait for approval, canary step"), "{error}");
        }
        let of = |rollout| Wanted { rollout: Some(rollout), ..wanted(Some(1), false) };
        let error = decide(of(6)).unwrap_err().to_string();
        let expected = "rollout 6 is not under way: see kubectl brupop history; nothing was written. These wait: canary step 1 of 1.20.5";
        assert!(error.starts_with(expected), "{error}");
        for (_, command, _) in commands {
            assert!(error.contains(&format!(": kubectl brupop {command}")), "{error}");
        }
        let passed = "canary step 1 of 1.20.4 is passed already; step 2 waits for approval now";
        assert_eq!(nothing(decide(of(7)).unwrap().1), passed);
    }

    #[test]
    fn number_of_an_ended_record_names_the_one_that_its_rollout_goes_on_in() {
        let now = of_kind(rollout("1.20.5", 1, true, false), "x86_64", 8);
        let mut ended = rollout("1.20.5", 1, true, false);
        ended["record"]["ended"] = json!("2026-01-01T02:00:00Z");
        let wanted = Wanted { rollout: Some(7), ..wanted(Some(2), false) };
        let waits =
            ". These wait: canary step 2 of 1.20.5 for aws-k8s-1.37 x86_64: kubectl brupop approve 2 --rollout 8";
        // It is still in the status, and no more.
        let error = decide(&with(&[ended, now.clone()]), wanted, "nonce").unwrap_err().to_string();
        assert_eq!(error, format!("rollout 7 is at no canary step; nothing was written{waits}"));
        let error = decide(&with(&[now]), wanted, "nonce").unwrap_err().to_string();
        assert!(error.starts_with("rollout 7 is not under way") && error.ends_with(waits), "{error}");
    }

    /// No node is to have the older version any more, and its record has not ended yet.
    #[test]
    fn step_of_a_rollout_that_the_operator_does_not_show_is_not_chosen_beside_one_that_it_shows() {
        let older = rollout("1.20.4", 1, true, false);
        let newer = of_kind(rollout("1.20.5", 0, true, false), "x86_64", 8);
        let text = |name: &str| {
            format!(
                "canary step waits for approval: kubectl annotate bruo default {APPROVE_STEP_ANNOTATION}={name}@<any new text>"
            )
        };
        let decide = |shown: &str, rollout: Option<i64>| {
            let mut operator = with(&[newer.clone(), older.clone()]);
            let condition = condition(PROGRESSING, "AwaitingApproval", shown);
            operator.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
            let (approval, _) = decide(&operator, Wanted { rollout, ..wanted(None, false) }, "nonce").ok()?;
            approval.map(|approval| approval.value)
        };
        let (newer, older) = (text("8/1"), text("7/3"));
        let both = format!("{newer}; {older}");
        let (other, cut) = (text("8/3"), format!("{newer}; {}", "x".repeat(CUT)));
        for (sentence, shown, rollout, expected) in [
            ("the newer one is shown", newer.as_str(), None, Some("8/1@nonce")),
            ("the older one is shown", older.as_str(), None, Some("7/3@nonce")),
            ("both are shown", both.as_str(), None, None),
            ("none is shown yet", "", None, None),
            ("another step of it is shown", other.as_str(), None, None),
            ("the text is cut", cut.as_str(), None, None),
            ("the other one is named", newer.as_str(), Some(7), Some("7/3@nonce")),
        ] {
            assert_eq!(decide(shown, rollout).as_deref(), expected, "{sentence}");
        }
    }

    /// The commands of two kinds at the same step.
    #[test]
    fn kinds_of_one_version_can_be_approved_apart() {
        let x86 = rollout("1.20.5", 0, true, false);
        let operator = with(&[x86.clone(), of_kind(x86, "aarch64", 8)]);
        for (rollout, kind) in [(7, "x86_64"), (8, "aarch64")] {
            let wanted = Wanted { rollout: Some(rollout), ..wanted(Some(1), false) };
            let (approval, decision) = decide(&operator, wanted, "nonce").unwrap();
            assert_eq!(approval.unwrap().value, format!("{rollout}/1@nonce"));
            assert_eq!(printed(&decision), format!("canary step 1 of 1.20.5 approved for aws-k8s-1.37 {kind}"));
        }
    }

    #[test]
    fn approval_names_the_step_of_each_variant_and_architecture() {
        let x86 = rollout("1.20.5", 0, true, false);
        let arm = of_kind(x86.clone(), "aarch64", 8);
        assert_eq!(approved(&[x86.clone(), arm.clone()], None, "7/1,8/1").1, 1);
        let (_, decision) = decided(&[x86, arm], None, false);
        let kinds = "canary step 1 of 1.20.5 approved for aws-k8s-1.37 x86_64, aws-k8s-1.37 aarch64";
        assert_eq!(printed(&decision), kinds);
        // One of several kinds waits.
        let x86 = rollout("1.20.5", 0, true, false);
        let begun = of_kind(rollout("1.20.5", 0, false, false), "aarch64", 8);
        let (_, decision) = decided(&[x86, begun], None, false);
        assert_eq!(printed(&decision), "canary step 1 of 1.20.5 approved for aws-k8s-1.37 x86_64");
    }

    #[test]
    fn four_kinds_without_proof_fit_into_one_approval() {
        let nonce = short_nonce("2026-11-28T00:00:00Z".parse().unwrap());
        let kinds: Vec<Value> =
            (12..16).map(|number| of_kind(unproven(&json!([])), &format!("arch-{number}"), number)).collect();
        let (approval, decision) = decide(&with(&kinds), wanted(None, true), &nonce).unwrap();
        let approval = approval.unwrap();
        assert!(approval.left.is_empty(), "{approval:?}");
        let value = &patch(decision)["metadata"]["annotations"][APPROVE_STEP_ANNOTATION];
        assert_eq!(*value, format!("12/1/unproven,13/1/unproven,14/1/unproven,15/1/unproven@{nonce}"));
        assert!(approval.value.len() <= REQUEST_LENGTH && *value == approval.value);
    }

    #[test]
    fn kinds_whose_names_do_not_fit_are_not_approved_and_said_to_be_left() {
        let nodes = |name: &str| json!([{"node": name, "proof": "Unproven", "reason": "HookTimedOut"}]);
        let kind = |number: i64| of_kind(unproven(&nodes(&format!("n{number}"))), &format!("arch-{number}"), number);
        let kinds: Vec<Value> = (1001..1006).map(kind).collect();
        let (approval, decision) = decide(&with(&kinds), wanted(None, true), "12345678").unwrap();
        let approval = approval.unwrap();
        let value = "1001/1/unproven,1002/1/unproven,1003/1/unproven@12345678";
        assert_eq!(approval.value, value);
        let expected = "canary step 1 of 1.20.5 approved for aws-k8s-1.37 arch-1001, aws-k8s-1.37 arch-1002, aws-k8s-1.37 \
                        arch-1003; accepted without proof: n1001 (HookTimedOut), n1002 (HookTimedOut), n1003 (HookTimedOut); \
                        not approved yet for aws-k8s-1.37 arch-1004, aws-k8s-1.37 arch-1005: run the command again";
        assert_eq!(printed(&decision), expected);
        // That is repeated once it is taken.
        let accepted = kinds.into_iter().enumerate().map(|(index, mut kind)| {
            kind["ledger"]["accepted"] = json!(i64::from(index < 3));
            kind["approved"] = json!(index < 3);
            kind
        });
        let accepted: Vec<Value> = accepted.collect();
        let State::Done(text) = outcome(&with(&accepted), &approval) else { panic!("it is taken") };
        assert!(
            text.ends_with(
                "not approved yet for aws-k8s-1.37 arch-1004, aws-k8s-1.37 arch-1005: run the command again"
            )
        );
        assert!(text.contains("accepted without proof: n1001 (HookTimedOut), n1002"), "{text}");
        let (again, _) = decide(&with(&accepted), wanted(None, true), "12345679").unwrap();
        assert_eq!(again.unwrap().value, "1004/1/unproven,1005/1/unproven@12345679");
    }

    #[test]
    fn rollout_without_a_record_is_not_approved_and_the_user_tries_again() {
        let x86 = rollout("1.20.5", 0, true, false);
        let mut unrecorded = of_kind(x86.clone(), "aarch64", 8);
        unrecorded["record"] = json!(null);
        let error =
            decide(&with(std::slice::from_ref(&unrecorded)), wanted(None, false), "nonce").unwrap_err().to_string();
        let expected = "canary step 1 of 1.20.5 cannot be approved yet, since the record of its rollout is not written; \
                        nothing was written. Try again shortly";
        assert_eq!(error, expected);
        // Another kind that has one is approved.
        let (approval, decision) = decided(&[unrecorded, x86], None, false);
        assert_eq!(approval.unwrap().value, "7/1@nonce");
        let left = "; not approved yet for aws-k8s-1.37 aarch64: run the command again";
        assert!(printed(&decision).ends_with(left), "{}", printed(&decision));
    }

    #[test]
    fn approval_takes_the_place_of_no_other_that_the_operator_has_not_taken() {
        let long = format!("7/1@{}", "x".repeat(REQUEST_LENGTH));
        for (sentence, annotated, taken, is_written) in [
            ("none was made before", None, None, true),
            ("the first one is not taken", Some("7/1@a"), None, false),
            ("the second one is not taken", Some("7/1@b"), Some("7/1@a".to_owned()), false),
            ("it is taken", Some("7/1@a"), Some("7/1@a".to_owned()), true),
            ("a long one is taken", Some(long.as_str()), Some(recorded_value(&long)), true),
            ("a taken one was removed", None, Some("7/1@a".to_owned()), true),
        ] {
            let mut operator = with(&[rollout("1.20.5", 1, true, false)]);
            let annotation = annotated.map(|value| (APPROVE_STEP_ANNOTATION.to_owned(), value.to_owned()));
            operator.metadata.annotations = Some(annotation.into_iter().collect());
            let requests = OperatorRequests { approve_step: taken, ..OperatorRequests::default() };
            operator.status.as_mut().unwrap().requests = Some(requests);
            let decided = decide(&operator, wanted(None, false), "nonce");
            assert_eq!(decided.is_ok(), is_written, "{sentence}");
            if let Err(error) = decided {
                let error = error.to_string();
                assert!(error.contains(&format!("approval '{}' yet", annotated.unwrap())), "{sentence}: {error}");
            }
        }
    }

    #[test]
    fn nodes_without_proof_are_shown_and_accepted_on_request_alone() {
        let mut unproven = unproven(&json!([{"node": "n1", "proof": "Unproven", "reason": "HookTimedOut"}]));
        let text = refused(std::slice::from_ref(&unproven), None, false);
        assert!(
            text.contains(
                "is not proven by n1 (HookTimedOut); to accept that: kubectl brupop approve 1 --rollout 7 --unproven"
            ),
            "{text}"
        );
        let (approval, decision) = decided(std::slice::from_ref(&unproven), None, true);
        assert_eq!(approval.map(|approval| approval.number), Some(1));
        assert_eq!(printed(&decision), "canary step 1 of 1.20.5 approved; accepted without proof: n1 (HookTimedOut)");
        let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: "7/1/unproven@nonce"}}});
        assert_eq!(patch(decision), expected);
        // Not accepted by it: a failure.
        let nodes = json!([{"node": "n1", "proof": "Failed", "reason": "BootFellBack"}]);
        unproven["ledger"] = json!({"base": 6, "due": 1, "failed": 1, "nodes": nodes});
        let text = refused(&[unproven], None, true);
        let failed = "has failed on n1 (BootFellBack); to try again: kubectl brupop resume --failures 1.20.5";
        assert!(text.contains(failed), "{text}");
    }

    #[test]
    fn commands_are_for_the_operator_of_the_namespace() {
        let mut operator = with(&[unproven(&json!([]))]);
        operator.metadata.namespace = Some("ops".to_owned());
        let text = decide(&operator, wanted(None, false), "nonce").unwrap_err().to_string();
        let command = "to accept that: kubectl brupop approve 1 --rollout 7 --unproven -n ops; nothing was written";
        assert!(text.ends_with(command), "{text}");
    }

    #[test]
    fn nodes_that_the_ledger_does_not_name_are_counted() {
        let proof = |proof: &str, count: i64, nodes: Value| {
            let mut rollout = rollout("1.20.5", 0, false, false);
            rollout["ledger"] = json!({"base": 6, "due": 3, proof: count, "nodes": nodes});
            rollout
        };
        let node = |proof: &str| json!({"node": "n1", "proof": proof, "reason": "HookTimedOut"});
        for (rollout, part) in [
            (proof("unproven", 3, json!([])), "1.20.5 is not proven by 3 node(s); to accept"),
            (
                proof("unproven", 3, json!([node("Unproven")])),
                "is not proven by n1 (HookTimedOut) and 2 more; to accept",
            ),
            (proof("failed", 2, json!([])), "1.20.5 has failed on 2 node(s); to try again"),
            (proof("failed", 2, json!([node("Failed")])), "has failed on n1 (HookTimedOut) and 1 more; to try again"),
            (proof("failed", 2, json!([node("Unproven")])), "has failed on 2 node(s); to try again"),
        ] {
            let text = refused(&[rollout], None, false);
            assert!(text.contains(part), "{part}: {text}");
        }
        // Those that are accepted already are not accepted again.
        let nodes =
            json!([{"node": "n0", "proof": "Unproven", "reason": "HookTimedOut", "accepted": true}, node("Unproven")]);
        let mut some = proof("unproven", 3, nodes);
        some["ledger"]["accepted"] = json!(1);
        let (_, decision) = decided(&[some], None, true);
        let accepted = "; accepted without proof: n1 (HookTimedOut) and 1 more";
        assert!(printed(&decision).ends_with(accepted), "{}", printed(&decision));
        let (_, decision) = decided(&[proof("unproven", 3, json!([]))], None, true);
        assert!(printed(&decision).ends_with("; accepted without proof: 3 node(s)"), "{}", printed(&decision));
    }

    #[test]
    fn step_that_does_not_wait_is_not_approved() {
        for (rollouts, part) in [
            (vec![], "no rollout is at a canary step"),
            (vec![rollout("1.20.5", 3, false, false)], "no rollout is at a canary step"),
            (vec![rollout("1.20.5", 1, true, true)], "canary step 2 of 1.20.5 is approved already"),
            (vec![rollout("1.20.5", 2, true, false)], "canary step 3 of 1.20.5 needs no approval"),
        ] {
            let (step, decision) = decided(&rollouts, None, false);
            let reason = nothing(decision);
            assert!(step.is_none() && reason.contains(part), "{part}: {reason}");
        }
        let begun = [rollout("1.20.5", 0, false, false)];
        let error = refused(&begun, None, false);
        assert!(error.contains("the nodes of canary step 1 of 1.20.5 are not updated"), "{error}");
        let error = decide(&operator(&json!({}), &json!({})), wanted(None, false), "nonce").unwrap_err().to_string();
        assert!(error.contains("no canary steps"), "{error}");
    }

    /// A pipeline goes on where nothing had to be done, and fails where a user has to do something.
    #[test]
    fn approval_that_finds_no_step_succeeds_only_if_the_named_one_is_passed_or_approved() {
        let (begun, approved) = (|| rollout("1.20.5", 1, false, false), || rollout("1.20.5", 1, true, true));
        let mut ended = rollout("1.20.5", 1, true, false);
        ended["record"]["ended"] = json!("2026-01-01T02:00:00Z");
        let other = || of_kind(rollout("1.20.5", 1, false, false), "aarch64", 8);
        for (sentence, rollouts, number, record, expected) in [
            ("it is passed, and the next one is not updated yet", vec![begun()], Some(1), Some(7), true),
            ("the same without the record", vec![begun()], Some(1), None, true),
            ("it is passed in each of several kinds", vec![begun(), other()], Some(1), None, true),
            ("its record has ended", vec![ended.clone()], Some(1), Some(7), true),
            ("all are passed", vec![rollout("1.20.5", 3, false, false)], None, Some(7), true),
            ("it is approved, and soaks", vec![approved()], Some(2), Some(7), true),
            ("it is not updated yet", vec![begun()], Some(2), Some(7), false),
            ("one before it is approved", vec![approved()], Some(3), Some(7), false),
            ("it is approved for one of two kinds", vec![approved(), other()], Some(2), None, false),
            ("its record has ended before it", vec![ended], Some(2), Some(7), false),
            ("there is no such step", vec![rollout("1.20.5", 3, false, false)], Some(4), Some(7), false),
            ("none has the number 0", vec![begun()], Some(0), None, false),
            ("there is no rollout", vec![], Some(1), None, false),
        ] {
            let wanted = Wanted { rollout: record, ..wanted(number, false) };
            match decide(&with(&rollouts), wanted, "nonce") {
                Ok((approval, decision)) => {
                    assert!(expected && approval.is_none(), "{sentence}: {}", nothing(decision));
                }
                Err(error) => {
                    assert!(!expected && error.to_string().contains("nothing was written"), "{sentence}: {error}")
                }
            }
        }
    }

    #[test]
    fn approval_of_a_named_step_passes_no_other() {
        let waits = [rollout("1.20.5", 1, true, false)];
        assert_eq!(approved(&waits, Some(2), "7/3").1, 2);
        let (_, decision) = decided(&waits, Some(1), false);
        assert!(nothing(decision).contains("step 1 of 1.20.5 is passed already; step 2 waits"), "repeated by mistake");
        for wrong in [0, 3] {
            let error = decide(&with(&waits), wanted(Some(wrong), false), "nonce").unwrap_err().to_string();
            assert!(error.contains("step 2 of 1.20.5 does"), "{error}");
        }
    }

    #[test]
    fn outcome_says_if_the_rollout_continues_now_or_after_the_soak() {
        let waits = [rollout("1.20.5", 0, true, false)];
        let result = |passed, approved| result(&waits, false, &[rollout("1.20.5", passed, true, approved)]);
        let State::Done(text) = result(1, false) else { panic!("it is passed") };
        assert_eq!(text, "canary step 1 of 1.20.5 is approved and passed: the rollout continues");
        let State::Done(text) = result(0, true) else { panic!("it is approved") };
        assert!(text.contains("when its soak ends at 2026-01-01T02:00:00Z"), "{text}");
        let State::Failed(text) = result(0, false) else { panic!("it is not approved") };
        assert!(text.contains("without effect: canary step 1 of 1.20.5 still waits"), "{text}");
    }

    #[test]
    fn outcome_is_that_of_each_rollout_that_the_approval_names() {
        let x86 = |passed, approved| rollout("1.20.5", passed, true, approved);
        let arm = |passed, approved| of_kind(x86(passed, approved), "aarch64", 8);
        let before = [x86(0, false), arm(0, false)];
        let result = |after: &[Value]| result(&before, false, after);
        let State::Done(text) = result(&[x86(1, false), arm(0, true)]) else { panic!("both are taken") };
        let both = "canary step 1 of 1.20.5 is approved for aws-k8s-1.37 x86_64, aws-k8s-1.37 aarch64: the rollout continues \
                    when its soak ends at 2026-01-01T02:00:00Z";
        assert_eq!(text, both);
        // Another rollout of the version that has passed the step does not count for this one, nor does one of a later record.
        let mut failed = of_kind(rollout("1.20.5", 0, false, false), "aarch64", 8);
        failed["ledger"] = json!({"base": 6, "due": 1, "failed": 1});
        let later = of_kind(x86(1, false), "aarch64", 9);
        for (arm, reason) in [
            (arm(0, false), "canary step 1 of 1.20.5 still waits for approval"),
            (failed, "canary step 1 of 1.20.5 has failed on 1 node(s)"),
            (later, "its rollout has ended"),
        ] {
            let State::Failed(text) = result(&[x86(1, false), arm]) else { panic!("{reason}") };
            let part = format!("taken without effect for aws-k8s-1.37 aarch64: {reason}");
            assert!(text.contains(&part), "{part}: {text}");
            assert!(
                text.contains(". canary step 1 of 1.20.5 is approved and passed for aws-k8s-1.37 x86_64"),
                "{text}"
            );
        }
    }

    #[test]
    fn step_that_the_policy_has_changed_is_not_said_to_be_approved() {
        let before = [rollout("1.20.5", 0, true, false)];
        let mut changed = rollout("1.20.5", 0, true, true);
        (changed["ledger"]["due"], changed["ledger"]["proven"]) = (json!(2), json!(2));
        let State::Failed(text) = result(&before, false, &[changed]) else { panic!("another step") };
        assert!(text.ends_with("without effect: the step has another number of places now"), "{text}");
    }

    #[test]
    fn nodes_without_proof_are_accepted_only_if_all_of_them_are() {
        let before = [unproven(&json!([{"node": "n1", "proof": "Unproven", "reason": "HookTimedOut"}]))];
        let with = |counts: Value, approved: bool| {
            let mut after = before[0].clone();
            after["ledger"] = counts;
            after["approved"] = json!(approved);
            result(&before, true, &[after])
        };
        let accepted = json!({"base": 6, "due": 1, "unproven": 1, "accepted": 1});
        let State::Done(text) = with(accepted.clone(), true) else { panic!("it is accepted") };
        assert!(text.ends_with("; accepted without proof: n1 (HookTimedOut)"), "{text}");
        let proven = json!({"base": 6, "due": 1, "proven": 1});
        assert!(matches!(with(proven, true), State::Done(_)), "it has proven itself meanwhile");
        for (counts, approved, reason) in [
            (json!({"base": 6, "due": 1, "unproven": 1}), true, "is not proven by 1 node(s)"),
            (json!({"base": 6, "due": 1, "unproven": 2, "accepted": 1}), true, "is not proven by 1 node(s)"),
            (json!({"base": 6, "due": 1, "failed": 1}), true, "has failed on 1 node(s)"),
            (accepted, false, "are not updated yet"),
        ] {
            let State::Failed(text) = with(counts.clone(), approved) else { panic!("{counts}") };
            assert!(text.contains("without effect: ") && text.contains(reason), "{counts}: {text}");
        }
    }
}
