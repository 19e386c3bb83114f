//! Decisions about one node: the next write or live read, the pods to evict, or the reason why it waits.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::shadow::{BottlerocketShadowSpec, ControllerStatus, Mode, OwnerBefore, Place, Progress, Step};

use crate::claims::ClaimFields;
use crate::expressions::Question;
use crate::rules::Rules;
use crate::view::{Compared, PodFacts};
use crate::wait::Wait;

/// An Event that goes with a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// True for a warning.
    pub warning: bool,
    /// The reason, one fixed word.
    pub reason: &'static str,
    pub message: String,
}

impl Note {
    /// Adds a warning, whose text follows; this one keeps its reason.
    pub(crate) fn with(self, warning: Option<Self>) -> Self {
        let Some(other) = warning else { return self };
        Self { warning: true, message: format!("{}; {}", self.message, other.message), ..self }
    }
}

/// One pod to evict, under the uid that was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Eviction {
    /// Returns the eviction of this pod.
    pub fn of(pod: &PodFacts) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

/// Pods to evict from one node. Each has its own request, which nothing else about the node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    pub pods: Vec<Eviction>,
    /// The grace period for all of them, in seconds; `None`: each pod's own.
    pub grace: Option<i64>,
    /// True if they are deleted regardless of their budgets, as policy may allow after the deadline of a drain.
    pub delete: bool,
    /// True if the API server is only asked whether they may be evicted, as in a drill.
    pub dry_run: bool,
}

/// One write, or live read, for one node.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Writes the controller status of the shadow.
    Status { status: Box<ControllerStatus>, note: Option<Note> },
    /// Writes the shadow's spec.
    Spec { spec: Box<BottlerocketShadowSpec> },
    /// Claims these fields of the node.
    Claim { fields: ClaimFields, note: Option<Note> },
    /// Releases the operator's claim on the node.
    Release,
    /// Sets the request to hooks on the Node; without one, removes it.
    Hook { request: Option<String> },
    /// Reads the node and its pods live, and if no pod is left to evict, and budgets let those go that the reboot ends, signs a permit for the
    /// agent's nonce: of the reboot, or, under the desired state of a drill, a rehearsal permit.
    Permit {
        nonce: String,
        /// The rules for the pods that prevent the permit.
        rules: Rules,
        /// True in a drill that evicts no pods: they prevent no rehearsal permit.
        pods_stay: bool,
    },
    /// Reads the state of an owner's pods on other nodes.
    ReadOwner {
        /// The uid of the owner.
        owner: String,
        namespace: String,
        /// Labels that select its pods.
        labels: BTreeMap<String, String>,
        nodes: BTreeMap<String, Compared>,
    },
    /// Reads whether a ReplicaSet has as many pods as it wants.
    ReadReplicaSet { set: OwnerBefore },
    /// Checks that the node's own Lease is still renewed.
    ReadLease {
        /// True to have the pods on the node, which are watched, read again too: the Lease counts as read once they are.
        pods: bool,
    },
}

impl Action {
    /// Returns what the attempt is made for that a write of the controller status leads to.
    pub fn mode(&self) -> Mode {
        self.next_progress().map_or(Mode::Update, Progress::mode)
    }

    /// Returns whether it begins the disruption of a node.
    pub fn begins_disruption(&self) -> bool {
        self.next_step().is_some_and(|step| step.place() == Place::Leaving)
    }

    /// Returns the step of the attempt that a write of the controller status leads to.
    pub fn next_step(&self) -> Option<Step> {
        self.next_progress().map(|progress| progress.step)
    }

    /// Returns the attempt that a write of the controller status leads to.
    pub fn next_progress(&self) -> Option<&Progress> {
        let Self::Status { status, .. } = self else { return None };
        status.report.progress.as_ref()
    }
}

/// The decision about one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision<V = Verdict> {
    pub(crate) verdict: V,
    /// The pods to evict now, whatever else is done.
    pub(crate) evictions: Option<Evictions>,
    /// True if its pods have to be watched.
    pub(crate) pods: bool,
    /// True if the node keeps its slot, which it does not use yet: it is being checked.
    pub(crate) keeps_slot: bool,
    /// The expressions that it waits for.
    pub(crate) expressions: Vec<Question>,
    /// The time from which on these have to be queried, if their last answers are too old.
    pub(crate) asking_since: Option<Timestamp>,
    /// The time to decide again.
    pub(crate) wake: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Act(Action),
    Wait(Wait),
    /// Idle, and its own facts allow an attempt to this version.
    Candidate(semver::Version),
    /// Idle, and its own facts allow the requested drill, which this action begins.
    Drill(Action),
    /// Staged, and its own facts allow the disruption.
    WantsSlot,
}

impl Decision {
    pub(crate) fn act(action: Action) -> Self {
        Self::of(Verdict::Act(action))
    }

    pub(crate) fn wait(wait: Wait) -> Self {
        Self::of(Verdict::Wait(wait))
    }
}

impl<V> Decision<V> {
    pub(crate) const fn of(verdict: V) -> Self {
        Self {
            verdict,
            evictions: None,
            pods: false,
            keeps_slot: false,
            expressions: Vec::new(),
            asking_since: None,
            wake: None,
        }
    }

    /// The same with another verdict.
    pub(crate) fn map<W>(self, change: impl FnOnce(V) -> W) -> Decision<W> {
        let Self { verdict, evictions, pods, keeps_slot, expressions, asking_since, wake } = self;
        Decision { verdict: change(verdict), evictions, pods, keeps_slot, expressions, asking_since, wake }
    }

    pub(crate) fn evicting(self, evictions: Evictions) -> Self {
        Self { evictions: Some(evictions).filter(|evictions| !evictions.pods.is_empty()), ..self }
    }

    pub(crate) fn watching_pods(self) -> Self {
        Self { pods: true, ..self }
    }

    pub(crate) fn keeping_slot(self) -> Self {
        Self { keeps_slot: true, ..self }
    }

    pub(crate) fn querying(self, queries: impl IntoIterator<Item = Question>) -> Self {
        Self { expressions: self.expressions.into_iter().chain(queries).collect(), ..self }
    }

    /// Has the expressions queried again if their last answers are from before this time. The first time that is given counts.
    pub(crate) fn asking_since(self, at: Timestamp) -> Self {
        Self { asking_since: self.asking_since.or(Some(at)), ..self }
    }

    pub(crate) fn waking_at(self, at: Timestamp) -> Self {
        Self { wake: Some(self.wake.map_or(at, |w| w.min(at))), ..self }
    }
}
