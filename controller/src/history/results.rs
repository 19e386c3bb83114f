//! The results that no page holds yet: those on shadows, those of deleted shadows, and those of attempts whose Node was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorStatus, Slot};
use models::plain::cut;
use models::reason::FailureReason;
use models::shadow::{Progress, RolloutResult, Step};
use planner::history::{RowId, Waiting, is_settled};
use planner::view::{NodeFacts, ShadowFacts};

/// The most results of deleted nodes that wait in memory.
const MOST_ORPHANS: usize = 512;

/// The results that are known. A kill of the leader loses those that no shadow has.
#[derive(Default)]
pub(super) struct Results {
    /// The results on shadows at the last plan.
    pub(super) seen: BTreeMap<RowId, Waiting>,
    /// The attempts under way at the last plan, each with the result that it has if its Node is deleted.
    pub(super) under_way: BTreeMap<RowId, Waiting>,
    /// Results whose shadow was deleted with its node before a page held them: they wait in memory alone.
    pub(super) orphans: BTreeMap<RowId, Waiting>,
    /// True once the attempts are known that an earlier leader waited for.
    taken_over: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Shadows<'a> {
    pub(super) readable: &'a BTreeMap<String, ShadowFacts>,
    /// The reasons why shadows cannot be read, by node.
    pub(super) unreadable: &'a BTreeMap<String, String>,
}

impl Shadows<'_> {
    /// Returns whether the node of a result has a shadow that belongs to the same Node object.
    fn has(&self, waiting: &Waiting) -> bool {
        self.readable.get(&waiting.node).is_some_and(|shadow| shadow.owner_uid.as_ref() == Some(&waiting.uid))
    }
}

fn waiting(shadow: &ShadowFacts, result: Arc<RolloutResult>) -> Waiting {
    let agent = &shadow.status.agent;
    Waiting {
        node: shadow.node.clone(),
        uid: shadow.owner_uid.clone().unwrap_or_default(),
        variant: agent.variant.clone().unwrap_or_default(),
        arch: agent.arch.clone().unwrap_or_default(),
        result,
        bytes: 0,
        orphaned: false,
    }
}

/// Replaces the variants and architectures that agents have reported by those that their Nodes name, as rollouts do.
pub(super) fn correct_kinds(waiting: &mut [Waiting], nodes: &BTreeMap<String, NodeFacts>) {
    for waiting in waiting {
        if let Some(node) = nodes.get(&waiting.node).filter(|node| node.uid == waiting.uid) {
            node.correct_kind(Some(&mut waiting.variant), Some(&mut waiting.arch));
        }
    }
}

fn on_shadow(shadow: &ShadowFacts) -> impl Iterator<Item = Waiting> {
    shadow.status.controller.results.iter().map(move |result| waiting(shadow, result.clone()))
}

/// Returns the result that the attempt under way of a node has if its Node is deleted; `None` in a verification, which has none,
/// and after the end of the attempt.
fn interrupted(shadow: &ShadowFacts) -> Option<Waiting> {
    let report = &shadow.status.controller;
    let is_under_way = |at: &&Progress| at.step != Step::Releasing && !at.mode().is_verification();
    let progress = report.progress.as_ref().filter(is_under_way)?;
    let place = progress.rollout.clone().unwrap_or_default();
    let message = format!("the Node was deleted during the attempt, in the step {}", progress.step.as_str());
    let result = RolloutResult {
        rollout: place.rollout,
        step: place.step,
        attempt: progress.attempt,
        from: progress.from.clone(),
        to: progress.version.clone(),
        result: FailureReason::NodeDeleted.as_str().to_owned(),
        drill: progress.drill.clone(),
        message: cut(&message, 512),
        started: progress.started,
        drain_started: place.drain_started,
        drain_ended: place.drain_ended,
        soak_started: progress.verifying_since,
        ended: progress.since,
        boot_before: place.boot_id,
        boot_after: String::new(),
        pods: report.drain.as_ref().map(|drain| drain.pods.clone()).unwrap_or_default(),
        running: Vec::new(),
    };
    Some(waiting(shadow, Arc::new(result)))
}

