//! The few calls that the web API makes to Kubernetes, and the only place that makes any.
//!
//! Each call runs as a separate task on the main runtime: a client that hangs up does not cut a write short, and a
//! connection to the API server does not end with the worker that happened to open it.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::{DeserializeGuard, Request, Status};
use kube::{Client, Resource};
use models::limits;
use models::names::{AGENT_MANAGER, TOKEN_AUDIENCE};
use models::schema::UNDECLARED;
use models::shadow::BottlerocketShadow;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::metrics::{Call, CallResult, Metrics};
use crate::shadow::Shadow;

/// Returns the deadline of a call. Admission webhooks see TokenReviews too. An agent waits 15 s longer than a review takes for
/// the head of an answer, up to 5 s of which its token waits for the review, and longer by an apply for the answer to a report.
const fn deadline(call: Call) -> Duration {
    match call {
        Call::Keys => Duration::from_secs(4),
        Call::Read => Duration::from_secs(5),
        Call::TokenReview | Call::Apply => limits::WRITE,
    }
}

/// A call to the API server without a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the API server did not answer the {} within {}s", .0, deadline(*.0).as_secs())]
    TimedOut(Call),
    #[error("the call was ended with the server")]
    Ended,
    /// An answer that is a refusal.
    #[error("the API server answered {} {}: {}", .0.code, .0.reason, .0.message)]
    Answered(Box<Status>),
    #[error("the call failed")]
    Call(#[source] kube::Error),
    #[error("the object could not be read")]
    Shadow(#[source] anyhow::Error),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Answered(status),
            error => Self::Call(error),
        }
    }
}

impl CallError {
    /// Returns a refusal that the API server did send.
    fn answered(&self) -> Option<&Status> {
        if let Self::Answered(status) = self { Some(status) } else { None }
    }

    /// Returns the HTTP status of a refusal.
    pub(crate) fn code(&self) -> Option<u16> {
        self.answered().map(|status| status.code)
    }

    /// Returns true if the call may have had its effect although there was no answer.
    pub(crate) fn outcome_is_unknown(&self) -> bool {
        match self {
            Self::TimedOut(_) | Self::Ended | Self::Call(_) | Self::Shadow(_) => true,
            // The API server timed out during the call.
            Self::Answered(status) => status.code == 504,
        }
    }

    /// Returns true if the API server does not accept what was written, also where its definition lacks a field.
    pub(crate) fn is_invalid(&self) -> bool {
        self.answered().is_some_and(|status| matches!(status.code, 400 | 422) || status.message.contains(UNDECLARED))
    }

    /// Returns true if the object had changed since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Returns true if this version cannot read the object.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Shadow(_) | Self::Call(kube::Error::SerdeError(_)))
    }

    /// Returns the fields named by an error answer.
    pub(crate) fn fields(&self) -> Vec<String> {
        let details = self.answered().and_then(|status| status.details.as_ref());
        let fields = details.into_iter().flat_map(|details| &details.causes).map(|cause| cause.field.clone());
        // The API server names more than fields here, such as "<nil>" for the object as a whole.
        fields.filter(|field| field.starts_with("status.")).collect()
    }

    /// Returns the API server's `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let seconds = self.answered()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then_some(seconds.into())
    }
}

/// The Kubernetes API, as far as the web API uses it.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    namespace: String,
    runtime: Handle,
    metrics: Metrics,
}

impl Cluster {
    /// Must be called on the main runtime. The client must not retry by itself: the caller handles the answers.
    pub(crate) fn new(client: Client, namespace: String, metrics: Metrics) -> Self {
        Self { client, namespace, runtime: Handle::current(), metrics }
    }

    /// Returns the shadows, for the watch: an unreadable one does not end it.
    pub(crate) fn shadows(&self) -> Api<DeserializeGuard<BottlerocketShadow>> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn api(&self) -> Api<BottlerocketShadow> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a TokenReview of a token of an agent.
    pub(crate) async fn review(&self, token: &str) -> Result<TokenReviewStatus, CallError> {
        let review = TokenReview {
            spec: TokenReviewSpec { audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]), token: token.to_owned() },
            ..TokenReview::default()
        };
        let body = serde_json::to_vec(&review).map_err(kube::Error::SerdeError)?;
        let request = Request::new(TokenReview::url_path(&(), None))
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        let client = self.client.clone();
        // Read here and not by the client, which logs an answer that it cannot read, and this answer repeats the token.
        let text = self.run(Call::TokenReview, async move { client.request_text(request).await }).await?;
        let review: TokenReview =
            serde_json::from_str(&text).map_err(|e| kube::Error::SerdeError(position_only(&e)))?;
        Ok(review.status.unwrap_or_default())
    }

    /// Reads what the API server publishes about the tokens that it issues.
    pub(crate) async fn published(&self, path: &'static str) -> Result<String, CallError> {
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let client = self.client.clone();
        self.run(Call::Keys, async move { client.request_text(request).await }).await
    }

    /// Reads a shadow live from the store behind the API server, past all caches.
    pub(crate) async fn shadow(&self, name: &str) -> Result<Option<Shadow>, CallError> {
        let (api, name) = (self.api(), name.to_owned());
        let object = self.run(Call::Read, async move { api.get_opt(&name).await }).await?;
        object.map(Shadow::try_from).transpose().map_err(CallError::Shadow)
    }

    /// Applies the agent status to a shadow whose uid and owner the caller has checked. Only the resource version of
    /// that object keeps the write from a successor of the same name: the API server ignores a uid here.
    pub(crate) async fn apply_status(&self, checked: &Shadow, status: &Value) -> Result<Shadow, CallError> {
        let patch = json!({
            "apiVersion": BottlerocketShadow::api_version(&()),
            "kind": BottlerocketShadow::kind(&()),
            "metadata": {
                "name": checked.name,
                "namespace": self.namespace,
                "resourceVersion": checked.resource_version(),
            },
            "status": status,
        });
        let (api, name) = (self.api(), checked.name.clone());
        let params = PatchParams::apply(AGENT_MANAGER).force();
        let call = async move { api.patch_status(&name, &params, &Patch::Apply(patch)).await };
        let object = self.run(Call::Apply, call).await?;
        Shadow::try_from(object).map_err(CallError::Shadow)
    }

    async fn run<T: Send + 'static>(
        &self,
        call: Call,
        answer: impl Future<Output = kube::Result<T>> + Send + 'static,
    ) -> Result<T, CallError> {
        // The timer has to be made on that runtime too: a timer of the server's own runtime panics when that is shut
        // down first.
        let result = match self.runtime.spawn(async move { tokio::time::timeout(deadline(call), answer).await }).await {
            Ok(Ok(result)) => result.map_err(CallError::from),
            Ok(Err(_)) => Err(CallError::TimedOut(call)),
            Err(_) => Err(CallError::Ended),
        };
        self.metrics.call(
            call,
            match &result {
                Ok(_) | Err(CallError::Answered(_)) => CallResult::Answered,
                Err(CallError::TimedOut(_)) => CallResult::TimedOut,
                Err(_) => CallResult::Failed,
            },
        );
        result
    }
}

