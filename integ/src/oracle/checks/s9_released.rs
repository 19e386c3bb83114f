//! S9: a released node is not rebooted by the operator: the boot in which it was released does not end by a reboot
//! through the host API, unless the node was claimed again in it.

use std::collections::BTreeMap;

use super::{ClusterState, Observations, OperatorComponent, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check {
    /// Revisions of the current releases, by node and boot.
    released: BTreeMap<(String, String), u64>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, _: &mut Verdict) {
        let Some((old, new)) = moment.node() else { return };
        let boot = (new.name.clone(), new.boot_id.clone());
        if new.claimed() {
            self.released.remove(&boot);
        } else if old.claimed() {
            // A user's uncordon is not a release by the operator: the attempt continues and claims again.
            if moment.writer.is_none() || moment.part() == Some(OperatorComponent::Controller) {
                self.released.insert(boot, moment.revision());
            }
        }
    }

    fn end(&mut self, _: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        for (node, logs) in &observations.hosts {
            for (_, boot) in logs.iter().flat_map(|log| log.reboots_by_api()) {
                if let Some(revision) = self.released.get(&((*node).to_owned(), boot.to_owned())) {
                    let text = format!("it was released in boot {boot}, which then ended by a reboot of the operator");
                    verdict.report(Property::S9, Some(*revision), Some(node), text);
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
    fn second_update_of_node_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.update("a");
        scenario.update("a");
        let verdict = scenario.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.reboots, 2);
    }

    #[test]
    fn reboot_after_release_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.withdraw("a");
        scenario.release("a");
        scenario.host_reboots("a");
        scenario.assert_only(Property::S9);
    }

    #[test]
    fn release_during_shutdown_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_asked_to_reboot("a");
        scenario.release("a");
        scenario.assert_only(Property::S9);
    }

    #[test]
    fn reboot_after_uncordon_by_user_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_permit("a");
        scenario.uncordon_by_hand("a");
        scenario.host_arms("a");
        scenario.activated("a");
        scenario.host_reboots("a");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn reboot_by_other_client_after_release_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_claimed("a");
        scenario.release("a");
        scenario.host_reboots_by_hand("a");
        assert_eq!(scenario.judge().violations, []);
    }
}
