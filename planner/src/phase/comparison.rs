//! The comparison of a node that is not well after its update with nodes that were not updated.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{AttemptResult, NodeBefore};
use models::time::after;

use super::row::{Attempt, Turn, fail};
use crate::expressions::Question;
use crate::gates::Firing;
use crate::survey::unavailable::comes_or_goes;
use crate::survey::unwell::{Comparison, LONGEST, compared_since, comparison_nodes, was_held, was_taken_out};
use crate::view::{Answer, Compared, NodeFacts, NodeView};

/// The number of other nodes for which an expression is queried before it counts against a version.
const QUERIED: usize = 3;

/// Ends the attempt of a node that is not well at the end of its time: for `reason`, which counts against the version, unless the node was taken
/// away, or other nodes show that it is no evidence. One that a user had held is verified as soon as it is not held any more.
pub(super) fn blame(ctx: &Attempt<'_>, reason: FailureReason, message: &str) -> Turn {
    let unknown = |excuse| (FailureReason::HealthUnknown, excuse);
    match taken_away(ctx).or_else(|| excuse(ctx).map(unknown)) {
        Some((end, excuse)) => fail(end, format!("{message}, which is no evidence against the version: {excuse}")),
        None => fail(reason, message),
    }
}

/// Returns how a user or an autoscaler takes the node away, if one does, with the end of its attempt. A hold or a
/// cordon that follows the illness does not count: users hold ill nodes, and repairs cordon them.
fn taken_away(ctx: &Attempt<'_>) -> Option<(FailureReason, String)> {
    let facts = ctx.facts();
    let ill_since = facts.ill_since().or(ctx.progress.interrupted).unwrap_or(ctx.now);
    let unknown = |excuse: String| Some((FailureReason::HealthUnknown, excuse));
    if facts.deleting {
        unknown("the node is being deleted".to_owned())
    } else if let Some(taint) = &facts.removed_by {
        unknown(format!("an autoscaler or a user is removing the node (taint {taint})"))
    } else if was_held(facts, ill_since) {
        Some((FailureReason::Held, "a user had held the node before".to_owned()))
    } else if was_taken_out(facts) {
        unknown("another client had cordoned the node before".to_owned())
    } else {
        None
    }
}

/// Returns why other nodes show that it is no evidence against the version that the node is not well.
fn excuse(ctx: &Attempt<'_>) -> Option<String> {
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

/// Returns the nodes that were like this one before its drain, and are in service without the version, those first that its record names first.
pub(super) fn alike<'a>(ctx: &Attempt<'a>, before: &NodeBefore) -> Vec<&'a NodeFacts> {
    let place = |facts: &NodeFacts| before.compared_with.iter().position(|name| *name == facts.name);
    let mut alike: Vec<&NodeFacts> = comparison_nodes(ctx.view)
        .filter(|facts| place(facts).is_some() && facts.os_version().as_ref() != Some(&ctx.progress.version))
        .collect();
    alike.sort_by_key(|facts| place(facts));
    alike
}

/// Returns whether so many of these nodes show that it is the cluster's doing: at least two and at least half of them, or all that there are.
pub(super) const fn are_most(count: usize, all: usize) -> bool {
    count > 0 && (count == all || (count >= 2 && count * 2 >= all))
}

/// Returns why a result of an expression for the node is no evidence against the version, if it is none: for most of a
/// few nodes like it, the expression returns something too or has no answer, or there is no such node. Answers to questions
/// from before the first of the two times do not count: they may be of another cause than the result for the node. Where
/// some are missing before the second one, returns the questions instead.
pub(super) fn excuse_expression(
    ctx: &Attempt<'_>,
    fires: &Firing<'_>,
    (since, limit): (Timestamp, Timestamp),
) -> Result<Option<&'static str>, Vec<Question>> {
    let alike = ctx.before().map(|before| alike(ctx, before)).unwrap_or_default();
    let others = alike.iter().take(QUERIED);
    let questions: Vec<Question> = others.filter_map(|facts| fires.question_about(&facts.name)).collect();
    let (mut quiet, mut firing) = (0, 0);
    for answer in questions.iter().filter_map(|question| ctx.view.expressions.get(question)) {
        match answer {
            Answer::Quiet { asked, .. } if *asked >= since => quiet += 1,
            Answer::Firing { asked, .. } if *asked >= since => firing += 1,
            Answer::Quiet { .. } | Answer::Firing { .. } | Answer::Failed { .. } => {}
        }
    }
    if quiet + firing < questions.len() && ctx.now < limit {
        return Err(questions);
    }
    Ok(if questions.is_empty() {
        Some("and there is no node like it without the version to compare it with")
    } else if are_most(questions.len() - quiet, questions.len()) {
        Some("and does so for nodes without the version too, or has no answer for them")
    } else {
        None
    })
}

/// The nodes on which an owner's other pods are evidence about the version: those in service, of any kind. A pod on an updated
/// one has had enough time when it has had as much again as an update waits for pods.
pub(super) fn nodes_to_compare(ctx: &Attempt<'_>) -> BTreeMap<String, Compared> {
    let others = ctx.view.nodes.values().filter(|node| node.facts.name != ctx.facts().name);
    let in_service = others.filter(|node| node.facts.ready && !node.disrupted() && !comes_or_goes(node));
    let runs = |facts: &NodeFacts| facts.os_version().as_ref() == Some(&ctx.progress.version);
    let class = |node: &NodeView| {
        if !runs(&node.facts) {
            return Compared::NotUpdated;
        }
        let last = node.record().and_then(|record| record.last.as_ref());
        // A node that is verified again was updated before that.
        let since = |last: &AttemptResult| if last.from.is_none() { last.started } else { last.ended };
        let by = last
            .filter(|last| last.version == ctx.progress.version)
            .map(|last| after(since(last), ctx.group().after.timeout));
        if by.is_some_and(|by| by <= ctx.now) { Compared::Updated } else { Compared::JustUpdated }
    };
    let unmanaged =
        ctx.view.unmanaged.values().filter(|facts| facts.ready && !facts.deleting && facts.removed_by.is_none());
    let unmanaged =
        unmanaged.map(|facts| (facts, if runs(facts) { Compared::JustUpdated } else { Compared::NotUpdated }));
    let all = in_service.map(|node| (&node.facts, class(node))).chain(unmanaged);
    all.map(|(facts, class)| (facts.name.clone(), class)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excuse_counts_the_nodes_and_names_the_first() {
        let (a, b) = (crate::fixtures::node("a").facts, crate::fixtures::node("b").facts);
        let found = Comparison { well: 1, ill: vec![&a, &b] };
        let expected = "2 of 3 other nodes have fallen ill since its drain began, a first";
        assert_eq!(excused_by(&found, "other nodes"), expected);
    }
}
