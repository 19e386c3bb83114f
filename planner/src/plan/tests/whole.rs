//! Regression tests of single decisions of the planner.

use std::collections::BTreeSet;

use models::condition::find_condition;
use models::reason::{FailureReason, Proof};
use models::shadow::{ArmedPhase, BLOCKED, Drill, HostState, OfferedUpdates, Permit, Step};
use semver::Version;

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, LeaseObservations, NodeView, PodFacts, Projection as _, Refused, ShadowFacts};
use crate::wait::Wait;

/// A node got the permit and never came back: its Lease is read every 10 s, not in a loop.
#[test]
fn lease_of_lost_node_is_not_read_in_hot_loop() {
    let mut dead = at("a", Step::Releasing, 0, HostState::Idle);
    dead.facts.ready = false;
    dead.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().permit_issued = true;
    dead.shadow.as_mut().unwrap().status.agent.observed_generation = Some(0);
    let (mut view, policy) = cluster(vec![dead], &["a"]);
    let mut reads = 0;
    for millisecond in 0..100 {
        let now = t(200).checked_add(jiff::SignedDuration::from_millis(millisecond)).unwrap();
        if plan(&view, &policy, now).actions.get("a") == Some(&Action::ReadLease { pods: false }) {
            reads += 1;
            // The result of a reading: the time at which the kubelet last renewed it, before the host died.
            let node = view.nodes.get_mut("a").unwrap();
            node.lease = Some(LeaseObservations::add(node.lease, Some(t(-30)), now));
        }
    }
    assert!(reads <= 1, "{reads} reads of the Lease in 100 ms, one for each turn");
}

/// Nodes whose pods cannot be evicted give way to the others.
#[test]
fn staged_nodes_with_bare_pods_do_not_starve_other_nodes() {
    let mut nodes: Vec<_> = ["a", "b"].map(|n| at(n, Step::Staged, 0, HostState::StagedUpdate)).into();
    for n in &mut nodes {
        n.pods = Some(vec![pod(&n.facts.name, true)]);
    }
    nodes.extend(["c", "d", "e"].map(node));
    let (view, policy) = cluster(nodes, &[]);
    let far = plan(&view, &policy, t(7 * 24 * 3600));
    let started = ["c", "d", "e"].iter().any(|n| matches!(far.actions.get(*n), Some(Action::Status { .. })));
    assert!(started, "after a week: {:?} {:?}", far.actions.keys(), far.waits);
}

/// An image breaks the host's network, or its firmware is slow: armed, rebooted, not seen since.
#[test]
fn node_not_seen_since_its_reboot_has_proven_nothing() {
    let mut gone = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    gone.facts.ready = false;
    let shadow = gone.shadow.as_mut().unwrap();
    shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: String::new() });
    shadow.status.agent.armed = Some(armed(ArmedPhase::Activated));
    let (view, policy) = cluster(vec![gone], &["a"]);
    let plan = plan(&view, &policy, t(3600));
    let record = record_of(&plan);
    let proof = record.proof.as_ref().map(|proof| (proof.proof, proof.reason.as_str()));
    assert_eq!((proof, record.version_failures.len()), (Some((Proof::Unproven, "RebootTimedOut")), 0));
}

/// The pods of the second node were listed first.
#[test]
fn node_keeps_its_turn_while_its_pods_are_read() {
    let staged = |name: &str| {
        let mut node = at(name, Step::Staging, 0, HostState::StagedUpdate);
        node.pods = None;
        node
    };
    let (mut view, policy) = cluster(vec![staged("a"), staged("b")], &[]);
    view.nodes.get_mut("b").unwrap().pods = Some(vec![]);
    assert_eq!(plan(&view, &policy, t(1)).slots, None, "it is a's turn");
    view.nodes.get_mut("a").unwrap().pods = Some(vec![]);
    let slots = plan(&view, &policy, t(1)).slots.unwrap();
    assert_eq!(slots.iter().map(|slot| slot.node.as_str()).collect::<Vec<_>>(), ["a"]);
}

