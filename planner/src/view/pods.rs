//! Pods, the budgets that guard them, and the health of their owners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use models::names;
use models::time::after;

use crate::wait::UnfinishedEviction;

/// Time for which a drain waits for the reads of its pods' top owners, which the history names.
pub const OWNER_WAIT: Duration = Duration::from_secs(3);

/// Time for which Kubernetes counts a pod as gone after its eviction was approved, unless it is deleted before (`DeletionTimeout` of its
/// disruption controller).
const APPROVAL_COUNTS: Duration = Duration::from_secs(120);

/// Age from which an approved eviction is named: one that goes through deletes its pod in moments.
const APPROVAL_NAMED: Duration = Duration::from_secs(5);

/// A pod on a node whose pods are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Time at which it was created, by the API server's clock.
    pub created: Option<Timestamp>,
    /// The node that it is bound to.
    pub node: String,
    /// The address, once it has one.
    pub ip: Option<String>,
    /// Kind and name of its top owner, such as `Deployment/web`, once that is known.
    pub top_owner: Option<String>,
    /// True while its top owner is being read, for [`OWNER_WAIT`] at most.
    pub owner_pending: bool,
    /// True if it has ended (phase Succeeded or Failed).
    pub finished: bool,
    /// True if it has failed (phase Failed), as one that its kubelet has rejected.
    pub failed: bool,
    /// True if its kubelet has rejected it, and never started it.
    pub rejected: bool,
    /// True if it is to end by itself (`restartPolicy` is not `Always`), as pods of Jobs and of workflows are.
    pub runs_to_completion: bool,
    pub terminating: bool,
    /// Time by which it has to have ended: the end of the grace period of its deletion.
    pub ends_by: Option<Timestamp>,
    /// Grace period of its deletion, in seconds; before that, the one that this has without another one.
    pub grace: Option<i64>,
    /// True if it waits for a node, an image or its first start (phase Pending). Budgets do not guard it.
    pub pending: bool,
    /// True if autoscalers are not to move it.
    pub marked: bool,
    /// True if it mirrors a static pod of the kubelet.
    pub mirror: bool,
    pub empty_dir: bool,
    /// The names of the PersistentVolumeClaims that it uses.
    pub volume_claims: Vec<String>,
    /// True if it may be placed on a cordoned node.
    pub tolerates_cordon: bool,
    /// True if its priority is one of those that the cluster itself needs.
    pub critical: bool,
    /// Kind and name of its controller.
    pub controller: Option<String>,
    /// Uid of its controller; absent for a bare pod.
    pub controller_uid: Option<String>,
    /// The DaemonSet that is its controller. Only Kubernetes' own (`apps/v1`) is one, as for `kubectl drain`.
    pub daemon_set: Option<String>,
    /// The known state of that DaemonSet.
    pub daemon_set_state: DaemonSetState,
    /// The labels, which budgets select by. Shared, since a view is created again for each plan.
    pub labels: Arc<BTreeMap<String, String>>,
    /// True if its kubelet reports it Ready.
    pub ready: bool,
    /// Time at which its kubelet first saw it.
    pub started: Option<Timestamp>,
    /// Time that the startup probes of its containers give them, beyond that which any pod may need to start.
    pub startup: std::time::Duration,
    /// Time at which it ceased to be Ready, to the end of that second; `None` while it is Ready, and for one that never was.
    pub lost_ready_at: Option<Timestamp>,
    /// Highest number of restarts among its containers.
    pub restarts: i32,
    /// Time at which a container of it last ended before it was restarted, by the node's clock, to the end of that
    /// second.
    pub restarted_at: Option<Timestamp>,
    /// The reason why it is not Ready, as far as its status has one.
    pub trouble: Option<String>,
}

