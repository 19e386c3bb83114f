use std::convert::Infallible;
use std::future::pending;

use http::{Request, Response};
use kube::client::Body;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use super::follow::{Kind, Object};
use super::*;
use crate::cluster::Unread;
use crate::cluster::testing::{braked, cluster, current, fleet, idle, node, now, one, operator, shadow, step_used_up};

fn shadow_object(name: &str) -> Object {
    let object: models::shadow::BottlerocketShadow = serde_json::from_value(shadow(name, idle())).unwrap();
    Object::new(models::names::shadow_name(name), move |cluster| cluster.add_shadow(&object))
}

fn api_error(code: u16) -> watcher::Error {
    let status = json!({"status": "Failure", "message": "m", "reason": "r", "code": code});
    watcher::Error::WatchFailed(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))
}

#[test]
fn objects_follow_the_events_of_their_watches() {
    let (mut cluster, mut follow) = (cluster(None, vec![shadow("gone", idle())], vec![]), Follow::default());
    let mut take = |event| follow.take(&mut cluster, (Kind::Shadow, Ok(event))).unwrap();
    take(Event::Init);
    take(Event::InitApply(shadow_object("a")));
    take(Event::InitApply(shadow_object("b")));
    take(Event::InitDone);
    take(Event::Apply(shadow_object("c")));
    take(Event::Delete(shadow_object("b")));
    assert_eq!(cluster.shadows.keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn lost_connection_is_reported_once_and_its_return_too() {
    let (mut cluster, mut follow) = (fleet(), Follow::default());
    let mut take = |kind, event| follow.take(&mut cluster, (kind, event)).unwrap();
    let lost = take(Kind::Shadow, Err(api_error(500))).unwrap();
    assert!(lost.starts_with("connection lost: cannot watch bottlerocketshadows in brupop-system"), "{lost}");
    assert_eq!(take(Kind::Node, Err(api_error(500))), None, "once");
    assert_eq!(take(Kind::Shadow, Ok(Event::Init)), None, "a try is no success");
    assert_eq!(take(Kind::Shadow, Ok(Event::InitDone)), None, "the other one is lost still");
    assert_eq!(take(Kind::Node, Ok(Event::InitDone)).as_deref(), Some("connected again"));
}

#[test]
fn expired_watch_is_listed_again_and_missing_rights_are_named() {
    let (mut cluster, mut follow) = (fleet(), Follow::default());
    let expired: kube::core::Status = serde_json::from_value(json!({"message": "too old", "code": 410})).unwrap();
    let said = follow.take(&mut cluster, (Kind::Shadow, Err(watcher::Error::WatchError(Box::new(expired)))));
    assert!(said.unwrap().unwrap().contains("the watch of bottlerocketshadows has expired"));
    let error = follow.take(&mut cluster, (Kind::Shadow, Err(api_error(403)))).unwrap_err();
    assert_eq!(error.to_string(), "you need the right to watch bottlerocketshadows in brupop-system");
    assert_eq!(follow.take(&mut cluster, (Kind::Node, Err(api_error(403)))).unwrap(), None);
    assert_eq!(cluster.unread[&Part::Nodes].reason, "you need the right to watch nodes");
    let error = Follow::new(true).take(&mut cluster, (Kind::Node, Err(api_error(403)))).unwrap_err();
    assert_eq!(error.to_string(), "you need the right to watch nodes", "the end of the rollout depends on them");
}

#[test]
fn watch_does_not_begin_while_the_nodes_have_no_answer() {
    let mut fleet = fleet();
    assert!(require_nodes(&fleet).is_ok());
    let nodes = |reason: &str, is_unanswered| Unread { reason: reason.to_owned(), is_unanswered };
    fleet.unread.insert(Part::Nodes, nodes("you need the right to list nodes", false));
    assert!(require_nodes(&fleet).is_ok(), "it does without them");
    fleet.unread.insert(Part::Nodes, nodes("cannot list nodes: no answer within 35 s", true));
    assert_eq!(require_nodes(&fleet).unwrap_err().to_string(), "cannot list nodes: no answer within 35 s");
}

#[test]
fn watch_ends_when_its_output_has_no_reader() {
    let failed = |kind: io::ErrorKind| has_reader(Err(kind.into()));
    assert!(has_reader(Ok(())).unwrap() && !failed(io::ErrorKind::BrokenPipe).unwrap());
    assert!(failed(io::ErrorKind::StorageFull).is_err());
}

#[tokio::test(start_paused = true)]
async fn interrupt_and_timeout_end_a_watch_at_once_while_the_api_server_does_not_answer() {
    let silent = tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
    let client = Client::new(silent, "default");
    // The operator's own pods have been read since a second then.
    let at = COMPONENTS + Duration::from_secs(1);
    for (sentence, until, timeout, interrupted, expected) in [
        ("interrupted", None, None, at, End::Stopped),
        ("interrupted before the rollout has ended", Some(Until::Completed), None, at, End::Interrupted),
        ("the time is over", Some(Until::Completed), Some(models::duration::Duration(at)), 2 * at, End::Late),
    ] {
        let options = WatchOptions { until, timeout, all: false };
        let output = Output { look: Look::default(), screen: None, printed: BTreeMap::new() };
        let interrupt = async {
            sleep(interrupted).await;
            Ok(())
        };
        let begun = Instant::now();
        let end = run(&client, cluster(None, vec![], vec![]), &options, output, interrupt).await.unwrap();
        assert_eq!((end, begun.elapsed().as_secs()), (expected, at.as_secs()), "{sentence}");
    }
}

/// A host whose update to 1.20.5 has failed.
fn failed() -> Value {
    let mut failed = idle();
    failed["record"] = json!({"failures": 1, "versionFailures": [{"version": "1.20.5", "variant": "aws-k8s-1.37",
        "arch": "x86_64", "reason": "BootFellBack", "time": "2026-01-01T00:00:00Z"}]});
    failed
}

fn end_of(policy: &Value, status: Value, annotations: &Value) -> Option<End> {
    let operator = operator(policy, &json!({"observedGeneration": 1}));
    let cluster = cluster(Some(operator), vec![shadow("a", status)], vec![node("a", annotations)]);
    ended(&report(&cluster, now()))
}

#[test]
fn rollout_is_complete_when_no_node_is_to_be_updated() {
    let done = current();
    let none = json!({});
    let excluded = json!({"version": {"exclude": ["1.20.5"]}});
    let young = json!({"version": {"minimumAge": "24h"}});
    let pinned = json!({"version": {"target": "1.20.5"}});
    let mut not_chosen = idle();
    not_chosen["updates"]["chosenVersion"] = Value::Null;
    for (sentence, policy, status, annotations, expected) in [
        ("up to date", &none, done.clone(), &none, Some(End::Completed)),
        ("an update is on offer", &none, idle(), &none, None),
        ("what is on offer is excluded", &excluded, idle(), &none, Some(End::Completed)),
        ("nothing is on offer for the target", &pinned, done.clone(), &none, Some(End::Completed)),
        ("the host is being pinned to the target", &pinned, not_chosen.clone(), &none, None),
        ("the host does not choose what is on offer", &none, not_chosen, &none, None),
        ("what is on offer is too young", &young, idle(), &none, None),
        ("a node to be updated is held", &none, idle(), &json!({models::names::HOLD_ANNOTATION: ""}), None),
        ("updates are disabled", &json!({"enabled": false}), done, &none, None),
    ] {
        assert_eq!(end_of(policy, status, annotations), expected, "{sentence}");
    }
}

#[test]
fn rollout_is_complete_when_all_nodes_have_proven_the_version_that_they_run() {
    let t = "2026-01-01T00:00:00Z";
    let end = |reason: &str, proof: &str, accepted: bool| {
        let failed = proof == "Failed";
        let mut status = idle();
        status["currentVersion"] = json!("1.20.5");
        status["updates"] = json!({"availableVersions": [], "lastRefresh": t});
        status["record"] = json!({
            "last": {"attempt": 1, "from": "1.20.0", "version": "1.20.5", "reason": reason, "message": "", "started": t,
                "ended": "2026-01-01T00:05:00Z"},
            "proof": {"version": "1.20.5", "rollout": 3, "attempt": 1, "proof": proof, "reason": reason},
            "versionFailures": if failed {
                json!([{"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "reason": reason, "time": t}])
            } else { json!([]) },
        });
        let named = json!({"node": "a", "proof": proof, "reason": reason, "accepted": accepted});
        let ledger = json!({"base": 1, "unproven": i32::from(!failed), "failed": i32::from(failed),
            "accepted": i32::from(accepted), "nodes": [named]});
        (status, ledger)
    };
    let mut resolved = end("SoakFailed", "Failed", false);
    resolved.0["record"]["versionFailures"][0]["resolvedBy"] = json!("r");
    resolved.0["record"]["proof"] = Value::Null;
    resolved.1 = json!({"base": 1});
    let mut leaves = end("SoakFailed", "Failed", false);
    leaves.0["updates"] = json!({"chosenVersion": "1.20.6", "availableVersions": ["1.20.6"], "lastRefresh": t});
    let mut stuck = end("SoakFailed", "Failed", false);
    stuck.0["updates"] = json!({"availableVersions": [], "lastRefresh": t, "refreshFailure": "no route"});
    for (sentence, max_failures, (status, ledger), hold, ended_at, expected) in [
        ("it failed its soak, which freezes", 1, end("SoakFailed", "Failed", false), None, None, Some(End::Frozen)),
        ("it failed it, which freezes nothing", 2, end("SoakFailed", "Failed", false), None, None, Some(End::Frozen)),
        ("it failed its soak, and is to be updated to a later version", 2, leaves, None, None, None),
        ("it failed its soak, and its repository is away", 2, stuck, None, None, Some(End::Frozen)),
        ("a user has resolved the failure", 2, resolved, None, None, Some(End::Completed)),
        ("it is verified again", 2, end("HookTimedOut", "Unproven", false), None, None, None),
        ("it came back late, and is verified again", 2, end("NotReadyAfterBoot", "Failed", false), None, None, None),
        ("a hold keeps it from that", 2, end("HookTimedOut", "Unproven", false), Some(""), None, Some(End::Frozen)),
        ("the hold ends", 2, end("HookTimedOut", "Unproven", false), Some("until=2026-01-02T00:00:00Z"), None, None),
        ("a user has accepted it", 2, end("HookTimedOut", "Unproven", true), None, None, Some(End::Completed)),
        ("its rollout has ended", 2, end("HookTimedOut", "Unproven", false), None, Some(t), Some(End::Completed)),
    ] {
        let rollout = json!({
            "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": t, "stepsPassed": 0,
            "ledger": ledger, "ended": ended_at,
            "record": {"number": 3, "begun": t, "revision": {"number": 2, "name": "brupop-default-5d"}, "phase": "Running"},
        });
        let spec = json!({"failurePolicy": {"maxFailures": max_failures}});
        let operator = operator(&spec, &json!({"observedGeneration": 1, "activeRollouts": [rollout]}));
        let mut node = node("a", &hold.map_or_else(|| json!({}), |hold| json!({models::names::HOLD_ANNOTATION: hold})));
        node["status"]["nodeInfo"]["osImage"] = json!("Bottlerocket OS 1.20.5 (aws-k8s-1.37)");
        let cluster = cluster(Some(operator), vec![shadow("a", status)], vec![node]);
        let report = report(&cluster, now());
        assert_eq!(ended(&report), expected, "{sentence}: {:?}", report.nodes);
    }
}

#[test]
fn frozen_rollout_ends_the_watch_when_nothing_is_under_way() {
    assert_eq!(end_of(&json!({}), failed(), &json!({})), Some(End::Frozen));
    assert_eq!(ended(&report(&fleet(), now())), None);
}

#[test]
fn watch_ends_when_only_nodes_are_left_that_are_held_while_others_go_on() {
    let mut other = idle();
    other["arch"] = json!("aarch64");
    let mut done = current();
    done["arch"] = json!("aarch64");
    let known = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
        "failed": ["a"], "quarantined":
            {"reason": "BootFellBack", "nodes": ["a"], "since": "2026-01-01T00:00:00Z", "contained": true}});
    for (other, expected) in [(other, None), (done, Some(End::Frozen))] {
        let operator = operator(&json!({}), &json!({"observedGeneration": 1, "versions": [known]}));
        let shadows = vec![shadow("a", failed()), shadow("b", other)];
        let cluster = cluster(Some(operator), shadows, vec![node("a", &json!({})), node("b", &json!({}))]);
        let report = report(&cluster, now());
        let held = report.held.as_ref().unwrap();
        assert!(report.frozen.is_none() && held.message.contains("1.20.5 for aws-k8s-1.37 x86_64"), "{held:?}");
        assert_eq!(held.command, "kubectl brupop resume --failures 1.20.5");
        assert_eq!(ended(&report), expected);
    }
}

#[test]
fn rollout_without_its_nodes_has_no_end() {
    let mut cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", current()));
    assert_eq!(ended(&report(&cluster, now())), Some(End::Completed));
    cluster.nodes = None;
    assert_eq!(ended(&report(&cluster, now())), None);
}

#[test]
fn watch_ends_when_failures_hold_all_nodes_that_are_left() {
    for (sentence, cluster, expected) in [
        ("nodes have failed on the version", step_used_up(true), Some(End::Frozen)),
        ("nodes have not proven it", step_used_up(false), None),
        ("braked, and no node is to be tried", braked("Unproven"), None),
        ("braked, and a node is to be tried", braked("Free"), None),
    ] {
        let report = report(&cluster, now());
        assert_eq!(ended(&report), expected, "{sentence}: {:?}", report.nodes);
    }
}

#[test]
fn lines_say_what_is_rejected_and_what_was_not_read() {
    let mut fleet = fleet();
    let spec = json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "Mars/Base"}]}});
    fleet.add_operator(&serde_json::from_value(operator(&spec, &json!({"observedGeneration": 1}))).unwrap());
    let unread = Unread { reason: "you need the right to list nodes".to_owned(), is_unanswered: false };
    fleet.unread.insert(Part::Nodes, unread);
    let lines = changes(&report(&fleet, now()), &mut BTreeMap::new());
    for part in
        ["Rejected: spec.schedule.windows[0].timeZone: 'Mars/Base'", "Not read: you need the right to list nodes"]
    {
        assert!(lines.iter().any(|line| line.starts_with(part)), "{part}: {lines:#?}");
    }
}

#[test]
fn only_changed_lines_are_printed() {
    let mut printed = BTreeMap::new();
    let (before, mut after) = (fleet(), fleet());
    let first = changes(&report(&before, now()), &mut printed);
    assert!(first.iter().any(|line| line.starts_with("blocked 1.20.0 -> 1.20.5 Draining DrainBlocked: ")), "{first:?}");
    assert!(!first.iter().any(|line| line.starts_with("updated ")), "{first:?}");
    assert!(changes(&report(&before, now()), &mut printed).is_empty());
    after.shadows.get_mut("failed").unwrap().status.controller.record = None;
    after.operator.as_mut().unwrap().spec.enabled = Some(false);
    let second = changes(&report(&after, now()), &mut printed);
    assert_eq!(second.first().unwrap(), "Updates: disabled, target latest");
    assert!(second.iter().any(|line| line.starts_with("failed 1.20.0 Idle Disabled")), "{second:?}");
}
