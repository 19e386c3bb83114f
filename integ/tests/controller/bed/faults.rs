//! Faults at writes of the controller: between it and the API server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream;
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
    /// The write of a leader that does not run any more arrives when the next one has brought the rollout further.
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
    /// Kill the controller, which is cut off, and start another one.
    Kill,
    /// The same, and send this write once the next one has brought the rollout further.
    Late(Box<Write>),
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
    /// Requests that have no answer yet.
    under_way: usize,
    /// The time of the last thing that happened.
    at: Instant,
    /// The time of the last fault.
    fault_at: Option<Instant>,
    /// A fault that did not have its effect.
    broken: Option<String>,
}

/// The network between controllers and the API server, with faults.
#[derive(Clone)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
    /// True while watches show nothing.
    held: watch::Sender<bool>,
    /// Controllers up to this number are cut off.
    cut_off: watch::Sender<usize>,
    /// A client of another user, who may do everything.
    other: kube::Client,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("state", &self.lock()).finish_non_exhaustive()
    }
}

/// A request that has no answer yet.
struct UnderWay(Faults);

impl UnderWay {
    fn new(faults: &Faults) -> Self {
        let mut state = faults.lock();
        state.under_way += 1;
        state.at = Instant::now();
        drop(state);
        Self(faults.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.at = Instant::now();
    }
}

impl Faults {
    /// A network with these faults, each of which happens once.
    pub(crate) fn new(other: kube::Client, planned: Vec<Planned>) -> Self {
        let state = State {
            seen: BTreeMap::new(),
            planned,
            due: VecDeque::new(),
            slots: Value::Null,
            under_way: 0,
            at: Instant::now(),
            fault_at: None,
            broken: None,
        };
        let (held, cut_off) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { state: Arc::new(Mutex::new(state)), held, cut_off, other }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a fault at the next write of a kind.
    pub(crate) fn plan(&self, write: &str, fault: Fault) {
        let mut state = self.lock();
        let after = state.seen.get(write).map_or(0, |last| last + 1);
        state.planned.push(Planned { write: write.to_owned(), after, fault });
    }

    /// Takes back the faults that have not happened yet.
    pub(crate) fn end(&self) {
        self.lock().planned.clear();
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

    /// Returns for how long nothing has happened; no time while a request has no answer.
    pub(crate) fn quiet(&self) -> Duration {
        let state = self.lock();
        if state.under_way > 0 { Duration::ZERO } else { state.at.elapsed() }
    }

    /// Returns for how long there has been no fault, if there was one.
    pub(crate) fn since_fault(&self) -> Option<Duration> {
        self.lock().fault_at.map(|at| at.elapsed())
    }

    /// Notes that something has happened, to which controllers will react.
    pub(crate) fn note(&self) {
        self.lock().at = Instant::now();
    }

    /// Lets watches show what they have held back. Returns whether they did hold anything back.
    pub(crate) fn show(&self) -> bool {
        self.note();
        self.held.send_replace(false)
    }

    /// Returns why a fault did not have its effect, if one did not.
    pub(crate) fn broken(&self) -> Option<String> {
        self.lock().broken.clone()
    }

    /// The same client, with faults in between, for the controller with this number.
    pub(super) fn around(&self, client: kube::Client, number: usize) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, faults) = (client.clone(), faults.clone());
            async move {
                let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let response = faults.send(&client, number, request).await?;
                let watched = |body| if watches { faults.held_back(number, body) } else { body.boxed_unsync() };
                Ok::<_, kube::Error>(response.map(watched))
            }
        });
        kube::Client::new(service, namespace)
    }

    /// The body of a watch, which shows nothing while watches are held back, and no more to a controller that is cut off.
    fn held_back(&self, number: usize, body: Body) -> UnsyncBoxBody<Bytes, kube::Error> {
        let from = (body, self.held.subscribe(), self.cut_off.subscribe());
        let frames = stream::unfold(from, move |(mut body, mut held, mut cut_off)| async move {
            let frame = body.frame().await?;
            let _ = held.wait_for(|held| !*held).await;
            let _ = cut_off.wait_for(|cut_off| *cut_off < number).await;
            Some((frame, (body, held, cut_off)))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    async fn send(&self, client: &kube::Client, number: usize, request: Request<Body>) -> Answer {
        let _ = self.cut_off.subscribe().wait_for(|cut_off| *cut_off < number).await;
        let _under_way = UnderWay::new(self);
        if request.method() == Method::GET {
            return client.send(request).await;
        }
        let (parts, body) = request.into_parts();
        let write = Write { parts, bytes: body.collect_bytes().await? };
        let (label, fault) = {
            let mut state = self.lock();
            let label = write.label(&state.slots);
            let before = *state.seen.entry(label.clone()).and_modify(|seen| *seen += 1).or_default();
            let now = |planned: &Planned| planned.write == label && planned.after == before;
            let found = state.planned.iter().position(now);
            (label, found.map(|index| state.planned.remove(index)))
        };
        match fault {
            Some(planned) => {
                self.lock().fault_at = Some(Instant::now());
                tracing::info!(label, fault = planned.fault.name(), "fault");
                self.inject(client, number, planned, &write).await
            }
            None => self.pass_on(client, &write).await,
        }
    }

    /// Sends a write as it is.
    async fn pass_on(&self, client: &kube::Client, write: &Write) -> Answer {
        let answer = client.send(write.request()).await?;
        if let Some(slots) = write.slots().filter(|_| answer.status().is_success()) {
            self.lock().slots = slots;
        }
        Ok(answer)
    }

    /// Sends a write that has to take effect. One that does not is passed on, and its fault waits for the next one.
    async fn effect(&self, client: &kube::Client, planned: &Planned, write: &Write) -> Result<(), Answer> {
        match self.pass_on(client, write).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            answer => {
                self.lock().planned.push(Planned { after: planned.after + 1, ..planned.clone() });
                Err(answer)
            }
        }
    }

    async fn inject(&self, client: &kube::Client, number: usize, planned: Planned, write: &Write) -> Answer {
        match planned.fault {
            Fault::ErrorBefore => Ok(failure()),
            Fault::ErrorAfter => match self.effect(client, &planned, write).await {
                Ok(()) => Ok(failure()),
                Err(answer) => answer,
            },
            Fault::AnswerLost => match self.effect(client, &planned, write).await {
                Ok(()) => Err(kube::Error::Service("the connection ended before the answer".into())),
                Err(answer) => answer,
            },
            Fault::Delayed => {
                self.ask(|done| Due::Pass(DELAY, done)).await;
                self.pass_on(client, write).await
            }
            Fault::KilledBefore => {
                self.cut_off.send_replace(number);
                self.lock().due.push_back(Due::Kill);
                std::future::pending().await
            }
            Fault::KilledAfter => {
                self.cut_off.send_replace(number);
                match self.effect(client, &planned, write).await {
                    Ok(()) => {
                        self.lock().due.push_back(Due::Kill);
                        std::future::pending().await
                    }
                    Err(answer) => {
                        self.cut_off.send_replace(number - 1);
                        answer
                    }
                }
            }
            Fault::Late => {
                self.cut_off.send_replace(number);
                self.lock().due.push_back(Due::Late(Box::new(write.clone())));
                std::future::pending().await
            }
            Fault::LeaderAfter => {
                let answer = self.pass_on(client, write).await;
                self.lock().due.push_back(Due::Stop);
                answer
            }
            Fault::Stale => {
                self.held.send_replace(true);
                self.pass_on(client, write).await
            }
            Fault::Conflict => {
                self.as_other(write.of_another_client()).await;
                self.pass_on(client, write).await
            }
            Fault::Recreated if write.creates() => {
                let answer = self.pass_on(client, write).await?;
                if answer.status().is_success() {
                    self.as_other(delete(&write.created())).await;
                }
                Ok(answer)
            }
            Fault::Recreated => {
                self.ask(|done| Due::Recreate(write.object(), done)).await;
                self.pass_on(client, write).await
            }
        }
    }

    /// Sends a request of another user, which has to take effect.
    async fn as_other(&self, request: Request<Body>) {
        let what = format!("{} {}", request.method(), request.uri());
        let refused = match self.other.send(request).await {
            Ok(answer) if answer.status().is_success() => return,
            Ok(answer) => answer.status().to_string(),
            Err(error) => error.to_string(),
        };
        self.lock().broken = Some(format!("another client's {what}: {refused}"));
    }

    /// Has the script do something, and waits for it.
    async fn ask(&self, due: impl FnOnce(oneshot::Sender<()>) -> Due) {
        let (done, is_done) = oneshot::channel();
        self.lock().due.push_back(due(done));
        let _ = is_done.await;
    }
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
#[derive(Clone, Debug)]
pub(crate) struct Write {
    parts: http::request::Parts,
    bytes: Bytes,
}

impl Write {
    pub(crate) fn request(&self) -> Request<Body> {
        Request::from_parts(self.parts.clone(), Body::from(self.bytes.clone()))
    }

    fn body(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
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

    /// The path of the object that it creates.
    fn created(&self) -> String {
        format!("{}/{}", self.parts.uri.path(), self.body()["metadata"]["name"].as_str().unwrap_or_default())
    }

    /// A write of another client to the same object.
    fn of_another_client(&self) -> Request<Body> {
        let touched = json!({"metadata": {"annotations": {"example.com/touched": "true"}}});
        if !self.creates() {
            return request(Method::PATCH, &self.object(), "application/merge-patch+json", touched.to_string());
        }
        let mut body = self.body();
        super::merge(&mut body, &touched);
        if self.place().0 == "leases" {
            super::merge(&mut body, &json!({"spec": {"holderIdentity": "another", "leaseDurationSeconds": 1}}));
        }
        request(Method::POST, self.parts.uri.path(), "application/json", body.to_string())
    }

    /// The slots that a write of the operator's status has.
    fn slots(&self) -> Option<Value> {
        let (resource, _, subresource) = self.place();
        (resource == "bottlerocketupdateoperators" && subresource.is_some())
            .then(|| self.body()["status"]["slots"].clone())
    }

    /// The kind of the write: verb, resource, and what it is about. `slots` is what the operator's status had before.
    fn label(&self, slots: &Value) -> String {
        let body = self.body();
        let (resource, name, subresource) = self.place();
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
            ("bottlerocketrollouthistories", None) if verb == "create" => {
                if body["spec"]["page"].is_null() { "record" } else { "page" }.to_owned()
            }
            ("secrets" | "configmaps", _) => {
                name.or(body["metadata"]["name"].as_str()).unwrap_or_default().trim_start_matches("brupop-").to_owned()
            }
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
    let kept = status["results"].as_array().is_some_and(|results| !results.is_empty());
    match (status["progress"]["step"].as_str(), last) {
        (Some("Releasing"), Some(reason)) => format!("Releasing after {reason}"),
        (Some(step), _) => step.to_owned(),
        (None, Some(reason)) if kept => format!("idle after {reason}"),
        (None, Some(reason)) => format!("idle after {reason}, result recorded"),
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

fn about_slots(now: &Value, before: &Value) -> String {
    let uids = |slots: &Value| -> Vec<String> {
        slots.as_array().into_iter().flatten().map(|slot| slot["uid"].to_string()).collect()
    };
    let marked = |slots: &Value| {
        let slots = slots.as_array().into_iter().flatten();
        slots.filter(|slot| !slot["update"]["permittingSince"].is_null()).count()
    };
    let (was, is) = (uids(before), uids(now));
    let given = is.iter().any(|uid| !was.contains(uid));
    let taken_back = was.iter().any(|uid| !is.contains(uid));
    let about = match (given, taken_back) {
        (true, true) => "slot handed on",
        (true, false) => "slot given",
        (false, true) => "slot taken back",
        (false, false) if marked(now) > marked(before) => "slot marked",
        (false, false) => "facts",
    };
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
