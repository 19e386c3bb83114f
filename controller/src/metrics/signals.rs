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

use super::gauges::Sample;
use super::values::{flag, float, seconds};

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

pub(super) fn samples(view: &ClusterView, plan: &Plan, policy: &Policy, now: Timestamp) -> Vec<Sample> {
    let conditions = plan.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let mut agents: BTreeMap<&'static str, usize> = AGENTS.into_iter().map(|state| (state, 0)).collect();
    // By whether the agent has reported before.
    let mut silent_since: BTreeMap<&'static str, Timestamp> = BTreeMap::new();
    let mut hosts: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut most_behind: Option<usize> = None;
    for node in view.nodes.values().filter(|node| node.facts.labelled) {
        let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
        let state = match agent_state(view, node, now) {
            AgentState::Connected => "Connected",
            AgentState::Connecting => "Connecting",
            AgentState::NodeNotReady => "NodeNotReady",
            AgentState::Silent { since, .. } => {
                let reported = agent.is_some_and(|agent| agent.current_version.is_some());
                let oldest = silent_since.entry(if reported { "true" } else { "false" }).or_insert(since);
                *oldest = since.min(*oldest);
                "Silent"
            }
        };
        *agents.entry(state).or_default() += 1;
        // The last report of a node that is down says nothing about its host now.
        if node.facts.ready {
            *hosts.entry(host_reason(node)).or_default() += 1;
        }
        most_behind = most_behind.max(agent.and_then(versions_behind));
    }
    let next_window = plan.status.as_ref().and_then(|status| status.next_window);
    let alone = [
        ("web_api_ready", Some(flag(view.web_api_missing.is_none()))),
        ("web_api_silent_since_timestamp_seconds", view.web_api_missing.map(seconds)),
        ("enabled", policy.present.then(|| flag(policy.enabled))),
        ("next_window_timestamp_seconds", next_window.map(seconds)),
        ("awaiting_approval", Some(flag(!plan.approvals.is_empty()))),
        ("history_failing", Some(flag(false_condition(conditions, HISTORY_RECORDED).is_some()))),
        ("notices_failing", Some(flag(false_condition(conditions, NOTICES_SENT).is_some()))),
        ("versions_behind", most_behind.map(float)),
    ];
    let mut samples: Vec<Sample> = alone.into_iter().map(|(name, value)| (name, None, value)).collect();
    samples.extend(agents.into_iter().map(|(state, count)| ("agents", Some(state), Some(float(count)))));
    samples.extend(hosts.into_iter().map(|(reason, count)| ("hosts", Some(reason), Some(float(count)))));
    samples.extend(
        silent_since
            .into_iter()
            .map(|(reported, since)| ("agent_silent_since_timestamp_seconds", Some(reported), Some(seconds(since)))),
    );
    samples
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
            let samples = samples(view, &Plan::default(), &Policy::default(), t(now));
            metrics.observe(&Snapshot { samples, ..snapshot(now, []) });
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
            let samples = samples(&ClusterView::default(), &plan, &Policy::default(), t(0));
            metrics.observe(&Snapshot { samples, ..snapshot(0, []) });
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
