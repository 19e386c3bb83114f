//! The metrics for Prometheus: every series of `docs/metrics.md`.
//!
//! A pure observer: it receives plans and writes, and nothing depends on it. Every label takes fixed words, or versions
//! of a bounded set, so that neither the fleet's size nor a false report of a host creates series.

mod bounded;
mod family;
mod gauges;
mod process;
mod signals;
mod snapshot;
#[cfg(test)]
mod tests;
mod values;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::reason::{ENDS, End, FailureReason};
use models::shadow::{ControllerStatus, Mode, Progress, Step};
use models::time::between;
use parking_lot::Mutex;
use prometheus::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, Registry};
use semver::Version;
use strum::{IntoStaticStr, VariantArray};

use crate::calls::{Ages, Kind};
use bounded::Bounded;
use family::Register;
use gauges::Gauges;
use planner::view::{Answer, ShadowFacts};
use values::{ALONE, flag, float, seconds};
use waiting::Waiting;

pub use process::about_process;
pub use snapshot::{NodeState, Snapshot, TlsSnapshot, Waits};

/// The step of a node without an attempt.
const IDLE: &str = "Idle";

const UNKNOWN: &str = "unknown";

/// Operations, as in `rejected_writes_total`.
const KINDS: [&str; 16] = [
    "shadow_create",
    "shadow_spec",
    "shadow_status",
    "shadow_delete",
    "operator_status",
    "node_claim",
    "node_release",
    "node_leftover",
    "node_label",
    "node_lease",
    "node_get",
    "pod_list",
    "budget_list",
    "policy_revision",
    "replica_set",
    "other",
];

/// The kinds of answers to expressions.
const ANSWERS: [&str; 3] = ["Quiet", "Firing", "Failed"];

/// Help of the counters of the plain port.
const REFUSED: &str = "Connections to the plain port that were closed at once because their source had many";
const MALFORMED: &str = "Connections to the plain port that were closed since what was sent on them is not HTTP";

/// Help of the counter of watches.
const WATCH_ERRORS: &str = "Failures of watches of the API server, each of which is retried";

/// The expected answers.
const CODES: [&str; 12] = ["200", "400", "401", "403", "404", "409", "422", "429", "500", "503", "504", "none"];

/// All series of the controller. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    memory: Arc<Mutex<Observations>>,
    leader: GaugeVec,
    served: GaugeVec,
    clock_offset: GaugeVec,
    fleet: Gauges,
    transitions: IntCounterVec,
    updates: IntCounterVec,
    step_duration: HistogramVec,
    drain_duration: HistogramVec,
    rejected: IntCounterVec,
    findings: IntCounterVec,
    expressions: IntCounterVec,
    notices: IntCounterVec,
    no_answer: IntCounterVec,
    pub watch_errors: IntCounter,
    connections_refused: IntCounterVec,
    malformed: IntCounterVec,
    call_age: GaugeVec,
    turn_age: GaugeVec,
    turn_duration: HistogramVec,
    tls: Gauges,
    migration: Gauges,
    #[cfg(test)]
    collectors: Arc<Vec<Box<dyn prometheus::core::Collector>>>,
}

/// State between observations. Its lock is held while gauges are set, so that no scrape sees them half set.
#[derive(Default)]
struct Observations {
    leading: bool,
    waits: BTreeMap<String, Waiting>,
    versions: Bounded<Version>,
    moves: Bounded<(Option<Version>, Version)>,
    receivers: Bounded<String>,
}

impl Observations {
    /// Returns the labels of a move from one version to another.
    fn label_move(&mut self, from: Option<&Version>, to: &Version) -> (String, String) {
        let text = |version: &Version| version.to_string();
        let key = (from.cloned(), to.clone());
        let from = self.moves.admit(&key, |(from, _)| from.as_ref().map_or_else(|| UNKNOWN.to_owned(), text));
        let to = self.moves.admit(&key, |(_, to)| text(to));
        (from, to)
    }
}

