//! Pods that a PodDisruptionBudget guards: it allows no disruption although all its pods are healthy.

use std::sync::Arc;

use kube::core::{Expression, Selector};
use models::operator::BudgetBackOff;
use models::shadow::{AttemptResult, HostState, Record, Step};
use serde_json::{Value, json};

use super::drain::names;
use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, deadlines, plan};
use crate::policy::Policy;
use crate::view::{BudgetFacts, COMPARED, ClusterView, InFlight, PodFacts, Refused};
use crate::wait::Wait;

/// A budget over the pods with this name as their label, which has so many and lets none go.
pub(super) fn guard(name: &str, pods: i32) -> BudgetFacts {
    BudgetFacts {
        namespace: "shop".into(),
        name: name.into(),
        revision: format!("{name}/1"),
        healthy: pods,
        desired: pods,
        expected: pods,
        selector: Some(Selector::from_iter([Expression::Equal("app".into(), name.into())])),
        ..BudgetFacts::default()
    }
}

pub(super) fn pod_of(app: &str, name: &str) -> PodFacts {
    PodFacts {
        labels: Arc::new([("app".to_owned(), app.to_owned())].into()),
        name: name.into(),
        uid: name.into(),
        ready: true,
        ..pod("a", false)
    }
}

fn budget<'v>(view: &'v mut ClusterView, name: &str) -> &'v mut BudgetFacts {
    view.budgets.iter_mut().find(|budget| budget.name == name).unwrap()
}

fn pods(view: &mut ClusterView) -> &mut Vec<PodFacts> {
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()
}

/// Has the API server refuse the eviction of a pod of node `a`, for a budget or for another reason.
fn refuses(view: &mut ClusterView, name: &str, budget: Option<&str>) {
    view.nodes.get_mut("a").unwrap().blocked.insert(name.to_owned(), answer(budget, 1, false));
}

/// Lets a pod of node `a` end, as after its eviction.
pub(super) fn leaves(view: &mut ClusterView, name: &str) {
    pods(view).retain(|pod| pod.name != name);
}

pub(super) fn asked(made: &Plan) -> Vec<&str> {
    made.evictions.get("a").map(|evictions| names(&evictions.pods)).unwrap_or_default()
}

/// Node `a` at the beginning of its drain, at 0 s, with these pods under these budgets.
pub(super) fn drain_of(spec: Value, on_node: Vec<PodFacts>, budgets: Vec<BudgetFacts>) -> (ClusterView, Policy) {
    drain_after(None, spec, on_node, budgets)
}

/// The same after earlier attempts, of which the node has this record.
pub(super) fn drain_after(
    record: Option<Record>,
    spec: Value,
    on_node: Vec<PodFacts>,
    budgets: Vec<BudgetFacts>,
) -> (ClusterView, Policy) {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.shadow.as_mut().unwrap().status.controller.record = record;
    staged.pods = Some(on_node);
    let (mut view, _) = cluster(vec![staged], &["a"]);
    view.budgets = budgets;
    let policy = with_policy(&mut view, spec);
    write_due(&mut view, &policy, 0);
    let facts = &mut view.nodes.get_mut("a").unwrap().facts;
    (facts.claims, facts.unschedulable) = (ClaimFields::USUAL, true);
    (view, policy)
}

/// Plans, and carries out what is written about node `a`, until nothing is. Returns the last plan.
pub(super) fn settle(view: &mut ClusterView, policy: &Policy, now: i64) -> Plan {
    for _ in 0..10 {
        let made = plan(view, policy, t(now));
        view.operator.as_mut().unwrap().status = made.status.clone().unwrap();
        let Some(action @ Action::Status { .. }) = made.actions.get("a") else { return made };
        written(view, action);
    }
    panic!("written again and again");
}

pub(super) fn record(view: &ClusterView) -> &Record {
    view.nodes["a"].record().unwrap()
}

#[test]
fn guarded_pods_are_asked_first_and_alone_until_they_have_left() {
    let critical = PodFacts { critical: true, ..pod_of("dns", "dns-0") };
    let on_node = vec![critical, pod_of("web", "web-0"), pod_of("db", "db-0")];
    let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("db", 1)]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0"]);
    // Whatever runs the pod has seen the cordon. The replacement is not Ready yet.
    (budget(&mut view, "db").allowed, budget(&mut view, "db").desired) = (1, 0);
    assert_eq!(asked(&settle(&mut view, &policy, 2)), ["db-0"], "they stay those that are asked first");
    let leaving = pods(&mut view).iter_mut().find(|pod| pod.name == "db-0").unwrap();
    (leaving.terminating, leaving.ends_by) = (true, Some(t(60)));
    budget(&mut view, "db").healthy = 0;
    assert!(asked(&settle(&mut view, &policy, 3)).is_empty());
    leaves(&mut view, "db-0");
    assert_eq!(asked(&settle(&mut view, &policy, 30)), ["web-0"]);
    leaves(&mut view, "web-0");
    assert_eq!(asked(&settle(&mut view, &policy, 31)), ["dns-0"], "critical add-ons last");
}