/// The known state of a DaemonSet that a pod names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonSetState {
    /// Unknown so far.
    #[default]
    Unknown,
    /// It exists, or did when it was read.
    There,
    /// It does not exist: the pod is an orphan, which nothing would bring back.
    Gone,
    /// The API server gives no answer.
    Unreadable,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetFacts {
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    /// The UID and the generation.
    pub revision: String,
    /// Number of pods that may be evicted now.
    pub allowed: i32,
    /// Number of its pods that are healthy now.
    pub healthy: i32,
    /// Number of its pods that have to be healthy.
    pub desired: i32,
    /// Number of its pods when all are there.
    pub expected: i32,
    /// True if its numbers are those of an earlier spec.
    pub stale: bool,
    /// The error for which Kubernetes cannot count its pods. It allows nothing then.
    pub sync_error: Option<String>,
    /// The pods whose eviction was approved and that are not deleted yet, by name, with the time of the approval. It counts them as gone.
    pub approved: BTreeMap<String, Timestamp>,
    /// True if pods that are not Ready may be evicted regardless of it.
    pub allows_unhealthy: bool,
    /// The selector of its pods; `None` if it cannot be read.
    pub selector: Option<kube::core::Selector>,
}

/// A Service with a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFacts {
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    /// The labels of its pods.
    pub selector: BTreeMap<String, String>,
}

impl ServiceFacts {
    /// Returns whether its selector matches this pod.
    pub fn selects(&self, pod: &PodFacts) -> bool {
        pod.namespace == self.namespace && self.selector.iter().all(|(name, value)| pod.labels.get(name) == Some(value))
    }
}

/// Time that a pod may need to start.
pub const STARTING: std::time::Duration = std::time::Duration::from_secs(2 * 60);

/// Number of restarts of a container from which on its pod counts as crash-looping. Each reboot of a node restarts once
/// what stays on it.
const CRASH_LOOP: i32 = 3;

/// Returns the longest time that a startup probe gives a container of a pod.
pub(super) fn startup(pod: &Pod) -> std::time::Duration {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let seconds = containers.filter_map(|container| container.startup_probe.as_ref()).map(|probe| {
        let of = |value: Option<i32>, default: u64| value.map_or(default, |value| u64::try_from(value).unwrap_or(0));
        // The defaults of Kubernetes.
        of(probe.initial_delay_seconds, 0) + of(probe.period_seconds, 10) * of(probe.failure_threshold, 3)
    });
    std::time::Duration::from_secs(seconds.max().unwrap_or(0))
}

/// The most by which a time of a kubelet may be in the future: it writes whole seconds, by a clock of its own.
const AHEAD: Duration = Duration::from_secs(10);

/// Maximum time since the last restart of a container that crash-loops.
const CRASH_LOOP_PAUSE: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

