//! The comparison of a node that is not well after its update with nodes that were not updated.

use std::collections::BTreeSet;

use models::reason::FailureReason;

use super::row::{Attempt, Turn, fail};
use crate::survey::fallen::was_taken_out;
use crate::survey::unwell::{Comparison, LONGEST, compared_since};
use crate::view::NodeFacts;

/// Ends the attempt of a node that is not well at the end of its time: for `reason`, which counts against the version, unless other nodes
/// show that it is no evidence.
pub(super) fn blame(ctx: &Attempt<'_>, reason: FailureReason, message: &str) -> Turn {
    match excuse(ctx) {
        Some(excuse) => {
            fail(FailureReason::HealthUnknown, format!("{message}, which is no evidence against it: {excuse}"))
        }
        None => fail(reason, message),
    }
}

/// Returns whether a user or an autoscaler takes the node away, or has begun to before it went down.
fn is_taken_out(facts: &NodeFacts) -> bool {
    facts.held() || facts.deleting || facts.removed_by.is_some() || was_taken_out(facts)
}

/// Returns why it is no evidence against the version that the node is not well.
fn excuse(ctx: &Attempt<'_>) -> Option<String> {
    if is_taken_out(ctx.facts()) {
        return Some("a user or an autoscaler has taken the node out of service".to_owned());
    }
    let since = compared_since(ctx.progress);
    if ctx.survey.unwell.stopped(since) >= LONGEST {
        return Some("many other nodes have been ill for 24 hours since its drain began".to_owned());
    }
    let judged = BTreeSet::from([&ctx.progress.version]);
    let near = Comparison::in_zone(ctx.view, ctx.facts().zone(), &judged, since, ctx.now);
    if near.is_trouble() {
        return Some(excused_by(&near, "nodes of its zone that were not updated"));
    }
    let mut found = Comparison::of(ctx.view, &judged, since, ctx.now);
    // Nodes that run the version excuse nothing, unless all do and each of them has fallen ill: then nothing shows what it is.
    let all_run_it = found.len() == 0;
    if all_run_it {
        found = Comparison::of(ctx.view, &BTreeSet::new(), since, ctx.now);
    }
    let which = if all_run_it { "other nodes" } else { "nodes that were not updated" };
    // With one other node there is no more to go by than that it is ill, too.
    let alike = !found.ill.is_empty() && found.ill.len() == found.len();
    (alike || !all_run_it && found.is_trouble()).then(|| excused_by(&found, which))
}

fn excused_by(found: &Comparison<'_>, which: &str) -> String {
    let first = found.ill.first().map(|facts| facts.name.as_str()).unwrap_or_default();
    let (compared, ill) = (found.len(), found.ill.len());
    format!("{ill} of {compared} {which} have fallen ill since its drain began, {first} first")
}
