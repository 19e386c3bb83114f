use std::collections::BTreeMap;
use std::sync::Arc;

use models::operator::{ActiveRollout, BottlerocketUpdateOperatorSpec, KnownVersion, MAX_SLOTS, RolloutLedger};
use models::shadow::{
    AppliedSettings, Armed, ArmedPhase, BottlerocketShadowSpec, DrainStatus, DrainedPod, Drill, Progress,
};
use serde_json::json;

use super::*;
use crate::claims::ClaimFields;
use crate::decision::Eviction;
use crate::fixtures::{
    NEW, at, cluster, cluster_with, fallen_back, first_update, invalid_policy, node, pod, progress, rollout, seen,
    slot, t, with_policy,
};
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
        assert_eq!(broken(&view, &policy, reboot("b", "b1")), property, "{sentence}");
    }
}

/// The slot of a node for its update.
fn slot_of_update(name: &str) -> Slot {
    Slot { update: Some(first_update()), ..slot(name) }
}

/// Under a canary step of one node, with what the plan records of the rollout.
#[test]
fn validator_gives_no_slot_beyond_the_places_of_a_step() {
    for (sentence, ledger, given, broken) in [
        ("the first", (0, 0, 0, 0), vec!["a"], false),
        ("the second beside the first", (0, 0, 0, 0), vec!["a", "c"], true),
        ("the second after one without proof", (0, 1, 0, 0), vec!["a"], true),
        ("the second after a proven one, while it soaks", (1, 0, 0, 0), vec!["a"], true),
        ("the second after a proven one, whose step is passed", (1, 0, 0, 1), vec!["a"], false),
        ("a step that is passed without a proof", (0, 1, 0, 1), vec!["a"], true),
        ("a step whose accepted node is tried again without a proof", (0, 1, 1, 1), vec!["a"], false),
    ] {
        let nodes = ["a", "c"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        let spec = json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": 1}]}});
        let (mut view, policy) = cluster_with(nodes.into(), &[], spec);
        let (proven, unproven, before, passed) = ledger;
        let recorded = RolloutLedger { passed: before, ..Default::default() };
        let recorded = ActiveRollout { ledger: Some(recorded), ..rollout(NEW) };
        view.operator.as_mut().unwrap().status.active_rollouts = vec![recorded];
        let ledger = RolloutLedger { base: 3, proven, unproven, passed, ..Default::default() };
        let active = ActiveRollout { ledger: Some(ledger), ..rollout(NEW) };
        let mut status = view.operator.as_ref().unwrap().status.clone();
        status.active_rollouts = vec![active];
        let slots = given.iter().map(|name| slot_of_update(name)).collect();
        let mut plan = Plan { slots: Some(slots), status: Some(status), ..Plan::default() };
        let found = lint(&view, &policy, &mut plan).iter().any(|finding| finding.property == "S12");
        assert_eq!(found, broken, "{sentence}");
    }
}

/// One place of four is passed; the plan passes three.
#[test]
fn validator_passes_no_canary_step_without_its_soak_and_its_approval() {
    type Change = fn(&mut ActiveRollout);
    let steps = |second: serde_json::Value| json!([{"nodes": 1}, second]);
    let (soak, manual) = (json!({"nodes": 3, "soak": "1h"}), json!({"nodes": 3, "soak": "1h", "approval": "Manual"}));
    let soaked: Change = |recorded| recorded.step_done = Some(t(0));
    let approved: Change = |recorded| (recorded.step_done, recorded.approved) = (Some(t(0)), true);
    let unchanged: Change = |_| {};
    let cases: [(&str, serde_json::Value, Change, i64, bool); 8] = [
        ("policy has no steps", json!([]), soaked, 4, true),
        ("policy has no step above the place", json!([{"nodes": 1}]), soaked, 4, true),
        ("a step without a soak", steps(json!({"nodes": 3})), unchanged, 4, false),
        ("its soak is not recorded", steps(soak.clone()), unchanged, 4, true),
        ("its soak is recorded", steps(soak), soaked, 4, false),
        ("it is not approved", steps(manual.clone()), soaked, 4, true),
        ("it is approved", steps(manual), approved, 4, false),
        ("more nodes have joined after the last one", json!([{"nodes": "10%", "soak": "1h"}]), unchanged, 40, false),
    ];
    for (sentence, steps, change, base, broken) in cases {
        let (mut view, policy) = cluster_with(vec![node("a")], &[], json!({"strategy": {"canary": steps}}));
        let of = |base, passed| {
            let ledger = RolloutLedger { base, passed, proven: 3, ..Default::default() };
            ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }
        };
        let mut recorded = of(4, 1);
        change(&mut recorded);
        let operator = view.operator.as_mut().unwrap();
        operator.status.active_rollouts = vec![recorded.clone()];
        // An approval that is acknowledged stays on the resource.
        operator.approve_step = Some("7/1@earlier".into());
        operator.status.requests.get_or_insert_default().approve_step.clone_from(&operator.approve_step);
        let mut status = operator.status.clone();
        status.active_rollouts = vec![of(base, 3)];
        let mut plan = Plan { status: Some(status), ..Plan::default() };
        let found = lint(&view, &policy, &mut plan).iter().any(|finding| finding.property == "S12");
        assert_eq!(found, broken, "{sentence}");
        let left = plan.status.unwrap().active_rollouts;
        assert_eq!(left == [recorded], broken, "{sentence}: what is recorded stays");
    }
}

