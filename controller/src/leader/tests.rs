//! Campaigns against a server that keeps one Lease.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock::Clock;

use super::{CampaignError, Leadership, Parameters, Release, campaign};

/// A server with one Lease. Requests are logged, with the holder that a write names.
#[derive(Clone)]
struct Server {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<usize>,
}

type Look = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    log: Vec<String>,
    /// Called at each write, before it is answered.
    at_write: Option<Look>,
    /// Watches that are up to date. Each ends with the next change.
    watches: Vec<Reply>,
}

type Reply = tower_test::mock::SendResponse<Response<Body>>;

fn send(reply: Reply, code: u16, answer: &Value) {
    let answer = Body::from(format!("{answer}\n").into_bytes());
    reply.send_response(Response::builder().status(code).body(answer).unwrap());
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

impl State {
    fn put(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        for reply in self.watches.drain(..) {
            send(reply, 200, &json!({"type": "MODIFIED", "object": lease}));
        }
        lease
    }

    /// Answers a list, or a watch of the changes after a version.
    fn follow(&mut self, query: &str, reply: Reply) {
        let known = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let lease = self.lease.clone();
        match known.filter(|_| query.contains("watch=true")).map(|version| version.parse::<u64>().unwrap()) {
            None => {
                let items: Vec<_> = lease.into_iter().collect();
                let version = json!({"resourceVersion": self.version.to_string()});
                let kind = json!("LeaseList");
                send(
                    reply,
                    200,
                    &json!({"kind": kind, "apiVersion": "coordination.k8s.io/v1", "metadata": version, "items": items}),
                );
            }
            Some(known) => {
                self.log.push("WATCH".into());
                match lease.filter(|_| self.version > known) {
                    Some(lease) => send(reply, 200, &json!({"type": "MODIFIED", "object": lease})),
                    None => self.watches.push(reply),
                }
            }
        }
    }

    fn answer(&mut self, method: &Method, body: Value) -> (u16, Value) {
        let holder = body["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        self.log.push(format!("{method} {holder}").trim_end().to_owned());
        if *method == Method::GET {
            return self.lease.clone().map_or_else(|| (404, status(404, "NotFound")), |lease| (200, lease));
        }
        if let Some(look) = &self.at_write {
            look(&holder);
        }
        let current = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        match current {
            None if *method == Method::POST => (201, self.put(body)),
            Some(version) if *method == Method::PUT && version == body["metadata"]["resourceVersion"] => {
                (200, self.put(body))
            }
            _ => (409, status(409, "Conflict")),
        }
    }
}

impl Server {
    fn start() -> (Self, Api<Lease>) {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = Self { state: Arc::default(), changed: watch::channel(0).0 };
        let (state, changed) = (server.state.clone(), server.changed.clone());
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                if parts.uri.path().ends_with("/leases") && parts.method == Method::GET {
                    state.lock().unwrap().follow(parts.uri.query().unwrap_or_default(), reply);
                    changed.send_modify(|n| *n += 1);
                    continue;
                }
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
                let (code, answer) = state.lock().unwrap().answer(&parts.method, body);
                send(reply, code, &answer);
                changed.send_modify(|n| *n += 1);
            }
        });
        (server, Api::namespaced(kube::Client::new(service, "default"), "n"))
    }

    /// Writes the Lease as another client.
    fn held_by(&self, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "n"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
        });
        self.state.lock().unwrap().put(lease);
    }

    /// Restores an earlier state of the cluster, in which the Lease was created or did not exist.
    fn restore(&self, has_lease: bool) {
        let mut state = self.state.lock().unwrap();
        state.version = u64::from(has_lease);
        state.lease = state.lease.take().filter(|_| has_lease).map(|mut lease| {
            lease["metadata"]["resourceVersion"] = json!("1");
            lease
        });
    }

    fn holder(&self) -> Option<String> {
        let state = self.state.lock().unwrap();
        state.lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    }

    fn count(&self, what: &str) -> usize {
        self.state.lock().unwrap().log.iter().filter(|line| *line == what).count()
    }

    /// Waits until this request has arrived so many times.
    async fn asked(&self, what: &str, times: usize) {
        let mut changes = self.changed.subscribe();
        let wait = changes.wait_for(|_| self.count(what) >= times);
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect(what).unwrap();
    }
}

struct Candidate {
    leadership: Leadership,
    stop: watch::Sender<Option<Release>>,
    end: tokio::task::JoinHandle<Result<(), CampaignError>>,
}

fn stand(api: &Api<Lease>, after: Option<Instant>) -> Candidate {
    let (stop, stopped) = watch::channel(None);
    let often = Duration::from_millis(2);
    let call_limit = Duration::from_secs(60);
    let parameters = Parameters { renew_period: often, retry_period: often, call_limit, ..Parameters::default() };
    let (leadership, run) = campaign(api.clone(), "l".into(), "a".into(), parameters, Clock::default(), after, stopped);
    Candidate { leadership, stop, end: tokio::spawn(run) }
}

impl Candidate {
    async fn leads(&self) {
        assert!(tokio::time::timeout(Duration::from_secs(60), self.leadership.acquired()).await.unwrap());
    }

    /// Waits until its campaign fails, and returns the error's text.
    async fn failure(self) -> String {
        let end = tokio::time::timeout(Duration::from_secs(60), self.end).await;
        end.expect("its campaign goes on").unwrap().unwrap_err().to_string()
    }
}

