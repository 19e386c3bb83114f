//! Eight clusters through which each rule of rollouts is walked: nothing stalls without a reason that names what is waited for, and
//! no more is let through than the rule says.

use std::sync::Arc;

use jiff::SignedDuration;
use kube::core::{Expression, Selector};
use models::names::CONTROL_PLANE_LABEL;
use serde_json::{Value, json};

use super::{Change, Cluster};
use crate::fixtures::{NEW, OLD};
use crate::simulation::tests::fleet;
use crate::simulation::{Fault, FaultEffect, Scenario, Span};
use crate::view::{BudgetFacts, NodeView};
use crate::wait::Wait;

/// A cluster, and its end.
struct Row {
    name: &'static str,
    scenario: Scenario,
    absent: Vec<usize>,
    changes: Vec<(SignedDuration, Change)>,
    /// The number of nodes that were booted into the new version by permits, where that is known.
    booted: Option<usize>,
    /// The nodes that wait at the end, each with its reason, and a part of its text.
    waits: Vec<(&'static str, &'static str, &'static str)>,
}

impl Row {
    fn of(name: &'static str, scenario: Scenario, booted: impl Into<Option<usize>>) -> Self {
        Self { name, scenario, absent: Vec::new(), changes: Vec::new(), booted: booted.into(), waits: Vec::new() }
    }

