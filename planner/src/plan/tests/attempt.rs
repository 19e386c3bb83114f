//! Requirements of an attempt's next step: the agent's report, the host, the leader.

use models::shadow::{
    ArmedPhase, ControllerReport, DrainStatus, HOST_REACHABLE, HostPolicy, HostState, OfferedUpdates, Permit, Step,
};

use crate::claims::{ClaimField, ClaimFields, ClaimsMade};
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{NodeView, PodFacts, ShadowFacts};
use crate::wait::Wait;

fn shadow(node: &mut NodeView) -> &mut ShadowFacts {
    node.shadow.as_mut().unwrap()
}

fn changed(mut node: NodeView, change: &dyn Fn(&mut NodeView)) -> NodeView {
    change(&mut node);
    node
}

/// Plans for node `a`, which has a slot, at this second.
fn plan_at(node: NodeView, second: i64) -> Plan {
    // An idle node has no slot.
    let slots: &[&str] = if node.step().is_some() { &["a"] } else { &[] };
    let (view, policy) = cluster(vec![node], slots);
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
fn permit_requires_matching_attempt_boot_and_version() {
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
    let case = |sentence: &str, expected: bool, change: Change<'_>| {
        let made = plan_at(changed(asking(), change), 1);
        let permit = matches!(made.actions.get("a"), Some(Action::Permit { .. }));
        assert_eq!(permit, expected, "{sentence}: {:?}", made.actions);
    };
    case("the request fits", true, &|_| {});
    case("of another attempt", false, &|node| requested(node, &|armed| armed.attempt = 2));
    case("for another version", false, &|node| requested(node, &|armed| armed.version = OLD));
    case("of another boot", false, &|node| requested(node, &|armed| armed.boot_id = "b0".into()));
    case("for a desired state of another boot", false, &|node| shadow(node).spec.boot_id = Some("b0".into()));
    case("desired state and request of another boot", false, &|node| {
        shadow(node).spec.boot_id = Some("b0".into());
        requested(node, &|armed| armed.boot_id = "b0".into());
    });
}

#[test]
fn drain_requires_agent_confirmation_of_staged_image_in_current_boot() {
    type Change<'a> = &'a dyn Fn(&mut NodeView);
    let case = |sentence: &str, expected: bool, change: Change<'_>| {
        let made = plan_at(changed(at("a", Step::Staged, 0, HostState::StagedUpdate), change), 1);
        let drains = status_of(&made).and_then(|status| status.progress.as_ref()).is_some_and(|p| p.disruptive);
        assert_eq!(drains, expected, "{sentence}: {:?} {:?}", made.actions, made.waits);
    };
    case("it has", true, &|_| {});
    case("for an earlier desired state", false, &|node| shadow(node).status.agent.observed_generation = Some(0));
    case("in another boot", false, &|node| shadow(node).status.agent.boot_id = Some("b0".into()));
    case("another state", false, &|node| shadow(node).status.agent.state = Some(HostState::Idle));
    case("the desired state is of another boot", false, &|node| shadow(node).spec.boot_id = Some("b0".into()));
}

#[test]
fn drained_node_proceeds_to_reboot_only_with_staged_image() {
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
    let case = |sentence: &str, node: NodeView, expected: bool, change: Change<'_>| {
        let made = plan_at(changed(node, change), 1);
        let found = step_of(&made) == Some(Step::Rebooting);
        assert_eq!(found, expected, "{sentence}: {:?} {:?}", made.actions, made.waits);
    };
    case("staged", first(), true, &|_| {});
    case("its agent was restarted", first(), false, &|node| shadow(node).status.agent.state = Some(HostState::Idle));
    case("resumed", resumed(), true, &|_| {});
    case("resumed with a permit", resumed(), false, &|node| {
        shadow(node).spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    });
    case("resumed and armed", resumed(), false, &|node| {
        shadow(node).status.agent.armed = Some(armed(ArmedPhase::Activated));
    });
    case("resumed without a request", resumed(), false, &|node| shadow(node).status.agent.armed = None);
    case("resumed after a restart of the agent", resumed(), false, &|node| {
        shadow(node).status.agent.state = Some(HostState::Idle);
    });
}

