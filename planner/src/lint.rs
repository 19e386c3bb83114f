//! The plan validator: checks the safety properties once more on every plan before it is carried out.
//!
//! Actions that break one are dropped, together with everything that would start something new; a release is dropped only where
//! its host may be shutting down. A finding is a bug of the planner: it is logged and counted, and the fleet stays as it is.

mod breach;
mod permits;
mod slots;

use std::collections::BTreeSet;

use models::names::INTERFACE_LABEL;
use models::operator::{AtDeadline, CordonedNodes, GuardedPods, MarkedPods, Slot};
use models::shadow::{DrainStatus, HostPolicy, HostState, Mode, Place, Progress, Step};
use models::time::after;

use self::breach::{Broken, broken};
use self::permits::{check_continued, check_drill, check_permit, check_proof, check_reboot, check_stopped};
use self::slots::{check_alone, check_groups, check_passed, check_places, check_slots, check_unwell, new_slots};
use crate::claims::ClaimField;
use crate::decision::{Action, Evictions};
use crate::drain;
use crate::hooks::{self, HookAnswer};
use crate::phase::Phase;
use crate::plan::{LISTED_PODS, Plan, ShadowChange};
use crate::policy::{Drain, Policy};
use crate::survey::budgets::Budgets;
use crate::survey::key::kind;
use crate::survey::quarantine::Quarantine;
use crate::view::{BudgetFacts, ClusterView, NodeFacts, NodeView, PodFacts};

/// The properties that a finding may name, by their numbers in `docs/testing.md`.
pub const PROPERTIES: [&str; 13] = ["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S13"];

/// One broken property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The property, by its number in `docs/testing.md`: `S1` and so on.
    pub property: &'static str,
    /// The node whose action breaks it; absent where it is the slots.
    pub node: Option<String>,
    /// The description of the problem.
    pub text: String,
}

/// Checks a plan and removes what breaks a property.
pub fn lint(view: &ClusterView, policy: &Policy, plan: &mut Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |node: Option<&str>, broken: Option<Broken>| {
        findings.extend(broken.map(|(property, text)| Finding { property, node: node.map(str::to_owned), text }));
    };
    if (view.stale || view.unreadable.operator.is_some()) && *plan != Plan::default() {
        add(None, broken("S1", "something was decided before every cache had been read under this leader"));
        // Not even a release: what is not observed yet may be another attempt.
        *plan = Plan::default();
        return findings;
    }
    if let Some(broken) = check_earlier_operator(view, plan) {
        add(None, Some(broken));
        // Not even a release: both operators would change the same node. The report is kept.
        let Plan { waits, quarantine, approvals, window_open, wake, status, .. } = std::mem::take(plan);
        *plan = Plan { waits, quarantine, approvals, window_open, wake, status, ..Plan::default() };
        restore_slots(view, plan);
        return findings;
    }
    let new_slots = new_slots(view, plan);
    let quarantine = Quarantine::of(view, policy.max_failures);
    let of_slots = check_slots(view, policy, plan, &new_slots)
        .into_iter()
        .chain(check_groups(view, policy, plan, &new_slots))
        .chain(check_places(view, policy, plan, &new_slots))
        .chain(check_passed(view, policy, plan, &new_slots))
        .chain(check_alone(view, policy, plan, &new_slots))
        .chain(check_unwell(view, policy, plan, &new_slots))
        .chain(check_given(&quarantine, policy, &new_slots));
    of_slots.for_each(|broken| add(None, Some(broken)));
    let budgets = Budgets::of(view);
    for (name, action) in &plan.actions {
        if let Some(node) = view.nodes.get(name) {
            add(Some(name), check_stopped(policy, node, action));
            add(Some(name), check_start(&quarantine, policy, node, action));
            add(Some(name), check_offer(node, action));
            add(Some(name), check_drill(node, action));
            add(Some(name), check_verification(policy, node, action));
            add(Some(name), check_hooks(policy, node, action));
            add(Some(name), check_blockers(&budgets, policy, node, action));
            add(Some(name), check_deletion(view, plan, &budgets, policy, node, action));
            add(Some(name), check_reboot(node, action));
            add(Some(name), check_disruption(view, plan, node, action));
            add(Some(name), check_permit(view, node, action));
            add(Some(name), check_continued(view, node, action));
            add(Some(name), check_proof(node, action));
            add(Some(name), check_release(node, action));
        }
    }
    for node in new_slots.iter().filter(|node| is_verified(node)) {
        add(None, broken("S1", format!("{} is given a slot for a verification", node.facts.name)));
    }
    for (name, evictions) in &plan.evictions {
        if let Some(node) = view.nodes.get(name) {
            let verified = is_verified(node);
            add(Some(name), broken("S6", "pods would be evicted in a verification").filter(|_| verified));
            let unusable = !policy.is_usable();
            add(Some(name), broken("S13", "pods would be evicted without a usable policy").filter(|_| unusable));
            add(Some(name), check_slot(view, plan, node));
            add(Some(name), check_evictions(policy, node, evictions));
        }
    }
    for change in &plan.shadows {
        add(Some(change.node()), check_shadow(view, change));
    }
    for node in &plan.labels {
        add(Some(&node.name), check_label(node));
    }
    if !findings.is_empty() {
        drop_broken(view, plan, &findings);
    }
    findings
}

