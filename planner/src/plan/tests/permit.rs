//! Tables of the way from the end of a drain to the reboot: what is recorded, who is answered, who is waited for.

use std::sync::Arc;

use kube::core::{Expression, Selector};
use models::condition::find_condition;
use models::shadow::{
    Armed, ArmedPhase, BLOCKED, DRAINED, DrainStatus, DrainedPod, Drill, HOST_REACHABLE, HostState, Permit, Rehearsal,
    Step, UNSUPPORTED_STATE,
};

use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{BudgetFacts, ClusterView, NodeFacts, NodeView, PodFacts};
use crate::wait::Wait;

type Change = fn(&mut ClusterView);

/// A drained node whose agent may ask for its permit.
fn drained() -> (ClusterView, Policy) {
    let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
    cluster(vec![node], &["a"])
}

fn permit(nonce: &str) -> Option<Permit> {
    Some(Permit { nonce: nonce.into(), jws: "j".into() })
}

#[test]
fn permit_is_issued_once_per_request() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, policy) = drained();
        change(&mut view);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("no request", "AwaitingAgent", |_| {});
    case("a request", "permit for n", |view| shadow(view).status.agent.armed = Some(armed(ArmedPhase::Arming)));
    case("a request that is answered", "AwaitingReboot", |view| {
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow(view).spec.permit = permit("n");
    });
    case("another request after an answer", "permit for n", |view| {
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow(view).spec.permit = permit("earlier");
    });
    case("an answer without a request", "AwaitingReboot", |view| shadow(view).spec.permit = permit("n"));
    case("another attempt is desired", "ProgressLost", |view| shadow(view).spec.attempt = 2);
    case("the desired state is gone", "ProgressLost", |view| shadow(view).spec.state = HostState::Idle);
    case("a request, where another state was not known", "permit for n", |view| {
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow(view).status.conditions.push(condition(HOST_REACHABLE, UNSUPPORTED_STATE, "not known"));
    });
}

fn rehearsal(view: &mut ClusterView) -> &mut Rehearsal {
    shadow(view).status.agent.rehearsal.as_mut().unwrap()
}

fn verified(view: &mut ClusterView) {
    shadow(view).spec.permit = permit("n");
    rehearsal(view).verified = true;
}

#[test]
fn permit_of_a_drill_is_issued_once_and_passed_when_its_agent_has_verified_it() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RehearsedUpdate);
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.controller.progress.as_mut().unwrap().drill = Some(Drill::default());
        status.controller.drain = Some(DrainStatus::default());
        let (boot_id, nonce) = ("b1".to_owned(), "n".to_owned());
        status.agent.rehearsal = Some(Rehearsal { attempt: 1, boot_id, version: NEW, nonce, verified: false });
        let (mut view, policy) = cluster(vec![node], &["a"]);
        change(&mut view);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("a request", "permit for n", |_| {});
    case("a request, and its host has answered", "permit for n", |view| {
        shadow(view).status.conditions.push(condition(HOST_REACHABLE, "Answered", ""));
    });
    case("a request of an earlier attempt", "AwaitingAgent", |view| rehearsal(view).attempt = 0);
    case("a request that is answered", "AwaitingRehearsal", |view| shadow(view).spec.permit = permit("n"));
    case("it is verified, and the agent is behind", "AwaitingRehearsal", |view| {
        verified(view);
        shadow(view).generation = 2;
    });
    case("it is verified, and the agent is in another state", "AwaitingRehearsal", |view| {
        verified(view);
        shadow(view).status.agent.state = Some(HostState::StagedUpdate);
    });
    case("it is verified", "step Verifying", |view| {
        verified(view);
        let facts = &mut view.nodes.get_mut("a").unwrap().facts;
        (facts.claims, facts.unschedulable) = (ClaimFields::USUAL.without(ClaimFields::CORDON), false);
    });
}

/// A node of the control plane in a step of its update, whose agent requests its permit, beside another one `z`.
fn of_control_plane(step: Step, state: HostState) -> (ClusterView, Policy) {
    let mut nodes = [at("a", step, 0, state), node("z")];
    for node in &mut nodes {
        node.facts.labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
    }
    let status = &mut nodes[0].shadow.as_mut().unwrap().status;
    (status.controller.drain, status.agent.armed) = (Some(DrainStatus::default()), Some(armed(ArmedPhase::Arming)));
    cluster(nodes.into(), &["a"])
}

fn other(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("z").unwrap()
}

