//! Ready is not usable: what a node had before its drain has to be back after its update.

use std::sync::Arc;
use std::time::Duration;

use models::condition::{ConditionStatus, find_condition};
use models::shadow::{
    BLOCKED, HEALTHY, HOST_REACHABLE, HostState, NodeBefore, OwnerBefore, Record, Step, UNSUPPORTED_STATE,
};

use super::health::{DEADLINE, SOAKED, Watch, failing, healthy, is_unproven, is_updated, verifying};
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::plan;
use crate::view::{ClusterView, CsiNodeFacts, DaemonSetFacts, DaemonSetState, NodeFacts, PodFacts, WebApiOutage};
use crate::wait::Wait;

/// Node `a` with these resources before its drain, after its update beside `others`, which had the same.
fn back(resources: &[(&str, &str)], others: &[&str]) -> Watch {
    let mut node = verifying(vec![healthy()]);
    let before = NodeBefore {
        allocatable: resources.iter().map(|(name, size)| ((*name).to_owned(), (*size).to_owned())).collect(),
        taints: vec!["dedicated:NoSchedule".into()],
        csi_drivers: vec!["ebs.csi.aws.com".into()],
        daemon_sets: vec![OwnerBefore { name: "shop/driver".into(), uid: "driver".into() }],
        compared_with: others.iter().map(|name| (*name).to_owned()).collect(),
        ..NodeBefore::default()
    };
    node.shadow.as_mut().unwrap().status.controller.record = Some(Record { before: Some(before), ..Record::default() });
    let mut watch = Watch::of(node);
    watch.view.nodes.extend(others.iter().map(|name| ((*name).to_owned(), crate::fixtures::node(name))));
    for name in others.iter().chain(&["a"]) {
        has(&mut watch.view, name, resources);
    }
    watch
}

fn facts<'a>(view: &'a mut ClusterView, name: &str) -> &'a mut NodeFacts {
    &mut view.nodes.get_mut(name).unwrap().facts
}

fn has(view: &mut ClusterView, name: &str, resources: &[(&str, &str)]) {
    let resources = resources.iter().map(|(name, size)| ((*name).to_owned(), (*size).to_owned()));
    facts(view, name).allocatable = Arc::new(resources.collect());
}

fn has_drivers(view: &mut ClusterView, name: &str, drivers: &[&str]) {
    let drivers = drivers.iter().map(|driver| (*driver).to_owned()).collect();
    let facts = CsiNodeFacts { drivers, ..CsiNodeFacts::default() };
    view.csi_nodes.get_or_insert_default().insert(name.into(), facts);
}

/// The DaemonSet `driver`, for nodes with these labels.
fn has_daemon_set(view: &mut ClusterView, uid: &str, labels: &[(&str, &str)]) {
    let facts = DaemonSetFacts {
        uid: uid.into(),
        node_selector: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..DaemonSetFacts::default()
    };
    view.daemon_sets.get_or_insert_default().insert("shop/driver".into(), facts);
}

fn is_not_usable() -> (Option<String>, bool) {
    (Some("NodeNotUsable".to_owned()), false)
}

/// Returns why a node waits at this second, in words.
fn waits(watch: &mut Watch, second: i64) -> String {
    watch.at(second).map(|wait| wait.to_string()).unwrap_or_default()
}

const GPUS: &[(&str, &str)] = &[("nvidia.com/gpu", "8"), ("cpu", "7910m"), ("memory", "31Gi")];

#[test]
fn device_that_is_not_back_is_named_and_proves_nothing_at_the_timeout() {
    let mut watch = back(GPUS, &["b"]);
    has(&mut watch.view, "a", &GPUS[1..]);
    let text = "the node is Ready, and not as usable as before its drain: nvidia.com/gpu is 0 and was 8";
    assert_eq!(waits(&mut watch, SOAKED), text);
    let condition = |watch: &Watch, type_| {
        let conditions = &watch.view.nodes["a"].shadow.as_ref().unwrap().status.conditions;
        find_condition(conditions, type_).cloned().unwrap()
    };
    assert_eq!(condition(&watch, BLOCKED).message, text);
    has(&mut watch.view, "a", &[("nvidia.com/gpu", "7"), GPUS[1], GPUS[2]]);
    waits(&mut watch, DEADLINE - 1);
    assert!(condition(&watch, BLOCKED).message.ends_with("nvidia.com/gpu is 7 and was 8"), "of what is missing now");
    assert_eq!(watch.result().0, None, "within the time");
    assert_eq!((watch.result_at(DEADLINE), watch.message()), (is_not_usable(), text.replace(" 0 ", " 7 ")));
    assert_eq!(condition(&watch, HEALTHY).status, ConditionStatus::Unknown);
    assert!(watch.record().before.is_some(), "its next verification asks for the same");
}

