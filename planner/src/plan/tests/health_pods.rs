//! Pods in the verdict on a node after its update: which are waited for, which are evidence, which are excused.

use std::time::Duration;

use models::condition::find_condition;
use models::reason::FailureReason;
use models::shadow::{Drill, HEALTHY, HostState, Progress, Step};
use semver::Version;

use super::health::{
    DEADLINE, EVIDENCE, SOAKED, Watch, failing, healthy, is_blamed, is_unproven, is_updated, replica, verifying,
};
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::plan;
use crate::view::{Compared, NodeFacts, NodeView, OwnerHealth, PodFacts};
use crate::wait::Wait;

/// The time that a startup probe gives a pod.
const HOUR: Duration = Duration::from_hours(1);

#[test]
fn pod_that_is_ill_elsewhere_too_is_not_waited_for() {
    let mut watch =
        Watch::finding(OwnerHealth { others_unhealthy: 1, ..EVIDENCE }, verifying(vec![healthy(), failing()]));
    assert_eq!((watch.result_at(SOAKED), watch.read), (is_updated(), 1));
    assert!(watch.message().contains("shop/p-a (container app: CrashLoopBackOff)"), "{}", watch.message());
    let record = watch.record();
    assert_eq!((record.failures, record.not_before), (0, None));
    assert!(watch.notes.last().unwrap().warning, "{:?}", watch.notes);
    let status = &watch.view.nodes["a"].shadow.as_ref().unwrap().status;
    assert_eq!(find_condition(&status.conditions, HEALTHY).unwrap().reason, "PodsUnhealthy");
}

#[test]
fn one_ill_pod_among_many_elsewhere_excuses_none() {
    let mut watch =
        Watch::finding(OwnerHealth { others_healthy: 3, others_unhealthy: 1, ..EVIDENCE }, verifying(vec![failing()]));
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling");
    assert_eq!(watch.result_at(DEADLINE), is_unproven(), "nor does it blame the version");
}

#[test]
fn pod_of_a_daemon_set_that_was_ill_on_another_node_excuses_none() {
    let mut watch = Watch::of(verifying(vec![PodFacts { daemon_set: Some("shop/p".into()), ..failing() }]));
    let mut other = node("b");
    unhealthy_before(&mut other, NEW);
    watch.view.nodes.insert("b".into(), other);
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling");
}

#[test]
fn pod_that_is_starting_is_waited_for_and_nothing_is_read_of_its_owner() {
    let starting = |since: i64| PodFacts { started: Some(t(since)), ..failing() };
    let mut watch =
        Watch::finding(OwnerHealth { others_unhealthy: 1, ..EVIDENCE }, verifying(vec![starting(SOAKED - 1)]));
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling");
    assert_eq!(watch.at(SOAKED + 118).unwrap().as_str(), "Settling");
    assert_eq!(watch.read, 0);
    assert_eq!((watch.result_at(SOAKED + 119), watch.read), (is_updated(), 1));
    // At the deadline it has not had its time.
    let mut watch = Watch::of(verifying(vec![starting(DEADLINE - 30)]));
    watch.at(DEADLINE - 1);
    assert_eq!(watch.result_at(DEADLINE), is_updated());
}

