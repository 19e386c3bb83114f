//! The pods on a node that have to leave before it reboots: `kubectl drain`'s filters, in its order, over facts.
//!
//! If one pod is refused nothing at all is evicted, and the node waits with that reason. It differs from `kubectl
//! drain` in two ways: pods that have ended stay, since they block nothing, and pods that are being deleted are waited
//! for, of whatever kind.

use std::collections::HashSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::operator::PodsAtRisk;
use models::shadow::{DrainStatus, FirstPod};
use models::time::after;

use crate::rules::{Refusal, Rules};
use crate::view::{DaemonSetState, PodFacts};

/// The time that the object of a pod that has ended may outlive its grace period. A kubelet that is done with a pod
/// ends its grace period, and the object is deleted a moment later.
pub const ENDED: SignedDuration = SignedDuration::from_secs(2);

/// The pause before a pod whose eviction a budget refuses is retried, unless the budget changes before or the server
/// sends another value: `kubectl drain`'s own value.
pub const BLOCKED_RETRY: Duration = Duration::from_secs(5);

/// The longest pause between two requests for the eviction of one pod.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns the pause after a refusal, for a pod that has been refused for `refused` and whose answer alone would have
/// it retried after `retry`: the longer it lasts, the longer the pauses.
pub fn eviction_pause(retry: Duration, refused: Duration) -> Duration {
    retry.max((refused / 2).min(LONGEST_PAUSE))
}

/// The time for which a denied eviction or deletion is retried before the denial is final: an admission webhook or an API server
/// that has just started may deny for a moment what it allows later.
pub const DENIAL_RETRIED: Duration = Duration::from_secs(60);

/// Returns whether a denial that was repeated since a time is final.
pub fn denied_for_good(since: Timestamp, now: Timestamp) -> bool {
    now >= after(since, DENIAL_RETRIED)
}

/// The treatment of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is left alone: it has ended, mirrors a static pod, belongs to a DaemonSet, or is past its time.
    Stays,
    /// It tolerates the cordon and came back after the eviction of its owner's pods: left to the reboot.
    Returned,
    /// It is evicted.
    Goes,
    /// It is terminating: waited for.
    Leaving,
    /// It may not be evicted, so the node is not drained at all.
    Refused(Refusal),
}

/// Returns whether the record of the drain lists the pod as one that has to leave.
pub fn listed(pod: &PodFacts, drain: &DrainStatus) -> bool {
    drain.pods.iter().any(|listed| listed.uid == pod.uid)
}

/// Returns those of many pods that the record does not list.
pub fn unlisted<'a>(pods: &[&'a PodFacts], drain: &DrainStatus) -> impl Iterator<Item = &'a PodFacts> {
    let listed = if pods.is_empty() { &[][..] } else { &drain.pods };
    let listed: HashSet<&str> = listed.iter().map(|listed| listed.uid.as_str()).collect();
    pods.iter().copied().filter(move |pod| !listed.contains(pod.uid.as_str()))
}

/// Returns the treatment of a pod of a node whose drain has the record `drain`.
pub fn fate(pod: &PodFacts, rules: Rules, drain: Option<&DrainStatus>) -> Fate {
    let orphan = pod.daemon_set_state == DaemonSetState::Gone;
    // Mirror pods end with their static pods; a DaemonSet creates its pods again at once, while it exists.
    if pod.mirror || (pod.daemon_set.is_some() && !orphan) {
        return Fate::Stays;
    }
    // Graceful node shutdown leaves finished pods; they neither block a reboot nor count as disruption. One that is
    // being deleted has its grace period for what comes after its containers: its volumes may be in use.
    let past_grace = || {
        let gone_by = pod.ends_by.map(|by| after(by, ENDED));
        gone_by.zip(rules.now).is_some_and(|(by, now)| by <= now)
    };
    if pod.finished && (!pod.terminating || past_grace()) {
        return Fate::Stays;
    }
    if let Some(drain) = drain
        && pod.tolerates_cordon
        && pod.controller_uid.as_ref().is_some_and(|uid| drain.evicted_owners.contains(uid))
        && !listed(pod, drain)
    {
        return Fate::Returned;
    }
    if pod.terminating {
        let overdue = rules.overdue_since.is_some_and(|since| pod.ends_by.is_some_and(|by| by <= since));
        return if overdue { Fate::Stays } else { Fate::Leaving };
    }
    if pod.empty_dir && rules.empty_dir == PodsAtRisk::Refuse {
        return Fate::Refused(Refusal::EmptyDir);
    }
    if (pod.controller_uid.is_none() || orphan) && rules.bare_pods == PodsAtRisk::Refuse {
        return Fate::Refused(if orphan { Refusal::Orphan } else { Refusal::Bare });
    }
    Fate::Goes
}

