//! The ledger of a rollout: what is used up and proven, read from the operator's status and from the nodes.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{ActiveRollout, BrakeLimit, LedgerNode, RolloutLedger, RolloutRecord, Slot, SlotUpdate};
use models::reason::{End, FailureClass, FailureReason, Proof};
use models::shadow::{AttemptResult, UPDATED};
use models::time::after;
use semver::Version;

use super::key::is_member;
use super::unavailable::comes_or_goes;
use crate::policy::{Policy, Target};
use crate::view::{ClusterView, NodeView};

/// Time after which the proof of a node that is not Ready does not count any more, and for which the node has to be well again, at the least, to
/// count. A machine that is shut down without a taint or a cordon, as an autoscaler may have it, is gone before.
pub(super) const LOST: Duration = Duration::from_secs(3 * 60);

/// Returns whether the update of a slot is part of a rollout.
pub(crate) fn is_of(update: &SlotUpdate, rollout: &ActiveRollout) -> bool {
    (&update.variant, &update.arch, &update.version) == (&rollout.variant, &rollout.arch, &rollout.version)
}

/// Returns the place that a node has in a rollout; `None` without one, also where it is of an earlier rollout of the version.
pub(crate) fn place(node: &NodeView, rollout: &ActiveRollout) -> Option<Proof> {
    let proof = node.record()?.proof.as_ref().filter(|proof| proof.version == rollout.version)?;
    let ours = proof.rollout >= first(rollout) && is_member(node, rollout);
    ours.then_some(proof.proof).filter(|proof| *proof != Proof::Free)
}

/// Returns whether a node takes no further place of a rollout, since it has one. One that had fallen and has left the version since does not
/// return to it past a step that waits for a user because of that.
pub(super) fn keeps_place(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let has_fallen = |named: &LedgerNode| named.node == node.facts.name && named.has_fallen() && !named.accepted;
    let fell = || rollout.ledger.iter().flat_map(|ledger| &ledger.nodes).any(has_fallen);
    place(node, rollout).is_some() && (runs(node, rollout) || !fell())
}

/// Returns whether the place of a node was freed after its attempt: it came back on another version than that of the rollout.
fn is_freed(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let proof = node.record().and_then(|record| record.proof.as_ref());
    proof.is_some_and(|proof| proof.proof == Proof::Free && proof.version == rollout.version)
        && is_member(node, rollout)
}

/// Returns the number of the first record of a rollout; 0 while none is known.
fn first(rollout: &ActiveRollout) -> i64 {
    let of_record = || rollout.record.as_ref().map_or(0, RolloutRecord::first_number);
    rollout.ledger.as_ref().map(|ledger| ledger.first).filter(|first| *first > 0).unwrap_or_else(of_record)
}

/// Returns the place of a node whose result an earlier version of the operator wrote, which recorded none: what ran out well is
/// proven, and what runs the version in spite of its end is not.
pub(super) fn inferred(node: &NodeView, rollout: &ActiveRollout) -> Option<Proof> {
    let last = node.record()?.last.as_ref().filter(|last| last.version == rollout.version)?;
    if last.ended < rollout.started {
        return None;
    }
    if last.reason == UPDATED {
        return Some(Proof::Proven);
    }
    if End::of(&last.reason).is_some_and(|end| end.class == FailureClass::Version) {
        let unresolved = |failure: &models::shadow::VersionFailure| {
            failure.version == rollout.version && failure.resolved_by.is_none()
        };
        return node.record()?.version_failures.iter().any(unresolved).then_some(Proof::Failed);
    }
    runs(node, rollout).then_some(Proof::Unproven)
}

/// Returns whether a node runs the version of a rollout.
pub(crate) fn runs(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let reported = || node.shadow.as_ref()?.status.agent.current_version.clone();
    node.facts.os_version().or_else(reported).is_some_and(|running| running == rollout.version)
}

