//! Tables of the status and the Events of a fleet.

use models::operator::{ActiveRollout, LedgerNode, RESUMED, RolloutLedger};
use models::reason::{FailureReason, Proof};
use models::shadow::{HostState, Step};

use super::problems::*;
use super::*;
use crate::decision::Note;
use crate::fixtures::{
    NEW, at, cluster, cluster_with, condition, failure, node, record_history, recorded, rollout, t, updated,
    with_policy,
};
use crate::hold::Hold;
use crate::objects::Unread;
use crate::policy::{Policy, PolicyError, Target};
use crate::view::{SharedField, TlsFacts};

#[test]
fn operator_status_counts_nodes_by_state() {
    let on = |name: &str, change: &dyn Fn(&mut NodeView)| {
        let mut node = node(name);
        change(&mut node);
        node
    };
    let record = |node: &mut NodeView, failures| {
        let record = &mut node.shadow.as_mut().unwrap().status.controller.record;
        record.get_or_insert_default().failures = failures;
    };
    let failed = |node: &mut NodeView, reason: FailureReason| {
        record(node, 2);
        let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
        record.last = Some(result(reason.as_str()));
    };
    let at_failed = |name: &str| {
        let mut node = at(name, Step::Draining, 0, HostState::StagedUpdate);
        failed(&mut node, FailureReason::DrainTimedOut);
        node
    };
    let current = |node: &mut NodeView| {
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(NEW);
        agent.updates.as_mut().unwrap().chosen_version = None;
    };
    let nodes = vec![
        on("current-1", &current),
        on("current-2", &|node| {
            current(node);
            record(node, 0);
        }),
        at("drained", Step::Draining, 0, HostState::StagedUpdate),
        at("staged-1", Step::Staged, 0, HostState::StagedUpdate),
        at("staged-2", Step::Staged, 0, HostState::StagedUpdate),
        on("held", &|node| {
            node.facts.hold = Some(Hold::default());
            failed(node, FailureReason::DrainTimedOut);
        }),
        on("failed", &|node| failed(node, FailureReason::DrainTimedOut)),
        on("host fails", &|node| {
            failed(node, FailureReason::RefreshFailed);
            let agent = &mut node.shadow.as_mut().unwrap().status.agent;
            agent.updates.as_mut().unwrap().refresh_failure = Some("no answer".into());
        }),
        at_failed("failed before"),
        on("version failed", &|node| failed(node, FailureReason::SoakFailed)),
        on("withdrawn since", &|node| failed(node, FailureReason::ReleaseRequested)),
        on("updated by other", &|node| {
            current(node);
            failed(node, FailureReason::DrainTimedOut);
        }),
        on("left", &|node| node.facts.labelled = false),
    ];
    let (mut view, policy) = cluster(nodes, &["drained", "failed before"]);
    // The conditions are written already.
    let held = &mut view.nodes.get_mut("held").unwrap().shadow.as_mut().unwrap().status.conditions;
    let wait = Wait::Held { until: None, reason: None };
    held.push(condition(shadow::BLOCKED, wait.as_str(), &wait.to_string()));
    let made = crate::plan::plan(&view, &policy, t(1));
    let counts = counts(&Survey::of(&view, &policy, t(1)), &made);
    let found = (counts.total, counts.current, counts.updating, counts.staged, counts.blocked, counts.failed);
    assert_eq!(found, (12, 3, 2, 2, 1, 3), "{:?} {:?}", made.waits, made.actions);
}

#[test]
fn node_that_has_its_image_counts_as_staged_while_it_waits_for_others_alone() {
    let queued = || Wait::Queued { position: 1, behind: None };
    let idle = || node("a");
    let with = |step| at("a", step, 0, HostState::StagedUpdate);
    for (sentence, node, wait, expected) in [
        ("it is recorded", with(Step::Staged), queued(), 1),
        ("it is not recorded yet", with(Step::Staging), queued(), 1),
        ("it downloads", with(Step::Staging), Wait::Staging, 0),
        ("it waits before its download", idle(), queued(), 0),
    ] {
        let (view, policy) = cluster(vec![node], &[]);
        let plan = Plan { waits: [("a".to_owned(), wait)].into(), ..Plan::default() };
        assert_eq!(counts(&Survey::of(&view, &policy, t(1)), &plan).staged, expected, "{sentence}");
    }
}

#[test]
fn node_whose_version_is_quarantined_or_no_longer_wanted_does_not_count_as_failed() {
    let count = |spec: serde_json::Value, quarantined: bool| {
        let mut failed = node("a");
        let record = failed.shadow.as_mut().unwrap().status.controller.record.get_or_insert_default();
        (record.failures, record.last) = (1, Some(result("DrainTimedOut")));
        let mut other = node("b");
        if quarantined {
            let record = &mut other.shadow.as_mut().unwrap().status.controller.record;
            record.get_or_insert_default().version_failures.push(crate::fixtures::failure(NEW));
        }
        let (view, policy) = cluster_with(vec![failed, other], &[], spec);
        let made = crate::plan::plan(&view, &policy, t(1));
        counts(&Survey::of(&view, &policy, t(1)), &made).failed
    };
    let none = || serde_json::json!({});
    assert_eq!(count(none(), false), 1);
    assert_eq!(count(none(), true), 0, "the version is quarantined");
    let excluded = serde_json::json!({"version": {"exclude": [NEW.to_string()]}});
    assert_eq!(count(excluded, false), 0, "policy excludes the version");
    let pinned = serde_json::json!({"version": {"target": crate::fixtures::OLD.to_string()}});
    assert_eq!(count(pinned, false), 0, "policy pins the version that runs");
}