#[test]
fn device_that_comes_minutes_after_ready_is_waited_for() {
    let mut watch = back(GPUS, &["b"]);
    has(&mut watch.view, "a", &GPUS[1..]);
    watch.at(SOAKED);
    assert_eq!(watch.result_at(10 * SOAKED).0, None);
    has(&mut watch.view, "a", GPUS);
    assert_eq!(
        (watch.result_at(10 * SOAKED + 1), watch.record().before),
        (is_updated(), None),
        "a proven node needs its facts no more"
    );
}

/// Leaves so many devices on two nodes of four.
fn half_of(view: &mut ClusterView, gpus: &str) {
    ["b", "c"].iter().for_each(|name| has(view, name, &[&[("nvidia.com/gpu", gpus)], &GPUS[1..]].concat()));
}

#[test]
fn what_other_nodes_have_lost_as_well_is_not_missing() {
    type Change = fn(&mut ClusterView);
    let others = ["b", "c", "d", "e"];
    let case = |sentence: &str, others: &[&str], excused: bool, change: Change| {
        let mut watch = back(GPUS, others);
        has(&mut watch.view, "a", &GPUS[1..]);
        change(&mut watch.view);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if excused { is_updated() } else { is_not_usable() }, "{sentence}");
    };
    case("all have it", &others, false, |_| {});
    case("half of them have a part of it, as it has", &others, true, |view| {
        half_of(view, "4");
        has(view, "a", &[&[("nvidia.com/gpu", "4")], &GPUS[1..]].concat());
    });
    case("half of them have a part of it, and it has none", &others, false, |view| half_of(view, "4"));
    case("half of them lost it", &others, true, |view| ["b", "c"].iter().for_each(|name| has(view, name, &[])));
    case("one of four lost it", &others, false, |view| has(view, "b", &[]));
    case("the only one lost it", &["b"], true, |view| has(view, "b", &[]));
    case("it is alone", &[], false, |_| {});
    case("those that lost it run the version", &others, false, |view| {
        for name in ["b", "c"] {
            has(view, name, &[]);
            facts(view, name).os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
        }
    });
    case("those that lost it are being updated", &others, false, |view| {
        for name in ["b", "c"] {
            let updating = at(name, Step::Draining, 0, HostState::StagedUpdate);
            view.nodes.insert(name.into(), updating);
        }
    });
    case("those that lost it had not been like it", &others, false, |view| {
        let record = shadow(view).status.controller.record.as_mut().unwrap();
        record.before.as_mut().unwrap().compared_with = vec!["d".into(), "e".into()];
        ["b", "c"].iter().for_each(|name| has(view, name, &[]));
    });
}

#[test]
fn new_taint_is_waited_for_and_one_that_was_there_before_is_no_fault() {
    let (old, start_up) = ("dedicated:NoSchedule", "node.cilium.io/agent-not-ready:NoExecute");
    for (sentence, on_node, on_others, expected) in [
        ("none", &[][..], &[][..], is_updated()),
        ("as before", &[old], &[], is_updated()),
        ("a start-up taint that nothing removes", &[old, start_up], &[], is_not_usable()),
        ("the other nodes have it now, too", &[old, start_up], &[start_up], is_updated()),
    ] {
        let mut watch = back(GPUS, &["b", "c"]);
        let owned = |taints: &[&str]| taints.iter().map(|taint| (*taint).to_owned()).collect::<Vec<_>>();
        facts(&mut watch.view, "a").taints = owned(on_node);
        facts(&mut watch.view, "b").taints = owned(on_others);
        facts(&mut watch.view, "c").taints = owned(on_others);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}");
        if expected == is_not_usable() {
            let text = "the taint node.cilium.io/agent-not-ready:NoExecute is new";
            assert!(watch.message().contains(text), "{}", watch.message());
        }
    }
    // A start-up taint that is removed in time.
    let mut watch = back(GPUS, &["b"]);
    facts(&mut watch.view, "a").taints = vec![start_up.into()];
    assert!(waits(&mut watch, SOAKED).contains(start_up));
    facts(&mut watch.view, "a").taints.clear();
    assert_eq!(watch.result_at(SOAKED + 1), is_updated());
}

