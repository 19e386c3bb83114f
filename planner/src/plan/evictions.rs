//! The limit of concurrent evictions.
//!
//! Evictions that count against one budget make the API server sleep for 0.5 s between its own retries, so each
//! budget has one at a time, in the whole fleet. A slower one is delayed by `controller/src/eviction.rs` and holds no other one back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use models::time::after;

use crate::decision::{Eviction, Evictions};
use crate::survey::budgets::Budgets;
use crate::view::{ClusterView, InFlight, NodeView, PodFacts};

/// The number of concurrent requests about the pods of one node.
const AT_A_TIME: usize = 16;

/// The time for which a request without an answer counts for these limits.
const COUNTS_FOR: SignedDuration = SignedDuration::from_secs(1);

/// Returns the time from which a request under way holds no other one back.
fn counts_until(sent: &InFlight) -> Timestamp {
    after(sent.since, COUNTS_FOR)
}

/// The budgets that count a pod, by namespace and name.
fn budgets_of<'a>(budgets: &Budgets<'a>, pod: &PodFacts) -> Vec<(&'a str, &'a str)> {
    budgets.over(pod).map(|budget| (budget.namespace.as_str(), budget.name.as_str())).collect()
}

fn pod_of<'a>(node: &'a NodeView, uid: &str) -> Option<&'a PodFacts> {
    node.pods.iter().flatten().find(|pod| pod.uid == uid)
}

