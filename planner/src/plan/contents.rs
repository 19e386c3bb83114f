//! The contents of a plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::condition::Condition;
use models::operator::{BottlerocketUpdateOperatorStatus, Slot};
use models::shadow::Step;

use super::shadows::ShadowChange;
use crate::decision::{Action, Evictions};
use crate::expressions::Question;
use crate::revisions::RevisionAction;
use crate::survey::quarantine::Quarantine;
use crate::view::NodeFacts;
use crate::wait::{Wait, WaitReason};

/// A silent agent, and what its node's `HostReachable` becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Silence {
    pub reason: WaitReason,
    pub condition: Condition,
}

/// The actions that are due now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The next action of each node that has one.
    pub actions: BTreeMap<String, Action>,
    /// The pods to evict now, by node.
    pub evictions: BTreeMap<String, Evictions>,
    /// The reason why each other node waits.
    pub waits: BTreeMap<String, Wait>,
    /// The nodes whose pods have to be watched.
    pub pods: BTreeSet<String>,
    /// The staged nodes that are not drained because of their pods, budgets or expressions, all of which were checked.
    pub refused: BTreeMap<String, Wait>,
    /// The expressions to query.
    pub expressions: BTreeSet<Question>,
    /// Those of them whose answer is too old if its query was sent before this time: they are queried at once.
    pub asked_again: BTreeMap<Question, Timestamp>,
    pub shadows: Vec<ShadowChange>,
    /// The nodes to label with `bottlerocket.aws/updater-interface-version`.
    pub labels: Vec<NodeFacts>,
    /// The writes of the policy's history, in their order. Nothing waits for them.
    pub revisions: Vec<RevisionAction>,
    /// The nodes whose shadow gets the label of another revision of the policy, with its name. If an action writes its spec, the
    /// label is part of that write; otherwise nothing else about the shadow changes.
    pub relabelled: BTreeMap<String, String>,
    /// `HostReachable` of the nodes whose agent is newly found to be silent.
    pub silent: BTreeMap<String, Silence>,
    /// True if another replica has to lead when this plan is carried out: only the leader's own node is left to update.
    pub hand_over: bool,
    pub quarantine: Quarantine,
    /// The slots to record; `None` if they are unchanged, or if there is no resource to hold them.
    pub slots: Option<Vec<Slot>>,
    /// The operator's status to write (with `slots` in it), if there is a resource to hold it.
    pub status: Option<BottlerocketUpdateOperatorStatus>,
    /// The earliest time at which a version was first seen that a node lacks which has itself been behind for a while.
    pub lagging_since: Option<Timestamp>,
    /// The canary steps that only a user passes, the newest version's first.
    pub approvals: Vec<Wait>,
    /// True if the schedule of all nodes is open.
    pub window_open: bool,
    /// The time to plan again even if nothing changes.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Returns whether no pod is evicted any more once this action is carried out.
    pub fn ends_drain(action: &Action) -> bool {
        let continues =
            matches!(action, Action::Claim { .. } | Action::ReadOwner { .. } | Action::ReadReplicaSet { .. });
        !continues && !matches!(action.next_step(), Some(Step::Draining))
    }

    /// Returns whether this action begins the disruption of a node, or an attempt.
    pub fn starts(action: &Action) -> bool {
        action.next_step() == Some(Step::Staging) || action.begins_disruption()
    }
}
