//! The ledger of a rollout: which ends use up a place, what passes a step, and what survives of it.

use models::operator::{ActiveRollout, LedgerNode, NOT_READY, RolloutLedger, RolloutRecord, Slot};
use models::reason::{FailureReason, Proof};
use models::shadow::{ArmedPhase, HostState, NodeProof, Permit, Step};
use serde_json::json;

use crate::fixtures::*;
use crate::plan::{Plan, ShadowChange, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

/// A node with a place in the rollout of this number.
pub(super) fn with_place(name: &str, proof: Proof, rollout: i64) -> NodeView {
    let mut node = runs(node(name), proof != Proof::Failed);
    let reason = if proof == Proof::Proven { "Updated" } else { "HookTimedOut" }.to_owned();
    let mut record = updated();
    record.last.as_mut().unwrap().reason.clone_from(&reason);
    record.proof = Some(NodeProof { version: NEW, rollout, attempt: 1, proof, reason });
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
    node
}

/// The node, which runs the new version, or the old one.
pub(super) fn runs(mut node: NodeView, new: bool) -> NodeView {
    let version = if new { NEW } else { OLD };
    node.facts.os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
    let agent = &mut node.shadow.as_mut().unwrap().status.agent;
    agent.current_version = Some(version);
    if new {
        agent.updates.as_mut().unwrap().chosen_version = None;
    }
    node
}

pub(super) fn staged(name: &str) -> NodeView {
    at(name, Step::Staged, 0, HostState::StagedUpdate)
}

/// A node that has used up a place.
pub(super) fn entry(node: &str, proof: Proof, reason: &str) -> LedgerNode {
    LedgerNode { node: node.into(), proof, reason: reason.into(), accepted: false, before_proof: false }
}

/// A ledger of two nodes, of which `a` has used up the place of the first step by a failure.
fn a_failed() -> RolloutLedger {
    let nodes = vec![entry("a", Proof::Failed, "SoakFailed")];
    RolloutLedger { base: 2, due: 1, failed: 1, nodes, ..RolloutLedger::default() }
}

/// Rollout 7, with this ledger.
pub(super) fn recorded_with(view: &mut ClusterView, ledger: Option<RolloutLedger>) {
    let rollout = ActiveRollout { record: Some(recorded(7)), ledger, ..rollout(NEW) };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout];
}

pub(super) fn slots_of(made: &Plan) -> Vec<&str> {
    made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect()
}

pub(super) fn ledger(made: &Plan) -> &RolloutLedger {
    let rollouts = &made.status.as_ref().unwrap().active_rollouts;
    rollouts.iter().find(|rollout| rollout.version == NEW && rollout.ended.is_none()).unwrap().ledger.as_ref().unwrap()
}

fn counts(made: &Plan) -> (i64, i64, i64) {
    let ledger = ledger(made);
    (ledger.proven, ledger.unproven, ledger.failed)
}

pub(super) fn canary(view: &mut ClusterView, steps: &serde_json::Value) -> Policy {
    with_policy(view, json!({"maxUnavailable": 5, "strategy": {"canary": steps}}))
}

#[test]
fn place_of_a_step_is_used_up_however_its_node_has_ended_and_proof_alone_passes_it() {
    let manual = json!([{"nodes": 1, "approval": "Manual"}]);
    let soak = json!([{"nodes": 1}]);
    for (sentence, steps, first, expected) in [
        ("it was never taken to the version", &manual, None, "slot"),
        ("proven, and a user has to approve", &manual, Some(Proof::Proven), "CanaryStep"),
        ("proven", &soak, Some(Proof::Proven), "slot"),
        ("a hook was silent afterwards", &manual, Some(Proof::Unproven), "StepUnproven"),
        ("the same, and the policy asks for no approval", &soak, Some(Proof::Unproven), "StepUnproven"),
        ("a word of a newer version", &soak, Some(Proof::Unknown), "StepUnproven"),
        ("it failed", &soak, Some(Proof::Failed), "StepFailed"),
    ] {
        let first = first.map_or_else(|| runs(node("a"), true), |proof| with_place("a", proof, 7));
        let (mut view, _) = cluster(vec![first, staged("b"), node("c")], &[]);
        recorded_with(&mut view, None);
        let policy = canary(&mut view, steps);
        let made = plan(&view, &policy, t(60));
        let found = if slots_of(&made) == ["b"] { "slot" } else { made.waits.get("b").map_or("nothing", Wait::as_str) };
        assert_eq!(found, expected, "{sentence}: {:?}", made.waits);
    }
}

