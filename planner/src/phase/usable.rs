//! Ready is not usable: what a node had before its drain has to be back after its update, within the time of its verification, and its
//! agent has to be able to take it to another version. What nodes that were not updated have lost as well is no fault of it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::shadow::{MOST_COMPARED, MOST_DIGITS, MOST_FACTS, MOST_REPLICA_SETS, NodeBefore, OwnerBefore};
use models::time::after;

use super::comparison::{alike, are_most};
use super::row::{Attempt, begun, soaked};
use crate::gates;
use crate::survey::NodeContext;
use crate::survey::unwell::{LONGEST, comparison_nodes};
use crate::view::{ClusterView, NodeFacts, PodFacts};

/// The share of CPU, memory, disk and huge pages that has to be back. Their sizes differ a little from boot to boot and from version to
/// version.
const SHARE: f64 = 0.9;

/// Time in which an agent is connected and has reported once its node has passed its soak, or once the web API is back.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);

/// Suffixes of quantities.
const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// Returns the facts of a node that is about to be drained.
pub(super) fn facts(ctx: &NodeContext<'_>) -> NodeBefore {
    let own = ctx.facts();
    let version = ctx.version().ok();
    let is_alike = |facts: &&NodeFacts| {
        facts.name != own.name
            && facts.os_version().as_ref() != version
            && facts.is_well()
            && facts.taints.iter().all(|taint| own.taints.contains(taint))
            && own.allocatable.iter().all(|(name, size)| !has_less(facts, name, size))
            && csi_drivers(ctx.view, own).iter().all(|driver| csi_drivers(ctx.view, facts).contains(driver))
    };
    // Nodes are updated in the order of their names, mostly: the last ones stay as they are for the longest time.
    let mut alike: Vec<String> = comparison_nodes(ctx.view).filter(is_alike).map(|facts| facts.name.clone()).collect();
    alike.reverse();
    alike.truncate(MOST_COMPARED);
    let resources = own.allocatable.iter().filter(|(_, size)| size.len() <= MOST_DIGITS);
    NodeBefore {
        allocatable: resources.take(MOST_FACTS).map(|(name, size)| (name.clone(), size.clone())).collect(),
        taints: own.taints.iter().take(MOST_FACTS).cloned().collect(),
        csi_drivers: csi_drivers(ctx.view, own).iter().take(MOST_FACTS).cloned().collect(),
        daemon_sets: daemon_sets(ctx.node.pods.as_deref().unwrap_or_default()),
        replica_sets: replica_sets(ctx),
        static_pods: static_pods(ctx.node.pods.as_deref().unwrap_or_default()),
        quiet_expressions: gates::own_quiet(&ctx.group().after.checks, ctx.subject(), &ctx.view.expressions),
        compared_with: alike,
    }
}

/// Returns whether a node has an agent that has not reported in its boot.
fn is_unreported(ctx: &NodeContext<'_>) -> bool {
    ctx.facts().labelled && !ctx.has_reported()
}

/// Returns whether this was a moment ago.
fn is_recent(ctx: &NodeContext<'_>, time: Timestamp) -> bool {
    ctx.now < after(time, REPORTED_WITHIN)
}

/// Returns whether the agent has not reported because it could not: the web API is away, or was until a moment ago, which a new leader does
/// not know.
pub(super) fn awaits_web_api(ctx: &Attempt<'_>) -> bool {
    let is_away = ctx.view.web_api_missing.is_some()
        || ctx.view.web_api_outage.is_some_and(|outage| is_recent(ctx, outage.ended))
        || is_recent(ctx, ctx.view.leader_since);
    is_unreported(ctx) && is_away && ctx.now < after(begun(ctx), LONGEST)
}

/// Returns whether the agent may not have had the time for its report. A soak may be short, and may have begun late, with a second boot.
pub(super) fn awaits_report(ctx: &Attempt<'_>) -> bool {
    awaits_web_api(ctx) || (is_unreported(ctx) && is_recent(ctx, soaked(ctx)))
}

/// Returns what keeps the agent from taking the node to another version, as a clause. One that has reported in this boot and is not heard
/// any more has shown that it can; a node without the label has none.
fn lacks_agent(ctx: &Attempt<'_>) -> Option<String> {
    // The last report is of an earlier boot, then.
    if awaits_report(ctx) {
        return None;
    }
    let not_usable = gates::host_not_usable(ctx).filter(|_| ctx.facts().labelled).map(|wait| wait.to_string());
    let unreported = || is_unreported(ctx).then(|| "its agent has not reported since its boot".to_owned());
    not_usable.or_else(unreported)
}