#[test]
fn soak_restarts_when_a_ready_pod_no_longer_is() {
    let lost = |second: i64| PodFacts { lost_ready_at: Some(t(second)), ..failing() };
    let mut watch = Watch::of(verifying(vec![healthy()]));
    watch.at(10);
    *watch.pods() = vec![lost(20)];
    assert_eq!(watch.at(20).unwrap().as_str(), "Settling");
    *watch.pods() = vec![healthy()];
    assert_eq!(watch.at(59), Some(Wait::Soaking { until: t(59 + SOAKED) }), "not only what is left of it");
    assert_eq!(watch.result_at(59 + SOAKED), is_updated());

    for (sentence, pod, found) in [
        ("it is just starting", PodFacts { started: Some(t(20)), ..failing() }, EVIDENCE),
        ("its kubelet has not seen it yet", PodFacts { pending: true, ..failing() }, EVIDENCE),
        ("it is being deleted", PodFacts { terminating: true, ..lost(20) }, EVIDENCE),
        ("it is to end by itself", PodFacts { runs_to_completion: true, ..lost(20) }, EVIDENCE),
        ("its owner's pods are ill elsewhere", lost(20), OwnerHealth { others_unhealthy: 1, ..EVIDENCE }),
    ] {
        let mut watch = Watch::finding(found, verifying(vec![pod]));
        assert_eq!(watch.at(20), Some(Wait::Soaking { until: t(SOAKED) }), "{sentence}");
        *watch.pods() = vec![healthy()];
        assert_eq!(watch.result_at(SOAKED), is_updated(), "{sentence}");
    }
}

#[test]
fn soak_begins_when_the_last_pod_is_ready_after_the_boot() {
    // The boot has restarted its containers.
    let booted = |second: i64| PodFacts { lost_ready_at: Some(t(second)), restarts: 1, ..failing() };
    let old = PodFacts { started: Some(t(-600)), ..failing() };
    let slow = PodFacts { started: Some(t(-110)), ..failing() };
    for (sentence, pod, ready) in [
        ("it was not Ready when the soak began", booted(-30), SOAKED - 1),
        ("it comes up later than the soak", booted(-30), 5 * SOAKED),
        ("it has never been Ready", old, 5 * SOAKED),
        ("its time to start ends in the soak", slow, SOAKED - 1),
    ] {
        let mut watch = Watch::finding(EVIDENCE, verifying(vec![healthy(), pod]));
        watch.at(1);
        watch.at(20);
        assert_eq!((watch.read, watch.notes.len()), (0, 0), "{sentence}: a boot is nothing to report");
        if ready > SOAKED {
            assert_eq!(watch.at(ready - 1).unwrap().as_str(), "Settling", "{sentence}");
        }
        *watch.pods() = vec![healthy(), healthy()];
        assert_eq!(watch.at(ready), Some(Wait::Soaking { until: t(ready + SOAKED) }), "{sentence}");
        assert_eq!(watch.result_at(ready + SOAKED - 1).0, None, "{sentence}");
        assert_eq!(watch.result_at(ready + SOAKED), is_updated(), "{sentence}");
    }
}

#[test]
fn starting_pod_wakes_the_verification_when_its_time_is_over() {
    let watch = Watch::of(verifying(vec![PodFacts { started: Some(t(-90)), ..failing() }]));
    assert_eq!(plan(&watch.view, &watch.policy, t(10)).wake, Some(t(30)));
}

#[test]
fn owners_of_pods_that_come_up_after_a_boot_are_read_when_a_soak_is_over() {
    let booted = PodFacts { lost_ready_at: Some(t(-30)), restarts: 1, ..failing() };
    let mut watch = Watch::finding(OwnerHealth { others_unhealthy: 1, ..EVIDENCE }, verifying(vec![booted.clone()]));
    for second in [1, 20, SOAKED - 1] {
        assert_eq!(watch.at(second), Some(Wait::Soaking { until: t(second + SOAKED) }), "not before {second}");
        assert_eq!(watch.read, 0);
    }
    assert_eq!(watch.at(SOAKED), Some(Wait::Soaking { until: t(2 * SOAKED) }), "it is ill elsewhere, too");
    assert_eq!((watch.result_at(2 * SOAKED), watch.read), (is_updated(), 2));
    // One that was ill before, and has no others, interrupts nothing.
    let mut node = verifying(vec![booted]);
    unhealthy_before(&mut node, NEW);
    let mut watch = Watch::of(node);
    assert_eq!(watch.at(20), Some(Wait::Soaking { until: t(SOAKED) }));
    watch.at(SOAKED);
    assert!(watch.message().contains("shop/p-a"), "{}", watch.message());
}

