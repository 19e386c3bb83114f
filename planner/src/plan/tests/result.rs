//! Facts that a shadow keeps of its attempts for the history of rollouts: the pods of a drain, and results.

use std::sync::Arc;

use kube::core::Selector;
use models::reason::FailureReason;
use models::shadow::{
    DrainStatus, DrainedPod, Drill, Failure, HistoryPosition, HostState, MOST_RESULTS, PodMove, RolloutResult, Step,
};

use crate::claims::ClaimFields;
use crate::fixtures::*;
use crate::hold::Hold;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{BudgetFacts, ClusterView, DaemonSetState, NodeView, PodFacts, ServiceFacts};

/// The place of the attempts here in the history.
fn place() -> HistoryPosition {
    HistoryPosition { rollout: 3, step: 2, boot_id: "b1".into(), drain_started: None, drain_ended: None }
}

fn in_history(node: &mut NodeView, place: HistoryPosition) {
    node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().rollout = Some(place);
}

/// The controller status in the next write for node `a`.
fn next(view: &ClusterView, policy: &Policy, second: i64) -> models::shadow::ControllerReport {
    let made = plan(view, policy, t(second));
    status_of(&made).report.clone()
}

/// The result that the next write for node `a` adds, which is the write that ends the attempt.
fn result(view: &ClusterView, policy: &Policy, second: i64) -> RolloutResult {
    let mut report = next(view, policy, second);
    let last = report.record.as_ref().unwrap().last.as_ref().unwrap();
    let [result] = &report.results[..] else { panic!("{:?}", report.results) };
    assert_eq!((result.attempt, &result.result, result.ended), (last.attempt, &last.reason, t(second)));
    assert!(report.progress.is_none_or(|progress| progress.step == Step::Releasing));
    RolloutResult::clone(&report.results.remove(0))
}

/// The way in which each pod of a drain left the node.
fn moves(pods: &[DrainedPod]) -> Vec<(&str, Option<PodMove>)> {
    pods.iter().map(|pod| (pod.name.as_str(), pod.moved)).collect()
}

fn listed(name: &str, moved: Option<PodMove>) -> DrainedPod {
    DrainedPod { namespace: "shop".into(), name: name.into(), uid: name.into(), moved, ..DrainedPod::default() }
}

fn on_node(view: &mut ClusterView, pods: Vec<PodFacts>) {
    view.nodes.get_mut("a").unwrap().pods = Some(pods);
}

#[test]
fn shadow_holds_address_owner_budgets_and_services_of_each_pod_before_first_eviction() {
    let labels = |app: &str| [("app".to_owned(), app.to_owned())].into();
    let web = PodFacts {
        name: "web".into(),
        uid: "web".into(),
        labels: Arc::new(labels("web")),
        ip: Some("10.0.0.7".into()),
        controller: Some("ReplicaSet web-1".into()),
        top_owner: Some("Deployment/web".into()),
        ..pod("a", false)
    };
    // Its owner's owner is not known, and nothing waits for it.
    let new = PodFacts { name: "new".into(), uid: "new".into(), top_owner: None, ip: None, ..web.clone() };
    let other = PodFacts { namespace: "bank".into(), name: "other".into(), uid: "other".into(), ..web.clone() };
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    in_history(&mut staged, place());
    staged.pods = Some(vec![web, new, other]);
    let (mut view, policy) = cluster(vec![staged], &["a"]);
    let budget = |name: &str, app: &str| BudgetFacts {
        namespace: "shop".into(),
        name: name.into(),
        selector: Some([("app".to_owned(), app.to_owned())].into_iter().collect::<Selector>()),
        ..BudgetFacts::default()
    };
    view.budgets = vec![budget("web", "web"), budget("db", "db")];
    let service = |name: &str, app: &str| ServiceFacts {
        namespace: "shop".into(),
        name: name.into(),
        selector: labels(app),
        ..ServiceFacts::default()
    };
    view.services = vec![service("web", "web"), service("web-internal", "web"), service("db", "db")];

    assert!(plan(&view, &policy, t(5)).evictions.is_empty());
    let report = next(&view, &policy, 5);
    let progress = report.progress.unwrap();
    assert_eq!(progress.step, Step::Draining);
    assert_eq!(progress.rollout, Some(HistoryPosition { drain_started: Some(t(5)), ..place() }));
    let (ip, owner) = (Some("10.0.0.7".to_owned()), Some("Deployment/web".to_owned()));
    let budgets = vec!["web".to_owned()];
    let services = vec!["web".to_owned(), "web-internal".to_owned()];
    let mut pods = report.drain.unwrap().pods.to_vec();
    pods.sort_by(|a, b| b.name.cmp(&a.name));
    let expected = [
        DrainedPod {
            ip: ip.clone(),
            owner: owner.clone(),
            budgets: budgets.clone(),
            services: services.clone(),
            ..listed("web", None)
        },
        DrainedPod { namespace: "bank".into(), ip, owner, ..listed("other", None) },
        DrainedPod { owner: Some("ReplicaSet/web-1".into()), budgets, services, ..listed("new", None) },
    ];
    assert_eq!(pods, expected);
}

