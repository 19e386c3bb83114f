//! The verdict on a node after its update.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::{find_condition, set_condition};
use models::reason::FailureReason;
use models::shadow::{
    BLOCKED, Drill, HEALTHY, HostState, NodeBefore, Progress, Record, Step, UPDATED, is_agent_condition,
};
use semver::Version;

use crate::claims::ClaimFields;
use crate::decision::{Action, Note};
use crate::expressions::{Question, Subject};
use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{Answer, ClusterView, Compared, LeaseObservations, NodeView, OwnerHealth, PodFacts, WebApiOutage};
use crate::wait::Wait;

/// The end of the soak and the deadline of the default policy, for a node whose verification began at second 0.
pub(super) const SOAKED: i64 = 60;
pub(super) const DEADLINE: i64 = 15 * 60;

/// The time that a startup probe gives a pod.
const HOUR: Duration = Duration::from_hours(1);

/// Health of an owner that makes the failure of a pod evidence against the version.
pub(super) const EVIDENCE: OwnerHealth = OwnerHealth {
    read_at: Timestamp::UNIX_EPOCH,
    updated_ready: 0,
    updated_failing: 1,
    others_healthy: 1,
    others_unhealthy: 0,
    lacks_pods: None,
};

/// A node that runs the new version and is verified since second 0.
pub(super) fn verifying(pods: Vec<PodFacts>) -> NodeView {
    verifying_since("a", 0, pods)
}

/// A node of this name that runs the new version and is verified since this second.
fn verifying_since(name: &str, second: i64, pods: Vec<PodFacts>) -> NodeView {
    let mut node = at(name, Step::Verifying, 0, HostState::RebootedIntoUpdate);
    node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
    node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap().verifying_since = Some(t(second));
    node.pods = Some(pods);
    node
}

pub(super) fn healthy() -> PodFacts {
    PodFacts { ready: true, ..pod("a", false) }
}

