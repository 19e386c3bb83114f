//! The leader's writes: which are under way, and which have failed and are retried after a pause.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::{Discriminant, discriminant};

use models::backoff::Backoff;
use models::failures::LoggedFailures;
use tokio::time::Instant;

use crate::apply::{ApplyError, pauses};
use crate::writes::Priority;

/// Number of targets in a row whose writes are refused, after which all writes of the kind are taken to be refused.
const SEVERAL: usize = 5;

/// The object of a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The plan's action for a node.
    Node(String),
    /// The operator's status.
    Operator,
    /// The creation or deletion of a node's shadow.
    Shadow(String),
    /// The label that puts a node under the operator.
    Label(String),
    /// The revisions of the policy.
    History,
    /// The label of a node's shadow that names a revision.
    Revision(String),
    /// `HostReachable` of a node whose agent is silent.
    Silence(String),
}

#[derive(Debug, Default)]
struct WriteState {
    under_way: bool,
    priority: Priority,
    backoff: Backoff,
    paused_until: Option<Instant>,
    logged: LoggedFailures,
}

/// Writes of one kind that were refused one after the other. With the back-off of each target alone, thousands of
/// targets would send hundreds of writes each second.
#[derive(Debug, Default)]
struct Refusals {
    targets: BTreeSet<Target>,
    backoff: Backoff,
    paused_until: Option<Instant>,
}

impl Refusals {
    fn are_several(&self) -> bool {
        self.targets.len() >= SEVERAL
    }

    /// Counts a refusal. A target that had failed before may be refused by itself, and begins no pause of the others.
    fn count(&mut self, target: Target, is_first: bool, error: &ApplyError, now: Instant) {
        if !is_first && !self.are_several() {
            return;
        }
        self.targets.insert(target);
        // Those that were under way beside the first one lengthen no pause.
        if self.are_several() && self.paused_until.is_none_or(|until| until <= now) {
            self.paused_until = Some(now + self.backoff.next_delay(pauses(error)));
        }
    }
}

/// The writes under way, and those that failed, each with a back-off of its own.
#[derive(Debug, Default)]
pub(super) struct WriteStates {
    states: BTreeMap<Target, WriteState>,
    /// By the kind of their targets and their priority: a webhook may refuse the desired states of nodes and no status.
    refusals: HashMap<(Discriminant<Target>, Priority), Refusals>,
}

impl WriteStates {
    /// Begins a write. An urgent one takes no place of those that can wait.
    pub(super) fn begin(&mut self, target: Target, priority: Priority) {
        let write = self.states.entry(target).or_default();
        (write.under_way, write.priority) = (true, priority);
    }

    /// Returns how many writes of a kind may begin beside those under way, with at most `limit` in all. While several in a row are refused,
    /// one is tried after each pause, until one succeeds.
    pub(super) fn room(&self, kind: fn(String) -> Target, priority: Priority, limit: usize) -> usize {
        let of_kind = discriminant(&kind(String::new()));
        let refusals = self.refusals.get(&(of_kind, priority)).filter(|refusals| refusals.are_several());
        let Some(refusals) = refusals else { return limit.saturating_sub(self.under_way(kind)) };
        let is_tried = |(target, write): (&Target, &WriteState)| {
            write.under_way && write.priority == priority && discriminant(target) == of_kind
        };
        usize::from(refusals.paused_until.is_none() && !self.states.iter().any(is_tried))
    }

    /// Returns the number of failures of a write in a row.
    pub(super) fn failures(&self, target: &Target) -> u32 {
        self.states.get(target).map_or(0, |write| write.backoff.failures())
    }

