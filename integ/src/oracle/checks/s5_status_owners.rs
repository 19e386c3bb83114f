//! S5: no agent writes another node's shadow, and agent status and controller status are written only by their owners.
//!
//! The agent status is written by the web API alone and concerns only its own host's boots. Controller status and
//! desired state are never written by the web API or an agent. The controller writes one thing in an agent's place: that
//! it is not heard, as `HostReachable` with the status `Unknown`.

use models::condition::{Condition, ConditionStatus, find_condition};
use models::shadow::{BottlerocketShadowStatus, HOST_REACHABLE};

use super::{Observations, OperatorComponent, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check;

fn sorted(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

fn agent_status_differs(a: &BottlerocketShadowStatus, b: &BottlerocketShadowStatus) -> bool {
    let (a, b) = (a.agent_status(), b.agent_status());
    a.report != b.report || sorted(a.conditions) != sorted(b.conditions)
}

fn controller_status_differs(a: &BottlerocketShadowStatus, b: &BottlerocketShadowStatus) -> bool {
    let (a, b) = (a.controller_status(), b.controller_status());
    a.report != b.report || sorted(a.conditions) != sorted(b.conditions)
}

/// Returns whether the agent status has changed in nothing but that the agent is not heard.
fn records_silence(was: &BottlerocketShadowStatus, is: &BottlerocketShadowStatus) -> bool {
    let (was, is) = (was.agent_status(), is.agent_status());
    let reachable = find_condition(&is.conditions, HOST_REACHABLE);
    was.report == is.report && reachable.is_some_and(|condition| condition.status == ConditionStatus::Unknown)
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, observations: &Observations, verdict: &mut Verdict) {
        let Some((new, old)) = moment.shadow() else { return };
        let node = new.node();
        let mut report = |text: String| verdict.report(Property::S5, Some(moment.revision()), Some(node), text);
        let nothing = BottlerocketShadowStatus::default();
        let was = old.map_or(&nothing, |old| &old.status);
        if agent_status_differs(was, &new.status) {
            let agent = &new.status.agent;
            let boots = [
                ("bootId", agent.boot_id.as_deref()),
                ("armed.bootId", agent.armed.as_ref().map(|armed| armed.boot_id.as_str())),
            ];
            for (field, boot) in boots {
                if let Some(boot) = boot
                    && observations.is_boot_of(node, boot) == Some(false)
                {
                    report(format!("{field} speaks of boot {boot}, which is none of this host's"));
                }
            }
            if let Some(writer) = moment.writer
                && moment.part() != Some(OperatorComponent::WebApi)
                && !(moment.part() == Some(OperatorComponent::Controller) && records_silence(was, &new.status))
            {
                report(format!("the agent status was written by {}", writer.user));
            }
        }
        if let Some(part @ (OperatorComponent::WebApi | OperatorComponent::Agent)) = moment.part() {
            if controller_status_differs(was, &new.status) {
                report(format!("the controller status was written by {part:?}"));
            }
            if old.is_none_or(|old| old.spec != new.spec) {
                report(format!("the order was written by {part:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::{AGENT, APISERVER, CONTROLLER, Scenario};
    use super::*;
    use models::shadow::{HostState, Record};

    #[test]
    fn update_with_correct_status_writers_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.update("a");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn deletecollection_at_same_revision_is_not_attributed_to_shadow() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.agent("a", |agent| agent.observed_generation = Some(7));
        scenario.delete_collection_meanwhile("system:serviceaccount:kube-system:namespace-controller");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn report_with_boot_id_of_other_host_is_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.agent("a", |agent| agent.boot_id = Some("b-boot-1".into()));
        scenario.assert_only(Property::S5);
    }

    #[test]
    fn armed_record_with_boot_id_of_other_host_is_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.until_reboot_requested("a");
        scenario.arming("a");
        scenario.agent("a", |agent| agent.armed.as_mut().unwrap().boot_id = "b-boot-1".into());
        scenario.assert_only(Property::S5);
    }

    #[test]
    fn agent_status_write_by_controller_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.shadow("a", CONTROLLER, |shadow| shadow.status.agent.state = Some(HostState::RebootedIntoUpdate));
        scenario.assert_only(Property::S5);
    }

    #[test]
    fn controller_may_say_that_an_agent_is_silent_and_nothing_else_in_its_place() {
        let reachable = |status| Condition {
            type_: HOST_REACHABLE.into(),
            status,
            reason: "AgentNotReady".into(),
            message: String::new(),
            last_transition_time: jiff::Timestamp::UNIX_EPOCH,
            observed_generation: None,
        };
        let written = |writer: &str, status, state: Option<HostState>| {
            let mut scenario = Scenario::new(&["a"]);
            scenario.shadow("a", writer, |shadow| {
                shadow.status.conditions = vec![reachable(status)];
                shadow.status.agent.state = state.or(shadow.status.agent.state);
            });
            scenario
        };
        assert_eq!(written(CONTROLLER, ConditionStatus::Unknown, None).judge().violations, []);
        written(CONTROLLER, ConditionStatus::True, None).assert_only(Property::S5);
        written(CONTROLLER, ConditionStatus::Unknown, Some(HostState::StagedUpdate)).assert_only(Property::S5);
        written(AGENT, ConditionStatus::Unknown, None).assert_only(Property::S5);
    }

    #[test]
    fn direct_shadow_write_by_agent_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.shadow("a", AGENT, |shadow| shadow.status.agent.state = Some(HostState::StagedUpdate));
        scenario.assert_only(Property::S5);
    }

    #[test]
    fn controller_status_write_by_web_api_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.shadow("a", APISERVER, |shadow| {
            shadow.status.controller.record = Some(Record { failures: 1, ..Record::default() });
        });
        scenario.assert_only(Property::S5);
    }

    #[test]
    fn spec_write_by_web_api_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.shadow("a", APISERVER, |shadow| shadow.spec.attempt = 9);
        scenario.assert_only(Property::S5);
    }
}
