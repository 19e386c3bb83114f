//! Revisions of the policy, kept as ControllerRevisions of the operator's resource by the rules of Kubernetes' own
//! controllers (`pkg/controller/history` there): `docs/revisions.md`.
//!
//! Nothing here depends on a clock: revisions are ordered by number, those with one number by name.

mod content;
mod name;
#[cfg(test)]
mod tests;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};

use crate::policy::Policy;
use crate::view::{OperatorFacts, RevisionFacts};

pub use content::RevisionContent;
pub(crate) use content::is_in_force;
pub use undo::{NO_HISTORY, Undo, UndoError, undo};

/// The longest `data` in bytes. The API server's store accepts somewhat more, and answers beyond that with an error of its
/// own that names no cause.
const DATA_LIMIT: usize = 1024 * 1024;

/// A ControllerRevision with its content.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRevision {
    facts: RevisionFacts,
    /// The content, or the reason for which it cannot be read. Then the revision is listed, and equals no other.
    pub content: Result<RevisionContent, String>,
}

impl From<RevisionFacts> for PolicyRevision {
    fn from(facts: RevisionFacts) -> Self {
        Self { content: RevisionContent::read(&facts.data), facts }
    }
}

impl Deref for PolicyRevision {
    type Target = RevisionFacts;

    fn deref(&self) -> &RevisionFacts {
        &self.facts
    }
}

impl PolicyRevision {
    fn controller(&self) -> Option<&str> {
        self.owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
    }

    fn is_owned_by(&self, uid: &str) -> bool {
        self.controller() == Some(uid)
    }

    /// Returns whether it has no controller, and may get one.
    fn is_adoptable(&self) -> bool {
        self.labelled && self.controller().is_none() && !self.deleting
    }
}

/// A shadow, as far as revisions depend on it; also one that is being deleted, or that an earlier Node owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledShadow {
    /// The name of its node.
    pub node: String,
    /// The revision that its label names.
    pub label: Option<String>,
    pub deleting: bool,
    /// True if its node has no attempt and is what the policy makes of it.
    pub follows: bool,
}

/// The input of [`plan`].
pub struct RevisionSnapshot<'a> {
    /// The operator's resource; `None` while there is none, or while it is being deleted.
    pub operator: Option<&'a OperatorFacts>,
    pub policy: &'a Policy,
    /// True if there are nodes, and all of them follow the policy.
    pub all_follow: bool,
    /// The ControllerRevisions of the namespace.
    pub revisions: &'a [PolicyRevision],
    pub shadows: &'a [LabelledShadow],
}

/// One write. A plan has at most one for each object: the next one needs the resourceVersion of the object after it.
#[derive(Clone, Debug, PartialEq)]
pub enum RevisionAction {
    /// Adds the operator's resource to the owners. Only after a live read that finds it with the same uid and not being
    /// deleted.
    Adopt { name: String, patch: Value },
    /// Removes the operator's resource from the owners, since the labels no longer match. The answer 404 means that
    /// there is nothing to release.
    Release { name: String, patch: Value },
    /// Writes this count into the status, at the resourceVersion that it was read at. Only then is the new name used.
    RaiseCollisionCount(i32),
    /// Creates it. If the name is taken, that object is read live and added to the next snapshot, which decides.
    Create(Box<ControllerRevision>),
    /// Gives an earlier revision the highest number: the policy has returned to it.
    Renumber { name: String, patch: Value },
    /// Deletes this very revision.
    Delete { name: String, uid: String },
}

/// The writes that are due, in their order, and the state of the revisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionPlan {
    pub actions: Vec<RevisionAction>,
    /// The last revision that all nodes have followed.
    pub current: Option<String>,
    /// The revision of the policy in force; `None` until it exists.
    pub update: Option<String>,
    /// The label of each shadow that has to have one, by the name of its node.
    pub labels: BTreeMap<String, String>,
    /// The reason for which the policy has no revision, and what to do about it.
    pub problem: Option<String>,
}

/// Returns the revisions of the operator's resource with this uid, those included that it is about to adopt, the earliest
/// first.
pub fn history<'a>(operator_uid: &str, revisions: &'a [PolicyRevision]) -> Vec<&'a PolicyRevision> {
    let is_ours = |r: &&PolicyRevision| (r.labelled && r.is_owned_by(operator_uid)) || r.is_adoptable();
    let mut history: Vec<_> = revisions.iter().filter(is_ours).collect();
    history.sort_by_key(|revision| (revision.number, &revision.name));
    history
}

