//! Checks for a slot, and the reasons that the other nodes get.

use std::collections::BTreeSet;

use models::condition::{find_condition, true_condition};
use models::reason::FailureReason;
use models::shadow::{AttemptResult, BLOCKED, HEALTHY, HostState, Permit, Record, Step};
use serde_json::{Value, json};

use crate::claims::ClaimFields;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::view::{ClusterView, LeaseObservations, NodeView, Refused, Standby};
use crate::wait::Wait;

/// Plans for `a`, which is drained and has the only slot that is taken, and `b`, which is staged.
fn plan_beside(spec: Value, change: impl Fn(&mut NodeView)) -> Plan {
    let mut nodes =
        vec![at("a", Step::Draining, 0, HostState::StagedUpdate), at("b", Step::Staged, 0, HostState::StagedUpdate)];
    nodes.iter_mut().for_each(change);
    let (mut view, _) = cluster(nodes, &["a"]);
    if spec["strategy"].is_null() {
        one_proven(&mut view);
    }
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
fn slot_that_has_just_ended_is_replaced_by_the_next_one_in_one_write() {
    let made = |now: i64, read: bool, ended: i64, change: fn(&mut ClusterView)| {
        let (mut done, mut next) = (node("a"), at("b", Step::Staged, 0, HostState::StagedUpdate));
        done.shadow.as_mut().unwrap().status.controller.record =
            Some(Record { last: updated().last.map(|last| AttemptResult { ended: t(ended), ..last }), ..updated() });
        let agent = &mut done.shadow.as_mut().unwrap().status.agent;
        (agent.current_version, agent.updates) = (Some(NEW), None);
        next.pods = read.then(Vec::new);
        let (mut view, policy) = cluster(vec![done, next], &["a"]);
        one_proven(&mut view);
        change(&mut view);
        let made = plan(&view, &policy, t(now));
        let slots = made.slots.map(|slots| slots.into_iter().map(|slot| slot.node).collect::<Vec<_>>());
        (slots, made.wake)
    };
    let given = |nodes: &[&str]| Some(nodes.iter().map(|&node| node.to_owned()).collect::<Vec<_>>());
    assert_eq!(made(50, false, 50, |_| {}), (None, Some(t(51))), "the pods of the next node are being read");
    assert_eq!(made(50, true, 50, |_| {}).0, given(&["b"]));
    assert_eq!(made(51, false, 50, |_| {}).0, given(&[]), "not for long");
    assert_eq!(made(50, false, -1, |_| {}).0, given(&[]), "its end was another attempt's");
    assert_eq!(made(50, false, 51, |_| {}).0, given(&[]), "its end is in the future");
    let hook = |view: &mut ClusterView| {
        view.nodes.get_mut("a").unwrap().facts.hook_request = Some("AfterUpdate/1/x".into());
    };
    assert_eq!(made(50, false, 50, hook).0, given(&[]), "a request to hooks is left, whose write would hold the slot");
    let resumed = |view: &mut ClusterView| {
        view.operator.as_mut().unwrap().resume = Some("now".into());
    };
    assert_eq!(made(50, false, 50, resumed).0, given(&[]), "a user resumes, which is recorded with the slots");
}

#[test]
fn slot_that_has_just_ended_waits_for_the_next_one_beside_others_unless_those_change() {
    for (sentence, step, state, expected) in [
        ("the other one stays as it is", Step::Draining, HostState::StagedUpdate, None),
        (
            "that its reboot may be permitted is recorded",
            Step::Rebooting,
            HostState::RebootedIntoUpdate,
            Some(vec!["c"]),
        ),
    ] {
        let (mut done, mut next) = (node("a"), at("b", Step::Staged, 0, HostState::StagedUpdate));
        let status = &mut done.shadow.as_mut().unwrap().status;
        status.controller.record = Some(updated());
        (status.agent.current_version, status.agent.updates) = (Some(NEW), None);
        next.pods = None;
        let (mut view, _) = cluster(vec![done, next, at("c", step, 0, state)], &["a", "c"]);
        for update in view.operator.as_mut().unwrap().status.slots.iter_mut().filter_map(|slot| slot.update.as_mut()) {
            update.permitting_since = None;
        }
        one_proven(&mut view);
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2}));
        let made = plan(&view, &policy, t(50));
        let slots = made.slots.map(|slots| slots.into_iter().map(|slot| slot.node).collect::<Vec<_>>());
        let expected = expected.map(|nodes| nodes.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(slots, expected, "{sentence}: {:?}", made.waits);
    }
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

