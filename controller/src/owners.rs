//! The owners of pods that are read from the API server: DaemonSets, for their existence, and the ReplicaSets and Jobs
//! between a pod and its top owner.
//!
//! Each is read once and kept while watched pods name it: a pod is younger than its owner, so an answer "there is none" is final,
//! and when one that was there is deleted, the garbage collector deletes its pods or orphans them. A DaemonSet that the watch of all
//! shows is not read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use kube::Client;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use models::failures::{LoggedFailures, with_causes};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use planner::view::{DaemonSetFacts, DaemonSetState, OWNER_WAIT, PodFacts};

use crate::cache::Cache;

/// The kind of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    DaemonSet,
    ReplicaSet,
    Job,
}

impl Kind {
    fn resource(self) -> ApiResource {
        match self {
            Self::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
            Self::ReplicaSet => ApiResource::erase::<ReplicaSet>(&()),
            Self::Job => ApiResource::erase::<Job>(&()),
        }
    }

    /// The time after a failure until the next read. Drains wait for DaemonSets.
    fn retry(self) -> Duration {
        match self {
            Self::DaemonSet => Duration::from_secs(30),
            Self::ReplicaSet | Self::Job => Duration::from_mins(5),
        }
    }

    /// The consequence of a failure.
    fn failure(self) -> &'static str {
        match self {
            Self::DaemonSet => "a DaemonSet cannot be read; nodes with pods of it are not drained",
            Self::ReplicaSet => "a ReplicaSet cannot be read; the rollout history names it instead of its owner",
            Self::Job => "a Job cannot be read; the rollout history names it instead of its owner",
        }
    }
}

/// The time for which an owner that no watched pod names is kept: nodes are drained one after the other, and pods of the same
/// owners are on the next one.
const KEPT: Duration = Duration::from_mins(30);

/// The number of reads at a time. The pods of many nodes name many owners at once, for example under a new leader.
const AT_A_TIME: usize = 20;

/// Kind, namespace, name and uid. The same uid in pods of another namespace proves nothing.
type OwnerKey = (Kind, String, String, String);

/// The answer of the API server about an owner.
#[derive(Clone, Debug)]
enum Answer {
    /// None so far.
    Pending,
    /// It exists; kind and name of its own controller, such as `Deployment/web`.
    Found(Option<String>),
    /// There is none with this uid.
    Missing,
    Failed,
}

/// An owner that pods name.
#[derive(Debug)]
struct Owner {
    answer: Answer,
    /// Time of the read.
    asked: Instant,
    /// The last time at which a watched pod named it.
    named: Instant,
}

/// The owners that pods name.
pub struct Owners {
    client: Client,
    daemon_sets: Cache<DaemonSetFacts>,
    changed: Arc<watch::Sender<u64>>,
    known: Arc<Mutex<HashMap<OwnerKey, Owner>>>,
    failures: Arc<Mutex<HashMap<OwnerKey, LoggedFailures>>>,
    reading: Arc<Semaphore>,
}

/// Returns the owner of a pod that has to be read: its DaemonSet, or what is between it and its top owner.
fn owner_to_read(pod: &PodFacts) -> Option<OwnerKey> {
    let (kind, name) = match (&pod.daemon_set, &pod.top_owner, pod.controller.as_deref()?.split_once(' ')?) {
        (Some(name), ..) => (Kind::DaemonSet, name.as_str()),
        (None, None, ("ReplicaSet", name)) => (Kind::ReplicaSet, name),
        (None, None, ("Job", name)) => (Kind::Job, name),
        _ => return None,
    };
    Some((kind, pod.namespace.clone(), name.to_owned(), pod.controller_uid.clone()?))
}

/// Returns kind and name of an object's controller.
fn controller(object: &PartialObjectMeta<DynamicObject>) -> Option<String> {
    let owner = object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(format!("{}/{}", owner.kind, owner.name))
}

impl Owners {
    /// Creates an empty cache. `changed` is notified of each answer.
    pub fn new(client: Client, daemon_sets: Cache<DaemonSetFacts>, changed: Arc<watch::Sender<u64>>) -> Self {
        let (known, failures, reading) = (Arc::default(), Arc::default(), Arc::new(Semaphore::new(AT_A_TIME)));
        Self { client, daemon_sets, changed, known, failures, reading }
    }

