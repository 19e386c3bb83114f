//! The cluster as a plan needs it, read with the rights of the caller: `status`, `explain` and `watch` make the
//! controller's own plan of it.
//!
//! The operator's resource and the shadows are required. All else is optional: a part that the caller may not read, or that
//! has no answer, is missing in the view, and named in [`Cluster::unread`].

pub(crate) mod dump;
mod lease;
mod read;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::core::error_boundary::InvalidObject;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BottlerocketShadow, Step, is_controller_condition};
use models::time::between;
use planner::annotations::{Place, misunderstood};
use planner::plan::{Action, Plan, plan};
use planner::policy::Policy;
use planner::standby::standby;
use planner::view::{
    BudgetFacts, ClusterView, CsiNodeFacts, DaemonSetFacts, NodeFacts, NodeView, OperatorFacts, PodFacts,
    Projection as _, ShadowFacts, Standby, UnreadableFacts,
};

pub(crate) use lease::{ControllerLease, STALE};
pub(crate) use read::{Components, pods_of};

/// Time for which everything is taken to have been as it is, where no object has the time.
const LONG: SignedDuration = SignedDuration::from_hours(1);

/// The word for the lack of a controller that renews its Lease.
pub(crate) const NO_LEADER: &str = "NoLeader";

/// The word for a controller of which no pod is Ready.
pub(crate) const CONTROLLER_NOT_READY: &str = "ControllerNotReady";

/// Number of plans in a row, each after the writes of the one before it.
const ROUNDS: usize = 3;

/// A part of the cluster that is read as far as the caller may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Operator,
    Shadows,
    Nodes,
    /// The pods of the earlier operator, in any namespace.
    EarlierPods,
    /// The pods of controller and web API.
    OwnPods,
    /// The Lease of the controller.
    Lease,
    AgentPods,
    /// The pods on the nodes.
    Pods,
    Budgets,
    CsiNodes,
    DaemonSets,
}

impl Part {
    /// Returns the consequence where it is missing.
    const fn unseen(self) -> &'static str {
        match self {
            Self::Operator => "so that the policy is not known",
            Self::Shadows => "so that the hosts are not known",
            Self::Nodes => "so that the reasons are those that the controller has recorded",
            Self::EarlierPods => "so that pods of the earlier operator are not seen",
            Self::OwnPods => "so that the operator's own pods are not seen",
            Self::Lease => "so that it is not seen whether a controller leads",
            Self::AgentPods => "so that missing agents are not seen",
            Self::Pods => "so that it is not seen which pods prevent a drain",
            Self::Budgets => "so that it is not seen which PodDisruptionBudgets prevent a drain",
            Self::CsiNodes => "so that it is not seen which CSI drivers updated nodes lack",
            Self::DaemonSets => "so that it is not seen which DaemonSets lack a pod on updated nodes",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    /// The missing right, or the call without an answer, as a sentence without a full stop.
    pub(crate) reason: String,
    /// True if there was no answer.
    pub(crate) is_unanswered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentPod {
    pub(crate) name: String,
    pub(crate) node: String,
    /// True if it is Ready and not terminating.
    pub(crate) serves: bool,
    /// Time since which it has been terminating, Ready, or not Ready.
    pub(crate) since: Option<Timestamp>,
    /// The reason why it is not Ready.
    pub(crate) trouble: Option<String>,
}

/// Objects read from the cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) namespace: String,
    pub(crate) operator: Option<OperatorFacts>,
    /// The shadows, by node.
    pub(crate) shadows: BTreeMap<String, ShadowFacts>,
    /// All nodes, by name; `None` if they could not be read.
    pub(crate) nodes: Option<BTreeMap<String, NodeFacts>>,
    /// Time since which nodes have been Ready, by name.
    pub(crate) ready_since: BTreeMap<String, Timestamp>,
    pub(crate) earlier_pods: Vec<String>,
    /// The pods of controller and web API, by name; `None` if they could not be read.
    pub(crate) own: Option<BTreeMap<String, PodFacts>>,
    /// `None` if it could not be read.
    pub(crate) lease: Option<ControllerLease>,
    /// The agents' pods; `None` if they could not be read.
    pub(crate) agents: Option<Vec<AgentPod>>,
    /// The pods of those nodes whose pods were read.
    pub(crate) pods: BTreeMap<String, Vec<PodFacts>>,
    pub(crate) budgets: Vec<BudgetFacts>,
    /// Read only where a node is verified; `None` otherwise, and where they could not be read.
    pub(crate) csi_nodes: Option<BTreeMap<String, CsiNodeFacts>>,
    pub(crate) daemon_sets: Option<BTreeMap<String, DaemonSetFacts>>,
    /// Annotations that are meant as requests and have no effect, each as a sentence, by object.
    pub(crate) misplaced: BTreeMap<String, Vec<String>>,
    /// The parts that are missing.
    pub(crate) unread: BTreeMap<Part, Unread>,
    /// The parts that were read.
    pub(crate) known: BTreeSet<Part>,
    /// The operator's own objects that exist and that this version of the plugin cannot read.
    pub(crate) unreadable: UnreadableFacts,
}

impl Cluster {
    /// Returns true if nothing of an operator was seen in the namespace.
    pub(crate) fn has_no_operator(&self) -> bool {
        let pods = self.own.as_ref().is_some_and(|own| !own.is_empty());
        let unreadable = self.unreadable != UnreadableFacts::default();
        self.operator.is_none() && self.shadows.is_empty() && !unreadable && !pods
    }

