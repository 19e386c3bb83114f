//! Tables of an attempt before its node is disrupted: what continues with the download, and what ends it.

use models::condition::true_condition;
use models::reason::FailureReason;
use models::shadow::{AttemptResult, BLOCKED, Failure, HostState, OfferedUpdates, Record, Step};
use semver::Version;
use serde_json::json;

use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{deadlines, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

type Change = fn(&mut ClusterView, &mut Policy);

fn a(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("a").unwrap()
}

/// A node that downloads its image, in an attempt of its own.
fn staging() -> (ClusterView, Policy) {
    let (mut view, policy) = cluster(vec![at("a", Step::Staging, 0, HostState::StagedUpdate), node("b")], &[]);
    shadow(&mut view).status.agent.state = Some(HostState::Idle);
    (view, policy)
}

#[test]
fn staging_continues_or_ends_with_desired_state_and_policy() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, mut policy) = staging();
        change(&mut view, &mut policy);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("it is under way", "Staging", |_, _| {});
    case("it is not the desired state yet", "request StagedUpdate of 1", |view, _| shadow(view).spec.attempt = 0);
    case("a later attempt is desired", "ProgressLost", |view, _| shadow(view).spec.attempt = 2);
    case("its desired state is gone", "ProgressLost", |view, _| shadow(view).spec.state = HostState::Idle);
    case("its desired state is that of a drill", "ProgressLost", |view, _| {
        shadow(view).spec.state = HostState::RehearsedUpdate;
    });
    case("updates are disabled", "Disabled", |_, policy| policy.enabled = false);
    case("updates are disabled, and the image is there", "step Staged", |view, policy| {
        policy.enabled = false;
        shadow(view).status.agent.state = Some(HostState::StagedUpdate);
    });
    case("updates are disabled, and it has a slot", "Staging", |view, policy| {
        policy.enabled = false;
        view.operator.as_mut().unwrap().status.slots = vec![slot("a")];
    });
    case("the host runs the version by now", "UpdatedByOther", |view, _| {
        shadow(view).status.agent.current_version = Some(NEW);
    });
    case(
        "the host ran the version in another boot, and has not reported in this one",
        "request StagedUpdate of 1",
        |view, _| {
            a(view).facts.boot_id = "b2".into();
            shadow(view).status.agent.current_version = Some(NEW);
        },
    );
    case("the host was rebooted", "request StagedUpdate of 1", |view, _| a(view).facts.boot_id = "b2".into());
    case("the image is there", "Queued", |view, _| shadow(view).status.agent.state = Some(HostState::StagedUpdate));
}

#[test]
fn node_with_its_image_waits_while_updates_are_disabled() {
    let (mut view, mut policy) = cluster(vec![at("a", Step::Staged, 0, HostState::StagedUpdate), node("b")], &[]);
    policy.enabled = false;
    let made = plan(&view, &policy, t(1));
    assert_eq!((made.waits.get("a"), made.actions.get("a")), (Some(&Wait::Disabled), None), "its attempt goes on");
    shadow(&mut view).status.agent.state = Some(HostState::Idle);
    assert!(plan(&view, &policy, t(1)).actions.contains_key("a"), "without its image it has none to keep");
}

#[test]
fn node_with_its_image_records_that_it_waits_for_others_once_that_has_lasted() {
    let blocked = |node: &mut NodeView| {
        let conditions = &mut node.shadow.as_mut().unwrap().status.conditions;
        conditions.push(condition(BLOCKED, "AgentNotReady", ""));
    };
    let ahead = json!({"strategy": {"preStage": {}}});
    // Half of deadlines.stage is 15 minutes.
    for (sentence, now, spec, change, recorded) in [
        ("at first", 1, json!({}), None, false),
        ("until there is as much time left for a download", 899, json!({}), None, false),
        ("for longer", 900, json!({}), None, true),
        ("images are downloaded ahead of time", 1, ahead, None, true),
        ("its shadow shows another reason", 1, json!({}), Some(&blocked), true),
    ] {
        let mut next = at("b", Step::Staging, 0, HostState::StagedUpdate);
        change.into_iter().for_each(|change| change(&mut next));
        let (view, policy) =
            cluster_with(vec![at("a", Step::Draining, 0, HostState::StagedUpdate), next], &["a"], spec);
        let made = plan(&view, &policy, t(now));
        let step = made.actions.get("b").and_then(Action::next_step);
        assert_eq!(step, recorded.then_some(Step::Staged), "{sentence}: {:?}", made.waits);
        if !recorded {
            assert_eq!(made.waits["b"], Wait::Queued { position: 0, behind: Some("a".into()) }, "{sentence}");
            assert!(deadlines(&view, &policy, t(now)).all(|(name, _)| name != "b"), "{sentence}: it may wait for long");
            assert!(made.wake.is_some_and(|wake| wake <= t(900)), "{sentence}: {:?}", made.wake);
            assert_eq!(made.status.unwrap().counts.unwrap().staged, 1, "{sentence}");
        }
    }
    let nodes = ["a", "b"].map(|name| at(name, Step::Staging, 0, HostState::StagedUpdate));
    let (mut view, policy) = cluster(nodes.into(), &[]);
    view.nodes.get_mut("a").unwrap().pods = None;
    let made = plan(&view, &policy, t(1));
    let waits = made.waits.get("b").map(Wait::as_str);
    assert_eq!(waits, Some("FirstNode"), "while the first one is checked: {:?}", made.actions);
}

