use jiff::SignedDuration;
use models::names::DRILL_ANNOTATION;
use serde_json::{Value, json};

use super::super::operator::testing::{condition, nothing, operator, patch};
use super::testing::{at, shadow};
use super::*;

fn text(state: State) -> String {
    match state {
        State::Done(text) => text,
        State::Pending(text) => format!("pending: {text}"),
        State::Failed(text) => format!("failed: {text}"),
    }
}

#[test]
fn retry_is_written_in_back_off_or_if_another_client_armed_the_host() {
    let now = crate::clock::now();
    let not_before = |seconds: i64| {
        let until = now + SignedDuration::from_secs(seconds);
        shadow(&json!({"record": {"failures": 1, "notBefore": until.to_string()}}))
    };
    let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
    assert_eq!(patch(decide_retry(None, &not_before(60), "nonce", now).unwrap()), expected);
    assert!(nothing(decide_retry(None, &not_before(-60), "nonce", now).unwrap()).contains("not in back-off"));
    let armed = shadow(&json!({"conditions": [condition(HOST_REACHABLE, HOST_ARMED_BY_OTHER, "")]}));
    assert_eq!(patch(decide_retry(None, &armed, "nonce", now).unwrap()), expected);
    for (shadow, expected) in
        [(not_before(60), Some(Retry::BackOff)), (not_before(-60), None), (armed, Some(Retry::Disarm))]
    {
        assert_eq!(Retry::of(None, &shadow, now), expected);
    }
}

#[test]
fn retry_says_what_it_did_and_no_more() {
    let acknowledged = |value: &str| shadow(&json!({"record": {"failures": 1, "requests": {"retry": value}}}));
    for (retry, awaited, done) in [
        (Retry::BackOff, "to end its back-off", "its back-off is over; it is updated when its turn comes"),
        (
            Retry::Disarm,
            "to let its agent disarm the image",
            "its agent may disarm the image that it has no record of; it is updated when its turn comes",
        ),
        (
            Retry::Pause,
            "to end the pause of its braked rollout",
            "the pause of its braked rollout is over; it is updated when its turn comes",
        ),
        (Retry::Verify, "to verify it again", "it is not without a proof any more"),
    ] {
        let result = |value| text(retried(retry, None, &acknowledged(value), "nonce"));
        assert_eq!(result("earlier"), format!("pending: for the controller {awaited}"));
        assert_eq!(result("nonce"), done);
    }
}

#[test]
fn retry_that_ends_no_wait_fails_where_a_user_has_to_end_it() {
    let (none, drains) = (Value::Null, at("Draining"));
    let (for_user, by_itself) = (Some(true), Some(false));
    for (sentence, reason, progress, expected) in [
        ("held", "Held", &none, for_user),
        ("cordoned by a user", "Cordoned", &none, for_user),
        ("its attempts are used up", "AttemptsExhausted", &none, for_user),
        ("held, and its update has not ended yet", "Held", &drains, by_itself),
        ("its update has begun", "DrainBlocked", &drains, by_itself),
        ("a hook has yet to answer", "AwaitingHook", &drains, by_itself),
        ("pods have yet to end", "PodsTerminating", &none, by_itself),
        ("the host is busy", "HostBusy", &none, by_itself),
        ("a reason of a later version", "NoSuchReason", &none, by_itself),
        ("its back-off is just over", "BackOff", &none, None),
    ] {
        let node = shadow(&json!({"conditions": [condition(BLOCKED, reason, "MESSAGE")], "progress": progress}));
        let text = match decide_retry(None, &node, "nonce", crate::clock::now()) {
            Ok(decision) => nothing(decision),
            Err(error) => error.to_string(),
        };
        let start = "it is not in back-off, so that there is nothing to retry";
        let expected = match expected {
            Some(true) => format!("{start}; nothing was written. It waits for another reason: MESSAGE"),
            Some(false) => format!("{start}; it waits for another reason: MESSAGE"),
            None => start.to_owned(),
        };
        assert_eq!(text, expected, "{sentence}");
    }
}

