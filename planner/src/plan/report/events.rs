//! The Events about the operator: what users see when its conditions change.

use models::condition::{Condition, ConditionStatus, find_condition};
use models::operator::{BLOCKED, BRAKED, CONTAINED, DEGRADED, FROZEN, PROGRESSING};

use super::problems::{
    CERTIFICATES, CONFLICT, CREDENTIALS, GROUP_HIDDEN, INVALID_POLICY, MISUNDERSTOOD, NOT_SERVED, OUT_OF_BOUNDS,
    UNREAD_OBJECTS, UNREADABLE, WEB_API,
};
use super::{APPROVAL, CLUSTER_UNWELL, CLUSTER_WELL, EARLIER_GONE, EARLIER_RUNNING, EXPRESSIONS_QUIET};
use crate::decision::Note;
use crate::survey::records::UNRECORDED;
use crate::wait::WaitReason;

/// The conditions whose changes are Events for users: the type of the condition; the reason of the Event at its beginning
/// (the condition has the same reason, except where several share one Event); the reason and the message of the Event at
/// its end. Of one type, the first row is for reasons without one of their own.
const CHANGES: &[(&str, &str, &str, &str)] = &[
    (FROZEN, "Frozen", "Resumed", "no version is held back any more"),
    (BRAKED, "Braked", "BrakeReleased", "no rollout is braked any more"),
    (DEGRADED, INVALID_POLICY, "PolicyValid", "the policy is valid and in force"),
    (DEGRADED, CERTIFICATES, "CertificatesValid", "keys and certificates are valid"),
    (DEGRADED, NOT_SERVED, "ShadowsServed", "the API server serves the shadows"),
    (DEGRADED, WEB_API, "WebApiReady", "a pod of the web API is Ready"),
    (DEGRADED, CONFLICT, "FieldManagersSeparate", "no other field manager owns fields of the operator"),
    (DEGRADED, UNREADABLE, "ObjectsReadable", "every shadow and Node can be read"),
    (DEGRADED, UNREAD_OBJECTS, "ObjectsRead", "the objects of every check of spec.health can be read"),
    (DEGRADED, UNRECORDED, "PolicyRecorded", "the policy has a revision"),
    (DEGRADED, MISUNDERSTOOD, "RequestsUnderstood", "every annotation that is meant as a request is known"),
    (DEGRADED, OUT_OF_BOUNDS, "DurationsWithinBounds", "every duration of the policy is within its bounds"),
    (DEGRADED, CREDENTIALS, "CredentialsRemoved", "the policy has no credentials"),
    (DEGRADED, GROUP_HIDDEN, "NodeGroupsVisible", "no node group takes every node before another one"),
];

/// The reasons of the condition `Progressing` for which a canary step waits for a user, each with whether its Event is a warning.
const STEPS: [(&str, bool); 3] =
    [(APPROVAL, false), (WaitReason::StepUnproven.as_str(), true), (WaitReason::StepFailed.as_str(), true)];

/// Returns the Events for users when `new` conditions replace `old` ones: the rollout stopped or continues, the policy is
/// rejected or valid again. Conditions that only come and go emit none.
pub fn news(old: &[Condition], new: &[Condition]) -> Vec<Note> {
    let mut notes = Vec::new();
    for type_ in [FROZEN, BRAKED, DEGRADED] {
        let Some(now) = find_condition(new, type_) else { continue };
        let before = find_condition(old, type_);
        let contained = before.is_some_and(|c| c.reason == CONTAINED);
        if now.reason == CONTAINED {
            if !contained {
                notes.push(Note { warning: false, reason: CONTAINED, message: now.message.clone() });
            }
            continue;
        }
        let held = contained || before.is_some_and(|c| c.status == ConditionStatus::True);
        let holds = now.status == ConditionStatus::True;
        let reason = if holds { &now.reason } else { before.map_or("", |c| &c.reason) };
        let mut rows = CHANGES.iter().filter(|(of, ..)| *of == type_);
        let row = rows.clone().find(|(_, begins, ..)| *begins == reason).or_else(|| rows.next());
        let Some((_, begins, ends, message)) = row else { continue };
        if holds && (!held || before.is_none_or(|c| c.message != now.message)) {
            notes.push(Note { warning: true, reason: begins, message: now.message.clone() });
        } else if held && !holds {
            notes.push(Note { warning: false, reason: ends, message: (*message).to_owned() });
        }
    }
    let blocked = |conditions| find_condition(conditions, BLOCKED).filter(|c| c.status != ConditionStatus::False);
    let earlier = |condition: &Condition| matches!(condition.reason.as_str(), EARLIER_RUNNING | EARLIER_GONE);
    let unwell = |condition: &Condition| condition.reason == CLUSTER_UNWELL;
    let kind = |condition: &Condition| (earlier(condition), unwell(condition));
    match (blocked(old), blocked(new)) {
        (before, Some(now)) if before.is_none_or(|before| kind(before) != kind(now)) => {
            let reason = now.reason.parse().unwrap_or(WaitReason::ExpressionFails).as_str();
            notes.push(Note { warning: true, reason, message: now.message.clone() });
        }
        (Some(before), None) if earlier(before) => {
            let message =
                "the earlier operator is gone, and its hosts have had their time to go down: updates continue"
                    .to_owned();
            notes.push(Note { warning: false, reason: EARLIER_GONE, message });
        }
        (Some(before), None) if unwell(before) => {
            let message = "nodes have not fallen ill at once any more: updates continue".to_owned();
            notes.push(Note { warning: false, reason: CLUSTER_WELL, message });
        }
        (Some(_), None) => {
            let message = "no node waits for an expression that concerns all nodes any more".to_owned();
            notes.push(Note { warning: false, reason: EXPRESSIONS_QUIET, message });
        }
        _ => {}
    }
    for (reason, warning) in STEPS {
        let awaits = |conditions| find_condition(conditions, PROGRESSING).filter(|c| c.reason == reason);
        if let Some(now) = awaits(new)
            && awaits(old).is_none_or(|before| before.message != now.message)
        {
            notes.push(Note { warning, reason, message: now.message.clone() });
        }
    }
    notes
}
