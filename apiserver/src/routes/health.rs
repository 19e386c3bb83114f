//! `/healthz`, `/readyz` and `/metrics`.

use actix_web::http::header::CONTENT_TYPE;
use actix_web::{HttpResponse, web};

use crate::app::App;
use crate::problem::{ApiError, Kind};

/// Reports that the process serves requests. It depends on nothing else: a restart cures no outage of the cluster.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Reports that this replica is ready for agents.
pub(super) async fn readyz(app: web::Data<App>) -> HttpResponse {
    match app.ready() {
        Ok(()) => HttpResponse::Ok().content_type("text/plain").body("ok\n"),
        Err(reason) => HttpResponse::ServiceUnavailable().content_type("text/plain").body(format!("{reason}\n")),
    }
}

/// Returns the metrics.
pub(super) async fn metrics(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let text = app.metrics.text().map_err(|error| ApiError::new(Kind::Internal).cause(error))?;
    Ok(HttpResponse::Ok().insert_header((CONTENT_TYPE, prometheus::TEXT_FORMAT)).body(text))
}
