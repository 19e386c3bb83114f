//! Requirements of an attempt's next step: the agent's report, the host, the leader.

use models::shadow::{
    ArmedPhase, ControllerReport, DrainStatus, HOST_REACHABLE, HostPolicy, HostState, OfferedUpdates, Permit, Step,
};

use super::{Action, Plan, Wait, plan};
use crate::claims::{Part, Parts};
use crate::fixtures::*;
use crate::view::{NodeView, ShadowFacts};

fn shadow(node: &mut NodeView) -> &mut ShadowFacts {
    node.shadow.as_mut().unwrap()
}

fn changed(mut node: NodeView, change: &dyn Fn(&mut NodeView)) -> NodeView {
    change(&mut node);
    node
}

/// Plans for node `a`, which has a slot, at this second.
fn plan_at(node: NodeView, second: i64) -> Plan {
    let (view, policy) = cluster(vec![node], &["a"]);
    plan(&view, &policy, t(second))
}

fn status_of(plan: &Plan) -> Option<&ControllerReport> {
    match plan.actions.get("a") {
        Some(Action::Status { status, .. }) => Some(&status.report),
        _ => None,
    }
}

fn step_of(plan: &Plan) -> Option<Step> {
    Some(status_of(plan)?.progress.as_ref()?.step)
}

#[test]
fn a_permit_answers_only_a_request_of_this_attempt_in_this_boot_for_this_version() {
    let asking = || {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        let shadow = shadow(&mut node);
        shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow.status.controller.drain = Some(DrainStatus::default());
        node
    };
    let requested = |node: &mut NodeView, change: &dyn Fn(&mut models::shadow::Armed)| {
        change(shadow(node).status.agent.armed.as_mut().unwrap());
    };
    type Change<'a> = &'a dyn Fn(&mut NodeView);
    let cases: [(&str, Change, bool); 6] = [
        ("the request fits", &|_| {}, true),
        ("of another attempt", &|node| requested(node, &|armed| armed.attempt = 2), false),
        ("for another version", &|node| requested(node, &|armed| armed.version = OLD), false),
        ("of another boot", &|node| requested(node, &|armed| armed.boot_id = "b0".into()), false),
        ("for a desired state of another boot", &|node| shadow(node).spec.boot_id = Some("b0".into()), false),
        (
            "desired state and request of another boot",
            &|node| {
                shadow(node).spec.boot_id = Some("b0".into());
                requested(node, &|armed| armed.boot_id = "b0".into());
            },
            false,
        ),
    ];
    for (sentence, change, expected) in cases {
        let made = plan_at(changed(asking(), change), 1);
        let permit = matches!(made.actions.get("a"), Some(Action::Permit { .. }));
        assert_eq!(permit, expected, "{sentence}: {:?}", made.actions);
    }
}

#[test]
fn a_node_is_drained_only_if_its_agent_has_confirmed_the_image_in_this_boot() {
    type Change<'a> = &'a dyn Fn(&mut NodeView);
    let cases: [(&str, Change, bool); 5] = [
        ("it has", &|_| {}, true),
        ("for an earlier desired state", &|node| shadow(node).status.agent.observed_generation = Some(0), false),
        ("in another boot", &|node| shadow(node).status.agent.boot_id = Some("b0".into()), false),
        ("another state", &|node| shadow(node).status.agent.state = Some(HostState::Idle), false),
        ("the desired state is of another boot", &|node| shadow(node).spec.boot_id = Some("b0".into()), false),
    ];
    for (sentence, change, expected) in cases {
        let made = plan_at(changed(at("a", Step::Staged, 0, HostState::StagedUpdate), change), 1);
        let drains = status_of(&made).and_then(|status| status.progress.as_ref()).is_some_and(|p| p.disruptive);
        assert_eq!(drains, expected, "{sentence}: {:?} {:?}", made.actions, made.waits);
    }
}

