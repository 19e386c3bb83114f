//! The brake of a rollout: which ends in a row stop it, who is tried, and what goes on.

use models::condition::true_condition;
use models::operator::{BRAKED, LedgerNode, RolloutLedger};
use models::reason::Proof;
use models::shadow::{AttemptResult, HostState, Record, Step};
use serde_json::json;

use super::ledger::{entry, ledger, recorded_with, slots_of, staged, with_place};
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

/// A node whose attempt 1 has ended so, on the old version.
fn failed(name: &str, reason: &str, until: i64) -> NodeView {
    let mut node = node(name);
    let last = AttemptResult { reason: reason.into(), ..updated().last.unwrap() };
    let record = Record { last: Some(last), failures: 1, not_before: Some(t(until)), ..Record::default() };
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
    node
}

/// Ten nodes whose rollout has one proven node, so that none goes alone; `names` are staged.
fn fleet(names: &[&str], ledger: RolloutLedger) -> (ClusterView, Policy) {
    let mut nodes: Vec<NodeView> = names.iter().map(|name| staged(name)).collect();
    nodes.extend((names.len()..10).map(|number| node(&format!("z{number}"))));
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 10, proven: 1, ..ledger }));
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5}));
    (view, policy)
}

fn row(ends: &[(&str, Proof)]) -> Vec<LedgerNode> {
    ends.iter().map(|(node, proof)| entry(node, *proof, "AgentSilent")).collect()
}

/// The plan after the slot of node `a` is taken away, whose attempt has ended so, where `before` are in the row.
fn ended(reason: &str, proof: Option<Proof>, before: usize) -> Plan {
    let names = ["x1", "x2", "x3", "x4"];
    let row = row(&names[..before].iter().map(|name| (*name, Proof::Free)).collect::<Vec<_>>());
    let (mut view, policy) = fleet(&["b", "c"], RolloutLedger { row, ..RolloutLedger::default() });
    let (other, _) = cluster(vec![at("a", Step::Verifying, 0, HostState::RebootedIntoUpdate)], &["a"]);
    view.operator.as_mut().unwrap().status.slots = other.operator.unwrap().status.slots;
    let node = proof.map_or_else(|| failed("a", reason, 1000), |proof| with_place("a", proof, 7));
    view.nodes.insert("a".into(), node);
    plan(&view, &policy, t(60))
}

#[test]
fn ends_in_a_row_brake_a_rollout_whatever_their_reasons() {
    for (sentence, reason, proof, before, expected) in [
        ("an agent that asks for no permit", "AgentSilent", None, 2, true),
        ("a budget that never opens", "DrainTimedOut", None, 2, true),
        ("a hook that refuses", "HookRefused", None, 2, true),
        ("a check that refuses after the hooks", "GateRefused", None, 2, true),
        ("a node that runs the version without a proof", "", Some(Proof::Unproven), 2, true),
        ("a node that failed on it", "", Some(Proof::Failed), 2, true),
        ("the second one only", "DrainTimedOut", None, 1, false),
        ("a node that proves the version", "", Some(Proof::Proven), 2, false),
        ("a hold", "Held", None, 2, false),
        ("a release by a user before the permit", "ReleaseRequested", None, 2, false),
        ("a blackout", "BlackoutBegan", None, 2, false),
    ] {
        let made = ended(reason, proof, before);
        assert_eq!(ledger(&made).braked_until.is_some(), expected, "{sentence}: {:?}", ledger(&made));
        let is_row_over = proof == Some(Proof::Proven);
        assert_eq!(ledger(&made).row.is_empty(), is_row_over, "{sentence}: {:?}", ledger(&made).row);
    }
}

#[test]
fn node_that_fails_again_and_again_counts_once() {
    let mut ledger = RolloutLedger::default();
    for second in 0..5 {
        ledger.add_to_row(("a", Proof::Free, "DrainTimedOut"), t(0), 2, t(second));
    }
    assert_eq!((ledger.row.len(), ledger.braked_until), (1, None), "others go on beside it");
    ledger.add_to_row(("b", Proof::Free, "DrainTimedOut"), t(0), 2, t(5));
    assert_eq!(ledger.braked_until, Some(t(5 + 600)));
    // Each that is tried in vain doubles the pause, up to six hours.
    for (tried, pause) in [(1, 1200), (2, 2400), (3, 4800), (4, 9600), (5, 19200), (6, 21600), (7, 21600)] {
        let given = ledger.braked_until.unwrap();
        ledger.add_to_row(("a", Proof::Free, "DrainTimedOut"), given, 2, t(10));
        assert_eq!((ledger.tried, ledger.braked_until), (tried, Some(t(10 + pause))));
    }
    ledger.move_node(None, ("c", Proof::Proven, "Updated"));
    assert_eq!((ledger.row.len(), ledger.tried, ledger.braked_until), (0, 0, None), "a proof ends it");
}

