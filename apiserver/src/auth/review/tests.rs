use std::sync::atomic::{AtomicI64, Ordering};

use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;
use crate::auth::keys::tests::{AGENT, Issuer, claims, long_key, long_token};
use crate::auth::token::tests::of;
use crate::cluster::tests::{Fake, Seen, failure, fake};

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

fn good() -> (u16, Value) {
    (201, answer(true, json!(["brupop-apiserver"])))
}

/// A reviewer, and its cluster with the currently published keys.
struct SimulatedCluster {
    reviewer: Reviewer,
    fake: Fake,
    published: Arc<Mutex<Value>>,
    issuer: Issuer,
}

impl SimulatedCluster {
    fn new(reviews: impl Fn() -> (u16, Value) + Send + 'static) -> Self {
        let issuer = Issuer::new("k");
        let published = Arc::new(Mutex::new(json!({"keys": [issuer.jwk()]})));
        let keys = Arc::clone(&published);
        let fake = fake(move |request| match request.path.as_str() {
            "/openid/v1/jwks" => match keys.lock().clone() {
                Value::Null => failure(403, "Forbidden"),
                keys => (200, keys),
            },
            _ => reviews(),
        });
        let reviewer = Reviewer::new(fake.cluster.clone(), AGENT.into(), Metrics::new().unwrap(), now);
        Self { reviewer, fake, published, issuer }
    }

    /// From the token to its bearer, as for a request.
    async fn judge(&self, token: &Token) -> Result<Arc<Bearer>, ReviewError> {
        if let Some(bearer) = self.reviewer.remembered(token) {
            return Ok(bearer);
        }
        let evidence = self.reviewer.check(token).await?;
        self.reviewer.review(token, &evidence).await
    }

    fn token(&self, name: &str, expires: i64) -> Token {
        of(self.issuer.sign(&claims(name, expires)))
    }

    fn publish(&self, keys: Value) {
        *self.published.lock() = keys;
    }

    fn asked(&self, path: &str) -> Vec<Seen> {
        self.fake.requests().into_iter().filter(|request| request.path.ends_with(path)).collect()
    }

    fn reviews(&self) -> usize {
        self.asked("/tokenreviews").len()
    }

    fn fetches(&self) -> usize {
        self.asked("/jwks").len()
    }
}

#[tokio::test]
async fn token_review_requires_own_audience_in_response() {
    for (audiences, good) in [
        (json!(["brupop-apiserver"]), true),
        (json!(["other", "brupop-apiserver"]), true),
        (json!(["https://kubernetes.default.svc"]), false),
        (json!([]), false),
        (Value::Null, false),
    ] {
        let reply = answer(true, audiences.clone());
        let cluster = SimulatedCluster::new(move || (201, reply.clone()));
        let token = cluster.token("a", NOW + 600);
        let result = cluster.judge(&token).await;
        if good {
            assert_eq!(result.unwrap().node_name.as_deref(), Some("a"));
        } else {
            assert!(matches!(result, Err(ReviewError::Refused(Refusal::WrongAudience))), "{audiences}");
        }
        let asked = cluster.asked("/apis/authentication.k8s.io/v1/tokenreviews");
        assert_eq!(asked[0].body["spec"]["audiences"], json!(["brupop-apiserver"]));
        assert_eq!(asked[0].body["spec"]["token"], token.expose());
    }
}

