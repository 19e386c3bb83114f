//! Size limit for the head of a request.

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;

use crate::problem::{ApiError, Kind};

/// Maximum size of path, query and headers together, in bytes: a token has up to 8 KiB, and the rest of an agent's
/// request is a few hundred bytes. (The HTTP library ends connections that send more than 128 KiB or 96 headers over
/// HTTP/1.)
const LIMIT: usize = 16 * 1024;

/// Refuses larger heads before they are processed.
pub(crate) async fn limited<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let path = request.path().len() + request.query_string().len();
    if headers + path > LIMIT {
        return Ok(request.error_response(ApiError::new(Kind::HeadersTooLarge)).map_into_right_body());
    }
    Ok(next.call(request).await?.map_into_left_body())
}