/// The plan that passes a step of three gives the next slot. The soak of an hour began at 0 s.
#[test]
fn validator_gives_no_slot_by_a_step_that_still_soaks() {
    for (second, urgent_until, broken) in [(3599, None, true), (3600, None, false), (60, Some(t(9000)), false)] {
        let (mut view, _) = cluster(vec![node("a")], &[]);
        let canary = json!([{"nodes": 1}, {"nodes": 3, "soak": "1h"}]);
        let policy = with_policy(&mut view, json!({"strategy": {"canary": canary}}));
        let of = |passed| {
            let ledger = RolloutLedger { base: 4, passed, proven: 3, ..Default::default() };
            let rollout = rollout(NEW);
            ActiveRollout { ledger: Some(ledger), step_done: Some(t(0)), urgent_until, ..rollout }
        };
        let operator = view.operator.as_mut().unwrap();
        operator.status.active_rollouts = vec![of(1)];
        let mut status = operator.status.clone();
        status.active_rollouts = vec![of(3)];
        let slots = vec![Slot { since: t(second), ..slot_of_update("a") }];
        let mut plan = Plan { slots: Some(slots), status: Some(status), ..Plan::default() };
        let found = lint(&view, &policy, &mut plan).iter().any(|finding| finding.property == "S12");
        assert_eq!(found, broken, "{second}");
    }
}

/// The rollout began with 300 nodes, of which two have proven the version. A third is given a slot.
#[test]
fn validator_counts_places_among_the_nodes_that_are_left() {
    for (sentence, left, hidden, broken) in
        [("few are left", 8, 0, true), ("most are left", 298, 0, false), ("most cannot be read", 8, 290, false)]
    {
        let nodes = (0..left).map(|number| at(&format!("n{number:03}"), Step::Staged, 0, HostState::StagedUpdate));
        let (mut view, _) = cluster(nodes.collect(), &[]);
        view.unreadable.nodes = (0..hidden).map(|number| (format!("hidden-{number}"), "a field".into())).collect();
        let spec = json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": "10%"}]}});
        let policy = with_policy(&mut view, spec);
        let ledger = RolloutLedger { base: 300, proven: 2, ..Default::default() };
        let active = ActiveRollout { ledger: Some(ledger), ..rollout(NEW) };
        let mut status = view.operator.as_ref().unwrap().status.clone();
        status.active_rollouts = vec![active];
        let slots = vec![slot_of_update("n000")];
        let mut plan = Plan { slots: Some(slots), status: Some(status), ..Plan::default() };
        let found = lint(&view, &policy, &mut plan).iter().any(|finding| finding.property == "S12");
        assert_eq!(found, broken, "{sentence}");
    }
}

