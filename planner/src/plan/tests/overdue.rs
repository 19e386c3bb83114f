//! Tables of a drain past its deadline.

use models::reason::FailureReason;
use models::shadow::{Blocker, DrainedPod, HostState};

use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{Blocked, ClusterView, InFlight, PodFacts};
use crate::wait::Wait;

/// A drain past its deadline that deletes what is left, as recorded.
fn forced(pods: Vec<PodFacts>) -> (ClusterView, Policy) {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, pods);
    write_due(&mut view, &policy, 60);
    (view, policy)
}

/// The pods that a plan deletes.
fn deleted(made: &Plan) -> Vec<&str> {
    let evictions = made.evictions.get("a").filter(|evictions| evictions.delete);
    evictions.map_or_else(Vec::new, |evictions| evictions.pods.iter().map(|pod| pod.name.as_str()).collect())
}

/// The reason of the failure that a plan records.
fn failure_of(made: &Plan) -> Option<String> {
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { return None };
    Some(status.report.record.as_ref()?.last.as_ref()?.reason.clone())
}

#[test]
fn deletion_is_retried_only_when_due() {
    let refused = |deleted, denied: Option<i64>, retry_at| Blocked {
        deleted,
        denied_since: denied.map(t),
        retry_at: t(retry_at),
        ..answer(None, 1, false)
    };
    for (sentence, last, sent, due, fails) in [
        ("nothing was tried", None, None, true, false),
        ("its eviction was refused", Some(refused(false, None, 1000)), None, true, false),
        ("its eviction was refused for good", Some(refused(false, Some(1), 1000)), None, true, false),
        ("its deletion failed a moment ago", Some(refused(true, None, 65)), None, false, false),
        ("its deletion is to be tried again now", Some(refused(true, None, 61)), None, true, false),
        ("its deletion is denied, perhaps for a moment", Some(refused(true, Some(2), 61)), None, true, false),
        ("its deletion has been denied for a minute", Some(refused(true, Some(1), 1000)), None, false, true),
        ("its eviction is not answered", None, Some(false), true, false),
        ("its deletion is not answered", None, Some(true), false, false),
    ] {
        let (mut view, policy) = forced(vec![pod("a", false)]);
        let node = view.nodes.get_mut("a").unwrap();
        node.blocked = last.into_iter().map(|last| ("p-a".to_owned(), last)).collect();
        let sent = sent.map(|deletes| InFlight { since: t(60), deletes });
        node.in_flight = sent.into_iter().map(|sent| ("p-a".to_owned(), sent)).collect();
        let made = plan(&view, &policy, t(61));
        assert_eq!(deleted(&made), if due { vec!["p-a"] } else { vec![] }, "{sentence}: {made:?}");
        assert_eq!(failure_of(&made).is_some(), fails, "{sentence}: {made:?}");
    }
}

/// Of three pods of a budget, two have left one after the other; or none has, and a pod that no budget counts.
#[test]
fn drain_that_times_out_shows_how_many_pods_the_budget_that_keeps_the_last_one_has_let_go() {
    let listed = |name: &str, budget: Option<&str>| DrainedPod {
        namespace: "shop".into(),
        name: name.into(),
        uid: name.into(),
        budgets: budget.map(str::to_owned).into_iter().collect(),
        ..DrainedPod::default()
    };
    let text = "2 of the 3 pods that it counts here had left: spec.drain.timeout is too short";
    for (budget, shows) in [(Some("web"), true), (None, false)] {
        let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false)]);
        let blocker = Blocker {
            pod: "shop/p-a".into(),
            budget: Some("shop/web".into()),
            message: "not now".into(),
            since: t(0),
            denied_since: None,
        };
        let drain = shadow(&mut view).status.controller.drain.as_mut().unwrap();
        drain.pods = [listed("p-a", Some("web")), listed("p-b", budget), listed("p-c", budget)].into();
        drain.blockers = vec![blocker];
        let made = plan(&view, &policy, t(60));
        let last = last_of(&made);
        assert_eq!(last.reason, "DrainTimedOut");
        assert!(last.message.contains("shop/web"), "{}", last.message);
        assert_eq!(last.message.contains(text), shows, "{}", last.message);
    }
}

