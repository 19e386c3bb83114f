//! Trouble of the cluster: many nodes that fall ill at once, those included that are not being updated. That is no evidence against a
//! version: clocks of attempts stop, and nothing new starts.
//!
//! Nodes are compared since the drain of the judged node began. The comparison nodes are those that are not being updated, joining or
//! being removed, and that were well then. Nodes that run the judged version excuse nothing, and those that were ill before, or that a user
//! or a drain has taken down, say nothing.
//!
//! Trouble from before any drain of now is as much a reason to start nothing: the nodes that are left carry the load. For starts alone, all
//! nodes are compared since a day ago. That stops no clock, and is not recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::UnwellSpan;
use models::shadow::{Mode, Place, Progress};
use models::time::{after, between, signed};
use semver::Version;

use super::key::{Key, borrowed, kind_by_node};
use super::unavailable::comes_or_goes;
use crate::policy::Target;
use crate::view::{ClusterView, NodeFacts, NodeView};

/// The longest time for which clocks stop for an attempt, and after which a node that is ill says nothing any more.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest time from a hold until its node goes down that shows that a user powers it off. Nodes that are held for longer, such as all but a few
/// that are tried first, go down like any other in an outage.
const POWERED_OFF_WITHIN: Duration = Duration::from_secs(60 * 60);

/// The taint of a node whose machine is shut down, as its cloud shows. A machine of a failed zone has none.
const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule";

/// The number of times that the operator's status keeps.
const KEPT: usize = 8;

/// The number of ill nodes that are named.
const NAMED: usize = 4;

/// The interval of deciding again while clocks stop.
const STOPPED: Duration = Duration::from_secs(60);

/// The times in which the trouble was of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unwell {
    /// These times, for the operator's status.
    pub(crate) spans: Vec<UnwellSpan>,
    /// The trouble of the last day, where none of these times goes on.
    last_day: Option<UnwellSpan>,
    /// The versions that ill nodes run, by their kind, while it goes on. Those that no rollout takes off their version are left out.
    runs: BTreeSet<Key>,
    /// The versions, by kind, whose nodes are well among ill ones, while it goes on.
    good: BTreeSet<Key>,
    /// The time at which it may end without another event.
    pub(crate) wake: Option<Timestamp>,
    now: Timestamp,
}

/// The comparison nodes of a judged node.
#[derive(Debug, Default)]
pub(crate) struct Comparison<'a> {
    pub(crate) well: usize,
    /// Those that have fallen ill since its drain began.
    pub(crate) ill: Vec<&'a NodeFacts>,
}

impl<'a> Comparison<'a> {
    /// Compares the nodes since this time. `judged` are the versions that are judged.
    pub(crate) fn of(view: &'a ClusterView, judged: &BTreeSet<&Version>, since: Timestamp, now: Timestamp) -> Self {
        Self::among(comparison_nodes(view), judged, since, now)
    }

    /// Compares the nodes of one zone alone. Nodes without a zone are one together.
    pub(crate) fn in_zone(
        view: &'a ClusterView,
        zone: &str,
        judged: &BTreeSet<&Version>,
        since: Timestamp,
        now: Timestamp,
    ) -> Self {
        Self::among(comparison_nodes(view).filter(|facts| facts.zone() == zone), judged, since, now)
    }

    fn among(
        nodes: impl Iterator<Item = &'a NodeFacts>,
        judged: &BTreeSet<&Version>,
        since: Timestamp,
        now: Timestamp,
    ) -> Self {
        let mut found = Self::default();
        for facts in nodes.filter(|facts| !runs_any(facts, judged)) {
            let fell_ill = |at: Timestamp| at > since && after(at, LONGEST) > now;
            if facts.is_well() {
                found.well += 1;
            } else if facts.ill_since().is_some_and(fell_ill) {
                found.ill.push(facts);
            }
        }
        found
    }

    /// Returns whether it is the cluster's trouble: at least two, and at least half of them, have fallen ill.
    pub(crate) fn is_trouble(&self) -> bool {
        self.ill.len() >= 2 && self.ill.len() >= self.well
    }

    /// Returns the number of comparison nodes.
    pub(crate) fn len(&self) -> usize {
        self.well + self.ill.len()
    }
}

/// Returns whether a node was cordoned before it went down, as by a drain: then it says nothing about its version. A repair acts after it has gone
/// down.
pub(crate) fn was_taken_out(facts: &NodeFacts) -> bool {
    let cordoned = facts.cordoned_since.filter(|_| facts.cordoned_by_others());
    cordoned.zip(facts.not_ready_since).is_some_and(|(cordoned, down)| cordoned <= down)
}

/// Returns whether a user who holds a node held it before this time.
pub(crate) fn was_held(facts: &NodeFacts, ill_since: Timestamp) -> bool {
    facts.held() && facts.held_since.is_some_and(|held| held <= ill_since)
}