/// One machine in some has what the version breaks, and proofs of the others come in between.
#[test]
fn nodes_that_run_the_version_without_a_proof_brake_it_beside_proofs_of_others() {
    let ends = |bad_of: usize, proven_at_last: bool, limit: usize| {
        let mut ledger = RolloutLedger::default();
        for number in 1..=63 {
            let name = format!("n{number}");
            if number % bad_of == 0 {
                ledger.move_node(None, (&name, Proof::Unproven, "NodeNotUsable"));
                ledger.add_to_row((&name, Proof::Unproven, "NodeNotUsable"), t(0), limit, t(number as i64));
            } else {
                ledger.move_node(None, (&name, Proof::Proven, "Updated"));
                ledger.brake(limit, t(number as i64));
            }
            if ledger.braked_until.is_some() {
                return Some(number);
            }
            if proven_at_last && number % bad_of == 1 && number > 1 {
                let late = format!("n{}", number - 1);
                ledger.move_node(Some(Proof::Unproven), (&late, Proof::Proven, "Updated"));
                ledger.brake(limit, t(number as i64));
            }
        }
        None
    };
    assert_eq!(ends(5, false, 3), Some(15), "the third one");
    assert_eq!(ends(5, true, 3), None, "each has proven it since");
    assert_eq!(ends(20, false, 3), Some(60), "and one in twenty");
    assert_eq!(ends(21, false, 3), None, "fewer");
    assert_eq!(ends(5, false, usize::MAX), None, "the brake is off");
    // However many run it without a proof, ends after the last proof count.
    let unproven = |number: usize| {
        let name = format!("n{number}");
        LedgerNode { before_proof: true, ..row(&[(name.as_str(), Proof::Unproven)]).remove(0) }
    };
    let mut full =
        RolloutLedger { proven: 4_000, unproven: 64, row: (0..64).map(unproven).collect(), ..RolloutLedger::default() };
    for name in ["x", "y", "z"] {
        assert_eq!(full.braked_until, None);
        full.add_to_row((name, Proof::Free, "DrainTimedOut"), t(0), 3, t(1));
    }
    assert_eq!((full.row.len(), full.braked_until), (64, Some(t(601))));
    // A trial that fails before its permit is forgotten with the next proof.
    let mut ledger = RolloutLedger::default();
    ledger.add_to_row(("a", Proof::Free, "DrainTimedOut"), t(0), 3, t(1));
    ledger.move_node(None, ("b", Proof::Proven, "Updated"));
    assert_eq!(ledger.row, []);
}

#[test]
fn braked_rollout_tries_one_node_after_each_pause() {
    let braked = |row: Vec<LedgerNode>, until: i64| RolloutLedger {
        row,
        braked_until: Some(t(until)),
        ..RolloutLedger::default()
    };
    let free = || row(&[("x1", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)]);
    let (view, policy) = fleet(&["b", "c"], braked(free(), 600));
    let made = plan(&view, &policy, t(599));
    assert_eq!((slots_of(&made), made.waits["b"].as_str()), (vec![], "Braked"));
    assert!(!made.actions.values().any(Plan::starts), "nothing begins: {:?}", made.actions.keys());
    let condition = true_condition(&made.status.as_ref().unwrap().conditions, BRAKED).unwrap();
    assert!(condition.message.contains("x3 (AgentSilent), x2 (AgentSilent)"), "{}", condition.message);
    assert!(made.wake.is_some_and(|wake| wake <= t(600)), "{:?}", made.wake);
    let made = plan(&view, &policy, t(600));
    assert_eq!(slots_of(&made), ["b"], "one alone, though five may be out of service");
    assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), []);
    // While it is under way, no other.
    let mut trying = view.clone();
    trying.operator.as_mut().unwrap().status = made.status.unwrap();
    let made = plan(&trying, &policy, t(700));
    assert!(matches!(&made.waits["c"], Wait::Braked { trial: Some(node), .. } if node == "b"), "{:?}", made.waits["c"]);
    // A node on the version has to prove it: no other is taken there.
    let (mut view, policy) =
        fleet(&["b"], braked(row(&[("x1", Proof::Unproven), ("x2", Proof::Free), ("x3", Proof::Free)]), 0));
    view.nodes.insert("x1".into(), with_place("x1", Proof::Unproven, 7));
    let made = plan(&view, &policy, t(100_000));
    assert!(matches!(made.waits["b"], Wait::Braked { until: None, .. }), "{:?}", made.waits["b"]);
    // Policy that allows more, and a resume, let it go on.
    let (mut view, policy) = fleet(&["b", "c"], braked(free(), 600));
    let more = Policy { max_consecutive_failures: Some(4), ..policy.clone() };
    assert_eq!(slots_of(&plan(&view, &more, t(60))), ["b", "c"]);
    view.operator.as_mut().unwrap().resume = Some("now".into());
    let status = plan(&view, &policy, t(60)).status.unwrap();
    assert!(true_condition(&status.conditions, BRAKED).is_none());
    view.operator.as_mut().unwrap().status = status;
    assert_eq!(slots_of(&plan(&view, &policy, t(61))), ["b", "c"]);
}

