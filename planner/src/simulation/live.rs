//! A real fleet as the input of a simulation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use semver::Version;

use super::durations::{UpdateDurations, shorten};
use super::host::Host;
use super::scenario::{Member, PodTemplate, Scenario, Span, Times, whole_second};
use crate::policy::{Policy, Target};
use crate::view::{ClusterView, NodeView, PodFacts};

/// The longest simulated time.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * 60);

/// The grace period of a pod that names none, as Kubernetes has it.
const GRACE: i64 = 30;

/// The time that a replaced pod takes to become Ready: nothing in the cluster records it.
const STARTS: Span = Span::seconds(5, 60);

/// Returns how a pod goes on after its eviction.
fn template(pod: PodFacts) -> PodTemplate {
    let grace = u64::try_from(pod.grace.unwrap_or(GRACE)).unwrap_or(0).max(1);
    // Something brings it back: not a bare pod, and not the node's own.
    let moves = pod.controller_uid.is_some() && pod.is_of_workload() && !pod.finished;
    PodTemplate {
        leaves: Span::Between(Duration::from_secs(1), Duration::from_secs(grace)),
        replaced: moves.then_some(STARTS),
        facts: pod,
    }
}

/// Returns whether the host waits for its wave: it may have a newer version, and does not choose it.
fn waits_for_wave(node: &NodeView, policy: &Policy) -> bool {
    let Some(agent) = node.shadow.as_ref().map(|shadow| &shadow.status.agent) else { return false };
    let Some((updates, runs)) = agent.updates.as_ref().zip(agent.current_version.as_ref()) else { return false };
    policy.target == Target::Latest
        && updates.chosen_version.is_none()
        && updates.available_versions.iter().any(|version| version > runs)
}

