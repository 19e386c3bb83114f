//! The PodDisruptionBudgets that nodes on their way use: one plan hands out no more than they allow.

use std::collections::{BTreeMap, HashMap};

use super::pods::with_fate;
use crate::drain::Fate;
use crate::survey::NodeContext;
use crate::view::{BudgetFacts, NodeFacts, PodFacts};
use crate::wait::Wait;

/// The namespace and the name of a budget.
pub(super) type BudgetName<'a> = (&'a str, &'a str);

/// Returns the pods of the node that a drain would evict and that a budget has to let go one by one, each with the budget.
fn counted<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = (BudgetName<'a>, &'a BudgetFacts, &'a PodFacts)> {
    let survey = ctx.survey;
    with_fate(ctx, |fate| fate == Fate::Goes).filter(|pod| !pod.pending).flat_map(move |pod| {
        let counts = move |budget: &&BudgetFacts| !budget.stale && (pod.ready || !budget.allows_unhealthy);
        let counting = survey.budgets.over(pod).filter(counts);
        counting.map(move |budget| ((budget.namespace.as_str(), budget.name.as_str()), budget, pod))
    })
}

/// The nodes on their way whose pods have not ended yet, and the number of pods of each, by the budget that has to let them go.
#[derive(Default)]
pub(crate) struct OnTheirWay<'a>(HashMap<BudgetName<'a>, Vec<(&'a NodeFacts, usize)>>);

impl<'a> OnTheirWay<'a> {
    pub(crate) fn add(&mut self, ctx: &NodeContext<'a>) {
        let mut needed: BTreeMap<BudgetName<'_>, usize> = BTreeMap::new();
        for (name, ..) in counted(ctx) {
            *needed.entry(name).or_default() += 1;
        }
        for (name, needed) in needed {
            self.0.entry(name).or_default().push((ctx.facts(), needed));
        }
    }
}

/// Returns a budget of the node that allows less than nodes on their way need: at most one node waits at a budget.
pub(crate) fn busy_budget(ctx: &NodeContext<'_>, on_their_way: &OnTheirWay<'_>) -> Option<Wait> {
    let mut own = BTreeMap::new();
    for (name, budget, pod) in counted(ctx) {
        own.entry(name).or_insert((budget, pod));
    }
    own.into_iter().find_map(|(name, (budget, pod))| {
        let others = on_their_way.0.get(&name)?.iter().filter(|(node, _)| node.uid != ctx.facts().uid);
        let (first, _) = others.clone().next()?;
        let needed: usize = others.map(|(_, needed)| needed).sum();
        let is_busy = i32::try_from(needed).unwrap_or(i32::MAX) > budget.allowed.max(0);
        is_busy.then(|| Wait::BudgetBusy { pod: pod.title(), budget: budget.title(), node: first.name.clone() })
    })
}

#[cfg(test)]
mod tests {
    use kube::core::Selector;

    use super::super::testing::refusal_of;
    use super::*;
    use crate::fixtures::pod;

    #[test]
    fn budget_counts_a_pod_unless_it_lets_that_go_whatever_its_numbers_are() {
        let budget = || BudgetFacts {
            namespace: "shop".into(),
            name: "web".into(),
            selector: Some(Selector::default()),
            ..BudgetFacts::default()
        };
        let lenient = || BudgetFacts { allows_unhealthy: true, ..budget() };
        let ready = || PodFacts { ready: true, ..pod("a", false) };
        for (sentence, pod, budget, counts) in [
            ("a pod that is Ready", ready(), budget(), true),
            ("a pod that is not", pod("a", false), budget(), true),
            ("a pod that is not, and may go then", pod("a", false), lenient(), false),
            ("a pod that is Ready beside those that may go", ready(), lenient(), true),
            ("the numbers of an earlier spec", ready(), BudgetFacts { stale: true, ..budget() }, false),
            ("a pod that has not begun", PodFacts { pending: true, ..ready() }, budget(), false),
        ] {
            let found = refusal_of(
                |ctx: &NodeContext<'_>| counted(ctx).next().map(drop),
                |view, _| {
                    view.budgets = vec![budget];
                    view.nodes.get_mut("a").unwrap().pods = Some(vec![pod]);
                },
            );
            assert_eq!(found.is_some(), counts, "{sentence}");
        }
    }
}
