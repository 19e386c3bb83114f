//! Nodes whose Node object is deleted and registered again while their machine reboots, as controllers of clouds do it.

use models::operator::{ActiveRollout, KnownVersion, RolloutLedger, Slot};
use models::reason::Proof;
use models::shadow::{HostState, Step};
use serde_json::json;

use super::verification::carry_out;
use crate::claims::{ClaimField, ClaimFields};
use crate::decision::{Action, Note};
use crate::fixtures::*;
use crate::lint::lint;
use crate::plan::{Plan, not_begun, plan, retracted};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

/// The machine of node `a`.
const MACHINE: &str = "cloud:///zone/i-1";

/// The time at which a machine is no longer waited for: with the default policy, an hour after its permit.
const OVER: i64 = 3600;

/// Node `a` has gone down by its permit, with its Node object, and node `b` waits in a rollout that no node has proven yet.
fn gone(spec: serde_json::Value) -> (ClusterView, Policy) {
    let mut a = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    a.facts.provider_id = Some(MACHINE.into());
    let (mut view, _) = cluster(vec![a, at("b", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
    let ledger = Some(RolloutLedger { base: 2, ..RolloutLedger::default() });
    let rollout = ActiveRollout { record: Some(recorded(7)), ledger, ..rollout(NEW) };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout];
    let policy = with_policy(&mut view, spec);
    view.nodes.remove("a");
    (view, policy)
}

/// Another Node object of the name, in another boot, on the new version. It has no shadow yet.
fn again() -> NodeView {
    let mut again = node("a");
    again.shadow = None;
    again.facts.uid = "uid-again".into();
    again.facts.provider_id = Some(MACHINE.into());
    again.facts.boot_id = "b2".into();
    again.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    again
}

/// The new shadow of a node, once its agent has reported the version that it runs.
fn reported(node: &mut NodeView) {
    let mut shadow = crate::fixtures::node("a").shadow.unwrap();
    shadow.owner_uid = Some(node.facts.uid.clone());
    shadow.status.agent.boot_id = Some(node.facts.boot_id.clone());
    shadow.status.agent.current_version = node.facts.os_version();
    let chosen = Some(NEW).filter(|version| node.facts.os_version().as_ref() != Some(version));
    shadow.status.agent.updates.as_mut().unwrap().chosen_version = chosen;
    node.shadow = Some(shadow);
}

fn returns(view: &mut ClusterView, change: impl FnOnce(&mut NodeView)) {
    let mut node = again();
    change(&mut node);
    view.nodes.insert("a".into(), node);
}

fn a(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("a").unwrap()
}

/// A valid plan, whose status is written.
fn turn(view: &mut ClusterView, policy: &Policy, second: i64) -> Plan {
    let mut made = plan(view, policy, t(second));
    assert_eq!(lint(view, policy, &mut made), []);
    view.operator.as_mut().unwrap().status = made.status.clone().unwrap();
    made
}

/// Carries out what is due about node `a` at this second. Returns the Events, and why it waits.
fn act(view: &mut ClusterView, policy: &Policy, second: i64) -> (Vec<Note>, Option<Wait>) {
    let planned = |view: &mut ClusterView| turn(view, policy, second);
    carry_out(view, second, planned, |a, action| match action {
        // It is protected from autoscalers until it has proven the version, and not cordoned again.
        Action::Claim { fields, .. } if !fields.has(ClaimField::Cordon) => a.facts.claims = fields,
        Action::Release => a.facts.claims = ClaimFields::default(),
        other => panic!("nothing is done to the node or its host: {other:?}"),
    })
}

fn slots(view: &ClusterView) -> Vec<&str> {
    view.recorded_slots().map(|slot| slot.uid.as_str()).collect()
}

fn ledger(view: &ClusterView) -> &RolloutLedger {
    view.operator.as_ref().unwrap().status.active_rollouts[0].ledger.as_ref().unwrap()
}

/// The places that are proven, unproven and failed, and the length of the row that brakes.
fn counts(view: &ClusterView) -> (i64, i64, i64, usize) {
    let ledger = ledger(view);
    (ledger.proven, ledger.unproven, ledger.failed, ledger.row.len())
}

fn last(view: &ClusterView) -> Option<(&str, i64)> {
    let last = view.nodes["a"].record()?.last.as_ref()?;
    Some((last.reason.as_str(), last.attempt))
}

#[test]
fn node_that_is_registered_again_goes_on_and_proves_its_version() {
    let (mut view, policy) = gone(json!({}));
    turn(&mut view, &policy, 60);
    assert_eq!(slots(&view), ["uid-a"], "its machine is waited for");
    returns(&mut view, |_| {});
    let made = turn(&mut view, &policy, 70);
    assert_eq!(slots(&view), ["uid-again"], "its slot goes on under the Node object that there is");
    assert_eq!(made.waits["a"], Wait::NoShadow);
    assert_eq!(made.shadows.len(), 1, "it gets a shadow");
    reported(a(&mut view));
    a(&mut view).shadow.as_mut().unwrap().status.agent.boot_id = None;
    let (_, wait) = act(&mut view, &policy, 75);
    assert_eq!(wait, Some(Wait::NoReport), "its agent has not reported");
    reported(a(&mut view));
    let made = plan(&view, &policy, t(80));
    let goes_on = status_of(&made).report.progress.as_ref().unwrap();
    assert_eq!(
        (goes_on.step, &goes_on.boot_id[..], &goes_on.from),
        (Step::Returning, "b1", &None),
        "as it was permitted"
    );
    assert_eq!((goes_on.started, goes_on.disruptive), (t(0), true));
    let place = goes_on.rollout.as_ref().unwrap();
    assert_eq!((&place.boot_id[..], place.drain_started), ("b1", Some(t(0))));
    let (notes, wait) = act(&mut view, &policy, 80);
    assert_eq!(notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["UpdateContinued"]);
    assert_eq!(wait, Some(Wait::Soaking { until: t(140) }));
    let progress = view.nodes["a"].progress().unwrap();
    assert_eq!((progress.step, progress.attempt, &progress.version), (Step::Verifying, 1, &NEW));
    assert_eq!((slots(&view), counts(&view)), (vec!["uid-again"], (0, 0, 0, 0)), "it is not proven before its soak");
    assert!(a(&mut view).facts.claims.has(ClaimField::ScaleDown), "no autoscaler removes it meanwhile");
    let (notes, _) = act(&mut view, &policy, 140);
    assert_eq!(notes.iter().map(|note| (note.reason, note.warning)).collect::<Vec<_>>(), [("Updated", false)]);
    assert_eq!(last(&view), Some(("Updated", 1)));
    assert_eq!((counts(&view), a(&mut view).facts.claims), ((1, 0, 0, 0), ClaimFields::default()));
    assert_eq!(slots(&view), ["uid-b"], "the next one goes");
}

#[test]
fn node_that_is_registered_again_is_protected_from_autoscalers_as_policy_says_until_that_is_removed_too_often() {
    for (sentence, protects, removed, expected) in [
        ("policy protects nodes", true, 2, true),
        ("another client has removed it three times", true, 3, false),
        ("policy protects none", false, 0, false),
    ] {
        let (mut view, mut policy) = gone(json!({}));
        policy.protect_from_autoscalers = protects;
        turn(&mut view, &policy, 60);
        returns(&mut view, reported);
        turn(&mut view, &policy, 70);
        a(&mut view).claims_made.stripped = removed;
        let (_, wait) = act(&mut view, &policy, 80);
        assert_eq!(wait, Some(Wait::Soaking { until: t(140) }), "{sentence}");
        assert_eq!(a(&mut view).facts.claims.has(ClaimField::ScaleDown), expected, "{sentence}");
    }
}

/// The kubelet registers it without the operator's label.
#[test]
fn machine_that_is_about_to_get_its_label_keeps_its_slot() {
    for (sentence, label_nodes, joining, keeps) in [
        ("the operator labels it", true, false, true),
        ("it was never Ready, and another controller may label it", false, true, true),
        ("it was Ready without the label", false, false, false),
    ] {
        let (mut view, policy) = gone(json!({"labelNodes": label_nodes}));
        let mut back = again().facts;
        (back.labelled, back.ready, back.joining) = (false, !joining, joining);
        view.unmanaged.insert("a".into(), back);
        let made = turn(&mut view, &policy, 70);
        assert_eq!(slots(&view).contains(&"uid-a"), keeps, "{sentence}");
        assert_eq!(counts(&view), if keeps { (0, 0, 0, 0) } else { (0, 1, 0, 1) }, "{sentence}");
        assert_eq!(made.labels.iter().any(|facts| facts.name == "a"), label_nodes, "{sentence}");
        if keeps {
            view.unmanaged.remove("a");
            returns(&mut view, reported);
            turn(&mut view, &policy, 71);
            assert_eq!(slots(&view), ["uid-again"], "{sentence}: it goes on as the same node");
        }
    }
}

/// Longer away than the machine is waited for.
#[test]
fn node_that_is_registered_again_late_is_verified_by_itself() {
    let (mut view, policy) = gone(json!({"strategy": {"canary": [{"nodes": 1}]}}));
    turn(&mut view, &policy, OVER);
    assert_eq!((counts(&view), slots(&view)), ((0, 1, 0, 1), vec![]));
    let made = turn(&mut view, &policy, OVER + 1);
    assert_eq!(made.waits["b"].as_str(), "StepUnproven");
    returns(&mut view, reported);
    let (notes, wait) = act(&mut view, &policy, OVER + 600);
    assert_eq!(notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["VerificationStarted"]);
    assert_eq!(wait, Some(Wait::Soaking { until: t(OVER + 660) }));
    act(&mut view, &policy, OVER + 660);
    assert_eq!(counts(&view), (1, 0, 0, 0));
    turn(&mut view, &policy, OVER + 661);
    assert_eq!(slots(&view), ["uid-b"], "its step is passed");
    // One of its name on another version shows nothing.
    let (mut view, policy) = gone(json!({}));
    turn(&mut view, &policy, OVER);
    returns(&mut view, |node| {
        node.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)");
        reported(node);
    });
    // The end has braked the rollout, and no node is tried yet.
    act(&mut view, &policy, OVER + 500);
    assert!(!a(&mut view).progress().is_some_and(|progress| progress.verification));
}

/// A slot goes on with no host of another kind, and with no node on which an attempt of its own has begun.
#[test]
fn slot_goes_on_with_an_idle_host_of_its_kind_alone() {
    let (mut view, policy) = gone(json!({}));
    returns(&mut view, |node| {
        reported(node);
        node.shadow.as_mut().unwrap().status.agent.variant = Some("metal-k8s-1.37".into());
    });
    turn(&mut view, &policy, 70);
    act(&mut view, &policy, 80);
    assert_eq!(view.nodes["a"].step(), None);
    let (mut view, policy) = gone(json!({}));
    returns(&mut view, |node| {
        reported(node);
        node.shadow.as_mut().unwrap().status.controller.progress = Some(progress(Step::Staging, 60));
    });
    turn(&mut view, &policy, 70);
    assert_eq!(slots(&view), ["uid-a"]);
}

/// The last node of its rollout: no other one keeps that going.
#[test]
fn rollout_goes_on_while_the_machine_of_its_last_node_is_waited_for() {
    let (mut view, policy) = gone(json!({}));
    let mut b = again();
    (b.facts.name, b.facts.uid) = ("b".into(), "uid-b".into());
    reported(&mut b);
    view.nodes.insert("b".into(), b);
    let rollout = |view: &ClusterView| {
        let rollout = &view.operator.as_ref().unwrap().status.active_rollouts[0];
        (rollout.record.as_ref().unwrap().phase, rollout.number())
    };
    turn(&mut view, &policy, 60);
    assert_eq!(rollout(&view), (models::history::RolloutPhase::Running, 7));
    returns(&mut view, reported);
    for second in [70, 80, 80, 140] {
        turn(&mut view, &policy, second);
        act(&mut view, &policy, second);
    }
    assert_eq!((last(&view), counts(&view)), (Some(("Updated", 1)), (1, 0, 0, 0)));
    assert_eq!(view.nodes["a"].record().unwrap().proof.as_ref().unwrap().rollout, 7, "it is of the same rollout");
}

/// While the Node object is gone, others show which machine is waited for.
#[test]
fn canary_step_names_the_machine_whose_node_is_gone() {
    let (mut view, policy) = gone(json!({"maxUnavailable": 2, "strategy": {"canary": [{"nodes": 1}]}}));
    let made = turn(&mut view, &policy, 60);
    let (reason, text) = (made.waits["b"].as_str(), made.waits["b"].to_string());
    assert!(reason == "CanaryStep" && text.contains("waits for a, whose Node was deleted"), "{reason}: {text}");
}

#[test]
fn machine_is_recognized_by_its_name_in_the_cloud_or_by_its_name_alone() {
    const OTHER: &str = "cloud:///zone/i-2";
    for (recorded, named, goes_on) in [
        (Some(MACHINE), Some(MACHINE), true),
        (Some(MACHINE), Some(OTHER), false),
        // Its cloud has not named it yet.
        (Some(MACHINE), None, false),
        // Bare metal, and a slot that an earlier version of the operator gave.
        (None, None, true),
        (None, Some(MACHINE), true),
    ] {
        let (mut view, policy) = gone(json!({}));
        let update = view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap();
        update.provider_id = recorded.map(str::to_owned);
        returns(&mut view, |node| {
            node.facts.provider_id = named.map(str::to_owned);
            reported(node);
        });
        turn(&mut view, &policy, 70);
        let expected = if goes_on { "uid-again" } else { "uid-a" };
        assert_eq!(slots(&view), [expected], "{recorded:?} {named:?}");
        act(&mut view, &policy, 80);
        let expected = goes_on.then_some(Step::Verifying);
        assert_eq!(view.nodes["a"].step(), expected, "{recorded:?} {named:?}");
        if !goes_on {
            assert_eq!((slots(&view), counts(&view)), (vec!["uid-a"], (0, 0, 0, 0)), "the other machine may return");
            turn(&mut view, &policy, OVER);
            assert_eq!(counts(&view), (0, 1, 0, 1), "{recorded:?} {named:?}: nothing shows what it has become");
        }
    }
}

#[test]
fn node_that_is_registered_again_is_judged_as_any_other() {
    type Change = fn(&mut NodeView);
    let none: Change = |_| {};
    let old: Change = |node| {
        node.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)");
        reported(node);
    };
    let not_ready: Change = |node| (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(60)));
    for (sentence, change, at, reason, expected) in [
        ("it fell back", old, 81, "RebootedByOther", (0, 0, 0, 1)),
        ("it never is Ready", not_ready, 80 + 1800, "NotReadyAfterBoot", (0, 0, 1, 1)),
        ("it is well", none, 140, "Updated", (1, 0, 0, 0)),
    ] {
        let (mut view, policy) = gone(json!({}));
        returns(&mut view, reported);
        change(a(&mut view));
        turn(&mut view, &policy, 70);
        act(&mut view, &policy, 80);
        act(&mut view, &policy, at);
        assert_eq!(last(&view), Some((reason, 1)), "{sentence}");
        assert_eq!(counts(&view), expected, "{sentence}");
        assert!(!slots(&view).contains(&"uid-again"), "{sentence}");
    }
}

