//! The whole fleet: the next nodes, within the budget.
//!
//! The next step of each node is determined first. Those that wait for a slot are ranked (`order.rs`), each is checked in
//! that order (`fleet/check.rs`), and gets a slot or a reason to wait (`fleet/assign.rs`). Idle nodes begin last
//! (`fleet/begin.rs`).

mod assign;
mod begin;
mod check;
mod checked;
mod planner;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::Slot;

use self::assign::Assignment;
use self::planner::{NodeRequests, Planner, earliest};
use super::slots::Budget;
use super::{Plan, evictions, follow, freshness, labels, notices, order, report, shadows, silence, slots};
use crate::decision::{Action, Decision, Verdict};
use crate::gates;
use crate::phase;
use crate::policy::Policy;
use crate::revisions::RevisionAction;
use crate::survey::agents::POD_GRACE_PERIOD;
use crate::survey::quarantine::Quarantine;
use crate::survey::{Survey, ended, requests, settled};
use crate::view::{ClusterView, ReportedFacts};
use crate::wait::Wait;
use models::time::after;

/// The time for which a slot that has ended is kept for the check of the node that comes next.
const NEXT_CHECK: Duration = Duration::from_secs(1);

/// Makes a plan where nothing is known that is only reported.
pub fn plan(view: &ClusterView, policy: &Policy, now: Timestamp) -> Plan {
    plan_reporting(view, &ReportedFacts::default(), policy, now)
}

/// Makes the plan, with `reported` in the operator's status.
pub fn plan_reporting(view: &ClusterView, reported: &ReportedFacts, policy: &Policy, now: Timestamp) -> Plan {
    // An earlier leader may have changed what is not observed yet; and without the operator's resource no slot is known.
    if view.stale || view.unreadable.operator.is_some() {
        return Plan::default();
    }
    let held = view.slots().map(|slot| (slot.uid.as_str(), slot)).collect();
    let survey = Survey::of(view, policy, now);
    let waits = vec![None; survey.nodes.len()];
    let planner = Planner { view, reported, policy, survey: &survey, held, now, plan: Plan::default(), waits };
    let plan = match &survey.pause.wait {
        Some(wait) => planner.report_only(wait),
        None => planner.make(),
    };
    Plan { quarantine: survey.quarantine, ..plan }
}

impl<'a> Planner<'a> {
    fn make(mut self) -> Plan {
        self.plan.shadows = shadows::changes(self.view, self.survey);
        self.plan.labels = labels::labels(self.view, self.policy);
        let mut requests = self.collect();
        let permitted = self.permit_in_turn();
        self.leave_budgets_to_reboots(&permitted);
        let held_back_until = evictions::hold_back(self.view, &self.survey.budgets, &mut self.plan.evictions, self.now);
        self.wake(held_back_until);
        let freezes = self.freeze(&requests);
        order::rank(self.view, self.survey, &mut requests.wanting, self.now, |node| node);
        order::rank(self.view, self.survey, &mut requests.candidates, self.now, |(node, _)| node);

        let slots = slots::kept(self.view, self.survey, &self.held, &requests.wants_slot, self.now);
        let mut budget = Budget::of(self.view, self.survey, &slots);
        if freezes {
            budget.close();
        }
        let mut assignment = Assignment::of(slots, budget.clone());
        let ready = self.give_slots(&requests.wanting, &mut assignment);
        self.begin_drills(std::mem::take(&mut requests.drills), &assignment, freezes);
        self.begin(&requests, &ready, &assignment.held_back, budget);
        let (view, now) = (self.view, self.now);
        let waits_for_next = self.waits_for_next(&assignment);
        let mut plan = self.report((!waits_for_next).then_some(assignment.slots));
        plan.silent = silence::silent(view, &plan, now);
        plan
    }

    /// Returns whether slots are to be taken back a moment later, with the next one that is given in the same write: the attempts
    /// of their nodes have just ended, nothing is left to do there, the next node is being checked, and nothing else of the slots
    /// changes.
    fn waits_for_next(&mut self, assignment: &Assignment<'_>) -> bool {
        let view = self.view;
        let changed = |slot: &Slot| !view.recorded_slots().any(|recorded| slots::records_the_same(recorded, slot));
        if !assignment.checking
            || self.plan.hand_over
            || requests::resumed(view).is_some()
            || !view.retracted.is_empty()
            || assignment.slots.iter().any(changed)
        {
            return false;
        }
        let until = |slot: &Slot| {
            let last = self.survey.find(&slot.node)?.node.record()?.last.as_ref()?;
            // An end in the future is by a clock that ran ahead.
            let just_ended = slot.since <= last.ended && last.ended <= self.now;
            let until = after(last.ended, NEXT_CHECK);
            (just_ended && until > self.now && !self.plan.actions.contains_key(&slot.node)).then_some(until)
        };
        let ending = view.recorded_slots().filter(|slot| !assignment.slots.iter().any(|kept| kept.uid == slot.uid));
        let until = ending.map(until).collect::<Option<Vec<_>>>().and_then(|until| until.into_iter().min());
        self.wake(until);
        until.is_some()
    }

