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
mod obstacle;
mod on_their_way;
mod pods;
mod reboots;
pub(crate) mod verification;

use models::shadow::Mode;

use crate::survey::{NodeContext, control_plane};
use crate::wait::Wait;

pub(crate) use expressions::{
    Firing, firing, gate as expression, objection, own_pending, own_questions, own_quiet, questions, quiet,
};
pub(crate) use fleet::{blackout, cluster_unwell};
pub(crate) use host::{has_reported as no_report, is_usable as host_not_usable};
pub(crate) use node::{is_not_held as held, is_ready as not_ready};
pub(crate) use obstacle::Obstacle;
pub(crate) use on_their_way::{OnTheirWay, busy_budget};
pub(crate) use pods::{guarded, long_graces, marked, refusal, waits as waits_for_guarded};
pub(crate) use reboots::{reboot_budget, undeletable, used_by_reboots};

/// One check.
pub(crate) struct Gate {
    stage: GateStage,
    /// The check as one fixed word.
    pub(crate) name: &'static str,
    /// The sentence that is true if a node passes.
    pub(crate) holds: &'static str,
    check: GateCheck,
    /// Returns whether it concerns an attempt of this kind.
    of: fn(Mode) -> bool,
    /// True if it still concerns a node that was claimed in time, right before its first eviction.
    lasts: bool,
    /// Returns the exception by which a node passes, if it does by one.
    pub(crate) exception: fn(&NodeContext<'_>) -> Option<String>,
}

/// The function of a gate.
enum GateCheck {
    /// Reads what is known of every node.
    Known(fn(&NodeContext<'_>) -> Option<Wait>),
    /// Reads what is found out about the first nodes only.
    FoundOut(fn(&NodeContext<'_>) -> Option<Obstacle>),
}

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

const fn gate(
    stage: GateStage,
    name: &'static str,
    holds: &'static str,
    check: fn(&NodeContext<'_>) -> Option<Wait>,
) -> Gate {
    Gate { stage, name, holds, check: GateCheck::Known(check), of: |_| true, lasts: true, exception: |_| None }
}

const fn drain_gate(name: &'static str, holds: &'static str, check: fn(&NodeContext<'_>) -> Option<Obstacle>) -> Gate {
    Gate { check: GateCheck::FoundOut(check), ..gate(Drain, name, holds, |_| None) }
}

/// Updates: the request for a drill is newer than a back-off, and brings no node to a version.
const UPDATES: fn(Mode) -> bool = |mode| mode == Mode::Update;

/// The sentence of the gate of the switch, which needs no shadow.
pub(crate) const ENABLED: &str = "updates are enabled, by a valid policy";

/// All gates, in their order.
const GATES: &[Gate] = &[
    gate(Begin, "Labelled", "the node has the label that selects it for updates", node::is_labelled),
    gate(Begin, "NotDeleted", "neither the node nor its shadow is being deleted", node::is_not_deleted),
    gate(Begin, "AgentReady", AGENT_READY, components::agent),
    gate(Begin, "HostUsable", HOST_USABLE, host::is_usable),
    gate(Begin, "AgentReported", "the agent has reported since the node's last boot", host::has_reported),
    gate(Begin, "HostNotBusy", HOST_NOT_BUSY, host::is_not_busy),
    gate(Begin, "NotArmedByOther", "no other client has armed an update on the host", host::not_armed_by_other),
    gate(Begin, "NotLockedByOther", "no other client has locked the host's version", host::no_conflicting_lock),
    gate(Begin, "Disarmed", "the agent has confirmed that nothing of the operator is armed", host::is_disarmed),
    gate(Begin, "AttemptsLeft", "the number of the next attempt is not too high", host::has_attempts_left),
    gate(Begin, "HasTarget", "policy has a version for the node, and the host offers it", host::has_target)
        .only(Mode::downloads),
    gate(New, "Enabled", ENABLED, fleet::is_enabled),
    gate(New, "NotQuarantined", "the version has not failed too often on this kind of host", fleet::is_not_quarantined)
        .only(Mode::downloads),
    gate(New, "NotFrozen", "no failures have stopped the rollout", fleet::is_not_frozen),
    gate(New, "NotBraked", "the rollout is not braked by ends without a proof", fleet::is_not_braked).only(UPDATES),
    gate(New, "ClusterWell", "nodes have not fallen ill at once", fleet::cluster_is_well),
    gate(New, "NotBeingRemoved", "no autoscaler or user is removing the node", node::is_not_being_removed),
    gate(New, "NotHeld", "no user holds the node", node::is_not_held),
    gate(New, "NotCordoned", "no other user or controller has cordoned the node", node::is_not_cordoned),
    gate(New, "WebApiReady", WEB_API_READY, components::web_api),
    gate(Begin, "NodeReady", NODE_READY, node::is_ready),
    gate(Disrupt, "NodeReady", NODE_READY, node::is_ready),
    gate(Disrupt, "WebApiReady", WEB_API_READY, components::web_api),
    gate(Disrupt, "AgentReady", AGENT_READY, components::agent),
    gate(Disrupt, "HostUsable", HOST_USABLE, host::is_usable),
    gate(Disrupt, "HostNotBusy", HOST_NOT_BUSY, host::is_not_busy),
    gate(Disrupt, "NoPressure", "the node reports no shortage", node::has_no_pressure),
    gate(Disrupt, "WindowOpen", "a window is open, or it is urgent; no blackout", fleet::window_is_open)
        .unless(fleet::urgency)
        .of_beginnings(),
    gate(Disrupt, "FewUnhealthyNodes", "no more nodes are not Ready than policy allows", node::few_unhealthy_nodes),
    gate(Begin, "NotInBackOff", "the back-off after the last failed attempt is over", node::is_not_in_back_off)
        .only(UPDATES),
    gate(Begin, "CanaryPlace", "the canary step has room for the node", fleet::has_canary_place).only(UPDATES),
    drain_gate("PodsRead", "the pods on the node are known", pods::are_known),
    drain_gate("DaemonSetsExist", "the DaemonSets of its pods exist", pods::daemon_sets_exist),
    drain_gate("PodsMayBeEvicted", "every pod on the node may be evicted", pods::may_be_evicted),
    drain_gate("BudgetsAllow", "no PodDisruptionBudget rules the drain out", pods::budgets_allow),
    drain_gate("NoneTerminating", "no pod has been terminating for longer than it may", pods::none_terminates),
    drain_gate("NoneMarked", "no pod is marked as not to be moved, where policy waits for that", pods::none_is_marked),
    drain_gate("PodsReady", "the pods on the node are Ready, where policy requires it", pods::are_ready),
    drain_gate("ExpressionsQuiet", "the expressions of policy return nothing", expressions::gate),
];

const WEB_API_READY: &str = "a pod of the web API is Ready";
const NODE_READY: &str = "the node is Ready";
const AGENT_READY: &str = "a pod of the agent on the node is Ready";
const HOST_USABLE: &str = "the agent can use the update API of its host";
const HOST_NOT_BUSY: &str = "no command of the host runs for too long";

/// Returns the gates of these stages for an attempt of this kind, in their order.
fn of(stages: &[GateStage], mode: Mode) -> impl Iterator<Item = &'static Gate> + '_ {
    GATES.iter().filter(move |gate| stages.contains(&gate.stage) && (gate.of)(mode))
}

impl Gate {
    const fn only(self, of: fn(Mode) -> bool) -> Self {
        Self { of, ..self }
    }

    const fn of_beginnings(self) -> Self {
        Self { lasts: false, ..self }
    }

    const fn unless(self, exception: fn(&NodeContext<'_>) -> Option<String>) -> Self {
        Self { exception, ..self }
    }

    /// Returns the reason why a node does not pass, with whether its facts are known.
    pub(crate) fn obstacle(&self, ctx: &NodeContext<'_>) -> Option<Obstacle> {
        match self.check {
            GateCheck::Known(check) => check(ctx).map(Obstacle::Refused),
            GateCheck::FoundOut(check) => check(ctx),
        }
    }

    /// Returns the reason why a node does not pass.
    pub(crate) fn wait(&self, ctx: &NodeContext<'_>) -> Option<Wait> {
        self.obstacle(ctx).map(Obstacle::into_wait)
    }
}

/// Returns the gates of an idle node before it begins an attempt, in their order. Before a drill, also one with a download, it has
/// to be a node that may be disrupted.
pub(crate) fn of_idle(ctx: &NodeContext<'_>) -> impl Iterator<Item = &'static Gate> {
    let ahead = ctx.policy.pre_stage.is_some() && !ctx.mode().is_drill();
    of(if ahead { &[Begin, New] } else { &[Begin, New, Disrupt] }, ctx.mode())
}

/// Returns the gates of a node with its image before it may have a slot, in their order.
pub(crate) fn of_staged(ctx: &NodeContext<'_>) -> impl Iterator<Item = &'static Gate> {
    of(&[New, Disrupt], ctx.mode())
}

/// Returns the gates of a node before it is drained, in their order.
pub(crate) fn of_drain(ctx: &NodeContext<'_>) -> impl Iterator<Item = &'static Gate> {
    of(&[Drain], ctx.mode())
}

/// Checks that an idle node may begin an attempt, or the drill that is requested.
pub(crate) fn begin(ctx: &NodeContext<'_>) -> Option<Wait> {
    of_idle(ctx).find_map(|gate| gate.wait(ctx))
}

/// Checks that a node that has its image may be taken out of service, as far as the cheap gates go.
pub(crate) fn start(ctx: &NodeContext<'_>) -> Option<Wait> {
    of_staged(ctx).find_map(|gate| gate.wait(ctx))
}

/// Returns the wait for the image of a node. While its agent is not heard, it is not known whether the host downloads anything.
pub(crate) fn staging(ctx: &NodeContext<'_>) -> Wait {
    silent(ctx).unwrap_or(Wait::Staging)
}

/// Returns why the agent is not heard now, if it is not: its node is not Ready, the web API is away, or its pod is not Ready.
fn silent(ctx: &NodeContext<'_>) -> Option<Wait> {
    node::is_ready(ctx).or_else(|| components::web_api(ctx)).or_else(|| components::agent(ctx))
}

/// Returns what keeps the agent from its part of an attempt now: it is not heard, or cannot use its host.
pub(crate) fn agent_trouble(ctx: &NodeContext<'_>) -> Option<Wait> {
    silent(ctx).or_else(|| host::is_usable(ctx)).or_else(|| host::is_not_busy(ctx))
}

/// Returns the brake of a node's rollout, unless the node is the one that is tried: it also stops what has not evicted a pod.
pub(crate) fn braked(ctx: &NodeContext<'_>) -> Option<Wait> {
    fleet::brake_of(ctx).map(|brake| brake.wait.clone())
}

/// Returns the wait of a node that has a slot for another one of the control plane: it also stops what has begun.
pub(crate) fn control_plane_busy(ctx: &NodeContext<'_>) -> Option<Wait> {
    let other = control_plane::in_the_way(ctx.view, ctx.facts())?;
    Some(Wait::ControlPlaneBusy { node: other.to_owned() })
}

/// Checks the pods, budgets and expressions of a node that may be taken out of service.
pub(crate) fn before_drain(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    of_drain(ctx).find_map(|gate| gate.obstacle(ctx))
}

/// Checks again, after the wait for hooks, what may have changed since the node got its slot: the node, the schedule, its pods,
/// budgets and expressions. The switch is not among it: an attempt that has begun is finished.
pub(crate) fn after_hooks(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    gravest(of(&[Disrupt, Drain], ctx.mode()), ctx)
}

/// Checks the same again where nothing is awaited any more before the first eviction. A drain that has begun in a window goes on after it.
pub(crate) fn before_eviction(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    gravest(of(&[Disrupt, Drain], ctx.mode()).filter(|gate| gate.lasts), ctx)
}

/// Returns the first obstacle that does not end by itself, or else the first one: a node is not kept out of service for what may end where
/// something else refuses it in any case.
fn gravest<'a>(gates: impl Iterator<Item = &'a Gate>, ctx: &NodeContext<'_>) -> Option<Obstacle> {
    let mut first = None;
    for obstacle in gates.filter_map(|gate| gate.obstacle(ctx)) {
        if !obstacle.may_end() {
            return Some(obstacle);
        }
        first.get_or_insert(obstacle);
    }
    first
}

#[cfg(test)]
pub(crate) mod testing {
    //! A node and its surroundings, for the tables of the gates.

    use super::*;
    use crate::fixtures::{cluster, node, t};
    use crate::policy::Policy;
    use crate::survey::Survey;
    use crate::view::ClusterView;

    /// The check of one gate, or of several.
    type Check<A> = fn(&NodeContext<'_>) -> Option<A>;

    /// Returns the refusal for node `a`, which every gate lets pass, after `change`.
    pub(crate) fn refusal_of<A>(gate: Check<A>, change: impl FnOnce(&mut ClusterView, &mut Policy)) -> Option<A> {
        let (mut view, mut policy) = cluster(vec![node("a"), node("b"), node("c")], &[]);
        change(&mut view, &mut policy);
        let survey = Survey::of(&view, &policy, t(0));
        gate(&NodeContext::of(&view, &survey, survey.find("a").unwrap(), t(0)).unwrap())
    }

    /// A download disrupts nothing, but the agent of a node that is not Ready may not run it: the attempt would time out.
    #[test]
    fn pre_staging_requires_enabled_policy_and_ready_node() {
        for ahead in [Some(models::operator::CountOrPercent::Count(2)), None] {
            let refused = |change: fn(&mut ClusterView, &mut Policy)| {
                refusal_of(begin, |view, policy| {
                    policy.pre_stage.clone_from(&ahead);
                    change(view, policy);
                })
            };
            assert_eq!(refused(|_, _| {}), None, "{ahead:?}");
            assert_eq!(refused(|_, policy| policy.enabled = false), Some(Wait::Disabled), "{ahead:?}");
            let not_ready = refused(|view, _| view.nodes.get_mut("a").unwrap().facts.ready = false);
            assert_eq!(not_ready, Some(Wait::NodeNotReady), "{ahead:?}");
        }
    }

    #[test]
    fn healthy_node_passes_all_gates() {
        for gate in [start, begin, fleet::has_canary_place] {
            assert_eq!(refusal_of(gate, |_, _| {}), None);
        }
        assert_eq!(refusal_of(before_drain, |_, _| {}), None);
    }
}
