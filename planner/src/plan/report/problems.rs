//! The problems of the operator, for the condition `Degraded`.

use jiff::Timestamp;
use models::condition::true_condition;
use models::operator::DEGRADED;
use models::plain::{cut, some_by};

use crate::policy::Policy;
use crate::revisions::{RevisionPlan, is_in_force};
use crate::survey::records::UNRECORDED;
use crate::view::{ClusterView, ReportedFacts, SharedField, TlsFacts};
use crate::wait::{Wait, WaitReason};

/// The operator is degraded: its policy is invalid.
pub const INVALID_POLICY: &str = "InvalidPolicy";

/// The operator is degraded although its policy is valid.
pub(super) const CERTIFICATES: &str = "CertificatesInvalid";

/// The operator is degraded: the shadows are not served.
pub const NOT_SERVED: &str = "ShadowsNotServed";

/// The operator is degraded: no agent can report or get a reboot permit.
pub(super) const WEB_API: &str = WaitReason::WebApiNotReady.as_str();

/// The operator is degraded although its policy and its certificates are valid.
pub(super) const MISUNDERSTOOD: &str = crate::annotations::UNKNOWN_REQUEST;

/// The operator is degraded: durations of its policy are outside their bounds, and read as the nearest one.
pub(super) const OUT_OF_BOUNDS: &str = "DurationOutOfBounds";

/// The operator is degraded: its policy has credentials, which are not used.
pub(super) const CREDENTIALS: &str = "CredentialsIgnored";

/// The operator is degraded: a node group takes every node, and the groups after it have none.
pub const GROUP_HIDDEN: &str = "NodeGroupHidden";

/// The operator is degraded: another field manager owns fields of the operator, which it then cannot remove.
pub(super) const CONFLICT: &str = "FieldManagerConflict";

/// The operator is degraded: shadows or Nodes exist that it cannot read.
pub(super) const UNREADABLE: &str = WaitReason::ShadowUnreadable.as_str();

/// The operator is degraded: objects that checks of its policy are about cannot be read.
pub(super) const UNREAD_OBJECTS: &str = "ObjectsUnread";

/// Maximum length of the objects of checks in a message, which has room for the rest of it.
const UNREAD_LENGTH: usize = 1900;

/// A condition: its truth, the reason in one word, the message.
pub(super) type ConditionParts = (bool, &'static str, String);

/// Returns the problems as one message.
pub(super) fn joined(problems: &[impl ToString]) -> String {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    cut(&texts.join("; "), 2000)
}

/// Returns the condition `Degraded`, with the gravest problem.
pub(super) fn degraded(
    (view, policy, now): (&ClusterView, &Policy, Timestamp),
    reported: &ReportedFacts,
    web_api_missing: bool,
    misunderstood: &[String],
    history: Option<&RevisionPlan>,
) -> ConditionParts {
    match of_policy(policy, &reported.tls, web_api_missing, misunderstood) {
        // A request that is not understood is no error of the operator, and hides none.
        (holds, reason, message) if !holds || reason == MISUNDERSTOOD => {
            let others = unreadable(view).or_else(|| conflict(view)).or_else(|| unread_objects(reported));
            let others = others.or_else(|| unrecorded((view, policy, now), history));
            others.unwrap_or((holds, reason, message))
        }
        // These reasons stop no node.
        (true, reason @ (OUT_OF_BOUNDS | CREDENTIALS | GROUP_HIDDEN), message) => {
            unreadable(view).unwrap_or((true, reason, message))
        }
        degraded => degraded,
    }
}

/// Returns the same without the problems of single objects.
pub(super) fn of_policy(
    policy: &Policy,
    tls: &TlsFacts,
    web_api_missing: bool,
    misunderstood: &[String],
) -> ConditionParts {
    if policy.errors.is_empty() {
        return match &tls.problem {
            Some(problem) => (true, CERTIFICATES, cut(problem, 2000)),
            None if web_api_missing => (true, WEB_API, Wait::WebApiNotReady.to_string()),
            None if !policy.ignored.is_empty() => (true, CREDENTIALS, joined(&policy.ignored)),
            None if !policy.bounded.is_empty() => (true, OUT_OF_BOUNDS, joined(&policy.bounded)),
            None if !policy.hiding.is_empty() => (true, GROUP_HIDDEN, joined(&policy.hiding)),
            None if !misunderstood.is_empty() => (true, MISUNDERSTOOD, joined(misunderstood)),
            None => (false, "AsExpected", String::new()),
        };
    }
    let errors: Vec<String> = policy.errors.iter().map(ToString::to_string).collect();
    let force = if policy.unusable {
        "nothing new starts, and updates and drills without a reboot permit end"
    } else {
        "nothing new starts, and updates under way are finished under the last valid policy"
    };
    let mut message: String = format!("{}; {force}", errors.join("; ")).chars().take(1400).collect();
    // One problem must not hide the other.
    if let Some(problem) = &tls.problem {
        message = format!("{message}. Keys and certificates: {}", cut(problem, 500));
    }
    (true, INVALID_POLICY, message)
}

/// Returns how many more objects there are than the one that is named.
fn and_more(others: usize, what: &str) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more {what})") }
}

