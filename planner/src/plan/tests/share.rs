//! The places of a canary step as a share of the nodes of a rollout, whose number changes.

use std::collections::BTreeMap;

use models::operator::RolloutLedger;
use models::reason::Proof;
use serde_json::json;

use super::ledger::{canary, entry, ledger, recorded_with, runs, slots_of, staged};
use crate::fixtures::*;
use crate::plan::plan;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

#[test]
fn shares_are_of_the_nodes_that_the_rollout_began_with() {
    // Six nodes came with the version.
    let mut nodes: Vec<NodeView> = (0..6).map(|number| runs(node(&format!("old-{number}")), true)).collect();
    nodes.extend(["a", "b", "c", "d"].map(staged));
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, None);
    let policy = canary(&mut view, &json!([{"nodes": "50%", "approval": "Manual"}]));
    let made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), ["a"], "the first goes alone");
    assert_eq!((ledger(&made).base, ledger(&made).due), (4, 2), "half of the four that it updates");
    // An autoscaler adds two and removes one: no step changes.
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    view.nodes.remove("d");
    for name in ["e", "f"] {
        view.nodes.insert(name.into(), node(name));
    }
    let made = plan(&view, &policy, t(61));
    assert_eq!((ledger(&made).base, ledger(&made).due), (4, 2), "{:?}", made.waits);
    // More have joined than it has: the step is due for all of them.
    for name in ["g", "h", "i", "j"] {
        view.nodes.insert(name.into(), node(name));
    }
    assert_eq!(ledger(&plan(&view, &policy, t(62))).due, 5);
}

