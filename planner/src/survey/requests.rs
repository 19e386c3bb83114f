//! One-shot requests of users: annotations on the operator's resource, each carried out once and then acknowledged.

use models::condition::find_condition;
use models::operator::{
    ActiveRollout, BottlerocketUpdateOperatorStatus, KnownVersion, OperatorRequests, PROGRESSING, frozen_since,
};

use crate::decision::Note;
use crate::view::{ClusterView, OperatorFacts, ReportedFacts, ShadowFacts};

/// Returns whether the resource's status was never written. Requests that it carries then are old ones: a manifest that
/// was applied again must not end a freeze that outlived the previous resource.
pub(super) fn is_new(operator: &OperatorFacts) -> bool {
    operator.status.observed_generation.is_none()
}

/// Returns the value of a request unless it is acknowledged.
fn pending<'a>(
    operator: &'a OperatorFacts,
    asked: &'a Option<String>,
    done: fn(&OperatorRequests) -> &Option<String>,
) -> Option<&'a String> {
    let requests = operator.status.requests.as_ref();
    let done = requests.and_then(|requests| done(requests).as_ref());
    asked.as_ref().filter(|asked| !is_new(operator) && Some(*asked) != done)
}

/// The value of a `resume` that is not acknowledged yet.
pub(crate) fn pending_resume(operator: &OperatorFacts) -> Option<&String> {
    pending(operator, &operator.resume, |done| &done.resume)
}

/// The value of a `continue-others` that is not acknowledged yet.
pub(crate) fn pending_continue(operator: &OperatorFacts) -> Option<&String> {
    pending(operator, &operator.continue_others, |done| &done.continue_others)
}

/// The value of an `approve-step` that is not acknowledged yet.
pub(crate) fn pending_approval(operator: &OperatorFacts) -> Option<&String> {
    pending(operator, &operator.approve_step, |done| &done.approve_step)
}

/// The values of `rotate-certificates` and `rotate-signing-key` that are not acknowledged yet.
pub fn pending_rotations(operator: &OperatorFacts) -> (Option<String>, Option<String>) {
    let certificates = pending(operator, &operator.rotate_certificates, |done| &done.rotate_certificates);
    let signing_key = pending(operator, &operator.rotate_signing_key, |done| &done.rotate_signing_key);
    (certificates.cloned(), signing_key.cloned())
}

/// The value of `migrate-storage` that is not acknowledged yet.
pub fn pending_migration(operator: &OperatorFacts) -> Option<&String> {
    pending(operator, &operator.migrate_storage, |done| &done.migrate_storage)
}

/// Returns whether a shadow has failures of versions that no `resume` has resolved.
pub(crate) fn has_unresolved_failures(shadow: &ShadowFacts) -> bool {
    let record = shadow.status.controller.record.as_ref();
    record.is_some_and(|r| r.version_failures.iter().any(|f| f.resolved_by.is_none()))
}

/// Returns the value of a pending `resume` once the failures of all shadows are resolved: it then ends the quarantine
/// in the operator's own status, and is acknowledged there.
pub(crate) fn resumed(view: &ClusterView) -> Option<String> {
    let asked = pending_resume(view.operator.as_ref()?)?;
    let left = view.nodes.values().any(|n| n.shadow.as_deref().is_some_and(has_unresolved_failures));
    (!left).then(|| asked.clone())
}

/// Returns the value of a request that the `new` status acknowledges, and the `old` one did not. The annotations of a new resource are
/// acknowledged without an effect.
fn taken(
    old: &BottlerocketUpdateOperatorStatus,
    new: &BottlerocketUpdateOperatorStatus,
    done: fn(&OperatorRequests) -> &Option<String>,
) -> Option<String> {
    let of = |status: &BottlerocketUpdateOperatorStatus| status.requests.as_ref().and_then(|all| done(all).clone());
    of(new).filter(|value| old.observed_generation.is_some() && of(old).as_ref() != Some(value))
}

