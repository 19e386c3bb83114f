use models::operator::OperatorRequests;
use serde_json::{Value, json};

use super::super::operator::testing::{condition, nothing, operator, patch};
use super::*;

/// A rollout of 6 nodes: `passed` steps are passed, and those of the step due are updated if `done`.
fn rollout(version: &str, passed: i64, done: bool, approved: bool) -> Value {
    let (before, due) = [(0, 1), (1, 3), (3, 6), (6, 0)][usize::try_from(passed).unwrap()];
    json!({
        "version": version, "variant": "aws-k8s-1.37", "arch": "x86_64", "started": "2026-01-01T00:00:00Z",
        "stepsPassed": passed, "stepDone": done.then_some("2026-01-01T01:00:00Z"), "approved": approved,
        "record": {"number": 7, "begun": "2026-01-01T00:00:00Z", "revision": {"name": "", "number": 0}},
        "ledger": {"base": 6, "passed": before, "due": due, "proven": if done { due } else { before }},
    })
}

fn with(rollouts: &[Value]) -> BottlerocketUpdateOperator {
    let manual = |nodes: i64| json!({"nodes": nodes, "soak": "1h", "approval": "Manual"});
    let canary = json!([manual(1), manual(3), {"nodes": 6}]);
    operator(&json!({"strategy": {"canary": canary}}), &json!({"activeRollouts": rollouts}))
}

/// The same of another kind, with the record of this number.
fn of_kind(mut rollout: Value, arch: &str, number: i64) -> Value {
    rollout["arch"] = json!(arch);
    rollout["record"]["number"] = json!(number);
    rollout
}

/// A rollout whose first step is used up by a node without proof.
fn unproven(nodes: &Value) -> Value {
    let mut rollout = rollout("1.20.5", 0, false, false);
    rollout["ledger"] = json!({"base": 6, "due": 1, "unproven": 1, "nodes": nodes});
    rollout
}

/// An hour after the end of the soaks.
fn wanted(number: Option<usize>, unproven: bool) -> Wanted {
    Wanted { number, rollout: None, unproven, now: "2026-01-01T03:00:00Z".parse().unwrap() }
}

fn decided(rollouts: &[Value], number: Option<usize>, unproven: bool) -> (Option<Approval>, Decision) {
    decide(&with(rollouts), wanted(number, unproven), "nonce").unwrap()
}

/// Returns the error of an approval that finds no step.
fn refused(rollouts: &[Value], number: Option<usize>, unproven: bool) -> String {
    decide(&with(rollouts), wanted(number, unproven), "nonce").unwrap_err().to_string()
}

fn approved(rollouts: &[Value], wanted: Option<usize>, name: &str) -> (String, usize) {
    let (approval, decision) = decided(rollouts, wanted, false);
    let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: format!("{name}@nonce")}}});
    assert_eq!(patch(decision), expected, "{approval:?}");
    let approval = approval.unwrap();
    (approval.version.to_string(), approval.number)
}

/// Returns what is printed about an approval that is written.
fn printed(decision: &Decision) -> &str {
    match decision {
        Decision::Write(change) => &change.what,
        Decision::Nothing(reason) => panic!("nothing is written: {reason}"),
    }
}

/// Returns what comes of the approval of the steps that wait in `before`, once the operator's status has `after`.
fn result(before: &[Value], unproven: bool, after: &[Value]) -> State {
    outcome(&with(after), &decided(before, None, unproven).0.unwrap())
}

/// The same with the record of this number, and with places that were proven half an hour before the approval.
fn soaking(mut rollout: Value, number: i64) -> Value {
    rollout["record"]["number"] = json!(number);
    rollout["stepDone"] = json!("2026-01-01T02:30:00Z");
    rollout
}