#[test]
fn hooks_after_the_update_are_asked_on_a_node_that_is_registered_again() {
    let (mut view, policy) = gone(json!({"hooks": [{"name": "dns", "after": {}}]}));
    returns(&mut view, reported);
    turn(&mut view, &policy, 70);
    act(&mut view, &policy, 80);
    let (_, wait) = act(&mut view, &policy, 140);
    assert!(matches!(wait, Some(Wait::AwaitingHook { .. })), "{wait:?}");
    assert_eq!((slots(&view), counts(&view)), (vec!["uid-again"], (0, 0, 0, 0)));
    let request = a(&mut view).facts.hook_request.clone().unwrap();
    a(&mut view).facts.hook_answers = [("dns".to_owned(), request)].into();
    act(&mut view, &policy, 150);
    assert_eq!((last(&view), counts(&view)), (Some(("Updated", 1)), (1, 0, 0, 0)));
}

#[test]
fn slot_outlasts_a_change_of_the_leader_while_its_node_is_gone_and_when_it_is_back() {
    let (mut view, policy) = gone(json!({}));
    view.retracted = not_begun(&view);
    turn(&mut view, &policy, 60);
    assert_eq!((slots(&view), counts(&view)), (vec!["uid-a"], (0, 0, 0, 0)), "gone");
    returns(&mut view, reported);
    let before: Vec<_> = view.recorded_slots().cloned().collect();
    let made = turn(&mut view, &policy, 70);
    assert!(retracted(&before, made.slots.as_ref().unwrap()).is_empty(), "the write may be sent again");
    view.retracted = not_begun(&view);
    act(&mut view, &policy, 80);
    assert_eq!((slots(&view), view.nodes["a"].step()), (vec!["uid-again"], Some(Step::Verifying)));
}