impl Metrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let mut register = Register::default();
        let metrics = Self {
            leader: register.gauge("leader", &[], "1 if this replica is the leader, 0 if it is a standby")?,
            served: register.gauge(
                "resource_served",
                &["resource"],
                "1 if the API server serves this custom resource in the version that this program uses",
            )?,
            clock_offset: register.gauge(
                "clock_offset_seconds",
                &[],
                "Time by which the API server's clock is ahead of this process's; negative if behind",
            )?,
            fleet: Gauges::register(&mut register, &gauges::FLEET)?,
            transitions: register.counter(
                "transitions_total",
                &["from", "to"],
                "Changes of the step of a node's update; Idle is a node without one",
            )?,
            updates: register.counter(
                "updates_total",
                &["from_version", "to_version", "result"],
                "Attempts that ended, by their versions and their result: Updated, or the reason of the failure",
            )?,
            step_duration: register.histogram("step_duration_seconds", &["step"], "Duration of steps of updates, whatever their result")?,
            drain_duration: register.histogram(
                "drain_duration_seconds",
                &[],
                "Duration of drains that ended with all pods gone",
            )?,
            rejected: register.counter(
                "rejected_writes_total",
                &["kind", "code"],
                "Actions that failed, by the attempted action and the code of the API server's response; 409: another client wrote first",
            )?,
            findings: register.counter(
                "lint_findings_total",
                &["property"],
                "Plans that violated a safety property and were reduced; any value other than zero is a bug",
            )?,
            expressions: register.counter(
                "expressions_total",
                &["result"],
                "Prometheus queries and checks of objects by result: Quiet (empty; true), Firing (not empty; false), Failed (no result)",
            )?,
            notices: register.counter(
                "notices_total",
                &["receiver", "result"],
                "Notices by receiver: Sent, Failed (attempts without success), Dropped (given up)",
            )?,
            no_answer: register.counter(
                "calls_without_answer_total",
                &["kind"],
                "Calls to the API server that had no response by their deadline",
            )?,
            watch_errors: register.counter("watch_errors_total", &[], WATCH_ERRORS)?.with_label_values(&ALONE),
            connections_refused: register.counter("connections_refused_total", &[], REFUSED)?,
            malformed: register.counter("malformed_requests_total", &[], MALFORMED)?,
            call_age: register.gauge(
                "call_age_seconds",
                &["kind"],
                "Time for which the oldest call to the API server has been under way; 0 if there is none",
            )?,
            turn_age: register.gauge(
                "turn_age_seconds",
                &[],
                "Time since the leader made its last plan, or began to lead; it makes one at least every 30 s",
            )?,
            turn_duration: register.turns("turn_duration_seconds", "Duration of the leader's turns: view, plan and its check")?,
            tls: Gauges::register(&mut register, &gauges::TLS)?,
            migration: Gauges::register(&mut register, &gauges::MIGRATION)?,
            memory: Arc::default(),
            #[cfg(test)]
            collectors: Arc::new(register.collectors),
            registry: register.registry,
        };
        metrics.begin_at_zero();
        Ok(metrics)
    }

    /// Exports the series whose labels are known. A counter that begins at 1 has not increased, as far as Prometheus
    /// can see.
    fn begin_at_zero(&self) {
        self.leader.with_label_values(&ALONE).set(0.0);
        let _ = self.of_connections();
        for property in planner::lint::PROPERTIES {
            self.findings.with_label_values(&[property]);
        }
        for &kind in Kind::VARIANTS {
            self.no_answer.with_label_values(&[kind.as_str()]);
        }
        for result in ANSWERS {
            self.expressions.with_label_values(&[result]);
        }
        for (kind, code) in KINDS.into_iter().flat_map(|kind| CODES.map(|code| (kind, code))) {
            self.rejected.with_label_values(&[kind, code]);
        }
        let steps = || std::iter::once(None).chain(Step::ALL.iter().copied().map(Some));
        for (from, to) in steps().flat_map(|from| steps().map(move |to| (from, to))).filter(|(from, to)| from != to) {
            self.transitions.with_label_values(&[step_label(from), step_label(to)]);
        }
    }

    /// Returns all series in Prometheus' text format.
    pub fn text(&self) -> String {
        let families = {
            let _alone = self.memory.lock();
            self.registry.gather()
        };
        let mut out = String::new();
        if let Err(error) = prometheus::TextEncoder::new().encode_utf8(&families, &mut out) {
            tracing::error!(error = &error as &dyn std::error::Error, "metrics cannot be written down");
        }
        out
    }

    /// Sets the leadership of this process. A replica that does not lead exports nothing about the fleet.
    pub fn lead(&self, leads: bool) {
        let mut memory = self.memory.lock();
        memory.leading = leads;
        self.leader.with_label_values(&ALONE).set(flag(leads));
        if !leads {
            memory.waits.clear();
            self.fleet.reset();
            self.tls.reset();
            self.migration.reset();
            self.clock_offset.reset();
        }
    }

    /// Sets the state of a custom resource: served or not.
    pub fn served(&self, resource: &str, served: bool) {
        self.served.with_label_values(&[resource]).set(flag(served));
    }

    /// Sets the lead of the API server's clock.
    pub fn clock_offset(&self, ahead: SignedDuration) {
        let memory = self.memory.lock();
        if memory.leading {
            self.clock_offset.with_label_values(&ALONE).set(ahead.as_secs_f64());
        }
    }

    /// Sets the state of keys and certificates.
    pub fn tls(&self, snapshot: &TlsSnapshot) {
        let memory = self.memory.lock();
        if !memory.leading {
            return;
        }
        let TlsSnapshot { authority, serving, certificates, signing_key, problem } = snapshot;
        self.tls.reset();
        for (certificate, until) in [("authority", authority), ("serving", serving)] {
            if let Some(until) = until {
                self.tls.add("certificate_expiry_timestamp_seconds", &[certificate], seconds(*until));
            }
        }
        for (of, phase) in [("certificates", certificates), ("signing_key", signing_key)] {
            self.tls.add("rotation", &[of, phase], 1.0);
        }
        self.tls.add("certificates_degraded", &ALONE, flag(*problem));
    }

    /// Sets the state of the migration of stored shadows, and the number that is left if it is known.
    pub fn migration(&self, state: &'static str, left: Option<usize>) {
        let memory = self.memory.lock();
        if !memory.leading {
            return;
        }
        self.migration.reset();
        self.migration.add("storage_migration", &[state], 1.0);
        if let Some(left) = left {
            self.migration.add("storage_migration_objects_left", &ALONE, float(left));
        }
    }

    /// Sets the state of the fleet and of its plan.
    pub fn observe(&self, snapshot: &Snapshot<'_>) {
        let mut memory = self.memory.lock();
        if !memory.leading {
            return;
        }
        let Snapshot { now, nodes, samples } = snapshot;
        self.fleet.reset();
        for (name, label, value) in samples {
            if let Some(value) = value {
                self.fleet.add(name, label.as_slice(), *value);
            }
        }
        self.count_nodes(&mut memory, nodes);
        self.count_waits(&mut memory, nodes, *now);
    }

    /// Creates the series of all possible results of an attempt in advance: an increase from nothing is none.
    fn expect_results(&self, memory: &mut Observations, from: Option<&Version>, version: &Version) {
        let (from, to) = memory.label_move(from, version);
        for end in ENDS.iter().filter(|end| !end.is_of_drills()) {
            self.updates.with_label_values(&[from.as_str(), to.as_str(), end.reason]);
        }
    }

    fn count_nodes(&self, memory: &mut Observations, nodes: &[NodeState<'_>]) {
        let mut counts: BTreeMap<(Option<Step>, Option<&Version>), usize> = BTreeMap::new();
        for node in nodes {
            *counts.entry((node.step, node.version.as_deref())).or_default() += 1;
        }
        // Also of attempts that another leader began.
        let moves: BTreeSet<_> = nodes.iter().filter_map(|node| node.attempt).collect();
        for (from, version) in moves {
            self.expect_results(memory, from, version);
        }
        memory.versions.retain(|version| counts.keys().any(|(_, v)| *v == Some(version)));
        for ((step, version), count) in counts {
            let version = version.map_or_else(|| UNKNOWN.to_owned(), |v| memory.versions.admit(v, Version::to_string));
            self.fleet.add("nodes", &[step_label(step), &version], float(count));
        }
    }

    fn count_waits(&self, memory: &mut Observations, nodes: &[NodeState<'_>], now: Timestamp) {
        let mut before = std::mem::take(&mut memory.waits);
        let mut reasons: BTreeMap<&'static str, (usize, Timestamp)> = BTreeMap::new();
        for node in nodes {
            let old = before.remove(node.name).filter(|old| old.step == node.step && !old.is_over(node));
            let waiting = match (node.waits, old) {
                (Waits::For(reason), Some(old)) if old.reason == reason => old,
                (Waits::For(reason), old) => Waiting::after(old, reason, node, now),
                (Waits::Acting, Some(old)) => old,
                (Waits::Acting | Waits::Not, _) => continue,
            };
            let (count, since) = reasons.entry(waiting.reason).or_insert((0, now));
            *count += 1;
            *since = (*since).min(waiting.since);
            memory.waits.insert(node.name.to_owned(), waiting);
        }
        for (reason, (count, since)) in reasons {
            self.fleet.add("nodes_waiting", &[reason], float(count));
            self.fleet.add("waiting_since_timestamp_seconds", &[reason], seconds(since));
        }
    }

    /// Counts a write of the controller status of a shadow: the one before, and the one since `now`.
    pub fn wrote(&self, before: &ShadowFacts, after: &ControllerStatus, now: Timestamp) {
        let before = &before.status.controller;
        let (was, is) = (before.progress.as_ref(), after.report.progress.as_ref());
        let step = |progress: Option<&Progress>| progress.map(|p| p.step);
        if is.or(was).is_some_and(|progress| progress.mode() != Mode::Update) {
            // Neither a drill nor a verification is an update.
            return;
        }
        if step(was) != step(is) {
            self.transitions.with_label_values(&[step_label(step(was)), step_label(step(is))]).inc();
            if let (None, Some(begun)) = (was, is) {
                self.expect_results(&mut self.memory.lock(), begun.from.as_ref(), &begun.version);
            }
            if let Some(was) = was {
                // A verification whose soak was restarted counts once.
                let began = was.verifying_since.filter(|_| was.step == Step::Verifying).unwrap_or(was.since);
                let took = between(began, now).as_secs_f64();
                self.step_duration.with_label_values(&[was.step.as_str()]).observe(took);
                if was.step == Step::Draining && step(is) == Some(Step::Rebooting) {
                    self.drain_duration.with_label_values(&ALONE).observe(took);
                }
            }
        }
        let last = |record: Option<&models::shadow::Record>| record.and_then(|r| r.last.clone());
        let ended = last(after.report.record.as_ref());
        if ended != last(before.record.as_ref())
            && let Some(ended) = ended
        {
            let (from, to) = self.memory.lock().label_move(ended.from.as_ref(), &ended.version);
            self.updates.with_label_values(&[from.as_str(), to.as_str(), result(&ended.reason)]).inc();
        }
    }

    /// Counts an action that failed: the operation, and the code of the API server's answer if there was one.
    pub fn rejected(&self, kind: &'static str, code: Option<u16>) {
        let code = match code {
            Some(code @ (200 | 400..=599)) => code.to_string(),
            Some(_) => "other".to_owned(),
            None => "none".to_owned(),
        };
        self.rejected.with_label_values(&[kind, code.as_str()]).inc();
    }

    /// Counts a call that had no answer by its deadline.
    pub fn no_answer(&self, kind: Kind) {
        self.no_answer.with_label_values(&[kind.as_str()]).inc();
    }

    /// Returns the counters of the plain port: of connections that are refused, and of malformed requests.
    pub fn of_connections(&self) -> (IntCounter, IntCounter) {
        (self.connections_refused.with_label_values(&ALONE), self.malformed.with_label_values(&ALONE))
    }

    /// Sets the age of the calls under way.
    pub fn ages(&self, ages: &Ages) {
        let _alone = self.memory.lock();
        for &kind in Kind::VARIANTS {
            let age = ages.calls.get(&kind).map_or(0.0, Duration::as_secs_f64);
            self.call_age.with_label_values(&[kind.as_str()]).set(age);
        }
        self.turn_age.reset();
        if let Some(age) = ages.plan {
            self.turn_age.with_label_values(&ALONE).set(age.as_secs_f64());
        }
    }

    pub fn turned(&self, took: Duration) {
        self.turn_duration.with_label_values(&ALONE).observe(took.as_secs_f64());
    }

    /// Counts a plan that broke a safety property.
    pub fn finding(&self, property: &'static str) {
        self.findings.with_label_values(&[property]).inc();
    }

    /// Adds a receiver of notices, whose counters begin at zero.
    pub fn expect_notices(&self, receiver: &str) {
        for &result in NoticeResult::VARIANTS {
            self.notices(receiver, result, 0);
        }
    }

    /// Counts so many results about notices to a receiver.
    pub fn notices(&self, receiver: &str, result: NoticeResult, count: u64) {
        let receiver = self.memory.lock().receivers.admit(&receiver.to_owned(), Clone::clone);
        self.notices.with_label_values(&[receiver.as_str(), result.into()]).inc_by(count);
    }

    pub fn expression(&self, answer: &Answer) {
        self.expressions.with_label_values(&[answer_kind(answer)]).inc();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
pub enum NoticeResult {
    Sent,
    Failed,
    Dropped,
}

pub(crate) const fn answer_kind(answer: &Answer) -> &'static str {
    match answer {
        Answer::Quiet { .. } => "Quiet",
        Answer::Firing { .. } => "Firing",
        Answer::Failed { .. } => "Failed",
    }
}

fn step_label(step: Option<Step>) -> &'static str {
    step.map_or(IDLE, Step::as_str)
}

/// Returns the word of a result. A resource can hold any word; a label cannot.
fn result(reason: &str) -> &'static str {
    End::of(reason).unwrap_or(FailureReason::Unknown.end()).reason
}
