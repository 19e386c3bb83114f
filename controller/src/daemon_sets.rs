//! The existence of the DaemonSets that pods name.
//!
//! Each is read once, when a pod of it is first found: a pod is younger than its DaemonSet, so an answer "there is
//! none" is final, and when one that was there is deleted, the garbage collector deletes its pods or orphans them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::Api;
use tokio::sync::watch;

use planner::view::{DaemonSetIs, PodFacts};

/// The time after a failure until the next read.
const RETRY: Duration = Duration::from_secs(30);

/// Namespace, name and uid. The same uid in pods of another namespace proves nothing.
type SetKey = (String, String, String);

/// The DaemonSets that pods name.
pub struct DaemonSets {
    client: Client,
    changed: Arc<watch::Sender<u64>>,
    known: Known,
}

/// The known state of each; `Unknown`: it is being read.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<HashMap<SetKey, DaemonSetIs>>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<SetKey, DaemonSetIs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DaemonSets {
    /// Creates an empty cache. `changed` is notified of each answer.
    pub fn new(client: Client, changed: Arc<watch::Sender<u64>>) -> Self {
        Self { client, changed, known: Known::default() }
    }

    /// Marks each pod with the known state of its DaemonSet, and reads those that are not known.
    pub fn mark(&self, pods: &mut [PodFacts]) {
        for pod in pods {
            let (Some(name), Some(uid)) = (&pod.daemon_set, &pod.controller_uid) else { continue };
            let key = (pod.namespace.clone(), name.clone(), uid.clone());
            let known = self.known.lock().get(&key).copied();
            pod.daemon_set_is = known.unwrap_or_default();
            if known.is_none() {
                self.read(key);
            }
        }
    }

    fn read(&self, key: SetKey) {
        self.known.lock().insert(key.clone(), DaemonSetIs::Unknown);
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &key.0);
        let (known, changed) = (self.known.clone(), Arc::clone(&self.changed));
        tokio::spawn(async move {
            let answer = match api.get_metadata_opt(&key.1).await {
                Ok(Some(found)) if found.metadata.uid.as_ref() == Some(&key.2) => DaemonSetIs::There,
                Ok(_) => DaemonSetIs::Gone,
                Err(error) => {
                    tracing::warn!(
                        namespace = key.0,
                        name = key.1,
                        error = &error as &dyn std::error::Error,
                        "a DaemonSet cannot be read; nodes with pods of it are not drained"
                    );
                    DaemonSetIs::Unreadable
                }
            };
            known.lock().insert(key.clone(), answer);
            changed.send_modify(|n| *n = n.wrapping_add(1));
            if answer == DaemonSetIs::Unreadable {
                tokio::time::sleep(RETRY).await;
                known.lock().remove(&key);
                changed.send_modify(|n| *n = n.wrapping_add(1));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn pod(uid: &str) -> PodFacts {
        PodFacts {
            namespace: "logs".into(),
            name: format!("log-{uid}"),
            daemon_set: Some("log".into()),
            controller_uid: Some(uid.into()),
            ..PodFacts::default()
        }
    }

    #[tokio::test]
    async fn pod_without_matching_daemon_set_is_orphaned() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let changed = Arc::new(watch::channel(0).0);
        let sets = DaemonSets::new(Client::new(service, "default"), changed.clone());
        let mut answers = changed.subscribe();
        let mut pods = [pod("now"), pod("before"), pod("hidden"), PodFacts::default()];
        sets.mark(&mut pods);
        sets.mark(&mut pods);
        assert!(pods.iter().all(|pod| pod.daemon_set_is == DaemonSetIs::Unknown), "nothing is known yet");
        for status in [200, 200, 403] {
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(
                request.uri().path(),
                "/apis/apps/v1/namespaces/logs/daemonsets/log",
                "and nothing is asked twice"
            );
            let body = match status {
                200 => {
                    r#"{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "log", "uid": "now"}}"#
                }
                _ => r#"{"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}"#,
            };
            send.send_response(Response::builder().status(status).body(Body::from(body.as_bytes().to_vec())).unwrap());
        }
        while pods[..3].iter().any(|pod| pod.daemon_set_is == DaemonSetIs::Unknown) {
            answers.changed().await.unwrap();
            sets.mark(&mut pods);
        }
        let known = pods.map(|pod| pod.daemon_set_is);
        assert_eq!(known, [DaemonSetIs::There, DaemonSetIs::Gone, DaemonSetIs::Unreadable, DaemonSetIs::Unknown]);
    }
}