/// Returns the pods that stay on a drained node although budgets may count them, and that its reboot ends: static ones, and those that came
/// back, unless they go past their budgets. As by `kubectl drain`, no budget is asked about pods of DaemonSets.
pub fn ended_by_reboot<'a>(
    pods: &'a [PodFacts],
    rules: Rules,
    drain: Option<&'a DrainStatus>,
) -> impl Iterator<Item = &'a PodFacts> {
    let came_back = move |pod: &PodFacts| !pod.terminating && fate(pod, rules, drain) == Fate::Returned;
    pods.iter().filter(move |pod| {
        let is_static = pod.mirror && !pod.finished;
        is_static || (!rules.past_budgets && came_back(pod))
    })
}

/// The pods of a node, sorted by their treatment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted<'a> {
    /// To be evicted.
    pub evictable: Vec<&'a PodFacts>,
    /// Terminating, waited for.
    pub leaving: Vec<&'a PodFacts>,
    /// Pods that prevent any drain, each with the reason.
    pub refused: Vec<(&'a PodFacts, Refusal)>,
    /// Back after their eviction, and left to the reboot.
    pub returned: Vec<&'a PodFacts>,
    /// Came after the drain began, and kept on the node by policy until its deadline, each with the reason for users. Empty before they are
    /// taken from the others.
    pub kept: Vec<(&'a PodFacts, String)>,
}

impl<'a> Sorted<'a> {
    /// All pods that are still on the node and would have to leave.
    pub fn left(&self) -> impl Iterator<Item = &'a PodFacts> {
        let refused = self.refused.iter().map(|(pod, _)| *pod);
        self.evictable.iter().copied().chain(self.leaving.iter().copied()).chain(refused)
    }

    /// The pods that may be evicted now: before all others those of `first`, alone until they have left; critical pods leave after all
    /// others. Where `first` is `None`, there is no order any more.
    pub fn first_to_go(&self, first: Option<&[FirstPod]>) -> impl Iterator<Item = &'a PodFacts> {
        let asked: HashSet<&str> = first.into_iter().flatten().map(|first| first.uid.as_str()).collect();
        let alone = self.left().any(|pod| asked.contains(pod.uid.as_str()));
        let ordinary = first.is_some() && self.left().any(|pod| !pod.critical);
        self.evictable
            .iter()
            .copied()
            .filter(move |pod| if alone { asked.contains(pod.uid.as_str()) } else { !(ordinary && pod.critical) })
    }

    /// Returns whether no pod is left that has to leave.
    pub fn empty(&self) -> bool {
        self.evictable.is_empty() && self.leaving.is_empty() && self.refused.is_empty()
    }
}