/// Returns whether a node is not Ready since a user or a drain took it down: a user who powers a node off holds it first, or its cloud shows it.
pub(super) fn was_taken_down(facts: &NodeFacts) -> bool {
    let is_recent = |down: Timestamp| facts.held_since.is_some_and(|held| after(held, POWERED_OFF_WITHIN) >= down);
    let was_powered_off = |down: Timestamp| was_held(facts, down) && is_recent(down);
    let is_shut_down = || facts.taints.iter().any(|taint| taint == SHUT_DOWN);
    !facts.ready && (was_taken_out(facts) || is_shut_down() || facts.not_ready_since.is_some_and(was_powered_off))
}

/// Returns the nodes of any kind that are not being updated, joining, being removed or taken down.
pub(crate) fn comparison_nodes(view: &ClusterView) -> impl Iterator<Item = &NodeFacts> {
    let stays =
        |facts: &&NodeFacts| !facts.deleting && facts.removed_by.is_none() && !facts.joining && !was_taken_down(facts);
    let managed = view.nodes.values().filter(|node| is_in_service(node)).map(|node| &node.facts);
    managed.chain(view.unmanaged.values().filter(stays))
}

/// Returns whether a node is neither being updated, nor joins or is removed, nor was taken down.
fn is_in_service(node: &NodeView) -> bool {
    !node.disrupted() && !node.past_staging() && !comes_or_goes(node) && !was_taken_down(&node.facts)
}

fn runs_any(facts: &NodeFacts, versions: &BTreeSet<&Version>) -> bool {
    !versions.is_empty() && facts.bottlerocket() && facts.os_version().is_some_and(|runs| versions.contains(&runs))
}

/// Compares all nodes since a day ago, those included that run a version that is judged. Returns that time, too.
fn in_last_day(view: &ClusterView, now: Timestamp) -> (Timestamp, Comparison<'_>) {
    let since = after(now, -signed(LONGEST));
    let mut found = Comparison::of(view, &BTreeSet::new(), since, now);
    found.well += view.left_out;
    (since, found)
}

