use crate::claims::ClaimFields;
use std::sync::Arc;

use models::operator::{CountOrPercent, MAX_SLOTS};
use models::shadow::Step;

use super::*;
use crate::fixtures::{at, cluster, node, progress, slot, t};
use crate::policy::{Group, GroupPolicy};

#[test]
fn used_up_budget_names_an_unavailable_node() {
    let mut nodes: Vec<_> = (0..4).map(|number| node(&format!("n{number}"))).collect();
    (nodes[1].facts.ready, nodes[3].facts.ready) = (false, false);
    for (node, since) in [(1, 0), (3, 60)] {
        nodes[node].facts.not_ready_since = Some(t(since));
    }
    let (view, _) = cluster(nodes, &[]);
    // With room for one in all, both have to be ignored; with room for two, the one that is the first.
    for (limit, until) in [(1, Some(t(3660))), (2, Some(t(3600))), (3, None)] {
        let used_up = until.map(|until| Wait::BudgetUsedUp {
            group: None,
            node: "n1".into(),
            why: "not Ready",
            count: 2,
            limit: limit as usize,
            until: Some(until),
        });
        let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(limit), ..Policy::default() };
        let survey = Survey::of(&view, &policy, t(0));
        assert_eq!(Budget::of(&view, &survey, &[]).used_up.as_ref(), used_up.as_ref(), "{limit}");
    }
}

#[test]
fn no_more_slots_are_given_than_one_object_holds() {
    let nodes = (0..=MAX_SLOTS).map(|number| node(&format!("n{number}")));
    let (view, _) = cluster(nodes.collect(), &[]);
    for limit in [CountOrPercent::Percent("100%".into()), CountOrPercent::Count(10_000)] {
        let policy = Policy { present: true, max_unavailable: limit.clone(), ..Policy::default() };
        let survey = Survey::of(&view, &policy, t(0));
        assert_eq!(Budget::of(&view, &survey, &[]).free(), MAX_SLOTS, "{limit:?}");
    }
}

/// Ten nodes, `n0` to `n9`, in zones `a` (even) and `b` (odd); the first four are in group `db`. Those in `down` are not Ready.
fn world(policy: &Policy, down: &[&str], ours: &[&str], slots: &[&str]) -> (usize, Vec<Option<Wait>>) {
    let view = view_of(down, ours, slots);
    let survey = Survey::of(&view, policy, t(0));
    let budget = Budget::of(&view, &survey, &view.operator.as_ref().unwrap().status.slots);
    let refusals = ["n0", "n1", "n9"].map(|name| budget.refusal(policy, survey.find(name).unwrap()));
    (budget.free(), refusals.into())
}

fn view_of(down: &[&str], ours: &[&str], slots: &[&str]) -> ClusterView {
    let nodes = (0..10).map(|number| {
        let mut node = node(&format!("n{number}"));
        let zone = if number % 2 == 0 { "a" } else { "b" };
        let mut labels = BTreeMap::from([(models::names::ZONE_LABEL.to_owned(), zone.to_owned())]);
        if number < 4 {
            labels.insert("tier".into(), "db".into());
        }
        node.facts.labels = Arc::new(labels);
        node.facts.ready = !down.contains(&node.facts.name.as_str());
        if ours.contains(&node.facts.name.as_str()) {
            node.facts.claims = ClaimFields::USUAL;
        }
        node
    });
    cluster(nodes.collect(), slots).0
}

