//! `kubectl brupop approve`: the canary step that waits for a user.

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use models::names::APPROVE_STEP_ANNOTATION;
use models::operator::{ActiveRollout, BottlerocketUpdateOperator, RolloutLedger};
use models::reason::Proof;
use models::time::after;
use planner::annotations::REQUEST_LENGTH;
use planner::policy::{CanaryStep, Policy};
use semver::Version;
use serde_json::json;

use super::operator::{carry_out, policy, status};
use super::texts::nonce;
use crate::write::{Decision, State, WriteOptions};

/// Options of `approve`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of the step, from 1: no other step is approved. Default: the one that waits.
    step: Option<usize>,
    /// Accept nodes that run the version and have not proven it: a hook did not answer, their health was not known, or a user
    /// released them.
    #[arg(long)]
    unproven: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// The canary step due of a rollout.
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
        self.ledger.failed == 0 && self.ledger.proven.saturating_add(self.ledger.unproven) >= self.ledger.due
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

    fn title(&self) -> String {
        format!("canary step {} of {}", self.number, self.rollout.version)
    }

    /// Returns the name of the step in an approval.
    fn name(&self) -> String {
        format!("{}{}", self.rollout.step_name(self.ledger.due), if self.is_unproven() { "/unproven" } else { "" })
    }

    /// Returns the nodes without proof, each with the end of its attempt.
    fn without_proof(&self) -> String {
        let named = self.ledger.nodes.iter().filter(|node| node.proof != Proof::Failed);
        named.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Returns the reason why an approval is not for this step.
    fn reason(&self) -> String {
        if self.ledger.failed > 0 {
            format!("nodes of {} have failed: kubectl brupop resume", self.title())
        } else if self.is_unproven() {
            let nodes = self.without_proof();
            format!("{} is not proven by {nodes}; to accept that: kubectl brupop approve --unproven", self.title())
        } else if !self.step.manual {
            format!("{} needs no approval", self.title())
        } else if self.rollout.approved {
            format!("{} is approved already", self.title())
        } else {
            format!("the nodes of {} are not updated yet", self.title())
        }
    }
}

/// Returns the number of canary steps that a rollout has passed.
fn passed(rollout: &ActiveRollout) -> usize {
    usize::try_from(rollout.steps_passed).unwrap_or(0)
}

/// Returns the next steps of the rollouts under way, the newest version first.
fn next_steps<'a>(rollouts: &'a [ActiveRollout], policy: &'a Policy) -> Vec<NextStep<'a>> {
    let under_way = rollouts.iter().filter(|rollout| rollout.ended.is_none());
    let next = |rollout: &'a ActiveRollout| {
        let step = policy.canary.get(passed(rollout))?;
        let ledger = rollout.ledger.clone().unwrap_or_default();
        Some(NextStep { rollout, ledger, number: passed(rollout) + 1, step })
    };
    let mut all: Vec<NextStep<'_>> = under_way.filter_map(next).collect();
    all.sort_by(|a, b| b.rollout.version.cmp(&a.rollout.version));
    all
}

/// The version and the step that an approval is for.
type Approved = (Version, usize);

/// Returns the version and the step that an approval is for, with what is written: the names of the steps, and what makes it a new
/// value.
fn decide(
    operator: &BottlerocketUpdateOperator,
    (wanted, unproven): (Option<usize>, bool),
    nonce: &str,
) -> anyhow::Result<(Option<Approved>, Decision)> {
    let (policy, status) = (policy(operator), status(operator));
    if policy.canary.is_empty() {
        bail!("the policy has no canary steps (spec.strategy.canary); nothing was written");
    }
    let steps = next_steps(&status.active_rollouts, &policy);
    let Some(next) = steps.iter().find(|step| step.waits(unproven)) else {
        let mut reasons: Vec<String> = steps.iter().map(NextStep::reason).collect();
        reasons.dedup();
        let reasons =
            if reasons.is_empty() { "no rollout is at a canary step".to_owned() } else { reasons.join(", and ") };
        return Ok((None, Decision::Nothing(format!("no canary step waits for approval: {reasons}"))));
    };
    if let Some(number) = wanted.filter(|number| *number != next.number) {
        let is_past = |rollout: &&ActiveRollout| rollout.version == next.rollout.version && passed(rollout) >= number;
        if number > 0 && status.active_rollouts.iter().any(|rollout| is_past(&rollout)) {
            let reason = format!(
                "canary step {number} of {} is passed already; step {} waits for approval now",
                next.rollout.version, next.number
            );
            return Ok((None, Decision::Nothing(reason)));
        }
        bail!("canary step {number} does not wait for approval, {} does; nothing was written", next.title());
    }
    // The same step of each variant and architecture of the version.
    let same = |step: &&NextStep<'_>| {
        (&step.rollout.version, step.number) == (&next.rollout.version, next.number) && step.waits(unproven)
    };
    let shown: Vec<&NextStep<'_>> = steps.iter().filter(same).collect();
    let mut names: Vec<String> = shown.iter().map(|step| step.name()).collect();
    while names.len() > 1 && names.join(",").len() + 1 + nonce.len() > REQUEST_LENGTH {
        names.pop();
    }
    let accepted: Vec<String> = shown
        .iter()
        .filter(|step| step.is_unproven())
        .map(|step| format!("; accepted without proof: {}", step.without_proof()))
        .collect();
    let value = format!("{}@{nonce}", names.join(","));
    let patch = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: value}}});
    let decision = Decision::write(patch, format!("{} approved{}", next.title(), accepted.concat()));
    Ok((Some((next.rollout.version.clone(), next.number)), decision))
}