#[test]
fn host_armed_by_other_is_disarmed_only_with_permission_for_current_boot() {
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
    assert_eq!(blocked(&plan_at(asked.clone(), 3)), Some("HostArmedByOther"), "the permission is valid in its boot");
    asked.facts.boot_id = "b2".into();
    shadow(&mut asked).status.agent.boot_id = Some("b2".into());
    let made = plan_at(asked, 4);
    let Some(Action::Spec { spec }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(spec.host.as_ref().and_then(|host| host.disarm_in_boot.clone()), None, "it ends with the boot");
}

#[test]
fn foreign_version_lock_blocks_only_if_policy_sets_a_lock() {
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
    let (view, policy) = cluster_with(vec![pinned], &[], serde_json::json!({"version": {"target": "1.20.5"}}));
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else {
        panic!("{:?} {:?}", made.actions, made.waits)
    };
    assert_eq!(note.reason, "LockedByOther");
    assert!(note.message.contains("1.19.0"), "{}", note.message);
}

#[test]
fn version_that_is_withdrawn_before_the_permit_is_not_booted() {
    for step in [Step::Staged, Step::BeforeDrain, Step::LeavingLoadBalancer, Step::Draining, Step::Rebooting] {
        let newer = semver::Version::new(1, 20, 6);
        for (offered, ended) in [(vec![], true), (vec![OLD], true), (vec![newer, NEW], false)] {
            let state = if step == Step::Rebooting { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
            let mut node = at("a", step, 0, state);
            let updates = OfferedUpdates { available_versions: offered.clone(), ..OfferedUpdates::default() };
            shadow(&mut node).status.agent.updates = Some(updates);
            let made = plan_at(node, 1);
            assert_eq!(step_of(&made) == Some(Step::Releasing), ended, "{step:?} {offered:?}: {made:#?}");
        }
    }
}

#[test]
fn new_leader_grants_grace_only_to_steps_of_previous_leader() {
    for (sentence, stage, leads_since, second, given_up) in [
        ("before the deadline", "60s", -100, 59, false),
        ("past it", "60s", -100, 60, true),
        ("an earlier leader began it, and this one has led for less time than it may take", "60s", 59, 118, false),
        ("and for as long", "60s", 59, 119, true),
        ("for less than ten minutes", "30m", 1800, 2399, false),
        ("for ten minutes", "30m", 1800, 2400, true),
        ("for 30 s, a day after its deadline", "60s", 60 + 24 * 3600, 90 + 24 * 3600, true),
        ("this leader began it as soon as it led", "60s", 0, 60, true),
    ] {
        let mut silent = at("a", Step::Staging, 0, HostState::StagedUpdate);
        shadow(&mut silent).status.agent.state = Some(HostState::Idle);
        let (mut view, _) = cluster(vec![silent], &["a"]);
        view.leader_since = t(leads_since);
        let policy = with_policy(&mut view, serde_json::json!({"deadlines": {"stage": stage}}));
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
    let policy = Policy { stage: std::time::Duration::from_secs(5), ..with_policy(&mut view, serde_json::json!({})) };
    assert_eq!(step_of(&plan(&view, &policy, t(6))), Some(Step::Releasing), "a step of its own needs no grace");
    view.leader_since = t(3);
    assert_ne!(step_of(&plan(&view, &policy, t(32))), Some(Step::Releasing), "one of another leader has 30 s");
    assert_eq!(step_of(&plan(&view, &policy, t(33))), Some(Step::Releasing), "and no more");
}

/// The step began at 0 s. Its limit is what policy says since its change.
#[test]
fn change_of_the_policy_gives_a_step_its_time_again_up_to_ten_minutes() {
    const DAY: i64 = 24 * 3600;
    for (sentence, stage, changed, second, given_up) in [
        ("it was changed before", "60s", -1, 60, true),
        ("the step has taken longer than it may now", "60s", 600, 659, false),
        ("and as long again", "60s", 600, 660, true),
        ("for less than ten minutes", "30m", 1800, 2399, false),
        ("for ten minutes", "30m", 1800, 2400, true),
        ("the clock of the API server is ahead", "60s", 700, 650, false),
        ("it is changed again and again, a day after the deadline", "60s", 60 + DAY, 89 + DAY, false),
        ("for 30 s more", "60s", 60 + DAY, 90 + DAY, true),
    ] {
        let mut silent = at("a", Step::Staging, 0, HostState::StagedUpdate);
        shadow(&mut silent).status.agent.state = Some(HostState::Idle);
        let (mut view, _) = cluster(vec![silent], &["a"]);
        let policy = with_policy(&mut view, serde_json::json!({"deadlines": {"stage": stage}}));
        view.operator.as_mut().unwrap().spec_changed = Some(t(changed));
        let made = plan(&view, &policy, t(second));
        assert_eq!(step_of(&made) == Some(Step::Releasing), given_up, "{sentence}: {:?}", made.waits);
    }
}

#[test]
fn attempt_without_slot_and_claim_is_disruptive_only_with_permit() {
    type Change<'a> = &'a dyn Fn(&mut ShadowFacts);
    let case = |sentence: &str, disruptive: bool, change: Change<'_>| {
        let mut forged = at("a", Step::Draining, 0, HostState::StagedUpdate);
        forged.facts = node("a").facts;
        change(shadow(&mut forged));
        let (view, policy) = cluster(vec![forged], &[]);
        let made = plan(&view, &policy, t(1));
        let ended = status_of(&made).and_then(|status| status.progress.as_ref()).map(|p| (p.step, p.disruptive));
        assert_eq!(ended, Some((Step::Releasing, disruptive)), "{sentence}: {:?}", made.waits);
    };
    case("without a permit", false, &|_| {});
    case("with one in the desired state", true, &|shadow| {
        shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    });
    case("with one in the record", true, &|shadow| {
        shadow.status.controller.progress.as_mut().unwrap().permit_issued = true;
    });
}

#[test]
fn pods_are_watched_from_leaving_load_balancer_until_end_of_verification() {
    for (step, state, watched) in [
        (Step::LeavingLoadBalancer, HostState::StagedUpdate, true),
        (Step::Draining, HostState::StagedUpdate, true),
        (Step::Rebooting, HostState::RebootedIntoUpdate, true),
        (Step::Returning, HostState::RebootedIntoUpdate, true),
        (Step::Verifying, HostState::RebootedIntoUpdate, true),
        (Step::Releasing, HostState::Idle, false),
    ] {
        assert_eq!(plan_at(at("a", step, 0, state), 1).pods.contains("a"), watched, "{step:?}");
    }
}

#[test]
fn expressions_are_queried_before_drain_of_node_with_slot() {
    let (view, policy) = cluster_with(
        vec![at("a", Step::Staged, 0, HostState::StagedUpdate)],
        &["a"],
        serde_json::json!({
            "prometheus": {"url": "http://prometheus:9090"},
            "health": {"before": {"expressions": [{"name": "errors", "query": "errors{node=\"$node\"} > 0"}]}},
        }),
    );
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.expressions, [question(r#"errors{node="a"} > 0"#)].into());
    assert_eq!(step_of(&made), None, "{:?}", made.actions);
}

#[test]
fn drain_records_preexisting_fields_of_other_field_managers() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.facts.set_by_others = [ClaimField::ScaleDown].into_iter().collect();
    let made = plan_at(staged, 1);
    let drain = status_of(&made).and_then(|status| status.drain.as_ref()).unwrap();
    assert_eq!(drain.preexisting, [ClaimField::ScaleDown.name()]);
}

#[test]
fn pod_arriving_after_drain_resumes_it_once() {
    let asking = |restarted: bool, owner: Option<&str>| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![PodFacts { controller: owner.map(str::to_owned), ..pod("a", false) }]);
        let shadow = shadow(&mut node);
        shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow.status.controller.drain = Some(DrainStatus { restarted, ..DrainStatus::default() });
        plan_at(node, 1)
    };
    let first = asking(false, None);
    assert_eq!(step_of(&first), Some(Step::Draining));
    assert!(status_of(&first).unwrap().drain.as_ref().unwrap().restarted, "recorded, so that it is once");
    for (owner, message) in [
        (None, "shop/p-a, which has no owner, came to the drained node"),
        (Some("ReplicaSet web-1"), "shop/p-a of ReplicaSet web-1 came to the drained node"),
    ] {
        let second = asking(true, owner);
        assert_eq!(step_of(&second), Some(Step::Releasing));
        let last = status_of(&second).unwrap().record.as_ref().unwrap().last.as_ref().unwrap();
        assert_eq!((last.reason.as_str(), last.message.as_str()), ("PodsReturn", message));
    }
}

#[test]
fn releasing_step_starts_at_time_of_failure() {
    let mut deleted = at("a", Step::Draining, 0, HostState::StagedUpdate);
    deleted.facts.deleting = true;
    assert_eq!(status_of(&plan_at(deleted, 50)).unwrap().progress.as_ref().unwrap().since, t(50));
}

#[test]
fn boot_into_old_version_is_fall_back_only_if_armed_in_this_attempt_by_a_permit() {
    let back = |permitted: bool, request: Option<models::shadow::Armed>| {
        let mut node = at("a", Step::Returning, 0, HostState::RebootedIntoUpdate);
        node.facts.boot_id = "b2".into();
        // Its agent has been silent since the boot.
        shadow(&mut node).status.agent.armed = request;
        shadow(&mut node).spec.permit = permitted.then(|| Permit { nonce: "n".into(), jws: "j".into() });
        let made = plan_at(node, 24 * 3600);
        status_of(&made).unwrap().record.as_ref().unwrap().last.as_ref().unwrap().reason.clone()
    };
    let of_another = models::shadow::Armed { attempt: 2, ..armed(ArmedPhase::Activated) };
    for (sentence, permitted, request, expected) in [
        ("armed", true, Some(armed(ArmedPhase::Activated)), "BootFellBack"),
        ("armed without a permit", false, Some(armed(ArmedPhase::Activated)), "RebootedByOther"),
        ("about to be armed", true, Some(armed(ArmedPhase::Arming)), "RebootedByOther"),
        ("armed in another attempt", true, Some(of_another), "RebootedByOther"),
        ("not armed", true, None, "RebootedByOther"),
    ] {
        assert_eq!(back(permitted, request), expected, "{sentence}");
    }
}

#[test]
fn repeated_loss_of_claim_ends_attempt_only_without_own_cordon() {
    for (sentence, unschedulable, claims, ends) in [
        ("another field is taken away", true, ClaimFields::from_iter([ClaimField::Cordon]), false),
        (
            "the cordon is another client's",
            true,
            ClaimFields::USUAL.without(ClaimFields::from_iter([ClaimField::Cordon])),
            true,
        ),
        ("the node is uncordoned", false, ClaimFields::USUAL, true),
    ] {
        let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
        let node = view.nodes.get_mut("a").unwrap();
        node.claims_made = ClaimsMade { fields: ClaimFields::USUAL, uncordoned: 3, stripped: 3 };
        (node.facts.unschedulable, node.facts.claims) = (unschedulable, claims);
        let made = plan(&view, &policy, t(1));
        let last = status_of(&made).and_then(|report| report.record.as_ref()?.last.as_ref());
        assert_eq!(last.map(|last| last.reason.as_str()), ends.then_some("Uncordoned"), "{sentence}: {made:?}");
    }
}

/// A host reboots again and again on the target version.
#[test]
fn soak_restarts_at_most_once_after_reboots() {
    let mut looping = at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate);
    looping.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (looping.facts.claims, looping.facts.unschedulable) = (ClaimFields::default(), false);
    let (mut view, policy) = cluster(vec![looping], &["a"]);
    for boot in 0..1000 {
        let now = t(40 * boot);
        let node = view.nodes.get_mut("a").unwrap();
        node.facts.boot_id = format!("b{}", boot + 2);
        let made = plan(&view, &policy, now);
        let node = view.nodes.get_mut("a").unwrap();
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
        node.shadow.as_mut().unwrap().status.controller = status.report.clone();
        if status.report.progress.as_ref().is_none_or(|p| p.step != Step::Verifying) {
            return;
        }
    }
    panic!("1000 boots in 11 hours, and the soak begins again each time");
}

