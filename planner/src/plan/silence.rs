//! Agents that are not heard. An agent that is dead, stuck or disconnected reports nothing, so the controller says so in
//! its place: `HostReachable` becomes `Unknown`, with the time of the last contact. The agent's next report replaces it. A problem that
//! keeps the host from an update stays as it was reported: that its agent is not heard does not end it.
//!
//! Nothing is asked of the agents for this. The kubelet knows whether an agent runs and receives the web API's stream (the
//! readiness of its pod), and writes that only when it changes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, set_condition};
use models::shadow::{HOST_ARMED_BY_OTHER, HOST_BUSY, HOST_REACHABLE, UNSUPPORTED_STATE};
use models::time::after;

use super::contents::{Plan, Silence};
use crate::survey::agents::{AgentState, agent_state, recorded};
use crate::survey::condition;
use crate::view::{ClusterView, NodeView};
use crate::wait::WaitReason;

/// Time after which the same silence is written again. An agent that reports although its pod is not Ready replaces what
/// was written: two writes about one node are then this far apart.
const WRITE_AGAIN: Duration = Duration::from_secs(10 * 60);

/// Returns whether a report names a problem for which a gate refuses its node.
fn is_problem(reported: &Condition) -> bool {
    let refused = [UNSUPPORTED_STATE, HOST_BUSY, HOST_ARMED_BY_OTHER];
    reported.status == ConditionStatus::False || refused.contains(&reported.reason.as_str())
}