#[test]
fn node_whose_lock_is_about_to_choose_its_version_counts_as_failed_unless_that_is_quarantined() {
    for (quarantined, expected) in [(false, 1), (true, 0)] {
        let mut nodes = ["a", "b"].map(node);
        for node in &mut nodes {
            let agent = &mut node.shadow.as_mut().unwrap().status.agent;
            let updates = agent.updates.as_mut().unwrap();
            (updates.available_versions, updates.chosen_version) = (vec![NEW], None);
        }
        let [a, b] = nodes.each_mut().map(|node| &mut node.shadow.as_mut().unwrap().status.controller.record);
        *a = Some(models::shadow::Record { failures: 1, last: Some(result("DrainTimedOut")), ..Default::default() });
        b.get_or_insert_default().version_failures.extend(quarantined.then(|| failure(NEW)));
        let spec = serde_json::json!({"version": {"target": NEW.to_string()}});
        let (view, policy) = cluster_with(nodes.into(), &[], spec);
        let survey = Survey::of(&view, &policy, t(1));
        assert_eq!(survey.find("a").unwrap().wanted(), Err(Wait::Pinning { version: NEW }));
        assert_eq!(counts(&survey, &Plan::default()).failed, expected, "quarantined: {quarantined}");
    }
}

#[test]
fn node_whose_attempt_ended_for_an_unknown_reason_counts_as_failed() {
    for (reason, failures, expected) in
        [("EatenByMoths", 1, 1), ("EatenByMoths", 0, 0), ("Unknown", 1, 1), ("ReleaseRequested", 1, 0)]
    {
        let mut node = node("a");
        let record = node.shadow.as_mut().unwrap().status.controller.record.get_or_insert_default();
        (record.failures, record.last) = (failures, Some(result(reason)));
        let (view, policy) = cluster(vec![node], &[]);
        let made = crate::plan::plan(&view, &policy, t(1));
        assert_eq!(counts(&Survey::of(&view, &policy, t(1)), &made).failed, expected, "{reason}, {failures} failures");
    }
}

#[test]
fn node_that_is_not_back_from_its_reboot_does_not_count_as_failed() {
    for (permitted, expected) in [(false, 1), (true, 0)] {
        let mut node = at("a", Step::Releasing, 0, HostState::Idle);
        node.facts.ready = false;
        let controller = &mut node.shadow.as_mut().unwrap().status.controller;
        let progress = controller.progress.as_mut().unwrap();
        (progress.permit_issued, progress.disruptive) = (permitted, false);
        let record = controller.record.get_or_insert_default();
        (record.failures, record.last) = (1, Some(result("RebootTimedOut")));
        let (view, policy) = cluster(vec![node], &[]);
        let made = crate::plan::plan(&view, &policy, t(1));
        assert_eq!(counts(&Survey::of(&view, &policy, t(1)), &made).failed, expected, "permitted: {permitted}");
    }
}

/// The result of an attempt to the new version.
fn result(reason: &str) -> models::shadow::AttemptResult {
    models::shadow::AttemptResult {
        from: None,
        reason: reason.into(),
        started: t(0),
        ended: t(0),
        ..updated().last.unwrap()
    }
}

#[test]
fn window_state_reports_open_and_next_change() {
    let until = WindowState::Open { until: Some(t(5)) };
    let closed = WindowState::Closed { opens: Some(t(9)), blackout: false };
    assert_eq!((open(&until), changes(&until)), (true, Some(t(5))));
    assert_eq!((open(&closed), changes(&closed)), (false, Some(t(9))));
    assert_eq!(changes(&WindowState::Open { until: None }), None);
}

#[test]
fn degraded_message_includes_policy_and_certificate_errors() {
    let error = PolicyError { field: "spec.schedule".to_owned(), message: "x".repeat(3000) };
    let trouble = TlsFacts { problem: Some("brupop-ca is invalid".to_owned()), ..TlsFacts::default() };
    let (ca, none) = ("brupop-ca is invalid", TlsFacts::default());
    for (sentence, errors, tls, web_api, reason, expected) in [
        ("neither", vec![], none.clone(), false, "AsExpected", vec![]),
        ("no web API", vec![], none.clone(), true, WEB_API, vec!["no pod of the web API is Ready"]),
        ("the one", vec![], trouble.clone(), false, CERTIFICATES, vec![ca]),
        ("the one, and no web API", vec![], trouble.clone(), true, CERTIFICATES, vec![ca]),
        ("the other", vec![error.clone()], none, false, "InvalidPolicy", vec!["spec.schedule"]),
        ("both", vec![error], trouble, false, "InvalidPolicy", vec!["spec.schedule", ca]),
    ] {
        let (_, word, message) = of_policy(&Policy { errors, ..Policy::default() }, &tls, web_api, &[]);
        assert_eq!(word, reason, "{sentence}");
        assert!(expected.iter().all(|expected| message.contains(expected)), "{sentence}: {message}");
        assert!(message.chars().count() <= 2000, "{sentence}");
    }
}

fn conditions(frozen: Option<(bool, &str)>) -> Vec<Condition> {
    let of = |(holds, message): (bool, &str)| Condition { status: holds.into(), ..condition(FROZEN, "x", message) };
    frozen.into_iter().map(of).collect()
}

