use crate::claims::ClaimFields;
use std::sync::Arc;

use models::operator::CountOrPercent;
use models::shadow::Step;

use super::*;
use crate::fixtures::{cluster, node, progress, slot, t};
use crate::policy::{Group, GroupPolicy};

#[test]
fn used_up_budget_names_an_unavailable_node() {
    let mut nodes: Vec<_> = (0..4).map(|number| node(&format!("n{number}"))).collect();
    (nodes[1].facts.ready, nodes[3].facts.ready) = (false, false);
    let (view, _) = cluster(nodes, &[]);
    for (limit, used_up) in [
        (1, Some(Wait::BudgetUsedUp { node: "n1".into(), count: 2, limit: 1 })),
        (2, Some(Wait::BudgetUsedUp { node: "n1".into(), count: 2, limit: 2 })),
        (3, None),
    ] {
        let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(limit), ..Policy::default() };
        let survey = Survey::of(&view, &policy, t(0));
        assert_eq!(Budget::of(&survey, &[]).used_up.as_ref(), used_up.as_ref(), "{limit}");
    }
}

/// Ten nodes, `n0` to `n9`, in zones `a` (even) and `b` (odd); the first four are in group `db`.
fn world(policy: &Policy, down: &[&str], ours: &[&str], slots: &[&str]) -> (usize, Vec<Option<Wait>>) {
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
    let (view, _) = cluster(nodes.collect(), slots);
    let survey = Survey::of(&view, policy, t(0));
    let budget = Budget::of(&survey, &view.operator.as_ref().unwrap().status.slots);
    let refusals = ["n0", "n1", "n9"].map(|name| budget.refusal(policy, survey.find(name).unwrap()));
    (budget.free, refusals.into())
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

#[test]
fn node_group_has_separate_budget() {
    let full = || Some(Wait::GroupFull { group: "db".into() });
    for (sentence, limit, out, refusals) in [
        ("no limit of its own", None, vec!["n1"], [None, None, None]),
        ("one of one is out", Some("1"), vec!["n1"], [full(), full(), None]),
        ("a percentage is of the group's nodes", Some("50%"), vec!["n1"], [None, None, None]),
        ("two of two are out", Some("50%"), vec!["n1", "n2"], [full(), full(), None]),
        ("a node outside the group is none of its", Some("1"), vec!["n8"], [None, None, None]),
    ] {
        let (_, got) = world(&policy("5", limit, false), &[], &out, &[]);
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
        ("a node that is down without the operator blocks no zone", true, vec![], vec!["n8"], [None, None, None]),
    ] {
        let (_, got) = world(&policy("5", None, one_zone), &down, &out, &[]);
        assert_eq!(got, refusals, "{sentence}");
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
