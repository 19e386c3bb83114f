//! Evidence is a difference: a node is compared with nodes that were not updated.

use models::operator::{BottlerocketUpdateOperatorStatus, RolloutLedger};
use models::reason::Proof;
use models::shadow::{HistoryPosition, HostState, Step};

use super::health::{
    DEADLINE, EVIDENCE, SOAKED, Watch, failing, healthy, is_blamed, is_unproven, is_updated, replica, verifying,
};
use super::ledger::{entry, recorded_with};
use crate::decision::Action;
use crate::fixtures::*;
use crate::hold::Hold;
use crate::plan::plan;
use crate::policy::{Policy, Target, Urgent};
use crate::survey::unwell::Unwell;
use crate::view::{ClusterView, NodeFacts, NodeView, OwnerHealth, PodFacts};
use crate::wait::Wait;

const DAY: i64 = 24 * 60 * 60;

/// Node `a`, which is verified since second 0, beside nodes that are not updated.
fn beside(others: &[&str]) -> Watch {
    let mut watch = Watch::of(verifying(vec![healthy()]));
    watch.view.nodes.extend(others.iter().map(|name| ((*name).to_owned(), node(name))));
    watch
}

fn facts<'a>(view: &'a mut ClusterView, name: &str) -> &'a mut NodeFacts {
    &mut view.nodes.get_mut(name).unwrap().facts
}

fn not_ready(view: &mut ClusterView, names: &[&str], since: i64) {
    for name in names {
        let facts = facts(view, name);
        (facts.ready, facts.not_ready_since) = (false, Some(t(since)));
    }
}

fn under_pressure(view: &mut ClusterView, names: &[&str], since: i64) {
    for name in names {
        let facts = facts(view, name);
        (facts.pressure, facts.pressure_since) = (Some("MemoryPressure".into()), Some(t(since)));
    }
}

fn well(view: &mut ClusterView) {
    for node in view.nodes.values_mut() {
        let facts = &mut node.facts;
        (facts.ready, facts.not_ready_since, facts.pressure, facts.pressure_since) = (true, None, None, None);
    }
}

const ALL: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn nodes_that_are_all_not_ready_twice_blame_no_version() {
    let mut watch = beside(&ALL[1..]);
    for second in [20, 45] {
        // The node that is judged is seen first.
        not_ready(&mut watch.view, &["a"], second);
        assert_eq!(watch.at(second), Some(Wait::AwaitingReady));
        not_ready(&mut watch.view, &ALL[1..], second + 3);
        watch.at(second + 3);
        well(&mut watch.view);
        assert_eq!(watch.at(second + 10), Some(Wait::Soaking { until: t(second + 10 + SOAKED) }));
    }
    assert_eq!(watch.result_at(55 + SOAKED), is_updated());
}

#[test]
fn clocks_stop_while_most_nodes_are_ill() {
    for ill in [not_ready, under_pressure] {
        let mut watch = beside(&ALL[1..]);
        ill(&mut watch.view, &["a", "b", "c"], 20);
        let shown = watch.at(20).unwrap();
        for second in [DEADLINE - 1, DEADLINE, 2 * DEADLINE, DAY] {
            assert_eq!(watch.at(second).as_ref(), Some(&shown), "{second}");
        }
        well(&mut watch.view);
        watch.at(DAY);
        assert_eq!(watch.result_at(DAY + SOAKED), is_updated());
        assert!(watch.view.operator.unwrap().status.unwell[0].until.is_some());
    }
}

#[test]
fn node_that_returns_into_trouble_of_the_cluster_is_waited_for() {
    let mut watch = beside(&ALL[1..]);
    let progress = watch.view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
    let progress = progress.status.controller.progress.as_mut().unwrap();
    (progress.step, progress.verifying_since) = (Step::Returning, None);
    facts(&mut watch.view, "a").boot_id = "b2".into();
    shadow(&mut watch.view).status.agent.boot_id = Some("b2".into());
    not_ready(&mut watch.view, &ALL, 20);
    let deadline = watch.policy.returning.as_secs().cast_signed();
    for second in [20, deadline, 2 * deadline] {
        assert_eq!(watch.at(second), Some(Wait::AwaitingReady), "{second}");
    }
    well(&mut watch.view);
    watch.at(2 * deadline);
    assert_eq!(watch.result_at(2 * deadline + SOAKED), is_updated());
}