/// The rollout began with 300 nodes, most of which an autoscaler has removed.
#[test]
fn nodes_that_are_left_of_a_fleet_do_not_all_fit_into_a_step() {
    let steps = json!([{"nodes": 1}, {"nodes": "10%", "approval": "Manual"}, {"nodes": "50%", "approval": "Manual"}]);
    for (sentence, (proven, passed), left, expected) in [
        ("ten per cent of nine are one, and a step has one more than the one before", (1, 1), 8, "slot"),
        ("they are used up", (2, 1), 8, "7/2"),
        ("ten per cent of thirty are three", (2, 1), 28, "slot"),
        ("half of those that were taken or are left", (3, 30), 8, "slot"),
        ("more were taken", (30, 30), 8, "7/30"),
    ] {
        let (mut view, _) = cluster((0..left).map(|number| staged(&format!("n{number:02}"))).collect(), &[]);
        let stored = RolloutLedger { base: 300, proven, passed, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        let policy = canary(&mut view, &steps);
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
        let approval = made.waits.values().find_map(|wait| match wait {
            Wait::CanaryStep { approval: Some(approval), .. } => Some(approval.as_str()),
            _ => None,
        });
        let found = if slots_of(&made).is_empty() { approval.unwrap_or("no approval") } else { "slot" };
        assert_eq!(found, expected, "{sentence}: {:?}", made.waits);
        if found == "slot" {
            continue;
        }
        // A user approves it for as many nodes as there are.
        view.operator.as_mut().unwrap().status = made.status.unwrap();
        view.operator.as_mut().unwrap().approve_step = Some(format!("{expected}@yes"));
        let mut made = plan(&view, &policy, t(61));
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
        assert!(!slots_of(&made).is_empty(), "{sentence}: {:?}", made.waits.get("n00"));
        let (passed, due) = if proven == 2 { ((10, 2), (210, 21)) } else { ((38, 19), (238, 119)) };
        assert_eq!((ledger(&made).base, ledger(&made).passed), passed, "{sentence}");
        // The pool grows again to no more than there were: so few proofs are not enough for so many.
        view.operator.as_mut().unwrap().status = made.status.unwrap();
        for number in 0..200 {
            let name = format!("late-{number:03}");
            view.nodes.insert(name.clone(), node(&name));
        }
        let made = plan(&view, &policy, t(62));
        assert_eq!((ledger(&made).base, ledger(&made).due), due, "{sentence}");
    }
}

/// A step among fewer nodes may have as many places as the one before it had among more.
#[test]
fn soak_and_approval_of_a_canary_step_are_for_that_step_alone() {
    let steps = |second: &str, third: &str, soak: &str| {
        json!([
            {"nodes": 1}, {"nodes": second, "soak": soak, "approval": "Manual"}, {"nodes": third, "soak": soak, "approval": "Manual"},
        ])
    };
    for (sentence, steps, (base, proven), left, approved, next) in [
        ("the same share", steps("10%", "50%", "1h"), (30, 2), 4, "7/2", None),
        ("a share of half the fleet", steps("10%", "20%", "1h"), (300, 15), 135, "7/15", None),
        ("the same places, without a soak", steps("10%", "50%", "0s"), (300, 5), 5, "7/5", Some("7/5")),
    ] {
        for most in [1, 5] {
            let (mut view, _) = cluster((0..left).map(|number| staged(&format!("n{number:03}"))).collect(), &[]);
            recorded_with(&mut view, Some(RolloutLedger { base, proven, passed: 1, ..RolloutLedger::default() }));
            let policy = with_policy(&mut view, json!({"maxUnavailable": most, "strategy": {"canary": steps}}));
            let turn = |view: &mut ClusterView, now: i64| {
                let mut made = plan(view, &policy, t(now));
                assert_eq!(crate::lint::lint(view, &policy, &mut made), [], "{sentence}, at {now}");
                view.operator.as_mut().unwrap().status = made.status.clone().unwrap();
                made
            };
            let full = turn(&mut view, 60);
            assert_eq!(slots_of(&full), [] as [&str; 0], "{sentence}");
            view.operator.as_mut().unwrap().approve_step = Some(format!("{approved}@yes"));
            turn(&mut view, 61);
            let passed = turn(&mut view, 4000);
            let rollout = &passed.status.as_ref().unwrap().active_rollouts[0];
            assert_eq!((rollout.steps_passed, rollout.approved), (2, false), "{sentence}: {rollout:?}");
            let waits = passed.waits.values().find_map(|wait| match wait {
                Wait::CanaryStep { step: 3, approval, .. } => approval.as_deref(),
                _ => None,
            });
            assert_eq!(waits, next, "{sentence}: {:?}", passed.waits);
        }
    }
}

/// The rollout began with 300 nodes. For one turn eight are left, then more are back.
#[test]
fn step_that_is_full_for_a_few_nodes_is_due_again_once_many_are_back() {
    let (tenth, thirty) = (json!([{"nodes": "10%", "soak": "1h"}]), json!([{"nodes": 30, "soak": "1h"}]));
    for (sentence, (proven, unproven), steps, back, due) in [
        ("proven, and most are back", (2, 0), &tenth, 298, 30),
        ("one without a proof, and most are back", (1, 1), &tenth, 298, 30),
        ("proven, and no more than twice as many places", (2, 0), &tenth, 38, 2),
        ("proven, and policy has a number in place of the same share", (2, 0), &thirty, 8, 30),
    ] {
        // Another one came with the version, and runs it in the soak.
        let left = (0..8).map(|number| staged(&format!("n{number:03}"))).chain([runs(node("with-image"), true)]);
        let (mut view, _) = cluster(left.collect(), &[]);
        let nodes = (0..unproven).map(|_| entry("gone", Proof::Unproven, "HookTimedOut")).collect();
        recorded_with(
            &mut view,
            Some(RolloutLedger { base: 300, proven, unproven, nodes, ..RolloutLedger::default() }),
        );
        let policy = canary(&mut view, &tenth);
        let made = plan(&view, &policy, t(60));
        assert_eq!((ledger(&made).due, slots_of(&made)), (2, vec![]), "{sentence}: it is full");
        view.operator.as_mut().unwrap().status = made.status.unwrap();
        for number in 8..back {
            let name = format!("n{number:03}");
            view.nodes.insert(name.clone(), staged(&name));
        }
        let policy = canary(&mut view, steps);
        let made = plan(&view, &policy, t(120));
        assert_eq!(ledger(&made).due, due, "{sentence}");
        let soaks = made.status.as_ref().unwrap().active_rollouts[0].step_done.is_some();
        assert_eq!(soaks, due == 2, "{sentence}: its soak");
    }
}

#[test]
fn nodes_that_cannot_be_read_count_among_those_that_are_left() {
    let (mut view, _) = cluster(["a", "b", "c"].map(staged).into(), &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 300, proven: 2, ..RolloutLedger::default() }));
    let policy = canary(&mut view, &json!([{"nodes": "10%", "approval": "Manual"}]));
    assert_eq!(ledger(&plan(&view, &policy, t(60))).due, 2, "a tenth of five, and no fewer than were taken");
    let hidden = (0..295).map(|number| (format!("hidden-{number}"), "a field".to_owned()));
    let hidden: BTreeMap<String, String> = hidden.collect();
    for (sentence, image, due) in [
        ("shadows", None, 30),
        ("shadows of nodes of another variant", Some(format!("Bottlerocket OS {OLD} (aws-ecs-2)")), 2),
    ] {
        let mut view = view.clone();
        for name in hidden.keys() {
            let mut hidden = node(name);
            hidden.shadow = None;
            if let Some(image) = &image {
                hidden.facts.os_image.clone_from(image);
            }
            view.nodes.insert(name.clone(), hidden);
        }
        view.unreadable.shadows.clone_from(&hidden);
        assert_eq!(ledger(&plan(&view, &policy, t(60))).due, due, "{sentence}");
    }
    view.unreadable.nodes = hidden;
    assert_eq!(ledger(&plan(&view, &policy, t(60))).due, 30, "nodes");
}

