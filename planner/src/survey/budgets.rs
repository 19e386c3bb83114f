//! The PodDisruptionBudgets of a view, and the back-off of those whose pods stayed when they were asked first and alone.
//!
//! The end of an attempt names them on the node's shadow; the operator's status counts them, and keeps them when the node goes.

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use models::operator::BudgetBackOff;
use models::reason::FailureReason;
use models::shadow::{FirstPod, RefusingBudget};
use models::time::after;

use crate::policy::BACK_OFF_LIMIT;
use crate::view::{BudgetFacts, ClusterView, PodFacts};

/// The budgets by namespace: of the thousands of a large cluster, a pod is compared with those of its own namespace alone.
pub(crate) struct Budgets<'a>(HashMap<&'a str, Vec<&'a BudgetFacts>>);

impl<'a> Budgets<'a> {
    pub(crate) fn of(view: &'a ClusterView) -> Self {
        let mut by_namespace: HashMap<&str, Vec<&BudgetFacts>> = HashMap::new();
        for budget in &view.budgets {
            by_namespace.entry(budget.namespace.as_str()).or_default().push(budget);
        }
        Self(by_namespace)
    }

    /// Returns the budgets in the namespace of a pod.
    pub(crate) fn beside(&self, pod: &PodFacts) -> impl Iterator<Item = &'a BudgetFacts> {
        self.0.get(pod.namespace.as_str()).into_iter().flatten().copied()
    }

    /// Returns the budgets that select a pod.
    pub(crate) fn over(&self, pod: &PodFacts) -> impl Iterator<Item = &'a BudgetFacts> {
        self.beside(pod).filter(move |budget| budget.selects(pod))
    }

    /// Returns the budget with this name for users.
    pub(crate) fn titled(&self, title: &str) -> Option<&'a BudgetFacts> {
        let (namespace, name) = title.split_once('/')?;
        self.0.get(namespace)?.iter().copied().find(|budget| budget.name == name)
    }
}

/// The back-off after the first time.
const FIRST: SignedDuration = SignedDuration::from_hours(1);

/// The number of back-offs that the status keeps.
const KEPT: usize = 256;

/// Returns the time from which a budget is asked again whose pods have stayed so often, the last time at `last`.
fn until(last: Timestamp, times: i64) -> Timestamp {
    let doublings = u32::try_from(times.clamp(1, 8) - 1).unwrap_or(0);
    let limit = SignedDuration::try_from(BACK_OFF_LIMIT).unwrap_or(FIRST);
    last.checked_add(FIRST.saturating_mul(1 << doublings).min(limit)).unwrap_or(Timestamp::MAX)
}

/// Returns whether a pod of a budget that was asked first has left its node since the pods of the budget had stayed.
fn has_moved(view: &ClusterView, back_off: &BudgetBackOff) -> bool {
    let drains = view.nodes.values().filter_map(|node| node.shadow.as_ref()?.status.controller.drain.as_ref());
    let mut drains = drains.filter(|drain| !drain.asked_first.is_empty());
    drains.any(|drain| {
        let left = |first: &&FirstPod| first.accepted.is_some_and(|accepted| accepted > back_off.last);
        let left: BTreeSet<&str> = drain.asked_first.iter().filter(left).map(|first| first.uid.as_str()).collect();
        drain.pods.iter().any(|pod| {
            let title = |name: &String| back_off.budget == format!("{}/{name}", pod.namespace);
            left.contains(pod.uid.as_str()) && pod.budgets.iter().any(title)
        })
    })
}

/// Returns the back-offs as the ends of attempts leave them: those of budgets that have been changed or deleted since, or that have let a
/// pod go, and those that ended a day ago and that no node's last attempt has met, are over.
pub(crate) fn back_offs(view: &ClusterView, budgets: &Budgets<'_>, now: Timestamp) -> Vec<BudgetBackOff> {
    let recorded = view.operator.iter().flat_map(|operator| &operator.status.budget_back_offs);
    let mut known: Vec<BudgetBackOff> = recorded.cloned().collect();
    let ends = view.nodes.values().filter_map(|node| {
        let record = node.record()?;
        let last = record.last.as_ref().filter(|last| last.reason == FailureReason::GuardedPodsStayed.as_str())?;
        Some((last.ended, &record.refusing_budgets))
    });
    let mut ends: Vec<(Timestamp, &RefusingBudget)> =
        ends.flat_map(|(ended, budgets)| budgets.iter().map(move |budget| (ended, budget))).collect();
    ends.sort_by_key(|(ended, _)| *ended);
    for (ended, RefusingBudget { budget, revision }) in &ends {
        let found = known.iter().position(|back_off| back_off.budget == *budget);
        let times = match found.map(|index| &known[index]) {
            Some(back_off) if back_off.last >= *ended => continue,
            Some(back_off) if back_off.revision == *revision => back_off.times.saturating_add(1),
            _ => 1,
        };
        let back_off = BudgetBackOff {
            budget: budget.clone(),
            revision: revision.clone(),
            times,
            last: *ended,
            until: until(*ended, times),
        };
        match found {
            Some(index) => known[index] = back_off,
            None => known.push(back_off),
        }
    }
    let stands = |back_off: &BudgetBackOff| {
        budgets.titled(&back_off.budget).is_some_and(|budget| budget.revision == back_off.revision)
    };
    // A node whose last attempt ended so has not been tried since: while its window is closed, nothing shows that the pods would leave.
    let is_last = |back_off: &BudgetBackOff| {
        let met = (&back_off.budget, &back_off.revision);
        ends.iter().any(|(_, refusing)| (&refusing.budget, &refusing.revision) == met)
    };
    known.retain(|back_off| {
        let is_recent = after(back_off.until, BACK_OFF_LIMIT) > now || is_last(back_off);
        is_recent && stands(back_off) && !has_moved(view, back_off)
    });
    known.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.budget.cmp(&b.budget)));
    known.truncate(KEPT);
    known
}