#[test]
fn awaiting_approval_emits_one_event_with_command() {
    let wait = Wait::CanaryStep { step: 2, until: None, approval: Some("3/7".into()), nodes: vec![], none_runs: false };
    let plan = Plan { approvals: vec![wait], ..Plan::default() };
    let (_, reason, message) = progress(false, &plan);
    let waiting = |reason: &str, message: &str| {
        let mut condition = conditions(Some((false, message))).remove(0);
        (condition.type_, condition.reason) = (PROGRESSING.to_owned(), reason.to_owned());
        vec![condition]
    };
    let (idle, approval) = (waiting("Idle", ""), waiting(reason, &message));
    let notes = news(&idle, &approval);
    assert!(notes.len() == 1 && notes[0].reason == "AwaitingApproval", "{notes:?}");
    assert!(notes[0].message.contains("kubectl annotate bruo default -n <namespace> --overwrite"), "{notes:?}");
    assert_eq!(news(&approval, &approval), []);
    assert_eq!(news(&approval, &idle), []);
    // The step of another version waits too.
    let other =
        Wait::CanaryStep { step: 1, until: None, approval: Some("2/5".into()), nodes: vec![], none_runs: false };
    let plan = Plan { approvals: plan.approvals.iter().cloned().chain([other]).collect(), ..Plan::default() };
    let (_, reason, message) = progress(false, &plan);
    let notes = news(&approval, &waiting(reason, &message));
    let named = |name: &str| notes[0].message.contains(&format!("approve-step={name}@"));
    assert!(notes.len() == 1 && named("3/7") && named("2/5"), "{notes:?}");
}

#[test]
fn unknown_request_annotation_degrades_operator() {
    let unknown = ["the annotation brupop.bottlerocket.aws/resum is not known".to_owned()];
    let (holds, reason, message) = of_policy(&Policy::default(), &TlsFacts::default(), false, &unknown);
    assert!(holds && reason == "UnknownRequest" && message.contains("resum"), "{reason}: {message}");
}

#[test]
fn unknown_request_hides_no_other_cause() {
    type Change = fn(&mut ClusterView);
    let none: Change = |_| ();
    let bounded = serde_json::json!({"drain": {"timeout": "0s"}});
    let credentials = serde_json::json!({"prometheus": {"url": "http://me:secret@p:9090"}});
    let shared: Change = |view| {
        let shared = SharedField { field: "spec.permit".into(), manager: "kubectl-edit".into() };
        view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().shared_field = Some(shared);
    };
    for (sentence, spec, change, reason) in [
        ("it is alone", serde_json::json!({}), none, MISUNDERSTOOD),
        ("beside a duration out of bounds", bounded.clone(), none, OUT_OF_BOUNDS),
        ("beside one, and a shadow with two field managers", bounded, shared, OUT_OF_BOUNDS),
        ("beside credentials", credentials, none, CREDENTIALS),
        ("beside a shadow with two field managers", serde_json::json!({}), shared, CONFLICT),
    ] {
        let (mut view, policy) = cluster_with(vec![node("a")], &[], spec);
        view.operator.as_mut().unwrap().misunderstood = vec!["m".to_owned()];
        change(&mut view);
        let conditions = crate::plan::plan(&view, &policy, t(0)).status.unwrap().conditions;
        assert_eq!(find_condition(&conditions, DEGRADED).unwrap().reason, reason, "{sentence}");
    }
}

#[test]
fn duration_outside_its_bounds_degrades_operator_and_stops_nothing() {
    let (view, policy) = cluster_with(vec![node("a")], &[], serde_json::json!({"drain": {"timeout": "0s"}}));
    let plan = crate::plan::plan(&view, &policy, t(0));
    let conditions = plan.status.unwrap().conditions;
    let condition = find_condition(&conditions, DEGRADED).unwrap();
    let expected = "spec.drain.timeout is 0s and read as 1s: write 1s to 168h";
    assert_eq!((condition.reason.as_str(), condition.message.as_str()), ("DurationOutOfBounds", expected));
    assert!(plan.actions.contains_key("a"), "it begins");
}

#[test]
fn group_that_hides_others_degrades_operator_and_stops_nothing() {
    let (mut view, _) = cluster(vec![node("a")], &[]);
    let groups = serde_json::json!([{"name": "all", "selector": {}}, {"name": "rest", "selector": {}}]);
    let policy = with_policy(&mut view, serde_json::json!({"nodeGroups": groups}));
    let plan = crate::plan::plan(&view, &policy, t(0));
    let conditions = plan.status.unwrap().conditions;
    let condition = find_condition(&conditions, DEGRADED).unwrap();
    assert_eq!(condition.reason, "NodeGroupHidden");
    assert!(condition.message.starts_with("spec.nodeGroups[0].selector: it is empty"), "{}", condition.message);
    assert!(plan.actions.contains_key("a"), "it begins");
}

#[test]
fn objects_that_cannot_be_read_degrade_operator_with_what_to_apply_and_stop_nothing_by_themselves() {
    let (view, policy) = cluster(vec![node("a")], &[]);
    let (group, resource) = ("ceph.rook.io".into(), "cephclusters".into());
    let unread = Unread::NoRight { group, resource, namespace: None, controller: "updates".into() };
    let reported =
        ReportedFacts { unread_objects: vec![format!("CephCluster of v1: {unread}")], ..ReportedFacts::default() };
    let plan = crate::plan::plan_reporting(&view, &reported, &policy, t(0));
    let conditions = plan.status.unwrap().conditions;
    let condition = find_condition(&conditions, DEGRADED).unwrap();
    assert_eq!(condition.reason, "ObjectsUnread");
    for part in [
        "CephCluster of v1",
        "list and watch cephclusters",
        "kind: ClusterRole",
        "verbs: [get, list, watch]",
        "name: brupop-controller, namespace: \"updates\"}",
    ] {
        assert!(condition.message.contains(part), "{part}: {}", condition.message);
    }
    assert!(plan.actions.contains_key("a"), "it begins");
}