/// The rollout began with 100 nodes. One has proven the version, 14 are left, and an autoscaler has replaced the others by nodes with a later
/// version, of which some agents have not reported yet.
#[test]
fn nodes_that_came_with_a_later_version_are_left_only_where_policy_leads_back() {
    for (target, due) in [("latest", 2), (">=1.20", 2), ("1.20", 10), ("1.20.5", 10)] {
        let (mut view, _) = cluster((0..14).map(|number| staged(&format!("n{number:02}"))).collect(), &[]);
        for number in 0..85 {
            let mut late = node(&format!("late-{number:02}"));
            late.facts.os_image = "Bottlerocket OS 1.21.0 (aws-k8s-1.37)".into();
            let agent = &mut late.shadow.as_mut().unwrap().status.agent;
            agent.current_version = Some(semver::Version::new(1, 21, 0));
            agent.updates.as_mut().unwrap().chosen_version = None;
            if number % 2 == 0 {
                late.shadow = None;
            }
            view.nodes.insert(late.facts.name.clone(), late);
        }
        recorded_with(&mut view, Some(RolloutLedger { base: 100, proven: 1, passed: 1, ..RolloutLedger::default() }));
        let canary = json!([{"nodes": 1}, {"nodes": "10%", "approval": "Manual"}]);
        let spec = json!({"maxUnavailable": 5, "version": {"target": target}, "strategy": {"canary": canary}});
        let policy = with_policy(&mut view, spec);
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(ledger(&made).due, due, "{target}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{target}");
    }
}