#[test]
fn control_plane_node_is_not_permitted_to_reboot_while_another_is_out_of_service() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, policy) = of_control_plane(Step::Rebooting, HostState::RebootedIntoUpdate);
        change(&mut view);
        let made = plan(&view, &policy, t(1));
        // The wait is recorded in the condition first.
        if let Some(action @ Action::Status { .. }) = made.actions.get("a") {
            written(&mut view, action);
        }
        let made = plan(&view, &policy, t(1));
        assert_eq!(outcome(&made), expected, "{sentence}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), [], "{sentence}");
    };
    case("the other is Ready", "permit for n", |_| {});
    case("the other has become NotReady since the slot was given", "ControlPlaneBusy", |view| {
        other(view).facts.ready = false;
    });
    case("one that is not the operator's is not Ready", "ControlPlaneBusy", |view| {
        let facts = NodeFacts { ready: false, labelled: false, ..view.nodes.remove("z").unwrap().facts };
        view.unmanaged.insert("z".into(), facts);
    });
    case("the other may still reboot, and is Ready", "ControlPlaneBusy", |view| {
        let mut releasing = progress(Step::Releasing, 0);
        (releasing.permit_issued, releasing.disruptive) = (true, false);
        other(view).shadow.as_mut().unwrap().status.controller.progress = Some(releasing);
    });
    case("the other had its slot before", "ControlPlaneBusy", |view| {
        let slots = &mut view.operator.as_mut().unwrap().status.slots;
        slots.push(models::operator::Slot { since: t(-1), ..slot("z") });
    });
    case("the other had its slot afterwards", "permit for n", |view| {
        view.operator.as_mut().unwrap().status.slots.push(slot("z"));
    });
    case("the other had its slot afterwards, and is permitted to reboot", "ControlPlaneBusy", |view| {
        view.operator.as_mut().unwrap().status.slots.push(slot("z"));
        let labels = other(view).facts.labels.clone();
        *other(view) = at("z", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        other(view).facts.labels = labels;
        let shadow = other(view).shadow.as_mut().unwrap();
        (shadow.status.controller.drain, shadow.spec.permit) = (Some(DrainStatus::default()), permit("z"));
    });
    case("it has a permit, and requests another", "ControlPlaneBusy", |view| {
        shadow(view).spec.permit = permit("earlier");
        other(view).facts.ready = false;
    });
    case("it is the only one", "permit for n", |view| _ = view.nodes.remove("z"));
    case("a worker is not Ready", "permit for n", |view| {
        (other(view).facts.labels, other(view).facts.ready) = (Arc::default(), false);
    });
    case("it is a worker itself", "permit for n", |view| {
        other(view).facts.ready = false;
        view.nodes.get_mut("a").unwrap().facts.labels = Arc::default();
        view.operator.as_mut().unwrap().status.slots[0].update.as_mut().unwrap().control_plane = false;
    });
    case("its Node lacks the label, which its slot records", "ControlPlaneBusy", |view| {
        other(view).facts.ready = false;
        view.nodes.get_mut("a").unwrap().facts.labels = Arc::default();
    });
}

#[test]
fn control_plane_node_that_has_its_slot_is_not_cordoned_while_another_is_out_of_service() {
    for (sentence, ready, expected) in
        [("the other is Ready", true, "step Draining"), ("it is not", false, "ControlPlaneBusy")]
    {
        let (mut view, policy) = of_control_plane(Step::Staged, HostState::StagedUpdate);
        let status = &mut shadow(&mut view).status;
        (status.controller.drain, status.agent.armed) = (None, None);
        other(&mut view).facts.ready = ready;
        let made = plan(&view, &policy, t(1));
        assert_eq!(outcome(&made), expected, "{sentence}");
        let found = made.slots.as_ref().is_some_and(Vec::is_empty);
        assert_eq!(found, !ready, "{sentence}: a slot that is not used is free");
    }
}

#[test]
fn update_of_control_plane_node_ends_without_blame_while_another_is_out_of_service() {
    let staged = HostState::StagedUpdate;
    let rebooting = (Step::Rebooting, HostState::RebootedIntoUpdate);
    for (sentence, (step, state), second, expected) in [
        ("hooks are awaited", (Step::BeforeDrain, staged), 1, "ClusterUnwell"),
        ("no pod was evicted", (Step::LeavingLoadBalancer, staged), 1, "ClusterUnwell"),
        ("it is drained", rebooting, 1, "step Rebooting"),
        ("it is drained, a second before the deadline", rebooting, 1799, "step Rebooting"),
        ("it is drained, at the deadline", rebooting, 1800, "ClusterUnwell"),
    ] {
        let (mut view, policy) = of_control_plane(step, state);
        other(&mut view).facts.ready = false;
        let made = plan(&view, &policy, t(second));
        assert_eq!(outcome(&made), expected, "{sentence}");
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {:?}", made.waits) };
        if expected == "step Rebooting" {
            let blocked = find_condition(&status.conditions, BLOCKED).unwrap();
            assert!(blocked.reason == "ControlPlaneBusy" && blocked.message.starts_with("z of"), "{blocked:?}");
            continue;
        }
        let record = status.report.record.as_ref().unwrap();
        let last = record.last.as_ref().unwrap();
        assert!(last.message.contains("z of the control plane"), "{sentence}: {}", last.message);
        assert_eq!((record.failures, record.version_failures.len()), (0, 0), "{sentence}");
        assert!(record.not_before.is_some() && record.proof.is_none(), "{sentence}: {record:?}");
    }
}