#[test]
fn node_is_released_when_guarded_pods_stay_and_only_their_budget_backs_off() {
    let on_node = vec![pod_of("web", "web-0"), pod_of("db", "db-0")];
    let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("db", 1)]);
    let made = settle(&mut view, &policy, 599);
    assert_eq!((asked(&made), made.wake), (vec!["db-0"], Some(t(600))));
    refuses(&mut view, "db-0", Some("shop/db"));
    assert_eq!(outcome(&plan(&view, &policy, t(600))), "GuardedPodsStayed");
    settle(&mut view, &policy, 600);
    assert_eq!((record(&view).failures, record(&view).not_before), (0, None), "it counts as no failure of the node");
    let back_off = |times, last: i64, until: i64| BudgetBackOff {
        budget: "shop/db".into(),
        revision: "db/1".into(),
        times,
        last: t(last),
        until: t(until),
    };
    let status = |view: &ClusterView| view.operator.as_ref().unwrap().status.clone();
    assert_eq!(status(&view).budget_back_offs, [back_off(1, 600, 4200)]);
    let ledgers = status(&view).active_rollouts.into_iter().filter_map(|rollout| rollout.ledger);
    assert!(ledgers.into_iter().all(|ledger| ledger.row.is_empty() && ledger.used() == 0), "it brakes nothing");
    // Each time that they stay again it is twice as long, up to a day.
    for (times, until) in [(2, 2), (3, 4), (5, 16), (6, 24), (60, 24)] {
        let mut view = view.clone();
        view.operator.as_mut().unwrap().status.budget_back_offs = vec![back_off(times - 1, 0, 10)];
        let hours = (plan(&view, &policy, t(600)).status.unwrap().budget_back_offs[0].until - t(600)).get_seconds();
        assert_eq!(hours, until * 3600, "{times} times");
    }
    // Without the node it is known all the same.
    view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.record = None;
    assert_eq!(plan(&view, &policy, t(601)).status.unwrap().budget_back_offs, [back_off(1, 600, 4200)]);
    view.budgets[0].revision = "db/2".into();
    assert_eq!(plan(&view, &policy, t(601)).status.unwrap().budget_back_offs, [], "the budget has changed");
}

#[test]
fn back_off_of_a_budget_grows_although_no_pod_is_watched_between_two_attempts() {
    let (mut begun, policy) = drain_of(json!({}), vec![pod_of("db", "db-0")], vec![guard("db", 1)]);
    refuses(&mut begun, "db-0", Some("shop/db"));
    let mut back_offs = Vec::new();
    for times in 1..=3 {
        let mut view = begun.clone();
        view.operator.as_mut().unwrap().status.budget_back_offs = back_offs;
        shadow(&mut view).status.controller.progress.as_mut().unwrap().since = t(10_000 * times);
        settle(&mut view, &policy, 10_000 * times + 600);
        assert_eq!(record(&view).last.as_ref().unwrap().reason, "GuardedPodsStayed");
        view.nodes.get_mut("a").unwrap().pods = None;
        let mut budgets = std::mem::take(&mut view.budgets);
        let shown = view.budgets_in_back_off();
        budgets.retain(|budget| shown.contains(&(budget.namespace.as_str(), budget.name.as_str())));
        view.budgets = budgets;
        settle(&mut view, &policy, 10_000 * times + 601);
        back_offs = view.operator.as_ref().unwrap().status.budget_back_offs.clone();
        assert_eq!(back_offs.iter().map(|back_off| back_off.times).collect::<Vec<_>>(), [times]);
    }
}

#[test]
fn back_off_of_a_budget_is_over_once_a_pod_that_was_asked_has_left() {
    let (mut view, policy) = drain_of(json!({}), vec![pod_of("db", "db-0")], vec![guard("db", 1)]);
    let (budget, revision) = ("shop/db".to_owned(), "db/1".to_owned());
    let back_off = BudgetBackOff { budget, revision, times: 3, last: t(-4000), until: t(-1) };
    view.operator.as_mut().unwrap().status.budget_back_offs = vec![back_off.clone()];
    settle(&mut view, &policy, 1);
    let recorded = |view: &ClusterView| view.operator.as_ref().unwrap().status.budget_back_offs.clone();
    assert_eq!(recorded(&view), [back_off], "it is asked again");
    leaves(&mut view, "db-0");
    settle(&mut view, &policy, 2);
    assert_eq!(recorded(&view), [], "the next stay is the first one in a row");
}