/// Drops what breaks a property, and everything that would start something new. A release stays, unless its host may be shutting down.
fn drop_broken(view: &ClusterView, plan: &mut Plan, findings: &[Finding]) {
    let bad: BTreeSet<&str> = findings.iter().filter_map(|finding| finding.node.as_deref()).collect();
    let stays = |name: &String, action: &Action| {
        let is_early = view.nodes.get(name).is_some_and(|node| check_release(node, action).is_some());
        matches!(action, Action::Release) && !is_early
    };
    plan.actions.retain(|name, action| stays(name, action) || (!bad.contains(name.as_str()) && !Plan::starts(action)));
    plan.evictions.retain(|name, _| !bad.contains(name.as_str()));
    plan.shadows.retain(|change| !bad.contains(change.node()));
    plan.labels.clear();
    if findings.iter().any(|finding| finding.node.is_none()) {
        restore_slots(view, plan);
    }
}

/// Leaves the slots as they are recorded, with the ledgers, in which each of them is counted once, and with the approvals.
fn restore_slots(view: &ClusterView, plan: &mut Plan) {
    plan.slots = None;
    if let (Some(status), Some(operator)) = (&mut plan.status, &view.operator) {
        let recorded = &operator.status;
        status.slots.clone_from(&recorded.slots);
        status.active_rollouts.clone_from(&recorded.active_rollouts);
        if let Some(requests) = &mut status.requests {
            requests.approve_step = recorded.requests.as_ref().and_then(|requests| requests.approve_step.clone());
        }
    }
}

/// S10: while a pod of the earlier operator exists, nothing is done.
fn check_earlier_operator(view: &ClusterView, plan: &Plan) -> Option<Broken> {
    let pod = view.earlier_pods.first()?;
    let Plan { actions, evictions, shadows, labels, revisions, relabelled, silent, slots, status, hand_over, .. } =
        plan;
    let recorded = view.operator.as_ref().map(|operator| &operator.status.slots);
    let keeps_slots = slots.is_none() && status.as_ref().is_none_or(|status| Some(&status.slots) == recorded);
    let rests = actions.is_empty() && evictions.is_empty() && shadows.is_empty() && labels.is_empty();
    let rests = rests && revisions.is_empty() && relabelled.is_empty() && silent.is_empty();
    if rests && keeps_slots && !hand_over {
        return None;
    }
    broken("S10", format!("something would be done while {pod} of the earlier operator exists"))
}

/// S9: no node is released in the boot in which its reboot was permitted while it is not Ready: its host may be shutting down.
fn check_release(node: &NodeView, action: &Action) -> Option<Broken> {
    let (Action::Release, Some(progress), Some(shadow)) = (action, node.progress(), &node.shadow) else { return None };
    let spec = &shadow.spec;
    let permitted = progress.permit_issued || (spec.permit.is_some() && spec.state != HostState::RehearsedUpdate);
    let spent = spec.boot_id.as_ref().is_some_and(|boot| *boot != node.facts.boot_id);
    let same_boot = node.facts.boot_id == progress.boot_id && !spent;
    if permitted && same_boot && !node.facts.ready {
        return broken("S9", "it is released while it is not Ready in the boot in which its reboot was permitted");
    }
    None
}