/// Returns whether a node may be left of a rollout: it may lack the version, and if it runs a later one, policy leads back from that.
pub(crate) fn may_lack(node: &NodeView, rollout: &ActiveRollout, target: &Target) -> bool {
    let lacks = |running: Version| running < rollout.version || (running > rollout.version && !target.allows(&running));
    node.running().is_none_or(lacks)
}

/// Returns whether a node is managed, in service, and neither held nor being removed.
fn is_kept(node: &NodeView) -> bool {
    node.facts.labelled && !node.facts.held() && !node.disrupted() && !comes_or_goes(node)
}

/// Returns whether a node has proven the version of a rollout and runs it.
pub(super) fn is_proven(node: &NodeView, rollout: &ActiveRollout) -> bool {
    is_kept(node) && place(node, rollout) == Some(Proof::Proven) && runs(node, rollout)
}

/// Returns the time from which a node that was not Ready or under pressure counts again, where it is in service with the version that it has
/// proven: as for its proof, it has to be well for its soak, and for `least`, since one that goes down again and again is well in between. `None`
/// also where the API server does not show since when it is.
pub(super) fn counts_from(
    node: &NodeView,
    policy: &Policy,
    rollout: &ActiveRollout,
    least: Duration,
) -> Option<Timestamp> {
    let facts = &node.facts;
    let in_service = !facts.cordoned_by_others() && is_proven(node, rollout);
    let since = facts.well_since().filter(|_| in_service)?;
    Some(after(since, policy.for_node(facts).after.soak.max(least)))
}

/// Returns whether a node runs the version of a rollout, or may come back with it.
pub(crate) fn may_run(node: &NodeView, rollout: &ActiveRollout) -> bool {
    runs(node, rollout) || node.may_still_reboot()
}

/// Drops ends from before a proof whose nodes show that they have proven the version or run another one. A node that is gone, held or not
/// under the operator shows neither: the end is what is known of it. Nor does one that had fallen, and was taken to another version, show
/// anything about this one.
pub(crate) fn forget_resolved(
    (view, policy): (&ClusterView, &Policy),
    rollout: &ActiveRollout,
    ledger: &mut RolloutLedger,
    now: Timestamp,
) {
    let RolloutLedger { nodes, row, .. } = ledger;
    let has_proof = |end: &LedgerNode| {
        let node = view.nodes.get(&end.node);
        // The record of one that had fallen is of the time before. It counts as such for as long as the ledger names it so.
        let is_named = || nodes.iter().any(|named| named.node == end.node && named.has_fallen());
        let is_back = |node: &NodeView| counts_from(node, policy, rollout, LOST).is_some_and(|from| from <= now);
        let counts = |node: &NodeView| !end.has_fallen() || (!is_named() && is_back(node));
        node.is_some_and(|node| place(node, rollout) == Some(Proof::Proven) && counts(node))
    };
    let has_left = |end: &LedgerNode| !end.has_fallen() && !may_run_unproven(view, rollout, end);
    row.retain(|end| !end.before_proof || !(has_left(end) || has_proof(end)));
}

/// Returns whether an end in the row of a brake lets no node be tried: its node may run the version without a proof.
pub(crate) fn stops_trials(
    (view, rollout): (&ClusterView, &ActiveRollout),
    ledger: &RolloutLedger,
    end: &LedgerNode,
    limit: BrakeLimit,
) -> bool {
    ledger.brakes_by(end, limit) && may_run_unproven(view, rollout, end)
}

