//! A plan under construction.

use std::collections::HashMap;

use jiff::Timestamp;
use models::operator::Slot;
use models::shadow::VersionFailure;
use semver::Version;

use crate::decision::{Action, Decision, Verdict};
use crate::phase;
use crate::plan::contents::Plan;
use crate::policy::Policy;
use crate::survey::{NodeContext, Survey, SurveyedNode};
use crate::view::{ClusterView, ReportedFacts};
use crate::wait::Wait;

/// A plan under construction.
pub(super) struct Planner<'a> {
    pub(super) view: &'a ClusterView,
    /// For the status alone.
    pub(super) reported: &'a ReportedFacts,
    pub(super) policy: &'a Policy,
    pub(super) survey: &'a Survey<'a>,
    pub(super) held: HashMap<&'a str, &'a Slot>,
    pub(super) now: Timestamp,
    pub(super) plan: Plan,
    /// The reason why each node waits, if it does.
    pub(super) waits: Vec<Option<Wait>>,
}

/// The requests of the nodes, each for itself.
#[derive(Default)]
pub(super) struct NodeRequests<'a> {
    /// Idle nodes that may begin.
    pub(super) candidates: Vec<(&'a SurveyedNode<'a>, Version)>,
    /// Idle nodes whose drill may begin, with its first write unless that is under way.
    pub(super) drills: Vec<(&'a SurveyedNode<'a>, Option<Action>)>,
    /// Staged nodes that may be disrupted.
    pub(super) wanting: Vec<&'a SurveyedNode<'a>>,
    /// Nodes that begin, of which the first write is under way or not observed yet.
    pub(super) beginning: Vec<(&'a SurveyedNode<'a>, Version)>,
    /// True for each node that makes use of a slot.
    pub(super) wants_slot: Vec<bool>,
    /// Failures whose record is about to be written.
    pub(super) pending: Vec<(&'a str, Vec<VersionFailure>)>,
}

impl<'a> Planner<'a> {
    pub(super) fn context(&self, node: &'a SurveyedNode<'a>) -> Option<NodeContext<'a>> {
        let held = self.held.get(node.facts.uid.as_str()).copied();
        let permitted = held.filter(|slot| slot.update.as_ref().is_some_and(|u| u.permitting_since.is_some()));
        Some(NodeContext {
            slot: held.is_some(),
            permitted,
            ..NodeContext::of(self.view, self.survey, node, self.now)?
        })
    }

    pub(super) fn wake(&mut self, at: Option<Timestamp>) {
        self.plan.wake = earliest(self.plan.wake, at);
    }

    pub(super) fn wait(&mut self, node: &SurveyedNode<'_>, wait: Wait) {
        // A time in the past, as of a message that an earlier leader has recorded, would wake again and again.
        self.wake(wait.ends_at().filter(|at| *at > self.now));
        self.waits[node.index] = Some(wait);
    }

    /// Lets a node that could begin wait for its turn.
    pub(super) fn wait_in_turn(&mut self, node: &'a SurveyedNode<'a>, wait: Wait) {
        let decision = self.context(node).map(|ctx| phase::waiting_in_turn(&ctx, wait.clone()));
        self.carry_out(node, decision, wait);
    }

    /// Carries out what was decided about a node that waits: a write, or nothing.
    pub(super) fn carry_out(&mut self, node: &SurveyedNode<'_>, decision: Option<Decision>, wait: Wait) {
        match decision.map(|decision| decision.verdict) {
            Some(Verdict::Act(action)) => {
                self.plan.actions.insert(node.facts.name.clone(), action);
            }
            _ => self.wait(node, wait),
        }
    }
}

pub(super) fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
