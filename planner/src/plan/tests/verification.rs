//! The repeated verification of a node that runs its version without a proof.

use std::collections::BTreeMap;
use std::sync::Arc;

use models::operator::{ActiveRollout, LedgerNode, NOT_READY, RolloutLedger};
use models::reason::{FailureClass, FailureReason, Proof};
use models::shadow::{Drill, HostState, NodeBefore, NodeProof, Progress, Record, Rehearsal, Step, UPDATED};
use serde_json::json;

use super::health::{EVIDENCE, Watch, failing, healthy, verifying};
use super::ledger::entry;
use crate::claims::ClaimFields;
use crate::decision::{Action, Note};
use crate::fixtures::*;
use crate::hold::Hold;
use crate::lint::lint;
use crate::plan::{Check, PROVEN, Plan, checks, plan, without_proof};
use crate::policy::Policy;
use crate::view::{ClusterView, DaemonSetState, NodeView, OwnerHealth, PodFacts};
use crate::wait::Wait;

/// The end of the last attempt of a node without a proof, and an hour later.
const ENDED: i64 = 50;
const DUE: i64 = ENDED + 3600;

/// The soak of the default policy, and the time in which the verification ends.
const SOAK: i64 = 60;
const TIMEOUT: i64 = 15 * 60;

/// A node that runs the new version, on which a hook was silent after its update.
fn unproven(name: &str) -> NodeView {
    let mut node = node(name);
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    let shadow = node.shadow.as_mut().unwrap();
    shadow.status.agent.current_version = Some(NEW);
    shadow.status.agent.updates.as_mut().unwrap().chosen_version = None;
    shadow.spec.attempt = 1;
    let reason = FailureReason::HookTimedOut.as_str().to_owned();
    let mut record = Record { failures: 1, not_before: Some(t(100_000)), ..updated() };
    record.last.as_mut().unwrap().reason.clone_from(&reason);
    record.proof = Some(NodeProof { version: NEW, rollout: 7, attempt: 1, proof: Proof::Unproven, reason });
    shadow.status.controller.record = Some(record);
    node
}

fn named(node: &str) -> LedgerNode {
    entry(node, Proof::Unproven, "HookTimedOut")
}

/// Rollout 7, of which these nodes have used up places without a proof, and a staged node `z` that waits.
fn rollout_of(names: &[&str], spec: serde_json::Value) -> (ClusterView, Policy) {
    let staged = at("z", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, _) = cluster(names.iter().map(|name| unproven(name)).chain([staged]).collect(), &[]);
    let count = i64::try_from(names.len()).unwrap();
    let nodes = names.iter().take(models::operator::LEDGER_NODES).map(|name| named(name)).collect();
    let ledger = RolloutLedger { base: count + 1, due: count, unproven: count, nodes, ..RolloutLedger::default() };
    let rollout = ActiveRollout { record: Some(recorded(7)), ledger: Some(ledger), ..rollout(NEW) };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout];
    let policy = with_policy(&mut view, spec);
    (view, policy)
}

fn canary() -> serde_json::Value {
    json!({"maxUnavailable": 1, "strategy": {"canary": [{"nodes": 1}]}})
}

fn a(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("a").unwrap()
}

fn record(view: &ClusterView) -> &Record {
    view.nodes["a"].record().unwrap()
}

fn proof(view: &ClusterView) -> (Proof, i64) {
    let proof = record(view).proof.as_ref().unwrap();
    (proof.proof, proof.rollout)
}

fn ledger(made: &Plan) -> &RolloutLedger {
    made.status.as_ref().unwrap().active_rollouts[0].ledger.as_ref().unwrap()
}

fn counts(made: &Plan) -> (i64, i64, i64) {
    (ledger(made).proven, ledger(made).unproven, ledger(made).failed)
}

fn slots_of(made: &Plan) -> Vec<&str> {
    made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect()
}

/// A valid plan.
fn planned(view: &ClusterView, policy: &Policy, second: i64) -> Plan {
    let mut made = plan(view, policy, t(second));
    assert_eq!(lint(view, policy, &mut made), []);
    made
}

/// Carries out what is due about node `a` at this second, `other` what no verification does. Returns the Events, and why it waits.
pub(super) fn carry_out(
    view: &mut ClusterView,
    second: i64,
    planned: impl Fn(&mut ClusterView) -> Plan,
    other: impl Fn(&mut NodeView, Action),
) -> (Vec<Note>, Option<Wait>) {
    let mut notes = Vec::new();
    for _ in 0..20 {
        let mut made = planned(view);
        match made.actions.remove("a") {
            None => return (notes, made.waits.remove("a")),
            Some(Action::Hook { request }) => a(view).facts.hook_request = request,
            Some(Action::ReadLease { .. }) => a(view).lease = renewed_after(second),
            Some(action @ Action::Status { .. }) => {
                written(view, &action);
                let Action::Status { note, .. } = action else { continue };
                notes.extend(note);
            }
            Some(action) => other(a(view), action),
        }
    }
    panic!("it does not end");
}

fn turn(view: &mut ClusterView, policy: &Policy, second: i64) -> (Vec<Note>, Option<Wait>) {
    carry_out(view, second, |view| planned(view, policy, second), |_, other| panic!("no verification does {other:?}"))
}

fn is_verified(view: &ClusterView) -> bool {
    view.nodes["a"].progress().is_some_and(|progress| progress.mode().is_verification())
}