#[test]
fn validator_issues_no_permit_before_its_slot_records_it() {
    for (recorded, expected) in [(true, None), (false, Some("S12"))] {
        let node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        let (mut view, policy) = cluster(vec![node], &["a"]);
        if !recorded {
            view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap().permitting_since = None;
        }
        let rules = policy.all.drain.rules_at(t(0));
        let permit = Action::Permit { nonce: "n".into(), rules, pods_stay: false };
        assert_eq!(broken(&view, &policy, acts("a", permit)), expected);
    }
}

#[test]
fn validator_proves_no_version_on_a_held_node_with_the_operators_cordon() {
    for (sentence, held, cordoned, broken) in
        [("held and cordoned", true, true, true), ("held", true, false, false), ("cordoned", false, true, false)]
    {
        let mut verified = at("a", Step::Verifying, 0, HostState::Idle);
        verified.facts.claims = if cordoned { ClaimFields::CORDON } else { ClaimFields::default() };
        verified.facts.hold = held.then(crate::hold::Hold::default);
        let (view, policy) = cluster(vec![verified], &["a"]);
        let mut status = models::shadow::ControllerStatus::default();
        status.report.record = Some(crate::fixtures::updated());
        let mut plan = acts("a", Action::Status { status: Box::new(status), note: None });
        let found = lint(&view, &policy, &mut plan).iter().any(|finding| finding.property == "S12");
        assert_eq!(found, broken, "{sentence}");
    }
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
    plan.actions.insert("b".into(), Action::ReadLease);
    plan.actions.extend(goes_to("c", Step::Staging).actions);
    assert_eq!(lint(&view, &policy, &mut plan).len(), 1);
    assert_eq!(plan.actions, BTreeMap::from([("b".to_owned(), Action::ReadLease)]), "c begins nothing new");

    let mut plan = reboot("a", "b0");
    plan.actions.insert("b".into(), Action::ReadLease);
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
            ..Plan::default()
        };
        assert_eq!(lint(&view, &policy, &mut report), [], "a report");
        status.slots = made.slots.clone().unwrap_or(status.slots);
        let mut plan = Plan { status: Some(status), waits: report.waits.clone(), ..made };
        let findings = lint(&view, &policy, &mut plan);
        assert_eq!(findings.iter().map(|finding| finding.property).collect::<Vec<_>>(), ["S10"], "{sentence}");
        assert_eq!(plan, report, "{sentence}: only the report is left");
    }
}

/// A view whose node `b`, which is drained, is in a drill.
fn in_drill(evict: bool) -> (ClusterView, Policy) {
    let (mut view, policy) = world(json!({}), false);
    let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
    shadow.spec.state = HostState::RehearsedUpdate;
    shadow.status.controller.progress.as_mut().unwrap().drill = Some(Drill { evict, ..Drill::default() });
    (view, policy)
}