    /// Leaves, of the permits of this plan, those whose reboots end no pod of a budget that the others use up. Returns their nodes.
    fn permit_in_turn(&mut self) -> BTreeSet<String> {
        let permits = self.plan.actions.iter().filter(|(_, action)| matches!(action, Action::Permit { .. }));
        let requested: Vec<String> = permits.map(|(name, _)| name.clone()).collect();
        let mut permitted = BTreeSet::new();
        for name in requested {
            let Some(node) = self.survey.find(&name) else { continue };
            let busy = self.context(node).and_then(|ctx| gates::reboot_budget(&ctx, &permitted));
            match busy {
                Some(wait) => {
                    self.plan.actions.remove(&name);
                    self.wait(node, wait);
                }
                None => {
                    permitted.insert(name);
                }
            }
        }
        permitted
    }

    /// Holds back the evictions of pods whose budgets reboots use up.
    fn leave_budgets_to_reboots(&mut self, permitted: &BTreeSet<String>) {
        if self.plan.evictions.is_empty() {
            return;
        }
        let used_up = gates::used_by_reboots(self.view, self.survey, self.now, permitted);
        evictions::leave_to_reboots(self.view, &self.survey.budgets, &mut self.plan.evictions, &used_up);
    }

    /// Makes a plan without an action: every node waits, and the slots stay as they are.
    fn report_only(mut self, wait: &Wait) -> Plan {
        for node in &self.survey.nodes {
            self.wait(node, wait.clone());
        }
        self.report(None)
    }