/// A part of a role cannot be applied.
#[test]
fn message_about_many_unread_objects_has_whole_roles_and_the_number_of_the_others() {
    let (view, policy) = cluster(vec![node("a")], &[]);
    let role = "x".repeat(700);
    for (count, named, rest) in [(1, 1, "]}"), (2, 2, "]}"), (4, 2, "; and 2 more")] {
        let unread = |kind| format!("Kind{kind} of v1: apply {{kind: List, items: [{role}]}}");
        let reported = ReportedFacts { unread_objects: (0..count).map(unread).collect(), ..ReportedFacts::default() };
        let conditions = crate::plan::plan_reporting(&view, &reported, &policy, t(0)).status.unwrap().conditions;
        let message = &find_condition(&conditions, DEGRADED).unwrap().message;
        assert!(message.ends_with(rest), "{message}");
        let roles = message.split("; ").filter_map(|object| Some(object.split_once("apply ")?.1));
        let read: Vec<serde_json::Value> = roles.map(|role| serde_saphyr::from_str(role).unwrap()).collect();
        assert_eq!(read.len(), named, "{message}");
    }
}

#[test]
fn message_about_many_unread_objects_names_as_many_as_fit_whole() {
    let (view, policy) = cluster(vec![node("a")], &[]);
    let unread = |number| format!("Kind{number:02} of v1: {}", "x".repeat(34));
    let reported = ReportedFacts { unread_objects: (0..60).map(unread).collect(), ..ReportedFacts::default() };
    let conditions = crate::plan::plan_reporting(&view, &reported, &policy, t(0)).status.unwrap().conditions;
    let message = &find_condition(&conditions, DEGRADED).unwrap().message;
    assert!(message.ends_with("x; and 22 more"), "{message}");
}

