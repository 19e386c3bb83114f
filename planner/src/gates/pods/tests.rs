use std::sync::Arc;

use kube::core::{Expression, Selector};
use models::operator::PodsAtRisk;
use serde_json::{Value, json};

use super::super::before_drain;
use super::super::testing::refusal_of;
use super::*;
use crate::fixtures::{pod, t};
use crate::wait::UnfinishedEviction;

fn web() -> PodFacts {
    let labels = Arc::new([("app".to_owned(), "web".to_owned())].into());
    PodFacts { labels, ready: true, ..pod("a", false) }
}

fn budget(desired: i32, expected: i32) -> BudgetFacts {
    BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy: expected,
        desired,
        expected,
        allowed: (expected - desired).max(0),
        selector: Some(Selector::from_iter([Expression::Equal("app".into(), "web".into())])),
        ..BudgetFacts::default()
    }
}

/// Returns the refusal of a node with this pod under these budgets, where policy waits for those that guard a pod.
fn refusal_by(pod: PodFacts, budgets: Vec<BudgetFacts>, at_deadline: AtDeadline) -> Option<Wait> {
    let refusal = refusal_of(before_drain, |view, policy| {
        view.budgets = budgets;
        view.nodes.get_mut("a").unwrap().pods = Some(vec![pod]);
        (policy.all.drain.guarded_pods, policy.all.drain.at_deadline) = (GuardedPods::Wait, at_deadline);
    });
    refusal.map(Obstacle::into_wait)
}

#[test]
fn pdb_that_allows_no_disruption_is_reported() {
    let refused = Some(Wait::BudgetNeverAllows {
        pod: "shop/p-a".into(),
        budget: "shop/web".into(),
        until: None,
        by_reboot: false,
    });
    let sick = PodFacts { ready: false, ..web() };
    let broken =
        |healthy: i32, desired: i32| BudgetFacts { healthy, allowed: (healthy - desired).max(0), ..budget(desired, 3) };
    let lenient = || BudgetFacts { allows_unhealthy: true, ..broken(2, 3) };
    let wait =
        |count, eviction| Wait::BudgetUnhealthy { pod: "shop/p-a".into(), budget: "shop/web".into(), count, eviction };
    let unhealthy = |count| Some(wait(count, None));
    let approved = t(-60);
    let killed = UnfinishedEviction { pod: "shop/p-b".into(), approved, until: t(60) };
    let counts_as_gone = || BudgetFacts { approved: [("p-b".to_owned(), approved)].into(), ..broken(2, 2) };
    let of_five = || BudgetFacts { healthy: 3, allowed: 0, ..budget(3, 5) };
    let one_of_two = || BudgetFacts { healthy: 1, allowed: 0, ..budget(1, 2) };
    // The API server takes an eviction off what is allowed, and the pods are counted later.
    let not_counted = || BudgetFacts { allowed: 0, ..broken(2, 1) };
    let taken = || BudgetFacts { allowed: 0, approved: [("p-b".to_owned(), t(0))].into(), ..budget(2, 3) };
    let message = || "no scale".to_owned();
    let uncounted = || BudgetFacts { sync_error: Some(message()), ..budget(0, 0) };
    let failed = Wait::BudgetSyncFailed { pod: "shop/p-a".into(), budget: "shop/web".into(), message: message() };
    for (sentence, pod, budget, expected) in [
        ("all pods are wanted at all times", web(), budget(3, 3), refused.clone()),
        ("more pods are wanted than there can be", web(), budget(4, 3), refused.clone()),
        ("one is broken, and one may be", web(), broken(2, 2), unhealthy(1)),
        ("one counts as gone, and is there", web(), counts_as_gone(), Some(wait(1, Some(killed)))),
        ("two are broken", web(), broken(1, 2), unhealthy(2)),
        ("two of five are broken, and one more healthy one is enough", web(), of_five(), unhealthy(1)),
        ("one of two has ended, and a number is required", web(), one_of_two(), unhealthy(1)),
        ("more are required than there can be, beside one that has ended", web(), broken(2, 1000), unhealthy(1)),
        ("one is broken, and another has used up what was allowed", web(), not_counted(), unhealthy(1)),
        ("all are healthy, and one is about to go", web(), taken(), unhealthy(1)),
        ("one is broken, and two may be", web(), broken(2, 1), None),
        ("the numbers of an earlier spec", web(), BudgetFacts { stale: true, ..broken(1, 2) }, None),
        ("the numbers of an earlier spec allow none", web(), BudgetFacts { stale: true, ..budget(3, 3) }, None),
        ("a pod beside a broken one that may go", web(), lenient(), unhealthy(1)),
        ("its pods cannot be counted", web(), uncounted(), Some(failed)),
        ("one of it that has not begun", PodFacts { pending: true, ..web() }, uncounted(), None),
        ("one may go", web(), budget(2, 3), None),
        ("a budget of no pods is ignored", web(), budget(0, 0), None),
        ("a pod that has not begun", PodFacts { pending: true, ..web() }, budget(3, 3), None),
        ("a pod of another client", PodFacts { namespace: "other".into(), ..web() }, budget(3, 3), None),
        ("a pod that the budget does not select", PodFacts { labels: Arc::default(), ..web() }, budget(3, 3), None),
        ("a pod that is not Ready, and the budget guards it", sick.clone(), broken(2, 3), unhealthy(1)),
        ("a pod that is not Ready beside enough healthy ones", sick.clone(), broken(2, 2), None),
        ("a pod that is not Ready, and the budget lets it go", sick, lenient(), None),
    ] {
        assert_eq!(refusal_by(pod, vec![budget], AtDeadline::Release), expected, "{sentence}");
    }
}

