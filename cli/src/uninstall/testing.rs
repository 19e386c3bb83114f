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

/// Objects by path. One with finalizers stays when it is deleted.
#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<BTreeMap<String, Value>>>);

impl Server {
    pub(crate) fn add(&self, path: &str, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), object);
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let found = server.answer(request.method(), request.uri().path());
            let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "", "code": 404});
            let code = if found.is_some() { 200 } else { 404 };
            let body = Body::from(found.unwrap_or(missing).to_string().into_bytes());
            let response = Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str) -> Option<Value> {
        let mut objects = self.0.lock().unwrap();
        let object = objects.get_mut(path)?;
        let answer = object.clone();
        if *method == Method::DELETE {
            let meta = &mut object["metadata"];
            if meta["annotations"][AGAIN].is_string() {
                meta["uid"] = json!("again");
            } else if meta["finalizers"].is_null() {
                objects.remove(path);
            }
        }
        Some(answer)
    }
}
