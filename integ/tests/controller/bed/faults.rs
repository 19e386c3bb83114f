//! Faults at writes of the controller: between it and the API server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture, stream};
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Bytes;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Time that passes while a write is delayed.
const DELAY: Duration = Duration::from_secs(30);

/// The API server's answer to a write, as the client sees it.
type Answer = Result<Response<Body>, kube::Error>;

/// A fault at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The API server fails before the write has an effect.
    ErrorBefore,
    /// The API server fails after the write took effect.
    ErrorAfter,
    /// The write takes effect, and the connection ends before its answer.
    AnswerLost,
    /// Half a minute passes until the write arrives.
    Delayed,
    /// The controller is killed before the write arrives.
    KilledBefore,
    /// The controller is killed before it sees the answer.
    KilledAfter,
    /// The write of a leader that does not run any more arrives when the next one has planned.
    Late,
    /// The leader stops after the write, and another one goes on.
    LeaderAfter,
    /// No watch shows anything from the write on, until the controller has nothing more to ask.
    Stale,
    /// Another client writes the same object first.
    Conflict,
    /// The object is deleted and created again before the write; one that the write creates, after it.
    Recreated,
}

impl Fault {
    pub(crate) const ALL: [Self; 11] = [
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::AnswerLost,
        Self::Delayed,
        Self::KilledBefore,
        Self::KilledAfter,
        Self::Late,
        Self::LeaderAfter,
        Self::Stale,
        Self::Conflict,
        Self::Recreated,
    ];

    /// The name in a plan.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ErrorBefore => "error_before",
            Self::ErrorAfter => "error_after",
            Self::AnswerLost => "answer_lost",
            Self::Delayed => "delayed",
            Self::KilledBefore => "killed_before",
            Self::KilledAfter => "killed_after",
            Self::Late => "late",
            Self::LeaderAfter => "leader_after",
            Self::Stale => "stale",
            Self::Conflict => "conflict",
            Self::Recreated => "recreated",
        }
    }
}

/// A task of the script for a fault.
#[derive(Debug)]
pub(crate) enum Due {
    /// Kill the controller, and start another one.
    Kill,
    /// Start another controller beside the one that is cut off, and answer once it has planned.
    Overtake(oneshot::Sender<()>),
    /// Stop the controller, and start another one.
    Stop,
    /// Delete the object at this path and create it again, and answer.
    Recreate(String, oneshot::Sender<()>),
    /// Let this time pass, and answer.
    Pass(Duration, oneshot::Sender<()>),
}

/// A fault at one of the writes of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The kind of the write.
    pub(crate) write: String,
    /// The number of such writes before it.
    pub(crate) after: usize,
    pub(crate) fault: Fault,
}

#[derive(Debug)]
struct State {
    /// The number of writes of each kind so far.
    seen: BTreeMap<String, usize>,
    /// The faults that have not happened yet.
    planned: Vec<Planned>,
    /// The tasks of the script.
    due: VecDeque<Due>,
    /// The slots of the last write of the operator's status.
    slots: Value,
    /// Controllers up to this number are cut off.
    cut_off: usize,
    asked: Instant,
}

/// The network between controllers and the API server, with faults.
#[derive(Clone)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
    /// True while watches show nothing.
    held: watch::Sender<bool>,
    /// A client of another user, who may do everything.
    other: kube::Client,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("state", &self.lock()).finish_non_exhaustive()
    }
}

impl Faults {
    /// A network with these faults, each of which happens once.
    pub(crate) fn new(other: kube::Client, planned: Vec<Planned>) -> Self {
        let (seen, asked) = (BTreeMap::new(), Instant::now());
        let state = State { seen, planned, due: VecDeque::new(), slots: Value::Null, cut_off: 0, asked };
        Self { state: Arc::new(Mutex::new(state)), held: watch::Sender::new(false), other }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kinds of the writes so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.lock().seen.keys().cloned().collect()
    }

    /// The faults that have not happened yet.
    pub(crate) fn left(&self) -> Vec<Planned> {
        self.lock().planned.clone()
    }

    /// Takes the next task of the script.
    pub(crate) fn take_due(&self) -> Option<Due> {
        self.lock().due.pop_front()
    }

    /// Returns for how long no controller has asked anything.
    pub(crate) fn quiet(&self) -> Duration {
        self.lock().asked.elapsed()
    }

    /// Lets watches show what they have held back. Returns whether they did hold anything back.
    pub(crate) fn show(&self) -> bool {
        self.held.send_replace(false)
    }