#[test]
fn end_of_an_attempt_records_its_place() {
    let nonce = || Some(Permit { nonce: "n".into(), jws: "x".into() });
    let hook = |node: &mut NodeView, reason| {
        let failure = models::shadow::Failure {
            attempt: 1,
            step: HostState::RebootedIntoUpdate,
            reason,
            message: String::new(),
            time: t(1),
        };
        node.shadow.as_mut().unwrap().status.agent.failure = Some(failure);
    };
    let released = |node: &mut NodeView| node.shadow.as_mut().unwrap().release = Some("now".into());
    let rebooting = |permit: Option<Permit>| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.shadow.as_mut().unwrap().spec.permit = permit;
        node
    };
    let in_boot = |mut node: NodeView, boot: &str| {
        node.facts.boot_id = boot.into();
        node
    };
    let draining = || at("a", Step::Draining, 0, HostState::StagedUpdate);
    let verifying = || {
        let mut node = in_boot(runs(at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate), true), "b2");
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().boot_id = "b2".into();
        node
    };
    for (sentence, mut node, change, expected) in [
        ("released in its drain", draining(), &released as &dyn Fn(&mut NodeView), None),
        ("released before its permit", rebooting(None), &released, None),
        ("released with a permit that its host may act on", rebooting(nonce()), &released, Some(Proof::Unproven)),
        ("released while it is verified", verifying(), &released, Some(Proof::Unproven)),
        (
            "back on the old version, the agent says why",
            in_boot(rebooting(nonce()), "b2"),
            &|node| hook(node, FailureReason::RebootedByOther),
            None,
        ),
        (
            "back on the old version, which is the image's fault",
            in_boot(rebooting(nonce()), "b2"),
            &|node| hook(node, FailureReason::BootFellBack),
            Some(Proof::Failed),
        ),
    ] {
        change(&mut node);
        let (mut view, policy) = cluster(vec![node], &["a"]);
        recorded_with(&mut view, None);
        let policy = Policy { present: true, ..policy };
        let made = plan(&view, &policy, t(5));
        let record = record_of(&made);
        assert_eq!(record.proof.as_ref().map(|proof| proof.proof), expected, "{sentence}: {:?}", record.last);
        assert!(record.proof.as_ref().is_none_or(|proof| (proof.rollout, proof.attempt) == (7, 1)), "{sentence}");
    }
}

/// The label may come after the slot, and the Node may be deleted while its machine reboots.
#[test]
fn slot_learns_that_its_node_is_of_the_control_plane() {
    let (mut view, policy) = cluster(vec![at("a", Step::Draining, 0, HostState::StagedUpdate)], &["a"]);
    let labels = [(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())];
    view.nodes.get_mut("a").unwrap().facts.labels = std::sync::Arc::new(labels.into());
    assert!(!view.operator.as_ref().unwrap().status.slots[0].update.as_ref().unwrap().control_plane);
    assert!(plan(&view, &policy, t(5)).slots.unwrap()[0].update.as_ref().unwrap().control_plane);
}

#[test]
fn permit_is_issued_once_its_slot_records_it() {
    let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    node.shadow.as_mut().unwrap().status.agent.armed = Some(armed(ArmedPhase::Arming));
    let (mut view, policy) = cluster(vec![node], &["a"]);
    let policy = Policy { present: true, ..policy };
    view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap().permitting_since = None;
    let made = plan(&view, &policy, t(5));
    assert_eq!(outcome(&made), "Acting");
    let slots = made.slots.unwrap();
    assert_eq!(slots[0].update.as_ref().unwrap().permitting_since, Some(t(5)), "recorded first");
    view.operator.as_mut().unwrap().status.slots = slots;
    assert_eq!(outcome(&plan(&view, &policy, t(6))), "permit for n");
}

#[test]
fn attempt_that_ends_before_its_permit_records_none() {
    for (sentence, issued, expected) in [("no permit", false, None), ("a permit", true, Some(t(5)))] {
        let mut node = at("a", Step::Releasing, 0, HostState::StagedUpdate);
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().permit_issued = issued;
        let (mut view, policy) = cluster(vec![node], &["a"]);
        view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap().permitting_since = None;
        let made = plan(&view, &policy, t(5));
        let slots = made.slots.as_deref().unwrap_or(&view.operator.as_ref().unwrap().status.slots);
        assert_eq!(slots[0].update.as_ref().unwrap().permitting_since, expected, "{sentence}");
    }
}

/// Without its shadow, the slot of a node that left the operator would pass for that of a machine that may still reboot: for an hour.
#[test]
fn shadow_of_unlabelled_node_stays_until_its_slot_is_taken_away() {
    let (mut view, policy) = cluster(vec![at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate)], &["a"]);
    let mut left = with_place("a", Proof::Free, 7);
    left.facts.labelled = false;
    view.nodes.insert("a".into(), left);
    let made = plan(&view, &policy, t(5));
    assert_eq!((made.slots.as_deref(), made.shadows.as_slice()), (Some(&[][..]), &[][..]));
    view.operator.as_mut().unwrap().status.slots.clear();
    assert!(matches!(plan(&view, &policy, t(6)).shadows.as_slice(), [ShadowChange::Delete { .. }]));
}

#[test]
fn slot_that_is_taken_away_is_counted_in_the_same_write() {
    let (mut view, _) = cluster(vec![at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate), staged("b")], &["a"]);
    recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 1, ..RolloutLedger::default() }));
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    for (sentence, proof, expected) in [
        ("proven", Some(Proof::Proven), (1, 0, 0)),
        ("not proven", Some(Proof::Unproven), (0, 1, 0)),
        ("failed", Some(Proof::Failed), (0, 0, 1)),
        ("never taken to the version", None, (0, 0, 0)),
    ] {
        let mut ended = with_place("a", proof.unwrap_or(Proof::Free), 7);
        if proof.is_none() {
            ended = runs(ended, false);
            ended.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap().proof = None;
        }
        view.nodes.insert("a".into(), ended);
        let made = plan(&view, &policy, t(60));
        assert_eq!(made.slots.as_deref().map(<[Slot]>::len), Some(0), "{sentence}: the slot is taken away");
        assert_eq!(counts(&made), expected, "{sentence}");
        // It is counted once, by whichever leader plans next.
        let mut next = view.clone();
        next.operator.as_mut().unwrap().status = made.status.unwrap();
        assert_eq!(counts(&plan(&next, &policy, t(61))), expected, "{sentence}: once");
    }
}