#[test]
fn pod_that_leaves_during_drain_is_evicted_and_one_that_stays_is_left_to_reboot() {
    let stuck = PodFacts { terminating: true, ends_by: Some(t(10)), ..pod("b", false) };
    let spec = serde_json::json!({"drain": {"skipTerminatingAfter": "30s"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false), stuck.clone()]);
    let node = view.nodes.get_mut("a").unwrap();
    in_history(node, HistoryPosition { drain_started: Some(t(0)), ..place() });
    on_node(&mut view, vec![stuck]);
    let report = next(&view, &policy, 40);
    let progress = report.progress.unwrap();
    assert_eq!(progress.step, Step::Rebooting);
    let times = progress.rollout.map(|place| (place.drain_started, place.drain_ended));
    assert_eq!(times, Some((Some(t(0)), Some(t(40)))));
    let pods = report.drain.unwrap().pods;
    assert_eq!(moves(&pods), [("p-a", Some(PodMove::Evicted)), ("p-b", Some(PodMove::LeftToReboot))]);
}

/// A pod came to the node before its permit, so that the drain begins again.
#[test]
fn pod_that_leaves_during_second_drain_was_not_left_to_reboot() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![]);
    let drain = shadow(&mut view).status.controller.drain.as_mut().unwrap();
    drain.pods = [listed("p-a", Some(PodMove::LeftToReboot))].into();
    assert_eq!(moves(&next(&view, &policy, 1).drain.unwrap().pods), [("p-a", Some(PodMove::Evicted))]);
}

#[test]
fn pod_that_is_deleted_past_its_budgets_is_forced() {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    // Of those that are left at the deadline, one is about to end by its eviction.
    let ending = PodFacts { terminating: true, ends_by: Some(t(70)), ..pod("b", false) };
    let (mut view, policy) = draining(spec, vec![pod("a", false), ending.clone(), pod("c", false)]);
    on_node(&mut view, vec![pod("a", false), ending]);
    let forced = plan(&view, &policy, t(60)).actions.remove("a").unwrap();
    written(&mut view, &forced);
    assert!(plan(&view, &policy, t(60)).evictions["a"].delete);
    // One that comes afterwards is listed, then deleted as well.
    on_node(&mut view, vec![pod("d", false)]);
    write_due(&mut view, &policy, 61);
    assert!(plan(&view, &policy, t(61)).evictions["a"].delete);
    on_node(&mut view, vec![]);
    let report = next(&view, &policy, 62);
    assert_eq!(report.progress.unwrap().step, Step::Rebooting);
    let (forced, evicted) = (Some(PodMove::Forced), Some(PodMove::Evicted));
    let pods = report.drain.unwrap().pods;
    assert_eq!(moves(&pods), [("p-a", forced), ("p-b", evicted), ("p-c", evicted), ("p-d", forced)]);
}

