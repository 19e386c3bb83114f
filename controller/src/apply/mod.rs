//! Carries out decisions, and makes none but the live check before a permit: one function per action. Each is guarded
//! by the uid or the resourceVersion of the object that the decision was made on, and preceded by a check that this
//! process still leads.

mod event;
mod node;
mod permit;
mod pods;
mod revision;
mod shadow;
#[cfg(test)]
mod tests;

use std::time::Duration;

use models::backoff::{Backoff, Delays};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, ListParams};
use models::names;
pub use pods::{Evicted, Removal};
pub use revision::Pace;

use crate::cache::Cache;
use crate::caches::Caches;
use crate::decisions::{self, Line, Pair};
use crate::leader::{Leadership, LostLease};
use crate::metrics::Metrics;
use crate::tls::Signer;
use planner::plan::{Action, Note};
use planner::view::{ClusterView, NodeFacts, NodeView, OperatorFacts, OwnerHealth, RevisionFacts, ShadowFacts};

/// Maximum time for the check before a reboot permit and the write of the permit together.
const PERMIT_LIMIT: Duration = Duration::from_secs(15);

/// Pause before a node is read again after a failed read, at first and at most.
const READ_PAUSES: Delays = (Duration::from_millis(500), Duration::from_secs(5));

/// The reason why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server refused, or did not answer.
    #[error("{what} failed")]
    Api { what: &'static str, source: Box<kube::Error> },
    #[error(transparent)]
    Lost(#[from] LostLease),
    #[error("{0} changed since the decision")]
    Changed(&'static str),
    /// The API server accepted the write, and something that changes objects on their way undid a part of it.
    #[error("{0} was written without effect: a mutating webhook or policy changes it")]
    NoEffect(&'static str),
    #[error("no permit: {0}")]
    NoPermit(String),
    /// The check before a reboot permit and the write of the permit took too long.
    #[error("the check before the reboot permit did not finish within {PERMIT_LIMIT:?}")]
    Late,
    /// A permit or a statement of settings could not be signed.
    #[error("nothing can be signed: the signing key is not usable")]
    Signing(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("nothing can be signed: the signing key is not there yet")]
    NoKey,
}

impl ApplyError {
    pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { what, source: Box::new(source) }
    }

    /// Returns the status code of the API server's answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether the operation may have been carried out all the same: there was no answer, or it came from a
    /// server that had given up on it.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_unknown(source),
            Self::Late => true,
            _ => false,
        }
    }

    /// Returns the operation as its word in metrics.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Api { what, .. } => what,
            _ => "other",
        }
    }
}

/// The results of an action besides the objects that it wrote, which went into the caches.
#[derive(Debug, Default)]
pub struct Learned {
    pub claimed: bool,
    /// Health of the pods of an owner (uid) on other nodes.
    pub owner: Option<(String, OwnerHealth)>,
    /// The node's own Lease as read: its time of renewal, if there is one, and the time of the read.
    pub lease: Option<(Option<jiff::Timestamp>, jiff::Timestamp)>,
}

#[derive(Clone)]
pub struct Applier {
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) leadership: Leadership,
    pub(crate) signer: Signer,
    pub(crate) metrics: Metrics,
    pub(crate) nodes: Cache<NodeFacts>,
    pub(crate) shadows: Cache<ShadowFacts>,
    pub(crate) operator: Cache<OperatorFacts>,
    pub(crate) revisions: Cache<RevisionFacts>,
    recorder: event::Recorder,
}

impl Applier {
    /// Returns an applier whose writes go into these caches.
    pub fn new(
        client: kube::Client,
        namespace: String,
        identity: String,
        leadership: Leadership,
        signer: Signer,
        metrics: Metrics,
        caches: Caches,
    ) -> Self {
        let recorder = event::Recorder::new(client.clone(), identity);
        let Caches { nodes, shadows, operator, revisions, .. } = caches;
        Self { client, namespace, leadership, signer, metrics, nodes, shadows, operator, revisions, recorder }
    }

    /// Carries out one action about one node. After a call with an unknown result the node is read again.
    pub async fn act(&self, node: &NodeView, action: Action) -> Result<Learned, ApplyError> {
        let result = self.carry_out(node, action).await;
        if let Err(error) = &result {
            self.rejected(&node.facts.name, error);
            if error.is_unknown() {
                self.read_node(&node.facts.name).await;
            }
        }
        self.log_decisions(node);
        result
    }

    /// Logs the decisions about a node since this view of it.
    fn log_decisions(&self, before: &NodeView) {
        let Some(facts) = self.nodes.get(&before.facts.name).filter(|facts| facts.uid == before.facts.uid) else {
            return;
        };
        let uid = before.shadow.as_ref().map(|shadow| &shadow.uid);
        let Some(shadow) = self.shadows.get(&before.facts.name).filter(|shadow| Some(&shadow.uid) == uid) else {
            return;
        };
        let before = Pair { facts: &before.facts, shadow: before.shadow.as_deref() };
        decisions::of_node(before, Pair { facts: &facts, shadow: Some(&shadow) }).into_iter().for_each(Line::log);
    }

