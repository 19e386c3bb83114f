//! Gauges that alerts and dashboards need besides the counts of the fleet: contact with agents and the web API, what hosts
//! report, and what the policy waits for.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::condition::{false_condition, find_condition};
use models::operator::{HISTORY_RECORDED, NOTICES_SENT};
use models::shadow::{AgentReport, HOST_REACHABLE};
use planner::plan::{AgentState, Plan, agent_state};
use planner::policy::Policy;
use planner::view::{ClusterView, NodeView};

use super::gauges::Gauges;
use super::values::{ALONE, flag, float, seconds};

/// States of agents, as in `agents`.
const AGENTS: [&str; 4] = ["Connected", "Connecting", "Silent", "NodeNotReady"];

/// Reasons of `HostReachable`; another one is `other`.
const REASONS: [&str; 16] = [
    "Answered",
    "HostArmedByOther",
    "HostBusy",
    "UnsupportedState",
    "DeactivateFailed",
    "LockedByOther",
    "SettingsUnsigned",
    "SettingsFailed",
    "SocketMissing",
    "ConnectionRefused",
    "SocketIsDirectory",
    "PermissionDenied",
    "Timeout",
    "BadAnswer",
    "AgentNotReady",
    "WebApiNotReady",
];

/// The values of these gauges at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signals {
    agents: BTreeMap<&'static str, usize>,
    /// By whether the agent has reported before.
    silent_since: BTreeMap<&'static str, Timestamp>,
    hosts: BTreeMap<&'static str, usize>,
    web_api_missing: Option<Timestamp>,
    enabled: Option<bool>,
    next_window: Option<Timestamp>,
    awaiting_approval: bool,
    history_failing: bool,
    notices_failing: bool,
    versions_behind: Option<usize>,
}

impl Signals {
    pub(super) fn of(view: &ClusterView, plan: &Plan, policy: &Policy, now: Timestamp) -> Self {
        let conditions = plan.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let mut signals = Self {
            agents: AGENTS.into_iter().map(|state| (state, 0)).collect(),
            web_api_missing: view.web_api_missing,
            enabled: policy.present.then_some(policy.enabled),
            next_window: plan.status.as_ref().and_then(|status| status.next_window),
            awaiting_approval: !plan.approvals.is_empty(),
            history_failing: false_condition(conditions, HISTORY_RECORDED).is_some(),
            notices_failing: false_condition(conditions, NOTICES_SENT).is_some(),
            ..Self::default()
        };
        for node in view.nodes.values().filter(|node| node.facts.labelled) {
            let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
            let state = match agent_state(view, node, now) {
                AgentState::Connected => "Connected",
                AgentState::Connecting => "Connecting",
                AgentState::NodeNotReady => "NodeNotReady",
                AgentState::Silent { since, .. } => {
                    let reported = agent.is_some_and(|agent| agent.current_version.is_some());
                    let oldest = signals.silent_since.entry(if reported { "true" } else { "false" }).or_insert(since);
                    *oldest = since.min(*oldest);
                    "Silent"
                }
            };
            *signals.agents.entry(state).or_default() += 1;
            // The last report of a node that is down says nothing about its host now.
            if node.facts.ready {
                *signals.hosts.entry(host_reason(node)).or_default() += 1;
            }
            signals.versions_behind = signals.versions_behind.max(agent.and_then(versions_behind));
        }
        signals
    }

    /// Returns signals of which each has a value.
    #[cfg(test)]
    pub(super) fn full() -> Self {
        Self {
            agents: [("Silent", 1)].into(),
            silent_since: [("true", Timestamp::UNIX_EPOCH)].into(),
            hosts: [("Answered", 1)].into(),
            web_api_missing: Some(Timestamp::UNIX_EPOCH),
            enabled: Some(true),
            next_window: Some(Timestamp::UNIX_EPOCH),
            awaiting_approval: true,
            history_failing: true,
            notices_failing: true,
            versions_behind: Some(1),
        }
    }

