//! Expressions and checks of objects in the verdict on a node after its update.

use jiff::Timestamp;
use models::shadow::{HostState, NodeBefore, Record};

use super::health::{DEADLINE, SOAKED, Watch, healthy, is_blamed, is_unproven, is_updated, verifying, verifying_since};
use crate::expressions::{Question, Subject};
use crate::fixtures::*;
use crate::plan::plan;
use crate::view::{Answer, WebApiOutage};
use crate::wait::Wait;

/// The verification of a node under these expressions, each with its name, query and answer.
fn with_expressions(expressions: &[(&str, &str, Answer)]) -> Watch {
    let mut watch = Watch::of(verifying(vec![healthy()]));
    let named = |(name, query, _): &(&str, &str, Answer)| serde_json::json!({"name": name, "query": query});
    let after = serde_json::json!({"expressions": expressions.iter().map(named).collect::<Vec<_>>()});
    let spec = serde_json::json!({"health": {"after": after}, "prometheus": {"url": "http://p"}});
    watch.policy = with_policy(&mut watch.view, spec);
    let answers = expressions.iter().map(|(_, query, answer)| (question(&query.replace("$node", "a")), answer.clone()));
    watch.view.expressions = answers.collect();
    let names: Vec<&str> = expressions.iter().map(|(name, ..)| *name).collect();
    were_quiet(&mut watch, &names);
    watch
}

/// Records the expressions that returned nothing before the drain.
fn were_quiet(watch: &mut Watch, names: &[&str]) {
    let quiet_expressions = names.iter().map(|name| (*name).to_owned()).collect();
    let compared_with = ["e", "d", "c", "b"].map(str::to_owned).into();
    let before = NodeBefore { quiet_expressions, compared_with, ..NodeBefore::default() };
    let record = Record { before: Some(before), ..Record::default() };
    shadow(&mut watch.view).status.controller.record = Some(record);
}

const OF_A_NODE: &str = "errors{node=\"$node\"} > 1";

/// Adds nodes that were like this one before its drain, with the answers to the expression of a node.
fn others_return(watch: &mut Watch, answers: &[(&str, Answer)]) {
    for (name, answer) in answers {
        watch.view.nodes.insert((*name).to_owned(), node(name));
        watch.view.expressions.insert(question(&OF_A_NODE.replace("$node", name)), answer.clone());
    }
}

/// A result since this second, however late it is compared.
fn fires(since: i64) -> Answer {
    Answer::Firing { series: "{} 7".into(), since: t(since), asked: Timestamp::MAX }
}

/// An empty result, however late it is compared.
const QUIET: Answer = Answer::Quiet { since: Timestamp::UNIX_EPOCH, asked: Timestamp::MAX };

#[test]
fn expression_counts_against_the_version_only_if_it_is_the_nodes_own_was_quiet_before_and_lasts() {
    const OF_ALL: &str = "errors > 1";
    let (own, of_all) = (|since| ("own", OF_A_NODE, fires(since)), |since| ("all", OF_ALL, fires(since)));
    let late = DEADLINE - 1;
    for (sentence, expressions, quiet, expected) in [
        ("it is new since the drain", vec![own(0)], &["own"][..], is_blamed()),
        ("it fired before the drain, or had no answer", vec![own(0)], &[], is_unproven()),
        ("another one was quiet", vec![own(0)], &["all"], is_unproven()),
        ("it has just begun", vec![own(late)], &["own"], is_unproven()),
        ("it has just begun, and another one has fired", vec![own(late), of_all(0)], &["own"], is_unproven()),
        ("in another order", vec![of_all(0), own(late)], &["own"], is_unproven()),
        ("it has fired, and another one is first", vec![of_all(late), own(0)], &["own"], is_blamed()),
    ] {
        let mut watch = with_expressions(&expressions);
        others_return(&mut watch, &[("b", QUIET), ("c", QUIET)]);
        were_quiet(&mut watch, quiet);
        assert_eq!(watch.at(SOAKED).unwrap().as_str(), "ExpressionFires", "{sentence}");
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
        assert!(watch.message().contains("the expression own returned {} 7"), "{sentence}: {}", watch.message());
    }
    let mut watch = with_expressions(&[own(0)]);
    watch.view.operator.as_mut().unwrap().status.slots.clear();
    let verified = shadow(&mut watch.view);
    verified.spec.state = HostState::Idle;
    let progress = verified.status.controller.progress.as_mut().unwrap();
    (progress.verification, progress.disruptive) = (true, false);
    watch.at(SOAKED);
    assert_eq!(watch.result_at(DEADLINE), is_unproven(), "days later it may have other causes");
    let failed = || ("fails", "down{node=\"$node\"}", Answer::Failed { message: "no answer".into() });
    let mut watch = with_expressions(&[failed(), own(0)]);
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "ExpressionFires", "whatever else has no answer");
}