    fn rejected(&self, node: &str, error: &ApplyError) {
        self.metrics.rejected(error.what(), error.code());
        if error.code() == Some(409) {
            // Another client wrote in between: nothing is wrong, and the decision is made again.
            tracing::debug!(node, error = error as &dyn std::error::Error, "decided on an old state");
        } else {
            tracing::warn!(node, error = error as &dyn std::error::Error, "action failed");
        }
    }

    /// Reads an object until there is an answer, or this process no longer leads. It is read as a list of one, which
    /// RBAC permits.
    async fn read<K>(&self, api: Api<K>, name: &str, take: impl Fn(&K))
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let mut backoff = Backoff::default();
        while self.leadership.check().is_ok() {
            match api.list(&only).await {
                Ok(found) => return found.items.iter().for_each(take),
                Err(error) if !is_unknown(&error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(name, error, "an object could not be read again after a call without an answer");
                    return;
                }
                Err(_) => {}
            }
            tokio::time::sleep(backoff.next_delay(READ_PAUSES)).await;
        }
    }

    /// Reads a node and its shadow into the caches after a call with an unknown result: the next decision is made on
    /// what the API server has.
    pub(crate) async fn read_node(&self, node: &str) {
        let shadow = names::shadow_name(node);
        futures::join!(
            self.read(Api::all(self.client.clone()), node, |node| self.nodes.written(node)),
            self.read(self.shadow_api(), &shadow, |shadow| self.shadows.written(shadow)),
        );
    }

    /// Reads the operator's resource into the cache, for the same reason.
    pub(crate) async fn read_operator(&self) {
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        self.read(api, names::OPERATOR_NAME, |operator| self.operator.written(operator)).await;
    }

    fn sign(&self, claims: &impl serde::Serialize) -> Result<String, ApplyError> {
        let signed = self.signer.sign(claims).ok_or(ApplyError::NoKey)?;
        signed.map_err(|source| ApplyError::Signing(Box::new(source)))
    }

    async fn carry_out(&self, node: &NodeView, action: Action) -> Result<Learned, ApplyError> {
        self.leadership.check()?;
        let shadow = || node.shadow.as_ref().ok_or(ApplyError::Changed("the shadow"));
        let mut learned = Learned::default();
        match action {
            Action::Status { status, note } => {
                let shadow = shadow()?;
                self.write_status(shadow, &status).await?;
                self.metrics.wrote(shadow, &status, self.leadership.now());
                if let Some(note) = note {
                    self.publish(&event::node(&node.facts), &note).await;
                }
            }
            Action::Spec { spec } => self.write_spec(shadow()?, &spec).await?,
            Action::Claim { fields, note } => {
                self.claim(&node.facts, fields).await?;
                learned.claimed = true;
                if let Some(note) = note {
                    self.publish(&event::node(&node.facts), &note).await;
                }
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
                let health = self.read_owner(&owner, &namespace, &labels, &nodes).await;
                learned.owner = Some((owner, health));
            }
            Action::ReadLease => learned.lease = Some(self.read_lease(&node.facts.name).await?),
        }
        Ok(learned)
    }

    /// Publishes an Event. A failure to publish has no further effect.
    async fn publish(&self, about: &ObjectReference, note: &Note) {
        if let Err(error) = self.recorder.publish(about, note, self.leadership.now()).await {
            tracing::warn!(
                object = about.name,
                error = &error as &dyn std::error::Error,
                "an Event could not be published"
            );
        }
    }

    /// Applies the operator's status, slots and counts in one write at the version that the plan was made on, and
    /// publishes Events about what is new in it.
    pub async fn write_operator(
        &self,
        view: &ClusterView,
        status: &models::operator::BottlerocketUpdateOperatorStatus,
    ) -> Result<(), ApplyError> {
        let Some(operator) = &view.operator else { return Ok(()) };
        self.leadership.check()?;
        shadow::apply_operator_status(self, operator, status).await?;
        decisions::of_operator(&operator.status, status).into_iter().for_each(Line::log);
        let news = planner::plan::news(&operator.status.conditions, &status.conditions);
        for note in news.into_iter().chain(planner::plan::urgent_news(&operator.status, status)) {
            self.publish(&event::operator(operator, &self.namespace), &note).await;
        }
        Ok(())
    }
}

fn is_unknown(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500,
        _ => true,
    }
}

/// Returns the first and the longest pause after a failed action: short after a conflict, which the next check resolves.
pub fn pauses(error: &ApplyError) -> Delays {
    let conflict = matches!(error, ApplyError::Changed(_)) || error.code() == Some(409);
    let (first, longest) = if conflict { (50, 3_200) } else { (500, 30_000) };
    (Duration::from_millis(first), Duration::from_millis(longest))
}