#[test]
fn validator_rejects_reboot_and_unrequested_eviction_in_a_drill() {
    let permit = |pods_stay| acts("b", Action::Permit { nonce: "n".into(), rules: Rules::default(), pods_stay });
    let dry_run = || {
        let mut plan = evicts("b", "p-b");
        plan.evictions.get_mut("b").unwrap().dry_run = true;
        plan
    };
    for (sentence, evict, plan, property) in [
        ("a reboot", false, reboot("b", "b1"), Some("S2")),
        ("the wait for a reboot", true, goes_to("b", Step::Returning), Some("S2")),
        ("a rehearsal permit with pods on the node", false, permit(true), None),
        ("that after evictions", true, permit(true), Some("S3")),
        ("a rehearsal permit", true, permit(false), None),
        ("a dry run", false, dry_run(), None),
        ("a dry run where pods are to be evicted", true, dry_run(), Some("S6")),
        ("evictions", true, evicts("b", "p-b"), None),
        ("evictions that were not requested", false, evicts("b", "p-b"), Some("S6")),
        ("deletions", true, deletes("b", "p-b"), Some("S6")),
    ] {
        let (view, policy) = in_drill(evict);
        assert_eq!(broken(&view, &policy, plan), property, "{sentence}");
    }
    let (mut view, policy) = in_drill(false);
    view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().spec.state = HostState::RebootedIntoUpdate;
    let findings = lint(&view, &policy, &mut permit(false));
    assert_eq!(findings.first().map(|finding| finding.property), Some("S2"), "a permit of a reboot");
    let (view, policy) = world(json!({}), false);
    let findings = lint(&view, &policy, &mut permit(true));
    assert_eq!(findings.first().map(|finding| finding.property), Some("S3"), "an update whose pods stay");
}

/// A node `v` that runs its version and is verified again, or is about to be.
fn in_verification(under_way: bool) -> (ClusterView, Policy, Progress) {
    let (mut view, policy) = world(json!({"maxUnavailable": 5}), false);
    let verification = Progress { verification: true, disruptive: false, attempt: 2, ..progress(Step::Verifying, 0) };
    let mut node = node("v");
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    node.shadow.as_mut().unwrap().status.controller.progress = under_way.then(|| verification.clone());
    view.nodes.insert("v".into(), node);
    (view, policy, verification)
}

#[test]
fn validator_rejects_what_takes_a_verified_node_out_of_service() {
    let spec = |state| Action::Spec { spec: Box::new(BottlerocketShadowSpec { state, ..Default::default() }) };
    let permit = || Action::Permit { nonce: "n".into(), rules: Rules::default(), pods_stay: false };
    let claim = || Action::Claim { fields: ClaimFields::CORDON, note: None };
    for (sentence, plan, property) in [
        ("its settings are written", acts("v", spec(HostState::Idle)), None),
        ("hooks are asked", acts("v", Action::Hook { request: Some("AfterUpdate/2/1".into()) }), None),
        ("a desired state", acts("v", spec(HostState::StagedUpdate)), Some("S2")),
        ("a claim", acts("v", claim()), Some("S1")),
        ("a permit", acts("v", permit()), Some("S2")),
        ("an eviction", evicts("v", "p-v"), Some("S6")),
        ("a slot", slots(&["b", "e", "v"]), Some("S1")),
    ] {
        let (mut view, policy, _) = in_verification(true);
        let node = view.nodes.get_mut("v").unwrap();
        node.facts.claims = ClaimFields::default();
        node.pods = Some(vec![pod("v", false)]);
        let mut plan = plan;
        let findings = lint(&view, &policy, &mut plan);
        let found = findings.iter().find(|finding| finding.text.contains("verif"));
        assert_eq!(found.map(|finding| finding.property), property, "{sentence}: {findings:?}");
        assert_eq!(findings.is_empty(), property.is_none(), "{sentence}: {findings:?}");
    }
}