#[test]
fn cpu_memory_and_disk_may_differ_by_a_tenth() {
    for (memory, expected) in [("31Gi", is_updated()), ("28Gi", is_updated()), ("27Gi", is_not_usable())] {
        let mut watch = back(GPUS, &["b", "c"]);
        has(&mut watch.view, "a", &[GPUS[0], ("cpu", "7200m"), ("memory", memory)]);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{memory}");
    }
}

#[test]
fn nothing_is_missing_where_the_facts_are_lost_or_were_never_recorded() {
    for record in [None, Some(Record::default())] {
        let mut watch = back(GPUS, &["b"]);
        shadow(&mut watch.view).status.controller.record = record;
        has(&mut watch.view, "a", &[]);
        facts(&mut watch.view, "a").taints = vec!["new:NoSchedule".into()];
        assert_eq!(watch.result_at(SOAKED), is_updated());
    }
}

#[test]
fn drain_begins_with_the_facts_of_its_node_in_the_same_write() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    let starts = PodFacts { ready: false, daemon_set: Some("new".into()), ..driver("new") };
    let stopped = PodFacts { ready: false, ..static_pod("dns-a") };
    let web = |name: &str| PodFacts {
        name: name.into(),
        uid: name.into(),
        controller: Some("ReplicaSet web-1".into()),
        controller_uid: Some("web".into()),
        ..healthy()
    };
    staged.pods =
        Some(vec![healthy(), web("web-a"), web("web-b"), driver("driver-1"), starts, static_pod("proxy-a"), stopped]);
    let others = ["b", "c", "d", "e", "f", "g", "h"].map(node);
    let (mut view, policy) = cluster([vec![staged], others.into()].concat(), &["a"]);
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        has(&mut view, name, GPUS);
        has_drivers(&mut view, name, &["ebs.csi.aws.com"]);
    }
    has_drivers(&mut view, "c", &["ebs.csi.aws.com", "efs.csi.aws.com"]);
    has_drivers(&mut view, "g", &[]);
    for name in ["a", "b"] {
        facts(&mut view, name).taints = vec!["dedicated:NoSchedule".into()];
    }
    // A node with less of anything, with other taints, without a driver, that is ill or runs the version is not alike.
    facts(&mut view, "h").os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    has(&mut view, "c", &[("nvidia.com/gpu", "8"), ("cpu", "16"), ("memory", "30Gi")]);
    has(&mut view, "d", &GPUS[1..]);
    facts(&mut view, "e").taints = vec!["other:NoSchedule".into()];
    facts(&mut view, "f").pressure = Some("DiskPressure".into());
    let made = plan(&view, &policy, t(0));
    let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Draining);
    let before = status.report.record.as_ref().unwrap().before.clone().unwrap();
    assert_eq!(before.allocatable.keys().collect::<Vec<_>>(), ["cpu", "memory", "nvidia.com/gpu"]);
    assert_eq!(before.allocatable["cpu"], "7910m");
    let found = (before.taints, before.compared_with);
    assert_eq!(found, (vec!["dedicated:NoSchedule".into()], vec!["c".into(), "b".into()]));
    let driver = OwnerBefore { name: "shop/driver".into(), uid: "driver".into() };
    assert_eq!((before.csi_drivers, before.daemon_sets), (vec!["ebs.csi.aws.com".into()], vec![driver]));
    assert_eq!(before.static_pods, ["shop/proxy-a"]);
    assert_eq!(before.replica_sets, [OwnerBefore { name: "shop/web-1".into(), uid: "web".into() }]);
}

/// The mirror of a Ready static pod of the kubelet of node `a`.
fn static_pod(name: &str) -> PodFacts {
    let controller_uid = Some("uid-a".into());
    PodFacts { name: name.into(), uid: name.into(), mirror: true, controller_uid, ..healthy() }
}

/// A pod of a DaemonSet.
fn driver(name: &str) -> PodFacts {
    PodFacts {
        name: name.into(),
        uid: name.into(),
        controller: Some("DaemonSet driver".into()),
        controller_uid: Some("driver".into()),
        daemon_set: Some("driver".into()),
        daemon_set_state: DaemonSetState::There,
        ..healthy()
    }
}

/// A pod of a DaemonSet that its kubelet has rejected just now.
fn rejected(name: &str, now: i64) -> PodFacts {
    let trouble = Some("UnexpectedAdmissionError".into());
    PodFacts {
        ready: false,
        finished: true,
        failed: true,
        rejected: true,
        started: Some(t(now)),
        trouble,
        ..driver(name)
    }
}