/// Returns whether the version of an update has failed too often on nodes like this one.
fn holds(quarantine: &Quarantine, node: &NodeView, update: &Progress) -> bool {
    let (variant, arch) = kind(node);
    update.mode() == Mode::Update && quarantine.holds(Some(variant), Some(arch), &update.version)
}

/// S8: no slot is given while the rollout is frozen, or for a version that has failed too often. S13: nor under an invalid policy.
fn check_given(quarantine: &Quarantine, policy: &Policy, new: &[&NodeView]) -> Vec<Broken> {
    let is_held = |node: &&&NodeView| node.update().is_some_and(|update| holds(quarantine, node, update));
    let held = new.iter().find(is_held).map(|node| &node.facts.name);
    let (frozen, invalid) = (quarantine.frozen_by().is_some(), !policy.errors.is_empty());
    let found = [
        broken("S8", "a slot is given while the rollout is frozen").filter(|_| frozen && !new.is_empty()),
        held.and_then(|name| broken("S8", format!("{name} is given a slot for a version that has failed too often"))),
        broken("S13", "a slot is given under an invalid policy").filter(|_| invalid && !new.is_empty()),
    ];
    found.into_iter().flatten().collect()
}

/// S13: nothing begins under an invalid policy. S8: nor with the failure budget spent, when nothing that is staged is drained
/// either; where a user has other kinds of nodes go on, the version that has failed is held for its own. S4: no node that another
/// user has cordoned is taken out of service, unless policy allows it.
fn check_start(quarantine: &Quarantine, policy: &Policy, node: &NodeView, action: &Action) -> Option<Broken> {
    let progress = action.next_progress()?;
    let next = progress.step;
    let starts = match node.step() {
        None => next == Step::Staging,
        Some(step) if step.place() == Place::Waiting => next.place() == Place::Leaving,
        Some(_) => false,
    };
    let skipped = policy.for_node(&node.facts).drain.cordoned_nodes == CordonedNodes::Skip;
    if !policy.errors.is_empty() && starts {
        return broken("S13", format!("it goes to {next:?} under an invalid policy"));
    }
    if starts && quarantine.frozen_by().is_some() {
        return broken("S8", format!("it goes to {next:?} while the rollout is frozen"));
    }
    if starts && holds(quarantine, node, progress) {
        return broken("S8", format!("it goes to {next:?} for a version that has failed too often on nodes like it"));
    }
    if starts && skipped && node.facts.cordoned_by_others() {
        return broken("S4", format!("it goes to {next:?} although another user has cordoned it"));
    }
    None
}

/// S7: the version that a node is drained for is still offered to its host, as far as the host has reported.
fn check_offer(node: &NodeView, action: &Action) -> Option<Broken> {
    let progress = action.next_progress()?;
    let drains = progress.step.place() == Place::Leaving && node.step().map(Step::place) == Some(Place::Waiting);
    // A drill that downloads nothing is for the version that runs.
    let drains = drains && progress.drill.as_ref().is_none_or(|drill| drill.download);
    let updates = node.shadow.as_ref()?.status.agent.updates.as_ref().filter(|u| u.refresh_failure.is_none())?;
    let version = &progress.version;
    let offered = updates.available_versions.contains(version) || updates.chosen_version.as_ref() == Some(version);
    let text = || format!("it is drained for {version}, which its host no longer offers");
    (drains && !offered).then(|| ("S7", text()))
}

/// S11: no drain begins before each hook that is awaited has answered, or its time is over and policy continues then.
fn check_hooks(policy: &Policy, node: &NodeView, action: &Action) -> Option<Broken> {
    let (old, new) = (node.progress()?, action.next_progress()?);
    let before = old.step.place() == Place::Waiting || old.step == Step::BeforeDrain;
    if !before || new.step == Step::BeforeDrain || new.step.place() != Place::Leaving {
        return None;
    }
    let request = hooks::request(old).unwrap_or_default();
    let awaited = policy.hooks.iter().filter_map(|hook| Some((hook, hook.before?)));
    for (hook, wait) in awaited {
        let answered = hooks::answer(&node.facts.hook_answers, &hook.name, &request) == HookAnswer::Done;
        let over = wait.continues && !request.is_empty() && new.since >= after(old.since, wait.timeout);
        if !answered && !over {
            return broken("S11", format!("its drain begins without the answer of hook {}", hook.name));
        }
    }
    None
}