#[test]
fn validator_accepts_a_verification_of_what_an_idle_node_runs_alone() {
    type Change = fn(&mut NodeView, &mut Policy, &mut Progress);
    let case = |sentence: &str, under_way: bool, property: Option<&str>, change: Change| {
        let (mut view, mut policy, mut next) = in_verification(under_way);
        let node = view.nodes.get_mut("v").unwrap();
        change(node, &mut policy, &mut next);
        let plan = acts("v", goes_on(node, next));
        assert_eq!(broken(&view, &policy, plan), property, "{sentence}");
    };
    case("it begins", false, None, |_, _, _| {});
    case("hooks are awaited", true, None, |_, _, next| next.step = Step::AfterUpdate);
    case("it ends", true, None, |_, _, next| next.step = Step::Releasing);
    case("it drains", true, Some("S1"), |_, _, next| next.step = Step::Draining);
    case("it waits for a reboot", true, Some("S1"), |_, _, next| next.step = Step::Returning);
    case("it takes the node out of service", true, Some("S1"), |_, _, next| next.disruptive = true);
    case("it becomes an update", true, Some("S1"), |_, _, next| next.verification = false);
    case("it is of another version", false, Some("S1"), |_, _, next| next.version = crate::fixtures::OLD);
    case("the node is claimed", false, Some("S1"), |node, _, _| node.facts.claims = ClaimFields::CORDON);
    case("under an invalid policy", false, Some("S13"), |_, policy, _| {
        policy.errors = invalid_policy();
    });
    case("a user holds the node", false, Some("S4"), |node, _, _| node.facts.hold = Some(crate::hold::Hold::default()));
}

#[test]
fn validator_rejects_drain_without_answer_of_hooks() {
    let wait = |action: &str| json!({"hooks": [{"name": "ceph", "before": {"timeout": "60s", "onTimeout": action}}]});
    let request = || crate::hooks::request(&progress(Step::BeforeDrain, 0)).unwrap();
    let (after, earlier) = (json!({"hooks": [{"name": "ceph", "after": {}}]}), Some("BeforeDrain/0/1".to_owned()));
    for (sentence, spec, step, answer, since, next, accepted) in [
        ("answered", wait("Fail"), Step::BeforeDrain, Some(request()), 1, Step::Draining, true),
        ("no hook", json!({}), Step::Staged, None, 1, Step::Draining, true),
        ("not awaited before", after, Step::Staged, None, 1, Step::Draining, true),
        ("the hooks come first", wait("Fail"), Step::Staged, None, 1, Step::BeforeDrain, true),
        ("not asked", wait("Continue"), Step::Staged, None, 60, Step::Draining, false),
        ("no answer", wait("Fail"), Step::BeforeDrain, None, 600, Step::Draining, false),
        ("no answer, a drill", wait("Fail"), Step::BeforeDrain, None, 600, Step::Draining, false),
        ("no answer, a load balancer", wait("Fail"), Step::BeforeDrain, None, 600, Step::LeavingLoadBalancer, false),
        ("an earlier answer", wait("Fail"), Step::BeforeDrain, earlier, 1, Step::Draining, false),
        ("too early", wait("Continue"), Step::BeforeDrain, None, 59, Step::Draining, false),
        ("late, and policy continues", wait("Continue"), Step::BeforeDrain, None, 60, Step::Draining, true),
        ("a drain under way", wait("Fail"), Step::Draining, None, 1, Step::Rebooting, true),
        ("the attempt fails", wait("Fail"), Step::BeforeDrain, None, 60, Step::Releasing, true),
    ] {
        let mut node = at("a", step, 0, HostState::StagedUpdate);
        node.facts.hook_answers = answer.into_iter().map(|answer| ("ceph".to_owned(), answer)).collect();
        let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.available_versions = vec![NEW];
        let (view, policy) = cluster_with(vec![node], &["a"], spec);
        let plan = acts("a", goes_on(&view.nodes["a"], progress(next, since)));
        assert_eq!(broken(&view, &policy, plan), (!accepted).then_some("S11"), "{sentence}");
    }
}