/// A pod of a Deployment that its kubelet has rejected just now.
fn rejected_replica(name: &str, now: i64) -> PodFacts {
    PodFacts {
        controller: Some("ReplicaSet web-1".into()),
        controller_uid: Some("rs".into()),
        daemon_set: None,
        ..rejected(name, now)
    }
}

#[test]
fn pod_of_daemon_set_that_the_kubelet_rejects_is_waited_for_and_proves_nothing_at_the_timeout() {
    let mut watch = Watch::of(verifying(vec![healthy(), rejected("driver-1", 1)]));
    assert!(waits(&mut watch, SOAKED).contains("shop/driver-1 first (UnexpectedAdmissionError)"));
    // Its DaemonSet creates it again and again.
    *watch.pods() = vec![healthy(), rejected("driver-2", DEADLINE - 1)];
    assert_eq!(watch.result_at(DEADLINE - 1).0, None);
    assert_eq!(watch.result_at(DEADLINE), is_unproven());
    assert!(watch.message().contains("shop/driver-2 (UnexpectedAdmissionError)"), "{}", watch.message());
}

#[test]
fn failed_pod_counts_as_ended_where_nothing_has_to_run_in_its_place() {
    let failed = |pod: PodFacts| PodFacts { ready: false, finished: true, failed: true, ..pod };
    let gone = PodFacts { daemon_set_state: DaemonSetState::Gone, ..rejected("driver-1", 1) };
    for (sentence, pods, podsready, expected) in [
        ("a DaemonSet has another pod, Ready", vec![rejected("driver-1", 1), driver("driver-2")], true, is_updated()),
        ("no pods are asked for", vec![rejected("driver-1", 1)], false, is_updated()),
        ("a replica that was evicted, and has another one", vec![failed(healthy())], true, is_updated()),
        ("a bare pod", vec![failed(pod("a", true))], true, is_updated()),
        ("its DaemonSet is gone", vec![gone], true, is_updated()),
        ("the DaemonSet has no other", vec![rejected("driver-1", 1)], true, is_unproven()),
    ] {
        let mut watch = Watch::of(verifying(pods));
        watch.policy.all.after.pods_ready = podsready;
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}");
    }
}

#[test]
fn pods_of_a_deployment_that_the_kubelet_rejects_are_waited_for_and_prove_nothing_at_the_timeout() {
    let mut watch = Watch::of(verifying(vec![]));
    for second in [SOAKED, 5 * SOAKED, DEADLINE - 1] {
        // Its ReplicaSet creates others without end.
        let pods = (1..=second).map(|at| rejected_replica(&format!("web-{at}"), at));
        *watch.pods() = pods.collect();
        let expected = format!(
            "1 pod(s) on the updated node are not healthy yet, shop/web-{second} first (UnexpectedAdmissionError)"
        );
        assert_eq!(waits(&mut watch, second), expected);
    }
    assert_eq!(watch.result_at(DEADLINE), is_unproven());
    let last = format!("shop/web-{} (UnexpectedAdmissionError)", DEADLINE - 1);
    assert!(watch.message().contains(&last), "{}", watch.message());
}

#[test]
fn rejected_pod_counts_until_its_owner_has_one_that_is_not() {
    let at_the_end = DEADLINE - 1;
    let replica = |at: i64| rejected_replica("web-1", at);
    let mirrors = [replica(-2), healthy()].map(|pod| PodFacts { mirror: true, ..pod }).to_vec();
    for (sentence, pods, expected) in [
        ("nothing came after it", vec![replica(at_the_end)], is_unproven()),
        ("another one is Ready on the node", vec![replica(at_the_end), healthy()], is_updated()),
        ("its owner's next one went to another node", vec![replica(at_the_end - 120)], is_updated()),
        ("a newer one was rejected", vec![replica(2), replica(at_the_end)], is_unproven()),
        ("it was rejected before the update", vec![replica(-2)], is_updated()),
        ("it is of a Job", vec![PodFacts { runs_to_completion: true, ..replica(at_the_end) }], is_updated()),
        ("it has no controller", vec![PodFacts { controller_uid: None, ..replica(at_the_end) }], is_updated()),
        ("a static pod, which the kubelet does not try again", mirrors, is_unproven()),
    ] {
        let mut watch = Watch::of(verifying(pods));
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}");
    }
}