#[test]
fn node_without_proof_is_verified_again_an_hour_after_its_last_attempt() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let before = planned(&view, &policy, DUE - 1);
    assert_eq!(outcome(&before), "UpToDate");
    assert_eq!(before.wake, Some(t(DUE)));
    let made = planned(&view, &policy, DUE);
    let begun = status_of(&made).report.progress.as_ref().unwrap();
    let of_update = (&begun.from, &begun.rollout);
    assert_eq!((begun.verifying_since, of_update), (Some(t(DUE)), (&None, &None)), "it has no place of its own");
    let (notes, wait) = turn(&mut view, &policy, DUE);
    let found = notes.iter().map(|note| (note.reason, note.warning)).collect::<Vec<_>>();
    assert_eq!(found, [("VerificationStarted", false)]);
    assert_eq!(wait, Some(Wait::Soaking { until: t(DUE + SOAK) }));
    let progress = view.nodes["a"].progress().unwrap();
    assert_eq!((progress.step, progress.attempt, &progress.version), (Step::Verifying, 2, &NEW));
    assert!(planned(&view, &policy, DUE).pods.contains("a"), "its pods are watched");
}

#[test]
fn node_that_is_held_once_its_verification_is_due_has_no_wakeup_for_it() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    a(&mut view).facts.hold = Some(Hold::default());
    for second in [DUE, DUE + 10] {
        let wake = plan(&view, &policy, t(second)).wake;
        assert!(wake.is_none_or(|wake| wake > t(second)), "at {second} s: {wake:?}");
    }
}

#[test]
fn node_whose_update_ended_by_a_hold_is_verified_once_the_hold_is_removed() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let record = shadow(&mut view).status.controller.record.as_mut().unwrap();
    record.last.as_mut().unwrap().reason = FailureReason::Held.as_str().into();
    for (second, hold) in [(60, Some(Hold::default())), (61, None)] {
        let held = hold.is_some();
        a(&mut view).facts.hold = hold;
        turn(&mut view, &policy, second);
        assert_eq!(is_verified(&view), !held, "held: {held}");
    }
}

/// It is Ready again, and a user has cordoned it.
#[test]
fn node_that_had_fallen_is_not_verified_while_it_has_its_proof() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
    ledger.nodes[0].reason = NOT_READY.into();
    a(&mut view).facts.unschedulable = true;
    for (proof, verified) in [(Proof::Proven, false), (Proof::Unproven, true)] {
        shadow(&mut view).status.controller.record.as_mut().unwrap().proof.as_mut().unwrap().proof = proof;
        turn(&mut view, &policy, DUE);
        assert_eq!(is_verified(&view), verified, "{proof:?}");
    }
    // The Node was registered again: the record is gone, and the ledger names it.
    let (mut view, policy) = rollout_of(&["a"], canary());
    let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
    ledger.nodes[0].reason = NOT_READY.into();
    shadow(&mut view).status.controller.record = None;
    turn(&mut view, &policy, DUE);
    assert!(is_verified(&view), "without a record");
}

#[test]
fn retry_verifies_node_without_proof_at_once() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    shadow(&mut view).retry = Some("now".into());
    turn(&mut view, &policy, 60);
    assert!(is_verified(&view));
    let done = record(&view).requests.as_ref().and_then(|requests| requests.retry.clone());
    assert_eq!((done.as_deref(), record(&view).not_before), (Some("now"), None), "in the same write");
}

#[test]
fn retry_of_node_that_cannot_be_verified_says_why() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    shadow(&mut view).retry = Some("now".into());
    a(&mut view).facts.ready = false;
    let (notes, _) = turn(&mut view, &policy, 60);
    assert!(notes[0].message.contains("cannot be verified again now: the node is not Ready"), "{notes:?}");
    assert!(!is_verified(&view) && record(&view).not_before.is_none());
    // Its slot is about to be taken away: the request waits for that.
    let (mut view, policy) = rollout_of(&["a"], canary());
    shadow(&mut view).retry = Some("now".into());
    view.operator.as_mut().unwrap().status.slots = vec![slot("a")];
    let (notes, wait) = turn(&mut view, &policy, 60);
    assert_eq!((notes, is_verified(&view)), (vec![], false), "{wait:?}");
    view.operator.as_mut().unwrap().status.slots.clear();
    turn(&mut view, &policy, 61);
    assert!(is_verified(&view));
}

#[test]
fn node_is_verified_again_only_where_that_can_show_something() {
    type Change = fn(&mut ClusterView, &mut Policy);
    let case = |sentence: &str, expected: bool, change: Change| {
        let (mut view, mut policy) = rollout_of(&["a"], canary());
        change(&mut view, &mut policy);
        let made = planned(&view, &policy, DUE);
        assert_eq!(outcome(&made) == "step Verifying", expected, "{sentence}: {}", outcome(&made));
    };
    case("as it is", true, |_, _| {});
    case("a word of a newer version", true, |view, _| place(view).proof = Proof::Unknown);
    case("the window is closed", true, |view, policy| *policy = with_policy(view, at_night()));
    case("updates are disabled", true, |_, policy| policy.enabled = false);
    case("another version has stopped the rollout", true, |view, _| fails(view, OLD));
    case("another user has cordoned it", true, |view, _| a(view).facts.unschedulable = true);
    case("proven", false, |view, _| place(view).proof = Proof::Proven);
    case("failed", false, |view, _| place(view).proof = Proof::Failed);
    case("held", false, |view, _| a(view).facts.hold = Some(Hold::default()));
    case("being deleted", false, |view, _| a(view).facts.deleting = true);
    case("an autoscaler removes it", false, |view, _| a(view).facts.removed_by = Some("ToBeDeleted".into()));
    case("without the label", false, |view, _| a(view).facts.labelled = false);
    case("not Ready", false, |view, _| a(view).facts.ready = false);
    case("under pressure", false, |view, _| a(view).facts.pressure = Some("DiskPressure".into()));
    case("its agent has not reported in this boot", false, |view, _| a(view).facts.boot_id = "b2".into());
    case("its host does not answer its agent", false, |view, _| shadow(view).status.conditions.push(unreachable()));
    case("it runs another version", false, |view, _| a(view).facts.os_image = format!("Bottlerocket OS {OLD} (x)"));
    case("the policy is invalid", false, |_, policy| policy.errors = invalid_policy());
    case("the version is quarantined", true, |view, _| fails(view, NEW));
    case("its rollout is over", false, |view, _| {
        view.nodes.remove("z");
        view.operator.as_mut().unwrap().status.active_rollouts[0].ended = Some(t(60));
    });
}