    /// Marks each pod with what is known of its owner, and reads the owners that are not known.
    pub fn mark(&self, pods: &mut [PodFacts]) {
        for pod in pods {
            let Some(key) = owner_to_read(pod) else { continue };
            let (answer, recent) = self.ask(&key, &pod.node);
            pod.owner_pending = key.0 != Kind::DaemonSet && recent && matches!(answer, Answer::Pending);
            match (key.0, answer) {
                (Kind::DaemonSet, answer) => {
                    pod.daemon_set_state = match answer {
                        Answer::Pending => DaemonSetState::Unknown,
                        Answer::Found(_) => DaemonSetState::There,
                        Answer::Missing => DaemonSetState::Gone,
                        Answer::Failed => DaemonSetState::Unreadable,
                    }
                }
                (_, Answer::Found(top)) => {
                    pod.top_owner = top.or_else(|| Some(pod.controller.as_ref()?.replacen(' ', "/", 1)));
                }
                _ => {}
            }
        }
    }

    /// Returns what is known of an owner of a pod on a node, and whether it was first asked for a moment ago.
    fn ask(&self, key: &OwnerKey, node: &str) -> (Answer, bool) {
        let mut known = self.known.lock();
        let now = Instant::now();
        let owner = known.entry(key.clone()).or_insert_with(|| {
            // The watch may be behind that of the pods, and what it does not show is no proof.
            let shown = |set: &DaemonSetFacts| key.0 == Kind::DaemonSet && set.uid == key.3;
            let name = format!("{}/{}", key.1, key.2);
            let answer = if self.daemon_sets.read(|sets| sets.get(&name).is_some_and(shown)) {
                Answer::Found(None)
            } else {
                self.read(key.clone(), node.to_owned());
                Answer::Pending
            };
            Owner { answer, asked: now, named: now }
        });
        owner.named = now;
        (owner.answer.clone(), owner.asked.elapsed() < OWNER_WAIT)
    }

    /// Forgets the owners that no pod has named for long.
    pub fn forget_unnamed(&self) {
        let mut known = self.known.lock();
        known.retain(|_, owner| owner.named.elapsed() < KEPT);
        self.failures.lock().retain(|key, _| known.contains_key(key));
    }