#[test]
fn trouble_of_the_cluster_proves_nothing_after_a_day() {
    for half in [2, 3] {
        let mut watch = beside(&ALL[1..]);
        not_ready(&mut watch.view, &ALL[..=half], 20);
        watch.at(20);
        assert_eq!(watch.result_at(DAY + DEADLINE - 1).0, None);
        assert_eq!(watch.result_at(DAY + DEADLINE), is_unproven());
        let span = watch.view.operator.unwrap().status.unwell.pop().unwrap();
        assert!(span.until.is_some(), "nodes that have been ill for longer say nothing: {span:?}");
    }
}

#[test]
fn node_that_alone_is_ill_until_the_deadline_counts_against_its_version() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, others: &[&str], blamed: bool, change: Change| {
        let mut watch = beside(others);
        under_pressure(&mut watch.view, &["a"], 20);
        change(&mut watch.view);
        watch.at(20);
        assert_eq!(watch.result_at(DEADLINE - 1).0, None, "{sentence}");
        assert_eq!(watch.result_at(DEADLINE), if blamed { is_blamed() } else { is_unproven() }, "{sentence}");
    };
    case("others are well", &ALL[1..], true, |_| {});
    case("one of three is ill too", &ALL[1..], true, |view| not_ready(view, &["b"], 20));
    case("others were ill before", &ALL[1..], true, |view| not_ready(view, &["b", "c", "d"], -1_000_000));
    case("for a time that is not known", &ALL[1..], true, |view| {
        not_ready(view, &["b", "c", "d"], 20);
        view.nodes.values_mut().for_each(|node| node.facts.not_ready_since = None);
    });
    case("others join", &ALL[1..], true, |view| {
        not_ready(view, &["b", "c", "d"], 20);
        for node in view.nodes.values_mut().filter(|node| node.facts.name != "a") {
            node.facts.joining = true;
            node.shadow = None;
        }
    });
    case("most of the others are ill, and run the version, too", &ALL[1..], true, |view| {
        not_ready(view, &["b", "c"], 20);
        view.nodes.values_mut().for_each(|node| node.facts.os_image = format!("Bottlerocket OS {NEW} (x)"));
    });
    case("all others are ill, and run the version, too", &ALL[1..], false, |view| {
        not_ready(view, &["b", "c", "d"], 20);
        view.nodes.values_mut().for_each(|node| node.facts.os_image = format!("Bottlerocket OS {NEW} (x)"));
    });
    case("it is the only node", &[], true, |_| {});
    case("the only other node is well", &["b"], true, |_| {});
    case("the only other node is ill too", &["b"], false, |view| not_ready(view, &["b"], 20));
}

