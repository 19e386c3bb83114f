//! Checks for a slot, and the reasons that the other nodes get.

use models::operator::KnownVersion;
use models::reason::FailureReason;
use models::shadow::{BLOCKED, HostState, Step};
use serde_json::{Value, json};

use super::{Action, Plan, Wait, plan};
use crate::claims::Parts;
use crate::fixtures::*;
use crate::view::{NodeView, Refused, Standby};

/// Plans for `a`, which is drained and has the only slot that is taken, and `b`, which is staged.
fn plan_beside(spec: Value, change: impl Fn(&mut NodeView)) -> Plan {
    let mut nodes =
        vec![at("a", Step::Draining, 0, HostState::StagedUpdate), at("b", Step::Staged, 0, HostState::StagedUpdate)];
    nodes.iter_mut().for_each(change);
    let (mut view, _) = cluster(nodes, &["a"]);
    let policy = with_policy(&mut view, spec);
    plan(&view, &policy, t(1))
}

/// Returns why `b` waits: in the plan, or in the condition that is about to be written.
fn reason(made: &Plan) -> &'static str {
    made.waits.get("b").unwrap_or_else(|| panic!("{:?}", made.actions)).as_str()
}

#[test]
fn nodes_are_not_checked_without_free_slot() {
    let made = plan_beside(json!({"maxUnavailable": 1}), |_| {});
    assert_eq!(made.pods, ["a".to_owned()].into());
    assert_eq!(made.waits["b"], Wait::Queued { position: 0, behind: Some("a".into()) });
    let made = plan_beside(json!({"maxUnavailable": 2}), |_| {});
    assert_eq!(made.pods, ["a".to_owned(), "b".to_owned()].into());
}

#[test]
fn group_and_canary_limits_are_reported_only_with_free_slots() {
    let groups = json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": 1}]);
    let of_the_group = |node: &mut NodeView| {
        node.facts.labels = std::sync::Arc::new([("tier".to_owned(), "db".to_owned())].into());
    };
    for (limit, expected) in [(1, "Queued"), (2, "GroupFull")] {
        let made = plan_beside(json!({"maxUnavailable": limit, "nodeGroups": groups}), of_the_group);
        assert_eq!(reason(&made), expected, "{limit} at a time");
    }
    let strategy = json!({"canary": [{"nodes": 1, "soak": "1h"}], "preStage": {"maxConcurrent": 2}});
    for (limit, expected) in [(1, "Queued"), (2, "CanaryStep")] {
        let made = plan_beside(json!({"maxUnavailable": limit, "strategy": strategy}), |_| {});
        assert_eq!(reason(&made), expected, "{limit} at a time");
    }
}

#[test]
fn node_without_shadow_reports_missing_shadow_or_label() {
    for (labelled, expected) in [(true, Wait::NoShadow), (false, Wait::NotLabelled)] {
        let mut bare = node("a");
        bare.shadow = None;
        bare.facts.labelled = labelled;
        let (view, policy) = cluster(vec![bare], &[]);
        assert_eq!(plan(&view, &policy, t(1)).waits["a"], expected);
    }
}

/// A staged node whose shadow still has the condition `Blocked` of an earlier reason.
fn blocked_before(name: &str) -> NodeView {
    let mut node = at(name, Step::Staged, 0, HostState::StagedUpdate);
    let wait = Wait::AgentNotReady;
    let blocked = condition(BLOCKED, wait.as_str(), &wait.to_string());
    node.shadow.as_mut().unwrap().status.conditions.push(blocked);
    node
}

#[test]
fn node_getting_slot_has_no_status_write_and_waiting_node_has() {
    let plan_with = |slots: &[&str], standby: Standby, own: Option<&str>| {
        let drained = at("a", Step::Draining, 0, HostState::StagedUpdate);
        let nodes = if slots.is_empty() { vec![blocked_before("b")] } else { vec![drained, blocked_before("b")] };
        let (mut view, policy) = cluster(nodes, slots);
        (view.standby, view.own_node) = (standby, own.map(str::to_owned));
        plan(&view, &policy, t(1))
    };
    let next = plan_with(&[], Standby::None, None);
    assert_eq!(next.slots.as_ref().map(Vec::len), Some(1));
    assert!(!next.actions.contains_key("b"), "{:?}", next.actions);
    let handed_over = plan_with(&[], Standby::Ready, Some("b"));
    assert!(handed_over.hand_over && !handed_over.actions.contains_key("b"), "{:?}", handed_over.actions);
    let waiting = plan_with(&["a"], Standby::None, None);
    assert!(waiting.slots.is_none() && waiting.actions.contains_key("b"), "{:?}", waiting.waits);
}

#[test]
fn canary_step_limits_slots_and_checks() {
    let strategy = json!({"canary": [{"nodes": 1, "soak": "1h"}], "preStage": {"maxConcurrent": 2}});
    for read in [true, false] {
        let mut nodes = ["a", "b"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        if !read {
            nodes.iter_mut().for_each(|node| node.pods = None);
        }
        let (mut view, _) = cluster(nodes.into(), &[]);
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2, "strategy": strategy}));
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.pods.len(), 1, "{:?}", made.waits);
        assert_eq!(made.slots.map_or(0, |slots| slots.len()), usize::from(read), "{:?}", made.waits);
    }
}