    /// Collects the next step of each node.
    fn collect(&mut self) -> NodeRequests<'a> {
        let view = self.view;
        let mut requests = NodeRequests::default();
        for node in &self.survey.nodes {
            let name = &node.node.facts.name;
            let decision = match self.context(node) {
                Some(ctx) => phase::with_failing_action(&ctx, phase::decide(&ctx)),
                None if view.unreadable.shadows.contains_key(name) => Decision::wait(Wait::ShadowUnreadable),
                None if node.labelled => Decision::wait(Wait::NoShadow),
                None => Decision::wait(Wait::NotLabelled),
            };
            requests.wants_slot.push(slots::makes_use(&decision));
            if decision.pods {
                self.plan.pods.insert(name.clone());
            }
            self.wake(decision.wake);
            // No answer would be new enough for a time in the future, which is by a clock that ran ahead.
            if let Some(since) = decision.asking_since.filter(|since| *since <= self.now) {
                for query in &decision.expressions {
                    let latest = self.plan.asked_again.entry(query.clone()).or_insert(since);
                    *latest = since.max(*latest);
                }
            }
            self.plan.expressions.extend(decision.expressions);
            if let Verdict::Act(Action::Status { status, .. }) = &decision.verdict
                && let Some(record) = &status.report.record
                && !record.version_failures.is_empty()
            {
                requests.pending.push((name, record.version_failures.clone()));
            }
            if let Some(evictions) = decision.evictions
                && !view.busy.contains(name)
            {
                self.plan.evictions.insert(name.clone(), evictions);
            }
            match decision.verdict {
                Verdict::WantsSlot => requests.wanting.push(node),
                verdict if view.busy.contains(name) => {
                    match verdict {
                        _ if view.paused.contains(name) => {}
                        Verdict::Candidate(version) => requests.beginning.push((node, version)),
                        Verdict::Drill(_) => requests.drills.push((node, None)),
                        _ => {}
                    }
                    self.wait(node, phase::failing(node.node, self.now).unwrap_or(Wait::Acting));
                }
                Verdict::Drill(action) => requests.drills.push((node, Some(action))),
                Verdict::Act(action) => {
                    self.plan.actions.insert(name.clone(), action);
                }
                Verdict::Wait(wait) => self.wait(node, wait),
                Verdict::Candidate(version) => requests.candidates.push((node, version)),
            }
        }
        requests
    }

    /// Counts failures whose record is about to be written: nothing starts beside the write that freezes.
    fn freeze(&mut self, requests: &NodeRequests<'_>) -> bool {
        if requests.pending.is_empty() || self.survey.quarantine.frozen_by().is_some() {
            return false;
        }
        let quarantine = Quarantine::with(self.view, self.policy.max_failures, &requests.pending);
        let Some(version) = quarantine.frozen_by().cloned() else { return false };
        let starting: Vec<_> =
            self.plan.actions.iter().filter(|(_, a)| Plan::starts(a)).map(|(n, _)| n.clone()).collect();
        for name in starting {
            self.plan.actions.remove(&name);
            if let Some(node) = self.survey.find(&name) {
                self.wait(node, Wait::Frozen { version: version.clone() });
            }
        }
        true
    }

    /// Completes the plan with its report and the slots to record; `None`: those that are recorded.
    fn report(mut self, slots: Option<Vec<Slot>>) -> Plan {
        let waits = self.survey.nodes.iter().zip(std::mem::take(&mut self.waits));
        self.plan.waits = waits.filter_map(|(node, wait)| Some((node.facts.name.clone(), wait?))).collect();
        self.wake(self.survey.rollouts.wake);
        self.wake(self.survey.nodes.iter().filter_map(|node| node.unavailable?.until).min());
        self.wake(self.survey.urgency.until());
        self.wake(self.survey.unwell.wake);
        let ages = self.survey.known.iter().map(|known| after(known.first_seen, self.policy.minimum_age));
        self.wake(ages.filter(|old_enough| *old_enough > self.now).min());
        let missing = self.view.nodes.values().map(|node| node.agent_missing).chain([self.view.web_api_missing]);
        let noticed = missing.flatten().map(|since| after(since, POD_GRACE_PERIOD));
        self.wake(noticed.filter(|at| *at > self.now).min());
        if self.policy.enabled {
            self.plan.approvals = self.survey.rollouts.awaiting_approval();
        }
        self.plan.window_open = report::window(self.survey).0;
        for state in &self.survey.windows {
            self.plan.wake = earliest(self.plan.wake, report::changes(state));
        }
        if let Some(operator) = &self.view.operator {
            // A slot that replaces one that is being removed is another slot: whichever write wins, the resource
            // changes, and records the holder.
            let unchanged = |slots: &Vec<Slot>| {
                operator.status.slots.len() == slots.len()
                    && operator.status.slots.iter().zip(slots).all(|(a, b)| slots::records_the_same(a, b))
                    && slots.iter().all(|slot| !self.view.retracted.contains(&slot.uid))
            };
            let slots = slots.map(|mut slots| {
                if requests::resumed(self.view).is_some() {
                    settled::forgive(&mut slots);
                }
                slots
            });
            let slots = slots.filter(|slots| !unchanged(slots));
            let history = follow::history(self.view, self.survey, &self.plan);
            let of = (operator, slots.as_ref().unwrap_or(&operator.status.slots).clone());
            let mut status =
                report::status(self.view, self.reported, of, self.survey, &self.plan, history.as_ref(), self.now);
            if let Some(history) = history {
                self.plan.relabelled = follow::relabelled(self.view, &self.plan, &history);
                // The count is part of the status.
                let counts = |action: &RevisionAction| matches!(action, RevisionAction::RaiseCollisionCount(_));
                self.plan.revisions = history.actions.into_iter().filter(|action| !counts(action)).collect();
            }
            let freshness = freshness::of(self.view, self.policy, &self.survey.kinds, &self.survey.known, self.now);
            self.plan.wake = earliest(self.plan.wake, freshness.wake);
            status.freshness = Some(freshness.status());
            self.plan.lagging_since = freshness.lagging_since;
            let noticed = notices::follow(self.view, self.reported, self.survey, &self.plan, &mut status, self.now);
            self.plan.wake = earliest(self.plan.wake, noticed);
            let (before, after) = (&operator.status.slots, &status.slots);
            let of = (self.policy, &self.survey.rollouts);
            settled::settle(self.view, of, (before, after), &mut status.active_rollouts, self.now);
            let kept = after.iter().filter_map(|slot| ended::kept_until(self.view, self.policy, slot)).min();
            self.plan.wake = earliest(self.plan.wake, kept);
            self.plan.slots = slots;
            self.plan.status = Some(status);
        }
        self.plan
    }
}
