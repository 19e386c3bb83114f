//! The whole server over real TLS, against an API server that is simulated by a function.

mod calls;
mod description;
mod outages;
mod unauthenticated;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Response, StatusCode};
use kube::client::Body;
use models::wire::{NDJSON, PROBLEM_JSON, ShadowView, WatchLine};
use ports::limit::Allowance;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_test::mock;

use crate::Config;
use crate::app::Limits;
use crate::auth::keys::tests::{Issuer, claims};
use crate::server::Running;
use crate::shadow::tests::stored;
use crate::tls::tests::{Directory, pair, pair_for};

/// Time-out of a test. Nothing is expected to take long.
const DEADLINE: Duration = Duration::from_secs(120);

/// The cluster: one shadow, and its current revision.
#[derive(Clone)]
struct SimulatedCluster {
    state: Arc<Mutex<Option<Value>>>,
    changes: watch::Sender<u64>,
    calls: Arc<Mutex<Vec<String>>>,
    /// Status of the answer to calls about the shadow itself during an outage.
    outage: Arc<Mutex<Option<u16>>>,
    /// Faults of the open watch, and of those after it, one each.
    faults: watch::Sender<VecDeque<Fault>>,
    /// Issuer of the cluster's tokens, if it publishes its keys: then a token's subject names its bearer, and otherwise
    /// the token itself does.
    issuer: Arc<Option<Issuer>>,
}

/// A fault of a watch.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It is answered with an error.
    Refused,
    /// The events since its revision are no longer known.
    Gone,
    /// The connection breaks before there is anything to read.
    Reset,
    /// The connection ends in the middle of a line.
    CutOff,
}

impl Fault {
    /// Returns the answer; `None` if the connection just ends.
    fn answer(self) -> Option<(u16, String)> {
        match self {
            Self::Refused => Some((500, failure(500, "InternalError"))),
            Self::Gone => Some((200, format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure(410, "Expired")))),
            Self::Reset => None,
            Self::CutOff => Some((200, r#"{"type":"MODIFIED","object":{"apiVersion":"brup"#.to_owned())),
        }
    }
}

impl SimulatedCluster {
    fn new(shadow: Option<Value>) -> Self {
        Self {
            state: Arc::new(Mutex::new(shadow)),
            changes: watch::Sender::new(100),
            calls: Arc::default(),
            outage: Arc::default(),
            faults: watch::Sender::default(),
            issuer: Arc::default(),
        }
    }

    /// The same with published keys.
    fn publishing(self) -> Self {
        Self { issuer: Arc::new(Some(Issuer::new("k"))), ..self }
    }

    /// Returns a valid token.
    fn token(&self, whose: &str) -> String {
        let expires = crate::clock::now().as_second() + 600;
        self.issuer.as_ref().as_ref().unwrap().sign(&claims(whose, expires))
    }

    fn reviews(&self) -> usize {
        self.count("POST tokenreviews")
    }

