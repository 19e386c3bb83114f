//! What the planner sees: slim projections of the objects, folded into one immutable [`ClusterView`].
//!
//! Nothing here is a default for something that was not seen: what is not known is an `Option`, and a reason to wait.

mod cache;
mod facts;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{BottlerocketUpdateOperatorSpec, BottlerocketUpdateOperatorStatus, Slot};
use models::shadow::{BottlerocketShadowSpec, BottlerocketShadowStatus, HostState, Progress, Record, Step};

use crate::claims::{Part, Parts};
use crate::plan::Wait;

pub(crate) use cache::retry_pause;
pub use cache::{Cache, Projection, Reading, newer};
pub use standing::Standings;

/// A Node, as far as decisions about updates go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its uid: a node re-created under its name is another node.
    pub uid: String,
    /// The version of the object that these facts were read from. Heartbeats move it, so it wakes no one.
    pub resource_version: String,
    /// Whether it carries the label that puts it under the operator.
    pub labelled: bool,
    /// Its labels. Shared, since a view is created again for each plan.
    pub labels: Arc<BTreeMap<String, String>>,
    /// What its kubelet is short of: the type of a condition such as `DiskPressure`, where one is true.
    pub pressure: Option<String>,
    /// Whether its kubelet says that it is Ready.
    pub ready: bool,
    /// The boot that its kubelet reports.
    pub boot_id: String,
    /// What its kubelet calls the operating system, with the version in it.
    pub os_image: String,
    /// Whether the scheduler leaves it alone.
    pub unschedulable: bool,
    /// Whether a user holds it.
    pub held: bool,
    /// What of it is ours by field ownership, perhaps beside others.
    pub claims: Parts,
    /// When that was claimed, or changed last, by the API server's clock.
    pub claimed_since: Option<Timestamp>,
    /// What of the same others have set.
    pub set_by_others: Parts,
    /// What of that they have set to something else than we would.
    pub set_otherwise: Parts,
    /// What is there as we would have set it and owned by no one, as after a reset of managedFields.
    pub unowned: Parts,
    /// How many volumes are attached to it, as its kubelet and the attach controller know.
    pub volumes: usize,
    /// Whether it is being deleted.
    pub deleting: bool,
}

impl NodeFacts {
    /// Whether anything of it is ours.
    pub fn claimed(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Returns whether it is cordoned, and not by the operator.
    pub fn cordoned_by_others(&self) -> bool {
        self.unschedulable && !self.claims.has(Part::Cordon)
    }

    /// The zone that it stands in; nodes without one are a zone together.
    pub fn zone(&self) -> &str {
        self.labels.get(models::names::ZONE_LABEL).map_or("", String::as_str)
    }

    /// How early it is to be updated: higher comes first.
    pub fn priority(&self) -> i64 {
        self.labels.get(models::names::PRIORITY_LABEL).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Whether its operating system is Bottlerocket.
    pub fn bottlerocket(&self) -> bool {
        self.os_image.starts_with("Bottlerocket OS")
    }

    /// The version in the name of the operating system, e.g. `1.20.5` of `Bottlerocket OS 1.20.5 (aws-k8s-1.37)`.
    pub fn os_version(&self) -> Option<semver::Version> {
        self.os_image.split_whitespace().find_map(|word| semver::Version::parse(word.trim_start_matches('v')).ok())
    }
}

/// A shadow, as decisions see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShadowFacts {
    /// The node that it is named after.
    pub node: String,
    /// Its uid.
    pub uid: String,
    /// The version of the object. Every write of ours carries it.
    pub resource_version: String,
    /// Rises with each change of the spec.
    pub generation: i64,
    /// The uid of the Node that owns it.
    pub owner_uid: Option<String>,
    /// The order.
    pub spec: BottlerocketShadowSpec,
    /// What agent and controller recorded.
    pub status: BottlerocketShadowStatus,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The value of the annotation that asks for another try.
    pub retry: Option<String>,
    /// The value of the annotation that asks for the attempt's end.
    pub release: Option<String>,
}

/// The operator's resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorFacts {
    /// Its uid.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// Its generation.
    pub generation: i64,
    /// The policy.
    pub spec: BottlerocketUpdateOperatorSpec,
    /// What was recorded.
    pub status: BottlerocketUpdateOperatorStatus,
    /// The value of the annotation that asks to settle failures.
    pub resume: Option<String>,
    /// The value of the annotation that approves a canary step.
    pub approve_step: Option<String>,
    /// The value of the annotation that asks for a new certificate authority.
    pub rotate_certificates: Option<String>,
    /// The value of the annotation that asks for a new signing key.
    pub rotate_signing_key: Option<String>,
    /// Annotations that are meant as requests and cannot be carried out, each as a sentence.
    pub misunderstood: Vec<String>,
}

