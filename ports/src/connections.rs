//! Limits on the connections of a source, from the moment that they are accepted, and on the age of one that is no
//! agent's. Each costs memory before it is authenticated: a handshake that may never come, and up to 128 KiB of a head
//! that never ends. What is not HTTP is logged here, once a minute for each source: before it is a request, no other part sees it.
//!
//! The HTTP library limits the time of the first head of a connection alone. It answers a request before all of the body has
//! come, and then keeps even a connection that the answer ends until it has; nor does it limit how long a client reads.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix_http::error::ParseError;
use actix_service::{ServiceFactory, apply_fn_factory};
use actix_web::rt::net::TcpStream;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::time::{Instant, sleep};

use crate::limit::{Allowance, Limiter, Source, Sources};

/// Rate limit of log lines about what is not HTTP, for one source. What is left out is counted.
const MALFORMED: Allowance = Allowance { burst: 1, every: Duration::from_mins(1) };

tokio::task_local! {
    /// True once an agent was authenticated on a connection. The task that serves it serves all of its requests.
    static AUTHENTICATED: Rc<Cell<bool>>;
}

/// Marks the connection being served as an agent's.
pub fn mark_authenticated() {
    // Elsewhere there is no connection that could end.
    let _ = AUTHENTICATED.try_with(|authenticated| authenticated.set(true));
}

/// Counts the connections of each source.
pub struct Connections {
    sources: Sources,
    /// Maximum for one source; `None` for no limit.
    most: Option<usize>,
    /// Maximum age of a connection without an authenticated agent, whatever is sent on it or read of it.
    unauthenticated_limit: Duration,
    refused: IntCounter,
    malformed: IntCounter,
    log_lines: Limiter<Source>,
    omitted: AtomicU64,
    open: Mutex<HashMap<Source, usize>>,
}

/// A connection. It counts for as long as this lives.
struct Counted {
    connections: Arc<Connections>,
    source: Source,
}

impl Connections {
    /// Creates the limits; 0 in `most` for none.
    pub fn new(
        sources: Sources,
        most: usize,
        unauthenticated_limit: Duration,
        (refused, malformed): (IntCounter, IntCounter),
    ) -> Arc<Self> {
        Arc::new(Self {
            sources,
            most: (most > 0).then_some(most),
            unauthenticated_limit,
            refused,
            malformed,
            log_lines: Limiter::new(MALFORMED),
            omitted: AtomicU64::new(0),
            open: Mutex::default(),
        })
    }

    /// Wraps a service: closes connections of a source that has too many, before any TLS, and serves the others.
    /// `malformed` returns the error of a connection on which no HTTP was sent.
    pub fn limit<S>(
        self: Arc<Self>,
        served: S,
        malformed: fn(&S::Error) -> Option<&ParseError>,
    ) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = S::Error, InitError = S::InitError>
    where
        S: ServiceFactory<TcpStream, Config = (), Response = ()>,
    {
        apply_fn_factory(served, move |connection: TcpStream, served: &S::Service| {
            let peer = connection.peer_addr().ok();
            let counted = peer.and_then(|peer| self.enter(self.sources.of(peer.ip())));
            let ends = counted.is_some().then(|| actix_service::Service::call(served, connection));
            let limit = self.unauthenticated_limit;
            let connections = Arc::clone(&self);
            async move {
                let result = match ends {
                    Some(ends) => bounded(ends, limit).await,
                    None => Ok(()),
                };
                drop(counted);
                if let (Some(peer), Err(error)) = (peer, &result)
                    && let Some(error) = malformed(error)
                    && let Some(omitted) =
                        connections.count_malformed(connections.sources.of(peer.ip()), Instant::now())
                {
                    let (peer, omitted) = (peer.ip(), Some(omitted).filter(|&count| count > 0));
                    tracing::info!(target: "access", %peer, %error, omitted, "malformed request");
                }
                result
            }
        })
    }