/// Returns whether an action lets the drain of a node begin, or what is awaited before its first eviction.
fn begins_drain(node: &NodeView, action: &Action) -> bool {
    let Some(step) = node.step() else { return false };
    // One that waits before its drain says which budget keeps it there.
    let goes_on = |next: Step| match step {
        Step::BeforeDrain | Step::LeavingLoadBalancer => step != next,
        step => step.place() == Place::Waiting,
    };
    action.next_step().is_some_and(|next| next.place() == Place::Leaving && goes_on(next))
}

/// S13: no drain begins on a node that is not Ready, or while a budget is known to keep a pod there.
fn check_blockers(budgets: &Budgets<'_>, policy: &Policy, node: &NodeView, action: &Action) -> Option<Broken> {
    if !begins_drain(node, action) {
        return None;
    }
    if !node.facts.ready {
        return broken("S13", "its drain begins although it is not Ready");
    }
    let drain = &policy.for_node(&node.facts).drain;
    let known = node.pods.as_deref().unwrap_or_default();
    let goes = drain::sort(known, drain.rules, None).evictable;
    if drain.marked_pods == MarkedPods::Wait
        && let Some(pod) = goes.iter().find(|pod| pod.marked)
    {
        return broken("S13", format!("its drain begins although {} is marked as not to be moved", pod.title()));
    }
    let evicts = node.progress().and_then(|progress| progress.drill.as_ref()).is_some_and(|drill| drill.evict);
    let deletes = drain.at_deadline == AtDeadline::Force && !evicts;
    let ends = known.iter().filter(|pod| pod.mirror && !pod.finished);
    goes.into_iter().chain(ends).find_map(|pod| {
        let budget = keeping(budgets, drain, deletes, pod)?;
        broken("S13", format!("its drain begins although {} keeps {}", budget.title(), pod.title()))
    })
}

/// S13: where policy waits for guarded pods, nothing is deleted at the deadline while a budget is known to keep a pod, nor do several nodes
/// begin to delete more in one plan than a budget allows.
fn check_deletion(
    view: &ClusterView,
    plan: &Plan,
    budgets: &Budgets<'_>,
    policy: &Policy,
    node: &NodeView,
    action: &Action,
) -> Option<Broken> {
    let drain = &policy.for_node(&node.facts).drain;
    let own = deleted_by(policy, node, action).filter(|_| drain.guarded_pods == GuardedPods::Wait)?;
    let others = view.nodes.iter().filter_map(|(name, other)| deleted_by(policy, other, plan.actions.get(name)?));
    let all: Vec<&PodFacts> = others.flatten().collect();
    own.into_iter().find_map(|pod| {
        let is_exceeded = || budgets.beside(pod).find(|budget| budget.is_exceeded_by(pod, &all));
        let budget = keeping(budgets, drain, true, pod).or_else(is_exceeded)?;
        broken("S13", format!("{} would be deleted although {} keeps it", pod.title(), budget.title()))
    })
}

/// Returns the pods of a node whose deletion an action lets begin; `None` where it begins none.
fn deleted_by<'a>(policy: &Policy, node: &'a NodeView, action: &Action) -> Option<Vec<&'a PodFacts>> {
    let Action::Status { status, .. } = action else { return None };
    let recorded = node.shadow.as_ref()?.status.controller.drain.as_ref();
    let is_forced = |drain: Option<&DrainStatus>| drain.is_some_and(|drain| drain.forced_since.is_some());
    let begins = !is_forced(recorded) && is_forced(status.report.drain.as_ref());
    let (known, rules) = (node.pods.as_deref().unwrap_or_default(), policy.for_node(&node.facts).drain.rules);
    begins.then(|| drain::sort(known, rules, recorded).evictable)
}