/// A node that was not Ready for the whole soak has not passed it.
#[test]
fn soak_counts_only_ready_time() {
    let mut flaky = at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate);
    flaky.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (flaky.facts.claims, flaky.facts.unschedulable) = (ClaimFields::default(), false);
    flaky.facts.ready = false;
    let (mut view, policy) = cluster(vec![flaky], &["a"]);
    let mut step = |ready: bool, at: i64| {
        view.nodes.get_mut("a").unwrap().facts.ready = ready;
        let made = plan(&view, &policy, t(at));
        if let Some(Action::Status { status, .. }) = made.actions.get("a") {
            let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
            shadow.status.controller = status.report.clone();
        }
        let shadow = view.nodes["a"].shadow.as_ref().unwrap();
        let progress = shadow.status.controller.progress.clone().unwrap();
        (progress.step, made.waits.get("a").cloned())
    };
    // As often as that happens: at the deadline it counts.
    for second in [0, 200, 400] {
        step(false, second + 10);
        assert_eq!(step(false, second + 100), (Step::Verifying, Some(Wait::AwaitingReady)));
        step(true, second + 101);
        let until = t(second + 161);
        assert_eq!(step(true, second + 102), (Step::Verifying, Some(Wait::Soaking { until })));
    }
    step(false, 610);
    assert_eq!(step(false, 899), (Step::Verifying, Some(Wait::AwaitingReady)));
    assert_eq!(step(false, 900).0, Step::Releasing);
}

