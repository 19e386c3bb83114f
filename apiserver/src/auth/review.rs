//! TokenReviews, and a short-lived cache of their results.
//!
//! A token is reviewed only if the cluster's public keys confirm that the cluster signed it, for this audience. Where
//! they decide nothing (they cannot be read, or this server cannot use the one that the token names) the TokenReview
//! alone decides.
//!
//! A result is reused for a few seconds: one burst of an agent (its stream, then a report or two) costs one
//! TokenReview. Requests with the same token at the same time share one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::names::TOKEN_AUDIENCE;
use models::time::between;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::identity::Bearer;
use super::keys::KeyVerdict;
use super::ring::KeyRing;
use super::token::{Token, TokenDigest};
use crate::cluster::{CallError, Cluster};
use crate::metrics::{Metrics, ReviewResult};
use crate::refusal::Refusal;

/// Time that a valid token is cached: a token of a deleted pod, which the API server itself accepts for about ten seconds more, is good for so
/// much longer. The reports of one step come within it; kubelets cache their clients' tokens for two minutes.
const VALID_FOR: Duration = Duration::from_secs(30);
/// Time that an invalid token is cached. Its bearer may be waiting for a skewed clock or a lagging key.
const INVALID_FOR: Duration = Duration::from_secs(1);
/// Maximum number of cached tokens, twice as many as a large cluster has agents. Above that, tokens are reviewed again.
const REMEMBERED: usize = 10_000;
/// Concurrent TokenReviews. More would only queue up in the API server.
const CONCURRENT: usize = 32;
/// The same for unchecked tokens: few, and enough for a cluster that publishes no keys.
const CONCURRENT_UNCHECKED: usize = 8;
/// Time-out of a request's wait for a review.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// A review without a bearer.
#[derive(Debug)]
pub(crate) enum ReviewError {
    /// The token is not valid.
    Refused(Refusal),
    /// No decision is possible now.
    Unavailable(CallError),
    /// Too many requests wait for a review.
    Busy,
    /// The token is signed by an unknown key, and the cluster does not answer which it publishes now.
    NoKeys,
}

#[derive(Clone)]
struct Remembered {
    verdict: Result<Arc<Bearer>, Refusal>,
    until: Instant,
}

/// Cache entry of one token. The holder of the lock does the review; the others wait for its result.
type Slot = Arc<AsyncMutex<Option<Remembered>>>;

/// Evidence for a token before it is reviewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The cluster's own signature, over an agent's name and this audience.
    Signed {
        /// Uid of the agent's node, if the token names it.
        node: Option<String>,
    },
    /// None: the cluster's keys cannot be read, or the one that the token names cannot be used here.
    Unchecked,
}

/// Review permits and cache of tokens with the same evidence, so that unchecked tokens take nothing from those that the
/// cluster signed.
struct Lane {
    permits: Semaphore,
    slots: Mutex<HashMap<TokenDigest, Slot>>,
}

/// Reviews tokens.
pub(crate) struct Reviewer {
    cluster: Cluster,
    /// User name of the only service account whose tokens are accepted.
    agent: String,
    metrics: Metrics,
    keys: KeyRing,
    signed: Lane,
    unchecked: Lane,
    now: fn() -> Timestamp,
}

impl Reviewer {
    pub(crate) fn new(cluster: Cluster, agent: String, metrics: Metrics, now: fn() -> Timestamp) -> Self {
        let (signed, unchecked) = (Lane::new(CONCURRENT), Lane::new(CONCURRENT_UNCHECKED));
        Self { cluster, agent, metrics, keys: KeyRing::default(), signed, unchecked, now }
    }

    /// Reads the cluster's keys before the first token arrives.
    pub(crate) async fn warm(&self) {
        self.keys.warm(&self.cluster, &self.metrics).await;
    }

    /// Returns the bearer of a token that was found valid a moment ago.
    pub(crate) fn remembered(&self, token: &Token) -> Option<Arc<Bearer>> {
        let bearer = [&self.signed, &self.unchecked].into_iter().find_map(|lane| self.recall(lane, token)?.ok())?;
        self.metrics.token_reviews.inc(ReviewResult::Cached);
        Some(bearer)
    }

    /// Checks a token with the cluster's keys. Makes no call to the cluster, unless the keys have to be read.
    pub(crate) async fn check(&self, token: &Token) -> Result<Evidence, ReviewError> {
        match self.keys.judge(&self.cluster, &self.metrics, token, &self.agent, (self.now)()).await {
            Some((KeyVerdict::Signed { node }, _)) => Ok(Evidence::Signed { node }),
            Some((KeyVerdict::Refused(refusal), _)) => Err(self.forged(refusal)),
            Some((KeyVerdict::UnknownKey, true)) => Err(self.forged(Refusal::UnknownKey)),
            Some((KeyVerdict::UnknownKey, false)) => Err(ReviewError::NoKeys),
            Some((KeyVerdict::UnusableKey, _)) | None => Ok(Evidence::Unchecked),
        }
    }