/// Returns whether a node of the row of a brake may run the version without a proof. One that is gone may run it somewhere, unless its
/// end says that it does not, and cannot show any more that it is good.
fn may_run_unproven(view: &ClusterView, rollout: &ActiveRollout, end: &LedgerNode) -> bool {
    let fell_back = || {
        FailureReason::BootFellBack.as_str() == end.reason || FailureReason::BootedOtherVersion.as_str() == end.reason
    };
    // The Node had the result of its attempt: one without any result is that of another machine under the same name.
    let had_result = end.reason != FailureReason::NodeDeleted.as_str();
    let is_other = |node: &NodeView| had_result && node.record().is_none_or(|record| record.last.is_none());
    let node = view.nodes.get(&end.node).filter(|node| !is_other(node));
    let may_run = match (node, view.unmanaged.get(&end.node)) {
        (Some(node), _) => may_run(node, rollout),
        (None, Some(facts)) => facts.os_version().as_ref() == Some(&rollout.version),
        (None, None) => !fell_back(),
    };
    end.proof != Proof::Free && may_run
}

/// The memory that there is of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The entry of the rollout in the status of the operator.
    Entry,
    /// None, but others of its kind are remembered: it begins now.
    New,
    /// None at all, as after the operator's resource was deleted and made again.
    Nothing,
}

/// Returns the ledger of a rollout as it is recorded, or, where it is missing or behind, as the nodes show it. One that is
/// missing is never read as empty. `is_back` says of a node that is named as not well any more whether it counts again.
pub(super) fn of(
    view: &ClusterView,
    rollout: &ActiveRollout,
    memory: Memory,
    is_back: impl Fn(&LedgerNode, &NodeView) -> bool,
) -> RolloutLedger {
    // The place of a node with a slot is counted when the slot is taken away, by the write that does so.
    let is_held = |slot: &&Slot| slot.update.as_ref().is_some_and(|update| is_of(update, rollout));
    let held: HashSet<&str> = view.recorded_slots().filter(is_held).map(|slot| slot.uid.as_str()).collect();
    let counts = |node: &&NodeView| is_member(node, rollout) && !held.contains(node.facts.uid.as_str());
    let count = |read: &dyn Fn(&NodeView) -> Option<Proof>| {
        let mut ledger = RolloutLedger::default();
        for node in view.nodes.values().filter(counts) {
            if let Some(proof) = read(node) {
                ledger.move_node(None, (&node.facts.name, proof, &reason_of(node)));
            }
        }
        ledger
    };
    match (&rollout.ledger, memory) {
        (Some(stored), _) => {
            let seen = count(&|node| place(node, rollout));
            if seen.used() <= stored.used() {
                return followed(view, rollout, stored, (&held, is_back));
            }
            let mut row = stored.clone();
            if seen.proven > stored.proven {
                // More are proven than it knew.
                row.proven_by("");
            }
            let RolloutLedger { row, tried, braked_until, braked_among, .. } = row;
            let RolloutLedger { first, base, passed, due, share, accepted, .. } = *stored;
            let accepted = accepted.min(seen.unproven);
            let brake = RolloutLedger { row, tried, braked_until, braked_among, ..seen };
            RolloutLedger { first, base, passed, due, share, accepted, ..brake }
        }
        (None, Memory::Entry) => {
            let read = |node: &NodeView| place(node, rollout).or_else(|| inferred(node, rollout));
            with_row(count(&read), view.nodes.values().filter(counts), rollout, read, Some(rollout.started))
        }
        // None of the records that there are is one of it.
        (None, Memory::New) => RolloutLedger { first: i64::MAX, ..RolloutLedger::default() },
        // Numbers of rollouts may begin again with a new resource: what a node has shown of the version counts.
        (None, Memory::Nothing) => {
            let any = ActiveRollout { record: None, ..rollout.clone() };
            let read = |node: &NodeView| {
                let proof = place(node, &any)?;
                (proof == Proof::Failed || runs(node, rollout)).then_some(proof)
            };
            // The places of nodes that have left the version are of rollouts before this one.
            let has_left = |node: &&NodeView| place(node, &any).is_some() && read(node).is_none();
            let number = |node: &NodeView| Some(node.record()?.proof.as_ref()?.rollout);
            let left = view.nodes.values().filter(counts).filter(has_left).filter_map(number).max();
            let first = left.unwrap_or(0).saturating_add(1);
            let rebuilt = with_row(count(&read), view.nodes.values().filter(counts), rollout, read, None);
            RolloutLedger { first, ..rebuilt }
        }
    }
}