#[test]
fn node_waits_before_its_cordon_while_a_budget_is_in_back_off() {
    let wait =
        |until| Wait::BudgetNeverAllows { pod: "shop/db-0".into(), budget: "shop/db".into(), until, by_reboot: false };
    let ask = json!({});
    let group = json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "drain": {"guardedPods": "Wait"}}]);
    let forced_group = json!({"drain": {"atDeadline": "Force"}, "nodeGroups": group});
    for (sentence, spec, back_off, now, expected) in [
        ("it was never asked", ask.clone(), None, 0, None),
        ("it refused", ask.clone(), Some(("db/1", 100)), 99, Some(wait(Some(t(100))))),
        ("the time is over", ask.clone(), Some(("db/1", 100)), 100, None),
        ("the budget has changed since", ask.clone(), Some(("db/0", 100)), 0, None),
        ("policy waits", json!({"drain": {"guardedPods": "Wait"}}), None, 0, Some(wait(None))),
        ("policy waits, and it refused before", json!({"drain": {"guardedPods": "Wait"}}), Some(("db/1", 100)), 0, {
            Some(wait(None))
        }),
        ("policy of its group waits", json!({"nodeGroups": group}), None, 0, Some(wait(None))),
        ("policy of its group waits, and that of all deletes what stays", forced_group, None, 0, Some(wait(None))),
        ("policy deletes what stays", json!({"drain": {"atDeadline": "Force"}}), Some(("db/1", 100)), 0, None),
    ] {
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        staged.facts.labels = Arc::new([("tier".to_owned(), "db".to_owned())].into());
        staged.pods = Some(vec![pod_of("db", "db-0")]);
        let (mut view, _) = cluster(vec![staged], &[]);
        view.budgets = vec![guard("db", 1)];
        let policy = with_policy(&mut view, spec);
        let back_off = back_off.map(|(revision, until)| BudgetBackOff {
            budget: "shop/db".into(),
            revision: revision.into(),
            times: 1,
            last: t(0),
            until: t(until),
        });
        view.operator.as_mut().unwrap().status.budget_back_offs.extend(back_off);
        let made = plan(&view, &policy, t(now));
        assert_eq!(made.refused.get("a"), expected.as_ref(), "{sentence}: {:?}", made.waits);
        assert_eq!(made.slots.is_some(), expected.is_none(), "{sentence}");
    }
}

/// Eight virtual machines that move one after the other.
#[test]
fn time_of_guarded_pods_counts_from_the_last_one_that_goes() {
    let on_node = (0..8).map(|number| pod_of("vm", &format!("vm-{number}"))).chain([pod_of("web", "web-0")]).collect();
    let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("vm", 8)]);
    for number in 0..8 {
        let now = 1 + 90 * number;
        assert_eq!(asked(&settle(&mut view, &policy, now)).len(), 1, "one request at a time for a budget");
        leaves(&mut view, &format!("vm-{number}"));
    }
    assert_eq!(asked(&settle(&mut view, &policy, 8 * 90)), ["web-0"]);
    // The last of them stays: ten minutes from the last but one.
    let on_node = vec![pod_of("vm", "vm-0"), pod_of("vm", "vm-1")];
    let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("vm", 2)]);
    settle(&mut view, &policy, 1);
    leaves(&mut view, "vm-0");
    settle(&mut view, &policy, 500);
    assert_eq!(outcome(&plan(&view, &policy, t(1099))), "Draining");
    assert_eq!(outcome(&plan(&view, &policy, t(1100))), "GuardedPodsStayed");
}

#[test]
fn of_two_budgets_the_one_that_opens_does_not_back_off_and_no_other_pod_moves() {
    let on_node = vec![pod_of("db", "db-0"), pod_of("mq", "mq-0"), pod_of("web", "web-0")];
    let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("db", 1), guard("mq", 1)]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0", "mq-0"]);
    leaves(&mut view, "db-0");
    assert_eq!(asked(&settle(&mut view, &policy, 100)), ["mq-0"]);
    refuses(&mut view, "mq-0", Some("shop/mq"));
    settle(&mut view, &policy, 700);
    assert_eq!(record(&view).last.as_ref().unwrap().reason, "GuardedPodsStayed");
    let budgets: Vec<_> = record(&view).refusing_budgets.iter().map(|refusing| refusing.budget.as_str()).collect();
    assert_eq!(budgets, ["shop/mq"]);
    let message = &record(&view).last.as_ref().unwrap().message;
    assert!(message.ends_with("and no pod but those asked first was evicted"), "{message}");
}

