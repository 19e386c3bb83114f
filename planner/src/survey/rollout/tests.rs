//! Tables of canary steps: who may begin, who is named, what an approval is for.

use std::time::Duration;

use models::operator::{CountOrPercent, NOT_READY, Slot, SlotUpdate};
use models::reason::Proof;
use models::shadow::{NodeProof, Record, Step, UPDATED};

use super::*;
use crate::fixtures::{NEW, OLD, cluster, first_update, node, progress, recorded, rollout, slot, t, updated};
use crate::policy::CanaryStep;
use crate::view::NodeFacts;

/// `done` nodes updated, `moving` under way, of `total`.
fn fleet(total: usize, done: usize, moving: usize) -> ClusterView {
    let nodes = (0..total).map(|number| {
        let mut node = node(&format!("n{number:02}"));
        let status = &mut node.shadow.as_mut().unwrap().status;
        if number < done {
            status.controller.record = Some(finished());
            node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        } else if number < done + moving {
            status.controller.progress = Some(progress(Step::Draining, 1));
        }
        node
    });
    let (mut view, _) = cluster(nodes.collect(), &[]);
    view.operator.as_mut().unwrap().status.active_rollouts = vec![numbered(7)];
    view
}

/// The record of a node with a place in each of these rollouts.
fn finished() -> Record {
    let proof = NodeProof { version: NEW, rollout: 8, attempt: 1, proof: Proof::Proven, reason: UPDATED.into() };
    Record { proof: Some(proof), ..updated() }
}

/// The rollout of this number.
fn numbered(number: i64) -> ActiveRollout {
    ActiveRollout { record: Some(recorded(number)), ..rollout(NEW) }
}

fn of<'a>(rollouts: &'a Rollouts, version: &Version) -> &'a Rollout {
    rollouts.of(&node("any"), version).unwrap()
}

fn one(rollouts: &Rollouts) -> &Rollout {
    of(rollouts, &NEW)
}

/// Follows the rollouts where the first node of each kind has these target versions.
fn wanting(view: &ClusterView, policy: &Policy, versions: &[Version], second: i64) -> Rollouts {
    let new = NEW;
    let kinds: BTreeMap<KeyRef<'_>, &NodeView> = view.nodes.values().map(|node| (key(node, &new), node)).collect();
    let wanted = kinds.values().flat_map(|node| versions.iter().map(|version| (*node, version)));
    follow(view, policy, wanted, std::iter::empty(), t(second))
}

fn followed(view: &ClusterView, policy: &Policy, second: i64) -> Rollouts {
    wanting(view, policy, &[NEW], second)
}

fn step(nodes: &str, soak: u64, manual: bool) -> CanaryStep {
    let nodes = nodes.parse().map_or_else(|_| CountOrPercent::Percent(nodes.into()), CountOrPercent::Count);
    CanaryStep { nodes, soak: Duration::from_secs(soak), manual }
}

fn policy(canary: &[CanaryStep]) -> Policy {
    Policy { present: true, canary: canary.to_vec(), ..Policy::default() }
}

#[test]
fn canary_step_limits_number_of_started_nodes() {
    for (sentence, steps, done, moving, room) in [
        ("no steps, no limit", vec![], 0, 0, None),
        ("one node first", vec![step("1", 0, false)], 0, 0, Some(1)),
        ("the one is on its way", vec![step("1", 0, false)], 0, 1, Some(0)),
        ("the one is done and the step is passed", vec![step("1", 0, false)], 1, 0, None),
        ("a percentage is of all nodes", vec![step("30%", 0, false)], 1, 1, Some(1)),
        (
            "a later step counts the nodes of earlier ones",
            vec![step("1", 0, false), step("5", 0, false)],
            2,
            1,
            Some(2),
        ),
        ("a soak holds all back", vec![step("1", 600, false)], 1, 0, Some(0)),
        ("an approval is waited for", vec![step("1", 0, true)], 1, 0, Some(0)),
    ] {
        let rollouts = followed(&fleet(10, done, moving), &policy(&steps), 100);
        assert_eq!(one(&rollouts).room_to_begin(), room, "{sentence}");
        assert_eq!(one(&rollouts).wait.is_some(), room.is_some(), "{sentence}");
        assert_eq!(one(&rollouts).step > 0, room.is_some(), "{sentence}: attempts have the number of the step due");
    }
}

#[test]
fn node_is_finished_once_the_operator_has_updated_it_in_the_rollout() {
    fn last(node: &mut NodeView) -> &mut models::shadow::AttemptResult {
        let record = &mut node.shadow.as_mut().unwrap().status.controller.record;
        record.as_mut().unwrap().last.as_mut().unwrap()
    }
    type Change = fn(&mut NodeView);
    let case = |sentence: &str, finished: usize, change: Change| {
        let mut view = fleet(2, 1, 0);
        change(view.nodes.get_mut("n00").unwrap());
        assert_eq!(one(&followed(&view, &policy(&[]), 100)).finished, finished, "{sentence}");
    };
    case("it is updated", 1, |_| {});
    case("at the beginning of the rollout", 1, |node| last(node).ended = t(0));
    case("before the rollout", 0, |node| last(node).ended = t(-1));
    case("its last attempt failed", 0, |node| last(node).reason = "DrainTimedOut".into());
    case("to another version", 0, |node| last(node).version = OLD);
    case("it is not under the operator any more", 0, |node| node.facts.labelled = false);
    case("it is updated again", 0, |node| {
        node.shadow.as_mut().unwrap().status.controller.progress = Some(progress(Step::Staging, 60));
    });
}

#[test]
fn nodes_staged_ahead_do_not_count_in_canary_step() {
    let mut view = fleet(10, 0, 6);
    for node in view.nodes.values_mut() {
        if let Some(progress) = &mut node.shadow.as_mut().unwrap().status.controller.progress {
            (progress.step, progress.disruptive) = (Step::Staged, false);
        }
    }
    let rollouts = followed(&view, &policy(&[step("2", 0, false)]), 100);
    assert_eq!((one(&rollouts).room_to_begin(), one(&rollouts).room_for_slots()), (Some(2), Some(2)));
}

#[test]
fn canary_soak_is_counted_from_last_node_across_restarts() {
    let policy = policy(&[step("1", 600, false)]);
    let mut view = fleet(4, 1, 0);
    let rollouts = followed(&view, &policy, 100);
    assert_eq!((rollouts.wake, one(&rollouts).room_to_begin()), (Some(t(700)), Some(0)));
    view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
    assert_eq!(one(&followed(&view, &policy, 699)).room_to_begin(), Some(0));
    let passed = followed(&view, &policy, 700);
    assert_eq!((one(&passed).room_to_begin(), passed.active[0].steps_passed), (None, 1));
}

#[test]
fn canary_step_is_not_passed_while_a_proven_node_is_not_ready() {
    let policy = policy(&[step("1", 600, false)]);
    let mut view = fleet(4, 1, 0);
    view.nodes.values_mut().next().unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    let rollouts = followed(&view, &policy, 100);
    view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
    let canary = view.nodes.values().find(|node| node.record().is_some_and(|record| record.proof.is_some()));
    let canary = canary.unwrap().facts.name.clone();
    let facts = |view: &mut ClusterView, ready: bool| {
        let facts = &mut view.nodes.get_mut(&canary).unwrap().facts;
        (facts.ready, facts.not_ready_since) = (ready, Some(t(650)).filter(|_| !ready));
    };
    facts(&mut view, false);
    assert_eq!(followed(&view, &policy, 699).wake, Some(t(700)));
    assert_eq!(followed(&view, &policy, 709).active[0].steps_passed, 1, "for an instant only");
    let fallen = followed(&view, &policy, 710);
    let nodes = vec![format!("{canary} (not Ready)")];
    assert_eq!(
        one(&fallen).wait,
        Some(Wait::CanaryStep { step: 1, until: None, approval: None, nodes, none_runs: false })
    );
    assert_eq!((fallen.active[0].steps_passed, one(&fallen).room_to_begin()), (0, Some(0)));
    view.operator.as_mut().unwrap().status.active_rollouts = fallen.active;
    let rollout = &mut view.operator.as_mut().unwrap().status.active_rollouts[0];
    rollout.approved = true;
    let approved = followed(&view, &self::policy(&[step("1", 600, true)]), 720);
    assert_eq!(approved.active[0].steps_passed, 1, "a user has approved it");
    facts(&mut view, true);
    assert_eq!(followed(&view, &policy, 800).active[0].steps_passed, 1);
}

