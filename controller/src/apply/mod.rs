//! Carries out decisions, and makes none but the live check before a permit: one function per action. Each is guarded
//! by the uid or the resourceVersion of the object that the decision was made on, and preceded by a check that this
//! process still leads.

mod applier;
mod event;
mod exact;
mod node;
mod permit;
mod pods;
mod revision;
mod shadow;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unanswered_cases;

use std::time::Duration;

use models::backoff::Delays;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorStatus};

use self::applier::PERMIT_LIMIT;
use crate::decisions::{self, Line, Pair};
use planner::claims::ClaimsMade;
use planner::plan::Action;
use planner::view::{ClusterView, NodeView, OwnerHealth};

pub use applier::{Applier, ApplyError};
pub(crate) use applier::{create_params, delete_this, patch_params};
pub use pods::{Evicted, Removal};
pub use revision::Pace;

/// The results of an action besides the objects that it wrote, which went into the caches.
#[derive(Debug, Default)]
pub struct Learned {
    /// The claims of the node in its attempt, with the one that was made.
    pub claimed: Option<ClaimsMade>,
    /// Health of the pods of an owner (uid) on other nodes.
    pub owner: Option<(String, OwnerHealth)>,
    /// The node's own Lease as read: its time of renewal, if there is one, and the time of the read.
    pub lease: Option<(Option<jiff::Timestamp>, jiff::Timestamp)>,
}

impl Applier {
    /// Carries out one action about one node. After a call with an unknown result the node is read again.
    pub async fn act(&self, node: &NodeView, action: Action) -> Result<Learned, ApplyError> {
        // A status is read again with its write.
        let is_read = matches!(action, Action::Status { .. });
        let result = self.carry_out(node, action).await;
        if !is_read && result.as_ref().is_err_and(ApplyError::is_unknown) {
            self.read_node(&node.facts.name).await;
        }
        self.log_decisions(node);
        result
    }

    /// Logs the decisions about a node since this view of it.
    fn log_decisions(&self, before: &NodeView) {
        let name = &before.facts.name;
        let Some(facts) = self.caches.nodes.get(name).filter(|facts| facts.uid == before.facts.uid) else { return };
        let uid = before.shadow.as_ref().map(|shadow| &shadow.uid);
        let Some(shadow) = self.caches.shadows.get(name).filter(|shadow| Some(&shadow.uid) == uid) else { return };
        let claimed_before = !before.claims_made.fields.is_empty();
        let before = Pair { facts: &before.facts, shadow: before.shadow.as_deref() };
        let after = Pair { facts: &facts, shadow: Some(&shadow) };
        decisions::of_node(before, after, claimed_before).into_iter().for_each(Line::log);
    }

    async fn carry_out(&self, node: &NodeView, action: Action) -> Result<Learned, ApplyError> {
        self.leadership.check()?;
        let shadow = || node.shadow.as_ref().ok_or(ApplyError::Changed("the shadow"));
        let mut learned = Learned::default();
        match action {
            Action::Status { status, note } => {
                let shadow = shadow()?;
                self.record_status(shadow, &status).await?;
                self.metrics.wrote(shadow, &status, self.leadership.now());
                note.into_iter().for_each(|note| self.notify(&node.facts, note));
            }
            Action::Spec { spec } => self.write_spec(shadow()?, &spec).await?,
            Action::Claim { fields, note } => {
                self.claim(&node.facts, fields).await?;
                learned.claimed = Some(node.claims_made.and(node.facts.claims_in_effect(), fields));
                note.into_iter().for_each(|note| self.notify(&node.facts, note));
            }
            Action::Release => self.release(node).await?,
            Action::Hook { request } => self.ask_hooks(&node.facts, request.as_deref()).await?,
            Action::Permit { nonce, rules, pods_stay } => {
                // After this time the result of the check is outdated.
                let issued =
                    tokio::time::timeout(PERMIT_LIMIT, self.issue_permit(node, &nonce, rules, pods_stay)).await;
                issued.unwrap_or(Err(ApplyError::Late))?;
            }
            Action::ReadOwner { owner, namespace, labels, nodes } => {
                let health = self.read_owner(&owner, &namespace, &labels, &nodes).await?;
                learned.owner = Some((owner, health));
            }
            Action::ReadReplicaSet { set } => {
                let health = self.read_replica_set(&set).await?;
                learned.owner = Some((set.uid, health));
            }
            Action::ReadLease { .. } => learned.lease = Some(self.read_lease(&node.facts.name).await?),
        }
        Ok(learned)
    }

    /// Applies the operator's status, slots and counts in one write at the version that the plan was made on, and
    /// publishes Events about what is new in it. The write keeps nothing of the view but the operator's resource.
    pub fn write_operator(
        &self,
        view: &ClusterView,
        status: &BottlerocketUpdateOperatorStatus,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send + use<> {
        let (applier, operator, status) = (self.clone(), view.operator.clone(), status.clone());
        let began_again = |rollout: &ActiveRollout| planner::plan::began_again(view, rollout);
        let lines = match &operator {
            Some(operator) => decisions::of_operator(&operator.status, &status, &began_again),
            None => Vec::new(),
        };
        async move {
            let Some(operator) = operator else { return Ok(()) };
            applier.leadership.check()?;
            shadow::record_operator_status(&applier, &operator, &status).await?;
            lines.into_iter().for_each(Line::log);
            let mut news = planner::plan::news(&operator.status.conditions, &status.conditions);
            news.extend(planner::plan::approval_news(&operator.status, &status));
            news.extend(planner::plan::continue_news(&operator.status, &status));
            for note in news.into_iter().chain(planner::plan::urgent_news(&operator.status, &status)) {
                let about = event::operator(&operator, &applier.namespace);
                applier.recorder.send(about, note, applier.leadership.now());
            }
            Ok(())
        }
    }
}

/// Returns the first and the longest pause after a failed action: short after a conflict, which the next check resolves.
pub fn pauses(error: &ApplyError) -> Delays {
    let conflict = matches!(error, ApplyError::Changed(_)) || error.code() == Some(409);
    let (first, longest) = if conflict { (50, 3_200) } else { (500, 30_000) };
    (Duration::from_millis(first), Duration::from_millis(longest))
}
