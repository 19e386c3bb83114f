//! Freshness: the time for which nodes have run an earlier version than they could.
//!
//! A node is behind since the first version that it lacks was first seen. The versions that count are those that are
//! offered to nodes of its variant and architecture and that policy lets nodes take, at once or later: none that is
//! quarantined (unless it is held for its kind alone), excluded, outside the target or offered by no host any more.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{self, KnownVersion};
use models::time::after;
use semver::Version;

use crate::policy::Policy;
use crate::survey::versions::{self, Kinds};
use crate::view::ClusterView;

/// The time for which a node itself has been behind before it lags, where there is no target: one that was launched from an old image waits for the
/// window of the next week.
const LAGS_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A node that runs an earlier version than it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind<'a> {
    /// The time at which the first version that it lacks was first seen.
    pub since: Timestamp,
    /// The newest version that counts.
    pub newest: &'a Version,
}

/// The freshness of all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetFreshness<'a> {
    /// The nodes that are behind, by name.
    pub behind: Vec<(&'a str, Behind<'a>)>,
    /// The number of nodes under the operator.
    pub total: usize,
    /// The number of them whose version is known and that are behind for no longer than the target; `None` without a
    /// target.
    pub within: Option<usize>,
    /// The earliest time at which a version that a lagging node lacks was first seen. Nodes that have joined lately do not lag, however old it is.
    pub(super) lagging_since: Option<Timestamp>,
    /// The time at which that number changes next without another event.
    pub(super) wake: Option<Timestamp>,
}

/// Returns the freshness of the nodes by the versions that the operator's status records.
pub fn freshness<'a>(view: &'a ClusterView, policy: &Policy, now: Timestamp) -> FleetFreshness<'a> {
    let known = view.operator.as_ref().map_or(&[][..], |operator| &operator.status.versions);
    of(view, policy, &versions::kinds(view), known, now)
}

/// The same, by these offers and versions.
pub(super) fn of<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    kinds: &Kinds<'_>,
    known: &'a [KnownVersion],
    now: Timestamp,
) -> FleetFreshness<'a> {
    let mut counted: BTreeMap<(&str, &str), Vec<&KnownVersion>> = BTreeMap::new();
    for version in known {
        let key = (version.variant.as_str(), version.arch.as_str());
        let offered = kinds.get(&key).is_some_and(|kind| kind.offers(&version.version));
        let excluded =
            policy.exclude.iter().any(|exclusion| exclusion.covers(&version.variant, &version.arch, &version.version));
        // A freeze has its own alert; a version that is held for one kind alone has none.
        let freezes = version.quarantined.as_ref().is_some_and(|found| !found.contained);
        if offered && !excluded && !freezes && policy.target.allows(&version.version) {
            counted.entry(key).or_default().push(version);
        }
    }
    let lags_after = policy.freshness_target.unwrap_or(LAGS_AFTER);
    let mut fleet = FleetFreshness { within: policy.freshness_target.map(|_| 0), ..FleetFreshness::default() };
    for (name, node) in view.nodes.iter().filter(|(_, node)| node.facts.labelled) {
        fleet.total += 1;
        let Some(agent) = node.shadow.as_ref().map(|shadow| &shadow.status.agent) else { continue };
        let (Some(variant), Some(arch), Some(runs)) = (&agent.variant, &agent.arch, &agent.current_version) else {
            continue;
        };
        let newer = counted.get(&(variant.as_str(), arch.as_str())).into_iter().flatten();
        let newer = newer.filter(|known| known.version > *runs);
        let since = newer.clone().map(|known| known.first_seen).min();
        let newest = newer.map(|known| &known.version).max();
        let behind = since.zip(newest).map(|(since, newest)| Behind { since, newest });
        if let (Some(target), Some(within)) = (policy.freshness_target, &mut fleet.within) {
            let late = behind.as_ref().map(|behind| after(behind.since, target));
            let in_time = late.is_none_or(|late| now < late);
            *within += usize::from(in_time);
            fleet.wake = [fleet.wake, late.filter(|_| in_time)].into_iter().flatten().min();
        }
        let created = node.facts.created.unwrap_or(Timestamp::MIN);
        let lags = behind.filter(|behind| after(behind.since.max(created), lags_after) <= now);
        fleet.lagging_since = [fleet.lagging_since, lags.map(|lags| lags.since)].into_iter().flatten().min();
        fleet.behind.extend(behind.map(|behind| (name.as_str(), behind)));
    }
    fleet
}

impl FleetFreshness<'_> {
    /// Returns by how much this node is behind; `None` if it is not.
    pub fn of(&self, node: &str) -> Option<Behind<'_>> {
        self.behind.iter().find(|(name, _)| *name == node).map(|(_, behind)| *behind)
    }

    /// Returns the node that has been behind for the longest time, the first one by its name of several.
    pub fn oldest(&self) -> Option<(&str, Behind<'_>)> {
        self.behind.iter().copied().min_by_key(|(_, behind)| behind.since)
    }

    /// Returns the share of the nodes that are within the target, in percent, rounded down.
    pub fn percent(&self) -> Option<usize> {
        (self.within? * 100).checked_div(self.total)
    }

    /// Returns the part of the operator's status.
    pub(super) fn status(&self) -> operator::Freshness {
        let oldest = self.oldest();
        let count = |nodes| i64::try_from(nodes).unwrap_or(i64::MAX);
        operator::Freshness {
            nodes_within_target: self.within.map(count),
            nodes_behind: count(self.behind.len()),
            oldest_node: oldest.map(|(name, _)| name.to_owned()),
            oldest_since: oldest.map(|(_, behind)| behind.since),
        }
    }
}

#[cfg(test)]
mod tests;
