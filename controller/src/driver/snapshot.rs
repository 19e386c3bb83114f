//! The snapshot that a plan is made of, from the caches and the leader's memory.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::resource_version::newer;
use models::shadow::{Place, Step};
use planner::claims::ClaimsMade;
use planner::view::{
    Blocked, BudgetFacts, ClusterView, Failing, NodeView, PodFacts, Refused, ReportedFacts, UnreadableFacts,
    WebApiOutage,
};
use planner::wait::Wait;
use tokio::time::Instant;

use super::Driver;
use super::memory::{FailingAction, NodeMemory, Retracting};
use super::retry::Target;
use crate::cache::Cache;

/// The time since which something is missing; `None` while it is there, or not known.
fn missing_since(since: Option<Timestamp>, there: Option<bool>, now: Timestamp) -> Option<Timestamp> {
    (there == Some(false)).then(|| since.unwrap_or(now))
}

impl NodeMemory {
    /// Notes whether a pod of the agent on the node is Ready. While the node is not, none can be: its time begins with the node's.
    fn note_agent(&mut self, has_agent: Option<bool>, node_ready: bool, web_api_missing: bool, now: Timestamp) {
        self.agent_missing = missing_since(self.agent_missing, has_agent.filter(|_| node_ready), now);
        if has_agent != Some(false) && !web_api_missing {
            self.silence_written = None;
        }
    }

    /// Records that the last action has failed, at this step.
    pub(super) fn failed(&mut self, step: Option<Step>, error: String, now: Timestamp) {
        let before = self.failing.as_ref().filter(|before| before.step == step);
        if self.writes_status && before.is_some_and(|before| !before.writes_status) {
            // It was to show that one.
            return;
        }
        let before = before.filter(|before| before.writes_status == self.writes_status);
        let since = before.map_or(now, |before| before.what.since);
        self.failing = Some(FailingAction { what: Failing { since, error }, writes_status: self.writes_status, step });
    }

    /// Forgets what the node's step has outlived.
    fn forget(&mut self, node: &NodeView) {
        self.failing.take_if(|failing| failing.step != node.step());
        if node.step() != Some(Step::Draining) {
            self.in_flight.clear();
        }
        if node.progress().is_none() {
            self.blocked.clear();
            self.lease = None;
            self.owners.clear();
            self.claims = ClaimsMade::default();
        }
        if node.step().map(Step::place) != Some(Place::Waiting) {
            self.refused = None;
        }
    }