    /// Reads an owner of pods, one of which is on this node.
    fn read(&self, key: OwnerKey, node: String) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.1, &key.0.resource());
        let (known, changed, reading) = (self.known.clone(), Arc::clone(&self.changed), self.reading.clone());
        let failures = self.failures.clone();
        tokio::spawn(async move {
            let turn = reading.acquire().await;
            // By get, which a ClusterRole permits that is older than the watch of all DaemonSets.
            let answer = match api.get_metadata_opt(&key.2).await {
                Ok(Some(found)) if found.metadata.uid.as_ref() == Some(&key.3) => Answer::Found(controller(&found)),
                Ok(_) => Answer::Missing,
                Err(error) => {
                    let (error, now) = (with_causes(&error), Instant::now());
                    if failures.lock().entry(key.clone()).or_default().is_news(&error, now) {
                        tracing::warn!(node, namespace = key.1, name = key.2, error, "{}", key.0.failure());
                    }
                    Answer::Failed
                }
            };
            drop(turn);
            let failed = matches!(answer, Answer::Failed);
            // Not recorded if no pod names the owner any more.
            if let Some(owner) = known.lock().get_mut(&key) {
                owner.answer = answer;
            }
            changed.send_modify(|n| *n = n.wrapping_add(1));
            if failed {
                tokio::time::sleep(key.0.retry()).await;
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
    use serde_json::json;

    use super::*;
    use crate::cache::uncounted;

    type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

    fn pod(uid: &str) -> PodFacts {
        PodFacts {
            namespace: "logs".into(),
            name: format!("log-{uid}"),
            controller: Some("DaemonSet log".into()),
            daemon_set: Some("log".into()),
            controller_uid: Some(uid.into()),
            ..PodFacts::default()
        }
    }

    fn pod_of(controller: &str) -> PodFacts {
        PodFacts {
            namespace: "shop".into(),
            controller: Some(controller.into()),
            controller_uid: Some("now".into()),
            ..PodFacts::default()
        }
    }

    fn owners() -> (Owners, watch::Receiver<u64>, Server) {
        let (service, server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (changed, changes) = watch::channel(0);
        let changed = Arc::new(changed);
        (
            Owners::new(Client::new(service, "default"), Cache::new(changed.clone(), &uncounted()), changed),
            changes,
            server,
        )
    }

    /// An answer. Status 200 is an object with the uid `now` and this controller.
    fn response(status: u16, controller: Option<(&str, &str)>) -> Response<Body> {
        let owners = controller.map(|(kind, name)| {
            json!([{"apiVersion": "any/v1", "kind": kind, "name": name, "uid": "top", "controller": true}])
        });
        let body = match status {
            200 => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": "any", "uid": "now", "ownerReferences": owners}}),
            404 => json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
            _ => json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
        };
        Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
    }

    /// Answers the next read, and returns its path.
    async fn answer(server: &mut Server, status: u16, controller: Option<(&str, &str)>) -> String {
        let (request, send) = server.next_request().await.unwrap();
        send.send_response(response(status, controller));
        request.uri().path().to_owned()
    }

    /// Answers the read of the one owner of a pod, and returns its path and the pod's top owner.
    async fn read(controller: &str, status: u16, owner: Option<(&str, &str)>) -> (String, Option<String>) {
        let (owners, mut answers, mut server) = owners();
        let mut pods = [pod_of(controller)];
        owners.mark(&mut pods);
        assert_eq!(pods[0].top_owner, None, "nothing is known yet");
        let path = answer(&mut server, status, owner).await;
        answers.changed().await.unwrap();
        owners.mark(&mut pods);
        let [pod] = pods;
        (path, pod.top_owner)
    }

    #[tokio::test]
    async fn pod_without_matching_daemon_set_is_orphaned() {
        let (sets, mut answers, mut server) = owners();
        let mut pods = [pod("now"), pod("before"), pod("hidden"), PodFacts::default()];
        sets.mark(&mut pods);
        sets.mark(&mut pods);
        assert!(pods.iter().all(|pod| pod.daemon_set_state == DaemonSetState::Unknown), "nothing is known yet");
        for status in [200, 200, 403] {
            let path = answer(&mut server, status, None).await;
            assert_eq!(path, "/apis/apps/v1/namespaces/logs/daemonsets/log", "and nothing is asked twice");
        }
        while pods[..3].iter().any(|pod| pod.daemon_set_state == DaemonSetState::Unknown) {
            answers.changed().await.unwrap();
            sets.mark(&mut pods);
        }
        assert!(pods.iter().all(|pod| pod.top_owner.is_none()), "that of a DaemonSet's pod is known without a read");
        let known = pods.map(|pod| pod.daemon_set_state);
        assert_eq!(
            known,
            [DaemonSetState::There, DaemonSetState::Gone, DaemonSetState::Unreadable, DaemonSetState::Unknown]
        );
    }

    #[tokio::test]
    async fn daemon_set_is_read_only_where_the_watch_does_not_show_it() {
        for (sentence, shown, read, expected) in [
            ("the one of the pod", Some("now"), None, DaemonSetState::There),
            ("an earlier one of that name", Some("before"), Some(200), DaemonSetState::There),
            ("none so far, or the watch is not permitted", None, Some(200), DaemonSetState::There),
            ("none, and there is none", None, Some(404), DaemonSetState::Gone),
        ] {
            let (owners, mut answers, mut server) = owners();
            if let Some(uid) = shown {
                let meta =
                    json!({"metadata": {"name": "log", "namespace": "logs", "uid": uid, "resourceVersion": "1"}});
                owners.daemon_sets.written(&serde_json::from_value(meta).unwrap());
            }
            answers.mark_unchanged();
            let mut pods = [pod("now")];
            owners.mark(&mut pods);
            if let Some(status) = read {
                assert_eq!(pods[0].daemon_set_state, DaemonSetState::Unknown, "{sentence}");
                // A list would need the right that the watch needs.
                let path = answer(&mut server, status, None).await;
                assert_eq!(path, "/apis/apps/v1/namespaces/logs/daemonsets/log", "{sentence}");
                answers.changed().await.unwrap();
                owners.mark(&mut pods);
            }
            assert_eq!(pods[0].daemon_set_state, expected, "{sentence}");
        }
    }

    #[tokio::test]
    async fn top_owner_is_controller_of_replica_set_or_job() {
        for (direct, status, owner, top) in [
            ("ReplicaSet web-1", 200, Some(("Deployment", "web")), Some("Deployment/web")),
            ("ReplicaSet web-1", 200, Some(("Rollout", "web")), Some("Rollout/web")),
            ("ReplicaSet web-1", 200, None, Some("ReplicaSet/web-1")),
            ("Job report-1", 200, Some(("CronJob", "report")), Some("CronJob/report")),
            ("Job report-1", 200, None, Some("Job/report-1")),
            ("ReplicaSet web-1", 404, None, None),
            ("ReplicaSet web-1", 403, None, None),
        ] {
            let (path, found) = read(direct, status, owner).await;
            assert_eq!(found.as_deref(), top, "{direct}, {status}");
            let expected = match direct {
                "Job report-1" => "/apis/batch/v1/namespaces/shop/jobs/report-1",
                _ => "/apis/apps/v1/namespaces/shop/replicasets/web-1",
            };
            assert_eq!(path, expected);
        }
    }

    #[tokio::test]
    async fn only_replica_sets_and_jobs_of_kubernetes_are_read_for_top_owner() {
        let pod = |api_version: &str, kind: &str| {
            let owner = json!({"apiVersion": api_version, "kind": kind, "name": "a", "uid": "now", "controller": true});
            let pod = json!({"metadata": {"name": "a-1", "namespace": "shop", "ownerReferences": [owner]}});
            PodFacts::of(&serde_json::from_value(pod).unwrap())
        };
        for (api_version, kind, read) in [
            ("apps/v1", "ReplicaSet", Some(Kind::ReplicaSet)),
            ("batch/v1", "Job", Some(Kind::Job)),
            ("apps/v1", "DaemonSet", Some(Kind::DaemonSet)),
            ("apps/v1", "StatefulSet", None),
            ("batch.volcano.sh/v1alpha1", "Job", None),
            ("example.com/v1", "ReplicaSet", None),
        ] {
            let pod = pod(api_version, kind);
            assert_eq!(owner_to_read(&pod).map(|key| key.0), read, "{kind} of {api_version}");
            let own = !matches!(read, Some(Kind::ReplicaSet | Kind::Job));
            assert_eq!(pod.top_owner, own.then(|| format!("{kind}/a")), "{kind} of {api_version}");
        }
        assert!(owner_to_read(&PodFacts::default()).is_none(), "a bare pod has none");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_read_of_owner_is_repeated_and_missing_owner_is_not() {
        let (owners, mut answers, mut server) = owners();
        let mut pods = [pod_of("ReplicaSet web-1"), pod_of("Job report-1")];
        owners.mark(&mut pods);
        for _ in 0..2 {
            let (request, send) = server.next_request().await.unwrap();
            let status = if request.uri().path().contains("/jobs/") { 404 } else { 403 };
            send.send_response(response(status, None));
        }
        let repeated = tokio::spawn(async move { answer(&mut server, 200, Some(("Deployment", "web"))).await });
        // By the paused clock: without another read this ends at once.
        let read = async {
            while pods[0].top_owner.is_none() {
                answers.changed().await.unwrap();
                owners.mark(&mut pods);
            }
        };
        tokio::time::timeout(Duration::from_hours(1), read).await.unwrap();
        assert_eq!(repeated.await.unwrap(), "/apis/apps/v1/namespaces/shop/replicasets/web-1");
        assert_eq!(pods.map(|pod| pod.top_owner), [Some("Deployment/web".into()), None]);
        let known = owners.known.lock();
        assert!(known.iter().any(|(key, owner)| key.0 == Kind::Job && matches!(owner.answer, Answer::Missing)));
    }

    #[tokio::test(start_paused = true)]
    async fn owners_are_read_a_limited_number_at_a_time() {
        let (owners, _answers, mut server) = owners();
        let mut pods: Vec<_> = (0..=AT_A_TIME).map(|number| pod_of(&format!("ReplicaSet web-{number}"))).collect();
        owners.mark(&mut pods);
        let mut unanswered = Vec::new();
        // The clock moves on as soon as nothing else is to be done.
        while let Ok(Some(next)) = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await {
            unanswered.push(next);
        }
        assert_eq!(unanswered.len(), AT_A_TIME);
        let (_, send) = unanswered.pop().unwrap();
        send.send_response(response(404, None));
        let next = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await;
        assert!(matches!(next, Ok(Some(_))), "the last one is read once another one is answered");
    }

    #[tokio::test(start_paused = true)]
    async fn owner_that_no_pod_names_is_forgotten() {
        let (owners, mut answers, mut server) = owners();
        let known = || owners.known.lock().len();
        let mut pods = [pod_of("ReplicaSet web-1")];
        owners.mark(&mut pods);
        tokio::time::advance(KEPT / 2).await;
        owners.mark(&mut pods);
        tokio::time::advance(KEPT / 2).await;
        owners.forget_unnamed();
        assert_eq!(known(), 1, "a pod has named it");
        tokio::time::advance(KEPT / 2).await;
        owners.forget_unnamed();
        assert_eq!(known(), 0);
        answer(&mut server, 200, None).await;
        answers.changed().await.unwrap();
        assert_eq!(known(), 0, "its late answer does not bring it back");
        owners.mark(&mut pods);
        answer(&mut server, 200, None).await;
        answers.changed().await.unwrap();
        owners.mark(&mut pods);
        assert_eq!(pods[0].top_owner.as_deref(), Some("ReplicaSet/web-1"), "it is read again for the next pod");
    }
}
