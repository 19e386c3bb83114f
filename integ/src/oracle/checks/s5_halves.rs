//! S5: no agent writes another node's shadow, and agent status and controller status are written only by their owners.
//!
//! The agent status is written by the web API alone and concerns only its own host's boots. Controller status and
//! desired state are never written by the web API or an agent.

use models::condition::Condition;
use models::shadow::BottlerocketShadowStatus;

use super::{Evidence, Moment, Part, Property, Verdict};

#[derive(Default)]
pub(super) struct Check;

fn sorted(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

fn agent_half_differs(a: &BottlerocketShadowStatus, b: &BottlerocketShadowStatus) -> bool {
    let (a, b) = (a.agent_half(), b.agent_half());
    a.report != b.report || sorted(a.conditions) != sorted(b.conditions)
}

fn controller_half_differs(a: &BottlerocketShadowStatus, b: &BottlerocketShadowStatus) -> bool {
    let (a, b) = (a.controller_half(), b.controller_half());
    a.report != b.report || sorted(a.conditions) != sorted(b.conditions)
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, evidence: &Evidence, verdict: &mut Verdict) {
        let Some((new, old)) = moment.shadow() else { return };
        let node = new.node();
        let mut report = |text: String| verdict.report(Property::S5, Some(moment.revision()), Some(node), text);
        let nothing = BottlerocketShadowStatus::default();
        let was = old.map_or(&nothing, |old| &old.status);
        if agent_half_differs(was, &new.status) {
            let agent = &new.status.agent;
            let boots = [
                ("bootId", agent.boot_id.as_deref()),
                ("armed.bootId", agent.armed.as_ref().map(|armed| armed.boot_id.as_str())),
            ];
            for (field, boot) in boots {
                if let Some(boot) = boot
                    && evidence.is_boot_of(node, boot) == Some(false)
                {
                    report(format!("{field} speaks of boot {boot}, which is none of this host's"));
                }
            }
            if let Some(writer) = moment.writer
                && moment.part() != Some(Part::WebApi)
            {
                report(format!("the agent's half was written by {}", writer.user));
            }
        }
        if let Some(part @ (Part::WebApi | Part::Agent)) = moment.part() {
            if controller_half_differs(was, &new.status) {
                report(format!("the controller's half was written by {part:?}"));
            }
            if old.is_none_or(|old| old.spec != new.spec) {
                report(format!("the order was written by {part:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::{AGENT, APISERVER, CONTROLLER, Story};
    use super::Property;
    use models::shadow::{HostState, Record};

    #[test]
    fn both_write_their_own_halves() {
        let mut story = Story::new(&["a"]);
        story.update("a");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_deletion_of_other_objects_at_the_same_revision_is_no_write_of_a_shadow() {
        let mut story = Story::new(&["a"]);
        story.agent("a", |agent| agent.observed_generation = Some(7));
        story.delete_collection_meanwhile("system:serviceaccount:kube-system:namespace-controller");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_report_of_another_hosts_boot_is_caught() {
        let mut story = Story::new(&["a", "b"]);
        story.agent("a", |agent| agent.boot_id = Some("b-boot-1".into()));
        story.assert_only(Property::S5);
    }

    #[test]
    fn an_armed_in_another_hosts_boot_is_caught() {
        let mut story = Story::new(&["a", "b"]);
        story.until_order("a");
        story.arming("a");
        story.agent("a", |agent| agent.armed.as_mut().unwrap().boot_id = "b-boot-1".into());
        story.assert_only(Property::S5);
    }

    #[test]
    fn a_controller_that_writes_the_agents_half_is_caught() {
        let mut story = Story::new(&["a"]);
        story.shadow("a", CONTROLLER, |shadow| shadow.status.agent.state = Some(HostState::RebootedIntoUpdate));
        story.assert_only(Property::S5);
    }

    #[test]
    fn an_agent_that_writes_past_the_web_api_is_caught() {
        let mut story = Story::new(&["a"]);
        story.shadow("a", AGENT, |shadow| shadow.status.agent.state = Some(HostState::StagedUpdate));
        story.assert_only(Property::S5);
    }

    #[test]
    fn a_web_api_that_writes_the_controllers_half_is_caught() {
        let mut story = Story::new(&["a"]);
        story.shadow("a", APISERVER, |shadow| {
            shadow.status.controller.record = Some(Record { failures: 1, ..Record::default() });
        });
        story.assert_only(Property::S5);
    }

    #[test]
    fn a_web_api_that_writes_an_order_is_caught() {
        let mut story = Story::new(&["a"]);
        story.shadow("a", APISERVER, |shadow| shadow.spec.attempt = 9);
        story.assert_only(Property::S5);
    }
}