#[test]
fn unreadable_shadow_keeps_its_node_and_its_slot_as_they_are_and_the_operator_names_it() {
    let nodes = ["a", "b"].map(|name| at(name, Step::Draining, 0, HostState::StagedUpdate)).to_vec();
    let (mut view, policy) = cluster(nodes, &["a", "b"]);
    let unclaimed = view.nodes.get_mut("a").unwrap();
    (unclaimed.shadow, unclaimed.facts.claims) = (None, ClaimFields::default());
    // A shadow that is not there at all is created, and the slot of its node is free.
    let made = plan(&view, &policy, t(1));
    assert!(made.shadows.iter().any(|change| change.node() == "a"));
    let slots = |made: &Plan| made.slots.iter().flatten().map(|slot| slot.node.clone()).collect::<Vec<_>>();
    assert_eq!(slots(&made), ["b"]);

    view.unreadable.shadows.insert("a".into(), "9999-12-31T23:59:59Z is out of range".into());
    let made = plan(&view, &policy, t(1));
    assert_eq!((&made.waits["a"], made.shadows.is_empty()), (&Wait::ShadowUnreadable, true));
    assert!(made.slots.is_none() || slots(&made) == ["a", "b"], "{:?}", made.slots);
    assert!(made.pods.contains("b"), "the drain of the other node goes on");
    let conditions = made.status.unwrap().conditions;
    let degraded = models::condition::find_condition(&conditions, models::operator::DEGRADED).unwrap();
    assert_eq!(degraded.reason, "ShadowUnreadable");
    for part in ["brs-a", "out of range", "kubectl edit brs brs-a"] {
        assert!(degraded.message.contains(part), "{}", degraded.message);
    }

    // The same of a Node, which is in no view then: it does not pass for a deleted one.
    let mut without_node = view.clone();
    without_node.nodes.remove("a");
    without_node.unreadable.nodes = std::mem::take(&mut without_node.unreadable.shadows);
    let made = plan(&without_node, &policy, t(1));
    let after = made.status.unwrap();
    assert_eq!(after.slots.len(), 2, "{:?}", after.slots);
    assert!(crate::plan::not_begun(&without_node).is_empty(), "a new leader keeps it too");

    view.unreadable.operator = Some("spec.windows: invalid".into());
    assert_eq!(plan(&view, &policy, t(1)), Plan::default(), "neither policy nor slots are known");
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
    let mut unread = blocked_before("b");
    unread.pods = None;
    let (view, policy) = cluster(vec![unread], &[]);
    let made = plan(&view, &policy, t(1));
    assert!(!made.actions.contains_key("b"), "while its pods are being read: {:?}", made.actions);
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
        let (view, policy) = cluster_with(nodes.into(), &[], json!({"maxUnavailable": 2, "strategy": strategy}));
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
        one_proven(&mut view);
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
    let Some(Action::Status { status, .. }) = made.actions.get("b") else { panic!("{:?}", made.waits) };
    let blocked = true_condition(&status.conditions, BLOCKED).map(|condition| condition.reason.as_str());
    assert_eq!(blocked, Some("PodsNotReady"), "it shows what was found");
    let made = plan_beside(json!({"maxUnavailable": 2}), refused);
    assert!(made.pods.contains("b"), "there is room to check it at once");
}

