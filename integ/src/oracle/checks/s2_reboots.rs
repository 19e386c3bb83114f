//! S2: a host reboots only for its own node uid, boot id and current attempt.
//!
//! Each reboot requested from a host has to have been covered: at some revision of that boot, the shadow that this very
//! Node owns had the desired state to reboot for this boot, a permit for the agent's nonce, and the agent's report that
//! the image of this attempt is armed.

use std::collections::BTreeMap;

use models::shadow::{ArmedPhase, HostState};

use super::{ClusterState, Object, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::{Node, Shadow};

/// A time during which a reboot was permitted.
struct Cover {
    from: u64,
    attempt: i64,
    nonce: String,
}

#[derive(Default)]
pub(super) struct Check {
    /// By node and boot.
    covers: BTreeMap<(String, String), Vec<Cover>>,
    /// The revision at which each attempt of a node began.
    attempts: BTreeMap<String, Vec<(u64, i64)>>,
}

fn covered(node: &Node, shadow: &Shadow) -> Option<(i64, String)> {
    let (spec, agent) = (&shadow.spec, &shadow.status.agent);
    let (armed, permit) = (agent.armed.as_ref()?, shadow.permit_nonce()?);
    let boot = node.boot_id.as_str();
    let holds = spec.state == HostState::RebootedIntoUpdate
        && spec.boot_id.as_deref() == Some(boot)
        && agent.boot_id.as_deref() == Some(boot)
        && armed.boot_id == boot
        && armed.attempt == spec.attempt
        && armed.phase == ArmedPhase::Activated
        && armed.nonce == permit;
    holds.then(|| (spec.attempt, armed.nonce.clone()))
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        if let Some((new, old)) = moment.shadow() {
            if old.is_none_or(|old| old.spec.attempt != new.spec.attempt) {
                let all = self.attempts.entry(new.node().to_owned()).or_default();
                all.push((moment.revision(), new.spec.attempt));
            }
            if new.permit_nonce().is_some() && old.and_then(Shadow::permit_nonce) != new.permit_nonce() {
                verdict.stats.permits += 1;
            }
        }
        let name = match &moment.change.object {
            Object::Node(node) => node.name.as_str(),
            Object::Shadow(shadow) => shadow.node(),
            _ => return,
        };
        let Some(node) = moment.world.nodes.get(name) else { return };
        if let Some(shadow) = moment.world.shadow_of(node)
            && let Some((attempt, nonce)) = covered(node, shadow)
        {
            let covers = self.covers.entry((node.name.clone(), node.boot_id.clone())).or_default();
            if covers.last().is_none_or(|last| last.nonce != nonce || last.attempt != attempt) {
                covers.push(Cover { from: moment.revision(), attempt, nonce });
            }
        }
    }

    fn end(&mut self, _: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        for (node, logs) in &observations.hosts {
            for (at, boot) in logs.iter().flat_map(|log| log.reboots_by_api()) {
                verdict.stats.reboots += 1;
                let covers = self.covers.get(&((*node).to_owned(), boot.to_owned()));
                let cover = covers.into_iter().flatten().rfind(|cover| observations.may_precede(cover.from, at));
                let Some(cover) = cover else {
                    let text = match covers {
                        None => {
                            format!("rebooted in boot {boot} without a permit and an acknowledged Activated for it")
                        }
                        Some(_) => format!("rebooted in boot {boot} before Activated can have been acknowledged"),
                    };
                    verdict.report(Property::S2, None, Some(node), text);
                    continue;
                };
                let later = self.attempts.get(*node).into_iter().flatten().find(|(revision, attempt)| {
                    *attempt > cover.attempt && observations.at_latest(*revision).is_some_and(|latest| latest < at)
                });
                if let Some((revision, later)) = later {
                    let text = format!("rebooted in boot {boot} for attempt {}, when it was at {later}", cover.attempt);
                    verdict.report(Property::S2, Some(*revision), Some(node), text);
                }
                if observations.nonce_ends.get(&cover.nonce).is_some_and(|end| at > *end) {
                    let text = format!("rebooted in boot {boot} on a permit that had run out");
                    verdict.report(Property::S2, Some(cover.from), Some(node), text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::Scenario;
    use super::Property;
    use models::shadow::{ArmedPhase, HostState};

    #[test]
    fn reboot_after_acknowledged_activation_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.update("a");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!((verdict.stats.reboots, verdict.stats.permits, verdict.stats.arms), (1, 1, 1));
    }

    #[test]
    fn reboot_by_other_client_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.host_reboots_by_hand("a");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn reboot_without_desired_state_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_without_acknowledgement_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn acknowledgement_after_reboot_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.host_asked_to_reboot("a");
        scenario.activated("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_on_permit_with_other_nonce_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.agent("a", |agent| agent.armed.as_mut().unwrap().nonce = "other".into());
        // The only revision with all three is removed from the history.
        scenario.forget_revision_before_last();
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_with_image_armed_for_older_attempt_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.controller("a", |shadow| shadow.spec.attempt += 1);
        scenario.activated("a");
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_with_image_armed_in_other_boot_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.host_reboots_by_hand("a");
        scenario.agent("a", |agent| agent.boot_id = Some("a-boot-2".into()));
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.agent("a", |agent| {
            let armed = agent.armed.as_mut().unwrap();
            armed.phase = ArmedPhase::Activated;
            armed.boot_id = "a-boot-1".into();
        });
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn acknowledgement_reported_for_later_boot_does_not_cover_reboot() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.agent("a", |agent| {
            agent.armed.as_mut().unwrap().phase = ArmedPhase::Activated;
            agent.boot_id = Some("a-boot-2".into());
        });
        scenario.host_arms("a");
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_while_desired_state_is_staged_update_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.controller("a", |shadow| shadow.spec.state = HostState::StagedUpdate);
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_with_desired_state_for_other_boot_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_reboot_requested("a");
        scenario.controller("a", |shadow| shadow.spec.boot_id = Some("a-boot-0".into()));
        scenario.arming("a");
        scenario.issue_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        assert!(scenario.judge().violates(Property::S2));
    }

    #[test]
    fn reboot_with_shadow_of_replaced_node_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_reboot_requested("a");
        scenario.node("a", "admin", |node| node.uid = "another".into());
        scenario.arming("a");
        scenario.issue_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        assert!(scenario.judge().violates(Property::S2));
    }

    #[test]
    fn reboot_for_ended_attempt_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.controller("a", |shadow| {
            shadow.spec.attempt += 1;
            shadow.spec.permit = None;
        });
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }

    #[test]
    fn reboot_on_expired_permit_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.wait(40);
        scenario.host_reboots("a");
        scenario.assert_only(Property::S2);
    }
}