#[test]
fn an_empty_node_goes_on_to_its_reboot_only_while_the_image_is_known_to_be_staged() {
    let drained = |state: HostState| {
        let mut node = at("a", Step::Draining, 0, state);
        shadow(&mut node).status.controller.drain = Some(DrainStatus::default());
        node
    };
    let first = || drained(HostState::StagedUpdate);
    // A drain that is resumed while the agent waits for its permit: the agent confirms no desired state meanwhile.
    let resumed = || {
        let mut node = drained(HostState::RebootedIntoUpdate);
        let shadow = shadow(&mut node);
        shadow.generation = 2;
        shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
        node
    };
    type Change<'a> = &'a dyn Fn(&mut NodeView);
    let cases: [(&str, NodeView, Change, bool); 7] = [
        ("staged", first(), &|_| {}, true),
        ("its agent was restarted", first(), &|node| shadow(node).status.agent.state = Some(HostState::Idle), false),
        ("resumed", resumed(), &|_| {}, true),
        (
            "resumed with a permit",
            resumed(),
            &|node| shadow(node).spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() }),
            false,
        ),
        (
            "resumed and armed",
            resumed(),
            &|node| shadow(node).status.agent.armed = Some(armed(ArmedPhase::Activated)),
            false,
        ),
        ("resumed without a request", resumed(), &|node| shadow(node).status.agent.armed = None, false),
        (
            "resumed after a restart of the agent",
            resumed(),
            &|node| shadow(node).status.agent.state = Some(HostState::Idle),
            false,
        ),
    ];
    for (sentence, node, change, expected) in cases {
        let made = plan_at(changed(node, change), 1);
        assert_eq!(
            step_of(&made) == Some(Step::Rebooting),
            expected,
            "{sentence}: {:?} {:?}",
            made.actions,
            made.waits
        );
    }
}

