//! The plan validator: checks the safety properties once more on every plan before it is carried out.
//!
//! Actions that break one are dropped, together with everything that would start something new; a release is never
//! dropped. A finding is a bug of the planner: it is logged and counted, and the fleet stays as it is.

use std::collections::BTreeSet;

use models::operator::{AtDeadline, CordonedNodes, Slot};
use models::shadow::{HostState, Step};

use crate::claims::Part;
use crate::drain;
use crate::plan::{Action, Evictions, LISTED_PODS, Plan, Quarantine};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView, PodFacts};

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
    let decides =
        !plan.actions.is_empty() || !plan.evictions.is_empty() || plan.slots.is_some() || plan.status.is_some();
    if view.stale && decides {
        let text = "something was decided before every cache had been read under this leader".into();
        findings.push(Finding { property: "S1", node: None, text });
        // Not even a release: what is not observed yet may be another attempt.
        *plan = Plan::default();
        return findings;
    }
    let new_slots = new_slots(view, plan);
    findings.extend(check_slots(view, policy, plan, &new_slots));
    findings.extend(check_groups(view, policy, plan, &new_slots));
    let frozen = Quarantine::of(view, policy.max_failures).frozen_by().is_some();
    if frozen && !new_slots.is_empty() {
        findings.push(Finding {
            property: "S8",
            node: None,
            text: "a slot is given while the rollout is frozen".into(),
        });
    }
    for (name, action) in &plan.actions {
        if let Some(node) = view.nodes.get(name) {
            findings.extend(check_start(frozen, policy, name, node, action));
            findings.extend(check_offer(name, node, action));
            findings.extend(check_order(name, node, action));
            findings.extend(check_disruption(view, plan, name, node, action));
        }
    }
    for (name, evictions) in &plan.evictions {
        if let Some(node) = view.nodes.get(name) {
            findings.extend(check_slot(view, plan, name, node));
            findings.extend(check_evictions(policy, name, node, evictions));
        }
    }
    if !findings.is_empty() {
        let bad: BTreeSet<_> = findings.iter().filter_map(|f| f.node.clone()).collect();
        plan.actions
            .retain(|name, action| matches!(action, Action::Release) || (!bad.contains(name) && !Plan::starts(action)));
        plan.evictions.retain(|name, _| !bad.contains(name));
        if findings.iter().any(|f| f.node.is_none()) {
            plan.slots = None;
            if let (Some(status), Some(operator)) = (&mut plan.status, &view.operator) {
                status.slots.clone_from(&operator.status.slots);
            }
        }
    }
    findings
}

/// The nodes that get a slot. Nodes that are disrupted already keep theirs, also over a budget that was lowered since,
/// or while the rollout is frozen.
fn new_slots<'a>(view: &'a ClusterView, plan: &Plan) -> Vec<&'a NodeView> {
    let (Some(slots), Some(operator)) = (&plan.slots, &view.operator) else { return Vec::new() };
    let uids = |slots: &[Slot]| slots.iter().map(|s| s.uid.clone()).collect::<BTreeSet<String>>();
    let (held, planned) = (uids(&operator.status.slots), uids(slots));
    let held = |uid: &String| held.contains(uid) && !view.retracted.contains(uid);
    let new = |node: &&NodeView| planned.contains(&node.facts.uid) && !held(&node.facts.uid);
    view.nodes.values().filter(new).filter(|node| !node.disrupted()).collect()
}

