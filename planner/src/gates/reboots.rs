//! The PodDisruptionBudgets of the pods that a reboot ends: static ones, and those that tolerate the cordon and came back after their eviction. The
//! reboots of several nodes use a budget one after the other, as evictions do: the API server counts none of these pods before it is broken.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::shadow::Place;

use super::on_their_way::BudgetName;
use super::pods::{budget_refusal, deleted_beside, kept_by_budget, pods, waits};
use crate::drain;
use crate::survey::{NodeContext, Survey};
use crate::view::{BudgetFacts, ClusterView, PodFacts};
use crate::wait::Wait;

/// Returns the pods of a node that its reboot ends and that budgets may count, by name.
fn ended<'a>(ctx: &NodeContext<'a>) -> Vec<&'a PodFacts> {
    let rules = ctx.group().drain.rules_at(ctx.now);
    let mut ended: Vec<&PodFacts> = drain::ended_by_reboot(pods(ctx), rules, ctx.drain_status()).collect();
    ended.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    ended
}

/// Returns whether the host of a node may go down now by its permit, or is not back. A write that is not observed yet may be that of the permit.
fn may_go_down(ctx: &NodeContext<'_>) -> bool {
    ctx.node.update().is_some_and(|update| match update.step.place() {
        Place::Away => ctx.permit_issued(update) || ctx.view.busy.contains(&ctx.facts().name),
        Place::Booted => true,
        _ => false,
    })
}

/// Returns the nodes whose hosts may go down now, with those that the plan permits to reboot.
fn going_down<'a>(
    view: &'a ClusterView,
    survey: &'a Survey<'a>,
    now: Timestamp,
    permitted: &BTreeSet<String>,
) -> impl Iterator<Item = NodeContext<'a>> {
    let nodes = survey.nodes.iter().filter_map(move |node| NodeContext::of(view, survey, node, now));
    nodes.filter(move |ctx| may_go_down(ctx) || (ctx.node.update().is_some() && permitted.contains(&ctx.facts().name)))
}

/// Returns the pods that the reboots of other nodes are about to end.
fn ended_beside<'a>(ctx: &NodeContext<'a>) -> Vec<&'a PodFacts> {
    let (own, permitted) = (&ctx.facts().name, BTreeSet::new());
    let others = going_down(ctx.view, ctx.survey, ctx.now, &permitted);
    others.filter(|other| other.facts().name != *own).flat_map(|other| ended(&other)).collect()
}

/// Returns the wait for a budget that keeps one of these pods, where policy waits for guarded pods: it is not deleted at the deadline either.
pub(crate) fn undeletable(ctx: &NodeContext<'_>, left: &[&PodFacts]) -> Option<Wait> {
    if waits(ctx) { budget_refusal(ctx, left.iter().copied()).or_else(|| exhausted(ctx, left)) } else { None }
}

/// Returns a budget that lets fewer of these pods of a node go than there are, beside those that other nodes delete or reboots end, although it
/// would let each of them go alone.
fn exhausted(ctx: &NodeContext<'_>, pods: &[&PodFacts]) -> Option<Wait> {
    let mut all: Vec<&PodFacts> = deleted_beside(ctx).chain(ended_beside(ctx)).collect();
    all.extend(pods);
    pods.iter().find_map(|pod| {
        let budget = ctx.survey.budgets.beside(pod).find(|budget| budget.is_exceeded_by(pod, &all))?;
        let first = all.iter().find(|pod| budget.selects(pod))?;
        Some(Wait::BudgetBusy { pod: pod.title(), budget: budget.title(), node: first.node.clone() })
    })
}

/// Returns whether these pods, which are about to end, use up what a budget allows. Those that it counts as broken by now use nothing more.
fn is_used_up(budget: &BudgetFacts, ending: &[&PodFacts]) -> bool {
    let broken = ending.iter().filter(|pod| !pod.ready).count();
    let counted = usize::try_from(budget.expected.saturating_sub(budget.healthy)).unwrap_or(0);
    let used = ending.len() - broken + broken.saturating_sub(counted);
    used > 0 && used >= usize::try_from(budget.allowed).unwrap_or(0)
}

/// Returns the wait of a node for a budget over a pod that its reboot ends: one that does not let the pod go now, or that other nodes use up, by
/// their reboots (those `permitted` in the same plan included) or by evictions without an answer. A node on which several pods of a budget have
/// come back has no other place for them: it lets each of them go, and not all.
pub(crate) fn reboot_budget(ctx: &NodeContext<'_>, permitted: &BTreeSet<String>) -> Option<Wait> {
    ctx.node.update()?;
    let own = ended(ctx);
    let kept = own.iter().find_map(|pod| kept_by_budget(ctx, pod, true));
    kept.or_else(|| busy(ctx, &own, permitted))
}

/// Returns the wait for a budget of these pods that other nodes use up.
fn busy(ctx: &NodeContext<'_>, own: &[&PodFacts], permitted: &BTreeSet<String>) -> Option<Wait> {
    // A pod that is not Ready uses nothing of a budget that lets it go.
    let uses = own.iter().filter(|pod| pod.ready && !pod.pending);
    let used: Vec<_> = uses.flat_map(|pod| ctx.survey.budgets.over(pod).map(move |budget| (*pod, budget))).collect();
    if used.is_empty() {
        return None;
    }
    let name = &ctx.facts().name;
    let others = going_down(ctx.view, ctx.survey, ctx.now, permitted).filter(|other| other.facts().name != *name);
    let others: Vec<NodeContext<'_>> = others.collect();
    if others.iter().any(|other| other.node.pods.is_none()) {
        return Some(Wait::ReadingPods);
    }
    let asked = ctx.view.nodes.values().filter(|node| node.facts.name != *name).flat_map(|node| {
        let has_no_answer = move |pod: &&PodFacts| node.in_flight.contains_key(&pod.uid);
        node.pods.iter().flatten().filter(has_no_answer)
    });
    let ending: Vec<&PodFacts> = others.iter().flat_map(ended).chain(asked).collect();
    used.into_iter().find_map(|(pod, budget)| {
        let of_it: Vec<&PodFacts> = ending.iter().copied().filter(|other| budget.selects(other)).collect();
        let first = of_it.first().filter(|_| is_used_up(budget, &of_it))?;
        Some(Wait::BudgetBusy { pod: pod.title(), budget: budget.title(), node: first.node.clone() })
    })
}

/// Returns the budgets that reboots use up, those of the nodes `permitted` in the same plan included.
pub(crate) fn used_by_reboots<'a>(
    view: &'a ClusterView,
    survey: &'a Survey<'a>,
    now: Timestamp,
    permitted: &BTreeSet<String>,
) -> BTreeSet<BudgetName<'a>> {
    let mut ending: BTreeMap<BudgetName<'a>, (&BudgetFacts, Vec<&PodFacts>)> = BTreeMap::new();
    for pod in going_down(view, survey, now, permitted).flat_map(|ctx| ended(&ctx)) {
        for budget in survey.budgets.over(pod) {
            let name = (budget.namespace.as_str(), budget.name.as_str());
            ending.entry(name).or_insert_with(|| (budget, Vec::new())).1.push(pod);
        }
    }
    let used_up = ending.into_iter().filter(|(_, (budget, pods))| is_used_up(budget, pods));
    used_up.map(|(name, _)| name).collect()
}
