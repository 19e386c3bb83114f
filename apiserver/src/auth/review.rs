//! TokenReviews, and a short memory of how they ended.
//!
//! A token that was just judged is not judged again for a few seconds: one burst of an agent (its stream, then a report or
//! two) costs one TokenReview. Requests with the same token at the same time share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::Refusal;
use super::identity::Bearer;
use super::token::{Token, TokenDigest};
use crate::cluster::{CallError, Cluster};
use crate::metrics::{Metrics, ReviewResult};

/// How long a good token is taken as good. Short against the time that the API server itself takes to notice a deleted
/// pod (about ten seconds), so that it adds little to it.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// How long a bad token is taken as bad. Its bearer may be waiting for a skewed clock or a lagging key.
const BAD_FOR: Duration = Duration::from_secs(1);
/// How many tokens are remembered, twice as many as a large cluster has agents. Above that, tokens are judged anew.
const REMEMBERED: usize = 10_000;
/// TokenReviews at one time. More would only queue up in the API server.
const CONCURRENT: usize = 32;
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(5);

/// Why there is no bearer.
#[derive(Debug)]
pub(crate) enum ReviewError {
    /// The token is not good.
    Refused(Refusal),
    /// Nobody can tell now.
    Unavailable(CallError),
    /// Too many others wait for an answer.
    Busy,
}

#[derive(Clone)]
struct Remembered {
    verdict: Result<Arc<Bearer>, Refusal>,
    until: Instant,
}

/// One token's memory. Who holds the lock does the review; the others wait for its result.
type Slot = Arc<AsyncMutex<Option<Remembered>>>;

/// Judges tokens.
pub(crate) struct Reviewer {
    cluster: Cluster,
    audience: String,
    metrics: Metrics,
    permits: Semaphore,
    slots: Mutex<HashMap<TokenDigest, Slot>>,
    now: fn() -> Timestamp,
}

impl Reviewer {
    pub(crate) fn new(cluster: Cluster, audience: String, metrics: Metrics, now: fn() -> Timestamp) -> Self {
        Self { cluster, audience, metrics, permits: Semaphore::new(CONCURRENT), slots: Mutex::new(HashMap::new()), now }
    }

    /// What the cluster says about the bearer of a token.
    pub(crate) async fn review(&self, token: &Token) -> Result<Arc<Bearer>, ReviewError> {
        let slot = self.slot(token.digest());
        let mut slot = slot.lock().await;
        // Looked at each time too, and not only when remembering: the wall clock may have been set forward meanwhile.
        let expired = token.expires().is_some_and(|expires| expires <= (self.now)());
        if let Some(remembered) = slot.as_ref()
            && Instant::now() < remembered.until
            && !(expired && remembered.verdict.is_ok())
        {
            self.metrics.token_review(ReviewResult::Cached);
            return remembered.verdict.clone().map_err(ReviewError::Refused);
        }
        let verdict = self.ask(token).await.inspect_err(|_| self.metrics.token_review(ReviewResult::Error))?;
        let keep = match &verdict {
            Ok(bearer) => {
                self.metrics.token_review(ReviewResult::Authenticated);
                good_for(bearer.expires, (self.now)())
            }
            Err(_) => {
                self.metrics.token_review(ReviewResult::Refused);
                BAD_FOR
            }
        };
        *slot = Some(Remembered { verdict: verdict.clone(), until: Instant::now() + keep });
        verdict.map_err(ReviewError::Refused)
    }

    async fn ask(&self, token: &Token) -> Result<Result<Arc<Bearer>, Refusal>, ReviewError> {
        let _permit = match timeout(TURN, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => return Err(ReviewError::Busy),
        };
        let status = self.cluster.review(token.expose(), &self.audience).await.map_err(ReviewError::Unavailable)?;
        if status.authenticated != Some(true) {
            // Some authenticators quote what they were given.
            let error = status.error.as_deref().filter(|error| !error.contains(token.expose()));
            tracing::debug!(error, "the cluster does not accept a token");
            return Ok(Err(Refusal::NotAuthenticated));
        }
        // An authenticator that knows nothing of audiences accepts any and returns none.
        if !status.audiences.unwrap_or_default().contains(&self.audience) {
            return Ok(Err(Refusal::WrongAudience));
        }
        let user = status.user.unwrap_or_default();
        Ok(Ok(Arc::new(Bearer::new(&user, token.expires()))))
    }