#[test]
fn rejected_pod_that_runs_elsewhere_by_now_is_named_and_is_a_pod_of_a_workload() {
    let mut watch = Watch::of(verifying(vec![rejected_replica("web-1", 10)]));
    assert!(waits(&mut watch, SOAKED).contains("shop/web-1 first (UnexpectedAdmissionError)"));
    watch.at(10 + 120);
    assert_eq!(watch.result_at(10 + 120 + SOAKED), is_updated());
    assert!(watch.message().contains("shop/web-1 (UnexpectedAdmissionError)"), "{}", watch.message());
    assert!(!watch.record().without_workloads);
    let job = PodFacts { runs_to_completion: true, ..rejected_replica("job-1", 10) };
    for (sentence, pod, lonely) in [
        ("rejected on this version", job.clone(), false),
        ("rejected before", PodFacts { started: Some(t(-5)), ..job }, true),
        ("of a DaemonSet", PodFacts { daemon_set_state: DaemonSetState::Gone, ..rejected("driver-1", 10) }, true),
    ] {
        let mut watch = Watch::of(verifying(vec![pod]));
        watch.at(SOAKED);
        assert_eq!(watch.message().contains("no pods of workloads"), lonely, "{sentence}: {}", watch.message());
        assert_eq!(watch.record().without_workloads, lonely, "{sentence}");
    }
}

#[test]
fn daemon_set_whose_pod_failed_before_the_drain_is_excused() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![rejected("driver-1", -1)]);
    let (view, policy) = cluster(vec![staged], &["a"]);
    assert_eq!(record_of(&plan(&view, &policy, t(0))).unhealthy_before, ["driver"]);
}

#[test]
fn csi_driver_that_is_not_back_proves_nothing() {
    type Change = fn(&mut ClusterView);
    const DRIVER: &[&str] = &["ebs.csi.aws.com"];
    let case = |sentence: &str, missing: bool, change: Change| {
        let mut watch = back(GPUS, &["b", "c", "d", "e"]);
        change(&mut watch.view);
        if watch.view.csi_nodes.as_ref().is_some_and(|known| known.len() < 3) {
            ["b", "c", "d", "e"].iter().for_each(|name| has_drivers(&mut watch.view, name, DRIVER));
        }
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if missing { is_not_usable() } else { is_updated() }, "{sentence}");
        if missing {
            assert!(watch.message().contains("the CSI driver ebs.csi.aws.com is missing"), "{}", watch.message());
        }
    };
    case("it is back, with another one", false, |view| has_drivers(view, "a", &["new.csi", "ebs.csi.aws.com"]));
    case("it is not", true, |view| has_drivers(view, "a", &[]));
    case("its node has registered nothing", true, |view| has_drivers(view, "b", DRIVER));
    case("half of the others lost it as well: it was uninstalled", false, |view| {
        has_drivers(view, "a", &[]);
        ["b", "c"].iter().for_each(|name| has_drivers(view, name, &[]));
        ["d", "e"].iter().for_each(|name| has_drivers(view, name, DRIVER));
    });
    case("one of the others lost it", true, |view| {
        has_drivers(view, "a", &[]);
        has_drivers(view, "b", &[]);
        ["c", "d", "e"].iter().for_each(|name| has_drivers(view, name, DRIVER));
    });
    case("drivers may not be read", false, |_| {});
}

#[test]
fn daemon_set_has_a_ready_pod_again_while_it_wants_the_node() {
    type Change = fn(&mut Watch);
    let case = |sentence: &str, missing: bool, change: Change| {
        let mut watch = back(GPUS, &["b", "c"]);
        has_daemon_set(&mut watch.view, "driver", &[]);
        change(&mut watch);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if missing { is_not_usable() } else { is_updated() }, "{sentence}");
        if missing {
            assert!(watch.message().contains("the DaemonSet shop/driver has no Ready pod"), "{}", watch.message());
        }
    };
    case("its pod is Ready", false, |watch| watch.pods().push(driver("driver-2")));
    case("it has no pod", true, |_| {});
    case("its pod is being deleted", true, |watch| {
        watch.pods().push(PodFacts { terminating: true, ..driver("driver-1") });
    });
    case("its pod was created again a moment ago", true, |watch| {
        watch.pods().push(PodFacts { ready: false, started: Some(t(DEADLINE - 1)), ..driver("driver-3") });
    });
    case("it was uninstalled meanwhile", false, |watch| watch.view.daemon_sets.as_mut().unwrap().clear());
    case("it was deleted and created again", false, |watch| has_daemon_set(&mut watch.view, "another", &[]));
    case("it does not want the node any more", false, |watch| {
        has_daemon_set(&mut watch.view, "driver", &[("gpu", "true")]);
    });
    case("DaemonSets may not be read", false, |watch| watch.view.daemon_sets = None);
    case("no pods are asked for", false, |watch| watch.policy.all.after.pods_ready = false);
}

