//! Random clusters under random policies and the faults of all parts, which end after two days.

use std::sync::Arc;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::{Change, Cluster};
use crate::fixtures::{NEW, OLD};
use crate::simulation::faults::seeds;
use crate::simulation::host::Host;
use crate::simulation::tests::fleet;
use crate::simulation::{Fault, FaultEffect, PodTemplate, Scenario, Span};
use crate::view::{DaemonSetState, PodFacts};

/// The time at which all faults end.
const REPAIRED: SignedDuration = SignedDuration::from_hours(2 * 24);

/// The end.
const HORIZON: SignedDuration = SignedDuration::from_hours(9 * 24);

fn one_of<T: Clone>(rng: &mut StdRng, all: &[T]) -> T {
    all[rng.random_range(0..all.len())].clone()
}

/// A policy that never keeps a node from its update for good.
fn some_spec(rng: &mut StdRng) -> Value {
    let step = |rng: &mut StdRng| {
        let nodes = one_of(rng, &[json!(1), json!(2), json!("20%"), json!("50%")]);
        let soak = one_of(rng, &["0s", "10m", "3h"]);
        let approval = one_of(rng, &["Automatic", "Automatic", "Manual"]);
        json!({"nodes": nodes, "soak": soak, "approval": approval})
    };
    let canary: Vec<Value> = (0..rng.random_range(0..3)).map(|_| step(rng)).collect();
    let hooks = json!([
        {"name": "storage", "before": {"timeout": "3m"}, "after": {"timeout": "2m", "onTimeout": "Continue"}},
        {"name": "dns", "after": {"timeout": "4m"}},
    ]);
    json!({
        "maxUnavailable": one_of(rng, &[json!(1), json!(2), json!(3), json!("40%")]),
        "failurePolicy": {"maxFailures": rng.random_range(1..4), "maxConsecutiveFailures": rng.random_range(1..5)},
        "strategy": {"canary": canary, "oneZoneAtATime": rng.random_bool(0.3)},
        "hooks": if rng.random_bool(0.5) { hooks } else { json!([]) },
        "health": {"before": {"podsReady": rng.random_bool(0.3)}},
    })
}

/// A pod of the DaemonSet `driver`.
fn driver(web: &PodTemplate) -> PodTemplate {
    let facts = PodFacts {
        daemon_set: Some("driver".into()),
        daemon_set_state: DaemonSetState::There,
        controller_uid: Some("driver".into()),
        name: "driver".into(),
        uid: "driver".into(),
        labels: Arc::default(),
        ..web.facts.clone()
    };
    PodTemplate { facts, leaves: Span::seconds(1, 1), replaced: None }
}

