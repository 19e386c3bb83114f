//! Duration of one plan, with fleets of several sizes in the middle of a rollout. `make bench-plan` runs it.

#![expect(clippy::unwrap_used, reason = "nothing here comes from outside")]

use std::collections::BTreeMap;
use std::sync::Arc;

use divan::{Bencher, black_box};
use jiff::Timestamp;
use kube::core::{Expression, Selector};
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorSpec, RolloutLedger, Slot};
use models::shadow::{AttemptResult, HostPolicy, HostState, OfferedUpdates, Progress, Record, Step};
use planner::claims::ClaimField;
use planner::plan::plan;
use planner::policy::Policy;
use planner::view::{BudgetFacts, ClusterView, NodeFacts, NodeView, OperatorFacts, PodFacts, ShadowFacts};
use semver::Version;

const OLD: Version = Version::new(1, 20, 0);
const NEW: Version = Version::new(1, 20, 5);
const VARIANT: &str = "aws-k8s-1.37";
const ARCH: &str = "x86_64";

fn main() {
    divan::main();
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap_or_default()
}

/// A policy with every gate in it that needs no answer from elsewhere.
fn policy() -> BottlerocketUpdateOperatorSpec {
    let spec = serde_json::json!({
        "maxUnavailable": "1%",
        "version": {"minimumAge": "10m", "exclude": ["1.20.3"]},
        "schedule": {"windows": [{"cron": "0 * * * *", "duration": "59m", "timeZone": "Europe/Berlin"}], "stopStartingBefore": "1m"},
        "strategy": {"canary": [{"nodes": 1}, {"nodes": "5%"}], "preStage": {"maxConcurrent": "10%"}},
        "health": {"before": {"podsReady": true, "maxUnhealthyNodes": "5%"}},
        "nodeGroups": [
            {"name": "databases", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": 1},
            {"name": "web", "selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["web", "edge"]}]}, "maxUnavailable": "2%"},
        ],
    });
    serde_json::from_value(spec).unwrap()
}

/// Of a hundred nodes `drained` are drained with thirty pods on each, the rest of the first eleven are updated, twenty are staged, and the others
/// are idle.
fn node(number: usize, drained: usize) -> NodeView {
    let name = format!("node-{number}");
    let labels = [
        (models::names::ZONE_LABEL, ["a", "b", "c"][number % 3]),
        ("tier", ["db", "web", "edge", "batch"][number % 4]),
        ("kubernetes.io/os", "linux"),
    ];
    let mut facts = NodeFacts {
        name: name.clone(),
        uid: format!("uid-{number}"),
        labelled: true,
        ready: true,
        boot_id: "boot".into(),
        os_image: format!("Bottlerocket OS {OLD} ({VARIANT})"),
        labels: Arc::new(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..NodeFacts::default()
    };
    let mut shadow = ShadowFacts {
        node: name.clone(),
        uid: format!("shadow-{number}"),
        generation: 1,
        owner_uid: Some(facts.uid.clone()),
        ..ShadowFacts::default()
    };
    shadow.spec.host =
        Some(HostPolicy { refresh_interval: Some(Policy::default().refresh_interval), ..HostPolicy::default() });
    let agent = &mut shadow.status.agent;
    agent.state = Some(HostState::Idle);
    agent.observed_generation = Some(1);
    agent.boot_id = Some("boot".into());
    agent.current_version = Some(OLD);
    agent.variant = Some(VARIANT.into());
    agent.arch = Some(ARCH.into());
    agent.updates = Some(OfferedUpdates {
        chosen_version: Some(NEW),
        available_versions: vec![OLD, Version::new(1, 20, 3), NEW],
        ..OfferedUpdates::default()
    });
    let mut pods = None;
    let step = match number % 100 {
        first if first < drained => Some(Step::Draining),
        0..=10 => {
            agent.current_version = Some(NEW);
            agent.updates = Some(OfferedUpdates { chosen_version: None, ..OfferedUpdates::default() });
            let last = AttemptResult {
                attempt: 1,
                version: NEW,
                from: Some(OLD),
                reason: models::shadow::UPDATED.into(),
                message: String::new(),
                started: at(-7200),
                ended: at(-3600),
            };
            shadow.status.controller.record = Some(Record { last: Some(last), ..Record::default() });
            None
        }
        11..=30 => Some(Step::Staged),
        _ => None,
    };
    if let Some(step) = step {
        let disruptive = step == Step::Draining;
        shadow.spec.state = HostState::StagedUpdate;
        (shadow.spec.attempt, shadow.spec.version, shadow.spec.boot_id) = (1, Some(NEW), Some("boot".into()));
        shadow.status.agent.state = Some(HostState::StagedUpdate);
        shadow.status.controller.progress = Some(Progress {
            step,
            since: at(-60),
            attempt: 1,
            boot_id: "boot".into(),
            version: NEW,
            from: Some(OLD),
            started: at(-120),
            permit_issued: false,
            soak_restarted: false,
            interrupted: None,
            verifying_since: None,
            drill: None,
            verification: false,
            rollout: None,
            disruptive,
        });
        if disruptive {
            let claimed = [ClaimField::Cordon, ClaimField::ScaleDown, ClaimField::DoNotDisrupt];
            (facts.claims, facts.unschedulable) = (claimed.into_iter().collect(), true);
        }
        pods = disruptive.then(|| (0..30).map(|pod| some_pod(&name, pod)).collect());
    }
    NodeView { facts, shadow: Some(Box::new(shadow)), pods, ..NodeView::default() }
}

fn some_pod(node: &str, number: usize) -> PodFacts {
    PodFacts {
        namespace: "shop".into(),
        name: format!("{node}-{number}"),
        uid: format!("{node}-{number}"),
        node: node.into(),
        controller_uid: Some("rs".into()),
        ready: true,
        ..PodFacts::default()
    }
}

fn fleet(size: usize, drained: usize, spec: BottlerocketUpdateOperatorSpec) -> (ClusterView, Policy) {
    let nodes = (0..size).map(|number| node(number, drained)).map(|node| (node.facts.name.clone(), node));
    let nodes: BTreeMap<String, NodeView> = nodes.collect();
    let mut operator = OperatorFacts { uid: "op".into(), spec, ..OperatorFacts::default() };
    let out = nodes.values().filter(|node| node.facts.claimed());
    operator.status.slots = out
        .map(|node| Slot { uid: node.facts.uid.clone(), node: node.facts.name.clone(), since: at(-60), update: None })
        .collect();
    let policy = Policy::in_force(Some(&operator));
    assert!(policy.errors.is_empty(), "the bench's policy: {:?}", policy.errors);
    let view = ClusterView { nodes, operator: Some(operator), leader_since: at(-100_000), ..ClusterView::default() };
    (view, policy)
}

/// A fleet with a tenth of the nodes at a time, half of the slots free, thirty pods on each node that has or wants one, and 2,000
/// PodDisruptionBudgets in 200 namespaces.
fn crowded(size: usize) -> (ClusterView, Policy) {
    const NAMESPACES: usize = 200;
    let spec = serde_json::json!({"maxUnavailable": "10%"});
    let (mut view, policy) = fleet(size, 5, serde_json::from_value(spec).unwrap());
    // Otherwise the first node of the rollout would go alone.
    let ledger = RolloutLedger { proven: 1, ..RolloutLedger::default() };
    let rollout = ActiveRollout::new(NEW, VARIANT.into(), ARCH.into(), at(-7200));
    if let Some(operator) = &mut view.operator {
        operator.status.active_rollouts = vec![ActiveRollout { ledger: Some(ledger), ..rollout }];
    }
    let busy = view.nodes.values_mut().filter(|node| node.progress().is_some());
    for (index, node) in busy.enumerate() {
        let pods = (0..30).map(|number| PodFacts {
            namespace: format!("shop-{}", (index + number) % NAMESPACES),
            labels: Arc::new([("app".to_owned(), format!("web-{}", number % 10))].into()),
            ..some_pod(&node.facts.name, number)
        });
        node.pods = Some(pods.collect());
    }
    let budget = |number: usize| {
        let name = format!("web-{}", number / NAMESPACES);
        let selector = Selector::from_iter([Expression::Equal("app".into(), name.clone())]);
        BudgetFacts {
            namespace: format!("shop-{}", number % NAMESPACES),
            name,
            allowed: 10_000,
            healthy: 20_000,
            desired: 10_000,
            expected: 20_000,
            selector: Some(selector),
            ..BudgetFacts::default()
        }
    };
    view.budgets = (0..2_000).map(budget).collect();
    (view, policy)
}

/// The first plan after a change: which versions there are and how far the rollout has come is worked out again.
#[divan::bench(args = [100, 5_000, 100_000])]
fn nodes(bencher: Bencher<'_, '_>, size: usize) {
    let (mut view, policy) = fleet(size, 1, policy());
    // Later plans find the versions and the rollout that the first one records. By then the version is old enough.
    let first = plan(&view, &policy, at(-3600)).status;
    if let (Some(operator), Some(status)) = (&mut view.operator, first) {
        operator.status = status;
    }
    let made = plan(&view, &policy, at(1));
    assert_eq!(made.waits.len() + made.actions.len(), size, "each node acts or waits");
    bencher.bench_local(|| plan(black_box(&view), black_box(&policy), at(1)));
}

/// A plan that checks the pods of hundreds of nodes beside hundreds of others that are drained.
#[divan::bench(args = [5_000])]
fn crowded_nodes(bencher: Bencher<'_, '_>, size: usize) {
    let (view, policy) = crowded(size);
    let made = plan(&view, &policy, at(1));
    assert_eq!(made.waits.len() + made.actions.len(), size, "each node acts or waits");
    bencher.bench_local(|| plan(black_box(&view), black_box(&policy), at(1)));
}