/// The machine was taken back to the old version and is updated again, or another one has the name.
#[test]
fn update_of_a_node_that_had_fallen_takes_the_place_that_is_counted_under_its_name() {
    for had in [Some(Proof::Proven), None] {
        let verifying = at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate);
        let (mut view, _) = cluster(vec![verifying, staged("b")], &["a"]);
        let nodes = vec![entry("a", Proof::Unproven, NOT_READY)];
        let stored = RolloutLedger { base: 2, due: 1, unproven: 1, nodes, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap().had = had;
        view.nodes.insert("a".into(), with_place("a", Proof::Proven, 7));
        let made = plan(&view, &policy, t(60));
        assert_eq!((counts(&made), ledger(&made).nodes.len()), ((1, 0, 0), 0), "{had:?}");
    }
}

/// The write that takes away the slot of an updated node is under way, or was lost.
#[test]
fn node_whose_slot_is_being_taken_away_is_counted_once() {
    let (mut view, _) =
        cluster(vec![at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate), staged("b"), staged("c")], &["a"]);
    recorded_with(&mut view, Some(RolloutLedger { base: 4, due: 3, proven: 1, ..RolloutLedger::default() }));
    let policy = canary(&mut view, &json!([{"nodes": 3}]));
    view.nodes.insert("a".into(), with_place("a", Proof::Proven, 7));
    view.retracted.insert("uid-a".into());
    let made = plan(&view, &policy, t(60));
    assert_eq!((counts(&made), slots_of(&made)), ((2, 0, 0), vec!["b"]), "{:?}", made.waits);
}

#[test]
fn node_that_is_gone_after_its_permit_keeps_its_slot_until_its_machine_had_its_time() {
    let (mut view, _) = cluster(vec![at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate), staged("b")], &["a"]);
    recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 1, ..RolloutLedger::default() }));
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    let over = i64::try_from((policy.reboot + policy.returning).as_secs()).unwrap();
    let gone = |permitting: bool| {
        let mut view = view.clone();
        view.nodes.remove("a");
        let slot = &mut view.operator.as_mut().unwrap().status.slots[0];
        slot.update.as_mut().unwrap().permitting_since = permitting.then(|| t(0));
        view
    };
    let made = plan(&gone(false), &policy, t(60));
    assert_eq!((slots_of(&made), counts(&made)), (vec![], (0, 0, 0)), "before the permit its place is free");
    let made = plan(&gone(true), &policy, t(over - 1));
    let wakes = made.wake.is_some_and(|wake| wake <= t(over));
    assert!(made.slots.is_none() && wakes, "it may come back: {:?}", made.slots);
    let made = plan(&gone(true), &policy, t(over));
    assert_eq!((slots_of(&made), counts(&made)), (vec![], (0, 1, 0)), "nothing shows what it has become");
    assert_eq!(ledger(&made).nodes.first().map(|node| node.node.as_str()), Some("a"));
}

#[test]
fn place_of_a_node_that_an_autoscaler_removes_after_its_permit_is_judged_as_it_was_last_seen() {
    for (sentence, boot, ready, expected) in [
        ("it had not gone down", "b1", true, (0, 0, 0)),
        ("it was about to", "b1", false, (0, 1, 0)),
        ("it was in another boot", "b2", true, (0, 1, 0)),
    ] {
        let rebooting = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        let (mut view, _) = cluster(vec![rebooting, staged("b")], &["a"]);
        recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 1, ..RolloutLedger::default() }));
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        let update = view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap();
        (update.boot_id, update.permitting_since) = ("b1".into(), Some(t(0)));
        let facts = &mut view.nodes.get_mut("a").unwrap().facts;
        (facts.removed_by, facts.boot_id) = (Some("karpenter.sh/disrupted".into()), boot.into());
        facts.ready = ready;
        let made = plan(&view, &policy, t(60));
        let slots = &made.status.as_ref().unwrap().slots;
        let seen = if ready { boot } else { "" };
        assert_eq!(slots[0].update.as_ref().unwrap().removed_in.as_deref(), Some(seen), "{sentence}");
        view.operator.as_mut().unwrap().status = made.status.unwrap();
        view.nodes.remove("a");
        let made = plan(&view, &policy, t(61));
        assert_eq!(counts(&made), expected, "{sentence}");
        assert!(!slots_of(&made).contains(&"a"), "{sentence}: its machine is not waited for");
    }
}

#[test]
fn proven_node_that_an_autoscaler_removes_keeps_its_place() {
    // Another one came with the version, and runs it until the end of the soak.
    let (mut view, _) = cluster(vec![staged("b"), staged("c"), runs(node("d"), true)], &[]);
    let ledger = RolloutLedger { base: 3, due: 1, proven: 1, ..RolloutLedger::default() };
    recorded_with(&mut view, Some(ledger));
    let policy = canary(&mut view, &json!([{"nodes": 1, "soak": "1h"}, {"nodes": 2}]));
    let soaking = plan(&view, &policy, t(60));
    assert!(matches!(soaking.waits["b"], Wait::CanaryStep { step: 1, until: Some(until), .. } if until == t(3660)));
    view.operator.as_mut().unwrap().status = soaking.status.unwrap();
    assert_eq!(slots_of(&plan(&view, &policy, t(3660))), ["b"], "the second place");
}

