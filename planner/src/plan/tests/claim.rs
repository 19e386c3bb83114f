//! The claim on a node: made again, kept, and released.

use std::time::Duration;

use models::condition::true_condition;
use models::reason::Proof;
use models::shadow::{ArmedPhase, BLOCKED, HostState, Step, UPDATED};

use super::health::{SOAKED, Watch, verifying};
use crate::claims::{ClaimFields, ClaimsMade};
use crate::decision::Action;
use crate::fixtures::*;
use crate::hold::Hold;
use crate::plan::{ShadowChange, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, Failing, NodeView};

/// The shadow is deleted right after its permit (the docs tell users to delete shadows): the new one has no permit.
#[test]
fn claim_with_deleted_shadow_is_kept_until_permit_wait_is_over() {
    let mut orphan = node("a");
    orphan.facts.claims = ClaimFields::USUAL;
    orphan.facts.unschedulable = true;
    // Created again a moment ago, the agent (which has just requested the reboot) has not reported to it.
    let shadow = orphan.shadow.as_mut().unwrap();
    shadow.status = models::shadow::BottlerocketShadowStatus::default();
    let (mut view, policy) = cluster(vec![orphan], &["a"]);
    let mut action = |observed_for, at| {
        view.nodes.get_mut("a").unwrap().observed_for = Duration::from_secs(observed_for);
        let made = plan(&view, &policy, t(at));
        (made.actions.get("a") == Some(&Action::Release), made.wake)
    };
    for at in [1, 269] {
        // However long it has been by a clock that a client may have set.
        assert!(!action(at, 1_000_000).0, "released {at} s after the permit");
    }
    assert_eq!(action(269, 0).1, Some(t(1)), "nothing wakes the leader when it is over");
    assert!(action(270, 0).0, "and never released");
}

/// Label and shadow are gone, the cordon is the operator's.
#[test]
fn claim_without_label_and_shadow_is_released() {
    let mut orphan = node("a");
    orphan.facts.claims = ClaimFields::USUAL;
    orphan.facts.unschedulable = true;
    orphan.facts.labelled = false;
    orphan.shadow = None;
    let (view, policy) = cluster(vec![orphan.clone()], &[]);
    let made = plan(&view, &policy, t(0)).shadows;
    let created = matches!(&made[..], [ShadowChange::Create { node, uid, .. }] if node == "a" && uid == "uid-a");
    assert!(created, "{made:?}");
    let mut shadowed = node("a");
    shadowed.facts = orphan.facts;
    let (view, policy) = cluster(vec![shadowed], &["a"]);
    assert_eq!(plan(&view, &policy, t(201)).actions.get("a"), Some(&Action::Release));
}

/// A Node whose cordon is refused for ever does not delay the fleet.
#[test]
fn attempt_without_cordon_ends_at_deadline() {
    for (step, order) in [(Step::Draining, HostState::StagedUpdate), (Step::Rebooting, HostState::RebootedIntoUpdate)] {
        let mut stubborn = at("a", step, 0, order);
        (stubborn.facts.claims, stubborn.facts.unschedulable) = (ClaimFields::default(), false);
        let (view, policy) = cluster(vec![stubborn], &["a"]);
        assert_eq!(
            plan(&view, &policy, t(1)).actions.get("a"),
            Some(&Action::Claim { fields: ClaimFields::USUAL, note: None })
        );
        let later = plan(&view, &policy, t(3600));
        assert_eq!(status_of(&later).report.progress.as_ref().unwrap().step, Step::Releasing);
    }
}

/// A client runs `kubectl uncordon` on a node that is being drained, again and again.
#[test]
fn node_uncordoned_during_drain_is_recordoned_with_event_up_to_limit() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    node.facts.unschedulable = false;
    let cordon: ClaimFields = [crate::claims::ClaimField::Cordon].into_iter().collect();
    node.facts.claims = node.facts.claims.without(cordon);
    for (made, noted, ended) in [(0, false, false), (1, true, false), (3, true, false), (4, false, true)] {
        // Whatever became of the other fields.
        let fields = if made == 0 { ClaimFields::default() } else { ClaimFields::USUAL };
        view.nodes.get_mut("a").unwrap().claims_made =
            ClaimsMade { fields, uncordoned: u32::saturating_sub(made, 1), stripped: 3 };
        match plan(&view, &policy, t(1)).actions.remove("a").unwrap() {
            Action::Claim { fields, note } => {
                assert!(!ended && fields == ClaimFields::USUAL && note.is_some() == noted, "{made}: {note:?}");
                let counts = note.iter().all(|note| note.message.contains(&format!("cordoned again ({made} of 3)")));
                assert!(counts, "{note:?}");
            }
            Action::Status { status, .. } => {
                let last = status.report.record.unwrap().last.unwrap();
                assert!(ended && last.reason == "Uncordoned", "{made}: {last:?}");
            }
            other => panic!("{made}: {other:?}"),
        }
    }
}

