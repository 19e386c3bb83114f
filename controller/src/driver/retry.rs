//! The leader's writes: which are under way, and which have failed and are retried after a pause.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use models::backoff::Backoff;
use tokio::time::Instant;

use crate::apply::{ApplyError, pauses};

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
    urgent: bool,
    backoff: Backoff,
    paused_until: Option<Instant>,
}

/// The writes under way, and those that failed, each with a back-off of its own.
#[derive(Debug, Default)]
pub(super) struct WriteStates(BTreeMap<Target, WriteState>);

impl WriteStates {
    /// Begins a write. An urgent one takes no place of those that can wait.
    pub(super) fn begin(&mut self, target: Target, urgent: bool) {
        let write = self.0.entry(target).or_default();
        (write.under_way, write.urgent) = (true, urgent);
    }

    /// Begins those of the `wanted` writes of a kind that are neither under way nor paused, with at most `limit` under
    /// way. The failures of writes that are not wanted any more are forgotten.
    pub(super) fn begin_some<T>(
        &mut self,
        kind: fn(String) -> Target,
        wanted: Vec<(String, T)>,
        limit: usize,
    ) -> Vec<T> {
        let names: BTreeSet<Target> = wanted.iter().map(|(name, _)| kind(name.clone())).collect();
        let of_kind = discriminant(&kind(String::new()));
        self.retain(|target| discriminant(target) != of_kind || names.contains(target));
        let free = limit.saturating_sub(self.under_way(kind));
        let due = wanted.into_iter().map(|(name, one)| (kind(name), one)).filter(|(target, _)| self.is_free(target));
        let due: Vec<_> = due.take(free).collect();
        due.into_iter()
            .map(|(target, one)| {
                self.begin(target, false);
                one
            })
            .collect()
    }

    /// Records the end of a write, with the error if it failed.
    pub(super) fn end(&mut self, target: Target, error: Option<&ApplyError>, now: Instant) {
        let Some(error) = error else {
            self.0.remove(&target);
            return;
        };
        let write = self.0.entry(target).or_default();
        write.under_way = false;
        write.paused_until = Some(now + write.backoff.next_delay(pauses(error)));
    }

    /// Ends the pauses that are over: one in the past would wake the loop again and again.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        for write in self.0.values_mut() {
            write.paused_until = write.paused_until.filter(|until| *until > now);
        }
    }

    /// Forgets what is neither under way nor of these targets.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Target) -> bool) {
        self.0.retain(|target, write| write.under_way || wanted(target));
    }

    pub(super) fn is_paused(&self, target: &Target) -> bool {
        self.0.get(target).is_some_and(|write| write.paused_until.is_some())
    }

    /// Returns whether a write may begin: it is neither under way nor paused.
    pub(super) fn is_free(&self, target: &Target) -> bool {
        self.0.get(target).is_none_or(|write| !write.under_way && write.paused_until.is_none())
    }

    /// Returns the number of writes of a kind under way that are not urgent.
    pub(super) fn under_way(&self, kind: fn(String) -> Target) -> usize {
        let of_kind = discriminant(&kind(String::new()));
        let counts = |(target, write): &(&Target, &WriteState)| {
            write.under_way && !write.urgent && discriminant(*target) == of_kind
        };
        self.0.iter().filter(counts).count()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.0.values().any(|write| write.under_way)
    }

    /// Returns the end of the first pause.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.0.values().filter_map(|write| write.paused_until).min()
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
        writes.begin(Target::Operator, true);
        writes.begin(Target::Shadow("node-0".into()), false);
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
    fn each_write_target_is_paused_separately() {
        let now = Instant::now();
        let node = || Target::Node("a".into());
        let begin = |writes: &mut WriteStates| writes.begin(node(), true);
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