/// Returns a budget that is known to keep a pod: one whose pods cannot be counted, or are broken, or one that guards the pod where policy waits
/// for that. Where policy deletes pods at the deadline, the first two are no reason, unless it waits for guarded pods: then one that is not counted
/// so far is a reason, too. Static pods are not deleted.
fn keeping<'a>(budgets: &Budgets<'a>, drain: &Drain, deletes: bool, pod: &PodFacts) -> Option<&'a BudgetFacts> {
    let waits = drain.guarded_pods == GuardedPods::Wait;
    let keeps = |budget: &&BudgetFacts| {
        let is_unknown = deletes && waits && !pod.mirror && budget.unknown_for(pod).is_some();
        let is_unwell = (pod.mirror || waits || !deletes) && budget.is_unwell();
        let refuses = is_unwell || ((pod.mirror || waits) && budget.guards(pod));
        (is_unknown || (refuses && !budget.lets_go(pod))) && budget.selects(pod)
    };
    budgets.beside(pod).find(keeps)
}

/// Returns whether the attempt under way is the repeated verification of a node.
fn is_verified(node: &NodeView) -> bool {
    node.progress().is_some_and(|progress| progress.mode().is_verification())
}

/// S1, S2 and S13 again: a verification leaves its node in service and its host as it is. It is of the version that an idle node
/// runs, begins under a valid policy alone, and becomes no other attempt.
fn check_verification(policy: &Policy, node: &NodeView, action: &Action) -> Option<Broken> {
    if !is_verified(node) && !action.mode().is_verification() {
        return None;
    }
    match action {
        Action::Claim { .. } => broken("S1", "it would be claimed in a verification"),
        Action::Permit { .. } => broken("S2", "a verification permits a reboot"),
        Action::Spec { spec } if spec.state != HostState::Idle => {
            broken("S2", "a verification requires a desired state")
        }
        Action::Status { .. } => {
            let next = action.next_progress()?;
            let begins = !is_verified(node);
            let runs = node.facts.os_version().is_none_or(|version| version == next.version);
            let of_mode = Phase::of_step(next.step).is_some_and(|phase| (phase.of)(next.mode()));
            if next.disruptive || !next.mode().is_verification() || !of_mode {
                broken("S1", format!("a verification goes to {:?} of another attempt", next.step))
            } else if begins && (node.progress().is_some() || node.disrupted() || !runs) {
                broken("S1", format!("{} is verified on a node that is not idle with it", next.version))
            } else if begins && !policy.errors.is_empty() {
                broken("S13", "it is verified under an invalid policy")
            } else if begins && node.facts.held() {
                broken("S4", "it is verified although a user holds it")
            } else {
                None
            }
        }
        _ => None,
    }
}

/// S1 again: a node is disrupted only while it has a slot, if there is a resource that holds slots.
fn check_disruption(view: &ClusterView, plan: &Plan, node: &NodeView, action: &Action) -> Option<Broken> {
    let disrupts = matches!(action, Action::Claim { .. }) || action.begins_disruption();
    if disrupts { check_slot(view, plan, node) } else { None }
}

/// S1 again: a claimed node in mid-drain continues where the operator's resource was created again, without its slots, if
/// this plan restores its slot.
fn check_slot(view: &ClusterView, plan: &Plan, node: &NodeView) -> Option<Broken> {
    view.operator.as_ref()?;
    let is_for = |slot: &Slot| slot.uid == node.facts.uid;
    let has_slot = view.slots().any(is_for);
    let gets_back = node.disrupted() && node.facts.claimed() && plan.slots.iter().flatten().any(is_for);
    if has_slot || gets_back { None } else { broken("S1", "the node would be disrupted without a slot") }
}