/// The plan has another reason: no update waits for the proof.
#[test]
fn node_without_a_proof_is_explained_by_when_it_is_verified_or_what_keeps_it_from_that() {
    type Change = fn(&mut ClusterView, &mut Policy);
    let case = |sentence: &str, second: i64, expected: &str, change: Change| {
        let (mut view, mut policy) = rollout_of(&["a"], canary());
        change(&mut view, &mut policy);
        let made = plan(&view, &policy, t(second));
        let all = checks(&view, &policy, &made, t(second), "a");
        let first = all.iter().find(|check| check.wait().is_some());
        let proven = all.iter().find(|check| check.name == PROVEN);
        let found = proven.and_then(Check::wait).map_or_else(String::new, ToString::to_string);
        assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{sentence}: {found}");
        assert!(proven.is_none_or(|proven| first == Some(proven)), "{sentence}: {all:?}");
        assert_eq!(without_proof(&view, &policy, t(second)).get("a"), proven.and_then(Check::wait), "{sentence}");
        assert!(proven.is_none() || made.waits.get("a") == Some(&Wait::UpToDate), "{sentence}: {:?}", made.waits);
    };
    let due = "it runs 1.20.5 without a proof (HookTimedOut), and is verified again at 2027-01-15T09:00:50Z";
    let step = "canary step 1 is not passed: its places are used up";
    let unproven = "canary step 1 is not passed: its places are used up by nodes that had proven the version";
    case("it is verified in an hour", 60, due, |_, _| {});
    case("it is verified now", DUE, "", |_, _| {});
    case("it is held", DUE, "the node carries the annotation", |view, _| a(view).facts.hold = Some(Hold::default()));
    case("it is not Ready", 60, "the node is not Ready", |view, _| a(view).facts.ready = false);
    case("it is under pressure", 60, "the node reports DiskPressure", |view, _| {
        a(view).facts.pressure = Some("DiskPressure".into());
    });
    case("a user has accepted it", 60, "", |view, _| {
        let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
        (ledger.accepted, ledger.nodes[0].accepted) = (1, true);
    });
    case("it has failed", 60, step, |view, _| place(view).proof = Proof::Failed);
    case("it has failed, and the version is quarantined", 60, "1.20.5 has failed too often", |view, _| {
        place(view).proof = Proof::Failed;
        fails(view, NEW);
    });
    case("it had proven the version", 60, unproven, |view, _| falls(view));
    case("it had proven it, and is not Ready yet", 60, "the node is not Ready", |view, _| {
        falls(view);
        a(view).facts.ready = false;
    });
    case("it is to have another version", 60, "", |view, _| {
        let updates = shadow(view).status.agent.updates.as_mut().unwrap();
        updates.chosen_version = Some("1.20.6".parse().unwrap());
    });
    case("a drill of it is requested", 60, "", |view, _| shadow(view).drill = Some("1".into()));
    case("its rollout is over", 60, "", |view, _| {
        view.nodes.remove("z");
        view.operator.as_mut().unwrap().status.active_rollouts[0].ended = Some(t(60));
    });
}

/// Node `a` had proven the version, and was not Ready any more.
fn falls(view: &mut ClusterView) {
    place(view).proof = Proof::Proven;
    let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
    ledger.nodes[0].reason = NOT_READY.into();
}

fn at_night() -> serde_json::Value {
    json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "1h"}]}, "strategy": {"canary": [{"nodes": 1}]}})
}

fn place(view: &mut ClusterView) -> &mut NodeProof {
    shadow(view).status.controller.record.as_mut().unwrap().proof.as_mut().unwrap()
}

/// Node `z` has failed on this version, which freezes the rollout.
fn fails(view: &mut ClusterView, version: semver::Version) {
    let record = Record { version_failures: vec![failure(version)], ..Record::default() };
    let mut failed = node("z");
    failed.shadow.as_mut().unwrap().status.controller.record = Some(record);
    view.nodes.insert("z".into(), failed);
}