#[test]
fn refused_node_is_checked_again_after_its_pause_although_others_need_the_room() {
    let mut nodes = ["b", "c", "d", "e"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
    let wait = Wait::PodsNotReady { pod: "shop/web".into(), count: 1 };
    nodes[0].refused = Some(Refused { wait, again_at: t(10) });
    let (mut view, policy) = cluster(nodes.into(), &[]);
    one_proven(&mut view);
    for (now, checked) in [(9, false), (10, true)] {
        let made = plan(&view, &policy, t(now));
        assert_eq!(made.pods.contains("b"), checked, "at {now} s: {:?}", made.pods);
    }
}

/// The idle nodes that begin to download.
fn begun(made: &Plan) -> usize {
    made.actions.keys().filter(|name| name.starts_with("idle")).count()
}

#[test]
fn staging_starts_on_twice_as_many_nodes_as_free_slots() {
    let idle = || (0..8).map(|n| node(&format!("idle-{n}")));
    let (view, policy) = cluster_with(idle().collect(), &[], json!({"maxUnavailable": 3}));
    let made = plan(&view, &policy, t(1));
    assert_eq!(begun(&made), 6);
    assert_eq!(made.waits["idle-7"], Wait::Queued { position: 7, behind: Some("idle-6".into()) });

    // One that gets a slot now, and one that downloads, take their part of the room.
    let mut downloading = at("downloading", Step::Staging, 0, HostState::StagedUpdate);
    downloading.shadow.as_mut().unwrap().status.agent.state = Some(HostState::Idle);
    let staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    let (view, policy) = cluster_with(idle().chain([downloading, staged]).collect(), &[], json!({"maxUnavailable": 3}));
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.slots.as_ref().map(Vec::len), Some(1));
    assert_eq!(begun(&made), 2 * 3 - 2);
    // Behind the staged one.
    assert_eq!(made.waits["idle-7"], Wait::Queued { position: 8, behind: Some("idle-6".into()) });
}

#[test]
fn node_that_waits_for_its_turn_is_blocked_no_longer_by_what_is_over() {
    // The finding of a check of pods stays until the next check.
    for (reason, removed) in [("Held", true), ("BackOff", true), ("AgentNotReady", true), ("DrainRefused", false)] {
        let mut waiting = node("b");
        waiting.shadow.as_mut().unwrap().status.conditions.push(condition(BLOCKED, reason, ""));
        let (view, policy) = cluster_with(
            vec![at("a", Step::Draining, 0, HostState::StagedUpdate), waiting],
            &["a"],
            json!({"maxUnavailable": 1}),
        );
        let made = plan(&view, &policy, t(1));
        let unblocked = matches!(made.actions.get("b"), Some(Action::Status { status, note: None })
            if !status.conditions.iter().any(|condition| condition.type_ == BLOCKED) && status.report.progress.is_none());
        assert_eq!(unblocked, removed, "{reason}: {made:?}");
        assert_eq!(made.waits.get("b").is_some_and(|wait| wait.as_str() == "Queued"), !removed, "{reason}: {made:?}");
    }
}