#[test]
fn pod_whose_deletion_is_not_answered_is_named_so() {
    for (sentence, deletes, message) in [
        ("its deletion was sent", true, "the API server has not answered its deletion"),
        ("its eviction was sent before the deadline", false, "the API server has not answered its eviction"),
    ] {
        let (mut view, policy) = forced(vec![pod("a", false)]);
        let sent = InFlight { since: t(61), deletes };
        view.nodes.get_mut("a").unwrap().in_flight = [("p-a".to_owned(), sent)].into();
        let made = plan(&view, &policy, t(66));
        assert_eq!(status_of(&made).report.drain.as_ref().unwrap().blockers[0].message, message, "{sentence}");
    }
}

#[test]
fn pod_whose_deletion_is_refused_stays_named_past_the_deadline() {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    let refused = |deleted| Blocked { deleted, ..answer((!deleted).then_some("shop/web"), 1, false) };
    let blockers = |made: &Plan| match made.actions.get("a") {
        Some(Action::Status { status, .. }) => status.report.drain.clone().unwrap().blockers,
        other => panic!("{other:?} {:?}", made.waits),
    };
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), refused(false))].into();
    // A budget blocks it, until the deadline.
    for second in [10, 60] {
        let made = plan(&view, &policy, t(second));
        assert_eq!(blockers(&made)[0].budget.as_deref(), Some("shop/web"), "{second}");
        written(&mut view, &made.actions["a"]);
    }
    let made = plan(&view, &policy, t(61));
    assert!(made.actions.is_empty() && deleted(&made) == ["p-a"], "{made:?}");
    assert_eq!(made.waits["a"].as_str(), "DrainBlocked", "its deletion is not answered yet");
    // A webhook denies its deletion.
    let denied = Blocked { denied_since: Some(t(62)), ..refused(true) };
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), denied)].into();
    let made = plan(&view, &policy, t(63));
    let named = blockers(&made);
    assert_eq!((named[0].budget.as_deref(), named[0].message.as_str()), (None, "not now"));
    written(&mut view, &made.actions["a"]);
    let made = plan(&view, &policy, t(64));
    let text = made.waits["a"].to_string();
    assert!(made.actions.is_empty() && text.contains("the API server denies its deletion"), "{text}");
    // It is deleted.
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked.clear();
    node.pods = Some(vec![PodFacts { terminating: true, ends_by: Some(t(90)), ..pod("a", false) }]);
    assert_eq!(blockers(&plan(&view, &policy, t(65))), []);
}

#[test]
fn plan_wakes_for_deletion_retry() {
    let (mut view, policy) = forced(vec![pod("a", false)]);
    let last = Blocked { deleted: true, retry_at: t(65), ..answer(None, 1, false) };
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), last)].into();
    assert_eq!(plan(&view, &policy, t(61)).wake, Some(t(65)));
    let due = plan(&view, &policy, t(65));
    assert!(due.wake.is_some_and(|at| at > t(65)) && deleted(&due) == ["p-a"], "{due:?}");
    // A pod that leaves is looked at when its grace period ends.
    let leaving = PodFacts { terminating: true, ends_by: Some(t(90)), ..pod("a", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving]);
    view.nodes.get_mut("a").unwrap().blocked.clear();
    assert_eq!(plan(&view, &policy, t(61)).wake, Some(t(90)));
    let ended = plan(&view, &policy, t(90));
    assert!(ended.wake.is_some_and(|at| at > t(90)) && deleted(&ended) == ["p-a"], "{ended:?}");
}