#[test]
fn node_that_proves_its_version_moves_in_the_ledger_and_the_step_passes() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    assert_eq!(planned(&view, &policy, DUE).waits["z"].as_str(), "StepUnproven");
    turn(&mut view, &policy, DUE);
    let (notes, _) = turn(&mut view, &policy, DUE + SOAK);
    assert_eq!(notes.len(), 1);
    assert_eq!((notes[0].reason, notes[0].warning), ("Updated", false));
    assert_eq!(notes[0].message, "verified again: 1.20.5 is proven");
    assert_eq!((proof(&view), view.nodes["a"].progress()), ((Proof::Proven, 7), None));
    assert_eq!((record(&view).failures, record(&view).not_before), (0, None));
    assert_eq!(record(&view).last.as_ref().unwrap().reason, UPDATED);
    let results = &view.nodes["a"].shadow.as_ref().unwrap().status.controller.results;
    assert!(results.is_empty(), "the history has the result of the update");
    let made = planned(&view, &policy, DUE + SOAK);
    assert_eq!((counts(&made), ledger(&made).nodes.len(), slots_of(&made)), ((1, 0, 0), 0, vec!["z"]));
    // Once, by whichever leader plans next.
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    let made = planned(&view, &policy, DUE + SOAK + 1);
    assert_eq!((counts(&made), ledger(&made).nodes.len()), ((1, 0, 0), 0));
}

#[test]
fn node_whose_devices_are_back_proves_its_version_when_it_is_verified_again() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let devices: BTreeMap<String, String> = [("nvidia.com/gpu".to_owned(), "8".to_owned())].into();
    let before = NodeBefore { allocatable: devices.clone(), ..NodeBefore::default() };
    shadow(&mut view).status.controller.record.as_mut().unwrap().before = Some(before);
    turn(&mut view, &policy, DUE);
    let (notes, wait) = turn(&mut view, &policy, DUE + SOAK);
    assert_eq!(wait.as_ref().map(Wait::as_str), Some("NodeNotUsable"), "{notes:?}");
    assert_eq!(planned(&view, &policy, DUE + SOAK).waits["z"].as_str(), "StepUnproven");
    turn(&mut view, &policy, DUE + TIMEOUT);
    let found = (record(&view).last.as_ref().unwrap().reason.as_str(), proof(&view).0);
    assert_eq!(found, ("NodeNotUsable", Proof::Unproven));
    a(&mut view).facts.allocatable = Arc::new(devices);
    turn(&mut view, &policy, DUE + TIMEOUT + DUE);
    turn(&mut view, &policy, DUE + TIMEOUT + DUE + SOAK);
    assert_eq!(proof(&view), (Proof::Proven, 7));
    assert_eq!(slots_of(&planned(&view, &policy, DUE + TIMEOUT + DUE + SOAK)), ["z"]);
}

#[test]
fn nodes_beyond_those_that_a_ledger_names_are_counted_too() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let (mut view, policy) = rollout_of(&names, canary());
    for (proven, expected) in [(vec!["j"], (1, 9, 0)), (vec!["a", "i"], (3, 7, 0)), (names.to_vec(), (10, 0, 0))] {
        for name in proven {
            let shadow = view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap();
            shadow.status.controller.record.as_mut().unwrap().proof.as_mut().unwrap().proof = Proof::Proven;
        }
        for _ in 0..2 {
            let made = plan(&view, &policy, t(60));
            assert_eq!(counts(&made), expected);
            view.operator.as_mut().unwrap().status.active_rollouts = made.status.unwrap().active_rollouts;
        }
    }
}

#[test]
fn verification_that_ends_without_a_proof_leaves_the_place_and_is_repeated() {
    type Change = fn(&mut ClusterView, &mut Policy);
    let case = |sentence: &str, reason: FailureReason, change: Change| {
        let (mut view, policy) = rollout_of(&["a"], canary());
        turn(&mut view, &policy, DUE);
        let (mut after, mut changed) = (view.clone(), policy.clone());
        change(&mut after, &mut changed);
        let (notes, _) = turn(&mut after, &changed, DUE + 1);
        let text = format!("verification 2 of 1.20.5: {reason}: ");
        assert!(notes.iter().any(|note| note.message.starts_with(&text)), "{sentence}: {notes:?}");
        assert_eq!((proof(&after), after.nodes["a"].progress()), ((Proof::Unproven, 7), None), "{sentence}");
        // A reboot into another version leaves the place as it is, too.
        let shows = reason.end().class == FailureClass::Node && reason != FailureReason::BootedOtherVersion;
        let expected = if shows { reason } else { FailureReason::HookTimedOut }.as_str();
        assert_eq!(record(&after).proof.as_ref().unwrap().reason, expected, "{sentence}");
        assert_eq!(record(&after).failures, 1, "{sentence}: nothing more counts against the node");
        assert_eq!(counts(&plan(&after, &policy, t(DUE + 2))), (0, 1, 0), "{sentence}");
        // The cause of its end is over. A node that was held is verified at once.
        let due = if reason == FailureReason::Held { DUE + 1 } else { DUE + 3601 };
        let mut again = view;
        shadow(&mut again).status.controller = after.nodes["a"].shadow.as_ref().unwrap().status.controller.clone();
        let verified = |second| outcome(&plan(&again, &policy, t(second))) == "step Verifying";
        assert!(!verified(due - 1) && verified(due), "{sentence}");
    };
    case("held", FailureReason::Held, |view, _| a(view).facts.hold = Some(Hold::default()));
    case("released", FailureReason::ReleaseRequested, |view, _| shadow(view).release = Some("now".into()));
    case("without the label", FailureReason::LabelRemoved, |view, _| a(view).facts.labelled = false);
    case("without a policy", FailureReason::Disabled, |_, policy| policy.present = false);
    case("not Ready", FailureReason::HealthUnknown, |view, _| a(view).facts.ready = false);
    case("rebooted", FailureReason::RebootedByOther, |view, _| a(view).facts.boot_id = "b2".into());
    case("rebooted into another version", FailureReason::BootedOtherVersion, |view, _| {
        a(view).facts.boot_id = "b2".into();
        a(view).facts.os_image = format!("Bottlerocket OS {OLD} (x)");
    });
}

