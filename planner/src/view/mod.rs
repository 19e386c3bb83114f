//! The planner's input: slim projections of the objects, folded into one immutable [`ClusterView`].
//!
//! Nothing here is a default for something that was not seen: an unknown fact is an `Option`, and a reason to wait.

mod answer;
mod earlier;
mod facts;
mod failing;
mod history;
mod managers;
mod node;
mod on_node;
mod pods;
mod projection;
mod reported;
mod revision;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::names;
use models::operator::{BottlerocketUpdateOperatorSpec, BottlerocketUpdateOperatorStatus, Slot};
use models::shadow::{
    AgentReport, BottlerocketShadowSpec, BottlerocketShadowStatus, HostState, Mode, Place, Progress, Record,
    ShadowRequests, Step,
};

use crate::annotations::Misunderstood;
use crate::claims::ClaimsMade;
use crate::expressions::Question;
use crate::wait::{UnfinishedEviction, Wait, WaitReason};

pub use answer::Answer;
pub use earlier::EarlierPod;
pub use failing::Failing;
pub use history::{HistoryFacts, HistoryObject, RecordFacts};
pub use managers::{RequestManagers, SharedField};
pub use node::NodeFacts;
pub(crate) use node::{ARCH_LENGTH, VARIANT_LENGTH};
pub use on_node::{CsiNodeFacts, DaemonSetFacts};
#[cfg(test)]
pub(crate) use pods::COMPARED;
pub use pods::{BudgetFacts, Compared, DaemonSetState, OWNER_WAIT, OwnerHealth, PodFacts, STARTING, ServiceFacts};
pub use projection::Projection;
pub use reported::{EstimateBasis, EstimateFacts, MigrationFacts, NoticeFacts, ReportedFacts, TlsFacts};
pub use revision::RevisionFacts;
#[cfg(test)]
pub(crate) use standing::Standing;
pub use standing::Standings;

/// A shadow, as far as decisions need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShadowFacts {
    /// The node that it is named after.
    pub node: String,
    pub uid: String,
    /// The version of the object. Every write of the operator carries it.
    pub resource_version: String,
    /// The generation, which rises with each change of the spec.
    pub generation: i64,
    /// The uid of the Node that owns it.
    pub owner_uid: Option<String>,
    pub spec: BottlerocketShadowSpec,
    pub status: BottlerocketShadowStatus,
    pub deleting: bool,
    /// The value of the annotation that requests another try.
    pub retry: Option<String>,
    /// The value of the annotation that requests the attempt's end.
    pub release: Option<String>,
    /// The value of the annotation that requests a drill.
    pub drill: Option<String>,
    /// Annotations that are meant as requests and are not understood as they are written.
    pub misunderstood: Vec<Misunderstood>,
    /// The revision of the policy that its label names.
    pub revision: Option<String>,
    /// A field of the operator that another field manager owns too.
    pub shared_field: Option<SharedField>,
}

impl ShadowFacts {
    /// Returns the value of a request unless it is acknowledged.
    fn pending<'a>(
        &'a self,
        asked: &'a Option<String>,
        done: fn(&ShadowRequests) -> &Option<String>,
    ) -> Option<&'a String> {
        let requests = self.status.controller.record.as_ref().and_then(|record| record.requests.as_ref());
        let done = requests.and_then(|requests| done(requests).as_ref());
        asked.as_ref().filter(|asked| Some(*asked) != done)
    }

    /// Returns the value of a `retry` that is not acknowledged yet.
    pub fn pending_retry(&self) -> Option<&String> {
        self.pending(&self.retry, |done| &done.retry)
    }

    /// Returns the value of a `release` that is not acknowledged yet.
    pub fn pending_release(&self) -> Option<&String> {
        self.pending(&self.release, |done| &done.release)
    }

    /// Returns the value of a `drill` that is not acknowledged yet.
    pub fn pending_drill(&self) -> Option<&String> {
        self.pending(&self.drill, |done| &done.drill)
    }
}