#[test]
fn pod_that_is_lost_at_the_deadline_counts_only_by_comparison() {
    for (found, expected) in [(OwnerHealth::default(), is_unproven()), (EVIDENCE, is_blamed())] {
        let mut watch = Watch::finding(found, verifying(vec![healthy()]));
        watch.at(20);
        *watch.pods() = vec![PodFacts { lost_ready_at: Some(t(30)), ..failing() }];
        watch.at(30);
        assert_eq!(watch.result_at(DEADLINE - 1).0, None);
        assert_eq!(watch.result_at(DEADLINE), expected);
    }
}

#[test]
fn pods_failing_only_on_updated_nodes_count_as_version_failure() {
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![healthy(), failing()]));
    assert_eq!(watch.result_at(DEADLINE - 1).0, None, "a pod has until the deadline");
    assert_eq!(watch.result_at(DEADLINE), is_blamed());
    let text = watch.message();
    assert!(text.contains("shop/p-a is not healthy (container app: CrashLoopBackOff)"), "{text}");
    assert_eq!(watch.record().version_failures[0].reason, FailureReason::SoakFailed);
}

#[test]
fn update_succeeds_when_pods_become_healthy_before_deadline() {
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![failing()]));
    watch.at(DEADLINE - 1);
    *watch.pods() = vec![healthy()];
    assert_eq!(watch.at(DEADLINE - 1), Some(Wait::Soaking { until: t(DEADLINE - 1 + SOAKED) }), "the whole soak");
    assert_eq!(watch.result_at(DEADLINE - 1 + SOAKED), is_updated());
}

/// The owner, as the record of a node's last drain names it.
fn unhealthy_before(node: &mut NodeView, version: Version) {
    let mut record = updated();
    record.unhealthy_before = vec!["rs".into()];
    record.last.as_mut().unwrap().version = version;
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
}

#[test]
fn owner_with_an_ill_pod_before_the_drain_is_excused_unless_most_of_its_other_pods_are_well() {
    let well = |healthy: usize| OwnerHealth { others_healthy: healthy, ..EVIDENCE };
    for (sentence, found, excused) in [
        ("it has no other pods", OwnerHealth::default(), true),
        ("it has others on updated nodes alone", OwnerHealth { others_healthy: 0, ..EVIDENCE }, true),
        ("half of the others are ill", OwnerHealth { others_unhealthy: 2, ..well(2) }, true),
        ("most of the others are well", OwnerHealth { others_unhealthy: 1, ..well(2) }, false),
        ("all others are well", well(49), false),
    ] {
        for elsewhere in [false, true] {
            let mut node = verifying(vec![healthy(), failing()]);
            let mut other = crate::fixtures::node("b");
            unhealthy_before(if elsewhere { &mut other } else { &mut node }, NEW);
            let mut watch = Watch::of(node);
            watch.view.nodes.insert("b".into(), other);
            watch.found = found;
            let wait = watch.at(SOAKED);
            assert_eq!(watch.read, 1, "{sentence}");
            if excused {
                assert_eq!(watch.result(), is_updated(), "{sentence}");
                assert!(watch.notes.last().unwrap().warning, "{:?}", watch.notes);
            } else {
                assert_eq!(wait.unwrap().as_str(), "Settling", "{sentence}");
                assert_eq!(
                    watch.result_at(DEADLINE),
                    is_unproven(),
                    "{sentence}: nor is it evidence against the version"
                );
            }
            assert!(watch.message().contains("shop/p-a (container app: CrashLoopBackOff)"), "{}", watch.message());
        }
    }
}

