//! The result of an ended attempt, as the rollout history will hold it. It waits on the shadow until a page holds it, in the
//! write that ends the attempt: no kill of this process can lose it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use models::plain::cut;
use models::shadow::{
    ControllerStatus, DrainedPod, HistoryPosition, MOST_RESULTS, Place, PodMove, Progress, RECORDED_BUDGETS,
    RECORDED_RUNNING, RECORDED_SERVICES, RolloutResult, Step,
};

use super::requests::acknowledge_release;
use super::row::Attempt;
use super::status::unblock;
use crate::history::{RECORD_UNREADABLE, WAITING};
use crate::survey::NodeContext;
use crate::view::PodFacts;

/// The largest size of the results of one shadow, and of the pods that its drain lists, as JSON. With more, the oldest results
/// are dropped. The API server stores no object of more than 1.5 MiB.
const MOST_BYTES: usize = 320 * 1024;

/// The number of pods that fit whatever they are called: a name has up to 253 characters, and each may be guarded by that many
/// budgets and Services.
const FITTING: usize = MOST_BYTES / (1024 + 256 * (RECORDED_BUDGETS + RECORDED_SERVICES));

/// The longest explanation.
const MESSAGE: usize = 512;

/// Marks the listed pods that are gone as evicted, unless they were marked to be deleted by force, and those that are still
/// there as `left` returns.
pub(super) fn mark_moved(ctx: &NodeContext<'_>, pods: &mut [DrainedPod], left: impl Fn(&PodFacts) -> Option<PodMove>) {
    let Some(on_node) = &ctx.node.pods else { return };
    let there: HashMap<&str, &PodFacts> = on_node.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    for pod in pods {
        pod.moved = match there.get(pod.uid.as_str()) {
            Some(found) => left(found),
            None => pod.moved.filter(|moved| *moved == PodMove::Forced).or(Some(PodMove::Evicted)),
        };
    }
}

/// The pods that run on the node, without those that are there on every node.
pub(super) fn running(ctx: &NodeContext<'_>) -> Vec<String> {
    let pods = ctx.node.pods.iter().flatten();
    let pods = pods.filter(|pod| !pod.finished && !pod.terminating && pod.is_of_workload());
    let names: BTreeSet<String> = pods.map(PodFacts::title).collect();
    names.into_iter().take(RECORDED_RUNNING).collect()
}

/// Adds the result of the attempt to a status that is about to be written, whose drain is still the attempt's.
pub(super) fn keep_result(
    ctx: &Attempt<'_>,
    status: &mut ControllerStatus,
    result: &str,
    message: &str,
    running: Vec<String>,
) {
    let progress = ctx.progress;
    // Without a place, the boot in which it began is not known.
    let unknown = || HistoryPosition { boot_id: String::new(), ..ctx.place(&progress.version) };
    let HistoryPosition { rollout, step, boot_id, drain_started, drain_ended } =
        progress.rollout.clone().unwrap_or_else(unknown);
    let rollout = if rollout == 0 && progress.drill.is_none() { ctx.place(&progress.version).rollout } else { rollout };
    let mut pods = status.report.drain.as_ref().map(|drain| drain.pods.clone()).unwrap_or_default();
    if ctx.phase.step.place() == Place::Leaving && !ctx.mode().is_dry() {
        mark_moved(ctx, Arc::make_mut(&mut pods), |_| None);
    }
    let results = &mut status.report.results;
    results.push(Arc::new(RolloutResult {
        rollout,
        step,
        attempt: progress.attempt,
        from: progress.from.clone(),
        to: progress.version.clone(),
        result: result.to_owned(),
        drill: progress.drill.clone(),
        message: cut(message, MESSAGE),
        started: progress.started,
        drain_started,
        drain_ended,
        soak_started: progress.verifying_since,
        ended: ctx.now,
        boot_before: boot_id,
        boot_after: ctx.facts().boot_id.clone(),
        pods,
        running,
    }));
    let state = ctx.view.history.state.as_ref();
    let refused =
        state.is_some_and(|(recorded, reason, _)| !recorded && ![WAITING, RECORD_UNREADABLE].contains(reason));
    let most = if refused { 1 } else { MOST_RESULTS };
    let size = |result: &Arc<RolloutResult>| serde_json::to_vec(result).map_or(0, |text| text.len());
    while results.len() > most || (results.len() > 1 && results.iter().map(size).sum::<usize>() > MOST_BYTES) {
        results.remove(0);
    }
}

/// Returns the pods of a drain with no more facts than the shadow has room for: those beyond keep what identifies them.
pub(super) fn bounded(mut pods: Vec<DrainedPod>) -> Vec<DrainedPod> {
    if pods.len() <= FITTING {
        return pods;
    }
    let mut size = 0;
    for pod in &mut pods {
        size += serde_json::to_vec(pod).map_or(0, |text| text.len());
        if size > MOST_BYTES {
            *pod = DrainedPod {
                namespace: std::mem::take(&mut pod.namespace),
                name: std::mem::take(&mut pod.name),
                uid: std::mem::take(&mut pod.uid),
                moved: pod.moved,
                ..DrainedPod::default()
            };
        }
    }
    pods
}

/// Has the node released, in a status that is about to be written.
pub(super) fn release(ctx: &Attempt<'_>, status: &mut ControllerStatus) {
    let permit_issued = may_reboot(ctx);
    status.report.progress =
        Some(Progress { step: Step::Releasing, since: ctx.now, permit_issued, ..ctx.progress.clone() });
    acknowledge_release(ctx, status);
    unblock(status);
}

/// Returns whether the host may still act on a permit of this attempt. One is valid in the boot that its desired state names:
/// in another one there is nothing left to wait for. By a rehearsal permit no host reboots.
pub(super) fn may_reboot(ctx: &Attempt<'_>) -> bool {
    let spent = ctx.shadow.spec.boot_id.as_ref().is_some_and(|boot| *boot != ctx.facts().boot_id);
    !spent && ctx.permit_issued(ctx.progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_beyond_the_room_keep_what_identifies_them() {
        let pod = |number: usize| DrainedPod {
            namespace: "shop".into(),
            name: format!("p-{number}"),
            uid: format!("uid-{number}"),
            owner: Some("o".repeat(4096)),
            moved: Some(PodMove::Forced),
            ..DrainedPod::default()
        };
        let pods: Vec<DrainedPod> = (0..200).map(pod).collect();
        let found = bounded(pods.clone());
        let identity = |pod: &DrainedPod| (pod.namespace.clone(), pod.name.clone(), pod.uid.clone(), pod.moved);
        assert!(found.iter().map(identity).eq(pods.iter().map(identity)));
        assert!(found[0].owner.is_some() && found[199].owner.is_none());
        assert_eq!(bounded(pods[..2].to_vec()), pods[..2]);
    }
}