pub(super) fn failing() -> PodFacts {
    let labels = [("app", "web"), ("statefulset.kubernetes.io/pod-name", "web-0")];
    let labels = std::sync::Arc::new(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    PodFacts { trouble: Some("container app: CrashLoopBackOff".into()), labels, ..pod("a", false) }
}

/// A failing pod of a StatefulSet.
pub(super) fn replica(number: usize) -> PodFacts {
    let (controller, controller_uid) = (Some("StatefulSet db".into()), Some("set".into()));
    PodFacts { name: format!("db-{number}"), controller, controller_uid, ..failing() }
}

/// A controller that carries out the decisions about node `a`, and reads `found` of every owner.
pub(super) struct Watch {
    pub(super) view: ClusterView,
    pub(super) policy: Policy,
    pub(super) found: OwnerHealth,
    /// The ReplicaSets (uid) that have fewer pods than they want.
    pub(super) lacking: Vec<String>,
    /// The ReplicaSets (uid) that the API server does not show.
    pub(super) unread: Vec<String>,
    /// The kubelet has crashed: nothing renews its Lease.
    crashed: bool,
    notes: Vec<Note>,
    pub(super) read: usize,
}

impl Watch {
    pub(super) fn of(node: NodeView) -> Self {
        let (view, policy) = cluster(vec![node], &["a"]);
        let (found, lacking, unread, notes) = (OwnerHealth::default(), Vec::new(), Vec::new(), Vec::new());
        Self { view, policy, found, lacking, unread, crashed: false, notes, read: 0 }
    }

    /// The same, which reads this of every owner.
    pub(super) fn finding(found: OwnerHealth, node: NodeView) -> Self {
        Self { found, ..Self::of(node) }
    }

    /// Carries out everything that is due at this second, and returns why the node waits.
    pub(super) fn at(&mut self, second: i64) -> Option<Wait> {
        for _ in 0..20 {
            let mut made = plan(&self.view, &self.policy, t(second));
            assert_eq!(crate::lint::lint(&self.view, &self.policy, &mut made), []);
            self.view.operator.as_mut().unwrap().status.unwell = made.status.take().unwrap().unwell;
            let node = self.view.nodes.get_mut("a").unwrap();
            let shadow = node.shadow.as_mut().unwrap();
            if let Some(silence) = made.silent.remove("a") {
                set_condition(&mut shadow.status.conditions, silence.condition);
            }
            match made.actions.remove("a") {
                None => return made.waits.get("a").cloned(),
                Some(Action::Status { status, note }) => {
                    shadow.status.controller = status.report;
                    shadow.status.conditions.retain(|condition| is_agent_condition(&condition.type_));
                    shadow.status.conditions.extend(status.conditions);
                    self.notes.extend(note);
                }
                Some(Action::Spec { spec }) => shadow.spec = *spec,
                Some(Action::ReadLease) if self.crashed => {
                    node.lease = Some(LeaseObservations::add(node.lease, Some(t(15)), t(second)));
                }
                Some(Action::ReadLease) => node.lease = renewed_after(second),
                Some(Action::ReadOwner { owner, .. }) => {
                    self.read += 1;
                    node.owners.insert(owner, OwnerHealth { read_at: t(second), ..self.found });
                }
                Some(Action::ReadReplicaSet { set }) if self.unread.contains(&set.uid) => return Some(Wait::Acting),
                Some(Action::ReadReplicaSet { set }) => {
                    self.read += 1;
                    let lacks_pods = Some(self.lacking.contains(&set.uid));
                    node.owners.insert(set.uid, OwnerHealth { read_at: t(second), lacks_pods, ..self.found });
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        panic!("it does not end");
    }

    pub(super) fn record(&self) -> Record {
        self.view.nodes["a"].record().cloned().unwrap_or_default()
    }

    /// Returns the result of the attempt, and true if it counts against the version.
    pub(super) fn result(&self) -> (Option<String>, bool) {
        let record = self.record();
        (record.last.map(|last| last.reason), !record.version_failures.is_empty())
    }

    /// Carries out what is due at this second, and returns the result then.
    pub(super) fn result_at(&mut self, second: i64) -> (Option<String>, bool) {
        self.at(second);
        self.result()
    }

    pub(super) fn message(&self) -> String {
        self.record().last.map(|last| last.message).unwrap_or_default()
    }

    pub(super) fn pods(&mut self) -> &mut Vec<PodFacts> {
        self.view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()
    }
}

pub(super) fn is_updated() -> (Option<String>, bool) {
    (Some(UPDATED.to_owned()), false)
}

pub(super) fn is_unproven() -> (Option<String>, bool) {
    (Some("HealthUnknown".to_owned()), false)
}

pub(super) fn is_blamed() -> (Option<String>, bool) {
    (Some("SoakFailed".to_owned()), true)
}

#[test]
fn update_ends_after_soak_when_all_pods_are_healthy() {
    let mut watch = Watch::of(verifying(vec![healthy()]));
    assert_eq!(watch.at(SOAKED - 1), Some(Wait::Soaking { until: t(SOAKED) }));
    assert_eq!(watch.result_at(SOAKED), is_updated());
    assert!(!watch.notes[0].warning && watch.read == 0, "{:?}", watch.notes);
    let status = &watch.view.nodes["a"].shadow.as_ref().unwrap().status;
    assert_eq!(find_condition(&status.conditions, HEALTHY).unwrap().reason, "Soaked");
}

/// In the same boot, while no controller led.
#[test]
fn soak_begins_again_with_a_node_that_is_ready_again_also_where_no_leader_saw_that_it_was_not() {
    for (sentence, ready_since, soaked) in [
        ("Ready since before its verification", Some(t(-5)), SOAKED),
        ("it was not Ready meanwhile", Some(t(50)), 50 + SOAKED),
        ("the clock of its kubelet is ahead", Some(t(5000)), SOAKED),
        ("since when it is Ready is not known", None, SOAKED),
    ] {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        watch.view.nodes.get_mut("a").unwrap().facts.ready_since = ready_since;
        assert_eq!(watch.result_at(soaked - 1), (None, false), "{sentence}");
        assert_eq!(watch.result_at(soaked), is_updated(), "{sentence}");
    }
}

/// The clock of their kubelet is an hour ahead.
#[test]
fn times_of_pods_that_have_not_come_keep_no_node_from_its_proof_and_prove_none() {
    let old = |pod: PodFacts| PodFacts { created: Some(t(-3600)), ..pod };
    let ahead = Some(t(DEADLINE + 3600));
    for (sentence, pod, ended, end) in [
        ("it has not started", PodFacts { started: ahead, ..failing() }, DEADLINE, is_unproven()),
        ("it was Ready", PodFacts { started: ahead, lost_ready_at: ahead, ..failing() }, DEADLINE, is_unproven()),
        ("the boot has restarted it", PodFacts { restarted_at: ahead, restarts: 1, ..healthy() }, SOAKED, is_updated()),
    ] {
        let mut watch = Watch::of(verifying(vec![healthy(), old(pod).at(t(0))]));
        assert_eq!(watch.result_at(ended - 1), (None, false), "{sentence}");
        assert_eq!(watch.result_at(ended), end, "{sentence}: {}", watch.message());
    }
}

/// `Ready` stays True for most of a minute.
#[test]
fn node_whose_lease_is_not_renewed_after_its_soak_is_not_proven() {
    let mut watch = Watch::of(verifying(vec![healthy()]));
    watch.crashed = true;
    assert_eq!(watch.at(SOAKED), Some(Wait::Soaking { until: t(SOAKED + 10) }));
    assert_eq!(assert_eq!(watch.result_at(SOAKED + 10), Some(Wait::Soaking { until: t(SOAKED + 20) })).0, None);
    // The host boots again within that minute.
    let mut rebooted = Watch::of(watch.view.nodes["a"].clone());
    rebooted.view.nodes.get_mut("a").unwrap().facts.boot_id = "b2".into();
    rebooted.at(SOAKED + 15);
    assert!(rebooted.view.nodes["a"].progress().is_some_and(|progress| progress.soak_restarted));
    assert_eq!(watch.result_at(DEADLINE + 59).0, None);
    assert_eq!(watch.result_at(DEADLINE + 60), is_unproven());
    assert!(watch.message().contains("kube-node-lease has not been renewed since"), "{}", watch.message());

    let lease = |observed: &[(Option<i64>, i64)]| {
        let add =
            |before, (renewed, at): &(Option<i64>, i64)| Some(LeaseObservations::add(before, renewed.map(t), t(*at)));
        observed.iter().fold(None, add)
    };
    for (sentence, observed, expected) in [
        ("it was read before the end of the soak alone", &[(Some(1), 50), (Some(2), SOAKED)][..], "ReadLease"),
        ("it was read once after that", &[(Some(1), 50), (Some(2), 61)], "Soaking"),
        ("there was none", &[(None, 60), (Some(2), 61)], "Soaking"),
        ("it was not renewed after that", &[(Some(1), 60), (Some(1), 61)], "Soaking"),
        ("it was renewed after that", &[(Some(1), 60), (Some(2), 61)], "request Idle of 1"),
        ("by a clock that ran ahead", &[(Some(1), 5000), (Some(2), 5001), (Some(3), 61)], "Soaking"),
        ("and was gone then", &[(Some(1), 60), (Some(2), 61), (None, 62)], "request Idle of 1"),
    ] {
        let mut node = verifying(vec![healthy()]);
        node.lease = lease(observed);
        let (view, policy) = cluster(vec![node], &["a"]);
        assert_eq!(outcome(&plan(&view, &policy, t(70))), expected, "{sentence}");
    }
}

#[test]
fn blocked_condition_names_the_pod_that_is_unhealthy_now() {
    let message = |watch: &Watch| {
        let conditions = &watch.view.nodes["a"].shadow.as_ref().unwrap().status.conditions;
        find_condition(conditions, BLOCKED).unwrap().message.clone()
    };
    let named =
        |name: &str| PodFacts { name: name.to_owned(), trouble: Some("ContainersNotReady".into()), ..failing() };
    let mut watch = Watch::of(verifying(vec![named("agent"), named("driver")]));
    for (name, count) in [("agent", 2), ("driver", 1)] {
        watch.at(SOAKED);
        let wanted =
            format!("{count} pod(s) on the updated node are not healthy yet, shop/{name} first (ContainersNotReady)");
        assert_eq!(message(&watch), wanted);
        watch.pods()[0] = healthy();
    }
    assert_eq!(watch.notes.len(), 1, "one Event: {:?}", watch.notes);
    // The same pod in another state of its crash loop costs no write.
    let mut watch = Watch::of(verifying(vec![named("driver")]));
    watch.at(SOAKED);
    let before = message(&watch);
    watch.pods()[0].trouble = Some("container app: CrashLoopBackOff".into());
    watch.at(SOAKED);
    assert_eq!(message(&watch), before);
}

#[test]
fn unhealthy_pod_without_evidence_delays_update_until_deadline_and_proves_nothing() {
    let ok = EVIDENCE;
    for (sentence, found) in [
        ("nothing is known of other pods", OwnerHealth::default()),
        ("it fails on no other updated node", OwnerHealth { updated_failing: 0, ..ok }),
        ("another pod is Ready on an updated node", OwnerHealth { updated_ready: 1, ..ok }),
        ("no pod is healthy on a node that is not updated", OwnerHealth { others_healthy: 0, ..ok }),
    ] {
        let mut watch = Watch::finding(found, verifying(vec![healthy(), failing()]));
        let wait = watch.at(SOAKED).unwrap();
        assert!(wait.blocks() && wait.as_str() == "Settling", "{sentence}: {wait:?}");
        assert!(wait.to_string().contains("shop/p-a first (container app: CrashLoopBackOff)"), "{wait}");
        assert_eq!(
            assert_eq!((watch.result_at(DEADLINE - 1).unwrap().as_str(), "Settling", "{sentence}").0, watch.read),
            (None, 2),
            "{sentence}: at the end of the soak, and later again"
        );
        assert_eq!((watch.result_at(DEADLINE), watch.read), (is_unproven(), 2), "{sentence}");
        assert!(watch.message().contains("shop/p-a (container app: CrashLoopBackOff)"), "{}", watch.message());
        assert!(watch.notes.iter().any(|note| note.warning && note.reason == "UpdateFailed"), "{:?}", watch.notes);
        assert_eq!(plan(&watch.view, &watch.policy, t(DEADLINE)).slots, Some(vec![]), "{sentence}: its slot is free");
    }
}

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
    // Its containers were restarted by the boot.
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
    assert_eq!((watch.result_at(2 * SOAKED), watch.read), (is_updated(), 1));
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
    let (mirror, bare) = (PodFacts { mirror: true, ..failing() }, PodFacts { controller_uid: None, ..failing() });
    let mut watch = Watch::finding(EVIDENCE, verifying(vec![mirror, bare]));
    watch.at(DEADLINE);
    assert_eq!((watch.read, watch.result()), (0, is_unproven()));
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
    ];
    assert_eq!(nodes.iter().map(|(name, on)| (name.as_str(), *on)).collect::<Vec<_>>(), expected);
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
    // Its pods do not have to be Ready, and they are there.
    let mut watch = Watch::of(verifying(vec![failing()]));
    watch.policy.all.after.pods_ready = false;
    watch.at(SOAKED);
    assert!(!watch.record().without_workloads && !watch.message().contains("no pods of workloads"));
}

#[test]
fn running_version_is_read_from_node_and_otherwise_from_agent() {
    let (new, old) = (Some(NEW), Some(OLD));
    for (sentence, image, boot, reported, updated) in [
        ("the Node names the new one", "Bottlerocket OS 1.20.5 (aws-k8s-1.37)", "b2", &old, true),
        ("the Node names the old one", "Bottlerocket OS 1.20.0 (aws-k8s-1.37)", "b2", &new, false),
        ("the Node names none, the agent the new one", "a custom image", "b2", &new, true),
        ("the Node names none, the agent the old one", "a custom image", "b2", &old, false),
        ("the Node names none, the agent speaks of another boot", "a custom image", "b1", &new, false),
        ("neither names one", "a custom image", "b2", &None, false),
    ] {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        (node.facts.boot_id, node.facts.os_image) = ("b2".into(), image.into());
        (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        (agent.boot_id, agent.current_version) = (Some(boot.into()), reported.clone());
        let mut watch = Watch::of(node);
        watch.at(10);
        let progress = watch.view.nodes["a"].progress().unwrap();
        let expected = if updated { Step::Verifying } else { Step::Returning };
        assert_eq!(progress.step, expected, "{sentence}");
        assert_eq!(progress.verifying_since, updated.then(|| t(10)), "{sentence}: its deadline counts from then");
    }
}

#[test]
fn reboot_during_soak_restarts_it_unless_version_changed() {
    for (version, expected) in [(NEW, None), (OLD, Some("BootedOtherVersion".to_owned()))] {
        let mut node = verifying(vec![healthy()]);
        node.facts.boot_id = "b2".into();
        node.facts.os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
        let mut watch = Watch::of(node);
        assert_eq!(watch.result_at(30).0, expected, "{version}");
        if expected.is_none() {
            let progress = watch.view.nodes["a"].progress().unwrap();
            assert_eq!((progress.step, progress.soak_restarted), (Step::Verifying, true));
            assert_eq!((progress.since, progress.verifying_since), (t(30), Some(t(0))), "health has the same deadline");
        }
    }
    // In the boot of the soak the version is what it was when the soak began, whatever the Node is called meanwhile.
    let mut node = verifying(vec![healthy()]);
    node.facts.os_image = "a custom image".into();
    let mut watch = Watch::of(node);
    assert_eq!(watch.result_at(SOAKED), is_updated());
}

#[test]
fn second_boot_during_soak_counts_as_version_failure() {
    let mut node = verifying(vec![healthy()]);
    node.facts.boot_id = "b2".into();
    let mut watch = Watch::of(node);
    assert_eq!(watch.result_at(30), (None, false), "the first one restarts the soak");
    watch.view.nodes.get_mut("a").unwrap().facts.boot_id = "b3".into();
    assert_eq!(watch.result_at(40), is_blamed());
    assert_eq!(watch.message(), "the node did not stay Ready in one boot");
}

#[test]
fn node_not_ready_after_boot_fails_at_deadline() {
    let mut node = verifying(vec![healthy()]);
    let progress = node.shadow.as_mut().unwrap().status.controller.progress.as_mut().unwrap();
    (progress.step, node.facts.ready, node.facts.boot_id) = (Step::Returning, false, "b2".into());
    let mut watch = Watch::of(node);
    let deadline = watch.policy.returning.as_secs().cast_signed();
    assert_eq!(watch.at(deadline - 1), Some(Wait::AwaitingReady));
    assert_eq!(watch.result_at(deadline), (Some("NotReadyAfterBoot".into()), true));
    assert_eq!(watch.message(), "the node was not Ready on the new version within 30m (spec.deadlines.return)");
}

/// The verification of a node under these expressions, each with its name, query and answer.
fn with_expressions(expressions: &[(&str, &str, Answer)]) -> Watch {
    let mut watch = Watch::of(verifying(vec![healthy()]));
    let named = |(name, query, _): &(&str, &str, Answer)| serde_json::json!({"name": name, "query": query});
    let after = serde_json::json!({"expressions": expressions.iter().map(named).collect::<Vec<_>>()});
    let spec = serde_json::json!({"health": {"after": after}, "prometheus": {"url": "http://p"}});
    watch.policy = with_policy(&mut watch.view, spec);
    let answers = expressions.iter().map(|(_, query, answer)| (question(&query.replace("$node", "a")), answer.clone()));
    watch.view.expressions = answers.collect();
    let names: Vec<&str> = expressions.iter().map(|(name, ..)| *name).collect();
    were_quiet(&mut watch, &names);
    watch
}

/// Records the expressions that returned nothing before the drain.
fn were_quiet(watch: &mut Watch, names: &[&str]) {
    let quiet_expressions = names.iter().map(|name| (*name).to_owned()).collect();
    let compared_with = ["e", "d", "c", "b"].map(str::to_owned).into();
    let before = NodeBefore { quiet_expressions, compared_with, ..NodeBefore::default() };
    let record = Record { before: Some(before), ..Record::default() };
    shadow(&mut watch.view).status.controller.record = Some(record);
}

const OF_A_NODE: &str = "errors{node=\"$node\"} > 1";

/// Adds nodes that were like this one before its drain, with the answers to the expression of a node.
fn others_return(watch: &mut Watch, answers: &[(&str, Answer)]) {
    for (name, answer) in answers {
        watch.view.nodes.insert((*name).to_owned(), node(name));
        watch.view.expressions.insert(question(&OF_A_NODE.replace("$node", name)), answer.clone());
    }
}

/// An empty result, however late it is compared.
const QUIET: Answer = Answer::Quiet { since: Timestamp::UNIX_EPOCH, asked: Timestamp::MAX };

#[test]
fn expression_counts_against_the_version_only_if_it_is_the_nodes_own_was_quiet_before_and_lasts() {
    const OF_ALL: &str = "errors > 1";
    let fires = |since| Answer::Firing { series: "{} 7".into(), since: t(since), asked: Timestamp::MAX };
    let (own, of_all) = (|since| ("own", OF_A_NODE, fires(since)), |since| ("all", OF_ALL, fires(since)));
    let late = DEADLINE - 1;
    for (sentence, expressions, quiet, expected) in [
        ("it is new since the drain", vec![own(0)], &["own"][..], is_blamed()),
        ("it fired before the drain, or had no answer", vec![own(0)], &[], is_unproven()),
        ("another one was quiet", vec![own(0)], &["all"], is_unproven()),
        ("it has just begun", vec![own(late)], &["own"], is_unproven()),
        ("it has just begun, and another one has fired", vec![own(late), of_all(0)], &["own"], is_unproven()),
        ("in another order", vec![of_all(0), own(late)], &["own"], is_unproven()),
        ("it has fired, and another one is first", vec![of_all(late), own(0)], &["own"], is_blamed()),
    ] {
        let mut watch = with_expressions(&expressions);
        others_return(&mut watch, &[("b", QUIET), ("c", QUIET)]);
        were_quiet(&mut watch, quiet);
        assert_eq!(watch.at(SOAKED).unwrap().as_str(), "ExpressionFires", "{sentence}");
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
        assert!(watch.message().contains("the expression own returned {} 7"), "{sentence}: {}", watch.message());
    }
    let mut watch = with_expressions(&[own(0)]);
    watch.view.operator.as_mut().unwrap().status.slots.clear();
    let verified = shadow(&mut watch.view);
    verified.spec.state = HostState::Idle;
    let progress = verified.status.controller.progress.as_mut().unwrap();
    (progress.verification, progress.disruptive) = (true, false);
    watch.at(SOAKED);
    assert_eq!(watch.result_at(DEADLINE), is_unproven(), "days later it may have other causes");
    let failed = || ("fails", "down{node=\"$node\"}", Answer::Failed { message: "no answer".into() });
    let mut watch = with_expressions(&[failed(), own(0)]);
    assert_eq!(watch.at(SOAKED).unwrap().as_str(), "ExpressionFires", "whatever else has no answer");
}

#[test]
fn check_of_objects_counts_against_the_version_as_an_expression_does() {
    let fires = || Answer::Firing { series: "false for Pod shop/web".into(), since: t(0), asked: Timestamp::MAX };
    let (own, of_all) =
        ("self.spec.nodeName != node || self.status.phase == 'Running'", "self.status.phase == 'Running'");
    for (sentence, expression, answer, expected) in [
        ("it is false for this node alone", own, fires(), is_blamed()),
        ("it is the same for all nodes", of_all, fires(), is_unproven()),
        ("it is not known", own, Answer::Failed { message: "no such object exists".into() }, is_unproven()),
    ] {
        let check = serde_json::json!({"name": "own", "apiVersion": "v1", "kind": "Pod", "expression": expression});
        let mut watch = Watch::of(verifying(vec![healthy()]));
        let spec = serde_json::json!({"health": {"after": {"objects": [check]}}});
        watch.policy = with_policy(&mut watch.view, spec);
        let check = watch.policy.all.after.checks[0].clone();
        let about = |node: &str| check.question(Subject { node, version: None }).unwrap().0;
        were_quiet(&mut watch, &["own"]);
        for other in ["b", "c"] {
            watch.view.nodes.insert(other.to_owned(), node(other));
            watch.view.expressions.insert(about(other), QUIET);
        }
        watch.view.expressions.insert(about("a"), answer);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
    }
}

/// So it is where an exporter is rolled out on all nodes and fails, or a registry is down.
#[test]
fn expression_that_returns_something_for_nodes_without_the_version_too_counts_against_none() {
    let fires = || Answer::Firing { series: "{} 7".into(), since: t(0), asked: Timestamp::MAX };
    for (sentence, others, expected) in [
        ("for both others", vec![("b", fires()), ("c", fires())], is_unproven()),
        ("for one of two", vec![("b", fires()), ("c", QUIET)], is_blamed()),
        ("for none of two", vec![("b", QUIET), ("c", QUIET)], is_blamed()),
        ("for two of three", vec![("b", fires()), ("c", QUIET), ("d", fires())], is_unproven()),
        ("for one of three", vec![("b", QUIET), ("c", QUIET), ("d", fires())], is_blamed()),
        ("for the only one", vec![("b", fires())], is_unproven()),
        ("for one that was not like it", vec![("b", QUIET), ("z", fires())], is_blamed()),
        ("there is no other node", vec![], is_unproven()),
    ] {
        let mut watch = with_expressions(&[("own", OF_A_NODE, fires())]);
        others_return(&mut watch, &others);
        watch.at(SOAKED);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
        assert!(watch.message().contains("the expression own returned {} 7"), "{sentence}: {}", watch.message());
    }
}

#[test]
fn expression_is_queried_for_three_other_nodes_right_before_it_counts_against_the_version() {
    let query = |node: &str| question(&OF_A_NODE.replace("$node", node));
    let fires = || Answer::Firing { series: "{} 7".into(), since: t(0), asked: Timestamp::MAX };
    let silent = || {
        let mut watch = with_expressions(&[("own", OF_A_NODE, fires())]);
        watch.view.nodes.extend(["b", "c", "d", "e"].map(|name| (name.to_owned(), node(name))));
        watch.at(SOAKED);
        assert_eq!(plan(&watch.view, &watch.policy, t(DEADLINE - 1)).expressions, [query("a")].into());
        assert_eq!(watch.at(DEADLINE).unwrap().as_str(), "ExpressionFires");
        let made = plan(&watch.view, &watch.policy, t(DEADLINE));
        let asked = ["a", "c", "d", "e"].map(|node| (query(node), t(DEADLINE)));
        assert_eq!(made.asked_again, asked.into(), "those that its record names first");
        watch
    };
    let all_answer = |watch: &mut Watch, answer: &Answer| {
        watch.view.expressions.extend(["c", "d", "e"].map(|node| (query(node), answer.clone())));
    };
    let answered = |watch: &mut Watch, asked: i64| {
        all_answer(watch, &Answer::Quiet { since: t(-600), asked: t(asked) });
    };
    let mut watch = silent();
    answered(&mut watch, DEADLINE - 1);
    assert_eq!(watch.at(DEADLINE + 1).unwrap().as_str(), "ExpressionFires", "an answer of before shows nothing");
    // So does a result: it may have ended since.
    all_answer(&mut watch, &Answer::Firing { series: "{} 7".into(), since: t(-600), asked: t(DEADLINE - 1) });
    assert_eq!(watch.at(DEADLINE + 1).unwrap().as_str(), "ExpressionFires", "nor does a result of before");
    answered(&mut watch, DEADLINE);
    assert_eq!(watch.result_at(DEADLINE + 2), is_blamed());
    let mut watch = silent();
    assert_eq!(watch.at(DEADLINE + 59).unwrap().as_str(), "ExpressionFires");
    assert_eq!(watch.result_at(DEADLINE + 60), is_unproven(), "Prometheus does not answer");
    // The clock of the verification had stopped until long after the deadline.
    let mut watch = silent();
    watch.view.web_api_outage = Some(WebApiOutage { began: t(SOAKED), ended: t(DEADLINE + 600) });
    assert_eq!(watch.at(DEADLINE + 660).unwrap().as_str(), "ExpressionFires");
    let mut unanswered = Watch::of(watch.view.nodes["a"].clone());
    (unanswered.view, unanswered.policy) = (watch.view.clone(), watch.policy.clone());
    assert_eq!(unanswered.result_at(DEADLINE + 720), is_unproven());
    answered(&mut watch, DEADLINE + 661);
    assert_eq!(watch.result_at(DEADLINE + 661), is_blamed());
    // It has ended meanwhile.
    let mut watch = silent();
    watch.view.expressions.insert(query("a"), Answer::Quiet { since: t(DEADLINE + 1), asked: Timestamp::MAX });
    watch.at(DEADLINE + 1);
    assert_eq!(watch.result_at(DEADLINE + 1 + SOAKED), is_updated());
}

/// Prometheus does not answer for a while, or another leader has no answer yet, which knows no earlier ones.
#[test]
fn expression_without_an_answer_does_not_end_an_interruption() {
    let fires = |since| Answer::Firing { series: "{} 7".into(), since: t(since), asked: Timestamp::MAX };
    let failed = Answer::Failed { message: "no answer".into() };
    for (sentence, silent, answered, since, expected) in [
        ("queries fail", Some(failed), DEADLINE - 9, 0, is_blamed()),
        ("another leader, with a minute left", None, DEADLINE - 60, DEADLINE - 60, is_blamed()),
        ("another leader, in the last minute", None, DEADLINE - 9, DEADLINE - 9, is_unproven()),
    ] {
        let mut watch = with_expressions(&[("errors", OF_A_NODE, fires(0))]);
        watch.at(10);
        let queries: Vec<Question> = watch.view.expressions.keys().cloned().collect();
        let with = |answer: &Answer| queries.iter().map(|query| (query.clone(), answer.clone())).collect();
        watch.view.expressions = silent.as_ref().map(with).unwrap_or_default();
        watch.at(answered - 1);
        let progress = watch.view.nodes["a"].progress().unwrap();
        assert_eq!(progress.interrupted, Some(t(10)), "{sentence}");
        watch.view.expressions = with(&fires(since));
        others_return(&mut watch, &[("b", QUIET)]);
        watch.at(answered);
        assert_eq!(watch.result_at(DEADLINE), expected, "{sentence}: {}", watch.message());
    }
}

#[test]
fn answer_from_before_the_end_of_the_soak_proves_nothing() {
    for asked in [-300, SOAKED - 1] {
        let quiet = |asked| Answer::Quiet { since: t(-600), asked: t(asked) };
        let mut watch = with_expressions(&[("errors", OF_A_NODE, quiet(asked))]);
        assert_eq!(watch.at(SOAKED), Some(Wait::ExpressionsPending { name: "errors".into() }));
        let again = plan(&watch.view, &watch.policy, t(SOAKED)).asked_again;
        assert_eq!(again, [(question("errors{node=\"a\"} > 1"), t(SOAKED))].into(), "it is queried at once");
        let mut silent = Watch::of(watch.view.nodes["a"].clone());
        (silent.view, silent.policy) = (watch.view.clone(), watch.policy.clone());
        assert_eq!(silent.result_at(DEADLINE + 60), is_unproven());
        *watch.view.expressions.values_mut().next().unwrap() = quiet(SOAKED);
        assert_eq!(watch.result_at(SOAKED + 1), is_updated());
    }
}

/// The interval may be longer than the verification.
#[test]
fn expression_is_queried_when_verification_begins_and_shortly_before_it_ends() {
    let query = || question("errors{node=\"a\"} > 1");
    for (sentence, answer) in [
        ("it fired", Answer::Firing { series: "{} 7".into(), since: t(-60), asked: Timestamp::MAX }),
        ("it had no answer", Answer::Failed { message: "no answer".into() }),
    ] {
        let mut watch = with_expressions(&[("errors", OF_A_NODE, answer)]);
        for (second, since) in [(0, 0), (SOAKED, 0), (DEADLINE - 61, 0), (DEADLINE - 60, DEADLINE - 60)] {
            watch.at(second);
            let made = plan(&watch.view, &watch.policy, t(second));
            assert_eq!(made.asked_again, [(query(), t(since))].into(), "{sentence}, at {second}");
            assert!(made.wake.is_some_and(|wake| wake > t(second)), "{sentence}, at {second}: {:?}", made.wake);
        }
        *watch.view.expressions.values_mut().next().unwrap() =
            Answer::Quiet { since: t(DEADLINE - 60), asked: Timestamp::MAX };
        watch.at(DEADLINE - 60);
        assert_eq!(watch.result_at(DEADLINE), is_updated(), "{sentence}");
    }
    // The clock was set back: it would be sent without end.
    let set_back = with_expressions(&[("errors", OF_A_NODE, Answer::Failed { message: "no answer".into() })]);
    let made = plan(&set_back.view, &set_back.policy, t(-10));
    assert!(made.asked_again.is_empty() && made.expressions.contains(&query()), "{:?}", made.asked_again);
}

#[test]
fn expression_of_several_nodes_is_queried_for_the_one_that_needs_the_latest_answer() {
    for (first, second) in [(0, 50), (50, 0)] {
        let spec = serde_json::json!({"prometheus": {"url": "http://p"},
            "health": {"after": {"expressions": [{"name": "errors", "query": "errors > 1"}]}}});
        let nodes = vec![verifying_since("a", first, vec![]), verifying_since("b", second, vec![])];
        let (view, policy) = cluster_with(nodes, &["a", "b"], spec);
        assert_eq!(plan(&view, &policy, t(55)).asked_again, [(question("errors > 1"), t(50))].into());
    }
}

#[test]
fn expression_must_be_quiet_for_soak_and_fails_version_at_deadline() {
    let watch = |answer: Answer| with_expressions(&[("errors", OF_A_NODE, answer)]);
    let mut of_the_fleet = with_expressions(&[(
        "errors",
        "errors > 1",
        Answer::Firing { series: "{} 7".into(), since: t(0), asked: Timestamp::MAX },
    )]);
    assert_eq!(of_the_fleet.at(DEADLINE - 1).unwrap().as_str(), "ExpressionFires");
    assert_eq!(
        of_the_fleet.result_at(DEADLINE),
        (Some("HealthUnknown".into()), false),
        "it is no evidence against the version"
    );

    let mut firing = watch(Answer::Firing { series: "{} 7".into(), since: t(0), asked: Timestamp::MAX });
    others_return(&mut firing, &[("b", QUIET)]);
    for second in [SOAKED, DEADLINE - 1] {
        assert_eq!(firing.at(second).unwrap().as_str(), "ExpressionFires");
    }
    assert_eq!(firing.result().0, None);
    assert_eq!(firing.result_at(DEADLINE), is_blamed());

    let mut instant = watch(Answer::Quiet { since: t(DEADLINE - 1), asked: Timestamp::MAX });
    instant.at(DEADLINE);
    *instant.view.expressions.values_mut().next().unwrap() =
        Answer::Firing { series: "{} 7".into(), since: t(DEADLINE + 1), asked: Timestamp::MAX };
    assert_eq!(instant.result_at(DEADLINE + 1), is_unproven(), "once after the deadline is no evidence");

    let mut quiet = watch(Answer::Quiet { since: t(DEADLINE - 1), asked: Timestamp::MAX });
    let until = DEADLINE - 1 + SOAKED;
    for second in [SOAKED, DEADLINE, until - 1] {
        assert_eq!(quiet.at(second), Some(Wait::Soaking { until: t(until) }), "{second}");
    }
    assert_eq!(quiet.result_at(until), is_updated());

    let mut failed = watch(Answer::Failed { message: "no answer".into() });
    assert_eq!(failed.at(DEADLINE - 1).unwrap().as_str(), "ExpressionFails");
    assert_eq!(failed.result_at(DEADLINE), (Some("HealthUnknown".into()), false));
}

#[test]
fn terminating_finished_and_excluded_pods_do_not_delay_update() {
    let workflow = PodFacts { controller: Some("Workflow build".into()), runs_to_completion: true, ..failing() };
    let ending = vec![PodFacts { finished: true, ..failing() }, PodFacts { terminating: true, ..failing() }, workflow];
    let mut watch = Watch::of(verifying(ending));
    assert_eq!(watch.result_at(SOAKED), is_updated());
    let mut watch = Watch::of(verifying(vec![failing()]));
    watch.policy.all.after.pods_ready = false;
    assert_eq!(watch.result_at(SOAKED), is_updated());
    let mut watch = Watch::of(verifying(vec![]));
    watch.view.nodes.get_mut("a").unwrap().pods = None;
    assert_eq!(watch.at(SOAKED), Some(Wait::ReadingPods));
    assert_eq!(watch.result_at(DEADLINE), (Some("HealthUnknown".into()), false));
}

#[test]
fn node_pressure_until_deadline_counts_as_version_failure() {
    let mut node = verifying(vec![healthy()]);
    node.facts.pressure = Some("DiskPressure".into());
    let mut watch = Watch::of(node.clone());
    assert_eq!(watch.at(SOAKED), Some(Wait::NodePressure { condition: "DiskPressure".into() }));
    watch.view.nodes.get_mut("a").unwrap().facts.pressure = None;
    assert_eq!(watch.at(SOAKED), Some(Wait::Soaking { until: t(2 * SOAKED) }), "the soak begins again");
    assert_eq!(watch.result_at(2 * SOAKED), is_updated());
    let mut watch = Watch::of(node);
    watch.at(SOAKED);
    assert_eq!(watch.result_at(DEADLINE - 1).0, None);
    assert_eq!(watch.result_at(DEADLINE), is_blamed());
    assert!(watch.message().contains("DiskPressure"), "{}", watch.message());
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
    }
}