/// The operator's resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorFacts {
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub spec: BottlerocketUpdateOperatorSpec,
    /// The time of the last write that changed the spec, as the API server recorded it.
    pub spec_changed: Option<Timestamp>,
    pub status: BottlerocketUpdateOperatorStatus,
    /// The value of the annotation that gives the cause of the last change, as kubectl users write it.
    pub change_cause: Option<String>,
    /// The value of the annotation that requests to resolve failures.
    pub resume: Option<String>,
    /// The value of the annotation that requests to go on without the kinds of nodes that have failed.
    pub continue_others: Option<String>,
    /// The value of the annotation that approves a canary step.
    pub approve_step: Option<String>,
    /// The value of the annotation that requests a new certificate authority.
    pub rotate_certificates: Option<String>,
    /// The value of the annotation that requests a new signing key.
    pub rotate_signing_key: Option<String>,
    /// The value of the annotation that requests a migration of stored shadows.
    pub migrate_storage: Option<String>,
    /// The value of the annotation that requests a notice to every receiver.
    pub test_notices: Option<String>,
    /// The field managers of what users request.
    pub managers: RequestManagers,
    /// Annotations that are meant as requests and cannot be carried out, each as a sentence.
    pub misunderstood: Vec<String>,
}

/// The last answer to the eviction of a pod; kept in memory only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    pub budget: Option<String>,
    pub message: String,
    /// Time of the first request of those with the same answer.
    pub since: Timestamp,
    /// Time of the first request of those in a row, either to evict it or to delete it, that ended as the last one: refused by a budget, or failed
    /// otherwise. Of denials, that of the first answer. The pauses between the tries grow with it.
    pub alike_since: Timestamp,
    /// Time of the next try.
    pub retry_at: Timestamp,
    /// Time of the first of the denials in a row that it ends, as of a right that is missing or of an admission webhook; `None`
    /// if it is no denial.
    pub denied_since: Option<Timestamp>,
    pub accepted: bool,
    /// True if it was deleted and not evicted.
    pub deleted: bool,
}

/// An eviction or deletion that was sent and has no answer so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub since: Timestamp,
    /// True if it deletes the pod past its budgets.
    pub deletes: bool,
}

/// The reason against draining a staged node at the last check; kept in memory only.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    pub wait: Wait,
    /// Time of the next check.
    pub again_at: Timestamp,
}

/// Observations of a node's own Lease. Its times are the node's own, whose clock may be off: they are compared with
/// each other only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseObservations {
    /// The time of renewal at the last observation; `None` if there was no Lease.
    pub renewed: Option<Timestamp>,
    /// Time of the last observation, by the operator's clock, before one that showed another renewal.
    pub alive_after: Option<Timestamp>,
    /// Time of the last observation, by the operator's clock.
    pub observed_at: Timestamp,
}

impl LeaseObservations {
    /// Adds another observation.
    pub fn add(before: Option<Self>, renewed: Option<Timestamp>, now: Timestamp) -> Self {
        // Without an earlier renewal this one may be of any time. A reading in the future was by a clock that ran ahead.
        let seen = before.filter(|before| before.renewed.is_some() && before.observed_at <= now);
        let is_other = seen.is_some_and(|before| renewed.is_some() && renewed != before.renewed);
        let known = before.and_then(|before| before.alive_after).filter(|at| *at <= now);
        let alive_after = if is_other { seen.map(|before| before.observed_at) } else { known };
        Self { renewed, alive_after, observed_at: now }
    }

    /// Returns whether the node has renewed it after a time of the operator's clock.
    pub fn was_alive_after(&self, at: Timestamp) -> bool {
        self.alive_after.is_some_and(|alive_after| alive_after >= at)
    }
}

/// One node with all related objects and facts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    pub facts: NodeFacts,
    /// The shadow, if the node has one and owns it.
    pub shadow: Option<Box<ShadowFacts>>,
    /// The pods on it, where they are watched.
    pub pods: Option<Vec<PodFacts>>,
    /// The last answers to evictions, by the pod's uid.
    pub blocked: BTreeMap<String, Blocked>,
    /// Evictions under way, by the pod's uid.
    pub in_flight: BTreeMap<String, InFlight>,
    /// The reason against a drain at the last check.
    pub refused: Option<Refused>,
    /// The action about it that fails.
    pub failing: Option<Failing>,
    /// Observations of the node's own Lease; read only where a release, or the end of a soak, depends on it.
    pub lease: Option<LeaseObservations>,
    /// Health of the pods of owners (uid) on other nodes; read only where a pod fails on this one after its update, or where no pod of a workload
    /// comes to it.
    pub owners: BTreeMap<String, OwnerHealth>,
    /// Claims of the node in this attempt that this leader has made.
    pub claims_made: ClaimsMade,
    /// Time since which no pod of the agent on it has been Ready, as observed by this process; `None` while one is.
    pub agent_missing: Option<Timestamp>,
    /// The last silence of its agent that this leader wrote down, and when; `None` once the agent is connected again.
    pub silence_written: Option<(WaitReason, Timestamp)>,
    /// Time for which this process has observed the state in which a wait for its host begins, by the monotonic clock
    /// ([`Standings`]).
    pub observed_for: Duration,
}