/// The passive one of a pair is never Ready, and the active one always is.
#[test]
fn only_ill_pod_of_its_owner_is_no_difference_where_one_was_ill_on_the_node_before() {
    let others = |healthy: usize, unhealthy: usize| OwnerHealth {
        others_healthy: healthy,
        others_unhealthy: unhealthy,
        updated_failing: 0,
        ..EVIDENCE
    };
    let settling = OwnerHealth { updated_settling: 1, ..others(1, 0) };
    for (sentence, ill, found, elsewhere, excused) in [
        ("the active one is well", 1, others(1, 0), false, true),
        ("all of many others are well", 1, others(49, 0), false, true),
        ("the one before was on another node", 1, others(1, 0), true, false),
        ("two are ill on the node now", 2, others(1, 0), false, false),
        ("the one before is ill elsewhere now", 1, others(3, 1), false, false),
        ("another one fails on an updated node", 1, EVIDENCE, false, false),
        ("another one is not Ready on a node that was just updated", 1, settling, false, false),
    ] {
        let mut node = verifying(vec![failing(); ill]);
        let mut other = crate::fixtures::node("b");
        unhealthy_before(if elsewhere { &mut other } else { &mut node }, NEW);
        let mut watch = Watch::finding(found, node);
        watch.view.nodes.insert("b".into(), other);
        let settles = watch.at(SOAKED).is_some_and(|wait| wait.as_str() == "Settling");
        assert_eq!(settles, !excused, "{sentence}");
        assert_eq!(watch.result_at(DEADLINE), if excused { is_updated() } else { is_unproven() }, "{sentence}");
        assert!(watch.message().contains("shop/p-a"), "{sentence}: {}", watch.message());
    }
    // Of a StatefulSet it is known which one was ill.
    let mut node = verifying(vec![replica(1)]);
    unhealthy_before(&mut node, NEW);
    let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
    record.unhealthy_before = vec!["set".into(), replica(0).replica().unwrap()];
    assert_eq!(Watch::finding(others(1, 0), node).result_at(DEADLINE), is_unproven());
}

/// A Deployment was changed during the drain, which began at 0 s, and the new pod cannot start anywhere.
#[test]
fn pod_of_an_owner_that_came_after_the_drain_and_has_no_healthy_one_is_no_difference() {
    let created = |second: i64| OwnerHealth { created: Some(t(second)), ..OwnerHealth::default() };
    for (sentence, found, excused) in [
        ("created in the drain", created(3), true),
        ("created in the moments in which it began", created(2), false),
        ("it was there before", created(-600), false),
        ("a pod of it is healthy, or since when it exists is not known", OwnerHealth::default(), false),
    ] {
        let mut watch = Watch::finding(found, verifying(vec![healthy(), failing()]));
        if !excused {
            assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling", "{sentence}");
            assert_eq!(watch.result_at(DEADLINE), is_unproven(), "{sentence}");
            continue;
        }
        assert_eq!(watch.result_at(SOAKED), is_updated(), "{sentence}");
        assert!(watch.message().contains("shop/p-a"), "{sentence}: {}", watch.message());
    }
}

#[test]
fn drill_of_another_node_changes_nothing_about_the_pods_that_were_ill_before_its_update() {
    for version in [NEW, OLD, Version::new(1, 21, 0)] {
        let mut other = node("b");
        unhealthy_before(&mut other, NEW);
        let drill = Progress { drill: Some(Drill::of("1")), version: version.clone(), ..progress(Step::Staging, 0) };
        other.shadow.as_mut().unwrap().status.controller.progress = Some(drill);
        let mut watch = Watch::of(verifying(vec![healthy(), failing()]));
        watch.view.nodes.insert("b".into(), other);
        assert_eq!(watch.result_at(SOAKED), is_updated(), "a drill for {version}");
    }
}