impl PodFacts {
    /// Returns the facts at this time. A time of its kubelet that has not come is by a clock that is ahead: the pod was created before, by the
    /// API server's clock. The time of the plan would move with each plan.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Self {
        let (latest, created) = (after(now, AHEAD), self.created);
        let known = |at: Option<Timestamp>| at.and_then(|at| if at <= latest { Some(at) } else { created });
        Self {
            started: known(self.started),
            lost_ready_at: known(self.lost_ready_at),
            restarted_at: known(self.restarted_at),
            ..self
        }
    }

    /// Returns whether it is a pod of this component of the operator.
    pub fn is_of(&self, component: &str) -> bool {
        self.labels.get(names::COMPONENT_LABEL).is_some_and(|label| label == component)
    }

    /// Returns whether it may run on any node: it is neither static nor of a DaemonSet.
    pub fn is_of_workload(&self) -> bool {
        !self.mirror && self.daemon_set.is_none()
    }

    /// Returns the time at which it was deleted, if it was and its grace period is known.
    pub fn deleted_at(&self) -> Option<Timestamp> {
        Some(after(self.ends_by?, jiff::SignedDuration::from_secs(self.grace?.saturating_neg())))
    }

    /// Returns whether it is Ready and stays.
    pub fn serves(&self) -> bool {
        self.ready && !self.terminating && !self.finished
    }

    /// Returns whether it is not Ready, or Ready at this moment between two crashes.
    pub fn is_unhealthy(&self, now: Timestamp) -> bool {
        let recent = self.restarted_at.is_some_and(|at| now.duration_since(at) < CRASH_LOOP_PAUSE);
        !self.ready || (recent && self.restarts >= CRASH_LOOP)
    }

    /// Returns whether it may still need time: it has never been Ready, none of its containers was restarted, and it was started lately.
    pub fn is_starting(&self, now: Timestamp) -> bool {
        self.is_new() && self.started.is_some_and(|started| after(started, STARTING) > now)
    }

    /// Returns whether it has never been Ready, and has neither failed nor restarted.
    fn is_new(&self) -> bool {
        !self.ready && !self.failed && self.lost_ready_at.is_none() && self.restarts == 0
    }

    /// Returns whether it is no evidence that it is not Ready: its kubelet has not seen it yet, or it takes no longer to start than its startup
    /// probes allow.
    pub fn is_coming_up(&self, now: Timestamp) -> bool {
        self.is_new() && self.starts_by().map_or(self.pending, |by| by > now)
    }

    /// Returns the time by which it has to have started, once its kubelet has seen it.
    pub fn starts_by(&self) -> Option<Timestamp> {
        Some(after(self.started?, STARTING + self.startup))
    }

    /// Returns whether it has ended for good. A pod of a DaemonSet has to run for as long as its node does: one that failed is none
    /// that is done, such as one that its kubelet rejects (`UnexpectedAdmissionError`, `OutOfcpu`, `NodeAffinity`). Nor is a static pod
    /// that is rejected.
    pub fn is_done(&self) -> bool {
        let is_of_daemon_set = self.daemon_set.is_some() && self.daemon_set_state != DaemonSetState::Gone;
        self.finished && !(self.failed && is_of_daemon_set) && !(self.rejected && self.mirror)
    }

    /// Returns whether it has failed, and another pod of its owner on the same node is Ready.
    pub fn is_replaced(&self, on_node: &[Self]) -> bool {
        let replaces = |other: &Self| other.ready && other.controller_uid == self.controller_uid;
        self.failed && !self.mirror && on_node.iter().any(replaces)
    }

    /// Returns whether it was rejected so long ago that its controller, which creates another one at once, has it run elsewhere.
    pub fn is_elsewhere_by_now(&self, now: Timestamp) -> bool {
        self.rejected && self.is_done() && self.started.is_none_or(|rejected| after(rejected, STARTING) <= now)
    }

    /// Returns the uid under which a record lists that it was unhealthy: that of its controller. A pod of the kubelet has the Node as its
    /// controller, and is listed by itself: it outlives a reboot.
    pub const fn recorded_as(&self) -> Option<&String> {
        if self.mirror { Some(&self.uid) } else { self.controller_uid.as_ref() }
    }

    /// Returns under what a record lists that this pod of a StatefulSet was unhealthy, which comes back by its name: the uid of its set, and
    /// its number.
    pub fn replica(&self) -> Option<String> {
        let set = self
            .controller_uid
            .as_ref()
            .filter(|_| self.controller.as_deref().is_some_and(|c| c.starts_with("StatefulSet ")))?;
        Some(format!("{set}/{}", self.name.rsplit_once('-')?.1))
    }

    /// Returns the name for users: namespace and name.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns whether this is its name for users.
    pub fn is_titled(&self, title: &str) -> bool {
        title.split_once('/') == Some((self.namespace.as_str(), self.name.as_str()))
    }
}