    /// Begins those of the `wanted` writes of a kind that are neither under way nor paused, with at most `limit` under
    /// way, and those first that have failed least. The failures of writes that are not wanted any more are forgotten.
    pub(super) fn begin_some<T>(
        &mut self,
        kind: fn(String) -> Target,
        wanted: Vec<(String, T)>,
        limit: usize,
    ) -> Vec<T> {
        let names: BTreeSet<Target> = wanted.iter().map(|(name, _)| kind(name.clone())).collect();
        let of_kind = discriminant(&kind(String::new()));
        self.retain(|target| discriminant(target) != of_kind || names.contains(target));
        let room = self.room(kind, Priority::Status, limit);
        let due = wanted.into_iter().map(|(name, one)| (kind(name), one)).filter(|(target, _)| self.is_free(target));
        let mut due: Vec<_> = due.collect();
        due.sort_by_cached_key(|(target, _)| self.failures(target));
        due.into_iter()
            .take(room)
            .map(|(target, one)| {
                self.begin(target, Priority::Status);
                one
            })
            .collect()
    }

    /// Records the end of a write, with the error if it failed.
    pub(super) fn end(&mut self, target: Target, error: Option<&ApplyError>, now: Instant) {
        let Some(error) = error else {
            if let Some(write) = self.states.remove(&target) {
                self.refusals.remove(&(discriminant(&target), write.priority));
            }
            return;
        };
        let write = self.states.entry(target.clone()).or_default();
        write.under_way = false;
        write.paused_until = Some(now + write.backoff.next_delay(pauses(error)));
        if write.priority != Priority::Urgent && error.is_refusal() {
            let is_first = write.backoff.failures() == 1;
            let kind = (discriminant(&target), write.priority);
            self.refusals.entry(kind).or_default().count(target, is_first, error, now);
        }
    }

    /// Returns whether a failure is a warning in the log.
    pub(super) fn is_news(&mut self, target: &Target, error: &ApplyError, now: Instant) -> bool {
        self.states.get_mut(target).is_none_or(|write| write.logged.is_news(&error.text(), now))
    }

