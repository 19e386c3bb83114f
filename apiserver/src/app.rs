//! What every request handler shares, and how a request becomes an agent.

use std::pin::Pin;
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest, web};
use jiff::Timestamp;
use models::duration::Duration;
use tokio::sync::watch;

use crate::auth::Refusal;
use crate::auth::identity::{AgentIdentity, check};
use crate::auth::review::{ReviewError, Reviewer};
use crate::auth::token::Token;
use crate::cluster::{CallError, Cluster};
use crate::metrics::Metrics;
use crate::problem::{ApiError, Kind};
use crate::store::Store;
use crate::tls::CertificateSlot;
use crate::write::AccessError;

/// The state of one server.
pub(crate) struct App {
    pub(crate) cluster: Cluster,
    pub(crate) store: Arc<Store>,
    pub(crate) reviewer: Reviewer,
    pub(crate) metrics: Metrics,
    pub(crate) certificate: Arc<CertificateSlot>,
    /// User name of the agents' service account.
    pub(crate) agent_username: String,
    pub(crate) stream_max_age: Duration,
    /// True once the server is to end.
    pub(crate) shutdown: watch::Receiver<bool>,
    pub(crate) now: fn() -> Timestamp,
}

impl App {
    /// Whether agents are to be sent here, or why not.
    pub(crate) fn ready(&self) -> Result<(), &'static str> {
        if *self.shutdown.borrow() {
            return Err("the server is ending");
        }
        if self.certificate.current().is_none() {
            return Err("there is no certificate yet");
        }
        if !self.store.synced() {
            return Err("the shadows have not been listed yet");
        }
        Ok(())
    }
}

/// The agent of the node in the path. A handler that takes it is reached by that agent alone.
pub(crate) struct Agent(pub(crate) AgentIdentity);

impl FromRequest for Agent {
    type Error = ApiError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ApiError>>>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let app = request.app_data::<web::Data<App>>().cloned();
        let token = Token::from_headers(request.headers());
        let node = request.match_info().get("node").unwrap_or_default().to_owned();
        Box::pin(async move {
            let app = app.ok_or_else(|| ApiError::new(Kind::Internal))?;
            let token = token.map_err(ApiError::refused)?;
            let bearer = app.reviewer.review(&token).await.map_err(|error| match error {
                ReviewError::Refused(refusal) => ApiError::refused(refusal),
                ReviewError::Unavailable(error) => unavailable(error),
                ReviewError::Busy => ApiError::new(Kind::Unavailable),
            })?;
            match check(&bearer, &app.agent_username, &node) {
                Ok(agent) => Ok(Self(agent)),
                Err(refusal) => {
                    tracing::info!(
                        reason = refusal.as_str(),
                        node,
                        username = bearer.username,
                        pod_uid = bearer.pod_uid,
                        node_name = bearer.node_name,
                        "a good token was refused"
                    );
                    Err(ApiError::refused(refusal))
                }
            }
        })
    }
}

/// A call that brought no result, as the agent is told of it.
pub(crate) fn unavailable(error: CallError) -> ApiError {
    // What the API server refuses to this server itself is a fault of the install, not a passing one.
    let kind = match error.code() {
        Some(401 | 403) => Kind::Internal,
        _ if error.is_unreadable() => Kind::Internal,
        _ => Kind::Unavailable,
    };
    ApiError::new(kind).retry_after(error.retry_after()).cause(error)
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::NoShadow => Self::new(Kind::NoShadow),
            AccessError::Refused(refusal) => Self::refused(refusal),
            AccessError::Call(error) => unavailable(error),
        }
    }
}

/// Says that a shadow is not the agent's although the node's name fits.
pub(crate) fn log_refused_shadow(agent: &AgentIdentity, refusal: Refusal) {
    tracing::warn!(
        reason = refusal.as_str(),
        node = agent.node_name,
        token_node_uid = agent.node_uid,
        pod_uid = agent.pod_uid,
        "an agent's token and its node's shadow do not name the same Node"
    );
}