#[test]
fn retry_of_a_node_ends_the_pause() {
    let free = row(&[("b", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)]);
    let ledger = RolloutLedger { row: free, braked_until: Some(t(600)), ..RolloutLedger::default() };
    let (mut view, policy) = fleet(&["b", "c"], ledger);
    view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().retry = Some("now".into());
    assert_eq!(slots_of(&plan(&view, &policy, t(60))).len(), 1, "one is tried at once");
}

#[test]
fn roll_back_is_not_braked_by_what_it_repairs() {
    let three = row(&[("x1", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)]);
    let (mut view, policy) =
        fleet(&[], RolloutLedger { row: three, braked_until: Some(t(600)), ..RolloutLedger::default() });
    let rollouts = &mut view.operator.as_mut().unwrap().status.active_rollouts;
    // The braked rollout is that of another version.
    rollouts[0].version = OLD;
    let made = plan(&view, &policy, t(60));
    assert!(made.actions.values().any(Plan::starts), "{:?}", made.waits);
}

#[test]
fn kinds_of_few_nodes_brake_before_each_node_has_failed() {
    for (total, expected) in [(1, usize::MAX), (2, 1), (3, 2), (4, 3), (500, 3)] {
        assert_eq!(crate::survey::brake::limit(&Policy::default(), total), expected, "{total}");
    }
    for (own, total, expected) in [(5, 3, 2), (5, 40, 5), (1, 1, 1), (64, 3, usize::MAX)] {
        let policy = Policy { max_consecutive_failures: Some(own), ..Policy::default() };
        assert_eq!(crate::survey::brake::limit(&policy, total), expected, "{own} of {total}");
    }
}

