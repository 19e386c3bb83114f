//! A canary step that is due, and its name in an approval.

use jiff::{SignedDuration, Timestamp};
use models::operator::{ActiveRollout, BottlerocketUpdateOperator, LedgerNode, RolloutLedger};
use models::reason::Proof;
use models::time::after;
use planner::policy::{CanaryStep, Policy};
use planner::wait::StepRequest;

use crate::requests::texts::command;

/// The time within which the operator shows that a step waits whose soak is over.
const SHOWN_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// The number of nodes that a text names.
const NAMED: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct NextStep<'a> {
    pub(super) rollout: &'a ActiveRollout,
    pub(super) ledger: RolloutLedger,
    /// Number of the step, from 1.
    pub(super) number: usize,
    pub(super) step: &'a CanaryStep,
}

impl NextStep<'_> {
    /// Returns true if nothing but nodes without proof, or an approval, is waited for.
    pub(super) fn is_full(&self) -> bool {
        self.ledger.failed == 0 && self.ledger.used() >= self.ledger.due
    }

    /// Returns true if its places are used up, some of them by nodes without proof.
    pub(super) fn is_unproven(&self) -> bool {
        self.is_full() && self.ledger.good() < self.ledger.due
    }

    /// Returns true if a user may approve it: policy says so, or no node ran the version at the end of its first soak.
    fn takes_approval(&self) -> bool {
        self.step.manual || self.rollout.soak_repeated
    }

    /// Returns true if an approval is for this step.
    pub(super) fn waits(&self, unproven: bool) -> bool {
        let manual = self.takes_approval() && !self.rollout.approved && self.rollout.step_done.is_some();
        manual || (unproven && self.is_unproven())
    }

    /// Returns true if the operator does not show that the step waits, although it has had the time to: no node is to have the version now. `shown` is the
    /// text in which it shows steps; `None` where that says nothing about this one.
    pub(super) fn rests(&self, now: Timestamp, shown: Option<&str>) -> bool {
        let would_be_shown = (self.step.manual || self.is_unproven()) && self.rollout.number() > 0;
        let is_late = !self.soaks(now.saturating_sub(SHOWN_WITHIN).unwrap_or(now));
        would_be_shown && is_late && shown.is_some_and(|shown| !self.rollout.is_shown(shown))
    }

    /// Returns true if its soak is not over, so that the operator does not wait for a user yet.
    pub(super) fn soaks(&self, now: Timestamp) -> bool {
        let since = self.rollout.step_done.filter(|_| self.rollout.urgent_until.is_none());
        since.is_some_and(|since| after(since, self.step.soak) > now)
    }

    /// Returns the command that approves this step and no other.
    pub(super) fn command(&self, operator: &BottlerocketUpdateOperator) -> String {
        let number = self.rollout.number();
        let request =
            if self.is_unproven() { StepRequest::ApproveUnproven(number) } else { StepRequest::Approve(number) };
        command(operator, &request.arguments(self.number, ""))
    }

    /// Returns true if a user has nothing to do for the step to pass, now or later.
    pub(super) fn is_settled(&self) -> bool {
        let approved = self.rollout.approved || !self.takes_approval();
        approved && self.ledger.failed == 0 && !self.is_unproven()
    }

    pub(super) fn title(&self) -> String {
        format!("canary step {} of {}", self.number, self.rollout.version)
    }

    /// Returns what an approval writes for this step; `None` while the number of the rollout's record is not known.
    pub(super) fn named(&self) -> Option<NamedStep> {
        Some(NamedStep {
            name: self.rollout.approvable()?,
            rollout: self.rollout.number(),
            places: self.ledger.due,
            accepted: self.is_unproven().then(|| self.without_proof()),
            kind: kind(self.rollout),
        })
    }

    /// Returns the nodes without proof that no user has accepted, each with the end of its attempt.
    pub(super) fn without_proof(&self) -> String {
        self.nodes(self.ledger.open(), |node| node.proof != Proof::Failed && !node.accepted)
    }

    /// Returns so many nodes, the first few by name, as far as the ledger names them.
    pub(super) fn nodes(&self, count: i64, is_meant: impl Fn(&LedgerNode) -> bool) -> String {
        let named: Vec<String> =
            self.ledger.nodes.iter().filter(|node| is_meant(node)).take(NAMED).map(ToString::to_string).collect();
        match usize::try_from(count).unwrap_or(0).saturating_sub(named.len()) {
            _ if named.is_empty() => format!("{count} node(s)"),
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Returns the reason why an approval is not for this step, or did not pass it.
    pub(super) fn reason(&self, operator: &BottlerocketUpdateOperator) -> String {
        let title = self.title();
        if self.ledger.failed > 0 {
            let nodes = self.nodes(self.ledger.failed, |node| node.proof == Proof::Failed);
            let again = command(operator, &format!("resume --failures {}", self.rollout.version));
            format!("{title} has failed on {nodes}; to try again: {again}")
        } else if self.is_unproven() {
            let nodes = self.without_proof();
            format!("{title} is not proven by {nodes}; to accept that: {}", self.command(operator))
        } else if !self.takes_approval() {
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

/// A canary step as an approval names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedStep {
    pub(super) name: String,
    /// Number of the rollout's record.
    pub(super) rollout: i64,
    /// Places of the step.
    pub(super) places: i64,
    /// Nodes that are accepted without proof, as a text; `None` if the approval accepts none.
    pub(super) accepted: Option<String>,
    /// Variant and architecture of the rollout.
    pub(super) kind: String,
}

impl NamedStep {
    /// Returns true if the approval is in force for the step that its rollout is at.
    pub(super) fn is_approved(&self, now: &NextStep<'_>) -> bool {
        let ledger = &now.ledger;
        let accepted = ledger.open() == 0 && ledger.good() >= ledger.due;
        let approved = match self.accepted {
            None => now.rollout.approved,
            Some(_) => accepted && (now.rollout.approved || !now.takes_approval()),
        };
        approved && ledger.due == self.places
    }

    /// Returns the reason why the approval is not in force there.
    pub(super) fn reason(&self, now: &NextStep<'_>, operator: &BottlerocketUpdateOperator) -> String {
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

/// Returns the variant and architecture of a rollout as a text.
pub(super) fn kind(rollout: &ActiveRollout) -> String {
    format!("{} {}", rollout.variant, rollout.arch)
}

/// Returns the number of canary steps that a rollout has passed.
pub(super) fn passed(rollout: &ActiveRollout) -> usize {
    usize::try_from(rollout.steps_passed).unwrap_or(0)
}

/// Returns the canary step due of a rollout; `None` if it or its record has ended, so that no node waits for it, or if it has passed all.
pub(super) fn next_step<'a>(rollout: &'a ActiveRollout, policy: &'a Policy) -> Option<NextStep<'a>> {
    let has_ended = rollout.ended.is_some() || rollout.record.as_ref().is_some_and(|record| record.ended.is_some());
    let step = policy.canary.get(passed(rollout)).filter(|_| !has_ended)?;
    let ledger = rollout.ledger.clone().unwrap_or_default();
    Some(NextStep { rollout, ledger, number: passed(rollout) + 1, step })
}

/// Returns the next steps of the rollouts under way, the newest version first.
pub(super) fn next_steps<'a>(rollouts: &'a [ActiveRollout], policy: &'a Policy) -> Vec<NextStep<'a>> {
    let mut all: Vec<NextStep<'_>> = rollouts.iter().filter_map(|rollout| next_step(rollout, policy)).collect();
    all.sort_by(|a, b| b.rollout.version.cmp(&a.rollout.version));
    all
}