#[test]
fn result_of_updated_node_names_its_rollout_times_boots_and_pods() {
    let mut node = at("a", Step::Verifying, 20, HostState::Idle);
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    node.facts.boot_id = "b2".into();
    (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
    node.lease = renewed_after(100);
    node.shadow.as_mut().unwrap().status.agent.boot_id = Some("b2".into());
    let controller = &mut node.shadow.as_mut().unwrap().status.controller;
    let progress = controller.progress.as_mut().unwrap();
    (progress.verifying_since, progress.boot_id) = (Some(t(12)), "b2".into());
    let moved = vec![listed("p-a", Some(PodMove::Evicted)), listed("p-b", Some(PodMove::LeftToReboot))];
    controller.drain = Some(DrainStatus { pods: moved.clone().into(), ..DrainStatus::default() });
    in_history(&mut node, HistoryPosition { drain_started: Some(t(2)), drain_ended: Some(t(9)), ..place() });
    let there = |name: &str| PodFacts { ready: true, name: name.into(), uid: name.into(), ..pod("a", false) };
    node.pods = Some(vec![
        there("web-2"),
        there("web-1"),
        PodFacts { finished: true, ..there("ended") },
        PodFacts { terminating: true, ..there("leaving") },
        PodFacts { mirror: true, ..there("static") },
        PodFacts { daemon_set: Some("logs".into()), daemon_set_state: DaemonSetState::There, ..there("logs") },
    ]);
    let (view, policy) = cluster(vec![node], &["a"]);
    let report = next(&view, &policy, 100);
    assert!(report.progress.is_none() && report.drain.is_none(), "it is the write that ends the attempt");
    let result = result(&view, &policy, 100);
    let message = result.message.clone();
    assert!(message.contains("Ready on 1.20.5"), "{message}");
    let expected = RolloutResult {
        rollout: 3,
        step: 2,
        attempt: 1,
        from: Some(OLD),
        to: NEW,
        drill: None,
        result: "Updated".into(),
        message,
        started: t(0),
        drain_started: Some(t(2)),
        drain_ended: Some(t(9)),
        soak_started: Some(t(12)),
        ended: t(100),
        boot_before: "b1".into(),
        boot_after: "b2".into(),
        pods: moved.into(),
        running: vec!["shop/web-1".into(), "shop/web-2".into()],
    };
    assert_eq!(result, expected);
}

#[test]
fn result_of_failed_drain_tells_pods_that_left_from_those_that_did_not() {
    let spec = serde_json::json!({"drain": {"timeout": "1m"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false), pod("b", false)]);
    in_history(view.nodes.get_mut("a").unwrap(), HistoryPosition { drain_started: Some(t(0)), ..place() });
    on_node(&mut view, vec![pod("b", false)]);
    let result = result(&view, &policy, 60);
    assert_eq!((result.rollout, result.step, result.result.as_str()), (3, 2, "DrainTimedOut"));
    assert!(result.message.contains("shop/p-b"), "{}", result.message);
    assert_eq!((result.started, result.drain_started, result.drain_ended), (t(0), Some(t(0)), None));
    assert_eq!((result.boot_before.as_str(), result.boot_after.as_str(), result.soak_started), ("b1", "b1", None));
    assert_eq!(moves(&result.pods), [("p-a", Some(PodMove::Evicted)), ("p-b", None)]);
    assert!(result.running.is_empty(), "only an updated node has had a soak");
}

#[test]
fn result_of_attempt_that_ends_before_drain_has_neither_pods_nor_drain_times() {
    type Change = fn(&mut NodeView);
    let case = |step: Step, reason: &str, change: Change| {
        let mut node = at("a", step, 0, HostState::StagedUpdate);
        in_history(&mut node, place());
        node.pods = Some(vec![pod("a", false)]);
        change(&mut node);
        let (view, policy) = cluster(vec![node], &[]);
        let result = result(&view, &policy, 5);
        assert_eq!((result.rollout, result.step, result.result.as_str()), (3, 2, reason));
        assert_eq!((result.from.as_ref(), &result.to), (Some(&OLD), &NEW), "{reason}");
        assert_eq!((result.boot_before.as_str(), result.boot_after.as_str()), ("b1", "b1"), "{reason}");
        assert_eq!((result.drain_started, result.drain_ended, result.soak_started), (None, None, None), "{reason}");
        assert!(result.pods.is_empty() && result.running.is_empty(), "{reason}: {result:?}");
    };
    case(Step::Staging, "PrepareFailed", |node| {
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.failure = Some(Failure {
            attempt: 1,
            step: HostState::StagedUpdate,
            reason: FailureReason::PrepareFailed,
            message: "no space".into(),
            time: t(1),
        });
    });
    case(Step::Staged, "LabelRemoved", |node| node.facts.labelled = false);
    case(Step::Staged, "Held", |node| node.facts.hold = Some(Hold::default()));
}

/// It began before the rollout had a number, or under an earlier release.
#[test]
fn result_of_attempt_without_number_gets_that_of_its_rollout() {
    for place in [None, Some(HistoryPosition { rollout: 0, ..place() })] {
        // The boot in which it began is not known without a place.
        let (step, boot) = place.as_ref().map_or((1, String::new()), |place| (place.step, place.boot_id.clone()));
        let mut node = at("a", Step::Staged, 0, HostState::StagedUpdate);
        node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().rollout = place;
        node.facts.hold = Some(Hold::default());
        let (mut view, policy) =
            cluster_with(vec![node], &[], serde_json::json!({"strategy": {"canary": [{"nodes": 1}]}}));
        view.operator.as_mut().unwrap().status.rollout_count = Some(6);
        let result = result(&view, &policy, 5);
        assert_eq!((result.rollout, result.step, result.boot_before), (7, step, boot));
    }
}

#[test]
fn oldest_results_are_dropped_beyond_limit() {
    // The earlier results, the pods of each, and the earlier results that are kept.
    let cases: [(usize, usize, &[i64]); 7] = [
        (1, 0, &[0]),
        (MOST_RESULTS - 1, 0, &[0, 1, 2, 3, 4, 5, 6]),
        (MOST_RESULTS, 0, &[1, 2, 3, 4, 5, 6, 7]),
        (2, 3500, &[0, 1]),
        (2, 4000, &[1]),
        (3, 3500, &[1, 2]),
        (1, 9000, &[]),
    ];
    for (before, pods, left) in cases {
        let mut node = at("a", Step::Staged, 0, HostState::StagedUpdate);
        in_history(&mut node, place());
        node.facts.hold = Some(Hold::default());
        let (mut view, policy) = cluster(vec![node], &[]);
        let ended = result(&view, &policy, 5);
        let pods = vec![listed("p", None); pods];
        let results = (0..before).map(|number| RolloutResult {
            rollout: i64::try_from(number).unwrap(),
            pods: pods.clone().into(),
            ..ended.clone()
        });
        shadow(&mut view).status.controller.results = results.map(Arc::new).collect();
        let results = next(&view, &policy, 5).results;
        let mut kept: Vec<_> = results.iter().map(|result| result.rollout).collect();
        assert_eq!(kept.pop(), Some(3), "the new one");
        assert_eq!(kept, left, "{before} with {} pods each", pods.len());
        for reason in [crate::history::WAITING, crate::history::RECORD_UNREADABLE] {
            view.history.state = Some((false, reason, "an object cannot be read".into()));
            assert_eq!(next(&view, &policy, 5).results.len(), left.len() + 1, "no fewer: {reason}");
        }
        view.history.state = Some((false, "WriteFailed", "a quota".into()));
        assert_eq!(next(&view, &policy, 5).results.len(), 1, "one of each node while none can be recorded");
    }
}

#[test]
fn result_that_is_larger_than_the_room_for_results_is_kept_alone() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![]);
    let pods = (0..1000).map(|number| listed(&format!("{number:04}-{}", "p".repeat(240)), None));
    shadow(&mut view).status.controller.drain.as_mut().unwrap().pods = pods.collect::<Vec<_>>().into();
    view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default());
    assert_eq!(result(&view, &policy, 5).pods.len(), 1000);
}