impl NodeView {
    /// Replaces the variant and the architecture that the agent has reported by those that the Node names. Rollouts, slots and versions belong
    /// to nodes of one variant and architecture, and no agent may bring its node among others.
    pub(crate) fn correct_kind(&mut self) {
        let Some(shadow) = &mut self.shadow else { return };
        let AgentReport { variant, arch, .. } = &mut shadow.status.agent;
        self.facts.correct_kind(variant.as_mut(), arch.as_mut());
    }

    /// Returns the version that the node runs: that of its Node, or, where it names none, the one that its agent reports.
    pub fn running(&self) -> Option<semver::Version> {
        let reported = || self.shadow.as_ref()?.status.agent.current_version.clone();
        self.facts.os_version().or_else(reported)
    }

    /// Returns whether it runs a version before this one.
    pub(crate) fn is_behind(&self, version: &semver::Version) -> bool {
        self.running().is_some_and(|running| running < *version)
    }

    /// Returns the attempt under way.
    pub fn progress(&self) -> Option<&Progress> {
        self.shadow.as_ref()?.status.controller.progress.as_ref()
    }

    /// Returns the update under way. A drill is none, nor is a verification.
    pub fn update(&self) -> Option<&Progress> {
        self.progress().filter(|progress| progress.mode() == Mode::Update)
    }

    /// Returns the record of its attempts.
    pub fn record(&self) -> Option<&Record> {
        self.shadow.as_ref()?.status.controller.record.as_ref()
    }

    /// Returns the step of the attempt under way.
    pub fn step(&self) -> Option<Step> {
        self.progress().map(|progress| progress.step)
    }

    /// Returns whether the attempt under way has gone on from its image, which disrupts nothing, to the node. A verification
    /// has no image, and disrupts nothing.
    pub fn past_staging(&self) -> bool {
        let progress = self.progress().filter(|progress| !progress.mode().is_verification());
        progress.is_some_and(|progress| progress.step.place() != Place::Waiting)
    }

    /// Returns whether the node has rebooted since its desired state, which only the controller writes, required that
    /// in the attempt under way. Such a node gets again a slot that was lost with the operator's resource.
    pub fn has_rebooted_as_desired(&self) -> bool {
        let (Some(shadow), Some(progress)) = (&self.shadow, self.progress()) else { return false };
        let BottlerocketShadowSpec { state, attempt, boot_id, .. } = &shadow.spec;
        matches!(progress.step.place(), Place::Away | Place::Booted | Place::Back)
            && (*state, *attempt) == (HostState::RebootedIntoUpdate, progress.attempt)
            && boot_id.as_ref().is_some_and(|before| *before != self.facts.boot_id)
    }

    /// Returns whether the node's `Blocked` condition shows this reason: also the turn of others, once the node is cordoned.
    pub fn is_blocked_by(&self, wait: &Wait) -> bool {
        let cordoned = || self.step().is_some_and(|step| step.place() >= Place::Leaving);
        let of_others = matches!(wait, Wait::ControlPlaneBusy { .. } | Wait::BudgetBusy { .. });
        wait.blocks() || (of_others && cordoned())
    }

    /// Returns whether the attempt has ended and its slot is free while its host may still reboot by its permit: the node keeps
    /// its cordon until it is Ready, or in another boot.
    pub fn may_still_reboot(&self) -> bool {
        self.progress().is_some_and(Progress::may_still_reboot)
    }