#[cfg(test)]
thread_local! {
    /// The number of times that a budget was compared with a pod, for tests.
    pub(crate) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl BudgetFacts {
    /// Returns whether its selector matches this pod.
    pub fn selects(&self, pod: &PodFacts) -> bool {
        use kube::core::SelectorExt as _;
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        pod.namespace == self.namespace && self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }

    /// Returns the name for users: namespace and name.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns whether it guards this pod: it allows nothing although all its pods are healthy.
    pub fn guards(&self, pod: &PodFacts) -> bool {
        self.is_counted() && !self.is_unwell() && !self.lets_go(pod) && self.selects(pod)
    }

    /// Returns whether its numbers are those of its spec, and of pods.
    pub const fn is_counted(&self) -> bool {
        !self.stale && self.expected > 0
    }

    /// Returns why its numbers show nothing about this pod, for users, if that is so. The API server reads none of them for a pod that has not begun,
    /// nor for one that is not Ready where those may go.
    pub(crate) const fn unknown_for(&self, pod: &PodFacts) -> Option<&'static str> {
        if pod.pending || (!pod.ready && self.allows_unhealthy) || self.is_counted() {
            return None;
        }
        Some(match (self.stale, pod.controller_uid.is_some()) {
            (true, _) => "its status is of an earlier spec",
            (false, true) => "its status counts none",
            (false, false) => "pods without a controller are counted only where its minAvailable is a number",
        })
    }

    /// Returns whether pods of it are broken, or cannot be counted: what it allows then says nothing about healthy ones.
    pub(crate) fn is_unwell(&self) -> bool {
        self.lacks() > 0 || self.sync_error.is_some()
    }

    /// Returns whether the API server evicts this pod of it now, as far as its numbers go.
    pub fn lets_go(&self, pod: &PodFacts) -> bool {
        let satisfied = || self.desired > 0 && self.healthy >= self.desired;
        pod.pending || self.allowed > 0 || (!pod.ready && (self.allows_unhealthy || satisfied()))
    }

    /// Returns whether it keeps this pod of it from a reboot that would end it. It may have no count of static pods for good.
    pub fn keeps_from_reboot(&self, pod: &PodFacts) -> bool {
        let has_counted = || self.sync_error.is_some() || self.is_counted();
        let is_unknown = !pod.mirror && self.unknown_for(pod).is_some();
        is_unknown || (!self.lets_go(pod) && (!pod.mirror || has_counted()))
    }

    /// Returns whether an eviction of this pod was approved already: another one uses nothing more of the budget.
    pub(crate) fn has_approved(&self, pod: &PodFacts) -> bool {
        self.approved.contains_key(&pod.name) && self.selects(pod)
    }

    /// Returns whether it counts this pod, and lets fewer of all these pods go than it counts. One that is not Ready uses nothing of a budget that
    /// lets it go.
    pub(crate) fn is_exceeded_by(&self, pod: &PodFacts, all: &[&PodFacts]) -> bool {
        let uses = |pod: &PodFacts| pod.ready && !pod.pending && self.selects(pod) && !self.has_approved(pod);
        uses(pod) && all.iter().filter(|pod| uses(pod)).count() > usize::try_from(self.allowed).unwrap_or(0)
    }

    /// Returns the eviction that was approved and for which it counts a pod as gone that is still there, the last one of several.
    /// `is_leaving` is true for pods (name) that are being deleted.
    pub(crate) fn unfinished_eviction(
        &self,
        is_leaving: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Option<UnfinishedEviction> {
        let counts = |at: Timestamp| after(at, APPROVAL_NAMED) <= now && now < after(at, APPROVAL_COUNTS);
        let named = self.approved.iter().filter(|(name, at)| counts(**at) && !is_leaving(name));
        let (name, at) = named.max_by_key(|(_, at)| **at)?;
        let pod = format!("{}/{name}", self.namespace);
        Some(UnfinishedEviction { pod, approved: *at, until: after(*at, APPROVAL_COUNTS) })
    }

    /// Returns how many more of its pods have to be healthy before it allows a disruption, or before all are; 0 where all are. Pods that start,
    /// end or have ended count as broken ones where `minAvailable` is a number: its status does not tell them apart. One that is about to go counts
    /// too: the API server takes its eviction off what is allowed, and the pods are counted later.
    pub fn lacks(&self) -> i32 {
        let broken = self.expected.saturating_sub(self.healthy);
        if self.stale || broken <= 0 {
            return i32::from(self.is_counted() && self.allowed <= 0 && !self.approved.is_empty());
        }
        self.desired.saturating_add(1).saturating_sub(self.healthy).clamp(1, broken)
    }
}

/// The kind of a node on which the pods of an owner are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The node does not run the version.
    NotUpdated,
    /// The node runs the version, and a pod has had enough time on it to become healthy.
    Updated,
    /// The node runs the version, and a pod may still need time.
    JustUpdated,
}

