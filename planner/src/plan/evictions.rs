//! The limit of concurrent evictions.
//!
//! Evictions that count against one budget make the API server sleep for 0.5 s between its own retries, so each
//! budget has one at a time, in the whole fleet. A slower one holds no other one of its budget back.
//!
//! Evictions and deletions are limited for a node and for the fleet too, however long they take: an admission webhook that hangs would
//! otherwise gather them without end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};
use models::time::after;

use crate::decision::{Eviction, Evictions};
use crate::survey::budgets::Budgets;
use crate::view::{Blocked, ClusterView, InFlight, NodeView, PodFacts};

/// The number of concurrent requests about the pods of one node.
const AT_A_TIME: usize = 16;

/// The number of concurrent requests about pods in the whole fleet. Each of them has one of the API server's seats until it is answered. By the
/// defaults of kube-apiserver, 245 seats (100 of 245 shares of 400 + 200) are those of the priority level `workload-low`, where the
/// other requests of the controller are too, such as the renewal of its Lease: more than half of them are left.
const IN_FLEET: usize = 100;

/// The time for which an eviction without an answer counts for its budgets.
const COUNTS_FOR: SignedDuration = SignedDuration::from_secs(1);

/// Returns the time from which a request under way holds no other one of its budgets back.
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

fn count(evictions: &BTreeMap<String, Evictions>) -> usize {
    evictions.values().map(|wanted| wanted.pods.len()).sum()
}

/// Returns whether a request of this kind has failed: it was neither accepted nor denied, and no budget has refused it.
fn has_failed(last: &Blocked, deletes: bool) -> bool {
    last.deleted == deletes && !last.accepted && last.denied_since.is_none() && last.budget.is_none()
}

/// The place of a request among those of all nodes: false if it was approved already, the time at which it was due again if it has failed before,
/// the number of its node's requests that have failed or are under way, and the node's name.
type Place<'a> = (bool, Option<Timestamp>, usize, &'a str);

/// The requests about the pods of one node.
struct NodeEvictions<'a> {
    node: &'a NodeView,
    /// Those that are sent now.
    chosen: &'a mut Evictions,
    /// Those that are not decided yet, in their order. Each with false if it was approved already, and the time at which it was due again if it
    /// has failed before.
    left: VecDeque<(bool, Option<Timestamp>, Eviction)>,
    /// The number of requests without an answer, with those that are sent now.
    under_way: usize,
    /// The number of other pods about which the last request has failed.
    failed: usize,
}

impl<'a> NodeEvictions<'a> {
    /// Returns the place of the next request; `None` if none is left. Requests that have failed before come
    /// last, those due for longest first, and of others those of nodes with the fewest requests that have failed or are under way: so what hangs
    /// does not take the room of the others, also not by names that come first.
    fn place(&self) -> Option<Place<'a>> {
        let (later, due_again, _) = self.left.front()?;
        Some((*later, *due_again, self.under_way + self.failed, self.node.facts.name.as_str()))
    }
}

