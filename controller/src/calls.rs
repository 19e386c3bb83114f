//! Deadlines of the calls to the API server, and the calls under way: no call of this process waits forever.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use http::{Method, Request};
use http_body_util::{BodyStream, Either, Full, StreamBody};
use kube::client::Body;
use tokio::time::{Instant, timeout};

use crate::metrics::Metrics;

/// Deadline for opening a connection.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Time without any data after which a watch is opened again: the API server sends a bookmark about every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);

/// Time beyond its deadline after which a call under way makes the process count as stuck.
const CALL_GRACE: Duration = Duration::from_secs(30);

/// Time without a turn of the leader after which the process counts as stuck. A turn comes at least every
/// [`TURN_PERIOD`].
const TURN_LIMIT: Duration = Duration::from_secs(120);

/// The longest time between two turns of the leader.
pub const TURN_PERIOD: Duration = Duration::from_secs(30);

/// A kind of call, which determines its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A read or write of a Lease.
    Lease,
    /// A read.
    Read,
    /// A write.
    Write,
    /// An eviction.
    Eviction,
    /// The opening of a watch.
    Watch,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Lease, Self::Read, Self::Write, Self::Eviction, Self::Watch];

    fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        if query.split('&').any(|pair| pair.starts_with("watch=")) {
            Self::Watch
        } else if path.starts_with("/apis/coordination.k8s.io/") {
            Self::Lease
        } else if path.ends_with("/eviction") {
            Self::Eviction
        } else if request.method() == Method::GET {
            Self::Read
        } else {
            Self::Write
        }
    }

    /// Returns the kind as a fixed word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Read => "read",
            Self::Write => "write",
            Self::Eviction => "eviction",
            Self::Watch => "watch",
        }
    }

    const fn limit(self) -> Duration {
        Duration::from_secs(match self {
            // Short enough that a lost answer leaves time for another renewal before the lease is lost.
            Self::Lease => 3,
            Self::Read => 15,
            // Longer than the API server waits for an admission webhook (30 s), after which it may go on without it.
            Self::Write | Self::Watch => 35,
            // Longer than the API server takes for any request (60 s): behind webhooks it retries evictions by itself.
            Self::Eviction => 65,
        })
    }
}

/// A call without an answer in time. It may have been carried out all the same.
#[derive(Debug, thiserror::Error)]
#[error("no answer from the API server within {limit:?}: {method} {path}")]
pub struct NoAnswer {
    method: Method,
    path: String,
    limit: Duration,
}

/// A call or turn that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// A call is under way for longer than its deadline allows.
    Call(Kind, Duration),
    /// The leader has had no turn for this long.
    Turn(Duration),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(kind, age) => {
                write!(f, "a call to the API server ({}) has not ended for {} s", kind.as_str(), age.as_secs())
            }
            Self::Turn(age) => write!(f, "the leader has made no plan for {} s", age.as_secs()),
        }
    }
}

/// The age of the calls under way and of the leader's last turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// The oldest call of each kind.
    pub calls: BTreeMap<Kind, Duration>,
    /// The time since the leader's last turn; `None` while this process does not lead.
    pub turn: Option<Duration>,
}

impl Ages {
    /// Returns what is stuck, if anything is.
    pub fn stuck(&self) -> Option<Stuck> {
        let late = |(kind, age): (&Kind, &Duration)| (*age > kind.limit() + CALL_GRACE).then_some((*kind, *age));
        let call = self.calls.iter().find_map(late).map(|(kind, age)| Stuck::Call(kind, age));
        call.or_else(|| self.turn.filter(|age| *age > TURN_LIMIT).map(Stuck::Turn))
    }
}

#[derive(Default)]
struct State {
    number: u64,
    under_way: BTreeMap<u64, (Kind, Instant)>,
    turn: Option<Instant>,
}

/// The calls under way and the leader's last turn. Clones share them.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<State>>);

/// A call under way, until it is dropped.
struct UnderWay {
    calls: Calls,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.calls.lock().under_way.remove(&self.number);
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, kind: Kind) -> UnderWay {
        let mut state = self.lock();
        state.number += 1;
        let number = state.number;
        state.under_way.insert(number, (kind, Instant::now()));
        UnderWay { calls: self.clone(), number }
    }

    /// Records a turn of the leader, or with `None` that this process no longer leads.
    pub fn turned(&self, at: Option<Instant>) {
        self.lock().turn = at;
    }

    /// Returns the age of the calls under way.
    pub fn ages(&self, now: Instant) -> Ages {
        let state = self.lock();
        let mut calls = BTreeMap::new();
        for (kind, began) in state.under_way.values() {
            let age: &mut Duration = calls.entry(*kind).or_default();
            *age = (*age).max(now.saturating_duration_since(*began));
        }
        Ages { calls, turn: state.turn.map(|at| now.saturating_duration_since(at)) }
    }
}

/// Returns the frames of a watch until it ends, or has been silent for so long that its connection must be dead.
fn not_silent(watch: Body) -> impl Stream<Item = <BodyStream<Body> as Stream>::Item> + Send {
    futures::stream::unfold(BodyStream::new(watch), async |mut frames| {
        let frame = timeout(WATCH_SILENCE, frames.next()).await.ok()??;
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

    use super::*;

    type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

    fn client() -> (kube::Client, Calls, Metrics, Server) {
        let (service, server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (calls, metrics) = (Calls::default(), Metrics::new().unwrap());
        let client = limited(kube::Client::new(service, "default"), calls.clone(), metrics.clone());
        (client, calls, metrics, server)
    }

    #[tokio::test(start_paused = true)]
    async fn call_without_answer_ends_at_its_deadline() {
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
    async fn answer_that_does_not_end_counts_as_none() {
        let (client, _, _, mut server) = client();
        tokio::spawn(async move {
            let (_, reply) = server.next_request().await.unwrap();
            reply.send_response(endless(b"{").await);
        });
        let maps: Api<ConfigMap> = Api::namespaced(client, "n");
        assert!(matches!(maps.get("a").await, Err(kube::Error::Service(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn watch_ends_when_it_is_silent() {
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
        assert_eq!(began.elapsed().as_secs(), WATCH_SILENCE.as_secs());
    }

    #[test]
    fn call_or_turn_that_does_not_end_is_stuck() {
        let seconds = Duration::from_secs;
        let calls = |kind: Kind, age: u64| Ages { calls: [(kind, seconds(age))].into(), turn: Some(seconds(1)) };
        let turn = |age: Option<u64>| Ages { turn: age.map(seconds), ..Ages::default() };
        for (sentence, ages, stuck) in [
            ("nothing is under way", Ages::default(), None),
            ("a call within its deadline", calls(Kind::Eviction, 60), None),
            ("a call at its deadline, which is about to end", calls(Kind::Eviction, 70), None),
            (
                "a call that its deadline did not end",
                calls(Kind::Eviction, 96),
                Some(Stuck::Call(Kind::Eviction, seconds(96))),
            ),
            ("a shorter deadline", calls(Kind::Read, 96), Some(Stuck::Call(Kind::Read, seconds(96)))),
            ("a process that does not lead", turn(None), None),
            ("a leader at rest", turn(Some(31)), None),
            ("a leader whose turn does not end", turn(Some(121)), Some(Stuck::Turn(seconds(121)))),
        ] {
            assert_eq!(ages.stuck(), stuck, "{sentence}");
        }
    }
}
