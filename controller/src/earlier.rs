//! The pods of the earlier operator in all namespaces. While one exists, this operator does nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::api::Api;
use kube::runtime::watcher;
use models::earlier::pod_selectors;
use planner::view::EarlierPod;
use prometheus::IntCounter;
use tokio::sync::watch;

use crate::cache::{Cache, Reading};

/// The caches of the earlier operator's pods: a label selector cannot match both of its labels. Clones share them.
#[derive(Clone)]
pub struct EarlierPods(pub(crate) [Cache<EarlierPod>; 2]);

impl EarlierPods {
    /// Returns empty caches that notify `changed` when a pod appears or is gone, and count the failures of their watches.
    pub fn new(changed: &Arc<watch::Sender<u64>>, failures: &IntCounter) -> Self {
        Self([Cache::new(changed.clone(), failures), Cache::new(changed.clone(), failures)])
    }

    /// Begins to watch.
    pub fn watch(&self, client: &kube::Client) {
        for (cache, selector) in self.0.iter().zip(pod_selectors()) {
            tokio::spawn(cache.run(Api::all(client.clone()), watcher::Config::default().labels(&selector)));
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
        use kube::core::DeserializeGuard;
        use kube::runtime::watcher::Event;
        use watches::Sink as _;
        let earlier = Self::new(&Arc::new(watch::channel(0).0), &crate::cache::uncounted());
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
