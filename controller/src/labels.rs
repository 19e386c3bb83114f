//! Labelling of nodes: a few at a time, each with a back-off of its own.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::apply::{ApplyError, pause};
use planner::view::NodeFacts;

/// Maximum number of nodes labelled at a time: labelling a whole fleet must not be a burst for the API server.
const AT_ONCE: usize = 10;

/// The nodes whose labelling is under way, or has failed and is retried.
#[derive(Debug, Default)]
pub struct Labelling(BTreeMap<String, Try>);

#[derive(Debug, Default)]
struct Try {
    under_way: bool,
    failures: u32,
    again: Option<Instant>,
}

impl Labelling {
    /// Returns the nodes to begin with now, out of those that are to be labelled.
    pub fn begin(&mut self, wanting: Vec<NodeFacts>, now: Instant) -> Vec<NodeFacts> {
        let names: BTreeSet<&str> = wanting.iter().map(|node| node.name.as_str()).collect();
        self.0.retain(|name, one| one.under_way || names.contains(name.as_str()));
        for one in self.0.values_mut() {
            one.again = one.again.filter(|again| *again > now);
        }
        let free = AT_ONCE.saturating_sub(self.0.values().filter(|one| one.under_way).count());
        let due = |node: &NodeFacts| self.0.get(&node.name).is_none_or(|one| !one.under_way && one.again.is_none());
        let begun: Vec<NodeFacts> = wanting.into_iter().filter(due).take(free).collect();
        for node in &begun {
            self.0.entry(node.name.clone()).or_default().under_way = true;
        }
        begun
    }

    /// Takes in the result for a node, with the error if it failed.
    pub fn ended(&mut self, node: &str, error: Option<&ApplyError>, now: Instant) {
        let Some(error) = error else {
            self.0.remove(node);
            return;
        };
        let one = self.0.entry(node.to_owned()).or_default();
        one.under_way = false;
        one.again = Some(now + pause(error, one.failures));
        one.failures = one.failures.saturating_add(1);
    }

    /// Returns whether any node is being labelled.
    pub fn under_way(&self) -> bool {
        self.0.values().any(|one| one.under_way)
    }

    /// Returns the time of the next retry.
    pub fn wake(&self) -> Option<Instant> {
        self.0.values().filter_map(|one| one.again).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fleet(size: usize) -> BTreeMap<String, NodeFacts> {
        (0..size)
            .map(|n| format!("node-{n}"))
            .map(|name| (name.clone(), NodeFacts { name, ..NodeFacts::default() }))
            .collect()
    }

    #[test]
    fn a_fleet_is_labelled_a_few_nodes_at_a_time_and_each_once() {
        let now = Instant::now();
        let mut nodes = fleet(AT_ONCE * 2 + 3);
        let mut labelling = Labelling::default();
        let mut rounds = Vec::new();
        while !nodes.is_empty() {
            let begun = labelling.begin(nodes.values().cloned().collect(), now);
            assert!(
                labelling.begin(nodes.values().cloned().collect(), now).is_empty(),
                "what is under way is not begun again"
            );
            rounds.push(begun.len());
            for node in begun {
                labelling.ended(&node.name, None, now);
                nodes.remove(&node.name);
            }
        }
        assert_eq!(rounds, [AT_ONCE, AT_ONCE, 3]);
    }

    #[test]
    fn a_node_that_cannot_be_labelled_is_left_alone_for_longer_and_longer_and_holds_up_no_one() {
        let (nodes, mut now) = (fleet(1), Instant::now());
        let mut labelling = Labelling::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(labelling.begin(nodes.values().cloned().collect(), now).len(), 1);
            labelling.ended("node-0", Some(&ApplyError::NoKey), now);
            assert!(labelling.begin(nodes.values().cloned().collect(), now).is_empty(), "tried again at once");
            assert_eq!(labelling.begin(fleet(2).into_values().collect(), now).len(), 1, "the other one");
            labelling.ended("node-1", None, now);
            let again = labelling.wake().unwrap();
            pauses.push(again - now);
            now = again;
        }
        assert!(pauses.is_sorted() && pauses[0] < pauses[8] && pauses[8] <= Duration::from_secs(30), "{pauses:?}");
        labelling.begin(Vec::new(), now);
        assert_eq!(labelling.wake(), None, "a node that is gone, or labelled by another client, wakes no one");
    }
}