/// The canary soaks for an hour from 100 s on, and is not Ready since 200 s.
#[test]
fn canary_that_was_not_ready_before_it_was_replaced_passes_no_step() {
    type Change = fn(&mut NodeView);
    let policy = policy(&[step("1", 3600, false)]);
    let ready: Change = |node| gets_ready(&mut node.facts);
    let replaced: Change = |node| {
        *node = crate::fixtures::node("n00");
        node.facts.uid = "uid-other".into();
    };
    let leaves: Change = |node| node.facts.removed_by = Some("karpenter.sh/disrupted".into());
    let unlabelled: Change = |node| node.facts.labelled = false;
    let held: Change = |node| {
        gets_ready(&mut node.facts);
        node.facts.hold = Some(crate::hold::Hold::default());
    };
    let cordoned: Change = |node| {
        gets_ready(&mut node.facts);
        node.facts.unschedulable = true;
    };
    let taken_back: Change = |node| {
        gets_ready(&mut node.facts);
        node.facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)");
    };
    let pressed: Change = |node| {
        gets_ready(&mut node.facts);
        (node.facts.pressure, node.facts.pressure_since) = (Some("DiskPressure".into()), Some(t(390)));
    };
    let cases: [(&str, i64, Option<Change>, bool); 12] = [
        ("not Ready for three minutes, and gone", 380, None, false),
        ("the same, and its removal begins", 380, Some(leaves), false),
        ("the same, and another one has its name", 380, Some(replaced), false),
        ("the same, and it loses its label", 380, Some(unlabelled), false),
        ("the same, and it is Ready again", 380, Some(ready), true),
        ("the same, and it is Ready again and held", 380, Some(held), false),
        ("the same, and it is Ready again and cordoned", 380, Some(cordoned), false),
        ("the same, and it is Ready again under pressure", 380, Some(pressed), false),
        ("the same, and it is Ready again on the old version", 380, Some(taken_back), false),
        ("not Ready for a minute, and gone", 260, None, true),
        ("the same, and its removal begins", 260, Some(leaves), true),
        ("gone while it is Ready", 199, None, true),
    ];
    for (sentence, seen, change, passes) in cases {
        let mut view = fleet(4, 1, 0);
        let follow = |view: &mut ClusterView, second: i64| {
            let rollouts = followed(view, &policy, second);
            view.operator.as_mut().unwrap().status.active_rollouts.clone_from(&rollouts.active);
            rollouts
        };
        // Another one came with the version, and runs it until the end of the soak.
        for name in ["n00", "n03"] {
            view.nodes.get_mut(name).unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        }
        follow(&mut view, 100);
        if seen >= 200 {
            let facts = &mut view.nodes.get_mut("n00").unwrap().facts;
            (facts.ready, facts.not_ready_since) = (false, Some(t(200)));
        }
        follow(&mut view, seen);
        match change {
            Some(change) => change(view.nodes.get_mut("n00").unwrap()),
            None => drop(view.nodes.remove("n00")),
        }
        follow(&mut view, 400);
        follow(&mut view, 4000);
        let soaked = follow(&mut view, 8000);
        assert_eq!(soaked.active[0].steps_passed, i64::from(passes), "{sentence}: {:?}", one(&soaked).wait);
        if passes {
            continue;
        }
        let (approval, nodes) = ("7/1/unproven".to_owned(), vec!["n00 (NotReady)".to_owned()]);
        assert_eq!(one(&soaked).wait, Some(Wait::StepUnproven { step: 1, approval, nodes }), "{sentence}");
        view.operator.as_mut().unwrap().approve_step = Some("7/1/unproven@yes".into());
        follow(&mut view, 8001);
        assert_eq!(follow(&mut view, 12_000).active[0].steps_passed, 1, "{sentence}: a user has accepted it");
    }
}

/// The canary soaks from 100 s on, and an autoscaler removes it while it is Ready.
#[test]
fn canary_step_is_not_passed_at_the_end_of_its_soak_without_a_node_on_the_version() {
    type Change = fn(&mut ClusterView);
    let gone: Change = |view| drop(view.nodes.remove("n00"));
    let registered_again: Change = |view| {
        view.nodes.get_mut("n00").unwrap().shadow.as_mut().unwrap().status.controller.record = None;
    };
    let down: Change = |view| {
        let node = view.nodes.get_mut("n00").unwrap();
        node.shadow.as_mut().unwrap().status.controller.record = None;
        falls(&mut node.facts);
    };
    let unlabelled: Change = |view| change_each(view, &["n00"], |facts| facts.labelled = false);
    let replaced: Change = |view| {
        view.nodes.remove("n00");
        change_each(view, &["n03"], |facts| facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)"));
    };
    let unreadable: Change = |view| {
        view.nodes.remove("n00");
        view.unreadable.nodes.insert("n00".into(), "a field".into());
    };
    for (sentence, change, soak, passed, room) in [
        ("it is gone", gone, 3600, 0, Some(1)),
        ("it is gone, and the step has no soak", gone, 0, 1, None),
        ("it is gone, and another node came with the version", replaced, 3600, 1, None),
        ("its Node was registered again", registered_again, 3600, 1, None),
        ("the same, and it is not Ready: its place is not free", down, 3600, 0, Some(0)),
        ("it lost its label, and its place is not free either", unlabelled, 3600, 0, Some(0)),
        ("its Node cannot be read", unreadable, 3600, 1, None),
    ] {
        let policy = policy(&[step("1", soak, false)]);
        let mut view = fleet(4, 1, 0);
        view.operator.as_mut().unwrap().status.active_rollouts = followed(&view, &policy, 100).active;
        change(&mut view);
        let soaked = followed(&view, &policy, 3700);
        let found = (soaked.active[0].steps_passed, one(&soaked).room_to_begin());
        assert_eq!(found, (passed, room), "{sentence}: {:?}", one(&soaked).wait);
    }
}

/// The canary soaks for an hour from 100 s on, and an autoscaler removes it.
#[test]
fn soak_without_a_node_on_the_version_is_repeated_once_and_then_a_user_is_asked() {
    for (sentence, stays, manual) in [
        ("the next one stays", true, false),
        ("the next one is removed, too", false, false),
        ("a user has to approve the step", false, true),
    ] {
        let policy = policy(&[step("1", 3600, manual)]);
        let mut view = fleet(4, 1, 0);
        let follow = |view: &mut ClusterView, second: i64| {
            let rollouts = followed(view, &policy, second);
            view.operator.as_mut().unwrap().status.active_rollouts.clone_from(&rollouts.active);
            (rollouts.active[0].steps_passed, one(&rollouts).wait.clone())
        };
        let waits = |until: Option<i64>, approval: Option<&str>, none_runs: bool| {
            let (until, approval) = (until.map(t), approval.map(str::to_owned));
            (0, Some(Wait::CanaryStep { step: 1, until, approval, nodes: vec![], none_runs }))
        };
        assert_eq!(follow(&mut view, 100), waits(Some(3700), None, false), "{sentence}");
        view.nodes.remove("n00");
        assert_eq!(follow(&mut view, 200), waits(Some(3700), None, true), "{sentence}");
        if manual {
            assert_eq!(follow(&mut view, 3700), waits(None, Some("7/1"), true), "{sentence}: the request says so");
            continue;
        }
        assert_eq!(follow(&mut view, 3700), waits(None, None, false), "{sentence}: its place is free");
        assert_eq!(follow(&mut view, 3710), waits(None, None, false), "{sentence}: and stays so");
        let next = fleet(4, 1, 0).nodes.remove("n00").unwrap();
        view.nodes.insert("n00".into(), next);
        let rollout = &mut view.operator.as_mut().unwrap().status.active_rollouts[0];
        rollout.ledger.as_mut().unwrap().proven = 1;
        assert_eq!(follow(&mut view, 4000), waits(Some(7600), None, false), "{sentence}: it soaks again");
        if stays {
            assert_eq!(follow(&mut view, 7600), (1, None), "{sentence}");
            continue;
        }
        view.nodes.remove("n00");
        assert_eq!(follow(&mut view, 7600), waits(None, Some("7/1"), true), "{sentence}: no third one");
        view.operator.as_mut().unwrap().approve_step = Some("7/1@yes".into());
        let (passed, wait) = follow(&mut view, 7700);
        assert_eq!((passed, wait), (1, None), "{sentence}: a user has decided");
        let rollout = &view.operator.as_ref().unwrap().status.active_rollouts[0];
        assert!(!rollout.soak_repeated, "{sentence}: the next step soaks once, too");
    }
}

/// The canary soaks for an hour from 100 s on, and its disk is short from 200 s on.
#[test]
fn canary_under_pressure_for_ten_minutes_passes_no_step_until_it_is_well_again() {
    let policy = policy(&[step("1", 3600, false)]);
    let mut view = fleet(4, 1, 0);
    view.nodes.get_mut("n00").unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    for (second, pressed, lost, passed) in [
        (100, false, false, 0),
        (799, true, false, 0),
        (800, true, true, 0),
        (5000, true, true, 0),
        (6000, false, true, 0),
        (6179, false, true, 0),
        (6180, false, false, 0),
        (9779, false, false, 0),
        (9780, false, false, 1),
    ] {
        let facts = &mut view.nodes.get_mut("n00").unwrap().facts;
        facts.pressure = pressed.then(|| "DiskPressure".to_owned());
        facts.pressure_since = pressed.then(|| t(200));
        (facts.ready_since, facts.no_pressure_since) = (Some(t(0)), Some(t(6000)).filter(|_| !pressed));
        let rollouts = followed(&view, &policy, second);
        let (approval, nodes) = ("7/1/unproven".to_owned(), vec!["n00 (NodePressure)".to_owned()]);
        let unproven = Wait::StepUnproven { step: 1, approval, nodes };
        assert_eq!(one(&rollouts).wait.as_ref() == Some(&unproven), lost, "{second}: {:?}", one(&rollouts).wait);
        assert_eq!(rollouts.active[0].steps_passed, passed, "{second}");
        view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
    }
}