/// The others of such a budget may go once all are healthy, here and on other nodes.
#[test]
fn budget_whose_pods_are_broken_when_the_guarded_ones_are_given_up_is_not_one_that_was_asked_in_vain() {
    let stays = |earlier: Option<Record>| {
        let on_node = vec![pod_of("db", "db-0"), pod_of("web", "web-0")];
        let (mut view, policy) = drain_after(earlier, json!({}), on_node, vec![guard("db", 2)]);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0"]);
        budget(&mut view, "db").healthy = 1;
        settle(&mut view, &policy, 600);
        view
    };
    let view = stays(None);
    let ended = record(&view);
    let last = ended.last.as_ref().unwrap();
    assert_eq!(last.reason, "GuardedPodsStayed");
    assert_eq!(ended.refusing_budgets, []);
    let message = &last.message;
    assert!(message.contains("shop/db allow no disruption while pods of them are not healthy"), "{message}");
    assert!(!message.contains("although they were asked"), "{message}");
    assert_eq!((ended.failures, ended.not_before), (0, Some(t(1200))), "the node backs off in its place");
    assert_eq!(view.operator.as_ref().unwrap().status.budget_back_offs, []);
    for (earlier, expected) in [(600, 1200), (1200, 2400), (80_000, 86_400)] {
        let last = AttemptResult { attempt: 0, ended: t(-100_000), ..last.clone() };
        let not_before = Some(t(earlier - 100_000));
        let view = stays(Some(Record { last: Some(last), not_before, ..Record::default() }));
        assert_eq!(record(&view).not_before, Some(t(600 + expected)), "after {earlier} s");
    }
    let other = AttemptResult { attempt: 0, reason: "DrainTimedOut".into(), ended: t(-100_000), ..last.clone() };
    let view = stays(Some(Record { last: Some(other), not_before: Some(t(-98_800)), ..Record::default() }));
    assert_eq!(record(&view).not_before, Some(t(1200)), "after another end");
}

#[test]
fn node_backs_off_in_place_of_a_budget_that_did_not_refuse_the_last_eviction() {
    for (sentence, budget, answer) in [
        ("it refused", Some("shop/db"), None),
        ("a webhook fails", None, Some("shop/db-0 does not leave the node: not now")),
        ("another budget refused", Some("shop/all"), Some("shop/all allows no disruption of shop/db-0")),
    ] {
        let expected = answer.is_none();
        for leader_changes in [false, true] {
            let on_node = vec![pod_of("db", "db-0"), pod_of("web", "web-0")];
            let (mut view, policy) = drain_of(json!({}), on_node, vec![guard("db", 1)]);
            refuses(&mut view, "db-0", budget);
            settle(&mut view, &policy, 599);
            if leader_changes {
                view.nodes.get_mut("a").unwrap().blocked.clear();
            }
            settle(&mut view, &policy, 600);
            let ended = record(&view);
            let last = ended.last.as_ref().unwrap();
            assert_eq!(last.reason, "GuardedPodsStayed", "{sentence}");
            assert_eq!(ended.refusing_budgets.len(), usize::from(expected), "{sentence}, {leader_changes}");
            assert_eq!(ended.not_before, (!expected).then(|| t(1200)), "{sentence}, {leader_changes}");
            let message = &last.message;
            assert_eq!(message.contains("although they were asked"), expected, "{sentence}: {message}");
            assert!(answer.is_none_or(|answer| message.contains(answer)), "{sentence}, with the answer: {message}");
        }
    }
}