#[test]
fn approval_is_for_the_step_that_waits_and_has_not_ended() {
    let older = || rollout("1.20.4", 1, true, false);
    let newer = |done| of_kind(rollout("1.20.5", 0, done, false), "x86_64", 8);
    let ended = |field: &str| {
        let mut ended = newer(true);
        match field {
            "record" => ended["record"]["ended"] = json!("2026-01-01T02:00:00Z"),
            field => ended[field] = json!("2026-01-01T02:00:00Z"),
        }
        ended
    };
    for (sentence, other) in [
        ("the nodes of a newer version are not updated yet", newer(false)),
        ("a newer version soaks", soaking(newer(true), 8)),
        ("the rollout of a newer version has ended", ended("ended")),
        ("the record of a newer version has ended", ended("record")),
    ] {
        for rollouts in [[other.clone(), older()], [older(), other]] {
            for number in [None, Some(2)] {
                assert_eq!(approved(&rollouts, number, "7/3"), ("1.20.4".to_owned(), 2), "{sentence}");
            }
        }
    }
    // Without another one, a step is approved in its soak; an urgent one has none.
    assert_eq!(approved(&[soaking(newer(true), 8)], None, "8/1").0, "1.20.5");
    let mut urgent = soaking(newer(true), 8);
    urgent["urgentUntil"] = json!("2026-01-02T00:00:00Z");
    assert_eq!(approved(&[urgent, soaking(older(), 7)], None, "8/1").0, "1.20.5");
}

#[test]
fn nodes_without_proof_are_accepted_before_a_step_in_its_soak_is_approved() {
    let other = soaking(of_kind(rollout("1.20.5", 0, true, false), "aarch64", 8), 8);
    let (_, decision) = decided(&[other, unproven(&json!([]))], None, true);
    assert_eq!(patch(decision)["metadata"]["annotations"][APPROVE_STEP_ANNOTATION], "7/1/unproven@nonce");
}

#[test]
fn steps_of_several_versions_are_approved_by_the_number_of_their_rollout_alone() {
    let older = rollout("1.20.4", 1, true, false);
    let newer = of_kind(rollout("1.20.5", 0, true, false), "x86_64", 8);
    let unproven = of_kind(unproven(&json!([])), "aarch64", 9);
    let operator = with(&[newer, older, unproven]);
    let decide = |wanted| decide(&operator, wanted, "nonce");
    let commands = [
        (7, "approve 2 --rollout 7", "7/3@nonce"),
        (8, "approve 1 --rollout 8", "8/1@nonce"),
        (9, "approve 1 --rollout 9 --unproven", "9/1/unproven@nonce"),
    ];
    for number in [None, Some(3)] {
        let error = decide(wanted(number, true)).unwrap_err().to_string();
        assert!(error.contains("nothing was written. Name one: canary step 1 of 1.20.5 for aws-k8s-1.37"), "{error}");
        for (_, command, _) in commands {
            assert!(error.contains(&format!(": kubectl brupop {command}")), "{error}");
        }
    }
    // The number of a step that one version alone waits at is enough.
    for (number, value) in [(1, "8/1,9/1/unproven@nonce"), (2, "7/3@nonce")] {
        let (approval, _) = decide(wanted(Some(number), true)).unwrap();
        assert_eq!(approval.unwrap().value, value);
    }
    for (rollout, command, value) in commands {
        let of = |number| Wanted { rollout: Some(rollout), ..wanted(number, command.ends_with("--unproven")) };
        let (approval, _) = decide(of(None)).unwrap();
        assert_eq!(approval.unwrap().value, value);
        let error = decide(of(Some(3))).unwrap_err().to_string();
        assert!(error.starts_with("canary step 3 does not wait for approval, canary step"), "{error}");
    }
    let of = |rollout| Wanted { rollout: Some(rollout), ..wanted(Some(1), false) };
    let error = decide(of(6)).unwrap_err().to_string();
    let expected = "rollout 6 is not under way: see kubectl brupop history; nothing was written. These wait: canary step 1 of 1.20.5";
    assert!(error.starts_with(expected), "{error}");
    for (_, command, _) in commands {
        assert!(error.contains(&format!(": kubectl brupop {command}")), "{error}");
    }
    let passed = "canary step 1 of 1.20.4 is passed already; step 2 waits for approval now";
    assert_eq!(nothing(decide(of(7)).unwrap().1), passed);
}

