//! Nodes that are out of service without the operator, and count against the budgets of the fleet, of groups and of zones for a
//! time (`spec.ignoreUnavailableAfter`); and those that are not back from a reboot when their attempts end, which count until
//! they are; and those that users keep out of updates.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::CordonedNodes;
use models::time::after;

use crate::policy::{GroupPolicy, Policy};
use crate::view::{NodeFacts, NodeView};
use crate::wait::Wait;

/// The cause of a node whose reboot was permitted, and not seen by the end of its attempt.
const NOT_BACK: &str = "not back from the reboot of its update";

/// The cause of a node that has proven the version of a rollout, and is not Ready any more.
const FALLEN: &str = "updated by this rollout and not Ready any more, like others";

/// Time for which such a node counts. After it, it says nothing about the version any more.
pub(super) const FALLEN_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A node that is out of service without the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable {
    /// The cause, for users.
    pub(crate) why: &'static str,
    /// The time from which it is ignored; `None` if the API server does not show since when it has been out of service, or if it
    /// counts until it is back.
    pub(crate) until: Option<Timestamp>,
}

/// Returns the hold of a node, as the reason why it waits.
pub(crate) fn held(facts: &NodeFacts) -> Option<Wait> {
    let hold = facts.hold.clone()?;
    Some(Wait::Held { until: hold.until, reason: hold.reason })
}

/// Returns the cordon of another user or controller, as the reason why a node waits, unless policy updates such nodes.
pub(crate) fn cordoned(policy: &GroupPolicy, facts: &NodeFacts) -> Option<Wait> {
    (policy.drain.cordoned_nodes == CordonedNodes::Skip && facts.cordoned_by_others()).then_some(Wait::Cordoned)
}

/// Returns why a user keeps a node out of updates, if one does. A request to try that node ends no pause of a brake: another one would be tried.
pub fn kept_out(policy: &Policy, facts: &NodeFacts) -> Option<Wait> {
    held(facts).or_else(|| cordoned(policy.for_node(facts), facts))
}

/// Returns whether a node is out of service as autoscalers make it, which is no sign of trouble: it joins the cluster and has
/// never been Ready, or is being removed. A report of its agent shows that it has run pods before.
pub(crate) fn comes_or_goes(node: &NodeView) -> bool {
    let reported = || node.shadow.as_ref().is_some_and(|shadow| shadow.status.agent.boot_id.is_some());
    node.facts.deleting || node.facts.removed_by.is_some() || (node.facts.joining && !reported())
}

/// Returns why a node counts against the budgets although the operator has not taken it out of service, if it does: it is
/// cordoned by others or not Ready, and has been for less than `limit`. `suspects` count for a day at least.
pub(crate) fn of(node: &NodeView, suspects: &BTreeSet<&str>, limit: Duration, now: Timestamp) -> Option<Unavailable> {
    let facts = &node.facts;
    let cordoned = facts.cordoned_by_others();
    if node.may_still_reboot() {
        // Without a limit of time: it may go down at any moment, and what it would come back with is not known.
        let counts = facts.labelled && !facts.held() && !comes_or_goes(node);
        return counts.then_some(Unavailable { why: NOT_BACK, until: None });
    }
    if !facts.labelled || node.disrupted() || comes_or_goes(node) || (facts.ready && !cordoned) {
        return None;
    }
    if suspects.contains(facts.name.as_str()) {
        let until = facts.not_ready_since.map(|since| after(since, limit.max(FALLEN_FOR)));
        return Some(Unavailable { why: FALLEN, until });
    }
    let why = if facts.ready { "cordoned by another user or controller" } else { "not Ready" };
    let not_ready = facts.not_ready_since.filter(|_| !facts.ready);
    let since = [not_ready, facts.cordoned_since.filter(|_| cordoned)].into_iter().flatten().min();
    let until = since.map(|since| after(since, limit));
    until.is_none_or(|until| until > now).then_some(Unavailable { why, until })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::ClaimFields;
    use crate::fixtures::{node, t};

    #[test]
    fn node_out_of_service_without_operator_counts_for_a_time() {
        type Change = fn(&mut NodeView);
        fn down(node: &mut NodeView) {
            (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(0)));
        }
        fn cordoned(node: &mut NodeView) {
            (node.facts.unschedulable, node.facts.cordoned_since) = (true, Some(t(60)));
        }
        fn joins(node: &mut NodeView) {
            down(node);
            node.facts.joining = true;
            node.shadow.as_mut().unwrap().status.agent.boot_id = None;
        }
        let cases: [(&str, &[Change], [bool; 3]); 14] = [
            ("in service", &[], [false, false, false]),
            ("not Ready", &[down], [true, false, false]),
            ("not Ready for an unknown time", &[down, |n| n.facts.not_ready_since = None], [true, true, true]),
            ("cordoned by a user", &[cordoned], [true, true, false]),
            ("both: since the first", &[down, cordoned], [true, false, false]),
            ("cordoned by the operator", &[cordoned, |n| n.facts.claims = ClaimFields::USUAL], [false; 3]),
            (
                "held, with the operator's cordon",
                &[cordoned, |n| {
                    (n.facts.claims, n.facts.hold) = (ClaimFields::CORDON, Some(crate::hold::Hold::default()));
                }],
                [false; 3],
            ),
            ("never Ready: it joins", &[joins], [false; 3]),
            (
                "its agent has run in an earlier boot",
                &[joins, |n| {
                    *n = {
                        let mut m = n.clone();
                        m.shadow.as_mut().unwrap().status.agent.boot_id = Some("b0".into());
                        m
                    }
                }],
                [true, false, false],
            ),
            (
                "an autoscaler removes it",
                &[down, |n| n.facts.removed_by = Some("karpenter.sh/disrupted".into())],
                [false; 3],
            ),
            (
                "a user has declared its machine gone",
                &[down, |n| n.facts.removed_by = Some("node.kubernetes.io/out-of-service".into())],
                [false; 3],
            ),
            (
                "an autoscaler removes it, still Ready",
                &[cordoned, |n| n.facts.removed_by = Some("ToBeDeleted".into())],
                [false; 3],
            ),
            ("being deleted", &[down, |n| n.facts.deleting = true], [false; 3]),
            ("no node of the operator", &[down, |n| n.facts.labelled = false], [false; 3]),
        ];
        for (sentence, changes, counts) in cases {
            let mut node = node("a");
            changes.iter().for_each(|change| change(&mut node));
            let suspects = BTreeSet::from(["b"]);
            let found = [3599, 3600, 3660].map(|at| of(&node, &suspects, Duration::from_hours(1), t(at)).is_some());
            assert_eq!(found, counts, "{sentence}");
        }
    }

    #[test]
    fn suspect_counts_for_a_day() {
        let mut node = node("a");
        let suspects = BTreeSet::from(["a"]);
        let found = |node: &NodeView| of(node, &suspects, Duration::from_hours(1), t(7200));
        assert_eq!(found(&node), None);
        (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(0)));
        assert_eq!(found(&node), Some(Unavailable { why: FALLEN, until: Some(t(86_400)) }));
    }
}
