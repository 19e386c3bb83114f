//! Rollouts that more than one agent's word stands for: one agent's word changes nothing beyond its own node.

use models::operator::ActiveRollout;
use semver::Version;

use super::key::{Targets, is_member};
use super::ledger::{is_of, runs};
use crate::view::{ClusterView, NodeView};

/// The number of nodes that have to be offered a version for it to be known: the report of one host may be wrong.
const SEVERAL: usize = 2;

/// Returns how many of the nodes of a kind that report their offers have to be offered a version. One of them may have
/// an agent that reports no more: without the others it must not keep an age from beginning.
pub(super) fn enough(reporting: usize) -> usize {
    SEVERAL.min(reporting.saturating_sub(1)).max(1)
}

/// Returns whether more than one agent's word stands for a rollout: something was done to a node for it, or as
/// many nodes of its kind as a version needs to be known are offered it, or run it. Their Nodes name that kind, so that no agent is alone in
/// one that it has invented.
pub(super) fn is_vouched(view: &ClusterView, rollout: &ActiveRollout) -> bool {
    if is_acted_on(view, rollout) {
        return true;
    }
    let members = || view.nodes.values().filter(|node| is_member(node, rollout));
    let (mut nodes, mut named) = (0, 0);
    for node in members().filter(|node| node.facts.labelled) {
        nodes += 1;
        named += usize::from(names(node, &rollout.version));
    }
    named >= enough(nodes)
}

/// Returns whether something was done to a node for a rollout: a slot was given for it, a node is out of service for it, or was so in an
/// attempt that has ended and is in no record.
pub(super) fn is_acted_on(view: &ClusterView, rollout: &ActiveRollout) -> bool {
    let mut slots = view.recorded_slots().filter_map(|slot| slot.update.as_ref());
    let mut members = view.nodes.values().filter(|node| is_member(node, rollout));
    slots.any(|update| is_of(update, rollout))
        || members.any(|node| is_out_for(node, &rollout.version) || was_out_for(node, &rollout.version))
}

/// Returns whether something was done to a node for a rollout, or a node lacks its version by more than the report of
/// its agent: its Node does not contradict that. A node that runs a later version lacks it only where it is to have it,
/// as `targets` say, or is on its way.
pub(super) fn is_lacked(view: &ClusterView, rollout: &ActiveRollout, targets: &Targets<'_>) -> bool {
    let lacks = |node: &NodeView| {
        let reported = node.shadow.as_ref().and_then(|shadow| shadow.status.agent.current_version.clone());
        let agrees = reported.is_none() || reported == node.running();
        let is_on_its_way = node.update().is_some_and(|progress| progress.version == rollout.version);
        let is_wanted = || is_on_its_way || targets.contains(&(node.facts.uid.as_str(), &rollout.version));
        let is_lacking = || !runs(node, rollout) && (node.is_behind(&rollout.version) || is_wanted());
        (is_on_its_way && node.past_staging()) || (node.facts.labelled && agrees && is_lacking())
    };
    is_acted_on(view, rollout) || view.nodes.values().any(|node| is_member(node, rollout) && lacks(node))
}

fn is_out_for(node: &NodeView, version: &Version) -> bool {
    node.disrupted() && node.update().is_some_and(|progress| progress.version == *version)
}

fn was_out_for(node: &NodeView, version: &Version) -> bool {
    let results = node.shadow.iter().flat_map(|shadow| &shadow.status.controller.results);
    let mut unrecorded = results.filter(|result| result.rollout == 0 && result.drill.is_none());
    unrecorded.any(|result| result.to == *version && result.drain_started.is_some())
}

/// Returns whether the host of a node is offered a version, or runs it.
fn names(node: &NodeView, version: &Version) -> bool {
    let Some(agent) = node.shadow.as_ref().map(|shadow| &shadow.status.agent) else { return false };
    let offers = agent.updates.as_ref().is_some_and(|updates| {
        updates.chosen_version.as_ref() == Some(version) || updates.available_versions.contains(version)
    });
    offers || agent.current_version.as_ref() == Some(version)
}

#[cfg(test)]
mod tests {
    use models::history::RolloutPhase::{self, Completed, Running};
    use models::operator::RolloutRecord;
    use models::shadow::{OfferedUpdates, Progress, Step};

    use super::*;
    use crate::fixtures::{NEW, OLD, cluster, node, progress, recorded, rollout, t};
    use crate::plan::plan;

    /// A node whose Node and agent name these versions.
    fn running(name: &str, (by_node, by_agent): (&Version, &Version)) -> NodeView {
        let mut node = node(name);
        node.facts.os_image = format!("Bottlerocket OS {by_node} (aws-k8s-1.37)");
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(by_agent.clone());
        let chosen_version = (*by_agent != NEW).then_some(NEW);
        agent.updates = Some(OfferedUpdates { chosen_version, ..OfferedUpdates::default() });
        node
    }

