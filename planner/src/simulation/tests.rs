use std::sync::Arc;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{NEW, OLD, node, t};
use crate::policy::Policy;
use crate::view::{BudgetFacts, ClusterView, NodeView, OperatorFacts, PodFacts, Standby};

/// A fleet of nodes in two zones, each with pods of a Deployment that a budget guards.
pub(super) fn fleet(nodes: usize, pods: usize, spec: &Value) -> Scenario {
    let operator = OperatorFacts {
        uid: "op".into(),
        spec: serde_json::from_value(spec.clone()).unwrap(),
        ..OperatorFacts::default()
    };
    let policy = Policy::from_spec(&operator.spec).unwrap();
    let kinds: Vec<Arc<NodeView>> = ["a", "b"]
        .into_iter()
        .map(|zone| {
            let mut node = node("template");
            let tier = if zone == "a" { "db" } else { "web" };
            let labels = [(models::names::ZONE_LABEL, zone), ("tier", tier)];
            node.facts.labels = Arc::new(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
            Arc::new(node)
        })
        .collect();
    let offered: Arc<[semver::Version]> = [NEW, OLD].into();
    let member = |number: usize| Member {
        node: kinds[number % 2].clone(),
        name: Some(format!("node-{number:06}")),
        host: Host::new(OLD),
        offered: offered.clone(),
        pods: vec![0; pods],
    };
    let web = PodTemplate {
        facts: PodFacts {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "web".into(),
            controller_uid: Some("rs".into()),
            labels: Arc::new([("app".to_owned(), "web".to_owned())].into()),
            ready: true,
            ..PodFacts::default()
        },
        leaves: Span::seconds(1, 20),
        replaced: Some(Span::seconds(2, 30)),
    };
    let all = i32::try_from(nodes * pods).unwrap();
    let unavailable = (all / 4).max(1);
    let budget = BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        allowed: unavailable,
        healthy: all,
        desired: all - unavailable,
        expected: all,
        selector: Some(kube::core::Selector::from_iter([kube::core::Expression::Equal("app".into(), "web".into())])),
        ..BudgetFacts::default()
    };
    Scenario {
        base: ClusterView { operator: Some(operator), ..ClusterView::default() },
        policy,
        start: t(0),
        horizon: SignedDuration::from_hours(24 * 60),
        members: (0..nodes).map(member).collect(),
        pods: vec![web],
        budgets: vec![budget],
        times: Times::default(),
        faults: Vec::new(),
        arriving: Vec::new(),
        starting: Vec::new(),
        elsewhere: 0,
        exhaustive: false,
    }
}

#[test]
fn simulated_fleet_is_updated_within_its_budget_in_planned_order() {
    let scenario = fleet(30, 4, &json!({"maxUnavailable": 3}));
    let course = simulate(&scenario, 1);
    assert_eq!(course.findings, []);
    assert_eq!((course.updated(), course.behind), (30, 0), "{:?}", course.waits);
    assert_eq!(course.peak, 3);
    assert_eq!(course.order.len(), 30);
    let zone = |index: &u32| index % 2;
    assert!(course.order.iter().map(zone).is_sorted(), "zone by zone: {:?}", course.order);
    assert!(course.evictions >= 120, "{}", course.evictions);
    for node in &course.nodes {
        let times = [node.began, node.drained_from, node.drained, node.back, node.ended];
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{node:?}");
    }
    assert_eq!(simulate(&scenario, 1).nodes, course.nodes, "the same seed gives the same course");
}

#[test]
fn bad_version_freezes_simulated_rollout() {
    for effect in [FaultEffect::DoesNotBoot, FaultEffect::NeverReady, FaultEffect::PodsNotReady] {
        let mut scenario = fleet(20, 4, &json!({"maxUnavailable": 2}));
        scenario.faults = vec![Fault { version: Some(NEW), effect, rate: 1.0, members: Default::default() }];
        // Otherwise no pod is left on a drained node that could show it.
        let set = PodFacts {
            daemon_set: Some("driver".into()),
            daemon_set_state: crate::view::DaemonSetState::There,
            controller_uid: Some("driver".into()),
            name: "driver".into(),
            uid: "driver".into(),
            labels: Arc::default(),
            ..scenario.pods[0].facts.clone()
        };
        scenario.pods.push(PodTemplate { facts: set, leaves: Span::seconds(1, 1), replaced: None });
        scenario.members.iter_mut().for_each(|member| member.pods.push(1));
        let course = simulate(&scenario, 3);
        assert_eq!(course.findings, [], "{effect:?}");
        let freeze = course.freeze.as_ref().unwrap_or_else(|| panic!("{effect:?}: {course:?}"));
        assert_eq!(freeze.version, NEW, "{effect:?}");
        assert!(course.order.len() < 20, "{effect:?}: {:?}", course.order);
    }
}

#[test]
fn pods_that_come_to_a_node_with_a_bad_version_use_up_their_budget() {
    let mut scenario = fleet(8, 4, &json!({"maxUnavailable": 1}));
    scenario.horizon = SignedDuration::from_hours(5);
    scenario.faults =
        vec![Fault { version: Some(NEW), effect: FaultEffect::PodsNotReady, rate: 1.0, members: Default::default() }];
    let course = simulate(&scenario, 1);
    assert_eq!((course.findings.len(), course.freeze.as_ref()), (0, None), "no pod shows it during a verification");
    assert!(course.cut && course.updated() < 8 && course.refusals["shop/web"] > 0, "{course:?}");
    scenario.faults.clear();
    assert_eq!(simulate(&scenario, 1).updated(), 8);
}

