//! The verdict on a node after its update.

use jiff::Timestamp;
use models::condition::{find_condition, set_condition};
use models::shadow::{BLOCKED, HEALTHY, HostState, Record, Step, UPDATED, is_agent_condition};

use crate::claims::ClaimFields;
use crate::decision::{Action, Note};
use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{ClusterView, LeaseObservations, NodeView, OwnerHealth, PodFacts};
use crate::wait::Wait;

/// The end of the soak and the deadline of the default policy, for a node whose verification began at second 0.
pub(super) const SOAKED: i64 = 60;
pub(super) const DEADLINE: i64 = 15 * 60;

/// Health of an owner that makes the failure of a pod evidence against the version.
pub(super) const EVIDENCE: OwnerHealth = OwnerHealth {
    read_at: Timestamp::UNIX_EPOCH,
    updated_ready: 0,
    updated_failing: 1,
    updated_settling: 0,
    others_healthy: 1,
    others_unhealthy: 0,
    lacks_pods: None,
    created: None,
};

/// A node that runs the new version and is verified since second 0.
pub(super) fn verifying(pods: Vec<PodFacts>) -> NodeView {
    verifying_since("a", 0, pods)
}

/// A node of this name that runs the new version and is verified since this second.
pub(super) fn verifying_since(name: &str, second: i64, pods: Vec<PodFacts>) -> NodeView {
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
    /// The owners (uid) that the API server does not show.
    pub(super) unread: Vec<String>,
    /// The kubelet has crashed: nothing renews its Lease.
    crashed: bool,
    pub(super) notes: Vec<Note>,
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
                Some(Action::ReadLease { .. }) if self.crashed => {
                    node.lease = Some(LeaseObservations::add(node.lease, Some(t(15)), t(second)));
                }
                Some(Action::ReadLease { .. }) => node.lease = renewed_after(second),
                Some(Action::ReadOwner { owner, .. }) if self.unread.contains(&owner) => return Some(Wait::Acting),
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
    assert_eq!(watch.at(SOAKED + 10), Some(Wait::Soaking { until: t(SOAKED + 20) }));
    assert_eq!(watch.result().0, None);
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
        (
            "it was read before the end of the soak alone",
            &[(Some(1), 50), (Some(2), SOAKED)][..],
            "ReadLease { pods: false }",
        ),
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

/// The connection of their watch may be dead since before the boot, which shows only after minutes.
#[test]
fn pods_are_read_again_with_the_first_reading_of_the_lease_after_each_soak() {
    let read_at = |second: i64| Some(LeaseObservations::add(None, Some(t(1)), t(second)));
    for (sentence, lease, pods_ready, second, pods) in [
        ("it was never read", None, true, SOAKED, true),
        ("it was read before the soak began again", read_at(SOAKED - 10), true, SOAKED, true),
        ("it was read after the soak, with the pods", read_at(SOAKED), true, SOAKED + 10, false),
        ("nothing is asked about pods", None, false, SOAKED, false),
    ] {
        let mut node = verifying(vec![healthy()]);
        node.lease = lease;
        let (view, mut policy) = cluster(vec![node], &["a"]);
        policy.all.after.pods_ready = pods_ready;
        let made = plan(&view, &policy, t(second));
        assert_eq!(made.actions.get("a"), Some(&Action::ReadLease { pods }), "{sentence}");
        assert!(made.pods.contains("a"), "{sentence}: they are watched");
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
        assert_eq!(watch.at(DEADLINE - 1).unwrap().as_str(), "Settling", "{sentence}");
        let found = (watch.result().0, watch.read);
        assert_eq!(found, (None, 2), "{sentence}: read at the end of the soak, and later again");
        assert_eq!((watch.result_at(DEADLINE), watch.read), (is_unproven(), 2), "{sentence}");
        assert!(watch.message().contains("shop/p-a (container app: CrashLoopBackOff)"), "{}", watch.message());
        assert!(watch.notes.iter().any(|note| note.warning && note.reason == "UpdateFailed"), "{:?}", watch.notes);
        assert_eq!(plan(&watch.view, &watch.policy, t(DEADLINE)).slots, Some(vec![]), "{sentence}: its slot is free");
    }
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
fn interruption_of_a_short_verification_counts_against_the_version_if_it_lasts_for_half_of_it() {
    for (began, expected) in [(25, is_blamed()), (35, is_unproven())] {
        let mut watch = Watch::of(verifying(vec![healthy()]));
        watch.policy.all.after.timeout = std::time::Duration::from_secs(60);
        watch.view.nodes.get_mut("a").unwrap().facts.pressure = Some("DiskPressure".into());
        watch.at(began);
        assert_eq!(watch.result_at(60), expected, "from {began} s on");
    }
}

#[test]
fn update_that_shows_nothing_takes_a_place_of_its_own_whatever_an_earlier_one_has_shown() {
    let mut node = verifying(vec![healthy()]);
    let failed = models::shadow::NodeProof { proof: models::reason::Proof::Failed, ..updated().proof.unwrap() };
    node.shadow.as_mut().unwrap().status.controller.record = Some(Record { proof: Some(failed), ..updated() });
    node.pods = None;
    let mut watch = Watch::of(node);
    assert_eq!(watch.result_at(DEADLINE), is_unproven());
    assert_eq!(watch.record().proof.map(|place| place.proof), Some(models::reason::Proof::Unproven));
}

#[test]
fn update_resolves_the_failure_of_its_version_alone_and_no_second_time() {
    let before = [(OLD, None), (NEW, Some("1")), (NEW, None)];
    let failures = before
        .map(|(version, by)| models::shadow::VersionFailure { resolved_by: by.map(str::to_owned), ..failure(version) });
    let mut node = verifying(vec![healthy()]);
    node.shadow.as_mut().unwrap().status.controller.record =
        Some(Record { version_failures: failures.into(), ..Record::default() });
    let mut watch = Watch::of(node);
    assert_eq!(watch.result_at(SOAKED).0.as_deref(), Some(UPDATED));
    let resolved: Vec<_> = watch.record().version_failures.into_iter().map(|failure| failure.resolved_by).collect();
    assert_eq!(resolved, [None, Some("1".to_owned()), Some(UPDATED.to_owned())]);
}