#[test]
fn reboot_timeout_names_what_has_held_back_another_permit() {
    for (sentence, nonce, named) in
        [("another one was requested", "earlier", true), ("it has the one it requested", "n", false)]
    {
        let (mut view, policy) = of_control_plane(Step::Rebooting, HostState::RebootedIntoUpdate);
        other(&mut view).facts.ready = false;
        shadow(&mut view).spec.permit = permit(nonce);
        let made = plan(&view, &policy, t(1800));
        assert_eq!(outcome(&made), "RebootTimedOut", "{sentence}");
        let last = last_of(&made);
        assert_eq!(last.message.contains("z of the control plane"), named, "{sentence}: {}", last.message);
    }
}

#[test]
fn reboot_is_not_permitted_while_a_budget_keeps_a_static_pod() {
    for (sentence, mirror, healthy, expected) in [
        ("all members are healthy", true, 3, "permit for n"),
        ("another member has broken since the slot was given", true, 2, "BudgetUnhealthy"),
        ("the pod of a DaemonSet, which comes back", false, 2, "permit for n"),
    ] {
        let (mut view, policy) = drained();
        shadow(&mut view).status.agent.armed = Some(armed(ArmedPhase::Arming));
        let labels = Arc::new([("app".to_owned(), "etcd".to_owned())].into());
        let member = PodFacts { mirror, ready: true, labels, ..pod("a", false) };
        let member = if mirror {
            member
        } else {
            PodFacts { daemon_set: Some("e".into()), daemon_set_state: crate::view::DaemonSetState::There, ..member }
        };
        view.nodes.get_mut("a").unwrap().pods = Some(vec![member]);
        view.budgets = vec![BudgetFacts {
            namespace: "shop".into(),
            name: "etcd".into(),
            healthy,
            desired: 2,
            expected: 3,
            allowed: healthy - 2,
            selector: Some(Selector::from_iter([Expression::Equal("app".into(), "etcd".into())])),
            ..BudgetFacts::default()
        }];
        let made = plan(&view, &policy, t(1));
        // The wait is recorded in the condition first.
        if let Some(action @ Action::Status { .. }) = made.actions.get("a") {
            written(&mut view, action);
        }
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    }
}

#[test]
fn permit_is_not_issued_while_pods_are_leaving() {
    let (mut view, policy) = drained();
    shadow(&mut view).status.agent.armed = Some(armed(ArmedPhase::Arming));
    let leaving = PodFacts { terminating: true, ..pod("a", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving]);
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.waits.get("a"), Some(&Wait::Draining { left: 1 }), "{:?}", made.actions);
    view.nodes.get_mut("a").unwrap().pods = Some(vec![]);
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "permit for n", "it has left");
}