    /// Returns the last answers to evictions. A pod whose budget has changed since its refusal may be tried at once.
    fn answers(
        &self,
        budgets: &Cache<BudgetFacts>,
        refused_at: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> BTreeMap<String, Blocked> {
        let mut answers = self.blocked.clone();
        for blocked in answers.values_mut() {
            let Some(key) = &blocked.budget else { continue };
            let seen = refused_at.get(key).map_or("", String::as_str);
            let lets_go = match budgets.get(key) {
                Some(budget) => budget.allowed > 0 && newer(&budget.resource_version, seen),
                // The pod was deleted.
                None => !seen.is_empty(),
            };
            if lets_go {
                blocked.retry_at = now;
            }
        }
        answers
    }

    /// Returns the last check that ruled out a drain, if it was made under the policy of this generation.
    fn refused(&self, budgets: &Cache<BudgetFacts>, generation: Option<i64>, now: Timestamp) -> Option<Refused> {
        let last = self.refused.as_ref().filter(|last| last.generation == generation)?;
        let mut refused = last.what.clone();
        let is_over = match &refused.wait {
            Wait::BudgetNeverAllows { budget, until, .. } => {
                let asked_again = until.is_some_and(|until| until <= now);
                asked_again || budgets.get(budget).is_none_or(|budget| budget.allowed > 0 || budget.lacks() > 0)
            }
            Wait::BudgetBusy { budget, .. } => budgets.get(budget).is_none_or(|budget| budget.allowed > 0),
            Wait::BudgetUnhealthy { budget, count, .. } => {
                budgets.get(budget).is_none_or(|budget| budget.allowed > 0 || budget.lacks() < *count)
            }
            Wait::BudgetSyncFailed { budget, .. } => {
                budgets.get(budget).is_none_or(|budget| budget.sync_error.is_none() && budget.is_counted())
            }
            _ => false,
        };
        if is_over {
            refused.again_at = now;
        }
        Some(refused)
    }
}

impl Driver {
    pub(super) fn view(&mut self, now: Timestamp) -> ClusterView {
        let nodes = self.applier.caches.nodes.items();
        let mut shadows = self.applier.caches.shadows.items();
        let unreadable = self.unreadable();
        self.memory.retain(|name, _| nodes.contains_key(name) || unreadable.nodes.contains_key(name));
        let (clock, monotonic) = (Instant::now(), self.clock().read().at);
        self.writes.end_pauses(clock);
        self.writes.retain(|target| !matches!(target, Target::Node(name) if !nodes.contains_key(name)));
        let mut view = ClusterView {
            operator: self.applier.caches.operator.get(models::names::OPERATOR_NAME),
            own_node: self.parts.own_node.clone(),
            leader_since: self.parts.leader_since,
            earlier_pods: self.parts.earlier.names(),
            stale: !self.parts.reading.done(),
            unreadable,
            standby: self.parts.peers.standby(self.parts.own_node.as_deref(), &nodes),
            signing: self.applier.signer.keys(),
            history: self.parts.history.facts(),
            revisions_failing: self.revisions_failing.clone(),
            status_failing: self.status_failing.clone(),
            ..ClusterView::default()
        };
        if !view.stale && !view.earlier_pods.is_empty() {
            self.earlier_seen = Some(now);
        }
        view.earlier_seen = self.earlier_seen;
        let missing = missing_since(self.web_api_missing, self.parts.peers.is_web_api_ready(), now);
        if let (Some(began), None) = (self.web_api_missing, missing) {
            self.web_api_outage = Some(WebApiOutage { began, ended: now });
        }
        self.web_api_missing = missing;
        (view.web_api_missing, view.web_api_outage) = (missing, self.web_api_outage);
        let with_agent = self.parts.peers.nodes_with_agent();
        for (name, facts) in nodes {
            view.insert(facts, shadows.remove(&name), now);
        }
        view.revisions_in_use = shadows.into_values().filter_map(|shadow| shadow.revision).collect();
        // The shadows that cannot be read name revisions too.
        let all_named = self.revisions_read.done() && view.unreadable.shadows.is_empty();
        let known = all_named.then(|| self.applier.caches.revisions.items());
        view.revisions = known.map(|revisions| revisions.into_values().collect());
        view.csi_nodes = self.applier.caches.csi_nodes.synced().then(|| self.applier.caches.csi_nodes.items());
        view.daemon_sets = self.applier.caches.daemon_sets.synced().then(|| self.applier.caches.daemon_sets.items());
        let mut nodes = std::mem::take(&mut view.nodes);
        for (name, node) in &mut nodes {
            if let Some(watch) = self.pods.get(name).filter(|w| w.cache.synced() && w.cache.unreadable().is_empty()) {
                let items = watch.cache.items().into_values();
                let mut pods: Vec<PodFacts> = items.map(|pod| pod.at(now)).collect();
                self.owners.mark(&mut pods);
                node.pods = Some(pods);
            }
            let has_agent = with_agent.as_ref().map(|nodes| nodes.contains(name));
            self.recall(&mut view, node, has_agent, now);
        }
        view.nodes = nodes;
        self.owners.forget_unnamed();
        let blocked = self.memory.values().flat_map(|memory| memory.blocked.values());
        let named: BTreeSet<&String> = blocked.filter_map(|blocked| blocked.budget.as_ref()).collect();
        self.refused_at.retain(|budget, _| named.contains(budget));
        if let Some(operator) = view.operator.as_ref().filter(|_| !view.stale) {
            let version = &operator.resource_version;
            let first = || Retracting::with(None, version, planner::plan::not_begun(&view));
            view.retracted = self.retracting.get_or_insert_with(first).at(version);
        }
        self.handed_over &= !view.slots().any(|slot| slot.since >= self.parts.leader_since);
        view.handed_over = self.handed_over;
        self.standings.observe(&mut view.nodes, monotonic);
        let namespaces: BTreeSet<&str> =
            view.nodes.values().flat_map(|n| n.pods.iter().flatten()).map(|pod| pod.namespace.as_str()).collect();
        view.expressions = self.parts.expressions.answers(now);
        let in_back_off = view.budgets_in_back_off();
        let budgets = self.applier.caches.budgets.select(|budget| {
            let title = (budget.namespace.as_str(), budget.name.as_str());
            namespaces.contains(title.0) || in_back_off.contains(&title)
        });
        view.budgets = budgets;
        view.services = self.applier.caches.services.select(|service| namespaces.contains(service.namespace.as_str()));
        view
    }