#[test]
fn first_node_of_a_rollout_goes_alone() {
    for (sentence, proven, unproven, accepted, expected) in [
        ("nothing is proven", 0, 0, 0, 1),
        ("a node that proved nothing is no proof", 0, 1, 0, 1),
        ("a user has accepted it", 0, 1, 1, 3),
        ("one is proven", 1, 0, 0, 3),
    ] {
        let (mut view, policy) = fleet(&["b", "c", "d"], RolloutLedger::default());
        let ledger = view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap();
        (ledger.proven, ledger.unproven, ledger.accepted) = (proven, unproven, accepted);
        let made = plan(&view, &policy, t(60));
        assert_eq!(slots_of(&made).len(), expected, "{sentence}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), [], "{sentence}");
        if expected == 1 {
            view.operator.as_mut().unwrap().status = made.status.unwrap();
            let made = plan(&view, &policy, t(61));
            let behind = Wait::FirstNode { node: Some("b".into()) };
            assert_eq!(made.waits["c"], behind, "{sentence}: the others have their images and wait");
        }
    }
}

#[test]
fn plan_validator_drops_slots_of_a_braked_rollout_and_beside_its_first_node() {
    let names = [("x1", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)];
    let braked = |ends: &[(&str, Proof)], until| RolloutLedger {
        row: row(ends),
        braked_until: Some(t(until)),
        ..RolloutLedger::default()
    };
    let on_version = [("x1", Proof::Unproven), ("x2", Proof::Free), ("x3", Proof::Free)];
    for (sentence, ledger, proven, slots, expected) in [
        ("during a pause", braked(&names, 600), 1, 1, Some("S13")),
        ("after it", braked(&names, 0), 1, 1, None),
        ("after it, two", braked(&names, 0), 1, 2, Some("S13")),
        ("a node runs the version without a proof", braked(&on_version, 0), 1, 1, Some("S13")),
        ("two first nodes", RolloutLedger::default(), 0, 2, Some("S12")),
        ("two more", RolloutLedger::default(), 1, 2, None),
    ] {
        // The planner that knows no brake.
        let (mut view, policy) = fleet(&["b", "c"], RolloutLedger::default());
        for (name, proof) in names.iter().chain(&on_version[..1]) {
            let node = if *proof == Proof::Free { node(name) } else { with_place(name, *proof, 7) };
            view.nodes.insert((*name).into(), node);
        }
        let mut made = plan(&view, &policy, t(60));
        assert_eq!(slots_of(&made), ["b", "c"]);
        made.slots.as_mut().unwrap().truncate(slots);
        let recorded = RolloutLedger { base: 10, proven, ..ledger };
        for status in [made.status.as_mut().unwrap(), &mut view.operator.as_mut().unwrap().status] {
            status.active_rollouts[0].ledger = Some(recorded.clone());
        }
        let found = crate::lint::lint(&view, &policy, &mut made).first().map(|found| found.property);
        assert_eq!(found, expected, "{sentence}");
        assert_eq!(slots_of(&made).is_empty(), expected.is_some(), "{sentence}");
    }
}

#[test]
fn window_that_opens_ends_the_pause() {
    let free = row(&[("x1", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)]);
    let ledger = RolloutLedger { row: free, braked_until: Some(t(20_000)), ..RolloutLedger::default() };
    let (mut view, _) = fleet(&["b", "c"], ledger);
    let at_seven = json!({"windows": [{"cron": "0 7 * * *", "duration": "4h"}]});
    let of_all = json!({"maxUnavailable": 5, "schedule": at_seven});
    let of_group = |labels: serde_json::Value| {
        json!({"maxUnavailable": 5,
            "nodeGroups": [{"name": "g", "selector": {"matchLabels": labels}, "schedule": at_seven}]})
    };
    let (in_group, in_none) = (of_group(json!({})), of_group(json!({"tier": "db"})));
    let mut other = node("y");
    other.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
    std::sync::Arc::make_mut(&mut other.facts.labels).insert("tier".into(), "db".into());
    view.nodes.insert("y".into(), other);
    for (sentence, spec, next_window, tried) in [
        ("it was open before", &of_all, None, 0),
        ("it has just opened", &of_all, Some(t(-3600)), 1),
        ("an expected one that has not come", &of_all, Some(t(3600)), 0),
        ("that of its group has just opened", &in_group, Some(t(-3600)), 1),
        ("that of a group of other nodes", &in_none, Some(t(-3600)), 0),
    ] {
        let policy = with_policy(&mut view, spec.clone());
        view.operator.as_mut().unwrap().status.next_window = next_window;
        assert_eq!(slots_of(&plan(&view, &policy, t(60))).len(), tried, "{sentence}");
    }
}

#[test]
fn braked_rollout_tries_nodes_of_other_groups_first_and_those_that_have_failed_last() {
    let group = |name: &str| json!({"name": name, "selector": {"matchLabels": {"tier": name}}});
    let spec = || json!({"maxUnavailable": 5, "nodeGroups": [group("db"), group("web")]});
    for (sentence, staged, row_of, expected) in [
        ("nothing is in the row", vec!["db1", "web1"], vec!["db9", "web8", "web9"], "db1"),
        ("nodes of its group are", vec!["db1", "web1"], vec!["db7", "db8", "db9"], "web1"),
        ("no other is left: the one that failed longest ago", vec!["db1", "db2"], vec!["db2", "db1", "db9"], "db2"),
    ] {
        let ends: Vec<_> = row_of.iter().map(|name| (*name, Proof::Free)).collect();
        let ledger = RolloutLedger { row: row(&ends), braked_until: Some(t(0)), ..RolloutLedger::default() };
        let (mut view, _) = fleet(&staged, ledger);
        for name in ["db7", "db8", "db9", "web8", "web9"] {
            view.nodes.insert(name.into(), node(name));
        }
        for (name, node) in &mut view.nodes {
            let tier = name.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned();
            std::sync::Arc::make_mut(&mut node.facts.labels).insert("tier".into(), tier);
        }
        let policy = with_policy(&mut view, spec());
        assert_eq!(slots_of(&plan(&view, &policy, t(60))), [expected], "{sentence}");
    }
}

#[test]
fn brake_returns_nodes_to_service_that_wait_for_their_hooks_but_finishes_drains() {
    for (sentence, step, proven, expected) in [
        ("before the drain", Step::BeforeDrain, false, Some("RolloutBraked")),
        ("while connections end", Step::LeavingLoadBalancer, false, Some("RolloutBraked")),
        ("in the drain", Step::Draining, false, None),
        ("the rollout is not braked", Step::BeforeDrain, true, None),
    ] {
        let three = if proven { vec![] } else { row(&[("x1", Proof::Free), ("x2", Proof::Free), ("x3", Proof::Free)]) };
        let until = (!proven).then(|| t(600));
        let ledger = RolloutLedger { row: three, braked_until: until, ..RolloutLedger::default() };
        let (mut view, mut policy) = fleet(&[], ledger);
        let (other, _) = cluster(vec![at("a", step, 0, HostState::StagedUpdate)], &["a"]);
        view.operator.as_mut().unwrap().status.slots = other.operator.unwrap().status.slots;
        let mut node = other.nodes["a"].clone();
        node.facts.claims = crate::claims::ClaimFields::USUAL;
        view.nodes.insert("a".into(), node);
        policy.leave_load_balancer = Some(std::time::Duration::from_secs(3600));
        let made = plan(&view, &policy, t(60));
        let end = made.actions.get("a").and_then(|action| match action {
            crate::decision::Action::Status { status, .. } => status.report.record.as_ref()?.last.clone(),
            _ => None,
        });
        let reason = end.map(|last| last.reason).filter(|reason| reason != "Updated");
        assert_eq!(reason.as_deref(), expected, "{sentence}: {:?}", made.waits.get("a"));
    }
}

#[test]
fn nodes_behind_the_first_one_take_no_room_from_other_kinds() {
    let mut nodes: Vec<NodeView> = ["x1", "x2", "x3", "x4", "x5", "x6"].map(staged).into();
    nodes.push(node("x7"));
    nodes.extend((1..4).map(|number| {
        let mut other = node(&format!("y{number}"));
        other.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        other
    }));
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 7, ..RolloutLedger::default() }));
    let policy = with_policy(&mut view, json!({"maxUnavailable": 3}));
    let mut made = plan(&view, &policy, t(60));
    assert_eq!(slots_of(&made), ["x1"]);
    assert_eq!(made.waits["x2"].as_str(), "FirstNode");
    let began: Vec<_> = made.actions.iter().filter(|(_, action)| Plan::starts(action)).map(|(name, _)| name).collect();
    assert_eq!(began, ["y1", "y2", "y3"], "no more of the first kind: {:?}", made.waits);
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
}