    pub(super) fn add_to(&self, gauges: &Gauges) {
        let Self {
            agents,
            silent_since,
            hosts,
            web_api_missing,
            enabled,
            next_window,
            awaiting_approval,
            history_failing,
            notices_failing,
            versions_behind,
        } = self;
        for (state, count) in agents {
            gauges.add("agents", &[state], float(*count));
        }
        for (reason, count) in hosts {
            gauges.add("hosts", &[reason], float(*count));
        }
        for (reported, since) in silent_since {
            gauges.add("agent_silent_since_timestamp_seconds", &[reported], seconds(*since));
        }
        for (name, value) in [
            ("web_api_ready", Some(flag(web_api_missing.is_none()))),
            ("web_api_silent_since_timestamp_seconds", web_api_missing.map(seconds)),
            ("enabled", enabled.map(flag)),
            ("next_window_timestamp_seconds", next_window.map(seconds)),
            ("awaiting_approval", Some(flag(*awaiting_approval))),
            ("history_failing", Some(flag(*history_failing))),
            ("notices_failing", Some(flag(*notices_failing))),
            ("versions_behind", versions_behind.map(float)),
        ] {
            if let Some(value) = value {
                gauges.add(name, &ALONE, value);
            }
        }
    }
}

/// Returns the reason of a node's `HostReachable` as a fixed word.
fn host_reason(node: &NodeView) -> &'static str {
    let conditions = node.shadow.as_ref().map(|shadow| &shadow.status.conditions);
    match conditions.and_then(|conditions| find_condition(conditions, HOST_REACHABLE)) {
        Some(condition) => REASONS.into_iter().find(|reason| *reason == condition.reason).unwrap_or("other"),
        None => "NotReported",
    }
}

/// Returns the number of offered versions that are later than the one that runs; `None` while either is not known.
fn versions_behind(agent: &AgentReport) -> Option<usize> {
    let (running, updates) = (agent.current_version.as_ref()?, agent.updates.as_ref()?);
    let later = updates.available_versions.iter().chain(&updates.chosen_version).filter(|version| *version > running);
    Some(later.collect::<BTreeSet<_>>().len())
}

#[cfg(test)]
mod tests {
    use models::condition::{Condition, ConditionStatus};
    use models::operator::BottlerocketUpdateOperatorStatus;
    use models::shadow::OfferedUpdates;
    use planner::view::{NodeFacts, ShadowFacts};
    use semver::Version;

    use super::super::tests::{leading, snapshot, t, value};
    use super::*;
    use crate::metrics::Snapshot;

    fn node(name: &str, reason: Option<&str>) -> NodeView {
        let mut shadow = ShadowFacts::default();
        shadow.status.conditions = reason
            .map(|reason| Condition {
                type_: HOST_REACHABLE.into(),
                status: ConditionStatus::True,
                reason: reason.into(),
                message: String::new(),
                last_transition_time: t(0),
                observed_generation: None,
            })
            .into_iter()
            .collect();
        let facts = NodeFacts { name: name.into(), labelled: true, ready: true, ..NodeFacts::default() };
        NodeView { facts, shadow: Some(Box::new(shadow)), ..NodeView::default() }
    }