#[test]
fn version_at_fault_in_a_verification_counts_as_in_an_update() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let read = OwnerHealth { read_at: t(DUE + TIMEOUT), ..EVIDENCE };
    (a(&mut view).pods, a(&mut view).owners) = (Some(vec![failing()]), [("rs".to_owned(), read)].into());
    turn(&mut view, &policy, DUE);
    turn(&mut view, &policy, DUE + SOAK);
    turn(&mut view, &policy, DUE + TIMEOUT);
    assert_eq!((proof(&view), record(&view).failures), ((Proof::Failed, 7), 2));
    assert_eq!(record(&view).version_failures.len(), 1);
    let made = planned(&view, &policy, DUE + TIMEOUT);
    assert_eq!((counts(&made), ledger(&made).nodes[0].proof), ((0, 0, 1), Proof::Failed));
}

/// Hours after the update it may have other causes.
#[test]
fn pressure_in_a_verification_is_no_evidence_against_the_version() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    turn(&mut view, &policy, DUE);
    a(&mut view).facts.pressure = Some("DiskPressure".into());
    turn(&mut view, &policy, DUE + 1);
    turn(&mut view, &policy, DUE + TIMEOUT);
    let last = record(&view).last.as_ref().unwrap();
    assert!(last.reason == "HealthUnknown" && last.message.contains("DiskPressure"), "{last:?}");
    assert_eq!((proof(&view), record(&view).failures), ((Proof::Unproven, 7), 1));
    assert!(record(&view).version_failures.is_empty());
}

#[test]
fn verification_takes_no_slot_and_no_room() {
    let (mut view, policy) = rollout_of(&["a"], json!({"maxUnavailable": 1}));
    turn(&mut view, &policy, DUE);
    assert!(is_verified(&view) && !view.nodes["a"].disrupted());
    let made = planned(&view, &policy, DUE + 1);
    assert_eq!(slots_of(&made), ["z"], "the only one that maxUnavailable allows: {:?}", made.waits);
    assert_eq!(made.status.as_ref().unwrap().counts.as_ref().unwrap().updating, 0);
    // A slot that the write at the end of its update did not take away yet is not its own.
    let mut held = view.clone();
    held.operator.as_mut().unwrap().status.slots = vec![slot("a")];
    assert_eq!(slots_of(&planned(&held, &policy, DUE + 1)), ["z"]);
    // A user who cordons it, and a claim that another client forges.
    a(&mut view).facts.claims = ClaimFields::USUAL;
    let made = planned(&view, &policy, DUE + 1);
    assert_eq!(made.actions.get("a"), Some(&Action::Release));
}

#[test]
fn hooks_are_asked_again_by_a_verification() {
    let spec = json!({"strategy": {"canary": [{"nodes": 1}]},
        "hooks": [{"name": "ceph", "after": {"timeout": "2m", "onTimeout": "Fail"}}]});
    for (answer, expected, reason) in [
        (Some("Done"), Proof::Proven, UPDATED),
        (Some("Refused"), Proof::Unproven, "HookRefused"),
        (None, Proof::Unproven, "HookTimedOut"),
    ] {
        let (mut view, policy) = rollout_of(&["a"], spec.clone());
        a(&mut view).facts.hook_answers.insert("ceph".into(), format!("AfterUpdate/1/{}", t(1).as_second()));
        turn(&mut view, &policy, DUE);
        let (_, wait) = turn(&mut view, &policy, DUE + SOAK);
        assert!(matches!(wait, Some(Wait::AwaitingHook { .. })), "an earlier answer does not count: {wait:?}");
        let request = a(&mut view).facts.hook_request.clone().unwrap();
        assert_eq!(request, format!("AfterUpdate/2/{}", t(DUE).as_second()));
        let answer =
            answer.map(|answer| if answer == "Done" { request.clone() } else { format!("{request} {answer}") });
        a(&mut view).facts.hook_answers.extend(answer.map(|answer| ("ceph".to_owned(), answer)));
        turn(&mut view, &policy, DUE + SOAK + 120);
        assert_eq!((proof(&view).0, record(&view).last.as_ref().unwrap().reason.as_str()), (expected, reason));
        assert_eq!((&view.nodes["a"].facts.hook_request, view.nodes["a"].progress()), (&None, None), "{reason}");
    }
}

#[test]
fn requested_drill_goes_before_a_verification_that_is_due() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    shadow(&mut view).drill = Some("1".into());
    assert_eq!(outcome(&planned(&view, &policy, DUE)), "step Staging");
    shadow(&mut view).retry = Some("now".into());
    assert_eq!(outcome(&planned(&view, &policy, DUE)), "step Verifying", "a user requests it");
}

