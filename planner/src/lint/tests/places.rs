//! Places of canary steps, and what a slot records.

use models::operator::{ActiveRollout, LedgerNode, RolloutLedger};
use models::reason::Proof;
use serde_json::json;

use super::*;
use crate::claims::ClaimFields;
use crate::fixtures::{NEW, at, cluster, cluster_with, first_update, node, rollout, slot, t, with_policy};

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
        // An earlier rollout of the version has used up its place, and has passed it.
        let earlier = RolloutLedger { base: 3, unproven: 1, passed: 1, ..Default::default() };
        let earlier = ActiveRollout { ended: Some(t(0)), ledger: Some(earlier), ..rollout(NEW) };
        view.operator.as_mut().unwrap().status.active_rollouts = vec![earlier.clone(), recorded];
        let ledger = RolloutLedger { base: 3, proven, unproven, passed, ..Default::default() };
        let active = ActiveRollout { ledger: Some(ledger), ..rollout(NEW) };
        let mut status = view.operator.as_ref().unwrap().status.clone();
        status.active_rollouts = vec![earlier, active];
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
    let accepted: Change = |recorded| (recorded.step_done, recorded.approved_step) = (Some(t(0)), Some(2));
    let unchanged: Change = |_| {};
    let case = |sentence: &str, steps: serde_json::Value, base: i64, broken: bool, change: Change| {
        let mut a = node("a");
        if !sentence.ends_with("none runs it") {
            a.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        }
        let (mut view, policy) = cluster_with(vec![a], &[], json!({"strategy": {"canary": steps}}));
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
    };
    case("policy has no steps", json!([]), 4, true, soaked);
    case("policy has no step above the place", json!([{"nodes": 1}]), 4, true, soaked);
    case("a step without a soak", steps(json!({"nodes": 3})), 4, false, unchanged);
    case("a step without a soak, and none runs it", steps(json!({"nodes": 3})), 4, false, unchanged);
    case("its soak is not recorded", steps(soak.clone()), 4, true, unchanged);
    case("its soak is recorded", steps(soak.clone()), 4, false, soaked);
    case("its soak is recorded, and none runs it", steps(soak.clone()), 4, true, soaked);
    case("a user has approved it all the same, and none runs it", steps(soak.clone()), 4, false, approved);
    case("places of it are accepted, and none runs it", steps(soak.clone()), 4, false, accepted);
    case("places of another one are accepted, and none runs it", steps(soak), 4, true, |recorded| {
        (recorded.step_done, recorded.approved_step) = (Some(t(0)), Some(1));
    });
    case("it is not approved", steps(manual.clone()), 4, true, soaked);
    case("it is approved", steps(manual.clone()), 4, false, approved);
    case("it is approved, and none runs it", steps(manual), 4, false, approved);
    case("more nodes have joined after the last one", json!([{"nodes": "10%", "soak": "1h"}]), 40, false, unchanged);
}

