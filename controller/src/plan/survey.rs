//! What the whole fleet's facts come to, once for each plan: the rules for one node only look it up.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::operator::KnownVersion;
use semver::Version;

use super::rollout::{self, Rollouts};
use super::want::{Want, want};
use super::{Quarantine, Wait, gates, versions};
use crate::policy::{GroupPolicy, Policy, WindowState};
use crate::view::{ClusterView, NodeView};

/// The fleet at a glance.
pub(super) struct Survey<'a> {
    pub(super) policy: &'a Policy,
    pub(super) quarantine: Quarantine,
    pub(super) known: Vec<KnownVersion>,
    pub(super) rollouts: Rollouts,
    /// What policy wants of each node that has a shadow.
    pub(super) wants: BTreeMap<&'a str, Want>,
    /// The group of each node that is in one.
    pub(super) groups: BTreeMap<&'a str, usize>,
    /// The windows of nodes in no group, then those of the groups.
    windows: Vec<WindowState>,
    /// Nodes under the operator.
    pub(super) total: usize,
    /// Of them, those that are not Ready for other reasons than an update.
    pub(super) unhealthy: usize,
    /// Whether no pod of the web API has been Ready for a while.
    pub(super) web_api_missing: bool,
}

impl<'a> Survey<'a> {
    pub(super) fn of(view: &'a ClusterView, policy: &'a Policy, now: Timestamp) -> Self {
        let quarantine = Quarantine::of(view, policy.max_failures);
        let known = versions::known(view, &quarantine, now);
        let mut wants = BTreeMap::new();
        let mut groups = BTreeMap::new();
        let (mut total, mut unhealthy) = (0, 0);
        for (name, node) in &view.nodes {
            if let Some(group) = policy.group_of(&node.facts) {
                groups.insert(name.as_str(), group);
            }
            if let Some(shadow) = &node.shadow {
                let lock = shadow.spec.host.as_ref().and_then(|host| host.version_lock.as_ref());
                let locked: Option<Version> = lock.and_then(|text| text.parse().ok());
                wants.insert(name.as_str(), want(policy, &known, &shadow.status.agent, locked.as_ref(), now));
            }
            total += usize::from(node.facts.labelled);
            unhealthy += usize::from(node.facts.labelled && !node.facts.ready && !node.disrupted());
        }
        let wanted = wants.iter().filter_map(|(name, want)| {
            let node = view.nodes.get(*name).filter(|node| node.facts.labelled)?;
            Some((node, want.version.as_ref().ok()?))
        });
        let rollouts = rollout::follow(view, policy, wanted, now);
        let all = std::iter::once(&policy.all).chain(policy.groups.iter().map(|g| &g.policy));
        let web_api_missing = gates::is_missing(view.web_api_missing, now);
        let windows = all.map(|group| group.schedule.at(now)).collect();
        Self { policy, quarantine, known, rollouts, wants, groups, windows, total, unhealthy, web_api_missing }
    }

    /// What policy says of nodes like this one.
    pub(super) fn group(&self, node: &NodeView) -> &'a GroupPolicy {
        match self.groups.get(node.facts.name.as_str()) {
            Some(index) => &self.policy.groups[*index].policy,
            None => &self.policy.all,
        }
    }

    /// The windows of this node.
    pub(super) fn window(&self, node: &NodeView) -> &WindowState {
        let index = self.groups.get(node.facts.name.as_str()).map_or(0, |index| index + 1);
        &self.windows[index]
    }

    /// The windows of all nodes, groups included.
    pub(super) fn windows(&self) -> &[WindowState] {
        &self.windows
    }

    /// The version that a node is to become, or why there is none.
    pub(super) fn wanted(&self, node: &NodeView) -> Result<&Version, Wait> {
        match self.wants.get(node.facts.name.as_str()) {
            Some(want) => want.version.as_ref().map_err(Clone::clone),
            None => Err(Wait::NoShadow),
        }
    }
}