/// An autoscaler ends the machine a minute before it deletes the Node; a user powers it off for a repair.
#[test]
fn node_that_a_user_or_an_autoscaler_takes_away_is_no_evidence_against_its_version() {
    type Change = fn(&mut NodeFacts);
    type End = (Option<String>, bool);
    fn cordoned(facts: &mut NodeFacts, since: i64) {
        (facts.unschedulable, facts.cordoned_since) = (true, Some(t(since)));
    }
    fn held(facts: &mut NodeFacts, since: i64) {
        (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(since)));
    }
    let held_before = || (Some("Held".to_owned()), false);
    let case = |sentence: &str, end: End, change: Change| {
        let mut watch = beside(&ALL[1..]);
        not_ready(&mut watch.view, &["a"], 20);
        change(facts(&mut watch.view, "a"));
        watch.at(20);
        assert_eq!(watch.result_at(DEADLINE), end, "{sentence}: {}", watch.message());
        if end == held_before() {
            assert!(watch.message().contains("a user had held the node before"), "{}", watch.message());
            is_verified_once_it_is_not_held_any_more(&mut watch);
        }
    };
    case("it goes down by itself", is_blamed(), |_| {});
    case("a repair cordons it after that", is_blamed(), |facts| cordoned(facts, 21));
    case("a user has cordoned it before", is_unproven(), |facts| cordoned(facts, 19));
    case("a user holds it after that", is_blamed(), |facts| held(facts, 21));
    case("a user has held it before", held_before(), |facts| held(facts, 20));
    case("its hold has ended", is_blamed(), |facts| facts.held_since = Some(t(19)));
    case("an autoscaler removes it", is_unproven(), |facts| facts.removed_by = Some("karpenter.sh/disrupted".into()));
    case("it is being deleted", is_unproven(), |facts| facts.deleting = true);
}

/// The pods of an owner fail on updated nodes alone.
#[test]
fn pods_of_a_node_that_a_user_or_an_autoscaler_takes_away_are_no_evidence_against_its_version() {
    type Change = fn(&mut NodeFacts);
    type End = (Option<String>, bool);
    let case = |sentence: &str, end: End, change: Change| {
        let mut watch = Watch::finding(EVIDENCE, verifying(vec![failing()]));
        change(facts(&mut watch.view, "a"));
        watch.at(20);
        assert_eq!(watch.result_at(DEADLINE), end, "{sentence}: {}", watch.message());
    };
    case("it stays", is_blamed(), |_| {});
    case("an autoscaler removes it", is_unproven(), |facts| facts.removed_by = Some("karpenter.sh/disrupted".into()));
    case("it is being deleted", is_unproven(), |facts| facts.deleting = true);
    case("a user has held it before", (Some("Held".to_owned()), false), |facts| {
        (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(10)));
    });
}

/// Follows node `a`, whose attempt has ended while a user held it, and which has a place without a proof.
fn is_verified_once_it_is_not_held_any_more(watch: &mut Watch) {
    assert_eq!(watch.record().proof.map(|place| place.proof), Some(Proof::Unproven));
    let nodes = vec![entry("a", Proof::Unproven, "Held")];
    recorded_with(&mut watch.view, Some(RolloutLedger { base: 4, unproven: 1, nodes, ..RolloutLedger::default() }));
    watch.view.operator.as_mut().unwrap().status.slots.clear();
    let agent = &mut shadow(&mut watch.view).status.agent;
    (agent.state, agent.current_version) = (Some(HostState::Idle), Some(NEW));
    agent.updates.as_mut().unwrap().chosen_version = None;
    well(&mut watch.view);
    let is_verified = |watch: &Watch| outcome(&plan(&watch.view, &watch.policy, t(DEADLINE + 1))) == "step Verifying";
    assert!(!is_verified(watch), "it is held");
    facts(&mut watch.view, "a").hold = None;
    assert!(is_verified(watch), "{}", outcome(&plan(&watch.view, &watch.policy, t(DEADLINE + 1))));
}

/// The nodes of one zone are too few to be trouble of the cluster, and enough to excuse a node among them.
#[test]
fn node_of_a_failed_zone_is_no_evidence_against_its_version() {
    for (sentence, zone, blamed) in [("its zone has failed", "1", false), ("another zone has failed", "2", true)] {
        let mut watch = beside(&["b", "c", "d", "e", "f", "g", "h"]);
        for node in watch.view.nodes.values_mut() {
            let own = match node.facts.name.as_str() {
                "a" => zone,
                "b" | "c" | "d" => "1",
                _ => "2",
            };
            let labels = [(models::names::ZONE_LABEL.to_owned(), own.to_owned())];
            node.facts.labels = std::sync::Arc::new(labels.into());
        }
        not_ready(&mut watch.view, &["a", "b", "c"], 20);
        watch.at(20);
        assert_eq!(watch.result_at(DEADLINE), if blamed { is_blamed() } else { is_unproven() }, "{sentence}");
    }
}