    /// Returns whether the node is, or may be, out of service because of the operator. A node with a hold is out of
    /// service because of its user, also where the cordon is the operator's, once its desired state is withdrawn; and one that is
    /// not back from its reboot when its attempt ends is like any other that is not Ready.
    pub fn disrupted(&self) -> bool {
        let withdrawn = || self.shadow.as_ref().is_none_or(|shadow| shadow.spec.state == HostState::Idle);
        match self.progress() {
            Some(_) if self.may_still_reboot() => false,
            Some(progress) => progress.disruptive || self.facts.claimed(),
            None => self.facts.claimed() && !(self.facts.held() && withdrawn()),
        }
    }
}

/// The other replicas of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standby {
    /// There is no other replica.
    #[default]
    None,
    /// Another replica exists, but cannot lead at present: it is not Ready, or its node is out of service.
    NotReady,
    /// Another replica is Ready on another node.
    Ready,
}

/// Objects that exist and that this version cannot read, each with the reason. They say nothing about what was begun, so that nothing is
/// decided without them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableFacts {
    /// The operator's resource: without it neither policy nor slots are known, and nothing is decided at all.
    pub operator: Option<String>,
    /// Nodes, of which a kubelet may write its own: nothing is decided about them, and none passes for deleted.
    pub nodes: BTreeMap<String, String>,
    /// The shadows, by node: nothing is decided about that node.
    pub shadows: BTreeMap<String, String>,
}

impl UnreadableFacts {
    /// Returns the objects, as kubectl names them, each with the reason.
    pub fn objects(&self) -> impl Iterator<Item = (String, &str)> {
        let operator = self.operator.iter().map(|error| (format!("bruo {}", names::OPERATOR_NAME), error.as_str()));
        let shadow = |node: &str| format!("brs {}", names::shadow_name(node));
        let shadows = self.shadows.iter().map(move |(node, error)| (shadow(node), error.as_str()));
        let nodes = self.nodes.iter().map(|(node, error)| (format!("node {node}"), error.as_str()));
        operator.chain(shadows).chain(nodes)
    }

    /// Returns whether nothing can be decided about a node because it, or its shadow, cannot be read.
    pub fn hide(&self, node: &str) -> bool {
        self.nodes.contains_key(node) || self.shadows.contains_key(node)
    }
}

/// The complete input of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The nodes under the operator, and those that still have a claim or other state of the operator, by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// All other nodes, by name.
    pub unmanaged: BTreeMap<String, NodeFacts>,
    /// The number of well nodes that are not in the view of a simulation.
    pub left_out: usize,
    /// Shadows that an earlier Node of the same name owned, by that name.
    pub orphaned_shadows: BTreeMap<String, ShadowFacts>,
    /// The revisions that are named by shadows without a Node.
    pub revisions_in_use: BTreeSet<String>,
    pub operator: Option<OperatorFacts>,
    /// The ControllerRevisions in the operator's namespace; `None` until they are known. Nothing but the history waits for
    /// them.
    pub revisions: Option<Vec<RevisionFacts>>,
    /// The writes of the policy's revisions, while they fail.
    pub revisions_failing: Option<Failing>,
    /// The writes of the operator's status, while they fail.
    pub status_failing: Option<Failing>,
    /// The node that this controller runs on.
    pub own_node: Option<String>,
    /// Time since which this controller leads. It gives each step of an earlier leader some time again.
    pub leader_since: Timestamp,
    /// The pods of the earlier operator that have not ended, each with its namespace, in order. While there is one,
    /// nothing is done.
    pub earlier_pods: Vec<String>,
    /// Time at which this process last observed one.
    pub earlier_seen: Option<Timestamp>,
    /// Nodes with an action under way: nothing is decided about them until it is done.
    pub busy: BTreeSet<String>,
    /// Those of them whose last action failed and that are in back-off: none of their actions is under way.
    pub paused: BTreeSet<String>,
    /// Nodes (uid) whose slot is removed by a write that may still arrive, of this leader or of the previous one.
    /// Nothing is begun with such a slot: it may be another's already.
    pub retracted: BTreeSet<String>,
    /// The budgets in the namespaces of the watched pods, and those that [`ClusterView::budgets_in_back_off`] names. One of these that is
    /// missing was deleted.
    pub budgets: Vec<BudgetFacts>,
    /// The CSI drivers of all nodes, by node; `None` until they are known, or where they may not be read.
    pub csi_nodes: Option<BTreeMap<String, CsiNodeFacts>>,
    /// The DaemonSets, by namespace and name; `None` as above.
    pub daemon_sets: Option<BTreeMap<String, DaemonSetFacts>>,
    /// The Services in these namespaces, as far as they are known. Only the history depends on them.
    pub services: Vec<ServiceFacts>,
    /// The answers to the expressions that nodes wait for.
    pub expressions: BTreeMap<Question, Answer>,
    /// True until every cache is known to be at least as new as this leadership: nothing is decided on such a view.
    pub stale: bool,
    /// The objects that this version cannot read.
    pub unreadable: UnreadableFacts,
    /// Readiness of another replica of the controller to take over.
    pub standby: Standby,
    /// Time since which no pod of the web API has been Ready, as observed by this process; `None` while one is.
    pub web_api_missing: Option<Timestamp>,
    /// The last time without such a pod that is over, as observed by this process.
    pub web_api_outage: Option<WebApiOutage>,
    /// True if another replica handed the lead over to this one, which has assigned no slot since: it does not hand it
    /// back.
    pub handed_over: bool,
    /// The keys that sign.
    pub signing: SigningKeys,
    /// The known facts about the history of rollouts.
    pub history: HistoryFacts,
}