/// A node whose soak failed is in another boot than the one that its permit was for.
#[test]
fn failed_soak_releases_slot_without_waiting_for_permit() {
    let mut failed = at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate);
    (failed.facts.claims, failed.facts.unschedulable, failed.facts.ready) = (ClaimFields::default(), false, false);
    failed.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    failed.facts.boot_id = "b3".into();
    let shadow = failed.shadow.as_mut().unwrap();
    shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    let progress = shadow.status.controller.progress.as_mut().unwrap();
    (progress.boot_id, progress.soak_restarted) = ("b2".into(), true);
    let (mut view, policy) = cluster(vec![failed], &["a"]);
    let mut steps = Vec::new();
    for _ in 0..4 {
        let Some(action) = plan(&view, &policy, t(10)).actions.remove("a") else { break };
        let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
        match action {
            Action::Status { status, .. } => shadow.status.controller = status.report,
            Action::Spec { spec } => shadow.spec = *spec,
            other => panic!("{other:?} after {steps:?}"),
        }
        steps.push(shadow.status.controller.progress.as_ref().map(|progress| progress.step));
    }
    let releasing = Some(Step::Releasing);
    assert_eq!(steps, [releasing, releasing, None], "recorded, withdrawn, released");
    assert_eq!(plan(&view, &policy, t(10)).slots, Some(vec![]));
}