#[test]
fn another_node_takes_the_place_of_a_proven_one_that_is_gone_and_soaks_alone() {
    let (mut view, _) = cluster(vec![staged("b"), staged("c")], &[]);
    let stored = RolloutLedger { base: 3, due: 1, share: 1, proven: 1, ..RolloutLedger::default() };
    recorded_with(&mut view, Some(stored));
    view.operator.as_mut().unwrap().status.active_rollouts[0].step_done = Some(t(0));
    let policy = canary(&mut view, &json!([{"nodes": 1, "soak": "1h"}, {"nodes": 2}]));
    let mut made = plan(&view, &policy, t(3600));
    assert_eq!((slots_of(&made), counts(&made), ledger(&made).passed), (vec!["b"], (0, 0, 0), 0), "{:?}", made.waits);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "its plan is carried out");
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    view.nodes.insert("b".into(), with_place("b", Proof::Proven, 7));
    let mut made = plan(&view, &policy, t(4000));
    let rollout = &made.status.as_ref().unwrap().active_rollouts[0];
    assert_eq!((counts(&made), rollout.steps_passed), ((1, 0, 0), 0), "its slot is taken back");
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    let mut made = plan(&view, &policy, t(4001));
    assert!(matches!(made.waits["c"], Wait::CanaryStep { step: 1, until: Some(until), .. } if until == t(4001 + 3600)));
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    let mut made = plan(&view, &policy, t(4001 + 3600));
    assert_eq!((slots_of(&made), ledger(&made).passed), (vec!["c"], 1));
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
}

/// Node `a` of a variant and architecture with one node has proven the version, and `b` with the old image has taken its place since.
#[test]
fn only_node_of_its_kind_that_takes_the_place_of_an_updated_one_is_updated_without_a_soak_or_a_user() {
    for is_repeated in [false, true] {
        let (mut view, _) = cluster(vec![staged("b")], &[]);
        let stored = RolloutLedger { base: 1, due: 1, share: 1, proven: 1, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        view.operator.as_mut().unwrap().status.active_rollouts[0].soak_repeated = is_repeated;
        let policy = canary(&mut view, &json!([{"nodes": 1, "soak": "24h"}]));
        let mut made = plan(&view, &policy, t(60));
        assert_eq!((slots_of(&made), counts(&made)), (vec!["b"], (0, 0, 0)), "{is_repeated}: {:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{is_repeated}");
    }
}

#[test]
fn ledger_that_is_missing_is_rebuilt_from_the_nodes() {
    let nodes = || vec![with_place("a", Proof::Unproven, 3), staged("b"), node("c")];
    // The operator's resource was made again: numbers begin again, too.
    let (mut view, _) = cluster(nodes(), &[]);
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    assert_eq!(plan(&view, &policy, t(60)).waits["b"].as_str(), "StepUnproven");
    // The version was left for another one since, and comes back: that is another rollout.
    let mut left = ActiveRollout { record: Some(recorded(3)), ..rollout(NEW) };
    left.ended = Some(t(20));
    view.operator.as_mut().unwrap().status.active_rollouts = vec![left];
    assert_eq!(slots_of(&plan(&view, &policy, t(60))), ["b"], "what it has shown before proves nothing");
    // A ledger of before a downgrade, in which another version of the operator went on.
    recorded_with(&mut view, Some(RolloutLedger { base: 3, due: 1, ..RolloutLedger::default() }));
    view.operator.as_mut().unwrap().status.active_rollouts[0].record = Some(recorded(3));
    assert_eq!(plan(&view, &policy, t(60)).waits["b"].as_str(), "StepUnproven");
}

/// Numbers go on in the history where it was not deleted.
#[test]
fn places_before_the_resource_was_made_again_count_where_their_nodes_run_the_version() {
    let left = |rollout| runs(with_place("x", Proof::Proven, rollout), false);
    for (sentence, x, first) in [
        ("all nodes with a place run it", node("x"), 1),
        ("one has left it before the others were taken", left(2), 3),
        ("one has left it since", left(3), 4),
    ] {
        let (mut view, _) = cluster(vec![with_place("a", Proof::Proven, 3), x, staged("b"), node("c")], &[]);
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        view.history.highest = Some(40);
        for second in [60, 61] {
            let made = plan(&view, &policy, t(second));
            assert_eq!((ledger(&made).first, counts(&made)), (first, (1, 0, 0)), "{sentence}");
            view.operator.as_mut().unwrap().status = made.status.unwrap();
        }
        // As one that is proven, it keeps later steps from being passed while it is not Ready.
        let rollout = &view.operator.as_ref().unwrap().status.active_rollouts[0];
        let place = crate::survey::ledger::place(&view.nodes["a"], rollout);
        assert_eq!(place, (first <= 3).then_some(Proof::Proven), "{sentence}");
    }
}

#[test]
fn status_of_an_earlier_version_is_read_with_the_results_that_it_wrote() {
    for (sentence, reason, new, expected) in [
        ("updated", "Updated", true, "slot"),
        ("its hook was silent", "HookTimedOut", true, "StepUnproven"),
        ("its drain took too long", "DrainTimedOut", false, "slot"),
    ] {
        let mut first = runs(node("a"), new);
        let mut record = updated();
        record.proof = None;
        record.last.as_mut().unwrap().reason = reason.into();
        first.shadow.as_mut().unwrap().status.controller.record = Some(record);
        let (mut view, _) = cluster(vec![first, staged("b"), node("c")], &[]);
        recorded_with(&mut view, None);
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        let made = plan(&view, &policy, t(60));
        let found = if slots_of(&made) == ["b"] { "slot" } else { made.waits["b"].as_str() };
        assert_eq!(found, expected, "{sentence}");
    }
}

#[test]
fn user_accepts_nodes_without_proof_by_name() {
    let (mut view, _) = cluster(vec![with_place("a", Proof::Unproven, 7), staged("b"), node("c")], &[]);
    let policy = canary(&mut view, &json!([{"nodes": 1}, {"nodes": 2}]));
    for (value, passes) in [("yes", false), ("7/1@yes", false), ("7/2/unproven@yes", false), ("7/1/unproven@yes", true)]
    {
        recorded_with(&mut view, None);
        view.operator.as_mut().unwrap().approve_step = Some(value.into());
        let made = plan(&view, &policy, t(60));
        assert_eq!(slots_of(&made) == ["b"], passes, "{value}: {:?}", made.waits);
        assert_eq!(ledger(&made).accepted, i64::from(passes), "{value}");
        let rollouts = &made.status.as_ref().unwrap().active_rollouts;
        let approved = rollouts.iter().find_map(|rollout| rollout.approved_step);
        assert_eq!(approved, passes.then_some(1), "{value}: the history says who has accepted it");
        let mut unasked = view.clone();
        unasked.operator.as_mut().unwrap().approve_step = None;
        let before = plan(&unasked, &policy, t(59)).status.unwrap();
        let refused = crate::plan::approval_news(&before, made.status.as_ref().unwrap());
        assert_eq!(refused.map(|note| note.reason), (!passes).then_some("ApprovalRefused"), "{value}");
    }
}

#[test]
fn node_that_has_a_place_takes_no_second_one() {
    let mut again = with_place("a", Proof::Failed, 7);
    let shadow = again.shadow.as_mut().unwrap();
    shadow.status.controller.progress = Some(progress(Step::Staged, 0));
    (shadow.spec.state, shadow.spec.attempt) = (HostState::StagedUpdate, 1);
    (shadow.spec.version, shadow.spec.boot_id) = (Some(NEW), Some("b1".into()));
    shadow.status.agent.state = Some(HostState::StagedUpdate);
    let (mut view, _) = cluster(vec![again, staged("b")], &[]);
    recorded_with(&mut view, Some(a_failed()));
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    let made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), ["a"], "it has one: {:?}", made.waits);
    assert_eq!(made.slots.as_ref().unwrap()[0].update.as_ref().unwrap().had, Some(Proof::Failed));
    // Once it is updated, it moves from one count to the other.
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    view.nodes.insert("a".into(), with_place("a", Proof::Proven, 7));
    let made = plan(&view, &policy, t(120));
    assert_eq!((counts(&made), ledger(&made).nodes.len()), ((1, 0, 0), 0));
}