#[test]
fn stored_credentials_of_prometheus_degrade_operator_stop_nothing_and_are_not_recorded() {
    let (mut view, _) = cluster(vec![node("a")], &[]);
    let stored = serde_json::json!({"prometheus": {"url": "http://me:secret@p:9090"}});
    let policy = with_policy(&mut view, stored.clone());
    assert_eq!(policy.prometheus.as_ref().unwrap().url, "http://p:9090");
    let plan = crate::plan::plan(&view, &policy, t(0));
    let status = plan.status.unwrap();
    let condition = find_condition(&status.conditions, DEGRADED).unwrap();
    assert_eq!(condition.reason, "CredentialsIgnored");
    assert!(condition.message.contains("write both into the Secret brupop-prometheus"), "{}", condition.message);
    assert!(plan.actions.contains_key("a"), "it begins");
    let recorded = |status: &BottlerocketUpdateOperatorStatus| serde_json::to_string(status).unwrap();
    assert!(recorded(&status).contains("http://p:9090") && !recorded(&status).contains("secret"), "{status:?}");

    let operator = view.operator.as_mut().unwrap();
    operator.status.policy_in_force = Some(stored.to_string());
    operator.spec = serde_json::from_value(serde_json::json!({"version": {"target": "newest"}})).unwrap();
    let policy = Policy::in_force(view.operator.as_ref());
    let status = crate::plan::plan(&view, &policy, t(0)).status.unwrap();
    assert_eq!(status.policy_in_force.as_deref(), Some(r#"{"prometheus":{"url":"http://p:9090"}}"#));
}

#[test]
fn freeze_and_resume_emit_one_event_each() {
    for (sentence, old, new, expected) in [
        ("nothing has failed yet", None, Some((false, "")), None),
        ("the first failure", Some((false, "")), Some((true, "1.20.5")), Some("Frozen")),
        ("at once, with the first status ever", None, Some((true, "1.20.5")), Some("Frozen")),
        ("it is known", Some((true, "1.20.5")), Some((true, "1.20.5")), None),
        ("another version fails too", Some((true, "1.20.5")), Some((true, "1.20.5; 1.20.6")), Some("Frozen")),
        ("a user resumed", Some((true, "1.20.5")), Some((false, "")), Some("Resumed")),
    ] {
        let notes = news(&conditions(old), &conditions(new));
        assert_eq!(notes.iter().map(|n| n.reason).collect::<Vec<_>>(), Vec::from_iter(expected), "{sentence}");
    }
}

/// The other one of both, or `enabled`, may still hold all nodes back.
#[test]
fn event_of_an_ended_freeze_or_brake_promises_no_update() {
    for type_ in [FROZEN, BRAKED] {
        let of = |holds: bool| vec![Condition { type_: type_.to_owned(), ..conditions(Some((holds, ""))).remove(0) }];
        let notes = news(&of(true), &of(false));
        assert!(notes.len() == 1 && !notes[0].message.contains("start"), "{notes:?}");
    }
}

/// Three nodes have ended one after the other without a proof.
#[test]
fn brake_that_is_reported_does_not_end_with_a_freeze() {
    for (sentence, reported, frozen, expected) in [
        ("the rollout is braked", false, false, true),
        ("it is braked, and freezes then", true, true, true),
        ("both come at once, and the freeze holds back more", false, true, false),
    ] {
        let (mut view, policy) = cluster((0..10).map(|number| node(&format!("n{number}"))).collect(), &[]);
        let end = |node: &str| LedgerNode {
            node: node.into(),
            proof: Proof::Free,
            reason: "AgentSilent".into(),
            accepted: false,
            before_proof: false,
        };
        let row = ["x1", "x2", "x3"].map(end).to_vec();
        let ledger = RolloutLedger { proven: 1, row, braked_until: Some(t(600)), ..RolloutLedger::default() };
        let braked = ActiveRollout { record: Some(recorded(7)), ledger: Some(ledger), ..rollout(NEW) };
        let status = &mut view.operator.as_mut().unwrap().status;
        status.active_rollouts = vec![braked];
        status.conditions.extend(reported.then(|| condition(BRAKED, "Braked", "")));
        let record = &mut view.nodes.get_mut("n0").unwrap().shadow.as_mut().unwrap().status.controller.record;
        record.get_or_insert_default().version_failures.extend(frozen.then(|| failure(NEW)));
        let status = crate::plan::plan(&view, &policy, t(60)).status.unwrap();
        let holds = |type_: &str| true_condition(&status.conditions, type_).is_some();
        assert_eq!((holds(FROZEN), holds(BRAKED)), (frozen, expected), "{sentence}");
    }
}

#[test]
fn reason_of_an_ended_freeze_is_the_resume_that_ended_it_until_the_next_one() {
    let stored = |holds: bool, reason: &str| {
        let mut condition = conditions(Some((holds, ""))).remove(0);
        condition.reason = reason.to_owned();
        Some(condition)
    };
    for (sentence, stored, resumed, expected) in [
        ("nothing is recorded", None, false, "NoFailures"),
        ("a resume ends it", stored(true, "VersionFailed"), true, RESUMED),
        ("a resume ends it for the nodes that failed", stored(false, CONTAINED), true, RESUMED),
        ("a resume ended it before", stored(false, RESUMED), false, RESUMED),
        ("a node has proven the version", stored(true, "VersionFailed"), false, "NoFailures"),
        ("a resume where nothing was frozen", stored(false, "NoFailures"), true, "NoFailures"),
    ] {
        assert_eq!(over(stored.as_ref(), resumed, "NoFailures").1, expected, "{sentence}");
    }
}

#[test]
fn each_degraded_cause_emits_start_and_end_events() {
    let degraded = |holds: bool, reason: &str| {
        let mut condition = conditions(Some((holds, if holds { "why" } else { "" }))).remove(0);
        (condition.type_, condition.reason) = (DEGRADED.to_owned(), reason.to_owned());
        vec![condition]
    };
    let good = degraded(false, "AsExpected");
    for (cause, ends, expected) in [
        ("InvalidPolicy", "PolicyValid", "the policy is valid"),
        (CERTIFICATES, "CertificatesValid", "keys and certificates"),
        (NOT_SERVED, "ShadowsServed", "serves the shadows"),
        (WEB_API, "WebApiReady", "the web API"),
        (MISUNDERSTOOD, "RequestsUnderstood", "annotation"),
        (OUT_OF_BOUNDS, "DurationsWithinBounds", "within its bounds"),
        (CREDENTIALS, "CredentialsRemoved", "no credentials"),
        (GROUP_HIDDEN, "NodeGroupsVisible", "takes every node"),
        (CONFLICT, "FieldManagersSeparate", "other field manager"),
        (UNREADABLE, "ObjectsReadable", "can be read"),
        (UNREAD_OBJECTS, "ObjectsRead", "spec.health can be read"),
    ] {
        let bad = degraded(true, cause);
        assert_eq!(news(&good, &bad), [Note { warning: true, reason: cause, message: "why".to_owned() }]);
        let over = news(&bad, &good);
        assert!(
            matches!(&over[..], [note] if note.reason == ends && note.message.contains(expected)),
            "{cause}: {over:?}"
        );
        assert!(!over[0].warning, "{cause}");
    }
}

#[test]
fn conflict_of_field_managers_is_reported_with_field_and_manager() {
    let (mut view, policy) = cluster(["a", "b"].map(node).to_vec(), &[]);
    let degraded = |view: &ClusterView| {
        let conditions = crate::plan::plan(view, &policy, t(0)).status.expect("a status").conditions;
        find_condition(&conditions, DEGRADED).cloned().expect("the condition")
    };
    assert_eq!(degraded(&view).reason, "AsExpected");
    let shared = SharedField { field: "spec.permit".into(), manager: "kubectl-edit".into() };
    view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().shared_field = Some(shared);
    let condition = degraded(&view);
    let found = (condition.status, condition.reason.as_str());
    assert_eq!(found, (models::condition::ConditionStatus::True, "FieldManagerConflict"));
    for part in ["spec.permit", "brs-b", "kubectl-edit", "delete the shadow"] {
        assert!(condition.message.contains(part), "{}", condition.message);
    }
}

#[test]
fn recorded_revision_stands_for_another_target_never_while_revisions_are_unread() {
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    let status = |view: &ClusterView, policy: &Policy| crate::plan::plan(view, policy, t(0)).status.expect("a status");
    let mut recorded = status(&view, &policy);
    recorded.update_revision = Some("default-a".into());
    let operator = view.operator.as_mut().unwrap();
    operator.status = recorded;
    view.revisions = None;
    assert_eq!(status(&view, &policy).update_revision.as_deref(), Some("default-a"));
    let pinned = Policy { target: Target::parse("1.20").unwrap(), ..policy };
    assert_eq!(status(&view, &pinned).update_revision, None, "nodes do not follow a policy that is not recorded yet");
}

#[test]
fn waiting_reasons_are_listed_by_node_count() {
    let (view, policy) = cluster(["a", "b", "c", "d"].map(node).to_vec(), &[]);
    let mut plan = Plan::default();
    for (name, wait) in [
        ("a", Wait::Held { until: None, reason: None }),
        ("b", Wait::NodeNotReady),
        ("c", Wait::NodeNotReady),
        ("d", Wait::UpToDate),
    ] {
        plan.waits.insert(name.to_owned(), wait);
    }
    let survey = Survey::of(&view, &policy, t(0));
    let counted: Vec<_> = waiting(&survey, &plan).into_iter().map(|row| (row.reason, row.nodes)).collect();
    assert_eq!(counted, [("NodeNotReady".to_owned(), 2), ("Held".to_owned(), 1)]);
}

#[test]
fn window_condition_reports_state_and_next_change() {
    let schedule = |spec: serde_json::Value| {
        let spec = serde_json::json!({"schedule": spec});
        Policy::from_spec(&serde_json::from_value(spec).unwrap()).unwrap()
    };
    let at_eight = serde_json::json!([{"cron": "0 8 * * *", "duration": "1h"}]);
    let at_ten = serde_json::json!([{"cron": "0 10 * * *", "duration": "1h"}]);
    let (view, _) = cluster(vec![node("a")], &[]);
    // t(0) is 08:00 on 15 January 2027.
    for (sentence, policy, holds, reason, message) in [
        ("no windows", Policy::default(), true, "AlwaysOpen", ""),
        ("in one", schedule(serde_json::json!({"windows": at_eight})), true, "Open", "until 2027-01-15T09:00:00Z"),
        (
            "before one",
            schedule(serde_json::json!({"windows": at_ten})),
            false,
            "Closed",
            "the next one opens at 2027-01-15T10:00:00Z",
        ),
        (
            "in a blackout",
            schedule(
                serde_json::json!({"windows": at_eight, "blackouts": [{"from": "2027-01-15", "to": "2027-01-15"}]}),
            ),
            false,
            "Blackout",
            "the next one opens at 2027-01-16T08:00:00Z",
        ),
    ] {
        assert_eq!(crate::plan::plan(&view, &policy, t(0)).window_open, holds, "{sentence}");
        let (open, word, text) = window(&Survey::of(&view, &policy, t(0)));
        assert_eq!((open, word, text.as_str()), (holds, reason, message), "{sentence}");
    }
}

#[test]
fn windows_that_no_node_has_are_not_reported() {
    let schedule = |hour: u32| serde_json::json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}]});
    let group = |name: &str, hour: u32| {
        let selector = serde_json::json!({"matchLabels": {"tier": name}});
        serde_json::json!({"name": name, "selector": selector, "schedule": schedule(hour)})
    };
    // t(0) is 08:00: the window of db is open, that of web opens at 10:00, and nodes in no group have none.
    let spec = serde_json::json!({"nodeGroups": [group("db", 8), group("web", 10), group("cache", 9)]});
    let policy = Policy::from_spec(&serde_json::from_value(spec).unwrap()).unwrap();
    let at_ten = Some(t(2 * 3600));
    for (sentence, tiers, expected) in [
        ("no node", vec![], (true, "AlwaysOpen", None)),
        ("a node in no group", vec!["", "web"], (true, "AlwaysOpen", at_ten)),
        ("all nodes are in groups, and one is open", vec!["db", "web"], (true, "OpenForGroups", at_ten)),
        ("all nodes are in a group that is open", vec!["db"], (true, "OpenForGroups", None)),
        ("all nodes are in a group that is closed", vec!["web"], (false, "Closed", at_ten)),
    ] {
        let nodes = tiers.iter().map(|tier| {
            let mut node = node(&format!("node-{tier}"));
            std::sync::Arc::make_mut(&mut node.facts.labels).insert("tier".into(), (*tier).to_owned());
            node
        });
        let (view, _) = cluster(nodes.collect(), &[]);
        let (open, word, text) = window(&Survey::of(&view, &policy, t(0)));
        let made = crate::plan::plan(&view, &policy, t(0));
        assert_eq!(made.window_open, open, "{sentence}");
        assert_eq!((open, word, made.status.unwrap().next_window), expected, "{sentence}");
        assert_eq!(text.contains("the next one opens at 2027-01-15T10:00:00Z"), !open, "{sentence}: {text}");
    }
}