/// The revisions of one operator's resource.
struct History<'a> {
    operator: &'a OperatorFacts,
    revisions: Vec<&'a PolicyRevision>,
    /// The revision as which each of them is kept, by name: another one if they are equal.
    kept: BTreeMap<&'a str, &'a PolicyRevision>,
}

impl<'a> History<'a> {
    fn of(operator: &'a OperatorFacts, revisions: &'a [PolicyRevision]) -> Self {
        let mut history = Self { operator, revisions: history(&operator.uid, revisions), kept: BTreeMap::new() };
        let kept = |revision: &&'a PolicyRevision| {
            let equal = revision.content.as_ref().ok().and_then(|content| history.with(content));
            (revision.name.as_str(), equal.unwrap_or(revision))
        };
        history.kept = history.revisions.iter().map(kept).collect();
        history
    }

    /// Returns the revision that has a content; of several, the one that is kept.
    fn with(&self, content: &RevisionContent) -> Option<&'a PolicyRevision> {
        let equal = self.revisions.iter().copied().filter(|revision| revision.content.as_ref() == Ok(content));
        equal.max_by_key(|revision| (!revision.deleting, revision.number, &revision.name))
    }

    /// Returns whether a revision may be renumbered and deleted.
    fn is_writable(&self, revision: &PolicyRevision) -> bool {
        revision.is_owned_by(&self.operator.uid) && !revision.deleting
    }

    /// Returns the name under which the revision of this name is kept.
    fn name_kept(&self, name: &str) -> Option<&'a str> {
        self.kept.get(name).map(|kept| kept.name.as_str())
    }

    fn next_number(&self) -> i64 {
        self.revisions.last().map_or(1, |last| last.number.saturating_add(1))
    }

    /// Returns the write that makes `kept`, the revision of the policy, the latest one, unless it is that already.
    fn renumber(&self, kept: &PolicyRevision) -> Option<RevisionAction> {
        let others = self.revisions.iter().filter(|other| other.content != kept.content);
        let is_last = others.map(|other| other.number).max().is_none_or(|highest| highest < kept.number);
        let number = self.next_number();
        (!is_last && kept.number < number && self.is_writable(kept)).then(|| RevisionAction::Renumber {
            name: kept.name.clone(),
            patch: json!({"metadata": guard(kept), "revision": number}),
        })
    }

    /// Returns the revisions to delete: those that nothing names and another one is kept for, and the earliest of those that
    /// are neither live nor within the limit.
    fn surplus(&self, live: &BTreeSet<&str>, limit: usize) -> Vec<RevisionAction> {
        let idle = self.revisions.iter().copied().filter(|r| self.is_writable(r) && !live.contains(r.name.as_str()));
        let (single, equal): (Vec<&PolicyRevision>, Vec<_>) =
            idle.partition(|r| self.name_kept(&r.name) == Some(r.name.as_str()));
        let excess = single.len().saturating_sub(limit);
        // One that is still to be adopted may turn out to be another owner's.
        let spare = equal.into_iter().filter(|r| self.kept.get(r.name.as_str()).is_some_and(|r| self.is_writable(r)));
        let deleted = spare.chain(single.into_iter().take(excess));
        deleted.map(|r| RevisionAction::Delete { name: r.name.clone(), uid: r.uid.clone() }).collect()
    }
}

/// The part of a patch that guards it.
fn guard(revision: &PolicyRevision) -> Value {
    json!({"uid": revision.uid, "resourceVersion": revision.resource_version})
}