#[test]
fn time_of_guarded_pods_begins_with_the_claim_and_no_budget_is_blamed_before() {
    for (sentence, claims, cordoned) in [
        ("the cordon is missing", ClaimFields::default(), false),
        ("another field is missing", ClaimFields::CORDON, true),
    ] {
        let (mut view, policy) = drain_of(json!({}), vec![pod_of("db", "db-0")], vec![guard("db", 1)]);
        let facts = &mut view.nodes.get_mut("a").unwrap().facts;
        (facts.claims, facts.unschedulable) = (claims, cordoned);
        let made = settle(&mut view, &policy, 600);
        assert!(matches!(made.actions.get("a"), Some(Action::Claim { .. })), "{sentence}: {made:?}");
        let facts = &mut view.nodes.get_mut("a").unwrap().facts;
        (facts.claims, facts.unschedulable, facts.claimed_since) = (ClaimFields::USUAL, true, Some(t(700)));
        assert_eq!(asked(&settle(&mut view, &policy, 1299)), ["db-0"], "{sentence}");
        settle(&mut view, &policy, 1300);
        let ended = record(&view);
        assert_eq!(ended.last.as_ref().unwrap().reason, "GuardedPodsStayed", "{sentence}");
        assert_eq!(ended.refusing_budgets, [], "{sentence}: none has answered");
    }
}

/// Databases set a grace period of days, and end in a minute: the budget lets one go after the other.
#[test]
fn pods_that_are_asked_first_for_their_grace_period_alone_are_no_guarded_ones() {
    let with_grace = |name| PodFacts { grace: Some(604_800), ..pod_of("db", name) };
    let on_node = vec![with_grace("db-0"), with_grace("db-1"), pod_of("web", "web-0")];
    let healthy = BudgetFacts { allowed: 1, desired: 1, ..guard("db", 2) };
    let (mut view, policy) = drain_of(json!({}), on_node, vec![healthy]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)).len(), 1);
    leaves(&mut view, "db-0");
    // Its volume is on the node, so that it starts nowhere else.
    *budget(&mut view, "db") = BudgetFacts { healthy: 1, ..guard("db", 2) };
    settle(&mut view, &policy, 2);
    assert_eq!(outcome(&plan(&view, &policy, t(1799))), "Draining");
    settle(&mut view, &policy, 1800);
    let record = record(&view);
    assert_eq!(record.last.as_ref().unwrap().reason, "DrainTimedOut");
    assert!(record.not_before.is_some() && record.refusing_budgets.is_empty(), "{record:?}");
}

#[test]
fn pods_are_guarded_only_by_budgets_of_healthy_pods_when_the_drain_begins() {
    for (sentence, change, expected) in [
        ("it guards", (|_| {}) as fn(&mut BudgetFacts), vec!["db-0"]),
        ("it lets one go", |budget| budget.allowed = 1, vec!["db-0", "web-0"]),
        ("its numbers are of an earlier spec", |budget| budget.stale = true, vec!["db-0", "web-0"]),
    ] {
        let mut at_first = guard("db", 1);
        change(&mut at_first);
        let on_node = vec![pod_of("db", "db-0"), pod_of("web", "web-0")];
        let (mut view, policy) = drain_of(json!({}), on_node, vec![at_first]);
        // What happens later changes nothing about it.
        *budget(&mut view, "db") = guard("db", 1);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), expected, "{sentence}");
    }
}

#[test]
fn other_pods_follow_after_the_guarded_timeout_where_policy_forces() {
    let on_node = vec![pod_of("db", "db-0"), pod_of("web", "web-0")];
    let (mut view, policy) = drain_of(json!({"drain": {"atDeadline": "Force"}}), on_node, vec![guard("db", 1)]);
    assert_eq!(asked(&settle(&mut view, &policy, 599)), ["db-0"]);
    assert_eq!(asked(&settle(&mut view, &policy, 600)), ["db-0", "web-0"]);
}

#[test]
fn nodes_without_guarded_pods_go_first() {
    for (sentence, second, expected) in [
        ("another is staged", Some(Step::Staged), "GuardedPods"),
        ("another is still being staged", Some(Step::Staging), "Queued"),
        ("another is idle", None, "Queued"),
    ] {
        let mut nodes = vec![at("a", Step::Staged, 0, HostState::StagedUpdate)];
        nodes[0].pods = Some(vec![pod_of("db", "db-0")]);
        nodes.push(second.map_or_else(|| node("b"), |step| at("b", step, 0, HostState::StagedUpdate)));
        if second == Some(Step::Staging) {
            nodes[1].shadow.as_mut().unwrap().status.agent.state = Some(HostState::Idle);
        }
        let (mut view, policy) = cluster(nodes, &[]);
        view.budgets = vec![guard("db", 1)];
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.waits.get("a").map(Wait::as_str), Some(expected), "{sentence}: {:?}", made.actions);
        let given: Vec<_> = made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect();
        let first = match second {
            Some(Step::Staged) => vec!["b"],
            Some(_) | None => vec!["a"],
        };
        assert_eq!(given, first, "{sentence}");
    }
}