/// The canary soaks for an hour, is not Ready from 200 s on, and Ready again from 500 s on.
#[test]
fn proof_of_a_node_that_was_not_ready_counts_again_once_the_node_has_been_well_for_an_hour_or_its_soak() {
    type Change = fn(&mut ClusterView);
    fn two_since(view: &mut ClusterView, second: i64) {
        change_each(view, &["n01", "n02"], |facts| is_ready_since(facts, second));
    }
    let well: Change = |_| {};
    let down_too: Change = |view| two_since(view, 490);
    let down_before: Change = |view| two_since(view, -10);
    let joined: Change = |view| {
        two_since(view, 490);
        change_each(view, &["n01", "n02"], |facts| facts.created = Some(t(480)));
    };
    for (sentence, soak, no_pressure, others, again) in [
        ("a soak of a minute: for an hour", 60, None, well, 4100),
        ("no soak: for an hour", 0, None, well, 4100),
        ("a soak of two hours", 7200, None, well, 7700),
        ("it was under pressure until 700 s", 600, Some(700), well, 4300),
        ("two others were not Ready either: for three minutes", 60, None, down_too, 680),
        ("the same, and a soak of ten minutes", 600, None, down_too, 1100),
        ("two others were not Ready before the rollout", 60, None, down_before, 4100),
        ("two others have joined since", 60, None, joined, 4100),
    ] {
        let mut policy = policy(&[step("1", 3600, false)]);
        policy.all.after.soak = Duration::from_secs(soak);
        let mut view = fleet(4, 1, 0);
        let run = |facts: &mut NodeFacts| facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        change_each(&mut view, &["n00"], run);
        let follow = |view: &mut ClusterView, second: i64| {
            let rollouts = followed(view, &policy, second);
            view.operator.as_mut().unwrap().status.active_rollouts.clone_from(&rollouts.active);
            (matches!(one(&rollouts).wait, Some(Wait::StepUnproven { .. })), rollouts.wake)
        };
        follow(&mut view, 100);
        change_each(&mut view, &["n00"], falls);
        follow(&mut view, 380);
        change_each(&mut view, &["n00"], |facts| {
            is_ready_since(facts, 500);
            facts.no_pressure_since = no_pressure.map(t);
        });
        others(&mut view);
        assert_eq!(follow(&mut view, again - 1), (true, Some(t(again))), "{sentence}");
        assert_eq!(follow(&mut view, again), (false, Some(t(again + 3600))), "{sentence}: the step soaks again");
    }
}

/// Ten of 30 nodes have proven the version. Each of them is not Ready for six minutes of every two hours, one after the other. So are the
/// others, in between.
#[test]
fn proven_nodes_that_go_down_again_and_again_brake_the_rollout_unless_the_others_do_so_too() {
    let policy = policy(&[]);
    for (sentence, falling, braked) in [("the others are well", 10, true), ("the others do so too", 30, false)] {
        let mut view = fleet(30, 10, 0);
        let names: Vec<String> = view.nodes.keys().cloned().collect();
        for name in &names[..10] {
            view.nodes.get_mut(name).unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        }
        let mut was_braked = false;
        for minute in 1..600 {
            for (number, name) in (0_i64..).zip(&names[..falling]) {
                let first = 12 * (number % 10) + if number < 10 { 0 } else { 6 };
                let passed = (minute - first).rem_euclid(120);
                let (fell, back) = (t((minute - passed) * 60), t((minute - passed + 6) * 60));
                let facts = &mut view.nodes.get_mut(name).unwrap().facts;
                facts.ready = passed >= 6;
                facts.not_ready_since = Some(fell).filter(|_| !facts.ready);
                facts.ready_since = Some(back).filter(|_| facts.ready);
            }
            let active = followed(&view, &policy, minute * 60).active;
            was_braked |= active[0].is_braked();
            view.operator.as_mut().unwrap().status.active_rollouts = active;
        }
        assert_eq!(was_braked, braked, "{sentence}");
    }
}

/// The first three of the nodes that have proven the version.
const FALLEN: [&str; 3] = ["n00", "n01", "n02"];

fn change_each(view: &mut ClusterView, names: &[&str], change: impl Fn(&mut NodeFacts)) {
    names.iter().for_each(|name| change(&mut view.nodes.get_mut(*name).unwrap().facts));
}

fn falls(facts: &mut NodeFacts) {
    (facts.ready, facts.not_ready_since) = (false, Some(t(200)));
}

fn gets_ready(facts: &mut NodeFacts) {
    is_ready_since(facts, 390);
}

fn is_ready_since(facts: &mut NodeFacts, second: i64) {
    (facts.ready, facts.ready_since, facts.not_ready_since) = (true, Some(t(second)), None);
}

fn is_removed(facts: &mut NodeFacts) {
    facts.removed_by = Some("ToBeDeletedByClusterAutoscaler".into());
}

fn is_in_zone(facts: &mut NodeFacts) {
    facts.labels = std::sync::Arc::new([(models::names::ZONE_LABEL.to_owned(), "a".to_owned())].into());
}

/// Two nodes without the version fall, which are all others of the zone.
fn zone_down(view: &mut ClusterView) {
    change_each(view, &["n08", "n09"], falls);
    change_each(view, &["n00", "n01", "n02", "n08", "n09"], is_in_zone);
}

/// Four of ten nodes have proven the version. Three of them are not Ready since 200 s, and no canary step is due.
#[test]
fn proven_nodes_that_were_not_ready_brake_the_rollout_also_once_they_are_replaced() {
    type Change = fn(&mut ClusterView);
    let nothing: Change = |_| {};
    let gone: Change = |view| view.nodes.retain(|name, _| !FALLEN.contains(&name.as_str()));
    let ready: Change = |view| change_each(view, &FALLEN, gets_ready);
    let removed: Change = |view| change_each(view, &FALLEN, is_removed);
    let held: Change = |view| change_each(view, &FALLEN, |facts| facts.hold = Some(crate::hold::Hold::default()));
    let unlabelled: Change = |view| change_each(view, &FALLEN, |facts| facts.labelled = false);
    let cordoned: Change = |view| {
        let cordon = |facts: &mut NodeFacts| (facts.unschedulable, facts.cordoned_since) = (true, Some(t(190)));
        change_each(view, &FALLEN, cordon);
    };
    let replaced: Change = |view| view.nodes.extend(FALLEN.map(|name| (name.to_owned(), node(name))));
    let well: Change = |view| change_each(view, &FALLEN, |facts| is_ready_since(facts, 4400));
    let well_for_less: Change = |view| change_each(view, &FALLEN, |facts| is_ready_since(facts, 4401));
    let well_since_unknown: Change = |view| {
        change_each(view, &FALLEN, gets_ready);
        change_each(view, &FALLEN, |facts| facts.ready_since = None);
    };
    let taken_back: Change = |view| {
        change_each(view, &FALLEN, gets_ready);
        change_each(view, &FALLEN, |facts| facts.os_image = format!("Bottlerocket OS {OLD} (aws-k8s-1.37)"));
    };
    let two: Change = |view| change_each(view, &["n02"], gets_ready);
    let outage: Change = |view| change_each(view, &["n07", "n08", "n09"], falls);
    let zone_off: Change = |view| {
        zone_down(view);
        let hold = |facts: &mut NodeFacts| {
            (facts.hold, facts.held_since) = (Some(crate::hold::Hold::default()), Some(t(190)));
        };
        change_each(view, &["n08", "n09"], hold);
    };
    let other_zone: Change = |view| {
        change_each(view, &["n08", "n09"], falls);
        change_each(view, &FALLEN, is_in_zone);
    };
    let others_held: Change = |view| {
        view.nodes.values_mut().skip(4).for_each(|node| node.facts.hold = Some(crate::hold::Hold::default()));
    };
    let gone_and_unheld: Change = |view| {
        view.nodes.retain(|name, _| !FALLEN.contains(&name.as_str()));
        view.nodes.values_mut().for_each(|node| node.facts.hold = None);
    };
    let cases: [(&str, Change, i64, Change, bool); 21] = [
        ("for three minutes", nothing, 380, nothing, true),
        ("and gone", nothing, 380, gone, true),
        ("and other machines have their names", nothing, 380, replaced, true),
        ("and their removal begins", nothing, 380, removed, true),
        ("and they are held", nothing, 380, held, true),
        ("and they lose their labels", nothing, 380, unlabelled, true),
        ("and they are Ready again", nothing, 380, ready, false),
        ("and they have been Ready again for an hour", nothing, 380, well, false),
        ("and they have been Ready again for less", nothing, 380, well_for_less, true),
        ("and they are Ready again, since when is not known", nothing, 380, well_since_unknown, true),
        ("and they are Ready again on the old version", nothing, 380, taken_back, true),
        ("two of them", two, 380, gone, false),
        ("for a minute, and gone, as spot instances", nothing, 260, gone, false),
        ("gone while they were Ready", ready, 380, gone, false),
        ("cordoned before", cordoned, 380, gone, false),
        ("an autoscaler was removing them", removed, 380, gone, false),
        ("and the others are held until they are gone", others_held, 380, gone_and_unheld, true),
        ("like half of the others, as in an outage", outage, 380, gone, false),
        ("like the others of their zone", zone_down, 380, gone, false),
        ("and the others of their zone are held and off", zone_off, 380, gone, true),
        ("like some of another zone", other_zone, 380, gone, true),
    ];
    for (sentence, before, seen, change, braked) in cases {
        // Between two waves of the release no node has the version as its target.
        for (urgent, in_wave) in [(false, true), (true, true), (false, false)] {
            let mut policy = policy(&[]);
            let until = t(100_000);
            policy.urgent = urgent.then(|| crate::policy::Urgent { from: NEW, reason: "CVE-2026-1234".into(), until });
            let mut view = fleet(10, 4, 0);
            let run = |facts: &mut NodeFacts| facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
            change_each(&mut view, &["n00", "n01", "n02", "n03"], run);
            let follow = |view: &mut ClusterView, second: i64| {
                let targets = usize::from(in_wave || second != seen);
                let rollouts = wanting(view, &policy, &[NEW][..targets], second);
                view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
            };
            follow(&mut view, 100);
            change_each(&mut view, &FALLEN, falls);
            before(&mut view);
            follow(&mut view, seen);
            change(&mut view);
            follow(&mut view, 400);
            follow(&mut view, 8000);
            let rollout = &view.operator.as_ref().unwrap().status.active_rollouts[0];
            let context = format!("{sentence}, urgent: {urgent}, in a wave: {in_wave}: {:?}", rollout.ledger);
            assert_eq!(rollout.is_braked(), braked, "{context}");
        }
    }
}