#[test]
fn changed_expression_value_does_not_change_recorded_message() {
    let wait = |series: &str| Wait::ExpressionFires { name: "errors".into(), series: series.into(), shared: true };
    assert!(wait("{} 8").is_recorded(&wait("{} 7").to_string()), "another value is the same message");
    assert!(!wait("{} 8").is_recorded("the expression latency returned {} 7"));
    assert!(!Wait::NodeNotReady.is_recorded(&wait("{} 7").to_string()));
}

#[test]
fn another_cause_for_which_an_expression_has_no_result_is_recorded_and_another_number_in_it_is_not() {
    let fails = |name: &str, cause: &str| {
        let (name, message) = (name.to_owned(), cause.to_owned());
        Wait::ExpressionFails { name, message, shared: true }
    };
    let recorded = fails("errors1", "no route, tried for 7 s").to_string();
    let answered = fails("errors1", "http://p:9090 answered 503: is it well?").to_string();
    for other in ["http://p:9090 answered 404: is it well?", "http://p:9091 answered 503: is it well?"] {
        assert!(!fails("errors1", other).is_recorded(&answered), "another code or server: {other}");
    }
    for (sentence, wait, is_recorded) in [
        ("the same", fails("errors1", "no route, tried for 7 s"), true),
        ("another number", fails("errors1", "no route, tried for 12 s"), true),
        ("another cause", fails("errors1", "the certificate has expired"), false),
        ("more of the cause", fails("errors1", "no route, tried for 7 s by another way"), false),
        ("another expression", fails("errors2", "no route, tried for 7 s"), false),
    ] {
        assert_eq!(wait.is_recorded(&recorded), is_recorded, "{sentence}");
    }
}