/// A pod on a node that is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// The node that it is bound to.
    pub node: String,
    /// Whether it has ended (phase Succeeded or Failed).
    pub finished: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// When it has to have ended: the end of the grace period that its deletion gave it.
    pub ends_by: Option<Timestamp>,
    /// Whether it waits for a place, an image or its first start (phase Pending). Budgets do not guard it.
    pub pending: bool,
    /// Whether it mirrors a static pod of the kubelet.
    pub mirror: bool,
    /// Whether it has an `emptyDir`.
    pub empty_dir: bool,
    /// The names of the PersistentVolumeClaims that it uses.
    pub volume_claims: Vec<String>,
    /// Whether it may be placed on a cordoned node.
    pub tolerates_cordon: bool,
    /// Whether its priority is one of those that the cluster itself needs.
    pub critical: bool,
    /// Its controller's kind and name.
    pub controller: Option<String>,
    /// Its controller's uid; absent for a bare pod.
    pub controller_uid: Option<String>,
    /// The DaemonSet that is its controller. Only Kubernetes' own (`apps/v1`) is one, as to `kubectl drain`.
    pub daemon_set: Option<String>,
    /// What is known of that DaemonSet.
    pub daemon_set_is: DaemonSetIs,
    /// Its labels, which budgets select by.
    pub labels: BTreeMap<String, String>,
    /// Whether its kubelet says that it is Ready.
    pub ready: bool,
    /// How often the container that was restarted most often has been.
    pub restarts: i32,
    /// When a container of it ended last before it was restarted, by the node's clock, to the end of that second.
    pub restarted_at: Option<Timestamp>,
    /// Why it is not Ready, as far as its status says.
    pub trouble: Option<String>,
}

/// What is known of the DaemonSet that a pod names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonSetIs {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It is there, or was when it was asked for.
    There,
    /// It is gone: the pod is an orphan, which nothing would bring back.
    Gone,
    /// The API server does not say.
    Unreadable,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The version of the object.
    pub resource_version: String,
    /// How many pods may be evicted now.
    pub allowed: i32,
    /// How many of its pods there have to be.
    pub desired: i32,
    /// How many of its pods there are when all are there.
    pub expected: i32,
    /// Whether pods that are not Ready may go whatever it says.
    pub lets_unhealthy_go: bool,
    /// Its pods; `None` if its selector cannot be read.
    pub selector: Option<kube::core::Selector>,
}

/// From how many restarts of a container on its pod is one that crash-loops. Each reboot of a node restarts once what stays on it.
const CRASH_LOOP: i32 = 3;

/// How long ago the last restart of a container that crash-loops is at most.
const CRASH_LOOP_PAUSE: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

impl PodFacts {
    /// Returns whether it is not Ready, or Ready at this moment between two crashes.
    pub fn is_unhealthy(&self, now: Timestamp) -> bool {
        let recent = self.restarted_at.is_some_and(|at| now.duration_since(at) < CRASH_LOOP_PAUSE);
        !self.ready || (recent && self.restarts >= CRASH_LOOP)
    }

    /// What users call it: its namespace and its name.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl BudgetFacts {
    /// Whether this pod is one of its pods.
    pub fn selects(&self, pod: &PodFacts) -> bool {
        use kube::core::SelectorExt as _;
        pod.namespace == self.namespace && self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }

    /// Whether it would refuse this pod even with all its pods healthy, so that no waiting helps.
    pub fn never_lets_go(&self, pod: &PodFacts) -> bool {
        self.selects(pod)
            && !pod.pending
            && self.expected > 0
            && self.desired >= self.expected
            && (pod.ready || !self.lets_unhealthy_go)
    }
}

/// The last answer to the eviction of a pod; kept in memory only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The budget that refuses, where one does.
    pub budget: Option<String>,
    /// What the API server said.
    pub message: String,
    /// When the first request of those that were answered alike was sent.
    pub since: Timestamp,
    /// When to try again.
    pub retry_at: Timestamp,
    /// Whether trying again is no use: the drain fails.
    pub fatal: bool,
    /// Whether it was accepted.
    pub accepted: bool,
    /// Whether it was deleted and not evicted.
    pub deleted: bool,
}