#[test]
fn nodes_behind_the_first_one_take_the_room_of_their_group_from_their_own_rollout() {
    let tier = |mut node: NodeView, tier: &str| {
        std::sync::Arc::make_mut(&mut node.facts.labels).insert("tier".into(), tier.into());
        node
    };
    let arm = |mut node: NodeView| {
        node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        node
    };
    let nodes =
        vec![tier(staged("a"), "web"), tier(staged("b"), "db"), tier(node("c"), "db"), tier(arm(node("d")), "db")];
    let (mut view, _) = cluster(nodes, &[]);
    recorded_with(&mut view, Some(RolloutLedger { base: 3, ..RolloutLedger::default() }));
    let group = |name: &str| json!({"name": name, "selector": {"matchLabels": {"tier": name}}, "maxUnavailable": 1});
    let policy = with_policy(&mut view, json!({"maxUnavailable": 5, "nodeGroups": [group("web"), group("db")]}));
    let made = plan(&view, &policy, t(60));
    assert_eq!((slots_of(&made), made.waits["b"].as_str()), (vec!["a"], "FirstNode"));
    assert_eq!(made.waits["c"].as_str(), "GroupFull", "b comes first");
    assert!(made.actions.get("d").is_some_and(Plan::starts), "none of the group is out of service: {:?}", made.waits);
}

#[test]
fn nodes_behind_the_first_one_take_places_of_their_canary_step() {
    let (mut view, _) = fleet(&["a", "b"], RolloutLedger::default());
    view.operator.as_mut().unwrap().status.active_rollouts[0].ledger.as_mut().unwrap().proven = 0;
    let policy = with_policy(&mut view, json!({"maxUnavailable": 7, "strategy": {"canary": [{"nodes": 2}]}}));
    let made = plan(&view, &policy, t(60));
    assert_eq!((slots_of(&made), made.waits["b"].as_str()), (vec!["a"], "FirstNode"));
    let began: Vec<_> = made.actions.iter().filter(|(_, action)| Plan::starts(action)).map(|(name, _)| name).collect();
    assert!(began.is_empty(), "the two have the places: {began:?}");
}