    /// Ends the pauses that are over: one in the past would wake the loop again and again.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        let of_kinds = self.refusals.values_mut().map(|refusals| &mut refusals.paused_until);
        for pause in self.states.values_mut().map(|write| &mut write.paused_until).chain(of_kinds) {
            pause.take_if(|until| *until <= now);
        }
    }

    /// Forgets what is neither under way nor of these targets.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Target) -> bool) {
        self.states.retain(|target, write| write.under_way || wanted(target));
        let states = &self.states;
        self.refusals.retain(|_, refusals| {
            refusals.targets.retain(|target| states.contains_key(target));
            !refusals.targets.is_empty()
        });
    }

    pub(super) fn is_paused(&self, target: &Target) -> bool {
        self.states.get(target).is_some_and(|write| write.paused_until.is_some())
    }

    /// Returns whether a write may begin: it is neither under way nor paused.
    pub(super) fn is_free(&self, target: &Target) -> bool {
        self.states.get(target).is_none_or(|write| !write.under_way && write.paused_until.is_none())
    }

    /// Returns the number of writes of a kind under way that are not urgent.
    pub(super) fn under_way(&self, kind: fn(String) -> Target) -> usize {
        let of_kind = discriminant(&kind(String::new()));
        let counts = |(target, write): &(&Target, &WriteState)| {
            write.under_way && write.priority != Priority::Urgent && discriminant(*target) == of_kind
        };
        self.states.iter().filter(counts).count()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.states.values().any(|write| write.under_way)
    }

    /// Returns the end of the first pause.
    pub(super) fn wake(&self) -> Option<Instant> {
        let of_kinds = self.refusals.values().filter_map(|refusals| refusals.paused_until);
        self.states.values().filter_map(|write| write.paused_until).chain(of_kinds).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: usize = 10;

    fn nodes(count: usize) -> Vec<(String, String)> {
        (0..count).map(|n| format!("node-{n}")).map(|name| (name.clone(), name)).collect()
    }

    #[test]
    fn nodes_are_labelled_once_and_a_few_at_a_time() {
        let now = Instant::now();
        let mut wanted = nodes(LIMIT * 2 + 3);
        let mut writes = WriteStates::default();
        // Other writes take no place.
        writes.begin(Target::Operator, Priority::Urgent);
        writes.begin(Target::Shadow("node-0".into()), Priority::Status);
        let mut rounds = Vec::new();
        while !wanted.is_empty() {
            let begun = writes.begin_some(Target::Label, wanted.clone(), LIMIT);
            assert!(writes.begin_some(Target::Label, wanted.clone(), LIMIT).is_empty(), "begun twice");
            assert_eq!(writes.under_way(Target::Label), begun.len());
            rounds.push(begun.len());
            for node in begun {
                wanted.retain(|(name, _)| *name != node);
                writes.end(Target::Label(node), None, now);
            }
        }
        assert_eq!(rounds, [LIMIT, LIMIT, 3]);
        assert!(writes.is_writing() && !writes.is_free(&Target::Operator));
    }

    #[test]
    fn failed_write_is_retried_with_back_off_without_delaying_others() {
        let mut now = Instant::now();
        let mut writes = WriteStates::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            writes.end_pauses(now);
            assert_eq!(writes.begin_some(Target::Shadow, nodes(1), LIMIT).len(), 1);
            writes.end(Target::Shadow("node-0".into()), Some(&ApplyError::NoKey), now);
            assert!(writes.begin_some(Target::Shadow, nodes(1), LIMIT).is_empty(), "retried at once");
            assert_eq!(writes.begin_some(Target::Shadow, nodes(2), LIMIT), ["node-1"], "the other one");
            writes.end(Target::Shadow("node-1".into()), None, now);
            let again = writes.wake().unwrap();
            pauses.push(again - now);
            now = again;
        }
        assert!(pauses.is_sorted() && pauses[0] < pauses[8] && pauses[8] <= Duration::from_secs(30), "{pauses:?}");
        writes.begin_some(Target::Shadow, Vec::<(String, ())>::new(), LIMIT);
        assert_eq!(writes.wake(), None, "a write that is not wanted any more causes no wake-up");
    }

    #[test]
    fn while_each_write_of_a_kind_is_refused_one_is_tried_after_each_pause() {
        let (start, wanted) = (Instant::now(), nodes(5_000));
        let (mut now, mut tried, mut writes) = (start, BTreeSet::new(), WriteStates::default());
        while now < start + Duration::from_secs(600) {
            writes.end_pauses(now);
            for node in writes.begin_some(Target::Label, wanted.clone(), LIMIT) {
                writes.end(Target::Label(node.clone()), Some(&ApplyError::NoKey), now);
                assert!(tried.insert(node), "the same one again, which may be refused by itself");
            }
            assert!(tried.len() < 50, "{} of 5,000 nodes after {:?}", tried.len(), now - start);
            now = writes.wake().unwrap();
        }
        assert!(tried.len() > 20, "{}", tried.len());
        writes.end_pauses(now + Duration::from_secs(60));
        let mut accepted = writes.begin_some(Target::Label, wanted.clone(), LIMIT);
        assert_eq!(accepted.len(), 1);
        assert!(writes.begin_some(Target::Label, wanted.clone(), LIMIT).is_empty(), "before it has ended");
        writes.end(Target::Label(accepted.remove(0)), None, now);
        assert_eq!(writes.begin_some(Target::Label, wanted, LIMIT).len(), LIMIT, "nothing refuses them any more");
    }

    #[test]
    fn refused_writes_hold_back_their_own_kind_alone() {
        let now = Instant::now();
        for (sentence, error, priority, room) in [
            ("desired states are refused", ApplyError::NoKey, Priority::Spec, 0),
            ("their nodes have changed", ApplyError::Changed("the shadow"), Priority::Spec, LIMIT),
            ("urgent ones are refused", ApplyError::NoKey, Priority::Urgent, LIMIT),
        ] {
            let mut writes = WriteStates::default();
            for (node, _) in nodes(SEVERAL) {
                writes.begin(Target::Node(node.clone()), priority);
                writes.end(Target::Node(node), Some(&error), now);
            }
            assert_eq!(writes.room(Target::Node, Priority::Spec, LIMIT), room, "{sentence}");
            assert_eq!(writes.room(Target::Node, Priority::Status, LIMIT), LIMIT, "{sentence}");
            assert_eq!(writes.room(Target::Label, Priority::Status, LIMIT), LIMIT, "{sentence}");
        }
    }

    #[test]
    fn nodes_that_are_refused_by_themselves_or_are_gone_do_not_hold_back_the_others() {
        let now = Instant::now();
        let refuse = |writes: &mut WriteStates| {
            for (node, _) in nodes(SEVERAL) {
                writes.begin(Target::Shadow(node.clone()), Priority::Status);
                writes.end(Target::Shadow(node), Some(&ApplyError::NoKey), now);
            }
        };
        let room = |writes: &WriteStates| writes.room(Target::Shadow, Priority::Status, LIMIT);
        let mut writes = WriteStates::default();
        refuse(&mut writes);
        assert_eq!(room(&writes), 0);
        writes.begin(Target::Shadow("another".into()), Priority::Status);
        writes.end(Target::Shadow("another".into()), None, now);
        refuse(&mut writes);
        assert_eq!(room(&writes), LIMIT, "refused again while that of another one was accepted");
        let mut writes = WriteStates::default();
        refuse(&mut writes);
        let others = nodes(SEVERAL * 2).split_off(SEVERAL);
        assert_eq!(writes.begin_some(Target::Shadow, others, LIMIT).len(), SEVERAL, "those are not wanted any more");
    }

    #[test]
    fn repeated_failure_is_logged_again_when_it_changes_or_after_a_while() {
        let start = Instant::now();
        let node = Target::Node("a".into());
        let mut writes = WriteStates::default();
        for (second, error, logged) in [
            (0, ApplyError::NoKey, true),
            (30, ApplyError::NoKey, false),
            (60, ApplyError::Late, true),
            (659, ApplyError::Late, false),
            (660, ApplyError::Late, true),
        ] {
            let now = start + Duration::from_secs(second);
            writes.end(node.clone(), Some(&error), now);
            assert_eq!(writes.is_news(&node, &error, now), logged, "after {second} s");
        }
        writes.end(node.clone(), None, start);
        assert!(writes.is_news(&node, &ApplyError::Late, start), "it had succeeded");
    }

    #[test]
    fn each_write_target_is_paused_separately() {
        let now = Instant::now();
        let node = || Target::Node("a".into());
        let begin = |writes: &mut WriteStates| writes.begin(node(), Priority::Urgent);
        let fail = |writes: &mut WriteStates| writes.end(node(), Some(&ApplyError::NoKey), now);
        let succeed = |writes: &mut WriteStates| writes.end(node(), None, now);
        let wait = |writes: &mut WriteStates| writes.end_pauses(now + Duration::from_secs(60));
        let forget = |writes: &mut WriteStates| writes.retain(|_| false);
        type Events<'a> = &'a [&'a dyn Fn(&mut WriteStates)];
        for (sentence, events, free, paused, writing) in [
            ("nothing has been written", &[] as Events<'_>, true, false, false),
            ("under way", &[&begin], false, false, true),
            ("under way, and the node has been deleted", &[&begin, &forget], false, false, true),
            ("succeeded", &[&begin, &succeed], true, false, false),
            ("failed", &[&begin, &fail], false, true, false),
            ("failed, and the pause is over", &[&begin, &fail, &wait], true, false, false),
            ("failed, and the node has been deleted", &[&begin, &fail, &forget], true, false, false),
            ("retried", &[&begin, &fail, &wait, &begin], false, false, true),
        ] {
            let mut writes = WriteStates::default();
            events.iter().for_each(|event| event(&mut writes));
            let is = (writes.is_free(&node()), writes.is_paused(&node()), writes.is_writing());
            assert_eq!(is, (free, paused, writing), "{sentence}");
            assert_eq!(writes.wake().is_some(), paused, "{sentence}");
            assert!(writes.is_free(&Target::Label("a".into())), "{sentence}");
            assert_eq!(writes.under_way(Target::Node), 0, "{sentence}: it is urgent");
        }
    }
}
