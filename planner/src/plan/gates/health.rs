//! The health of the node and of the cluster before a node is taken out of service.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn node_ready(ctx: &NodeContext<'_>) -> Option<Wait> {
    (!ctx.node.facts.ready).then_some(Wait::NodeNotReady)
}

pub(super) fn no_pressure(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.node.facts.pressure.clone().map(|condition| Wait::NodePressure { condition })
}

pub(super) fn few_unhealthy_nodes(ctx: &NodeContext<'_>) -> Option<Wait> {
    let (survey, limit) = (ctx.survey, ctx.group().before.max_unhealthy_nodes.as_ref()?);
    // An invalid limit counts as 0.
    let limit = limit.of(survey.total).unwrap_or(0);
    (survey.unhealthy > limit).then_some(Wait::UnhealthyNodes { count: survey.unhealthy, limit })
}

#[cfg(test)]
mod tests {
    use crate::claims::Parts;
    use models::operator::CountOrPercent;

    use super::super::testing::asked;
    use super::*;

    #[test]
    fn node_not_ready_or_under_pressure_waits() {
        assert_eq!(
            asked(node_ready, |view, _| view.nodes.get_mut("a").unwrap().facts.ready = false),
            Some(Wait::NodeNotReady)
        );
        assert_eq!(asked(node_ready, |view, _| view.nodes.get_mut("b").unwrap().facts.ready = false), None);
        assert_eq!(
            asked(no_pressure, |view, _| {
                view.nodes.get_mut("a").unwrap().facts.pressure = Some("DiskPressure".into());
            }),
            Some(Wait::NodePressure { condition: "DiskPressure".into() })
        );
    }

    #[test]
    fn too_many_unhealthy_nodes_block_all_starts() {
        let refused = |count, limit| Some(Wait::UnhealthyNodes { count, limit });
        for (sentence, limit, down, expected) in [
            ("no threshold", None, vec!["b", "c"], None),
            ("as many as may be", Some(CountOrPercent::Count(1)), vec!["b"], None),
            ("one too many", Some(CountOrPercent::Count(1)), vec!["b", "c"], refused(2, 1)),
            ("a percentage, at least one", Some(CountOrPercent::Percent("10%".into())), vec!["b", "c"], refused(2, 1)),
        ] {
            let wait = asked(few_unhealthy_nodes, |view, policy| {
                policy.all.before.max_unhealthy_nodes = limit;
                for name in down {
                    view.nodes.get_mut(name).unwrap().facts.ready = false;
                }
            });
            assert_eq!(wait, expected, "{sentence}");
        }
        let updating = asked(few_unhealthy_nodes, |view, policy| {
            policy.all.before.max_unhealthy_nodes = Some(CountOrPercent::Count(1));
            for name in ["b", "c"] {
                let facts = &mut view.nodes.get_mut(name).unwrap().facts;
                (facts.ready, facts.claims) = (false, Parts::USUAL);
            }
        });
        assert_eq!(updating, None, "nodes that we rebooted are not unhealthy");
    }
}