#[test]
fn pod_that_does_not_end_is_reported_unless_policy_leaves_it_to_the_reboot() {
    let second = |second| Some(crate::fixtures::t(second));
    let dying = |ends_by| PodFacts { terminating: true, ends_by, ..pod("a", false) };
    let refused = Some(Obstacle::Refused(Wait::PodsTerminating { pod: "shop/p-a".into(), count: 1 }));
    let (daemon_set, daemon_set_state) = (Some("log".into()), DaemonSetState::There);
    let of_a_set = PodFacts { daemon_set, daemon_set_state, ..dying(second(-60)) };
    for (sentence, pod, skips, expected) in [
        ("it runs", pod("a", false), false, None),
        ("a minute after its grace period", dying(second(-60)), false, refused),
        ("it has a second left", dying(second(-59)), false, None),
        ("policy leaves it to the reboot", dying(second(-60)), true, None),
        ("its containers have ended", PodFacts { finished: true, ..dying(second(-60)) }, false, None),
        ("of a DaemonSet", of_a_set, false, None),
    ] {
        let wait = refusal_of(before_drain, |view, policy| {
            view.nodes.get_mut("a").unwrap().pods = Some(vec![pod.clone()]);
            policy.all.drain.skip_terminating_after = skips.then_some(Duration::ZERO);
        });
        assert_eq!(wait, expected, "{sentence}");
    }
}

/// A drain may take half an hour. Databases ask for a week, and mostly end in a minute.
#[test]
fn pod_that_has_not_ended_in_the_time_of_a_drain_is_reported_unless_it_has_to_end_in_that_of_the_next() {
    const WEEK: i64 = 7 * 24 * 3600;
    let dying = |since: i64, grace: i64| PodFacts {
        terminating: true,
        grace: Some(grace),
        ends_by: Some(t(grace - since)),
        ..pod("a", false)
    };
    let (releases, forces) = (AtDeadline::Release, AtDeadline::Force);
    let finished = PodFacts { finished: true, ..dying(1800, WEEK) };
    for (sentence, pod, at_deadline, skips, refused) in [
        ("it was deleted lately", dying(1799, WEEK), releases, false, false),
        ("it has hung for half an hour", dying(1800, WEEK), releases, false, true),
        ("it has to end in half an hour", dying(1800, 3600), releases, false, false),
        ("it has a second more", dying(1800, 3601), releases, false, true),
        ("it has to end before a forced drain does", dying(1800, 5400), forces, false, false),
        ("it outlasts a forced drain, too", dying(1800, 5401), forces, false, true),
        ("policy leaves it to the reboot later than that", dying(1800, WEEK), releases, true, true),
        ("its containers have ended", finished, releases, false, false),
    ] {
        let refusal = refusal_of(before_drain, |view, policy| {
            view.nodes.get_mut("a").unwrap().pods = Some(vec![pod]);
            policy.all.drain.at_deadline = at_deadline;
            policy.all.drain.skip_terminating_after = skips.then_some(Duration::ZERO);
        });
        let found = refusal.map(|obstacle| obstacle.into_wait().as_str());
        assert_eq!(found, refused.then_some("PodsTerminating"), "{sentence}");
    }
}

#[test]
fn multiple_pdbs_for_one_pod_are_reported() {
    let second = || BudgetFacts { name: "all".into(), allows_unhealthy: true, ..budget(1, 3) };
    let names = ["shop/all", "shop/web"].map(str::to_owned).to_vec();
    let refused = Some(Wait::MultipleBudgets { pod: "shop/p-a".into(), budgets: names });
    for (sentence, pod, second, expected) in [
        ("both would let it go", web(), second(), refused.clone()),
        ("a pod that is not Ready", PodFacts { ready: false, ..web() }, second(), refused),
        ("a pod that has not begun", PodFacts { pending: true, ..web() }, second(), None),
        ("one of another namespace", web(), BudgetFacts { namespace: "bank".into(), ..second() }, None),
        ("one that selects nothing", web(), BudgetFacts { selector: None, ..second() }, None),
    ] {
        assert_eq!(refusal_by(pod, vec![budget(2, 3), second], AtDeadline::Release), expected, "{sentence}");
    }
}