#[test]
fn status_keeps_last_valid_policy_and_last_followed_revision() {
    let reported = |view: &ClusterView, policy: &Policy| crate::plan::plan(view, policy, t(1)).status.unwrap();
    let current = || {
        let mut node = node("a");
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(NEW);
        agent.updates.as_mut().unwrap().chosen_version = None;
        node
    };
    let with_last = |nodes: Vec<NodeView>| {
        let (mut view, policy) = cluster(nodes, &[]);
        let status = &mut view.operator.as_mut().unwrap().status;
        (status.current_revision, status.policy_in_force) = (Some("last".into()), Some("the last".into()));
        (view, policy)
    };

    let (mut view, policy) = with_last(vec![current()]);
    assert_eq!(reported(&view, &policy).current_revision.as_deref(), Some("last"), "the revisions are not known");
    record_history(&mut view, &policy);
    let all = reported(&view, &policy);
    assert!(all.update_revision.is_some() && all.current_revision == all.update_revision, "{all:?}");
    assert_eq!(all.policy_in_force, serde_json::to_string(&view.operator.as_ref().unwrap().spec).ok());

    let (view, policy) = with_last(vec![]);
    assert_eq!(reported(&view, &policy).current_revision.as_deref(), Some("last"), "no node follows anything");

    let (view, policy) = with_last(vec![current(), node("b")]);
    assert_eq!(reported(&view, &policy).current_revision.as_deref(), Some("last"), "one node does not follow yet");

    let (mut view, _) = with_last(vec![current()]);
    let spec = serde_json::json!({"schedule": {"windows": [{"cron": "x", "duration": "1h"}]}});
    view.operator.as_mut().unwrap().spec = serde_json::from_value(spec).unwrap();
    let unusable = reported(&view, &Policy::in_force(view.operator.as_ref()));
    assert_eq!(unusable.update_revision, None, "no policy, no revision of it");
    assert_eq!(unusable.policy_in_force.as_deref(), Some("the last"));
}

#[test]
fn pause_beside_earlier_operator_emits_one_event_at_each_end() {
    let blocked = |holds: bool, reason: &str| {
        let mut condition = conditions(Some((holds, if holds { "why" } else { "" }))).remove(0);
        (condition.type_, condition.reason) = (BLOCKED.to_owned(), reason.to_owned());
        vec![condition]
    };
    let (running, gone) = (blocked(true, EARLIER_RUNNING), blocked(false, EARLIER_GONE));
    let mut going = blocked(true, EARLIER_GONE);
    going[0].status = ConditionStatus::Unknown;
    let (fires, quiet) = (blocked(true, "ExpressionFires"), blocked(false, EXPRESSIONS_QUIET));
    let (unwell, well) = (blocked(true, CLUSTER_UNWELL), blocked(false, CLUSTER_WELL));
    for (sentence, old, new, expected) in [
        ("the first status", &vec![], &running, Some(EARLIER_RUNNING)),
        ("it is known", &running, &running, None),
        ("its pods are gone", &running, &going, None),
        ("its hosts are down", &going, &gone, Some(EARLIER_GONE)),
        ("an expression keeps all nodes waiting then", &going, &fires, Some("ExpressionFires")),
        ("an expression kept all nodes waiting before", &fires, &running, Some(EARLIER_RUNNING)),
        ("an expression keeps them waiting after it", &running, &fires, Some("ExpressionFires")),
        ("only an expression did", &fires, &quiet, Some(EXPRESSIONS_QUIET)),
        ("many nodes have fallen ill at once", &quiet, &unwell, Some(CLUSTER_UNWELL)),
        ("they are well again", &unwell, &well, Some(CLUSTER_WELL)),
    ] {
        let reasons: Vec<_> = news(old, new).iter().map(|note| note.reason).collect();
        assert_eq!(reasons, Vec::from_iter(expected), "{sentence}");
    }
}

#[test]
fn message_of_an_expression_is_not_kept_for_an_unwell_cluster() {
    let ill = |name: &str| {
        let mut node = node(name);
        crate::fixtures::set_ready(&mut node.facts, false, t(-60));
        node
    };
    let (view, policy) = cluster(vec![ill("a"), ill("b"), node("c")], &[]);
    let survey = Survey::of(&view, &policy, t(0));
    let waits = [("c".to_owned(), Wait::of_unwell(survey.unwell.of_starts().unwrap()))].into();
    let stored = condition(BLOCKED, "ExpressionFires", "the expression errors returned {} 7");
    let found = blocked(&view, &survey, &Plan { waits, ..Plan::default() }, Some(&stored)).unwrap();
    assert_eq!((found.0, found.1), (ConditionStatus::True, CLUSTER_UNWELL));
    assert_ne!(found.2, stored.message);
}