/// The rollout began with 30 nodes, of which nine are left. Two have proven the version, and are gone at the end of their soak.
#[test]
fn place_that_is_free_after_a_soak_is_no_more_than_the_share_of_the_nodes_that_are_left() {
    let (mut view, _) = cluster((0..9).map(|number| staged(&format!("n{number}"))).collect(), &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 30, proven: 2, due: 2, share: 3, ..RolloutLedger::default() }));
    view.operator.as_mut().unwrap().status.active_rollouts[0].step_done = Some(t(0));
    let policy = canary(&mut view, &json!([{"nodes": "10%", "soak": "1h"}]));
    let mut made = plan(&view, &policy, t(3600));
    assert_eq!((slots_of(&made), ledger(&made).used()), (vec!["n0"], 0), "{:?}", made.waits);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
}

/// Ten nodes stay, and 15 more are there by day, when the window is closed.
#[test]
fn nodes_that_come_by_day_and_go_by_night_begin_no_soak_again() {
    const HOUR: i64 = 3600;
    let (mut view, _) = cluster((0..8).map(|number| staged(&format!("n{number}"))).collect(), &[]);
    let stored = RolloutLedger { base: 10, proven: 2, passed: 1, due: 2, share: 2, ..RolloutLedger::default() };
    recorded_with(&mut view, Some(stored));
    let steps = json!([{"nodes": 1}, {"nodes": "10%", "soak": "24h", "approval": "Manual"}]);
    // None of these hours is in it.
    let window = json!({"windows": [{"cron": "0 2 * * *", "duration": "1h"}]});
    let policy =
        with_policy(&mut view, json!({"maxUnavailable": 5, "strategy": {"canary": steps}, "schedule": window}));
    for (sentence, is_day, hour, (base, due), since) in [
        ("it soaks", false, 0, (10, 2), Some(0)),
        ("the first day: there are more than twice as many nodes", true, 1, (25, 3), None),
        ("the first night", false, 13, (25, 2), Some(13)),
        ("the second day", true, 25, (25, 2), Some(13)),
        ("the second night", false, 36, (25, 2), Some(13)),
        ("the third day, after the soak", true, 49, (25, 2), Some(13)),
    ] {
        view.nodes.retain(|name, _| !name.starts_with("late"));
        for number in (0..15).filter(|_| is_day) {
            let name = format!("late-{number:02}");
            view.nodes.insert(name.clone(), node(&name));
        }
        let made = plan(&view, &policy, t(hour * HOUR));
        let step_done = made.status.as_ref().unwrap().active_rollouts[0].step_done;
        let found = (ledger(&made).base, ledger(&made).due, step_done);
        assert_eq!(found, (base, due, since.map(|hour: i64| t(hour * HOUR))), "{sentence}");
        assert!(made.slots.as_ref().is_none_or(Vec::is_empty), "{sentence}");
        view.operator.as_mut().unwrap().status = made.status.unwrap();
    }
    view.operator.as_mut().unwrap().approve_step = Some("7/2@yes".into());
    let made = plan(&view, &policy, t(50 * HOUR));
    assert_eq!((ledger(&made).passed, ledger(&made).due), (3, 0), "approved by day");
}

#[test]
fn step_is_due_again_once_more_nodes_have_joined_than_were_taken_for_it() {
    for (sentence, (base, proven), joined, due) in [
        // Twenty nodes had to be updated. Forty were, and were replaced by others with the old image.
        ("more were taken than it has places now", (20, 40), 41, 0),
        ("fewer were taken", (10, 3), 300, 31),
    ] {
        let joiners = (0..joined).map(|number| node(&format!("j{number}")));
        let (mut view, _) = cluster([staged("b")].into_iter().chain(joiners).collect(), &[]);
        let stored = RolloutLedger { base, passed: 2, due: 0, proven, ..RolloutLedger::default() };
        recorded_with(&mut view, Some(stored));
        let policy = canary(&mut view, &json!([{"nodes": 1, "soak": "24h"}, {"nodes": "10%", "approval": "Manual"}]));
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(slots_of(&made), ["b"], "{sentence}: {:?}", made.waits.get("b"));
        assert_eq!(ledger(&made).due, due, "{sentence}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
    }
}