#[test]
fn retry_ends_the_pause_of_a_braked_rollout_for_a_node_that_waits_for_it() {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let braked = |until: Option<&str>| {
        operator(
            &json!({}),
            &json!({"activeRollouts": [{
                "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": "2026-01-01T00:00:00Z",
                "stepsPassed": 0, "ledger": {"brakedUntil": until},
            }]}),
        )
    };
    let node =
        |runs: &str, arch: &str| shadow(&json!({"currentVersion": runs, "variant": "aws-k8s-1.37", "arch": arch}));
    let until = Some("2026-01-01T06:00:00Z");
    let decide = |until, runs, arch| decide_retry(Some(&braked(until)), &node(runs, arch), "nonce", now).unwrap();
    let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
    assert_eq!(patch(decide(until, "1.20.4", "x86_64")), expected);
    assert_eq!(Retry::of(Some(&braked(until)), &node("1.20.4", "x86_64"), now), Some(Retry::Pause));
    for (until, runs, arch) in [(None, "1.20.4", "x86_64"), (until, "1.20.5", "x86_64"), (until, "1.20.4", "aarch64")] {
        assert!(nothing(decide(until, runs, arch)).contains("nothing to retry"), "{until:?} {runs} {arch}");
    }
    let over = nothing(decide(Some("2025-12-31T23:50:00Z"), "1.20.4", "x86_64"));
    assert!(over.ends_with("its rollout is braked, and its pause is over: one node is tried alone"), "{over}");
}

fn end(node: &str, proof: &str, reason: &str, before: bool) -> Value {
    json!({"node": node, "proof": proof, "reason": reason, "beforeProof": before})
}

/// No pause is in effect then: no node is tried when it is over either.
#[test]
fn retry_does_not_end_the_pause_of_a_brake_that_lets_no_node_be_tried() {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let silent = |before| end("b", "Unproven", "HookTimedOut", before);
    let status = json!({"currentVersion": "1.20.4", "variant": "aws-k8s-1.37", "arch": "x86_64"});
    let mut held = status.clone();
    held["conditions"] = json!([condition(BLOCKED, "Held", "MESSAGE")]);
    let no_trial = "no node is tried while others run the version without a proof: ";
    let retry = format!("{no_trial}b (HookTimedOut). To have one verified again: kubectl brupop retry b");
    let fallen = format!("{no_trial}b (NotReady). Each counts again once it is in service");
    let failed = format!("{no_trial}b (SoakFailed). To try again, once the cause is removed: kubectl brupop resume");
    let free = || end("c", "Free", "AgentSilent", false);
    // The end of one among two brakes a rollout, and that of three among many.
    for (sentence, status, among, row, expected) in [
        ("one runs the version", &status, 10, vec![silent(false)], retry.as_str()),
        ("one has failed on it", &status, 10, vec![end("b", "Failed", "SoakFailed", false)], failed.as_str()),
        ("one had proven it", &status, 2, vec![end("b", "Unproven", "NotReady", true)], fallen.as_str()),
        ("one has run it from before a proof, which is enough", &status, 2, vec![silent(true), free()], retry.as_str()),
        ("one has run it from before a proof, of many", &status, 10, vec![silent(true), free()], ""),
        ("one has failed, and has left it", &status, 10, vec![end("c", "Failed", "BootFellBack", false)], ""),
        ("none has run it, and the node is held", &held, 10, vec![free()], "MESSAGE"),
    ] {
        let named: Vec<&Value> = row.iter().filter(|end| end["proof"] != "Free").collect();
        let until = "2026-01-01T06:00:00Z";
        let ledger = json!({"brakedUntil": until, "brakedAmong": among, "row": row, "nodes": named});
        let rollout = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64",
            "started": "2026-01-01T00:00:00Z", "stepsPassed": 0, "ledger": ledger});
        let operator = operator(&json!({}), &json!({"activeRollouts": [rollout]}));
        match decide_retry(Some(&operator), &shadow(status), "nonce", now) {
            Ok(Decision::Write(_)) => assert_eq!(expected, "", "{sentence}"),
            Ok(Decision::Nothing(reason)) => panic!("{sentence}: {reason}"),
            Err(error) => assert!(!expected.is_empty() && error.to_string().contains(expected), "{sentence}: {error}"),
        }
    }
}