/// The failure that uses the failure budget up and another node's start are in one plan.
#[test]
fn no_node_starts_in_plan_that_exhausts_failure_budget() {
    let a = failed(FailureReason::BootFellBack);
    let b = at("b", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, policy) = cluster(vec![a, b], &["a", "b"]);
    view.operator.as_mut().unwrap().spec.max_unavailable = Some(models::operator::CountOrPercent::Count(2));
    let mut policy = policy;
    policy.max_unavailable = models::operator::CountOrPercent::Count(2);
    let both = plan(&view, &policy, t(2));
    assert!(matches!(both.actions.get("a"), Some(Action::Status { .. })));
    assert!(!both.actions.contains_key("b"), "b starts its drain in the plan that freezes the rollout");
    // ... and also in each later plan while the failure's write is under way.
    view.busy.insert("a".into());
    assert!(!plan(&view, &policy, t(2)).actions.contains_key("b"));
}

/// A manifest with an old `resume` in it was applied again, after the resource that had acknowledged it was deleted.
#[test]
fn resume_present_at_creation_is_ignored_and_new_value_ends_freeze() {
    let mut failed = node("a");
    let record = models::shadow::Record { version_failures: vec![failure(NEW)], ..models::shadow::Record::default() };
    failed.shadow.as_mut().unwrap().status.controller.record = Some(record);
    let (mut view, policy) = cluster(vec![failed], &[]);
    let operator = view.operator.as_mut().unwrap();
    operator.status.observed_generation = None;
    (operator.resume, operator.approve_step) = (Some("monday".into()), Some("monday".into()));
    let made = plan(&view, &policy, t(1));
    assert!(!made.actions.contains_key("a"), "{:?}", made.actions);
    let status = made.status.unwrap();
    let requests = status.requests.clone().unwrap();
    assert_eq!((requests.resume.as_deref(), requests.approve_step.as_deref()), (Some("monday"), Some("monday")));
    let frozen = |status: &models::operator::BottlerocketUpdateOperatorStatus| {
        find_condition(&status.conditions, models::operator::FROZEN).unwrap().status
    };
    assert_eq!(frozen(&status), models::condition::ConditionStatus::True);

    let operator = view.operator.as_mut().unwrap();
    (operator.status, operator.resume) = (status, Some("tuesday".into()));
    let resumed = plan(&view, &policy, t(2));
    let record = record_of(&resumed);
    assert_eq!(record.version_failures[0].resolved_by.as_deref(), Some("tuesday"));
}

/// A user requested a downgrade, and withdraws it while a node waits for its window with the old image.
#[test]
fn staged_attempt_ends_when_policy_no_longer_wants_its_version() {
    let down = Version::new(1, 19, 0);
    for (sentence, version, spec, ends) in [
        ("a downgrade under a pin", down.clone(), serde_json::json!({"version": {"target": "1.19.0"}}), false),
        ("a downgrade under latest", down, serde_json::json!({}), true),
        ("an update under latest", NEW, serde_json::json!({}), false),
        ("an update that has become too young", NEW, serde_json::json!({"version": {"minimumAge": "72h"}}), true),
    ] {
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        let shadow = staged.shadow.as_mut().unwrap();
        shadow.status.controller.progress.as_mut().unwrap().version = version;
        let (view, policy) = cluster_with(vec![staged], &[], spec);
        let made = plan(&view, &policy, t(1));
        let reason = match made.actions.get("a") {
            Some(Action::Status { status, .. }) => {
                status.report.record.as_ref().and_then(|r| r.last.as_ref()).map(|l| l.reason.clone())
            }
            _ => None,
        };
        assert_eq!(reason.as_deref() == Some("PolicyChanged"), ends, "{sentence}: {:?}", made.actions);
    }
}