/// Returns a ledger that is rebuilt, with the row of its brake: nodes whose last attempts at the version have ended without a proof, since a time
/// where one is known.
fn with_row<'a>(
    mut ledger: RolloutLedger,
    nodes: impl Iterator<Item = &'a NodeView>,
    rollout: &ActiveRollout,
    place: impl Fn(&NodeView) -> Option<Proof>,
    since: Option<Timestamp>,
) -> RolloutLedger {
    let end = |node: &'a NodeView| Some((node, node.record()?.last.as_ref()?));
    let mut ends: Vec<(&NodeView, &AttemptResult)> = nodes.filter_map(end).collect();
    ends.retain(|(_, last)| last.version == rollout.version && since.is_none_or(|since| last.ended >= since));
    ends.sort_by_key(|(_, last)| last.ended);
    for (node, last) in ends {
        let proof = place(node).unwrap_or(Proof::Free);
        if proof == Proof::Proven {
            ledger.proven_by(&node.facts.name);
        } else if End::of(&last.reason).is_none_or(|end| end.brakes(proof)) {
            ledger.add_to_row((&node.facts.name, proof, &last.reason), last.ended, usize::MAX, last.ended);
        }
    }
    ledger
}

/// Returns a recorded ledger with what its nodes have shown since without a slot, as by a verification: a node that is named is moved
/// once, since its name says where it is counted.
fn followed(
    view: &ClusterView,
    rollout: &ActiveRollout,
    stored: &RolloutLedger,
    (held, is_back): (&HashSet<&str>, impl Fn(&LedgerNode, &NodeView) -> bool),
) -> RolloutLedger {
    let mut ledger = stored.clone();
    for named in &stored.nodes {
        let node = view.nodes.get(&named.node).filter(|node| !held.contains(node.facts.uid.as_str()));
        let shown = |node| place(node, rollout).or_else(|| is_freed(node, rollout).then_some(Proof::Free));
        let found = node.and_then(|node| Some((node, shown(node)?)));
        if named.has_fallen() && found.is_none_or(|(_, proof)| proof == Proof::Proven) {
            // The record of the node, where it has one, is of the time before.
            if found.is_some_and(|(node, _)| is_back(named, node)) {
                ledger.recover(&named.node);
            }
        } else if let Some((node, proof)) = found.filter(|(_, proof)| *proof != named.proof || named.has_fallen()) {
            ledger.move_node(Some(named.proof), (&named.node, proof, &reason_of(node)));
        }
    }
    // A node that gets a proof is found by its name: those that have none get the names that are free, or of nodes that are gone.
    let is_unnamed = |node: &&NodeView| {
        let unproven = matches!(place(node, rollout), Some(Proof::Unproven | Proof::Unknown));
        unproven && !held.contains(node.facts.uid.as_str()) && !ledger.nodes.iter().any(|n| n.node == node.facts.name)
    };
    let mut unnamed: Vec<&NodeView> = view.nodes.values().filter(is_unnamed).collect();
    unnamed.sort_by_key(|node| node.shadow.as_ref().is_none_or(|shadow| shadow.pending_retry().is_none()));
    for node in unnamed {
        ledger.name_unproven(&node.facts.name, &reason_of(node), |name| is_gone(view, name));
    }
    ledger
}

/// Returns whether the node of this name is gone, and no machine is waited for that may come back under it.
pub(super) fn is_gone(view: &ClusterView, name: &str) -> bool {
    let is_waited_for = || view.recorded_slots().any(|slot| slot.node == name);
    !view.nodes.contains_key(name) && !view.unreadable.hide(name) && !is_waited_for()
}