fn policy(limit: &str, group_limit: Option<&str>, one_zone: bool) -> Policy {
    let share = |text: &str| match text.parse() {
        Ok(count) => CountOrPercent::Count(count),
        Err(_) => CountOrPercent::Percent(text.into()),
    };
    let group = Group {
        name: "db".into(),
        selector: serde_json::from_str(r#"{"matchLabels": {"tier": "db"}}"#).unwrap(),
        max_unavailable: group_limit.map(share),
        policy: GroupPolicy::default(),
    };
    Policy {
        present: true,
        max_unavailable: share(limit),
        one_zone_at_a_time: one_zone,
        groups: vec![group],
        ..Policy::default()
    }
}

#[test]
fn unavailable_nodes_count_once_against_budget() {
    for (sentence, limit, down, ours, slots, free) in [
        ("nothing is out", "1", vec![], vec![], vec![], 1),
        ("a percentage rounds down", "25%", vec![], vec![], vec![], 2),
        ("and is never below one", "1%", vec![], vec![], vec![], 1),
        ("a node of the operator's is out", "2", vec![], vec!["n5"], vec!["n5"], 1),
        ("a claim without a slot counts", "2", vec![], vec!["n5"], vec![], 1),
        ("a slot without a claim counts", "2", vec![], vec![], vec!["n5"], 1),
        ("a node that is NotReady for another reason counts", "2", vec!["n8"], vec![], vec![], 1),
        ("a node of the operator's that is NotReady counts once", "2", vec!["n5"], vec!["n5"], vec!["n5"], 1),
        ("a slot of a node that is gone counts", "2", vec![], vec![], vec!["gone"], 1),
        ("more than the budget is none left", "1", vec!["n7", "n8"], vec!["n5"], vec![], 0),
    ] {
        assert_eq!(world(&policy(limit, None, false), &down, &ours, &slots).0, free, "{sentence}");
    }
}

/// Zone `b` has lost the node of a slot, and zone `a` one that the operator has not taken.
#[test]
fn zone_of_a_node_that_is_gone_goes_on_before_any_other() {
    let mut view = view_of(&["n2"], &[], &["gone"]);
    let update = SlotUpdate { zone: "b".into(), ..crate::fixtures::first_update() };
    view.operator.as_mut().unwrap().status.slots[0].update = Some(update);
    let policy = policy("5", None, true);
    let survey = Survey::of(&view, &policy, t(0));
    let budget = Budget::of(&view, &survey, &view.operator.as_ref().unwrap().status.slots);
    let refusal = |name: &str| budget.refusal(&policy, survey.find(name).unwrap());
    assert_eq!(refusal("n4"), Some(Wait::ZoneBusy { zone: "b".into(), node: "gone".into() }));
    assert_eq!(refusal("n1"), None);
}

#[test]
fn slot_that_is_taken_back_and_slot_of_a_node_that_is_there_count_no_other_time_in_their_group() {
    let mut view = view_of(&[], &[], &["n1", "gone"]);
    for slot in &mut view.operator.as_mut().unwrap().status.slots {
        slot.update = Some(SlotUpdate { group: Some("db".into()), ..crate::fixtures::first_update() });
    }
    let policy = policy("5", Some("2"), false);
    let survey = Survey::of(&view, &policy, t(0));
    let slots = &view.operator.as_ref().unwrap().status.slots;
    for (kept, full) in [(1, false), (2, true)] {
        let found = Budget::of(&view, &survey, &slots[..kept]).refusal(&policy, survey.find("n0").unwrap());
        assert_eq!(matches!(found, Some(Wait::GroupFull { .. })), full, "{kept}: {found:?}");
    }
}

#[test]
fn slot_records_the_group_of_its_node() {
    let mut a = at("a", Step::Staged, 0, models::shadow::HostState::StagedUpdate);
    a.facts.labels = Arc::new([("tier".to_owned(), "db".to_owned())].into());
    let (view, _) = cluster(vec![a], &[]);
    let policy = policy("1", Some("1"), false);
    let survey = Survey::of(&view, &policy, t(0));
    let given = new(&survey, survey.find("a").unwrap(), t(0));
    assert_eq!(given.update.unwrap().group.as_deref(), Some("db"));
}

#[test]
fn slot_of_a_node_that_is_gone_counts_in_its_group_and_zone() {
    let (mut view, _) = cluster(vec![node("n1"), node("n2")], &[]);
    let policy = policy("5", Some("1"), true);
    let labels =
        |zone: &str| [("tier", "db"), (models::names::ZONE_LABEL, zone)].map(|(k, v)| (k.to_owned(), v.to_owned()));
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        view.nodes.get_mut(name).unwrap().facts.labels = std::sync::Arc::new(labels(zone).into());
    }
    let update = |group: Option<&str>| {
        let node = at("gone", models::shadow::Step::Rebooting, 0, models::shadow::HostState::RebootedIntoUpdate);
        let update = settled::update_of(&crate::survey::rollout::Rollouts::default(), &node)?;
        Some(SlotUpdate { zone: "a".into(), group: group.map(str::to_owned), ..update })
    };
    for (sentence, group, refused) in [
        ("of the group", Some("db"), ["GroupFull", "GroupFull"]),
        ("of another one, in zone a", Some("web"), ["", "ZoneBusy"]),
        ("of none, in zone a", None, ["", "ZoneBusy"]),
    ] {
        view.operator.as_mut().unwrap().status.slots = vec![Slot { update: update(group), ..slot("gone") }];
        let survey = Survey::of(&view, &policy, t(0));
        let budget = Budget::of(&view, &survey, &view.operator.as_ref().unwrap().status.slots);
        let refusals = ["n1", "n2"].map(|name| {
            budget
                .refusal(&policy, survey.find(name).unwrap())
                .map_or_else(String::new, |wait| wait.as_str().to_owned())
        });
        assert_eq!(refusals, refused, "{sentence}");
    }
}