/// Returns the shadows with fields that another field manager owns too, where there are any.
fn conflict(view: &ClusterView) -> Option<ConditionParts> {
    let shadows = view.nodes.values().filter_map(|node| node.shadow.as_ref());
    let mut shared = shadows.filter_map(|shadow| Some((&shadow.node, shadow.shared_field.as_ref()?)));
    let (node, SharedField { field, manager }) = shared.next()?;
    let more = and_more(shared.count(), "shadows");
    let message = format!(
        "field {field} of the shadow {} belongs to the operator, and the field manager {manager} owns it too{more}: the \
         next write of that client may bring back what the operator has removed. Stop that client; then, while no update of the node is \
         under way, delete the shadow: it is created again",
        models::names::shadow_name(node)
    );
    Some((true, CONFLICT, cut(&message, 2000)))
}

/// Returns the shadows and Nodes that cannot be read, where there are any, with the repair.
fn unreadable(view: &ClusterView) -> Option<ConditionParts> {
    let mut unreadable = view.unreadable.objects();
    let (object, error) = unreadable.next()?;
    let more = and_more(unreadable.count(), "objects");
    let error = cut(error, 500);
    let message = format!(
        "this version of the operator cannot read {object}{more}: {error}. Nothing is decided about its node, and a slot of it stays. Where \
         a newer version wrote it, install that version again; otherwise correct the field: kubectl edit {object} -n <namespace> \
         --subresource=status (without --subresource for another field)"
    );
    Some((true, UNREADABLE, cut(&message, 2000)))
}

/// Returns the objects of checks that cannot be read, where there are any, with what to apply. Those without room are counted: a part of a
/// role cannot be applied.
fn unread_objects(reported: &ReportedFacts) -> Option<ConditionParts> {
    let unread = &reported.unread_objects;
    if unread.is_empty() {
        return None;
    }
    let mut length = 0;
    let fitting = unread.iter().take_while(|object| {
        length += object.chars().count() + 2;
        length <= UNREAD_LENGTH
    });
    let listed = some_by(unread, fitting.count().max(1), "; ", "; and ");
    Some((true, UNREAD_OBJECTS, cut(&format!("checks of spec.health have no result: {listed}"), 2000)))
}

/// Returns the reason for which the policy has no revision, if there is one. A leader that has just begun, or has paused, keeps that which
/// was reported before until it knows.
fn unrecorded(
    (view, policy, now): (&ClusterView, &Policy, Timestamp),
    history: Option<&RevisionPlan>,
) -> Option<ConditionParts> {
    if history.is_some_and(|history| history.update.is_some()) {
        return None;
    }
    let failing = view.revisions_failing.as_ref().filter(|failing| failing.is_lasting(now));
    let refused = || Some(format!("the policy's revision cannot be written: {}; updates go on", failing?.error));
    let before = || {
        let status = &view.operator.as_ref()?.status;
        let before = true_condition(&status.conditions, DEGRADED).filter(|before| before.reason == UNRECORDED)?;
        is_in_force(status, policy).then(|| before.message.clone())
    };
    let problem = history.and_then(|history| history.problem.clone());
    let problem = problem.or_else(|| history.and_then(|_| refused())).or_else(before)?;
    Some((true, UNRECORDED, cut(&problem, 2000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_counts_the_objects_that_it_does_not_name() {
        assert_eq!(and_more(0, "shadows"), "");
        assert_eq!(and_more(2, "shadows"), " (and 2 more shadows)");
    }
}