    pub(crate) fn add_operator(&mut self, operator: &BottlerocketUpdateOperator) {
        self.operator = OperatorFacts::project(operator);
        self.unreadable.operator = None;
        self.check_requests("bruo", Place::Operator, operator);
    }

    pub(crate) fn add_unreadable_operator(&mut self, error: &InvalidObject) {
        self.operator = None;
        self.unreadable.operator = Some(error.error.clone());
    }

    pub(crate) fn add_unreadable_shadow(&mut self, error: &InvalidObject) {
        let node = ShadowFacts::key_of(&error.metadata);
        self.shadows.remove(&node);
        self.unreadable.shadows.insert(node, error.error.clone());
    }

    pub(crate) fn add_unreadable_node(&mut self, error: &InvalidObject) {
        let name = NodeFacts::key_of(&error.metadata);
        self.nodes.iter_mut().for_each(|nodes| drop(nodes.remove(&name)));
        self.unreadable.nodes.insert(name, error.error.clone());
    }

    /// Returns what could not be read, each as a sentence without a full stop.
    pub(crate) fn not_read(&self) -> Vec<String> {
        let unreadable = self.unreadable.objects().map(|(object, error)| {
            format!("this version of the plugin cannot read {object}, and leaves it out: {error}")
        });
        let unread = self.unread.iter().map(|(part, unread)| format!("{}, {}", unread.reason, part.unseen()));
        unread.chain(unreadable).collect()
    }

    pub(crate) fn add_shadow(&mut self, shadow: &BottlerocketShadow) {
        if let Some(facts) = ShadowFacts::project(shadow) {
            self.unreadable.shadows.remove(&facts.node);
            self.shadows.insert(facts.node.clone(), facts);
        }
        self.check_requests("brs", Place::Shadow, shadow);
    }

    pub(crate) fn add_node(&mut self, node: &Node) {
        if let Some(facts) = NodeFacts::project(node) {
            self.unreadable.nodes.remove(&facts.name);
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
            if let Some(since) = ready.find_map(|ready| ready.last_transition_time.as_ref()) {
                self.ready_since.insert(facts.name.clone(), since.0);
            }
            self.nodes.get_or_insert_default().insert(facts.name.clone(), facts);
        }
        self.check_requests("node", Place::Node, node);
    }

    fn check_requests(&mut self, kind: &str, place: Place, object: &impl kube::ResourceExt) {
        let found: Vec<_> = misunderstood(place, object.meta()).into_iter().map(|found| found.message).collect();
        let object = format!("{kind} {}", object.name_any());
        if found.is_empty() {
            self.misplaced.remove(&object);
        } else {
            self.misplaced.insert(object, found);
        }
    }

    /// Returns the requests on a node and on its shadow that have no effect, each as a sentence.
    pub(crate) fn misplaced_requests_of(&self, name: &str) -> Vec<String> {
        let objects = [format!("node {name}"), format!("brs {}", names::shadow_name(name))];
        objects.iter().filter_map(|object| self.misplaced.get(object)).flatten().cloned().collect()
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::in_force(self.operator.as_ref())
    }