/// An eviction or deletion that was sent and has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When it was sent.
    pub since: Timestamp,
    /// Whether it deletes the pod past its budgets.
    pub deletes: bool,
}

/// What spoke against draining a staged node when it was looked at last; kept in memory only.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Why.
    pub wait: Wait,
    /// When it is looked at again.
    pub again_at: Timestamp,
}

/// What looks at a node's own Lease have shown. Its times are the node's own, whose clock may be off: they are compared
/// with each other only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLooks {
    /// What the first look showed as the time of renewal; `None` if there was no Lease.
    pub first: Option<Timestamp>,
    /// What the last look showed.
    pub last: Option<Timestamp>,
    /// When the last look was, by our clock.
    pub looked_at: Timestamp,
}

impl LeaseLooks {
    /// Takes in another look.
    pub fn look(before: Option<Self>, renewed: Option<Timestamp>, now: Timestamp) -> Self {
        Self { first: before.map_or(renewed, |b| b.first), last: renewed, looked_at: now }
    }

    /// Whether the node has shown life since the first look.
    pub fn alive(&self) -> bool {
        self.last.is_some() && self.last != self.first
    }
}

/// A node that the pods of an owner are compared on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// It does not run the version.
    NotUpdated,
    /// It runs the version, and a pod has had enough time on it to become healthy.
    Updated,
    /// It runs the version, and a pod may still need time.
    JustUpdated,
}

/// How the pods of one owner are on other nodes than the one that is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerHealth {
    /// How many are Ready on nodes that run the version.
    pub updated_ready: usize,
    /// How many have had enough time and are not Ready on nodes that run the version.
    pub updated_failing: usize,
    /// How many are healthy on nodes that do not run it.
    pub others_healthy: usize,
    /// How many are unhealthy on nodes that do not run it, or on none.
    pub others_unhealthy: usize,
}

impl OwnerHealth {
    /// Counts one more pod; `on` is `None` for one without a node.
    pub fn count(&mut self, pod: &PodFacts, on: Option<Compared>, now: Timestamp) {
        let counter = match on {
            None => &mut self.others_unhealthy,
            Some(Compared::NotUpdated) if pod.is_unhealthy(now) => &mut self.others_unhealthy,
            Some(Compared::NotUpdated) => &mut self.others_healthy,
            Some(Compared::Updated | Compared::JustUpdated) if pod.ready => &mut self.updated_ready,
            Some(Compared::Updated) => &mut self.updated_failing,
            Some(Compared::JustUpdated) => return,
        };
        *counter += 1;
    }

    /// Returns whether a further pod that fails on an updated node is evidence against the version: the owner's pods fail on updated
    /// nodes alone, and on more than one.
    pub fn is_evidence(&self) -> bool {
        self.updated_failing > 0 && self.updated_ready == 0 && self.others_healthy > 0 && self.others_unhealthy == 0
    }
}

/// One node with all that belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// The Node.
    pub facts: NodeFacts,
    /// Its shadow, if it has one that it owns.
    pub shadow: Option<ShadowFacts>,
    /// The pods on it, where they are watched.
    pub pods: Option<Vec<PodFacts>>,
    /// What became of evictions, by the pod's uid.
    pub blocked: BTreeMap<String, Blocked>,
    /// Evictions under way, by the pod's uid.
    pub in_flight: BTreeMap<String, InFlight>,
    /// Why it was not drained when it was looked at last.
    pub refused: Option<Refused>,
    /// The node's own Lease; looked up only where a release depends on it.
    pub lease: Option<LeaseLooks>,
    /// How the pods of owners (uid) are on other nodes; read only where a pod fails on this one after its update.
    pub owners: BTreeMap<String, OwnerHealth>,
    /// How often this attempt has claimed the node, as far as this leader knows: more than once, and a client has taken
    /// the claim away.
    pub claims_made: u32,
    /// Since when no pod of the agent on it has been Ready, as far as this process has seen; `None` while one is.
    pub agent_missing: Option<Timestamp>,
    /// For how long this process has seen it stand where a wait for its host begins, by the monotonic clock ([`Standings`]).
    pub stood: Duration,
}

impl NodeView {
    /// The attempt under way.
    pub fn progress(&self) -> Option<&Progress> {
        self.shadow.as_ref()?.status.controller.progress.as_ref()
    }

    /// What is remembered of its attempts.
    pub fn record(&self) -> Option<&Record> {
        self.shadow.as_ref()?.status.controller.record.as_ref()
    }

    /// The step that the attempt under way stands at.
    pub fn step(&self) -> Option<Step> {
        self.progress().map(|progress| progress.step)
    }