/// Leaves in `evictions` those that may be sent now, beside others under way that count against the budgets `taken`.
fn choose<'a>(
    view: &ClusterView,
    budgets: &Budgets<'a>,
    evictions: &mut BTreeMap<String, Evictions>,
    mut taken: BTreeSet<(&'a str, &'a str)>,
) {
    // One that was approved already, by a leader that was killed in the middle of it, is what its budget waits for: it goes first.
    let is_approved = |node: &NodeView, eviction: &Eviction| {
        let pod = pod_of(node, &eviction.uid);
        pod.is_some_and(|pod| budgets.beside(pod).any(|budget| budget.has_approved(pod)))
    };
    let mut queue: BTreeMap<Place<'_>, NodeEvictions<'_>> = BTreeMap::new();
    for (name, wanted) in evictions.iter_mut() {
        let Some(node) = view.nodes.get(name) else { continue };
        let deletes = wanted.delete;
        let due_again = |eviction: &Eviction| {
            node.blocked.get(&eviction.uid).filter(|last| has_failed(last, deletes)).map(|last| last.retry_at)
        };
        // The deletion of a pod ends its eviction that has no answer, and takes the room of that one.
        let is_other = |eviction: &Eviction| !node.in_flight.contains_key(&eviction.uid);
        let (others, instead): (Vec<_>, Vec<_>) = std::mem::take(&mut wanted.pods).into_iter().partition(is_other);
        let ordered = |eviction: Eviction| (!is_approved(node, &eviction), due_again(&eviction), eviction);
        let mut left: Vec<_> = others.into_iter().map(ordered).collect();
        left.sort_by_key(|(later, due_again, _)| (*later, *due_again));
        wanted.pods = instead;
        let waits = |(uid, last): &(&String, &Blocked)| has_failed(last, deletes) && !node.in_flight.contains_key(*uid);
        let (under_way, failed) = (node.in_flight.len(), node.blocked.iter().filter(waits).count());
        let next = NodeEvictions { node, chosen: wanted, left: left.into(), under_way, failed };
        queue.extend(next.place().map(|place| (place, next)));
    }
    // A budget that lets pods of many nodes go one by one lets those of one node go before those of the next, which is then drained sooner.
    for next in queue.values_mut() {
        let (node, deletes) = (next.node, next.chosen.delete);
        let mut room = AT_A_TIME.saturating_sub(next.under_way);
        next.left.retain(|(_, _, eviction)| {
            let pod = pod_of(node, &eviction.uid).filter(|_| !deletes);
            let of_the_pod = pod.map(|pod| budgets_of(budgets, pod)).unwrap_or_default();
            let goes = room > 0 && !of_the_pod.iter().any(|budget| taken.contains(budget));
            if goes {
                room -= 1;
                taken.extend(of_the_pod);
            }
            goes
        });
    }
    let mut queue: BTreeMap<_, _> = queue.into_values().filter_map(|next| Some((next.place()?, next))).collect();
    let under_way: usize = view.nodes.values().map(|node| node.in_flight.len()).sum();
    let mut room = IN_FLEET.saturating_sub(under_way);
    while room > 0
        && let Some((_, mut next)) = queue.pop_first()
    {
        let Some((_, _, eviction)) = next.left.pop_front() else { continue };
        next.chosen.pods.push(eviction);
        next.under_way += 1;
        room -= 1;
        queue.extend(next.place().map(|place| (place, next)));
    }
}