/// Two zones that take turns; the version of the first waits for a user.
#[test]
fn step_that_waits_takes_no_room_from_others() {
    let zone = |mut node: NodeView, zone: &str| {
        node.facts.labels = std::sync::Arc::new([(models::names::ZONE_LABEL.to_owned(), zone.to_owned())].into());
        node
    };
    let mut other = node("d");
    other.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
    let nodes = vec![with_place("a", Proof::Proven, 7), zone(staged("b"), "x"), zone(other, "y")];
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, None);
    let spec = json!({"strategy": {"oneZoneAtATime": true, "canary": [{"nodes": 1, "approval": "Manual"}]}});
    let policy = with_policy(&mut view, spec);
    let made = plan(&view, &policy, t(60));
    assert_eq!(made.waits["b"].as_str(), "CanaryStep");
    assert!(made.actions.get("d").is_some_and(Plan::starts), "nothing is out of service: {:?}", made.waits.get("d"));
}

#[test]
fn change_of_the_step_due_drops_its_approval() {
    let (mut view, _) = cluster(vec![staged("b"), staged("c"), staged("d")], &[]);
    let soak = |nodes: u32| json!([{"nodes": nodes, "soak": "1h", "approval": "Manual"}]);
    for (before, nodes, approved) in [(1, 1, true), (1, 2, false), (2, 1, false)] {
        let stored = RolloutLedger { base: 4, due: before, proven: before, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        let active = &mut view.operator.as_mut().unwrap().status.active_rollouts[0];
        (active.approved, active.step_done) = (true, Some(t(0)));
        let policy = canary(&mut view, &soak(nodes));
        let made = plan(&view, &policy, t(60));
        assert_eq!(made.status.unwrap().active_rollouts[0].approved, approved, "{before} and {nodes}");
    }
}

#[test]
fn steps_that_an_earlier_version_passed_stay_passed_although_their_nodes_are_gone() {
    // The canary of the first step was removed by an autoscaler; the status has no ledger.
    let (mut view, _) = cluster(vec![staged("b"), staged("c"), node("d")], &[]);
    recorded_with(&mut view, None);
    view.operator.as_mut().unwrap().status.active_rollouts[0].steps_passed = 1;
    let policy = canary(&mut view, &json!([{"nodes": 1}, {"nodes": 2}]));
    let mut made = plan(&view, &policy, t(60));
    assert_eq!((slots_of(&made), counts(&made), ledger(&made).passed), (vec!["b"], (1, 0, 0), 1), "{:?}", made.waits);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "its plan is carried out");
}

