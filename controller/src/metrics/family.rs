//! Registration of series: one prefix, and a list of all of them for the documentation.

use prometheus::core::Collector;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Prefix of every name.
const PREFIX: &str = "brupop_controller_";

/// From the time of an instant host to the longest reasonable drain, in seconds.
const BUCKETS: [f64; 13] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0];

/// From a turn over a few nodes to one that keeps the leader from its work, in seconds.
const TURN_BUCKETS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// The documented facts of a family of series.
#[cfg_attr(not(test), expect(dead_code, reason = "read by the test of docs/metrics.md"))]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

/// A registry that records its series.
#[derive(Default)]
pub(super) struct Register {
    pub(super) registry: Registry,
    pub(super) families: Vec<Family>,
}

pub(super) type Labels = &'static [&'static str];
type Registered<C> = Result<C, prometheus::Error>;

impl Register {
    fn add<C: Collector + Clone + 'static>(
        &mut self,
        (name, kind, labels, help): (&str, &'static str, Labels, &'static str),
        make: impl FnOnce(Opts) -> Registered<C>,
    ) -> Registered<C> {
        let name = format!("{PREFIX}{name}");
        self.families.push(Family { name: name.clone(), kind, labels, help });
        let collector = make(Opts::new(name, help))?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn gauge(&mut self, name: &str, labels: Labels, help: &'static str) -> Registered<GaugeVec> {
        self.add((name, "gauge", labels, help), |options| GaugeVec::new(options, labels))
    }

    pub(super) fn counter(&mut self, name: &str, labels: Labels, help: &'static str) -> Registered<IntCounterVec> {
        self.add((name, "counter", labels, help), |options| IntCounterVec::new(options, labels))
    }

    pub(super) fn histogram(&mut self, name: &str, labels: Labels, help: &'static str) -> Registered<HistogramVec> {
        self.histogram_of(name, labels, help, &BUCKETS)
    }

    /// Registers a histogram of the leader's turns.
    pub(super) fn turns(&mut self, name: &str, help: &'static str) -> Registered<HistogramVec> {
        self.histogram_of(name, &[], help, &TURN_BUCKETS)
    }

    fn histogram_of(
        &mut self,
        name: &str,
        labels: Labels,
        help: &'static str,
        buckets: &[f64],
    ) -> Registered<HistogramVec> {
        self.add((name, "histogram", labels, help), |options| {
            HistogramVec::new(HistogramOpts::from(options).buckets(buckets.to_vec()), labels)
        })
    }
}