/// A time in which no pod of the web API was Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebApiOutage {
    pub began: Timestamp,
    pub ended: Timestamp,
}

impl ClusterView {
    /// Returns the wait of a node that goes on once the operator's status is written: for that write, or for the API server to accept it.
    pub(crate) fn status_write(&self, now: Timestamp) -> Wait {
        self.status_failing.as_ref().and_then(|failing| failing.wait(now)).unwrap_or(Wait::Acting)
    }

    /// Returns the eviction for which a budget counts a pod as gone that is still there.
    pub(crate) fn unfinished_eviction(&self, budget: &BudgetFacts, now: Timestamp) -> Option<UnfinishedEviction> {
        let is_leaving = |name: &str| {
            let mut pods = self.nodes.values().flat_map(|node| node.pods.iter().flatten());
            pods.any(|pod| pod.terminating && (&pod.namespace, pod.name.as_str()) == (&budget.namespace, name))
        };
        budget.unfinished_eviction(is_leaving, now)
    }

    /// Returns the budgets (namespace and name) that are in back-off, or that the last attempt of a node asked in vain.
    pub fn budgets_in_back_off(&self) -> BTreeSet<(&str, &str)> {
        let recorded = self.operator.iter().flat_map(|operator| &operator.status.budget_back_offs);
        let refusing = self.nodes.values().filter_map(NodeView::record).flat_map(|record| &record.refusing_budgets);
        let titles = recorded.map(|back_off| &back_off.budget).chain(refusing.map(|refusing| &refusing.budget));
        titles.filter_map(|title| title.split_once('/')).collect()
    }

    /// Inserts a node, as it is now, and the shadow that is named after it.
    pub fn insert(&mut self, facts: NodeFacts, shadow: Option<ShadowFacts>, now: Timestamp) {
        let facts = facts.at(now);
        let name = facts.name.clone();
        let (own, orphan) = match shadow {
            Some(shadow) if shadow.owner_uid.as_deref() == Some(facts.uid.as_str()) => (Some(shadow), None),
            other => (None, other),
        };
        self.orphaned_shadows.extend(orphan.map(|shadow| (name.clone(), shadow)));
        if facts.labelled || facts.claimed() || own.is_some() {
            let mut node = NodeView { facts, shadow: own.map(Box::new), ..NodeView::default() };
            node.correct_kind();
            self.nodes.insert(name, node);
        } else {
            self.unmanaged.insert(name, facts);
        }
    }

    /// Returns the slots as they are recorded, those included that a write under way takes away.
    pub fn recorded_slots(&self) -> impl Iterator<Item = &Slot> {
        self.operator.iter().flat_map(|operator| &operator.status.slots)
    }

    /// Returns the slots that may be used: without those that are about to be removed.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.recorded_slots().filter(|slot| !self.retracted.contains(&slot.uid))
    }
}

/// The keys that sign permits and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningKeys {
    /// The id of the key that signs now.
    pub signing_key: Option<String>,
    /// The id of the key that signs when a rotation is over. A new leader signs with the one before it for as long as
    /// it waits, and what the newest one has signed already stays as it is.
    pub newest_key: Option<String>,
    /// The ids of that key and of the one before it. Signatures of any other key are no longer accepted.
    pub signing_keys: BTreeSet<String>,
}
