//! The pods of an updated node that are not healthy.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::time::after;

use super::workloads::rejected;
use crate::survey::NodeContext;
use crate::view::PodFacts;

/// The number of pods that a message names.
const NAMED: usize = 4;

/// The pods on the node that have to be healthy after its update; `None` while they are not known. Pods that are to end by
/// themselves, as those of Jobs, are left out. The kubelet may reject pods, which their controllers create again and again: of each owner
/// the last one is among them.
pub(super) fn pods_to_verify<'a>(ctx: &NodeContext<'a>) -> Option<Vec<&'a PodFacts>> {
    if !ctx.group().after.pods_ready {
        return Some(Vec::new());
    }
    let pods = ctx.node.node.pods.as_ref()?;
    let verified =
        |pod: &&PodFacts| !pod.is_done() && !pod.is_replaced(pods) && !pod.terminating && !pod.runs_to_completion;
    Some(pods.iter().filter(verified).chain(last_rejected(ctx)).collect())
}

/// Returns the pod that was rejected last of each owner that has no Ready pod on the node.
fn last_rejected<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    let mut last: BTreeMap<&str, &PodFacts> = BTreeMap::new();
    for pod in rejected(ctx).filter(|pod| !pod.runs_to_completion) {
        let Some(owner) = pod.controller_uid.as_deref() else { continue };
        let found = last.entry(owner).or_insert(pod);
        if pod.started > found.started {
            *found = pod;
        }
    }
    for pod in ctx.node.node.pods.iter().flatten().filter(|pod| pod.ready) {
        pod.controller_uid.as_deref().map(|owner| last.remove(owner));
    }
    last.into_values()
}

/// The pods that are not Ready, or had a container restarted less than the soak ago.
pub(super) fn unhealthy_pods<'b>(ctx: &NodeContext<'_>, pods: &[&'b PodFacts]) -> Vec<UnhealthyPod<'b>> {
    let soak = ctx.group().after.soak;
    let unhealthy = |pod: &&'b PodFacts| {
        let restarted = pod.restarted_at.filter(|at| after(*at, soak) > ctx.now);
        match (pod.ready, restarted) {
            (false, _) => Some(UnhealthyPod { pod, until: None }),
            (true, Some(at)) => Some(UnhealthyPod { pod, until: Some(after(at, soak)) }),
            (true, None) => None,
        }
    };
    pods.iter().filter_map(unhealthy).collect()
}

/// Names the first few of these pods, each with the reason why it is not healthy.
pub(super) fn named(unhealthy: &[UnhealthyPod<'_>]) -> String {
    let names = unhealthy.iter().take(NAMED).map(|one| format!("{} ({})", one.pod.title(), one.why()));
    names.collect::<Vec<_>>().join(", ")
}

/// A pod that is not healthy on an updated node.
#[derive(Clone, Copy)]
pub(super) struct UnhealthyPod<'a> {
    pub(super) pod: &'a PodFacts,
    /// The time at which it counts as healthy again if nothing happens to it.
    pub(super) until: Option<Timestamp>,
}

impl UnhealthyPod<'_> {
    /// Returns the reason why it is not healthy.
    pub(super) fn why(&self) -> String {
        match self.pod.restarted_at.filter(|_| self.until.is_some()) {
            Some(at) => format!("a container was restarted at {at}"),
            None => self.pod.trouble.clone().unwrap_or_default(),
        }
    }
}