/// Stop means stop: the node is drained for a version that a user rules out, or on a day on which nothing is to happen.
#[test]
fn exclusion_pin_and_blackout_end_every_attempt_without_a_permit() {
    let exclusion = serde_json::json!({"version": {"exclude": ["1.20.5"]}});
    let pin = serde_json::json!({"version": {"target": "1.20.0"}});
    let blackout = serde_json::json!({"schedule": {"blackouts": [{"from": "2027-01-15"}]}});
    let window = serde_json::json!({"schedule": {"windows": [{"cron": "0 12 * * *", "duration": "1h"}]}});
    let age = serde_json::json!({"version": {"minimumAge": "72h"}});
    let leaving = [Step::BeforeDrain, Step::LeavingLoadBalancer, Step::Draining];
    let without_permit = leaving.map(|step| (step, HostState::StagedUpdate));
    let without_permit = without_permit.into_iter().chain([(Step::Rebooting, HostState::RebootedIntoUpdate)]);
    for (step, state) in without_permit {
        for (spec, end) in [
            (&exclusion, Some("PolicyChanged")),
            (&pin, Some("PolicyChanged")),
            (&blackout, Some("BlackoutBegan")),
            (&window, (step == Step::BeforeDrain).then_some("WindowEnded")),
            (&age, None),
        ] {
            let (view, policy) = cluster_with(vec![at("a", step, 0, state)], &["a"], spec.clone());
            let made = plan(&view, &policy, t(1));
            let report = match made.actions.get("a") {
                Some(Action::Status { status, .. }) => Some(&status.report),
                _ => None,
            };
            let last = report.and_then(|report| report.record.as_ref()?.last.as_ref());
            assert_eq!(last.map(|last| last.reason.as_str()), end, "{step:?} {spec}: {:?}", made.actions);
            let not_before = report.and_then(|report| report.record.as_ref()?.not_before);
            assert_eq!(not_before, None, "it counts against nothing");
        }
    }
    for spec in [&exclusion, &pin, &blackout, &window, &age] {
        let mut permitted = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        permitted.shadow.as_mut().unwrap().spec.permit =
            Some(models::shadow::Permit { nonce: "n".into(), jws: "j".into() });
        let (view, policy) = cluster_with(vec![permitted], &["a"], spec.clone());
        let made = plan(&view, &policy, t(1));
        assert!(made.actions.is_empty(), "the permit stands, {spec}: {:?}", made.actions);
    }
    for (spec, text) in [(exclusion, "PolicyChanged"), (pin, "PolicyChanged")] {
        let (view, policy) = cluster_with(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"], spec);
        let made = format!("{:?}", plan(&view, &policy, t(1)).actions);
        assert!(made.contains(text), "a node with a slot that is being checked: {made}");
    }
    let (view, policy) = cluster_with(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"], blackout);
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.waits["a"].as_str(), "Blackout", "its image stays");
    assert_eq!(made.slots, Some(vec![]), "its slot does not");
}

/// A blackout with a misspelt time zone: what the user wants is not known.
#[test]
fn nothing_starts_under_an_invalid_policy_and_what_is_under_way_goes_on() {
    let draining = at("b", Step::Draining, 0, HostState::StagedUpdate);
    let staged = at("c", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, mut policy) = cluster(vec![node("a"), draining, staged], &["b"]);
    one_proven(&mut view);
    policy.max_unavailable = models::operator::CountOrPercent::Count(3);
    let valid = plan(&view, &policy, t(1));
    assert!(valid.actions.contains_key("a") && !valid.waits.contains_key("c") || valid.pods.contains("c"));
    policy.errors = invalid_policy();
    let made = plan(&view, &policy, t(1));
    for name in ["a", "c"] {
        assert_eq!(made.waits[name].as_str(), "PolicyInvalid", "{name}: {made:?}");
    }
    assert_eq!((made.slots, &made.waits.get("b")), (None, &valid.waits.get("b")), "its drain goes on");
    assert_eq!(made.actions.get("b"), valid.actions.get("b"));
}

/// The resource was deleted and made again with an error: the defaults have no hooks, no exclusions and no blackouts.
#[test]
fn every_attempt_without_a_permit_ends_without_a_usable_policy() {
    let gone = Policy::default();
    let unusable = Policy { present: true, unusable: true, errors: invalid_policy(), ..Policy::default() };
    let staged = [Step::Staging, Step::Staged, Step::BeforeDrain, Step::LeavingLoadBalancer, Step::Draining];
    let steps = staged.map(|step| (step, HostState::StagedUpdate)).into_iter();
    let steps = steps.chain([(Step::Rebooting, HostState::RebootedIntoUpdate)]);
    for (step, state) in steps {
        for (policy, drill) in [(&gone, false), (&unusable, false), (&gone, true), (&unusable, true)] {
            let mut node = at("a", step, 0, state);
            node.pods = Some(vec![pod("a", false)]);
            let progress = node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
            progress.drill = drill.then(|| Drill::of("1 evict"));
            let (view, _) = cluster(vec![node], &["a"]);
            let made = plan(&view, policy, t(1));
            let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{step:?}: {made:?}") };
            let record = status.report.record.as_ref().unwrap();
            let ended = if drill {
                record.drill.as_ref().map(|drill| &drill.result)
            } else {
                record.last.as_ref().map(|last| &last.reason)
            };
            assert_eq!(ended.map(String::as_str), Some("Disabled"), "{step:?}, a drill: {drill}");
            assert_eq!((made.evictions.len(), record.failures), (0, 0), "{step:?}, a drill: {drill}");
        }
    }
    let mut permitted = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    permitted.shadow.as_mut().unwrap().spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    let (view, _) = cluster(vec![permitted], &["a"]);
    for policy in [gone, unusable] {
        let made = plan(&view, &policy, t(1));
        assert!(made.actions.is_empty(), "the permit stands: {:?}", made.actions);
    }
}

#[test]
fn healthy_condition_follows_the_update() {
    let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    node.facts.boot_id = "b2".into();
    (node.facts.claims, node.facts.unschedulable) = (crate::claims::ClaimFields::default(), false);
    let before = condition(models::shadow::HEALTHY, "Soaked", "");
    let shadow = node.shadow.as_mut().unwrap();
    shadow.status.conditions.push(before);
    let agent = &mut shadow.status.agent;
    (agent.boot_id, agent.current_version) = (Some("b2".into()), Some(NEW));
    agent.state = Some(HostState::RebootedIntoUpdate);
    let (mut view, policy) = cluster(vec![node], &["a"]);
    let healthy = |view: &ClusterView| {
        let conditions = &view.nodes["a"].shadow.as_ref().unwrap().status.conditions;
        let healthy = models::condition::find_condition(conditions, models::shadow::HEALTHY).unwrap();
        (healthy.status, healthy.reason.clone())
    };
    let follow = |view: &mut ClusterView, second| {
        let made = plan(view, &policy, t(second));
        written(view, made.actions.get("a").expect("a write"));
    };
    follow(&mut view, 1);
    let unknown = models::condition::ConditionStatus::Unknown;
    assert_eq!(healthy(&view), (unknown, "Verifying".to_owned()), "the update before is another one");
    view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().release = Some("now".into());
    follow(&mut view, 2);
    assert_eq!(healthy(&view), (unknown, "ReleaseRequested".to_owned()));
}

#[test]
fn plan_wakes_when_offered_version_reaches_minimum_age() {
    let mut node = node("a");
    let older = Version::new(1, 20, 4);
    let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
    updates.available_versions = vec![NEW, older.clone()];
    let (mut view, policy) = cluster_with(vec![node], &[], serde_json::json!({"version": {"minimumAge": "1h"}}));
    let first = plan(&view, &policy, t(0));
    let operator = view.operator.as_mut().unwrap();
    operator.status = first.status.unwrap();
    operator.status.versions.iter_mut().find(|known| known.version == older).unwrap().first_seen = t(-600);
    let made = plan(&view, &policy, t(1));
    assert!(matches!(&made.waits["a"], Wait::TooYoung { version, .. } if *version == NEW), "{:?}", made.waits);
    assert_eq!(made.wake, Some(t(3000)));
}

/// A pinned version that is older than the current one was never new to this operator.
#[test]
fn pinned_downgrade_ignores_minimum_age() {
    let mut node = node("a");
    let agent = &mut node.shadow.as_mut().unwrap().status.agent;
    let down = Version::new(1, 19, 0);
    agent.updates = Some(OfferedUpdates {
        chosen_version: Some(down.clone()),
        available_versions: vec![down.clone()],
        ..OfferedUpdates::default()
    });
    let (mut view, policy) =
        cluster_with(vec![node], &[], serde_json::json!({"version": {"target": "1.19.0", "minimumAge": "72h"}}));
    let host = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().spec.host.as_mut().unwrap();
    host.version_lock = Some(down.to_string());
    assert_eq!(status_of(&plan(&view, &policy, t(1))).report.progress.as_ref().unwrap().version, down);
}

/// A node that has failed on the new version.
fn with_failure(name: &str) -> NodeView {
    let mut node = node(name);
    let record = models::shadow::Record { version_failures: vec![failure(NEW)], ..models::shadow::Record::default() };
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
    node
}

/// Stores the status of a plan. Returns the nodes that it names as failed on a version.
fn failed_nodes(view: &mut ClusterView, made: &Plan) -> Vec<String> {
    let status = &mut view.operator.as_mut().unwrap().status;
    if let Some(written) = &made.status {
        status.clone_from(written);
    }
    status.versions.iter().flat_map(|known| known.failed.clone()).collect()
}

#[test]
fn failure_that_shadow_and_operator_status_record_counts_once() {
    let (mut view, policy) =
        cluster_with(vec![with_failure("a"), node("b")], &[], serde_json::json!({"failurePolicy": {"maxFailures": 2}}));
    for second in 1..4 {
        let made = plan(&view, &policy, t(second));
        assert_eq!(made.quarantine.frozen_by(), None, "one node has failed, at {second}");
        assert_eq!(failed_nodes(&mut view, &made), ["a"]);
    }
}

#[test]
fn names_of_all_failed_nodes_are_kept_when_each_is_deleted() {
    let (mut view, policy) =
        cluster_with(vec![node("other")], &[], serde_json::json!({"failurePolicy": {"maxFailures": 20}}));
    let names: Vec<String> = (1..=20).map(|number| format!("n{number:02}")).collect();
    for (before, name) in names.iter().enumerate() {
        view.nodes.insert(name.clone(), with_failure(name));
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.quarantine.frozen_by(), (before == 19).then_some(&NEW), "{name}");
        assert_eq!(failed_nodes(&mut view, &made), names[..=before]);
        view.nodes.remove(name);
    }
}

