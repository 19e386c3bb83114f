//! Metrics of the web API. Labels have fixed values only, so that no client can create series.

use std::marker::PhantomData;

use prometheus::core::Collector;
use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result, TextEncoder};
use strum::{IntoStaticStr, VariantArray};

use crate::agents::Agents;
use crate::refusal::Refusal;

/// Beginning of every name, but that of the build.
const PREFIX: &str = "brupop_apiserver_";

/// All metrics of one server.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    calls: IntCounterVec,
    pub(crate) refusals: CounterBy<Refusal>,
    pub(crate) token_reviews: CounterBy<ReviewResult>,
    pub(crate) status_writes: CounterBy<WriteResult>,
    pub(crate) key_fetches: CounterBy<FetchResult>,
    /// Tokens sent to a TokenReview unchecked, for lack of keys that can be used.
    pub(crate) unchecked_tokens: IntCounter,
    /// Open streams.
    pub(crate) streams: IntGauge,
    pub(crate) agents: Agents,
    /// Unknown fields of reports.
    pub(crate) dropped_fields: IntCounter,
    /// Streams not resumed here because this replica was behind.
    pub(crate) resumes_refused: IntCounter,
    /// Connections closed at once because their source had too many.
    pub(crate) connections_refused: IntCounter,
    pub(crate) malformed: IntCounter,
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

/// A counter for each value of its only label.
#[derive(Clone, Debug)]
pub(crate) struct CounterBy<L> {
    series: IntCounterVec,
    label: PhantomData<L>,
}

impl<L: VariantArray + Copy + Into<&'static str>> CounterBy<L> {
    fn new(registry: &Registry, name: &str, help: &str, label: &str) -> Result<Self> {
        let series = labelled(registry, name, help, &[label])?;
        begin(&series, L::VARIANTS.iter().map(|&value| [value.into()]));
        Ok(Self { series, label: PhantomData })
    }

    pub(crate) fn inc(&self, value: L) {
        self.series.with_label_values(&[value.into()]).inc();
    }
}

/// Begins series at 0: one that begins at 1 has not increased, as far as Prometheus can see.
fn begin<const N: usize>(series: &IntCounterVec, labels: impl Iterator<Item = [&'static str; N]>) {
    for values in labels {
        series.with_label_values(&values);
    }
}

fn register<M: Collector + Clone + 'static>(registry: &Registry, metric: Result<M>) -> Result<M> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn labelled(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
    register(registry, IntCounterVec::new(Opts::new(format!("{PREFIX}{name}"), help), labels))
}

fn calls(registry: &Registry) -> Result<IntCounterVec> {
    let help = "Calls to the API server, by how they ended.";
    let calls = labelled(registry, "calls_total", help, &["call", "result"])?;
    for call in Call::VARIANTS {
        begin(&calls, CallResult::VARIANTS.iter().map(|result| [call.into(), result.into()]));
    }
    Ok(calls)
}

/// Outcome of a TokenReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum ReviewResult {
    Authenticated,
    Refused,
    Error,
    /// Answered from the cache, without a TokenReview.
    Cached,
    /// Refused by the cluster's published keys, without a TokenReview.
    RefusedByKeys,
}

/// Outcome of a read of the cluster's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum FetchResult {
    Read,
    Error,
}

/// A call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Call {
    TokenReview,
    Keys,
    Read,
    Apply,
}

/// Outcome of a call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum CallResult {
    /// An answer, possibly a refusal.
    Answered,
    /// The deadline passed.
    TimedOut,
    /// No readable answer.
    Failed,
}