#[test]
fn check_of_objects_counts_against_the_version_as_an_expression_does() {
    let fires = || Answer::Firing { series: "false for Pod shop/web".into(), since: t(0), asked: Timestamp::MAX };
    let (own, of_all) =
        ("self.spec.nodeName != node || self.status.phase == 'Running'", "self.status.phase == 'Running'");
    for (sentence, expression, answer, expected) in [
        ("it is false for this node alone", own, fires(), is_blamed()),
        ("it is the same for all nodes", of_all, fires(), is_unproven()),
        ("it is not known", own, Answer::Failed { message: "no such object exists".into() }, is_unproven()),
    ] {
        let check = serde_json::json!({"name": "own", "apiVersion": "v1", "kind": "Pod", "expression": expression});
        let mut watch = Watch::of(verifying(vec![healthy()]));
        let spec = serde_json::json!({"health": {"after": {"objects": [check]}}});
        watch.policy = with_policy(&mut watch.view, spec);
        let check = watch.policy.all.after.checks[0].clone();
        let about = |node: &str| check.question(Subject { node, version: None }).unwrap().0;
        were_quiet(&mut watch, &["own"]);
        for other in ["b", "c"] {
            watch.view.nodes.insert(other.to_owned(), node(other));
            watch.view.expressions.insert(about(other), QUIET);
        }
        watch.view.expressions.insert(about("a"), answer);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
    }
}

/// So it is where an exporter is rolled out on all nodes and fails, or a registry is down.
#[test]
fn expression_that_returns_something_for_nodes_without_the_version_too_counts_against_none() {
    for (sentence, others, expected) in [
        ("for both others", vec![("b", fires(0)), ("c", fires(0))], is_unproven()),
        ("for one of two", vec![("b", fires(0)), ("c", QUIET)], is_blamed()),
        ("for none of two", vec![("b", QUIET), ("c", QUIET)], is_blamed()),
        ("for two of three", vec![("b", fires(0)), ("c", QUIET), ("d", fires(0))], is_unproven()),
        ("for one of three", vec![("b", QUIET), ("c", QUIET), ("d", fires(0))], is_blamed()),
        ("for the only one", vec![("b", fires(0))], is_unproven()),
        ("for one that was not like it", vec![("b", QUIET), ("z", fires(0))], is_blamed()),
        ("there is no other node", vec![], is_unproven()),
    ] {
        let mut watch = with_expressions(&[("own", OF_A_NODE, fires(0))]);
        others_return(&mut watch, &others);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
        assert!(watch.message().contains("the expression own returned {} 7"), "{sentence}: {}", watch.message());
    }
}

