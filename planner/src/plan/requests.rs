//! One-shot requests: annotations that a user sets with plain kubectl, each carried out once and then acknowledged.

use models::operator::OperatorRequests;
use models::shadow::ControllerStatus;

use super::attempt::Case;
use super::{Action, Note};
use crate::view::{ClusterView, OperatorFacts, ShadowFacts};

/// Returns whether the resource's status was never written. Requests that it carries then are old ones: a manifest that
/// was applied again must not end a freeze that outlived the previous resource.
pub(super) fn is_new(operator: &OperatorFacts) -> bool {
    operator.status.observed_generation.is_none()
}

/// The value of a `resume` that is not acknowledged yet.
pub(super) fn pending_resume(operator: &OperatorFacts) -> Option<&String> {
    if is_new(operator) {
        return None;
    }
    let done = operator.status.requests.as_ref().and_then(|r| r.resume.as_ref());
    operator.resume.as_ref().filter(|asked| Some(*asked) != done)
}

/// The values of `rotate-certificates` and `rotate-signing-key` that are not acknowledged yet.
pub fn pending_rotations(operator: &OperatorFacts) -> (Option<String>, Option<String>) {
    if is_new(operator) {
        return (None, None);
    }
    let done = operator.status.requests.clone().unwrap_or_default();
    let pending = |asked: &Option<String>, done: &Option<String>| asked.clone().filter(|_| asked != done);
    (
        pending(&operator.rotate_certificates, &done.rotate_certificates),
        pending(&operator.rotate_signing_key, &done.rotate_signing_key),
    )
}

fn unresolved(shadow: &ShadowFacts) -> bool {
    let record = shadow.status.controller.record.as_ref();
    record.is_some_and(|r| r.version_failures.iter().any(|f| f.resolved_by.is_none()))
}

/// Returns the write that settles a node's failures of versions, if a `resume` requests it.
pub(super) fn resume(case: &Case<'_>) -> Option<Action> {
    let asked = pending_resume(case.view.operator.as_ref()?)?;
    if !unresolved(case.shadow) {
        return None;
    }
    let mut status = case.half();
    for failure in &mut status.report.record.get_or_insert_default().version_failures {
        failure.resolved_by.get_or_insert_with(|| asked.clone());
    }
    Some(Action::Status { status: Box::new(status), note: None })
}

/// Returns the value of a pending `resume` once all shadows are settled: it then ends the quarantine in the operator's
/// own status, and is acknowledged there.
pub(super) fn resumed(view: &ClusterView) -> Option<String> {
    let asked = pending_resume(view.operator.as_ref()?)?;
    let left = view.nodes.values().any(|n| n.shadow.as_ref().is_some_and(unresolved));
    (!left).then(|| asked.clone())
}

/// The acknowledgements to record.
pub(super) fn acknowledged(view: &ClusterView, approval_taken: bool) -> Option<OperatorRequests> {
    let operator = view.operator.as_ref()?;
    let mut requests = operator.status.requests.clone().unwrap_or_default();
    if is_new(operator) {
        requests.resume.clone_from(&operator.resume);
        requests.approve_step.clone_from(&operator.approve_step);
        requests.rotate_certificates.clone_from(&operator.rotate_certificates);
        requests.rotate_signing_key.clone_from(&operator.rotate_signing_key);
    }
    let (certificates, signing_key) = pending_rotations(operator);
    if certificates.is_some() && certificates == view.tls.rotated_certificates {
        requests.rotate_certificates = certificates;
    }
    if signing_key.is_some() && signing_key == view.tls.rotated_signing_key {
        requests.rotate_signing_key = signing_key;
    }
    if let Some(asked) = resumed(view) {
        requests.resume = Some(asked);
    }
    if approval_taken {
        requests.approve_step.clone_from(&operator.approve_step);
    }
    (requests != OperatorRequests::default()).then_some(requests)
}

fn acknowledge(status: &mut ControllerStatus, retry: Option<&String>, release: Option<&String>) {
    let requests = status.report.record.get_or_insert_default().requests.get_or_insert_default();
    if let Some(retry) = retry {
        requests.retry = Some(retry.clone());
    }
    if let Some(release) = release {
        requests.release = Some(release.clone());
    }
}

impl Case<'_> {
    fn requests(&self) -> models::shadow::ShadowRequests {
        self.shadow.status.controller.record.as_ref().and_then(|r| r.requests.clone()).unwrap_or_default()
    }

    /// The value of a `retry` that is not acknowledged yet.
    fn pending_retry(&self) -> Option<&String> {
        self.shadow.retry.as_ref().filter(|asked| Some(*asked) != self.requests().retry.as_ref())
    }

    /// The value of a `release` that is not acknowledged yet.
    pub(super) fn pending_release(&self) -> Option<&String> {
        self.shadow.release.as_ref().filter(|asked| Some(*asked) != self.requests().release.as_ref())
    }

    /// Carries out a `retry`: an image that another client armed may be disarmed, in this boot; then the back-off ends.
    pub(super) fn retry(&self) -> Option<Action> {
        let asked = self.pending_retry()?;
        if self.armed_by_other() && self.disarm_in_boot().is_none() && !self.facts().boot_id.is_empty() {
            return Some(self.withdraw_and_disarm());
        }
        let mut status = self.half();
        acknowledge(&mut status, Some(asked), None);
        status.report.record.get_or_insert_default().not_before = None;
        let note =
            Note { warning: false, reason: "Retry", message: "asked to try again: the back-off is over".to_owned() };
        Some(Action::Status { status: Box::new(status), note: Some(note) })
    }

    /// Acknowledges a `release` of a node that is not claimed.
    pub(super) fn nothing_to_release(&self) -> Option<Action> {
        let asked = self.pending_release()?;
        let mut status = self.half();
        acknowledge(&mut status, None, Some(asked));
        Some(Action::Status { status: Box::new(status), note: None })
    }

    /// Writes the acknowledgement of a `release` into the status that ends the attempt.
    pub(super) fn acknowledge_release(&self, status: &mut ControllerStatus) {
        if let Some(asked) = self.pending_release() {
            acknowledge(status, None, Some(asked));
        }
    }
}
