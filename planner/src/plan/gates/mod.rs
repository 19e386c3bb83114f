//! The gates: the checks of one node before an update begins and before it is drained, in one ordered list.
//!
//! Each gate is a small function that checks one thing, and either lets a node pass or returns the reason. [`GATES`] has
//! them in the order in which their reasons are worth reading: the first refusal is the reason that a node shows. What
//! depends on other nodes is not here: the budgets of fleet, groups and zones (`slots.rs`), the place in the
//! queue and the number of nodes in a canary step (`fleet`).

mod components;
mod expressions;
mod fleet;
mod host;
mod node;
mod pods;

use super::Wait;
use super::context::NodeContext;

pub(super) use components::{POD_GRACE_PERIOD, is_missing};
pub(super) use expressions::{gate as expression, objection, queries, quiet_since};
pub(super) use pods::refusal;

type Gate = fn(&NodeContext<'_>) -> Option<Wait>;

/// The point of an update at which a gate applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateStage {
    /// An idle node is to begin an attempt.
    Begin,
    /// Anything new: an attempt, a download ahead of time included, or the drain of a staged node.
    New,
    /// A node is to be taken out of service. Without pre-staging the disruption follows its download, so these gates
    /// apply to an idle node as well.
    Disrupt,
    /// The last check before the drain, of the first nodes that wait for one: their pods are watched.
    Drain,
}

use GateStage::{Begin, Disrupt, Drain, New};

/// All gates, in their order.
const GATES: &[(GateStage, Gate)] = &[
    (Begin, node::is_labelled),
    (Begin, node::is_not_deleted),
    (Begin, components::agent),
    (Begin, host::has_reported),
    (Begin, host::not_armed_by_other),
    (Begin, host::no_conflicting_lock),
    (Begin, host::is_disarmed),
    (Begin, host::has_attempts_left),
    (Begin, host::has_target),
    (New, fleet::is_enabled),
    (New, fleet::is_not_quarantined),
    (New, fleet::is_not_frozen),
    (New, node::is_not_held),
    (New, node::is_not_cordoned),
    (New, components::web_api),
    (Disrupt, node::is_ready),
    (Disrupt, components::agent),
    (Disrupt, node::has_no_pressure),
    (Disrupt, fleet::window_is_open),
    (Disrupt, node::few_unhealthy_nodes),
    (Begin, node::is_not_in_back_off),
    (Begin, fleet::has_canary_place),
    (Drain, pods::are_known),
    (Drain, pods::daemon_sets_exist),
    (Drain, pods::may_be_evicted),
    (Drain, pods::budgets_allow),
    (Drain, pods::are_ready),
    (Drain, expressions::gate),
];

/// Returns the first refusal of the gates of these stages.
fn first_refusal(stages: &[GateStage], ctx: &NodeContext<'_>) -> Option<Wait> {
    GATES.iter().filter(|(stage, _)| stages.contains(stage)).find_map(|(_, gate)| gate(ctx))
}

/// Checks that an idle node may begin an attempt.
pub(super) fn begin(ctx: &NodeContext<'_>) -> Option<Wait> {
    let ahead = ctx.policy.pre_stage.is_some();
    first_refusal(if ahead { &[Begin, New] } else { &[Begin, New, Disrupt] }, ctx)
}

/// Checks that a node that has its image may be taken out of service, as far as the cheap gates go.
pub(super) fn start(ctx: &NodeContext<'_>) -> Option<Wait> {
    first_refusal(&[New, Disrupt], ctx)
}

/// Returns the wait of a held node.
pub(super) fn held(ctx: &NodeContext<'_>) -> Option<Wait> {
    node::is_not_held(ctx)
}

/// Checks the pods, budgets and expressions of a node that may be taken out of service.
pub(super) fn before_drain(ctx: &NodeContext<'_>) -> Option<Wait> {
    first_refusal(&[Drain], ctx)
}

#[cfg(test)]
pub(super) mod testing {
    //! A node and its surroundings, for the tables of the gates.

    use super::*;
    use crate::fixtures::{cluster, node, t};
    use crate::plan::survey::Survey;
    use crate::policy::Policy;
    use crate::view::ClusterView;

    /// Returns the refusal for node `a`, which every gate lets pass, after `change`.
    pub(crate) fn refusal_of(gate: Gate, change: impl FnOnce(&mut ClusterView, &mut Policy)) -> Option<Wait> {
        let (mut view, mut policy) = cluster(vec![node("a"), node("b"), node("c")], &[]);
        change(&mut view, &mut policy);
        let survey = Survey::of(&view, &policy, t(0));
        let node = &view.nodes["a"];
        let shadow = node.shadow.as_ref().unwrap();
        let (view, policy, survey) = (&view, &policy, &survey);
        gate(&NodeContext { view, node, shadow, policy, survey, now: t(0), slot: false })
    }

    fn new(ctx: &NodeContext<'_>) -> Option<Wait> {
        first_refusal(&[New], ctx)
    }

    #[test]
    fn pre_staging_requires_enabled_policy_but_not_ready_node() {
        let ahead = |policy: &mut Policy| policy.pre_stage = Some(models::operator::CountOrPercent::Count(2));
        for gate in [new, begin as Gate] {
            let off = refusal_of(gate, |_, policy| {
                ahead(policy);
                policy.enabled = false;
            });
            assert_eq!(off, Some(Wait::Disabled));
            let not_ready = refusal_of(gate, |view, policy| {
                ahead(policy);
                view.nodes.get_mut("a").unwrap().facts.ready = false;
            });
            assert_eq!(not_ready, None, "nothing is disrupted");
        }
        let not_ready = refusal_of(begin, |view, _| view.nodes.get_mut("a").unwrap().facts.ready = false);
        assert_eq!(not_ready, Some(Wait::NodeNotReady), "without pre-staging the disruption follows");
    }

    #[test]
    fn healthy_node_passes_all_gates() {
        for gate in [new, start, begin, before_drain, fleet::has_canary_place] {
            assert_eq!(refusal_of(gate, |_, _| {}), None);
        }
    }
}