    #[test]
    fn silence_is_counted_with_its_begin_and_healthy_fleet_has_none() {
        let mut view = ClusterView::default();
        for (name, reason) in [("a", Some("Answered")), ("b", Some("Novel")), ("c", None), ("d", Some("Timeout"))] {
            view.nodes.insert(name.into(), node(name, reason));
        }
        let metrics = leading();
        let observe = |view: &ClusterView, now| {
            let signals = Signals::of(view, &Plan::default(), &Policy::default(), t(now));
            metrics.observe(&Snapshot { signals, ..snapshot(now, []) });
        };
        observe(&view, 100);
        let silent = || value(&metrics, r#"agents{state="Silent"}"#);
        let since =
            |reported| value(&metrics, &format!("agent_silent_since_timestamp_seconds{{reported=\"{reported}\"}}"));
        assert_eq!((silent(), since(true), since(false)), (Some(0.0), None, None));
        assert_eq!(value(&metrics, r#"agents{state="Connected"}"#), Some(4.0));
        for (reason, count) in [("Answered", 1.0), ("other", 1.0), ("NotReported", 1.0), ("Timeout", 1.0)] {
            assert_eq!(value(&metrics, &format!("hosts{{reason=\"{reason}\"}}")), Some(count));
        }
        view.nodes.get_mut("a").unwrap().agent_missing = Some(t(60));
        view.nodes.get_mut("b").unwrap().agent_missing = Some(t(40));
        view.nodes.get_mut("c").unwrap().facts.ready = false;
        observe(&view, 100);
        assert_eq!(value(&metrics, r#"hosts{reason="NotReported"}"#), None, "its node is not Ready");
        assert_eq!((silent(), since(false)), (Some(2.0), Some(seconds(t(40)))));
        view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap().status.agent.current_version =
            Some(Version::new(1, 20, 0));
        observe(&view, 100);
        assert_eq!((since(true), since(false)), (Some(seconds(t(40))), Some(seconds(t(60)))), "b has reported before");
        assert_eq!(value(&metrics, r#"agents{state="NodeNotReady"}"#), Some(1.0));
        assert_eq!(value(&metrics, "web_api_ready"), Some(1.0));
        view.web_api_missing = Some(t(70));
        observe(&view, 100);
        assert_eq!((silent(), since(true)), (Some(3.0), Some(seconds(t(40)))), "one more, which was connected before");
        assert_eq!(value(&metrics, "web_api_ready"), Some(0.0));
        assert_eq!(value(&metrics, "web_api_silent_since_timestamp_seconds"), Some(seconds(t(70))));
    }

    #[test]
    fn lost_notices_and_results_are_exported_from_the_conditions() {
        let metrics = leading();
        let observe = |status: Option<&[(&str, bool)]>| {
            let conditions = |found: &[(&str, bool)]| {
                let condition = |(type_, holds): &(&str, bool)| Condition {
                    type_: (*type_).to_owned(),
                    status: (*holds).into(),
                    reason: "Because".into(),
                    message: String::new(),
                    last_transition_time: t(0),
                    observed_generation: None,
                };
                found.iter().map(condition).collect()
            };
            let status = status.map(|found| BottlerocketUpdateOperatorStatus {
                conditions: conditions(found),
                ..BottlerocketUpdateOperatorStatus::default()
            });
            let plan = Plan { status, ..Plan::default() };
            let signals = Signals::of(&ClusterView::default(), &plan, &Policy::default(), t(0));
            metrics.observe(&Snapshot { signals, ..snapshot(0, []) });
            ["history_failing", "notices_failing"].map(|name| value(&metrics, name).unwrap() > 0.0)
        };
        for (sentence, conditions, expected) in [
            ("there is no resource", None, [false, false]),
            ("nothing is known yet", Some(&[][..]), [false, false]),
            ("all is well", Some(&[(HISTORY_RECORDED, true), (NOTICES_SENT, true)][..]), [false, false]),
            ("a receiver fails", Some(&[(HISTORY_RECORDED, true), (NOTICES_SENT, false)][..]), [false, true]),
            ("the history is refused", Some(&[(HISTORY_RECORDED, false)][..]), [true, false]),
        ] {
            assert_eq!(observe(conditions), expected, "{sentence}");
        }
    }

    #[test]
    fn versions_behind_counts_each_later_offered_version_once() {
        let version = |patch| Version::new(1, 20, patch);
        let mut agent = AgentReport { current_version: Some(version(1)), ..AgentReport::default() };
        assert_eq!(versions_behind(&agent), None);
        agent.updates = Some(OfferedUpdates {
            chosen_version: Some(version(3)),
            available_versions: vec![version(0), version(1), version(2), version(3)],
            ..OfferedUpdates::default()
        });
        assert_eq!(versions_behind(&agent), Some(2));
    }
}
