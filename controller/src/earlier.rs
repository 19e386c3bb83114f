//! The pods of the earlier operator in all namespaces. While one exists, this operator does nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use models::earlier::pod_selectors;
use planner::view::EarlierPod;
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