#[test]
fn node_with_its_image_records_at_once_that_its_pods_may_not_be_evicted() {
    let mut a = at("a", Step::Staging, 0, HostState::StagedUpdate);
    a.pods = Some(vec![pod("a", true)]);
    let (view, policy) = cluster(vec![a], &[]);
    let made = plan(&view, &policy, t(1));
    let step = made.actions.get("a").and_then(Action::next_step);
    assert_eq!(step, Some(Step::Staged), "{:?}", made.waits);
}

#[test]
fn staging_times_out_at_deadline() {
    let (view, policy) = staging();
    let limit = i64::try_from(policy.stage.as_secs()).unwrap();
    let before = plan(&view, &policy, t(limit - 1));
    assert_eq!((outcome(&before).as_str(), before.wake), ("Staging", Some(t(limit))));
    assert_eq!(deadlines(&view, &policy, t(1)).next(), Some(("a", t(limit))));
    assert_eq!(outcome(&plan(&view, &policy, t(limit))), "StageTimedOut");
}

/// The network of the host is not to blame then.
#[test]
fn download_on_a_node_that_is_not_heard_names_why_and_an_outage_of_the_web_api_counts_against_no_node() {
    let case = |sentence: &str, waits: &str, end: (&str, i64), cause: &str, change: Change| {
        let (mut view, mut policy) = staging();
        change(&mut view, &mut policy);
        let limit = i64::try_from(policy.stage.as_secs()).unwrap();
        let before = plan(&view, &policy, t(limit - 1));
        let shown = match before.actions.get("a") {
            None => outcome(&before),
            Some(_) => true_condition(&status_of(&before).conditions, BLOCKED).unwrap().reason.clone(),
        };
        assert_eq!(shown, waits, "{sentence}");
        let made = plan(&view, &policy, t(limit));
        assert_eq!((outcome(&made).as_str(), record_of(&made).failures), end, "{sentence}");
        let named = last_of(&made).message.split_once("; ").map_or("", |(_, named)| named);
        assert!(named.starts_with(cause) && named.is_empty() == cause.is_empty(), "{sentence}: {named}");
    };
    case("its agent is heard", "Staging", ("StageTimedOut", 1), "", |_, _| {});
    case("its agent has no Ready pod", "AgentNotReady", ("StageTimedOut", 1), "no pod of the agent", |view, _| {
        a(view).agent_missing = Some(t(10));
    });
    case("the web API has none", "WebApiNotReady", ("ClusterUnwell", 0), "no pod of the web API", |view, _| {
        view.web_api_missing = Some(t(10));
    });
    case("it is not Ready", "NodeNotReady", ("StageTimedOut", 1), "the node is not Ready", |view, _| {
        a(view).facts.ready = false;
    });
    case("its host does not answer", "Staging", ("StageTimedOut", 1), "the agent cannot use", |view, _| {
        shadow(view).status.conditions.push(unreachable());
    });
}