#[test]
fn approval_passes_only_what_its_user_has_seen() {
    let manual = json!([{"nodes": 1, "approval": "Manual"}, {"nodes": 2}]);
    for (sentence, first, value, expected) in [
        ("the canary is under way", None, "7/1@x", "CanaryStep"),
        ("it has not proven the version", Some(Proof::Unproven), "7/1@x", "StepUnproven"),
        ("it has failed", Some(Proof::Failed), "7/1/unproven@x", "StepFailed"),
        ("it is proven", Some(Proof::Proven), "7/1@x", "slot"),
        ("one of the names is misspelt", Some(Proof::Proven), "7/1,8/@x", "slot"),
        ("the number of the rollout is another one", Some(Proof::Proven), "6/1@x", "CanaryStep"),
    ] {
        let under_way = || at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate);
        let first = first.map_or_else(under_way, |proof| with_place("a", proof, 7));
        let (mut view, _) = cluster(vec![first, staged("b"), node("c")], &["a"]);
        recorded_with(&mut view, Some(RolloutLedger { base: 3, due: 1, ..RolloutLedger::default() }));
        let policy = canary(&mut view, &manual);
        if view.nodes["a"].progress().is_none() {
            // Its place is counted before the user sees it.
            view.operator.as_mut().unwrap().status = plan(&view, &policy, t(59)).status.unwrap();
        }
        view.operator.as_mut().unwrap().approve_step = Some(value.into());
        let before = view.operator.as_ref().unwrap().status.clone();
        let made = plan(&view, &policy, t(60));
        let found = if slots_of(&made).contains(&"b") { "slot" } else { made.waits["b"].as_str() };
        assert_eq!(found, expected, "{sentence}: {:?}", made.waits);
        let after = made.status.as_ref().unwrap();
        assert!(!after.active_rollouts[0].approved, "{sentence}: nothing is kept for later");
        let refused = crate::plan::approval_news(&before, after).is_some();
        assert_eq!(refused, expected != "slot", "{sentence}: a refusal is an Event");
    }
}

#[test]
fn resume_frees_the_places_of_failures_also_of_nodes_that_are_tried_again() {
    let (mut view, _) = cluster(vec![at("a", Step::Draining, 0, HostState::StagedUpdate), staged("b")], &["a"]);
    recorded_with(&mut view, Some(a_failed()));
    let operator = view.operator.as_mut().unwrap();
    operator.status.slots[0].update.as_mut().unwrap().had = Some(Proof::Failed);
    operator.resume = Some("now".into());
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    let made = plan(&view, &policy, t(60));
    assert_eq!((counts(&made), made.slots.as_ref().unwrap()[0].update.as_ref().unwrap().had), ((0, 0, 0), None));
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    let made = plan(&view, &policy, t(61));
    assert_eq!(made.waits["b"].as_str(), "CanaryStep", "the node that is tried again has the place");
}

/// A user had accepted it without a proof, so that its step was passed.
#[test]
fn resume_makes_no_proof_of_the_place_of_a_failure() {
    let steps = json!([{"nodes": 1}, {"nodes": 3}]);
    for (sentence, proven, passed) in [("nothing is proven", 0, 0), ("another node has proven it", 1, 1)] {
        let (mut view, _) = cluster(vec![staged("b"), staged("c"), staged("d")], &[]);
        let stored = RolloutLedger {
            base: 4,
            passed: 1,
            due: 3,
            proven,
            failed: 1,
            nodes: vec![entry("a", Proof::Failed, "SoakFailed")],
            ..RolloutLedger::default()
        };
        recorded_with(&mut view, Some(stored));
        view.operator.as_mut().unwrap().resume = Some("now".into());
        let policy = canary(&mut view, &steps);
        for now in [60, 61] {
            let made = plan(&view, &policy, t(now));
            let written = ledger(&made);
            assert_eq!((counts(&made), written.passed), ((proven, 0, 0), passed), "{sentence}");
            view.operator.as_mut().unwrap().status = made.status.unwrap();
        }
    }
}

#[test]
fn proof_of_one_node_does_not_pass_on_what_a_user_accepted_of_another() {
    let accepted = |node: &str, accepted| LedgerNode { accepted, ..entry(node, Proof::Unproven, "HookTimedOut") };
    let mut ledger = RolloutLedger { due: 2, unproven: 2, accepted: 1, ..RolloutLedger::default() };
    ledger.nodes = vec![accepted("a", true), accepted("b", false)];
    let mut other = ledger.clone();
    ledger.move_node(Some(Proof::Unproven), ("a", Proof::Proven, "Updated"));
    assert_eq!((ledger.proven, ledger.unproven, ledger.accepted, ledger.open()), (1, 1, 0, 1));
    other.move_node(Some(Proof::Unproven), ("b", Proof::Proven, "Updated"));
    assert_eq!((other.proven, other.unproven, other.accepted, other.open()), (1, 1, 1, 0));
}

#[test]
fn rollout_that_is_resumed_goes_on_with_the_places_of_its_earlier_record() {
    // Record 7 ended when the policy excluded the version for an hour; its canary has proven nothing.
    let (mut view, _) = cluster(vec![with_place("a", Proof::Unproven, 7), staged("b")], &[]);
    let stored = RolloutLedger { first: 7, base: 2, due: 1, unproven: 1, ..RolloutLedger::default() };
    recorded_with(&mut view, Some(stored));
    view.operator.as_mut().unwrap().status.active_rollouts[0].record = Some(recorded(9));
    view.nodes.insert("a".into(), with_place("a", Proof::Proven, 7));
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    let rollouts = crate::survey::Survey::of(&view, &policy, t(60)).rollouts;
    assert!(rollouts.limiting(&view.nodes["a"], &NEW).is_none(), "its canary has a place");
    assert!(rollouts.limiting(&view.nodes["b"], &NEW).is_some());
}