/// With volumes on the node, or in its zone, it can only come back.
#[test]
fn pod_of_a_stateful_set_that_was_ill_on_its_node_before_the_drain_is_no_difference() {
    for (sentence, number, excused) in [("the same one", 0, true), ("another one", 1, false)] {
        let mut node = verifying(vec![healthy(), replica(number)]);
        let mut record = updated();
        record.unhealthy_before = vec!["set".into(), replica(0).replica().unwrap()];
        node.shadow.as_mut().unwrap().status.controller.record = Some(record);
        let mut watch = Watch::finding(OwnerHealth { others_healthy: 2, ..EVIDENCE }, node);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if excused { is_updated() } else { is_unproven() }, "{sentence}");
        assert!(watch.message().contains(&format!("db-{number}")), "{sentence}: {}", watch.message());
    }
}

#[test]
fn owner_with_an_ill_pod_before_an_update_to_another_version_is_evidence() {
    let mut watch = Watch::of(verifying(vec![failing()]));
    let mut other = node("b");
    unhealthy_before(&mut other, Version::new(1, 19, 0));
    watch.view.nodes.insert("b".into(), other);
    watch.found = EVIDENCE;
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling");
    assert_eq!(watch.result_at(DEADLINE), is_blamed());
}

#[test]
fn starting_pod_of_an_owner_with_an_ill_pod_before_the_drain_is_waited_for() {
    let mut node = verifying(vec![PodFacts { started: Some(t(SOAKED - 1)), ..failing() }]);
    unhealthy_before(&mut node, NEW);
    let mut watch = Watch::of(node);
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "Settling");
    assert_eq!((watch.result_at(SOAKED + 119), watch.read), (is_updated(), 1), "it is ill, and has no others");
}

#[test]
fn owners_that_were_ill_before_the_drain_take_no_reads_from_others_and_are_excused_beyond_them() {
    let owned = |number: usize| PodFacts { controller_uid: Some(format!("rs-{number:02}")), ..failing() };
    let mut node = verifying((0..20).map(owned).collect());
    let mut record = updated();
    record.unhealthy_before = (0..19).map(|number| format!("rs-{number:02}")).collect();
    node.shadow.as_mut().unwrap().status.controller.record = Some(record);
    let mut watch = Watch::of(node.clone());
    let wait = watch.at(SOAKED).unwrap();
    assert!(watch.view.nodes["a"].owners.contains_key("rs-19"), "the one that was well is read first");
    assert_eq!((watch.read, wait.as_str()), (8, "Settling"));
    node.pods.as_mut().unwrap().pop();
    let mut watch = Watch::of(node);
    watch.at(SOAKED);
    assert_eq!((watch.read, watch.result()), (8, is_updated()), "a cluster with many broken owners");
    assert!(watch.message().contains("19 pod(s)"), "{}", watch.message());
}

#[test]
fn pod_that_comes_back_to_its_node_by_itself_is_excused_if_it_was_ill_there_before() {
    let of_a_daemon_set = PodFacts { daemon_set: Some("log".into()), ..failing() };
    let mirror =
        |uid: &str| PodFacts { mirror: true, uid: uid.into(), controller_uid: Some("uid-a".into()), ..failing() };
    for (sentence, pod, before, excused) in [
        ("the pod of a DaemonSet was ill", of_a_daemon_set.clone(), "rs", true),
        ("that of another one was", of_a_daemon_set, "other", false),
        ("the static pod was ill", mirror("proxy"), "proxy", true),
        ("another static pod was", mirror("proxy"), "other", false),
        ("an earlier version listed the Node for it", mirror("proxy"), "uid-a", false),
    ] {
        let mut node = verifying(vec![pod]);
        unhealthy_before(&mut node, NEW);
        let record = node.shadow.as_mut().unwrap().status.controller.record.as_mut().unwrap();
        record.unhealthy_before = vec![before.into()];
        let mut watch = Watch::finding(EVIDENCE, node);
        let wait = watch.at(SOAKED);
        if excused {
            assert_eq!((watch.result(), watch.read), (is_updated(), 0), "{sentence}");
            assert!(watch.message().contains("shop/p-a (container app"), "{sentence}: {}", watch.message());
        } else {
            assert_eq!(wait.unwrap().as_str(), "Settling", "{sentence}");
        }
    }
}