/// Returns `HostReachable` for the nodes whose agent is newly found to be silent.
pub(super) fn silent(view: &ClusterView, plan: &Plan, now: Timestamp) -> BTreeMap<String, Silence> {
    let write = |(name, node): (&String, &NodeView)| {
        let shadow = node.shadow.as_ref().filter(|shadow| !shadow.deleting)?;
        let AgentState::Silent { reason, since } = agent_state(view, node, now) else { return None };
        let other_write = view.busy.contains(name) || plan.actions.contains_key(name);
        if !node.facts.labelled || other_write {
            return None;
        }
        if find_condition(&shadow.status.conditions, HOST_REACHABLE).is_some_and(is_problem) {
            return None;
        }
        let again = |(last, at)| last != reason || now >= after(at, WRITE_AGAIN);
        if recorded(node).is_some_and(|condition| condition.reason == reason.as_str())
            || !node.silence_written.is_none_or(again)
        {
            return None;
        }
        let message = match reason {
            WaitReason::WebApiNotReady => format!(
                "no pod of the web API has been Ready since {since}, so no agent can report; last contact before that"
            ),
            _ => format!(
                "no pod of the agent on the node has been Ready since {since}: it does not run, is stuck or does not \
                 reach the web API; last contact before that"
            ),
        };
        let mut conditions = shadow.status.conditions.clone();
        let new = condition(now, HOST_REACHABLE, ConditionStatus::Unknown, reason.as_str(), &message);
        set_condition(&mut conditions, new);
        let condition = find_condition(&conditions, HOST_REACHABLE)?.clone();
        Some((name.clone(), Silence { reason, condition }))
    };
    view.nodes.iter().filter_map(write).collect()
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Step};

    use super::*;
    use crate::decision::Action;
    use crate::fixtures::{at, cluster, node, outcome, t, unreachable, written as carry_out};
    use crate::plan::plan;
    use crate::view::WebApiOutage;

    type Change = fn(&mut ClusterView);

    fn of_a(view: &mut ClusterView) -> &mut NodeView {
        view.nodes.get_mut("a").unwrap()
    }

    fn loses_web_api(view: &mut ClusterView, since: i64, agent: Option<i64>) {
        view.web_api_missing = Some(t(since));
        of_a(view).agent_missing = agent.map(t);
    }

    fn has_web_api_back(view: &mut ClusterView, began: i64, ended: i64) {
        view.web_api_outage = Some(WebApiOutage { began: t(began), ended: t(ended) });
    }

    fn says(view: &mut ClusterView, status: ConditionStatus, reason: &str, since: i64) {
        let said = condition(t(since), HOST_REACHABLE, status, reason, "");
        of_a(view).shadow.as_mut().unwrap().status.conditions = vec![said];
    }

    /// Returns what is written about the node `a` at 0, whose agent has been missing for a minute before the change.
    fn written(change: Change) -> Option<Condition> {
        let (mut view, _) = cluster(vec![node("a")], &[]);
        of_a(&mut view).agent_missing = Some(t(-60));
        says(&mut view, ConditionStatus::True, "Answered", -1000);
        change(&mut view);
        Some(silent(&view, &Plan::default(), t(0)).remove("a")?.condition)
    }

    #[test]
    fn agent_that_is_not_ready_for_30_seconds_on_a_ready_node_is_silent() {
        let case = |sentence: &str, expected: Option<&str>, change: Change| {
            let written = written(change);
            assert_eq!(written.as_ref().map(|condition| condition.reason.as_str()), expected, "{sentence}");
            assert!(written.is_none_or(|condition| condition.status == ConditionStatus::Unknown), "{sentence}");
        };
        case("an agent without a Ready pod", Some("AgentNotReady"), |_| {});
        case("one that is connected", None, |view| of_a(view).agent_missing = None);
        case("one for 29 s", None, |view| of_a(view).agent_missing = Some(t(-29)));
        case("one of a node that is not Ready", None, |view| of_a(view).facts.ready = false);
        case("one of a node without the label", None, |view| of_a(view).facts.labelled = false);
        case("one of a node without a shadow", None, |view| of_a(view).shadow = None);
        case("no pod of the web API is Ready", Some("WebApiNotReady"), |view| loses_web_api(view, -60, Some(-50)));
        case("the same before the agent has noticed", Some("WebApiNotReady"), |view| loses_web_api(view, -30, None));
        case("it is not Ready for 29 s", None, |view| loses_web_api(view, -29, None));
        case("it is not Ready either, for a shorter time", Some("AgentNotReady"), |view| {
            loses_web_api(view, -59, Some(-60));
        });
        case("it is back since 29 s", None, |view| has_web_api_back(view, -60, -29));
        case("it is back since 30 s", Some("AgentNotReady"), |view| has_web_api_back(view, -60, -30));
        case("the agent was lost before", Some("AgentNotReady"), |view| has_web_api_back(view, -59, -1));
        case("it is recorded", None, |view| says(view, ConditionStatus::Unknown, "AgentNotReady", -5));
        case("another silence is recorded", Some("AgentNotReady"), |view| {
            says(view, ConditionStatus::Unknown, "WebApiNotReady", -99);
        });
        case("the agent has reported since it was written", None, |view| {
            of_a(view).silence_written = Some((WaitReason::AgentNotReady, t(-599)));
        });
        case("the same ten minutes ago", Some("AgentNotReady"), |view| {
            of_a(view).silence_written = Some((WaitReason::AgentNotReady, t(-600)));
        });
        case("its host did not answer it", None, |view| says(view, ConditionStatus::False, "Timeout", -99));
        case("its host was busy", None, |view| says(view, ConditionStatus::True, HOST_BUSY, -99));
        case("another client had armed its host", None, |view| {
            says(view, ConditionStatus::True, HOST_ARMED_BY_OTHER, -99);
        });
        case("the state was not known", None, |view| says(view, ConditionStatus::True, UNSUPPORTED_STATE, -99));
        case("a setting of its host could not be changed, which no gate refuses", Some("AgentNotReady"), |view| {
            says(view, ConditionStatus::True, "SettingsFailed", -99);
        });
        case("another write is under way", None, |view| _ = view.busy.insert("a".into()));
    }

    #[test]
    fn silence_is_part_of_a_plan_that_has_no_other_action_for_the_node() {
        let (mut view, policy) = cluster(vec![node("a")], &[]);
        of_a(&mut view).agent_missing = Some(t(-60));
        let mut first = plan(&view, &policy, t(0));
        assert!(first.silent.is_empty(), "the reason why the node waits is written first");
        let Some(Action::Status { status, .. }) = first.actions.remove("a") else { panic!("{first:?}") };
        let shadow = of_a(&mut view).shadow.as_mut().unwrap();
        (shadow.status.controller, shadow.status.conditions) = (status.report, status.conditions);
        let second = plan(&view, &policy, t(0));
        assert!(second.silent.contains_key("a") && second.actions.is_empty(), "{second:?}");
        view.earlier_pods = vec!["x/y".into()];
        assert!(plan(&view, &policy, t(0)).silent.is_empty(), "the earlier operator runs");
    }

    /// Agents have half a minute to be connected again, in which they count as heard.
    #[test]
    fn host_that_cannot_be_used_is_not_drained_once_the_web_api_is_back() {
        let (mut view, policy) = cluster(vec![at("a", Step::Staged, -90, HostState::StagedUpdate)], &[]);
        of_a(&mut view).shadow.as_mut().unwrap().status.conditions.push(unreachable());
        loses_web_api(&mut view, -60, Some(-50));
        for second in 0..10 {
            let made = plan(&view, &policy, t(second));
            made.actions.get("a").into_iter().for_each(|action| carry_out(&mut view, action));
            for silence in made.silent.into_values() {
                set_condition(&mut of_a(&mut view).shadow.as_mut().unwrap().status.conditions, silence.condition);
            }
        }
        view.web_api_missing = None;
        has_web_api_back(&mut view, -60, 10);
        for second in 11..15 {
            let made = plan(&view, &policy, t(second));
            assert!(made.slots.iter().flatten().next().is_none(), "{:?}", made.slots);
            made.actions.get("a").into_iter().for_each(|action| carry_out(&mut view, action));
        }
        assert_eq!(outcome(&plan(&view, &policy, t(15))), "HostNotUsable");
    }

    #[test]
    fn condition_names_last_contact_and_its_transition_stays() {
        let found = written(|_| {}).unwrap();
        assert!(found.message.contains(&format!("since {}", t(-60))), "{}", found.message);
        assert_eq!(found.last_transition_time, t(0));
        let found_of_all = written(|view| loses_web_api(view, -60, None)).unwrap();
        assert!(found_of_all.message.starts_with("no pod of the web API"), "{}", found_of_all.message);
        let found = written(|view| says(view, ConditionStatus::Unknown, "WebApiNotReady", -99)).unwrap();
        assert_eq!(found.last_transition_time, t(-99), "it was not known before either");
    }

    #[test]
    fn new_leader_knows_silence_that_was_recorded() {
        let (mut view, _) = cluster(vec![node("a")], &[]);
        of_a(&mut view).agent_missing = Some(t(-40));
        says(&mut view, ConditionStatus::Unknown, "AgentNotReady", -500);
        let state = agent_state(&view, &view.nodes["a"], t(0));
        assert_eq!(state, AgentState::Silent { reason: WaitReason::AgentNotReady, since: t(-500) });
    }

    #[test]
    fn host_that_reboots_for_its_update_is_not_called_silent() {
        for (step, drill, silent) in [
            (Step::Draining, false, true),
            (Step::Rebooting, false, false),
            (Step::Rebooting, true, true),
            (Step::Returning, false, false),
        ] {
            let (mut view, policy) = cluster(vec![at("a", step, -10, HostState::RebootedIntoUpdate)], &["a"]);
            let progress = &mut of_a(&mut view).shadow.as_mut().unwrap().status.controller.progress;
            progress.as_mut().unwrap().drill = drill.then(models::shadow::Drill::default);
            of_a(&mut view).agent_missing = Some(t(-60));
            let plan = plan(&view, &policy, t(0));
            let found = super::silent(&view, &Plan::default(), t(0));
            assert_eq!(found.contains_key("a"), silent, "{step:?}");
            let state = agent_state(&view, &view.nodes["a"], t(0));
            assert_eq!(matches!(state, AgentState::Silent { .. }), silent, "{step:?}: {state:?}");
            assert!(plan.silent.is_empty() || !plan.actions.contains_key("a"), "one write at a time");
        }
    }

    #[test]
    fn silence_beside_the_earlier_operator_is_dropped_by_the_plan_validator() {
        let (mut view, policy) = cluster(vec![node("a")], &[]);
        view.earlier_pods = vec!["x/y".into()];
        let reason = WaitReason::AgentNotReady;
        let condition = condition(t(0), HOST_REACHABLE, ConditionStatus::Unknown, reason.as_str(), "");
        let silent = [("a".to_owned(), Silence { reason, condition })];
        let mut forged = Plan { silent: silent.into(), ..Plan::default() };
        let findings = crate::lint::lint(&view, &policy, &mut forged);
        assert!(findings.iter().any(|finding| finding.property == "S10") && forged.silent.is_empty());
        assert!(!forged.actions.values().any(|action| matches!(action, Action::Status { .. })));
    }
}