#[test]
fn node_group_has_separate_budget() {
    let full = |node: &str| Some(Wait::GroupFull { group: "db".into(), node: Some(node.into()) });
    let used_up = |node: &str, count, limit| {
        let (group, why) = (Some("db".to_owned()), "not Ready");
        Some(Wait::BudgetUsedUp { group, node: node.into(), why, count, limit, until: None })
    };
    for (sentence, limit, down, out, refusals) in [
        ("no limit of its own", None, vec![], vec!["n1"], [None, None, None]),
        ("one of one is out", Some("1"), vec![], vec!["n1"], [full("n1"), full("n1"), None]),
        ("a percentage is of the group's nodes", Some("50%"), vec![], vec!["n1"], [None, None, None]),
        ("two of two are out", Some("50%"), vec![], vec!["n1", "n2"], [full("n1"), full("n1"), None]),
        ("a node outside the group is none of its", Some("1"), vec![], vec!["n8"], [None, None, None]),
        ("one of one is out without the operator", Some("1"), vec!["n8", "n2"], vec![], {
            [used_up("n2", 1, 1), used_up("n2", 1, 1), None]
        }),
        ("as many are as the limit allows", Some("50%"), vec!["n2", "n3"], vec!["n1"], {
            [used_up("n2", 2, 2), used_up("n2", 2, 2), None]
        }),
        ("one of two is, and the operator has the other", Some("50%"), vec!["n2"], vec!["n3"], {
            [full("n3"), full("n3"), None]
        }),
        ("a node that is down already needs no further room", Some("1"), vec!["n1"], vec![], {
            [used_up("n1", 1, 1), None, None]
        }),
        ("it waits for one under way, and not for itself", Some("1"), vec!["n1"], vec!["n3"], {
            [used_up("n1", 1, 1), full("n3"), None]
        }),
    ] {
        let (_, got) = world(&policy("5", limit, false), &down, &out, &[]);
        assert_eq!(got, refusals, "{sentence}");
    }
}

#[test]
fn one_zone_at_a_time_limits_disruption_to_one_zone() {
    let busy = |zone: &str| Some(Wait::ZoneBusy { zone: zone.into(), node: "n8".into() });
    for (sentence, one_zone, out, down, refusals) in [
        ("not asked for", false, vec!["n8"], vec![], [None, None, None]),
        ("no zone is", true, vec![], vec![], [None, None, None]),
        ("zone a is", true, vec!["n8"], vec![], [None, busy("a"), busy("a")]),
        ("a node of zone a is down without the operator", true, vec![], vec!["n8"], [None, busy("a"), busy("a")]),
        ("nodes of both zones are, and zone a has lost most", true, vec![], vec!["n4", "n5", "n6"], {
            let busy = Some(Wait::ZoneBusy { zone: "a".into(), node: "n4".into() });
            [None, busy.clone(), busy]
        }),
        ("the operator works in zone a, and zone b has lost as much", true, vec!["n8"], vec!["n5"], {
            [None, busy("a"), busy("a")]
        }),
        ("the operator works in zone a, and zone b has lost more", true, vec!["n8"], vec!["n5", "n7"], {
            [Some(Wait::ZoneBusy { zone: "b".into(), node: "n5".into() }), busy("a"), busy("a")]
        }),
    ] {
        let (_, got) = world(&policy("5", None, one_zone), &down, &out, &[]);
        assert_eq!(got, refusals, "{sentence}");
    }
}

