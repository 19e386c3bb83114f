mod places;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use models::operator::{BottlerocketUpdateOperatorSpec, KnownVersion, MAX_SLOTS, SlotUpdate};
use models::shadow::{AppliedSettings, Armed, ArmedPhase, BottlerocketShadowSpec, DrainStatus, DrainedPod, Progress};
use serde_json::json;

use super::*;
use crate::claims::ClaimFields;
use crate::decision::Eviction;
use crate::fixtures::{NEW, at, cluster, fallen_back, node, pod, progress, seen, slot, t};
use crate::rules::Rules;
use crate::view::ShadowFacts;

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
    drained.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus {
        pods: [listed("p-b"), listed("addon-1")].into(),
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
        operator.status.versions = vec![KnownVersion { quarantined: Some(fallen_back(&["x"])), ..seen(NEW, 0) }];
    }
    let policy = Policy::from_spec(&operator.spec).unwrap();
    (view, policy)
}

/// A pod in the record of a drain.
fn listed(uid: &str) -> DrainedPod {
    DrainedPod { namespace: "shop".into(), name: uid.into(), uid: uid.into(), ..DrainedPod::default() }
}

fn slots(nodes: &[&str]) -> Plan {
    Plan { slots: Some(nodes.iter().map(|name| slot(name)).collect()), ..Plan::default() }
}

fn acts(node: &str, action: Action) -> Plan {
    Plan { actions: BTreeMap::from([(node.to_owned(), action)]), ..Plan::default() }
}

fn removes(node: &str, uid: &str, delete: bool) -> Plan {
    let pod = Eviction { namespace: "shop".into(), name: "p".into(), uid: uid.into() };
    let evictions = Evictions { pods: vec![pod], grace: None, delete, dry_run: false };
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
    removes(node, uid, false)
}

fn deletes(node: &str, uid: &str) -> Plan {
    removes(node, uid, true)
}

/// The property that a plan breaks first.
fn broken(view: &ClusterView, policy: &Policy, mut plan: Plan) -> Option<&'static str> {
    lint(view, policy, &mut plan).first().map(|finding| finding.property)
}

/// The write of the status of a node with other progress.
fn goes_on(node: &NodeView, progress: Progress) -> Action {
    let mut status = node.shadow.as_ref().unwrap().status.controller_status();
    status.report.progress = Some(progress);
    Action::Status { status: Box::new(status), note: None }
}

#[test]
fn validator_rejects_second_control_plane_node() {
    for (sentence, labelled, ready, property) in [
        ("one has a slot", "b", true, Some("S1")),
        ("one is not Ready", "c", false, Some("S1")),
        ("the other is Ready", "c", true, None),
    ] {
        let (mut view, policy) = world(json!({"maxUnavailable": 3}), false);
        for name in ["a", labelled] {
            let labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
            view.nodes.get_mut(name).unwrap().facts.labels = labels;
        }
        view.nodes.get_mut(labelled).unwrap().facts.ready = ready;
        assert_eq!(broken(&view, &policy, slots(&["b", "a"])), property, "{sentence}");
    }
}

#[test]
fn validator_rejects_reboot_of_control_plane_node_while_another_is_not_ready() {
    for (sentence, labelled, ready, property) in [
        ("another one is not Ready", ["b", "c"], false, Some("S1")),
        ("all others are Ready", ["b", "c"], true, None),
        ("a worker is not Ready", ["b", "b"], false, None),
    ] {
        let (mut view, policy) = world(json!({}), false);
        for name in labelled {
            let labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
            view.nodes.get_mut(name).unwrap().facts.labels = labels;
        }
        view.nodes.get_mut("c").unwrap().facts.ready = ready;
        let slots = &mut view.operator.as_mut().unwrap().status.slots;
        slots[0].update.as_mut().unwrap().permitting_since = Some(t(0));
        let permit = Action::Permit { nonce: "n".into(), rules: Rules::default(), pods_stay: false };
        assert_eq!(broken(&view, &policy, acts("b", permit)), property, "{sentence}");
    }
}

