//! Metrics of the web API. Labels have fixed values only, so that no client can create series.

use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use crate::auth::Refusal;

/// All metrics of one server.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// Metrics of the process and its build.
    process: Registry,
    requests: IntCounterVec,
    refusals: IntCounterVec,
    token_reviews: IntCounterVec,
    status_writes: IntCounterVec,
    key_fetches: IntCounterVec,
    calls: IntCounterVec,
    /// Tokens sent to a TokenReview unchecked, for lack of keys.
    pub(crate) unchecked_tokens: IntCounter,
    /// Open streams.
    pub(crate) streams: IntGauge,
    /// Unknown fields of reports.
    pub(crate) dropped_fields: IntCounter,
    /// Streams not resumed here because this replica was behind.
    pub(crate) resumes_refused: IntCounter,
    /// Connections closed at once because their source had too many.
    pub(crate) connections_refused: IntCounter,
    /// Interruptions of the watch on shadows.
    pub(crate) watch_errors: IntCounter,
    /// Shadows from the watch that could not be read.
    pub(crate) unreadable_shadows: IntCounter,
    /// 1 if there is a certificate to serve with.
    pub(crate) certificate: IntGauge,
    /// Expiry of the serving certificate, in seconds since 1970.
    pub(crate) certificate_expiry: IntGauge,
    /// Certificates put into service.
    pub(crate) certificate_swaps: IntCounter,
}

/// Outcome of a TokenReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReviewResult {
    Authenticated,
    Refused,
    Error,
    /// Answered from the cache, without a TokenReview.
    Cached,
    /// Refused by the cluster's published keys, without a TokenReview.
    RefusedByKeys,
}

impl ReviewResult {
    const ALL: [Self; 5] = [Self::Authenticated, Self::Refused, Self::Error, Self::Cached, Self::RefusedByKeys];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Cached => "cached",
            Self::RefusedByKeys => "refused-by-keys",
        }
    }
}

/// Outcome of a read of the cluster's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchResult {
    Read,
    Error,
}

impl FetchResult {
    const ALL: [Self; 2] = [Self::Read, Self::Error];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Error => "error",
        }
    }
}

/// A call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    TokenReview,
    Keys,
    Read,
    Apply,
}

impl Call {
    pub(crate) const ALL: [Self; 4] = [Self::TokenReview, Self::Keys, Self::Read, Self::Apply];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::TokenReview => "token-review",
            Self::Keys => "keys",
            Self::Read => "read",
            Self::Apply => "apply",
        }
    }
}

/// Outcome of a call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// An answer, possibly a refusal.
    Answered,
    /// The deadline passed.
    TimedOut,
    /// No readable answer.
    Failed,
}

impl CallResult {
    const ALL: [Self; 3] = [Self::Answered, Self::TimedOut, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::TimedOut => "timed-out",
            Self::Failed => "failed",
        }
    }
}

/// Outcome of the write of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    Applied,
    Unchanged,
    Stale,
    Invalid,
    Unknown,
    Error,
}

impl WriteResult {
    const ALL: [Self; 6] = [Self::Applied, Self::Unchanged, Self::Stale, Self::Invalid, Self::Unknown, Self::Error];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Stale => "stale",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
            Self::Error => "error",
        }
    }
}