#[test]
fn replica_that_was_ill_on_the_node_that_it_comes_from_is_no_difference() {
    for (sentence, number, excused) in [("the same one", 0, true), ("another one", 1, false)] {
        let mut watch = Watch::of(verifying(vec![healthy(), replica(number)]));
        let mut drained = node("b");
        let mut record = updated();
        record.unhealthy_before = vec!["set".into(), replica(0).replica().unwrap()];
        drained.shadow.as_mut().unwrap().status.controller.record = Some(record);
        watch.view.nodes.insert("b".into(), drained);
        watch.found = OwnerHealth { others_healthy: 2, ..EVIDENCE };
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if excused { is_updated() } else { is_unproven() }, "{sentence}");
    }
}

/// The others may have recovered meanwhile.
#[test]
fn pod_is_excused_at_the_end_of_a_soak_by_what_is_read_after_it_alone() {
    let ill = OwnerHealth { others_unhealthy: 1, ..EVIDENCE };
    let well = OwnerHealth { updated_failing: 0, ..EVIDENCE };
    for (sentence, then, proven) in [("they are still ill", ill, true), ("they have recovered", well, false)] {
        let mut watch = Watch::of(verifying(vec![PodFacts { lost_ready_at: Some(t(20)), ..failing() }]));
        let mut late = Watch::of(watch.view.nodes["a"].clone());
        watch.found = ill;
        assert_eq!(watch.at(20), Some(Wait::Soaking { until: t(SOAKED) }), "{sentence}");
        watch.found = then;
        watch.at(SOAKED);
        assert_eq!((watch.result().0.is_some(), watch.read), (proven, 2), "{sentence}");
        // They fall ill at the deadline: the soak begins again.
        late.found = well;
        assert_eq!(late.at(20).unwrap().as_str(), "Settling", "{sentence}");
        late.found = ill;
        assert_eq!(late.at(DEADLINE), Some(Wait::Soaking { until: t(DEADLINE + SOAKED) }), "{sentence}");
        late.found = then;
        late.at(DEADLINE + SOAKED);
        assert_eq!((late.result(), late.read), (if proven { is_updated() } else { is_unproven() }, 3), "{sentence}");
    }
}

/// A model server may load for longer than the time that any pod may need.
#[test]
fn pod_that_its_startup_probe_allows_to_start_interrupts_no_soak_and_proves_nothing_until_it_is_ready() {
    let slow =
        |startup| PodFacts { started: Some(t(-600)), startup: std::time::Duration::from_secs(startup), ..failing() };
    for (sentence, startup, ready, soaked) in [
        ("it takes longer than its probe allows", 60, true, 2 * SOAKED - 1),
        ("its probe allows more", 3600, true, SOAKED),
        ("its probe allows more than the verification", 3600, false, DEADLINE),
    ] {
        let mut watch = Watch::finding(EVIDENCE, verifying(vec![healthy(), slow(startup)]));
        watch.at(1);
        watch.at(SOAKED - 1);
        if ready {
            *watch.pods() = vec![healthy(), healthy()];
            watch.at(SOAKED - 1);
        }
        assert_eq!(watch.result_at(soaked - 1).0, None, "{sentence}");
        watch.at(soaked);
        let expected = if ready { is_updated() } else { is_blamed() };
        assert_eq!(watch.result(), expected, "{sentence}");
    }
}

#[test]
fn one_instant_of_pressure_after_the_deadline_freezes_nothing() {
    for begun in [10, DEADLINE - 1] {
        let mut watch = beside(&ALL[1..]);
        // Its pods take until the deadline.
        watch.pods()[0].ready = false;
        watch.at(begun);
        watch.at(DEADLINE - 1);
        under_pressure(&mut watch.view, &["a"], DEADLINE);
        assert_eq!(watch.result_at(DEADLINE), is_unproven(), "{begun}");
    }
}

