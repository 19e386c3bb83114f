//! Answers that several routes give.

use actix_web::http::header::{CACHE_CONTROL, ETAG};
use actix_web::{HttpResponse, HttpResponseBuilder};
use models::wire::ShadowView;

/// Builds an answer with a shadow as its body.
pub(super) fn show(mut answer: HttpResponseBuilder, view: &ShadowView) -> HttpResponse {
    answer.insert_header((CACHE_CONTROL, "no-store")).insert_header((ETAG, format!("\"{}\"", view.etag))).json(view)
}