/// Returns the Event about an approval that was acknowledged and names steps of which none is approved by it.
pub fn approval_news(old: &BottlerocketUpdateOperatorStatus, new: &BottlerocketUpdateOperatorStatus) -> Option<Note> {
    let value = taken(old, new, |done| &done.approve_step)?;
    let names = value.split_once('@').map_or(value.as_str(), |(names, _)| names);
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let same = |before: &ActiveRollout, after: &ActiveRollout| {
        (&before.version, &before.variant, &before.arch, before.started)
            == (&after.version, &after.variant, &after.arch, after.started)
    };
    let accepted = |rollout: &ActiveRollout| rollout.ledger.as_ref().map_or(0, |ledger| ledger.accepted);
    let is_approved = |before: &ActiveRollout| {
        let name = before.ledger.as_ref().map(|ledger| before.step_name(ledger.due)).unwrap_or_default();
        let is_named = names.iter().any(|named| named.trim_end_matches("/unproven") == name);
        let after = new.active_rollouts.iter().find(|after| same(before, after));
        is_named
            && after.is_some_and(|after| {
                after.approved || after.steps_passed > before.steps_passed || accepted(after) > accepted(before)
            })
    };
    if old.active_rollouts.iter().any(is_approved) {
        return None;
    }
    let shown = find_condition(&new.conditions, PROGRESSING).map_or("", |condition| &condition.message);
    let waiting = new.active_rollouts.iter().filter(|rollout| rollout.is_shown(shown));
    let waiting: Vec<String> = waiting.filter_map(ActiveRollout::approvable).collect();
    let waiting = if waiting.is_empty() {
        "no canary step waits for an approval now".to_owned()
    } else {
        format!("an approval can name {}", waiting.join(", "))
    };
    let message = format!(
        "the approval '{value}' names no canary step that waits for it, and passes none; {waiting}. Write it as <name>@<any new text>, \
         or run kubectl brupop approve"
    );
    Some(Note { warning: true, reason: "ApprovalRefused", message })
}

/// Returns the Event about a `continue-others` that was acknowledged and by which no version is held for its own nodes alone.
pub fn continue_news(old: &BottlerocketUpdateOperatorStatus, new: &BottlerocketUpdateOperatorStatus) -> Option<Note> {
    let value = taken(old, new, |done| &done.continue_others)?;
    let is_contained = |known: &KnownVersion| known.quarantined.as_ref().is_some_and(|found| found.contained);
    let contained =
        |status: &BottlerocketUpdateOperatorStatus| status.versions.iter().filter(|known| is_contained(known)).count();
    if contained(new) > contained(old) || (contained(new) > 0 && frozen_since(&new.versions).is_none()) {
        return None;
    }
    let next = frozen_since(&new.versions).map_or_else(
        || "no version has frozen the rollout".to_owned(),
        |since| format!("the value that does is {since}, the time of the last failure, as kubectl brupop resume --others writes it"),
    );
    let message = format!(
        "the request '{value}' to continue with other nodes names no time by which a version had frozen the rollout; {next}"
    );
    Some(Note { warning: true, reason: "ContinueRefused", message })
}

/// The acknowledgements to record.
pub(crate) fn acknowledged(
    view: &ClusterView,
    reported: &ReportedFacts,
    approval_taken: bool,
) -> Option<OperatorRequests> {
    let operator = view.operator.as_ref()?;
    let mut requests = operator.status.requests.clone().unwrap_or_default();
    // The same write records the notice. The first plan with notices records their state alone.
    if operator.status.notices.is_some() {
        requests.test_notices.clone_from(&operator.test_notices);
    }
    if is_new(operator) {
        requests.resume.clone_from(&operator.resume);
        requests.continue_others.clone_from(&operator.continue_others);
        requests.approve_step.clone_from(&operator.approve_step);
        requests.rotate_certificates.clone_from(&operator.rotate_certificates);
        requests.rotate_signing_key.clone_from(&operator.rotate_signing_key);
        requests.migrate_storage.clone_from(&operator.migrate_storage);
    }
    if let Some(asked) = pending_migration(operator)
        && reported.migration.carried_out.as_ref() == Some(asked)
    {
        requests.migrate_storage = Some(asked.clone());
    }
    let (certificates, signing_key) = pending_rotations(operator);
    if certificates.is_some() && certificates == reported.tls.rotated_certificates {
        requests.rotate_certificates = certificates;
    }
    if signing_key.is_some() && signing_key == reported.tls.rotated_signing_key {
        requests.rotate_signing_key = signing_key;
    }
    if let Some(asked) = resumed(view) {
        requests.resume = Some(asked);
    }
    if let Some(asked) = pending_continue(operator) {
        requests.continue_others = Some(asked.clone());
    }
    if approval_taken {
        requests.approve_step.clone_from(&operator.approve_step);
    }
    (requests != OperatorRequests::default()).then_some(requests)
}

