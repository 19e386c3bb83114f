use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use models::history::RecordedRollout;

use super::*;
use crate::calls::Calls;
use crate::metrics::Metrics;

type Answering = tower_test::mock::Mock<Request<Body>, Response<Body>>;

/// Returns a historian of a leader with this API server, and what it publishes for plans.
fn historian(service: Answering) -> (Historian, History) {
    let history = History::default();
    let client = kube::Client::new(service, "default");
    let client = crate::client::limited(client, Calls::default(), Metrics::new().unwrap());
    (Historian::new(Applier::of_leader(client), history.clone(), Reading::default()), history)
}

fn answer(status: u16, body: &serde_json::Value) -> Response<Body> {
    Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn record_that_cannot_be_read_is_reported_until_it_is_gone() {
    let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((_, reply)) = server.next_request().await {
            let metadata = serde_json::json!({"name": "rollout-7", "uid": "u", "resourceVersion": "5"});
            let list = serde_json::json!({
                "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketRolloutHistoryList",
                "metadata": {}, "items": [{"metadata": metadata, "spec": {"record": 7}}],
            });
            reply.send_response(answer(200, &list));
        }
    });
    let (mut historian, history) = historian(service);
    let read = HistoryAction::ReadRecord { name: "rollout-7".into() };
    let plan = HistoryPlan { actions: vec![read], ..HistoryPlan::default() };
    assert_eq!(historian.carry_out(plan).await, PassEnd::Completed);
    let (recorded, reason, message) = history.facts().state.unwrap();
    assert_eq!((recorded, reason), (false, RECORD_UNREADABLE));
    assert!(message.ends_with("kubectl delete brh -n brupop-system rollout-7"), "{message}");
    // As the next plan finds the object deleted.
    historian.unreadable.clear();
    assert_eq!(historian.carry_out(HistoryPlan::default()).await, PassEnd::Completed);
    assert_eq!(history.facts().state, Some((true, RECORDED, String::new())));
}

#[tokio::test]
async fn records_that_cannot_be_read_are_named_with_the_number_of_the_others() {
    let (mut historian, _) = historian(tower_test::mock::pair().0);
    historian.unreadable = (1..=4).map(|number| (format!("rollout-{number}"), "5".to_owned())).collect();
    let message = historian.unreadable_records().unwrap();
    assert!(message.contains("the records rollout-1, rollout-2, rollout-3 and 1 more, and leaves"), "{message}");
    assert!(message.ends_with(" rollout-1 rollout-2 rollout-3"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn pass_ends_at_a_call_that_hangs_and_goes_on_after_one_that_is_refused() {
    for (sentence, answers, expected) in [("no answer", false, 1), ("each is refused", true, 20)] {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            while let Some((_, reply)) = server.next_request().await {
                counted.fetch_add(1, Ordering::Relaxed);
                if !answers {
                    unanswered.push(reply);
                    continue;
                }
                let status = serde_json::json!({"kind": "Status", "code": 500, "reason": "InternalError"});
                reply.send_response(answer(500, &status));
            }
        });
        let (mut historian, history) = historian(service);
        let delete = |number: usize| HistoryAction::Delete { name: format!("page-{number}"), uid: "u".into() };
        let plan = HistoryPlan { actions: (0..20).map(delete).collect(), ..HistoryPlan::default() };
        assert_eq!(historian.carry_out(plan).await, PassEnd::Failed, "{sentence}");
        assert_eq!(calls.load(Ordering::Relaxed), expected, "{sentence}");
        let state = history.facts().state.unwrap();
        assert_eq!((state.0, state.1), (false, REFUSED), "{sentence}: {}", state.2);
    }
}

/// A watch whose connection is dead shows nothing for minutes.
#[tokio::test(start_paused = true)]
async fn object_that_was_deleted_is_not_deleted_again_while_the_watch_still_shows_it() {
    let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((_, reply)) = server.next_request().await {
            reply.send_response(answer(200, &serde_json::json!({"kind": "Status", "status": "Success"})));
        }
    });
    let (mut historian, _) = historian(service);
    let watched = historian.applier.caches.history.clone();
    let show = |uid: &str, version: &str| {
        let metadata = serde_json::json!({"name": "rollout-7-p001", "uid": uid, "resourceVersion": version});
        watched.written(&serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap());
    };
    show("u", "5");
    assert!(historian.objects().contains_key("rollout-7-p001"));
    let delete = HistoryAction::Delete { name: "rollout-7-p001".into(), uid: "u".into() };
    let plan = HistoryPlan { actions: vec![delete], ..HistoryPlan::default() };
    assert_eq!(historian.carry_out(plan).await, PassEnd::Completed);
    assert!(!historian.objects().contains_key("rollout-7-p001"), "the watch shows it still");
    show("another", "6");
    assert!(historian.objects().contains_key("rollout-7-p001"), "another object has its name");
}

#[test]
fn writes_that_wait_for_an_unreadable_shadow_are_reported_and_new_records_are_not_held_back() {
    let rollout = serde_json::json!({
        "number": 7, "operator": {"namespace": "n", "name": "default", "uid": "u"}, "revision": {}, "variant": "v", "arch": "a",
        "version": "1.21.0", "begun": "2026-01-01T00:00:00Z", "policy": "",
    });
    let rollout: RecordedRollout = serde_json::from_value(rollout).unwrap();
    let begin = || HistoryAction::Begin { name: "rollout-7".into(), rollout: Box::new(rollout.clone()) };
    let read = || HistoryAction::ReadRecord { name: "rollout-7".into() };
    let clear = || HistoryAction::Clear { node: "b".into(), rows: BTreeSet::new() };
    let unreadable = BTreeMap::from([("a".to_owned(), "its step is a number".to_owned())]);
    for (sentence, unreadable, before, actions, left, reported) in [
        ("all can be read", &BTreeMap::new(), true, vec![clear()], vec![clear()], false),
        ("no write is due", &unreadable, true, vec![], vec![], false),
        ("a write is due", &unreadable, false, vec![clear()], vec![], true),
        ("a record begins", &unreadable, false, vec![begin()], vec![begin()], false),
        ("a record begins, and another write is due", &unreadable, false, vec![begin(), clear()], vec![begin()], true),
        ("a record is read before the due writes are known", &unreadable, true, vec![read()], vec![read()], true),
    ] {
        let mut plan = HistoryPlan { actions, ..HistoryPlan::default() };
        let waits_for = hold_back(&mut plan, unreadable, before.then(|| "before: a".to_owned()));
        assert_eq!(plan.actions, left, "{sentence}");
        assert_eq!(waits_for.is_some_and(|waits_for| waits_for.contains(" a")), reported, "{sentence}");
    }
}