    /// Returns the number of these calls.
    fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|made| *made == call).count()
    }

    /// Changes the shadow and notifies the watch.
    fn change(&self, change: impl FnOnce(&mut Option<Value>)) {
        let mut state = self.state.lock().unwrap();
        let revision = *self.changes.borrow() + 1;
        change(&mut state);
        if let Some(object) = state.as_mut() {
            object["metadata"]["resourceVersion"] = json!(revision.to_string());
        }
        drop(state);
        self.changes.send_replace(revision);
    }

    fn client(&self) -> kube::Client {
        let (service, mut handle) = mock::pair::<http::Request<Body>, Response<Body>>();
        let cluster = self.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    let (parts, body) = request.into_parts();
                    let bytes = body.collect_bytes().await.unwrap();
                    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                    let query = parts.uri.query().unwrap_or_default();
                    let (code, text) = match cluster.answer(&parts.method, parts.uri.path(), query, &body).await {
                        Some(answer) => answer,
                        None => return reply.send_error(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
                    };
                    let response = Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap();
                    reply.send_response(response);
                });
            }
        });
        kube::Client::new(service, "default")
    }

    /// Returns the answer; `None` to break the connection instead.
    async fn answer(&self, method: &Method, path: &str, query: &str, body: &Value) -> Option<(u16, String)> {
        let last = path.rsplit('/').next().unwrap_or_default();
        let watching = query.contains("watch=true");
        self.calls.lock().unwrap().push(format!("{method} {last}{}", if watching { " watch" } else { "" }));
        if watching { self.watched(query).await } else { Some(self.asked(method, path, last, body)) }
    }

    /// Returns the next event, or the next fault.
    async fn watched(&self, query: &str) -> Option<(u16, String)> {
        let from: u64 = query.split('&').find_map(|q| q.strip_prefix("resourceVersion=")).unwrap().parse().unwrap();
        let before = self.state.lock().unwrap().clone();
        let (mut changes, mut faults) = (self.changes.subscribe(), self.faults.subscribe());
        let revision = tokio::select! {
            // First, so that a change after a fault is no event of the broken watch.
            biased;
            true = async { faults.wait_for(|faults| !faults.is_empty()).await.is_ok() } => {
                let mut fault = None;
                self.faults.send_modify(|faults| fault = faults.pop_front());
                return fault.unwrap().answer();
            }
            revision = changes.wait_for(|revision| *revision > from) => *revision.unwrap(),
        };
        let state = self.state.lock().unwrap().clone();
        let event = match (state, before) {
            (Some(object), _) => json!({"type": "MODIFIED", "object": object}),
            (None, Some(mut object)) => {
                object["metadata"]["resourceVersion"] = json!(revision.to_string());
                json!({"type": "DELETED", "object": object})
            }
            (None, None) => Value::Null,
        };
        Some((200, format!("{event}\n")))
    }

    fn asked(&self, method: &Method, path: &str, last: &str, body: &Value) -> (u16, String) {
        if path.contains("openid") {
            return match &*self.issuer {
                None => (403, failure(403, "Forbidden")),
                Some(issuer) => (200, json!({"keys": [issuer.jwk()]}).to_string()),
            };
        }
        if last == "tokenreviews" {
            return (201, review(body["spec"]["token"].as_str().unwrap()).to_string());
        }
        if last == "bottlerocketshadows" {
            let items: Vec<_> = self.state.lock().unwrap().clone().into_iter().collect();
            let revision = self.changes.borrow().to_string();
            let list = json!({
                "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadowList",
                "metadata": {"resourceVersion": revision}, "items": items,
            });
            return (200, list.to_string());
        }
        if let Some(code) = *self.outage.lock().unwrap() {
            return (code, failure(code, "Trouble"));
        }
        let Some(object) = self.state.lock().unwrap().clone() else {
            return (404, failure(404, "NotFound"));
        };
        if method == Method::PATCH {
            if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                return (409, failure(409, "Conflict"));
            }
            self.change(|object| object.as_mut().unwrap()["status"] = body["status"].clone());
        }
        (200, self.state.lock().unwrap().clone().unwrap().to_string())
    }
}

fn failure(code: u16, reason: &str) -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"})
        .to_string()
}

fn review(token: &str) -> Value {
    let agent = |node: &str, uid: &str| {
        json!({
            "authenticated": true, "audiences": ["brupop-apiserver"],
            "user": {
                "username": "system:serviceaccount:brupop-agents:brupop-agent",
                "extra": {
                    "authentication.kubernetes.io/pod-uid": ["pod-1"],
                    "authentication.kubernetes.io/node-name": [node],
                    "authentication.kubernetes.io/node-uid": [uid],
                },
            },
        })
    };
    let status = match jsonwebtoken::dangerous::insecure_decode_claims::<Value>(token)
        .ok()
        .as_ref()
        .map_or(token, |claims| claims["jti"].as_str().unwrap())
    {
        "agent-a" => agent("a", "node-1"),
        "agent-b" => agent("b", "node-2"),
        "agent-of-older-a" => agent("a", "node-0"),
        "controller" => json!({
            "authenticated": true, "audiences": ["brupop-apiserver"],
            "user": {"username": "system:serviceaccount:brupop-system:brupop-controller"},
        }),
        _ => json!({"error": "no"}),
    };
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}, "status": status})
}

/// Number of refused tokens that a source may send at once.
const BURST: u32 = 40;

/// The usual limits, in a form that can be reached within a moment.
fn limits() -> Limits {
    Limits {
        // Each refusal costs a handshake: on a busy machine a rate limit that recovers quickly would never be used up.
        refused: Allowance { burst: BURST, every: Duration::from_secs(1) },
        behind: Duration::from_millis(100),
        certificate: Duration::from_millis(20),
        ..Limits::USUAL
    }
}

struct Server {
    api: SocketAddr,
    plain: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<anyhow::Result<()>>,
    client: reqwest::Client,
    directory: Directory,
}

impl Server {
    /// A server without a certificate.
    async fn bare(cluster: &SimulatedCluster) -> Self {
        Self::with(cluster, limits(), None).await
    }