#[test]
fn node_with_guarded_pods_waits_only_for_as_many_others_as_can_go_in_its_place() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, most: u32, given: &[&str], change: Change| {
        let mut nodes = ["a", "b"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        nodes[0].pods = Some(vec![pod_of("db", "db-0")]);
        let (mut view, _) = cluster(nodes.into(), &[]);
        view.budgets = vec![guard("db", 1)];
        change(&mut view);
        let policy = with_policy(&mut view, json!({"maxUnavailable": most}));
        let made = plan(&view, &policy, t(1));
        let found: Vec<_> = made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect();
        assert_eq!(found, given, "{sentence}: {:?}", made.waits);
    };
    case("there is room for one", 1, &["b"], one_proven);
    case("there is room for both", 2, &["a", "b"], one_proven);
    case("there is, and the first node of the rollout goes alone", 2, &["b"], |_| {});
    case("the other one was refused a moment ago", 1, &["a"], |view| {
        one_proven(view);
        let wait = Wait::PodsNotReady { pod: "shop/web".into(), count: 1 };
        view.nodes.get_mut("b").unwrap().refused = Some(Refused { wait, again_at: t(60) });
    });
    case("the first node of the rollout of the other one goes alone", 2, &["c", "a"], |view| {
        one_proven(view);
        let arm = |node: &mut crate::view::NodeView| {
            node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        };
        arm(view.nodes.get_mut("b").unwrap());
        let mut first = at("c", Step::Draining, 0, HostState::StagedUpdate);
        arm(&mut first);
        let (others, _) = cluster(vec![first], &["c"]);
        view.nodes.extend(others.nodes);
        view.operator.as_mut().unwrap().status.slots = others.operator.unwrap().status.slots;
    });
}

#[test]
fn one_plan_hands_out_what_a_budget_allows_and_one_node_waits_for_more() {
    let web = |node: &str| PodFacts {
        node: node.into(),
        uid: format!("web-{node}"),
        ..pod_of("web", &format!("web-{node}"))
    };
    let budget = |allowed| BudgetFacts { allowed, desired: 5 - allowed, ..guard("web", 5) };
    for (sentence, allowed, draining, expected) in [
        ("one disruption: one node, and one that waits", 1, 0, vec!["a", "b"]),
        ("two disruptions", 2, 0, vec!["a", "b", "c"]),
        ("one of them is taken by a drain under way", 2, 1, vec!["a", "b", "c"]),
        ("more than that are", 1, 2, vec!["a", "b"]),
        ("all may go", 5, 0, vec!["a", "b", "c", "d", "e"]),
    ] {
        let nodes = ["a", "b", "c", "d", "e"].into_iter().enumerate().map(|(index, name)| {
            let step = if index < draining { Step::Draining } else { Step::Staged };
            let mut node = at(name, step, 0, HostState::StagedUpdate);
            node.pods = Some(vec![web(name)]);
            node
        });
        let held = ["a", "b"];
        let (mut view, _) = cluster(nodes.collect(), &held[..draining]);
        one_proven(&mut view);
        view.budgets = vec![budget(allowed)];
        let policy = with_policy(&mut view, json!({"maxUnavailable": 5}));
        let made = plan(&view, &policy, t(1));
        let slots = made.slots.as_ref().unwrap_or(&view.operator.as_ref().unwrap().status.slots);
        let given: Vec<_> = slots.iter().map(|slot| slot.node.as_str()).collect();
        assert_eq!(given, expected, "{sentence}");
        let waits: Vec<_> = made.waits.values().filter(|wait| matches!(wait, Wait::BudgetBusy { .. })).collect();
        assert_eq!(waits.len(), 5 - expected.len(), "{sentence}: {:?}", made.waits);
    }
}

#[test]
fn pods_are_compared_with_the_budgets_of_their_namespace_however_many_nodes_are_on_their_way() {
    let names: Vec<String> = (0..60).map(|number| format!("n{number:02}")).collect();
    let nodes = names.iter().enumerate().map(|(index, name)| {
        let step = if index < 30 { Step::Draining } else { Step::Staged };
        let mut node = at(name, step, 0, HostState::StagedUpdate);
        let pods = (0..10).map(|number| PodFacts {
            namespace: format!("ns-{}", (index + number) % 50),
            node: name.clone(),
            ..pod_of("web", &format!("{name}-{number}"))
        });
        node.pods = Some(pods.collect());
        node
    });
    let held: Vec<&str> = names[..30].iter().map(String::as_str).collect();
    let (mut view, _) = cluster(nodes.collect(), &held);
    one_proven(&mut view);
    let budget = |number: usize| BudgetFacts {
        namespace: format!("ns-{number}"),
        allowed: 100,
        desired: 1,
        ..guard("web", 200)
    };
    view.budgets = (0..50).map(budget).collect();
    let policy = with_policy(&mut view, json!({"maxUnavailable": 60}));
    let before = COMPARED.get();
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.slots.map(|slots| slots.len()), Some(60), "all may go: {:?}", made.waits);
    let compared = COMPARED.get() - before;
    assert!(compared <= 40 * 60 * 10, "{compared} comparisons for 600 pods, each of which one budget may select");
}

