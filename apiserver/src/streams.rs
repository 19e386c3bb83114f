//! The open streams: their number and their nodes. A node has one agent, and two while one takes over from the other,
//! so a third stream ends the oldest. That bounds the memory that a node's streams take.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::oneshot;

/// Maximum number of streams of a node.
const PER_NODE: usize = 2;

/// All open streams.
pub(crate) struct Streams {
    gauge: IntGauge,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_node: HashMap<String, VecDeque<(u64, oneshot::Sender<()>)>>,
}

/// An open stream. It counts for as long as this lives.
pub(crate) struct Place {
    streams: Arc<Streams>,
    node: String,
    number: u64,
    /// Resolved, or closed, when a newer stream takes the place of this one.
    pub(crate) displaced: oneshot::Receiver<()>,
}

impl Streams {
    pub(crate) fn new(gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self { gauge, open: Mutex::default() })
    }

    /// Returns the number of open streams.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.gauge.get()).unwrap_or_default()
    }

    /// Takes a place for another stream of a node.
    pub(crate) fn enter(self: &Arc<Self>, node: &str) -> Place {
        let (displace, displaced) = oneshot::channel();
        let mut open = self.open.lock();
        open.next += 1;
        let number = open.next;
        let of_node = open.by_node.entry(node.to_owned()).or_default();
        while of_node.len() >= PER_NODE {
            // Dropping its sender notifies it.
            of_node.pop_front();
        }
        of_node.push_back((number, displace));
        self.gauge.inc();
        Place { streams: Arc::clone(self), node: node.to_owned(), number, displaced }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.gauge.dec();
        let mut open = self.streams.open.lock();
        if let Some(of_node) = open.by_node.get_mut(&self.node) {
            of_node.retain(|(number, _)| *number != self.number);
            if of_node.is_empty() {
                open.by_node.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn third_stream_of_node_displaces_its_oldest_stream() {
        let streams = Streams::new(Metrics::new().unwrap().streams);
        let mut all: Vec<Place> = ["a", "a", "b", "a"].into_iter().map(|node| streams.enter(node)).collect();
        let displaced: Vec<bool> =
            all.iter_mut().map(|place| place.displaced.try_recv() == Err(TryRecvError::Closed)).collect();
        assert_eq!(displaced, [true, false, false, false]);
        assert_eq!(streams.count(), 4, "it counts until it has ended");
        all.clear();
        assert_eq!(streams.count(), 0);
        assert!(streams.open.lock().by_node.is_empty());
    }
}