/// Returns what a node lacks of what it had before its drain, each as a clause: its agent, and what is known of before. A drill changes
/// nothing else on the host.
pub(super) fn missing(ctx: &Attempt<'_>) -> Vec<String> {
    let agent = lacks_agent(ctx);
    let before = ctx.before();
    let Some(before) = before.filter(|_| !ctx.mode().is_drill()) else { return agent.into_iter().collect() };
    let alike = alike(ctx, before);
    let facts = ctx.facts();
    let resources = before.allocatable.iter().filter_map(|(name, had)| {
        // This node has lost no more of it than they have.
        let as_well =
            |other: &NodeFacts| has_less(other, name, had) && !has_less(facts, name, allocatable(other, name));
        let lost = || is_lost_elsewhere(&alike, as_well);
        let has = allocatable(facts, name);
        (has_less(facts, name, had) && !lost()).then(|| format!("{name} is {has} and was {had}"))
    });
    let is_new = |taint: &&String| {
        !before.taints.contains(taint) && !is_lost_elsewhere(&alike, |other| other.taints.contains(taint))
    };
    let taints = facts.taints.iter().filter(is_new).map(|taint| format!("the taint {taint} is new"));
    let lacks = |facts: &NodeFacts, driver: &String| {
        ctx.view.csi_nodes.is_some() && !csi_drivers(ctx.view, facts).contains(driver)
    };
    let is_gone = |driver: &&String| lacks(facts, driver) && !is_lost_elsewhere(&alike, |other| lacks(other, driver));
    let drivers = before.csi_drivers.iter().filter(is_gone).map(|driver| format!("the CSI driver {driver} is missing"));
    let has_no_pod = |set: &&OwnerBefore| ctx.group().after.pods_ready && is_without_pod(ctx, set);
    let sets = before.daemon_sets.iter().filter(has_no_pod);
    let sets = sets.map(|set| format!("the DaemonSet {} has no Ready pod", set.name));
    // The pods of other nodes are not known.
    let pods = ctx.node.pods.as_ref().filter(|_| ctx.group().after.pods_ready);
    let runs = |pod: &PodFacts, name: &str| pod.is_titled(name) && !pod.terminating && !pod.is_done();
    let is_away = |name: &&String| pods.is_some_and(|pods| !pods.iter().any(|pod| runs(pod, name)));
    let static_pods = before.static_pods.iter().filter(is_away);
    let static_pods = static_pods.map(|name| format!("the static pod {name} is not running"));
    agent.into_iter().chain(resources).chain(taints).chain(drivers).chain(sets).chain(static_pods).collect()
}

fn csi_drivers<'a>(view: &'a ClusterView, node: &NodeFacts) -> &'a [String] {
    let known = view.csi_nodes.as_ref().and_then(|known| known.get(&node.name));
    known.map(|known| &*known.drivers).unwrap_or_default()
}

/// Returns the DaemonSets with a Ready pod among these, each once.
fn daemon_sets(pods: &[PodFacts]) -> Vec<OwnerBefore> {
    let ready = pods.iter().filter(|pod| pod.ready && !pod.terminating);
    let sets = ready.filter_map(|pod| {
        let name = format!("{}/{}", pod.namespace, pod.daemon_set.as_ref()?);
        Some((name, pod.controller_uid.clone()?))
    });
    owners(sets, MOST_FACTS)
}

/// Returns the ReplicaSets of the pods that are about to be evicted, each once, one of each namespace first: the quota of one shows nothing
/// about the others.
fn replica_sets(ctx: &NodeContext<'_>) -> Vec<OwnerBefore> {
    let Some(sorted) = ctx.sorted_pods() else { return Vec::new() };
    let sets = sorted.evictable.iter().filter_map(|pod| {
        let name = pod.controller.as_deref()?.strip_prefix("ReplicaSet ")?;
        Some((format!("{}/{name}", pod.namespace), pod.controller_uid.clone()?))
    });
    let mut ranks: BTreeMap<String, usize> = BTreeMap::new();
    let ranked = owners(sets, usize::MAX).into_iter().map(|set| {
        let namespace = set.name.split('/').next().unwrap_or_default();
        let rank = ranks.entry(namespace.to_owned()).or_default();
        *rank += 1;
        (*rank, set)
    });
    let mut ranked: Vec<(usize, OwnerBefore)> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(MOST_REPLICA_SETS).map(|(_, set)| set).collect()
}