#[test]
fn nodes_without_pods_of_a_busy_budget_go_beside_it() {
    let nodes = ["a", "b", "c", "d"].into_iter().map(|name| {
        let mut node = at(name, Step::Staged, 0, HostState::StagedUpdate);
        let app = if name == "d" { "api" } else { "web" };
        node.pods = Some(vec![PodFacts { node: name.into(), uid: name.into(), ..pod_of(app, name) }]);
        node
    });
    let (mut view, _) = cluster(nodes.collect(), &[]);
    one_proven(&mut view);
    view.budgets = vec![BudgetFacts { allowed: 1, desired: 2, ..guard("web", 3) }];
    let policy = with_policy(&mut view, json!({"maxUnavailable": 4}));
    let made = plan(&view, &policy, t(1));
    let given: Vec<_> = made.slots.iter().flatten().map(|slot| slot.node.as_str()).collect();
    assert_eq!(given, ["a", "b", "d"]);
}

#[test]
fn pod_whose_grace_period_outlasts_the_drain_is_named_and_asked_first_and_alone() {
    let week = |own: i64, leaving: bool| PodFacts {
        grace: Some(own),
        terminating: leaving,
        ends_by: leaving.then(|| t(own)),
        ..pod_of("db", "db-0")
    };
    let minute = json!({"drain": {"gracePeriod": "1m"}});
    for (sentence, spec, db, first) in [
        ("a week", json!({}), week(604_800, false), vec!["db-0"]),
        ("a week, of which policy leaves a minute", minute, week(604_800, false), vec!["db-0", "web-0"]),
        ("as long as the drain", json!({}), week(1800, false), vec!["db-0", "web-0"]),
        ("it was deleted before", json!({}), week(604_800, true), vec![]),
        ("it was deleted before, and has as long as the drain", json!({}), week(1800, true), vec!["web-0"]),
    ] {
        let (mut view, policy) = drain_of(spec, vec![db, pod_of("web", "web-0")], vec![]);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), first, "{sentence}");
        leaves(&mut view, "db-0");
        assert_eq!(asked(&settle(&mut view, &policy, 2)), ["web-0"], "{sentence}: most end in a minute");
    }
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![week(604_800, false)]);
    let (view, policy) = cluster(vec![staged], &["a"]);
    let started = plan(&view, &policy, t(0)).actions.remove("a");
    let Some(Action::Status { note: Some(note), .. }) = started else { panic!("{started:?}") };
    let named = note.message.contains("shop/db-0 (a grace period of 168h)");
    assert!(note.reason == "UpdateStarted" && named, "{note:?}");
}