    /// The objects that cannot be read.
    fn unreadable(&self) -> UnreadableFacts {
        let mut operator = self.applier.caches.operator.unreadable();
        UnreadableFacts {
            operator: operator.remove(models::names::OPERATOR_NAME),
            nodes: self.applier.caches.nodes.unreadable(),
            shadows: self.applier.caches.shadows.unreadable(),
        }
    }

    pub(super) fn reported(&self) -> ReportedFacts {
        ReportedFacts {
            tls: self.applier.signer.facts(),
            migration: self.parts.migration.facts(),
            estimates: self.estimates.facts(),
            notices: self.parts.notices.facts(),
            unread_objects: self.parts.expressions.problems(),
        }
    }

    /// Adds what the leader remembers of a node to the snapshot.
    fn recall(&mut self, view: &mut ClusterView, node: &mut NodeView, has_agent: Option<bool>, now: Timestamp) {
        let name = &node.facts.name;
        if has_agent == Some(false) {
            self.memory.entry(name.clone()).or_default();
        }
        let target = Target::Node(name.clone());
        if !self.writes.is_free(&target) {
            view.busy.insert(name.clone());
        }
        if self.writes.is_paused(&target) {
            view.paused.insert(name.clone());
        }
        let Some(memory) = self.memory.get_mut(name) else { return };
        memory.note_agent(has_agent, node.facts.ready, view.web_api_missing.is_some(), now);
        if !view.unreadable.shadows.contains_key(name) {
            memory.forget(node);
        }
        let generation = view.operator.as_ref().map(|operator| operator.generation);
        node.agent_missing = memory.agent_missing;
        node.silence_written = memory.silence_written;
        node.claims_made = memory.claims;
        node.blocked = memory.answers(&self.applier.caches.budgets, &self.refused_at, now);
        node.refused = memory.refused(&self.applier.caches.budgets, generation, now);
        node.in_flight = memory.in_flight.iter().map(|(uid, sent)| (uid.clone(), sent.what)).collect();
        node.failing = memory.failing.as_ref().map(|failing| failing.what.clone());
        node.lease = memory.lease;
        node.owners.clone_from(&memory.owners);
    }
}

#[cfg(test)]
mod tests {
    use planner::wait::WaitReason;

    use super::*;

    #[test]
    fn time_without_an_agent_begins_when_its_node_is_ready() {
        let t = |second| Timestamp::from_second(second).unwrap();
        let mut memory = NodeMemory::default();
        let written = Some((WaitReason::AgentNotReady, t(0)));
        memory.silence_written = written;
        for (now, has_agent, ready, expected) in [
            (10, Some(false), true, Some(10)),
            (20, Some(false), true, Some(10)),
            // The node is off for a weekend, and Ready before its agent is.
            (30, Some(false), false, None),
            (200_000, Some(false), false, None),
            (200_010, Some(false), true, Some(200_010)),
            (200_020, Some(false), true, Some(200_010)),
        ] {
            memory.note_agent(has_agent, ready, false, t(now));
            assert_eq!(memory.agent_missing, expected.map(t), "at {now}");
            assert_eq!(memory.silence_written, written, "at {now}: no agent was heard");
        }
        memory.note_agent(Some(true), true, true, t(200_030));
        assert_eq!((memory.agent_missing, memory.silence_written), (None, written), "it is silent without the web API");
        memory.note_agent(Some(true), true, false, t(200_040));
        assert_eq!(memory.silence_written, None);
    }
}