#[test]
fn up_to_eight_owners_are_read_for_evidence() {
    let owned = |number: usize| PodFacts { controller_uid: Some(format!("rs-{number}")), ..failing() };
    let mut watch = Watch::of(verifying(vec![owned(0), owned(1), owned(1), owned(2)]));
    watch.at(DEADLINE);
    assert_eq!(watch.read, 3);
    let mut watch = Watch::of(verifying((0..20).map(owned).collect()));
    watch.at(DEADLINE);
    assert_eq!((watch.read, watch.result()), (8, is_unproven()), "no more than eight");
    assert!(watch.message().contains("20 pod(s)"), "{}", watch.message());
    let mirror = PodFacts { mirror: true, ..failing() };
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![mirror]));
    watch.at(DEADLINE);
    assert_eq!((watch.read, watch.result()), (0, is_unproven()), "a static pod");
}

/// The drain has left none: a user has created it, as for debugging.
#[test]
fn pod_without_an_owner_delays_no_update_and_is_named() {
    let bare = || PodFacts { name: "debug".into(), controller_uid: None, lost_ready_at: Some(t(20)), ..failing() };
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![healthy(), bare()]));
    assert_eq!(watch.at(30), Some(Wait::Soaking { until: t(SOAKED) }), "it interrupts nothing");
    assert_eq!((watch.result_at(SOAKED), watch.read), (is_updated(), 0));
    assert!(watch.message().contains("shop/debug (container app: CrashLoopBackOff)"), "{}", watch.message());
    // Beside it, a pod with an owner counts as always.
    let mut watch = Watch::of(verifying(vec![bare(), failing()]));
    assert_eq!(watch.result_at(DEADLINE), is_unproven());
    assert!(watch.message().contains("1 pod(s) are not healthy: shop/p-a"), "{}", watch.message());
}

/// The API server does not answer, or is overloaded.
#[test]
fn owner_whose_pods_are_not_known_is_read_again_until_a_minute_after_the_deadline_and_blames_no_version() {
    let failing = PodFacts { controller: Some("ReplicaSet web-1".into()), ..failing() };
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![healthy(), failing]));
    watch.unread = vec!["rs".into()];
    for second in [SOAKED, DEADLINE, DEADLINE + 59] {
        assert_eq!(watch.at(second), Some(Wait::Acting), "at {second}");
    }
    let mut answered = Watch::finding(EVIDENCE, watch.view.nodes["a"].clone());
    assert_eq!(answered.result_at(DEADLINE + 59), is_blamed());
    assert_eq!(watch.result_at(DEADLINE + 60), is_unproven());
    let text = watch.message();
    assert!(text.contains("shop/p-a is not healthy (container app: CrashLoopBackOff)"), "{text}");
    assert!(text.contains("the other pods of ReplicaSet web-1 could not be read"), "{text}");
}