/// Health of the pods of one owner on other nodes than the one that is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerHealth {
    /// Time at which it was read.
    pub read_at: Timestamp,
    /// Number of Ready pods on nodes that run the version.
    pub updated_ready: usize,
    /// Number of pods that have had enough time and are not Ready on nodes that run the version.
    pub updated_failing: usize,
    /// Number of pods that are not Ready on nodes that run the version, and have not had enough time.
    pub updated_settling: usize,
    /// Number of healthy pods on nodes that do not run it.
    pub others_healthy: usize,
    /// Number of unhealthy pods on nodes that do not run it.
    pub others_unhealthy: usize,
    /// True if its ReplicaSet has fewer pods than it wants; `None` where its pods were read, and not the ReplicaSet.
    pub lacks_pods: Option<bool>,
    /// Time at which its ReplicaSet was created, where no pod of it is healthy on any node; `None` for an owner of another kind.
    pub created: Option<Timestamp>,
}

impl OwnerHealth {
    /// Counts one more pod. One without a node shows nothing, nor does one that may still need time.
    pub fn count(&mut self, pod: &PodFacts, on: Compared, now: Timestamp) {
        let counter = match on {
            _ if pod.is_coming_up(now) => return,
            Compared::NotUpdated if pod.is_unhealthy(now) => &mut self.others_unhealthy,
            Compared::NotUpdated => &mut self.others_healthy,
            Compared::Updated | Compared::JustUpdated if pod.ready => &mut self.updated_ready,
            Compared::Updated => &mut self.updated_failing,
            Compared::JustUpdated => &mut self.updated_settling,
        };
        *counter += 1;
    }

    /// Returns whether the owner's pods are ill without the version, too: at least half of those on nodes that were not updated. One
    /// ill pod among many excuses none.
    pub fn is_ill_elsewhere(&self) -> bool {
        self.others_unhealthy > 0 && !self.is_well_elsewhere()
    }

    /// Returns whether none of the owner's pods that were counted is ill. Those on nodes that were just updated are ill for as long as they are not
    /// Ready.
    pub const fn is_ill_nowhere(&self) -> bool {
        self.others_unhealthy == 0 && self.updated_failing == 0 && self.updated_settling == 0
    }

    /// Returns whether most of the owner's pods on nodes that were not updated are healthy.
    pub const fn is_well_elsewhere(&self) -> bool {
        self.others_healthy > self.others_unhealthy
    }

    /// Returns whether a further pod that fails on an updated node is evidence against the version: the owner's pods
    /// fail on updated nodes alone, and on more than one.
    pub fn is_evidence(&self) -> bool {
        self.updated_failing > 0 && self.updated_ready == 0 && self.others_healthy > 0 && self.others_unhealthy == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_probe_gives_a_pod_the_longest_time_of_its_containers() {
        let pod = |probes: serde_json::Value| {
            let containers = probes
                .as_array()
                .unwrap()
                .iter()
                .map(|probe| serde_json::json!({"name": "app", "startupProbe": probe}));
            let spec = serde_json::json!({"containers": containers.collect::<Vec<_>>()});
            startup(&serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap()).as_secs()
        };
        let long = serde_json::json!({"initialDelaySeconds": 5, "periodSeconds": 20, "failureThreshold": 30});
        assert_eq!(pod(serde_json::json!([{}, long])), 605);
        assert_eq!(pod(serde_json::json!([{}])), 30, "by the defaults of Kubernetes");
        assert_eq!(pod(serde_json::json!([null])), 0);
    }
}