/// The canary had proven the version, and was not Ready any more.
#[test]
fn node_that_had_fallen_and_left_the_version_does_not_return_to_it_past_a_step_that_waits() {
    for (sentence, new, accepted, waits) in [
        ("it runs the version", true, false, false),
        ("a user has taken it back to the old version", false, false, true),
        ("the same, and its place is accepted", false, true, false),
    ] {
        let (mut view, _) = cluster(vec![runs(with_place("a", Proof::Proven, 7), new), staged("b")], &[]);
        let nodes = vec![LedgerNode { accepted, ..entry("a", Proof::Unproven, NOT_READY) }];
        let accepted = i64::from(accepted);
        let stored = RolloutLedger { base: 2, due: 1, unproven: 1, accepted, nodes, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        let rollouts = crate::survey::Survey::of(&view, &policy, t(60)).rollouts;
        assert_eq!(rollouts.limiting(&view.nodes["a"], &NEW).is_some(), waits, "{sentence}");
    }
}

#[test]
fn slot_of_an_earlier_version_hides_no_place() {
    // Its node ended while the earlier version led, which recorded neither the update of a slot nor a place.
    let mut ended = with_place("a", Proof::Unproven, 7);
    ended.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap().proof = None;
    let (mut view, _) = cluster(vec![ended, staged("b")], &["a"]);
    view.operator.as_mut().unwrap().status.slots[0].update = None;
    recorded_with(&mut view, None);
    let policy = canary(&mut view, &json!([{"nodes": 1}]));
    assert_eq!(plan(&view, &policy, t(60)).waits["b"].as_str(), "StepUnproven");
}

#[test]
fn plan_that_breaks_a_property_counts_no_place_twice() {
    let (mut view, _) = cluster(vec![with_place("a", Proof::Proven, 7), staged("b")], &["a"]);
    recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 2, ..RolloutLedger::default() }));
    let policy = canary(&mut view, &json!([{"nodes": 2}]));
    let mut made = plan(&view, &policy, t(60));
    assert_eq!((counts(&made), slots_of(&made)), ((1, 0, 0), vec!["b"]));
    // A bug of the planner: a slot beyond the budget.
    let mut slots = made.slots.clone().unwrap();
    slots.push(Slot { uid: "uid-c".into(), node: "c".into(), ..slots[0].clone() });
    view.nodes.insert("c".into(), staged("c"));
    made.slots = Some(slots);
    let narrow = Policy { max_unavailable: models::operator::CountOrPercent::Count(1), ..policy };
    assert_eq!(crate::lint::lint(&view, &narrow, &mut made).first().map(|found| found.property), Some("S1"));
    let status = made.status.unwrap();
    let recorded = &view.operator.as_ref().unwrap().status;
    assert_eq!((&status.slots, &status.active_rollouts), (&recorded.slots, &recorded.active_rollouts));
}

#[test]
fn node_that_is_released_without_its_reboot_has_no_place() {
    for (sentence, new, expected) in
        [("it runs the old version", false, Some(Proof::Free)), ("it came to the new one", true, Some(Proof::Unproven))]
    {
        let mut node = runs(with_place("a", Proof::Unproven, 7), new);
        let shadow = node.shadow.as_mut().unwrap();
        let mut releasing = progress(Step::Releasing, 0);
        (releasing.permit_issued, releasing.boot_id) = (true, "b0".into());
        shadow.status.controller.progress = Some(releasing);
        let (mut view, policy) = cluster(vec![node, staged("b")], &["a"]);
        recorded_with(&mut view, Some(RolloutLedger { base: 2, ..RolloutLedger::default() }));
        let made = plan(&view, &policy, t(5));
        let record = record_of(&made);
        assert_eq!(record.proof.as_ref().map(|proof| proof.proof), expected, "{sentence}");
    }
}