/// Removes from `evictions` those of pods whose budgets reboots use up. A deletion goes past them. Another plan is made once a budget counts the
/// pods that a reboot has ended, or its node is back.
pub(super) fn leave_to_reboots(
    view: &ClusterView,
    budgets: &Budgets<'_>,
    evictions: &mut BTreeMap<String, Evictions>,
    used_up: &BTreeSet<(&str, &str)>,
) {
    if used_up.is_empty() {
        return;
    }
    for (name, wanted) in evictions.iter_mut().filter(|(_, wanted)| !wanted.delete && !wanted.dry_run) {
        let Some(node) = view.nodes.get(name) else { continue };
        wanted.pods.retain(|eviction| {
            let pod = pod_of(node, &eviction.uid).filter(|pod| !pod.pending);
            pod.is_none_or(|pod| budgets_of(budgets, pod).iter().all(|budget| !used_up.contains(budget)))
        });
    }
    evictions.retain(|_, wanted| !wanted.pods.is_empty());
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
    let wanted = count(evictions);
    choose(view, budgets, evictions, taken);
    let held_back = count(evictions) < wanted;
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
    fn budgets_let_pods_of_one_node_go_before_those_of_the_next() {
        let (mut view, mut evictions) = hanging(&[(2, 0); 2], false);
        for pod in view.nodes.values_mut().flat_map(|node| node.pods.iter_mut().flatten()) {
            pod.labels = Arc::new([("app".to_owned(), pod.uid.clone())].into());
        }
        let budget = |app: &str| BudgetFacts {
            namespace: "shop".into(),
            name: app.into(),
            selector: Some(Selector::from_iter([Expression::Equal("app".into(), app.into())])),
            ..BudgetFacts::default()
        };
        view.budgets = ["p-0", "p-1"].map(budget).into();
        hold_back(&view, &Budgets::of(&view), &mut evictions, t(10));
        let sent: Vec<_> = evictions.iter().map(|(node, wanted)| (node.as_str(), wanted.pods.len())).collect();
        assert_eq!(sent, [("00", 2)]);
    }

    /// Nodes `00`, `01`, …, each with so many pods, of which the first so many were asked to leave at 0 s and have no answer.
    fn hanging(nodes: &[(usize, usize)], delete: bool) -> (ClusterView, BTreeMap<String, Evictions>) {
        let (mut view, mut evictions) = (ClusterView::default(), BTreeMap::new());
        for (number, (pods, unanswered)) in nodes.iter().enumerate() {
            let in_flight: Vec<_> = (0..*unanswered).map(|pod| (pod, 0)).collect();
            let (mut one, due) = fleet(*pods, 0, &in_flight);
            let name = format!("{number:02}");
            let mut node = one.nodes.remove("a").unwrap();
            node.facts.name.clone_from(&name);
            view.nodes.insert(name.clone(), node);
            evictions.extend(due.into_values().map(|due| (name.clone(), Evictions { delete, ..due })));
        }
        (view, evictions)
    }

    #[test]
    fn unanswered_requests_are_limited_per_node_and_in_the_fleet() {
        let some_on_most = [vec![(30, 15); 6], vec![(30, 0)]].concat();
        for (sentence, nodes, goes) in [
            ("nothing hangs", vec![(30, 0); 50], vec![2; 50]),
            ("as many hang on each of 50 nodes as may", vec![(30, 16); 50], vec![0; 50]),
            ("12 hang on one node, and one pod is left", vec![(13, 12)], vec![1]),
            ("12 hang on one node, and many pods are left", vec![(42, 12)], vec![4]),
            ("10 hang on each of 10 nodes", vec![(30, 10); 10], vec![0; 10]),
            ("the node with the fewest goes first", some_on_most, vec![0, 0, 0, 0, 0, 0, 10]),
        ] {
            for delete in [false, true] {
                let (view, mut evictions) = hanging(&nodes, delete);
                let wanted = count(&evictions);
                let wake = hold_back(&view, &Budgets::of(&view), &mut evictions, t(60));
                let sent = |name: &String| evictions.get(name).map_or(0, |wanted| wanted.pods.len());
                assert_eq!(view.nodes.keys().map(sent).collect::<Vec<_>>(), goes, "{sentence}; deletes: {delete}");
                assert_eq!(wake, (count(&evictions) < wanted).then(|| t(61)), "{sentence}; deletes: {delete}");
            }
        }
    }

    /// The last answer about a pod: its request has failed, and is due again at this second.
    fn failed(deleted: bool, retry_at: i64) -> Blocked {
        Blocked { deleted, retry_at: t(retry_at), ..Blocked::default() }
    }

    #[test]
    fn requests_that_have_failed_take_no_room_of_others_and_go_in_the_order_of_their_time() {
        for delete in [false, true] {
            // 95 requests are new. Of the others, that of the last node has waited for longest.
            let (mut view, mut evictions) = hanging(&[(3, 0); 45], delete);
            for (node, second) in view.nodes.values_mut().zip((10..=49).rev()) {
                node.blocked = [("p-0".to_owned(), failed(delete, second))].into();
            }
            hold_back(&view, &Budgets::of(&view), &mut evictions, t(60));
            let tried = |wanted: &Evictions| wanted.pods.iter().any(|pod| pod.uid == "p-0");
            let names: Vec<_> = evictions.iter().filter(|(_, wanted)| tried(wanted)).map(|(name, _)| &**name).collect();
            assert_eq!(names, ["35", "36", "37", "38", "39", "40", "41", "42", "43", "44"], "deletes: {delete}");
            assert_eq!(count(&evictions), IN_FLEET, "deletes: {delete}");
            assert_eq!(evictions["39"].pods.last().unwrap().uid, "p-0", "after others of its node; deletes: {delete}");

            // Other pods of the first 30 nodes wait for their next try: after a failure, or after the refusal of a budget, which is none.
            for (budget, expected) in [
                (None, [vec![2; 10], vec![1; 20], vec![2; 30]].concat()),
                (Some("shop/web"), [vec![2; 40], vec![1; 20]].concat()),
            ] {
                let (mut view, mut evictions) = hanging(&[(2, 0); 60], delete);
                let last = || Blocked { budget: budget.map(str::to_owned), ..failed(delete, 100) };
                for node in view.nodes.values_mut().take(30) {
                    node.blocked = (2..5).map(|pod| (format!("p-{pod}"), last())).collect();
                }
                hold_back(&view, &Budgets::of(&view), &mut evictions, t(60));
                let sent: Vec<usize> = evictions.values().map(|wanted| wanted.pods.len()).collect();
                assert_eq!(sent, expected, "deletes: {delete}, {budget:?}");
            }
        }
    }

    #[test]
    fn deletion_takes_the_room_of_the_unanswered_eviction_of_its_pod() {
        let (view, mut evictions) = hanging(&[(16, 16); 7], true);
        for (name, wanted) in &mut evictions {
            wanted.pods = view.nodes[name].pods.iter().flatten().map(Eviction::of).collect();
        }
        assert_eq!(hold_back(&view, &Budgets::of(&view), &mut evictions, t(60)), None);
        assert_eq!(count(&evictions), 7 * 16);
    }

    #[test]
    fn deletion_is_not_delayed_by_pdb() {
        let (view, mut evictions) = fleet(3, 3, &[(0, 10)]);
        evictions.get_mut("a").unwrap().delete = true;
        assert_eq!(hold_back(&view, &Budgets::of(&view), &mut evictions, t(10)), None);
        assert_eq!(evictions["a"].pods.len(), 2);
    }
}