/// A label that another client has set to another value is not in the claim, and its absence delays nothing.
#[test]
fn claim_field_set_by_other_field_manager_does_not_block_drain() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    let facts = &mut view.nodes.get_mut("a").unwrap().facts;
    facts.claims = ClaimFields::CORDON;
    assert!(matches!(plan(&view, &policy, t(1)).actions.get("a"), Some(Action::Claim { .. })), "something is missing");
    let theirs = [crate::claims::ClaimField::ScaleDown, crate::claims::ClaimField::DoNotDisrupt].into_iter().collect();
    view.nodes.get_mut("a").unwrap().facts.set_otherwise = theirs;
    assert!(plan(&view, &policy, t(1)).evictions.get("a").is_some_and(|e| !e.delete));
}

/// A user holds a node during its update.
#[test]
fn held_node_keeps_cordon_and_releases_slot_until_hold_is_removed() {
    let mut held = at("a", Step::Draining, 0, HostState::StagedUpdate);
    held.facts.hold = Some(Hold::default());
    let (mut view, policy) = cluster(vec![held], &["a"]);
    for second in 1..10 {
        let Some(action) = plan(&view, &policy, t(second)).actions.remove("a") else { break };
        let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        match action {
            Action::Status { status, .. } => shadow.status.controller = status.report,
            Action::Spec { spec } => {
                shadow.spec = *spec;
                shadow.status.agent.state = Some(HostState::Idle);
            }
            other => panic!("{other:?}"),
        }
    }
    let record = view.nodes["a"].shadow.as_ref().unwrap().status.controller.record.clone().unwrap();
    assert_eq!(record.last.map(|last| last.reason).as_deref(), Some("Held"));
    assert_eq!((record.failures, record.not_before, record.version_failures), (0, None, vec![]), "it is no failure");
    assert_eq!(plan(&view, &policy, t(20)).slots, Some(vec![]), "it has no slot any more");
    assert!(view.nodes["a"].facts.claimed());
    view.nodes.get_mut("a").unwrap().facts.hold = None;
    assert_eq!(plan(&view, &policy, t(21)).actions.get("a"), Some(&Action::Release));
}

/// The record of the attempt is gone.
#[test]
fn held_node_without_attempt_keeps_cordon_and_no_annotation_in_service() {
    let annotations = [crate::claims::ClaimField::ScaleDown, crate::claims::ClaimField::DoNotDisrupt];
    for (sentence, fields, released) in
        [("out of service", ClaimFields::USUAL, false), ("in service", annotations.into_iter().collect(), true)]
    {
        let mut held = node("a");
        (held.facts.claims, held.facts.unschedulable) = (fields, !released);
        held.facts.hold = Some(Hold::default());
        held.observed_for = Duration::from_secs(1_000_000);
        let (view, policy) = cluster(vec![held], &[]);
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.actions.get("a") == Some(&Action::Release), released, "{sentence}: {made:?}");
    }
}

/// A user holds the node while it reboots into its update.
#[test]
fn held_node_stays_cordoned_after_reboot() {
    for step in [Step::Rebooting, Step::Returning, Step::Verifying] {
        let mut back = at("a", step, 0, HostState::RebootedIntoUpdate);
        back.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        back.facts.boot_id = "b2".into();
        back.facts.hold = Some(Hold::default());
        if step == Step::Verifying {
            back.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().boot_id = "b2".into();
        }
        let (mut view, policy) = cluster(vec![back], &["a"]);
        let claims = |view: &crate::view::ClusterView| match plan(view, &policy, t(1)).actions.remove("a") {
            Some(Action::Claim { fields, .. }) => Some(fields.has(crate::claims::ClaimField::Cordon)),
            _ => None,
        };
        assert_eq!(claims(&view), None, "{step:?}");
        view.nodes.get_mut("a").unwrap().facts.hold = None;
        assert_eq!(claims(&view), Some(false), "{step:?}: what protects it from autoscalers stays");
    }
}

