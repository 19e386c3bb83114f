//! The deletion of the pods that are left at the deadline of a drain.

use models::condition::find_condition;
use models::operator::{GuardedPods, Slot};
use models::shadow::{ArmedPhase, BLOCKED, DrainStatus, DrainedPod, HistoryPosition, HostState, PodMove, Step};

use super::drain::names;
use super::guarded::{asked, drain_of, guard, pod_of, settle};
use crate::decision::{Action, Evictions};
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{Blocked, BudgetFacts, ClusterView, InFlight, PodFacts};

/// Past the deadline, with `Force`.
#[test]
fn forced_drain_is_recorded_then_deletes_with_grace_then_without() {
    let stuck =
        || PodFacts { terminating: true, ends_by: Some(t(5)), ..PodFacts { name: "stuck".into(), ..pod("s", false) } };
    let (mut view, release) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false), stuck()]);
    let made = plan(&view, &release, t(60));
    assert!(
        matches!(made.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );

    view.operator.as_mut().unwrap().spec =
        serde_json::from_value(serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}})).unwrap();
    let force = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
    let before = plan(&view, &force, t(59));
    assert!(before.evictions.get("a").is_some_and(|e| !e.delete), "{:?}", before.actions);
    let recorded = plan(&view, &force, t(60)).actions.remove("a").unwrap();
    assert!(matches!(&recorded, Action::Status { note: Some(note), .. } if note.reason == "DrainForced"
        && note.message.contains("shop/p-a") && note.message.contains("shop/stuck")));
    written(&mut view, &recorded);
    let Evictions { pods, grace, delete: true, .. } = plan(&view, &force, t(60)).evictions.remove("a").unwrap() else {
        panic!()
    };
    assert_eq!((names(&pods), grace), (vec!["stuck"], Some(0)), "it has outlived its own grace period");
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().retain(|pod| pod.name != "stuck");
    let Evictions { pods, grace, delete: true, .. } = plan(&view, &force, t(60)).evictions.remove("a").unwrap() else {
        panic!()
    };
    assert_eq!((names(&pods), grace), (vec!["p-a"], None));
    // Deleted, and waited for until its grace period is over.
    let leaving = PodFacts { terminating: true, ends_by: Some(t(90)), ..pod("a", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving]);
    let waits = plan(&view, &force, t(61));
    assert!(waits.actions.is_empty() && waits.wake <= Some(t(90)), "{:?} {:?}", waits.actions, waits.wake);
    let late = plan(&view, &force, t(90));
    assert!(late.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", late.actions);
    let last = plan(&view, &force, t(90 + 299));
    assert!(last.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", last.actions);
    let never = plan(&view, &force, t(90 + 300));
    assert!(
        matches!(never.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );
}

/// The pod may take an hour to end, and does not.
#[test]
fn forced_drain_deletes_without_grace_only_after_grace_period() {
    const TIMEOUT: i64 = 3600;
    let spec = serde_json::json!({"drain": {"timeout": "1h", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    write_due(&mut view, &policy, TIMEOUT);
    let made = plan(&view, &policy, t(TIMEOUT));
    assert!(made.evictions.get("a").is_some_and(|e| e.delete && e.grace.is_none()), "{:?}", made.actions);
    let ends = TIMEOUT + 3600;
    view.nodes.get_mut("a").unwrap().pods =
        Some(vec![PodFacts { terminating: true, ends_by: Some(t(ends)), ..pod("a", false) }]);
    let made = plan(&view, &policy, t(TIMEOUT + 1));
    assert!(made.actions.is_empty() && made.wake == Some(t(TIMEOUT + 300)), "{:?} {:?}", made.actions, made.wake);
    // Named five minutes after the deadline, however long its grace period is.
    let named = plan(&view, &policy, t(TIMEOUT + 300)).actions.remove("a").unwrap();
    assert!(
        matches!(&named, Action::Status { status, note: Some(note) } if note.reason == "DrainBlocked"
            && status.report.drain.as_ref().unwrap().blockers[0].message.ends_with("to end")),
        "{named:?}"
    );
    written(&mut view, &named);
    let made = plan(&view, &policy, t(ends - 1));
    assert!(made.actions.is_empty() && made.wake == Some(t(ends)), "{:?} {:?}", made.actions, made.wake);
    assert_eq!(made.waits["a"].as_str(), "DrainBlocked");
    let made = plan(&view, &policy, t(ends));
    assert!(made.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", made.actions);
}

/// A database asks for a week, and what runs before its end hangs.
#[test]
fn forced_drain_ends_once_its_time_has_passed_again_whatever_grace_period_a_pod_has() {
    const WEEK: i64 = 7 * 24 * 3600;
    let spec = serde_json::json!({"drain": {"timeout": "10m", "atDeadline": "Force"}});
    let database = PodFacts { terminating: true, ends_by: Some(t(1 + WEEK)), ..pod("a", false) };
    let (mut view, policy) = draining(spec, vec![database, PodFacts { name: "web".into(), ..pod("b", false) }]);
    write_due(&mut view, &policy, 600);
    let made = plan(&view, &policy, t(600));
    assert_eq!(names(&made.evictions["a"].pods), ["web"]);
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().pop();
    write_due(&mut view, &policy, 900);
    let made = plan(&view, &policy, t(1499));
    assert!(made.evictions.is_empty() && made.wake == Some(t(1500)), "{:?} {:?}", made.evictions, made.wake);
    let made = plan(&view, &policy, t(1500));
    let last = last_of(&made);
    assert_eq!(last.reason, "DrainTimedOut");
    assert!(last.message.starts_with("still on the node although deleted: shop/p-a"), "{}", last.message);
    assert!(made.evictions.is_empty(), "it keeps its grace period");
}

/// The leader that began it is gone, and another one finds the drain past its deadline.
#[test]
fn forced_drain_goes_on_under_a_new_leader() {
    let spec = |timeout: &str| serde_json::json!({"drain": {"timeout": timeout, "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec("1m"), vec![pod("a", false)]);
    write_due(&mut view, &policy, 60);
    view.leader_since = t(90);
    let made = plan(&view, &policy, t(91));
    assert!(made.evictions.get("a").is_some_and(|evictions| evictions.delete), "{:?}", made.actions);
    let longer = with_policy(&mut view, spec("1h"));
    let made = plan(&view, &longer, t(91));
    assert!(made.evictions.get("a").is_none_or(|evictions| !evictions.delete), "policy gives it more time");
}

/// The controller was scaled to zero over a weekend.
#[test]
fn drain_that_is_found_a_day_after_its_deadline_deletes_nothing_unless_it_had_begun_to() {
    const DAY: i64 = 24 * 60 * 60;
    for (sentence, led_since, begun, event) in [
        ("within a day", 60 + DAY - 1, false, Some("DrainForced")),
        ("a day later", 60 + DAY, false, Some("UpdateFailed")),
        ("two days later, and pods were deleted before", 2 * DAY, true, None),
    ] {
        let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
        let (mut view, policy) = draining(spec, vec![pod("a", false)]);
        if begun {
            write_due(&mut view, &policy, 60);
        }
        view.leader_since = t(led_since);
        let deletes = |second| plan(&view, &policy, t(second)).evictions.get("a").map(|evictions| evictions.delete);
        assert_eq!(deletes(led_since + 1), Some(begun), "{sentence}");
        let made = plan(&view, &policy, t(led_since + 60));
        let note = match made.actions.get("a") {
            Some(Action::Status { note: Some(note), .. }) => Some(note.reason),
            _ => None,
        };
        assert_eq!(note, event, "{sentence}: {:?}", made.actions);
    }
}

/// The budget has let the pod go when the drain began.
#[test]
fn forced_drain_deletes_nothing_past_a_budget_where_policy_waits_for_guarded_pods() {
    fn broken(budget: &mut BudgetFacts) {
        (budget.allowed, budget.healthy, budget.desired) = (0, 1, 1);
    }
    let begun = |guarded_pods: &str| {
        let drain = serde_json::json!({"timeout": "1m", "atDeadline": "Force", "guardedPods": guarded_pods});
        let lets_one_go = BudgetFacts { allowed: 1, desired: 1, ..guard("db", 2) };
        drain_of(serde_json::json!({"drain": drain}), vec![pod_of("db", "db-0")], vec![lets_one_go])
    };
    let case = |sentence: &str, guarded_pods: &str, end: &str, change: fn(&mut BudgetFacts)| {
        let (mut view, policy) = begun(guarded_pods);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0"], "{sentence}");
        change(&mut view.budgets[0]);
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
        assert_eq!(outcome(&made), end, "{sentence}: {:?}", made.actions);
    };
    let (deletes, released) = ("step Draining", "DrainTimedOut");
    case("it lets the pod go", "Wait", deletes, |_| {});
    case("a pod of it is broken", "Wait", released, broken);
    case("it guards the pod", "Wait", released, |budget| (budget.allowed, budget.desired) = (0, 2));
    case("its numbers are of an earlier spec", "Wait", released, |budget| budget.stale = true);
    case("it has counted no pods", "Wait", released, |budget| (budget.allowed, budget.expected) = (0, 0));
    case("its pods cannot be counted", "Wait", released, |budget| {
        (budget.allowed, budget.sync_error) = (0, Some("no scale".into()));
    });
    case("policy does not wait, and a pod of it is broken", "Ask", deletes, broken);

    for (allowed, end) in [(1, released), (2, deletes)] {
        let drain = serde_json::json!({"timeout": "1m", "atDeadline": "Force", "guardedPods": "Wait"});
        let (pods, budget) = (["db-0", "db-1"], BudgetFacts { allowed, desired: 3 - allowed, ..guard("db", 3) });
        let pods = pods.map(|name| pod_of("db", name)).into();
        let (mut view, policy) = drain_of(serde_json::json!({"drain": drain}), pods, vec![budget]);
        settle(&mut view, &policy, 1);
        assert_eq!(outcome(&plan(&view, &policy, t(60))), end, "it lets {allowed} of two pods go");
    }

    let (mut view, policy) = begun("Wait");
    settle(&mut view, &policy, 60);
    broken(&mut view.budgets[0]);
    let evictions = plan(&view, &policy, t(61)).evictions;
    assert!(evictions.get("a").is_some_and(|evictions| evictions.delete), "it has begun: {evictions:?}");
}

/// Nodes `a` and `b` past their deadlines at 60 s, each with one pod of a budget that lets so many go.
fn two_drains(guarded_pods: &str, allowed: i32) -> (ClusterView, Policy) {
    let drain = serde_json::json!({"timeout": "1m", "atDeadline": "Force", "guardedPods": guarded_pods});
    let budget = BudgetFacts { allowed, desired: 2 - allowed, ..guard("db", 2) };
    let (mut view, policy) = drain_of(serde_json::json!({"drain": drain}), vec![pod_of("db", "db-0")], vec![budget]);
    settle(&mut view, &policy, 1);
    let mut b = view.nodes["a"].clone();
    (b.facts.name, b.facts.uid) = ("b".into(), "uid-b".into());
    b.pods = Some(vec![PodFacts { node: "b".into(), ..pod_of("db", "db-1") }]);
    let shadow = b.shadow.as_mut().unwrap();
    (shadow.node, shadow.uid, shadow.owner_uid) = ("b".into(), "shadow-b".into(), Some("uid-b".into()));
    let drain = shadow.status.controller.drain.as_mut().unwrap();
    let listed = DrainedPod { name: "db-1".into(), uid: "db-1".into(), ..drain.pods[0].clone() };
    drain.pods = [listed].into();
    view.nodes.insert("b".into(), b);
    let slots = &mut view.operator.as_mut().unwrap().status.slots;
    let slot = Slot { node: "b".into(), uid: "uid-b".into(), ..slots[0].clone() };
    slots.push(slot);
    (view, policy)
}

/// Returns what a plan begins on these nodes: the deletion of what is left, or the end of the attempt.
fn begun_on_both(made: &Plan) -> [String; 2] {
    ["a", "b"].map(|name| match made.actions.get(name) {
        Some(Action::Status { status, .. }) => match (&status.report.progress, &status.report.drain) {
            (Some(progress), Some(drain)) if progress.step == Step::Draining => {
                if drain.forced_since.is_some() { "deletes" } else { "drains" }.to_owned()
            }
            _ => status.report.record.as_ref().unwrap().last.as_ref().unwrap().reason.clone(),
        },
        _ => "nothing".to_owned(),
    })
}

#[test]
fn nodes_that_delete_at_their_deadlines_delete_no_more_at_a_time_than_a_budget_lets_go() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, guarded_pods: &str, allowed: i32, expected: [&str; 2], change: Change| {
        let (mut view, policy) = two_drains(guarded_pods, allowed);
        change(&mut view);
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
        assert_eq!(begun_on_both(&made), expected, "{sentence}: {:?}", made.waits);
    };
    let ended = "DrainTimedOut";
    case("it lets one go", "Wait", 1, ["deletes", ended], |_| {});
    case("it lets two go", "Wait", 2, ["deletes", "deletes"], |_| {});
    case("policy does not wait", "Ask", 1, ["deletes", "deletes"], |_| {});
    case("the other one has begun to", "Wait", 1, [ended, "nothing"], |view| {
        let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
        shadow.status.controller.drain.as_mut().unwrap().forced_since = Some(t(60));
    });
    case("a write about the other one is under way", "Wait", 1, [ended, "nothing"], |view| {
        view.busy.insert("b".into());
    });
    case("the pod of the other one is not Ready", "Wait", 1, ["deletes", "deletes"], |view| {
        view.nodes.get_mut("b").unwrap().pods.as_mut().unwrap()[0].ready = false;
    });

    // The planner that does not wait for guarded pods.
    let (view, policy) = two_drains("Ask", 1);
    let mut made = plan(&view, &policy, t(60));
    let mut waits = policy;
    waits.all.drain.guarded_pods = GuardedPods::Wait;
    let found = crate::lint::lint(&view, &waits, &mut made);
    let found: Vec<_> = found.iter().map(|found| (found.property, found.node.as_deref())).collect();
    assert_eq!(found, [("S13", Some("a")), ("S13", Some("b"))]);
    assert_eq!(begun_on_both(&made), ["nothing", "nothing"]);
}

#[test]
fn node_whose_policy_deletes_nothing_at_its_deadline_uses_up_nothing_of_what_a_budget_lets_go() {
    let (mut view, _) = two_drains("Wait", 1);
    let labels = [("tier".to_owned(), "rest".to_owned())];
    view.nodes.get_mut("a").unwrap().facts.labels = std::sync::Arc::new(labels.into());
    let selector = serde_json::json!({"matchLabels": {"tier": "rest"}});
    let rest = serde_json::json!({"name": "rest", "selector": selector, "drain": {"atDeadline": "Release"}});
    let drain = serde_json::json!({"timeout": "1m", "atDeadline": "Force", "guardedPods": "Wait"});
    let policy = with_policy(&mut view, serde_json::json!({"drain": drain, "nodeGroups": [rest]}));
    assert_eq!(begun_on_both(&plan(&view, &policy, t(60))), ["DrainTimedOut", "deletes"]);
}

/// `Force`, and a pod that policy refuses came to the node meanwhile.
#[test]
fn forced_drain_fails_on_refused_pod_or_unready_node() {
    let spec = || serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    for (pods, ready) in [(vec![pod("a", true)], true), (vec![pod("a", false)], false)] {
        let (mut view, policy) = draining(spec(), pods);
        let node = view.nodes.get_mut("a").unwrap();
        node.facts.ready = ready;
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.controller.drain = Some(models::shadow::DrainStatus { forced_since: Some(t(60)), ..Default::default() });
        let made = plan(&view, &policy, t(61));
        let last = last_of(&made);
        assert_eq!(last.reason, "DrainTimedOut");
        assert_eq!(last.message.contains("not Ready"), !ready, "{}", last.message);
    }
}

#[test]
fn forced_deletion_does_not_wait_for_eviction_in_flight() {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    node.shadow.as_mut().unwrap().status.controller.drain.as_mut().unwrap().forced_since = Some(t(60));
    for (deletes, sent) in [(false, 1), (true, 0)] {
        let in_flight = [("p-a".to_owned(), InFlight { since: t(50), deletes })].into();
        view.nodes.get_mut("a").unwrap().in_flight = in_flight;
        let made = plan(&view, &policy, t(61)).evictions;
        assert_eq!(made.values().filter(|e| e.delete).count(), sent, "{made:?}");
    }
}

#[test]
fn failed_drain_calls_only_those_pods_deleted_whose_deletion_was_accepted() {
    let leaving = || PodFacts { terminating: true, ends_by: Some(t(60)), ..pod("c", false) };
    let deletion = |accepted| Blocked { deleted: true, ..answer(None, 61, accepted) };
    for (sentence, pods, expected) in [
        ("a webhook fails", vec![pod("a", false)], "still on the node, deletion not accepted: shop/p-a"),
        ("they do not end", vec![pod("b", false), leaving()], "still on the node although deleted: shop/p-b, shop/p-c"),
        (
            "both",
            vec![pod("a", false), pod("b", false), leaving()],
            "still on the node although deleted: shop/p-b, shop/p-c; still on the node, deletion not accepted: shop/p-a",
        ),
    ] {
        let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
        let (mut view, policy) = draining(spec, pods);
        write_due(&mut view, &policy, 60);
        let answers = [("p-a".to_owned(), deletion(false)), ("p-b".to_owned(), deletion(true))];
        view.nodes.get_mut("a").unwrap().blocked = answers.into();
        let made = plan(&view, &policy, t(60 + 300));
        let last = last_of(&made);
        assert_eq!((last.reason.as_str(), last.message.as_str()), ("DrainTimedOut", expected), "{sentence}");
    }
}

/// A budget over all pods, which lets none go.
fn guarding() -> BudgetFacts {
    BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy: 1,
        desired: 1,
        expected: 1,
        selector: Some(kube::core::Selector::from_iter([kube::core::Expression::DoesNotExist("other".into())])),
        ..BudgetFacts::default()
    }
}

/// A pod came to the node once the first drain had deleted what was left.
#[test]
fn drain_that_begins_again_after_a_forced_one_evicts_and_has_its_own_deadline() {
    let mut node = at("a", Step::Rebooting, 100, HostState::RebootedIntoUpdate);
    node.pods = Some(vec![pod("a", false)]);
    let shadow = node.shadow.as_mut().unwrap();
    shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
    shadow.status.controller.drain = Some(DrainStatus { forced_since: Some(t(60)), ..DrainStatus::default() });
    let (mut view, policy) =
        cluster_with(vec![node], &["a"], serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}}));
    // Another pod, which its budget guards now.
    view.budgets = vec![guarding()];
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()[0].ready = true;
    for second in [110, 110] {
        write_due(&mut view, &policy, second);
    }
    let drain = view.nodes["a"].shadow.as_ref().unwrap().status.controller.drain.clone().unwrap();
    assert_eq!((drain.forced_since, drain.pods[0].moved), (None, None), "the pod is evicted");
    assert_eq!(drain.asked_first.len(), 1, "it is asked first");
    assert!(plan(&view, &policy, t(110)).evictions.get("a").is_some_and(|evictions| !evictions.delete));
    // A refusal is named, as in the first drain.
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), answer(Some("shop/web"), 110, false))].into();
    let named = plan(&view, &policy, t(115)).actions.remove("a").unwrap();
    let Action::Status { status, note: Some(note) } = &named else { panic!("{named:?}") };
    let found = (find_condition(&status.conditions, BLOCKED).unwrap().reason.as_str(), note.reason);
    assert_eq!(found, ("DrainBlocked", "DrainBlocked"));
    written(&mut view, &named);
    let forced = plan(&view, &policy, t(170)).actions.remove("a").unwrap();
    let Action::Status { status, note: Some(note) } = &forced else { panic!("{forced:?}") };
    assert!(note.reason == "DrainForced" && note.message.contains("shop/p-a"), "{note:?}");
    assert_eq!(status.report.drain.as_ref().unwrap().pods[0].moved, Some(PodMove::Forced));
}

/// A budget keeps a pod that came once the node was drained: other pods have moved for nothing.
#[test]
fn guarded_pod_that_stays_in_a_drain_that_has_begun_again_is_a_failure() {
    for (drained_before, expected) in [(false, "GuardedPodsStayed"), (true, "DrainTimedOut")] {
        let (mut view, policy) = draining(serde_json::json!({}), vec![PodFacts { ready: true, ..pod("a", false) }]);
        view.budgets = vec![guarding()];
        let report = &mut shadow(&mut view).status.controller;
        let first = models::shadow::FirstPod { uid: "p-a".into(), accepted: None, unguarded: false };
        report.drain.as_mut().unwrap().asked_first = vec![first];
        report.progress.as_mut().unwrap().rollout =
            Some(HistoryPosition { drain_ended: drained_before.then(|| t(0)), ..HistoryPosition::default() });
        assert_eq!(outcome(&plan(&view, &policy, t(600))), expected);
    }
}

#[test]
fn each_pod_is_asked_within_its_budget_before_a_forced_drain_deletes_any() {
    let db = || pod_of("db", "db-0");
    let hour = || PodFacts { grace: Some(3600), ..db() };
    let dns = || PodFacts { critical: true, ..pod_of("dns", "dns-0") };
    for (sentence, guarded_timeout, first, budgets, last, until) in [
        ("a guarded pod stays, and critical ones are last", "10m", db(), vec![guard("db", 1)], dns(), 1200),
        ("it is asked for as long as the drain may take", "30m", db(), vec![guard("db", 1)], dns(), 900),
        ("a pod takes an hour to end", "10m", hour(), vec![], pod_of("web", "web-0"), 1200),
        ("guarded pods get a second", "1s", hour(), vec![], pod_of("web", "web-0"), 1740),
    ] {
        let spec = serde_json::json!({"drain": {"atDeadline": "Force", "guardedTimeout": guarded_timeout}});
        let lets_one_go = BudgetFacts { allowed: 1, desired: 1, ..guard(&last.labels["app"], 2) };
        let name = last.name.clone();
        let budgets = budgets.into_iter().chain([lets_one_go]).collect();
        let (mut view, policy) = drain_of(spec, vec![first, last], budgets);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0"], "{sentence}");
        let on_node = view.nodes.get_mut("a").unwrap().pods.iter_mut().flatten();
        for pod in on_node.filter(|pod| pod.grace.is_some()) {
            (pod.terminating, pod.ends_by) = (true, Some(t(3601)));
        }
        let made = settle(&mut view, &policy, until - 1);
        let wakes = made.wake.is_some_and(|wake| wake <= t(until));
        assert!(!asked(&made).contains(&name.as_str()) && wakes, "{sentence}: {made:?}");
        let made = settle(&mut view, &policy, until);
        assert!(asked(&made).contains(&name.as_str()) && !made.evictions["a"].delete, "{sentence}: {made:?}");
    }
}

/// A budget guards one of two pods, which is asked first and alone.
#[test]
fn drain_that_policy_makes_shorter_asks_each_pod_before_it_deletes_any() {
    let force = |timeout: &str| serde_json::json!({"drain": {"timeout": timeout, "atDeadline": "Force"}});
    for (sentence, before, changed) in [
        ("its time would be over", force("30m"), 500),
        ("policy has let it go on without Force", serde_json::json!({"drain": {"timeout": "30m"}}), 599),
    ] {
        let on_node = vec![pod_of("web", "web-0"), pod_of("db", "db-0")];
        let (mut view, policy) = drain_of(before, on_node, vec![guard("db", 1)]);
        assert_eq!(asked(&settle(&mut view, &policy, changed - 1)), ["db-0"], "{sentence}");
        let policy = with_policy(&mut view, force("5m"));
        view.operator.as_mut().unwrap().spec_changed = Some(t(changed));
        for second in [changed, changed + 149] {
            let made = settle(&mut view, &policy, second);
            assert_eq!((asked(&made), made.evictions["a"].delete), (vec!["db-0"], false), "{sentence}: {second} s");
        }
        for second in [changed + 150, changed + 299] {
            let made = settle(&mut view, &policy, second);
            assert!(asked(&made).contains(&"web-0") && !made.evictions["a"].delete, "{sentence}: {second} s: {made:?}");
        }
        let made = plan(&view, &policy, t(changed + 300));
        let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else {
            panic!("{sentence}: {made:?}")
        };
        let taken = models::duration::Duration(std::time::Duration::from_secs((changed + 300).unsigned_abs()));
        let text = format!("the drain has taken {taken}: deleting what is left, past all budgets");
        assert!(note.reason == "DrainForced" && note.message.starts_with(&text), "{sentence}: {}", note.message);
    }
}