#[test]
fn expression_is_queried_for_three_other_nodes_right_before_it_counts_against_the_version() {
    let query = |node: &str| question(&OF_A_NODE.replace("$node", node));
    let silent = || {
        let mut watch = with_expressions(&[("own", OF_A_NODE, fires(0))]);
        watch.view.nodes.extend(["b", "c", "d", "e"].map(|name| (name.to_owned(), node(name))));
        watch.at(SOAKED);
        assert_eq!(plan(&watch.view, &watch.policy, t(DEADLINE - 1)).expressions, [query("a")].into());
        assert_eq!(watch.at(DEADLINE).unwrap().as_str(), "ExpressionFires");
        let made = plan(&watch.view, &watch.policy, t(DEADLINE));
        let asked = ["a", "c", "d", "e"].map(|node| (query(node), t(DEADLINE)));
        assert_eq!(made.asked_again, asked.into(), "those that its record names first");
        watch
    };
    let all_answer = |watch: &mut Watch, answer: &Answer| {
        watch.view.expressions.extend(["c", "d", "e"].map(|node| (query(node), answer.clone())));
    };
    let answered = |watch: &mut Watch, asked: i64| {
        all_answer(watch, &Answer::Quiet { since: t(-600), asked: t(asked) });
    };
    let mut watch = silent();
    answered(&mut watch, DEADLINE - 1);
    assert_eq!(watch.at(DEADLINE + 1).unwrap().as_str(), "ExpressionFires", "an answer of before shows nothing");
    // So does a result: it may have ended since.
    all_answer(&mut watch, &Answer::Firing { series: "{} 7".into(), since: t(-600), asked: t(DEADLINE - 1) });
    assert_eq!(watch.at(DEADLINE + 1).unwrap().as_str(), "ExpressionFires", "nor does a result of before");
    answered(&mut watch, DEADLINE);
    assert_eq!(watch.result_at(DEADLINE + 2), is_blamed());
    let mut watch = silent();
    assert_eq!(watch.at(DEADLINE + 59).unwrap().as_str(), "ExpressionFires");
    assert_eq!(watch.result_at(DEADLINE + 60), is_unproven(), "Prometheus does not answer");
    // The clock of the verification had stopped until long after the deadline.
    let mut watch = silent();
    watch.view.web_api_outage = Some(WebApiOutage { began: t(SOAKED), ended: t(DEADLINE + 600) });
    assert_eq!(watch.at(DEADLINE + 660).unwrap().as_str(), "ExpressionFires");
    let mut unanswered = Watch::of(watch.view.nodes["a"].clone());
    (unanswered.view, unanswered.policy) = (watch.view.clone(), watch.policy.clone());
    assert_eq!(unanswered.result_at(DEADLINE + 720), is_unproven());
    answered(&mut watch, DEADLINE + 661);
    assert_eq!(watch.result_at(DEADLINE + 661), is_blamed());
    // It has ended meanwhile.
    let mut watch = silent();
    watch.view.expressions.insert(query("a"), Answer::Quiet { since: t(DEADLINE + 1), asked: Timestamp::MAX });
    watch.at(DEADLINE + 1);
    assert_eq!(watch.result_at(DEADLINE + 1 + SOAKED), is_updated());
}

/// Prometheus does not answer for a while, or another leader has no answer yet, which knows no earlier ones.
#[test]
fn expression_without_an_answer_does_not_end_an_interruption() {
    let failed = Answer::Failed { message: "no answer".into() };
    for (sentence, silent, answered, since, expected) in [
        ("queries fail", Some(failed), DEADLINE - 9, 0, is_blamed()),
        ("another leader, with a minute left", None, DEADLINE - 60, DEADLINE - 60, is_blamed()),
        ("another leader, in the last minute", None, DEADLINE - 9, DEADLINE - 9, is_unproven()),
    ] {
        let mut watch = with_expressions(&[("errors", OF_A_NODE, fires(0))]);
        watch.at(10);
        let queries: Vec<Question> = watch.view.expressions.keys().cloned().collect();
        let with = |answer: &Answer| queries.iter().map(|query| (query.clone(), answer.clone())).collect();
        watch.view.expressions = silent.as_ref().map(with).unwrap_or_default();
        watch.at(answered - 1);
        let progress = watch.view.nodes["a"].progress().unwrap();
        assert_eq!(progress.interrupted, Some(t(10)), "{sentence}");
        watch.view.expressions = with(&fires(since));
        others_return(&mut watch, &[("b", QUIET)]);
        watch.at(answered);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
    }
}

#[test]
fn answer_from_before_the_end_of_the_soak_proves_nothing() {
    for asked in [-300, SOAKED - 1] {
        let quiet = |asked| Answer::Quiet { since: t(-600), asked: t(asked) };
        let mut watch = with_expressions(&[("errors", OF_A_NODE, quiet(asked))]);
        assert_eq!(watch.at(SOAKED), Some(Wait::ExpressionsPending { name: "errors".into() }));
        let again = plan(&watch.view, &watch.policy, t(SOAKED)).asked_again;
        assert_eq!(again, [(question("errors{node=\"a\"} > 1"), t(SOAKED))].into(), "it is queried at once");
        let mut silent = Watch::of(watch.view.nodes["a"].clone());
        (silent.view, silent.policy) = (watch.view.clone(), watch.policy.clone());
        assert_eq!(silent.result_at(DEADLINE + 60), is_unproven());
        *watch.view.expressions.values_mut().next().unwrap() = quiet(SOAKED);
        assert_eq!(watch.result_at(SOAKED + 1), is_updated());
    }
}