/// Returns a cluster, the nodes that join later, and what happens to it.
fn some_cluster(rng: &mut StdRng) -> (Scenario, Vec<usize>, Vec<(SignedDuration, Change)>) {
    let (nodes, new) = (rng.random_range(2..10), rng.random_range(0..4));
    let mut scenario = fleet(nodes + new, rng.random_range(0..3), &some_spec(rng));
    scenario.horizon = HORIZON;
    scenario.exhaustive = true;
    scenario.elsewhere = 1;
    let driver = driver(&scenario.pods[0]);
    scenario.pods.push(driver);
    // Two architectures, and replicas that never become Ready.
    let (kinds, sick) = (rng.random_bool(0.3), rng.random_bool(0.2));
    if sick {
        scenario.policy.all.before.pods_ready = false;
        let mut template = scenario.pods[0].clone();
        (template.facts.ready, template.facts.uid) = (false, "sick".into());
        scenario.pods.push(template);
        scenario.members[0].pods.extend([2; 3]);
        scenario.budgets[0].expected += 3;
        scenario.budgets[0].desired += 3;
    }
    if rng.random_bool(0.2) {
        // Some take longer than their deadlines.
        scenario.times.boot = Span::seconds(60, 50 * 60);
        scenario.times.shutdown = Span::seconds(3, 25 * 60);
    }
    let devices = Arc::new([("nvidia.com/gpu".to_owned(), "8".to_owned())].into());
    for member in &mut scenario.members {
        member.pods.push(1);
        let node = Arc::make_mut(&mut member.node);
        node.facts.allocatable = Arc::clone(&devices);
        if kinds && rng.random_bool(0.5) {
            node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        }
    }
    for effect in [
        FaultEffect::DownloadFails,
        FaultEffect::DoesNotBoot,
        FaultEffect::NeverReady,
        FaultEffect::PodsNotReady,
        FaultEffect::DevicesMissing,
        FaultEffect::HooksRefuse,
        FaultEffect::HooksSilent,
        FaultEffect::NoPermitRequested,
    ] {
        if rng.random_bool(0.3) {
            let everywhere = rng.random_bool(0.3);
            let hits: Vec<usize> = (0..nodes + new).filter(|_| everywhere || rng.random_bool(0.3)).collect();
            let members = if hits.is_empty() { [0].into() } else { hits.into_iter().collect() };
            let version = (effect == FaultEffect::PodsNotReady || rng.random_bool(0.5)).then_some(NEW);
            scenario.faults.push(Fault { version, effect, rate: one_of(rng, &[0.3, 0.7, 1.0]), members });
        }
    }
    let mut changes = Vec::new();
    let at = |rng: &mut StdRng, hours: i64| SignedDuration::from_secs(rng.random_range(60..hours * 3600));
    for _ in 0..rng.random_range(0..3) {
        let from = at(rng, 20);
        changes.push((from, Change::Disconnected));
        changes.push((from + SignedDuration::from_mins(rng.random_range(2..60)), Change::Connected));
    }
    for index in nodes..nodes + new {
        changes.push((at(rng, 20), Change::Joins(index)));
    }
    for _ in 0..rng.random_range(0..=nodes / 2) {
        let (index, gone) = (rng.random_range(0..nodes), at(rng, 20));
        if rng.random_bool(0.5) {
            changes.push((gone, Change::Marked(index)));
        }
        changes.push((gone + SignedDuration::from_mins(10), Change::Leaves(index)));
    }
    for _ in 0..rng.random_range(0..3) {
        let change = one_of(rng, &[Change::NewLeader, Change::NewLeader, Change::OperatorUpdated]);
        changes.push((at(rng, 20), change));
    }
    for _ in 0..rng.random_range(0..8) {
        let change = one_of(rng, &[Change::Approve, Change::Approve, Change::Resolve]);
        changes.push((at(rng, 46), change));
    }
    // The launch template of the autoscaler may be newer than its nodes.
    for member in scenario.members.iter_mut().skip(nodes).filter(|_| rng.random_bool(0.2)) {
        let node = Arc::make_mut(&mut member.node);
        node.facts.os_image = node.facts.os_image.replace(&OLD.to_string(), &NEW.to_string());
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(NEW);
        agent.updates.as_mut().unwrap().chosen_version = None;
        member.host = Host::new(NEW);
    }
    if rng.random_bool(0.3) {
        changes.push((at(rng, 10), Change::RegistersAgain));
    }
    changes.push((REPAIRED, Change::Repaired));
    // Afterwards a user does what is asked for, every two hours.
    let after = |hours: i64| (REPAIRED + SignedDuration::from_hours(2 * hours), Change::Resolve);
    changes.extend((1..60).map(after));
    (scenario, (nodes..nodes + new).collect(), changes)
}

#[test]
fn no_random_cluster_stalls_without_a_reason_or_lets_more_through() {
    for seed in seeds(40) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (scenario, absent, changes) = some_cluster(&mut rng);
        let name = format!("seed {seed}");
        let cluster = Cluster::of(&name, &scenario, seed, &absent, &changes);
        assert_eq!(cluster.waits(), [], "{name}");
        cluster.assert_rests();
    }
}