/// Returns the first few owners with these names and uids, each once.
fn owners(named: impl Iterator<Item = (String, String)>, most: usize) -> Vec<OwnerBefore> {
    let named: BTreeMap<String, String> = named.collect();
    named.into_iter().take(most).map(|(name, uid)| OwnerBefore { name, uid }).collect()
}

/// Returns the names of the Ready static pods among these. A kubelet starts them again with its host, and deletes the mirror pod of one whose
/// manifest is gone.
fn static_pods(pods: &[PodFacts]) -> Vec<String> {
    let ready = pods.iter().filter(|pod| pod.mirror && pod.ready && !pod.terminating && !pod.runs_to_completion);
    ready.map(PodFacts::title).take(MOST_FACTS).collect()
}

/// Returns whether a DaemonSet that still wants the node has no pod there that is more than about to start. Pods that are not healthy are
/// judged as such. Without the pods, or the DaemonSets, nothing is known.
fn is_without_pod(ctx: &NodeContext<'_>, set: &OwnerBefore) -> bool {
    let (Some(pods), Some(known)) = (&ctx.node.pods, &ctx.view.daemon_sets) else { return false };
    let of_set = |pod: &&PodFacts| pod.controller_uid.as_ref() == Some(&set.uid) && !pod.terminating;
    let runs = pods.iter().filter(of_set).any(|pod| !pod.is_starting(ctx.now));
    let known = known.get(&set.name).filter(|known| known.uid == set.uid);
    !runs && known.is_some_and(|known| known.wants(&ctx.facts().name, &ctx.facts().labels))
}

/// Returns whether it is the cluster's doing: most of the nodes that were like this one have changed in the same way.
fn is_lost_elsewhere(alike: &[&NodeFacts], lost: impl Fn(&NodeFacts) -> bool) -> bool {
    are_most(alike.iter().filter(|facts| lost(facts)).count(), alike.len())
}

fn is_device(resource: &str) -> bool {
    resource.contains('/')
}

/// Returns whether a node has less of a resource than this.
fn has_less(facts: &NodeFacts, name: &str, than: &str) -> bool {
    is_less(name, allocatable(facts, name), than)
}

fn allocatable<'a>(facts: &'a NodeFacts, name: &str) -> &'a str {
    facts.allocatable.get(name).map_or("0", String::as_str)
}

/// Returns whether a node has less of a resource than it had. Quantities that cannot be read say nothing.
fn is_less(resource: &str, has: &str, had: &str) -> bool {
    let share = if is_device(resource) { 1.0 } else { SHARE };
    quantity(has).zip(quantity(had)).is_some_and(|(has, had)| has < had * share)
}

/// Reads a quantity as Kubernetes writes it, such as `8`, `7910m` or `31Gi`.
fn quantity(text: &str) -> Option<f64> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let with_suffix = || SUFFIXES.iter().find_map(|(suffix, size)| Some(number(text.strip_suffix(suffix)?)? * size));
    number(text).or_else(with_suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_as_kubernetes_writes_them() {
        for (resource, has, had, less) in [
            ("nvidia.com/gpu", "8", "8", false),
            ("nvidia.com/gpu", "7", "8", true),
            ("nvidia.com/gpu", "0", "1", true),
            ("nvidia.com/gpu", "15", "16", true),
            ("example.com/kvm", "1k", "1000", false),
            ("cpu", "7910m", "8", false),
            ("cpu", "4", "7910m", true),
            ("memory", "29Gi", "32Gi", false),
            ("memory", "28Gi", "32Gi", true),
            ("memory", "33000000Ki", "33Gi", false),
            ("ephemeral-storage", "95551679124", "1e11", false),
            ("hugepages-2Mi", "0", "64Mi", true),
            ("memory", "unreadable", "32Gi", false),
        ] {
            assert_eq!(is_less(resource, has, had), less, "{resource}: {has} after {had}");
        }
    }
}