/// Outcome of the write of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum WriteResult {
    Applied,
    Unchanged,
    Stale,
    Invalid,
    Unknown,
    Error,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| register(&registry, IntCounter::new(format!("{PREFIX}{name}"), help));
        let gauge = |name: &str, help: &str| register(&registry, IntGauge::new(format!("{PREFIX}{name}"), help));
        ports::process::register(&registry, models::names::APISERVER)?;
        Ok(Self {
            requests: labelled(&registry, "requests_total", "Requests by route and status code.", &["route", "code"])?,
            calls: calls(&registry)?,
            refusals: CounterBy::new(&registry, "refusals_total", "Requests refused, by reason.", "reason")?,
            token_reviews: CounterBy::new(
                &registry,
                "token_reviews_total",
                "Tokens checked, by result; cached ones and those refused by the keys cost no TokenReview.",
                "result",
            )?,
            status_writes: CounterBy::new(&registry, "status_writes_total", "Reports of agents, by result.", "result")?,
            key_fetches: CounterBy::new(
                &registry,
                "key_fetches_total",
                "Attempts to read the cluster's public keys, by result.",
                "result",
            )?,
            unchecked_tokens: counter(
                "unchecked_tokens_total",
                "Tokens that went to a TokenReview without a check of their signature: the cluster's keys could not be read, or not be used.",
            )?,
            streams: gauge("streams", "Streams that are open.")?,
            agents: Agents::new(
                register(
                    &registry,
                    IntGaugeVec::new(
                        Opts::new(format!("{PREFIX}agents"), "Agents with an open stream, by their version."),
                        &["version"],
                    ),
                )?,
                gauge(
                    "agent_resident_bytes",
                    "Largest resident memory of an agent with an open stream, when that was opened.",
                )?,
                gauge(
                    "agent_start_time_seconds",
                    "Latest start of an agent with an open stream, in seconds since 1970.",
                )?,
            ),
            dropped_fields: counter("dropped_fields_total", "Fields of reports that this version does not know.")?,
            resumes_refused: counter(
                "resumes_refused_total",
                "Streams that were not resumed here because this replica was behind what the agent had seen.",
            )?,
            malformed: counter(
                "malformed_requests_total",
                "Connections that were closed since what was sent on them is not HTTP.",
            )?,
            connections_refused: counter(
                "connections_refused_total",
                "Connections that were closed at once because their source had many.",
            )?,
            watch_errors: counter("shadow_watch_errors_total", "Interruptions of the watch on shadows.")?,
            unreadable_shadows: counter(
                "unreadable_shadows_total",
                "Shadows that came over the watch and could not be read.",
            )?,
            certificate: gauge("certificate_present", "1 if there is a certificate to serve with.")?,
            certificate_expiry: gauge(
                "certificate_expiry_timestamp_seconds",
                "When the certificate in service ends, in seconds since 1970.",
            )?,
            certificate_swaps: counter("certificate_swaps_total", "Certificates that were put into service.")?,
            registry,
        })
    }

    pub(crate) fn request(&self, route: &str, code: &str) {
        self.requests.with_label_values(&[route, code]).inc();
    }

    pub(crate) fn call(&self, call: Call, result: CallResult) {
        let labels: [&str; 2] = [call.into(), result.into()];
        self.calls.with_label_values(&labels).inc();
    }

    /// Returns all metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> Result<Vec<u8>> {
        self.agents.measure();
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns all values of a label.
    fn values<L: VariantArray + Copy + Into<&'static str>>() -> Vec<&'static str> {
        L::VARIANTS.iter().map(|&value| value.into()).collect()
    }

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
        let known: BTreeSet<String> = values::<Refusal>().into_iter().map(str::to_owned).collect();
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
            requests,
            refusals,
            token_reviews,
            status_writes,
            key_fetches,
            calls,
            unchecked_tokens,
            streams,
            agents,
            dropped_fields,
            resumes_refused,
            connections_refused,
            malformed,
            watch_errors,
            unreadable_shadows,
            certificate,
            certificate_expiry,
            certificate_swaps,
        } = Metrics::new().unwrap();
        let all: [(&dyn Collector, Vec<&str>); 20] = [
            (&requests, vec![]),
            (&refusals.series, vec![]),
            (&token_reviews.series, values::<ReviewResult>()),
            (&status_writes.series, values::<WriteResult>()),
            (&calls, [values::<Call>(), values::<CallResult>()].concat()),
            (&key_fetches.series, values::<FetchResult>()),
            (&unchecked_tokens, vec![]),
            (&streams, vec![]),
            (&agents.count, vec![]),
            (&agents.resident, vec![]),
            (&agents.started, vec![]),
            (&dropped_fields, vec![]),
            (&resumes_refused, vec![]),
            (&connections_refused, vec![]),
            (&malformed, vec![]),
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
