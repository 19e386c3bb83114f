//! What Prometheus scrapes. Every label has a bounded set of values.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// All series of the controller.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Whether this replica leads.
    pub leader: IntGauge,
    /// Nodes that are, or are about to be, out of service because of us.
    pub slots: IntGauge,
    /// Whether failures have stopped the rollout.
    pub frozen: IntGauge,
    /// Nodes by the reason why they wait.
    pub waiting: IntGaugeVec,
    /// Nodes by the step that their update is at.
    pub steps: IntGaugeVec,
    /// Attempts that ended, by result.
    pub attempts: IntCounterVec,
    /// Writes that the API server refused, by what was written and the answer's code.
    pub rejected: IntCounterVec,
    /// Plans that broke a safety property, by the property. Anything but zero is a bug.
    pub findings: IntCounterVec,
}

impl Metrics {
    /// Registers all series.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let leader = gauge("brupop_controller_leader", "Whether this replica leads (1) or stands by (0)")?;
        let slots = gauge("brupop_controller_slots_in_use", "Nodes out of service because of updates")?;
        let frozen = gauge("brupop_controller_frozen", "Whether failures have stopped the rollout (1)")?;
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let waiting = gauges("brupop_controller_nodes_waiting", "Nodes by the reason why they wait", &["reason"])?;
        let steps = gauges("brupop_controller_nodes", "Nodes by the step of their update", &["step"])?;
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let attempts = counters("brupop_controller_attempts_total", "Attempts that ended, by result", &["result"])?;
        let rejected = counters(
            "brupop_controller_rejected_writes_total",
            "Writes that the API server refused, by what was written and the answer's code",
            &["write", "code"],
        )?;
        let findings = counters(
            "brupop_controller_lint_findings_total",
            "Plans that broke a safety property and were cut down; anything but zero is a bug",
            &["property"],
        )?;
        Ok(Self { registry, leader, slots, frozen, waiting, steps, attempts, rejected, findings })
    }

    /// All series in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Err(error) = prometheus::TextEncoder::new().encode_utf8(&self.registry.gather(), &mut out) {
            tracing::error!(error = &error as &dyn std::error::Error, "metrics cannot be written down");
        }
        out
    }

    /// Sets the gauges that follow from a plan.
    pub fn observe(&self, view: &crate::view::ClusterView, plan: &crate::plan::Plan, frozen: bool) {
        self.frozen.set(i64::from(frozen));
        let slots = view.operator.as_ref().map_or(0, |o| o.status.slots.len());
        self.slots.set(i64::try_from(slots).unwrap_or(i64::MAX));
        self.waiting.reset();
        for wait in plan.waits.values() {
            self.waiting.with_label_values(&[wait.as_str()]).inc();
        }
        self.steps.reset();
        for node in view.nodes.values() {
            let step = node.shadow.as_ref().and_then(|s| s.status.controller.progress.as_ref()).map(|p| p.step);
            self.steps.with_label_values(&[step.map_or("Idle", models::shadow::Step::as_str)]).inc();
        }
    }
}