    fn waits(self, waits: &[(&'static str, &'static str, &'static str)]) -> Self {
        Self { waits: waits.to_vec(), ..self }
    }

    fn after(mut self, minutes: i64, change: Change) -> Self {
        self.changes.push((SignedDuration::from_mins(minutes), change));
        self
    }
}

/// A fleet for a week, all of whose nodes are in each plan.
fn cluster(nodes: usize, spec: &Value, faults: &[(FaultEffect, &[usize])]) -> Scenario {
    let mut scenario = fleet(nodes, 1, spec);
    scenario.horizon = SignedDuration::from_hours(7 * 24);
    scenario.exhaustive = true;
    scenario.elsewhere = usize::from(nodes == 1);
    let fault = |(effect, members): &(FaultEffect, &[usize])| Fault {
        version: Some(NEW),
        effect: *effect,
        rate: 1.0,
        members: members.iter().copied().collect(),
    };
    scenario.faults = faults.iter().map(fault).collect();
    scenario
}

fn change_node(scenario: &mut Scenario, index: usize, change: impl FnOnce(&mut NodeView)) {
    change(Arc::make_mut(&mut scenario.members[index].node));
}

/// The first of three nodes has a pod that its budget guards, as the primary of a database.
fn guarded(spec: &Value) -> Scenario {
    let mut scenario = cluster(3, spec, &[]);
    let mut primary = scenario.pods[0].clone();
    primary.facts.labels = Arc::new([("app".to_owned(), "db".to_owned())].into());
    (primary.facts.name, primary.facts.uid) = ("db".into(), "db".into());
    scenario.pods.push(primary);
    scenario.members[0].pods.push(1);
    let selector = Selector::from_iter([Expression::Equal("app".into(), "db".into())]);
    let (one, none) = (1, 0);
    scenario.budgets.push(BudgetFacts {
        name: "db".into(),
        allowed: none,
        healthy: one,
        desired: one,
        expected: one,
        selector: Some(selector),
        ..scenario.budgets[0].clone()
    });
    scenario
}

/// Nodes with GPUs, of which these come back from their updates without them.
fn with_devices(nodes: usize, spec: &Value, without: &[usize]) -> Scenario {
    let mut scenario = cluster(nodes, spec, &[(FaultEffect::DevicesMissing, without)]);
    for index in 0..nodes {
        change_node(&mut scenario, index, |node| {
            node.facts.allocatable = Arc::new([("nvidia.com/gpu".to_owned(), "8".to_owned())].into());
        });
    }
    scenario
}

/// Three nodes of the control plane and five workers.
fn with_control_plane(spec: &Value, faults: &[(FaultEffect, &[usize])]) -> Scenario {
    let mut scenario = cluster(8, spec, faults);
    for index in 0..3 {
        change_node(&mut scenario, index, |node| {
            let mut labels = (*node.facts.labels).clone();
            labels.insert(CONTROL_PLANE_LABEL.into(), String::new());
            node.facts.labels = Arc::new(labels);
        });
    }
    scenario
}

/// Eight nodes, of which the second half is of another architecture, where the new version does not boot.
fn two_kinds(spec: &Value) -> Scenario {
    let broken: Vec<usize> = (4..8).collect();
    let mut scenario = cluster(8, spec, &[(FaultEffect::DoesNotBoot, &broken)]);
    for index in broken {
        change_node(&mut scenario, index, |node| {
            node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        });
    }
    scenario
}

/// 500 nodes in 40 groups, of which an autoscaler replaces every tenth, two of them every ten minutes.
fn autoscaled() -> Row {
    let group = |number: usize| json!({"name": format!("g{number}"), "selector": {"matchLabels": {"group": number.to_string()}}, "maxUnavailable": 1});
    let groups: Vec<_> = (0..40).map(group).collect();
    let spec = json!({"maxUnavailable": "8%", "nodeGroups": groups,
        "strategy": {"canary": [{"nodes": 1}, {"nodes": 5, "soak": "10m"}]}});
    let (nodes, new) = (500, 50);
    let mut scenario = fleet(nodes + new, 1, &spec);
    scenario.horizon = SignedDuration::from_hours(3 * 24);
    for index in 0..nodes + new {
        change_node(&mut scenario, index, |node| {
            let labels = [("group".to_owned(), (index % 40).to_string())];
            node.facts.labels = Arc::new(labels.into());
        });
    }
    let mut row = Row::of("500 nodes in 40 groups while an autoscaler replaces some", scenario, None);
    for index in 0..new {
        let at = i64::try_from(index / 2).unwrap() * 10 + 5;
        row = row.after(at, Change::Joins(nodes + index));
        row = row.after(at, Change::Leaves(index * 9));
    }
    row.absent = (nodes..nodes + new).collect();
    row
}

fn merged(spec: &Value, part: &Value) -> Value {
    let mut merged = spec.clone();
    json_patch::merge(&mut merged, part);
    merged
}

/// A fleet whose hosts take so many minutes to shut down, and to boot.
fn slow(nodes: usize, spec: &Value, shutdown: u64, boot: u64) -> Scenario {
    let mut scenario = cluster(nodes, spec, &[]);
    let minutes = |minutes: u64| Span::seconds(minutes * 60, minutes * 60 + 30);
    (scenario.times.shutdown, scenario.times.boot) = (minutes(shutdown), minutes(boot));
    scenario
}

/// Waits of nodes with these numbers for one reason, whose text has this part.
fn waiting(
    names: &'static [&'static str],
    reason: &'static str,
    text: &'static str,
) -> Vec<(&'static str, &'static str, &'static str)> {
    names.iter().map(|name| (*name, reason, text)).collect()
}

/// The names of eight nodes.
const EIGHT: [&str; 8] = [
    "node-000000",
    "node-000001",
    "node-000002",
    "node-000003",
    "node-000004",
    "node-000005",
    "node-000006",
    "node-000007",
];

/// The nodes that wait in the end where no updated one has its devices.
const BRAKED_BY_DEVICES: [(&str, &str, &str); 6] = [
    ("node-000000", "NodeNotUsable", "nvidia.com/gpu is 0 and was 8"),
    ("node-000001", "Braked", "NodeNotUsable"),
    ("node-000003", "Braked", "NodeNotUsable"),
    ("node-000005", "Braked", "NodeNotUsable"),
    ("node-000006", "Braked", "NodeNotUsable"),
    ("node-000007", "Braked", "NodeNotUsable"),
];

fn rows() -> Vec<Row> {
    let default = json!({});
    let two = json!({"maxUnavailable": 2});
    let steps = json!({"maxUnavailable": 3, "strategy": {"canary": [{"nodes": 1}, {"nodes": 3, "soak": "2h"}]}});
    let hooked = json!({"maxUnavailable": 2, "hooks": [{"name": "storage", "after": {}}]});
    let one = json!({"maxUnavailable": 2, "hooks": [{"name": "storage", "after": {}}], "strategy": {"canary": [{"nodes": 1}]}});
    let (silent, refuses) = (FaultEffect::NoPermitRequested, FaultEffect::HooksRefuse);
    // One end without a proof would brake it.
    let one_by_one = merged(&steps, &json!({"failurePolicy": {"maxConsecutiveFailures": 1}}));
    let mut enabled_later = cluster(6, &json!({"maxUnavailable": 3, "enabled": false}), &[]);
    enabled_later.base.operator.as_mut().unwrap().status.observed_generation = None;
    let breaks = FaultEffect::DoesNotBoot;
    let canary = json!({"strategy": {"canary": [{"nodes": 1}]}});
    vec![
        Row::of("one node", cluster(1, &default, &[]), 1),
        Row::of("one node whose agent requests no permit", cluster(1, &default, &[(silent, &[])]), 0).waits(&[(
            "node-000000",
            "BackOff",
            "AgentSilent",
        )]),
        Row::of("three nodes, default policy, no canary", cluster(3, &default, &[]), 3),
        Row::of("three control-plane nodes and five workers", with_control_plane(&two, &[]), 8),
        autoscaled(),
        Row::of("a single replica whose budget never opens", guarded(&default), 2).waits(&[(
            "node-000000",
            "BudgetNeverAllows",
            "shop/db allows no disruption of shop/db",
        )]),
        Row::of("a budget that opens after a day", guarded(&default), 3).after(24 * 60, Change::Opens(1)),
        Row::of("two nodes that are broken for ever", cluster(8, &two, &[(silent, &[0, 2])]), 6)
            .waits(&[("node-000000", "BackOff", "AgentSilent"), ("node-000002", "BackOff", "AgentSilent")]),
        Row::of("two nodes of three that are broken for ever", cluster(3, &default, &[(silent, &[0, 1])]), 1)
            .waits(&[("node-000000", "BackOff", "AgentSilent"), ("node-000001", "BackOff", "AgentSilent")]),
        Row::of("hosts that are slow to shut down and to boot", slow(3, &default, 20, 25), 3),
        Row::of("hosts that come back after their deadlines", slow(3, &default, 2, 70), 3),
        Row::of("an operator updated while a node has proven nothing", cluster(8, &one, &[(refuses, &[0])]), 8)
            .after(60, Change::OperatorUpdated)
            .after(600, Change::Repaired),
        Row::of("a resource created again while a node has proven nothing", cluster(8, &one, &[(refuses, &[0])]), 8)
            .after(60, Change::CreatedAgain)
            .after(600, Change::Repaired),
        Row::of("a node that has proven nothing, for ever", cluster(8, &one, &[(refuses, &[0])]), 1).waits(&waiting(
            &EIGHT[1..],
            "StepUnproven",
            "node-000000 (HookRefused)",
        )),
        Row::of(
            "a control-plane node that is never Ready",
            with_control_plane(&two, &[(FaultEffect::NeverReady, &[0])]),
            6,
        )
        .waits(&[waiting(&EIGHT[..1], "NoReport", ""), waiting(&EIGHT[1..3], "Quarantined", "")].concat()),
        Row::of("a version that a user excludes while its first node is verified", cluster(8, &two, &[]), 1)
            .after(3, Change::Policy(merged(&two, &json!({"version": {"exclude": [NEW.to_string()]}}))))
            .waits(&[waiting(&EIGHT[..4], "Excluded", ""), waiting(&EIGHT[5..], "Excluded", "")].concat()),
        Row::of("two kinds of nodes, and a version that does not boot on one of them", two_kinds(&two), 1).waits(
            &[waiting(&EIGHT[1..4], "Frozen", "1.20.5"), waiting(&EIGHT[4..], "Quarantined", "1.20.5")].concat(),
        ),
        Row::of("such a version, and a user who goes on with the other kind", two_kinds(&two), 4)
            .after(600, Change::ContinueOthers)
            .after(700, Change::OperatorUpdated)
            .waits(&waiting(&EIGHT[4..], "Quarantined", "1.20.5")),
        Row::of("such a version that is excluded for that kind", two_kinds(&two), 4)
            .after(
                600,
                Change::Policy(merged(&two, &json!({"version": {"exclude": ["1.20.5 on aws-k8s-1.37/aarch64"]}}))),
            )
            .after(601, Change::Resolve)
            .waits(&waiting(&EIGHT[4..], "Excluded", "1.20.5 on aws-k8s-1.37/aarch64")),
        Row::of("a canary that comes back without its devices", with_devices(3, &canary, &[0]), 1)
            .waits(&[("node-000001", "StepUnproven", "node-000000"), ("node-000002", "StepUnproven", "node-000000")]),
        Row::of("a canary whose devices come back after a day", with_devices(3, &canary, &[0]), 3)
            .after(24 * 60, Change::Repaired),
        Row::of("a node that comes back without its devices", with_devices(3, &default, &[0]), 3),
        Row::of("nodes that all come back without their devices", with_devices(8, &two, &[]), 3)
            .waits(&BRAKED_BY_DEVICES),
        Row::of("the first rollout after installation", enabled_later, 6)
            .after(60, Change::Policy(json!({"maxUnavailable": 3}))),
        Row::of("an operator updated in mid-rollout", cluster(8, &steps, &[]), 8).after(30, Change::OperatorUpdated),
        Row::of("an operator's resource created again in mid-rollout", cluster(8, &steps, &[]), 8)
            .after(30, Change::CreatedAgain),
        Row::of("a cloud that deletes the Nodes of machines that are down", cluster(8, &one_by_one, &[]), 8)
            .after(0, Change::RegistersAgain),
        Row::of("such a cloud, and hooks after the update", cluster(8, &hooked, &[]), 8)
            .after(0, Change::RegistersAgain),
        Row::of("such a cloud, and a version that does not boot", cluster(3, &default, &[(breaks, &[])]), 0)
            .after(0, Change::RegistersAgain)
            .waits(&[
                ("node-000000", "Braked", "RebootedByOther"),
                ("node-000001", "Braked", "RebootedByOther"),
                ("node-000002", "Braked", "RebootedByOther"),
            ]),
        Row::of("three control-plane nodes and five workers of such a cloud", with_control_plane(&two, &[]), 8)
            .after(0, Change::RegistersAgain),
        Row::of("a roll-back in an emergency", cluster(8, &two, &[(breaks, &[6])]), 4)
            .after(600, Change::Policy(json!({"maxUnavailable": 2, "version": {"target": OLD.to_string()}})))
            .after(660, Change::Resolve),
        Row::of(
            "a roll-back of a version that no node proves",
            cluster(8, &hooked, &[(FaultEffect::HooksRefuse, &[])]),
            3,
        )
        .after(600, Change::Policy(merged(&hooked, &json!({"version": {"target": OLD.to_string()}})))),
    ]
}

#[test]
fn no_rule_stalls_without_a_reason_or_lets_more_through_in_eight_clusters() {
    for row in rows() {
        let cluster = Cluster::of(row.name, &row.scenario, 1, &row.absent, &row.changes);
        let (name, waits, watch) = (row.name, cluster.waits(), cluster.run.watch.as_ref().unwrap());
        let shown = waits.iter().map(|(node, wait)| (*node, wait.map_or("", Wait::as_str)));
        let expected = row.waits.iter().map(|(node, reason, _)| (*node, *reason));
        assert!(shown.eq(expected), "{name}: {waits:?}");
        for ((node, wait), (.., text)) in waits.iter().zip(&row.waits) {
            let shown = wait.unwrap().to_string();
            assert!(shown.contains(text), "{name}: {node} waits for {shown}");
        }
        assert_eq!(cluster.run.classes.waiting(), 0, "{name}");
        assert_eq!(row.booted.unwrap_or(watch.booted(&NEW)), watch.booted(&NEW), "{name}");
        cluster.assert_rests();
    }
}

#[test]
fn new_leader_at_any_time_leaves_nodes_that_are_registered_again_their_slots() {
    let steps = json!({"strategy": {"canary": [{"nodes": 1}, {"nodes": 2}]},
        "failurePolicy": {"maxConsecutiveFailures": 1}});
    for second in (0..20 * 60).step_by(20) {
        let name = format!("a new leader after {second} s");
        let scenario = cluster(3, &steps, &[]);
        let changes =
            [(SignedDuration::ZERO, Change::RegistersAgain), (SignedDuration::from_secs(second), Change::NewLeader)];
        let cluster = Cluster::of(&name, &scenario, 1, &[], &changes);
        assert_eq!(cluster.waits(), [], "{name}");
        assert_eq!(cluster.run.watch.as_ref().unwrap().booted(&NEW), 3, "{name}");
        cluster.assert_rests();
    }
}

#[test]
fn outage_of_every_kubelet_at_any_time_of_a_rollout_counts_against_no_version() {
    for minute in 0..40 {
        let name = format!("an outage from minute {minute} on");
        let scenario = cluster(4, &json!({}), &[]);
        let at = |minutes| SignedDuration::from_mins(minutes);
        let changes = [(at(minute), Change::Disconnected), (at(minute + 50), Change::Connected)];
        let cluster = Cluster::of(&name, &scenario, 1, &[], &changes);
        assert_eq!(cluster.waits(), [], "{name}");
        assert_eq!(cluster.run.watch.as_ref().unwrap().booted(&NEW), 4, "{name}");
        cluster.assert_rests();
    }
}