/// Returns the scenario that begins with this state of a cluster. The view has the pods of all nodes.
///
/// It cannot know: the nodes that the scheduler may use for a pod, the wave of a host, and what expressions will return. Pods
/// go to any node, waves do not come, and expressions return nothing. What a controller remembers is left out.
///
/// `updates` are the last updates of this cluster: the next ones take as long.
pub fn live(mut view: ClusterView, policy: Policy, updates: &[UpdateDurations], now: Timestamp) -> Scenario {
    let policy = Policy { notices: None, ..policy };
    (view.busy, view.paused, view.retracted) = Default::default();
    view.expressions.clear();
    let mut offers: HashMap<Vec<Version>, Arc<[Version]>> = HashMap::new();
    let (mut members, mut pods, mut arriving, mut starting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for mut node in std::mem::take(&mut view.nodes).into_values() {
        (node.blocked, node.in_flight, node.refused, node.owners) = Default::default();
        let mut own = Vec::new();
        for pod in node.pods.take().unwrap_or_default() {
            let Ok(index) = u32::try_from(pods.len()) else { break };
            let (leaves, starts) = (pod.terminating, pod.pending);
            let template = template(pod);
            if leaves {
                arriving.extend(template.replaced.is_some().then_some(index));
            } else {
                own.push(index);
                starting.extend(starts.then_some((members.len(), index)));
            }
            pods.push(template);
        }
        let updates = node.shadow.as_ref().and_then(|shadow| shadow.status.agent.updates.as_ref());
        let mut offered = updates.map(|updates| updates.available_versions.clone()).unwrap_or_default();
        offered.extend(updates.and_then(|updates| updates.chosen_version.clone()));
        offered.sort_by(|a, b| b.cmp(a));
        offered.dedup();
        let offered = offers.entry(offered).or_insert_with_key(|offered| offered.as_slice().into()).clone();
        let unknown = || Host::new(node.facts.os_version().unwrap_or(Version::new(0, 0, 0)));
        let host = Host { waits_for_wave: waits_for_wave(&node, &policy), ..Host::of(&node).unwrap_or_else(unknown) };
        members.push(Member { node: Arc::new(node), name: None, host, offered, pods: own });
    }
    let takes_pods = |node: &&crate::view::NodeFacts| node.ready && !node.unschedulable && !node.deleting;
    // No simulated write is signed: with a key, each host's settings would be written again for ever.
    view.signing = Default::default();
    let mut scenario = Scenario {
        elsewhere: view.unmanaged.values().filter(takes_pods).count(),
        budgets: std::mem::take(&mut view.budgets),
        base: view,
        policy,
        start: whole_second(now),
        horizon: HORIZON,
        members,
        pods,
        times: Times::observed(updates),
        faults: Vec::new(),
        arriving,
        starting,
        exhaustive: false,
    };
    shorten(&mut scenario, updates);
    scenario
}

#[cfg(test)]
mod tests {
    use kube::core::{Expression, Selector};
    use models::operator::{ActiveRollout, LedgerNode, NOT_READY, RolloutLedger};
    use models::reason::Proof;

    use super::*;
    use crate::fixtures::{NEW, cluster, node, recorded, rollout, t};
    use crate::simulation::simulate;
    use crate::view::BudgetFacts;

    /// Simulates three nodes with one pod each under a budget that needs two healthy ones. Returns the nodes that are
    /// updated.
    fn updated(pods: [(bool, bool); 3], healthy: i32, allows_unhealthy: bool) -> Vec<String> {
        let names = ["a", "b", "c"];
        let nodes = names.iter().zip(pods).map(|(name, (ready, pending))| {
            let mut node = node(name);
            let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
            updates.available_versions = vec![NEW];
            node.pods = Some(vec![PodFacts {
                namespace: "shop".into(),
                name: format!("web-{name}"),
                uid: format!("web-{name}"),
                node: (*name).into(),
                controller_uid: Some("rs".into()),
                labels: std::sync::Arc::new([("app".to_owned(), "web".to_owned())].into()),
                ready,
                pending,
                ..PodFacts::default()
            }]);
            node
        });
        let (mut view, policy) = cluster(nodes.collect(), &[]);
        view.budgets = vec![BudgetFacts {
            namespace: "shop".into(),
            name: "web".into(),
            allowed: (healthy - 2).max(0),
            healthy,
            desired: 2,
            expected: 3,
            allows_unhealthy,
            selector: Some(Selector::from_iter([Expression::Equal("app".into(), "web".into())])),
            ..BudgetFacts::default()
        }];
        let mut scenario = live(view, policy, &[], t(0));
        scenario.horizon = SignedDuration::from_hours(6);
        let course = simulate(&scenario, 1);
        assert_eq!(course.findings, []);
        let nodes = names.iter().zip(&course.nodes);
        nodes.filter(|(_, node)| node.updated).map(|(name, _)| (*name).to_owned()).collect()
    }

    #[test]
    fn hosts_with_settings_and_nodes_that_wait_for_ever_end_a_course_in_a_cluster_with_a_signing_key() {
        let mut held = node("held");
        held.facts.hold = Some(crate::hold::Hold::default());
        let (mut view, _) = cluster(vec![node("a"), held], &[]);
        let spec = serde_json::json!({"version": {"target": NEW.to_string()}});
        let operator = view.operator.as_mut().unwrap();
        operator.spec = serde_json::from_value(spec).unwrap();
        let policy = Policy::from_spec(&operator.spec).unwrap();
        view.signing.signing_key = Some("key".into());
        let course = simulate(&live(view, policy, &[], t(0)), 1);
        assert_eq!((course.updated(), course.cut), (1, false), "{:?}", course.waits);
        assert!(course.plans < 500, "{} plans", course.plans);
    }

    /// One of two nodes had proven the version and was not Ready any more. It has been Ready again for a minute.
    #[test]
    fn brake_by_a_node_that_was_not_ready_ends_in_a_course_once_the_node_has_been_well_for_an_hour() {
        let (mut back, mut other) = (node("a"), node("b"));
        back.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        back.facts.ready_since = Some(t(-60));
        let status = &mut back.shadow.as_mut().unwrap().status;
        status.agent.current_version = Some(NEW);
        status.agent.updates.as_mut().unwrap().chosen_version = None;
        let mut record = crate::fixtures::updated();
        record.proof.as_mut().unwrap().rollout = 7;
        status.controller.record = Some(record);
        let updates = other.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.available_versions = vec![NEW];
        let (mut view, policy) = cluster(vec![back, other], &[]);
        let (reason, proof) = (NOT_READY.to_owned(), Proof::Unproven);
        let fallen = LedgerNode { node: "a".into(), proof, reason, accepted: false, before_proof: true };
        let (nodes, row) = (vec![fallen.clone()], vec![fallen]);
        let ledger = RolloutLedger { base: 2, unproven: 1, nodes, row, ..RolloutLedger::default() };
        let status = &mut view.operator.as_mut().unwrap().status;
        status.rollout_count = Some(7);
        let rollout = ActiveRollout { ledger: Some(ledger), record: Some(recorded(7)), ..rollout(NEW) };
        status.active_rollouts = vec![rollout];
        let mut scenario = live(view, policy, &[], t(0));
        scenario.horizon = SignedDuration::from_hours(6);
        let course = simulate(&scenario, 1);
        assert_eq!((course.updated(), course.findings.len()), (1, 0), "{:?}", course.waits);
    }

    #[test]
    fn pod_that_is_not_ready_stays_so_and_its_budget_counts_it_as_unhealthy() {
        let (ready, unhealthy, pending) = ((true, false), (false, false), (false, true));
        for (sentence, pods, healthy, lets_go, expected) in [
            ("all are Ready", [ready, ready, ready], 3, false, vec!["a", "b", "c"]),
            ("one starts, and is healthy soon", [ready, ready, pending], 2, false, vec!["a", "b", "c"]),
            (
                "one stays unhealthy, and may be evicted while the others are healthy",
                [ready, ready, unhealthy],
                2,
                false,
                vec!["c"],
            ),
            ("too few are healthy for any eviction", [ready, unhealthy, unhealthy], 1, false, vec![]),
            ("unhealthy ones may go at any time", [ready, unhealthy, unhealthy], 1, true, vec!["b", "c"]),
            ("one starts, and is not enough", [ready, unhealthy, pending], 1, false, vec!["b"]),
        ] {
            assert_eq!(updated(pods, healthy, lets_go), expected, "{sentence}");
        }
    }
}
