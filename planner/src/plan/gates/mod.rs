//! The gates: small functions that each check one thing and either let a node pass or return the reason. They are
//! called in the order in which their reasons are worth reading, and the first refusal is the reason.

mod back_off;
mod canary;
mod components;
mod cordoned;
mod expressions;
mod frozen;
mod health;
mod held;
mod pods;
mod quarantine;
mod switch;
mod window;

use jiff::Timestamp;
use semver::Version;

use super::Wait;
use super::survey::Survey;
use crate::policy::GroupPolicy;
use crate::view::{NodeView, ShadowFacts};

pub(super) use components::{POD_PATIENCE, agent_of, is_missing};
pub(super) use expressions::{gate as expression, queries, quiet_since};
pub(super) use pods::before_drain;

/// The input of a gate.
pub(super) struct Input<'a> {
    pub(super) survey: &'a Survey<'a>,
    pub(super) node: &'a NodeView,
    pub(super) shadow: &'a ShadowFacts,
    /// The version of the attempt, or of the one that would begin.
    pub(super) version: &'a Version,
    pub(super) now: Timestamp,
}

impl Input<'_> {
    fn group(&self) -> &GroupPolicy {
        self.survey.group(self.node)
    }
}

type Gate = fn(&Input<'_>) -> Option<Wait>;

/// The gates for anything new, a download ahead of time included.
const STAGE: &[Gate] = &[switch::gate, quarantine::gate, frozen::gate, held::gate, cordoned::gate, components::web_api];

/// The additional gates for a node that is to be taken out of service.
const START: &[Gate] =
    &[health::node_ready, components::agent, health::no_pressure, window::gate, health::few_unhealthy_nodes];

/// Returns the first refusal of these gates.
fn first(gates: &[Gate], input: &Input<'_>) -> Option<Wait> {
    gates.iter().find_map(|gate| gate(input))
}

/// Checks that an image may be downloaded ahead of time.
pub(super) fn stage(input: &Input<'_>) -> Option<Wait> {
    first(STAGE, input)
}

/// Checks that a node that has its image may be taken out of service, as far as the cheap gates go.
pub(super) fn start(input: &Input<'_>) -> Option<Wait> {
    first(STAGE, input).or_else(|| first(START, input))
}

/// Checks that another attempt may begin.
pub(super) fn begin(input: &Input<'_>) -> Option<Wait> {
    let ahead = input.survey.policy.pre_stage.is_some();
    let gates = if ahead { stage(input) } else { start(input) };
    gates.or_else(|| back_off::gate(input)).or_else(|| if ahead { None } else { canary::gate(input) })
}

#[cfg(test)]
pub(super) mod testing {
    //! A node and its surroundings, for the tables of the gates.

    use super::*;
    use crate::fixtures::{NEW, cluster, node, t};
    use crate::policy::Policy;
    use crate::view::ClusterView;

    /// Returns the refusal for node `a`, which every gate lets pass, after `change`.
    pub(crate) fn asked(gate: Gate, change: impl FnOnce(&mut ClusterView, &mut Policy)) -> Option<Wait> {
        let (mut view, mut policy) = cluster(vec![node("a"), node("b"), node("c")], &[]);
        change(&mut view, &mut policy);
        let survey = Survey::of(&view, &policy, t(0));
        let node = &view.nodes["a"];
        let shadow = node.shadow.as_ref().unwrap();
        gate(&Input { survey: &survey, node, shadow, version: &NEW, now: t(0) })
    }

    #[test]
    fn a_download_ahead_of_time_passes_the_gates_of_the_fleet_and_none_of_those_of_a_disruption() {
        let ahead = |policy: &mut Policy| policy.pre_stage = Some(models::operator::CountOrPercent::Count(2));
        for gate in [stage, begin] {
            let off = asked(gate, |_, policy| {
                ahead(policy);
                policy.enabled = false;
            });
            assert_eq!(off, Some(Wait::Disabled));
            let not_ready = asked(gate, |view, policy| {
                ahead(policy);
                view.nodes.get_mut("a").unwrap().facts.ready = false;
            });
            assert_eq!(not_ready, None, "nothing is disrupted");
        }
        let not_ready = asked(begin, |view, _| view.nodes.get_mut("a").unwrap().facts.ready = false);
        assert_eq!(not_ready, Some(Wait::NodeNotReady), "without pre-staging the disruption follows");
    }

    #[test]
    fn every_gate_lets_a_sound_node_pass() {
        for gate in [stage, start, begin, canary::gate] {
            assert_eq!(asked(gate, |_, _| {}), None);
        }
    }
}