#[test]
fn number_of_an_ended_record_names_the_one_that_its_rollout_goes_on_in() {
    let now = of_kind(rollout("1.20.5", 1, true, false), "x86_64", 8);
    let mut ended = rollout("1.20.5", 1, true, false);
    ended["record"]["ended"] = json!("2026-01-01T02:00:00Z");
    let wanted = Wanted { rollout: Some(7), ..wanted(Some(2), false) };
    let waits = ". These wait: canary step 2 of 1.20.5 for aws-k8s-1.37 x86_64: kubectl brupop approve 2 --rollout 8";
    // It is still in the status, and no more.
    let error = decide(&with(&[ended, now.clone()]), wanted, "nonce").unwrap_err().to_string();
    assert_eq!(error, format!("rollout 7 is at no canary step; nothing was written{waits}"));
    let error = decide(&with(&[now]), wanted, "nonce").unwrap_err().to_string();
    assert!(error.starts_with("rollout 7 is not under way") && error.ends_with(waits), "{error}");
}

/// No node is to have the older version any more, and its record has not ended yet.
#[test]
fn step_of_a_rollout_that_the_operator_does_not_show_is_not_chosen_beside_one_that_it_shows() {
    let older = rollout("1.20.4", 1, true, false);
    let newer = of_kind(rollout("1.20.5", 0, true, false), "x86_64", 8);
    let text = |name: &str| {
        format!(
            "canary step waits for approval: kubectl annotate bruo default {APPROVE_STEP_ANNOTATION}={name}@<any new text>"
        )
    };
    let decide = |shown: &str, rollout: Option<i64>| {
        let mut operator = with(&[newer.clone(), older.clone()]);
        let condition = condition(PROGRESSING, "AwaitingApproval", shown);
        operator.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
        let (approval, _) = decide(&operator, Wanted { rollout, ..wanted(None, false) }, "nonce").ok()?;
        approval.map(|approval| approval.value)
    };
    let (newer, older) = (text("8/1"), text("7/3"));
    let both = format!("{newer}; {older}");
    let (other, cut) = (text("8/3"), format!("{newer}; {}", "x".repeat(CUT)));
    for (sentence, shown, rollout, expected) in [
        ("the newer one is shown", newer.as_str(), None, Some("8/1@nonce")),
        ("the older one is shown", older.as_str(), None, Some("7/3@nonce")),
        ("both are shown", both.as_str(), None, None),
        ("none is shown yet", "", None, None),
        ("another step of it is shown", other.as_str(), None, None),
        ("the text is cut", cut.as_str(), None, None),
        ("the other one is named", newer.as_str(), Some(7), None),
    ] {
        assert_eq!(decide(shown, rollout).as_deref(), expected, "{sentence}");
    }
}