#[test]
fn node_whose_agent_cannot_take_it_to_another_version_proves_nothing() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, missing: Option<&str>, change: Change| {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        change(&mut watch.view);
        assert_eq!(watch.result_at(SOAKED).0.is_none(), missing.is_some(), "{sentence}: it is waited for");
        assert_eq!(
            watch.result_at(DEADLINE),
            if missing.is_some() { is_not_usable() } else { is_updated() },
            "{sentence}"
        );
        assert!(missing.is_none_or(|text| watch.message().contains(text)), "{sentence}: {}", watch.message());
    };
    case("its host does not answer", Some("(Timeout)"), |view| shadow(view).status.conditions.push(unreachable()));
    case("the agent does not know the state of its host", Some("(UnsupportedState)"), |view| {
        shadow(view).status.conditions.push(condition(HOST_REACHABLE, UNSUPPORTED_STATE, "x"));
    });
    case("its host did not answer before the web API went away", Some("(Timeout)"), |view| {
        shadow(view).status.conditions.push(unreachable());
        view.web_api_missing = Some(t(0));
    });
    case(
        "the agent has not reported in this boot, and its pod is not Ready",
        Some("its agent has not reported since its boot"),
        |view| {
            shadow(view).status.agent.boot_id = Some("b0".into());
            view.nodes.get_mut("a").unwrap().agent_missing = Some(t(0));
        },
    );
    case("the same, and its pod is Ready", Some("its agent has not reported since its boot"), |view| {
        shadow(view).status.agent.boot_id = Some("b0".into());
    });
    case("the agent has reported, and is not heard any more", None, |view| {
        view.nodes.get_mut("a").unwrap().agent_missing = Some(t(0));
        let silent = condition(HOST_REACHABLE, "AgentNotReady", "x");
        let silent = models::condition::Condition { status: ConditionStatus::Unknown, ..silent };
        shadow(view).status.conditions.push(silent);
    });
    case("a user has removed its label, and the agent ended with it", None, |view| {
        facts(view, "a").labelled = false;
        shadow(view).status.agent.boot_id = Some("b0".into());
    });
    let mut watch = Watch::of(verifying(vec![healthy()]));
    shadow(&mut watch.view).status.conditions.push(unreachable());
    watch.at(SOAKED);
    shadow(&mut watch.view).status.conditions.retain(|condition| condition.type_ != HOST_REACHABLE);
    assert_eq!(watch.result_at(SOAKED + 1), is_updated(), "its host answers again");
}

/// No agent can report without the web API.
#[test]
fn first_report_is_waited_for_past_the_timeout_while_the_web_api_is_away() {
    const BACK: i64 = 2 * DEADLINE;
    for reports in [true, false] {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        shadow(&mut watch.view).status.agent.boot_id = None;
        watch.view.web_api_missing = Some(t(10));
        for second in [SOAKED, DEADLINE, BACK] {
            assert_eq!(watch.at(second), Some(Wait::WebApiNotReady), "{second}");
        }
        watch.view.web_api_missing = None;
        watch.view.web_api_outage = Some(WebApiOutage { began: t(10), ended: t(BACK) });
        assert_eq!(watch.at(BACK + 59), Some(Wait::NoReport), "its agent is about to be connected");
        shadow(&mut watch.view).status.agent.boot_id = reports.then(|| "b1".into());
        assert_eq!(watch.result_at(BACK + 60), if reports { is_updated() } else { is_not_usable() }, "{reports}");
    }
}