#[test]
fn pdb_that_never_allows_disruption_blocks_no_forced_drain_unless_policy_waits_for_guarded_pods() {
    let never = || budget(3, 3);
    let (asks, waits) = (GuardedPods::Ask, GuardedPods::Wait);
    for (sentence, at_deadline, guarded_pods, drill, budget, refused) in [
        ("a drain that is not forced", AtDeadline::Release, waits, None, never(), true),
        ("a forced one", AtDeadline::Force, asks, None, never(), false),
        ("a forced one, and policy waits", AtDeadline::Force, waits, None, never(), true),
        ("a drill with evictions, which deletes nothing", AtDeadline::Force, waits, Some("1 evict"), never(), true),
        ("a dry one", AtDeadline::Force, asks, Some("1"), never(), false),
        ("a dry one, and policy waits", AtDeadline::Force, waits, Some("1"), never(), true),
    ] {
        let refusal = refusal_of(before_drain, |view, policy| {
            view.budgets = vec![budget];
            let node = view.nodes.get_mut("a").unwrap();
            node.pods = Some(vec![web()]);
            node.shadow.as_mut().unwrap().drill = drill.map(str::to_owned);
            (policy.all.drain.guarded_pods, policy.all.drain.at_deadline) = (guarded_pods, at_deadline);
        });
        let found = refusal.map(|obstacle| obstacle.into_wait().as_str());
        assert_eq!(found, refused.then_some("BudgetNeverAllows"), "{sentence}");
    }
}

#[test]
fn forced_drain_waits_for_budgets_that_are_broken_or_not_counted_where_policy_waits_for_guarded_pods() {
    let lets_go = || budget(2, 3);
    let stale = || BudgetFacts { stale: true, ..lets_go() };
    let failed = BudgetFacts { sync_error: Some("no scale".into()), allowed: 0, ..lets_go() };
    let all = BudgetFacts { name: "all".into(), ..lets_go() };
    let broken = BudgetFacts { healthy: 2, allowed: 0, ..lets_go() };
    let sick = || PodFacts { ready: false, ..web() };
    let case = |sentence: &str, pod: PodFacts, budgets: Vec<BudgetFacts>, refused: Option<&str>| {
        let found = refusal_by(pod, budgets, AtDeadline::Force).map(|wait| wait.as_str());
        assert_eq!(found, refused, "{sentence}");
    };
    case("it lets the pod go", web(), vec![lets_go()], None);
    case("a pod is broken", web(), vec![broken], Some("BudgetUnhealthy"));
    case("its numbers are of an earlier spec", web(), vec![stale()], Some("BudgetSyncFailed"));
    case("it has counted no pods", web(), vec![budget(0, 0)], Some("BudgetSyncFailed"));
    case("its pods cannot be counted", web(), vec![failed], Some("BudgetSyncFailed"));
    case("another one selects the pod", web(), vec![lets_go(), all], Some("MultipleBudgets"));
    case("a broken pod, whatever its numbers are", sick(), vec![stale()], Some("BudgetSyncFailed"));
    let lenient = BudgetFacts { allows_unhealthy: true, ..stale() };
    case("a broken pod that it lets go, whatever its numbers are", sick(), vec![lenient], None);
    case("a pod that has not begun", PodFacts { pending: true, ..web() }, vec![stale()], None);
    case("a static pod, which is not deleted", PodFacts { mirror: true, ..web() }, vec![stale()], None);
}

#[test]
fn budget_that_counts_no_pods_without_a_controller_keeps_their_node_from_a_drain_in_vain() {
    let bare = || PodFacts { controller_uid: None, ..web() };
    let none = || budget(0, 0);
    let lenient = || BudgetFacts { allows_unhealthy: true, ..none() };
    for (sentence, pod, budget, refused) in [
        ("with maxUnavailable or a percentage", bare(), none(), true),
        ("minAvailable is a number", bare(), budget(1, 2), false),
        ("its numbers are of an earlier spec", bare(), BudgetFacts { stale: true, ..none() }, false),
        ("a pod with a controller, which is counted in a moment", web(), none(), false),
        ("a pod that has not begun", PodFacts { pending: true, ..bare() }, none(), false),
        ("a broken pod that it lets go", PodFacts { ready: false, ..bare() }, lenient(), false),
    ] {
        let refusal = refusal_of(before_drain, |view, policy| {
            view.budgets = vec![budget];
            view.nodes.get_mut("a").unwrap().pods = Some(vec![pod]);
            policy.all.drain.rules.bare_pods = PodsAtRisk::Evict;
        });
        let found = refusal.map(|obstacle| obstacle.into_wait().as_str());
        assert_eq!(found, refused.then_some("BudgetSyncFailed"), "{sentence}");
    }
}