#[test]
fn timed_out_drain_reports_cause() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, reason: FailureReason, message: &str, change: Change| {
        let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false)]);
        change(&mut view);
        let made = plan(&view, &policy, t(60));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {made:?}") };
        let last = status.report.record.as_ref().unwrap().last.as_ref().unwrap();
        assert_eq!((last.reason.as_str(), last.message.as_str()), (reason.as_str(), message), "{sentence}");
    };
    case("pods are left", FailureReason::DrainTimedOut, "still on the node: shop/p-a", |_| {});
    case(
        "the kubelet is silent",
        FailureReason::DrainTimedOut,
        "still on the node, which is not Ready: shop/p-a",
        |view| view.nodes.get_mut("a").unwrap().facts.ready = false,
    );
    case(
        "a pod that would be lost has come",
        FailureReason::DrainTimedOut,
        "still on the node: shop/p-late; shop/p-late has no controller and would be lost by a drain (1 pod(s) like \
             that); delete or move it, or set spec.drain.barePods to Evict; to let it end first, cordon the node, with \
             spec.drain.cordonedNodes set to Update",
        |view| view.nodes.get_mut("a").unwrap().pods = Some(vec![pod("late", true)]),
    );
    case("it could not be cordoned", FailureReason::DrainTimedOut, "the node could not be cordoned", |view| {
        view.nodes.get_mut("a").unwrap().facts.unschedulable = false;
    });
    case(
        "an annotation could not be set, and pods are left",
        FailureReason::DrainTimedOut,
        "still on the node: shop/p-a; cluster-autoscaler.kubernetes.io/scale-down-disabled, karpenter.sh/do-not-disrupt \
             could not be set on the node: see the controller's log",
        |view| view.nodes.get_mut("a").unwrap().facts.claims = ClaimFields::CORDON,
    );
    case(
        "an annotation could not be set, and no pod is left",
        FailureReason::DrainTimedOut,
        "cluster-autoscaler.kubernetes.io/scale-down-disabled, karpenter.sh/do-not-disrupt could not be set on the \
             node: see the controller's log",
        |view| {
            let node = view.nodes.get_mut("a").unwrap();
            (node.facts.claims, node.pods) = (ClaimFields::CORDON, Some(vec![]));
        },
    );
    case(
        "its pods could not be read",
        FailureReason::DrainTimedOut,
        "the pods on the node could not be read: see the controller's log",
        |view| view.nodes.get_mut("a").unwrap().pods = None,
    );
    case("its image is gone", FailureReason::NotStaged, "the staged image is gone", |view| {
        let node = view.nodes.get_mut("a").unwrap();
        node.pods = Some(vec![]);
        node.shadow.as_mut().unwrap().status.agent.state = Some(HostState::Idle);
    });
    case("its agent is silent", FailureReason::AgentSilent, "the agent has not confirmed the desired state", |view| {
        let node = view.nodes.get_mut("a").unwrap();
        node.pods = Some(vec![]);
        node.shadow.as_mut().unwrap().generation = 2;
    });
    let no_agent = format!("the agent has not confirmed the desired state; {}", Wait::WebApiNotReady);
    case("no agent can report", FailureReason::ClusterUnwell, &no_agent, |view| {
        let node = view.nodes.get_mut("a").unwrap();
        node.pods = Some(vec![]);
        node.shadow.as_mut().unwrap().generation = 2;
        view.web_api_missing = Some(t(10));
    });
}

#[test]
fn timed_out_drain_names_pods_that_were_asked_to_leave_before_others() {
    let mut pods = ["a", "b", "c", "d"].map(|name| pod(name, false)).to_vec();
    (pods[1].terminating, pods[1].ends_by) = (true, Some(t(10_000)));
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), pods);
    view.nodes.get_mut("a").unwrap().blocked = [("p-c".to_owned(), answer(None, 1, false))].into();
    let (pod, message) = ("shop/p-d".to_owned(), "denied".to_owned());
    let drain = shadow(&mut view).status.controller.drain.as_mut().unwrap();
    drain.blockers = vec![Blocker { pod, budget: None, message, since: t(1), denied_since: None }];
    let made = plan(&view, &policy, t(60));
    let message = &last_of(&made).message;
    assert!(message.starts_with("still on the node: shop/p-c, shop/p-d, shop/p-b"), "{message}");
}