/// Four of ten nodes have proven the version, of which three are not Ready since 200 s, and the waves of the others have not come.
#[test]
fn rollout_is_braked_and_stays_so_while_its_hosts_wait_for_their_waves() {
    let (new, policy) = (NEW, policy(&[]));
    let mut view = fleet(10, 4, 0);
    let run = |facts: &mut NodeFacts| facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    change_each(&mut view, &["n00", "n01", "n02", "n03"], run);
    let begun = followed(&view, &policy, 100).active;
    view.operator.as_mut().unwrap().status.active_rollouts = begun;
    change_each(&mut view, &FALLEN, falls);
    let wake = |view: &mut ClusterView, second: i64| {
        let later = view.nodes.values().filter(|node| node.record().is_none()).map(|node| (node, &new));
        let rollouts = follow(view, &policy, std::iter::empty(), later, t(second));
        view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
        rollouts.wake
    };
    let is_braked = |view: &ClusterView| view.operator.as_ref().unwrap().status.active_rollouts[0].is_braked();
    assert_eq!(wake(&mut view, 300), Some(t(380)));
    // What is recorded at first brakes it in the next plan.
    wake(&mut view, 380);
    wake(&mut view, 381);
    assert!(is_braked(&view));
    view.nodes.retain(|name, _| !FALLEN.contains(&name.as_str()));
    wake(&mut view, 8000);
    assert!(is_braked(&view));
}

/// The canary soaks for two hours from 100 s on, in which it may not have been Ready for a minute, unseen by any leader.
#[test]
fn soak_of_a_step_begins_again_with_a_node_that_is_ready_again() {
    type Change = fn(&mut ClusterView);
    fn all_since(view: &mut ClusterView, second: i64) {
        view.nodes.values_mut().for_each(|node| node.facts.ready_since = Some(t(second)));
    }
    let before: Change = |view| all_since(view, 50);
    let early: Change = |view| all_since(view, 150);
    let all: Change = |view| all_since(view, 3990);
    let down: Change = |view| view.nodes.values_mut().skip(1).for_each(|node| falls(&mut node.facts));
    let joined: Change = |view| {
        all_since(view, 3990);
        view.nodes.values_mut().for_each(|node| node.facts.created = Some(t(3900)));
        change_each(view, &["n09"], |facts| (facts.created, facts.ready_since) = (None, None));
    };
    let again: Change = |view| change_each(view, &["n00"], |facts| facts.ready_since = Some(t(4000)));
    let ahead: Change = |view| change_each(view, &["n00"], |facts| facts.ready_since = Some(t(100_000)));
    let nothing: Change = |_| {};
    for (sentence, others, canary, soaked) in [
        ("since when it is Ready is not known", nothing, nothing, 7300),
        ("Ready since before the soak", before, nothing, 7300),
        ("Ready again in the soak", before, again, 11_200),
        ("so are the others, as after an outage", all, again, 7300),
        ("the others are not Ready yet", down, again, 7300),
        ("so were the others more than an hour before", early, again, 11_200),
        ("most of the others have joined since", joined, again, 11_200),
        ("by a clock that is ahead", before, ahead, 7300),
    ] {
        let policy = policy(&[step("1", 7200, false)]);
        let mut view = fleet(10, 1, 0);
        let run = |facts: &mut NodeFacts| facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        change_each(&mut view, &["n00"], run);
        let follow = |view: &mut ClusterView, second: i64| {
            let active = followed(view, &policy, second).active;
            let stored = &mut view.operator.as_mut().unwrap().status.active_rollouts;
            let before = std::mem::replace(stored, active);
            (stored[0].steps_passed, stored[0].step_done == before[0].step_done)
        };
        follow(&mut view, 100);
        others(&mut view);
        canary(&mut view);
        follow(&mut view, 4100);
        assert_eq!(follow(&mut view, soaked - 1), (0, true), "{sentence}: it soaks, and its begin stays");
        assert_eq!(follow(&mut view, soaked).0, 1, "{sentence}");
    }
}

/// The canary was not Ready for three minutes before the version became urgent, and may be gone since.
#[test]
fn urgent_version_waits_for_no_node_that_was_not_ready() {
    for gone in [false, true] {
        let mut policy = policy(&[step("1", 3600, false)]);
        let mut view = fleet(4, 1, 0);
        let facts = &mut view.nodes.get_mut("n00").unwrap().facts;
        facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        (facts.ready, facts.not_ready_since) = (false, Some(t(200)));
        for second in [100, 380] {
            let rollouts = followed(&view, &policy, second);
            let waits = matches!(one(&rollouts).wait, Some(Wait::StepUnproven { .. }));
            assert_eq!(waits, second == 380, "{second}: {:?}", one(&rollouts).wait);
            view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
        }
        if gone {
            view.nodes.remove("n00");
        }
        policy.urgent = Some(crate::policy::Urgent { from: NEW, reason: "CVE-2026-1234".into(), until: t(10_000) });
        let urgent = followed(&view, &policy, 400);
        assert_eq!(urgent.active[0].steps_passed, 1, "gone: {gone}: {:?}", one(&urgent).wait);
    }
}

/// The step is approved in its soak of ten minutes, and its node is not Ready from 200 s on.
#[test]
fn approval_stays_while_a_node_that_was_not_ready_may_be_back() {
    let policy = policy(&[step("1", 600, true)]);
    let mut view = fleet(4, 1, 0);
    view.nodes.get_mut("n00").unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    view.operator.as_mut().unwrap().approve_step = Some("7/1@early".into());
    for (second, ready, approved, passed) in [
        (100, true, true, 0),
        (380, false, true, 0),
        (1000, false, true, 0),
        (1100, true, true, 0),
        (4610, true, true, 0),
        (5209, true, true, 0),
        (5210, true, false, 1),
    ] {
        let facts = &mut view.nodes.get_mut("n00").unwrap().facts;
        (facts.ready, facts.not_ready_since) = (ready, Some(t(200)).filter(|_| !ready));
        facts.ready_since = Some(t(1010)).filter(|_| ready);
        let rollouts = followed(&view, &policy, second);
        let active = &rollouts.active[0];
        assert_eq!((active.approved, active.steps_passed), (approved, passed), "{second}: {:?}", one(&rollouts).wait);
        let operator = view.operator.as_mut().unwrap();
        (operator.status.active_rollouts, operator.approve_step) = (rollouts.active, None);
    }
}

/// The place of a node is accepted while it is still there.
#[test]
fn node_that_is_not_ready_holds_no_step_once_a_user_has_accepted_it() {
    let policy = policy(&[step("1", 0, false)]);
    let mut view = fleet(4, 1, 0);
    let facts = &mut view.nodes.get_mut("n00").unwrap().facts;
    facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (facts.ready, facts.not_ready_since) = (false, Some(t(0)));
    for (second, approval, passed) in [(100, None, 0), (200, None, 0), (300, Some("7/1/unproven@yes"), 1)] {
        view.operator.as_mut().unwrap().approve_step = approval.map(str::to_owned);
        let rollouts = followed(&view, &policy, second);
        assert_eq!(rollouts.active[0].steps_passed, passed, "{second}: {:?}", one(&rollouts).wait);
        view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
    }
}