/// A cluster in which `b` to `d` have fallen ill since the drain of `a` began, and `e` waits with its image.
fn unwell(a: NodeView) -> (ClusterView, crate::policy::Policy) {
    let staged = at("e", Step::Staged, 0, HostState::StagedUpdate);
    let (mut view, policy) = cluster(vec![a, node("b"), node("c"), node("d"), staged, node("f")], &["a"]);
    one_proven(&mut view);
    not_ready(&mut view, &["b", "c", "d"], 20);
    let policy = crate::policy::Policy {
        max_unavailable: models::operator::CountOrPercent::Count(5),
        ignore_unavailable_after: std::time::Duration::from_secs(10),
        ..policy
    };
    (view, policy)
}

fn draining() -> NodeView {
    let mut a = at("a", Step::Draining, 0, HostState::StagedUpdate);
    let drain_started = Some(t(0));
    let place = HistoryPosition { rollout: 1, step: 0, boot_id: "b1".into(), drain_started, drain_ended: None };
    a.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().rollout = Some(place);
    a.pods = Some(vec![pod("a", false)]);
    a
}

fn unwell_wait() -> Wait {
    Wait::ClusterUnwell { ill: 3, compared: 5, nodes: ["b", "c", "d"].map(str::to_owned).to_vec() }
}

#[test]
fn nothing_starts_in_an_unwell_cluster_and_slots_without_a_permit_are_released() {
    let (view, policy) = unwell(draining());
    let mut made = plan(&view, &policy, t(60));
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    for name in ["e", "f"] {
        assert_eq!(made.waits.get(name), Some(&unwell_wait()), "{name}");
    }
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    let record = status.report.record.as_ref().unwrap();
    assert_eq!((record.last.as_ref().unwrap().reason.as_str(), record.failures), ("ClusterUnwell", 0));
    assert!(record.not_before.is_some_and(|until| until > t(60)), "its next drain could bring the trouble back");
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Releasing);
    let condition = |status: &BottlerocketUpdateOperatorStatus| {
        models::condition::find_condition(&status.conditions, "Blocked").cloned().unwrap()
    };
    let recorded = made.status.unwrap();
    assert_eq!(condition(&recorded).reason, "ClusterUnwell");

    // Without the attempt, nodes are compared as before, until they are well again.
    let (mut view, _) = unwell(node("a"));
    view.operator.as_mut().unwrap().status = recorded;
    let made = plan(&view, &policy, t(600));
    assert_eq!(made.waits.get("e"), Some(&unwell_wait()));
    view.operator.as_mut().unwrap().status = made.status.unwrap();
    well(&mut view);
    let made = plan(&view, &policy, t(660));
    assert_ne!(made.waits.get("e").map(Wait::as_str), Some("ClusterUnwell"));
    assert_eq!(condition(&made.status.unwrap()).reason, "ClusterWell");
}

/// A zone has failed while no node was being updated, or before the drain of `a` began.
#[test]
fn ill_nodes_of_before_hold_what_starts_for_a_day_and_nothing_that_has_begun() {
    for a in [node("a"), draining()] {
        let rows = [("for two minutes", -60, true), ("for two hours", -7140, true), ("for a day", 60 - DAY, false)];
        for (sentence, since, held) in rows {
            let (mut view, policy) = unwell(a.clone());
            not_ready(&mut view, &["b", "c", "d"], since);
            let mut made = plan(&view, &policy, t(60));
            assert_eq!(crate::lint::lint(&view, &policy, &mut made), [], "{sentence}");
            let waits = made.waits.get("e").map(Wait::as_str) == Some("ClusterUnwell");
            let goes = made.slots.iter().flatten().any(|slot| slot.node == "e");
            assert_eq!((waits, goes), (held, !held), "{sentence}: {:?}", made.waits.get("e"));
            assert!(!held || made.wake <= Some(t(since + DAY)), "{sentence}: {:?}", made.wake);
            let step = match made.actions.get("a") {
                Some(Action::Status { status, .. }) => status.report.progress.as_ref().map(|progress| progress.step),
                _ => None,
            };
            assert_ne!(step, Some(Step::Releasing), "{sentence}");
            let status = made.status.unwrap();
            assert_eq!(status.unwell, [], "{sentence}: clocks go on");
            let blocked = models::condition::true_condition(&status.conditions, "Blocked");
            assert_eq!(blocked.is_some_and(|blocked| blocked.reason == "ClusterUnwell"), held, "{sentence}");
        }
    }
}