#[tokio::test]
async fn invalid_tokens_are_neither_reviewed_nor_cached() {
    let cluster = SimulatedCluster::new(good);
    let forger = Issuer::new("k");
    let mut invented = claims("a", NOW + 600);
    invented["iss"] = json!("https://elsewhere");
    let bad = [
        (of("garbage".into()), Refusal::MalformedToken),
        (of(forger.sign(&invented)), Refusal::Forged),
        (of(Issuer::new("new").sign(&invented)), Refusal::UnknownKey),
        (of(forger.sign(&claims("a", NOW + 600))), Refusal::Forged),
        (of(Issuer::new("new").sign(&claims("a", NOW + 600))), Refusal::UnknownKey),
        (cluster.token("a", NOW - 600), Refusal::Expired),
    ];
    for (token, refusal) in &bad {
        for _ in 0..3 {
            let result = cluster.judge(token).await;
            assert!(matches!(result, Err(ReviewError::Refused(r)) if r == *refusal), "{refusal:?}: {result:?}");
        }
    }
    assert_eq!(cluster.reviews(), 0);
    assert_eq!(cluster.fetches(), 1, "unauthenticated clients do not make the server ask for keys");
    assert!(cluster.reviewer.signed.slots.lock().is_empty() && cluster.reviewer.unchecked.slots.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unknown_key_refreshes_cluster_keys_at_most_every_ten_seconds() {
    let cluster = SimulatedCluster::new(good);
    cluster.judge(&cluster.token("a", NOW + 600)).await.unwrap();
    let new = Issuer::new("new");
    let token = of(new.sign(&claims("b", NOW + 600)));
    assert!(cluster.judge(&token).await.is_err(), "it is not published yet");
    cluster.publish(json!({"keys": [cluster.issuer.jwk(), new.jwk()]}));
    assert!(cluster.judge(&token).await.is_err(), "it was searched for a moment ago");
    tokio::time::advance(Duration::from_secs(10)).await;
    cluster.judge(&token).await.unwrap();
    cluster.judge(&cluster.token("c", NOW + 600)).await.unwrap();
    assert_eq!(cluster.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_only_reviewed_when_cluster_keys_are_missing() {
    let cluster = SimulatedCluster::new(good);
    cluster.publish(Value::Null);
    cluster.judge(&of("opaque".into())).await.unwrap();
    cluster.judge(&cluster.token("a", NOW + 600)).await.unwrap();
    assert_eq!((cluster.reviews(), cluster.fetches()), (2, 1));
    cluster.publish(json!({"keys": [cluster.issuer.jwk()]}));
    tokio::time::advance(Duration::from_secs(10)).await;
    let result = cluster.judge(&of("another".into())).await;
    assert!(matches!(result, Err(ReviewError::Refused(Refusal::MalformedToken))), "now there are keys");
    assert_eq!((cluster.reviews(), cluster.fetches()), (2, 2));
}

#[tokio::test]
async fn token_of_a_published_key_that_cannot_be_used_here_is_reviewed_beside_those_of_others() {
    let cluster = SimulatedCluster::new(good);
    cluster.publish(json!({"keys": [cluster.issuer.jwk(), long_key("long")]}));
    for name in ["a", "b"] {
        let token = of(long_token("long", &claims(name, NOW + 600)));
        assert_eq!(cluster.reviewer.check(&token).await.unwrap(), Evidence::Unchecked);
        cluster.judge(&token).await.unwrap();
    }
    let token = cluster.token("c", NOW + 600);
    assert!(matches!(cluster.reviewer.check(&token).await, Ok(Evidence::Signed { .. })));
    assert_eq!((cluster.reviews(), cluster.fetches()), (2, 1), "the keys are not read again for it");
}

#[tokio::test(start_paused = true)]
async fn cluster_keys_are_kept_when_refresh_fails() {
    let cluster = SimulatedCluster::new(good);
    cluster.judge(&cluster.token("a", NOW + 600)).await.unwrap();
    cluster.publish(Value::Null);
    tokio::time::advance(Duration::from_secs(10)).await;
    let unknown = of(Issuer::new("new").sign(&claims("b", NOW + 600)));
    assert!(matches!(cluster.judge(&unknown).await, Err(ReviewError::NoKeys)), "nothing shows that it is invalid");
    assert!(matches!(cluster.judge(&unknown).await, Err(ReviewError::NoKeys)), "nor a moment later");
    assert_eq!(cluster.fetches(), 2);
    cluster.judge(&cluster.token("c", NOW + 600)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn valid_token_is_reviewed_once_in_half_a_minute_by_one_request() {
    let cluster = SimulatedCluster::new(good);
    let token = cluster.token("a", NOW + 600);
    assert!(cluster.reviewer.remembered(&token).is_none());
    let (a, b, c) = tokio::join!(cluster.judge(&token), cluster.judge(&token), cluster.judge(&token));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(cluster.reviews(), 1);
    assert!(cluster.reviewer.remembered(&token).is_some());
    tokio::time::advance(VALID_FOR + Duration::from_millis(1)).await;
    assert!(cluster.reviewer.remembered(&token).is_none());
    cluster.judge(&token).await.unwrap();
    assert_eq!(cluster.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_cached_for_one_second() {
    let cluster = SimulatedCluster::new(|| (201, json!({"spec": {}, "status": {"error": "no"}})));
    let token = cluster.token("a", NOW + 600);
    for _ in 0..3 {
        let result = cluster.judge(&token).await;
        assert!(matches!(result, Err(ReviewError::Refused(Refusal::NotAuthenticated))));
    }
    assert_eq!(cluster.reviews(), 1);
    assert!(cluster.reviewer.remembered(&token).is_none(), "what is known to be bad is not good");
    tokio::time::advance(INVALID_FOR + Duration::from_millis(1)).await;
    assert!(cluster.judge(&token).await.is_err());
    assert_eq!(cluster.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn unverified_tokens_use_separate_concurrency_limit_and_cache() {
    let cluster = SimulatedCluster::new(good);
    cluster.publish(Value::Null);
    cluster.judge(&of("a".into())).await.unwrap();
    assert_eq!((cluster.reviewer.signed.slots.lock().len(), cluster.reviewer.unchecked.slots.lock().len()), (0, 1));
    let permits = cluster.reviewer.unchecked.permits.acquire_many(8).await.unwrap();
    assert!(matches!(cluster.judge(&of("b".into())).await, Err(ReviewError::Busy)));
    let signed = Evidence::Signed { node: None };
    cluster.reviewer.review(&cluster.token("c", NOW + 600), &signed).await.unwrap();
    drop(permits);
    cluster.judge(&of("b".into())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn token_cache_is_bounded_and_further_tokens_are_not_cached() {
    let cluster = SimulatedCluster::new(good);
    let (early, late) = (cluster.token("early", NOW + 600), cluster.token("late", NOW + 600));
    cluster.judge(&early).await.unwrap();
    let lane = &cluster.reviewer.signed;
    let under_review = lane.slot(of("under review".into()).digest());
    let asking = under_review.lock().await;
    for number in 2..10_000 {
        let slot = lane.slot(of(number.to_string()).digest());
        let (verdict, until) = (Err(Refusal::NotAuthenticated), Instant::now() + INVALID_FOR);
        *slot.try_lock().unwrap() = Some(Remembered { verdict, until });
    }
    assert_eq!(lane.slots.lock().len(), 10_000);
    for reviews in [2, 3] {
        cluster.judge(&late).await.unwrap();
        assert_eq!((cluster.reviews(), lane.slots.lock().len()), (reviews, 10_000));
    }
    assert!(cluster.reviewer.remembered(&early).is_some(), "nothing that counts makes room");

    tokio::time::advance(INVALID_FOR + Duration::from_millis(1)).await;
    cluster.judge(&late).await.unwrap();
    assert!(cluster.reviewer.remembered(&late).is_some() && cluster.reviewer.remembered(&early).is_some());
    assert_eq!(lane.slots.lock().len(), 3, "a token under review stays too");
    assert!(Arc::ptr_eq(&lane.slot(of("under review".into()).digest()), &under_review));
    drop(asking);
}

#[tokio::test(start_paused = true)]
async fn concurrent_token_reviews_are_limited_and_excess_is_rejected_as_busy() {
    let (service, mut slow) = mock::pair::<http::Request<Body>, http::Response<Body>>();
    let cluster = Cluster::new(kube::Client::new(service, "default"), "brupop-system".into(), Metrics::new().unwrap());
    let reviewer = Arc::new(Reviewer::new(cluster, AGENT.into(), Metrics::new().unwrap(), now));
    let review = |number: usize| {
        let reviewer = Arc::clone(&reviewer);
        let evidence = Evidence::Signed { node: None };
        tokio::spawn(async move { reviewer.review(&of(number.to_string()), &evidence).await })
    };
    let judged: Vec<_> = (0..40).map(review).collect();
    let mut asked = Vec::new();
    // No request gets an answer, for longer than any waits for a review.
    while let Ok(Some((_, reply))) = timeout(WAIT_LIMIT + Duration::from_secs(1), slow.next_request()).await {
        asked.push(reply);
    }
    assert_eq!(asked.len(), 32);
    for reply in asked {
        let body = Body::from(good().1.to_string().into_bytes());
        reply.send_response(http::Response::builder().status(201).body(body).unwrap());
    }
    let (mut known, mut busy) = (0, 0);
    for judged in judged {
        match judged.await.unwrap() {
            Ok(_) => known += 1,
            Err(ReviewError::Busy) => busy += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!((known, busy), (32, 8));
}

#[tokio::test(start_paused = true)]
async fn slow_key_fetch_delays_token_for_less_than_three_seconds() {
    let cluster = SimulatedCluster::new(good);
    cluster.judge(&cluster.token("a", NOW + 600)).await.unwrap();
    let fetching = cluster.reviewer.keys.fetching().await;
    let began = Instant::now();
    let unknown = of(Issuer::new("new").sign(&claims("b", NOW + 600)));
    let (first, second) = tokio::join!(cluster.judge(&unknown), cluster.judge(&unknown));
    assert!(first.is_err() && second.is_err());
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    drop(fetching);
}

#[tokio::test]
async fn two_tokens_share_nothing() {
    let cluster = SimulatedCluster::new(good);
    cluster.judge(&cluster.token("a", NOW + 600)).await.unwrap();
    cluster.judge(&cluster.token("b", NOW + 600)).await.unwrap();
    assert_eq!(cluster.reviews(), 2);
}

#[tokio::test]
async fn expired_token_is_not_served_from_cache() {
    let cluster = SimulatedCluster::new(good);
    // This server's clock may be ahead of the cluster's, so the token is reviewed.
    let token = cluster.token("a", NOW - 1);
    cluster.judge(&token).await.unwrap();
    cluster.judge(&token).await.unwrap();
    assert_eq!(cluster.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn clock_set_past_token_expiry_invalidates_cache_entry() {
    static CLOCK: AtomicI64 = AtomicI64::new(NOW);
    let mut cluster = SimulatedCluster::new(good);
    cluster.reviewer.now = || Timestamp::from_second(CLOCK.load(Ordering::Relaxed)).unwrap();
    let token = cluster.token("a", NOW + 20);
    cluster.judge(&token).await.unwrap();
    assert!(cluster.reviewer.remembered(&token).is_some());
    CLOCK.store(NOW + 20, Ordering::Relaxed);
    assert!(cluster.reviewer.remembered(&token).is_none());
}

#[tokio::test]
async fn failing_api_server_does_not_invalidate_token() {
    let cluster = SimulatedCluster::new(|| failure(500, "InternalError"));
    let token = cluster.token("a", NOW + 600);
    assert!(matches!(cluster.judge(&token).await, Err(ReviewError::Unavailable(_))));
    assert!(matches!(cluster.judge(&token).await, Err(ReviewError::Unavailable(_))));
    assert_eq!(cluster.reviews(), 2);
}

#[test]
fn valid_token_is_cached_no_longer_than_its_expiry() {
    let at = |seconds: i64| Timestamp::from_second(NOW + seconds).unwrap();
    assert_eq!(valid_for(Some(at(600)), now()), VALID_FOR);
    assert_eq!(valid_for(Some(at(2)), now()), Duration::from_secs(2));
    assert_eq!(valid_for(Some(at(-2)), now()), Duration::ZERO);
    assert_eq!(valid_for(None, now()), VALID_FOR);
}