/// With a failure budget of two, each node that fails is deleted by another controller.
#[test]
fn failures_of_deleted_nodes_count_until_resume() {
    let (mut view, policy) =
        cluster_with(vec![with_failure("a")], &[], serde_json::json!({"failurePolicy": {"maxFailures": 2}}));
    let first = plan(&view, &policy, t(1));
    assert!(first.quarantine.is_empty());
    view.operator.as_mut().unwrap().status = first.status.unwrap();
    view.nodes.remove("a");
    let second = with_failure("b");
    view.nodes.insert("b".into(), second);
    let made = plan(&view, &policy, t(2));
    assert_eq!(made.quarantine.frozen_by(), Some(&NEW), "two nodes have failed, one of them is gone");
    assert!(made.quarantine.len() == 1 && !made.quarantine.is_empty());
    let operator = view.operator.as_mut().unwrap();
    (operator.status, operator.resume) = (made.status.unwrap(), Some("now".into()));
    view.nodes.remove("b");
    let resumed = plan(&view, &policy, t(3)).status.unwrap();
    assert!(resumed.versions.iter().all(|v| v.failed.is_empty() && v.quarantined.is_none()), "{:?}", resumed.versions);
}

/// Two nodes have their image and cannot be drained yet.
#[test]
fn blocked_staged_nodes_do_not_prevent_other_starts() {
    let mut short_of_disk =
        vec![at("a", Step::Staged, 0, HostState::StagedUpdate), at("b", Step::Staged, 0, HostState::StagedUpdate)];
    for node in &mut short_of_disk {
        node.facts.pressure = Some("DiskPressure".into());
    }
    short_of_disk.push(node("c"));
    let (view, policy) = cluster(short_of_disk, &[]);
    assert!(plan(&view, &policy, t(1)).actions.get("c").is_some_and(Plan::starts), "c begins");

    // The same under a canary step of one.
    let mut bare = at("a", Step::Staged, 0, HostState::StagedUpdate);
    bare.pods = Some(vec![pod("a", true)]);
    let (view, policy) =
        cluster_with(vec![bare, node("c")], &[], serde_json::json!({"strategy": {"canary": [{"nodes": 1}]}}));
    let made = plan(&view, &policy, t(1));
    assert!(made.actions.get("c").is_some_and(Plan::starts), "{:?}", made.waits);
}