/// One after the other falls ill: each would be another write.
#[test]
fn condition_of_an_unwell_cluster_keeps_its_first_message() {
    let (mut view, policy) = unwell(node("a"));
    not_ready(&mut view, &["b", "c", "d"], -60);
    let message = |view: &mut ClusterView, second| {
        let status = plan(view, &policy, t(second)).status.unwrap();
        let blocked = models::condition::true_condition(&status.conditions, "Blocked").cloned().unwrap();
        view.operator.as_mut().unwrap().status = status;
        blocked.message
    };
    let first = message(&mut view, 60);
    assert!(first.contains("3 of 6"), "{first}");
    not_ready(&mut view, &["f"], 90);
    assert_eq!(message(&mut view, 120), first);
}

/// The only nodes with the version, `f` and `g`, are well.
#[test]
fn nodes_beside_a_failed_zone_show_nothing_about_the_version_of_the_ill_ones() {
    for (sentence, own, held) in [("it is in the zone of the ill ones", "1", false), ("in another one", "2", true)] {
        for a in [node("a"), draining()] {
            let (mut view, policy) = unwell(a);
            view.nodes.extend(["g", "h"].map(|name| (name.to_owned(), node(name))));
            not_ready(&mut view, &["h"], 20);
            for node in view.nodes.values_mut() {
                let zone = match node.facts.name.as_str() {
                    "b" | "c" | "d" | "h" => "1",
                    "f" | "g" => own,
                    _ => "2",
                };
                let labels = [(models::names::ZONE_LABEL.to_owned(), zone.to_owned())];
                node.facts.labels = std::sync::Arc::new(labels.into());
            }
            for name in ["f", "g"] {
                facts(&mut view, name).os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
            }
            let made = plan(&view, &policy, t(60));
            let waits = made.waits.get("e").map(Wait::as_str) == Some("ClusterUnwell");
            assert_eq!(waits, held, "{sentence}: {:?}", made.waits.get("e"));
        }
    }
}