#[test]
fn owner_is_compared_on_nodes_in_service_by_version_and_age() {
    let running = |name: &str, ended: Option<i64>| {
        let mut node = node(name);
        node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        if let Some(ended) = ended {
            let mut record = updated();
            record.last.as_mut().unwrap().ended = t(ended);
            node.shadow.as_mut().unwrap().status.controller.record = Some(record);
        }
        node
    };
    let mut watch = Watch::of(verifying(vec![failing()]));
    let mut dead = node("dead");
    dead.facts.ready = false;
    let others = [
        running("long-ago", Some(0)),
        running("just-now", Some(1)),
        running("from-the-start", None),
        node("not-updated"),
        dead,
        at("draining", Step::Draining, 0, HostState::StagedUpdate),
    ];
    watch.view.nodes.extend(others.map(|node| (node.facts.name.clone(), node)));
    let unmanaged =
        ["unmanaged", "unmanaged-dead", "unmanaged-deleted", "unmanaged-removed"].map(|name| node(name).facts);
    watch.view.unmanaged.extend(unmanaged.map(|facts| (facts.name.clone(), NodeFacts { labelled: false, ..facts })));
    watch.view.unmanaged.get_mut("unmanaged-dead").unwrap().ready = false;
    watch.view.unmanaged.get_mut("unmanaged-deleted").unwrap().deleting = true;
    watch.view.unmanaged.get_mut("unmanaged-removed").unwrap().removed_by = Some("karpenter.sh/disrupted".into());
    let made = plan(&watch.view, &watch.policy, t(DEADLINE));
    let Some(Action::ReadOwner { owner, namespace, labels, nodes }) = made.actions.get("a") else {
        panic!("{:?}", made.actions)
    };
    assert_eq!((owner.as_str(), namespace.as_str()), ("rs", "shop"));
    assert_eq!(labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(), ["app=web"]);
    let expected = [
        ("from-the-start", Compared::JustUpdated),
        ("just-now", Compared::JustUpdated),
        ("long-ago", Compared::Updated),
        ("not-updated", Compared::NotUpdated),
        ("unmanaged", Compared::NotUpdated),
    ];
    assert_eq!(nodes.iter().map(|(name, on)| (name.as_str(), *on)).collect::<Vec<_>>(), expected);
}

#[test]
fn what_was_read_of_an_owner_counts_for_minutes_before_the_deadline_and_for_one_at_it() {
    for (second, reads) in [(DEADLINE - 1, 0), (DEADLINE, 1)] {
        let mut node = verifying(vec![healthy(), failing()]);
        node.owners.insert("rs".into(), OwnerHealth { read_at: t(second - 120), ..EVIDENCE });
        let mut watch = Watch::finding(EVIDENCE, node);
        watch.at(second);
        assert_eq!(watch.read, reads, "at {second}");
    }
}

#[test]
fn restarted_container_prolongs_soak() {
    let restarted = |second: i64| PodFacts { restarted_at: Some(t(second)), restarts: 1, ..healthy() };
    let mut watch = Watch::of(verifying(vec![healthy(), restarted(30)]));
    let wait = watch.at(SOAKED).unwrap();
    assert!(wait.as_str() == "Settling" && wait.to_string().contains("a container was restarted at"), "{wait}");
    assert_eq!(plan(&watch.view, &watch.policy, t(SOAKED)).wake, Some(t(30 + SOAKED)));
    // Another pod leaves, however often its own containers were restarted.
    watch.pods().remove(0);
    assert_eq!(watch.at(29 + SOAKED).unwrap().as_str(), "Settling");
    assert_eq!((watch.result_at(30 + SOAKED), watch.message().contains("for the soak")), (is_updated(), true));

    let mut watch = Watch::of(verifying(vec![restarted(0)]));
    assert_eq!(watch.result_at(SOAKED), is_updated(), "restarted before the soak began");

    let mut watch = Watch::of(verifying(vec![restarted(DEADLINE - 1)]));
    assert_eq!(watch.result_at(DEADLINE), is_unproven());
    assert!(watch.message().contains("restarted"), "{}", watch.message());
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![restarted(DEADLINE - 1)]));
    assert_eq!(watch.result_at(DEADLINE), is_blamed());
}

#[test]
fn update_message_notes_absence_of_workload_pods() {
    let of_a_daemon_set = PodFacts { daemon_set: Some("log".into()), ..healthy() };
    let mirror = PodFacts { mirror: true, ..healthy() };
    for (sentence, pods, lonely) in [
        ("a workload", vec![of_a_daemon_set.clone(), healthy()], false),
        ("pods of DaemonSets and of the kubelet alone", vec![of_a_daemon_set, mirror], true),
        ("nothing", vec![], true),
    ] {
        let mut watch = Watch::of(verifying(pods));
        watch.at(SOAKED);
        assert_eq!(watch.message().contains("no pods of workloads"), lonely, "{sentence}: {}", watch.message());
        assert_eq!(watch.record().without_workloads, lonely, "{sentence}");
    }
    // Pods do not have to be Ready, and they are there.
    let mut watch = Watch::of(verifying(vec![failing()]));
    watch.policy.all.after.pods_ready = false;
    watch.at(SOAKED);
    assert!(!watch.record().without_workloads && !watch.message().contains("no pods of workloads"));
}