#[test]
fn machine_that_is_registered_again_and_has_not_rebooted_is_waited_for() {
    let (mut view, policy) = gone(json!({}));
    returns(&mut view, |node| {
        node.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)");
        (node.facts.boot_id, node.facts.ready) = ("b1".into(), false);
        reported(node);
    });
    turn(&mut view, &policy, 70);
    // A host that goes down is Ready until its last seconds.
    for (ready, expected, over) in [
        (true, Wait::DisarmPending, (0, 0, 0, 0)),
        // It may still reboot into the version.
        (false, Wait::NodeNotReady, (0, 1, 0, 1)),
    ] {
        a(&mut view).facts.ready = ready;
        let (_, wait) = act(&mut view, &policy, 80);
        assert_eq!((slots(&view), counts(&view)), (vec!["uid-again"], (0, 0, 0, 0)), "{ready}");
        assert_eq!(wait, Some(expected));
        let mut late = view.clone();
        turn(&mut late, &policy, OVER);
        assert_eq!(counts(&late), over);
        assert!(!slots(&late).contains(&"uid-again"), "{ready}: {:?}", slots(&late));
    }
    *a(&mut view) = again();
    reported(a(&mut view));
    act(&mut view, &policy, 200);
    assert_eq!(view.nodes["a"].step(), Some(Step::Verifying), "now it has");
}