#[test]
fn rollout_that_takes_no_ill_node_off_its_version_is_held() {
    const ILL: [&str; 3] = ["b", "c", "d"];
    fn urgent(policy: &mut Policy) {
        policy.urgent = Some(Urgent { from: NEW, reason: "CVE-2026-1234".into(), until: t(600) });
    }
    let case = |sentence: &str, image: &str, held: bool, change: fn(&mut ClusterView, &mut Policy)| {
        let (mut view, mut policy) = unwell(draining());
        policy.target = Target::Exact(NEW);
        for name in ILL {
            facts(&mut view, name).os_image = image.to_owned();
        }
        change(&mut view, &mut policy);
        let made = plan(&view, &policy, t(60));
        let waits = made.waits.get("e").map(Wait::as_str) == Some("ClusterUnwell");
        let ends = matches!(made.actions.get("a"), Some(Action::Status { .. }));
        assert_eq!((waits, ends), (held, held), "{sentence}: {:?}", made.waits.get("e"));
    };
    let (later, earlier) = ("Bottlerocket OS 1.21.0 (aws-k8s-1.37)", "Bottlerocket OS 1.20.0 (aws-k8s-1.37)");
    let other = "Amazon Linux 2023.6.20241111";
    case("it goes back", later, false, |_, _| {});
    case("they run another system", other, true, |_, _| {});
    case("one of them runs another system", earlier, true, |view, _| {
        facts(view, "b").os_image = "Amazon Linux 2023.6.20241111".to_owned();
    });
    case("they are of another variant", "Bottlerocket OS 1.21.0 (metal-k8s-1.37)", true, |_, _| {});
    case("they are of another architecture", later, true, |view, _| {
        for name in ILL {
            view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
        }
    });
    case("they are not under the operator", later, true, |view, _| {
        for name in ILL {
            facts(view, name).labelled = false;
        }
    });
    case("policy takes no node back", later, true, |_, policy| policy.target = Target::Latest);
    case("policy allows their version", later, true, |_, policy| policy.target = Target::parse(">=1.20.0").unwrap());
    case("it is urgent", earlier, false, |_, policy| urgent(policy));
    case("it is urgent, and they run another system", other, true, |_, policy| urgent(policy));
    case("nodes of another variant are well with it", earlier, true, |view, _| {
        facts(view, "f").os_image = format!("Bottlerocket OS {NEW} (metal-k8s-1.37)");
    });

    // A bad version is taken off nodes of all kinds.
    let (mut view, _) = unwell(draining());
    for name in ILL {
        facts(&mut view, name).os_image = "Bottlerocket OS 1.21.0 (metal-k8s-1.37)".to_owned();
    }
    facts(&mut view, "e").os_image = later.to_owned();
    let found = Unwell::of(&view, t(60));
    let cured = |name: &str| found.is_cured_by(&Target::Exact(NEW), &view.nodes[name], &NEW, false);
    assert_eq!((cured("e"), cured("f")), (true, false));

    // A drill brings no node to a version, however urgent that is.
    let (mut view, mut policy) = unwell(draining());
    urgent(&mut policy);
    view.nodes.get_mut("f").unwrap().shadow.as_mut().unwrap().drill = Some("1".into());
    let made = plan(&view, &policy, t(60));
    let Some(Action::Status { status, .. }) = made.actions.get("f") else { panic!("{:?}", made.actions) };
    let drill = status.report.record.as_ref().and_then(|record| record.drill.as_ref());
    assert_eq!(drill.map(|drill| drill.result.as_str()), Some("ClusterUnwell"));
}

/// A user holds nodes and powers them off, as for a repair.
#[test]
fn nodes_that_users_take_down_are_no_trouble_of_the_cluster() {
    type Change = fn(&mut NodeFacts);
    let case = |sentence: &str, is_trouble: bool, change: Change| {
        let (mut view, policy) = unwell(draining());
        for number in 0..10 {
            let mut other = node(&format!("o{number}"));
            (other.facts.ready, other.facts.not_ready_since) = (false, Some(t(20)));
            view.nodes.insert(other.facts.name.clone(), other);
        }
        for node in view.nodes.values_mut().filter(|node| !node.facts.ready) {
            change(&mut node.facts);
        }
        let made = plan(&view, &policy, t(60));
        let waits = made.waits.get("e").map(Wait::as_str) == Some("ClusterUnwell");
        let spans = made.status.unwrap().unwell.len();
        assert_eq!((waits, spans), (is_trouble, usize::from(is_trouble)), "{sentence}: {:?}", made.waits.get("e"));
    };
    case("they go down by themselves", true, |_| {});
    case("their machines are shut down", false, |facts| {
        facts.taints = vec!["node.cloudprovider.kubernetes.io/shutdown:NoSchedule".into()];
    });
    case("held before", false, |facts| (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(10))));
    case("held for long", true, |facts| (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(-3600))));
    case("held after that", true, |facts| (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(30))));
    case("cordoned before", false, |facts| (facts.unschedulable, facts.cordoned_since) = (true, Some(t(10))));
    case("cordoned after that", true, |facts| (facts.unschedulable, facts.cordoned_since) = (true, Some(t(30))));
}