#[test]
fn validator_drops_what_starts_under_an_invalid_policy_and_permits_to_excluded_versions() {
    let findings = |node, excluded: &str, invalid: bool, action: Action| {
        let (mut view, _) = cluster(vec![node], &["a"]);
        let mut policy = with_policy(&mut view, json!({"version": {"exclude": [excluded]}}));
        policy.errors = if invalid { invalid_policy() } else { vec![] };
        let mut plan = acts("a", action);
        let found = lint(&view, &policy, &mut plan).into_iter().map(|finding| finding.property).next();
        assert_eq!(plan.actions.is_empty(), found.is_some());
        found
    };
    let goes_to = |step| {
        let node = at("a", step, 0, HostState::StagedUpdate);
        let action = goes_on(&node, progress(Step::Draining, 0));
        (node, action)
    };
    for (step, invalid, expected) in
        [(Step::Staged, true, Some("S13")), (Step::Staged, false, None), (Step::LeavingLoadBalancer, true, None)]
    {
        let (node, action) = goes_to(step);
        assert_eq!(findings(node, "1.20.5", invalid, action), expected, "{step:?}");
    }
    for (permitted, excluded, expected) in [
        (false, "1.20.5", Some("S13")),
        (false, "1.20.5 on aws-k8s-1.37/x86_64", Some("S13")),
        (false, "1.20.5 on aws-k8s-1.37/aarch64", None),
        (true, "1.20.5", None),
    ] {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![]);
        node.shadow.as_mut().unwrap().spec.permit =
            permitted.then(|| models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
        let rules = Rules::default();
        let permit = Action::Permit { nonce: "m".into(), rules, pods_stay: false };
        assert_eq!(findings(node, excluded, false, permit), expected, "{excluded}, permitted already: {permitted}");
    }
}