#[test]
fn results_of_ended_rollouts_go_with_the_next_write() {
    let mut node = at("a", Step::Staged, 0, HostState::StagedUpdate);
    in_history(&mut node, place());
    node.facts.hold = Some(Hold::default());
    let (mut view, policy) = cluster(vec![node], &[]);
    let ended = result(&view, &policy, 5);
    let drill = RolloutResult { rollout: 1, drill: Some(Drill::of("1")), ..ended.clone() };
    let results = [1, 2].map(|rollout| RolloutResult { rollout, ..ended.clone() });
    shadow(&mut view).status.controller.results = results.into_iter().chain([drill]).map(Arc::new).collect();
    let left = |view: &ClusterView| {
        let results = next(view, &policy, 5).results;
        results.iter().map(|result| (result.rollout, result.drill.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(left(&view), [(1, false), (2, false), (1, true), (3, false)]);
    view.history.ended = [1].into();
    assert_eq!(left(&view), [(2, false), (1, true), (3, false)]);
}

#[test]
fn drain_begins_once_owners_of_its_pods_are_read_or_given_up() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![PodFacts { owner_pending: true, ..pod("a", false) }]);
    let (mut view, policy) = cluster(vec![staged], &["a"]);
    let waiting = plan(&view, &policy, t(10));
    assert_eq!(waiting.waits.get("a"), Some(&crate::wait::Wait::ReadingPods));
    assert!(waiting.wake.is_some_and(|at| at <= t(13)), "{:?}", waiting.wake);
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()[0].owner_pending = false;
    assert!(next(&view, &policy, 11).drain.is_some());
}

#[test]
fn pods_of_a_drain_beyond_the_size_of_a_shadow_keep_what_identifies_them() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    let large = |number: usize| PodFacts {
        name: format!("{number}-{}", "p".repeat(240)),
        uid: format!("uid-{number}"),
        top_owner: Some(format!("Deployment/{}", "o".repeat(240))),
        ..pod("a", false)
    };
    staged.pods = Some((0..1024).map(large).collect());
    let (view, policy) = cluster(vec![staged], &["a"]);
    let pods = next(&view, &policy, 5).drain.unwrap().pods;
    let size = serde_json::to_vec(&pods).unwrap().len();
    assert!(pods.len() == 1024 && size < 512 * 1024, "{size}");
    assert!(pods[0].owner.is_some() && pods[1023].owner.is_none() && pods.iter().all(|pod| !pod.uid.is_empty()));
}