/// Hosts that have not refreshed since a release show the version before it as the one that they choose, and then download the new one.
#[test]
fn host_that_chose_a_version_that_policy_refuses_is_locked_to_that_of_its_attempt_without_a_failure() {
    let newer = || Version::new(1, 20, 6);
    let refused = || json!({"version": {"exclude": ["1.20.6"]}});
    let (not_offered, wrong) = (FailureReason::VersionNotOffered, FailureReason::WrongImageStaged);
    for (sentence, spec, locked, reason, expected, failures) in [
        ("it does not choose the version", refused(), None, not_offered, "Superseded", 0),
        ("it wrote the other one", refused(), None, wrong, "Superseded", 0),
        ("the download has failed", refused(), None, FailureReason::PrepareFailed, "PrepareFailed", 1),
        ("it was locked to the version", refused(), Some("1.20.5"), not_offered, "VersionNotOffered", 1),
        ("policy takes the other one", json!({}), None, not_offered, "Superseded", 0),
    ] {
        let (mut view, _) = staging();
        let lock = (spec != json!({})).then_some("1.20.5");
        let policy = with_policy(&mut view, spec);
        let shadow = shadow(&mut view);
        shadow.spec.host.as_mut().unwrap().version_lock = locked.map(str::to_owned);
        let (chosen_version, available_versions) = (Some(newer()), vec![newer(), NEW, OLD]);
        let updates = OfferedUpdates { chosen_version, available_versions, ..OfferedUpdates::default() };
        let (step, message) = (HostState::StagedUpdate, String::new());
        shadow.status.agent.updates = Some(updates);
        shadow.status.agent.failure = Some(Failure { attempt: 1, step, reason, message, time: t(1) });
        let made = plan(&view, &policy, t(5));
        assert_eq!(outcome(&made), expected, "{sentence}");
        let record = record_of(&made);
        assert_eq!((record.failures, record.not_before.is_some()), (failures, failures > 0), "{sentence}");
        write_due(&mut view, &policy, 5);
        let Some(Action::Spec { spec }) = plan(&view, &policy, t(6)).actions.remove("a") else { panic!("{sentence}") };
        assert_eq!(spec.host.unwrap().version_lock.as_deref(), lock, "{sentence}");
    }
}

#[test]
fn drill_whose_agent_requests_no_permit_ends_at_the_deadline_of_the_download() {
    let (mut view, policy) = cluster(vec![at("a", Step::Staging, 0, HostState::RehearsedUpdate)], &[]);
    shadow(&mut view).status.controller.progress.as_mut().unwrap().drill = Some(models::shadow::Drill::default());
    let limit = i64::try_from(policy.stage.as_secs()).unwrap();
    assert_eq!(plan(&view, &policy, t(limit - 1)).waits.get("a"), Some(&Wait::AwaitingAgent));
    let made = plan(&view, &policy, t(limit));
    assert_eq!(record_of(&made).drill.as_ref().unwrap().result, "AgentSilent");
}

#[test]
fn attempt_without_progress_ends_and_is_disruptive_with_slot_or_claim() {
    for (sentence, slotted, claimed, disruptive) in
        [("neither slot nor claim", false, false, false), ("a slot", true, false, true), ("a claim", false, true, true)]
    {
        let (mut view, policy) = staging();
        shadow(&mut view).status.controller.progress = None;
        if slotted {
            view.operator.as_mut().unwrap().status.slots = vec![slot("a")];
        }
        if claimed {
            a(&mut view).facts.claims = ClaimFields::USUAL;
        }
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {made:?}") };
        assert_eq!(outcome(&made), "ProgressLost", "{sentence}");
        assert_eq!(status.report.progress.as_ref().unwrap().disruptive, disruptive, "{sentence}");
    }
}

#[test]
fn idle_node_starts_staging_only_without_objection() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, mut policy) = cluster(vec![node("a")], &[]);
        change(&mut view, &mut policy);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("nothing does", "step Staging", |_, _| {});
    case("the node is being deleted", "Deleting", |view, _| a(view).facts.deleting = true);
    case("its shadow is being deleted", "Deleting", |view, _| shadow(view).deleting = true);
    case("it has lost its label", "NotLabelled", |view, _| a(view).facts.labelled = false);
    case("no report of this boot", "NoReport", |view, _| a(view).facts.boot_id = "b2".into());
    case("the agent has not confirmed", "AgentNotSynced", |view, _| shadow(view).generation = 2);
}

#[test]
fn next_attempt_number_follows_highest_known_number() {
    for (ordered, recorded, expected) in [(0, None, 1), (4, None, 5), (4, Some(7), 8), (7, Some(4), 8)] {
        let (mut view, policy) = cluster(vec![node("a")], &[]);
        shadow(&mut view).spec.attempt = ordered;
        let last = recorded.map(|attempt| AttemptResult { attempt, ..updated().last.unwrap() });
        shadow(&mut view).status.controller.record = last.map(|last| Record { last: Some(last), ..Record::default() });
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{made:?}") };
        assert_eq!(status.report.progress.as_ref().unwrap().attempt, expected, "{ordered} {recorded:?}");
    }
}

#[test]
fn blocked_condition_has_the_newest_message_of_the_host() {
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    for message in ["no route", "certificate expired"] {
        let updates = OfferedUpdates { refresh_failure: Some(message.into()), ..OfferedUpdates::default() };
        shadow(&mut view).status.agent.updates = Some(updates);
        write_due(&mut view, &policy, 1);
        let blocked = true_condition(&shadow(&mut view).status.conditions, BLOCKED).unwrap();
        assert_eq!(blocked.message, format!("the host cannot check for updates: {message}"));
    }
    assert_eq!(plan(&view, &policy, t(2)).actions.get("a"), None, "once");
}