/// One place is passed, and the three of the next step are used up and proven, when policy has other steps for a moment.
#[test]
fn steps_that_policy_lacks_for_a_moment_are_not_passed() {
    let steps = [step("1", 0, false), step("3", 600, true)];
    let (none, first, second): (&[CanaryStep], &[CanaryStep], &[CanaryStep]) = (&[], &steps[..1], &steps[1..]);
    for (sentence, meanwhile) in [
        ("no steps for two turns", vec![none, none]),
        ("no steps for one turn", vec![none]),
        ("the first one alone", vec![first, first]),
        ("the first one alone, then none", vec![first, none]),
        ("none, then the second one alone", vec![none, second]),
    ] {
        let mut view = fleet(4, 3, 0);
        let ledger = RolloutLedger { base: 4, passed: 1, due: 3, share: 3, proven: 3, ..RolloutLedger::default() };
        let recorded = ActiveRollout { steps_passed: 1, step_done: Some(t(0)), ledger: Some(ledger), ..numbered(7) };
        view.operator.as_mut().unwrap().status.active_rollouts = vec![recorded];
        for (now, steps) in (10..).zip(meanwhile.iter().copied().chain([&steps[..]])) {
            let rollouts = followed(&view, &policy(steps), now);
            view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
        }
        let restored = policy(&steps);
        let soaking = followed(&view, &restored, 100);
        assert!(one(&soaking).wait.as_ref().is_some_and(|wait| wait.ends_at().is_some()), "{sentence}: it soaks");
        view.operator.as_mut().unwrap().status.active_rollouts = soaking.active;
        let soaked = followed(&view, &restored, 1000);
        let wait =
            Wait::CanaryStep { step: 2, until: None, approval: Some("7/3".into()), nodes: vec![], none_runs: false };
        assert_eq!((one(&soaked).wait.as_ref(), one(&soaked).left), (Some(&wait), Some(0)), "{sentence}");
    }
}

#[test]
fn step_that_is_due_again_is_not_approved_any_more() {
    let policy = policy(&[step("1", 0, true), step("2", 0, true)]);
    let mut view = fleet(4, 1, 0);
    let ledger = RolloutLedger { base: 4, proven: 1, passed: 1, due: 2, ..RolloutLedger::default() };
    for (sentence, passed, approved, due, expected) in [
        ("the second one was passed", 2, 2, 2, None),
        ("the second one is due and approved", 1, 2, 2, Some(2)),
        ("the same, and it has other places now", 1, 2, 3, None),
        ("the second one is due", 1, 1, 2, Some(1)),
    ] {
        view.operator.as_mut().unwrap().status.active_rollouts = vec![ActiveRollout {
            steps_passed: passed,
            approved_step: Some(approved),
            ledger: Some(RolloutLedger { due, ..ledger.clone() }),
            ..numbered(7)
        }];
        let rollouts = followed(&view, &policy, 100);
        let found = (rollouts.active[0].steps_passed, rollouts.active[0].approved_step);
        assert_eq!(found, (1, expected), "{sentence}");
    }
}

#[test]
fn approval_passes_only_one_step() {
    let policy = policy(&[step("1", 0, true), step("2", 0, true)]);
    let mut view = fleet(4, 1, 0);
    view.operator.as_mut().unwrap().approve_step = Some("7/1@yes".into());
    let rollouts = followed(&view, &policy, 100);
    assert!(rollouts.approval_taken);
    assert_eq!(rollouts.active[0].steps_passed, 1);
    assert_eq!(one(&rollouts).room_to_begin(), Some(1), "the second step's node");
    // Acknowledged: the same value approves nothing more.
    let operator = view.operator.as_mut().unwrap();
    operator.status.active_rollouts = rollouts.active;
    operator.status.requests.get_or_insert_default().approve_step = Some("7/1@yes".into());
    let mut two = fleet(4, 2, 0);
    two.operator = view.operator;
    let rollouts = followed(&two, &policy, 101);
    let second =
        Wait::CanaryStep { step: 2, until: None, approval: Some("7/2".into()), nodes: vec![], none_runs: false };
    assert_eq!(one(&rollouts).wait, Some(second));
}

#[test]
fn approval_during_soak_takes_effect_after_soak() {
    let policy = policy(&[step("1", 600, true), step("2", 0, true)]);
    let mut view = fleet(4, 1, 0);
    view.operator.as_mut().unwrap().approve_step = Some("7/1@early".into());
    let soaking = followed(&view, &policy, 100);
    assert!(soaking.approval_taken && soaking.active[0].approved, "it is recorded, and acknowledged");
    let operator = view.operator.as_mut().unwrap();
    (operator.status.active_rollouts, operator.approve_step) = (soaking.active, None);
    assert_eq!(one(&followed(&view, &policy, 699)).room_to_begin(), Some(0), "the soak is waited for");
    let soaked = followed(&view, &policy, 700);
    assert_eq!((soaked.active[0].steps_passed, one(&soaked).room_to_begin()), (1, Some(1)));
}

#[test]
fn approval_without_waiting_step_is_acknowledged_without_effect() {
    for (sentence, steps, done, value) in [
        ("it names no step", vec![step("1", 0, true)], 1, "yes"),
        ("it names another step", vec![step("1", 0, true), step("2", 0, true)], 1, "7/2@yes"),
        ("it names another rollout", vec![step("1", 0, true)], 1, "9/1@yes"),
        ("it names one without a record", vec![step("1", 0, true)], 1, "0/1@yes"),
        ("it cannot be read", vec![step("1", 0, true)], 1, "7/one@yes"),
        ("the step that soaks needs no approval", vec![step("1", 600, false), step("2", 0, true)], 1, "7/1@yes"),
        ("all places are proven", vec![step("1", 600, false)], 1, "7/1/unproven@yes"),
        ("there are no steps", vec![], 0, "7/1@yes"),
    ] {
        let mut view = fleet(4, done, 0);
        view.operator.as_mut().unwrap().approve_step = Some(value.into());
        let rollouts = followed(&view, &policy(&steps), 100);
        assert!(rollouts.approval_taken, "{sentence}: it is acknowledged");
        let found = (rollouts.active[0].steps_passed, rollouts.active[0].approved_step);
        assert_eq!(found, (0, None), "{sentence}");
    }
    let mut view = fleet(4, 1, 0);
    let operator = view.operator.as_mut().unwrap();
    (operator.status.active_rollouts, operator.approve_step) = (vec![rollout(NEW)], Some("0/1@yes".into()));
    let rollouts = followed(&view, &policy(&[step("1", 0, true)]), 100);
    assert_eq!(rollouts.active[0].steps_passed, 0, "no rollout without a record has a name");
}

/// Nodes of two architectures.
fn two_kinds(done: &[&str]) -> ClusterView {
    let mut view = fleet(4, 0, 0);
    for (name, node) in &mut view.nodes {
        let status = &mut node.shadow.as_mut().unwrap().status;
        if matches!(name.as_str(), "n02" | "n03") {
            status.agent.arch = Some("aarch64".into());
        }
        if done.contains(&name.as_str()) {
            status.controller.record = Some(finished());
        }
    }
    let arm = ActiveRollout { arch: "aarch64".into(), ..numbered(8) };
    view.operator.as_mut().unwrap().status.active_rollouts.push(arm);
    view
}

#[test]
fn canary_step_is_counted_per_variant_and_architecture() {
    let room = |view: &ClusterView, steps: &[CanaryStep]| {
        let rollouts = followed(view, &policy(steps), 100);
        ["n00", "n02"].map(|name| rollouts.of(&view.nodes[name], &NEW).unwrap().room_to_begin())
    };
    let one = [step("1", 0, false)];
    assert_eq!(room(&two_kinds(&[]), &one), [Some(1), Some(1)]);
    assert_eq!(room(&two_kinds(&["n00"]), &one), [None, Some(1)], "one kind passes no step for the other");
    assert_eq!(room(&two_kinds(&["n00", "n02"]), &one), [None, None]);
    assert_eq!(room(&two_kinds(&["n00"]), &[step("50%", 0, false)]), [None, Some(1)], "of the nodes of its kind");
}

#[test]
fn approval_passes_one_step_for_all_variants_and_architectures() {
    let policy = policy(&[step("1", 0, true), step("2", 0, true)]);
    let mut view = two_kinds(&["n00", "n02"]);
    view.operator.as_mut().unwrap().approve_step = Some("7/1,8/1@yes".into());
    let rollouts = followed(&view, &policy, 100);
    assert!(rollouts.approval_taken);
    assert_eq!(rollouts.active.iter().map(|active| active.steps_passed).collect::<Vec<_>>(), [1, 1]);
}