#[test]
fn plan_wakes_when_version_reaches_minimum_age() {
    for (second, expected) in [(1, Some(t(100))), (99, Some(t(100))), (100, None), (101, None)] {
        let (mut view, policy) =
            cluster_with(vec![node("a"), node("b")], &[], json!({"version": {"minimumAge": "100s"}, "enabled": false}));
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
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
    view.nodes.get_mut("a").unwrap().facts.claims = ClaimFields::default();
    let claim = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    assert!(matches!(claim, Action::Claim { .. }) && !Plan::ends_drain(&claim), "{claim:?}");
    assert!(Plan::ends_drain(&Action::Release));
}

#[test]
fn plan_with_freezing_failure_assigns_no_slot() {
    for (reason, free) in [(FailureReason::BootFellBack, false), (FailureReason::HostArmedByOther, true)] {
        let (mut view, _) = cluster(vec![failed(reason), at("b", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
        one_proven(&mut view);
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
    assert_eq!(status_of(&made).report.progress.as_ref().map(|progress| progress.step), Some(Step::Draining));
    assert_eq!(made.slots, None, "the slot stays as it is recorded");
}

#[test]
fn start_of_a_drain_says_nothing_about_the_health_of_its_node() {
    let (view, policy) = cluster(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
    let made = plan(&view, &policy, t(1));
    assert_eq!(outcome(&made), "step Draining");
    assert_eq!(find_condition(&status_of(&made).conditions, HEALTHY), None);
}

#[test]
fn slot_write_retracts_removed_and_replaced_slots() {
    let slot = |node: &str, since| models::operator::Slot { since: t(since), ..slot(node) };
    let before = [slot("a", 1), slot("b", 1), slot("c", 1)];
    let after = [slot("b", 1), slot("c", 2), slot("d", 2)];
    assert_eq!(super::slots::retracted(&before, &after), ["uid-a".to_owned(), "uid-c".to_owned()].into());
}

/// While the write that begins a drain is under way, its slot stays, whatever happens to the node meanwhile.
#[test]
fn slot_of_node_with_pending_write_is_not_reassigned() {
    // The write of Draining is under way for a; a bare pod is bound to it in the same moment.
    let mut a = at("a", Step::Staged, 0, HostState::StagedUpdate);
    a.pods = Some(vec![pod("a", true)]);
    let b = at("b", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, policy) = cluster(vec![a, b], &["a"]);
    view.busy.insert("a".into());
    let first = plan(&view, &policy, t(1));
    let slots = |plan: &Plan| plan.slots.as_ref().map(|s| s.iter().map(|s| s.node.clone()).collect::<Vec<_>>());
    // Both arrive, in this order: the slots, and then the drain of a.
    if let Some(slots) = first.slots.clone() {
        view.operator.as_mut().unwrap().status.slots = slots;
    }
    let second = plan(&view, &policy, t(1));
    if let Some(slots) = second.slots.clone() {
        view.operator.as_mut().unwrap().status.slots = slots;
    }
    view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.progress =
        Some(progress(Step::Draining, 1));
    view.busy.clear();
    let third = plan(&view, &policy, t(1));
    let mut end = view;
    end.operator.as_mut().unwrap().status.slots = third.slots.clone().unwrap_or_default();
    let fourth = plan(&end, &policy, t(1));
    assert!(
        third.slots.as_ref().is_none_or(|s| s.len() <= 1),
        "slots one after the other: {:?} {:?} {:?}; then {:?}",
        slots(&first),
        slots(&second),
        slots(&third),
        fourth.actions
    );
}

/// The write that ends an attempt has arrived, but not its outcome: the slot is kept for that moment, and counts.
#[test]
fn slot_of_node_with_pending_write_counts_against_budget() {
    let ended = node("a");
    let mut wanting = at("b", Step::Staged, 0, HostState::StagedUpdate);
    wanting.pods = Some(vec![]);
    let (mut view, policy) = cluster(vec![ended, wanting], &["a"]);
    view.busy.insert("a".into());
    let mut plan = plan(&view, &policy, t(1));
    assert_eq!(crate::lint::lint(&view, &policy, &mut plan), []);
    assert!(plan.slots.is_none_or(|slots| slots.len() <= 1));
}

/// A paused leader wrote its `Draining` after another one had given the slot to `b`.
#[test]
fn unclaimed_node_that_lost_its_slot_is_released() {
    let mut late = at("a", Step::Draining, 0, HostState::StagedUpdate);
    (late.facts.claims, late.facts.unschedulable) = (ClaimFields::default(), false);
    let (view, policy) = cluster(vec![late, at("b", Step::Draining, 0, HostState::StagedUpdate)], &["b"]);
    let made = plan(&view, &policy, t(1));
    assert_eq!(made.slots, None, "b's alone");
    assert_eq!(status_of(&made).report.progress.as_ref().unwrap().step, Step::Releasing);
}

/// Another client than the controller writes attempts into the status of all shadows.
#[test]
fn attempt_without_slot_and_claim_gets_no_slot_and_ends() {
    for step in
        [Step::LeavingLoadBalancer, Step::Draining, Step::Rebooting, Step::Returning, Step::Verifying, Step::Unknown]
    {
        for (order, permit) in [(HostState::StagedUpdate, false), (HostState::RebootedIntoUpdate, true)] {
            let forged = ["a", "b", "c", "d"].map(|name| {
                let mut node = at(name, step, 0, order);
                (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
                node.shadow.as_mut().unwrap().spec.permit =
                    permit.then(|| Permit { nonce: "n".into(), jws: String::new() });
                node
            });
            let (mut view, policy) = cluster(forged.to_vec(), &[]);
            for second in 1..=300 {
                let made = plan(&view, &policy, t(second));
                assert_eq!(made.slots, None, "{step:?}");
                for (name, action) in made.actions {
                    let node = view.nodes.get_mut(&name).unwrap();
                    let shadow = node.shadow.as_mut().unwrap();
                    match action {
                        Action::Status { status, .. } => shadow.status.controller = status.report,
                        Action::Spec { spec } => shadow.spec = *spec,
                        Action::ReadLease { .. } => {
                            node.lease = Some(LeaseObservations::add(node.lease, Some(t(second)), t(second)));
                        }
                        other => panic!("{step:?}: {other:?}"),
                    }
                }
            }
            for node in view.nodes.values() {
                assert!(node.progress().is_none(), "{step:?}: {:?}", node.progress());
                assert_eq!(node.record().unwrap().last.as_ref().unwrap().reason, "ProgressLost", "{step:?}");
            }
        }
    }
}

/// The operator's resource was deleted and created again during updates.
#[test]
fn slots_are_restored_from_attempts_before_new_ones_are_assigned() {
    let mut verifying = at("d", Step::Verifying, 0, HostState::RebootedIntoUpdate);
    (verifying.facts.claims, verifying.facts.unschedulable, verifying.facts.boot_id) =
        (ClaimFields::default(), false, "another boot".into());
    let nodes = vec![
        at("a", Step::Staged, 0, HostState::StagedUpdate),
        at("b", Step::Draining, 0, HostState::StagedUpdate),
        at("c", Step::Rebooting, 0, HostState::RebootedIntoUpdate),
        verifying,
    ];
    let (view, policy) = cluster_with(nodes, &[], serde_json::json!({"maxUnavailable": 2}));
    let made = plan(&view, &policy, t(1));
    let slots: Vec<_> = made.slots.unwrap().into_iter().map(|slot| slot.node).collect();
    assert_eq!(slots, ["b", "c", "d"]);
    assert!(!made.actions.contains_key("a"));
}

/// The operator's resource was deleted, and created again between the withdrawal of the desired state and the end of
/// the attempt.
#[test]
fn completed_update_is_recorded_without_slot() {
    for (sentence, attempt, runs, reason) in [
        ("the attempt of the shadow", 1, NEW, models::shadow::UPDATED),
        ("an attempt that the shadow does not know", 2, NEW, "ProgressLost"),
        ("a version that does not run", 1, OLD, "ProgressLost"),
    ] {
        let mut verifying = at("a", Step::Verifying, 0, HostState::Idle);
        (verifying.facts.claims, verifying.facts.unschedulable) = (ClaimFields::default(), false);
        verifying.facts.os_image = format!("Bottlerocket OS {runs} (aws-k8s-1.37)");
        verifying.lease = renewed_after(100);
        verifying.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().attempt = attempt;
        let (view, policy) = cluster(vec![verifying], &[]);
        let made = plan(&view, &policy, t(100));
        let last = status_of(&made).report.record.as_ref().and_then(|record| record.last.as_ref()).unwrap();
        assert_eq!(last.reason, reason, "{sentence}");
    }
}

/// An attempt has ended, and the next one on the node finds its image there: before the write that gives its slot to
/// another node has arrived.
#[test]
fn retracted_slot_begins_no_drain() {
    let mut again = at("a", Step::Staging, 0, HostState::StagedUpdate);
    again.pods = Some(vec![]);
    let (mut view, policy) = cluster(vec![again, node("b")], &["a"]);
    let drains = |plan: &Plan| {
        matches!(plan.actions.get("a"), Some(Action::Status { status, .. })
        if status.report.progress.as_ref().is_some_and(|p| p.step == Step::Draining))
    };
    let made = plan(&view, &policy, t(1));
    assert!(drains(&made), "with its slot it begins: {:?}", made.waits);
    view.retracted.insert("uid-a".into());
    let mut made = plan(&view, &policy, t(1));
    assert!(!drains(&made), "{:?}", made.actions);
    // It gets another one, and that is written whatever the result of the write that removes the old one.
    let slots = made.slots.clone().unwrap();
    assert_eq!((slots.len(), slots[0].uid.as_str(), slots[0].since), (1, "uid-a", t(1)));
    assert_eq!(made.status.as_ref().unwrap().slots, slots);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    // If the planner decided otherwise, the plan validator drops it.
    let mut wrong = plan(&ClusterView { retracted: BTreeSet::new(), ..view.clone() }, &policy, t(1));
    let findings = crate::lint::lint(&view, &policy, &mut wrong);
    assert!(findings.iter().any(|finding| finding.property == "S1"), "{findings:?}");
}
