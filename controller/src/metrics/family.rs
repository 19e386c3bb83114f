//! Registration of series under one prefix.

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const PREFIX: &str = "brupop_controller_";

/// From the time of an instant host to the longest reasonable drain, in seconds.
const BUCKETS: [f64; 13] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0];

/// From a turn over a few nodes to one that keeps the leader from its work, in seconds.
const TURN_BUCKETS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// A registry under the prefix.
#[derive(Default)]
pub(super) struct Register {
    pub(super) registry: Registry,
    #[cfg(test)]
    pub(super) collectors: Vec<Box<dyn Collector>>,
}

pub(super) type Labels = &'static [&'static str];
type Registered<C> = Result<C, prometheus::Error>;

impl Register {
    fn add<C: Collector + Clone + 'static>(
        &mut self,
        name: &str,
        help: &str,
        make: impl FnOnce(Opts) -> Registered<C>,
    ) -> Registered<C> {
        let collector = make(Opts::new(format!("{PREFIX}{name}"), help))?;
        self.registry.register(Box::new(collector.clone()))?;
        #[cfg(test)]
        self.collectors.push(Box::new(collector.clone()));
        Ok(collector)
    }

    pub(super) fn gauge(&mut self, name: &str, labels: Labels, help: &str) -> Registered<GaugeVec> {
        self.add(name, help, |options| GaugeVec::new(options, labels))
    }

    pub(super) fn counter(&mut self, name: &str, labels: Labels, help: &str) -> Registered<IntCounterVec> {
        self.add(name, help, |options| IntCounterVec::new(options, labels))
    }

    pub(super) fn histogram(&mut self, name: &str, labels: Labels, help: &str) -> Registered<HistogramVec> {
        self.histogram_of(name, labels, help, &BUCKETS)
    }

    /// Registers a histogram of the leader's turns.
    pub(super) fn turns(&mut self, name: &str, help: &str) -> Registered<HistogramVec> {
        self.histogram_of(name, &[], help, &TURN_BUCKETS)
    }

    fn histogram_of(&mut self, name: &str, labels: Labels, help: &str, buckets: &[f64]) -> Registered<HistogramVec> {
        self.add(name, help, |options| {
            HistogramVec::new(HistogramOpts::from(options).buckets(buckets.to_vec()), labels)
        })
    }
}