#[test]
fn counts_and_reasons_wait_for_another_change_while_an_update_is_under_way() {
    let (mut view, policy) = cluster(vec![at("a", Step::Draining, 0, HostState::StagedUpdate), node("b")], &["a"]);
    view.operator.as_mut().unwrap().status = crate::plan::plan(&view, &policy, t(1)).status.unwrap();
    let waits = |is_under_way, change: &dyn Fn(&mut BottlerocketUpdateOperatorStatus)| {
        let mut recorded = view.operator.as_ref().unwrap().status.clone();
        recorded.conditions.retain(|condition| is_under_way || condition.type_ != PROGRESSING);
        let mut planned = recorded.clone();
        change(&mut planned);
        can_wait(&recorded, &planned)
    };
    let counts = |status: &mut BottlerocketUpdateOperatorStatus| {
        status.counts.as_mut().unwrap().staged += 1;
        status.waiting.clear();
        status.freshness.as_mut().unwrap().nodes_behind += 1;
    };
    assert!(waits(true, &counts) && !waits(false, &counts));
    for (sentence, change) in [
        ("another generation", &|s: &mut BottlerocketUpdateOperatorStatus| s.observed_generation = Some(9)),
        ("a slot", &|s| s.slots.clear()),
        ("a condition", &|s| s.conditions[0].reason = "Other".into()),
        ("a version", &|s| s.versions.clear()),
        ("a rollout", &|s| s.active_rollouts.push(crate::fixtures::rollout(NEW))),
    ] as [(&str, &dyn Fn(&mut BottlerocketUpdateOperatorStatus)); 5]
    {
        let both = |status: &mut BottlerocketUpdateOperatorStatus| {
            counts(status);
            change(status);
        };
        assert!(!waits(true, &both), "{sentence}");
    }
}

#[test]
fn first_write_of_an_attempt_comes_with_the_condition_that_it_leads_to() {
    let (view, policy) = cluster(vec![node("a")], &[]);
    let plan = crate::plan::plan(&view, &policy, t(1));
    assert!(plan.actions.values().any(Plan::starts), "{:?}", plan.actions);
    assert!(true_condition(&plan.status.unwrap().conditions, PROGRESSING).is_some());
}

#[test]
fn updates_go_on_beside_a_write_under_way_only_where_they_did_and_no_lost_lead_has_paused_it() {
    for (before, busy, paused, expected) in
        [(true, true, false, true), (true, true, true, false), (true, false, false, false), (false, true, false, false)]
    {
        let mut current = node("a");
        let agent = &mut current.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(NEW);
        agent.updates.as_mut().unwrap().chosen_version = None;
        let (mut view, policy) = cluster(vec![current], &[]);
        let conditions = &mut view.operator.as_mut().unwrap().status.conditions;
        conditions.extend(before.then(|| condition(PROGRESSING, "Updating", "")));
        view.busy.extend(busy.then(|| "a".to_owned()));
        view.paused.extend(paused.then(|| "a".to_owned()));
        let status = crate::plan::plan(&view, &policy, t(1)).status.unwrap();
        let progresses = true_condition(&status.conditions, PROGRESSING).is_some();
        assert_eq!(progresses, expected, "before: {before}, busy: {busy}, paused: {paused}");
    }
}

#[test]
fn state_of_notices_is_shown_while_policy_has_them() {
    for (enabled, kept) in [(true, true), (false, false)] {
        let (mut view, mut policy) = cluster(vec![node("a")], &[]);
        let sent = condition(NOTICES_SENT, "Sent", "");
        view.operator.as_mut().unwrap().status.conditions = vec![sent, condition(PROGRESSING, "Updating", "")];
        let blocked_after = std::time::Duration::from_secs(3600);
        policy.notices = enabled.then(|| crate::policy::Notices { receivers: vec![], blocked_after });
        let conditions = crate::plan::plan(&view, &policy, t(1)).status.unwrap().conditions;
        let found = [NOTICES_SENT, PROGRESSING].map(|type_| find_condition(&conditions, type_).is_some());
        assert_eq!(found, [kept, true]);
    }
}

#[test]
fn number_of_rollouts_is_recorded_from_the_first_one_on() {
    for highest in [None, Some(0)] {
        let (mut view, policy) = cluster(vec![], &[]);
        view.history.highest = highest;
        assert_eq!(crate::plan::plan(&view, &policy, t(1)).status.unwrap().rollout_count, None, "{highest:?}");
    }
}

#[test]
fn end_of_an_attempt_comes_with_the_slot_that_is_taken_back() {
    let mut updated = node("a");
    let agent = &mut updated.shadow.as_mut().unwrap().status.agent;
    agent.current_version = Some(NEW);
    agent.updates.as_mut().unwrap().chosen_version = None;
    let (mut view, policy) = cluster(vec![updated], &["a"]);
    let progresses = |view: &ClusterView| {
        let status = crate::plan::plan(view, &policy, t(1)).status.unwrap();
        (status.slots.len(), true_condition(&status.conditions, PROGRESSING).is_some())
    };
    assert_eq!(progresses(&view), (0, false));
    view.busy.insert("a".into());
    assert_eq!(progresses(&view), (1, true), "a write about it is under way");
}

#[test]
fn node_that_needs_no_update_is_current_while_something_is_written_about_it() {
    let mut updated = node("a");
    let shadow = updated.shadow.as_mut().unwrap();
    shadow.status.agent.current_version = Some(NEW);
    shadow.status.agent.updates.as_mut().unwrap().chosen_version = None;
    shadow.spec.state = HostState::StagedUpdate;
    let (mut view, policy) = cluster(vec![updated], &[]);
    let current = |view: &ClusterView| crate::plan::plan(view, &policy, t(1)).status.unwrap().counts.unwrap().current;
    assert_eq!(current(&view), 1, "its desired state is withdrawn");
    view.busy.insert("a".into());
    assert_eq!(current(&view), 1);
}
