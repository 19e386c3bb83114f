//! The access log: one line and one count for each request, without the token.

use std::sync::atomic::Ordering;

use actix_http::ConnectionType;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::Next;
use actix_web::{HttpMessage as _, web};
use tokio::time::Instant;

use crate::app::{App, Authenticated};
use crate::problem::ApiError;

/// Maximum length of a path in the log, in characters: an unauthenticated client chose the rest.
const LONGEST_PATH: usize = 300;

/// Logs and counts a request, without waiting for the body of a stream.
pub(crate) async fn access_log<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let begun = Instant::now();
    let app = request.app_data::<web::Data<App>>().cloned();
    let method = request.method().clone();
    let path: String = request.path().chars().take(LONGEST_PATH).collect();
    let peer = request.peer_addr().map(|peer| peer.ip());
    // A pattern and not a path, so that no client can create series.
    let route = request.match_pattern().unwrap_or_else(|| "other".to_owned());
    let version = format!("{:?}", request.version());

    let mut response = next.call(request).await?;
    // On a kept connection, an unauthenticated client could begin another head and never end it.
    let unauthenticated = !response.request().extensions().contains::<Authenticated>();
    // And a client would reuse it, however long it waits, instead of reaching another replica, which may serve it.
    let unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    if unauthenticated || unavailable || app.as_ref().is_some_and(|app| app.ending()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }

    let status = response.status();
    let error = response.response().error().and_then(|error| error.as_error::<ApiError>());
    let refusal = error.and_then(ApiError::refusal);
    let mut omitted = None;
    if let Some(app) = app {
        app.metrics.request(&route, status.as_str());
        if let Some(refusal) = refusal {
            app.metrics.refusals.inc(refusal);
        }
        if !status.is_success() {
            // Unauthenticated clients fill no disk: what is left out is counted above, and shown with the next line.
            if peer.is_some_and(|peer| app.log_lines.take(app.sources.of(peer), begun).is_err()) {
                app.omitted.fetch_add(1, Ordering::Relaxed);
                return Ok(response);
            }
            omitted = Some(app.omitted.swap(0, Ordering::Relaxed)).filter(|&count| count > 0);
        }
    }
    let peer = peer.map(tracing::field::display);
    let (status, milliseconds) = (status.as_u16(), u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    let (refusal, cause) = (refusal.map(<&str>::from), error.and_then(ApiError::chain));
    if status >= 500 {
        tracing::error!(target: "access", %method, path, route, status, milliseconds, peer, version, cause, omitted, "request");
    } else if status >= 400 {
        tracing::info!(target: "access", %method, path, route, status, milliseconds, peer, version, refusal, cause, omitted, "request");
    } else {
        tracing::info!(target: "access", %method, path, route, status, milliseconds, peer, version, "request");
    }
    Ok(response)
}