/// The first node of a queue cannot be drained; another one is out of service and takes the only slot.
#[test]
fn blocked_condition_is_kept_until_next_check() {
    let mut bare = at("a", Step::Staged, 0, HostState::StagedUpdate);
    bare.pods = Some(vec![pod("a", true)]);
    let (mut view, policy) = cluster(vec![bare], &[]);
    let action = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    assert!(matches!(&action, Action::Status { note: Some(note), .. } if note.reason == "DrainRefused"));
    let Action::Status { status, .. } = action else { unreachable!() };
    let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    (shadow.status.controller, shadow.status.conditions) = (status.report, status.conditions);
    // No slot is free: it is not checked.
    view.nodes.insert("b".into(), at("b", Step::Draining, 0, HostState::StagedUpdate));
    view.nodes.get_mut("a").unwrap().pods = None;
    let made = plan(&view, &policy, t(2));
    assert!(!made.actions.contains_key("a"), "{:?}", made.actions);
    // The pod that was named is gone, and another one prevents the drain.
    view.nodes.remove("b");
    view.operator.as_mut().unwrap().status.slots.clear();
    view.nodes.get_mut("a").unwrap().pods = Some(vec![PodFacts { name: "other".into(), ..pod("a", true) }]);
    let made = plan(&view, &policy, t(3));
    let Some(Action::Status { status, note: None }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert!(find_condition(&status.conditions, BLOCKED).unwrap().message.contains("shop/other"));
}

/// A bare pod on each of five hundred staged nodes, and none on the last.
#[test]
fn pods_of_refused_nodes_are_watched_only_for_free_slots() {
    let called = |number: usize| format!("node-{number:03}");
    let nodes = (0..=500).map(|number| at(&called(number), Step::Staged, 0, HostState::StagedUpdate)).collect();
    let (mut view, policy) = cluster(nodes, &[]);
    one_proven(&mut view);
    let mut watched = BTreeSet::new();
    let mut most = 0;
    let mut given = None;
    for second in 1..1000 {
        for (name, node) in &mut view.nodes {
            let pods = if *name == called(500) { vec![] } else { vec![pod(name, true)] };
            node.pods = watched.contains(name).then_some(pods);
        }
        let made = plan(&view, &policy, t(1));
        most = most.max(made.pods.len());
        for (name, wait) in made.refused {
            view.nodes.get_mut(&name).unwrap().refused = Some(Refused { wait, again_at: t(60) });
        }
        for (name, action) in made.actions {
            let Action::Status { status, .. } = action else { panic!("{name}: {action:?}") };
            let stored = &mut view.nodes.get_mut(&name).unwrap().shadow.as_mut().unwrap().status;
            (stored.controller, stored.conditions) = (status.report, status.conditions);
        }
        if let Some(slots) = made.slots {
            given = Some((slots[0].node.clone(), second));
            break;
        }
        watched = made.pods;
    }
    assert_eq!(given.map(|(node, _)| node), Some(called(500)), "one after the other gives way to the next");
    assert!(most <= 6, "{most} nodes were watched at a time, for one slot");
    let refused = |node: &NodeView| {
        let blocked = find_condition(&node.shadow.as_ref().unwrap().status.conditions, BLOCKED);
        blocked.is_some_and(|condition| condition.reason == "DrainRefused")
    };
    assert_eq!(view.nodes.values().filter(|node| refused(node)).count(), 500, "each shows the reason");

    // None can be drained, and none is due: as few are watched as there are places.
    view.nodes.remove(&called(500));
    let made = plan(&view, &policy, t(2));
    assert_eq!(made.pods.len(), 3);
    assert!(made.actions.is_empty() && made.wake == Some(t(60)), "{:?}", made.wake);
    assert!(made.waits.values().filter(|wait| matches!(wait, Wait::DrainRefused { .. })).count() >= 497);
    // The pauses are over: those of some are checked again.
    let due = plan(&view, &policy, t(60));
    assert_eq!(due.pods.len(), 3);
}

#[test]
fn current_revision_advances_when_all_nodes_follow_policy() {
    let current = || {
        let mut node = node("a");
        node.shadow.as_mut().unwrap().status.agent.updates = Some(OfferedUpdates::default());
        node
    };
    let (mut view, policy) = cluster_with(vec![current(), node("b")], &[], serde_json::json!({}));
    record_history(&mut view, &policy);
    let first = plan(&view, &policy, t(1)).status.unwrap();
    assert!(first.update_revision.is_some());
    assert_eq!(first.current_revision, None, "one node is not what the policy makes of it");
    view.nodes.remove("b");
    let second = plan(&view, &policy, t(2)).status.unwrap();
    assert_eq!(second.current_revision, first.update_revision);
    view.operator.as_mut().unwrap().status = second;
    let pinned = with_policy(&mut view, serde_json::json!({"version": {"target": NEW.to_string()}}));
    record_history(&mut view, &pinned);
    let third = plan(&view, &pinned, t(3)).status.unwrap();
    assert_eq!(third.current_revision, first.update_revision, "the node is not there yet");
    assert_ne!(third.update_revision, first.update_revision);
}

/// A controller of a newer version was downgraded during a step that this one does not know.
#[test]
fn attempt_in_unknown_step_is_withdrawn_without_releasing_its_slot() {
    let mut unknown = at("a", Step::Unknown, 0, HostState::RebootedIntoUpdate);
    let shadow = unknown.shadow.as_mut().unwrap();
    shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: String::new() });
    // So is the agent's report of arming.
    shadow.status.agent.armed = Some(armed(ArmedPhase::Unknown));
    let (mut view, policy) = cluster(vec![unknown], &["a"]);
    let first = plan(&view, &policy, t(10));
    assert!(first.slots.is_none(), "its slot is still its own");
    let Some(Action::Status { status, .. }) = first.actions.get("a") else { panic!("{:?}", first.waits) };
    let progress = status.report.progress.as_ref().unwrap();
    assert_eq!((progress.step, progress.permit_issued), (Step::Releasing, true));
    assert_eq!(status.report.record.as_ref().unwrap().last.as_ref().unwrap().reason, "ProgressLost");
    written(&mut view, &first.actions["a"].clone());
    let second = plan(&view, &policy, t(11));
    let Some(Action::Spec { spec }) = second.actions.get("a") else { panic!("{:?}", second.waits) };
    assert_eq!(spec.state, HostState::Idle, "the desired state is withdrawn first");
}

