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
    let moves = pod.controller_uid.is_some() && pod.daemon_set.is_none() && !pod.mirror && !pod.finished;
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