#[test]
fn nodes_asleep_change_nothing_about_course() {
    let mut rng = StdRng::seed_from_u64(7);
    for seed in 0..12 {
        let budget = rng.random_range(1..5);
        let spec = serde_json::to_value(super::faults::some_policy(&mut rng, budget)).unwrap();
        let mut scenario = fleet(rng.random_range(2..60), 3, &spec);
        // A second more or less decides whether a pod is Ready, and so which node comes first.
        scenario.policy.all.before.pods_ready = false;
        scenario.policy.groups.iter_mut().for_each(|group| group.policy.before.pods_ready = false);
        let course = simulate(&scenario, seed);
        scenario.exhaustive = true;
        let exhaustive = simulate(&scenario, seed);
        assert_eq!(course.findings, [], "{spec}");
        assert!(course.order == exhaustive.order, "{spec}");
        // A refused eviction is tried again a few seconds earlier or later, since turns are made at other moments.
        let near = |a: Option<u32>, b: Option<u32>| a.zip(b).map_or(a == b, |(a, b)| a.abs_diff(b) <= 30 + a / 50);
        let alike = |a: &NodeCourse, b: &NodeCourse| {
            near(a.began, b.began)
                && near(a.drained_from, b.drained_from)
                && near(a.ended, b.ended)
                && a.updated == b.updated
        };
        let differs = course.nodes.iter().zip(&exhaustive.nodes).find(|(one, other)| !alike(one, other));
        assert_eq!(differs, None, "{spec}");
    }
}

#[test]
fn percentages_are_of_all_nodes_also_of_those_asleep() {
    let groups = json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": "4%"}]);
    let canary = || json!({"canary": [{"nodes": 1}, {"nodes": "20%", "soak": "1h"}]});
    for (strategy, kinds) in
        [(json!({}), 1), (json!({"preStage": {"maxConcurrent": "10%"}}), 1), (canary(), 1), (canary(), 2)]
    {
        let spec = json!({"maxUnavailable": "5%", "strategy": strategy, "nodeGroups": groups,
            "health": {"before": {"maxUnhealthyNodes": "1%"}}});
        let mut scenario = fleet(150, 1, &spec);
        for member in scenario.members.iter_mut().skip(100).filter(|_| kinds == 2) {
            let mut node = NodeView::clone(&member.node);
            node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
            member.node = Arc::new(node);
        }
        let course = simulate(&scenario, 1);
        scenario.exhaustive = true;
        let exhaustive = simulate(&scenario, 1);
        assert_eq!((course.findings.len(), course.updated(), course.peak), (0, 150, exhaustive.peak), "{spec}");
        // A second more or less decides which of some nodes comes first.
        let begin = |course: &Course| {
            let mut times: Vec<_> = course.nodes.iter().filter_map(|node| node.drained_from).collect();
            times.sort_unstable();
            times
        };
        let (begin, expected) = (begin(&course), begin(&exhaustive));
        let late = begin.iter().zip(&expected).find(|(time, expected)| time.abs_diff(**expected) > 60 + *expected / 20);
        assert_eq!(late, None, "{spec}, {kinds} kinds");
    }
}

/// They are more than the nodes that are awake, and are no trouble of the cluster.
#[test]
fn dead_nodes_delay_no_fleet_of_which_most_nodes_are_asleep() {
    let mut scenario = fleet(300, 1, &json!({"maxUnavailable": "10%"}));
    for member in scenario.members.iter_mut().take(60) {
        let mut node = NodeView::clone(&member.node);
        (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(-7200)));
        member.node = Arc::new(node);
    }
    let course = simulate(&scenario, 1);
    assert_eq!((course.updated(), course.findings.len()), (240, 0), "{:?}", course.waits);
    let ended = course.nodes.iter().filter_map(|node| node.ended).max();
    assert!(ended.is_some_and(|second| second < 12 * 3600), "{ended:?}");
}

#[test]
fn nodes_of_an_earlier_rollout_are_updated_again_also_by_a_pin() {
    let mut scenario = fleet(40, 2, &json!({"maxUnavailable": 2, "version": {"target": NEW.to_string()}}));
    for member in &mut scenario.members {
        let mut node = NodeView::clone(&member.node);
        let mut record = crate::fixtures::updated();
        record.last.as_mut().unwrap().version = OLD;
        node.shadow.as_mut().unwrap().status.controller.record = Some(record);
        member.node = Arc::new(node);
    }
    let course = simulate(&scenario, 1);
    assert_eq!((course.updated(), course.current, course.findings.len()), (40, 40, 0), "{:?}", course.waits);
}

#[test]
fn node_of_the_leader_is_the_last_one_and_is_updated_with_or_without_another_replica() {
    for standby in [Standby::None, Standby::NotReady, Standby::Ready] {
        for nodes in [1, 8, 300] {
            let mut scenario = fleet(nodes, 2, &json!({"maxUnavailable": 2}));
            scenario.base.own_node = Some("node-000000".into());
            scenario.base.standby = standby;
            scenario.elsewhere = 1;
            let course = simulate(&scenario, 1);
            let found = (course.updated(), course.order.last(), course.findings.len());
            assert_eq!(found, (nodes, Some(&0), 0), "{standby:?}, {nodes} nodes: {:?}", course.waits);
        }
    }
}
