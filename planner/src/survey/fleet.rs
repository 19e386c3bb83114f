//! A summary of the fleet, computed once for each plan, that the rules for one node read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use jiff::Timestamp;
use models::operator::{BudgetBackOff, KnownVersion};
use models::shadow::Step;
use semver::Version;

use super::agents::is_missing;
use super::budgets::{self, Budgets};
use super::fallen;
use super::rollout::{self, Rollouts};
use super::unavailable::{self, Unavailable};
use super::unwell::{Unwell, was_taken_down};
use super::urgency::Urgency;
use super::versions::{self, Kinds};
use super::want::{Host, Want};
use crate::expressions::Subject;
use crate::pause::Pause;
use crate::policy::{GroupPolicy, Policy, WindowState};
use crate::survey::quarantine::Quarantine;
use crate::view::{ClusterView, NodeView, ShadowFacts};
use crate::wait::{Wait, in_order};

/// A node, with what several parts of a plan read about it: in a large fleet, each walk over all nodes takes its time.
pub(crate) struct SurveyedNode<'a> {
    pub(crate) node: &'a NodeView,
    /// The place among all nodes.
    pub(crate) index: usize,
    /// The group that it is in.
    pub(crate) group: Option<usize>,
    /// The version that policy wants for it; `None` without a shadow.
    pub(crate) want: Option<Want>,
    pub(crate) step: Option<Step>,
    pub(crate) labelled: bool,
    pub(crate) disrupted: bool,
    /// The cause for which it counts against the budgets although the operator has not taken it out of service, if it does.
    pub(crate) unavailable: Option<Unavailable>,
}

impl Deref for SurveyedNode<'_> {
    type Target = NodeView;

    fn deref(&self) -> &NodeView {
        self.node
    }
}

impl<'a> SurveyedNode<'a> {
    /// Returns what expressions are evaluated for.
    pub(crate) fn subject(&self) -> Subject<'a> {
        Subject { node: &self.node.facts.name, version: self.node.progress().map(|progress| &progress.version) }
    }

    /// Returns the target version, or the reason why there is none.
    pub(crate) fn wanted(&self) -> Result<&Version, Wait> {
        match &self.want {
            Some(want) => want.version.as_ref().map_err(Clone::clone),
            None => Err(Wait::NoShadow),
        }
    }
}

/// The summary of the fleet.
pub(crate) struct Survey<'a> {
    pub(crate) policy: &'a Policy,
    /// All nodes, by name.
    pub(crate) nodes: Vec<SurveyedNode<'a>>,
    /// The offers by variant and architecture.
    pub(crate) kinds: Kinds<'a>,
    pub(crate) quarantine: Quarantine,
    pub(crate) known: Vec<KnownVersion>,
    pub(crate) rollouts: Rollouts,
    /// The PodDisruptionBudgets.
    pub(crate) budgets: Budgets<'a>,
    /// The budgets whose pods stayed when they were asked.
    pub(crate) budget_back_offs: Vec<BudgetBackOff>,
    /// The urgency of a version.
    pub(crate) urgency: Urgency,
    /// The times in which many nodes had fallen ill at once.
    pub(crate) unwell: Unwell,
    /// The windows of nodes in no group, then those of the groups.
    pub(crate) windows: Vec<WindowState>,
    /// The groups of the nodes under the operator; `None` is that of nodes in none.
    groups: BTreeSet<Option<usize>>,
    /// The number of nodes under the operator.
    pub(crate) total: usize,
    /// Those of them that are not Ready for other reasons than an update, without those that join, are removed, held or taken down.
    pub(crate) unhealthy: Vec<&'a str>,
    /// The nodes of the control plane that are not Ready, whether they are under the operator or not.
    pub(crate) control_plane_down: Vec<&'a str>,
    /// True if no pod of the web API has been Ready for the tolerated time.
    pub(crate) web_api_missing: bool,
    /// The pause beside the earlier operator.
    pub(crate) pause: Pause,
}

/// Returns the version that policy leads each node of the operator to, or the reason why there is none. Everything else that
/// a node may wait for is left out.
pub fn targets(view: &ClusterView, policy: &Policy, now: Timestamp) -> BTreeMap<String, Result<Version, Wait>> {
    let nodes = Survey::of(view, policy, now).nodes.into_iter().filter(|node| node.labelled);
    nodes.filter_map(|node| Some((node.node.facts.name.clone(), node.want?.version))).collect()
}

