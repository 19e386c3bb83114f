//! Which of the DaemonSets that pods name are there.
//!
//! Each is asked for once, when a pod of it is first met: a pod is younger than its DaemonSet, so an answer "there is none" is
//! final, and when one that was there goes, the garbage collector takes its pods along or makes them bare.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::Api;
use tokio::sync::watch;

use crate::view::PodFacts;

/// How long after a failure one is asked for again.
const RETRY: Duration = Duration::from_secs(2);

/// What is known of one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It is being asked for.
    Asked,
    /// It was there.
    There,
    /// There is none of that uid.
    Gone,
}

/// The DaemonSets that pods name, by uid.
pub struct DaemonSets {
    client: Client,
    changed: Arc<watch::Sender<u64>>,
    known: Arc<Mutex<HashMap<String, Known>>>,
}

impl DaemonSets {
    /// Knows of none. `changed` is told of each answer.
    pub fn new(client: Client, changed: Arc<watch::Sender<u64>>) -> Self {
        Self { client, changed, known: Arc::default() }
    }

    /// Marks those pods whose DaemonSet is gone; `None` while that is not known of all of them.
    pub fn mark(&self, mut pods: Vec<PodFacts>) -> Option<Vec<PodFacts>> {
        let mut complete = true;
        for pod in &mut pods {
            let (Some(name), Some(uid)) = (&pod.daemon_set, &pod.controller_uid) else { continue };
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied();
            match known {
                Some(Known::There) => {}
                Some(Known::Gone) => pod.orphan = true,
                Some(Known::Asked) => complete = false,
                None => {
                    complete = false;
                    self.ask(pod.namespace.clone(), name.clone(), uid.clone());
                }
            }
        }
        complete.then_some(pods)
    }

    fn ask(&self, namespace: String, name: String, uid: String) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone(), Known::Asked);
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &namespace);
        let (known, changed) = (Arc::clone(&self.known), Arc::clone(&self.changed));
        tokio::spawn(async move {
            let found = api.get_metadata_opt(&name).await;
            let answer = match found {
                Ok(Some(found)) if found.metadata.uid.as_deref() == Some(uid.as_str()) => Some(Known::There),
                Ok(_) => Some(Known::Gone),
                Err(error) => {
                    tracing::warn!(
                        namespace,
                        name,
                        error = &error as &dyn std::error::Error,
                        "a DaemonSet cannot be read; the node of its pods waits for that"
                    );
                    tokio::time::sleep(RETRY).await;
                    None
                }
            };
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Some(answer) => known.insert(uid, answer),
                None => known.remove(&uid),
            };
            drop(known);
            changed.send_modify(|n| *n = n.wrapping_add(1));
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
    async fn a_pod_is_an_orphan_when_no_daemon_set_has_its_controllers_uid_and_each_is_asked_for_once() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let changed = Arc::new(watch::channel(0).0);
        let sets = DaemonSets::new(Client::new(service, "default"), changed.clone());
        let mut answers = changed.subscribe();
        let pods = || vec![pod("now"), pod("before"), PodFacts::default()];
        assert!(sets.mark(pods()).is_none(), "nothing is known yet");
        assert!(sets.mark(pods()).is_none(), "nor is it now, and nothing is asked twice");
        for _ in 0..2 {
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.uri().path(), "/apis/apps/v1/namespaces/logs/daemonsets/log");
            let body = br#"{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "log", "uid": "now"}}"#;
            send.send_response(Response::new(Body::from(body.to_vec())));
        }
        let marked = loop {
            answers.changed().await.unwrap();
            if let Some(marked) = sets.mark(pods()) {
                break marked;
            }
        };
        assert_eq!(marked.iter().map(|pod| pod.orphan).collect::<Vec<_>>(), [false, true, false]);
    }
}