#[test]
fn pod_that_takes_long_to_end_is_named_while_others_wait_for_it_and_first_at_the_deadline() {
    let others = (0..3).map(|number| pod_of("api", &format!("api-{number}")));
    let on_node = others.chain([PodFacts { grace: Some(7200), ..pod_of("db", "db-0") }]).collect();
    let (mut view, policy) = drain_of(json!({}), on_node, vec![]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0"]);
    let leaving = pods(&mut view).iter_mut().find(|pod| pod.name == "db-0").unwrap();
    (leaving.terminating, leaving.ends_by) = (true, Some(t(7201)));
    let made = settle(&mut view, &policy, 2);
    assert_eq!(made.waits["a"].as_str(), "Draining", "many end at once");
    assert!(made.wake.is_some_and(|wake| wake <= t(32)), "{:?}", made.wake);
    let made = settle(&mut view, &policy, 32);
    let text = made.waits["a"].to_string();
    let until = format!("shop/db-0 does not leave the node: it is being deleted and has until {} to end", t(7201));
    assert_eq!(text, format!("{until}; 4 pod(s) left"));
    // Nothing waits for it any more.
    let mut alone = view.clone();
    pods(&mut alone).retain(|pod| pod.name == "db-0");
    assert_eq!(settle(&mut alone, &policy, 33).waits["a"].as_str(), "Draining");
    settle(&mut view, &policy, 1800);
    let message = &record(&view).last.as_ref().unwrap().message;
    let expected = format!("still on the node: shop/db-0, shop/api-0, shop/api-1 and 1 more; {until}; 4 pod(s) left");
    assert_eq!(*message, expected);
}

#[test]
fn pod_that_takes_long_to_end_is_not_named_while_the_others_are_asked_beside_it() {
    let long = |name| PodFacts { grace: Some(7200), ..pod_of("db", name) };
    for (sentence, other, sent) in [
        ("the other one takes as long, and is asked first as well", long("db-1"), None),
        (
            "the other one was asked a moment ago",
            pod_of("api", "db-1"),
            Some(InFlight { since: t(31), deletes: false }),
        ),
    ] {
        let (mut view, policy) = drain_of(json!({}), vec![long("db-0"), other], vec![]);
        settle(&mut view, &policy, 1);
        let leaving = &mut pods(&mut view)[0];
        (leaving.terminating, leaving.ends_by) = (true, Some(t(7201)));
        settle(&mut view, &policy, 2);
        let in_flight = sent.map(|sent| ("db-1".to_owned(), sent)).into_iter().collect();
        view.nodes.get_mut("a").unwrap().in_flight = in_flight;
        assert_eq!(settle(&mut view, &policy, 32).waits["a"].as_str(), "Draining", "{sentence}");
    }
}

#[test]
fn drain_ends_for_users_when_its_guarded_pods_are_given_up() {
    let force = json!({"drain": {"atDeadline": "Force"}});
    for (sentence, spec, cordoned, end) in [
        ("before its deadline", json!({}), true, 600),
        ("not while the node is not cordoned, and none is asked", json!({}), false, 1800),
        ("not where policy deletes what is left", force, true, 1800),
    ] {
        let (mut view, policy) = drain_of(spec, vec![pod_of("db", "db-0")], vec![guard("db", 1)]);
        if !cordoned {
            let facts = &mut view.nodes.get_mut("a").unwrap().facts;
            (facts.claims, facts.unschedulable) = (ClaimFields::default(), false);
        }
        assert_eq!(deadlines(&view, &policy, t(1)).next(), Some(("a", t(end))), "{sentence}");
    }
}

#[test]
fn start_of_a_drain_without_pods_that_take_long_names_none() {
    let (view, policy) = cluster(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
    let started = plan(&view, &policy, t(0)).actions.remove("a");
    let Some(Action::Status { note: Some(note), .. }) = started else { panic!("{started:?}") };
    assert_eq!(note.message, "draining for the update to 1.20.5 (attempt 1)");
}

/// Another node is drained meanwhile, and the replacement of a pod is not Ready yet.
#[test]
fn budget_whose_pods_are_replaced_while_hooks_answer_ends_no_attempt() {
    let mut node = at("a", Step::BeforeDrain, 0, HostState::StagedUpdate);
    node.pods = Some(vec![pod_of("web", "web-0")]);
    let (mut view, _) = cluster(vec![node], &["a"]);
    view.budgets = vec![BudgetFacts { healthy: 2, desired: 2, expected: 3, ..guard("web", 3) }];
    let policy = with_policy(&mut view, json!({}));
    let mut made = plan(&view, &policy, t(1));
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "what keeps it is shown");
    let waits = made.actions.remove("a").unwrap();
    let Action::Status { status, .. } = &waits else { panic!("{waits:?}") };
    let blocked = models::condition::find_condition(&status.conditions, models::shadow::BLOCKED).unwrap();
    let found = (blocked.reason.as_str(), status.report.progress.as_ref().unwrap().step);
    assert_eq!(found, ("BudgetUnhealthy", Step::BeforeDrain));
    let mut over = view.clone();
    over.budgets[0].healthy = 3;
    over.budgets[0].allowed = 1;
    assert_eq!(outcome(&plan(&over, &policy, t(2))), "step Draining");
    assert_eq!(outcome(&plan(&view, &policy, t(1800))), "GateRefused", "for as long as a drain may take");
    // Its pods are healthy, and another node's drain has asked them in vain meanwhile: waiting would not help.
    over.budgets = vec![guard("web", 3)];
    let (budget, revision) = ("shop/web".to_owned(), "web/1".to_owned());
    let back_off = BudgetBackOff { budget, revision, times: 1, last: t(0), until: t(3601) };
    over.operator.as_mut().unwrap().status.budget_back_offs = vec![back_off];
    assert_eq!(outcome(&plan(&over, &policy, t(2))), "GateRefused");
}