/// Of two versions, steps of the older one and of two kinds of the newer one wait.
#[test]
fn command_that_is_shown_for_a_step_names_its_rollout() {
    let newer = Version::new(1, 21, 0);
    let mut view = two_kinds(&["n00", "n02"]);
    let ledger = RolloutLedger { base: 4, due: 1, share: 1, unproven: 1, ..RolloutLedger::default() };
    let unproven = ActiveRollout { ledger: Some(ledger), record: Some(recorded(9)), ..rollout(newer.clone()) };
    view.operator.as_mut().unwrap().status.active_rollouts.push(unproven);
    let rollouts = wanting(&view, &policy(&[step("1", 0, true)]), &[NEW, newer], 100);
    let command = |wait: &Wait| wait.step().map(|(step, request)| request.arguments(step, ""));
    let mut commands: Vec<_> = rollouts.awaiting_approval().iter().filter_map(command).collect();
    assert_eq!(commands.first().map(String::as_str), Some("approve 1 --rollout 9 --unproven"), "the newest first");
    commands.sort();
    assert_eq!(commands, ["approve 1 --rollout 7", "approve 1 --rollout 8", "approve 1 --rollout 9 --unproven"]);
}

#[test]
fn approval_covers_all_variants_still_soaking() {
    let policy = policy(&[step("1", 600, true), step("2", 0, true)]);
    let mut view = two_kinds(&["n00", "n02"]);
    let operator = view.operator.as_mut().unwrap();
    operator.approve_step = Some("7/1,8/1@yes".into());
    for (active, done) in operator.status.active_rollouts.iter_mut().zip([0, 300]) {
        active.step_done = Some(t(done));
    }
    let soaking = followed(&view, &policy, 400);
    assert!(soaking.approval_taken);
    let operator = view.operator.as_mut().unwrap();
    (operator.status.active_rollouts, operator.approve_step) = (soaking.active, None);
    for (now, expected) in [(650, [1, 0]), (950, [1, 1])] {
        let mut passed: Vec<_> = followed(&view, &policy, now).active.iter().map(|r| r.steps_passed).collect();
        passed.sort_by(|a, b| b.cmp(a));
        assert_eq!(passed, expected, "{now}");
    }
}

#[test]
fn rollout_repeats_its_steps_after_rollback() {
    let policy = policy(&[step("1", 0, false)]);
    let older = Version::new(1, 20, 1);
    let mut view = fleet(4, 1, 0);
    let out = followed(&view, &policy, 100);
    assert_eq!(one(&out).room_to_begin(), None, "the step is passed");
    view.operator.as_mut().unwrap().status.active_rollouts = out.active;
    let idle = wanting(&view, &policy, &[], 200);
    view.operator.as_mut().unwrap().status.active_rollouts = idle.active;
    assert_eq!(one(&followed(&view, &policy, 300)).room_to_begin(), None, "a node that comes late is no canary");

    let back = wanting(&view, &policy, std::slice::from_ref(&older), 400);
    assert_eq!(of(&back, &older).room_to_begin(), Some(1), "the way back has steps of its own");
    assert_eq!(back.active[1].ended, Some(t(400)));
    view.operator.as_mut().unwrap().status.active_rollouts = back.active;
    let again = followed(&view, &policy, 500);
    assert_eq!(one(&again).room_to_begin(), Some(1), "and so has the next way out");
    // The earlier one stays until the history has its end.
    assert_eq!((again.active[0].started, again.active.len()), (t(500), 3));
    view.operator.as_mut().unwrap().status.active_rollouts = again.active;
    let next = followed(&view, &policy, 501);
    assert_eq!(one(&next).room_to_begin(), Some(1), "nothing that was proven before is of it");
}

#[test]
fn canary_wait_message_names_nodes_of_step() {
    let policy = policy(&[step("2", 0, false)]);
    let mut view = fleet(4, 0, 2);
    view.nodes.get_mut("n01").unwrap().facts.ready = false;
    let rollouts = followed(&view, &policy, 100);
    let text = one(&rollouts).wait.as_ref().unwrap().to_string();
    assert_eq!(text, "canary step 1 is not passed; it waits for n00, n01 (not Ready)");
}

#[test]
fn new_version_starts_at_first_canary_step() {
    let policy = policy(&[step("1", 0, false)]);
    let view = fleet(4, 2, 0);
    let newer = Version::new(1, 21, 0);
    let rollouts = wanting(&view, &policy, std::slice::from_ref(&newer), 100);
    assert_eq!(of(&rollouts, &newer).room_to_begin(), Some(1));
    assert_eq!((&rollouts.active[0].version, rollouts.active[0].started), (&newer, t(100)));
    assert_eq!(rollouts.active[1].version, NEW, "the last one stays to be read, and in case it comes back");
}

#[test]
fn canary_steps_are_passed_separately_for_each_version() {
    let policy = policy(&[step("1", 0, false)]);
    let newer = Version::new(1, 21, 0);
    // One node was updated to the older of two versions that are under way, after both had begun.
    let mut view = fleet(4, 1, 0);
    view.operator.as_mut().unwrap().status.active_rollouts.push(rollout(newer.clone()));
    let rollouts = wanting(&view, &policy, &[NEW, newer.clone()], 100);
    assert_eq!(of(&rollouts, &NEW).room_to_begin(), None, "passed");
    assert_eq!(of(&rollouts, &newer).room_to_begin(), Some(1), "not passed by the other one's node");
}

#[test]
fn passed_step_stays_passed_after_node_deletion() {
    let policy = policy(&[step("2", 0, false)]);
    let mut view = fleet(4, 2, 0);
    let rollouts = followed(&view, &policy, 100);
    view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
    view.nodes.retain(|name, _| name != "n00" && name != "n01");
    assert_eq!(one(&followed(&view, &policy, 101)).room_to_begin(), None);
}

#[test]
fn canary_step_counts_and_lists_disrupted_nodes_and_nodes_with_slots() {
    let policy = policy(&[step("9", 0, false)]);
    let mut view = fleet(9, 0, 6);
    // Two are only staged, and one of these has a slot.
    for name in ["n00", "n01"] {
        let shadow = view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap();
        let progress = shadow.status.controller.progress.as_mut().unwrap();
        (progress.step, progress.disruptive) = (Step::Staged, false);
    }
    view.operator.as_mut().unwrap().status.slots = vec![slot("n01")];
    let rollouts = followed(&view, &policy, 100);
    let rollout = one(&rollouts);
    assert_eq!((rollout.under_way, rollout.disrupted), (5, 5), "all but the one that is only staged");
    let nodes = ["n01", "n02", "n03"].map(str::to_owned).to_vec();
    let wait = Wait::CanaryStep { step: 1, until: None, approval: None, nodes, none_runs: false };
    assert_eq!(rollout.wait, Some(wait), "the first few are named");
}

#[test]
fn staging_node_counts_in_canary_step_but_not_as_disrupted() {
    let mut view = fleet(4, 0, 1);
    let progress = &mut view.nodes.get_mut("n00").unwrap().shadow.as_mut().unwrap().status.controller.progress;
    *progress = Some(models::shadow::Progress { step: Step::Staging, disruptive: false, ..progress.clone().unwrap() });
    let rollouts = followed(&view, &policy(&[step("2", 0, false)]), 100);
    assert_eq!((one(&rollouts).under_way, one(&rollouts).disrupted), (1, 0));
    let nodes = vec!["n00".to_owned()];
    assert_eq!(
        one(&rollouts).wait,
        Some(Wait::CanaryStep { step: 1, until: None, approval: None, nodes, none_runs: false })
    );
}

#[test]
fn entries_beyond_the_room_are_removed_unless_they_are_needed_or_under_way() {
    let ended = |patch: usize, used: i64| {
        let ledger = RolloutLedger { proven: used, ..RolloutLedger::default() };
        let version = Version::new(1, 0, patch as u64);
        ActiveRollout { ended: Some(t(0)), ledger: Some(ledger), ..rollout(version) }
    };
    let running = || ActiveRollout { ledger: Some(RolloutLedger::default()), ..rollout(NEW) };
    let idle = || ActiveRollout { version: OLD, ..running() };
    let needed = || ActiveRollout { record: Some(recorded(7)), ..ended(100, 0) };
    let over = || ActiveRollout { record: Some(RolloutRecord { ended: Some(t(0)), ..recorded(7) }), ..ended(100, 0) };
    let used = |count: usize| (0..count).map(move |patch| ended(patch, 1));
    for (sentence, active, highest, kept) in [
        ("as many as there is room for", used(KEPT).collect::<Vec<_>>(), Some(9), KEPT),
        ("more", used(KEPT + 2).collect(), Some(9), KEPT),
        ("more, and their records are not known", used(KEPT + 2).collect(), None, KEPT + 2),
        ("one that is under way, beside them", [running()].into_iter().chain(used(KEPT)).collect(), Some(9), KEPT + 1),
        ("one whose record runs, beside them", [needed()].into_iter().chain(used(KEPT)).collect(), Some(9), KEPT + 1),
        ("one that has shown nothing", vec![ended(0, 0)], Some(9), 0),
        ("one of another version that has shown nothing and may go on", vec![idle()], Some(9), 0),
        ("one that has a record", vec![over()], Some(9), 1),
    ] {
        let mut view = fleet(1, 0, 0);
        view.history.highest = highest;
        let keys = BTreeSet::from([key_of(&running())]);
        let mut rollouts = Rollouts { active, ..Rollouts::default() };
        limit(&view, &mut rollouts, &keys);
        assert_eq!(rollouts.active.len(), kept, "{sentence}");
    }
}

