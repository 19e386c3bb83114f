//! The client of the API server: each call has a deadline, so that none waits forever.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http::{Method, Request};
use http_body_util::{BodyStream, Either, Full, StreamBody};
use kube::client::Body;
use tokio::time::timeout;
use watches::SILENCE;

use crate::calls::{Calls, Kind};
use crate::metrics::Metrics;

/// Deadline for opening a connection.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A call without an answer in time. It may have been carried out all the same.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the API server within {limit:?}: {method} {path}")]
pub struct NoAnswer {
    method: Method,
    path: String,
    limit: Duration,
}

/// Returns the frames of a watch until it ends, or has been silent for so long that its connection must be dead. That is no
/// failure: the watch is resumed. After a restore of the cluster, the Lease ends the process.
fn not_silent(watch: Body) -> impl Stream<Item = <BodyStream<Body> as Stream>::Item> + Send {
    futures::stream::unfold(BodyStream::new(watch), async |mut frames| {
        let frame = timeout(SILENCE, frames.next()).await.ok()??;
        Some((frame, frames))
    })
}

/// Returns the same client with a deadline for each call, by which the answer has to be complete. A watch has to begin
/// by then, and ends when it has been silent for too long.
pub fn limited(client: kube::Client, calls: Calls, metrics: Metrics) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, calls, metrics) = (client.clone(), calls.clone(), metrics.clone());
        async move {
            let kind = Kind::of(&request);
            let late = NoAnswer {
                method: request.method().clone(),
                path: request.uri().path().to_owned(),
                limit: kind.limit(),
            };
            let under_way = calls.begin(kind);
            let answer = timeout(kind.limit(), async {
                let (head, body) = client.send(request).await?.into_parts();
                let body = match kind {
                    Kind::Watch => Either::Right(body),
                    _ => Either::Left(Full::new(body.collect_bytes().await?)),
                };
                Ok((head, body))
            });
            let answer: Result<_, kube::Error> = answer.await.unwrap_or_else(|_| {
                metrics.no_answer(kind);
                Err(kube::Error::Service(Box::new(late)))
            });
            drop(under_way);
            let (head, body) = answer?;
            let body = match body {
                Either::Left(all) => Either::Left(all),
                Either::Right(watch) => Either::Right(StreamBody::new(not_silent(watch))),
            };
            Ok::<_, kube::Error>(http::Response::from_parts(head, body))
        }
    });
    kube::Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::Api;
    use kube::api::{EvictParams, Patch, PatchParams, WatchParams};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::calls::Ages;

    type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

    fn client() -> (kube::Client, Calls, Metrics, Server) {
        let (service, server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (calls, metrics) = (Calls::default(), Metrics::new().unwrap());
        let client = limited(kube::Client::new(service, "default"), calls.clone(), metrics.clone());
        (client, calls, metrics, server)
    }

    #[tokio::test(start_paused = true)]
    async fn call_without_response_ends_at_deadline() {
        let (client, calls, metrics, mut server) = client();
        // Never answers, and keeps the reply handle.
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some(request) = server.next_request().await {
                unanswered.push(request);
            }
        });
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "n");
        let pods: Api<Pod> = Api::namespaced(client.clone(), "n");
        let patch = Patch::Merge(json!({"data": {}}));
        for kind in [Kind::Read, Kind::Write, Kind::Eviction, Kind::Watch] {
            let began = Instant::now();
            let error = match kind {
                Kind::Read => maps.get("a").await.unwrap_err(),
                Kind::Write => maps.patch("a", &PatchParams::default(), &patch).await.unwrap_err(),
                Kind::Eviction => pods.evict("a", &EvictParams::default()).await.unwrap_err(),
                _ => maps.watch(&WatchParams::default(), "0").await.err().unwrap(),
            };
            assert_eq!(began.elapsed().as_secs(), kind.limit().as_secs(), "{kind:?}");
            let kube::Error::Service(error) = error else { panic!("{error}") };
            assert!(error.to_string().contains(" /api/v1/namespaces/n/"), "{error}");
            let counted = format!("calls_without_answer_total{{kind=\"{}\"}} 1", kind.as_str());
            assert!(metrics.text().contains(&counted), "{}", metrics.text());
        }
        assert_eq!(calls.ages(Instant::now()), Ages::default());
    }

    /// Returns an answer whose body begins like this and never ends.
    async fn endless(start: &'static [u8]) -> Response<Body> {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let start = BodyStream::new(Body::from(start.to_vec()));
            Ok::<_, kube::Error>(Response::new(StreamBody::new(start.chain(futures::stream::pending()))))
        });
        kube::Client::new(service, "n").send(Request::new(Body::empty())).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn unending_response_is_an_error() {
        let (client, _, _, mut server) = client();
        tokio::spawn(async move {
            let (_, reply) = server.next_request().await.unwrap();
            reply.send_response(endless(b"{").await);
        });
        let maps: Api<ConfigMap> = Api::namespaced(client, "n");
        assert!(matches!(maps.get("a").await, Err(kube::Error::Service(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_watch_ends() {
        const EVENT: &[u8] = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n";
        let (client, _, _, mut server) = client();
        tokio::spawn(async move {
            let (_, reply) = server.next_request().await.unwrap();
            reply.send_response(endless(EVENT).await);
        });
        let maps: Api<ConfigMap> = Api::namespaced(client, "n");
        let began = Instant::now();
        let events: Vec<_> = maps.watch(&WatchParams::default(), "0").await.unwrap().collect().await;
        assert!(events.len() == 1 && events[0].is_ok(), "{events:?}");
        assert_eq!(began.elapsed().as_secs(), SILENCE.as_secs());
    }
}
