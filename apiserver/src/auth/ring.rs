//! The cluster's public keys as this server has them: read when a token needs them, and read again when one does not fit.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::keys::{ClusterKeys, KeysError, Said, Wanted};
use super::token::Token;
use crate::cluster::{CallError, Cluster};
use crate::metrics::{FetchResult, Metrics};

/// How long to wait between two looks, whatever strangers send. A cluster that signs with a new key publishes it first.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);
/// How long a token waits for keys that somebody else is reading. Then it is held against those that there are.
const TURN: Duration = Duration::from_secs(2);

/// Keeps the keys.
#[derive(Default)]
pub(crate) struct KeyRing {
    current: RwLock<Option<Arc<ClusterKeys>>>,
    /// When the cluster last answered, or did not. Who holds the lock asks; the others wait for the answer.
    looked: AsyncMutex<Option<Instant>>,
}

/// Why there are no new keys.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("the cluster's published keys could not be asked for")]
    Call(#[from] CallError),
    #[error("the cluster's published keys cannot be used")]
    Keys(#[from] KeysError),
}

impl KeyRing {
    /// What the cluster's keys say about a token; none where there are no keys. A token that the keys do not fit has them
    /// read again, but not too often.
    pub(crate) async fn judge(
        &self,
        cluster: &Cluster,
        metrics: &Metrics,
        token: &Token,
        wanted: &Wanted,
        now: Timestamp,
    ) -> Option<Said> {
        let before = self.current();
        let judged = |keys: &Option<Arc<ClusterKeys>>| keys.as_ref().map(|k| k.judge(token.expose(), wanted, now));
        let said = judged(&before);
        match said {
            Some(Said::Signed | Said::Refused(_)) => return said,
            None | Some(Said::UnknownKey | Said::OtherIssuer) => {}
        }
        self.look(cluster, metrics, before.as_ref()).await;
        judged(&self.current())
    }

    /// Reads the keys if there are none.
    pub(crate) async fn warm(&self, cluster: &Cluster, metrics: &Metrics) {
        self.look(cluster, metrics, None).await;
    }

    /// As if somebody read the keys for as long as this is held.
    #[cfg(test)]
    pub(crate) async fn looking(&self) -> impl Drop {
        self.looked.lock().await
    }

    fn current(&self) -> Option<Arc<ClusterKeys>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the keys, unless somebody else has since `before`, or it was tried a moment ago.
    async fn look(&self, cluster: &Cluster, metrics: &Metrics, before: Option<&Arc<ClusterKeys>>) {
        let Ok(mut looked) = timeout(TURN, self.looked.lock()).await else { return };
        let same = match (self.current().as_ref(), before) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (now, before) => now.is_none() && before.is_none(),
        };
        if !same || looked.is_some_and(|at| at.elapsed() < BETWEEN_LOOKS) {
            return;
        }
        let read = read(cluster).await;
        // Counted from the end: a cluster that answers slowly is asked the less.
        *looked = Some(Instant::now());
        match read {
            Ok(keys) => {
                metrics.key_fetch(FetchResult::Read);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(keys));
            }
            Err(error) => {
                metrics.key_fetch(FetchResult::Error);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "tokens are judged by TokenReview alone until the cluster's keys can be read"
                );
            }
        }
    }
}

async fn read(cluster: &Cluster) -> Result<ClusterKeys, LookError> {
    let discovery = cluster.published("/.well-known/openid-configuration").await?;
    let set = cluster.published("/openid/v1/jwks").await?;
    Ok(ClusterKeys::read(&discovery, &set)?)
}