/// Returns the record of trouble that is observed now, of nodes that are compared since a time.
fn observed((since, found): &(Timestamp, Comparison<'_>), now: Timestamp) -> UnwellSpan {
    UnwellSpan {
        since: now,
        until: None,
        compared_since: *since,
        ill: i64::try_from(found.ill.len()).unwrap_or(i64::MAX),
        compared: i64::try_from(found.len()).unwrap_or(i64::MAX),
        nodes: found.ill.iter().take(NAMED).map(|facts| facts.name.clone()).collect(),
    }
}

/// Returns the kind and the version of a node under the operator that runs Bottlerocket; other nodes are in no rollout.
fn runs_as(node: &NodeView) -> Option<Key> {
    let version = node.facts.os_version().filter(|_| node.facts.labelled && node.facts.bottlerocket())?;
    let (variant, arch) = kind_by_node(node);
    Some((variant.to_owned(), arch.to_owned(), version))
}

/// Returns the versions, by kind, most of whose nodes are well, in those zones alone in which at least half of the other nodes have fallen ill.
/// Where these are well, or there are none, it shows nothing: another zone may have failed. Nor does one well node alone, which may be well by
/// chance, while a node of its kind is well without the version.
fn good_versions(view: &ClusterView, since: Timestamp, now: Timestamp) -> BTreeSet<Key> {
    let mut versions: BTreeMap<Key, BTreeMap<&str, (usize, usize)>> = BTreeMap::new();
    for node in view.nodes.values().filter(|node| is_in_service(node)) {
        let Some(version) = runs_as(node) else { continue };
        let (well, ill) = versions.entry(version).or_default().entry(node.facts.zone()).or_default();
        *(if node.facts.is_well() { well } else { ill }) += 1;
    }
    let is_well_without = |(variant, arch, version): &Key| {
        let is_of_kind =
            |node: &&NodeView| node.facts.is_well() && kind_by_node(node) == (variant.as_str(), arch.as_str());
        let mut well = view.nodes.values().filter(is_of_kind).filter_map(runs_as);
        well.any(|(_, _, runs)| runs != *version)
    };
    let is_good = |key: &Key, zones: &BTreeMap<&str, (usize, usize)>| {
        let (mut good, mut bad) = (0, 0);
        for (zone, (well, ill)) in zones {
            let others = Comparison::in_zone(view, zone, &BTreeSet::from([&key.2]), since, now);
            if !others.ill.is_empty() && others.ill.len() >= others.well {
                good += *well;
                bad += *ill;
            }
        }
        good > bad && (good > 1 || !is_well_without(key))
    };
    versions.into_iter().filter(|(key, zones)| is_good(key, zones)).map(|(key, _)| key).collect()
}

/// Returns the time since which other nodes are compared with the node of an attempt: the beginning of its drain.
pub(crate) fn compared_since(progress: &Progress) -> Timestamp {
    let drain = progress.rollout.as_ref().and_then(|place| place.drain_started);
    drain.or(progress.verifying_since).unwrap_or(progress.started)
}

impl Unwell {
    /// Continues the recorded times. While one goes on, nodes are compared as at its beginning, also once no attempt is under way.
    pub(crate) fn of(view: &ClusterView, now: Timestamp) -> Self {
        let recorded = view.operator.iter().flat_map(|operator| &operator.status.unwell);
        let is_recent = |span: &&UnwellSpan| span.until.is_none_or(|until| after(until, LONGEST) > now);
        let mut spans: Vec<UnwellSpan> = recorded.filter(is_recent).cloned().collect();
        let is_judged = |progress: &&Progress| {
            let on_its_way = (Place::Leaving..=Place::Back).contains(&progress.step.place());
            on_its_way && !matches!(progress.mode(), Mode::Drill { .. })
        };
        let judged = || view.nodes.values().filter_map(NodeView::progress).filter(is_judged);
        let open = spans.last().filter(|span| span.until.is_none()).map(|span| span.compared_since);
        let since = judged().map(compared_since).chain(open).min();
        let versions: BTreeSet<&Version> = judged().map(|progress| &progress.version).collect();
        let compared = since.map(|since| (since, Comparison::of(view, &versions, since, now)));
        let trouble = compared.filter(|(_, compared)| compared.is_trouble());
        match (&trouble, spans.last_mut().filter(|span| span.until.is_none())) {
            (None, Some(open)) => open.until = Some(now),
            (Some(trouble), None) => spans.push(observed(trouble, now)),
            (None, None) | (Some(_), Some(_)) => {}
        }
        spans.drain(..spans.len().saturating_sub(KEPT));
        let last_day = trouble.is_none().then(|| in_last_day(view, now)).filter(|(_, found)| found.is_trouble());
        let ill = || trouble.iter().chain(&last_day).flat_map(|(_, compared)| &compared.ill);
        let wake = ill().filter_map(|facts| facts.ill_since()).min().map(|since| after(since, LONGEST));
        let runs = ill().filter_map(|facts| runs_as(view.nodes.get(&facts.name)?)).collect();
        let since = trouble.iter().chain(&last_day).map(|(since, _)| *since).next();
        let good = since.map(|since| good_versions(view, since, now)).unwrap_or_default();
        Self { spans, last_day: last_day.map(|trouble| observed(&trouble, now)), runs, good, wake, now }
    }

    /// Returns the time that goes on, if one does.
    pub(crate) fn open(&self) -> Option<&UnwellSpan> {
        self.spans.last().filter(|span| span.until.is_none())
    }

    /// Returns the trouble for which nothing starts: that which goes on, or that of the last day.
    pub(crate) fn of_starts(&self) -> Option<&UnwellSpan> {
        self.open().or(self.last_day.as_ref())
    }

    /// Returns how long clocks have stopped since this time.
    pub(crate) fn stopped(&self, since: Timestamp) -> Duration {
        let spans = self.spans.iter().map(|span| between(span.since.max(since), span.until.unwrap_or(self.now)));
        spans.sum::<Duration>().min(LONGEST)
    }

    /// Returns the end of what began at `since` and may take `limit`, without the times in which clocks stop.
    pub(crate) fn deadline(&self, since: Timestamp, limit: Duration) -> Timestamp {
        let mut end = after(since, limit);
        let mut left = LONGEST;
        for span in &self.spans {
            let from = span.since.max(since);
            let stopped = between(from, span.until.unwrap_or(self.now)).min(left);
            if from < end && !stopped.is_zero() {
                end = after(end, stopped);
                left = left.saturating_sub(stopped);
            }
        }
        // It moves with the clock, and is looked at once a minute.
        let moves = self.open().is_some_and(|open| open.since < end) && !left.is_zero();
        if moves { end.max(after(self.now, STOPPED)) } else { end }
    }

    /// Returns whether a rollout of this version to nodes like this one takes ill ones off theirs. It goes back to an earlier version, which
    /// policy does only from one that it does not allow; or it is urgent; or most of the nodes that run it already among ill ones are well, and
    /// at least two of them where others of its kind are well too.
    pub(crate) fn is_cured_by(&self, target: &Target, node: &NodeView, version: &Version, urgent: bool) -> bool {
        let (variant, arch) = kind_by_node(node);
        let is_good = || self.good.iter().any(|good| borrowed(good) == (variant, arch, version));
        self.runs.iter().any(|(of, on, runs)| {
            let is_of_kind = (of.as_str(), on.as_str()) == (variant, arch);
            let goes_back = runs > version && target.pins() && !target.allows(runs);
            // A bad version is taken off all kinds at once.
            (goes_back && (is_of_kind || node.facts.os_version().as_ref() == Some(runs)))
                || (is_of_kind && runs < version && (urgent || is_good()))
        })
    }
}

#[cfg(test)]
mod tests;