#[tokio::test]
async fn lease_is_released_only_after_leadership_ends() {
    let (server, api) = Server::start();
    let candidate = stand(&api, None);
    candidate.leads().await;
    assert!(candidate.leadership.check().is_ok());
    server.asked("PUT a", 3).await;
    let (seen, leadership) = (Arc::new(Mutex::new(Vec::new())), candidate.leadership.clone());
    let log = seen.clone();
    server.state.lock().unwrap().at_write = Some(Box::new(move |holder| {
        if holder.is_empty() {
            log.lock().unwrap().push(leadership.check().is_ok());
        }
    }));
    candidate.stop.send_replace(Some(Release::Stopped));
    candidate.end.await.unwrap().unwrap();
    assert_eq!(server.holder().as_deref(), Some(""));
    assert_eq!(*seen.lock().unwrap(), [false], "whether it led when the release came in");
}

#[tokio::test]
async fn former_leader_leaves_lease_until_another_candidate_has_held_it() {
    let (server, api) = Server::start();
    server.held_by("");
    let candidate = stand(&api, Some(Instant::now() + Duration::from_secs(3600)));
    // It watches the Lease after it has read it, and again after each change.
    server.asked("WATCH", 1).await;
    assert_eq!((server.count("PUT a"), server.holder().as_deref()), (0, Some("")));
    server.held_by("b");
    server.asked("WATCH", 2).await;
    assert_eq!(server.count("PUT a"), 0);
    server.held_by("");
    candidate.leads().await;
    assert_eq!(server.holder().as_deref(), Some("a"));
}

#[tokio::test]
async fn former_leader_leads_again_if_lease_stays_free() {
    let (server, api) = Server::start();
    server.held_by("");
    stand(&api, Some(Instant::now())).leads().await;
    assert_eq!(server.holder().as_deref(), Some("a"));
}

#[tokio::test]
async fn leader_ends_with_error_when_lease_is_taken() {
    let (server, api) = Server::start();
    let candidate = stand(&api, None);
    candidate.leads().await;
    server.held_by("b");
    let failure = candidate.failure().await;
    assert!(failure.contains("the lease is lost"), "{failure}");
    assert_eq!(server.holder().as_deref(), Some("b"), "and takes nothing back");
}

#[tokio::test]
async fn hand_over_is_known_only_to_next_leader() {
    let (server, api) = Server::start();
    for (how, known) in [
        (Release::Stopped, false),
        (Release::HandedOver("node-1".into()), false),
        (Release::HandedOver("node-2".into()), true),
        (Release::Stopped, true),
        (Release::Stopped, false),
    ] {
        let candidate = stand(&api, None);
        candidate.leads().await;
        assert_eq!(candidate.leadership.handed_over(), known, "before {how:?}");
        candidate.stop.send_replace(Some(how));
        candidate.end.await.unwrap().unwrap();
        assert_eq!(server.holder().as_deref(), Some(""));
    }
}

#[tokio::test]
async fn standby_watches_lease_and_takes_it_when_released() {
    let (server, api) = Server::start();
    server.held_by("b");
    let candidate = stand(&api, None);
    for renewal in 1..=5 {
        server.asked("WATCH", renewal).await;
        server.held_by("b");
    }
    server.asked("WATCH", 6).await;
    assert_eq!((server.count("GET"), server.count("PUT a")), (1, 0));
    server.held_by("");
    candidate.leads().await;
    assert_eq!(server.holder().as_deref(), Some("a"));
}

#[tokio::test]
async fn leader_continues_after_lost_renewal_response() {
    let (server, api) = Server::start();
    let candidate = stand(&api, None);
    candidate.leads().await;
    // The renewal has arrived, and its answer is lost.
    server.held_by("a");
    let renewals = server.count("PUT a");
    server.asked("PUT a", renewals + 5).await;
    assert!(candidate.leadership.check().is_ok() && !candidate.end.is_finished());
}

#[tokio::test]
async fn leader_ends_when_cluster_is_restored_to_an_earlier_state() {
    for has_lease in [true, false] {
        let (server, api) = Server::start();
        let candidate = stand(&api, None);
        candidate.leads().await;
        server.asked("PUT a", 3).await;
        server.restore(has_lease);
        let failure = candidate.failure().await;
        assert!(failure.contains("restored to an earlier state"), "with a Lease: {has_lease}: {failure}");
        assert_eq!(server.holder().as_deref(), Some("a"), "it leads again once it has started again");
    }
}

#[tokio::test]
async fn standby_ends_when_cluster_is_restored_to_an_earlier_state() {
    let (server, api) = Server::start();
    server.held_by("b");
    let candidate = stand(&api, None);
    for renewal in 1..=3 {
        server.asked("WATCH", renewal).await;
        server.held_by("b");
    }
    server.asked("WATCH", 4).await;
    server.restore(true);
    // The leader has ended for the same reason, and was stopped while it led again.
    server.held_by("");
    let failure = candidate.failure().await;
    assert!(failure.contains("restored to an earlier state"), "{failure}");
    assert_eq!(server.holder().as_deref(), Some(""), "and takes nothing");
}

#[tokio::test]
async fn leader_creates_deleted_lease_again_and_continues() {
    let (server, api) = Server::start();
    let candidate = stand(&api, None);
    candidate.leads().await;
    server.asked("PUT a", 3).await;
    server.state.lock().unwrap().lease = None;
    server.asked("POST a", 2).await;
    let renewals = server.count("PUT a");
    server.asked("PUT a", renewals + 3).await;
    assert!(candidate.leadership.check().is_ok() && !candidate.end.is_finished());
}
