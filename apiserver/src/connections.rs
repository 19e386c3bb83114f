//! How many connections a source may have, from the moment that they are accepted. Each costs memory before it has said who it
//! is: a handshake that may never come, and up to 128 KiB of a head that never ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use actix_service::{ServiceFactory, apply_fn_factory};
use actix_web::rt::net::TcpStream;
use prometheus::IntCounter;

use crate::limit::{Source, Sources};

/// Counts the connections of each source.
pub(crate) struct Connections {
    sources: Sources,
    /// The most that one may have; none for no limit.
    most: Option<usize>,
    refused: IntCounter,
    open: Mutex<HashMap<Source, usize>>,
}

/// A connection. It counts for as long as this lives.
struct Counted {
    connections: Arc<Connections>,
    source: Source,
}

impl Connections {
    /// With 0 for no limit.
    pub(crate) fn new(sources: Sources, most: usize, refused: IntCounter) -> Arc<Self> {
        Arc::new(Self { sources, most: (most > 0).then_some(most), refused, open: Mutex::default() })
    }

    /// A service that closes connections of a source which has many already, before any TLS is spoken, and serves the others.
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
            async move {
                let result = match ends {
                    Some(ends) => ends.await,
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
    fn a_source_has_so_many_connections_and_another_its_own() {
        let sources = Sources { ipv6_prefix: 128 };
        let source = |text: &str| sources.of(text.parse::<IpAddr>().unwrap());
        let counter = || IntCounter::new("c", "c").unwrap();
        let connections = Connections::new(sources, 2, counter());
        let (first, second) = (connections.enter(source("10.0.0.1")), connections.enter(source("10.0.0.1")));
        assert!(first.is_some() && second.is_some());
        assert!(connections.enter(source("10.0.0.1")).is_none());
        assert!(connections.enter(source("10.0.0.2")).is_some());
        assert_eq!(connections.refused.get(), 1);
        drop(first);
        assert!(connections.enter(source("10.0.0.1")).is_some(), "one has ended");
        drop(second);
        assert!(connections.open.lock().unwrap().is_empty());

        let unlimited = Connections::new(sources, 0, counter());
        let many: Vec<_> = (0..100).map(|_| unlimited.enter(source("10.0.0.1"))).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
