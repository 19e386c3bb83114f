//! Writes of the policy's history, and the label of a shadow that names a revision.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, ListParams, Patch};
use models::backoff::{Backoff, Delays};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use planner::revisions::RevisionAction;
use planner::view::{NodeView, RevisionFacts};
use serde_json::Value;
use tokio::time::Instant;

use super::{Applier, ApplyError, create_params, delete_this, patch_params};

/// Time between two renumberings, at first and at most: another client may undo them.
const PAUSES: Delays = (Duration::from_secs(1), Duration::from_secs(600));

#[derive(Debug, Default)]
pub struct Pace {
    next: Option<Instant>,
    backoff: Backoff,
}

impl Pace {
    /// Begins a renumbering, or returns the time at which the next one may begin.
    pub fn begin(&mut self, now: Instant) -> Option<Instant> {
        match self.next {
            Some(next) if now < next => return Some(next),
            Some(next) if now > next + PAUSES.1 => self.backoff.reset(),
            _ => {}
        }
        self.next = Some(now + self.backoff.next_delay(PAUSES));
        None
    }
}

/// Returns the name of the revision that a write is about.
fn name(action: &RevisionAction) -> &str {
    match action {
        RevisionAction::Adopt { name, .. }
        | RevisionAction::Release { name, .. }
        | RevisionAction::Renumber { name, .. }
        | RevisionAction::Delete { name, .. } => name,
        RevisionAction::Create(revision) => revision.metadata.name.as_deref().unwrap_or_default(),
        RevisionAction::RaiseCollisionCount(_) => "",
    }
}

/// Returns whether a revision is in the state to which a write leads.
fn has_effect(action: &RevisionAction, found: &RevisionFacts) -> bool {
    match action {
        RevisionAction::Create(revision) => {
            revision.metadata.owner_references.as_ref() == Some(&found.owners)
                && revision.data.0 == found.data
                && revision.revision == Some(found.number)
        }
        RevisionAction::Renumber { patch, .. } => patch["revision"] == found.number,
        RevisionAction::Adopt { patch, .. } | RevisionAction::Release { patch, .. } => {
            let owners = serde_json::to_value(&found.owners).unwrap_or_default();
            patch["metadata"]["ownerReferences"] == owners
        }
        RevisionAction::RaiseCollisionCount(_) | RevisionAction::Delete { .. } => false,
    }
}

fn log(action: &RevisionAction, number: Option<i64>) {
    let text = match action {
        RevisionAction::Adopt { .. } => "policy revision adopted",
        RevisionAction::Release { .. } => "policy revision released",
        RevisionAction::Renumber { .. } => "policy revision renumbered",
        RevisionAction::Create(_) => "policy revision created",
        RevisionAction::Delete { .. } => "policy revision deleted",
        RevisionAction::RaiseCollisionCount(_) => return,
    };
    tracing::info!(revision = name(action), number, "{text}");
}

impl Applier {
    /// Carries out the writes of a plan in their order, up to the first that fails. A refused change of owners or creation keeps none of the
    /// others from being written: deletions may make room in a quota.
    pub async fn write_history(&self, operator_uid: &str, actions: Vec<RevisionAction>) -> Result<(), ApplyError> {
        let mut refused = None;
        for action in &actions {
            self.leadership.check()?;
            let number = self.caches.revisions.get(name(action)).map(|known| known.number);
            let error = match self.write_revision(operator_uid, action).await {
                Ok(true) => {
                    let written = self.caches.revisions.get(name(action)).map(|written| written.number);
                    log(action, written.or(number));
                    continue;
                }
                Ok(false) => continue,
                Err(error) => error,
            };
            let goes_on = matches!(
                action,
                RevisionAction::Adopt { .. } | RevisionAction::Release { .. } | RevisionAction::Create(_)
            );
            if goes_on && error.is_lasting() && !error.is_unknown() {
                refused = Some(error);
                continue;
            }
            // Perhaps carried out, perhaps its name is taken: the next plan is made of what there is.
            let conflict = error.code() == Some(409);
            if error.is_unknown() || conflict {
                self.read(self.api(), name(action), |found| self.caches.revisions.written(found)).await;
            }
            let found = self.caches.revisions.get(name(action));
            if let Some(found) = found.filter(|found| error.is_unknown() && has_effect(action, found)) {
                log(action, Some(found.number));
            }
            // The policy has no revision for the first reason, whether others can be deleted or not.
            let deletes = matches!(action, RevisionAction::Delete { .. });
            return Err(refused.filter(|_| deletes).unwrap_or(error));
        }
        refused.map_or(Ok(()), Err)
    }

