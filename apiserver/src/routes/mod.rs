//! The routes. Version 1 of the API is for the nodes' agents, over TLS; the plain port is for kubelet and Prometheus.

mod answer;
mod health;
mod shadow;
mod status;
mod watch;

use actix_web::http::header::{ALLOW, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpResponse, ResponseError as _};

use crate::problem::{ApiError, Kind};

/// The agents' API.
pub(crate) fn api(config: &mut ServiceConfig) {
    let only = |path, method: &'static str, route| {
        web::resource(path).route(route).default_service(web::to(move || method_not_allowed(method)))
    };
    config
        .service(only("/v1/nodes/{node}/shadow", "GET", web::get().to(shadow::get)))
        .service(only("/v1/nodes/{node}/shadow/watch", "GET", web::get().to(watch::get)))
        .service(only("/v1/nodes/{node}/shadow/status", "PUT", web::put().to(status::put)))
        .default_service(web::to(not_found));
}

/// Health and metrics.
pub(crate) fn plain(config: &mut ServiceConfig) {
    config
        .route("/healthz", web::get().to(health::healthz))
        .route("/readyz", web::get().to(health::readyz))
        .route("/metrics", web::get().to(health::metrics))
        .default_service(web::to(not_found));
}

async fn not_found() -> Result<HttpResponse, ApiError> {
    Err(ApiError::new(Kind::NotFound))
}

async fn method_not_allowed(allowed: &'static str) -> HttpResponse {
    let mut response = ApiError::new(Kind::MethodNotAllowed).error_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