/// Reduces an error to its position: serde_json's own text may quote the value.
fn position_only(error: &serde_json::Error) -> serde_json::Error {
    <serde_json::Error as serde::de::Error>::custom(format!(
        "not a TokenReview, at line {} column {}",
        error.line(),
        error.column()
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use http::Response;
    use kube::client::Body;
    use tower_test::mock;

    use super::*;
    use crate::shadow::tests::{shadow, stored};

    /// A request that reached the fake API server.
    #[derive(Clone, Debug)]
    pub(crate) struct Seen {
        pub(crate) method: String,
        pub(crate) path: String,
        pub(crate) query: String,
        pub(crate) body: Value,
    }

    /// An API server that answers by a function and records its requests.
    pub(crate) struct Fake {
        pub(crate) cluster: Cluster,
        seen: Arc<Mutex<Vec<Seen>>>,
    }

    impl Fake {
        pub(crate) fn requests(&self) -> Vec<Seen> {
            self.seen.lock().unwrap().clone()
        }
    }

    pub(crate) fn fake(answer: impl Fn(&Seen) -> (u16, Value) + Send + 'static) -> Fake {
        let (service, mut handle) = mock::pair::<http::Request<Body>, Response<Body>>();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let request = Seen {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
                };
                log.lock().unwrap().push(request.clone());
                let (code, value) = answer(&request);
                let body = Body::from(value.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        Fake {
            cluster: Cluster::new(Client::new(service, "default"), "brupop-system".into(), Metrics::new().unwrap()),
            seen,
        }
    }

    pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_ends_at_its_deadline_and_is_counted() {
        let (service, mut handle) = mock::pair::<http::Request<Body>, Response<Body>>();
        let metrics = Metrics::new().unwrap();
        let cluster = Cluster::new(Client::new(service, "default"), "brupop-system".into(), metrics.clone());
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some(request) = handle.next_request().await {
                unanswered.push(request);
            }
        });
        let shadow = shadow("u", 5, 1, json!({"state": "Idle"}));
        let ended = [
            (Call::TokenReview, cluster.review("t").await.map(drop)),
            (Call::Keys, cluster.published("/openid/v1/jwks").await.map(drop)),
            (Call::Read, cluster.shadow("brs-a").await.map(drop)),
            (Call::Apply, cluster.apply_status(&shadow, &json!({})).await.map(drop)),
        ];
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        for (call, result) in ended {
            assert!(matches!(result, Err(CallError::TimedOut(ended)) if ended == call), "{call:?}: {result:?}");
            let counted = format!("brupop_apiserver_calls_total{{call=\"{call}\",result=\"timed-out\"}} 1");
            assert!(text.contains(&counted), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn report_is_applied_behind_admission_webhooks_that_hang() {
        for seconds in [12, 31] {
            let (service, mut handle) = mock::pair::<http::Request<Body>, Response<Body>>();
            let client = Client::new(service, "default");
            let cluster = Cluster::new(client, "brupop-system".into(), Metrics::new().unwrap());
            tokio::spawn(async move {
                let authenticated = json!({"spec": {"token": "t"}, "status": {"authenticated": true}});
                for answer in [authenticated, stored("u", 6, 1, json!({"state": "Idle"}))] {
                    let (_request, reply) = handle.next_request().await.unwrap();
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    reply.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
                }
            });
            let reviewed = cluster.review("t").await;
            assert_eq!(reviewed.unwrap().authenticated, Some(true), "the API server answers after {seconds} s");
            let applied = cluster.apply_status(&shadow("u", 5, 1, json!({})), &json!({"state": "Idle"})).await;
            assert_eq!(applied.unwrap().resource_version(), "6", "the API server answers after {seconds} s");
        }
    }

    #[tokio::test]
    async fn unreadable_token_review_error_does_not_contain_token() {
        let fake = fake(|_| (201, json!({"spec": {"token": "secret"}, "status": "secret"})));
        let error = fake.cluster.review("secret").await.unwrap_err();
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}