    /// Carries out one write. Returns false if there was nothing to do.
    async fn write_revision(&self, operator_uid: &str, action: &RevisionAction) -> Result<bool, ApplyError> {
        match action {
            // Part of the operator's status.
            RevisionAction::RaiseCollisionCount(_) => Ok(false),
            RevisionAction::Create(revision) => {
                let created = self.api::<ControllerRevision>().create(&create_params(), revision).await;
                self.caches.revisions.written(&created.map_err(ApplyError::api("policy_revision"))?);
                Ok(true)
            }
            RevisionAction::Renumber { name, patch } => self.patch_revision(name, patch).await.map(|()| true),
            RevisionAction::Adopt { name, patch } => {
                self.check_operator(operator_uid).await?;
                self.patch_revision(name, patch).await.map(|()| true)
            }
            RevisionAction::Release { name, patch } => match self.patch_revision(name, patch).await {
                Err(error) if error.code() == Some(404) => Ok(false),
                released => released.map(|()| true),
            },
            RevisionAction::Delete { name, uid } => {
                delete_this(&self.api::<ControllerRevision>(), name, uid, DeleteParams::default(), "policy_revision")
                    .await
            }
        }
    }

    async fn patch_revision(&self, name: &str, patch: &Value) -> Result<(), ApplyError> {
        let patched = self.api::<ControllerRevision>().patch(name, &patch_params(), &Patch::Merge(patch)).await;
        self.caches.revisions.written(&patched.map_err(ApplyError::api("policy_revision"))?);
        Ok(())
    }

    /// Checks live that the operator's resource is the one of the decision, and not being deleted: what it adopts then
    /// would be deleted with it.
    async fn check_operator(&self, uid: &str) -> Result<(), ApplyError> {
        // RBAC permits reading it by its name alone.
        let only = ListParams::default().fields(&format!("metadata.name={}", names::OPERATOR_NAME));
        let found =
            self.api::<BottlerocketUpdateOperator>().list(&only).await.map_err(ApplyError::api("policy_revision"))?;
        let mut metadata = found.items.iter().map(|operator| &operator.metadata);
        let same = metadata.any(|meta| meta.uid.as_deref() == Some(uid) && meta.deletion_timestamp.is_none());
        if same { Ok(()) } else { Err(ApplyError::Changed("the operator's resource")) }
    }

    /// Applies the spec of a shadow as it is, with the label of another revision.
    pub async fn label_shadow(&self, node: &NodeView, revision: String) -> Result<(), ApplyError> {
        self.leadership.check()?;
        let Some(shadow) = node.shadow.as_deref() else { return Ok(()) };
        let labelled = planner::view::ShadowFacts { revision: Some(revision), ..shadow.clone() };
        self.apply_spec(&labelled, &labelled.spec).await?;
        // Admission may change labels. Without an error the same write would be repeated without a pause.
        let written = self.caches.shadows.get(&labelled.node);
        let kept = written.is_none_or(|written| written.uid != labelled.uid || written.revision == labelled.revision);
        if kept { Ok(()) } else { Err(ApplyError::NoEffect("the label of the shadow")) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apply::tests::applier_answering;

    #[tokio::test]
    async fn refused_change_of_owners_or_creation_keeps_no_other_write_back() {
        let cases: [(&'static [&'static str], &str); 3] =
            [(&["PATCH"], "PATCH"), (&["PATCH", "POST"], "POST"), (&["POST", "DELETE"], "POST")];
        for (denied, reported) in cases {
            let (applier, calls) = applier_answering(move |call| match call.method.as_str() {
                method if denied.contains(&method) => {
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "message": method})
                }
                "DELETE" => json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}),
                "PATCH" => json!({
                    "apiVersion": "apps/v1", "kind": "ControllerRevision",
                    "metadata": {"name": "default-0"}, "data": {}, "revision": 1,
                }),
                _ => call.body.clone(),
            });
            let revision = json!({
                "apiVersion": "apps/v1", "kind": "ControllerRevision",
                "metadata": {"name": "default-2"}, "data": {}, "revision": 2,
            });
            let actions = vec![
                RevisionAction::Release { name: "default-0".into(), patch: json!({}) },
                RevisionAction::Create(Box::new(serde_json::from_value(revision).unwrap())),
                RevisionAction::Delete { name: "default-1".into(), uid: "u".into() },
            ];
            let error = applier.write_history("op", actions).await.unwrap_err();
            assert_eq!(error.text(), format!("policy_revision failed: {reported} (403)"), "the next plan has it again");
            let methods: Vec<String> = calls.lock().unwrap().iter().map(|call| call.method.clone()).collect();
            assert_eq!(methods, ["PATCH", "POST", "DELETE"], "denied: {denied:?}");
        }
    }

    #[test]
    fn renumberings_that_another_client_undoes_become_rare() {
        let start = Instant::now();
        let (mut pace, mut now, mut pauses) = (Pace::default(), start, Vec::new());
        for _ in 0..15 {
            assert_eq!(pace.begin(now), None);
            let next = pace.begin(now).unwrap();
            pauses.push(next - now);
            now = next;
        }
        assert!(pauses.is_sorted() && pauses[0] <= Duration::from_secs(1) && pauses[14] == PAUSES.1, "{pauses:?}");
        now += PAUSES.1 * 3;
        assert_eq!(pace.begin(now), None);
        assert_eq!(pace.begin(now), Some(now + pauses[0]), "after a quiet time the first pause again");
    }
}