/// Sorts the pods of a node.
pub fn sort<'a>(pods: &'a [PodFacts], rules: Rules, drain: Option<&DrainStatus>) -> Sorted<'a> {
    // By name, so that what is written about them does not depend on the order of a list.
    let mut pods: Vec<&PodFacts> = pods.iter().collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    let mut sorted = Sorted::default();
    for pod in pods {
        match fate(pod, rules, drain) {
            Fate::Stays => {}
            Fate::Returned => sorted.returned.push(pod),
            Fate::Goes => sorted.evictable.push(pod),
            Fate::Leaving => sorted.leaving.push(pod),
            Fate::Refused(why) => sorted.refused.push((pod, why)),
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodFacts {
        PodFacts {
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            controller_uid: Some("rs".into()),
            ..PodFacts::default()
        }
    }

    #[test]
    fn eviction_retry_interval_grows_with_refusal_time() {
        let s = Duration::from_secs;
        let mut asked = vec![0];
        while asked.last() < Some(&300) {
            let last = asked[asked.len() - 1];
            asked.push(last + eviction_pause(BLOCKED_RETRY, s(last)).as_secs());
        }
        assert_eq!(asked, [0, 5, 10, 15, 22, 33, 49, 73, 109, 163, 223, 283, 343]);
        assert_eq!(eviction_pause(s(120), s(300)), s(120), "the server asks for more");
    }

    #[test]
    fn denial_is_final_after_it_was_retried_for_a_minute() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (now, expected) in [(100, false), (159, false), (160, true), (1000, true)] {
            assert_eq!(denied_for_good(at(100), at(now)), expected, "at {now}");
        }
    }

    #[test]
    fn drain_action_depends_on_kind_and_state_of_pod() {
        let cases = [
            ("a pod of a ReplicaSet goes", pod("a"), Fate::Goes),
            ("a finished pod stays", PodFacts { finished: true, ..pod("a") }, Fate::Stays),
            ("a mirror pod stays", PodFacts { mirror: true, controller_uid: None, ..pod("a") }, Fate::Stays),
            ("a DaemonSet's pod stays", PodFacts { daemon_set: Some("log".into()), ..pod("a") }, Fate::Stays),
            (
                "a DaemonSet's pod is refused when the DaemonSet is gone",
                PodFacts { daemon_set: Some("log".into()), daemon_set_state: DaemonSetState::Gone, ..pod("a") },
                Fate::Refused(Refusal::Orphan),
            ),
            ("a pod being deleted is waited for", PodFacts { terminating: true, ..pod("a") }, Fate::Leaving),
            (
                "so is one that has ended, for what comes after its containers",
                PodFacts { terminating: true, finished: true, ..pod("a") },
                Fate::Leaving,
            ),
            ("a bare pod is refused", PodFacts { controller_uid: None, ..pod("a") }, Fate::Refused(Refusal::Bare)),
            ("a pod with an emptyDir goes", PodFacts { empty_dir: true, ..pod("a") }, Fate::Goes),
            (
                "a bare pod being deleted is waited for",
                PodFacts { controller_uid: None, terminating: true, ..pod("a") },
                Fate::Leaving,
            ),
        ];
        for (sentence, pod, expected) in cases {
            assert_eq!(fate(&pod, Rules::default(), None), expected, "{sentence}");
        }
    }

    #[test]
    fn policy_controls_drain_of_bare_pods_and_pods_with_empty_dir() {
        let bare = || PodFacts { controller_uid: None, ..pod("a") };
        let with_data = || PodFacts { empty_dir: true, ..pod("a") };
        for (sentence, pod, rules, expected) in [
            ("bare pods may go", bare(), (PodsAtRisk::Evict, PodsAtRisk::Evict), Fate::Goes),
            (
                "so may those of a DaemonSet that is gone",
                PodFacts { daemon_set: Some("log".into()), daemon_set_state: DaemonSetState::Gone, ..pod("a") },
                (PodsAtRisk::Evict, PodsAtRisk::Evict),
                Fate::Goes,
            ),
            ("data must stay", with_data(), (PodsAtRisk::Refuse, PodsAtRisk::Refuse), Fate::Refused(Refusal::EmptyDir)),
            (
                "data of a finished pod is not protected",
                PodFacts { finished: true, ..with_data() },
                (PodsAtRisk::Refuse, PodsAtRisk::Refuse),
                Fate::Stays,
            ),
            (
                "a bare pod with data is reported for its data first, as kubectl does",
                PodFacts { empty_dir: true, ..bare() },
                (PodsAtRisk::Refuse, PodsAtRisk::Refuse),
                Fate::Refused(Refusal::EmptyDir),
            ),
            (
                "a DaemonSet's data stays where it is",
                PodFacts { daemon_set: Some("log".into()), ..with_data() },
                (PodsAtRisk::Refuse, PodsAtRisk::Refuse),
                Fate::Stays,
            ),
        ] {
            let rules = Rules { bare_pods: rules.0, empty_dir: rules.1, ..Rules::default() };
            assert_eq!(fate(&pod, rules, None), expected, "{sentence}");
        }
    }

    #[test]
    fn terminating_pod_is_not_waited_for_after_its_grace_period_limit() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let stuck = PodFacts { terminating: true, ends_by: Some(at(100)), ..pod("a") };
        for (since, expected) in [(None, Fate::Leaving), (Some(at(99)), Fate::Leaving), (Some(at(100)), Fate::Stays)] {
            let rules = Rules { overdue_since: since, ..Rules::default() };
            assert_eq!(fate(&stuck, rules, None), expected, "{since:?}");
        }
        let ended = PodFacts { finished: true, ..stuck.clone() };
        for (now, expected) in [(101, Fate::Leaving), (102, Fate::Stays)] {
            let rules = Rules { now: Some(at(now)), ..Rules::default() };
            assert_eq!(fate(&ended, rules, None), expected, "it has ended, at {now}");
            assert_eq!(fate(&stuck, rules, None), Fate::Leaving, "it has not ended, at {now}");
        }
        let live = PodFacts { terminating: false, ..stuck };
        let rules = Rules { overdue_since: Some(at(1000)), ..Rules::default() };
        assert_eq!(fate(&live, rules, None), Fate::Goes);
    }

    #[test]
    fn critical_pods_are_evicted_after_all_others_are_gone() {
        let critical = |name: &str| PodFacts { critical: true, ..pod(name) };
        let leaving = |name: &str| PodFacts { terminating: true, ..pod(name) };
        for (sentence, pods, expected) in [
            ("ordinary pods go first", vec![critical("dns"), pod("a"), pod("b")], vec!["a", "b"]),
            ("until they are gone, and not only terminating", vec![critical("dns"), leaving("a")], vec![]),
            ("then the others go", vec![critical("dns"), critical("proxy")], vec!["dns", "proxy"]),
            ("those that are asked first go alone", vec![critical("dns"), critical("db"), pod("a")], vec!["db"]),
            ("until they are gone", vec![critical("dns"), leaving("db"), pod("a")], vec![]),
        ] {
            let sorted = sort(&pods, Rules::default(), None);
            let first = [FirstPod { uid: "uid-db".into(), accepted: None, unguarded: false }];
            let found = sorted.first_to_go(Some(&first)).map(|pod| pod.name.as_str()).collect::<Vec<_>>();
            assert_eq!(found, expected, "{sentence}");
            assert!(sorted.first_to_go(None).eq(sorted.evictable.iter().copied()), "{sentence}: without an order");
        }
    }

    #[test]
    fn pod_tolerating_cordon_is_evicted_once_and_its_replacement_is_left() {
        let drain = DrainStatus {
            pods: [models::shadow::DrainedPod {
                namespace: "shop".into(),
                name: "first".into(),
                uid: "uid-first".into(),
                ..models::shadow::DrainedPod::default()
            }]
            .into(),
            evicted_owners: vec!["rs".into()],
            ..DrainStatus::default()
        };
        let addon = |name: &str| PodFacts { tolerates_cordon: true, ..pod(name) };
        for (sentence, pod, expected) in [
            ("the pod that was there before", addon("first"), Fate::Goes),
            ("and waited for while it ends", PodFacts { terminating: true, ..addon("first") }, Fate::Leaving),
            ("another pod of its owner", addon("second"), Fate::Returned),
            ("also where policy would refuse it", PodFacts { empty_dir: true, ..addon("second") }, Fate::Returned),
            ("one of another owner", PodFacts { controller_uid: Some("other".into()), ..addon("second") }, Fate::Goes),
            ("one that does not tolerate the cordon", pod("second"), Fate::Goes),
        ] {
            let rules = Rules { empty_dir: PodsAtRisk::Refuse, ..Rules::default() };
            assert_eq!(fate(&pod, rules, Some(&drain)), expected, "{sentence}");
        }
    }
}