#[test]
fn retry_of_a_node_that_had_proven_its_version_says_when_it_counts_again() {
    let place = json!({"node": "a", "proof": "Unproven", "reason": "NotReady"});
    let rollout = json!({"version": "1.20.5", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0,
        "ledger": {"nodes": [place]}});
    let operator = operator(&json!({}), &json!({"activeRollouts": [rollout]}));
    let node = shadow(&json!({"currentVersion": "1.20.5"}));
    let reason = nothing(decide_retry(Some(&operator), &node, "nonce", crate::clock::now()).unwrap());
    assert_eq!(reason, format!("it had proven its version, and is not verified again: it {COUNTS_AGAIN}"));
}

#[test]
fn retry_verifies_a_node_whose_rollout_has_it_without_a_proof() {
    let now = crate::clock::now();
    let rollout = |named: &str, word: &str| {
        let place = json!({"node": named, "proof": word, "reason": "HookTimedOut"});
        operator(
            &json!({}),
            &json!({"activeRollouts": [{
                "version": "1.20.5", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0, "ledger": {"nodes": [place]},
            }]}),
        )
    };
    // The record of the node may be of an earlier version of the operator, and say nothing.
    let with = |runs: &str, progress: Value, acknowledged: &str| {
        let record = json!({"failures": 1, "requests": {"retry": acknowledged}});
        shadow(&json!({"currentVersion": runs, "progress": progress, "record": record}))
    };
    let idle = |runs| with(runs, Value::Null, "earlier");
    let unproven = rollout("a", "Unproven");
    let decide = |operator: &_, shadow: &_| decide_retry(Some(operator), shadow, "nonce", now).unwrap();
    let expected = json!({"metadata": {"annotations": {RETRY_ANNOTATION: "nonce"}}});
    assert_eq!(patch(decide(&unproven, &idle("1.20.5"))), expected);
    assert_eq!(Retry::of(Some(&unproven), &idle("1.20.5"), now), Some(Retry::Verify));
    for (operator, runs) in
        [(&rollout("b", "Unproven"), "1.20.5"), (&rollout("a", "Failed"), "1.20.5"), (&unproven, "1.20.4")]
    {
        assert!(nothing(decide(operator, &idle(runs))).contains("nothing to retry"));
    }
    assert!(nothing(decide_retry(None, &idle("1.20.5"), "nonce", now).unwrap()).contains("nothing to retry"));
    let mut verified = at("Verifying");
    verified["verification"] = json!(true);
    let verified = with("1.20.5", verified, "nonce");
    assert!(nothing(decide(&unproven, &verified)).contains("being verified again already"));
    let result = |shadow: &_| text(retried(Retry::Verify, Some(&unproven), shadow, "nonce"));
    assert!(result(&idle("1.20.5")).starts_with("pending: for the controller to verify it"));
    assert!(result(&verified).starts_with("it is being verified again"));
    assert!(result(&with("1.20.5", Value::Null, "nonce")).contains("could not be verified again now"));
}

#[test]
fn retry_waits_for_its_acknowledgement_and_names_a_failure_that_is_not_resolved() {
    let with = |acknowledged: &str, failures: Value| {
        shadow(&json!({"record": {
            "failures": 1, "requests": {"retry": acknowledged}, "versionFailures": failures,
        }}))
    };
    assert!(text(retried(Retry::BackOff, None, &shadow(&json!({})), "nonce")).starts_with("pending"));
    assert!(text(retried(Retry::BackOff, None, &with("earlier", json!([])), "nonce")).starts_with("pending"));
    assert!(text(retried(Retry::BackOff, None, &with("nonce", json!([])), "nonce")).contains("when its turn comes"));
    let failure = json!([{
        "version": "1.20.5", "variant": "v", "arch": "a", "reason": "BootFellBack", "time": "2026-01-01T00:00:00Z",
    }]);
    assert!(text(retried(Retry::BackOff, None, &with("nonce", failure), "nonce")).contains("resume --failures 1.20.5"));
}