/// Removes from `evictions` those that have to wait for requests under way. Returns the time to plan again if none of
/// them is answered.
pub(super) fn hold_back(
    view: &ClusterView,
    budgets: &Budgets<'_>,
    evictions: &mut BTreeMap<String, Evictions>,
    now: Timestamp,
) -> Option<Timestamp> {
    if evictions.is_empty() {
        return None;
    }
    let counts = |sent: &&InFlight| now < counts_until(sent);
    let mut taken = BTreeSet::new();
    for node in view.nodes.values() {
        for (uid, _) in node.in_flight.iter().filter(|(_, sent)| counts(sent) && !sent.deletes) {
            taken.extend(pod_of(node, uid).into_iter().flat_map(|pod| budgets_of(budgets, pod)));
        }
    }
    let mut held_back = false;
    // One that was approved already, by a leader that was killed in the middle of it, is what its budget waits for: it goes first.
    let is_approved = |node: &str, eviction: &Eviction| {
        let pod = view.nodes.get(node).and_then(|node| pod_of(node, &eviction.uid));
        pod.is_some_and(|pod| budgets.beside(pod).any(|budget| budget.has_approved(pod)))
    };
    for (name, wanted) in evictions.iter_mut() {
        wanted.pods.sort_by_cached_key(|eviction| !is_approved(name, eviction));
    }
    let mut by_turn: Vec<_> = evictions.iter_mut().collect();
    by_turn.sort_by_cached_key(|(name, wanted)| !wanted.pods.first().is_some_and(|first| is_approved(name, first)));
    for (name, wanted) in by_turn {
        let Some(node) = view.nodes.get(name) else { continue };
        let mut room = AT_A_TIME.saturating_sub(node.in_flight.values().filter(counts).count());
        let before = wanted.pods.len();
        wanted.pods.retain(|eviction| {
            let pod = pod_of(node, &eviction.uid).filter(|_| !wanted.delete);
            let of_the_pod = pod.map(|pod| budgets_of(budgets, pod)).unwrap_or_default();
            let goes = room > 0 && !of_the_pod.iter().any(|budget| taken.contains(budget));
            if goes {
                room -= 1;
                taken.extend(of_the_pod);
            }
            goes
        });
        held_back |= wanted.pods.len() < before;
    }
    evictions.retain(|_, wanted| !wanted.pods.is_empty());
    let under_way = view.nodes.values().flat_map(|node| node.in_flight.values()).filter(counts);
    // Requests that are sent now end too, and each answer triggers a plan.
    under_way.map(counts_until).chain([after(now, COUNTS_FOR)]).min().filter(|_| held_back)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::core::{Expression, Selector};

    use super::*;
    use crate::fixtures::{cluster, node, pod, t};
    use crate::view::BudgetFacts;

    /// A node `a` with pods `0`, `1`, … of which the first `guarded` are counted by one budget.
    fn fleet(pods: usize, guarded: usize, in_flight: &[(usize, i64)]) -> (ClusterView, BTreeMap<String, Evictions>) {
        let mut a = node("a");
        let facts: Vec<_> = (0..pods)
            .map(|number| PodFacts {
                labels: Arc::new(if number < guarded {
                    [("app".to_owned(), "web".to_owned())].into()
                } else {
                    [].into()
                }),
                ..pod(&number.to_string(), false)
            })
            .collect();
        a.in_flight = in_flight
            .iter()
            .map(|(number, since)| (format!("p-{number}"), InFlight { since: t(*since), deletes: false }))
            .collect();
        let due = facts.iter().filter(|pod| !a.in_flight.contains_key(&pod.uid)).map(Eviction::of).collect();
        a.pods = Some(facts);
        let (mut view, _) = cluster(vec![a], &[]);
        view.budgets = vec![BudgetFacts {
            namespace: "shop".into(),
            name: "web".into(),
            selector: Some(Selector::from_iter([Expression::Equal("app".into(), "web".into())])),
            ..BudgetFacts::default()
        }];
        (view, [("a".to_owned(), Evictions { pods: due, grace: None, delete: false, dry_run: false })].into())
    }

    #[test]
    fn evictions_are_sent_one_at_a_time_per_pdb() {
        let all: &[_] = &[];
        for (sentence, pods, guarded, in_flight, goes, wakes) in [
            ("no budget", 3, 0, all, vec!["p-0", "p-1", "p-2"], false),
            ("one budget for all", 3, 3, all, vec!["p-0"], true),
            ("one that is not guarded does not wait", 3, 2, all, vec!["p-0", "p-2"], true),
            ("the first is under way", 3, 3, &[(0, 10)], vec![], true),
            ("it hangs", 3, 3, &[(0, 9)], vec!["p-1"], true),
            ("what hangs delays nothing", 3, 0, &[(0, 0)], vec!["p-1", "p-2"], false),
        ] {
            let (view, mut evictions) = fleet(pods, guarded, in_flight);
            let wake = hold_back(&view, &Budgets::of(&view), &mut evictions, t(10));
            let names: Vec<_> = evictions.values().flat_map(|e| &e.pods).map(|pod| pod.name.as_str()).collect();
            assert_eq!(names, goes, "{sentence}");
            assert_eq!(wake, wakes.then(|| t(11)), "{sentence}");
        }
    }

    #[test]
    fn eviction_that_was_approved_already_goes_before_others_of_its_pdb() {
        let (mut view, mut evictions) = fleet(3, 3, &[]);
        let mut other = view.nodes["a"].clone();
        other.facts.name = "0".into();
        view.nodes.insert("0".into(), other);
        let others = evictions["a"].clone();
        evictions.insert("0".into(), Evictions { pods: others.pods[..2].to_vec(), ..others });
        view.budgets[0].approved = [("p-2".to_owned(), t(0))].into();
        hold_back(&view, &Budgets::of(&view), &mut evictions, t(10));
        let asked: Vec<_> =
            evictions.iter().flat_map(|(node, e)| e.pods.iter().map(move |pod| (&**node, &*pod.uid))).collect();
        assert_eq!(asked, [("a", "p-2")]);
    }

    #[test]
    fn recent_evictions_per_node_are_limited() {
        let (view, mut evictions) = fleet(40, 0, &[(0, 10), (1, 0)]);
        assert_eq!(hold_back(&view, &Budgets::of(&view), &mut evictions, t(10)), Some(t(11)));
        assert_eq!(evictions["a"].pods.len(), AT_A_TIME - 1);
    }

    #[test]
    fn deletion_is_not_delayed_by_pdb() {
        let (view, mut evictions) = fleet(3, 3, &[(0, 10)]);
        evictions.get_mut("a").unwrap().delete = true;
        assert_eq!(hold_back(&view, &Budgets::of(&view), &mut evictions, t(10)), None);
        assert_eq!(evictions["a"].pods.len(), 2);
    }
}
