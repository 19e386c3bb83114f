//! A summary of the fleet, computed once for each plan, that the rules for one node read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::operator::KnownVersion;
use semver::Version;

use super::rollout::{self, Rollouts};
use super::urgency::Urgency;
use super::want::{Host, Want};
use super::{Quarantine, Wait, gates, versions};
use crate::pause::Pause;
use crate::policy::{GroupPolicy, Policy, WindowState};
use crate::view::{ClusterView, NodeView};

/// The summary of the fleet.
pub(super) struct Survey<'a> {
    pub(super) policy: &'a Policy,
    pub(super) quarantine: Quarantine,
    pub(super) known: Vec<KnownVersion>,
    pub(super) rollouts: Rollouts,
    /// The urgency of a version.
    pub(super) urgency: Urgency,
    /// The version that policy wants for each node that has a shadow.
    pub(super) wants: BTreeMap<&'a str, Want>,
    /// The group of each node that is in one.
    pub(super) groups: BTreeMap<&'a str, usize>,
    /// The windows of nodes in no group, then those of the groups.
    pub(super) windows: Vec<WindowState>,
    /// The number of nodes under the operator.
    pub(super) total: usize,
    /// The number of them that are not Ready for other reasons than an update.
    pub(super) unhealthy: usize,
    /// True if no pod of the web API has been Ready for the tolerated time.
    pub(super) web_api_missing: bool,
    /// The pause beside the earlier operator.
    pub(super) pause: Pause,
}

/// Returns the version that policy leads each node of the operator to, or the reason why there is none. Everything else that
/// a node may wait for is left out.
pub fn targets(view: &ClusterView, policy: &Policy, now: Timestamp) -> BTreeMap<String, Result<Version, Wait>> {
    let wants = Survey::of(view, policy, now).wants;
    let labelled = |name: &&str| view.nodes.get(*name).is_some_and(|node| node.facts.labelled);
    wants.into_iter().filter(|(name, _)| labelled(name)).map(|(name, want)| (name.to_owned(), want.version)).collect()
}

impl<'a> Survey<'a> {
    pub(super) fn of(view: &'a ClusterView, policy: &'a Policy, now: Timestamp) -> Self {
        let quarantine = Quarantine::of(view, policy.max_failures);
        let known = versions::known(view, &quarantine, now);
        let mut wants = BTreeMap::new();
        let mut groups = BTreeMap::new();
        let (mut total, mut unhealthy) = (view.unlisted.total(), 0);
        for (name, node) in &view.nodes {
            if let Some(group) = policy.group_of(&node.facts) {
                groups.insert(name.as_str(), group);
            }
            if let Some(shadow) = &node.shadow {
                let lock = shadow.spec.host.as_ref().and_then(|host| host.version_lock.as_ref());
                let locked: Option<Version> = lock.and_then(|text| text.parse().ok());
                let host = Host { policy, known: &known, agent: &shadow.status.agent, now };
                wants.insert(name.as_str(), host.want(locked.as_ref()));
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
        let pause = Pause::of(view.operator.as_ref(), &view.earlier_pods, view.earlier_seen, policy.shutdown, now);
        let urgency = Urgency::of(view, policy, now);
        Self {
            policy,
            quarantine,
            known,
            rollouts,
            urgency,
            wants,
            groups,
            windows,
            total,
            unhealthy,
            web_api_missing,
            pause,
        }
    }

    /// The policy for nodes like this one.
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

    /// Returns the target version of a node, or the reason why there is none.
    pub(super) fn wanted(&self, node: &NodeView) -> Result<&Version, Wait> {
        match self.wants.get(node.facts.name.as_str()) {
            Some(want) => want.version.as_ref().map_err(Clone::clone),
            None => Err(Wait::NoShadow),
        }
    }
}