/// A compromised agent reports text with terminal control characters.
#[test]
fn control_characters_reported_by_agent_are_never_written() {
    const HOSTILE: &str = "\u{1b}[2J\r\nok\u{202e}";
    let mut failed = at("a", Step::Returning, 0, HostState::RebootedIntoUpdate);
    failed.facts.boot_id = "b2".into();
    // The Node names no variant: that of the agent counts.
    failed.facts.os_image = format!("Bottlerocket OS {OLD}");
    let shadow = failed.shadow.as_mut().unwrap();
    shadow.spec.permit = Some(Permit { nonce: "n".into(), jws: String::new() });
    let agent = &mut shadow.status.agent;
    (agent.variant, agent.arch) = (Some(HOSTILE.into()), Some(HOSTILE.into()));
    agent.failure = Some(models::shadow::Failure {
        attempt: 1,
        step: HostState::RebootedIntoUpdate,
        reason: FailureReason::BootFellBack,
        message: HOSTILE.into(),
        time: t(1),
    });
    let mut offers_nothing = node("b");
    let agent = &mut offers_nothing.shadow.as_mut().unwrap().status.agent;
    agent.updates = Some(OfferedUpdates { refresh_failure: Some(HOSTILE.into()), ..OfferedUpdates::default() });
    let mut silent_host = node("c");
    let unreachable = models::condition::Condition { message: HOSTILE.repeat(200), ..unreachable() };
    silent_host.shadow.as_mut().unwrap().status.conditions.push(unreachable);
    let (mut view, policy) = cluster(vec![failed, offers_nothing, silent_host], &["a"]);
    for node in view.nodes.values_mut() {
        // As read from the cluster.
        let shadow = node.shadow.take().unwrap();
        let mut object =
            models::shadow::BottlerocketShadow::new(&models::names::shadow_name(&node.facts.name), shadow.spec);
        object.status = Some(shadow.status);
        object.metadata.generation = Some(shadow.generation);
        node.shadow = ShadowFacts::project(&object).map(Box::new);
    }
    let written = plan(&view, &policy, t(2));
    let mut texts = Vec::new();
    for name in ["a", "b", "c"] {
        let Some(Action::Status { status, note }) = written.actions.get(name) else { panic!("{:?}", written.actions) };
        texts.extend(status.conditions.iter().map(|condition| condition.message.clone()));
        texts.extend(note.iter().map(|note| note.message.clone()));
        let record = status.report.record.iter();
        texts.extend(record.clone().filter_map(|record| Some(record.last.as_ref()?.message.clone())));
        texts.extend(record.flat_map(|r| &r.version_failures).flat_map(|f| [f.variant.clone(), f.arch.clone()]));
    }
    let status = written.status.as_ref().unwrap();
    texts.extend(status.versions.iter().flat_map(|known| [known.variant.clone(), known.arch.clone()]));
    texts.extend(status.waiting.iter().map(|waiting| waiting.reason.clone()));
    texts.extend(status.conditions.iter().map(|condition| condition.message.clone()));
    assert!(texts.iter().filter(|text| text.contains("[2J  ok")).count() >= 7, "all of it is shown: {texts:?}");
    assert!(!texts.iter().any(|text| text.contains(['\u{1b}', '\r', '\n', '\u{202e}'])), "{texts:?}");
}