/// Returns what came of an approval that the operator has taken.
fn outcome(now: &BottlerocketUpdateOperator, version: &Version, number: usize) -> State {
    let (policy, status) = (policy(now), status(now));
    let rollouts = || status.active_rollouts.iter().filter(|rollout| rollout.version == *version);
    let title = format!("canary step {number} of {version}");
    if rollouts().any(|rollout| passed(rollout) >= number) {
        return State::Done(format!("{title} is approved and passed: the rollout continues"));
    }
    let accepted = |rollout: &ActiveRollout| rollout.ledger.as_ref().is_some_and(|ledger| ledger.accepted > 0);
    let taken = |rollout: &&ActiveRollout| (rollout.approved || accepted(rollout)) && passed(rollout) + 1 == number;
    let Some(approved) = rollouts().find(taken) else {
        return State::Failed(format!(
            "the approval of {title} was taken without effect: the step did not wait for it any more"
        ));
    };
    let soak = policy.canary.get(passed(approved)).map(|step| step.soak);
    let ends = approved.step_done.zip(soak).map(|(since, soak)| format!(" at {}", after(since, soak)));
    State::Done(format!("{title} is approved: the rollout continues when its soak ends{}", ends.unwrap_or_default()))
}

/// Approves the canary step that waits.
pub(super) async fn approve(client: &Client, namespace: &str, options: &Options) -> anyhow::Result<()> {
    let nonce = nonce(Timestamp::now());
    let approved = std::cell::RefCell::new(None);
    let decide = |operator: &BottlerocketUpdateOperator| {
        let (step, decision) = decide(operator, (options.step, options.unproven), &nonce)?;
        approved.replace(step);
        Ok(decision)
    };
    let acknowledged = async |_: &_, now: &BottlerocketUpdateOperator| {
        let done = status(now).requests.and_then(|requests| requests.approve_step);
        let taken = done.is_some_and(|done| done.ends_with(&format!("@{nonce}")));
        let step = approved.borrow().clone().filter(|_| taken);
        Ok(step.map_or_else(
            || State::Pending("for the controller to take the approval".to_owned()),
            |(version, number)| outcome(now, &version, number),
        ))
    };
    carry_out(client, namespace, &options.write, decide, acknowledged).await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::operator::testing::{nothing, operator, patch};
    use super::*;

    /// A rollout of 6 nodes: `passed` steps are passed, and those of the step due are updated if `done`.
    fn rollout(version: &str, passed: i64, done: bool, approved: bool) -> Value {
        let due = [1, 3, 6, 0][usize::try_from(passed).unwrap()];
        json!({
            "version": version, "variant": "aws-k8s-1.37", "arch": "x86_64", "started": "2026-01-01T00:00:00Z",
            "stepsPassed": passed, "stepDone": done.then_some("2026-01-01T01:00:00Z"), "approved": approved,
            "record": {"number": 7, "begun": "2026-01-01T00:00:00Z", "revision": {"name": "", "number": 0}},
            "ledger": {"base": 6, "due": due, "proven": if done { due } else { 0 }},
        })
    }

    fn with(rollouts: &[Value]) -> BottlerocketUpdateOperator {
        let manual = |nodes: i64| json!({"nodes": nodes, "soak": "1h", "approval": "Manual"});
        let canary = json!([manual(1), manual(3), {"nodes": 6}]);
        operator(&json!({"strategy": {"canary": canary}}), &json!({"activeRollouts": rollouts}))
    }

    fn decided(rollouts: &[Value], wanted: Option<usize>, unproven: bool) -> (Option<Approved>, Decision) {
        decide(&with(rollouts), (wanted, unproven), "nonce").unwrap()
    }

    fn approved(rollouts: &[Value], wanted: Option<usize>, name: &str) -> (String, usize) {
        let (step, decision) = decided(rollouts, wanted, false);
        let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: format!("{name}@nonce")}}});
        assert_eq!(patch(decision), expected, "{step:?}");
        let (version, number) = step.unwrap();
        (version.to_string(), number)
    }

    #[test]
    fn approval_is_for_the_step_that_waits_of_the_newest_version() {
        let older = rollout("1.20.4", 1, true, false);
        let newer = rollout("1.20.5", 0, true, false);
        assert_eq!(approved(&[older.clone(), newer], None, "7/1"), ("1.20.5".to_owned(), 1));
        // The newest that waits: one whose nodes are not updated yet is skipped.
        let begun = rollout("1.20.6", 0, false, false);
        assert_eq!(approved(&[begun, older.clone()], Some(2), "7/3"), ("1.20.4".to_owned(), 2));
        let mut ended = rollout("1.20.7", 0, true, false);
        ended["ended"] = json!("2026-01-01T02:00:00Z");
        assert_eq!(approved(&[ended, older], None, "7/3"), ("1.20.4".to_owned(), 2));
    }

    #[test]
    fn approval_names_the_step_of_each_variant_and_architecture() {
        let mut arm = rollout("1.20.5", 0, true, false);
        arm["arch"] = json!("aarch64");
        arm["record"]["number"] = json!(8);
        assert_eq!(approved(&[rollout("1.20.5", 0, true, false), arm], None, "7/1,8/1").1, 1);
    }

    #[test]
    fn nodes_without_proof_are_shown_and_accepted_on_request_alone() {
        let mut unproven = rollout("1.20.5", 0, false, false);
        let nodes = json!([{"node": "n1", "proof": "Unproven", "reason": "HookTimedOut"}]);
        unproven["ledger"] = json!({"base": 6, "due": 1, "unproven": 1, "nodes": nodes});
        let text = nothing(decided(std::slice::from_ref(&unproven), None, false).1);
        assert!(
            text.contains("is not proven by n1 (HookTimedOut); to accept that: kubectl brupop approve --unproven"),
            "{text}"
        );
        let (step, decision) = decided(std::slice::from_ref(&unproven), None, true);
        assert_eq!(step.map(|(_, number)| number), Some(1));
        let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: "7/1/unproven@nonce"}}});
        assert_eq!(patch(decision), expected);
        // Not accepted by it: a failure.
        unproven["ledger"] = json!({"base": 6, "due": 1, "failed": 1});
        let text = nothing(decided(&[unproven], None, true).1);
        assert!(text.contains("have failed: kubectl brupop resume"), "{text}");
    }

    #[test]
    fn step_that_does_not_wait_is_not_approved() {
        for (rollouts, part) in [
            (vec![], "no rollout is at a canary step"),
            (vec![rollout("1.20.5", 3, false, false)], "no rollout is at a canary step"),
            (vec![rollout("1.20.5", 0, false, false)], "the nodes of canary step 1 of 1.20.5 are not updated"),
            (vec![rollout("1.20.5", 1, true, true)], "canary step 2 of 1.20.5 is approved already"),
            (vec![rollout("1.20.5", 2, true, false)], "canary step 3 of 1.20.5 needs no approval"),
        ] {
            let (step, decision) = decided(&rollouts, None, false);
            let reason = nothing(decision);
            assert!(step.is_none() && reason.contains(part), "{part}: {reason}");
        }
        let error = decide(&operator(&json!({}), &json!({})), (None, false), "nonce").unwrap_err().to_string();
        assert!(error.contains("no canary steps"), "{error}");
    }

    #[test]
    fn approval_of_a_named_step_passes_no_other() {
        let waits = [rollout("1.20.5", 1, true, false)];
        assert_eq!(approved(&waits, Some(2), "7/3").1, 2);
        let (_, decision) = decided(&waits, Some(1), false);
        assert!(nothing(decision).contains("step 1 of 1.20.5 is passed already; step 2 waits"), "repeated by mistake");
        for wrong in [0, 3] {
            let error = decide(&with(&waits), (Some(wrong), false), "nonce").unwrap_err().to_string();
            assert!(error.contains("step 2 of 1.20.5 does"), "{error}");
        }
    }

    #[test]
    fn outcome_says_if_the_rollout_continues_now_or_after_the_soak() {
        let version = "1.20.5".parse().unwrap();
        let outcome = |passed, approved| match outcome(&with(&[rollout("1.20.5", passed, true, approved)]), &version, 1)
        {
            State::Done(text) | State::Failed(text) | State::Pending(text) => text,
        };
        assert!(outcome(1, false).contains("the rollout continues"));
        assert!(outcome(0, true).contains("when its soak ends at 2026-01-01T02:00:00Z"), "{}", outcome(0, true));
        assert!(outcome(0, false).contains("without effect"));
    }
}