#[cfg(test)]
mod tests {
    use models::names;
    use models::operator::RolloutLedger;

    use super::*;
    use crate::fixtures::{NEW, OLD, condition, fallen_back, recorded, rollout, seen};

    /// The place of the step is used up, and the step soaks once a user has accepted it.
    #[test]
    fn approval_that_accepts_places_without_a_proof_is_not_refused() {
        let status = |asked: Option<&str>, accepted: i64| {
            let ledger = RolloutLedger { due: 1, share: 1, unproven: 1, accepted, ..RolloutLedger::default() };
            let active = ActiveRollout { record: Some(recorded(7)), ledger: Some(ledger), ..rollout(NEW) };
            let requests = OperatorRequests { approve_step: asked.map(str::to_owned), ..Default::default() };
            BottlerocketUpdateOperatorStatus {
                observed_generation: Some(1),
                active_rollouts: vec![active],
                requests: Some(requests),
                ..Default::default()
            }
        };
        for (accepted, refused) in [(1, false), (0, true)] {
            let found = approval_news(&status(None, 0), &status(Some("7/1/unproven@yes"), accepted));
            assert_eq!(found.is_some(), refused, "{accepted} accepted");
        }
    }

    /// No node may be to have the version of the other step now, so that an approval of it has no effect either.
    #[test]
    fn refusal_of_an_approval_names_no_step_that_is_not_shown_to_wait() {
        let shown = format!("waits for approval: {}=7/1@<any new text>", names::APPROVE_STEP_ANNOTATION);
        for (message, expected) in
            [(shown.as_str(), "an approval can name 7/1."), ("", "no canary step waits for an approval now.")]
        {
            let status = |asked: Option<&str>| {
                let ledger = RolloutLedger { due: 1, share: 1, proven: 1, ..RolloutLedger::default() };
                let active = ActiveRollout { record: Some(recorded(7)), ledger: Some(ledger), ..rollout(NEW) };
                BottlerocketUpdateOperatorStatus {
                    observed_generation: Some(1),
                    active_rollouts: vec![active],
                    requests: Some(OperatorRequests {
                        approve_step: asked.map(str::to_owned),
                        ..OperatorRequests::default()
                    }),
                    conditions: vec![condition(PROGRESSING, "AwaitingApproval", message)],
                    ..BottlerocketUpdateOperatorStatus::default()
                }
            };
            let found = approval_news(&status(None), &status(Some("7/1@yes"))).unwrap();
            assert!(found.message.contains(expected), "{}", found.message);
        }
    }

    #[test]
    fn request_to_continue_others_that_holds_no_version_for_its_own_nodes_is_refused() {
        let version = |version, contained| {
            let quarantined = models::operator::Quarantined { contained, ..fallen_back(&["x"]) };
            KnownVersion { quarantined: Some(quarantined), ..seen(version, 0) }
        };
        let status = |asked: bool, versions: Vec<KnownVersion>| {
            let mut status =
                BottlerocketUpdateOperatorStatus { observed_generation: Some(1), versions, ..Default::default() };
            status.requests.get_or_insert_default().continue_others = asked.then(|| "1".to_owned());
            status
        };
        let (of_one, both) = (|held| vec![version(NEW, held)], |held| vec![version(NEW, held), version(OLD, false)]);
        for (sentence, before, after, refused) in [
            ("it holds the version", of_one(false), of_one(true), false),
            ("it holds one of two", both(false), both(true), false),
            ("it was held before, and no other is frozen", of_one(true), of_one(true), false),
            ("it was held before, and another is frozen", both(true), both(true), true),
            ("it holds none", of_one(false), of_one(false), true),
            ("no version is known", vec![], vec![], true),
        ] {
            let found = continue_news(&status(false, before), &status(true, after));
            assert_eq!(found.is_some(), refused, "{sentence}");
        }
        let new = BottlerocketUpdateOperatorStatus::default();
        assert_eq!(continue_news(&new, &status(true, vec![])), None, "the annotation of a new resource");
    }
}