/// The place of a node without a proof stays its own: it is verified again, and takes no second one.
#[test]
fn node_that_had_a_place_keeps_it_when_it_is_registered_again() {
    let (mut view, policy) = gone(json!({}));
    let status = &mut view.operator.as_mut().unwrap().status;
    status.slots[0].update.as_mut().unwrap().had = Some(Proof::Unproven);
    status.active_rollouts[0].ledger.as_mut().unwrap().unproven = 1;
    returns(&mut view, reported);
    turn(&mut view, &policy, 70);
    act(&mut view, &policy, 80);
    act(&mut view, &policy, 140);
    assert_eq!(counts(&view), (1, 0, 0, 0));
}

#[test]
fn validator_lets_an_attempt_go_on_only_with_its_slot_and_its_machine() {
    let (mut view, policy) = gone(json!({}));
    returns(&mut view, reported);
    turn(&mut view, &policy, 70);
    let made = plan(&view, &policy, t(80));
    let findings = |change: fn(&mut ClusterView)| {
        let (mut view, mut made) = (view.clone(), made.clone());
        change(&mut view);
        lint(&view, &policy, &mut made).first().map(|finding| finding.property)
    };
    fn update(view: &mut ClusterView) -> &mut models::operator::SlotUpdate {
        view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap()
    }
    assert_eq!(findings(|_| {}), None);
    assert_eq!(findings(|view| view.operator.as_mut().unwrap().status.slots.clear()), Some("S12"), "without a slot");
    assert_eq!(findings(|view| update(view).permitting_since = None), Some("S12"), "before a permit");
    assert_eq!(findings(|view| update(view).attempt = 2), Some("S12"), "of another attempt");
    assert_eq!(findings(|view| update(view).boot_id = "b2".into()), Some("S12"), "in the same boot");
    // The first node goes alone: a slot that another machine takes over is a new one.
    let (mut view, policy) = gone(json!({"maxUnavailable": 1}));
    returns(&mut view, |_| {});
    let mut made = plan(&view, &policy, t(70));
    a(&mut view).facts.provider_id = None;
    let other = made.slots.as_ref().unwrap()[0].clone();
    made.slots.as_mut().unwrap().push(crate::fixtures::slot("a"));
    let findings = lint(&view, &policy, &mut made);
    assert_eq!(findings.first().map(|finding| finding.property), Some("S1"), "{other:?}");
}