/// A user holds the node after its permit.
#[test]
fn held_node_proves_its_version_in_service_alone() {
    let (held, updated) = (("Held", Proof::Unproven), (UPDATED, Proof::Proven));
    for (sentence, step, claims, (reason, proof)) in [
        ("with the operator's cordon", Step::Verifying, ClaimFields::CORDON, held),
        ("in service", Step::Verifying, ClaimFields::default(), updated),
        ("with the operator's cordon, and its hooks have answered", Step::AfterUpdate, ClaimFields::CORDON, held),
        ("in service, and its hooks have answered", Step::AfterUpdate, ClaimFields::default(), updated),
    ] {
        let mut node = verifying(vec![]);
        (node.facts.claims, node.facts.unschedulable) = (claims, !claims.is_empty());
        node.facts.hold = Some(Hold::default());
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.controller.progress.as_mut().unwrap().step = step;
        if step == Step::AfterUpdate {
            (shadow.spec.state, shadow.status.agent.state) = (HostState::Idle, Some(HostState::Idle));
        }
        let mut watch = Watch::of(node);
        watch.at(SOAKED);
        let record = watch.record();
        let found = (record.last.map(|last| last.reason), record.proof.map(|place| place.proof));
        assert_eq!(found, (Some(reason.to_owned()), Some(proof)), "{sentence}");
        assert!(watch.view.nodes["a"].progress().is_none(), "{sentence}: its attempt has ended");
        assert_eq!((record.failures, record.version_failures), (0, vec![]), "{sentence}: it is no failure");
    }
}

/// managedFields were reset while the node rebooted, so that the operator owns nothing on it any more.
#[test]
fn recorded_claim_without_field_manager_is_released() {
    for (theirs, released) in [(None, true), (Some("spec.unschedulable"), false)] {
        let mut back = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        back.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        back.facts.boot_id = "b2".into();
        (back.facts.claims, back.facts.unowned) = (ClaimFields::default(), ClaimFields::CORDON);
        let status = &mut back.shadow.as_mut().unwrap().status;
        let preexisting = theirs.into_iter().map(str::to_owned).collect();
        status.controller.drain = Some(models::shadow::DrainStatus { preexisting, ..Default::default() });
        status.conditions = vec![condition(models::shadow::CORDONED, "Updating", "")];
        let (view, policy) = cluster(vec![back], &["a"]);
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.actions.get("a") == Some(&Action::Release), released, "{theirs:?}: {:?}", made.actions);
    }
}

/// Carries out the claim that is due, and counts it. Returns the reason and the text of its Event.
fn claimed(view: &mut ClusterView, policy: &Policy) -> Option<(&'static str, String)> {
    let Some(Action::Claim { fields, note }) = plan(view, policy, t(1)).actions.remove("a") else { panic!() };
    let node = view.nodes.get_mut("a").unwrap();
    node.claims_made = node.claims_made.and(node.facts.claims_in_effect(), fields);
    (node.facts.claims, node.facts.unschedulable) = (fields, true);
    note.map(|note| (note.reason, note.message))
}

/// A label reconciler removes the fields that are claimed beside the cordon.
#[test]
fn repeatedly_removed_claim_fields_do_not_block_drain_and_are_named_once() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().claims_made = ClaimsMade { fields: ClaimFields::USUAL, ..ClaimsMade::default() };
    for noted in [false, false, true] {
        view.nodes.get_mut("a").unwrap().facts.claims = ClaimFields::CORDON;
        let note = claimed(&mut view, &policy);
        assert_eq!(note.as_ref().map(|note| note.0), noted.then_some("ClaimNotKept"));
        let names = |text: &str| text.contains("karpenter.sh/do-not-disrupt") && text.contains("may remove the node");
        assert!(note.is_none_or(|(_, text)| names(&text)));
    }
    view.nodes.get_mut("a").unwrap().facts.claims = ClaimFields::CORDON;
    assert!(plan(&view, &policy, t(1)).evictions.get("a").is_some_and(|e| !e.delete));
    // None of that counts as an uncordon.
    view.nodes.get_mut("a").unwrap().facts.unschedulable = false;
    let (reason, text) = claimed(&mut view, &policy).unwrap();
    assert!(reason == "Uncordoned" && text.contains("cordoned again (1 of 3)"), "{reason}: {text}");
}