    /// The same client, with the fault in between, for the controller with this number.
    pub(super) fn around(&self, client: kube::Client, number: usize) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, faults) = (client.clone(), faults.clone());
            async move {
                let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let response = faults.send(&client, number, request).await?;
                Ok::<_, kube::Error>(response.map(|body| if watches { faults.held_back(body) } else { boxed(body) }))
            }
        });
        kube::Client::new(service, namespace)
    }

    /// The body of a watch, which shows nothing while watches are held back.
    fn held_back(&self, body: Body) -> UnsyncBoxBody<Bytes, kube::Error> {
        let frames = stream::unfold((body, self.held.subscribe()), |(mut body, mut held)| async move {
            let frame = body.frame().await?;
            let _ = held.wait_for(|held| !*held).await;
            Some((frame, (body, held)))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    async fn send(&self, client: &kube::Client, number: usize, request: Request<Body>) -> Answer {
        self.connected(number).await;
        self.lock().asked = Instant::now();
        if request.method() == Method::GET {
            return client.send(request).await;
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        let write = Write { parts, bytes };
        let (label, fault) = {
            let mut state = self.lock();
            let label = write.label(&mut state.slots);
            let before = *state.seen.entry(label.clone()).and_modify(|seen| *seen += 1).or_default();
            let now = |planned: &Planned| planned.write == label && planned.after == before;
            let found = state.planned.iter().position(now);
            let fault = found.map(|index| state.planned.remove(index).fault);
            (label, fault)
        };
        let Some(fault) = fault else { return client.send(write.request()).await };
        tracing::info!(label, fault = fault.name(), "fault");
        self.inject(client, number, fault, &write).await
    }

    async fn inject(&self, client: &kube::Client, number: usize, fault: Fault, write: &Write) -> Answer {
        let send = || client.send(write.request());
        match fault {
            Fault::ErrorBefore => Ok(failure()),
            Fault::ErrorAfter => {
                send().await?;
                Ok(failure())
            }
            Fault::AnswerLost => {
                send().await?;
                Err(kube::Error::Service("the connection ended before the answer".into()))
            }
            Fault::Delayed => {
                self.ask(|done| Due::Pass(DELAY, done)).await;
                send().await
            }
            Fault::KilledBefore => {
                self.lock().due.push_back(Due::Kill);
                std::future::pending().await
            }
            Fault::KilledAfter => {
                send().await?;
                self.lock().due.push_back(Due::Kill);
                std::future::pending().await
            }
            Fault::Late => {
                self.lock().cut_off = number;
                self.ask(Due::Overtake).await;
                send().await?;
                std::future::pending().await
            }
            Fault::LeaderAfter => {
                let answer = send().await;
                self.lock().due.push_back(Due::Stop);
                answer
            }
            Fault::Stale => {
                self.held.send_replace(true);
                send().await
            }
            Fault::Conflict => {
                let _ = self.other.send(write.of_another_client()).await;
                send().await
            }
            Fault::Recreated if write.creates() => {
                let answer = send().await?;
                let (parts, body) = answer.into_parts();
                let bytes = body.collect_bytes().await?;
                let created: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let name = created["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{}/{name}", write.parts.uri.path());
                let _ = self.other.send(delete(&path)).await;
                Ok(Response::from_parts(parts, Body::from(bytes)))
            }
            Fault::Recreated => {
                let path = write.object();
                self.ask(|done| Due::Recreate(path, done)).await;
                send().await
            }
        }
    }

    /// Has the script do something, and waits for it.
    async fn ask(&self, due: impl FnOnce(oneshot::Sender<()>) -> Due) {
        let (done, is_done) = oneshot::channel();
        self.lock().due.push_back(due(done));
        let _ = is_done.await;
    }

    /// Waits forever if this controller is cut off.
    fn connected(&self, number: usize) -> BoxFuture<'static, ()> {
        if number <= self.lock().cut_off { std::future::pending().boxed() } else { std::future::ready(()).boxed() }
    }
}

fn boxed(body: Body) -> UnsyncBoxBody<Bytes, kube::Error> {
    body.boxed_unsync()
}

/// The answer of an API server that fails.
fn failure() -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "InternalError",
        "message": "etcdserver: request timed out", "code": 500,
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// A request to delete an object at once.
pub(super) fn delete(path: &str) -> Request<Body> {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    request(Method::DELETE, path, "application/json", options.to_string())
}

pub(super) fn request(method: Method, path: &str, kind: &'static str, body: String) -> Request<Body> {
    let mut request = Request::new(Body::from(body.into_bytes()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_default();
    request.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    request
}

/// A request that changes something.
struct Write {
    parts: http::request::Parts,
    bytes: Bytes,
}

impl Write {
    fn request(&self) -> Request<Body> {
        Request::from_parts(self.parts.clone(), Body::from(self.bytes.clone()))
    }

    fn creates(&self) -> bool {
        self.parts.method == Method::POST && self.place().2.is_none()
    }

    /// The resource, the name and the subresource.
    fn place(&self) -> (&str, Option<&str>, Option<&str>) {
        let mut segments: Vec<&str> = self.parts.uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
        segments.drain(..segments.len().min(if segments.first() == Some(&"api") { 2 } else { 3 }));
        if segments.len() > 2 && segments[0] == "namespaces" {
            segments.drain(..2);
        }
        (segments.first().copied().unwrap_or_default(), segments.get(1).copied(), segments.get(2).copied())
    }

    /// The path of the object.
    fn object(&self) -> String {
        let path = self.parts.uri.path();
        let subresource = self.place().2.map(|subresource| format!("/{subresource}"));
        subresource.and_then(|subresource| path.strip_suffix(&subresource)).unwrap_or(path).to_owned()
    }

    /// A write of another client to the same object.
    fn of_another_client(&self) -> Request<Body> {
        if self.creates() {
            return self.request();
        }
        let patch = json!({"metadata": {"annotations": {"example.com/touched": "true"}}});
        request(Method::PATCH, &self.object(), "application/merge-patch+json", patch.to_string())
    }

    /// The kind of the write: verb, resource, and what it is about. `slots` is what the operator's status had before.
    fn label(&self, slots: &mut Value) -> String {
        let body: Value = serde_json::from_slice(&self.bytes).unwrap_or_default();
        let (resource, _, subresource) = self.place();
        let verb = match self.parts.method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::DELETE => "delete",
            _ => "patch",
        };
        let about = match (resource, subresource) {
            ("bottlerocketshadows", Some(_)) => about_attempt(&body["status"]),
            ("bottlerocketshadows", None) if verb == "patch" => about_desired_state(&body["spec"]),
            ("bottlerocketupdateoperators", Some(_)) => about_slots(&body["status"]["slots"], slots),
            ("nodes", _) => about_node(&body),
            _ => String::new(),
        };
        let subresource = subresource.map(|subresource| format!("/{subresource}")).unwrap_or_default();
        format!("{verb} {resource}{subresource} {about}").trim_end().to_owned()
    }
}

/// The step that a status of a shadow records, or the end.
fn about_attempt(status: &Value) -> String {
    let last = status["record"]["last"]["reason"].as_str();
    match (status["progress"]["step"].as_str(), last) {
        (Some("Releasing"), Some(reason)) => format!("Releasing after {reason}"),
        (Some(step), _) => step.to_owned(),
        (None, Some(reason)) => format!("idle after {reason}"),
        (None, None) => "idle".to_owned(),
    }
}

fn about_desired_state(spec: &Value) -> String {
    match spec["state"].as_str() {
        None => "label".to_owned(),
        Some(state) if !spec["permit"].is_null() => format!("{state} permitted"),
        Some(state) => state.to_owned(),
    }
}

fn about_slots(now: &Value, before: &mut Value) -> String {
    let uids = |slots: &Value| -> Vec<String> {
        slots.as_array().into_iter().flatten().map(|slot| slot["uid"].to_string()).collect()
    };
    let marked = |slots: &Value| {
        let slots = slots.as_array().into_iter().flatten();
        slots.filter(|slot| !slot["update"]["permittingSince"].is_null()).count()
    };
    let (was, is) = (uids(before), uids(now));
    // One write may do several of these: the first one is its kind.
    let about = if is.iter().any(|uid| !was.contains(uid)) {
        "slot given"
    } else if was.iter().any(|uid| !is.contains(uid)) {
        "slot taken back"
    } else if marked(now) > marked(before) {
        "slot marked"
    } else {
        "facts"
    };
    *before = now.clone();
    about.to_owned()
}

/// The fields of a Node that a write sets.
fn about_node(body: &Value) -> String {
    let keys = |fields: &Value| -> Vec<String> {
        let fields = fields.as_object().into_iter().flatten();
        let named = |(key, value): (&String, &Value)| {
            let name = key.rsplit('/').next().unwrap_or_default();
            match value.as_str().and_then(|text| text.split_once('/')) {
                Some((step, _)) => format!("{name}={step}"),
                None => name.to_owned(),
            }
        };
        fields.map(named).collect()
    };
    let mut all: Vec<String> =
        ["annotations", "labels"].iter().flat_map(|kind| keys(&body["metadata"][kind])).collect();
    all.extend(keys(&body["spec"]));
    if all.is_empty() { "nothing".to_owned() } else { all.join(" ") }
}