#[test]
fn clock_of_verification_stops_while_the_web_api_is_away_for_a_day_at_most() {
    const DAY: i64 = 24 * 3600;
    let unreported = || {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        shadow(&mut watch.view).status.agent.boot_id = None;
        watch.view.web_api_missing = Some(t(10));
        assert_eq!(watch.at(SOAKED), Some(Wait::WebApiNotReady));
        watch
    };
    let mut watch = unreported();
    *watch.pods() = vec![failing()];
    assert!(matches!(watch.at(DEADLINE + 10), Some(Wait::Settling { .. })), "a pod is not Ready for a moment");
    *watch.pods() = vec![healthy()];
    watch.at(DEADLINE + 11);
    watch.view.web_api_missing = None;
    watch.view.web_api_outage = Some(WebApiOutage { began: t(10), ended: t(DEADLINE + 20) });
    shadow(&mut watch.view).status.agent.boot_id = Some("b1".into());
    assert_eq!(watch.result_at(DEADLINE + 11 + SOAKED), is_updated(), "{}", watch.message());

    let mut watch = unreported();
    assert_eq!(watch.at(DAY - 1), Some(Wait::WebApiNotReady));
    assert_eq!(watch.result_at(DAY), is_not_usable());
}

#[test]
fn new_leader_gives_agents_time_for_the_report_that_an_outage_of_the_web_api_has_delayed() {
    for (sentence, leads_since, until) in [
        ("the verification is in time", DEADLINE - 1, DEADLINE + 599),
        ("its time was over before", DEADLINE, DEADLINE + 600),
    ] {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        shadow(&mut watch.view).status.agent.boot_id = None;
        watch.view.leader_since = t(leads_since);
        assert_eq!(watch.at(leads_since + 59), Some(Wait::NoReport), "{sentence}");
        watch.at(until - 1);
        assert!(watch.result().0.is_none(), "{sentence}");
        assert_eq!(watch.result_at(until), is_not_usable(), "{sentence}");
    }
}

#[test]
fn report_is_waited_for_a_minute_after_the_soak_also_past_the_timeout() {
    for (sentence, reports) in [("it comes", true), ("it does not", false)] {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        watch.policy.all.after.timeout = Duration::from_secs(30);
        shadow(&mut watch.view).status.agent.boot_id = None;
        let found = (watch.at(SOAKED), watch.at(SOAKED + 59));
        assert_eq!(found, (Some(Wait::NoReport), Some(Wait::NoReport)), "{sentence}");
        shadow(&mut watch.view).status.agent.boot_id = reports.then(|| "b1".into());
        assert_eq!(watch.result_at(SOAKED + 60), if reports { is_updated() } else { is_not_usable() }, "{sentence}");
    }
}

/// A kubelet deletes the mirror of a static pod whose manifest it does not find.
#[test]
fn static_pod_that_is_not_back_after_the_boot_is_named_and_proves_nothing() {
    type Change = fn(&mut Watch);
    fn recorded(watch: &mut Watch) -> &mut Vec<String> {
        let record = shadow(&mut watch.view).status.controller.record.as_mut().unwrap();
        &mut record.before.as_mut().unwrap().static_pods
    }
    let case = |sentence: &str, missing: bool, change: Change| {
        let mut watch = back(GPUS, &["b", "c"]);
        recorded(&mut watch).push("shop/proxy-a".into());
        change(&mut watch);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), if missing { is_not_usable() } else { is_updated() }, "{sentence}");
        if missing {
            assert!(watch.message().contains("the static pod shop/proxy-a is not running"), "{}", watch.message());
        }
    };
    case("it is back", false, |watch| watch.pods().push(static_pod("proxy-a")));
    case("it was evicted, or ended with the boot before", true, |watch| {
        watch.pods().push(PodFacts { ready: false, finished: true, failed: true, ..static_pod("proxy-a") });
    });
    case("another one is", true, |watch| watch.pods().push(static_pod("dns-a")));
    case("none is", true, |_| {});
    case("its mirror is being deleted", true, |watch| {
        watch.pods().push(PodFacts { terminating: true, ..static_pod("proxy-a") });
    });
    case("no pods are asked for", false, |watch| watch.policy.all.after.pods_ready = false);
    case("an earlier version of the operator has recorded none", false, |watch| recorded(watch).clear());
}

/// Node `a`, whose drain evicted pods of these ReplicaSets, and to which no pod has come after its update.
fn emptied(sets: &[&str]) -> Watch {
    let mut watch = back(GPUS, &["b", "c"]);
    watch.pods().clear();
    let record = shadow(&mut watch.view).status.controller.record.as_mut().unwrap();
    let set = |name: &&str| OwnerBefore { name: format!("shop/{name}-1"), uid: (*name).into() };
    record.before.as_mut().unwrap().replica_sets = sets.iter().map(set).collect();
    watch
}