/// Returns the standard metrics of the process, and its build.
fn process() -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let build = IntGauge::with_opts(
        Opts::new("brupop_build_info", "The build that runs (1)")
            .const_label("program", models::names::APISERVER)
            .const_label("version", env!("CARGO_PKG_VERSION")),
    )?;
    build.set(1);
    registry.register(Box::new(build))?;
    Ok(registry)
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let vec = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let metrics = Self {
            requests: vec("brupop_apiserver_requests_total", "Requests by route and status code.", &["route", "code"])?,
            refusals: vec("brupop_apiserver_refusals_total", "Requests refused, by reason.", &["reason"])?,
            token_reviews: vec(
                "brupop_apiserver_token_reviews_total",
                "Tokens checked, by result; cached ones and those refused by the keys cost no TokenReview.",
                &["result"],
            )?,
            status_writes: vec("brupop_apiserver_status_writes_total", "Reports of agents, by result.", &["result"])?,
            key_fetches: vec(
                "brupop_apiserver_key_fetches_total",
                "Attempts to read the cluster's public keys, by result.",
                &["result"],
            )?,
            calls: vec(
                "brupop_apiserver_calls_total",
                "Calls to the API server, by how they ended.",
                &["call", "result"],
            )?,
            unchecked_tokens: counter(
                "brupop_apiserver_unchecked_tokens_total",
                "Tokens that went to a TokenReview without a check of their signature: the cluster's keys could not be read.",
            )?,
            streams: gauge("brupop_apiserver_streams", "Streams that are open.")?,
            dropped_fields: counter(
                "brupop_apiserver_dropped_fields_total",
                "Fields of reports that this version does not know.",
            )?,
            resumes_refused: counter(
                "brupop_apiserver_resumes_refused_total",
                "Streams that were not resumed here because this replica was behind what the agent had seen.",
            )?,
            connections_refused: counter(
                "brupop_apiserver_connections_refused_total",
                "Connections that were closed at once because their source had many.",
            )?,
            watch_errors: counter(
                "brupop_apiserver_shadow_watch_errors_total",
                "Interruptions of the watch on shadows.",
            )?,
            unreadable_shadows: counter(
                "brupop_apiserver_unreadable_shadows_total",
                "Shadows that came over the watch and could not be read.",
            )?,
            certificate: gauge("brupop_apiserver_certificate_present", "1 if there is a certificate to serve with.")?,
            certificate_expiry: gauge(
                "brupop_apiserver_certificate_expiry_timestamp_seconds",
                "When the certificate in service ends, in seconds since 1970.",
            )?,
            certificate_swaps: counter(
                "brupop_apiserver_certificate_swaps_total",
                "Certificates that were put into service.",
            )?,
            registry: registry.clone(),
            process: process()?,
        };
        metrics.begin();
        Ok(metrics)
    }

    /// Begins the series of all fixed labels at 0: one that begins at 1 has not increased, as far as Prometheus can see.
    fn begin(&self) {
        for refusal in Refusal::ALL {
            self.refusals.with_label_values(&[refusal.as_str()]);
        }
        for result in ReviewResult::ALL {
            self.token_reviews.with_label_values(&[result.as_str()]);
        }
        for result in WriteResult::ALL {
            self.status_writes.with_label_values(&[result.as_str()]);
        }
        for result in FetchResult::ALL {
            self.key_fetches.with_label_values(&[result.as_str()]);
        }
        for (call, result) in Call::ALL.into_iter().flat_map(|call| CallResult::ALL.map(|result| (call, result))) {
            self.calls.with_label_values(&[call.as_str(), result.as_str()]);
        }
    }

    pub(crate) fn request(&self, route: &str, code: &str) {
        self.requests.with_label_values(&[route, code]).inc();
    }

    pub(crate) fn refusal(&self, refusal: Refusal) {
        self.refusals.with_label_values(&[refusal.as_str()]).inc();
    }

    pub(crate) fn token_review(&self, result: ReviewResult) {
        self.token_reviews.with_label_values(&[result.as_str()]).inc();
    }

    pub(crate) fn status_write(&self, result: WriteResult) {
        self.status_writes.with_label_values(&[result.as_str()]).inc();
    }

    pub(crate) fn call(&self, call: Call, result: CallResult) {
        self.calls.with_label_values(&[call.as_str(), result.as_str()]).inc();
    }

    pub(crate) fn key_fetch(&self, result: FetchResult) {
        self.key_fetches.with_label_values(&[result.as_str()]).inc();
    }

    /// Returns all metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        TextEncoder::new().encode(&self.process.gather(), &mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus::core::Collector;

    use super::*;

    /// Returns the words of a cell that are code.
    fn words(cell: &str) -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_refusal_reason_is_documented() {
        let page = include_str!("../../docs/web-api.md");
        let (_, section) = page.split_once("### Why an agent is refused").unwrap();
        let rows = section.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
        let explained: BTreeSet<String> = rows.flat_map(|row| words(row.split('|').nth(1).unwrap())).collect();
        let known: BTreeSet<String> = Refusal::ALL.iter().map(|refusal| refusal.as_str().to_owned()).collect();
        assert_eq!(explained, known);
    }

    #[test]
    fn documented_metrics_match_registered_metrics() {
        let page = include_str!("../../docs/web-api.md");
        let mut documented = BTreeSet::new();
        for row in page.lines().filter(|line| line.starts_with("| `brupop_apiserver_")) {
            let [_, names, labels, _] = row.split('|').collect::<Vec<_>>()[..] else { panic!("two cells: {row}") };
            let (labels, values) = labels.split_once(':').unwrap_or((labels, ""));
            documented.extend(words(names).into_iter().map(|name| (name, words(labels), words(values))));
        }

        // Destructured, so that a new metric does not compile until it is added here.
        let Metrics {
            registry: _,
            process: _,
            requests,
            refusals,
            token_reviews,
            status_writes,
            key_fetches,
            calls,
            unchecked_tokens,
            streams,
            dropped_fields,
            resumes_refused,
            connections_refused,
            watch_errors,
            unreadable_shadows,
            certificate,
            certificate_expiry,
            certificate_swaps,
        } = Metrics::new().unwrap();
        let all: [(&dyn Collector, Vec<&str>); 16] = [
            (&requests, vec![]),
            (&refusals, vec![]),
            (&token_reviews, ReviewResult::ALL.map(ReviewResult::as_str).to_vec()),
            (&status_writes, WriteResult::ALL.map(WriteResult::as_str).to_vec()),
            (&calls, Call::ALL.map(Call::as_str).into_iter().chain(CallResult::ALL.map(CallResult::as_str)).collect()),
            (&key_fetches, FetchResult::ALL.map(FetchResult::as_str).to_vec()),
            (&unchecked_tokens, vec![]),
            (&streams, vec![]),
            (&dropped_fields, vec![]),
            (&resumes_refused, vec![]),
            (&connections_refused, vec![]),
            (&watch_errors, vec![]),
            (&unreadable_shadows, vec![]),
            (&certificate, vec![]),
            (&certificate_expiry, vec![]),
            (&certificate_swaps, vec![]),
        ];
        let registered = all.into_iter().map(|(metric, values)| {
            let desc = metric.desc()[0].clone();
            let labels = desc.variable_labels.into_iter().collect();
            (desc.fq_name, labels, values.into_iter().map(str::to_owned).collect())
        });
        assert_eq!(documented, registered.collect(), "metrics documented in docs/web-api.md, and registered ones");
    }
}