/// Returns the result of an attempt in its reboot that a slot alone knows, since an earlier leader saw the deletion of its Node; `None` if its
/// reboot was not permitted, after which no machine is waited for.
fn of_slot(slot: &Slot, rollouts: &[ActiveRollout]) -> Option<Waiting> {
    let update = slot.update.as_ref().filter(|update| update.permitting_since.is_some())?;
    let is_own = |rollout: &&ActiveRollout| {
        (&rollout.variant, &rollout.arch, &rollout.version) == (&update.variant, &update.arch, &update.version)
    };
    let result = RolloutResult {
        rollout: rollouts.iter().filter(is_own).map(ActiveRollout::number).max().unwrap_or(0),
        step: 0,
        attempt: update.attempt,
        from: None,
        to: update.version.clone(),
        result: FailureReason::NodeDeleted.as_str().to_owned(),
        drill: None,
        message: "the Node was deleted during the attempt, after its reboot was permitted, and before this leader began: its \
                  pods are not known"
            .to_owned(),
        started: slot.since,
        drain_started: Some(slot.since),
        drain_ended: None,
        soak_started: None,
        ended: slot.since,
        boot_before: update.boot_id.clone(),
        boot_after: String::new(),
        pods: Arc::default(),
        running: Vec::new(),
    };
    Some(Waiting {
        node: slot.node.clone(),
        uid: slot.uid.clone(),
        variant: update.variant.clone(),
        arch: update.arch.clone(),
        result: Arc::new(result),
        bytes: 0,
        orphaned: false,
    })
}

/// Adds what was known of an attempt before its Node was registered again: it goes on without that.
fn complete(waiting: &mut Waiting, before: &RolloutResult) {
    if waiting.result.from.is_some() || before.from.is_none() {
        return;
    }
    let result = Arc::make_mut(&mut waiting.result);
    (result.from, result.pods) = (before.from.clone(), before.pods.clone());
    (result.started, result.boot_before) = (before.started, before.boot_before.clone());
    (result.drain_started, result.drain_ended) = (before.drain_started, before.drain_ended);
}

impl Results {
    /// Takes over the attempts that an earlier leader waited for, from the first status that is read. Those that their shadows have are
    /// known from there.
    pub(super) fn take_over(&mut self, status: &BottlerocketUpdateOperatorStatus) {
        if !std::mem::replace(&mut self.taken_over, true) {
            let found = status.slots.iter().filter_map(|slot| of_slot(slot, &status.active_rollouts));
            self.under_way.extend(found.map(|waiting| (waiting.id(), waiting)));
        }
    }

    pub(super) fn forget(&mut self, rows: &BTreeSet<RowId>) {
        self.orphans.retain(|id, _| !rows.contains(id));
    }

    /// Collects the results on shadows, and those of deleted shadows that wait. Returns them, and the rollouts of the attempts whose
    /// machine is waited for although its Node was deleted. `awaited` are the attempts that may not have ended with their shadow, each
    /// with whether a slot waits for its machine, and `ended` the rollouts whose records have ended.
    pub(super) fn collect(
        &mut self,
        shadows: Shadows<'_>,
        (awaited, ended): (&BTreeMap<RowId, bool>, &BTreeSet<i64>),
        now: Timestamp,
    ) -> (Vec<Waiting>, BTreeSet<i64>) {
        let all = shadows.readable.values().flat_map(on_shadow);
        let mut present: BTreeMap<RowId, Waiting> = all.map(|waiting| (waiting.id(), waiting)).collect();
        let rollouts = self.follow(shadows, &mut present, awaited, now);
        for (id, waiting) in &mut present {
            let known = self.seen.get(id).map(|before| before.bytes);
            let size = || serde_json::to_vec(&waiting.result).map_or(0, |text| text.len());
            waiting.bytes = known.unwrap_or_else(size);
        }
        for (id, before) in std::mem::take(&mut self.seen) {
            if present.contains_key(&id) {
                continue;
            }
            if shadows.unreadable.contains_key(&before.node) {
                present.insert(id, before);
            } else if !shadows.has(&before) {
                self.orphans.insert(id, Waiting { orphaned: true, ..before });
            }
        }
        self.orphans.retain(|_, orphan| !is_settled(ended, orphan));
        while self.orphans.len() > MOST_ORPHANS {
            if let Some((_, dropped)) = self.orphans.pop_first() {
                tracing::warn!(
                    node = dropped.node,
                    "the result of an attempt on a deleted node is dropped: too many wait"
                );
            }
        }
        self.seen = present;
        (self.seen.values().chain(self.orphans.values()).cloned().collect(), rollouts)
    }

