//! `PUT /v1/nodes/{node}/shadow/status`.

use std::time::Duration;

use actix_web::http::header::{CONTENT_TYPE, HeaderMap, IF_MATCH};
use actix_web::web::{Bytes, Payload};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use tokio::time::timeout;

use super::answer::show;
use crate::app::{Agent, App, refuse_access, take};
use crate::body::{self, BodyError};
use crate::etag::parse_if_match;
use crate::metrics::WriteResult;
use crate::problem::{ApiError, Kind};
use crate::refusal::Refusal;
use crate::write::{WriteError, Written, write_status};

/// Replaces the agent status of its shadow, based on the state that `If-Match` names.
pub(super) async fn put(
    Agent(agent): Agent,
    app: web::Data<App>,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    take(&app.reports, agent.node_name.clone(), Refusal::TooManyReports)?;
    let header = if_match(request.headers())?;
    let etags = parse_if_match(header);
    if etags.contains(&"*") {
        return Err(ApiError::new(Kind::PreconditionRequired).detail("If-Match names an etag, and not any"));
    }
    if request.headers().contains_key(CONTENT_TYPE) && !request.content_type().eq_ignore_ascii_case("application/json")
    {
        return Err(ApiError::new(Kind::NotJson));
    }
    let bytes = read(payload, app.limits.body).await?;
    let report = body::parse(&bytes).map_err(|error| {
        app.metrics.status_writes.inc(WriteResult::Invalid);
        refuse_body(error)
    })?;
    if report.dropped > 0 {
        app.metrics.dropped_fields.inc_by(report.dropped);
        tracing::debug!(
            node = agent.node_name,
            dropped = report.dropped,
            "a report has fields that are not known here"
        );
    }
    let written = write_status(&app.cluster, &app.store, &agent, &etags, &report).await;
    let (result, answer) = match written {
        Ok(Written::Applied(shadow)) => (WriteResult::Applied, Ok(show(HttpResponse::Ok(), &shadow.view))),
        Ok(Written::Unchanged(shadow)) => (WriteResult::Unchanged, Ok(show(HttpResponse::Ok(), &shadow.view))),
        Ok(Written::Stale(shadow)) => (WriteResult::Stale, Ok(show(HttpResponse::PreconditionFailed(), &shadow.view))),
        Err(WriteError::Invalid(error)) => {
            let mut problem = ApiError::new(Kind::InvalidStatus);
            let fields = error.fields();
            if !fields.is_empty() {
                problem = problem.detail(format!("the schema does not accept {}", fields.join(", ")));
            }
            (WriteResult::Invalid, Err(problem.cause(error)))
        }
        Err(WriteError::Unknown(error)) => {
            (WriteResult::Unknown, Err(ApiError::new(Kind::OutcomeUnknown).cause(error)))
        }
        Err(WriteError::Access(error)) => (WriteResult::Error, Err(refuse_access(&agent, error))),
        Err(WriteError::Call(error)) => (WriteResult::Error, Err(error.into())),
        Err(WriteError::Contended) => {
            let detail = "the shadow changes too often; try again";
            (WriteResult::Error, Err(ApiError::new(Kind::Unavailable).detail(detail)))
        }
    };
    app.metrics.status_writes.inc(result);
    answer
}

/// Returns the `If-Match` header. Without it a report could undo one that its sender has never seen.
fn if_match(headers: &HeaderMap) -> Result<&str, ApiError> {
    let missing = || ApiError::new(Kind::PreconditionRequired).detail("send the shadow's etag as If-Match");
    let header = headers.get(IF_MATCH).ok_or_else(missing)?;
    let header = header.to_str().map_err(|_| ApiError::new(Kind::MalformedRequest))?;
    if header.trim().is_empty() { Err(missing()) } else { Ok(header) }
}

async fn read(payload: Payload, deadline: Duration) -> Result<Bytes, ApiError> {
    match timeout(deadline, payload.to_bytes_limited(body::LIMIT)).await {
        Ok(Ok(Ok(bytes))) => Ok(bytes),
        Ok(Ok(Err(_))) => Err(ApiError::new(Kind::MalformedRequest)),
        Ok(Err(_)) => Err(ApiError::new(Kind::BodyTooLarge)),
        Err(_) => Err(ApiError::new(Kind::SlowRequest)),
    }
}

fn refuse_body(error: BodyError) -> ApiError {
    let kind = if matches!(error, BodyError::NotJson(_)) { Kind::MalformedRequest } else { Kind::InvalidStatus };
    // The error's own text is about the body alone; its source, which may quote it, is for the log.
    ApiError::new(kind).detail(error.to_string()).cause(error)
}