#[test]
fn a_host_that_another_client_armed_is_left_alone_until_a_user_permits_to_disarm_it_in_this_boot() {
    let idle = |reason: &str| {
        let mut node = node("a");
        shadow(&mut node).status.conditions.push(condition(HOST_REACHABLE, reason, ""));
        node
    };
    let blocked = |made: &Plan| match made.actions.get("a") {
        Some(Action::Status { note: Some(note), .. }) => Some(note.reason),
        _ => None,
    };
    assert_eq!(blocked(&plan_at(idle("HostArmedByOther"), 1)), Some("HostArmedByOther"));
    assert_eq!(step_of(&plan_at(idle("HostAnswers"), 1)), Some(Step::Staging), "an attempt begins");

    let mut asked = idle("HostArmedByOther");
    shadow(&mut asked).retry = Some("now".into());
    shadow(&mut asked).spec.attempt = 7;
    let made = plan_at(asked.clone(), 1);
    let Some(Action::Spec { spec }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    let permission = spec.host.as_ref().and_then(|host| host.disarm_in_boot.as_deref());
    assert_eq!((spec.state, spec.attempt, permission), (HostState::Idle, 7, Some("b1")));
    // Permitted; the answer to the request follows, and the permission stays for this boot alone.
    shadow(&mut asked).spec = (**spec).clone();
    assert!(matches!(plan_at(asked.clone(), 2).actions.get("a"), Some(Action::Status { .. })));
    shadow(&mut asked).retry = None;
    assert_eq!(blocked(&plan_at(asked.clone(), 3)), Some("HostArmedByOther"), "the permission stands in its boot");
    asked.facts.boot_id = "b2".into();
    shadow(&mut asked).status.agent.boot_id = Some("b2".into());
    let made = plan_at(asked, 4);
    let Some(Action::Spec { spec }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(spec.host.as_ref().and_then(|host| host.disarm_in_boot.clone()), None, "it ends with the boot");
}

#[test]
fn a_version_lock_of_another_client_keeps_a_node_waiting_only_where_policy_sets_one() {
    let locked = || {
        let mut node = node("a");
        let shadow = shadow(&mut node);
        shadow.status.agent.host.get_or_insert_default().conflicting_lock = Some("1.19.0".into());
        shadow.status.agent.updates = Some(OfferedUpdates {
            chosen_version: Some(NEW),
            available_versions: vec![NEW],
            ..OfferedUpdates::default()
        });
        node
    };
    assert_eq!(step_of(&plan_at(locked(), 1)), Some(Step::Staging), "without a target");
    let mut pinned = locked();
    let host = shadow(&mut pinned).spec.host.take().unwrap();
    shadow(&mut pinned).spec.host = Some(HostPolicy { version_lock: Some(NEW.to_string()), ..host });
    let (mut view, _) = cluster(vec![pinned], &[]);
    let policy = with_policy(&mut view, serde_json::json!({"version": {"target": "1.20.5"}}));
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else {
        panic!("{:?} {:?}", made.actions, made.waits)
    };
    assert_eq!(note.reason, "LockedByOther");
    assert!(note.message.contains("1.19.0"), "{}", note.message);
}

#[test]
fn a_step_that_a_new_leader_finds_past_its_deadline_gets_a_short_grace_and_its_own_steps_none() {
    for (sentence, leads_since, second, given_up) in [
        ("before the deadline", -100, 59, false),
        ("past it", -100, 60, true),
        ("an earlier leader began it, and this one has led for 29 s", 100, 129, false),
        ("and for 30 s", 100, 130, true),
        ("this leader began it as soon as it led", 0, 60, true),
    ] {
        let mut silent = at("a", Step::Staging, 0, HostState::StagedUpdate);
        shadow(&mut silent).status.agent.state = Some(HostState::Idle);
        let (mut view, _) = cluster(vec![silent], &["a"]);
        view.leader_since = t(leads_since);
        let policy = with_policy(&mut view, serde_json::json!({"deadlines": {"stage": "60s"}}));
        let made = plan(&view, &policy, t(second));
        assert_eq!(step_of(&made) == Some(Step::Releasing), given_up, "{sentence}: {:?}", made.waits);
        if !given_up {
            assert_eq!(made.waits.get("a"), Some(&Wait::Staging), "{sentence}");
        }
    }
    // A deadline that is shorter than the grace.
    let mut silent = at("a", Step::Staging, 0, HostState::StagedUpdate);
    shadow(&mut silent).status.agent.state = Some(HostState::Idle);
    let (mut view, _) = cluster(vec![silent], &["a"]);
    view.leader_since = t(0);
    let policy = with_policy(&mut view, serde_json::json!({"deadlines": {"stage": "5s"}}));
    assert_eq!(step_of(&plan(&view, &policy, t(6))), Some(Step::Releasing), "a step of its own needs no grace");
}

#[test]
fn an_attempt_that_nothing_backs_takes_part_in_the_budget_only_if_its_host_may_have_a_permit() {
    type Change<'a> = &'a dyn Fn(&mut ShadowFacts);
    let cases: [(&str, Change, bool); 3] = [
        ("without a permit", &|_| {}, false),
        (
            "with one in the desired state",
            &|shadow| shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() }),
            true,
        ),
        (
            "with one in the record",
            &|shadow| shadow.status.controller.progress.as_mut().unwrap().permit_issued = true,
            true,
        ),
    ];
    for (sentence, change, disruptive) in cases {
        let mut forged = at("a", Step::Draining, 0, HostState::StagedUpdate);
        forged.facts = node("a").facts;
        change(shadow(&mut forged));
        let (view, policy) = cluster(vec![forged], &[]);
        let made = plan(&view, &policy, t(1));
        let ended = status_of(&made).and_then(|status| status.progress.as_ref()).map(|p| (p.step, p.disruptive));
        assert_eq!(ended, Some((Step::Releasing, disruptive)), "{sentence}: {:?}", made.waits);
    }
}

#[test]
fn pods_are_watched_from_the_drain_to_the_end_of_the_soak() {
    for (step, state, watched) in [
        (Step::LeavingBalancer, HostState::StagedUpdate, true),
        (Step::Draining, HostState::StagedUpdate, true),
        (Step::Rebooting, HostState::RebootedIntoUpdate, true),
        (Step::Returning, HostState::RebootedIntoUpdate, true),
        (Step::Monitoring, HostState::RebootedIntoUpdate, true),
        (Step::Releasing, HostState::Idle, false),
    ] {
        assert_eq!(plan_at(at("a", step, 0, state), 1).pods.contains("a"), watched, "{step:?}");
    }
}