    /// Follows the attempts under way. One whose Node was deleted, and whose machine is not waited for, gets its result; one that
    /// goes on under another Node object of the name has one row, with what was known before. Returns the rollouts of those that
    /// may go on.
    fn follow(
        &mut self,
        shadows: Shadows<'_>,
        present: &mut BTreeMap<RowId, Waiting>,
        awaited: &BTreeMap<RowId, bool>,
        now: Timestamp,
    ) -> BTreeSet<i64> {
        let begun = shadows.readable.values().filter_map(interrupted);
        let mut under_way: BTreeMap<RowId, Waiting> = begun.map(|waiting| (waiting.id(), waiting)).collect();
        let mut rollouts = BTreeSet::new();
        for (id, before) in std::mem::take(&mut self.under_way) {
            if let Some(own) = under_way.get_mut(&id).or(present.get_mut(&id)) {
                complete(own, &before.result);
                // The result may be on the shadow for a while.
                under_way.entry(id).or_insert(before);
                continue;
            }
            if shadows.unreadable.contains_key(&before.node) {
                under_way.insert(id, before);
                continue;
            }
            // It has ended, and its result was on the shadow.
            if shadows.has(&before) || self.seen.contains_key(&id) {
                continue;
            }
            // Another machine of the name begins its attempt with a shadow that knows the version before.
            let is_same = |other: &&mut Waiting| {
                other.result.from.is_none()
                    && (&other.node, other.result.attempt, &other.result.to)
                        == (&before.node, before.result.attempt, &before.result.to)
            };
            if let Some(other) = under_way.values_mut().chain(present.values_mut()).find(is_same) {
                complete(other, &before.result);
                let before = Waiting { uid: other.uid.clone(), ..before };
                under_way.entry(before.id()).or_insert(before);
            } else if let Some(has_slot) = awaited.get(&id) {
                rollouts.extend(has_slot.then_some(before.result.rollout));
                under_way.insert(id, before);
            } else {
                let result = RolloutResult { ended: now, ..RolloutResult::clone(&before.result) };
                let bytes = serde_json::to_vec(&result).map_or(0, |text| text.len());
                let result = Arc::new(result);
                self.orphans.entry(id).or_insert(Waiting { result, bytes, orphaned: true, ..before });
            }
        }
        self.under_way = under_way;
        rollouts
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "u1";

    /// The shadow of the node `a`, which belongs to the Node object of this uid.
    fn shadow(uid: &str, status: Value) -> ShadowFacts {
        let status = serde_json::from_value(status).unwrap();
        ShadowFacts { node: "a".into(), owner_uid: Some(uid.into()), status, ..ShadowFacts::default() }
    }

    /// An attempt under way in this step, begun in a boot in which its version was known.
    fn progress(step: &str, from: Option<&str>) -> Value {
        json!({
            "step": step, "since": "2026-01-01T00:10:00Z", "attempt": 4, "bootId": "b1", "version": "1.21.0", "from": from,
            "started": "2026-01-01T00:00:00Z",
            "rollout": {"rollout": 7, "step": 1, "bootId": "b1", "drainStarted": "2026-01-01T00:05:00Z"},
        })
    }

    fn rebooting() -> ShadowFacts {
        let pod = |name: &str| json!({"namespace": "shop", "name": name, "uid": name, "moved": "Evicted"});
        let drain = json!({"pods": [pod("web-0"), pod("web-1")], "removed": 2});
        shadow(ID, json!({"progress": progress("Rebooting", Some("1.20.0")), "drain": drain}))
    }

    fn result(from: Option<&str>) -> Value {
        json!({
            "rollout": 7, "step": 1, "attempt": 4, "from": from, "to": "1.21.0", "result": "Updated",
            "started": "2026-01-01T00:05:00Z", "ended": "2026-01-01T00:30:00Z",
        })
    }

    /// Collects from these shadows, while these Nodes are there, or have slots. Returns the results that wait, each with uid, result
    /// and number of pods, and the rollouts that go on.
    fn collected(
        results: &mut Results,
        shadows: &[ShadowFacts],
        awaited: &[(&str, bool)],
    ) -> (Vec<(String, String, usize)>, BTreeSet<i64>) {
        let readable = shadows.iter().map(|shadow| (shadow.node.clone(), shadow.clone())).collect();
        let shadows = Shadows { readable: &readable, unreadable: &BTreeMap::new() };
        let awaited = awaited.iter().map(|(uid, has_slot)| (((*uid).to_owned(), 4), *has_slot)).collect();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let (waiting, rollouts) = results.collect(shadows, (&awaited, &BTreeSet::new()), now);
        let row = |waiting: Waiting| (waiting.uid, waiting.result.result.clone(), waiting.result.pods.len());
        (waiting.into_iter().map(row).collect(), rollouts)
    }

    fn row(uid: &str, result: &str, pods: usize) -> (String, String, usize) {
        (uid.to_owned(), result.to_owned(), pods)
    }

    #[test]
    fn result_is_of_the_kind_that_its_node_names() {
        let status = json!({"variant": "metal-k8s-1.37", "arch": "aarch64", "results": [result(None)]});
        let shadow = shadow(ID, status);
        for (sentence, uid, expected) in
            [("its own Node", ID, "aws-k8s-1.37"), ("another Node of its name", "u2", "metal-k8s-1.37")]
        {
            let os_image = "Bottlerocket OS 1.20.0 (aws-k8s-1.37)".to_owned();
            let facts = NodeFacts { uid: uid.to_owned(), os_image, ..NodeFacts::default() };
            let mut waiting: Vec<Waiting> = on_shadow(&shadow).collect();
            correct_kinds(&mut waiting, &BTreeMap::from([("a".to_owned(), facts)]));
            let kinds: Vec<_> = waiting.iter().map(|of| (of.variant.as_str(), of.arch.as_str())).collect();
            assert_eq!(kinds, [(expected, "aarch64")], "{sentence}");
        }
    }

    #[test]
    fn attempt_whose_node_is_deleted_has_a_result_with_its_pods() {
        let mut results = Results::default();
        assert_eq!(collected(&mut results, &[rebooting()], &[]).0, []);
        assert_eq!(collected(&mut results, &[], &[]).0, [row(ID, "NodeDeleted", 2)]);
        let orphan = results.orphans.values().next().unwrap();
        let of = &orphan.result;
        assert_eq!((orphan.orphaned, of.rollout, of.boot_before.as_str()), (true, 7, "b1"));
        assert_eq!(of.message, "the Node was deleted during the attempt, in the step Rebooting");
        assert_eq!(of.ended.to_string(), "2026-01-01T01:00:00Z");
        assert_eq!(collected(&mut results, &[], &[]).0.len(), 1, "it waits for its page");
        results.forget(&[(ID.to_owned(), 4)].into());
        assert_eq!(collected(&mut results, &[], &[]).0, []);
    }

    #[test]
    fn attempt_has_no_result_of_a_deletion_that_did_not_end_it() {
        let with = |progress: Value, results: Value| shadow(ID, json!({"progress": progress, "results": results}));
        let mut verification = progress("Verifying", Some("1.21.0"));
        verification["verification"] = json!(true);
        let releasing = || progress("Releasing", Some("1.20.0"));
        for (sentence, first, second, expected) in [
            ("its shadow is still there", rebooting(), Some(shadow(ID, json!({}))), None),
            ("it was verified again", with(verification, json!([])), None, None),
            ("its result is on a page", with(releasing(), json!([])), None, None),
            ("its result waits", with(releasing(), json!([result(None)])), None, Some(row(ID, "Updated", 0))),
        ] {
            let mut results = Results::default();
            collected(&mut results, &[first], &[]);
            let second: Vec<_> = second.into_iter().collect();
            let found = collected(&mut results, &second, &[]).0;
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{sentence}");
        }
    }

    #[test]
    fn attempt_whose_shadow_alone_is_deleted_waits_for_its_node_and_holds_no_record_back() {
        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        assert_eq!(collected(&mut results, &[], &[(ID, false)]), (Vec::new(), BTreeSet::new()));
        assert_eq!(collected(&mut results, &[], &[]).0, [row(ID, "NodeDeleted", 2)]);
    }

    #[test]
    fn attempt_whose_result_was_seen_has_no_other_one_once_its_node_is_deleted() {
        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        let ended = shadow(ID, json!({"results": [result(Some("1.20.0"))]}));
        assert_eq!(collected(&mut results, &[ended], &[]).0, [row(ID, "Updated", 0)]);
        assert_eq!(collected(&mut results, &[], &[]).0, [row(ID, "Updated", 0)]);
        results.forget(&[(ID.to_owned(), 4)].into());
        assert_eq!(collected(&mut results, &[], &[]).0, [], "it is on a page");
    }

    #[test]
    fn attempt_that_goes_on_after_its_node_was_registered_again_has_one_row_with_what_was_known() {
        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        let (none, going_on) = (Vec::new(), BTreeSet::from([7]));
        let joined = shadow("u2", json!({}));
        for (why, shadows) in [("the machine is waited for", vec![]), ("its agent reports", vec![joined.clone()])] {
            let found = collected(&mut results, &shadows, &[(ID, true)]);
            assert_eq!(found, (none.clone(), going_on.clone()), "{why}");
        }
        let goes_on = shadow("u2", json!({"progress": progress("Returning", None)}));
        assert_eq!(collected(&mut results, &[goes_on], &[(ID, true)]), (none, BTreeSet::new()));
        let ended = shadow("u2", json!({"results": [result(None)]}));
        assert_eq!(collected(&mut results, &[ended], &[]).0, [row("u2", "Updated", 2)]);
        let known = &results.seen.values().next().unwrap().result;
        assert_eq!(known.from.as_ref().map(ToString::to_string).as_deref(), Some("1.20.0"));
        assert_eq!(known.started.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(collected(&mut results, &[joined], &[]).0, [], "it is on a page");

        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        collected(&mut results, &[], &[(ID, true)]);
        assert_eq!(collected(&mut results, &[], &[]).0, [row(ID, "NodeDeleted", 2)], "it did not come back in time");
    }

    #[test]
    fn result_of_an_attempt_that_went_on_keeps_what_was_known_until_it_is_on_a_page() {
        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        let ended = shadow("u2", json!({"results": [result(None)]}));
        for _ in 0..3 {
            assert_eq!(collected(&mut results, std::slice::from_ref(&ended), &[]).0, [row("u2", "Updated", 2)]);
        }
        assert_eq!(collected(&mut results, &[shadow("u2", json!({}))], &[]).0, [], "it is on a page");
    }

    #[test]
    fn attempt_of_another_machine_with_the_name_of_a_deleted_node_has_a_row_of_its_own() {
        let mut results = Results::default();
        collected(&mut results, &[rebooting()], &[]);
        let other = shadow("u2", json!({"progress": progress("Draining", Some("1.19.0"))}));
        assert_eq!(collected(&mut results, &[other], &[]).0, [row(ID, "NodeDeleted", 2)]);
        let ended = shadow("u2", json!({"results": [result(Some("1.19.0"))]}));
        let found = collected(&mut results, &[ended], &[]).0;
        assert_eq!(found, [row("u2", "Updated", 0), row(ID, "NodeDeleted", 2)]);
    }

    #[test]
    fn attempt_whose_machine_an_earlier_leader_waited_for_has_a_row_once_its_slot_is_free() {
        let status = |permitted: Option<&str>| {
            let update = json!({
                "version": "1.21.0", "variant": "v", "arch": "a", "attempt": 4, "bootId": "b1", "permittingSince": permitted,
            });
            serde_json::from_value::<BottlerocketUpdateOperatorStatus>(json!({
                "slots": [{"uid": ID, "node": "a", "since": "2026-01-01T00:05:00Z", "update": update}],
                "activeRollouts": [{
                    "version": "1.21.0", "variant": "v", "arch": "a", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0,
                    "record": {"number": 7, "begun": "2026-01-01T00:00:00Z", "revision": {}, "phase": "Running"},
                }],
            }))
            .unwrap()
        };
        let permitted = status(Some("2026-01-01T00:06:00Z"));
        let going_on = shadow(ID, json!({"progress": progress("Rebooting", Some("1.20.0"))}));
        let mut results = Results::default();
        results.take_over(&permitted);
        assert_eq!(collected(&mut results, &[], &[(ID, true)]), (Vec::new(), BTreeSet::from([7])), "it is waited for");
        assert_eq!(collected(&mut results, &[], &[]).0, [row(ID, "NodeDeleted", 0)]);
        let of = &results.orphans.values().next().unwrap().result;
        assert_eq!(
            (of.rollout, of.boot_before.as_str(), of.started.to_string().as_str()),
            (7, "b1", "2026-01-01T00:05:00Z")
        );
        results.forget(&[(ID.to_owned(), 4)].into());
        results.take_over(&permitted);
        assert_eq!(collected(&mut results, &[], &[]).0, [], "once for each leader");
        for (sentence, status, shadows) in [
            ("its reboot was not permitted", status(None), vec![]),
            ("its Node is there", permitted.clone(), vec![going_on, shadow(ID, json!({}))]),
            ("another Node", permitted, vec![shadow("u2", json!({"progress": progress("Returning", None)}))]),
        ] {
            let mut results = Results::default();
            results.take_over(&status);
            for shadow in shadows {
                assert_eq!(collected(&mut results, &[shadow], &[]).0, [], "{sentence}");
            }
            let mut left = results.under_way.clone();
            left.retain(|(uid, _), _| uid == ID);
            assert!(left.is_empty(), "{sentence}: {left:?}");
        }
    }
}