    /// Reviews a token and returns its bearer.
    pub(crate) async fn review(&self, token: &Token, evidence: &Evidence) -> Result<Arc<Bearer>, ReviewError> {
        let lane = match evidence {
            Evidence::Signed { .. } => &self.signed,
            Evidence::Unchecked => {
                self.metrics.unchecked_tokens.inc();
                &self.unchecked
            }
        };
        let slot = lane.slot(token.digest());
        let mut slot = slot.lock().await;
        if let Some(verdict) = self.counts(slot.as_ref(), token) {
            self.metrics.token_reviews.inc(ReviewResult::Cached);
            return verdict.map_err(ReviewError::Refused);
        }
        let verdict =
            self.ask(token, lane).await.inspect_err(|_| self.metrics.token_reviews.inc(ReviewResult::Error))?;
        let keep = match &verdict {
            Ok(bearer) => {
                self.metrics.token_reviews.inc(ReviewResult::Authenticated);
                valid_for(bearer.expires, (self.now)())
            }
            Err(_) => {
                self.metrics.token_reviews.inc(ReviewResult::Refused);
                INVALID_FOR
            }
        };
        *slot = Some(Remembered { verdict: verdict.clone(), until: Instant::now() + keep });
        verdict.map_err(ReviewError::Refused)
    }

    fn forged(&self, refusal: Refusal) -> ReviewError {
        self.metrics.token_reviews.inc(ReviewResult::RefusedByKeys);
        ReviewError::Refused(refusal)
    }

    /// Returns the cached result for a token, unless a review of it is in progress.
    fn recall(&self, lane: &Lane, token: &Token) -> Option<Result<Arc<Bearer>, Refusal>> {
        let slot = Arc::clone(lane.slots.lock().get(&token.digest())?);
        let slot = slot.try_lock().ok()?;
        self.counts(slot.as_ref(), token)
    }

    /// Returns a cached result that is still valid.
    fn counts(&self, slot: Option<&Remembered>, token: &Token) -> Option<Result<Arc<Bearer>, Refusal>> {
        let Remembered { verdict, until } = slot?;
        // Checked each time, and not only when caching: the wall clock may have been set forward meanwhile.
        let expired = token.expires().is_some_and(|expires| expires <= (self.now)());
        (Instant::now() < *until && !(expired && verdict.is_ok())).then(|| verdict.clone())
    }

    async fn ask(&self, token: &Token, lane: &Lane) -> Result<Result<Arc<Bearer>, Refusal>, ReviewError> {
        let _permit = match timeout(WAIT_LIMIT, lane.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => return Err(ReviewError::Busy),
        };
        let status = self.cluster.review(token.expose()).await.map_err(ReviewError::Unavailable)?;
        if status.authenticated != Some(true) {
            // Some authenticators quote their input.
            let error = status.error.as_deref().filter(|error| !error.contains(token.expose()));
            tracing::debug!(error, "the cluster does not accept a token");
            return Ok(Err(Refusal::NotAuthenticated));
        }
        // An authenticator without support for audiences accepts any and returns none.
        if !status.audiences.unwrap_or_default().iter().any(|audience| audience == TOKEN_AUDIENCE) {
            return Ok(Err(Refusal::WrongAudience));
        }
        let user = status.user.unwrap_or_default();
        Ok(Ok(Arc::new(Bearer::new(&user, token.expires()))))
    }
}

impl Lane {
    fn new(permits: usize) -> Self {
        Self { permits: Semaphore::new(permits), slots: Mutex::default() }
    }

    fn slot(&self, digest: TokenDigest) -> Slot {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&digest) {
            return Arc::clone(slot);
        }
        if slots.len() >= REMEMBERED {
            let now = Instant::now();
            slots.retain(|_, slot| match slot.try_lock() {
                Ok(slot) => slot.as_ref().is_some_and(|remembered| now < remembered.until),
                // A review of it is in progress.
                Err(_) => true,
            });
        }
        let slot = Slot::default();
        if slots.len() < REMEMBERED {
            slots.insert(digest, Arc::clone(&slot));
        }
        slot
    }
}

/// Returns the time that a valid token is cached: never past its expiry.
fn valid_for(expires: Option<Timestamp>, now: Timestamp) -> Duration {
    expires.map_or(VALID_FOR, |expires| between(now, expires).min(VALID_FOR))
}

#[cfg(test)]
mod tests;