/// While the rollout is frozen, no new slot is given.
#[test]
fn validator_takes_a_slot_for_a_new_one_unless_it_goes_on() {
    let case = |sentence: &str, expected: Option<&str>, change: fn(&mut ClusterView, &mut Vec<Slot>)| {
        let (mut view, policy) = gone(json!({"maxUnavailable": 2}));
        returns(&mut view, reported);
        let status = &mut view.operator.as_mut().unwrap().status;
        status.versions = vec![KnownVersion { quarantined: Some(fallen_back(&["x"])), ..seen(NEW, 0) }];
        let mut slots = vec![Slot { uid: "uid-again".into(), ..status.slots[0].clone() }];
        change(&mut view, &mut slots);
        let mut made = Plan { slots: Some(slots), ..Plan::default() };
        let findings = lint(&view, &policy, &mut made);
        assert_eq!(findings.first().map(|finding| finding.property), expected, "{sentence}: {findings:?}");
    };
    case("its node is registered again", None, |_, _| {});
    case("it was given at another time", Some("S8"), |_, slots| slots[0].since = t(1));
    case("its node is another machine", Some("S8"), |view, _| a(view).facts.provider_id = None);
    case("the earlier one is kept", Some("S8"), |view, slots| slots.extend(view.recorded_slots().cloned()));
}