/// An end of an attempt, as the ledger of its rollout names it.
fn entry(node: &str, proof: Proof, reason: &str) -> LedgerNode {
    LedgerNode { node: node.into(), proof, reason: reason.into(), accepted: false, before_proof: false }
}

/// The same, accepted by a user.
fn accepted(end: LedgerNode) -> LedgerNode {
    LedgerNode { accepted: true, ..end }
}

/// Rollout 7, with this ledger.
fn with_ledger(ledger: RolloutLedger) -> ActiveRollout {
    ActiveRollout { ledger: Some(ledger), ..numbered(7) }
}

/// The slot of a node, whose reboot may be permitted since 0 s.
fn permitted(name: &str) -> Slot {
    Slot { update: Some(SlotUpdate { permitting_since: Some(t(0)), ..first_update() }), ..slot(name) }
}

/// Nodes without a place that are left, and places of nodes that are gone.
#[test]
fn rollout_counts_the_nodes_that_it_has_to_update_and_those_that_are_left() {
    type Change = fn(&mut ClusterView, &mut RolloutLedger);
    fn runs(view: &mut ClusterView, version: &Version) {
        let os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
        change_each(view, &["n00"], |facts| facts.os_image.clone_from(&os_image));
    }
    let case = |sentence: &str, expected: (usize, usize), change: Change| {
        let (mut view, mut ledger) = (fleet(4, 0, 0), RolloutLedger::default());
        change(&mut view, &mut ledger);
        view.operator.as_mut().unwrap().status.active_rollouts = vec![with_ledger(ledger)];
        let rollouts = followed(&view, &policy(&[]), 100);
        assert_eq!((one(&rollouts).base, one(&rollouts).nodes), expected, "{sentence}");
    };
    case("all of four", (4, 4), |_, _| {});
    case("one came to the version by itself", (3, 3), |view, _| runs(view, &NEW));
    case("one runs a later version", (3, 3), |view, _| runs(view, &Version::new(1, 20, 6)));
    case("one is not under the operator", (3, 3), |view, _| {
        change_each(view, &["n00"], |facts| facts.labelled = false);
    });
    case("two have failed, of which one is gone, in records without places", (5, 5), |_, ledger| {
        let ends = ["n00", "gone"].map(|name| entry(name, Proof::Failed, "SoakFailed"));
        (ledger.failed, ledger.nodes) = (2, ends.into());
    });
}

/// The step is full with fewer nodes than there were when the rollout gave its first slot.
#[test]
fn step_that_is_passed_with_all_of_its_places_leaves_the_number_of_nodes() {
    let mut view = fleet(3, 2, 0);
    let ledger = RolloutLedger { base: 4, due: 2, share: 2, proven: 2, ..RolloutLedger::default() };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![with_ledger(ledger)];
    let rollouts = followed(&view, &policy(&[step("50%", 0, false)]), 100);
    assert_eq!((rollouts.active[0].steps_passed, one(&rollouts).base), (1, 4));
}

#[test]
fn node_is_busy_once_while_it_has_a_slot_or_is_out_of_service() {
    for (sentence, at, slots, busy) in [
        ("its image is downloaded", Step::Staging, vec![], 0),
        ("it is drained", Step::Draining, vec![Slot { update: Some(first_update()), ..slot("n00") }], 1),
        ("it is drained, and its slot was lost with the resource", Step::Draining, vec![], 1),
        ("it is released, and its slot is taken away", Step::Releasing, vec![], 0),
    ] {
        let mut view = fleet(4, 0, 1);
        let status = &mut view.nodes.get_mut("n00").unwrap().shadow.as_mut().unwrap().status;
        status.controller.progress = Some(progress(at, 1));
        view.operator.as_mut().unwrap().status.slots = slots;
        let rollouts = followed(&view, &policy(&[]), 100);
        assert_eq!(one(&rollouts).busy.len(), busy, "{sentence}: {:?}", one(&rollouts).busy);
    }
}

/// Under a canary step of nine.
#[test]
fn canary_step_names_a_node_with_a_slot_once_and_the_first_few_machines_whose_nodes_are_gone() {
    let named = |view: &ClusterView| match &one(&followed(view, &policy(&[step("9", 0, false)]), 100)).wait {
        Some(Wait::CanaryStep { nodes, .. }) => nodes.clone(),
        other => panic!("{other:?}"),
    };
    let mut view = fleet(9, 0, 1);
    view.operator.as_mut().unwrap().status.slots = vec![Slot { update: Some(first_update()), ..slot("n00") }];
    assert_eq!(named(&view), ["n00"]);
    let mut view = fleet(9, 0, 0);
    view.operator.as_mut().unwrap().status.slots = ["g1", "g2", "g3", "g4"].map(permitted).into();
    assert_eq!(named(&view).len(), 3, "{:?}", named(&view));
}

#[test]
fn reason_of_a_full_step_names_the_nodes_that_keep_it_from_being_passed() {
    let unproven = |node| entry(node, Proof::Unproven, "HookTimedOut");
    for (sentence, failed, nodes, expected) in [
        ("one has failed", 1, vec![unproven("x1"), entry("x2", Proof::Failed, "SoakFailed")], "x2 (SoakFailed)"),
        ("a user has accepted another", 0, vec![accepted(unproven("x1")), unproven("x2")], "x2 (HookTimedOut)"),
    ] {
        let mut view = fleet(4, 0, 0);
        let accepted = i64::from(failed == 0);
        let unproven = 2 - failed;
        let ledger = RolloutLedger { due: 2, share: 2, unproven, accepted, failed, nodes, ..RolloutLedger::default() };
        view.operator.as_mut().unwrap().status.active_rollouts = vec![with_ledger(ledger)];
        let rollouts = followed(&view, &policy(&[step("2", 0, false)]), 100);
        let named = match &one(&rollouts).wait {
            Some(Wait::StepFailed { nodes, .. } | Wait::StepUnproven { nodes, .. }) => nodes.clone(),
            other => panic!("{sentence}: {other:?}"),
        };
        assert_eq!(named, [expected], "{sentence}");
    }
}

/// The other place of the step is that of a node that a user has accepted.
#[test]
fn node_that_is_not_ready_holds_a_step_although_a_user_has_accepted_another() {
    let mut view = fleet(4, 1, 0);
    change_each(&mut view, &["n00"], |facts| {
        facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        (facts.ready, facts.not_ready_since) = (false, Some(t(0)));
    });
    let nodes = vec![accepted(entry("x1", Proof::Unproven, "HookTimedOut"))];
    let ledger =
        RolloutLedger { due: 2, share: 2, proven: 1, unproven: 1, accepted: 1, nodes, ..RolloutLedger::default() };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![with_ledger(ledger)];
    let rollouts = followed(&view, &policy(&[step("2", 0, false)]), 100);
    let nodes = vec!["n00 (not Ready)".to_owned()];
    assert_eq!(
        one(&rollouts).wait,
        Some(Wait::CanaryStep { step: 1, until: None, approval: None, nodes, none_runs: false })
    );
}

/// The place of the step was proven, and is not any more. It needs an approval.
#[test]
fn approval_of_a_step_stays_only_for_a_node_that_may_be_well_again() {
    let fallen = |node| entry(node, Proof::Unproven, NOT_READY);
    let unproven = |node| entry(node, Proof::Unproven, "HookTimedOut");
    for (sentence, approved, nodes, stays) in [
        ("its node is not Ready", true, vec![fallen("x1")], true),
        ("the same, and it was not approved", false, vec![fallen("x1")], false),
        ("its node was updated again without a proof", true, vec![unproven("x1")], false),
        (
            "the same, and a user had accepted one that is not Ready",
            true,
            vec![accepted(fallen("x1")), unproven("x2")],
            false,
        ),
    ] {
        let mut view = fleet(4, 0, 0);
        let places = i64::try_from(nodes.len()).unwrap();
        let ledger = RolloutLedger {
            due: places,
            share: places,
            unproven: places,
            accepted: places - 1,
            nodes,
            ..RolloutLedger::default()
        };
        view.operator.as_mut().unwrap().status.active_rollouts =
            vec![ActiveRollout { approved, ..with_ledger(ledger) }];
        let rollouts = followed(&view, &policy(&[step(&places.to_string(), 600, true)]), 100);
        assert_eq!(rollouts.active[0].approved, stays, "{sentence}: {:?}", one(&rollouts).wait);
    }
}

#[test]
fn entry_of_a_rollout_is_that_under_way_for_the_kind_of_a_node() {
    let view = two_kinds(&[]);
    let before = ActiveRollout { ended: Some(t(0)), ..numbered(5) };
    let arm = ActiveRollout { arch: "aarch64".into(), ..numbered(8) };
    let rollouts = Rollouts { active: vec![before, numbered(7), arm], ..Rollouts::default() };
    let found = ["n00", "n02"].map(|name| rollouts.active(&view.nodes[name], &NEW).unwrap().number());
    assert_eq!(found, [7, 8]);
}