/// Returns the time from which a budget is asked again, if it is in back-off. Those that have been changed since have none in [`back_offs`].
pub(crate) fn asked_from(back_offs: &[BudgetBackOff], budget: &BudgetFacts, now: Timestamp) -> Option<Timestamp> {
    let title = budget.title();
    let own = back_offs.iter().find(|back_off| back_off.budget == title);
    own.map(|back_off| back_off.until).filter(|until| *until > now)
}

#[cfg(test)]
mod tests {
    use models::shadow::{AttemptResult, DrainStatus, DrainedPod, Record};

    use super::*;
    use crate::fixtures::{cluster, node, t, updated};

    /// The back-off of a budget with this revision, whose pods stayed at 0 s.
    fn backs_off(revision: &str) -> BudgetBackOff {
        BudgetBackOff { budget: "shop/db".into(), revision: revision.into(), times: 3, last: t(0), until: t(10) }
    }

    /// A cluster with this back-off, and with the budget as it is since its change.
    fn view_with(nodes: Vec<crate::view::NodeView>, back_off: BudgetBackOff) -> ClusterView {
        let (mut view, _) = cluster(nodes, &[]);
        let (namespace, name, revision) = ("shop".into(), "db".into(), "db/2".into());
        view.budgets = vec![BudgetFacts { namespace, name, revision, ..BudgetFacts::default() }];
        view.operator.as_mut().unwrap().status.budget_back_offs = vec![back_off];
        view
    }

    #[test]
    fn back_off_is_over_once_a_pod_of_its_own_budget_has_left_after_it_began() {
        let pod = |uid: &str, budget: &str| DrainedPod {
            namespace: "shop".into(),
            uid: uid.into(),
            budgets: vec![budget.into()],
            ..DrainedPod::default()
        };
        let first =
            |uid: &str, left: Option<i64>| FirstPod { uid: uid.into(), accepted: left.map(t), unguarded: false };
        for (sentence, db, mq, is_over) in [
            ("no pod has left", None, None, false),
            ("one of it has left", Some(1), None, true),
            ("one of it had left by then", Some(0), None, false),
            ("one of another budget has left", None, Some(1), false),
        ] {
            let mut a = node("a");
            a.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus {
                pods: [pod("db-0", "db"), pod("mq-0", "mq")].into(),
                asked_first: vec![first("db-0", db), first("mq-0", mq)],
                ..DrainStatus::default()
            });
            let view = view_with(vec![a], backs_off("db/2"));
            assert_eq!(back_offs(&view, &Budgets::of(&view), t(60)).is_empty(), is_over, "{sentence}");
        }
    }

    #[test]
    fn back_off_of_a_budget_that_was_changed_before_its_pods_stayed_again_is_the_first_one() {
        for (revision, times) in [("db/2", 4), ("db/1", 1)] {
            let reason = FailureReason::GuardedPodsStayed.as_str().to_owned();
            let last = AttemptResult { reason, ..updated().last.unwrap() };
            let refusing = RefusingBudget { budget: "shop/db".into(), revision: "db/2".into() };
            let record = Record { last: Some(last), refusing_budgets: vec![refusing], ..Record::default() };
            let mut a = node("a");
            a.shadow.as_mut().unwrap().status.controller.record = Some(record);
            let view = view_with(vec![a], backs_off(revision));
            let found = back_offs(&view, &Budgets::of(&view), t(60));
            assert_eq!(found.iter().map(|back_off| back_off.times).collect::<Vec<_>>(), [times], "{revision}");
        }
    }

    #[test]
    fn back_off_is_kept_for_a_day_after_its_end() {
        let day = i64::try_from(BACK_OFF_LIMIT.as_secs()).unwrap();
        let view = view_with(vec![], backs_off("db/2"));
        let kept = [9 + day, 10 + day].map(|second| back_offs(&view, &Budgets::of(&view), t(second)).len());
        assert_eq!(kept, [1, 0]);
    }

    /// A window is open for a few hours each week.
    #[test]
    fn back_off_is_kept_for_as_long_as_the_last_attempt_of_a_node_has_met_its_budget() {
        let week = 7 * i64::try_from(BACK_OFF_LIMIT.as_secs()).unwrap();
        for (sentence, reason, budget, revision, times) in [
            ("the node waits for its window", "GuardedPodsStayed", "shop/db", "db/2", Some(3)),
            ("the node has met the budget before its change", "GuardedPodsStayed", "shop/db", "db/1", None),
            ("the node has met another budget since", "GuardedPodsStayed", "shop/mq", "db/2", None),
            ("the node has ended otherwise since", "Updated", "shop/db", "db/2", None),
        ] {
            let last = AttemptResult { reason: reason.into(), ended: t(0), ..updated().last.unwrap() };
            let refusing = RefusingBudget { budget: budget.into(), revision: revision.into() };
            let record = Record { last: Some(last), refusing_budgets: vec![refusing], ..Record::default() };
            let mut a = node("a");
            a.shadow.as_mut().unwrap().status.controller.record = Some(record);
            let view = view_with(vec![a], backs_off("db/2"));
            let kept = back_offs(&view, &Budgets::of(&view), t(week));
            assert_eq!(kept.first().map(|back_off| back_off.times), times, "{sentence}");
        }
    }
}