/// S1: slots are given only up to the budget.
fn check_slots(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Finding> {
    let slots = plan.slots.as_ref()?;
    let total = view.nodes.values().filter(|n| n.facts.labelled).count();
    let budget = policy.max_unavailable.of(total).unwrap_or(1);
    (!new.is_empty() && slots.len() > budget).then(|| Finding {
        property: "S1",
        node: None,
        text: format!("{} slots, {} of them new, over a budget of {budget}", slots.len(), new.len()),
    })
}

/// S1 again, for the budgets of groups and for zones that take turns.
fn check_groups(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Finding> {
    let slots: BTreeSet<&str> = plan.slots.iter().flatten().map(|slot| slot.uid.as_str()).collect();
    let out: Vec<&NodeView> = view.nodes.values().filter(|n| slots.contains(n.facts.uid.as_str())).collect();
    let finding = |text: String| Some(Finding { property: "S1", node: None, text });
    for node in new {
        if policy.one_zone_at_a_time && out.iter().any(|other| other.facts.zone() != node.facts.zone()) {
            return finding(format!("{} is given a slot beside one in another zone", node.facts.name));
        }
        let Some(index) = policy.group_of(&node.facts) else { continue };
        let group = &policy.groups[index];
        let members = |nodes: &mut dyn Iterator<Item = &NodeView>| {
            nodes.filter(|n| policy.group_of(&n.facts) == Some(index)).count()
        };
        let total = members(&mut view.nodes.values().filter(|n| n.facts.labelled));
        let Some(limit) = group.max_unavailable.as_ref().map(|limit| limit.of(total).unwrap_or(1)) else { continue };
        let taken = members(&mut out.iter().copied());
        if taken > limit {
            return finding(format!("{taken} slots in group {}, over its budget of {limit}", group.name));
        }
    }
    None
}

/// S8: with the failure budget spent nothing begins, and nothing that is staged is drained. S4: no node that another
/// user has cordoned is taken out of service, unless policy allows it.
fn check_start(frozen: bool, policy: &Policy, name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let Action::Status { status, .. } = action else { return None };
    let next = status.report.progress.as_ref()?.step;
    let last = node.step();
    let starts = match last {
        None => next == Step::Staging,
        Some(Step::Staging | Step::Staged) => matches!(next, Step::LeavingBalancer | Step::Draining),
        Some(_) => false,
    };
    let finding = |property, why: &str| {
        Some(Finding { property, node: Some(name.to_owned()), text: format!("it goes to {next:?} {why}") })
    };
    let skipped = policy.for_node(&node.facts).drain.cordoned_nodes == CordonedNodes::Skip;
    if frozen && starts {
        return finding("S8", "while the rollout is frozen");
    }
    if starts && skipped && node.facts.cordoned_by_others() {
        return finding("S4", "although another user has cordoned it");
    }
    None
}

/// S7: the version that a node is drained for is still offered to its host, as far as the host has reported.
fn check_offer(name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let Action::Status { status, .. } = action else { return None };
    let progress = status.report.progress.as_ref()?;
    let drains = matches!(progress.step, Step::LeavingBalancer | Step::Draining)
        && matches!(node.step(), Some(Step::Staging | Step::Staged));
    let updates = node.shadow.as_ref()?.status.agent.updates.as_ref().filter(|u| u.refresh_failure.is_none())?;
    let version = &progress.version;
    let offered = updates.available_versions.contains(version) || updates.chosen_version.as_ref() == Some(version);
    (drains && !offered).then(|| Finding {
        property: "S7",
        node: Some(name.to_owned()),
        text: format!("it is drained for {version}, which its host no longer offers"),
    })
}

/// S2 and S3: the desired state to reboot names the node's current boot and comes after the drain.
fn check_order(name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let Action::Spec { spec } = action else { return None };
    if spec.state != HostState::RebootedIntoUpdate {
        return None;
    }
    let finding = |property, text: &str| Some(Finding { property, node: Some(name.to_owned()), text: text.to_owned() });
    if spec.boot_id.as_deref() != Some(node.facts.boot_id.as_str()) {
        return finding("S2", "the desired reboot is for another boot");
    }
    let progress = node.progress();
    if !progress.is_some_and(|p| p.step == Step::Rebooting && p.attempt == spec.attempt && p.disruptive) {
        return finding("S3", "the desired reboot comes before the drain");
    }
    None
}

/// S1 again: a node is disrupted only while it has a slot, if there is a resource that holds slots.
fn check_disruption(view: &ClusterView, plan: &Plan, name: &str, node: &NodeView, action: &Action) -> Option<Finding> {
    let disrupts = match action {
        Action::Claim { .. } => true,
        Action::Status { status, .. } => {
            status.report.progress.as_ref().is_some_and(|p| matches!(p.step, Step::LeavingBalancer | Step::Draining))
        }
        Action::Spec { .. }
        | Action::Release
        | Action::Permit { .. }
        | Action::ReadOwner { .. }
        | Action::LookAtLease => false,
    };
    if disrupts { check_slot(view, plan, name, node) } else { None }
}

/// S1 again: a claimed node in mid-drain goes on where the operator's resource was created again, without its slots, if
/// this plan restores its slot.
fn check_slot(view: &ClusterView, plan: &Plan, name: &str, node: &NodeView) -> Option<Finding> {
    view.operator.as_ref()?;
    let is_for = |slot: &Slot| slot.uid == node.facts.uid;
    let has_slot = view.slots().any(is_for);
    let gets_back = node.disrupted() && node.facts.claimed() && plan.slots.iter().flatten().any(is_for);
    (!has_slot && !gets_back).then(|| Finding {
        property: "S1",
        node: Some(name.to_owned()),
        text: "the node would be disrupted without a slot".to_owned(),
    })
}

/// S6, and the order of writes: only pods that have to leave, only from a node that the operator has cordoned.
fn check_evictions(policy: &Policy, name: &str, node: &NodeView, evictions: &Evictions) -> Option<Finding> {
    let Evictions { pods, delete, .. } = evictions;
    let finding = |text: String| Some(Finding { property: "S6", node: Some(name.to_owned()), text });
    let rules = &policy.for_node(&node.facts).drain;
    if *delete && rules.at_deadline != AtDeadline::Force {
        return finding("pods would be deleted although policy does not say so".to_owned());
    }
    if !node.facts.claims.has(Part::Cordon) {
        return finding("pods would be evicted from a node that is not cordoned".to_owned());
    }
    let drain = node.shadow.as_ref().and_then(|s| s.status.controller.drain.as_ref());
    let known = node.pods.as_deref().unwrap_or_default();
    let sorted = drain::sort(known, rules.rules, drain);
    // Pods that are deleted at the deadline may be terminating already.
    let mut may_go: Vec<_> = sorted.evictable.clone();
    if *delete {
        may_go.extend(sorted.leaving.iter().copied());
    }
    if let Some(twice) = pods.iter().find(|e| node.in_flight.get(&e.uid).is_some_and(|sent| sent.deletes == *delete)) {
        return finding(format!("the eviction of {}/{} is under way already", twice.namespace, twice.name));
    }
    if let Some(other) = pods.iter().find(|e| !may_go.iter().any(|p| p.uid == e.uid && p.node == name)) {
        return finding(format!("{}/{} is no pod that has to leave this node", other.namespace, other.name));
    }
    // Without a record pods that come back would be evicted again and again. A full one takes no more.
    let drain = drain.filter(|drain| drain.pods.len() + sorted.evictable.len() <= LISTED_PODS)?;
    let evicted = sorted.evictable.iter().filter(|pod| pods.iter().any(|e| e.uid == pod.uid));
    let unrecorded = evicted.copied().find(|pod: &&PodFacts| !drain::listed(pod, drain))?;
    finding(format!("{} would be evicted without a record of it", unrecorded.title()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use models::operator::{BottlerocketUpdateOperatorSpec, KnownVersion, Quarantined};
    use models::reason::FailureReason;
    use models::shadow::{BottlerocketShadowSpec, DrainStatus, DrainedPod};
    use serde_json::json;

    use super::*;
    use crate::claims::Parts;
    use crate::fixtures::{NEW, at, cluster, node, pod, progress, t};
    use crate::plan::Eviction;

    /// A staged node `a`, a node `b` that is drained, and an idle node `c`, in zones `a`, `b` and `a`; `a` and `b` are
    /// in group `db`.
    fn world(spec: serde_json::Value, frozen: bool) -> (ClusterView, Policy) {
        let staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        let mut drained = at("b", Step::Draining, 0, HostState::StagedUpdate);
        let addon = |uid: &str, owner: &str| PodFacts {
            uid: uid.into(),
            controller_uid: Some(owner.into()),
            tolerates_cordon: true,
            ..pod("b", false)
        };
        drained.pods = Some(vec![
            PodFacts { uid: "new".into(), ..pod("b", false) },
            pod("b", false),
            addon("addon-1", "one"),
            addon("addon-2", "one"),
            addon("addon-3", "two"),
        ]);
        let listed = |uid: &str| DrainedPod { namespace: "shop".into(), name: uid.into(), uid: uid.into() };
        drained.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus {
            pods: vec![listed("p-b"), listed("addon-1")],
            evicted_owners: vec!["one".into()],
            ..DrainStatus::default()
        });
        // Nodes that another user has cordoned: an idle one, and a staged one that has a slot.
        let (mut idle, mut cordoned) = (node("d"), at("e", Step::Staged, 0, HostState::StagedUpdate));
        (idle.facts.unschedulable, cordoned.facts.unschedulable) = (true, true);
        let mut nodes = vec![staged, drained, node("c"), idle, cordoned];
        for (node, (zone, tier)) in nodes.iter_mut().zip([("a", "db"), ("b", "db"), ("a", "web")]) {
            let labels = [(models::names::ZONE_LABEL, zone), ("tier", tier)];
            node.facts.labels = Arc::new(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        }
        let (mut view, _) = cluster(nodes, &["b", "e"]);
        let operator = view.operator.as_mut().unwrap();
        operator.spec = serde_json::from_value::<BottlerocketUpdateOperatorSpec>(spec).unwrap();
        if frozen {
            operator.status.versions = vec![KnownVersion {
                version: NEW,
                variant: "aws-k8s-1.37".into(),
                arch: "x86_64".into(),
                first_seen: t(0),
                failed: vec![],
                quarantined: Some(Quarantined {
                    since: t(0),
                    reason: FailureReason::BootFellBack,
                    nodes: vec!["x".into()],
                }),
            }];
        }
        let policy = Policy::from_spec(&operator.spec).unwrap();
        (view, policy)
    }

    fn slots(nodes: &[&str]) -> Plan {
        let slot = |n: &&str| Slot { uid: format!("uid-{n}"), node: (*n).into(), since: t(0) };
        Plan { slots: Some(nodes.iter().map(slot).collect()), ..Plan::default() }
    }

    fn acts(node: &str, action: Action) -> Plan {
        Plan { actions: BTreeMap::from([(node.to_owned(), action)]), ..Plan::default() }
    }

    fn removes(node: &str, evictions: Evictions) -> Plan {
        Plan { evictions: BTreeMap::from([(node.to_owned(), evictions)]), ..Plan::default() }
    }

    fn goes_to(node: &str, step: Step) -> Plan {
        let mut status = models::shadow::ControllerStatus::default();
        status.report.progress = Some(progress(step, 0));
        acts(node, Action::Status { status: Box::new(status), note: None })
    }

    fn reboot(node: &str, boot: &str) -> Plan {
        let spec = BottlerocketShadowSpec {
            state: HostState::RebootedIntoUpdate,
            version: Some(NEW),
            attempt: 1,
            boot_id: Some(boot.into()),
            ..BottlerocketShadowSpec::default()
        };
        acts(node, Action::Spec { spec: Box::new(spec) })
    }

    fn evicts(node: &str, uid: &str) -> Plan {
        let pod = Eviction { namespace: "shop".into(), name: "p".into(), uid: uid.into() };
        removes(node, Evictions { pods: vec![pod], grace: None, delete: false })
    }

    fn deletes(node: &str, uid: &str) -> Plan {
        let pod = Eviction { namespace: "shop".into(), name: "p".into(), uid: uid.into() };
        removes(node, Evictions { pods: vec![pod], grace: None, delete: true })
    }

    #[test]
    fn a_plan_that_breaks_a_safety_property_is_found_and_a_good_one_is_not() {
        let groups = |limit: u32| {
            json!({"maxUnavailable": 3, "nodeGroups":
                [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": limit}]})
        };
        let two = || json!({"maxUnavailable": 2});
        let zones = || json!({"maxUnavailable": 3, "strategy": {"oneZoneAtATime": true}});
        for (sentence, spec, frozen, plan, property) in [
            ("two slots of two", two(), false, slots(&["b", "a"]), None),
            ("two slots of one", json!({}), false, slots(&["b", "a"]), Some("S1")),
            ("a budget that was lowered takes no slot away", json!({}), false, slots(&["b"]), None),
            ("two slots of two in a group", groups(2), false, slots(&["b", "a"]), None),
            ("two slots of one in a group", groups(1), false, slots(&["b", "a"]), Some("S1")),
            ("a node outside the group is none of its", groups(1), false, slots(&["b", "c"]), None),
            ("a slot in another zone", zones(), false, slots(&["b", "a"]), Some("S1")),
            ("two slots in one zone", zones(), false, slots(&["a", "c"]), None),
            ("a slot while frozen", two(), true, slots(&["b", "a"]), Some("S8")),
            ("a drain under way goes on while frozen", two(), true, evicts("b", "p-b"), None),
            ("an attempt begins while frozen", two(), true, goes_to("c", Step::Staging), Some("S8")),
            ("an attempt begins", two(), false, goes_to("c", Step::Staging), None),
            ("an image that was wiped is staged again while frozen", two(), true, goes_to("a", Step::Staging), None),
            ("a drain without a slot", two(), false, goes_to("a", Step::Draining), Some("S1")),
            ("an attempt on a cordoned node", two(), false, goes_to("d", Step::Staging), Some("S4")),
            ("a drain of a cordoned node", two(), false, goes_to("e", Step::Draining), Some("S4")),
            (
                "a drain of a cordoned node that policy asks for",
                json!({"maxUnavailable": 2, "drain": {"cordonedNodes": "Update"}}),
                false,
                goes_to("e", Step::Draining),
                None,
            ),
            (
                "a cordon without a slot",
                two(),
                false,
                acts("a", Action::Claim { parts: Parts::CORDON, note: None }),
                Some("S1"),
            ),
            ("a deletion that policy does not ask for", two(), false, deletes("b", "p-b"), Some("S6")),
            (
                "a deletion that policy asks for",
                json!({"drain": {"atDeadline": "Force"}}),
                false,
                deletes("b", "p-b"),
                None,
            ),
            ("a reboot before the drain", two(), false, reboot("a", "b1"), Some("S3")),
            ("a reboot of another boot", two(), false, reboot("b", "b0"), Some("S2")),
            ("an eviction of a pod that is not there", two(), false, evicts("b", "other"), Some("S6")),
            ("an eviction of an add-on that is recorded", two(), false, evicts("b", "addon-1"), None),
            ("an eviction of an add-on that came back", two(), false, evicts("b", "addon-2"), Some("S6")),
            ("an eviction of an add-on without a record", two(), false, evicts("b", "addon-3"), Some("S6")),
            ("an eviction of another pod without a record", two(), false, evicts("b", "new"), Some("S6")),
            ("an eviction from a node without a cordon", two(), false, evicts("c", "p-c"), Some("S1")),
        ] {
            let (view, policy) = world(spec, frozen);
            let mut linted = plan.clone();
            let findings = lint(&view, &policy, &mut linted);
            assert_eq!(findings.first().map(|f| f.property), property, "{sentence}: {findings:?}");
            match property {
                None => assert_eq!(linted, plan, "{sentence}"),
                Some(_) => {
                    let left = linted.actions.len() + linted.evictions.len();
                    assert!(linted.slots.is_none() && left == 0, "{sentence}: {linted:?}");
                }
            }
        }
    }

    #[test]
    fn drain_for_a_version_that_is_no_longer_offered_is_found() {
        for (offered, property) in [(true, None), (false, Some("S7"))] {
            let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
            let slot = Slot { uid: "uid-a".into(), node: "a".into(), since: t(0) };
            view.operator.as_mut().unwrap().status.slots.push(slot);
            let agent = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.agent;
            agent.updates.as_mut().unwrap().chosen_version = offered.then_some(NEW);
            let findings = lint(&view, &policy, &mut goes_to("a", Step::Draining));
            assert_eq!(findings.first().map(|f| f.property), property, "{findings:?}");
        }
    }

    #[test]
    fn drain_under_way_goes_on_when_its_version_is_no_longer_offered_and_so_does_staging() {
        for plan in [goes_to("b", Step::Draining), goes_to("a", Step::Staged)] {
            let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
            for node in ["a", "b"] {
                let agent = &mut view.nodes.get_mut(node).unwrap().shadow.as_mut().unwrap().status.agent;
                agent.updates.as_mut().unwrap().chosen_version = None;
            }
            assert_eq!(lint(&view, &policy, &mut plan.clone()), []);
        }
    }

    #[test]
    fn desired_reboot_is_that_of_the_attempt_which_has_drained_the_node() {
        type Change = fn(&mut models::shadow::Progress);
        let cases: [(&str, Change, Option<&str>); 4] = [
            ("as it has to be", |_| {}, None),
            ("while it drains", |progress| progress.step = Step::Draining, Some("S3")),
            ("another attempt", |progress| progress.attempt = 2, Some("S3")),
            ("of an attempt that disrupted nothing", |progress| progress.disruptive = false, Some("S3")),
        ];
        for (sentence, change, property) in cases {
            let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
            let controller = &mut view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().status.controller;
            let mut attempt = progress(Step::Rebooting, 0);
            change(&mut attempt);
            controller.progress = Some(attempt);
            let findings = lint(&view, &policy, &mut reboot("b", "b1"));
            assert_eq!(findings.first().map(|f| f.property), property, "{sentence}: {findings:?}");
        }
    }

    #[test]
    fn slot_that_is_given_again_while_it_is_taken_away_is_a_new_one() {
        for (retracted, property) in [(false, None), (true, Some("S1"))] {
            let (mut view, policy) = world(json!({}), false);
            let slot = Slot { uid: "uid-a".into(), node: "a".into(), since: t(0) };
            view.operator.as_mut().unwrap().status.slots.push(slot);
            if retracted {
                view.retracted = ["uid-a".to_owned()].into();
            }
            let findings = lint(&view, &policy, &mut slots(&["b", "e", "a"]));
            assert_eq!(findings.first().map(|f| f.property), property, "{findings:?}");
        }
    }

    #[test]
    fn request_under_way_is_not_repeated_and_a_deletion_may_follow_an_eviction() {
        for (sentence, deletes_now, property) in [("the same", true, Some("S6")), ("an eviction", false, None)] {
            let (mut view, policy) = world(json!({"drain": {"atDeadline": "Force"}}), false);
            let sent = crate::view::InFlight { since: t(0), deletes: deletes_now };
            view.nodes.get_mut("b").unwrap().in_flight.insert("p-b".into(), sent);
            let findings = lint(&view, &policy, &mut deletes("b", "p-b"));
            assert_eq!(findings.first().map(|f| f.property), property, "{sentence} is under way: {findings:?}");
        }
    }

    #[test]
    fn record_that_can_hold_no_more_pods_stops_no_drain() {
        for (pods, property) in [(LISTED_PODS, Some("S6")), (LISTED_PODS + 1, None)] {
            let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
            let node = view.nodes.get_mut("b").unwrap();
            node.pods = Some((0..pods).map(|n| PodFacts { uid: format!("pod-{n}"), ..pod("b", false) }).collect());
            node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
            let findings = lint(&view, &policy, &mut evicts("b", "pod-0"));
            assert_eq!(findings.first().map(|f| f.property), property, "{pods} pods: {findings:?}");
        }
    }

    #[test]
    fn what_starts_nothing_on_other_nodes_goes_on_beside_what_is_wrong() {
        let (view, policy) = world(json!({"maxUnavailable": 2}), false);
        let mut plan = goes_to("a", Step::Draining);
        plan.actions.insert("b".into(), Action::LookAtLease);
        plan.actions.extend(goes_to("c", Step::Staging).actions);
        assert_eq!(lint(&view, &policy, &mut plan).len(), 1);
        assert_eq!(plan.actions, BTreeMap::from([("b".to_owned(), Action::LookAtLease)]), "c begins nothing new");

        let mut plan = reboot("a", "b0");
        plan.actions.insert("b".into(), Action::LookAtLease);
        assert_eq!(lint(&view, &policy, &mut plan).len(), 1);
        assert_eq!(
            plan.actions.keys().collect::<Vec<_>>(),
            ["b"],
            "what is wrong is dropped, though it starts nothing"
        );
    }

    #[test]
    fn claimed_node_goes_on_where_the_plan_gives_back_the_slot_that_it_lost_with_the_operators_resource() {
        let gives = |nodes: &[&str]| Plan { slots: slots(nodes).slots, ..evicts("b", "p-b") };
        for (plan, property) in [(gives(&["b"]), None), (gives(&[]), Some("S1")), (evicts("b", "p-b"), Some("S1"))] {
            let (mut view, policy) = world(json!({"maxUnavailable": 1}), false);
            view.operator.as_mut().unwrap().status.slots.clear();
            let mut linted = plan.clone();
            let findings = lint(&view, &policy, &mut linted);
            assert_eq!(findings.first().map(|f| f.property), property, "{plan:?}: {findings:?}");
        }
        let unclaimed =
            Plan { slots: slots(&["a"]).slots, ..acts("a", Action::Claim { parts: Parts::CORDON, note: None }) };
        let (mut view, policy) = world(json!({"maxUnavailable": 1}), false);
        view.operator.as_mut().unwrap().status.slots.clear();
        assert_eq!(lint(&view, &policy, &mut unclaimed.clone()).len(), 1, "a slot that is only planned begins nothing");
    }

    #[test]
    fn nothing_is_decided_on_a_view_that_may_be_stale() {
        let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
        view.stale = true;
        for mut plan in [slots(&["b", "a"]), acts("b", Action::Release), evicts("b", "p-b")] {
            let findings = lint(&view, &policy, &mut plan);
            assert_eq!((findings.len(), findings[0].property), (1, "S1"));
            assert_eq!(plan, Plan::default());
        }
        assert!(lint(&view, &policy, &mut crate::plan::plan(&view, &policy, t(1))).is_empty());
    }

    #[test]
    fn a_release_goes_through_beside_whatever_is_wrong() {
        let (view, policy) = world(json!({}), true);
        let mut plan = slots(&["b", "a"]);
        plan.actions.insert("b".into(), Action::Release);
        plan.actions.insert("c".into(), goes_to("c", Step::Staging).actions.remove("c").unwrap());
        assert!(!lint(&view, &policy, &mut plan).is_empty());
        assert_eq!(plan.actions, BTreeMap::from([("b".to_owned(), Action::Release)]));
        assert_eq!(plan.slots, None);
    }
}
