//! Limits on the connections of a source, from the moment that they are accepted, and on the age of one that is no
//! agent's. Each costs memory before it is authenticated: a handshake that may never come, and up to 128 KiB of a head
//! that never ends.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::pending;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_service::{ServiceFactory, apply_fn_factory};
use actix_web::rt::net::TcpStream;
use prometheus::IntCounter;
use tokio::time::sleep;

use crate::limit::{Source, Sources};

tokio::task_local! {
    /// True once an agent was authenticated on a connection. The task that serves it serves all of its requests.
    static AUTHENTICATED: Rc<Cell<bool>>;
}

/// Marks the connection being served as an agent's.
pub(crate) fn mark_authenticated() {
    // Elsewhere there is no connection that could end.
    let _ = AUTHENTICATED.try_with(|authenticated| authenticated.set(true));
}

/// Counts the connections of each source.
pub(crate) struct Connections {
    sources: Sources,
    /// Maximum for one source; `None` for no limit.
    most: Option<usize>,
    /// Maximum age of a connection without an authenticated agent, whatever is sent on it: the HTTP library limits only
    /// the first head of a connection, and no body.
    unauthenticated_limit: Duration,
    refused: IntCounter,
    open: Mutex<HashMap<Source, usize>>,
}

/// A connection. It counts for as long as this lives.
struct Counted {
    connections: Arc<Connections>,
    source: Source,
}

impl Connections {
    /// Creates the limits; 0 in `most` for none.
    pub(crate) fn new(
        sources: Sources,
        most: usize,
        unauthenticated_limit: Duration,
        refused: IntCounter,
    ) -> Arc<Self> {
        Arc::new(Self {
            sources,
            most: (most > 0).then_some(most),
            unauthenticated_limit,
            refused,
            open: Mutex::default(),
        })
    }

    /// Wraps a service: closes connections of a source that has too many, before any TLS, and serves the others.
    pub(crate) fn limit<S>(
        self: Arc<Self>,
        served: S,
    ) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = S::Error, InitError = S::InitError>
    where
        S: ServiceFactory<TcpStream, Config = (), Response = ()>,
    {
        apply_fn_factory(served, move |connection: TcpStream, served: &S::Service| {
            let peer = connection.peer_addr().ok();
            let counted = peer.and_then(|peer| self.enter(self.sources.of(peer.ip())));
            let ends = counted.is_some().then(|| actix_service::Service::call(served, connection));
            let limit = self.unauthenticated_limit;
            async move {
                let result = match ends {
                    Some(ends) => bounded(ends, limit).await,
                    None => Ok(()),
                };
                drop(counted);
                result
            }
        })
    }

    fn enter(self: &Arc<Self>, source: Source) -> Option<Counted> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
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
        let connections = Connections::new(sources, 2, Duration::MAX, counter());
        let (first, second) = (connections.enter(source("10.0.0.1")), connections.enter(source("10.0.0.1")));
        assert!(first.is_some() && second.is_some());
        assert!(connections.enter(source("10.0.0.1")).is_none());
        assert!(connections.enter(source("10.0.0.2")).is_some());
        assert_eq!(connections.refused.get(), 1);
        drop(first);
        assert!(connections.enter(source("10.0.0.1")).is_some(), "one has ended");
        drop(second);
        assert!(connections.open.lock().unwrap().is_empty());

        let unlimited = Connections::new(sources, 0, Duration::MAX, counter());
        let many: Vec<_> = (0..100).map(|_| unlimited.enter(source("10.0.0.1"))).collect();
        assert!(many.iter().all(Option::is_some));
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
