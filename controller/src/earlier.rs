//! The pods of the earlier operator in all namespaces. While one exists, this operator does nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use models::earlier::pod_selectors;
use planner::view::EarlierPod;
use planner::wait::Wait;
use tokio::sync::watch;

use crate::cache::{Cache, Reading};

/// The caches of the earlier operator's pods: a label selector cannot match both of its labels. Clones share them.
#[derive(Clone)]
pub struct EarlierPods(pub(crate) [Cache<EarlierPod>; 2]);

impl EarlierPods {
    /// Returns empty caches that notify `changed` when a pod appears or is gone.
    pub fn new(changed: &Arc<watch::Sender<u64>>) -> Self {
        Self([Cache::new(changed.clone()), Cache::new(changed.clone())])
    }

    /// Begins to watch.
    pub fn watch(&self, client: &kube::Client) {
        for (cache, selector) in self.0.iter().zip(pod_selectors()) {
            let pods = Api::<DeserializeGuard<Pod>>::all(client.clone());
            tokio::spawn(cache.run(pods, watcher::Config::default().labels(&selector)));
        }
    }

    /// Adds a read of them, requested now.
    pub fn read_again(&self, reading: Reading) -> Reading {
        self.0.iter().fold(reading, Reading::of)
    }

    /// Returns the pods, each with its namespace, in order.
    pub fn names(&self) -> Vec<String> {
        let names = self.0.iter().flat_map(|cache| cache.read(|pods| pods.keys().cloned().collect::<Vec<_>>()));
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

#[cfg(test)]
impl EarlierPods {
    /// Returns caches that have seen these pods of an agent, each with its phase, in the namespace `old`.
    pub fn listed(pods: &[(&str, &str)]) -> Self {
        use kube::runtime::watcher::Event;
        use watches::Sink as _;
        let earlier = Self::new(&Arc::new(watch::channel(0).0));
        for cache in &earlier.0 {
            cache.take(0, Event::Init);
            for (name, phase) in pods {
                let pod = serde_json::json!({
                    "metadata": {
                        "namespace": "old", "name": name, "resourceVersion": "1",
                        "labels": {models::earlier::COMPONENT_LABEL: "agent"},
                    },
                    "status": {"phase": phase},
                });
                cache.take(0, Event::InitApply(DeserializeGuard(Ok(serde_json::from_value(pod).unwrap()))));
            }
            cache.take(0, Event::InitDone);
        }
        earlier
    }
}

/// The pause of a leader beside the earlier operator.
#[derive(Debug, Default)]
pub struct Pause {
    paused: bool,
    /// The end of the last pause.
    resumed: Option<Timestamp>,
}

impl Pause {
    /// Takes in the pods that exist now, and logs where a pause begins or ends. Returns the end of the last pause.
    pub fn observe(&mut self, pods: &[String], now: Timestamp) -> Option<Timestamp> {
        match (Wait::for_earlier_operator(pods), self.paused) {
            (Some(wait), false) => {
                tracing::warn!(pods = pods.len(), reason = %wait, "paused: earlier operator running");
            }
            (None, true) => {
                tracing::info!(pods = 0, "resumed: earlier operator gone");
                self.resumed = Some(now);
            }
            _ => {}
        }
        self.paused = !pods.is_empty();
        self.resumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_is_logged_by_driver_alone() {
        use models::condition::Condition;
        use models::operator::{BLOCKED, BottlerocketUpdateOperatorStatus};
        let blocked = |holds: bool, reason: &str| {
            let condition = Condition {
                type_: BLOCKED.to_owned(),
                status: holds.into(),
                reason: reason.to_owned(),
                message: String::new(),
                last_transition_time: Timestamp::UNIX_EPOCH,
                observed_generation: None,
            };
            BottlerocketUpdateOperatorStatus { conditions: vec![condition], ..Default::default() }
        };
        type Status = BottlerocketUpdateOperatorStatus;
        let lines = |before: &Status, after: &Status| crate::decisions::of_operator(before, after).len();
        let quiet = Status::default();
        for (reason, expected) in [("EarlierOperatorRunning", 0), ("ExpressionFires", 1)] {
            let (begins, ends) = (blocked(true, reason), blocked(false, reason));
            assert_eq!((lines(&quiet, &begins), lines(&begins, &ends)), (expected, expected), "{reason}");
        }
    }

    #[test]
    fn pause_ends_when_last_pod_is_gone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (one, two) = (vec!["a/b".to_owned()], vec!["a/b".to_owned(), "a/c".to_owned()]);
        let mut pause = Pause::default();
        let seen = [(&vec![], 0), (&two, 10), (&one, 20), (&vec![], 30), (&vec![], 40), (&one, 50), (&vec![], 60)];
        let ends: Vec<_> = seen.into_iter().map(|(pods, now)| pause.observe(pods, at(now))).collect();
        assert_eq!(ends, [None, None, None, Some(at(30)), Some(at(30)), Some(at(30)), Some(at(60))]);
    }
}
