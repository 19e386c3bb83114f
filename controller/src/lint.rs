//! The safety properties, checked once more on every plan before it is carried out.
//!
//! What breaks one is dropped, together with everything that would start something new; a release is never dropped. A
//! finding is a bug of the planner: it is logged and counted, and the fleet stays as it is.

use std::collections::BTreeSet;

use models::shadow::{HostState, Step};

use crate::drain::filter;
use crate::plan::{Action, Plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// One broken property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The property, by its number in the design: `S1` and so on.
    pub property: &'static str,
    /// The node whose action breaks it; absent where it is the slots.
    pub node: Option<String>,
    /// What is wrong.
    pub text: String,
}

/// Checks a plan and takes out what breaks a property.
pub fn lint(view: &ClusterView, policy: &Policy, plan: &mut Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(check_slots(view, policy, plan));
    for (name, action) in &plan.actions {
        if let Some(node) = view.nodes.get(name) {
            findings.extend(check_order(name, node, action));
            findings.extend(check_disruption(view, name, node, action));
            findings.extend(check_evictions(view, name, node, action));
        }
    }
    if !findings.is_empty() {
        let bad: BTreeSet<_> = findings.iter().filter_map(|f| f.node.clone()).collect();
        plan.actions
            .retain(|name, action| matches!(action, Action::Release) || (!bad.contains(name) && !Plan::starts(action)));
        if findings.iter().any(|f| f.node.is_none()) {
            plan.slots = None;
            if let (Some(status), Some(operator)) = (&mut plan.status, &view.operator) {
                status.slots.clone_from(&operator.status.slots);
            }
        }
    }
    findings
}

/// S1: slots are given only up to the budget. Nodes that are disrupted already keep theirs, also over a budget that was
/// lowered since.
fn check_slots(view: &ClusterView, policy: &Policy, plan: &Plan) -> Option<Finding> {
    let (slots, operator) = (plan.slots.as_ref()?, view.operator.as_ref()?);
    let held: BTreeSet<_> = operator.status.slots.iter().map(|s| s.uid.as_str()).collect();
    let disrupted = |uid: &str| view.nodes.values().any(|n| n.facts.uid == uid && n.disrupted());
    let total = view.nodes.values().filter(|n| n.facts.labelled).count();
    let budget = policy.max_unavailable.of(total).unwrap_or(1);
    let new = slots.iter().filter(|s| !held.contains(s.uid.as_str()) && !disrupted(&s.uid)).count();
    (new > 0 && slots.len() > budget).then(|| Finding {
        property: "S1",
        node: None,
        text: format!("{} slots, {new} of them new, over a budget of {budget}", slots.len()),
    })
}

/// S2 and S3: the order to reboot names the node's present boot and comes after the drain.
fn check_order(name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let Action::Spec { spec } = action else { return None };
    if spec.state != HostState::RebootedIntoUpdate {
        return None;
    }
    let finding = |property, text: &str| Some(Finding { property, node: Some(name.to_owned()), text: text.to_owned() });
    if spec.boot_id.as_deref() != Some(node.facts.boot_id.as_str()) {
        return finding("S2", "the order to reboot is for another boot");
    }
    let progress = node.shadow.as_ref().and_then(|s| s.status.controller.progress.as_ref());
    if !progress.is_some_and(|p| p.step == Step::Rebooting && p.attempt == spec.attempt && p.disruptive) {
        return finding("S3", "the order to reboot comes before the drain");
    }
    None
}

/// S1 again: a node is disrupted only while it has a slot, if there is a resource that holds slots.
fn check_disruption(view: &ClusterView, name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let operator = view.operator.as_ref()?;
    let disrupts = match action {
        Action::Claim | Action::Evict { .. } => true,
        Action::Status { status, .. } => {
            status.report.progress.as_ref().is_some_and(|p| matches!(p.step, Step::LeavingBalancer | Step::Draining))
        }
        Action::Spec { .. } | Action::Release | Action::Go { .. } | Action::LookAtLease => false,
    };
    let has_slot = operator.status.slots.iter().any(|s| s.uid == node.facts.uid);
    (disrupts && !has_slot).then(|| Finding {
        property: "S1",
        node: Some(name.to_owned()),
        text: "the node would be disrupted without a slot".to_owned(),
    })
}

/// S6, and the order of writes: only pods that have to go, only from a node that we have cordoned.
fn check_evictions(view: &ClusterView, name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let Action::Evict { pods } = action else { return None };
    let finding = |text: String| Some(Finding { property: "S6", node: Some(name.to_owned()), text });
    if !node.facts.claimed {
        return finding("pods would be evicted from a node that is not cordoned".to_owned());
    }
    let drain = node.shadow.as_ref().and_then(|s| s.status.controller.drain.as_ref());
    let known = node.pods.as_deref().unwrap_or_default();
    let sorted = filter::sort(known, drain, &view.own_namespace);
    let stranger = pods.iter().find(|e| !sorted.go.iter().any(|p| p.uid == e.uid && p.node == name))?;
    finding(format!("{}/{} is no pod that has to leave this node", stranger.namespace, stranger.name))
}