    /// Whether the attempt under way has gone on from its image, which disrupts nothing, to the node.
    pub fn past_staging(&self) -> bool {
        self.step().is_some_and(|step| !matches!(step, Step::Staging | Step::Staged))
    }

    /// Whether the node has rebooted since its desired state, which only the controller writes, asked for that in the attempt under
    /// way. A slot that went with the operator's resource is given to such a node again.
    pub fn has_rebooted_as_desired(&self) -> bool {
        let (Some(shadow), Some(progress)) = (&self.shadow, self.progress()) else { return false };
        let BottlerocketShadowSpec { state, attempt, boot_id, .. } = &shadow.spec;
        matches!(progress.step, Step::Rebooting | Step::Returning | Step::Monitoring)
            && (*state, *attempt) == (HostState::RebootedIntoUpdate, progress.attempt)
            && boot_id.as_ref().is_some_and(|before| *before != self.facts.boot_id)
    }

    /// Whether the node is, or may be, out of service because of us. A node that a user holds is out of service because of
    /// that user, also where the cordon is ours, once its desired state is withdrawn.
    pub fn disrupted(&self) -> bool {
        let withdrawn = || self.shadow.as_ref().is_none_or(|shadow| shadow.spec.state == HostState::Idle);
        match self.progress() {
            Some(progress) => progress.disruptive || self.facts.claimed(),
            None => self.facts.claimed() && !(self.facts.held && withdrawn()),
        }
    }
}

/// What an expression returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: all is well.
    Quiet {
        /// Since when each answer has been nothing.
        since: Timestamp,
    },
    /// Something.
    Firing {
        /// The first series, for a user.
        series: String,
    },
    /// No answer, or none that can be read.
    Failed {
        /// Why.
        message: String,
    },
}

/// The other replicas of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standby {
    /// There is no other replica.
    #[default]
    None,
    /// There is one, and it cannot lead at present: it is not Ready, or its node is out of service.
    NotReady,
    /// One is Ready on another node.
    Ready,
}

/// Everything that a plan is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The nodes under the operator, and those that still have something of the operator, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// The operator's resource, if it exists.
    pub operator: Option<OperatorFacts>,
    /// The node that this controller runs on.
    pub own_node: Option<String>,
    /// Since when this controller leads. A step that is found past its deadline by a new leader gets a short grace.
    pub leader_since: Timestamp,
    /// Nodes with an action of ours under way: nothing is decided about them until it is done.
    pub busy: BTreeSet<String>,
    /// Those of them whose last action failed and that are left alone for a while: nothing of theirs is under way.
    pub paused: BTreeSet<String>,
    /// Nodes (uid) whose slot a write takes away that may still arrive, of ours or of a leader before us. Nothing is begun with
    /// such a slot: it may be another's already.
    pub retracted: BTreeSet<String>,
    /// The budgets in the namespaces of the pods that are looked at.
    pub budgets: Vec<BudgetFacts>,
    /// What the expressions that a client waits for have returned.
    pub expressions: BTreeMap<String, Answer>,
    /// Whether it is not known yet that every cache is at least as new as this leadership: nothing is decided on such a view.
    pub stale: bool,
    /// How far another replica of the controller can take over.
    pub standby: Standby,
    /// Since when no pod of the web API has been Ready, as far as this process has seen; `None` while one is.
    pub web_api_missing: Option<Timestamp>,
    /// Whether another replica handed the lead over to this one, which has given no slot since: it does not hand it back.
    pub handed_over: bool,
    /// What is known of keys and certificates.
    pub tls: TlsFacts,
}

impl ClusterView {
    /// The slots that something may be begun with: without those that are about to be taken away.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        let slots = self.operator.iter().flat_map(|operator| &operator.status.slots);
        slots.filter(|slot| !self.retracted.contains(&slot.uid))
    }
}

/// What plans have to know of keys and certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// The id of the key that signs now.
    pub signing_key: Option<String>,
    /// The id of the key that signs when a rotation is over. A leader that has just begun signs with the one before it for as
    /// long as it waits, and what the newest one has signed already stays as it is.
    pub newest_key: Option<String>,
    /// The ids of that key and of the one before it. What any other one signed is verified by no one any more.
    pub signing_keys: BTreeSet<String>,
    /// The last request for new certificates that was begun.
    pub rotated_certificates: Option<String>,
    /// The last request for a new signing key that was begun.
    pub rotated_signing_key: Option<String>,
    /// What is wrong with them, for a user.
    pub problem: Option<String>,
}