#[test]
fn drain_start_records_owners_of_unhealthy_pods() {
    let of = |owner: &str, pod: PodFacts| PodFacts { controller_uid: Some(owner.into()), uid: owner.into(), ..pod };
    let crash_loops = |restarts: i32, ago: i64| PodFacts { restarts, restarted_at: Some(t(-ago)), ..healthy() };
    let mut staged = at("a", Step::Staging, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![
        of("healthy", healthy()),
        of("not-ready", failing()),
        of("not-ready", failing()),
        of("crash-loops", crash_loops(3, 3599)),
        of("crash-looped-long-ago", crash_loops(3, 3600)),
        of("restarted-by-a-reboot", crash_loops(2, 1)),
        of("finished", PodFacts { finished: true, ..failing() }),
        PodFacts { mirror: true, uid: "static".into(), controller_uid: Some("uid-a".into()), ..failing() },
        of("leaves", PodFacts { terminating: true, ..failing() }),
        of("starts", PodFacts { started: Some(t(-20)), ..failing() }),
        of("starts-as-its-probe-allows", PodFacts { started: Some(t(-600)), startup: HOUR, ..failing() }),
        of("not-seen-by-its-kubelet", PodFacts { pending: true, ..failing() }),
    ]);
    let (view, policy) = cluster(vec![staged], &["a"]);
    let made = plan(&view, &policy, t(0));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Draining);
    assert_eq!(status.report.record.as_ref().unwrap().unhealthy_before, ["crash-loops", "not-ready", "static"]);
}

#[test]
fn pods_of_owner_are_counted_by_node_and_health() {
    let crash_loops = PodFacts { restarts: 3, restarted_at: Some(t(0)), ..healthy() };
    let slow = |startup| PodFacts { started: Some(t(-600)), startup, ..failing() };
    for (sentence, pod, on, expected) in [
        ("Ready, not updated", healthy(), Compared::NotUpdated, (0, 0, 1, 0)),
        ("not Ready, not updated", failing(), Compared::NotUpdated, (0, 0, 0, 1)),
        ("Ready between crashes, not updated", crash_loops, Compared::NotUpdated, (0, 0, 0, 1)),
        ("Ready, updated", healthy(), Compared::Updated, (1, 0, 0, 0)),
        ("Ready, just updated", healthy(), Compared::JustUpdated, (1, 0, 0, 0)),
        ("not Ready, updated", failing(), Compared::Updated, (0, 1, 0, 0)),
        ("not Ready, just updated", failing(), Compared::JustUpdated, (0, 0, 0, 0)),
        ("starting", PodFacts { started: Some(t(0)), ..failing() }, Compared::NotUpdated, (0, 0, 0, 0)),
        ("as its startup probe allows", slow(HOUR), Compared::NotUpdated, (0, 0, 0, 0)),
        ("the same on an updated node", slow(HOUR), Compared::Updated, (0, 0, 0, 0)),
        ("for longer than that", slow(HOUR / 60), Compared::NotUpdated, (0, 0, 0, 1)),
        ("not seen by its kubelet", PodFacts { pending: true, ..failing() }, Compared::NotUpdated, (0, 0, 0, 0)),
    ] {
        let mut health = OwnerHealth::default();
        health.count(&pod, on, t(1));
        let counted = (health.updated_ready, health.updated_failing, health.others_healthy, health.others_unhealthy);
        assert_eq!(counted, expected, "{sentence}");
        let settles = on == Compared::JustUpdated && !pod.ready;
        assert_eq!(health.updated_settling, usize::from(settles), "{sentence}");
    }
}
