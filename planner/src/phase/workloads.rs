//! The pods of workloads on an updated node. Where none comes, the pods that its drain evicted may be impossible to create, by a webhook that
//! fails or a full quota for example: each further drain would take more of them away.

use std::time::Duration;

use jiff::Timestamp;
use models::plain::some;
use models::reason::FailureReason;
use models::shadow::OwnerBefore;
use models::time::after;

use super::drained::OBSERVED;
use super::result::running;
use super::row::{Attempt, Turn, act, fail};
use crate::decision::Action;
use crate::survey::NodeContext;
use crate::view::PodFacts;

/// Time after which the pods of an owner, or the ReplicaSets of a drain, are read again; at the deadline sooner.
pub(super) const READ_AGAIN: Duration = Duration::from_secs(5 * 60);

/// The number of ReplicaSets without their pods that show more than the trouble of one workload.
const SHOW: usize = 2;

/// The number of ReplicaSets that a message names.
const NAMED: usize = 4;

/// Returns the pods of workloads that the kubelet has rejected since the verification began.
pub(super) fn rejected<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    let since = ctx.node.progress().map(|progress| progress.verifying_since.unwrap_or(progress.since));
    let pods = ctx.node.node.pods.iter().flatten();
    let workloads = pods.filter(|pod| pod.rejected && pod.is_of_workload());
    // Kubelets write whole seconds.
    let is_new = move |at: Timestamp| since.is_some_and(|since| after(at, Duration::from_secs(1)) > since);
    workloads.filter(move |pod| pod.started.is_some_and(is_new))
}

/// Returns whether no pod of a workload has come to the node, as far as its pods are known.
pub(super) fn is_without_workloads(ctx: &NodeContext<'_>) -> bool {
    ctx.node.pods.is_some() && running(ctx).is_empty() && rejected(ctx).next().is_none()
}

/// Returns the clause that names the ReplicaSets whose pods were evicted and not created again, where the node is without workloads and
/// none shows that pods are created; or the ReplicaSet that has to be read for that.
pub(super) fn uncreated<'a>(ctx: &Attempt<'a>, deadline: Timestamp) -> Result<Option<String>, &'a OwnerBefore> {
    let before = ctx.before().filter(|_| ctx.group().after.pods_ready && !ctx.mode().is_drill());
    let sets = before.map(|before| &*before.replica_sets).unwrap_or_default();
    if sets.len() < SHOW || !is_without_workloads(ctx) || is_any_created(ctx) {
        return Ok(None);
    }
    for set in sets {
        match lacks_pods(ctx, set, deadline) {
            Some(true) => {}
            Some(false) => return Ok(None),
            None => return Err(set),
        }
    }
    let names = some(sets.iter().map(|set| &set.name), NAMED);
    Ok(Some(format!(
        "pods of {names} were evicted, and none was created again: see the Events of these ReplicaSets (admission \
         webhooks, quotas)"
    )))
}

/// Reads a ReplicaSet, again while its state is unknown. At `limit` the attempt ends without a proof.
pub(super) fn read_replica_set(ctx: &Attempt<'_>, set: &OwnerBefore, limit: Timestamp) -> Turn {
    if ctx.now < limit {
        return act(Action::ReadReplicaSet { set: set.clone() });
    }
    let message = format!(
        "whether evicted pods are created again could not be found out: the ReplicaSet {} could not be read; see the log of \
         the controller",
        set.name
    );
    fail(FailureReason::HealthUnknown, message)
}

/// Returns the time at which the drain of the node began. A verification has no drain of its own.
pub(super) fn drain_began(ctx: &Attempt<'_>) -> Timestamp {
    ctx.progress.rollout.as_ref().and_then(|place| place.drain_started).unwrap_or(ctx.progress.started)
}

/// Returns whether a pod of a workload on a watched node was created since the drain began.
fn is_any_created(ctx: &Attempt<'_>) -> bool {
    // Both times are cut to whole seconds, and are of two clocks.
    let since = after(drain_began(ctx), OBSERVED);
    let is_new = |pod: &PodFacts| {
        pod.controller_uid.is_some() && pod.is_of_workload() && pod.created.is_some_and(|created| created > since)
    };
    ctx.view.nodes.values().filter_map(|node| node.pods.as_ref()).flatten().any(is_new)
}

/// Returns whether a ReplicaSet has fewer pods than it wants; `None` where it has to be read for that.
fn lacks_pods(ctx: &Attempt<'_>, set: &OwnerBefore, deadline: Timestamp) -> Option<bool> {
    let health = ctx.node.owners.get(&set.uid)?;
    let is_recent = ctx.now < deadline && after(health.read_at, READ_AGAIN) > ctx.now;
    health.lacks_pods.filter(|_| is_recent || health.read_at >= deadline)
}
