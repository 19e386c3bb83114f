//! The operator's own pods that carry an update out, and whether they are heard: the agent of a node, and the web API.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition};
use models::shadow::{HOST_REACHABLE, Place};
use models::time::after;

use crate::view::{ClusterView, NodeView, WebApiOutage};
use crate::wait::WaitReason;

/// The time for which they may be not Ready: a pod that is replaced is Ready again within it.
pub const POD_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Returns whether a component that is missing since then has been so for too long.
pub(crate) fn is_missing(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_some_and(|since| now >= after(since, POD_GRACE_PERIOD))
}

/// State of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// It runs and receives the web API's stream.
    Connected,
    /// It is not connected, for less than the tolerated time, or since the web API is back.
    Connecting,
    /// It was last heard at this time.
    Silent { reason: WaitReason, since: Timestamp },
    /// The node is not Ready, and says so itself, or goes down for its update and comes back: the deadlines of the attempt
    /// watch it then.
    NodeNotReady,
}

/// Returns the state of the agent of a node.
pub fn agent_state(view: &ClusterView, node: &NodeView, now: Timestamp) -> AgentState {
    if !node.facts.ready || matches!(node.update().map(|update| update.step.place()), Some(Place::Away | Place::Booted))
    {
        return AgentState::NodeNotReady;
    }
    let silent = |reason, since: Timestamp| {
        // A new leader observes it later than the one that wrote it down.
        let recorded =
            recorded(node).filter(|c| c.reason == WaitReason::as_str(reason)).map(|c| c.last_transition_time);
        AgentState::Silent { reason, since: recorded.map_or(since, |recorded| recorded.min(since)) }
    };
    // An agent that was lost before the web API has another reason.
    let before = |outage: Timestamp| node.agent_missing.is_some_and(|since| since < outage);
    if let Some(outage) = view.web_api_missing.filter(|outage| !before(*outage)) {
        let noticed = is_missing(Some(outage), now);
        let state = if node.agent_missing.is_some() { AgentState::Connecting } else { AgentState::Connected };
        return if noticed { silent(WaitReason::WebApiNotReady, outage) } else { state };
    }
    let Some(since) = node.agent_missing else { return AgentState::Connected };
    // Agents that have lost the web API are connected again soon after it is back.
    let still = |last: WebApiOutage| !before(last.began) && now < after(last.ended, POD_GRACE_PERIOD);
    if view.web_api_outage.is_some_and(still) || !is_missing(Some(since), now) {
        return AgentState::Connecting;
    }
    silent(WaitReason::AgentNotReady, since)
}

/// Returns the condition of a silent agent, if it is recorded.
pub(crate) fn recorded(node: &NodeView) -> Option<&Condition> {
    let conditions = &node.shadow.as_ref()?.status.conditions;
    find_condition(conditions, HOST_REACHABLE).filter(|condition| condition.status == ConditionStatus::Unknown)
}