#[test]
fn expressions_of_a_node_with_a_slot_are_queried_before_it_is_drained() {
    let (mut view, _) = cluster(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
    let policy = with_policy(
        &mut view,
        serde_json::json!({
            "prometheus": {"url": "http://prometheus:9090"},
            "health": {"before": {"expressions": [{"name": "errors", "query": "errors{node=\"$node\"} > 0"}]}},
        }),
    );
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.expressions, [r#"errors{node="a"} > 0"#.to_owned()].into());
    assert_eq!(step_of(&made), None, "{:?}", made.actions);
}

#[test]
fn a_drain_records_what_other_clients_had_set_before() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.facts.set_by_others = [Part::ScaleDown].into_iter().collect();
    let made = plan_at(staged, 1);
    let drain = status_of(&made).and_then(|status| status.drain.as_ref()).unwrap();
    assert_eq!(drain.preexisting, [Part::ScaleDown.name()]);
}

#[test]
fn a_pod_that_comes_after_the_drain_resumes_it_once() {
    let asking = |restarted: bool| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![pod("a", false)]);
        let shadow = shadow(&mut node);
        shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow.status.controller.drain = Some(DrainStatus { restarted, ..DrainStatus::default() });
        plan_at(node, 1)
    };
    let first = asking(false);
    assert_eq!(step_of(&first), Some(Step::Draining));
    assert!(status_of(&first).unwrap().drain.as_ref().unwrap().restarted, "recorded, so that it is once");
    let second = asking(true);
    assert_eq!(step_of(&second), Some(Step::Releasing));
    assert_eq!(status_of(&second).unwrap().record.as_ref().unwrap().last.as_ref().unwrap().reason, "PodsReturn");
}

#[test]
fn a_release_counts_from_the_failure() {
    let mut deleted = at("a", Step::Draining, 0, HostState::StagedUpdate);
    deleted.facts.deleting = true;
    let made = plan_at(deleted, 50);
    assert_eq!(status_of(&made).unwrap().progress.as_ref().unwrap().since, t(50));
}

#[test]
fn a_boot_into_another_version_is_the_versions_fault_only_if_its_image_was_armed_in_this_attempt() {
    let back = |request: Option<models::shadow::Armed>| {
        let mut node = at("a", Step::Returning, 0, HostState::RebootedIntoUpdate);
        node.facts.boot_id = "b2".into();
        // Its agent has been silent since the boot.
        shadow(&mut node).status.agent.armed = request;
        let made = plan_at(node, 24 * 3600);
        status_of(&made).unwrap().record.as_ref().unwrap().last.as_ref().unwrap().reason.clone()
    };
    let of_another = models::shadow::Armed { attempt: 2, ..armed(ArmedPhase::Activated) };
    for (sentence, request, expected) in [
        ("armed", Some(armed(ArmedPhase::Activated)), "BootFellBack"),
        ("about to be armed", Some(armed(ArmedPhase::Arming)), "RebootedByOther"),
        ("armed in another attempt", Some(of_another), "RebootedByOther"),
        ("not armed", None, "RebootedByOther"),
    ] {
        assert_eq!(back(request), expected, "{sentence}");
    }
}

#[test]
fn a_claim_that_is_taken_away_again_and_again_ends_the_attempt_only_if_the_node_is_not_cordoned_by_it() {
    for (sentence, unschedulable, claims, ends) in [
        ("another part is taken away", true, Parts::from_iter([Part::Cordon]), false),
        ("the cordon is another client's", true, Parts::USUAL.without(Parts::from_iter([Part::Cordon])), true),
        ("the node is uncordoned", false, Parts::USUAL, true),
    ] {
        let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
        let node = view.nodes.get_mut("a").unwrap();
        (node.claims_made, node.facts.unschedulable, node.facts.claims) = (4, unschedulable, claims);
        let made = plan(&view, &policy, t(1));
        let last = status_of(&made).and_then(|report| report.record.as_ref()?.last.as_ref());
        assert_eq!(last.map(|last| last.reason.as_str()), ends.then_some("Uncordoned"), "{sentence}: {made:?}");
    }
}