/// The interval may be longer than the verification.
#[test]
fn expression_is_queried_when_verification_begins_and_shortly_before_it_ends() {
    let query = || question("errors{node=\"a\"} > 1");
    for (sentence, answer) in
        [("it fired", fires(-60)), ("it had no answer", Answer::Failed { message: "no answer".into() })]
    {
        let mut watch = with_expressions(&[("errors", OF_A_NODE, answer)]);
        for (second, since) in [(0, 0), (SOAKED, 0), (DEADLINE - 61, 0), (DEADLINE - 60, DEADLINE - 60)] {
            watch.at(second);
            let made = plan(&watch.view, &watch.policy, t(second));
            assert_eq!(made.asked_again, [(query(), t(since))].into(), "{sentence}, at {second}");
            assert!(made.wake.is_some_and(|wake| wake > t(second)), "{sentence}, at {second}: {:?}", made.wake);
        }
        *watch.view.expressions.values_mut().next().unwrap() =
            Answer::Quiet { since: t(DEADLINE - 60), asked: Timestamp::MAX };
        watch.at(DEADLINE - 60);
        assert_eq!(watch.result_at(DEADLINE), is_updated(), "{sentence}");
    }
    // The clock was set back: it would be sent without end.
    let set_back = with_expressions(&[("errors", OF_A_NODE, Answer::Failed { message: "no answer".into() })]);
    let made = plan(&set_back.view, &set_back.policy, t(-10));
    assert!(made.asked_again.is_empty() && made.expressions.contains(&query()), "{:?}", made.asked_again);
}

#[test]
fn expression_of_several_nodes_is_queried_for_the_one_that_needs_the_latest_answer() {
    for (first, second) in [(0, 50), (50, 0)] {
        let spec = serde_json::json!({"prometheus": {"url": "http://p"},
            "health": {"after": {"expressions": [{"name": "errors", "query": "errors > 1"}]}}});
        let nodes = vec![verifying_since("a", first, vec![]), verifying_since("b", second, vec![])];
        let (view, policy) = cluster_with(nodes, &["a", "b"], spec);
        assert_eq!(plan(&view, &policy, t(55)).asked_again, [(question("errors > 1"), t(50))].into());
    }
}

#[test]
fn expression_must_be_quiet_for_soak_and_fails_version_at_deadline() {
    let watch = |answer: Answer| with_expressions(&[("errors", OF_A_NODE, answer)]);
    let mut of_the_fleet = with_expressions(&[("errors", "errors > 1", fires(0))]);
    assert_eq!(of_the_fleet.at(DEADLINE - 1).unwrap().as_str(), "ExpressionFires");
    assert_eq!(
        of_the_fleet.result_at(DEADLINE),
        (Some("HealthUnknown".into()), false),
        "it is no evidence against the version"
    );

    let mut firing = watch(fires(0));
    others_return(&mut firing, &[("b", QUIET)]);
    for second in [SOAKED, DEADLINE - 1] {
        assert_eq!(firing.at(second).unwrap().as_str(), "ExpressionFires");
    }
    assert_eq!(firing.result().0, None);
    assert_eq!(firing.result_at(DEADLINE), is_blamed());

    let mut instant = watch(Answer::Quiet { since: t(DEADLINE - 1), asked: Timestamp::MAX });
    instant.at(DEADLINE);
    *instant.view.expressions.values_mut().next().unwrap() = fires(DEADLINE + 1);
    assert_eq!(instant.result_at(DEADLINE + 1), is_unproven(), "once after the deadline is no evidence");

    let mut quiet = watch(Answer::Quiet { since: t(DEADLINE - 1), asked: Timestamp::MAX });
    let until = DEADLINE - 1 + SOAKED;
    for second in [SOAKED, DEADLINE, until - 1] {
        assert_eq!(quiet.at(second), Some(Wait::Soaking { until: t(until) }), "{second}");
    }
    assert_eq!(quiet.result_at(until), is_updated());

    let mut failed = watch(Answer::Failed { message: "no answer".into() });
    assert_eq!(failed.at(DEADLINE - 1).unwrap().as_str(), "ExpressionFails");
    assert_eq!(failed.result_at(DEADLINE), (Some("HealthUnknown".into()), false));
}