impl<'a> Survey<'a> {
    pub(crate) fn of(view: &'a ClusterView, policy: &'a Policy, now: Timestamp) -> Self {
        let quarantine = Quarantine::of(view, policy.max_failures);
        let kinds = versions::kinds(view);
        let known = versions::known(view, &kinds, &quarantine, policy, now);
        // A version that failed is known also once no host of its kind is offered it any more.
        let offered: Vec<KnownVersion> =
            known.iter().filter(|known| versions::may_be_offered(&kinds, known)).cloned().collect();
        let want = |shadow: &ShadowFacts| {
            let lock = shadow.spec.host.as_ref().and_then(|host| host.version_lock.as_ref());
            let locked: Option<Version> = lock.and_then(|text| text.parse().ok());
            Host { policy, known: &offered, agent: &shadow.status.agent, now }.want(locked.as_ref())
        };
        let suspects = fallen::suspects(view, now);
        let unavailable = |node| unavailable::of(node, &suspects, policy.ignore_unavailable_after, now);
        let nodes = view.nodes.values().enumerate().map(|(index, node)| SurveyedNode {
            node,
            index,
            group: policy.group_of(&node.facts),
            want: node.shadow.as_deref().map(want),
            step: node.step(),
            labelled: node.facts.labelled,
            disrupted: node.disrupted(),
            unavailable: unavailable(node),
        });
        let nodes: Vec<_> = nodes.collect();
        let labelled = || nodes.iter().filter(|node| node.labelled);
        let total = labelled().count();
        let is_unhealthy = |node: &&SurveyedNode<'_>| {
            let is_known = || node.facts.held() || unavailable::comes_or_goes(node) || was_taken_down(&node.facts);
            !node.facts.ready && !node.disrupted && !is_known()
        };
        let unhealthy = labelled().filter(is_unhealthy).map(|node| node.node.facts.name.as_str()).collect();
        let all = view.nodes.values().map(|node| &node.facts).chain(view.unmanaged.values());
        let control_plane_down =
            all.filter(|facts| facts.control_plane() && !facts.ready).map(|facts| facts.name.as_str()).collect();
        let wanted = labelled().filter_map(|node| Some((node.node, node.want.as_ref()?.version.as_ref().ok()?)));
        let later = labelled().filter_map(|node| match &node.want.as_ref()?.version {
            Err(Wait::Pinning { version } | Wait::WaveNotCome { version }) => Some((node.node, version)),
            _ => None,
        });
        let rollouts = rollout::follow(view, policy, wanted, later, now);
        let all = std::iter::once(&policy.all).chain(policy.groups.iter().map(|g| &g.policy));
        let web_api_missing = is_missing(view.web_api_missing, now);
        let windows = all.map(|group| group.schedule.at(now)).collect();
        let groups = labelled().map(|node| node.group).collect();
        let pause = Pause::of(view.operator.as_ref(), &view.earlier_pods, view.earlier_seen, policy.shutdown, now);
        let urgency = Urgency::of(view, policy, now);
        let by_namespace = Budgets::of(view);
        Self {
            policy,
            nodes,
            kinds,
            quarantine,
            known,
            rollouts,
            budget_back_offs: budgets::back_offs(view, &by_namespace, now),
            budgets: by_namespace,
            urgency,
            unwell: Unwell::of(view, now),
            windows,
            groups,
            total,
            unhealthy,
            control_plane_down,
            web_api_missing,
            pause,
        }
    }

    /// Returns the node of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&SurveyedNode<'a>> {
        let index = self.nodes.binary_search_by(|node| node.facts.name.as_str().cmp(name)).ok()?;
        self.nodes.get(index)
    }

    /// Returns each node with the reason why it waits in a plan.
    pub(crate) fn waits<'s>(
        &'s self,
        waits: &'s BTreeMap<String, Wait>,
    ) -> impl Iterator<Item = (&'s SurveyedNode<'a>, Option<&'s Wait>)> {
        let mut wait_of = in_order(waits);
        self.nodes.iter().map(move |node| (node, wait_of(&node.facts.name)))
    }

    /// The policy for nodes like this one.
    pub(crate) fn group(&self, node: &SurveyedNode<'_>) -> &'a GroupPolicy {
        node.group.map_or(&self.policy.all, |index| &self.policy.groups[index].policy)
    }

    /// Returns the windows of nodes in no group, unless all nodes are in groups, and those of the groups with nodes.
    pub(crate) fn windows_in_use(&self) -> (Option<&WindowState>, Vec<&WindowState>) {
        let all = self.windows.first().filter(|_| self.groups.is_empty() || self.groups.contains(&None));
        (all, self.groups.iter().flatten().filter_map(|index| self.windows.get(index + 1)).collect())
    }

    /// The windows of this node.
    pub(crate) fn window(&self, node: &SurveyedNode<'_>) -> &WindowState {
        &self.windows[node.group.map_or(0, |index| index + 1)]
    }
}