/// The node is claimed twice by the operator itself: for the hooks, and with the label.
#[test]
fn node_is_recordoned_three_times_where_it_was_claimed_for_its_hooks_first() {
    let hooks =
        serde_json::json!({"loadBalancer": {"leaveBeforeDrain": "1h"}, "hooks": [{"name": "ceph", "before": {}}]});
    let mut node = at("a", Step::BeforeDrain, 0, HostState::StagedUpdate);
    (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
    let (mut view, policy) = cluster_with(vec![node], &["a"], hooks);
    assert_eq!(claimed(&mut view, &policy), None);
    shadow(&mut view).status.controller.progress.as_mut().unwrap().step = Step::LeavingLoadBalancer;
    assert_eq!(claimed(&mut view, &policy), None, "with the label");
    for times in 1..=3 {
        view.nodes.get_mut("a").unwrap().facts.unschedulable = false;
        let (reason, text) = claimed(&mut view, &policy).unwrap();
        assert!(reason == "Uncordoned" && text.contains(&format!("cordoned again ({times} of 3)")), "{reason}: {text}");
    }
    view.nodes.get_mut("a").unwrap().facts.unschedulable = false;
    let made = plan(&view, &policy, t(1));
    let last = last_of(&made);
    assert!(last.reason == "Uncordoned" && last.message.contains("4 times"), "{last:?}");
}

/// An autoscaler that finds a node empty, as after its drain, would remove it before it has proven anything.
#[test]
fn protection_from_autoscalers_lasts_until_the_node_is_verified() {
    let protection: ClaimFields =
        [crate::claims::ClaimField::ScaleDown, crate::claims::ClaimField::DoNotDisrupt].into_iter().collect();
    let kept = Some(Action::Claim { fields: protection, note: None });
    let in_step = |step, state| {
        let mut node = at("a", step, 0, state);
        (node.facts.boot_id, node.facts.os_image) = ("b2".into(), format!("Bottlerocket OS {NEW} (aws-k8s-1.37)"));
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.controller.progress.as_mut().unwrap().boot_id = "b2".into();
        status.agent.boot_id = Some("b2".into());
        node
    };
    let back = || in_step(Step::Returning, HostState::RebootedIntoUpdate);
    let verifying = || in_step(Step::Verifying, HostState::RebootedIntoUpdate);
    let verified = || {
        let mut node = in_step(Step::Verifying, HostState::Idle);
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().since = t(-60);
        node.lease = renewed_after(1);
        node
    };
    type Change = fn(&mut NodeView, &mut Policy);
    let with_protection: Change = |node, _| node.facts.claims = node.facts.claims.without(ClaimFields::CORDON);
    let unprotected: Change =
        |node, policy| (node.facts.claims, policy.protect_from_autoscalers) = (ClaimFields::CORDON, false);
    let protection_disabled: Change = |_, policy| policy.protect_from_autoscalers = false;
    let reset: Change = |node, _| {
        (node.facts.claims, node.facts.unowned) = (ClaimFields::default(), ClaimFields::CORDON);
        let cordoned = condition(models::shadow::CORDONED, "Updating", "");
        node.shadow.as_mut().unwrap().status.conditions = vec![cordoned];
    };
    let held: Change = |node, _| node.facts.hold = Some(Hold::default());
    let held_in_service: Change = |node, _| {
        node.facts.claims = node.facts.claims.without(ClaimFields::CORDON);
        node.facts.hold = Some(Hold::default());
    };
    let case = |sentence: &str, mut node: NodeView, expected: Option<Action>, change: Change| {
        let (_, mut policy) = cluster(vec![], &[]);
        change(&mut node, &mut policy);
        let (view, _) = cluster(vec![node], &["a"]);
        let made = plan(&view, &policy, t(1));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), [], "{sentence}");
        let action = made.actions.get("a").filter(|action| !matches!(action, Action::Status { .. }));
        assert_eq!(action, expected.as_ref(), "{sentence}: {:?}", made.waits);
    };
    case("it is back", back(), kept.clone(), |_, _| {});
    case("it is verified", verifying(), None, with_protection);
    case("it was claimed again meanwhile", verifying(), kept, |_, _| {});
    case("it has proven the version", verified(), Some(Action::Release), with_protection);
    case("policy protects no node", back(), Some(Action::Release), unprotected);
    case("policy protects none any more", back(), Some(Action::Release), protection_disabled);
    case("the ownership of its fields was reset", back(), Some(Action::Release), reset);
    case("a user holds it as it is", verifying(), None, held);
    case("a user holds it in service", verifying(), None, held_in_service);
    case("it has proven the version, and a user holds it", verified(), Some(Action::Release), held_in_service);
}

