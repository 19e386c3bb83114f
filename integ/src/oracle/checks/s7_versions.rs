//! S7: the version armed through the host API is that of the current desired state, armed on a permit for this boot
//! while that permit was valid. Nothing is armed without one, and nothing stays armed in a host whose agent reports
//! that nothing is.

use models::shadow::HostState;
use semver::Version;

use super::{ClusterState, Observations, Property, RevisionContext, Verdict};
use crate::oracle::facts::Shadow;

struct Permit {
    revision: u64,
    node: String,
    boot: Option<String>,
    version: Option<Version>,
    nonce: String,
}

#[derive(Default)]
pub(super) struct Check {
    permits: Vec<Permit>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, _: &mut Verdict) {
        let Some((new, old)) = moment.shadow() else { return };
        if let Some(nonce) = new.permit_nonce()
            && old.and_then(Shadow::permit_nonce) != Some(nonce)
        {
            self.permits.push(Permit {
                revision: moment.revision(),
                node: new.node().to_owned(),
                boot: new.spec.boot_id.clone(),
                version: new.spec.version.clone(),
                nonce: nonce.to_owned(),
            });
        }
    }

    fn end(&mut self, world: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        for (node, logs) in &observations.hosts {
            let reported = world.shadows.values().find(|shadow| shadow.node() == *node).map(|s| &s.status.agent);
            if let (Some(agent), Some((boot, version))) = (reported, logs.last().and_then(|log| log.armed_at_end()))
                && logs.last().is_some_and(|log| !log.arms_by_api().is_empty())
                && agent.state == Some(HostState::Idle)
                && agent.armed.is_none()
                && agent.boot_id.as_deref() == Some(boot)
            {
                let text = format!("{version} is armed in boot {boot}, and the agent reports that nothing is");
                verdict.report(Property::S7, None, Some(node), text);
            }
            for (at, boot, version) in logs.iter().flat_map(|log| log.arms_by_api()) {
                verdict.stats.arms += 1;
                let permit = self.permits.iter().rfind(|permit| {
                    permit.node == *node
                        && permit.boot.as_deref() == Some(boot)
                        && observations.may_precede(permit.revision, at)
                });
                let Some(permit) = permit else {
                    let text = format!("{version} was armed in boot {boot} without a permit");
                    verdict.report(Property::S7, None, Some(node), text);
                    continue;
                };
                if permit.version.as_ref() != Some(version) {
                    let asked = permit.version.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
                    let text = format!("{version} was armed in boot {boot}, {asked} was desired");
                    verdict.report(Property::S7, Some(permit.revision), Some(node), text);
                }
                if observations.nonce_ends.get(&permit.nonce).is_some_and(|end| at > *end) {
                    let text = format!("{version} was armed in boot {boot} on a permit that had run out");
                    verdict.report(Property::S7, Some(permit.revision), Some(node), text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::Scenario;
    use super::Property;

    #[test]
    fn arming_requested_version_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.arms, 1);
    }

    #[test]
    fn arming_other_version_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms_version("a", "1.20.6");
        scenario.assert_only(Property::S7);
    }

    #[test]
    fn arming_before_permit_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_reboot_requested("a");
        scenario.arming("a");
        scenario.host_arms("a");
        scenario.issue_permit("a");
        scenario.assert_only(Property::S7);
    }

    #[test]
    fn arming_on_expired_permit_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.wait(40);
        scenario.host_arms("a");
        scenario.assert_only(Property::S7);
    }

    #[test]
    fn arming_in_later_boot_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_reboots_by_hand("a");
        scenario.host_arms("a");
        scenario.assert_only(Property::S7);
    }

    #[test]
    fn disk_left_armed_by_withdrawn_attempt_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.withdraw("a");
        assert_eq!(scenario.judge().violations, []);
        scenario.agent("a", |agent| {
            agent.boot_id = agent.armed.take().map(|armed| armed.boot_id);
            agent.state = Some(super::HostState::Idle);
        });
        scenario.assert_only(Property::S7);
    }

    #[test]
    fn arming_by_other_host_client_is_not_counted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.host_armed_by_hand("a", "1.20.6");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.arms, 0);
    }
}
