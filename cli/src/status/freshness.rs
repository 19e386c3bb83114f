//! The age of what the nodes run.

use jiff::Timestamp;
use planner::plan::freshness;
use planner::policy::Policy;
use planner::view::ClusterView;
use semver::Version;
use serde::Serialize;

use crate::clock::{moment, span};
use crate::page::Style;

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Freshness {
    /// Number of nodes under the operator.
    total: usize,
    /// Number of them within the target; absent without one.
    within_target: Option<usize>,
    /// Their share, in percent.
    percent: Option<usize>,
    /// Maximum time for which a node may be behind.
    target: Option<models::duration::Duration>,
    behind: Vec<Behind>,
}

/// A node that runs an earlier version than policy lets it take.
#[derive(Clone, Debug, Serialize)]
struct Behind {
    node: String,
    since: Timestamp,
    newest: Version,
}

/// Returns the freshness of the nodes; `None` if none is behind and policy has no target.
pub(super) fn report(view: &ClusterView, policy: &Policy, now: Timestamp) -> Option<Freshness> {
    let fleet = freshness(view, policy, now);
    let target = policy.freshness_target.map(models::duration::Duration);
    let (total, percent) = (fleet.total, fleet.percent());
    let behind = fleet.behind.into_iter().map(|(node, behind)| Behind {
        node: node.to_owned(),
        since: behind.since,
        newest: behind.newest.clone(),
    });
    let mut behind: Vec<Behind> = behind.collect();
    behind.sort_by_key(|behind| behind.since);
    let freshness = Freshness { total, within_target: fleet.within, percent, target, behind };
    (freshness.target.is_some() || !freshness.behind.is_empty()).then_some(freshness)
}

impl Freshness {
    pub(super) fn text(&self, now: Timestamp) -> (Style, String) {
        let oldest = self.behind.first();
        let behind = oldest.map_or_else(
            || "no node is behind".to_owned(),
            |oldest| {
                let (count, total) = (self.behind.len(), self.total);
                let since = moment(oldest.since, now);
                format!("{count} of {total} nodes are behind, {} since {since}, newest {}", oldest.node, oldest.newest)
            },
        );
        match (self.within_target, self.percent, self.target) {
            (Some(within), Some(percent), Some(target)) => {
                let style = if within < self.total { Style::Warn } else { Style::Good };
                let target = span(target.0);
                (style, format!("{within} of {} nodes ({percent}%) are within {target}; {behind}", self.total))
            }
            _ => (Style::Plain, behind),
        }
    }
}