#[test]
fn rollout_goes_on_while_it_is_not_known_what_its_hosts_may_have() {
    const NEWER: semver::Version = semver::Version::new(1, 20, 6);
    let unknown = |node: &mut NodeView| node.shadow.as_mut().unwrap().status.agent.updates = None;
    let fails = |node: &mut NodeView| {
        let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.refresh_failure = Some("no route".into());
    };
    let newer = |node: &mut NodeView| {
        let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        (updates.chosen_version, updates.available_versions) = (Some(NEWER), vec![NEWER]);
    };
    type Change<'a> = &'a dyn Fn(&mut NodeView);
    for (sentence, change, exclude, ends) in [
        ("its offers are those of another boot", &unknown as Change<'_>, json!([]), false),
        ("the repository is away", &fails, json!([]), false),
        ("it is offered the newer version", &newer, json!([]), true),
        ("policy rules the version out", &unknown, json!([NEW.to_string()]), true),
    ] {
        let (mut early, mut other) = (node("b"), node("c"));
        newer(&mut early);
        change(&mut other);
        let (mut view, _) = cluster(vec![with_place("a", Proof::Unproven, 7), early, other], &[]);
        recorded_with(&mut view, Some(RolloutLedger { base: 3, due: 1, unproven: 1, ..RolloutLedger::default() }));
        let spec = json!({"version": {"exclude": exclude}, "strategy": {"canary": [{"nodes": 1}]}});
        let policy = with_policy(&mut view, spec);
        let status = plan(&view, &policy, t(60)).status.unwrap();
        let of_version = status.active_rollouts.iter().find(|rollout| rollout.version == NEW).unwrap();
        assert_eq!(of_version.ended.is_some(), ends, "{sentence}");
        assert_eq!(of_version.ledger.as_ref().unwrap().unproven, 1, "{sentence}");
        // Once a node is taken to the newer version, the kind has gone on, and a roll-back begins with nothing proven.
        view.nodes.insert("b".into(), {
            let mut taken = at("b", Step::Draining, 0, HostState::StagedUpdate);
            newer(&mut taken);
            let progress = taken.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
            (progress.version, progress.started) = (NEWER, t(60));
            taken
        });
        view.operator.as_mut().unwrap().status.slots = vec![slot("b")];
        let status = plan(&view, &policy, t(61)).status.unwrap();
        let of_version = status.active_rollouts.iter().find(|rollout| rollout.version == NEW).unwrap();
        assert!(of_version.ended.is_some(), "{sentence}");
    }
}

/// The node runs a later version, and its repository is away.
#[test]
fn rollout_that_leads_back_goes_on_while_it_is_not_known_what_its_hosts_may_have() {
    for (target, goes_on) in [("1.20.5", true), ("1.20", true), (">=1.20", false), ("latest", false)] {
        let mut late = node("b");
        late.facts.os_image = "Bottlerocket OS 1.21.0 (aws-k8s-1.37)".into();
        let agent = &mut late.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(semver::Version::new(1, 21, 0));
        agent.updates.as_mut().unwrap().refresh_failure = Some("no route".into());
        let (mut view, _) = cluster(vec![with_place("a", Proof::Proven, 7), late], &[]);
        recorded_with(&mut view, Some(RolloutLedger { base: 2, due: 1, share: 1, proven: 1, ..Default::default() }));
        view.operator.as_mut().unwrap().approve_step = Some("7/1@yes".into());
        let canary = json!([{"nodes": 1, "approval": "Manual"}]);
        let policy = with_policy(&mut view, json!({"version": {"target": target}, "strategy": {"canary": canary}}));
        let rollouts = plan(&view, &policy, t(60)).status.unwrap().active_rollouts;
        assert_eq!(rollouts[0].steps_passed, i64::from(goes_on), "{target}");
    }
}

#[test]
fn step_of_a_record_that_has_ended_takes_no_approval() {
    let ledger = RolloutLedger { due: 1, proven: 1, ..RolloutLedger::default() };
    let running = ActiveRollout { record: Some(recorded(7)), ledger: Some(ledger), ..rollout(NEW) };
    assert_eq!(running.approvable().as_deref(), Some("7/1"));
    let record = RolloutRecord { ended: Some(t(1)), ..recorded(7) };
    assert_eq!(ActiveRollout { record: Some(record), ..running }.approvable(), None);
}

/// In an outage, in which no host has a target.
#[test]
fn update_of_an_earlier_version_does_not_end_a_rollout() {
    const OTHER: semver::Version = semver::Version::new(1, 20, 4);
    const NEWER: semver::Version = semver::Version::new(1, 20, 6);
    for (sentence, began, ends) in [("it began before", 0, false), ("the node is taken back", 20, true)] {
        let mut hidden = node("b");
        hidden.shadow.as_mut().unwrap().status.agent.updates = None;
        let mut on_its_way = at("c", Step::Draining, began, HostState::StagedUpdate);
        let status = &mut on_its_way.shadow.as_mut().unwrap().status;
        status.agent.updates = None;
        let progress = status.controller.progress.as_mut().unwrap();
        (progress.version, progress.started) = (OTHER, t(began));
        let (mut view, _) = cluster(vec![with_place("a", Proof::Unproven, 7), hidden, on_its_way], &["c"]);
        recorded_with(&mut view, Some(RolloutLedger { base: 3, due: 1, unproven: 1, ..RolloutLedger::default() }));
        let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
        rollouts[0].started = t(10);
        // Nothing is used of the newest one, beside which the full step of the one before it goes on.
        rollouts.push(ActiveRollout { started: t(15), record: Some(recorded(8)), ..rollout(NEWER) });
        rollouts.push(ActiveRollout { record: Some(recorded(6)), ..rollout(OTHER) });
        let policy = canary(&mut view, &json!([{"nodes": 1}]));
        let followed = crate::survey::Survey::of(&view, &policy, t(60)).rollouts;
        assert_eq!(followed.of(&view.nodes["b"], &NEW).is_none(), ends, "{sentence}: its full step goes on");
        for version in [NEW, NEWER] {
            let of_version = followed.active.iter().find(|rollout| rollout.version == version).unwrap();
            assert_eq!(of_version.ended.is_some(), ends, "{sentence}: {version}");
        }
    }
}

#[test]
fn resource_that_is_made_again_knows_the_steps_that_its_nodes_have_passed() {
    for (proven, passed) in [(1, 0), (2, 1), (5, 3)] {
        let nodes = (0..proven).map(|number| with_place(&format!("a{number}"), Proof::Proven, 7));
        let (mut view, _) = cluster(nodes.chain([staged("b"), node("c"), node("d")]).collect(), &[]);
        let manual = |nodes: u32| json!({"nodes": nodes, "approval": "Manual"});
        let policy = canary(&mut view, &json!([manual(1), manual(3)]));
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(ledger(&made).passed, passed, "{proven}: no node was taken beyond a step before it was passed");
        assert_eq!(slots_of(&made).len(), usize::from(proven != 1), "{proven}: {:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{proven}");
    }
    // Half of twenty nodes were ten, of which the two that were not updated are left beside one that joined.
    let nodes = (0..10).map(|number| with_place(&format!("a{number}"), Proof::Proven, 7));
    let (mut view, _) = cluster(nodes.chain([staged("b"), node("c"), node("d")]).collect(), &[]);
    let policy = canary(&mut view, &json!([{"nodes": "50%", "approval": "Manual"}]));
    let made = plan(&view, &policy, t(60));
    assert_eq!((ledger(&made).passed, slots_of(&made)), (0, vec![]), "its user has to approve: {:?}", made.waits);
}