/// A webhook that fails has lost its only pod, or a quota is full: the next drain would take away more.
#[test]
fn evicted_pods_that_are_not_created_again_are_named_and_prove_nothing() {
    type Sets = &'static [&'static str];
    type Change = fn(&mut Watch);
    fn created(watch: &mut Watch, second: i64) {
        let new = PodFacts { created: Some(t(second)), ..pod("b", false) };
        watch.view.nodes.get_mut("b").unwrap().pods = Some(vec![new]);
    }
    let both: Sets = &["api", "web"];
    let case = |sentence: &str, sets: Sets, lacking: Sets, read: usize, proven: bool, change: Change| {
        let mut watch = emptied(sets);
        watch.lacking = lacking.iter().map(|uid| (*uid).to_owned()).collect();
        change(&mut watch);
        assert_eq!(watch.result_at(SOAKED).0.is_some(), proven, "{sentence}: it is waited for");
        assert_eq!(watch.result_at(DEADLINE), if proven { is_updated() } else { is_not_usable() }, "{sentence}");
        assert_eq!(watch.read, read, "{sentence}");
        let text = "pods of shop/api-1, shop/web-1 were evicted, and none was created again";
        assert_eq!(watch.message().contains(text), !proven, "{sentence}: {}", watch.message());
    };
    case("neither has its pods", both, both, 4, false, |_| {});
    case("the first one has, or cannot be read", both, &["web"], 1, true, |_| {});
    case("the second one has", both, &["api"], 2, true, |_| {});
    case("a pod was created on another node", both, both, 0, true, |watch| created(watch, 10));
    case("a pod was created before the drain", both, both, 4, false, |watch| created(watch, 0));
    case("pods of one alone were evicted", &["web"], both, 0, true, |_| {});
    case("none were, or an earlier version of the operator has recorded none", &[], both, 0, true, |_| {});
    case("a pod has come to the node", both, both, 0, true, |watch| watch.pods().push(healthy()));
    case("no pods are asked for", both, both, 0, true, |watch| watch.policy.all.after.pods_ready = false);
}

#[test]
fn node_without_workloads_proves_its_version_once_evicted_pods_are_created_again() {
    let mut watch = emptied(&["api", "web"]);
    watch.lacking = vec!["api".into(), "web".into()];
    assert!(waits(&mut watch, SOAKED).contains("shop/api-1, shop/web-1"));
    watch.lacking.pop();
    assert_eq!((watch.result_at(SOAKED + 299).0, watch.read), (None, 2), "they are read every five minutes");
    assert_eq!((watch.result_at(SOAKED + 300), watch.read), (is_updated(), 4));
    assert!(watch.record().without_workloads);
}

/// The API server does not answer, or is overloaded.
#[test]
fn replica_sets_that_are_not_known_are_read_again_and_prove_nothing() {
    for (sentence, unread) in [("the first one", "api"), ("another one", "web")] {
        let mut watch = emptied(&["api", "web"]);
        (watch.lacking, watch.unread) = (vec!["api".into()], vec![unread.into()]);
        for second in [SOAKED, DEADLINE, DEADLINE + 59] {
            assert_eq!(watch.at(second), Some(Wait::Acting), "{sentence}, at {second}");
        }
        let mut answered = Watch::of(watch.view.nodes["a"].clone());
        (answered.view, answered.policy) = (watch.view.clone(), watch.policy.clone());
        assert_eq!(answered.result_at(DEADLINE + 59), is_updated(), "{sentence}");
        assert_eq!(watch.result_at(DEADLINE + 60), is_unproven(), "{sentence}");
        let text = format!("the ReplicaSet shop/{unread}-1 could not be read");
        assert!(watch.message().contains(&text), "{}", watch.message());
    }
}

#[test]
fn drain_records_replica_sets_of_each_namespace_before_further_ones_of_any() {
    let of = |namespace: &str, name: String| PodFacts {
        namespace: namespace.into(),
        uid: name.clone(),
        controller: Some(format!("ReplicaSet {name}")),
        controller_uid: Some(name.clone()),
        name,
        ..healthy()
    };
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    let shop = (0..9).map(|index| of("shop", format!("web-{index}")));
    staged.pods = Some(shop.chain([of("zoo", "api".into())]).collect());
    let (view, policy) = cluster(vec![staged, node("b")], &["a"]);
    let made = plan(&view, &policy, t(0));
    let before = record_of(&made).before.clone().unwrap();
    let names: Vec<&str> = before.replica_sets.iter().map(|set| set.name.as_str()).collect();
    assert_eq!((names.len(), &names[..3]), (8, &["shop/web-0", "zoo/api", "shop/web-1"][..]));
}