#[test]
fn only_node_of_leader_waits_for_other_slots() {
    for (own, standby, slots) in [
        ("b", Standby::Ready, 1),
        ("b", Standby::NotReady, 1),
        ("b", Standby::None, 2),
        ("c", Standby::Ready, 2),
        ("c", Standby::NotReady, 2),
    ] {
        let nodes = vec![
            at("a", Step::Draining, 0, HostState::StagedUpdate),
            at("b", Step::Staged, 0, HostState::StagedUpdate),
            node("c"),
        ];
        let (mut view, _) = cluster(nodes, &["a"]);
        (view.standby, view.own_node) = (standby, Some(own.to_owned()));
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2}));
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.slots.map_or(1, |slots| slots.len()), slots, "{own} {standby:?}: {:?}", made.waits);
    }
}

#[test]
fn refused_node_causes_no_wakeup_without_free_slot() {
    let refused = |node: &mut NodeView| {
        if node.facts.name == "b" {
            let wait = Wait::PodsNotReady { pod: "shop/web".into(), count: 1 };
            node.refused = Some(Refused { wait, again_at: t(10) });
        }
    };
    let made = plan_beside(json!({"maxUnavailable": 1}), refused);
    assert!(made.wake.is_none_or(|wake| wake > t(10)), "{:?}", made.wake);
    let made = plan_beside(json!({"maxUnavailable": 2}), refused);
    assert!(made.pods.contains("b"), "there is room to check it at once");
}

/// The idle nodes that begin to download.
fn begun(made: &Plan) -> usize {
    made.actions.keys().filter(|name| name.starts_with("idle")).count()
}

#[test]
fn staging_starts_on_twice_as_many_nodes_as_free_slots() {
    let idle = || (0..8).map(|n| node(&format!("idle-{n}")));
    let (mut view, _) = cluster(idle().collect(), &[]);
    let policy = with_policy(&mut view, json!({"maxUnavailable": 3}));
    let made = plan(&view, &policy, t(1));
    assert_eq!(begun(&made), 6);
    assert_eq!(made.waits["idle-7"], Wait::Queued { position: 7, behind: Some("idle-6".into()) });

    // One that gets a slot now, and one that downloads, take their part of the room.
    let mut downloading = at("downloading", Step::Staging, 0, HostState::StagedUpdate);
    downloading.shadow.as_mut().unwrap().status.agent.state = Some(HostState::Idle);
    let staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, _) = cluster(idle().chain([downloading, staged]).collect(), &[]);
    let policy = with_policy(&mut view, json!({"maxUnavailable": 3}));
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.slots.as_ref().map(Vec::len), Some(1));
    assert_eq!(begun(&made), 2 * 3 - 2);
    // Behind the staged one.
    assert_eq!(made.waits["idle-7"], Wait::Queued { position: 8, behind: Some("idle-6".into()) });
}

#[test]
fn plan_wakes_when_version_reaches_minimum_age() {
    for (second, expected) in [(1, Some(t(100))), (99, Some(t(100))), (100, None), (101, None)] {
        let (mut view, _) = cluster(vec![node("a"), node("b")], &[]);
        let policy = with_policy(&mut view, json!({"version": {"minimumAge": "100s"}, "enabled": false}));
        view.operator.as_mut().unwrap().status.versions = vec![KnownVersion {
            version: NEW,
            variant: "aws-k8s-1.37".into(),
            arch: "x86_64".into(),
            first_seen: t(0),
            failed: Vec::new(),
            quarantined: None,
        }];
        let made = plan(&view, &policy, t(second));
        assert_eq!(made.wake.filter(|wake| *wake <= t(100)), expected, "at {second} s");
    }
}

#[test]
fn drain_continues_through_claim_and_ends_with_other_actions() {
    let (view, policy) = draining(json!({}), vec![]);
    let after_the_drain = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    assert!(Plan::ends_drain(&after_the_drain), "{after_the_drain:?}");
    let (mut view, policy) = draining(json!({}), vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().facts.claims = Parts::default();
    let claim = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    assert!(matches!(claim, Action::Claim { .. }) && !Plan::ends_drain(&claim), "{claim:?}");
    assert!(Plan::ends_drain(&Action::Release));
}

#[test]
fn plan_with_freezing_failure_assigns_no_slot() {
    for (reason, free) in [(FailureReason::BootFellBack, false), (FailureReason::HostArmedByOther, true)] {
        let (mut view, _) = cluster(vec![failed(reason), at("b", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2}));
        let made = plan(&view, &policy, t(2));
        let given = made.slots.as_ref().is_some_and(|slots| slots.iter().any(|slot| slot.node == "b"));
        assert_eq!(given, free, "{reason}: {:?} {:?}", made.actions, made.waits);
    }
}

#[test]
fn slot_is_kept_by_write_that_starts_drain() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![]);
    let (view, policy) = cluster(vec![staged], &["a"]);
    let made = plan(&view, &policy, t(1));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(status.report.progress.as_ref().map(|progress| progress.step), Some(Step::Draining));
    assert_eq!(made.slots, None, "the slot stays as it is recorded");
}

#[test]
fn slot_write_retracts_removed_and_replaced_slots() {
    let slot =
        |node: &str, since| models::operator::Slot { uid: format!("uid-{node}"), node: node.into(), since: t(since) };
    let before = [slot("a", 1), slot("b", 1), slot("c", 1)];
    let after = [slot("b", 1), slot("c", 2), slot("d", 2)];
    assert_eq!(super::slots::retracted(&before, &after), ["uid-a".to_owned(), "uid-c".to_owned()].into());
}