    /// A server with these limits, and a certificate and key if given.
    async fn with(cluster: &SimulatedCluster, limits: Limits, pair: Option<(String, String)>) -> Self {
        let _ = crate::tls::provider().install_default();
        let directory = Directory::new();
        if let Some((certificate, key)) = &pair {
            directory.write("tls.crt", certificate);
            directory.write("tls.key", key);
        }
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            plain_listen: "127.0.0.1:0".parse().unwrap(),
            tls_dir: directory.0.clone(),
            namespace: "brupop-system".into(),
            agent_namespace: "brupop-agents".into(),
            stream_max_age: models::duration::Duration::from_mins(10),
            connections_per_source: 8,
            ipv6_source_prefix: 128,
            log_filter: String::new(),
            log_format: models::log::LogFormat::Text,
        };
        let running = Running::start(&config, limits, cluster.client()).await.unwrap();
        let (api, plain) = (running.api, running.plain);
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(running.until(async {
            let _ = stopped.await;
        }));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut server = Self { api, plain, stop, running, client, directory };
        if let Some((certificate, _)) = pair {
            server.client = server.trusting(&certificate);
            server.until_ready().await;
        }
        server
    }

    async fn start(cluster: &SimulatedCluster) -> Self {
        Self::limited(cluster, limits()).await
    }

    /// A ready server with these limits.
    async fn limited(cluster: &SimulatedCluster, limits: Limits) -> Self {
        Self::with(cluster, limits, Some(pair())).await
    }

    /// Gives the server a new certificate and the client its trust.
    fn certify(&mut self) {
        self.certify_with(pair());
    }

    fn certify_with(&mut self, (certificate, key): (String, String)) {
        self.directory.write("tls.crt", &certificate);
        self.directory.write("tls.key", &key);
        self.client = self.trusting(&certificate);
    }

    fn trusting(&self, certificate: &str) -> reqwest::Client {
        reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap()])
            .resolve("localhost", self.api)
            .build()
            .unwrap()
    }

    async fn plain(&self, path: &str) -> (StatusCode, String) {
        let answer = self.client.get(format!("http://{}{path}", self.plain)).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    async fn until_ready(&self) {
        self.until_readyz_says(StatusCode::OK, "ok\n").await;
    }

    async fn until_readyz_says(&self, status: StatusCode, text: &str) {
        self.until_plain("/readyz", |answer| (answer.0, answer.1.as_str()) == (status, text)).await;
    }

    /// Waits until the plain port has such an answer.
    async fn until_plain(&self, path: &str, holds: impl Fn(&(StatusCode, String)) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let answer = self.plain(path).await;
            if holds(&answer) {
                break;
            }
            assert!(Instant::now() < deadline, "{answer:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn request(&self, method: Method, path: &str, token: &str) -> reqwest::RequestBuilder {
        let url = format!("https://localhost:{}{path}", self.api.port());
        self.client.request(method, url).bearer_auth(token)
    }

    async fn get(&self, path: &str, token: &str) -> reqwest::Response {
        self.request(Method::GET, path, token).send().await.unwrap()
    }

    async fn put(&self, token: &str, etag: &str, body: Value) -> reqwest::Response {
        let request = self.request(Method::PUT, "/v1/nodes/a/shadow/status", token);
        request.header("If-Match", etag).json(&body).send().await.unwrap()
    }

    async fn stop(self) {
        let Self { stop, running, directory, .. } = self;
        let _ = stop.send(());
        timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
        drop(directory);
    }
}

/// The lines of a stream.
struct Lines {
    response: reqwest::Response,
    rest: Vec<u8>,
}

impl Lines {
    async fn open(server: &Server, token: &str) -> Self {
        Self::of(server.get("/v1/nodes/a/shadow/watch", token).await)
    }

    fn of(response: reqwest::Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], NDJSON);
        Self { response, rest: Vec::new() }
    }

    async fn next(&mut self) -> Option<WatchLine> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = timeout(DEADLINE, self.response.chunk()).await.unwrap().unwrap()?;
            self.rest.extend_from_slice(&chunk);
        }
    }

    async fn shadow(&mut self) -> ShadowView {
        match self.next().await {
            Some(WatchLine::Shadow { object }) => *object,
            other => panic!("{other:?}"),
        }
    }
}

async fn problem(response: reqwest::Response) -> (u16, String) {
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
    let value: Value = response.json().await.unwrap();
    assert_eq!(value["status"], status);
    (status, value["type"].as_str().unwrap().trim_start_matches("urn:brupop:problem:").to_owned())
}

fn cluster() -> SimulatedCluster {
    SimulatedCluster::new(Some(stored("u", 100, 1, json!({"state": "Idle"}))))
}