    #[test]
    fn agent_that_contradicts_its_node_neither_begins_a_record_nor_keeps_one_open_nor_ends_it() {
        type Case<'a> = (&'a str, RolloutPhase, (&'a Version, &'a Version), &'a str, (i64, RolloutPhase));
        let (variant, other) = ("aws-k8s-1.37", "aws-k8s-1.38");
        let cases: [Case<'_>; 6] = [
            ("it runs an earlier version", Completed, (&OLD, &OLD), variant, (2, Running)),
            ("it reports an earlier version", Completed, (&NEW, &OLD), variant, (1, Completed)),
            ("it reports the kind of others", Completed, (&OLD, &OLD), other, (1, Completed)),
            ("it runs an earlier version", Running, (&OLD, &OLD), variant, (1, Running)),
            ("it reports an earlier version", Running, (&NEW, &OLD), variant, (1, Completed)),
            ("it reports the version", Running, (&OLD, &NEW), variant, (1, Running)),
        ];
        // A node of a later version needs no update to this one.
        let later = Version::new(1, 20, 6);
        for (beside, (sentence, phase, versions, of_node, expected)) in
            [false, true].into_iter().flat_map(|beside| cases.map(|case| (beside, case)))
        {
            let mut last = running("c", versions);
            last.facts.os_image = last.facts.os_image.replace(variant, of_node);
            last.correct_kind();
            let mut nodes = vec![running("a", (&NEW, &NEW)), running("b", (&NEW, &NEW)), last];
            nodes.extend(beside.then(|| running("d", (&later, &later))));
            let (mut view, policy) = cluster(nodes, &[]);
            view.history.highest = Some(1);
            let ended = (phase == Completed).then(|| t(1));
            let record = RolloutRecord { phase, ended, ..recorded(1) };
            let status = &mut view.operator.as_mut().unwrap().status;
            status.active_rollouts = vec![ActiveRollout { record: Some(record), ..rollout(NEW) }];
            let status = plan(&view, &policy, t(2)).status.unwrap();
            let of_kind = status.active_rollouts.iter().filter(|rollout| rollout.variant == variant);
            let records = of_kind.filter_map(|rollout| rollout.record.as_ref());
            let newest = records.max_by_key(|record| record.number).map(|record| (record.number, record.phase));
            assert_eq!(newest, Some(expected), "{sentence}, after {phase:?}, beside a later version: {beside}");
        }
    }

    /// The version is not the target of any node.
    #[test]
    fn node_on_its_way_to_a_version_lacks_it_also_where_it_runs_a_later_one() {
        type Change = fn(&mut NodeView);
        fn begins(node: &mut NodeView, step: Step, version: Version) {
            let begun = Progress { version, ..progress(step, 0) };
            node.shadow.as_mut().unwrap().status.controller.progress = Some(begun);
        }
        let later = Version::new(1, 20, 6);
        let case = |sentence: &str, runs: &Version, lacked: bool, change: Change| {
            let mut node = running("a", (runs, runs));
            change(&mut node);
            let (view, _) = cluster(vec![node], &[]);
            assert_eq!(is_lacked(&view, &rollout(NEW), &Targets::new()), lacked, "{sentence}");
        };
        case("it runs an earlier one", &OLD, true, |_| {});
        case("it runs a later one", &later, false, |_| {});
        case("it runs a later one, and its image is downloaded", &later, true, |a| begins(a, Step::Staging, NEW));
        case("it runs it, and is drained for another one", &NEW, false, |a| begins(a, Step::Draining, OLD));
        case("its image is downloaded, and its label is gone", &OLD, false, |a| {
            a.facts.labelled = false;
            begins(a, Step::Staging, NEW);
        });
    }

    #[test]
    fn rollout_was_acted_on_where_an_update_that_is_in_no_record_took_its_node_out_of_service() {
        let drill = Some(serde_json::json!({"request": "1"}));
        for (sentence, number, drill, acted_on) in [
            ("an update without a record", 0, None, true),
            ("an update of a record", 7, None, false),
            ("a drill", 0, drill, false),
        ] {
            let result = serde_json::json!({
                "rollout": number, "step": 0, "attempt": 1, "to": NEW, "result": "x", "drill": drill,
                "started": t(0), "drainStarted": t(0), "ended": t(1),
            });
            let mut node = node("a");
            node.shadow.as_mut().unwrap().status.controller.results =
                vec![std::sync::Arc::new(serde_json::from_value(result).unwrap())];
            let (view, _) = cluster(vec![node], &[]);
            assert_eq!(is_acted_on(&view, &rollout(NEW)), acted_on, "{sentence}");
        }
    }
}
