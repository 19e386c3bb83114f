//! Errors as the agent sees them (RFC 9457) and as the log shows them, in two separate fields.
//!
//! A response has a fixed word, a fixed title and at most a fixed sentence. The cause, with all that it may reveal
//! about the cluster, is only logged.

use std::borrow::Cow;
use std::fmt;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use models::wire::{PROBLEM_JSON, Problem};

use crate::refusal::Refusal;

/// The kinds of problem. The name, which is the last part of the type's URN, and the title and status of each never
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Kind {
    Unauthorized,
    Forbidden,
    AgentTokenForOldNode,
    NoShadow,
    NotFound,
    MethodNotAllowed,
    MalformedRequest,
    SlowRequest,
    PreconditionRequired,
    BodyTooLarge,
    NotJson,
    InvalidStatus,
    TooManyRequests,
    HeadersTooLarge,
    Unavailable,
    OutcomeUnknown,
    Internal,
}

impl Kind {
    /// Returns the kind that the client gets after a refusal: the same for all faults of a token.
    const fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoToken
            | Refusal::MalformedToken
            | Refusal::Forged
            | Refusal::UnknownKey
            | Refusal::Expired
            | Refusal::NotYetValid
            | Refusal::NotAuthenticated
            | Refusal::WrongAudience => Self::Unauthorized,
            Refusal::OtherAccount | Refusal::NoPod | Refusal::NoNode | Refusal::OtherNode => Self::Forbidden,
            Refusal::AgentTokenForOldNode => Self::AgentTokenForOldNode,
            Refusal::ShadowWithoutNode => Self::NoShadow,
            Refusal::TooManyRefusals | Refusal::TooManyReports | Refusal::TooManyReads | Refusal::TooManyTokens => {
                Self::TooManyRequests
            }
        }
    }

    /// Returns the title and the status.
    const fn parts(self) -> (&'static str, StatusCode) {
        match self {
            Self::Unauthorized => ("The request carries no valid token", StatusCode::UNAUTHORIZED),
            Self::Forbidden => ("The token does not permit this", StatusCode::FORBIDDEN),
            Self::AgentTokenForOldNode => ("The token and the shadow name different Nodes", StatusCode::FORBIDDEN),
            Self::NoShadow => ("The node has no shadow", StatusCode::NOT_FOUND),
            Self::NotFound => ("Not Found", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("Method Not Allowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::MalformedRequest => ("The request is malformed", StatusCode::BAD_REQUEST),
            Self::SlowRequest => ("The request did not arrive in time", StatusCode::REQUEST_TIMEOUT),
            Self::PreconditionRequired => {
                ("A report names the state that it builds on", StatusCode::PRECONDITION_REQUIRED)
            }
            Self::BodyTooLarge => ("The body is too large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::NotJson => ("The body is not application/json", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::InvalidStatus => ("The status cannot be accepted", StatusCode::UNPROCESSABLE_ENTITY),
            Self::TooManyRequests => ("There are too many requests", StatusCode::TOO_MANY_REQUESTS),
            Self::HeadersTooLarge => ("The headers are too large", StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            Self::Unavailable => ("The cluster does not answer now", StatusCode::SERVICE_UNAVAILABLE),
            Self::OutcomeUnknown => ("The report may or may not have been written", StatusCode::SERVICE_UNAVAILABLE),
            Self::Internal => ("Internal Server Error", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// An answer other than success, with its details for the log.
#[derive(Debug)]
pub(crate) struct ApiError {
    kind: Kind,
    /// For the client: fixed text, or field names of its own request.
    detail: Option<Cow<'static, str>>,
    /// For the log.
    cause: Option<anyhow::Error>,
    refusal: Option<Refusal>,
    /// Delay in seconds after which a retry makes sense.
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind) -> Self {
        let retry_after = matches!(kind, Kind::Unavailable | Kind::OutcomeUnknown).then_some(1);
        Self { kind, detail: None, cause: None, refusal: None, retry_after }
    }

    pub(crate) fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub(crate) fn cause(mut self, cause: impl Into<anyhow::Error>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: Option<u64>) -> Self {
        self.retry_after = seconds.or(self.retry_after);
        self
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns the cause and its causes, for the log.
    pub(crate) fn chain(&self) -> Option<String> {
        self.cause.as_ref().map(|cause| format!("{cause:#}"))
    }

    /// Returns the response.
    pub(crate) fn problem(&self) -> Problem {
        let (title, status) = self.kind.parts();
        Problem {
            type_: format!("urn:brupop:problem:{}", self.kind),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: self.detail.as_deref().map(str::to_owned),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..Self::new(Kind::of(refusal)) }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.kind.parts().1
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        response.insert_header((header::CONTENT_TYPE, PROBLEM_JSON)).insert_header((header::CACHE_CONTROL, "no-store"));
        if self.kind == Kind::Unauthorized {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        response.body(serde_json::to_string(&self.problem()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use actix_web::body::to_bytes;
    use serde_json::{Value, json};
    use strum::VariantArray as _;

    use super::*;

    async fn body(error: &ApiError) -> Value {
        let response = error.error_response();
        assert_eq!(response.headers().get("content-type").unwrap(), PROBLEM_JSON);
        serde_json::from_slice(&to_bytes(response.into_body()).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn problem_type_is_unique_and_status_matches_response() {
        let mut types = HashSet::new();
        for kind in Kind::VARIANTS.iter().copied() {
            let error = ApiError::new(kind);
            let value = body(&error).await;
            assert_eq!(value["status"], error.status_code().as_u16());
            assert!(value["status"].as_u64().unwrap() >= 400);
            assert!(value["type"].as_str().unwrap().starts_with("urn:brupop:problem:"));
            assert!(types.insert(value["type"].clone()), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn error_cause_is_logged_but_not_returned() {
        let error = ApiError::new(Kind::Internal).cause(std::io::Error::other("etcd at 10.1.2.3 refused"));
        assert!(!body(&error).await.to_string().contains("etcd"));
        assert!(!error.to_string().contains("etcd"));
        assert!(error.chain().unwrap().contains("etcd"));
    }

    #[tokio::test]
    async fn all_token_refusals_return_same_response() {
        let mut bodies = HashSet::new();
        for refusal in Refusal::VARIANTS.iter().copied().filter(|&r| Kind::of(r) == Kind::Unauthorized) {
            let error = ApiError::from(refusal);
            assert_eq!(error.error_response().headers().get("www-authenticate").unwrap(), "Bearer");
            bodies.insert(body(&error).await.to_string());
        }
        assert_eq!(bodies.len(), 1);
        assert_eq!(
            body(&ApiError::from(Refusal::NotAuthenticated)).await,
            json!({"type": "urn:brupop:problem:unauthorized", "title": "The request carries no valid token", "status": 401})
        );
    }

    #[tokio::test]
    async fn agent_of_recreated_node_gets_specific_problem() {
        let value = body(&ApiError::from(Refusal::AgentTokenForOldNode)).await;
        assert_eq!(value["type"], "urn:brupop:problem:agent-token-for-old-node");
        assert_eq!(value["status"], 403);
    }
}
