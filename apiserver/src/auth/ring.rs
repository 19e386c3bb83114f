//! This server's copy of the cluster's public keys: read when a token needs them, and read again when one does not
//! match.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::keys::{ClusterKeys, KeyVerdict};
use super::token::Token;
use crate::cluster::Cluster;
use crate::metrics::{FetchResult, Metrics};

/// Minimum time between two reads, whatever unauthenticated clients send. A cluster publishes a new key before it signs
/// with it.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(10);
/// Time that a token waits for keys that another request is reading. Then it is checked with the present ones.
const WAIT_LIMIT: Duration = Duration::from_secs(2);

/// Keeps the keys.
#[derive(Default)]
pub(crate) struct KeyRing {
    current: RwLock<Option<Arc<ClusterKeys>>>,
    /// Time of the last read, and whether it succeeded. The holder of the lock reads; the others wait for the result.
    fetched: AsyncMutex<Option<(Instant, bool)>>,
}

/// True if the keys are those that the cluster published a moment ago.
type Fresh = bool;

impl KeyRing {
    /// Checks a token with the cluster's keys; also returns whether they are all that the cluster publishes. `None`
    /// without keys. A token that the keys do not match has them read again, at a limited rate.
    pub(crate) async fn judge(
        &self,
        cluster: &Cluster,
        metrics: &Metrics,
        token: &Token,
        agent: &str,
        now: Timestamp,
    ) -> Option<(KeyVerdict, Fresh)> {
        let before = self.current();
        let judged = |keys: &Option<Arc<ClusterKeys>>| keys.as_ref().map(|k| k.judge(token.expose(), agent, now));
        match judged(&before) {
            Some(verdict @ (KeyVerdict::Signed { .. } | KeyVerdict::Refused(_) | KeyVerdict::UnusableKey)) => {
                return Some((verdict, true));
            }
            None | Some(KeyVerdict::UnknownKey) => {}
        }
        let fresh = self.fetch(cluster, metrics, before.as_ref()).await;
        judged(&self.current()).map(|verdict| (verdict, fresh))
    }

    /// Reads the keys if there are none.
    pub(crate) async fn warm(&self, cluster: &Cluster, metrics: &Metrics) {
        self.fetch(cluster, metrics, None).await;
    }

    /// Acts as another request that reads the keys, for as long as this is held.
    #[cfg(test)]
    pub(crate) async fn fetching(&self) -> impl Drop {
        self.fetched.lock().await
    }

    fn current(&self) -> Option<Arc<ClusterKeys>> {
        self.current.read().clone()
    }

    /// Reads the keys, unless another request has since `before`, or it was tried a moment ago.
    async fn fetch(&self, cluster: &Cluster, metrics: &Metrics, before: Option<&Arc<ClusterKeys>>) -> Fresh {
        let Ok(mut fetched) = timeout(WAIT_LIMIT, self.fetched.lock()).await else { return false };
        let same = match (self.current().as_ref(), before) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (now, before) => now.is_none() && before.is_none(),
        };
        if let Some((at, answered)) = *fetched
            && (!same || at.elapsed() < SHORTEST_INTERVAL)
        {
            return answered;
        }
        let read = read(cluster).await;
        let fresh = read.is_ok();
        // Counted from the end: a cluster that answers slowly is called less often.
        *fetched = Some((Instant::now(), fresh));
        match read {
            Ok(keys) => {
                metrics.key_fetches.inc(FetchResult::Read);
                *self.current.write() = Some(Arc::new(keys));
            }
            Err(error) => {
                metrics.key_fetches.inc(FetchResult::Error);
                tracing::warn!(
                    error = &*error as &dyn std::error::Error,
                    "the cluster's keys cannot be read: every token is sent to TokenReview"
                );
            }
        }
        fresh
    }
}

async fn read(cluster: &Cluster) -> anyhow::Result<ClusterKeys> {
    let set = cluster.published("/openid/v1/jwks").await;
    let set = set.context("the cluster's published keys could not be requested")?;
    ClusterKeys::read(&set).context("the cluster's published keys cannot be used")
}