/// No other node has the version as its target.
#[test]
fn rollout_is_under_way_until_the_machine_of_a_node_that_is_gone_had_its_time() {
    let policy = policy(&[]);
    let mut view = fleet(2, 0, 0);
    let status = &mut view.operator.as_mut().unwrap().status;
    (status.active_rollouts, status.slots) = (Vec::new(), vec![permitted("gone")]);
    let over = i64::try_from((policy.reboot + policy.returning).as_secs()).unwrap();
    for (second, goes_on) in [(1, true), (over - 1, true), (over, false)] {
        let rollouts = wanting(&view, &policy, &[], second);
        assert_eq!(rollouts.of(&view.nodes["n00"], &NEW).is_some(), goes_on, "{second} s");
    }
}

/// Three have ended without a proof, and the pause lasts until 1,000 s.
#[test]
fn retry_ends_the_pause_of_the_rollout_that_its_node_is_for() {
    let new = NEW;
    for (sentence, wanted, begun, ends) in [
        ("a node that is to have the version", true, None, true),
        ("one that is on its way to it", false, Some(NEW), true),
        ("one that is on its way to another version", false, Some(OLD), false),
        ("one that is to have none", false, None, false),
    ] {
        let row = ["x1", "x2", "x3"].map(|name| entry(name, Proof::Free, "AgentSilent")).into();
        let ledger = RolloutLedger { proven: 1, row, braked_until: Some(t(1000)), ..RolloutLedger::default() };
        let mut view = fleet(4, 0, 0);
        view.operator.as_mut().unwrap().status.active_rollouts = vec![with_ledger(ledger)];
        let shadow = view.nodes.get_mut("n00").unwrap().shadow.as_mut().unwrap();
        shadow.retry = Some("now".into());
        shadow.status.controller.progress = begun.map(|version| Progress { version, ..progress(Step::Staged, 1) });
        let name = if wanted { "n00" } else { "n01" };
        let wanted = std::iter::once((&view.nodes[name], &new));
        let rollouts = follow(&view, &policy(&[]), wanted, std::iter::empty(), t(100));
        let followed = rollouts.active.iter().find(|active| active.version == NEW).unwrap();
        let until = followed.ledger.as_ref().unwrap().braked_until;
        assert_eq!(until, Some(if ends { t(100) } else { t(1000) }), "{sentence}");
    }
}

/// It is not known what the hosts may have.
#[test]
fn rollout_is_over_once_the_next_version_has_a_slot_or_a_place() {
    let newer = Version::new(1, 21, 0);
    for (sentence, has_slot, proven, is_over) in [
        ("the next one has begun", false, 0, false),
        ("a node has a slot for it", true, 0, true),
        ("a node has proven it", false, 1, true),
    ] {
        let mut view = fleet(4, 0, 0);
        view.nodes.values_mut().for_each(|node| node.shadow.as_mut().unwrap().status.agent.updates = None);
        let status = &mut view.operator.as_mut().unwrap().status;
        let ledger = RolloutLedger { proven, ..RolloutLedger::default() };
        status.active_rollouts.push(ActiveRollout { ledger: Some(ledger), ..rollout(newer.clone()) });
        let update = SlotUpdate { version: newer.clone(), ..first_update() };
        status.slots.extend(has_slot.then(|| Slot { update: Some(update), ..slot("n00") }));
        let rollouts = wanting(&view, &policy(&[]), std::slice::from_ref(&newer), 100);
        let before = rollouts.active.iter().find(|active| active.version == NEW).unwrap();
        assert_eq!(before.ended, is_over.then(|| t(100)), "{sentence}");
    }
}

/// The last node is updated.
#[test]
fn rollout_without_a_node_is_urgent_until_the_urgency_ends() {
    let mut view = fleet(2, 2, 0);
    view.operator.as_mut().unwrap().status.active_rollouts =
        vec![ActiveRollout { urgent_until: Some(t(1000)), ..numbered(7) }];
    for (sentence, until, expected) in [
        ("it goes on", Some(1000), Some(t(1000))),
        ("another end is another urgency", Some(2000), None),
        ("policy has none any more", None, None),
    ] {
        let reason = "CVE-2026-1234".to_owned();
        let urgent = until.map(|until| crate::policy::Urgent { from: NEW, reason, until: t(until) });
        let policy = Policy { urgent, ..policy(&[]) };
        assert_eq!(wanting(&view, &policy, &[], 100).active[0].urgent_until, expected, "{sentence}");
    }
}

/// A node has proven the version since the end of the rollout.
#[test]
fn ledger_of_a_rollout_that_has_ended_stays_as_it_is() {
    let mut view = fleet(2, 1, 0);
    let ended = ActiveRollout { ended: Some(t(50)), ..with_ledger(RolloutLedger::default()) };
    view.operator.as_mut().unwrap().status.active_rollouts = vec![ended.clone()];
    assert_eq!(wanting(&view, &policy(&[]), &[], 100).active, [ended]);
}

#[test]
fn rollout_goes_on_for_hosts_that_are_to_have_it_later_while_its_record_runs_and_it_may_be_braked() {
    let new = NEW;
    let later: BTreeSet<KeyRef<'_>> = [("aws-k8s-1.37", "x86_64", &new)].into();
    let end = entry("x1", Proof::Free, "AgentSilent");
    for (sentence, record_ended, row, goes_on) in [
        ("an update has ended without a proof", None, vec![end.clone()], true),
        ("the same, and its record has ended", Some(t(1)), vec![end], false),
        ("none has", None, vec![], false),
    ] {
        let record = RolloutRecord { ended: record_ended, ..recorded(7) };
        let ledger = RolloutLedger { row, ..RolloutLedger::default() };
        let stored = ActiveRollout { record: Some(record), ..with_ledger(ledger) };
        let found = going_on(&fleet(1, 0, 0), std::slice::from_ref(&stored), &policy(&[]), &later, t(100));
        assert_eq!(found.len(), usize::from(goes_on), "{sentence}");
    }
}

/// The node is taken out of service for a later version.
#[test]
fn kind_has_gone_on_once_one_of_its_nodes_was_taken_to_another_version_since() {
    type Change = fn(&mut NodeView, &mut Progress);
    let case = |sentence: &str, expected: bool, change: Change| {
        let mut view = fleet(1, 0, 0);
        let node = view.nodes.get_mut("n00").unwrap();
        let mut begun = Progress { version: Version::new(1, 21, 0), started: t(1), ..progress(Step::Draining, 1) };
        change(node, &mut begun);
        node.shadow.as_mut().unwrap().status.controller.progress = Some(begun);
        assert_eq!(has_gone_on(&view, &rollout(NEW)), expected, "{sentence}");
    };
    case("since the rollout began", true, |_, _| {});
    case("with the rollout", false, |_, begun| begun.started = t(0));
    case("its image is downloaded", false, |_, begun| (begun.step, begun.disruptive) = (Step::Staging, false));
    case("to the version", false, |_, begun| begun.version = NEW);
    case("it is of another kind", false, |node, _| {
        node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
    });
}

/// The node has not refreshed since its boot.
#[test]
fn node_may_want_a_version_while_it_is_not_known_what_its_host_may_have() {
    type Change = fn(&mut NodeView);
    fn shadow(node: &mut NodeView) -> &mut crate::view::ShadowFacts {
        node.shadow.as_mut().unwrap()
    }
    let case = |sentence: &str, expected: bool, change: Change| {
        let mut node = node("a");
        shadow(&mut node).status.agent.updates = None;
        change(&mut node);
        assert_eq!(may_want(&node, &policy(&[]), &rollout(NEW), t(100)), expected, "{sentence}");
    };
    case("it runs an earlier one", true, |_| {});
    case("it runs it", false, |node| node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)"));
    case("it is on its way", false, |node| {
        shadow(node).status.controller.progress = Some(progress(Step::Staging, 1));
    });
    case("it is of another kind", false, |node| shadow(node).status.agent.arch = Some("aarch64".into()));
    case("it is not under the operator", false, |node| node.facts.labelled = false);
    case("its host is offered none", false, |node| shadow(node).status.agent.updates = Some(Default::default()));
}

#[test]
fn rollout_is_urgent_while_a_node_of_its_kind_lacks_the_urgent_version_and_stays_so() {
    type Change = fn(&mut NodeView);
    let none: Change = |_| {};
    let updated: Change = |node| node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    let unlabelled: Change = |node| node.facts.labelled = false;
    let of_other_kind: Change = |node| node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
    let until = t(1000);
    let urgent = crate::policy::Urgent { from: NEW, reason: "CVE-2026-1234".into(), until };
    let policy = Policy { urgent: Some(urgent), ..policy(&[]) };
    for (sentence, change, before, expected) in [
        ("its node lacks it", none, None, Some(until)),
        ("its node is not under the operator", unlabelled, None, None),
        ("the node that lacks it is of another kind", of_other_kind, None, None),
        ("its node is updated", updated, Some(until), Some(until)),
        ("its node was updated before", updated, None, None),
    ] {
        let mut view = fleet(1, 0, 0);
        change(view.nodes.get_mut("n00").unwrap());
        let mut active = ActiveRollout { urgent_until: before, ..rollout(NEW) };
        follow_urgency(&view, &Urgency::of(&view, &policy, t(100)), &mut active);
        assert_eq!(active.urgent_until, expected, "{sentence}");
    }
}