/// The version has made a pod of a DaemonSet and one of a Deployment unhealthy, before the drill.
#[test]
fn drill_of_a_node_without_proof_excuses_no_pod_in_its_verification() {
    for (health, expected) in
        [(OwnerHealth { updated_failing: 0, ..EVIDENCE }, Proof::Unproven), (EVIDENCE, Proof::Failed)]
    {
        let (mut view, policy) = rollout_of(&["a"], canary());
        let driver = PodFacts {
            name: "csi-a".into(),
            uid: "csi-a".into(),
            controller_uid: Some("csi".into()),
            daemon_set: Some("csi".into()),
            daemon_set_state: DaemonSetState::There,
            ..failing()
        };
        a(&mut view).pods = Some(vec![driver, failing()]);
        let mut drilled = view.clone();
        let own = shadow(&mut drilled);
        let spec = &mut own.spec;
        (spec.state, spec.version, spec.attempt) = (HostState::RehearsedUpdate, Some(NEW), 2);
        spec.boot_id = Some("b1".into());
        let (boot_id, nonce) = ("b1".into(), "n".into());
        own.status.agent.rehearsal = Some(Rehearsal { attempt: 2, boot_id, version: NEW, nonce, verified: false });
        own.status.agent.state = Some(HostState::RehearsedUpdate);
        let staged = Progress { attempt: 2, drill: Some(Drill::of("1")), ..progress(Step::Staged, 60) };
        own.status.controller.progress = Some(staged);
        drilled.operator.as_mut().unwrap().status.slots = vec![slot("a")];
        let made = planned(&drilled, &policy, 61);
        assert_eq!(outcome(&made), "step Draining");
        written(&mut drilled, &made.actions["a"]);
        let drain = shadow(&mut drilled).status.controller.drain.clone().unwrap();
        assert_eq!(drain.unhealthy_before, ["csi", "rs"], "the drill itself excuses both");
        // The record is all that a drill leaves, however it ends.
        shadow(&mut view).status.controller.record = Some(record(&drilled).clone());
        let read = OwnerHealth { read_at: t(DUE + TIMEOUT), ..health };
        a(&mut view).owners = ["csi", "rs"].map(|owner| (owner.to_owned(), read)).into();
        turn(&mut view, &policy, DUE);
        let (_, wait) = turn(&mut view, &policy, DUE + SOAK);
        assert!(matches!(wait, Some(Wait::Settling { count: 2, .. })), "{wait:?}");
        turn(&mut view, &policy, DUE + TIMEOUT);
        assert_eq!(proof(&view), (expected, 7));
    }
}

/// The attempt began at 1 s.
#[test]
fn verification_excuses_a_pod_of_an_owner_that_came_after_the_attempt_began_and_has_no_healthy_one() {
    for (created, expected) in [(None, Proof::Unproven), (Some(-10), Proof::Unproven), (Some(30), Proof::Proven)] {
        let (mut view, policy) = rollout_of(&["a"], canary());
        let read = OwnerHealth { read_at: t(DUE + SOAK), created: created.map(t), ..OwnerHealth::default() };
        (a(&mut view).pods, a(&mut view).owners) = (Some(vec![failing()]), [("rs".to_owned(), read)].into());
        turn(&mut view, &policy, DUE);
        turn(&mut view, &policy, DUE + SOAK);
        assert_eq!(proof(&view), (expected, 7), "{created:?}");
    }
}

/// Node `a`, which has come back on the new version after the end of its attempt, and whose failure has frozen the rollout.
fn late() -> (ClusterView, Policy) {
    let (mut view, policy) = rollout_of(&["a"], canary());
    let reason = FailureReason::NotReadyAfterBoot;
    let record = shadow(&mut view).status.controller.record.as_mut().unwrap();
    record.last.as_mut().unwrap().reason = reason.as_str().into();
    record.version_failures = vec![models::shadow::VersionFailure { reason, ..failure(NEW) }];
    let place = record.proof.as_mut().unwrap();
    (place.proof, place.reason) = (Proof::Failed, reason.as_str().into());
    let status = &mut view.operator.as_mut().unwrap().status;
    let ledger = status.active_rollouts[0].ledger.as_mut().unwrap();
    (ledger.unproven, ledger.failed) = (0, 1);
    ledger.nodes[0] = LedgerNode { proof: Proof::Failed, reason: reason.as_str().into(), ..ledger.nodes[0].clone() };
    let versions = planned(&view, &policy, 60).status.unwrap().versions;
    view.operator.as_mut().unwrap().status.versions = versions;
    assert!(view.operator.as_ref().unwrap().status.versions[0].quarantined.is_some());
    (view, policy)
}

#[test]
fn late_healthy_return_resolves_its_own_failure_and_the_rollout_goes_on() {
    let (mut view, policy) = late();
    turn(&mut view, &policy, 60);
    assert!(is_verified(&view), "at once");
    let (notes, _) = turn(&mut view, &policy, 60 + SOAK);
    assert_eq!(notes.len(), 1);
    assert_eq!(
        notes[0].message,
        "verified again: 1.20.5 is proven; its failure of 2027-01-15T08:00:00Z (NotReadyAfterBoot) is resolved"
    );
    assert_eq!(record(&view).version_failures[0].resolved_by.as_deref(), Some(UPDATED));
    let made = planned(&view, &policy, 60 + SOAK);
    let status = made.status.clone().unwrap();
    assert_eq!((counts(&made), slots_of(&made)), ((1, 0, 0), vec!["z"]));
    assert!(status.versions.iter().all(|known| known.failed.is_empty() && known.quarantined.is_none()));
    // Also by a leader that has read nothing but this.
    view.operator.as_mut().unwrap().status = status;
    assert_eq!(planned(&view, &policy, 61 + SOAK).waits.get("z").map(Wait::as_str), None);
}

