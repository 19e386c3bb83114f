//! Registration of series: one prefix, and a list of all of them for the documentation.

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Prefix of every name.
const PREFIX: &str = "brupop_controller_";

/// From the time of an instant host to the longest reasonable drain, in seconds.
const BUCKETS: [f64; 13] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0];

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

impl Register {
    fn note(&mut self, name: &str, kind: &'static str, labels: &'static [&'static str], help: &'static str) -> Opts {
        let name = format!("{PREFIX}{name}");
        self.families.push(Family { name: name.clone(), kind, labels, help });
        Opts::new(name, help)
    }

    pub(super) fn gauge(
        &mut self,
        name: &str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<GaugeVec, prometheus::Error> {
        let gauge = GaugeVec::new(self.note(name, "gauge", labels, help), labels)?;
        self.registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    pub(super) fn counter(
        &mut self,
        name: &str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<IntCounterVec, prometheus::Error> {
        let counter = IntCounterVec::new(self.note(name, "counter", labels, help), labels)?;
        self.registry.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::from(self.note(name, "histogram", labels, help)).buckets(BUCKETS.to_vec());
        let histogram = HistogramVec::new(options, labels)?;
        self.registry.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}
