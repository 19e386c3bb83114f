//! What the operator's resource says of the fleet: counts, reasons, conditions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::condition::{Condition, set_condition};
use models::operator::{BottlerocketUpdateOperatorStatus, Counts, WaitingCount};
use models::shadow::Step;

use super::{Plan, Quarantine, Wait};
use crate::policy::Policy;
use crate::view::ClusterView;

/// How many reasons the operator's status names.
const REASONS: usize = 32;

/// The operator's status, without its slots.
pub(super) fn status(
    view: &ClusterView,
    policy: &Policy,
    quarantine: &Quarantine,
    plan: &Plan,
    now: Timestamp,
) -> BottlerocketUpdateOperatorStatus {
    let Some(operator) = &view.operator else { return BottlerocketUpdateOperatorStatus::default() };
    let mut counts = Counts::default();
    for (name, node) in view.nodes.iter().filter(|(_, n)| n.facts.labelled) {
        counts.total += 1;
        let step = super::fleet::step_of(node);
        let wait = plan.waits.get(name);
        let record = node.shadow.as_ref().and_then(|s| s.status.controller.record.as_ref());
        counts.updating += i64::from(step.is_some_and(|s| !matches!(s, Step::Staging | Step::Staged)));
        counts.staged += i64::from(step == Some(Step::Staged));
        counts.current += i64::from(step.is_none() && wait == Some(&Wait::UpToDate));
        counts.blocked += i64::from(wait.is_some_and(Wait::blocks));
        counts.failed += i64::from(record.is_some_and(|r| r.failures > 0));
    }
    let mut reasons: BTreeMap<&'static str, i64> = BTreeMap::new();
    for wait in plan.waits.values().filter(|w| !matches!(w, Wait::UpToDate | Wait::Acting | Wait::NotLabelled)) {
        *reasons.entry(wait.as_str()).or_default() += 1;
    }
    let mut waiting: Vec<WaitingCount> =
        reasons.into_iter().map(|(reason, nodes)| WaitingCount { reason: reason.to_owned(), nodes }).collect();
    waiting.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    waiting.truncate(REASONS);

    let mut conditions = operator.status.conditions.clone();
    let mut set = |type_: &str, holds: bool, reason: &str, message: String| {
        let condition = Condition {
            type_: type_.to_owned(),
            status: holds.into(),
            reason: reason.to_owned(),
            message,
            last_transition_time: now,
            observed_generation: None,
        };
        set_condition(&mut conditions, condition);
    };
    let switched =
        if policy.enabled { "new updates start" } else { "spec.enabled is false: running updates end, none starts" };
    set("Enabled", policy.enabled, if policy.enabled { "Enabled" } else { "Disabled" }, switched.to_owned());
    let progressing = view.nodes.values().any(|n| super::fleet::step_of(n).is_some());
    set("Progressing", progressing, if progressing { "Updating" } else { "Idle" }, String::new());
    match quarantine.frozen_by() {
        Some(version) => set(
            "Frozen",
            true,
            "VersionFailed",
            format!("{version} has failed on as many nodes as failurePolicy.maxFailures allows; no new update starts"),
        ),
        None => set("Frozen", false, "NoFailures", String::new()),
    }
    BottlerocketUpdateOperatorStatus {
        observed_generation: Some(operator.generation),
        counts: Some(counts),
        slots: Vec::new(),
        waiting,
        conditions,
        ..operator.status.clone()
    }
}