/// The plan that passes a step of three gives the next slot. The soak of an hour began at 0 s.
#[test]
fn validator_gives_no_slot_by_a_step_that_still_soaks() {
    for (second, urgent_until, broken) in [(3599, None, true), (3600, None, false), (60, Some(t(9000)), false)] {
        let mut updated = node("b");
        updated.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        let (mut view, _) = cluster(vec![node("a"), updated], &[]);
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
    for (sentence, left, hidden, late, broken) in [
        ("few are left", 8, 0, 0, true),
        ("most are left", 298, 0, 0, false),
        ("most cannot be read", 8, 290, 0, false),
        ("most came with a later version", 8, 0, 290, true),
    ] {
        let nodes = (0..left).map(|number| at(&format!("n{number:03}"), Step::Staged, 0, HostState::StagedUpdate));
        let late = (0..late).map(|number| {
            let mut node = node(&format!("late-{number:03}"));
            node.facts.os_image = "Bottlerocket OS 1.21.0 (aws-k8s-1.37)".into();
            node
        });
        let (mut view, _) = cluster(nodes.chain(late).collect(), &[]);
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

/// Returns whether a plan that records this ledger, and gives these nodes slots, takes nodes beyond the places of a step.
fn is_beyond(view: &ClusterView, policy: &Policy, ledger: RolloutLedger, given: &[&str]) -> bool {
    let mut status = view.operator.as_ref().unwrap().status.clone();
    status.active_rollouts = vec![ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
    let slots = given.iter().map(|name| slot_of_update(name)).collect();
    let mut plan = Plan { slots: Some(slots), status: Some(status), ..Plan::default() };
    lint(view, policy, &mut plan).iter().any(|finding| finding.property == "S12")
}

/// The rollout began with 300 nodes. Two that have proven the version are gone, and a third is given a slot; 17 others lack the version.
#[test]
fn validator_counts_each_node_that_is_left_once_and_of_those_with_the_version_one_that_is_on_its_way() {
    for (sentence, on_its_way, broken) in
        [("one runs the version", false, true), ("and another one is being verified on it", true, false)]
    {
        let runs = |mut node: NodeView| {
            node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
            node
        };
        let left = (0..18).map(|number| at(&format!("n{number:03}"), Step::Staged, 0, HostState::StagedUpdate));
        let verifying = on_its_way.then(|| runs(at("v", Step::Verifying, 0, HostState::RebootedIntoUpdate)));
        let (mut view, _) = cluster(left.chain([runs(node("r"))]).chain(verifying).collect(), &[]);
        let spec = json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": "10%"}]}});
        let policy = with_policy(&mut view, spec);
        let ledger = RolloutLedger { base: 300, proven: 2, ..Default::default() };
        assert_eq!(is_beyond(&view, &policy, ledger, &["n000"]), broken, "{sentence}");
    }
}

/// One node has proven the version, which is enough for a quarter of the three that are known to lack it, or did.
#[test]
fn validator_counts_no_node_of_an_unknown_version_for_a_step_that_is_passed() {
    let unknown = |name: &str| {
        let mut node = node(name);
        node.facts.os_image = "Bottlerocket OS".into();
        node.shadow.as_mut().unwrap().status.agent.current_version = None;
        node
    };
    let staged = ["a", "c"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
    let (mut view, _) = cluster(staged.into_iter().chain(["u", "w"].map(unknown)).collect(), &[]);
    let canary = json!([{"nodes": "25%"}, {"nodes": "100%"}]);
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5, "strategy": {"canary": canary}}));
    let ledger = RolloutLedger { base: 8, proven: 1, passed: 2, ..Default::default() };
    assert!(!is_beyond(&view, &policy, ledger, &["a", "c"]));
}

/// One node has proven the version, and with it a step of a tenth is passed that had one place, since few nodes were left.
#[test]
fn validator_keeps_the_places_of_a_step_unless_many_more_nodes_are_left_or_its_share_has_grown() {
    for (sentence, before, (base, share), left, given, broken) in [
        ("two places would be due now", (20, 2), (20, 2), 14, 2, false),
        ("three would", (30, 3), (30, 3), 24, 3, true),
        ("its share was smaller", (10, 1), (20, 2), 14, 2, true),
    ] {
        let names: Vec<String> = (0..left).map(|number| format!("n{number:03}")).collect();
        let nodes = names.iter().map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        let (mut view, _) = cluster(nodes.collect(), &[]);
        let spec = json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": "10%"}]}});
        let policy = with_policy(&mut view, spec);
        let ledger = RolloutLedger { base: before.0, share: before.1, due: 1, proven: 1, ..Default::default() };
        view.operator.as_mut().unwrap().status.active_rollouts =
            vec![ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
        let ledger = RolloutLedger { base, proven: 1, passed: share, ..Default::default() };
        let given: Vec<&str> = names.iter().take(given).map(String::as_str).collect();
        assert_eq!(is_beyond(&view, &policy, ledger, &given), broken, "{sentence}");
    }
}

/// One of its two nodes has ended without a proof, beside many nodes of another kind.
#[test]
fn validator_judges_a_brake_by_the_nodes_of_its_kind() {
    let other = |number: usize| {
        let mut node = node(&format!("y{number}"));
        node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        node
    };
    let own = [at("a", Step::Staged, 0, HostState::StagedUpdate), node("x")];
    let (view, policy) = cluster(own.into_iter().chain((0..8).map(other)).collect(), &[]);
    let (proof, reason) = (Proof::Free, "AgentSilent".to_owned());
    let row = vec![LedgerNode { node: "x".into(), proof, reason, accepted: false, before_proof: false }];
    let ledger = RolloutLedger { base: 2, proven: 1, row, braked_until: Some(t(600)), ..Default::default() };
    let mut status = view.operator.as_ref().unwrap().status.clone();
    status.active_rollouts = vec![ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
    let plan = Plan { slots: Some(vec![slot_of_update("a")]), status: Some(status), ..Plan::default() };
    assert_eq!(broken(&view, &policy, plan), Some("S13"));
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

/// Node `a` gets a slot under a canary step of one node; the ledger has one place used up, and the plan passes so many.
#[test]
fn validator_counts_the_places_that_nodes_and_slots_use_up() {
    fn places(view: &mut ClusterView, name: &str, proof: Proof) {
        let mut record = crate::fixtures::updated();
        let own = record.proof.as_mut().unwrap();
        (own.proof, own.rollout) = (proof, 8);
        view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().status.controller.record = Some(record);
    }
    fn gone(change: fn(&mut models::operator::SlotUpdate)) -> Slot {
        let mut slot = slot_of_update("gone");
        change(slot.update.as_mut().unwrap());
        slot
    }
    type Change = fn(&mut ClusterView, &mut Vec<Slot>, &mut RolloutLedger);
    let case = |sentence: &str, broken: bool, change: Change| {
        let nodes = ["a", "c"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        let spec = json!({"maxUnavailable": 5, "strategy": {"canary": [{"nodes": 1}]}});
        let (mut view, policy) = cluster_with(nodes.into(), &[], spec);
        let mut slots = vec![slot_of_update("a")];
        let mut ledger = RolloutLedger { base: 3, ..Default::default() };
        change(&mut view, &mut slots, &mut ledger);
        view.operator.as_mut().unwrap().status.active_rollouts =
            vec![ActiveRollout { ledger: Some(RolloutLedger { passed: 0, ..ledger.clone() }), ..rollout(NEW) }];
        let mut status = view.operator.as_ref().unwrap().status.clone();
        status.active_rollouts = vec![ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
        let mut plan = Plan { slots: Some(slots), status: Some(status), ..Plan::default() };
        let found = lint(&view, &policy, &mut plan);
        let found: Vec<_> = found.iter().filter(|finding| finding.text.contains("places")).collect();
        assert_eq!(!found.is_empty(), broken, "{sentence}: {found:?}");
    };
    case("its place is the first", false, |_, _, _| {});
    case("the place is used up", true, |_, _, ledger| ledger.unproven = 1);
    case("more are used up, and it has one of them", false, |view, _, ledger| {
        ledger.unproven = 2;
        places(view, "a", Proof::Unproven);
    });
    case("a node uses the place up that the ledger has not counted yet", true, |view, _, _| {
        places(view, "c", Proof::Unproven);
    });
    case("a slot of the rollout uses it up", true, |_, slots, _| slots.push(gone(|_| {})));
    case("the node of that slot had a place", false, |_, slots, _| {
        slots.push(gone(|update| update.had = Some(Proof::Unproven)));
    });
    case("that slot is of another rollout", false, |_, slots, _| {
        slots.push(gone(|update| update.arch = "aarch64".into()));
    });
    case("a node has proven the version, and the step is passed", false, |view, _, ledger| {
        ledger.passed = 1;
        places(view, "c", Proof::Proven);
    });
}