/// A policy engine that does not let the controller write Nodes, or is away.
#[test]
fn node_shows_an_action_that_has_failed_for_a_minute_and_the_action_is_tried_again() {
    let mut drained = at("a", Step::Draining, 0, HostState::StagedUpdate);
    (drained.facts.claims, drained.facts.unschedulable) = (ClaimFields::default(), false);
    drained.failing = Some(Failing { since: t(10), error: "node_claim failed: denied by a webhook".into() });
    let (mut view, policy) = cluster(vec![drained], &["a"]);
    let claims = |action: Option<&Action>| matches!(action, Some(Action::Claim { .. }));
    assert!(claims(plan(&view, &policy, t(69)).actions.get("a")), "for less than a minute");
    let made = plan(&view, &policy, t(70));
    let Some(Action::Status { status, note }) = made.actions.get("a") else { panic!("{made:?}") };
    let blocked = true_condition(&status.conditions, BLOCKED).unwrap();
    assert_eq!(blocked.reason, "ActionFails");
    assert!(blocked.message.contains("denied by a webhook"), "{}", blocked.message);
    assert_eq!(note.as_ref().map(|note| note.reason), Some("ActionFails"));
    let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    shadow.status.conditions.clone_from(&status.conditions);
    // The text differs each time.
    view.nodes.get_mut("a").unwrap().failing.as_mut().unwrap().error = "no answer".into();
    assert!(claims(plan(&view, &policy, t(80)).actions.get("a")), "shown once");
    view.busy.insert("a".into());
    view.paused.insert("a".into());
    assert_eq!(plan(&view, &policy, t(90)).waits["a"].as_str(), "ActionFails", "between two tries");
    view.nodes.get_mut("a").unwrap().failing = None;
    assert_eq!(plan(&view, &policy, t(90)).waits["a"].as_str(), "Acting");
}

/// The definitions are older than the programs, or a policy engine does not let the controller write its own status.
#[test]
fn node_that_waits_for_the_operators_status_shows_that_it_cannot_be_written() {
    let error = "operator_status failed: .status.phases: field not declared in schema (500)";
    let mut requests = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    requests.shadow.as_mut().unwrap().status.agent.armed = Some(armed(ArmedPhase::Arming));
    for (sentence, node, slots, otherwise) in [
        ("a staged node gets a slot", at("a", Step::Staged, 0, HostState::StagedUpdate), &[][..], "Queued"),
        ("a drained one whose slot does not record its permit", requests, &["a"][..], "Acting"),
        ("one whose attempt has ended, and that has a slot still", node("a"), &["a"][..], "Acting"),
    ] {
        let (mut view, policy) = cluster(vec![node], slots);
        for update in view.operator.as_mut().unwrap().status.slots.iter_mut().filter_map(|slot| slot.update.as_mut()) {
            update.permitting_since = None;
        }
        assert_eq!(outcome(&plan(&view, &policy, t(70))), otherwise, "{sentence}, and it can be written");
        view.status_failing = Some(Failing { since: t(10), error: error.into() });
        assert_eq!(outcome(&plan(&view, &policy, t(69))), otherwise, "{sentence}, for less than a minute");
        let made = plan(&view, &policy, t(70));
        let blocked = true_condition(&status_of(&made).conditions, BLOCKED).unwrap();
        assert_eq!(blocked.reason, "ActionFails", "{sentence}");
        assert!(blocked.message.ends_with(error), "{sentence}: {}", blocked.message);
        written(&mut view, &made.actions["a"]);
        assert_eq!(outcome(&plan(&view, &policy, t(80))), "ActionFails", "{sentence}, shown once");
    }
}