#[test]
fn rollout_that_takes_nodes_off_the_version_of_the_ill_ones_is_not_held() {
    type Change = fn(&mut ClusterView);
    let newer = |view: &mut ClusterView| {
        for name in ["b", "c", "d"] {
            facts(view, name).os_image = "Bottlerocket OS 1.21.0 (aws-k8s-1.37)".into();
        }
    };
    let case = |sentence: &str, held: bool, change: Change| {
        let (mut view, policy) = unwell(draining());
        let policy = Policy { target: Target::Exact(NEW), ..policy };
        change(&mut view);
        let made = plan(&view, &policy, t(60));
        let waits = made.waits.get("e").map(Wait::as_str) == Some("ClusterUnwell");
        let ends = matches!(made.actions.get("a"), Some(Action::Status { .. }));
        assert_eq!((waits, ends), (held, held), "{sentence}: {:?}", made.waits.get("e"));
    };
    case("it goes back", false, newer);
    case("it goes back, and one of them names no version", false, |view| {
        facts(view, "b").os_image = "Bottlerocket OS 1.21.0 (aws-k8s-1.37)".into();
        facts(view, "c").os_image = "Debian GNU/Linux 12".into();
    });
    case("some of them run another version", true, |view| {
        facts(view, "b").os_image = format!("Bottlerocket OS {NEW} (x)");
    });
    case("the nodes that run its version are well", false, |view| {
        view.nodes.insert("g".into(), node("g"));
        for name in ["f", "g"] {
            facts(view, name).os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        }
    });
    case("the only node that runs its version is well, as others without it are", true, |view| {
        facts(view, "f").os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    });
}

/// A fault of the network takes nodes of whatever version.
#[test]
fn one_well_node_shows_that_its_version_is_good_only_where_all_others_of_its_kind_are_ill() {
    for (sentence, updated, ill, is_cured) in [
        ("one of ten nodes is updated, and five of the others are ill", 1, 5, false),
        ("two of ten are updated", 2, 5, true),
        ("one of ten is updated, and all others are ill", 1, 9, true),
        ("one of ten is updated, and all but one of the others are ill", 1, 8, false),
    ] {
        let (mut view, _) = cluster((0..10).map(|number| node(&format!("n{number}"))).collect(), &[]);
        for (number, node) in view.nodes.values_mut().enumerate() {
            if number < updated {
                node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
            }
            if number >= 10 - ill {
                (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(20)));
            }
        }
        let found = Unwell::of(&view, t(60));
        assert!(found.of_starts().is_some(), "{sentence}");
        let cures = found.is_cured_by(&Target::Exact(NEW), &view.nodes["n9"], &NEW, false);
        assert_eq!(cures, is_cured, "{sentence}");
    }
}

#[test]
fn validator_gives_no_slot_in_an_unwell_cluster() {
    for (sentence, is_drill, is_urgent, is_ill, broken) in [
        ("for an update", false, false, true, true),
        ("for an urgent update, which takes the others off their version", false, true, true, false),
        ("for a drill", true, false, true, true),
        ("for a drill, while the version is urgent", true, true, true, true),
        ("for an update, once the others are well", false, false, false, false),
    ] {
        let (mut view, mut policy) = unwell(draining());
        policy.urgent = is_urgent.then(|| Urgent { from: NEW, reason: "CVE-2026-1234".into(), until: t(600) });
        for name in ["b", "c", "d"].into_iter().filter(|_| !is_ill) {
            view.nodes.get_mut(name).unwrap().facts.ready = true;
        }
        if is_drill {
            let e = view.nodes.get_mut("e").unwrap().shadow.as_mut().unwrap();
            e.status.controller.progress.as_mut().unwrap().drill = Some(models::shadow::Drill::default());
        }
        let given = models::operator::Slot { since: t(60), ..slot("e") };
        let slots = view.recorded_slots().cloned().chain([given]).collect();
        let mut made = crate::plan::Plan { slots: Some(slots), ..crate::plan::Plan::default() };
        let findings = crate::lint::lint(&view, &policy, &mut made);
        assert_eq!(findings.iter().any(|finding| finding.property == "S13"), broken, "{sentence}: {findings:?}");
    }
}