/// Returns the end of the last attempt of a node.
fn reason_of(node: &NodeView) -> String {
    let reason = node.record().and_then(|record| Some(record.last.as_ref()?.reason.clone()));
    reason.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use models::shadow::{NodeProof, Record};

    use super::*;
    use crate::fixtures::{NEW, OLD, cluster, failure, first_update, node, recorded, rollout, slot, t, updated};

    /// Node `a`, which runs the new version with this place of rollout 8.
    fn placed(proof: Proof) -> ClusterView {
        let mut a = node("a");
        a.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        let mut record = updated();
        record.proof = Some(NodeProof { rollout: 8, proof, ..record.proof.unwrap() });
        record.last.as_mut().unwrap().reason = "HookTimedOut".into();
        a.shadow.as_mut().unwrap().status.controller.record = Some(record);
        cluster(vec![a], &[]).0
    }

    #[test]
    fn ledger_that_is_behind_counts_nodes_and_keeps_what_nodes_do_not_show() {
        let stored = RolloutLedger {
            first: 7,
            base: 9,
            passed: 1,
            due: 2,
            share: 3,
            accepted: 4,
            tried: 6,
            braked_until: Some(t(60)),
            braked_among: Some(5),
            ..RolloutLedger::default()
        };
        let rollout = ActiveRollout { ledger: Some(stored.clone()), ..rollout(NEW) };
        let mut view = placed(Proof::Unproven);
        // The slot is of another rollout.
        let update = SlotUpdate { version: OLD, ..first_update() };
        view.operator.as_mut().unwrap().status.slots = vec![Slot { update: Some(update), ..slot("a") }];
        let found = of(&view, &rollout, Memory::Entry, |_, _| false);
        assert_eq!(found.nodes[0].reason, "HookTimedOut");
        assert_eq!(found, RolloutLedger { unproven: 1, accepted: 1, nodes: found.nodes.clone(), ..stored });
        let found = of(&placed(Proof::Proven), &rollout, Memory::Entry, |_, _| false);
        assert_eq!((found.proven, found.braked_until), (1, None), "a proof ends the brake");
    }

    #[test]
    fn ledger_without_any_memory_counts_what_nodes_have_shown_of_the_version() {
        let rollout = ActiveRollout { record: Some(recorded(9)), ..rollout(NEW) };
        let found = of(&placed(Proof::Proven), &rollout, Memory::Nothing, |_, _| false);
        assert_eq!((found.proven, found.first), (1, 1));
    }

    /// The name of each node in the row.
    fn in_row(ledger: &RolloutLedger) -> Vec<&str> {
        ledger.row.iter().map(|end| end.node.as_str()).collect()
    }

    /// Node `a` has not come to the version in its last attempt, which ended at 50 s.
    #[test]
    fn ledger_that_is_rebuilt_has_the_ends_of_its_own_version_since_the_rollout_began_in_its_row() {
        let (memory, none) = (Memory::Entry, Memory::Nothing);
        for (sentence, version, started, memory, expected) in [
            ("an end of the rollout", NEW, 50, memory, &["a"][..]),
            ("an end from before it", NEW, 51, memory, &[]),
            ("the same, without any memory of it", NEW, 51, none, &["a"]),
            ("an end of another version", OLD, 50, memory, &[]),
            ("the same, without any memory of it", OLD, 50, none, &[]),
        ] {
            let mut view = placed(Proof::Free);
            let a = view.nodes.get_mut("a").unwrap();
            a.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)");
            let record = a.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
            record.last.as_mut().unwrap().version = version;
            let rollout = ActiveRollout { started: t(started), ..rollout(NEW) };
            let found = of(&view, &rollout, memory, |_, _| false);
            assert_eq!(in_row(&found), expected, "{sentence}");
        }
    }

    #[test]
    fn place_of_an_earlier_rollout_is_none_of_one_whose_ledger_does_not_have_its_first_record_yet() {
        let ledger = Some(RolloutLedger::default());
        for (number, expected) in [(8, Some(Proof::Proven)), (9, None)] {
            let rollout = ActiveRollout { record: Some(recorded(number)), ledger: ledger.clone(), ..rollout(NEW) };
            assert_eq!(place(&placed(Proof::Proven).nodes["a"], &rollout), expected, "{number}");
        }
    }

    /// Node `a` had proven the version and was not Ready any more, and has proven it again: it has been well since 100 s.
    #[test]
    fn end_of_a_node_that_had_fallen_is_forgotten_once_that_is_well_and_its_ledger_does_not_name_it_so() {
        let soaked = 100 + i64::try_from(LOST.as_secs()).unwrap();
        let entry = |node: &str, reason: &str| LedgerNode {
            node: node.into(),
            proof: Proof::Unproven,
            reason: reason.into(),
            accepted: false,
            before_proof: true,
        };
        let fallen = |node: &str| entry(node, models::operator::NOT_READY);
        for (sentence, named, second, expected) in [
            ("nothing is named", vec![], soaked, &[][..]),
            ("nothing is named, and it is well for less", vec![], soaked - 1, &["a"]),
            ("it is named as fallen", vec![fallen("a")], soaked, &["a"]),
            (
                "it is named for another end, and another one as fallen",
                vec![entry("a", "Held"), fallen("b")],
                soaked,
                &[],
            ),
        ] {
            let mut view = placed(Proof::Proven);
            view.nodes.get_mut("a").unwrap().facts.ready_since = Some(t(100));
            let mut ledger = RolloutLedger { nodes: named, row: vec![fallen("a")], ..RolloutLedger::default() };
            forget_resolved((&view, &Policy::default()), &rollout(NEW), &mut ledger, t(second));
            assert_eq!(in_row(&ledger), expected, "{sentence}");
        }
    }

    #[test]
    fn name_of_a_node_is_free_once_that_is_gone_and_no_slot_waits_for_it() {
        for (sentence, there, slots, expected) in [
            ("it is there", true, &[][..], false),
            ("it is gone", false, &[], true),
            ("a slot waits for it", false, &["a"], false),
            ("a slot waits for another one", false, &["b"], true),
        ] {
            let nodes = if there { vec![node("a")] } else { vec![] };
            assert_eq!(is_gone(&cluster(nodes, slots).0, "a"), expected, "{sentence}");
        }
    }

    #[test]
    fn place_that_an_earlier_version_did_not_record_follows_from_the_end_of_the_attempt() {
        let late = FailureReason::NotReadyAfterBoot.as_str();
        let resolved = || models::shadow::VersionFailure { resolved_by: Some("1".into()), ..failure(NEW) };
        for (sentence, reason, ended, failures, expected) in [
            ("it was updated", UPDATED, 50, vec![], Some(Proof::Proven)),
            ("as the rollout began", UPDATED, 0, vec![], Some(Proof::Proven)),
            ("before the rollout", UPDATED, -1, vec![], None),
            ("it failed", late, 50, vec![failure(NEW)], Some(Proof::Failed)),
            ("its failure is resolved", late, 50, vec![resolved()], None),
            ("it failed on another version", late, 50, vec![failure(OLD)], None),
            ("it ended otherwise, and runs the version", "HookTimedOut", 50, vec![], Some(Proof::Unproven)),
        ] {
            let mut view = placed(Proof::Unproven);
            let a = view.nodes.get_mut("a").unwrap();
            let mut record = Record { version_failures: failures, proof: None, ..updated() };
            let last = record.last.as_mut().unwrap();
            (last.reason, last.ended) = (reason.to_owned(), t(ended));
            a.shadow.as_mut().unwrap().status.controller.record = Some(record);
            assert_eq!(inferred(&view.nodes["a"], &rollout(NEW)), expected, "{sentence}");
        }
    }
}