#[test]
fn late_return_resolves_nothing_beyond_its_own_failure() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, verified: bool, change: Change| {
        let (mut view, policy) = late();
        change(&mut view);
        assert_eq!(outcome(&planned(&view, &policy, 60)) == "step Verifying", verified, "{sentence}");
    };
    case("the node that came back late", true, |_| {});
    case("it runs its old version", false, |view| a(view).facts.os_image = format!("Bottlerocket OS {OLD} (x)"));
    case("it is not Ready", false, |view| a(view).facts.ready = false);
    case("it failed in its soak", false, |view| place(view).reason = "SoakFailed".into());
    case("it fell back", false, |view| place(view).reason = "BootFellBack".into());
    case("a user has resolved the failure", false, |view| place(view).proof = Proof::Proven);
    // Another node has failed as well: the version stays quarantined.
    let (mut view, policy) = late();
    fails(&mut view, NEW);
    let versions = planned(&view, &policy, 60).status.unwrap().versions;
    view.operator.as_mut().unwrap().status.versions = versions;
    turn(&mut view, &policy, 60);
    turn(&mut view, &policy, 60 + SOAK);
    assert_eq!(proof(&view).0, Proof::Proven);
    let known = planned(&view, &policy, 60 + SOAK).status.unwrap().versions.remove(0);
    assert_eq!((known.failed, known.quarantined.is_some()), (vec!["z".to_owned()], true));
    // A shadow that was deleted takes no failure back.
    let (mut view, policy) = late();
    shadow(&mut view).status.controller.record = None;
    assert!(planned(&view, &policy, 60).status.unwrap().versions[0].quarantined.is_some());
}

/// As a client that writes the status of a shadow could forge it, or an older controller could leave it.
#[test]
fn verification_beside_a_desired_state_ends() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    turn(&mut view, &policy, DUE);
    let spec = &mut shadow(&mut view).spec;
    (spec.state, spec.version, spec.boot_id) = (HostState::StagedUpdate, Some(NEW), Some("b1".into()));
    assert_eq!(outcome(&planned(&view, &policy, DUE + 1)), "ProgressLost");
    let (mut view, policy) = rollout_of(&["a"], canary());
    turn(&mut view, &policy, DUE);
    shadow(&mut view).status.controller.progress.as_mut().unwrap().step = Step::Draining;
    assert_eq!(outcome(&plan(&view, &policy, t(DUE + 1))), "ProgressLost");
}

#[test]
fn place_without_a_proof_that_nodes_do_not_record_is_verified_too() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, change: Change| {
        let (mut view, policy) = rollout_of(&["a"], canary());
        change(&mut view);
        let at_once = [ENDED + 1, ENDED + 2, ENDED + 2 + SOAK, ENDED + 3 + SOAK];
        for second in at_once.into_iter().chain([DUE, DUE + SOAK, DUE + SOAK + 1]) {
            turn(&mut view, &policy, second);
            let made = planned(&view, &policy, second);
            if second <= ENDED + 2 {
                assert_eq!(counts(&made), (0, 1, 0), "{sentence}, at {second}");
                assert_ne!(slots_of(&made), ["z"], "{sentence}, at {second}");
            }
            view.operator.as_mut().unwrap().status = made.status.unwrap();
        }
        let made = planned(&view, &policy, DUE + SOAK + 2);
        assert_eq!((counts(&made), made.waits.get("z")), ((1, 0, 0), None), "{sentence}");
    };
    case("the operator's resource was deleted and made again", |view| {
        view.history.highest = Some(40);
        let status = &mut view.operator.as_mut().unwrap().status;
        (status.active_rollouts, status.rollout_count) = (Vec::new(), None);
    });
    case("the same, and numbers begin again", |view| {
        view.history.highest = Some(0);
        let status = &mut view.operator.as_mut().unwrap().status;
        (status.active_rollouts, status.rollout_count) = (Vec::new(), None);
    });
    case("an earlier version of the operator recorded its end, and no place", |view| {
        shadow(view).status.controller.record.as_mut().unwrap().proof = None;
        view.operator.as_mut().unwrap().status.active_rollouts[0].ledger = None;
    });
    case("its Node was deleted and registered again without a record", |view| {
        shadow(view).status.controller.record = None;
    });
}

#[test]
fn last_node_of_a_rollout_that_lost_its_record_proves_the_version_once() {
    let (mut view, policy) = rollout_of(&["a"], canary());
    view.nodes.remove("z");
    shadow(&mut view).status.controller.record = None;
    turn(&mut view, &policy, DUE);
    turn(&mut view, &policy, DUE + SOAK);
    let made = planned(&view, &policy, DUE + SOAK + 1);
    assert_eq!((counts(&made), proof(&view)), ((1, 0, 0), (Proof::Proven, 7)));
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    turn(&mut view, &policy, 3 * DUE);
    assert!(!is_verified(&view), "it is not verified again");
}

