//! Which pods on a node have to go before it reboots: `kubectl drain`'s filters, in its order, over facts.
//!
//! Policy for pods with an `emptyDir`: they go, since an update's reboot would end them anyway. Bare pods, which nothing
//! would bring back, are refused: then nothing at all is evicted, and the node waits with that reason.

use crate::view::PodFacts;
use models::shadow::DrainStatus;

/// What happens to one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is left alone: it has ended, mirrors a static pod, or belongs to a DaemonSet.
    Stays,
    /// One of the operator's own pods that came back after its eviction: left to the reboot.
    OwnReturned,
    /// It is evicted.
    Goes,
    /// It is on its way out: waited for.
    Leaving,
    /// It may not be evicted, so the node is not drained at all.
    Refused,
}

/// What happens to a pod of a node whose drain stands at `drain`.
pub fn fate(pod: &PodFacts, drain: Option<&DrainStatus>, own_namespace: &str) -> Fate {
    // Mirror pods end with their static pods; DaemonSet pods would be put back at once.
    if pod.mirror || pod.controller_kind.as_deref() == Some("DaemonSet") {
        return Fate::Stays;
    }
    // Graceful node shutdown leaves finished pods; they neither hinder a reboot nor count as disruption.
    if pod.finished {
        return Fate::Stays;
    }
    if let Some(drain) = drain
        && pod.namespace == own_namespace
        && pod.controller_uid.as_ref().is_some_and(|uid| drain.own_evicted.contains(uid))
        && !drain.pods.iter().any(|p| p.uid == pod.uid)
    {
        return Fate::OwnReturned;
    }
    if pod.terminating {
        return Fate::Leaving;
    }
    if pod.controller_uid.is_none() { Fate::Refused } else { Fate::Goes }
}

/// The pods of a node, sorted by what happens to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted<'a> {
    /// To be evicted.
    pub go: Vec<&'a PodFacts>,
    /// Waited for.
    pub leaving: Vec<&'a PodFacts>,
    /// In the way of any drain.
    pub refused: Vec<&'a PodFacts>,
}

impl Sorted<'_> {
    /// Whether nothing is left that has to go.
    pub fn empty(&self) -> bool {
        self.go.is_empty() && self.leaving.is_empty() && self.refused.is_empty()
    }
}

/// Sorts the pods of a node.
pub fn sort<'a>(pods: &'a [PodFacts], drain: Option<&DrainStatus>, own_namespace: &str) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for pod in pods {
        match fate(pod, drain, own_namespace) {
            Fate::Stays | Fate::OwnReturned => {}
            Fate::Goes => sorted.go.push(pod),
            Fate::Leaving => sorted.leaving.push(pod),
            Fate::Refused => sorted.refused.push(pod),
        }
    }
    // In the order of their names, so that what is written of them does not depend on the order of a list.
    for pods in [&mut sorted.go, &mut sorted.leaving, &mut sorted.refused] {
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
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
            controller_kind: Some("ReplicaSet".into()),
            controller_uid: Some("rs".into()),
            ..PodFacts::default()
        }
    }

    #[test]
    fn each_pod_meets_its_fate() {
        let cases = [
            ("a pod of a ReplicaSet goes", pod("a"), Fate::Goes),
            ("a finished pod stays", PodFacts { finished: true, ..pod("a") }, Fate::Stays),
            ("a mirror pod stays", PodFacts { mirror: true, controller_uid: None, ..pod("a") }, Fate::Stays),
            (
                "a DaemonSet's pod stays",
                PodFacts { controller_kind: Some("DaemonSet".into()), ..pod("a") },
                Fate::Stays,
            ),
            ("a pod being deleted is waited for", PodFacts { terminating: true, ..pod("a") }, Fate::Leaving),
            (
                "a bare pod is refused",
                PodFacts { controller_kind: None, controller_uid: None, ..pod("a") },
                Fate::Refused,
            ),
            (
                "a bare pod being deleted is waited for",
                PodFacts { controller_kind: None, controller_uid: None, terminating: true, ..pod("a") },
                Fate::Leaving,
            ),
        ];
        for (sentence, pod, expected) in cases {
            assert_eq!(fate(&pod, None, "brupop-system"), expected, "{sentence}");
        }
    }

    #[test]
    fn our_own_pod_goes_once_and_is_left_to_the_reboot_when_it_comes_back() {
        let own = |name: &str| PodFacts { namespace: "brupop-system".into(), ..pod(name) };
        let drain = DrainStatus {
            pods: vec![models::shadow::DrainedPod {
                namespace: "brupop-system".into(),
                name: "first".into(),
                uid: "uid-first".into(),
            }],
            own_evicted: vec!["rs".into()],
            ..DrainStatus::default()
        };
        assert_eq!(fate(&own("first"), Some(&drain), "brupop-system"), Fate::Goes);
        assert_eq!(fate(&own("second"), Some(&drain), "brupop-system"), Fate::OwnReturned);
        assert_eq!(fate(&pod("second"), Some(&drain), "brupop-system"), Fate::Goes);
    }
}