#[test]
fn control_plane_nodes_are_taken_one_at_a_time_while_all_others_are_ready() {
    type Change = fn(&mut ClusterView);
    fn facts<'a>(view: &'a mut ClusterView, name: &str) -> &'a mut NodeFacts {
        &mut view.nodes.get_mut(name).unwrap().facts
    }
    fn unmanaged(view: &mut ClusterView, ready: bool) {
        let labels = BTreeMap::from([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())]);
        let facts = NodeFacts { name: "etcd".into(), ready, labels: Arc::new(labels), ..NodeFacts::default() };
        view.unmanaged.insert(facts.name.clone(), facts);
    }
    let busy = |node: &str| Some(Wait::ControlPlaneBusy { node: node.into() });
    let case = |sentence: &str, expected: [Option<Wait>; 2], change: Change| {
        let mut nodes: Vec<_> = ["c0", "c1", "worker"].map(node).into();
        for node in &mut nodes[..2] {
            node.facts.labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
        }
        let (mut view, _) = cluster(nodes, &[]);
        change(&mut view);
        let policy = policy("5", None, false);
        let survey = Survey::of(&view, &policy, t(0));
        let budget = Budget::of(&view, &survey, &view.operator.as_ref().unwrap().status.slots);
        let refusals = ["c0", "worker"].map(|name| budget.refusal(&policy, survey.find(name).unwrap()));
        assert_eq!(refusals, expected, "{sentence}");
        // Two are never taken by one plan.
        let mut budget = budget;
        budget.take(survey.find("c0").unwrap());
        assert!(budget.refusal(&policy, survey.find("c1").unwrap()).is_some(), "{sentence}");
    };
    case("all are Ready", [None, None], |_| {});
    case("one is not, for years", [busy("c1"), None], |view| {
        let facts = facts(view, "c1");
        (facts.ready, facts.not_ready_since) = (false, Some(t(-1_000_000_000)));
    });
    case("one was never Ready", [busy("c1"), None], |view| {
        let facts = facts(view, "c1");
        (facts.ready, facts.joining) = (false, true);
    });
    case("one is cordoned by a user", [None, None], |view| facts(view, "c1").unschedulable = true);
    case("one is updated", [busy("c1"), None], |view| facts(view, "c1").claims = ClaimFields::USUAL);
    case("one has a slot", [busy("c1"), None], |view| view.operator.as_mut().unwrap().status.slots = vec![slot("c1")]);
    case("one that is not the operator's is not Ready", [busy("etcd"), None], |view| unmanaged(view, false));
    case("one that is not the operator's is Ready", [None, None], |view| unmanaged(view, true));
}

#[test]
fn node_that_counts_already_needs_no_further_room() {
    let mut view = view_of(&[], &[], &["n5"]);
    view.nodes.get_mut("n1").unwrap().facts.unschedulable = true;
    for (limit, group, others, own, refused) in
        [("1", "1", 0, 0, [true, false]), ("2", "1", 0, 1, [true, false]), ("3", "2", 1, 2, [false, false])]
    {
        let policy = policy(limit, Some(group), false);
        let survey = Survey::of(&view, &policy, t(0));
        let budget = Budget::of(&view, &survey, &[slot("n5")]);
        let [n0, n1] = ["n0", "n1"].map(|name| survey.find(name).unwrap());
        assert_eq!([budget.free_for(n0), budget.free_for(n1)], [others, own], "{limit}");
        assert_eq!([n0, n1].map(|node| budget.refusal(&policy, node).is_some()), refused, "{limit}");
        let mut taken = budget.clone();
        taken.take(n1);
        assert_eq!([taken.free_for(n0), taken.free_for(n1)], [others, own.saturating_sub(1)], "{limit}");
    }
}

/// A node for each reason why it keeps a slot, and for none.
fn one_each() -> ClusterView {
    let mut claimed = node("claimed");
    claimed.facts.claims = ClaimFields::USUAL;
    let mut draining = node("draining");
    draining.shadow.as_mut().unwrap().status.controller.progress = Some(progress(Step::Draining, 0));
    let (mut view, _) = cluster(vec![claimed, draining, node("busy"), node("wanting"), node("idle")], &[]);
    view.busy.insert("busy".into());
    view
}

#[test]
fn slot_is_kept_while_node_is_disrupted_or_may_start() {
    let view = one_each();
    let recorded: Vec<Slot> = view.nodes.keys().map(|name| slot(name)).collect();
    let names = |slots: Vec<Slot>| slots.into_iter().map(|slot| slot.node).collect::<Vec<_>>();
    let held = recorded.iter().map(|slot| (slot.uid.as_str(), slot)).collect();
    let policy = Policy::default();
    let survey = Survey::of(&view, &policy, t(9));
    let wants_slot: Vec<_> = view.nodes.keys().map(|name| name == "wanting").collect();
    let kept_of = |held| names(kept(&view, &survey, held, &wants_slot, t(9)));
    assert_eq!(kept_of(&held), ["busy", "claimed", "draining", "wanting"]);
    assert_eq!(kept_of(&HashMap::new()), ["claimed"], "a status alone gives no slot");
}

#[test]
fn slot_is_in_use_after_claim_or_drain_starts() {
    let mut view = one_each();
    let slots = view.nodes.keys().map(|name| slot(name));
    view.operator.as_mut().unwrap().status.slots = slots.collect();
    let expected = ["busy", "idle", "wanting"].map(|name| format!("uid-{name}"));
    assert_eq!(not_begun(&view), expected.into());
}