#[test]
fn reboot_timeout_reports_agent_host_or_image_as_cause() {
    let (no_request, not_written) = ("requested no permit", "requested a permit, and none could be written");
    let no_reboot = "not seen in another boot";
    let case = |sentence: &str, expected: &str, cause: &str, change: Change| {
        let (mut view, policy) = drained();
        change(&mut view);
        let deadline = i64::try_from(policy.reboot.as_secs()).unwrap();
        let made = plan(&view, &policy, t(deadline));
        assert_eq!(outcome(&made), expected, "{sentence}");
        let Action::Status { note: Some(note), .. } = &made.actions["a"] else { panic!("{made:?}") };
        assert!(note.message.contains("within 30m (spec.deadlines.reboot)"), "{sentence}: {note:?}");
        assert!(note.message.contains(cause), "{sentence}: {note:?}");
    };
    case("the agent never asked", "AgentSilent", no_request, |_| {});
    case("the host has its permit", "RebootTimedOut", no_reboot, |view| shadow(view).spec.permit = permit("n"));
    case("no agent could ask", "ClusterUnwell", "no pod of the web API is Ready", |view| {
        view.web_api_missing = Some(t(10));
    });
    case(
        "the host has its permit, and no agent can report",
        "RebootTimedOut",
        "no pod of the web API is Ready",
        |view| {
            shadow(view).spec.permit = permit("n");
            view.web_api_missing = Some(t(10));
        },
    );
    case("the agent asked, and no permit could be written", "AgentSilent", not_written, |view| {
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Arming));
    });
    case("the image is armed, and the node is there", "AgentSilent", not_written, |view| {
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Activated));
    });
    case("the request is of an earlier attempt", "AgentSilent", no_request, |view| {
        shadow(view).status.agent.armed = Some(Armed { attempt: 0, ..armed(ArmedPhase::Arming) });
    });
    case("the node is silent, and nothing is armed", "AgentSilent", no_request, |view| {
        view.nodes.get_mut("a").unwrap().facts.ready = false;
    });
    case(
        "the image is armed by a permit, and the node is silent since: its host may be shutting down, or start slowly",
        "RebootTimedOut",
        "; the node is not Ready",
        |view| {
            shadow(view).spec.permit = permit("n");
            shadow(view).status.agent.armed = Some(armed(ArmedPhase::Activated));
            view.nodes.get_mut("a").unwrap().facts.ready = false;
        },
    );
}

#[test]
fn reboot_before_desired_reboot_ends_attempt_at_once() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, policy) = drained();
        view.nodes.get_mut("a").unwrap().facts.boot_id = "b2".into();
        change(&mut view);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("the reboot is not desired yet", "RebootedByOther", |view| shadow(view).spec.state = HostState::StagedUpdate);
    case("the agent has something to report", "step Returning", |_| {});
    case("the image was armed by a permit, and is staged again", "step Returning", |view| {
        (shadow(view).spec.state, shadow(view).spec.permit) = (HostState::StagedUpdate, permit("n"));
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Activated));
    });
    case("the agent reports it as armed, and no permit was issued", "RebootedByOther", |view| {
        shadow(view).spec.state = HostState::StagedUpdate;
        shadow(view).status.agent.armed = Some(armed(ArmedPhase::Activated));
    });
}

#[test]
fn end_of_drain_records_number_of_removed_pods() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![]);
    let known = |number| DrainedPod {
        namespace: "shop".into(),
        name: format!("{number}"),
        uid: format!("{number}"),
        ..DrainedPod::default()
    };
    shadow(&mut view).status.controller.drain.as_mut().unwrap().pods = (0..3).map(known).collect();
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { status, note: None }) = made.actions.get("a") else { panic!("{made:?}") };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Rebooting);
    assert_eq!(status.report.drain.as_ref().unwrap().removed, 3);
    let condition = find_condition(&status.conditions, DRAINED).unwrap();
    let found = (condition.reason.as_str(), condition.message.as_str());
    assert_eq!(found, ("Drained", "all pods to evict have left the node"));
}

#[test]
fn blocked_drain_emits_one_event_and_counts_removed_pods() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false), pod("b", false), pod("c", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    node.pods.as_mut().unwrap().retain(|pod| pod.name != "p-c");
    node.blocked = [("p-a".to_owned(), answer(Some("shop/web"), 0, false))].into();
    let made = plan(&view, &policy, t(6));
    let Some(Action::Status { status, note: Some(note) }) = made.actions.get("a") else { panic!("{made:?}") };
    assert_eq!((note.reason, status.report.drain.as_ref().unwrap().removed), ("DrainBlocked", 1));
    written(&mut view, &made.actions["a"]);
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked.insert("p-b".to_owned(), answer(Some("shop/web"), 0, false));
    let more = plan(&view, &policy, t(7));
    assert!(matches!(more.actions.get("a"), Some(Action::Status { note: None, .. })), "no second Event: {more:?}");
}

#[test]
fn attempt_that_ends_without_a_reboot_names_the_trouble_with_its_host() {
    let text = "; the agent cannot use the update API of its host (Timeout): the host did not answer in time";
    for (permitted, reason) in [(false, "AgentSilent"), (true, "RebootTimedOut")] {
        for unusable in [false, true] {
            let (mut view, policy) = drained();
            shadow(&mut view).spec.permit = permit("n").filter(|_| permitted);
            shadow(&mut view).status.conditions.extend(unusable.then(unreachable));
            let made = plan(&view, &policy, t(i64::try_from(policy.reboot.as_secs()).unwrap()));
            let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{made:?}") };
            let last = status.report.record.as_ref().unwrap().last.as_ref().unwrap();
            assert_eq!((last.reason.as_str(), last.message.ends_with(text)), (reason, unusable), "{}", last.message);
        }
    }
}