/// The owner reference to the operator's resource. It does not block the owner's deletion: where the cluster checks it,
/// that needs a right that the operator does not have.
fn owner(uid: &str) -> OwnerReference {
    use kube::Resource;
    OwnerReference {
        api_version: BottlerocketUpdateOperator::api_version(&()).into_owned(),
        kind: BottlerocketUpdateOperator::kind(&()).into_owned(),
        name: names::OPERATOR_NAME.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn ownership(operator: &OperatorFacts, revisions: &[PolicyRevision]) -> Vec<RevisionAction> {
    let change = |revision: &PolicyRevision| {
        let name = revision.name.clone();
        let mut owners: Vec<_> = revision.owners.iter().filter(|owner| owner.uid != operator.uid).cloned().collect();
        let patch = |owners| {
            let mut metadata = guard(revision);
            metadata["ownerReferences"] = json!(owners);
            json!({"metadata": metadata})
        };
        if revision.is_adoptable() {
            owners.push(owner(&operator.uid));
            return Some(RevisionAction::Adopt { name, patch: patch(owners) });
        }
        let released = revision.is_owned_by(&operator.uid) && !revision.labelled && !revision.deleting;
        released.then(|| RevisionAction::Release { name, patch: patch(owners) })
    };
    revisions.iter().filter_map(change).collect()
}

/// Returns the write that leads to a revision with a content that no revision has.
///
/// # Errors
/// There can be none, and the message says why.
fn create(
    history: &History<'_>,
    content: &RevisionContent,
    existing: &[PolicyRevision],
) -> Result<RevisionAction, String> {
    let operator = history.operator;
    let data = content.data();
    let text = data.to_string();
    if text.len() > DATA_LIMIT {
        return Err(format!(
            "spec.version is too large for a revision of the policy ({} bytes, at most {DATA_LIMIT}); shorten spec.version.exclude",
            text.len()
        ));
    }
    let collisions = operator.status.collision_count;
    let hash = name::hash(&text, collisions);
    let name = name::name(names::OPERATOR_NAME, &hash);
    // Whatever has the name is not this revision.
    if existing.iter().any(|other| other.name == name) {
        let Some(count) = collisions.unwrap_or(0).checked_add(1) else {
            return Err(format!("the name {name} is taken by another ControllerRevision; delete that one"));
        };
        return Ok(RevisionAction::RaiseCollisionCount(count));
    }
    let labels = [
        (names::APPLICATION_LABEL, names::APPLICATION),
        (names::OPERATOR_LABEL, names::OPERATOR_NAME),
        (names::HASH_LABEL, &hash),
    ];
    let cause = operator.change_cause.clone();
    Ok(RevisionAction::Create(Box::new(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: cause.map(|cause| [(names::CHANGE_CAUSE_ANNOTATION.to_owned(), cause)].into()),
            owner_references: Some(vec![owner(&operator.uid)]),
            ..ObjectMeta::default()
        },
        data: RawExtension(data),
        revision: Some(history.next_number()),
    })))
}

/// Returns the label that a shadow has to have. A node that follows the policy has its revision, without an attempt if it
/// needs none; any other keeps the revision that it was last brought to until its attempt has ended.
fn label(history: &History<'_>, shadow: &LabelledShadow, update: Option<&str>) -> Option<String> {
    let present = shadow.label.as_deref();
    let kept = present.map(|label| history.name_kept(label).unwrap_or(label));
    update.filter(|_| shadow.follows).or(kept).map(str::to_owned)
}

/// Returns the writes that are due, and the state of the revisions after those that were made.
///
/// At most one revision is created, or the collision count raised once.
pub fn plan(snapshot: &RevisionSnapshot<'_>) -> RevisionPlan {
    let RevisionSnapshot { operator, policy, all_follow, revisions, shadows } = snapshot;
    let Some(operator) = *operator else { return RevisionPlan::default() };
    let history = History::of(operator, revisions);
    let content = policy.is_usable().then(|| RevisionContent::of(policy));

    let mut plan = RevisionPlan { actions: ownership(operator, revisions), ..RevisionPlan::default() };
    let update = content.as_ref().and_then(|content| history.with(content));
    match (update, &content) {
        (Some(update), _) => plan.actions.extend(history.renumber(update)),
        (None, Some(content)) => match create(&history, content, revisions) {
            Ok(action) => plan.actions.push(action),
            Err(problem) => plan.problem = Some(problem),
        },
        (None, None) => {}
    }
    let update = update.map(|update| update.name.as_str());
    let followed = || operator.status.current_revision.as_deref().and_then(|name| history.name_kept(name));
    let current = update.filter(|_| *all_follow).or_else(followed);
    let labelled = shadows.iter().filter(|shadow| !shadow.deleting);
    plan.labels = labelled.filter_map(|shadow| Some((shadow.node.clone(), label(&history, shadow, update)?))).collect();

    // Also what a shadow names that is being deleted, or that is still to get another label.
    let named = shadows.iter().filter_map(|shadow| shadow.label.as_deref());
    let live = named.chain(plan.labels.values().map(String::as_str)).chain(update).chain(current).collect();
    plan.actions.extend(history.surplus(&live, policy.revision_history_limit));
    plan.current = current.map(str::to_owned);
    plan.update = update.map(str::to_owned);
    plan
}
