//! The node: under the operator, free for an update, and healthy, as the others are. `plan/tests/stage.rs` has the table of
//! its membership.

use crate::survey::{NodeContext, unavailable};
use crate::wait::Wait;

/// The number of nodes that are not Ready which a reason names.
const NAMED: usize = 4;

pub(crate) fn is_labelled(ctx: &NodeContext<'_>) -> Option<Wait> {
    (!ctx.facts().labelled).then_some(Wait::NotLabelled)
}

pub(crate) fn is_not_deleted(ctx: &NodeContext<'_>) -> Option<Wait> {
    (ctx.facts().deleting || ctx.shadow.deleting).then_some(Wait::Deleting)
}

pub(crate) fn is_not_held(ctx: &NodeContext<'_>) -> Option<Wait> {
    unavailable::held(ctx.facts())
}

pub(crate) fn is_not_cordoned(ctx: &NodeContext<'_>) -> Option<Wait> {
    unavailable::cordoned(ctx.group(), ctx.facts())
}

pub(crate) fn is_not_being_removed(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.facts().removed_by.clone().map(|taint| Wait::BeingRemoved { taint })
}

pub(crate) fn is_ready(ctx: &NodeContext<'_>) -> Option<Wait> {
    (!ctx.node.facts.ready).then_some(Wait::NodeNotReady)
}

pub(crate) fn has_no_pressure(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.node.facts.pressure.clone().map(|condition| Wait::NodePressure { condition })
}

pub(crate) fn few_unhealthy_nodes(ctx: &NodeContext<'_>) -> Option<Wait> {
    let (survey, limit) = (ctx.survey, ctx.group().before.max_unhealthy_nodes.as_ref()?);
    let (limit, count) = (limit.of(survey.total), survey.unhealthy.len());
    let named = || survey.unhealthy.iter().take(NAMED).map(|name| (*name).to_owned()).collect();
    (count > limit).then(|| Wait::UnhealthyNodes { count, limit, nodes: named() })
}

pub(crate) fn is_not_in_back_off(ctx: &NodeContext<'_>) -> Option<Wait> {
    let record = ctx.shadow.status.controller.record.as_ref()?;
    let until = record.not_before.filter(|until| *until > ctx.now)?;
    let reason = record.last.as_ref().map(|last| last.reason.clone()).unwrap_or_default();
    Some(Wait::BackOff { until, reason, unproven: None })
}

#[cfg(test)]
mod tests {
    use models::operator::{CordonedNodes, CountOrPercent};
    use models::shadow::Record;

    use super::super::testing::refusal_of;
    use super::*;
    use crate::claims::ClaimFields;
    use crate::fixtures::t;
    use crate::hold::Hold;
    use crate::view::NodeFacts;

    #[test]
    fn only_held_node_waits() {
        let hold = Hold { until: Some(t(60)), reason: Some("audit".into()) };
        let wait = Wait::Held { until: hold.until, reason: hold.reason.clone() };
        for (held, expected) in [("a", Some(wait)), ("b", None)] {
            let hold = Some(hold.clone());
            assert_eq!(
                refusal_of(is_not_held, |view, _| view.nodes.get_mut(held).unwrap().facts.hold = hold),
                expected
            );
        }
    }