/// The soak of the step has ended at 02:00.
#[test]
fn step_of_a_version_that_no_node_is_to_have_now_is_not_approved() {
    let rests = "canary step 1 of 1.20.5 waits for no approval: no node is to have 1.20.5 now; nothing was written";
    for (sentence, shown, enabled, now, expected) in [
        ("the operator shows no step", Some(""), true, "2026-01-01T02:01:00Z", rests),
        ("it has had no time to", Some(""), true, "2026-01-01T02:00:59Z", "7/1@nonce"),
        ("it shows none while updates are paused", Some(""), false, "2026-01-01T02:01:00Z", "7/1@nonce"),
        ("it has shown nothing yet", None, true, "2026-01-01T02:01:00Z", "7/1@nonce"),
    ] {
        let mut operator = with(&[rollout("1.20.5", 0, true, false)]);
        operator.spec.enabled = Some(enabled);
        let conditions = shown.map(|shown| serde_json::from_value(condition(PROGRESSING, "Idle", shown)).unwrap());
        operator.status.as_mut().unwrap().conditions = conditions.into_iter().collect();
        let wanted = Wanted { now: now.parse().unwrap(), ..wanted(None, false) };
        let found = match decide(&operator, wanted, "nonce") {
            Ok((approval, _)) => approval.unwrap().value,
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{sentence}");
    }
}

/// The commands of two kinds at the same step.
#[test]
fn kinds_of_one_version_can_be_approved_apart() {
    let x86 = rollout("1.20.5", 0, true, false);
    let operator = with(&[x86.clone(), of_kind(x86, "aarch64", 8)]);
    for (rollout, kind) in [(7, "x86_64"), (8, "aarch64")] {
        let wanted = Wanted { rollout: Some(rollout), ..wanted(Some(1), false) };
        let (approval, decision) = decide(&operator, wanted, "nonce").unwrap();
        assert_eq!(approval.unwrap().value, format!("{rollout}/1@nonce"));
        assert_eq!(printed(&decision), format!("canary step 1 of 1.20.5 approved for aws-k8s-1.37 {kind}"));
    }
}

#[test]
fn approval_names_the_step_of_each_variant_and_architecture() {
    let x86 = rollout("1.20.5", 0, true, false);
    let arm = of_kind(x86.clone(), "aarch64", 8);
    assert_eq!(approved(&[x86.clone(), arm.clone()], None, "7/1,8/1").1, 1);
    let (_, decision) = decided(&[x86, arm], None, false);
    let kinds = "canary step 1 of 1.20.5 approved for aws-k8s-1.37 x86_64, aws-k8s-1.37 aarch64";
    assert_eq!(printed(&decision), kinds);
    // One of several kinds waits.
    let x86 = rollout("1.20.5", 0, true, false);
    let begun = of_kind(rollout("1.20.5", 0, false, false), "aarch64", 8);
    let (_, decision) = decided(&[x86, begun], None, false);
    assert_eq!(printed(&decision), "canary step 1 of 1.20.5 approved for aws-k8s-1.37 x86_64");
}

#[test]
fn four_kinds_without_proof_fit_into_one_approval() {
    let nonce = short_nonce("2026-11-28T00:00:00Z".parse().unwrap());
    let kinds: Vec<Value> =
        (12..16).map(|number| of_kind(unproven(&json!([])), &format!("arch-{number}"), number)).collect();
    let (approval, decision) = decide(&with(&kinds), wanted(None, true), &nonce).unwrap();
    let approval = approval.unwrap();
    assert!(approval.left.is_empty(), "{approval:?}");
    let value = &patch(decision)["metadata"]["annotations"][APPROVE_STEP_ANNOTATION];
    assert_eq!(*value, format!("12/1/unproven,13/1/unproven,14/1/unproven,15/1/unproven@{nonce}"));
    assert!(approval.value.len() <= REQUEST_LENGTH && *value == approval.value);
}

#[test]
fn kinds_whose_names_do_not_fit_are_not_approved_and_said_to_be_left() {
    let nodes = |name: &str| json!([{"node": name, "proof": "Unproven", "reason": "HookTimedOut"}]);
    let kind = |number: i64| of_kind(unproven(&nodes(&format!("n{number}"))), &format!("arch-{number}"), number);
    let kinds: Vec<Value> = (1001..1006).map(kind).collect();
    let (approval, decision) = decide(&with(&kinds), wanted(None, true), "12345678").unwrap();
    let approval = approval.unwrap();
    let value = "1001/1/unproven,1002/1/unproven,1003/1/unproven@12345678";
    assert_eq!(approval.value, value);
    let expected = "canary step 1 of 1.20.5 approved for aws-k8s-1.37 arch-1001, aws-k8s-1.37 arch-1002, aws-k8s-1.37 \
                    arch-1003; accepted without proof: n1001 (HookTimedOut), n1002 (HookTimedOut), n1003 (HookTimedOut); \
                    not approved yet for aws-k8s-1.37 arch-1004, aws-k8s-1.37 arch-1005: run the command again";
    assert_eq!(printed(&decision), expected);
    // That is repeated once it is taken.
    let accepted = kinds.into_iter().enumerate().map(|(index, mut kind)| {
        kind["ledger"]["accepted"] = json!(i64::from(index < 3));
        kind["approved"] = json!(index < 3);
        kind
    });
    let accepted: Vec<Value> = accepted.collect();
    let State::Done(text) = outcome(&with(&accepted), &approval) else { panic!("it is taken") };
    assert!(
        text.ends_with("not approved yet for aws-k8s-1.37 arch-1004, aws-k8s-1.37 arch-1005: run the command again")
    );
    assert!(text.contains("accepted without proof: n1001 (HookTimedOut), n1002"), "{text}");
    let (again, _) = decide(&with(&accepted), wanted(None, true), "12345679").unwrap();
    assert_eq!(again.unwrap().value, "1004/1/unproven,1005/1/unproven@12345679");
}

#[test]
fn rollout_without_a_record_is_not_approved_and_the_user_tries_again() {
    let x86 = rollout("1.20.5", 0, true, false);
    let mut unrecorded = of_kind(x86.clone(), "aarch64", 8);
    unrecorded["record"] = json!(null);
    let error = decide(&with(std::slice::from_ref(&unrecorded)), wanted(None, false), "nonce").unwrap_err().to_string();
    let expected = "canary step 1 of 1.20.5 cannot be approved yet, since the record of its rollout is not written; \
                    nothing was written. Try again shortly";
    assert_eq!(error, expected);
    // Another kind that has one is approved.
    let (approval, decision) = decided(&[unrecorded, x86], None, false);
    assert_eq!(approval.unwrap().value, "7/1@nonce");
    let left = "; not approved yet for aws-k8s-1.37 aarch64: run the command again";
    assert!(printed(&decision).ends_with(left), "{}", printed(&decision));
}

#[test]
fn approval_takes_the_place_of_no_other_that_the_operator_has_not_taken() {
    let long = format!("7/1@{}", "x".repeat(REQUEST_LENGTH));
    for (sentence, annotated, taken, is_written) in [
        ("none was made before", None, None, true),
        ("the first one is not taken", Some("7/1@a"), None, false),
        ("the second one is not taken", Some("7/1@b"), Some("7/1@a".to_owned()), false),
        ("it is taken", Some("7/1@a"), Some("7/1@a".to_owned()), true),
        ("a long one is taken", Some(long.as_str()), Some(recorded_value(&long)), true),
        ("a taken one was removed", None, Some("7/1@a".to_owned()), true),
    ] {
        let mut operator = with(&[rollout("1.20.5", 1, true, false)]);
        let annotation = annotated.map(|value| (APPROVE_STEP_ANNOTATION.to_owned(), value.to_owned()));
        operator.metadata.annotations = Some(annotation.into_iter().collect());
        let requests = OperatorRequests { approve_step: taken, ..OperatorRequests::default() };
        operator.status.as_mut().unwrap().requests = Some(requests);
        let decided = decide(&operator, wanted(None, false), "nonce");
        assert_eq!(decided.is_ok(), is_written, "{sentence}");
        if let Err(error) = decided {
            let error = error.to_string();
            assert!(error.contains(&format!("approval '{}' yet", annotated.unwrap())), "{sentence}: {error}");
        }
    }
}

#[test]
fn nodes_without_proof_are_shown_and_accepted_on_request_alone() {
    let mut unproven = unproven(&json!([{"node": "n1", "proof": "Unproven", "reason": "HookTimedOut"}]));
    let text = refused(std::slice::from_ref(&unproven), None, false);
    assert!(
        text.contains(
            "is not proven by n1 (HookTimedOut); to accept that: kubectl brupop approve 1 --rollout 7 --unproven"
        ),
        "{text}"
    );
    let (approval, decision) = decided(std::slice::from_ref(&unproven), None, true);
    assert_eq!(approval.map(|approval| approval.number), Some(1));
    assert_eq!(printed(&decision), "canary step 1 of 1.20.5 approved; accepted without proof: n1 (HookTimedOut)");
    let expected = json!({"metadata": {"annotations": {APPROVE_STEP_ANNOTATION: "7/1/unproven@nonce"}}});
    assert_eq!(patch(decision), expected);
    // Not accepted by it: a failure.
    let nodes = json!([{"node": "n1", "proof": "Failed", "reason": "BootFellBack"}]);
    unproven["ledger"] = json!({"base": 6, "due": 1, "failed": 1, "nodes": nodes});
    let text = refused(&[unproven], None, true);
    let failed = "has failed on n1 (BootFellBack); to try again: kubectl brupop resume --failures 1.20.5";
    assert!(text.contains(failed), "{text}");
}

#[test]
fn commands_are_for_the_operator_of_the_namespace() {
    let mut operator = with(&[unproven(&json!([]))]);
    operator.metadata.namespace = Some("ops".to_owned());
    let text = decide(&operator, wanted(None, false), "nonce").unwrap_err().to_string();
    let command = "to accept that: kubectl brupop approve 1 --rollout 7 --unproven -n ops; nothing was written";
    assert!(text.ends_with(command), "{text}");
}

#[test]
fn nodes_that_the_ledger_does_not_name_are_counted() {
    let proof = |proof: &str, count: i64, nodes: Value| {
        let mut rollout = rollout("1.20.5", 0, false, false);
        rollout["ledger"] = json!({"base": 6, "due": 3, proof: count, "nodes": nodes});
        rollout
    };
    let node = |proof: &str| json!({"node": "n1", "proof": proof, "reason": "HookTimedOut"});
    for (rollout, part) in [
        (proof("unproven", 3, json!([])), "1.20.5 is not proven by 3 node(s); to accept"),
        (proof("unproven", 3, json!([node("Unproven")])), "is not proven by n1 (HookTimedOut) and 2 more; to accept"),
        (proof("failed", 2, json!([])), "1.20.5 has failed on 2 node(s); to try again"),
        (proof("failed", 2, json!([node("Failed")])), "has failed on n1 (HookTimedOut) and 1 more; to try again"),
        (proof("failed", 2, json!([node("Unproven")])), "has failed on 2 node(s); to try again"),
    ] {
        let text = refused(&[rollout], None, false);
        assert!(text.contains(part), "{part}: {text}");
    }
    // Those that are accepted already are not accepted again.
    let nodes =
        json!([{"node": "n0", "proof": "Unproven", "reason": "HookTimedOut", "accepted": true}, node("Unproven")]);
    let mut some = proof("unproven", 3, nodes);
    some["ledger"]["accepted"] = json!(1);
    let (_, decision) = decided(&[some], None, true);
    let accepted = "; accepted without proof: n1 (HookTimedOut) and 1 more";
    assert!(printed(&decision).ends_with(accepted), "{}", printed(&decision));
    let (_, decision) = decided(&[proof("unproven", 3, json!([]))], None, true);
    assert!(printed(&decision).ends_with("; accepted without proof: 3 node(s)"), "{}", printed(&decision));
}

/// No node ran the version at the end of its first soak.
#[test]
fn step_whose_soak_is_repeated_is_approved_although_policy_asks_for_none() {
    let mut repeated = rollout("1.20.5", 2, true, false);
    repeated["soakRepeated"] = json!(true);
    assert_eq!(approved(&[repeated], None, "7/6"), ("1.20.5".to_owned(), 3));
}

#[test]
fn step_that_does_not_wait_is_not_approved() {
    for (rollouts, part) in [
        (vec![], "no rollout is at a canary step"),
        (vec![rollout("1.20.5", 3, false, false)], "no rollout is at a canary step"),
        (vec![rollout("1.20.5", 1, true, true)], "canary step 2 of 1.20.5 is approved already"),
        (vec![rollout("1.20.5", 2, true, false)], "canary step 3 of 1.20.5 needs no approval"),
    ] {
        let (step, decision) = decided(&rollouts, None, false);
        let reason = nothing(decision);
        assert!(step.is_none() && reason.contains(part), "{part}: {reason}");
    }
    let begun = [rollout("1.20.5", 0, false, false)];
    let error = refused(&begun, None, false);
    assert!(error.contains("the nodes of canary step 1 of 1.20.5 are not updated"), "{error}");
    let error = decide(&operator(&json!({}), &json!({})), wanted(None, false), "nonce").unwrap_err().to_string();
    assert!(error.contains("no canary steps"), "{error}");
}

/// A pipeline goes on where nothing had to be done, and fails where a user has to do something.
#[test]
fn approval_that_finds_no_step_succeeds_only_if_the_named_one_is_passed_or_approved() {
    let (begun, approved) = (|| rollout("1.20.5", 1, false, false), || rollout("1.20.5", 1, true, true));
    let mut ended = rollout("1.20.5", 1, true, false);
    ended["record"]["ended"] = json!("2026-01-01T02:00:00Z");
    let other = || of_kind(rollout("1.20.5", 1, false, false), "aarch64", 8);
    for (sentence, rollouts, number, record, expected) in [
        ("it is passed, and the next one is not updated yet", vec![begun()], Some(1), Some(7), true),
        ("the same without the record", vec![begun()], Some(1), None, true),
        ("it is passed in each of several kinds", vec![begun(), other()], Some(1), None, true),
        ("its record has ended", vec![ended.clone()], Some(1), Some(7), true),
        ("all are passed", vec![rollout("1.20.5", 3, false, false)], None, Some(7), true),
        ("it is approved, and soaks", vec![approved()], Some(2), Some(7), true),
        ("it is not updated yet", vec![begun()], Some(2), Some(7), false),
        ("one before it is approved", vec![approved()], Some(3), Some(7), false),
        ("it is approved for one of two kinds", vec![approved(), other()], Some(2), None, false),
        ("its record has ended before it", vec![ended], Some(2), Some(7), false),
        ("there is no such step", vec![rollout("1.20.5", 3, false, false)], Some(4), Some(7), false),
        ("none has the number 0", vec![begun()], Some(0), None, false),
        ("there is no rollout", vec![], Some(1), None, false),
    ] {
        let wanted = Wanted { rollout: record, ..wanted(number, false) };
        match decide(&with(&rollouts), wanted, "nonce") {
            Ok((approval, decision)) => {
                assert!(expected && approval.is_none(), "{sentence}: {}", nothing(decision));
            }
            Err(error) => {
                assert!(!expected && error.to_string().contains("nothing was written"), "{sentence}: {error}");
            }
        }
    }
}

#[test]
fn approval_of_a_named_step_passes_no_other() {
    let waits = [rollout("1.20.5", 1, true, false)];
    assert_eq!(approved(&waits, Some(2), "7/3").1, 2);
    let (_, decision) = decided(&waits, Some(1), false);
    assert!(nothing(decision).contains("step 1 of 1.20.5 is passed already; step 2 waits"), "repeated by mistake");
    for wrong in [0, 3] {
        let error = decide(&with(&waits), wanted(Some(wrong), false), "nonce").unwrap_err().to_string();
        assert!(error.contains("step 2 of 1.20.5 does"), "{error}");
    }
}

#[test]
fn outcome_says_if_the_rollout_continues_now_or_after_the_soak() {
    let waits = [rollout("1.20.5", 0, true, false)];
    let result = |passed, approved| result(&waits, false, &[rollout("1.20.5", passed, true, approved)]);
    let State::Done(text) = result(1, false) else { panic!("it is passed") };
    assert_eq!(text, "canary step 1 of 1.20.5 is approved and passed: the rollout continues");
    let State::Done(text) = result(0, true) else { panic!("it is approved") };
    assert!(text.contains("when its soak ends at 2026-01-01T02:00:00Z"), "{text}");
    let State::Failed(text) = result(0, false) else { panic!("it is not approved") };
    assert!(text.contains("without effect: canary step 1 of 1.20.5 still waits"), "{text}");
}

#[test]
fn outcome_says_what_keeps_the_rollout_from_going_on() {
    let approval = decided(&[rollout("1.20.5", 0, true, false)], None, false).0.unwrap();
    let paused = "Updates are paused, however: kubectl brupop resume";
    for (passed, approved, text) in [
        (1, false, "is approved and passed"),
        (0, true, "is approved, which takes effect when its soak ends at 2026-01-01T02:00:00Z"),
    ] {
        let mut now = with(&[rollout("1.20.5", passed, true, approved)]);
        now.spec.enabled = Some(false);
        let State::Done(found) = outcome(&now, &approval) else { panic!("{text}") };
        assert_eq!(found, format!("canary step 1 of 1.20.5 {text}. {paused}"));
    }
}

#[test]
fn outcome_is_that_of_each_rollout_that_the_approval_names() {
    let x86 = |passed, approved| rollout("1.20.5", passed, true, approved);
    let arm = |passed, approved| of_kind(x86(passed, approved), "aarch64", 8);
    let before = [x86(0, false), arm(0, false)];
    let result = |after: &[Value]| result(&before, false, after);
    let State::Done(text) = result(&[x86(1, false), arm(0, true)]) else { panic!("both are taken") };
    let both = "canary step 1 of 1.20.5 is approved for aws-k8s-1.37 x86_64, aws-k8s-1.37 aarch64: the rollout continues \
                when its soak ends at 2026-01-01T02:00:00Z";
    assert_eq!(text, both);
    // Another rollout of the version that has passed the step does not count for this one, nor does one of a later record.
    let mut failed = of_kind(rollout("1.20.5", 0, false, false), "aarch64", 8);
    failed["ledger"] = json!({"base": 6, "due": 1, "failed": 1});
    let later = of_kind(x86(1, false), "aarch64", 9);
    for (arm, reason) in [
        (arm(0, false), "canary step 1 of 1.20.5 still waits for approval"),
        (failed, "canary step 1 of 1.20.5 has failed on 1 node(s)"),
        (later, "its rollout has ended"),
    ] {
        let State::Failed(text) = result(&[x86(1, false), arm]) else { panic!("{reason}") };
        let part = format!("taken without effect for aws-k8s-1.37 aarch64: {reason}");
        assert!(text.contains(&part), "{part}: {text}");
        assert!(text.contains(". canary step 1 of 1.20.5 is approved and passed for aws-k8s-1.37 x86_64"), "{text}");
    }
}

#[test]
fn step_that_the_policy_has_changed_is_not_said_to_be_approved() {
    let before = [rollout("1.20.5", 0, true, false)];
    let mut changed = rollout("1.20.5", 0, true, true);
    (changed["ledger"]["due"], changed["ledger"]["proven"]) = (json!(2), json!(2));
    let State::Failed(text) = result(&before, false, &[changed]) else { panic!("another step") };
    assert!(text.ends_with("without effect: the step has another number of places now"), "{text}");
}

#[test]
fn nodes_without_proof_are_accepted_only_if_all_of_them_are() {
    let before = [unproven(&json!([{"node": "n1", "proof": "Unproven", "reason": "HookTimedOut"}]))];
    let with = |counts: Value, approved: bool| {
        let mut after = before[0].clone();
        after["ledger"] = counts;
        after["approved"] = json!(approved);
        result(&before, true, &[after])
    };
    let accepted = json!({"base": 6, "due": 1, "unproven": 1, "accepted": 1});
    let State::Done(text) = with(accepted.clone(), true) else { panic!("it is accepted") };
    assert!(text.ends_with("; accepted without proof: n1 (HookTimedOut)"), "{text}");
    let proven = json!({"base": 6, "due": 1, "proven": 1});
    assert!(matches!(with(proven, true), State::Done(_)), "it has proven itself meanwhile");
    for (counts, approved, reason) in [
        (json!({"base": 6, "due": 1, "unproven": 1}), true, "is not proven by 1 node(s)"),
        (json!({"base": 6, "due": 1, "unproven": 2, "accepted": 1}), true, "is not proven by 1 node(s)"),
        (json!({"base": 6, "due": 1, "failed": 1}), true, "has failed on 1 node(s)"),
        (accepted, false, "are not updated yet"),
    ] {
        let State::Failed(text) = with(counts.clone(), approved) else { panic!("{counts}") };
        assert!(text.contains("without effect: ") && text.contains(reason), "{counts}: {text}");
    }
}