    /// Returns the input of the controller's plan. What only the controller's memory has is left out: refused
    /// evictions, results of expressions.
    pub(crate) fn view(&self, now: Timestamp) -> ClusterView {
        let before = now.saturating_sub(LONG).unwrap_or(now);
        let mut shadows = self.shadows.clone();
        let holder = self.lease.as_ref().and_then(|lease| lease.holder.as_ref());
        let leader = self.own.as_ref().and_then(|own| own.get(holder?));
        let own_node = leader.map(|pod| pod.node.clone());
        // Where none leads, the next one is yet to come.
        let leads = self.lease.as_ref().filter(|lease| lease.trouble().is_none());
        let mut view = ClusterView {
            operator: self.operator.clone(),
            earlier_pods: self.earlier_pods.clone(),
            budgets: self.budgets.clone(),
            csi_nodes: self.csi_nodes.clone(),
            daemon_sets: self.daemon_sets.clone(),
            leader_since: leads.and_then(|lease| lease.acquired).unwrap_or(before),
            standby: self.standby(own_node.as_deref()),
            own_node,
            unreadable: self.unreadable.clone(),
            web_api_missing: self.has_none_ready(names::APISERVER).then_some(before),
            ..ClusterView::default()
        };
        for facts in self.nodes.iter().flat_map(BTreeMap::values) {
            let shadow = shadows.remove(&facts.name);
            view.insert(facts.clone(), shadow, now);
        }
        view.revisions_in_use = shadows.into_values().filter_map(|shadow| shadow.revision).collect();
        let agents = self.agents.is_some().then(|| self.agents_by_node());
        for (name, node) in &mut view.nodes {
            node.pods = self.pods.get(name).map(|pods| pods.iter().map(|pod| pod.clone().at(now)).collect());
            node.agent_missing = agents.as_ref().and_then(|agents| match agents.get(name.as_str()) {
                Some(agent) if agent.serves => None,
                agent => Some(agent.and_then(|agent| agent.since).unwrap_or(before)),
            });
            let releasing = node.progress().filter(|progress| progress.step == Step::Releasing);
            let since = releasing.map(|progress| progress.since).or(node.facts.claimed_since);
            node.observed_for = since.map_or_else(Default::default, |since| between(since, now));
        }
        view
    }

    /// Plans for this cluster by the controller's own rules. Reasons that the controller is about to record count as
    /// recorded, so that each node has its reason also where no controller runs. Returns the view with them, too.
    pub(crate) fn plan(&self, now: Timestamp) -> (ClusterView, Plan) {
        let mut view = self.view(now);
        let records = |node: &NodeView, action: &Action| match action {
            Action::Status { status, .. } => status.report.progress.as_ref() == node.progress(),
            Action::Spec { .. } => node.progress().is_none(),
            _ => false,
        };
        let plan = settled(&mut view, &self.policy(), now, records);
        (view, plan)
    }

    fn standby(&self, own_node: Option<&str>) -> Standby {
        let (Some(own), Some(lease), Some(nodes)) = (&self.own, &self.lease, &self.nodes) else { return Standby::None };
        let controllers = own.iter().filter(|(_, pod)| pod.is_of(names::CONTROLLER));
        let controllers = controllers.map(|(name, pod)| (name.clone(), pod.clone())).collect();
        standby(lease.holder.as_deref().unwrap_or_default(), own_node, &controllers, nodes)
    }

    /// Returns why no controller leads, in a word and as a sentence without a full stop; `None` if one does, and where neither its pods nor its
    /// Lease could be read.
    pub(crate) fn no_leader(&self) -> Option<(&'static str, String)> {
        let trouble = self.lease.as_ref().map(ControllerLease::trouble);
        // A pod whose kubelet is away is not Ready, and may lead all the same.
        if trouble != Some(None) && self.has_none_ready(names::CONTROLLER) {
            let message = "no pod of the controller is Ready, so that nothing is done";
            return Some((CONTROLLER_NOT_READY, message.to_owned()));
        }
        Some((NO_LEADER, trouble??))
    }

    /// Returns whether no pod of this component, controller or web API, is Ready; false where that could not be read.
    pub(crate) fn has_none_ready(&self, component: &str) -> bool {
        self.own.as_ref().is_some_and(|own| !own.values().any(|pod| pod.is_of(component) && pod.serves()))
    }

    /// Returns the agent's pod of each node: the one that is Ready, where there are several.
    pub(crate) fn agents_by_node(&self) -> BTreeMap<&str, &AgentPod> {
        let mut agents: Vec<&AgentPod> = self.agents.iter().flatten().collect();
        agents.sort_by_key(|agent| agent.serves);
        agents.into_iter().map(|agent| (agent.node.as_str(), agent)).collect()
    }
}

/// Plans as if those writes to shadows were made that `is_made` accepts.
pub(crate) fn settled(
    view: &mut ClusterView,
    policy: &Policy,
    now: Timestamp,
    is_made: impl Fn(&NodeView, &Action) -> bool,
) -> Plan {
    let mut made = plan(view, policy, now);
    for _ in 0..ROUNDS {
        let mut written = false;
        for (name, action) in &made.actions {
            let Some(node) = view.nodes.get_mut(name).filter(|node| is_made(node, action)) else { continue };
            let Some(shadow) = &mut node.shadow else { continue };
            match action {
                Action::Status { status, .. } => {
                    shadow.status.controller = status.report.clone();
                    // Those of the agent stay.
                    shadow.status.conditions.retain(|condition| !is_controller_condition(&condition.type_));
                    shadow.status.conditions.extend(status.conditions.iter().cloned());
                }
                Action::Spec { spec } => shadow.spec = (**spec).clone(),
                _ => continue,
            }
            written = true;
        }
        if !written {
            break;
        }
        made = plan(view, policy, now);
    }
    made
}