/// S6, and the order of writes: only pods that have to leave, only from a node that the operator has cordoned.
fn check_evictions(policy: &Policy, node: &NodeView, evictions: &Evictions) -> Option<Broken> {
    let Evictions { pods, delete, dry_run, .. } = evictions;
    let rules = &policy.for_node(&node.facts).drain;
    let drill = node.progress().and_then(|progress| progress.drill.as_ref());
    if drill.is_some_and(|drill| *delete || drill.evict == *dry_run) {
        return broken("S6", "pods would be removed in a drill that was not requested to");
    }
    if *delete && rules.at_deadline != AtDeadline::Force {
        return broken("S6", "pods would be deleted although policy does not require it");
    }
    if !node.facts.claims.has(ClaimField::Cordon) {
        return broken("S6", "pods would be evicted from a node that is not cordoned");
    }
    let drain = node.shadow.as_ref().and_then(|s| s.status.controller.drain.as_ref());
    let known = node.pods.as_deref().unwrap_or_default();
    let sorted = drain::sort(known, rules.rules, drain);
    // Pods that are deleted at the deadline may be terminating already.
    let mut may_go: Vec<_> = sorted.evictable.clone();
    if *delete {
        may_go.extend(sorted.leaving.iter().copied());
    }
    let first = drain.map(|drain| drain.asked_first.as_slice()).unwrap_or_default();
    let is_first = |uid: &str| first.iter().any(|first| first.uid == uid);
    if let Some(kept) = sorted.evictable.iter().find(|pod| is_first(&pod.uid))
        && rules.at_deadline != AtDeadline::Force
        && !dry_run
        && let Some(other) = pods.iter().find(|e| !is_first(&e.uid))
    {
        let text = format!(
            "{}/{} would be evicted before {}, which is asked first",
            other.namespace,
            other.name,
            kept.title()
        );
        return broken("S13", text);
    }
    if let Some(twice) = pods.iter().find(|e| node.in_flight.get(&e.uid).is_some_and(|sent| sent.deletes == *delete)) {
        return broken("S6", format!("the eviction of {}/{} is under way already", twice.namespace, twice.name));
    }
    if let Some(other) = pods.iter().find(|e| !may_go.iter().any(|p| p.uid == e.uid && p.node == node.facts.name)) {
        return broken("S6", format!("{}/{} is no pod that has to leave this node", other.namespace, other.name));
    }
    // Without a record pods that come back would be evicted again and again. A full one takes no more.
    let drain = drain.filter(|drain| drain.pods.len() + sorted.evictable.len() <= LISTED_PODS)?;
    let evicted = |pod: &&PodFacts| pods.iter().any(|e| e.uid == pod.uid);
    let unrecorded = drain::unlisted(&sorted.evictable, drain).find(evicted)?;
    broken("S6", format!("{} would be evicted without a record of it", unrecorded.title()))
}

/// S9: with the shadow goes the record of what a host may still do. A node keeps it while an attempt of the operator is
/// under way, armed or claimed there, or while its host has settings of the operator.
fn check_shadow(view: &ClusterView, change: &ShadowChange) -> Option<Broken> {
    let ShadowChange::Delete { node: name, uid } = change else { return None };
    let orphan = view.orphaned_shadows.get(name).is_some_and(|shadow| shadow.uid == *uid);
    let own = view.nodes.get(name).and_then(|node| Some((node, node.shadow.as_ref()?)));
    let Some((node, shadow)) = own.filter(|(_, shadow)| shadow.uid == *uid) else {
        return if orphan { None } else { broken("S9", "a shadow would be deleted that was not observed") };
    };
    let (spec, status) = (&shadow.spec, &shadow.status);
    if node.facts.labelled {
        return broken("S9", "the shadow of a node under the operator would be deleted");
    }
    if node.facts.claimed() || status.controller.progress.is_some() || spec.state != HostState::Idle {
        return broken("S9", "a shadow would be deleted during an attempt");
    }
    if status.agent.armed.as_ref().is_some_and(|armed| armed.boot_id == node.facts.boot_id) {
        return broken("S9", "a shadow would be deleted whose host is armed");
    }
    let set = status.agent.host.as_ref().is_some_and(|host| host.applied.is_some());
    let requested = spec.host.as_ref().is_some_and(HostPolicy::asks_settings);
    if set || requested {
        broken("S9", "a shadow would be deleted whose host has settings of the operator")
    } else {
        None
    }
}

/// S4: a label that a user has set, of whatever value, stays.
fn check_label(node: &NodeFacts) -> Option<Broken> {
    let labelled = node.labels.contains_key(INTERFACE_LABEL);
    if labelled { broken("S4", "a label that another user has set would be changed") } else { None }
}

#[cfg(test)]
mod tests;