#[test]
fn validator_rejects_only_plans_that_violate_safety_properties() {
    let groups = |limit: u32| {
        json!({"maxUnavailable": 3, "nodeGroups":
            [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": limit}]})
    };
    let two = || json!({"maxUnavailable": 2});
    let zones = || json!({"maxUnavailable": 3, "strategy": {"oneZoneAtATime": true}});
    let cordoned = json!({"maxUnavailable": 2, "drain": {"cordonedNodes": "Update"}});
    let forced = json!({"drain": {"atDeadline": "Force"}});
    let cordon = Action::Claim { fields: ClaimFields::CORDON, note: None };
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
        ("a drain under way continues while frozen", two(), true, evicts("b", "p-b"), None),
        ("an attempt begins while frozen", two(), true, goes_to("c", Step::Staging), Some("S8")),
        ("an attempt begins", two(), false, goes_to("c", Step::Staging), None),
        ("an image that was wiped is staged again while frozen", two(), true, goes_to("a", Step::Staging), None),
        ("a drain without a slot", two(), false, goes_to("a", Step::Draining), Some("S1")),
        ("an attempt on a cordoned node", two(), false, goes_to("d", Step::Staging), Some("S4")),
        ("a drain of a cordoned node", two(), false, goes_to("e", Step::Draining), Some("S4")),
        ("a drain of a cordoned node that policy asks for", cordoned, false, goes_to("e", Step::Draining), None),
        ("a cordon without a slot", two(), false, acts("a", cordon), Some("S1")),
        ("a deletion that policy does not ask for", two(), false, deletes("b", "p-b"), Some("S6")),
        ("a deletion that policy asks for", forced, false, deletes("b", "p-b"), None),
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
fn validator_counts_nodes_of_a_group_and_slots_of_its_nodes_that_are_gone() {
    let gone = |group: Option<&str>| {
        let update = SlotUpdate { group: group.map(str::to_owned), ..crate::fixtures::first_update() };
        Slot { update: Some(update), ..slot("gone") }
    };
    for (sentence, limit, others, property) in [
        ("both nodes of the group, of which all may be out", json!("100%"), vec![slot("b")], None),
        ("one of them, beside a node that is gone", json!(1), vec![gone(Some("db"))], Some("S1")),
        ("one of them, beside a node of another group that is gone", json!(1), vec![gone(Some("web"))], None),
        ("one of them, beside a node of no group that is gone", json!(1), vec![gone(None)], None),
    ] {
        let group = json!({"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": limit});
        let (view, policy) = world(json!({"maxUnavailable": 3, "nodeGroups": [group]}), false);
        let mut plan = slots(&["a"]);
        plan.slots.as_mut().unwrap().extend(others);
        assert_eq!(broken(&view, &policy, plan), property, "{sentence}");
    }
}

#[test]
fn budget_keeps_a_pod_by_its_numbers_and_by_the_rules_of_the_drain() {
    let counted = || BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        allowed: 1,
        healthy: 3,
        desired: 2,
        expected: 3,
        selector: Some(kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("app".into())])),
        ..BudgetFacts::default()
    };
    let full = || BudgetFacts { allowed: 0, ..counted() };
    let stale = || BudgetFacts { stale: true, ..counted() };
    let broken = || BudgetFacts { allowed: 0, healthy: 2, ..counted() };
    let lenient = || BudgetFacts { allows_unhealthy: true, ..broken() };
    let ready = || PodFacts { ready: true, ..pod("a", false) };
    let mirror = || PodFacts { mirror: true, ..ready() };
    let other = || PodFacts { labels: Arc::new([("app".to_owned(), String::new())].into()), ..ready() };
    for (sentence, budget, pod, waits, deletes, keeps) in [
        ("it lets the pod go", counted(), ready(), true, true, false),
        ("it guards the pod, and the drain waits", full(), ready(), true, false, true),
        ("it guards the pod, and the drain asks", full(), ready(), false, false, false),
        ("it guards a static pod", full(), mirror(), false, true, true),
        ("a pod of it is broken", broken(), ready(), false, false, true),
        ("a pod of it is broken, and the drain deletes what stays", broken(), ready(), false, true, false),
        ("a pod of it is broken, and the drain waits and deletes", broken(), ready(), true, true, true),
        ("a pod of it is broken beside a static one", broken(), mirror(), false, true, true),
        ("the pod is broken, and it lets that go", lenient(), pod("a", false), true, false, false),
        ("its numbers are not known, and the drain waits and deletes", stale(), ready(), true, true, true),
        ("its numbers are not known, and nothing is deleted", stale(), ready(), true, false, false),
        ("its numbers are not known, and the drain deletes without waiting", stale(), ready(), false, true, false),
        ("its numbers are not known, and the pod is static", stale(), mirror(), true, true, false),
        ("it selects other pods", broken(), other(), true, false, false),
    ] {
        let (mut view, mut policy) = world(json!({}), false);
        view.budgets = vec![budget];
        policy.all.drain.guarded_pods = if waits { GuardedPods::Wait } else { GuardedPods::Ask };
        let found = keeping(&Budgets::of(&view), &policy.all.drain, deletes, &pod);
        assert_eq!(found.is_some(), keeps, "{sentence}");
    }
}

#[test]
fn validator_rejects_a_slot_beyond_those_that_one_object_holds() {
    let (view, policy) = world(json!({"maxUnavailable": 10_000}), false);
    for (others, property) in [(MAX_SLOTS - 2, None), (MAX_SLOTS - 1, Some("S1"))] {
        let mut plan = slots(&["b", "a"]);
        let gone = (0..others).map(|number| Slot { uid: format!("gone-{number}"), ..slot("gone") });
        plan.slots.as_mut().unwrap().extend(gone);
        let findings = lint(&view, &policy, &mut plan);
        assert_eq!(findings.first().map(|f| f.property), property, "{others} others: {findings:?}");
    }
}

#[test]
fn validator_rejects_drain_for_version_no_longer_offered() {
    for (offered, property) in [(true, None), (false, Some("S7"))] {
        let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
        view.operator.as_mut().unwrap().status.slots.push(slot("a"));
        let agent = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.agent;
        agent.updates.as_mut().unwrap().chosen_version = offered.then_some(NEW);
        assert_eq!(broken(&view, &policy, goes_to("a", Step::Draining)), property);
    }
}

#[test]
fn validator_accepts_ongoing_drain_and_staging_of_withdrawn_version() {
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
fn validator_accepts_reboot_only_for_attempt_that_drained_node() {
    type Change = fn(&mut models::shadow::Progress);
    let case = |sentence: &str, property: Option<&str>, change: Change| {
        let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
        let controller = &mut view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().status.controller;
        let mut attempt = progress(Step::Rebooting, 0);
        change(&mut attempt);
        controller.progress = Some(attempt);
        assert_eq!(broken(&view, &policy, reboot("b", "b1")), property, "{sentence}");
    };
    case("as it has to be", None, |_| {});
    case("while it drains", Some("S3"), |progress| progress.step = Step::Draining);
    case("another attempt", Some("S3"), |progress| progress.attempt = 2);
    case("of an attempt that disrupted nothing", Some("S3"), |progress| progress.disruptive = false);
}

#[test]
fn validator_treats_reassigned_retracted_slot_as_new() {
    for (retracted, property) in [(false, None), (true, Some("S1"))] {
        let (mut view, policy) = world(json!({}), false);
        view.operator.as_mut().unwrap().status.slots.push(slot("a"));
        if retracted {
            view.retracted = ["uid-a".to_owned()].into();
        }
        assert_eq!(broken(&view, &policy, slots(&["b", "e", "a"])), property);
    }
}

#[test]
fn validator_rejects_repeated_deletion_in_flight_but_not_after_eviction() {
    for (sentence, deletes_now, property) in [("the same", true, Some("S6")), ("an eviction", false, None)] {
        let (mut view, policy) = world(json!({"drain": {"atDeadline": "Force"}}), false);
        let sent = crate::view::InFlight { since: t(0), deletes: deletes_now };
        view.nodes.get_mut("b").unwrap().in_flight.insert("p-b".into(), sent);
        assert_eq!(broken(&view, &policy, deletes("b", "p-b")), property, "{sentence} is under way");
    }
}

#[test]
fn full_pod_list_does_not_stop_drain() {
    for (pods, property) in [(LISTED_PODS, Some("S6")), (LISTED_PODS + 1, None)] {
        let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
        let node = view.nodes.get_mut("b").unwrap();
        node.pods = Some((0..pods).map(|n| PodFacts { uid: format!("pod-{n}"), ..pod("b", false) }).collect());
        node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
        assert_eq!(broken(&view, &policy, evicts("b", "pod-0")), property, "{pods} pods");
    }
}

#[test]
fn validator_keeps_actions_that_start_nothing_beside_violations() {
    let (view, policy) = world(json!({"maxUnavailable": 2}), false);
    let mut plan = goes_to("a", Step::Draining);
    plan.actions.insert("b".into(), Action::ReadLease { pods: false });
    plan.actions.extend(goes_to("c", Step::Staging).actions);
    assert_eq!(lint(&view, &policy, &mut plan).len(), 1);
    assert_eq!(
        plan.actions,
        BTreeMap::from([("b".to_owned(), Action::ReadLease { pods: false })]),
        "c begins nothing new"
    );

    let mut plan = reboot("a", "b0");
    plan.actions.insert("b".into(), Action::ReadLease { pods: false });
    assert_eq!(lint(&view, &policy, &mut plan).len(), 1);
    assert_eq!(plan.actions.keys().collect::<Vec<_>>(), ["b"], "what is wrong is dropped, though it starts nothing");
}

#[test]
fn claimed_node_continues_when_plan_restores_its_lost_slot() {
    let gives = |nodes: &[&str]| Plan { slots: slots(nodes).slots, ..evicts("b", "p-b") };
    for (plan, property) in [(gives(&["b"]), None), (gives(&[]), Some("S1")), (evicts("b", "p-b"), Some("S1"))] {
        let (mut view, policy) = world(json!({"maxUnavailable": 1}), false);
        view.operator.as_mut().unwrap().status.slots.clear();
        let mut linted = plan.clone();
        let findings = lint(&view, &policy, &mut linted);
        assert_eq!(findings.first().map(|f| f.property), property, "{plan:?}: {findings:?}");
    }
    let unclaimed =
        Plan { slots: slots(&["a"]).slots, ..acts("a", Action::Claim { fields: ClaimFields::CORDON, note: None }) };
    let (mut view, policy) = world(json!({"maxUnavailable": 1}), false);
    view.operator.as_mut().unwrap().status.slots.clear();
    assert_eq!(lint(&view, &policy, &mut unclaimed.clone()).len(), 1, "a slot that is only planned begins nothing");
}

fn deletes_shadow(node: &str, uid: &str) -> Plan {
    let shadows = vec![ShadowChange::Delete { node: node.into(), uid: uid.into() }];
    Plan { shadows, ..Plan::default() }
}

type Change<'a> = &'a dyn Fn(&mut NodeView, &mut ShadowFacts);

#[test]
fn validator_rejects_deletion_of_shadow_until_node_is_released() {
    let armed =
        || Armed { attempt: 1, boot_id: "b1".into(), version: NEW, phase: ArmedPhase::Arming, nonce: "n".into() };
    let case = |sentence: &str, allowed: bool, change: Change<'_>| {
        let (mut view, policy) = world(json!({}), false);
        let node = view.nodes.get_mut("c").unwrap();
        node.facts.labelled = false;
        let mut shadow = node.shadow.take().unwrap();
        change(node, &mut shadow);
        node.shadow = Some(shadow);
        let mut plan = deletes_shadow("c", "shadow-c");
        let findings: Vec<_> = lint(&view, &policy, &mut plan).iter().map(|finding| finding.property).collect();
        assert_eq!((findings.is_empty(), plan.shadows.len()), (allowed, usize::from(allowed)), "{sentence}");
        assert!(findings.iter().all(|property| *property == "S9"), "{sentence}: {findings:?}");
    };
    case("nothing is left", true, &|_, _| {});
    case("it is under the operator", false, &|node, _| node.facts.labelled = true);
    case("it is claimed", false, &|node, _| node.facts.claims = ClaimFields::CORDON);
    case("an attempt is under way", false, &|_, shadow| {
        shadow.status.controller.progress = Some(progress(Step::Staging, 0));
    });
    case("its desired state is not withdrawn", false, &|_, shadow| shadow.spec.state = HostState::StagedUpdate);
    case("its host is armed", false, &|_, shadow| shadow.status.agent.armed = Some(armed()));
    case("its host was armed before its last reboot", true, &|_, shadow| {
        shadow.status.agent.armed = Some(Armed { boot_id: "b0".into(), ..armed() });
    });
    case("its host is to have a setting", false, &|_, shadow| {
        shadow.spec.host.get_or_insert_default().version_lock = Some("1.20.5".into());
    });
    case("its host has settings", false, &|_, shadow| {
        shadow.status.agent.host.get_or_insert_default().applied = Some(AppliedSettings::default());
    });
}

#[test]
fn validator_rejects_deletion_of_unobserved_shadow() {
    let (mut view, policy) = world(json!({}), false);
    let orphan = ShadowFacts { node: "c".into(), uid: "orphan".into(), ..ShadowFacts::default() };
    view.orphaned_shadows.insert("c".into(), orphan);
    assert_eq!(lint(&view, &policy, &mut deletes_shadow("c", "orphan")), [], "the shadow of an earlier node");
    for (node, uid) in [("c", "another"), ("no-such-node", "shadow-c")] {
        let mut plan = deletes_shadow(node, uid);
        assert_eq!(lint(&view, &policy, &mut plan).len(), 1, "{uid} of {node}");
        assert_eq!(plan.shadows, [], "{uid} of {node}");
    }
}

#[test]
fn validator_rejects_change_of_existing_label() {
    let (view, policy) = world(json!({}), false);
    let unlabelled = view.nodes["c"].facts.clone();
    let mut labelled = unlabelled.clone();
    labelled.labels = Arc::new(BTreeMap::from([(INTERFACE_LABEL.to_owned(), "none".to_owned())]));
    let labels = |nodes: &[&NodeFacts]| {
        let labels = nodes.iter().map(|node| (*node).clone()).collect();
        Plan { labels, ..Plan::default() }
    };
    assert_eq!(lint(&view, &policy, &mut labels(&[&unlabelled])), []);
    let mut plan = labels(&[&unlabelled, &labelled]);
    assert_eq!(lint(&view, &policy, &mut plan)[0].property, "S4");
    assert_eq!(plan.labels, [], "nothing new starts beside a finding");
}

#[test]
fn stale_view_allows_no_actions() {
    let (mut view, policy) = world(json!({"maxUnavailable": 2}), false);
    view.stale = true;
    let labels = vec![view.nodes["c"].facts.clone()];
    let labels = Plan { labels, ..Plan::default() };
    for mut plan in
        [slots(&["b", "a"]), acts("b", Action::Release), evicts("b", "p-b"), deletes_shadow("c", "shadow-c"), labels]
    {
        let findings = lint(&view, &policy, &mut plan);
        assert_eq!((findings.len(), findings[0].property), (1, "S1"));
        assert_eq!(plan, Plan::default());
    }
    assert!(lint(&view, &policy, &mut crate::plan::plan(&view, &policy, t(1))).is_empty());
}

#[test]
fn validator_keeps_release_beside_violations() {
    let (view, policy) = world(json!({}), true);
    let mut plan = slots(&["b", "a"]);
    plan.actions.insert("b".into(), Action::Release);
    plan.actions.insert("c".into(), goes_to("c", Step::Staging).actions.remove("c").unwrap());
    assert!(!lint(&view, &policy, &mut plan).is_empty());
    assert_eq!(plan.actions, BTreeMap::from([("b".to_owned(), Action::Release)]));
    assert_eq!(plan.slots, None);
}

#[test]
fn nothing_is_done_beside_earlier_operator() {
    let shadow = ShadowChange::Create { node: "f".into(), uid: "uid-f".into(), host: Box::default() };
    let label = node("f").facts;
    for (sentence, made) in [
        ("a release", acts("b", Action::Release)),
        ("a write of a status", goes_to("c", Step::Staging)),
        ("a desired state", reboot("b", "b1")),
        ("an eviction", evicts("b", "p-b")),
        ("a slot", slots(&["b", "e", "a"])),
        ("a slot that is removed", slots(&["b"])),
        ("a shadow", Plan { shadows: vec![shadow], ..Plan::default() }),
        ("a label", Plan { labels: vec![label], ..Plan::default() }),
        ("a hand-over", Plan { hand_over: true, ..Plan::default() }),
    ] {
        let (mut view, policy) = world(json!({"maxUnavailable": 3}), false);
        view.earlier_pods = vec!["old/agent".into()];
        let mut status = view.operator.as_ref().unwrap().status.clone();
        let mut report = Plan {
            status: Some(status.clone()),
            waits: BTreeMap::from([("a".to_owned(), crate::wait::Wait::Acting)]),
            quarantine: Quarantine::of(&world(json!({}), true).0, 1),
            approvals: vec![crate::wait::Wait::Acting],
            window_open: true,
            wake: Some(t(60)),
            ..Plan::default()
        };
        assert_ne!(report.quarantine, Quarantine::default());
        assert_eq!(lint(&view, &policy, &mut report), [], "a report");
        status.slots = made.slots.clone().unwrap_or(status.slots);
        let Plan { waits, quarantine, approvals, window_open, wake, .. } = report.clone();
        let mut plan = Plan { status: Some(status), waits, quarantine, approvals, window_open, wake, ..made };
        let findings = lint(&view, &policy, &mut plan);
        assert_eq!(findings.iter().map(|finding| finding.property).collect::<Vec<_>>(), ["S10"], "{sentence}");
        assert_eq!(plan, report, "{sentence}: only the report is left");
    }
}

#[test]
fn slots_that_a_plan_or_its_status_alone_changes_are_found_beside_earlier_operator() {
    for in_plan in [true, false] {
        let (mut view, policy) = world(json!({"maxUnavailable": 3}), false);
        view.earlier_pods = vec!["old/agent".into()];
        let mut status = view.operator.as_ref().unwrap().status.clone();
        let changed = slots(&["b"]).slots;
        if !in_plan {
            status.slots = changed.clone().unwrap();
        }
        let plan = Plan { slots: changed.filter(|_| in_plan), status: Some(status), ..Plan::default() };
        assert_eq!(broken(&view, &policy, plan), Some("S10"), "in the plan: {in_plan}");
    }
}

#[test]
fn properties_are_those_of_the_docs_and_all_that_a_finding_names() {
    let docs = include_str!("../../../docs/testing.md");
    for property in PROPERTIES {
        let documented = [format!("\n| {property} |"), format!("\n{property} is a property")];
        assert!(documented.iter().any(|row| docs.contains(row)), "docs/testing.md has no {property}");
    }
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| S")?.split(" |").next()?.parse::<usize>().ok());
    assert_eq!(rows.max().map(|last| format!("S{last}")).as_deref(), PROPERTIES.last().copied());
    let source = include_str!("../lint.rs").split("pub struct Finding").nth(1).unwrap();
    let texts = source.split('"').skip(1).step_by(2);
    let is_number = |text: &&str| text.strip_prefix('S').is_some_and(|number| number.parse::<u8>().is_ok());
    let named: Vec<_> = texts.filter(is_number).collect();
    assert!(named.len() > 20 && named.iter().all(|name| PROPERTIES.contains(name)), "{named:?}");
}

#[test]
fn validator_drops_a_deletion_that_a_known_budget_blocks_where_policy_waits_for_guarded_pods() {
    let lets_go = || BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        allowed: 1,
        healthy: 3,
        desired: 2,
        expected: 3,
        selector: Some(kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("app".into())])),
        ..BudgetFacts::default()
    };
    let case = |sentence: &str, guarded_pods: &str, begun: bool, budget: BudgetFacts, expected: Option<&str>| {
        let mut node = at("a", Step::Draining, 0, HostState::StagedUpdate);
        node.pods = Some(vec![PodFacts { ready: true, ..pod("a", false) }]);
        let shadow = node.shadow.as_mut().unwrap();
        let forced = || DrainStatus { forced_since: Some(t(60)), ..DrainStatus::default() };
        shadow.status.controller.drain = Some(if begun { forced() } else { DrainStatus::default() });
        let mut status = shadow.status.controller_status();
        status.report.drain = Some(forced());
        let (mut view, _) = cluster(vec![node], &["a"]);
        view.budgets = vec![budget];
        let drain = json!({"atDeadline": "Force", "guardedPods": guarded_pods});
        let policy = crate::fixtures::with_policy(&mut view, json!({"drain": drain}));
        let findings = lint(&view, &policy, &mut acts("a", Action::Status { status: Box::new(status), note: None }));
        assert_eq!(findings.first().map(|finding| finding.property), expected, "{sentence}: {findings:?}");
    };
    let broken = || BudgetFacts { allowed: 0, healthy: 2, ..lets_go() };
    case("it lets the pod go", "Wait", false, lets_go(), None);
    case("a pod of it is broken", "Wait", false, broken(), Some("S13"));
    case("it guards the pod", "Wait", false, BudgetFacts { allowed: 0, ..lets_go() }, Some("S13"));
    case("its numbers are of an earlier spec", "Wait", false, BudgetFacts { stale: true, ..lets_go() }, Some("S13"));
    case("policy does not wait", "Ask", false, broken(), None);
    case("the deletion has begun", "Wait", true, broken(), None);
}