#[test]
fn validator_drops_what_leads_to_a_reboot_without_a_usable_policy() {
    for (sentence, step, permitted, next, leads) in [
        ("its drain begins", Step::BeforeDrain, false, Some(Step::Draining), true),
        ("its drain ends", Step::Draining, false, Some(Step::Rebooting), true),
        ("its drain begins again", Step::Rebooting, false, Some(Step::Draining), true),
        ("its reboot is permitted", Step::Rebooting, false, None, true),
        ("its reboot is permitted again", Step::Rebooting, true, None, false),
        ("it is released", Step::Draining, false, Some(Step::Releasing), false),
    ] {
        for (unusable, expected) in [(true, leads.then_some("S13")), (false, None)] {
            let state = if step == Step::Rebooting { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
            let mut node = at("a", step, 0, state);
            let shadow = node.shadow.as_mut().unwrap();
            shadow.spec.permit = permitted.then(|| models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
            let action = match next {
                Some(next) => goes_on(&node, progress(next, 0)),
                None => Action::Permit { nonce: "m".into(), rules: Rules::default(), pods_stay: false },
            };
            let (view, policy) = cluster(vec![node], &["a"]);
            let policy = Policy { unusable, ..policy };
            assert_eq!(broken(&view, &policy, acts("a", action)), expected, "{sentence}, unusable: {unusable}");
        }
    }
}

#[test]
fn validator_drops_what_disrupts_a_node_without_a_usable_policy() {
    let claim = || acts("a", Action::Claim { fields: ClaimFields::USUAL, note: None });
    for (sentence, step, claimed, plan, dropped) in [
        ("its first claim", Step::LeavingLoadBalancer, false, claim(), true),
        ("a claim that is made good", Step::LeavingLoadBalancer, true, claim(), false),
        ("what protects it after its reboot", Step::Verifying, false, claim(), false),
        ("evictions", Step::Draining, true, evicts("a", "p-a"), true),
        ("the desired reboot", Step::Rebooting, true, reboot("a", "b1"), true),
        ("the desired reboot, signed again", Step::Rebooting, true, reboot("a", "b1"), false),
    ] {
        let is_again = sentence.ends_with("again");
        let state = if is_again { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
        let mut node = at("a", step, 0, state);
        node.facts.claims = if claimed { ClaimFields::USUAL } else { ClaimFields::default() };
        node.pods = Some(vec![pod("a", false)]);
        let drain = DrainStatus { pods: [listed("p-a")].into(), ..DrainStatus::default() };
        node.shadow.as_mut().unwrap().status.controller.drain = Some(drain);
        let (view, policy) = cluster(vec![node], &["a"]);
        for (unusable, expected) in [(true, dropped.then_some("S13")), (false, None)] {
            let policy = Policy { unusable, ..policy.clone() };
            let mut plan = plan.clone();
            let findings = lint(&view, &policy, &mut plan);
            let found = findings.first().map(|finding| finding.property);
            assert_eq!(found, expected, "{sentence}, unusable: {unusable}: {findings:?}");
            assert_eq!(plan.actions.is_empty() && plan.evictions.is_empty(), expected.is_some(), "{sentence}");
        }
    }
}

#[test]
fn validator_drops_a_drain_that_a_known_budget_blocks() {
    let selector = || kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("app".into())]);
    let budget = || BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy: 2,
        desired: 2,
        expected: 3,
        selector: Some(selector()),
        ..BudgetFacts::default()
    };
    let counted = || BudgetFacts { healthy: 3, allowed: 1, ..budget() };
    let uncounted = || BudgetFacts { sync_error: Some("no scale".into()), allowed: 0, ..counted() };
    let guards = || BudgetFacts { allowed: 0, ..counted() };
    let node_with = |pod: PodFacts, step: Step| {
        let mut node = at("a", step, 0, HostState::StagedUpdate);
        node.pods = Some(vec![PodFacts { ready: true, ..pod }]);
        cluster(vec![node], &["a"]).0
    };
    let begins = |mut view: ClusterView, budget: BudgetFacts, forced: bool| {
        view.budgets = vec![budget];
        let at_deadline = if forced { "Force" } else { "Release" };
        let drain = json!({"atDeadline": at_deadline, "guardedPods": "Wait", "markedPods": "Wait"});
        let policy = with_policy(&mut view, json!({"drain": drain}));
        broken(&view, &policy, acts("a", goes_on(&view.nodes["a"], progress(Step::Draining, 0))))
    };
    let (mirror, marked) = (PodFacts { mirror: true, ..pod("a", false) }, PodFacts { marked: true, ..pod("a", false) });
    for (sentence, pod, budget) in [
        ("a static pod, which ends with the reboot", mirror, budget()),
        ("a pod that is marked as not to be moved", marked, counted()),
    ] {
        for forced in [false, true] {
            let found = begins(node_with(pod.clone(), Step::Staged), budget.clone(), forced);
            assert_eq!(found, Some("S13"), "{sentence}, {forced}");
        }
    }
    for (sentence, budget, step, forced, expected) in [
        ("a pod of it is broken", budget(), Step::Staged, false, Some("S13")),
        ("after its hooks have answered", budget(), Step::BeforeDrain, false, Some("S13")),
        ("after it has left its load balancers", budget(), Step::LeavingLoadBalancer, false, Some("S13")),
        ("during the drain, the API server answers", budget(), Step::Draining, false, None),
        ("policy deletes what stays", budget(), Step::Staged, true, None),
        ("its pods are healthy", counted(), Step::Staged, false, None),
        ("it guards a pod, and policy waits", guards(), Step::Staged, false, Some("S13")),
        ("it guards a pod, and policy waits and deletes what stays", guards(), Step::Staged, true, Some("S13")),
        ("its pods cannot be counted", uncounted(), Step::Staged, false, Some("S13")),
    ] {
        assert_eq!(begins(node_with(pod("a", false), step), budget, forced), expected, "{sentence}");
    }
    for step in [Step::Staged, Step::BeforeDrain, Step::LeavingLoadBalancer] {
        let mut view = node_with(pod("a", false), step);
        view.nodes.get_mut("a").unwrap().facts.ready = false;
        assert_eq!(begins(view, counted(), false), Some("S13"), "not Ready, {step:?}");
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

/// A graceful shutdown renews the Lease of its node, and ends in a reboot.
#[test]
fn release_of_node_that_may_be_shutting_down_is_dropped() {
    type Change = fn(&mut NodeView);
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
}