#[test]
fn each_of_many_places_is_proven_although_the_ledger_names_only_some() {
    let names: Vec<String> = (10..80).map(|number| format!("n{number}")).collect();
    let (mut view, policy) = rollout_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), canary());
    // One was proven before, and an autoscaler has removed it.
    let rollout = &mut view.operator.as_mut().unwrap().status.active_rollouts[0];
    rollout.ledger.as_mut().unwrap().proven = 1;
    for (verified, expected) in [(0, (1, 70, 0)), (64, (65, 6, 0)), (70, (71, 0, 0))] {
        for name in &names[..verified] {
            let record = view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().status.controller.record.as_mut();
            let record = record.unwrap();
            record.last.as_mut().unwrap().reason = UPDATED.into();
            record.proof.as_mut().unwrap().proof = Proof::Proven;
        }
        let made = planned(&view, &policy, 60);
        assert_eq!(counts(&made), expected, "{verified}");
        view.operator.as_mut().unwrap().status = made.status.unwrap();
    }
    // Only what has a name begins, so that its proof is counted.
    let (view, policy) = rollout_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), canary());
    let made = planned(&view, &policy, DUE);
    let began = made.actions.keys().filter(|name| name.starts_with('n')).count();
    assert_eq!(began, models::operator::LEDGER_NODES);
    assert!(!made.actions.contains_key("n79"));
    let mut asked = view.clone();
    asked.nodes.get_mut("n79").unwrap().shadow.as_mut().unwrap().retry = Some("now".into());
    let ledger = asked.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
    ledger.nodes.pop();
    assert!(planned(&asked, &policy, DUE).actions.contains_key("n79"), "one that a user asks for is named first");
}

/// The ledger names 64 nodes, which an autoscaler has removed since, and `z0` has used up a place without a proof.
#[test]
fn node_is_verified_although_nodes_that_are_gone_have_all_names() {
    for (sentence, accepted, hidden, begins) in [
        ("gone", 0, false, true),
        ("gone, and accepted by a user", 64, false, true),
        ("they cannot be read", 0, true, false),
    ] {
        let names: Vec<String> = (10..74).map(|number| format!("n{number}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).chain(["z0"]).collect();
        let (mut view, policy) = rollout_of(&all, canary());
        let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
        ledger.accepted = accepted;
        ledger.nodes.iter_mut().for_each(|named| named.accepted = accepted > 0);
        for name in names {
            view.nodes.remove(&name);
            if hidden {
                view.unreadable.nodes.insert(name, "a field".into());
            }
        }
        let made = planned(&view, &policy, DUE);
        assert_eq!(made.actions.contains_key("z0"), begins, "{sentence}");
        view.operator.as_mut().unwrap().status = made.status.unwrap();
        let record = view.nodes.get_mut("z0").unwrap().shadow.as_mut().unwrap().status.controller.record.as_mut();
        record.unwrap().proof.as_mut().unwrap().proof = Proof::Proven;
        let made = planned(&view, &policy, DUE + 1);
        let expected = if begins { (1, 64, 0) } else { (0, 65, 0) };
        assert_eq!(counts(&made), expected, "{sentence}: the others are counted");
        let rollouts = made.status.unwrap().active_rollouts;
        assert_eq!(rollouts[0].ledger.as_ref().unwrap().accepted, accepted, "{sentence}");
    }
}

#[test]
fn verification_that_shows_nothing_leaves_a_failed_place_failed() {
    let (mut view, policy) = late();
    turn(&mut view, &policy, 60);
    a(&mut view).facts.ready = false;
    turn(&mut view, &policy, 61);
    assert!(!is_verified(&view), "it has ended");
    assert_eq!(proof(&view).0, Proof::Failed);
    assert_eq!(counts(&planned(&view, &policy, 62)), (0, 0, 1), "no approval accepts it");
}

/// The built-in defaults say when its node is released, and nothing about its version.
#[test]
fn update_that_ends_without_a_policy_neither_proves_its_version_nor_counts_against_it() {
    type Change = fn(&mut Watch);
    let returning: Change = |watch| {
        let shadow = shadow(&mut watch.view);
        let progress = shadow.status.controller.progress.as_mut().unwrap();
        (progress.step, progress.verifying_since) = (Step::Returning, None);
        a(&mut watch.view).facts.boot_id = "b2".into();
    };
    let failing_pod: Change = |watch| {
        watch.found = EVIDENCE;
        *watch.pods() = vec![failing()];
    };
    let not_ready: Change = |watch| a(&mut watch.view).facts.ready = false;
    let deadline = i64::try_from(Policy::default().returning.as_secs()).unwrap();
    let cases: [(&str, Vec<Change>, i64, &str); 4] = [
        ("well for the default soak", vec![], SOAK, "Disabled"),
        ("not Ready at the default timeout", vec![not_ready], TIMEOUT, "HealthUnknown"),
        ("not back at the default deadline", vec![returning, not_ready], deadline, "HealthUnknown"),
        ("a pod fails on updated nodes alone", vec![failing_pod], TIMEOUT, "HealthUnknown"),
    ];
    for (sentence, changes, second, reason) in cases {
        let gone = Policy::default();
        let unusable = Policy { present: true, unusable: true, errors: invalid_policy(), ..Policy::default() };
        for policy in [gone, unusable] {
            let mut watch = Watch::of(verifying(vec![healthy()]));
            watch.policy = policy;
            changes.iter().for_each(|change| change(&mut watch));
            watch.at(0);
            assert_eq!(watch.result_at(second - 1).0, None, "{sentence}: too early");
            assert_eq!(watch.result_at(second), (Some(reason.to_owned()), false), "{sentence}: {}", watch.message());
            assert_eq!(watch.record().proof.map(|place| place.proof), Some(Proof::Unproven), "{sentence}");
            assert!(watch.view.nodes["a"].progress().is_none(), "{sentence}: the node is released");
        }
    }
    let mut watch = Watch::of(failed(FailureReason::BootFellBack));
    watch.policy = Policy::default();
    let facts = &mut a(&mut watch.view).facts;
    (facts.claims, facts.unschedulable) = (ClaimFields::default(), false);
    assert_eq!(watch.result_at(1), (Some("BootFellBack".to_owned()), true), "whatever policy says");
}