/// A graceful shutdown renews the Lease of its node, and ends in a reboot.
#[test]
fn release_of_node_that_may_be_shutting_down_is_dropped() {
    type Change = fn(&mut NodeView);
    // A permit that is written, and not recorded yet.
    fn written(node: &mut NodeView, state: HostState) {
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.controller.progress.as_mut().unwrap().permit_issued = false;
        (shadow.spec.state, shadow.spec.boot_id) = (state, Some("b1".into()));
        shadow.spec.permit = Some(models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
    }
    let case = |sentence: &str, expected: bool, change: Change| {
        let mut node = at("a", Step::Releasing, 0, HostState::Idle);
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().permit_issued = true;
        node.facts.ready = false;
        change(&mut node);
        let (view, policy) = cluster(vec![node], &["a"]);
        let mut plan = Plan::default();
        plan.actions.insert("a".into(), Action::Release);
        let found = lint(&view, &policy, &mut plan);
        assert_eq!((found.is_empty(), plan.actions.contains_key("a")), (expected, expected), "{sentence}: {found:?}");
        assert!(found.iter().all(|finding| finding.property == "S9"), "{sentence}");
    };
    case("not Ready in the boot of its permit", false, |_| {});
    case("Ready in it", true, |node| node.facts.ready = true);
    case("in another boot", true, |node| node.facts.boot_id = "b2".into());
    case("without a permit", true, |node| {
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().permit_issued = false;
    });
    case("a permit was written", false, |node| written(node, HostState::RebootedIntoUpdate));
    case("the permit of a drill was written", true, |node| written(node, HostState::RehearsedUpdate));
    case("the permit that was written is for an earlier boot", true, |node| {
        written(node, HostState::RebootedIntoUpdate);
        node.shadow.as_mut().unwrap().spec.boot_id = Some("b0".into());
    });
}