#[test]
fn budget_over_a_static_pod_keeps_its_node_from_the_reboot_that_ends_it() {
    let member = || PodFacts { mirror: true, ..web() };
    let names = || ("shop/p-a".to_owned(), "shop/web".to_owned());
    let (pod, budget_name) = names();
    let unhealthy = Wait::BudgetUnhealthy { pod, budget: budget_name, count: 1, eviction: None };
    let (pod, budget_name) = names();
    let never = Wait::BudgetNeverAllows { pod, budget: budget_name, until: None, by_reboot: true };
    let broken = || BudgetFacts { healthy: 2, allowed: 0, ..budget(2, 3) };
    for (sentence, pod, budget, expected) in [
        ("one of three members may be away", member(), budget(2, 3), None),
        ("another member is broken", member(), broken(), Some(unhealthy)),
        ("the broken member is this one", PodFacts { ready: false, ..member() }, broken(), None),
        ("none may ever be away", member(), budget(3, 3), Some(never)),
    ] {
        // Policy asks pods that can move, and may delete what does not.
        for at_deadline in [AtDeadline::Release, AtDeadline::Force] {
            let refusal = refusal_of(before_drain, |view, policy| {
                view.budgets = vec![budget.clone()];
                view.nodes.get_mut("a").unwrap().pods = Some(vec![pod.clone()]);
                policy.all.drain.at_deadline = at_deadline;
            });
            assert_eq!(refusal.map(Obstacle::into_wait), expected, "{sentence}, {at_deadline:?}");
        }
    }
}

#[test]
fn marked_pods_are_waited_for_where_policy_says_so_for_all_or_for_a_group() {
    let refused = || Some(Obstacle::Refused(Wait::MarkedPods { pod: "shop/p-a".into(), count: 1 }));
    let marked = || PodFacts { marked: true, ..pod("a", false) };
    let (waits, evicts) = (json!({"markedPods": "Wait"}), json!({"markedPods": "Evict"}));
    let group = |drain: &Value| json!([{"name": "ci", "selector": {}, "drain": drain}]);
    let of_a_set = || PodFacts { daemon_set: Some("log".into()), daemon_set_state: DaemonSetState::There, ..marked() };
    for (sentence, pod, spec, expected) in [
        ("by default they are evicted", marked(), json!({}), None),
        ("policy waits", marked(), json!({"drain": waits}), refused()),
        ("no mark", pod("a", false), json!({"drain": waits}), None),
        ("it has ended", PodFacts { finished: true, ..marked() }, json!({"drain": waits}), None),
        ("of a DaemonSet", of_a_set(), json!({"drain": waits}), None),
        ("the group waits", marked(), json!({"nodeGroups": group(&waits)}), refused()),
        ("the group evicts", marked(), json!({"drain": waits, "nodeGroups": group(&evicts)}), None),
    ] {
        let wait = refusal_of(before_drain, |view, policy| {
            view.nodes.get_mut("a").unwrap().pods = Some(vec![pod]);
            *policy = crate::fixtures::with_policy(view, spec);
        });
        assert_eq!(wait, expected, "{sentence}");
    }
}

#[test]
fn pods_not_ready_are_counted_except_finished_and_terminating_ones() {
    let ready = PodFacts { ready: true, ..pod("a", false) };
    let refused = |count| Some(Wait::PodsNotReady { pod: "shop/p-a".into(), count });
    for (sentence, pods, expected) in [
        ("no pods", vec![], None),
        ("all Ready", vec![ready.clone()], None),
        ("one is not", vec![ready, pod("a", false)], refused(1)),
        ("a finished one does not count", vec![PodFacts { finished: true, ..pod("a", false) }], None),
        ("one on its way out does not count", vec![PodFacts { terminating: true, ..pod("a", false) }], None),
    ] {
        assert_eq!(not_ready(&pods), expected, "{sentence}");
    }
}

#[test]
fn drain_waits_until_daemon_sets_are_read() {
    let of_a_set = |is| PodFacts { daemon_set: Some("log".into()), daemon_set_state: is, ..pod("a", false) };
    let unread = Wait::DrainRefused { why: Refusal::Unread, pod: "shop/p-a".into(), count: 1 };
    for (is, expected) in [
        (DaemonSetState::Unknown, Some(Obstacle::Unknown(Wait::ReadingPods))),
        (DaemonSetState::Unreadable, Some(Obstacle::Refused(unread))),
        (DaemonSetState::There, None),
    ] {
        let wait = refusal_of(before_drain, |view, _| {
            view.nodes.get_mut("a").unwrap().pods = Some(vec![of_a_set(is)]);
        });
        assert_eq!(wait, expected, "{is:?}");
    }
}
