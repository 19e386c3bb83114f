//! An API server with single objects.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Annotation of an object that another client makes again once it is deleted.
pub(super) const AGAIN: &str = "again";

/// Annotation of an object whose first reading after its deletion fails, as where the API server restarts.
pub(super) const AWAY: &str = "away";

/// Annotation of an object that is gone once more than its metadata is read, as where it goes between two readings.
pub(super) const LATE: &str = "late";

/// Objects by path. One with finalizers, as a namespace has them in `spec`, stays when it is deleted.
#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<BTreeMap<String, Value>>>);

/// The answer of an API server to a request that fails.
fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "", "code": code})
}

impl Server {
    pub(crate) fn add(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), object);
    }

    /// Adds an object whose first request fails with a code.
    pub(crate) fn add_after(&self, code: u16, path: &str, object: Value) {
        let mut first = failure(code, "");
        first["then"] = object;
        self.add(path, first);
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let accepted = request.headers().get(http::header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
            let is_whole = !accepted.is_some_and(|accepted| accepted.contains("PartialObjectMetadata"));
            if is_whole && request.method() == Method::GET {
                server.0.lock().unwrap().retain(|path, object| {
                    path != request.uri().path() || !object["metadata"]["annotations"][LATE].is_string()
                });
            }
            let answer = server.answer(request.method(), request.uri().path());
            let answer = answer.unwrap_or_else(|| failure(404, "NotFound"));
            let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
            let body = Body::from(answer.to_string().into_bytes());
            let response = Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str) -> Option<Value> {
        let mut objects = self.0.lock().unwrap();
        let object = objects.get_mut(path)?;
        let answer = object.clone();
        if answer["kind"] == "Status" {
            match object["then"].take() {
                Value::Null => drop(objects.remove(path)),
                then => *object = then,
            }
        } else if *method == Method::DELETE {
            let stays = [&answer["metadata"], &answer["spec"]].iter().any(|part| part["finalizers"].is_array());
            let meta = &mut object["metadata"];
            if meta["annotations"][AGAIN].is_string() {
                meta["uid"] = json!("again");
            } else if meta["annotations"][AWAY].is_string() {
                *object = failure(503, "ServiceUnavailable");
            } else if !stays {
                objects.remove(path);
            }
        }
        Some(answer)
    }
}
