//! How many connections a source may have. Each costs memory before it has said who it is: a handshake, and up to 128 KiB of a
//! head that never ends.

use std::any::Any;
use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use prometheus::IntCounter;
use socket2::SockRef;

use crate::limit::Source;

/// Counts the connections of each source.
pub(crate) struct Connections {
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
    pub(crate) fn new(most: usize, refused: IntCounter) -> Arc<Self> {
        Arc::new(Self { most: (most > 0).then_some(most), refused, open: Mutex::default() })
    }

    /// Counts a connection whose handshake is done, or closes it. The server ends what it reads nothing from.
    pub(crate) fn opened(self: &Arc<Self>, connection: &dyn Any, held: &mut Extensions) {
        let Some(stream) = connection.downcast_ref::<TlsStream<TcpStream>>() else { return };
        let tcp = stream.get_ref().0;
        let Ok(peer) = tcp.peer_addr() else { return };
        match self.enter(Source::from(peer.ip())) {
            // It is dropped with the connection.
            Some(counted) => drop(held.insert(counted)),
            None => {
                self.refused.inc();
                // One that is closed already is what is wanted.
                let _ = SockRef::from(tcp).shutdown(Shutdown::Both);
            }
        }
    }

    fn enter(self: &Arc<Self>, source: Source) -> Option<Counted> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(source).or_default();
        if self.most.is_some_and(|most| *count >= most) {
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
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        let counter = || IntCounter::new("c", "c").unwrap();
        let connections = Connections::new(2, counter());
        let (first, second) = (connections.enter(source("10.0.0.1")), connections.enter(source("10.0.0.1")));
        assert!(first.is_some() && second.is_some());
        assert!(connections.enter(source("10.0.0.1")).is_none());
        assert!(connections.enter(source("10.0.0.2")).is_some());
        drop(first);
        assert!(connections.enter(source("10.0.0.1")).is_some(), "one has ended");
        drop(second);
        assert!(connections.open.lock().unwrap().is_empty());

        let unlimited = Connections::new(0, counter());
        let many: Vec<_> = (0..100).map(|_| unlimited.enter(source("10.0.0.1"))).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
