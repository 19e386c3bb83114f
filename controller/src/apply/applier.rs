//! The applier that every action needs: its clients and caches, its errors, and the reads after a call without an answer.

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ListParams, PatchParams, PostParams, Preconditions};
use kube::core::DeserializeGuard;
use models::backoff::{Backoff, Delays};
use models::failures::with_causes;
use models::names;
use models::schema::UNDECLARED;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::event::Recorder;
use crate::caches::Caches;
use crate::leader::{Leadership, LostLease};
use crate::metrics::Metrics;
use crate::tls::Signer;

/// Maximum time for the check before a reboot permit and the write of the permit together.
pub(super) const PERMIT_LIMIT: Duration = Duration::from_secs(15);

/// Pause before a node is read again after a failed read, at first and at most.
const READ_PAUSES: Delays = (Duration::from_millis(500), Duration::from_secs(5));

/// Time for which the refusal of a read counts as no answer where it may pass: the API server is overloaded, or has not loaded a right or a key
/// yet. A read that has no answer for so long is logged.
const REFUSED_LIMIT: Duration = Duration::from_secs(60);

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
    /// The watch of a node's pods did not begin again in time.
    #[error("the pods on the node could not be read")]
    PodsUnread,
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
            Self::NoEffect(_) => Some(200),
            _ => None,
        }
    }

    /// Returns whether the operation may have been carried out all the same: there was no answer, or it came from a
    /// server that had given up on it. One that refuses a field is an answer, whatever its code.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_unknown(source),
            Self::Late => true,
            _ => false,
        }
    }

    /// Returns whether the action is kept from having an effect, and will be for as long as something stays as it is: not by a conflict, an
    /// object that is gone, a lost Lease, or what the check before a permit found. One that takes too long has to be shown: behind slow
    /// webhooks each one does.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Lost(_) | Self::Changed(_) | Self::NoPermit(_))
            && !matches!(self.code(), Some(404 | 409 | 429))
    }

    /// Returns whether the operation was refused for a reason that may hold for every operation of its kind.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_lasting() || self.code() == Some(429)
    }

    /// Returns the error with its causes.
    pub(crate) fn text(&self) -> String {
        if let Self::Api { what, source } = self
            && let kube::Error::Api(status) = source.as_ref()
        {
            return format!("{what} failed: {} ({})", status.message, status.code);
        }
        with_causes(self)
    }

    /// Returns the operation as its word in metrics.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Api { what, .. } => what,
            Self::PodsUnread => "pod_list",
            _ => "other",
        }
    }
}

#[derive(Clone)]
pub struct Applier {
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) leadership: Leadership,
    pub(crate) signer: Signer,
    pub(crate) metrics: Metrics,
    pub(crate) caches: Caches,
    pub(super) recorder: Recorder,
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
        let recorder = Recorder::new(client.clone(), identity);
        Self { client, namespace, leadership, signer, metrics, caches, recorder }
    }

    /// Returns the API of a kind of objects in the operator's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the body of an apply to a part of such an object, at the version that it was decided on.
    pub(crate) fn body<K>(&self, name: &str, version: &str, section: &str, part: &impl Serialize) -> Value
    where
        K: kube::Resource<DynamicType = ()>,
    {
        json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name, "namespace": self.namespace, "resourceVersion": version},
            section: part,
        })
    }

    /// Reads an object until there is an answer, or this process no longer leads. It is read as a list of one, which
    /// RBAC permits. Without the answer, a write that was carried out would have no line, no Event and no count.
    pub(super) async fn read<K>(&self, api: Api<DeserializeGuard<K>>, name: &str, take: impl Fn(&K))
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let (began, mut backoff, mut is_late) = (Instant::now(), Backoff::default(), false);
        while self.leadership.check().is_ok() {
            let error = match api.list(&only).await {
                // The watch names one that cannot be read.
                Ok(found) => return found.items.iter().filter_map(|found| found.0.as_ref().ok()).for_each(take),
                Err(error) => error,
            };
            let was_late = std::mem::replace(&mut is_late, began.elapsed() >= REFUSED_LIMIT);
            let goes_on = is_unknown(&error) || (may_pass(&error) && !is_late);
            if !goes_on || is_late != was_late {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    name,
                    error,
                    retried = goes_on,
                    "an object could not be read again after a call without an answer"
                );
            }
            if !goes_on {
                return;
            }
            tokio::time::sleep(backoff.next_delay(READ_PAUSES)).await;
        }
    }

    /// Reads a node and its shadow into the caches after a call with an unknown result: the next decision is made on
    /// the state in the API server.
    pub(crate) async fn read_node(&self, node: &str) {
        let shadow = names::shadow_name(node);
        futures::join!(
            self.read(Api::all(self.client.clone()), node, |node| self.caches.nodes.written(node)),
            self.read(self.api(), &shadow, |shadow| self.caches.shadows.written(shadow)),
        );
    }

    pub(super) fn sign(&self, claims: &impl Serialize) -> Result<String, ApplyError> {
        let signed = self.signer.sign(claims).ok_or(ApplyError::NoKey)?;
        signed.map_err(|source| ApplyError::Signing(Box::new(source)))
    }
}

/// Returns the parameters of a creation, with the field manager.
pub(crate) fn create_params() -> PostParams {
    PostParams { field_manager: Some(names::CONTROLLER_MANAGER.to_owned()), ..PostParams::default() }
}

/// Returns the parameters of a patch that is not an apply, with the field manager.
pub(crate) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Deletes this very object; returns false if it was gone.
pub(crate) async fn delete_this<K>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    params: DeleteParams,
    what: &'static str,
) -> Result<bool, ApplyError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = params.preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    match api.delete(name, &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(ApplyError::api(what)(error)),
    }
}

#[cfg(test)]
impl Applier {
    /// Returns the applier of a leader that knows nothing.
    pub(crate) fn of_leader(client: kube::Client) -> Self {
        let (leadership, metrics) = (Leadership::forever(), Metrics::new().unwrap());
        let (namespace, identity) = ("brupop-system".to_owned(), "me".to_owned());
        let caches = Caches::new(&metrics.watch_errors);
        Self::new(client, namespace, identity, leadership, Signer::default(), metrics, caches)
    }
}

fn is_unknown(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 && !status.message.contains(UNDECLARED),
        _ => true,
    }
}

/// Returns whether a read is refused for what is not of its object, and may be over in a moment.
fn may_pass(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 429))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn call_may_have_been_carried_out_unless_its_object_was_refused() {
        for (message, code, expected) in [
            ("the object has been modified", 409, false),
            (
                "failed to create typed patch object (n/a; g/v, Kind=K): .status.x: field not declared in schema",
                500,
                false,
            ),
            ("failed calling webhook \"w\": context deadline exceeded", 500, true),
            ("etcdserver: request timed out", 504, true),
        ] {
            let answer = kube::Error::Api(Status::failure(message, "").with_code(code).boxed());
            assert_eq!(ApplyError::api("a write")(answer).is_unknown(), expected, "{message}");
        }
    }
}