    #[test]
    fn node_cordoned_by_user_waits_unless_policy_allows_update() {
        for (sentence, node, claims, policy, expected) in [
            ("cordoned", "a", ClaimFields::default(), CordonedNodes::Skip, Some(Wait::Cordoned)),
            ("cordoned, and policy updates it", "a", ClaimFields::default(), CordonedNodes::Update, None),
            ("cordoned by the operator", "a", ClaimFields::CORDON, CordonedNodes::Skip, None),
            ("another node is cordoned", "b", ClaimFields::default(), CordonedNodes::Skip, None),
        ] {
            let wait = refusal_of(is_not_cordoned, |view, all| {
                let facts = &mut view.nodes.get_mut(node).unwrap().facts;
                (facts.unschedulable, facts.claims) = (true, claims);
                all.all.drain.cordoned_nodes = policy;
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }

    #[test]
    fn node_that_an_autoscaler_removes_is_left_alone() {
        for (removed, expected) in
            [("a", Some(Wait::BeingRemoved { taint: "karpenter.sh/disrupted".into() })), ("b", None)]
        {
            for gate in [is_not_being_removed, super::super::begin, super::super::start] {
                let wait = refusal_of(gate, |view, _| {
                    view.nodes.get_mut(removed).unwrap().facts.removed_by = Some("karpenter.sh/disrupted".into());
                });
                assert_eq!(wait, expected, "{removed}");
            }
        }
    }

    #[test]
    fn node_not_ready_or_under_pressure_waits() {
        assert_eq!(
            refusal_of(is_ready, |view, _| view.nodes.get_mut("a").unwrap().facts.ready = false),
            Some(Wait::NodeNotReady)
        );
        assert_eq!(refusal_of(is_ready, |view, _| view.nodes.get_mut("b").unwrap().facts.ready = false), None);
        assert_eq!(
            refusal_of(has_no_pressure, |view, _| {
                view.nodes.get_mut("a").unwrap().facts.pressure = Some("DiskPressure".into());
            }),
            Some(Wait::NodePressure { condition: "DiskPressure".into() })
        );
    }

    #[test]
    fn too_many_unhealthy_nodes_block_all_starts() {
        let refused = || Some(Wait::UnhealthyNodes { count: 2, limit: 1, nodes: vec!["b".into(), "c".into()] });
        for (sentence, limit, down, expected) in [
            ("no threshold", None, vec!["b", "c"], None),
            ("as many as may be", Some(CountOrPercent::Count(1)), vec!["b"], None),
            ("one too many", Some(CountOrPercent::Count(1)), vec!["b", "c"], refused()),
            ("a percentage, at least one", Some(CountOrPercent::Percent("10%".into())), vec!["b", "c"], refused()),
        ] {
            let wait = refusal_of(few_unhealthy_nodes, |view, policy| {
                policy.all.before.max_unhealthy_nodes = limit;
                for name in down {
                    view.nodes.get_mut(name).unwrap().facts.ready = false;
                }
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }

    #[test]
    fn node_that_is_down_for_a_known_cause_is_not_unhealthy() {
        type Change = fn(&mut NodeFacts);
        let case = |sentence: &str, counts: bool, change: Change| {
            let wait = refusal_of(few_unhealthy_nodes, |view, policy| {
                policy.all.before.max_unhealthy_nodes = Some(CountOrPercent::Count(1));
                for name in ["b", "c"] {
                    let facts = &mut view.nodes.get_mut(name).unwrap().facts;
                    (facts.ready, facts.not_ready_since) = (false, Some(t(-60)));
                    change(facts);
                }
            });
            assert_eq!(wait.is_some(), counts, "{sentence}: {wait:?}");
        };
        case("it went down by itself", true, |_| {});
        case("the operator rebooted it", false, |facts| facts.claims = ClaimFields::USUAL);
        case("an autoscaler removes it", false, |facts| facts.removed_by = Some("karpenter.sh/disrupted".into()));
        case("a user holds it since it is down", false, |facts| facts.hold = Some(Hold::default()));
        case("it was drained before", false, |facts| {
            (facts.unschedulable, facts.cordoned_since) = (true, Some(t(-120)));
        });
        case("a repair has cordoned it since", true, |facts| {
            (facts.unschedulable, facts.cordoned_since) = (true, Some(t(-30)));
        });
        case("its cloud shows it as shut down", false, |facts| {
            facts.taints = vec!["node.cloudprovider.kubernetes.io/shutdown:NoSchedule".into()];
        });
    }

    #[test]
    fn failed_node_waits_for_its_back_off() {
        for (sentence, not_before, expected) in [
            ("never failed", None, None),
            ("failed lately", Some(1), Some(Wait::BackOff { until: t(1), reason: String::new(), unproven: None })),
            ("waited long enough", Some(0), None),
        ] {
            let wait = refusal_of(is_not_in_back_off, |view, _| {
                let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
                shadow.status.controller.record = Some(Record { not_before: not_before.map(t), ..Record::default() });
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }
}