    /// Counts a connection on which no HTTP was sent. Returns how many were left out of the log since the last line, if this one
    /// gets a line.
    fn count_malformed(&self, source: Source, now: Instant) -> Option<u64> {
        self.malformed.inc();
        if self.log_lines.take(source, now).is_err() {
            self.omitted.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.omitted.swap(0, Ordering::Relaxed))
    }

    fn enter(self: &Arc<Self>, source: Source) -> Option<Counted> {
        let mut open = self.open.lock();
        let count = open.entry(source).or_default();
        if self.most.is_some_and(|most| *count >= most) {
            self.refused.inc();
            return None;
        }
        *count += 1;
        Some(Counted { connections: Arc::clone(self), source })
    }
}

/// Serves a connection to its end, or for `limit` if no agent is authenticated on it.
async fn bounded<E>(ends: impl Future<Output = Result<(), E>>, limit: Duration) -> Result<(), E> {
    let authenticated = Rc::new(Cell::new(false));
    let too_long = async {
        sleep(limit).await;
        if authenticated.get() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        result = AUTHENTICATED.scope(Rc::clone(&authenticated), ends) => result,
        () = too_long => Ok(()),
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        if let Some(count) = open.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn connection_limit_applies_per_source() {
        let sources = Sources { ipv6_prefix: 128 };
        let source = |text: &str| sources.of(text.parse::<IpAddr>().unwrap());
        let counter = || IntCounter::new("c", "c").unwrap();
        let connections = Connections::new(sources, 2, Duration::MAX, (counter(), counter()));
        let (first, second) = (connections.enter(source("10.0.0.1")), connections.enter(source("10.0.0.1")));
        assert!(first.is_some() && second.is_some());
        assert!(connections.enter(source("10.0.0.1")).is_none());
        assert!(connections.enter(source("10.0.0.2")).is_some());
        assert_eq!(connections.refused.get(), 1);
        drop(first);
        assert!(connections.enter(source("10.0.0.1")).is_some(), "one has ended");
        drop(second);
        assert!(connections.open.lock().is_empty());

        let unlimited = Connections::new(sources, 0, Duration::MAX, (counter(), counter()));
        let many: Vec<_> = (0..100).map(|_| unlimited.enter(source("10.0.0.1"))).collect();
        assert!(many.iter().all(Option::is_some));
    }

    #[test]
    fn what_is_not_http_has_one_log_line_a_minute_for_each_source() {
        let sources = Sources { ipv6_prefix: 128 };
        let counter = || IntCounter::new("c", "c").unwrap();
        let connections = Connections::new(sources, 0, Duration::MAX, (counter(), counter()));
        let begun = Instant::now();
        let count = |source: &str, second| {
            let source = sources.of(source.parse::<IpAddr>().unwrap());
            connections.count_malformed(source, begun + Duration::from_secs(second))
        };
        assert_eq!(count("10.0.0.1", 0), Some(0));
        assert_eq!([1, 2, 59].map(|second| count("10.0.0.1", second)), [None; 3]);
        assert_eq!(count("10.0.0.2", 59), Some(3), "another source, with those that were left out before");
        assert_eq!(count("10.0.0.1", 60), Some(0));
        assert_eq!(connections.malformed.get(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_times_out_unless_agent_authenticates() {
        let limit = Duration::from_secs(60);
        let lives = async |ends: &mut dyn FnMut()| {
            let served = async {
                ends();
                pending::<Result<(), ()>>().await
            };
            tokio::time::timeout(Duration::from_secs(86_400), bounded(served, limit)).await.is_err()
        };
        assert!(!lives(&mut || ()).await, "an unauthenticated client's");
        assert!(lives(&mut mark_authenticated).await, "an agent's");
        assert!(!lives(&mut || ()).await, "each is judged by itself");
        assert_eq!(bounded(async { Err("broken") }, limit).await, Err("broken"));
    }
}