#[test]
fn commands_are_for_the_node_and_the_operator_of_the_namespace() {
    let requests = json!({"retry": "nonce", "release": "nonce"});
    let failure = json!([{
        "version": "1.20.5", "variant": "v", "arch": "a", "reason": "BootFellBack", "time": "2026-01-01T00:00:00Z",
    }]);
    let record = json!({"failures": 1, "requests": requests, "versionFailures": failure});
    let in_ops = |progress: Value| {
        let mut shadow = shadow(&json!({"progress": progress, "record": record}));
        shadow.metadata.namespace = Some("ops".to_owned());
        shadow
    };
    let (mut verified, mut next) = (at("Verifying"), at("Staging"));
    verified["verification"] = json!(true);
    next["attempt"] = json!(2);
    for (state, command) in [
        (retried(Retry::Verify, None, &in_ops(verified), "nonce"), "status -n ops"),
        (retried(Retry::BackOff, None, &in_ops(Value::Null), "nonce"), "resume --failures 1.20.5 -n ops"),
        (released(&in_ops(next), "nonce", Some(1), None), "hold a -n ops"),
        (released(&in_ops(Value::Null), "nonce", Some(1), None), "hold a -n ops"),
    ] {
        let text = text(state);
        assert!(text.contains(&format!("kubectl brupop {command}")), "{command}: {text}");
    }
}

#[test]
fn release_is_written_only_for_an_attempt_under_way() {
    let expected = json!({"metadata": {"annotations": {RELEASE_ANNOTATION: "nonce"}}});
    assert_eq!(patch(decide_release(&shadow(&json!({"progress": at("Draining")})), "nonce")), expected);
    assert!(nothing(decide_release(&shadow(&json!({})), "nonce")).contains("nothing to release"));
    let releasing = shadow(&json!({"progress": at("Releasing")}));
    assert!(nothing(decide_release(&releasing, "nonce")).contains("being released already"));
}

#[test]
fn release_is_written_for_a_drill_that_has_not_begun() {
    let expected = json!({"metadata": {"annotations": {RELEASE_ANNOTATION: "nonce"}}});
    let long = "x".repeat(100);
    for request in ["1 evict", &long] {
        let done = planner::annotations::recorded_value(request);
        for (acknowledged, waits) in [("0", true), (done.as_str(), false)] {
            let mut asked = shadow(&json!({"record": {"failures": 0, "requests": {"drill": acknowledged}}}));
            let annotations = [(DRILL_ANNOTATION.to_owned(), request.to_owned())];
            asked.metadata.annotations = Some(annotations.into());
            match decide_release(&asked, "nonce") {
                Decision::Nothing(_) => assert!(!waits, "{request}"),
                decision @ Decision::Write(_) => {
                    assert_eq!((patch(decision), waits), (expected.clone(), true), "{request}");
                }
            }
        }
    }
}

#[test]
fn release_waits_until_node_is_released_and_says_how_it_is_left() {
    let acknowledged = json!({"failures": 0, "requests": {"release": "nonce"}});
    let releasing = |permitted: bool| {
        let mut progress = at("Releasing");
        progress["permitIssued"] = json!(permitted);
        shadow(&json!({"progress": progress, "record": acknowledged}))
    };
    let node = |held: bool, unschedulable: bool| {
        let hold = held.then(planner::hold::Hold::default);
        NodeFacts { hold, unschedulable, ..NodeFacts::default() }
    };
    let ended = shadow(&json!({"record": acknowledged}));
    let mut next = at("Staging");
    next["attempt"] = json!(2);
    let again = shadow(&json!({"progress": next, "record": acknowledged}));
    for (sentence, shadow, node, part) in [
        ("not taken", shadow(&json!({"progress": at("Draining")})), None, "pending: for the controller to end"),
        ("without a permit", releasing(false), None, "pending: for the controller to release"),
        ("with a permit", releasing(true), None, "pending: its reboot was permitted"),
        ("updated again", again, None, "released; its next update has begun already"),
        ("in service", ended.clone(), Some(node(false, false)), "released; it is back in service"),
        ("cordoned", ended.clone(), Some(node(false, true)), "cordoned by another client"),
        ("held", ended, Some(node(true, true)), "it is held and stays as it is"),
    ] {
        let text = text(released(&shadow, "nonce", Some(1), node.as_ref()));
        assert!(text.contains(part), "{sentence}: {text}");
    }
}