#[test]
fn node_at_attempt_limit_waits_with_attempts_exhausted() {
    for (sentence, attempt, exhausted) in [
        ("one is left", models::shadow::MOST_ATTEMPTS - 1, false),
        ("it is the highest", models::shadow::MOST_ATTEMPTS, true),
        ("the schema did not refuse it", i64::MAX, true),
    ] {
        let mut idle = node("a");
        idle.shadow.as_mut().unwrap().spec.attempt = attempt;
        let (mut view, policy) = cluster(vec![idle], &[]);
        for second in 0..3 {
            let made = plan(&view, &policy, t(second));
            assert_eq!(made.waits.get("a") == Some(&Wait::AttemptsExhausted), exhausted && second > 0, "{sentence}");
            let Some(Action::Status { status, .. }) = made.actions.get("a") else { continue };
            assert!(!exhausted || status.report.progress.is_none(), "{sentence}");
            let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
            shadow.status.controller = status.report.clone();
            shadow.status.conditions.clone_from(&status.conditions);
        }
        let conditions = &view.nodes["a"].shadow.as_ref().unwrap().status.conditions;
        let blocked = models::condition::true_condition(conditions, models::shadow::BLOCKED);
        assert_eq!(blocked.is_some_and(|condition| condition.reason == "AttemptsExhausted"), exhausted, "{sentence}");
    }
}