    fn slot(&self, digest: TokenDigest) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&digest) {
            return Arc::clone(slot);
        }
        if slots.len() >= REMEMBERED {
            let now = Instant::now();
            slots.retain(|_, slot| match slot.try_lock() {
                Ok(slot) => slot.as_ref().is_some_and(|remembered| now < remembered.until),
                // Somebody waits for it right now.
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

/// How long a good token is remembered: never past its expiry.
fn good_for(expires: Option<Timestamp>, now: Timestamp) -> Duration {
    match expires {
        Some(expires) => Duration::try_from(expires.duration_since(now)).unwrap_or(Duration::ZERO).min(GOOD_FOR),
        None => GOOD_FOR,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::token::tests::token;
    use crate::cluster::tests::{Fake, fake};

    const NOW: i64 = 1_700_000_000;

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    fn answer(authenticated: bool, audiences: Value) -> Value {
        let user = json!({"username": "u", "extra": {"authentication.kubernetes.io/node-name": ["a"]}});
        let mut review = json!({"spec": {"token": "…"}, "status": {"authenticated": authenticated, "user": user}});
        review["status"]["audiences"] = audiences;
        review
    }

    fn reviewer(answers: impl Fn(&Value) -> (u16, Value) + Send + 'static) -> (Reviewer, Fake) {
        let fake = fake(move |request| answers(&request.body));
        let reviewer = Reviewer::new(fake.cluster.clone(), "brupop-apiserver".into(), Metrics::new().unwrap(), now);
        (reviewer, fake)
    }

    #[tokio::test]
    async fn the_review_asks_for_our_audience_and_believes_only_an_answer_that_names_it() {
        for (audiences, good) in [
            (json!(["brupop-apiserver"]), true),
            (json!(["other", "brupop-apiserver"]), true),
            (json!(["https://kubernetes.default.svc"]), false),
            (json!([]), false),
            (Value::Null, false),
        ] {
            let reply = answer(true, audiences.clone());
            let (reviewer, fake) = reviewer(move |_| (201, reply.clone()));
            let result = reviewer.review(&token("a", NOW + 600)).await;
            if good {
                assert_eq!(result.unwrap().node_name.as_deref(), Some("a"));
            } else {
                assert!(matches!(result, Err(ReviewError::Refused(Refusal::WrongAudience))), "{audiences}");
            }
            let requests = fake.requests();
            assert_eq!(requests[0].path, "/apis/authentication.k8s.io/v1/tokenreviews");
            assert_eq!(requests[0].body["spec"]["audiences"], json!(["brupop-apiserver"]));
            assert_eq!(requests[0].body["spec"]["token"], token("a", NOW + 600).expose());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_good_token_is_reviewed_once_in_five_seconds_and_by_one_of_many_at_a_time() {
        let (reviewer, fake) = reviewer(|_| (201, answer(true, json!(["brupop-apiserver"]))));
        let token = token("a", NOW + 600);
        let (a, b, c) = tokio::join!(reviewer.review(&token), reviewer.review(&token), reviewer.review(&token));
        assert!(a.is_ok() && b.is_ok() && c.is_ok());
        assert_eq!(fake.requests().len(), 1);
        tokio::time::advance(GOOD_FOR + Duration::from_millis(1)).await;
        reviewer.review(&token).await.unwrap();
        assert_eq!(fake.requests().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_token_is_forgotten_after_a_second() {
        let (reviewer, fake) = reviewer(|_| (201, json!({"spec": {}, "status": {"error": "no"}})));
        let token = token("a", NOW + 600);
        for _ in 0..3 {
            let result = reviewer.review(&token).await;
            assert!(matches!(result, Err(ReviewError::Refused(Refusal::NotAuthenticated))));
        }
        assert_eq!(fake.requests().len(), 1);
        tokio::time::advance(BAD_FOR + Duration::from_millis(1)).await;
        assert!(reviewer.review(&token).await.is_err());
        assert_eq!(fake.requests().len(), 2);
    }

    #[tokio::test]
    async fn two_tokens_share_nothing() {
        let (reviewer, fake) = reviewer(|_| (201, answer(true, json!(["brupop-apiserver"]))));
        reviewer.review(&token("a", NOW + 600)).await.unwrap();
        reviewer.review(&token("b", NOW + 600)).await.unwrap();
        assert_eq!(fake.requests().len(), 2);
    }

    #[tokio::test]
    async fn an_expired_token_is_never_answered_from_memory() {
        let (reviewer, fake) = reviewer(|_| (201, answer(true, json!(["brupop-apiserver"]))));
        let token = token("a", NOW - 1);
        reviewer.review(&token).await.unwrap();
        reviewer.review(&token).await.unwrap();
        assert_eq!(fake.requests().len(), 2);
    }

    #[tokio::test]
    async fn an_api_server_in_trouble_makes_no_token_bad() {
        let (reviewer, fake) = reviewer(|_| {
            (
                500,
                json!({"kind": "Status", "code": 500, "message": "no", "reason": "InternalError", "status": "Failure"}),
            )
        });
        let token = token("a", NOW + 600);
        assert!(matches!(reviewer.review(&token).await, Err(ReviewError::Unavailable(_))));
        assert!(matches!(reviewer.review(&token).await, Err(ReviewError::Unavailable(_))));
        assert_eq!(fake.requests().len(), 2);
    }

    #[test]
    fn a_good_token_is_remembered_no_longer_than_it_lives() {
        let at = |seconds: i64| Timestamp::from_second(NOW + seconds).unwrap();
        assert_eq!(good_for(Some(at(600)), now()), GOOD_FOR);
        assert_eq!(good_for(Some(at(2)), now()), Duration::from_secs(2));
        assert_eq!(good_for(Some(at(-2)), now()), Duration::ZERO);
        assert_eq!(good_for(None, now()), GOOD_FOR);
    }
}
