//! The API server's time.

use http::{Request, Response, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use kube::client::Body;

use crate::clock::Clock;

/// Returns the same client, whose answers correct `clock`.
pub fn dated(client: kube::Client, clock: Clock) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, clock) = (client.clone(), clock.clone());
        async move {
            let sent = clock.read().at;
            let response = client.send(request).await?;
            if let Some(date) = date(&response) {
                clock.record_answer(sent, clock.read(), date);
            }
            Ok::<_, kube::Error>(response)
        }
    });
    kube::Client::new(service, namespace)
}

/// Returns the date of the server's answer; `None` without a date that can be read.
pub(crate) fn date<B>(response: &Response<B>) -> Option<Timestamp> {
    let text = response.headers().get(header::DATE)?.to_str().ok()?;
    DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::Api;

    /// A refusal has a date too.
    #[tokio::test]
    async fn lease_response_dates_set_cluster_clock() {
        let clock = Clock::default();
        let server = clock.clone();
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let hours = |hours: i64| SignedDuration::from_hours(hours);
        tokio::spawn(async move {
            for ahead in [Some(5), None] {
                let Some((_, reply)) = handle.next_request().await else { return };
                let mut response = Response::builder().status(404);
                if let Some(ahead) = ahead {
                    let time = server.read().local.checked_add(hours(ahead)).unwrap();
                    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap();
                    response = response.header("date", date);
                }
                let body = Body::from(br#"{"kind":"Status","code":404,"reason":"NotFound"}"#.to_vec());
                reply.send_response(response.body(body).unwrap());
            }
        });
        let leases: Api<Lease> = Api::namespaced(dated(kube::Client::new(service, "default"), clock.clone()), "n");
        assert!(leases.get_opt("brupop-controller").await.unwrap().is_none());
        let learned = clock.offset();
        assert!((learned - hours(5)).abs() < SignedDuration::from_secs(60), "{learned:?}");
        assert!(leases.get_opt("brupop-controller").await.unwrap().is_none());
        assert_eq!(clock.offset(), learned, "an answer without a date changes nothing");
    }
}
