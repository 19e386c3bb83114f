//! S9: a released node is not rebooted by the operator: the boot in which it was released does not end by a reboot
//! through the host API, unless the node was claimed again in it.

use std::collections::BTreeMap;

use super::{Evidence, Moment, Part, Property, Verdict, World};

#[derive(Default)]
pub(super) struct Check {
    /// Revisions of the current releases, by node and boot.
    released: BTreeMap<(String, String), u64>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, _: &Evidence, _: &mut Verdict) {
        let Some((old, new)) = moment.node() else { return };
        let boot = (new.name.clone(), new.boot_id.clone());
        if new.claimed() {
            self.released.remove(&boot);
        } else if old.claimed() {
            // A user's uncordon is not a release by the operator: the attempt continues and claims again.
            if moment.writer.is_none() || moment.part() == Some(Part::Controller) {
                self.released.insert(boot, moment.revision());
            }
        }
    }

    fn end(&mut self, _: &World, evidence: &Evidence, verdict: &mut Verdict) {
        for (node, logs) in &evidence.hosts {
            for (_, boot) in logs.iter().flat_map(|log| log.reboots_by_api()) {
                if let Some(revision) = self.released.get(&((*node).to_owned(), boot.to_owned())) {
                    let text = format!("it was released in boot {boot}, which then ended by a reboot of ours");
                    verdict.report(Property::S9, Some(*revision), Some(node), text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::Story;
    use super::Property;

    #[test]
    fn a_node_that_was_updated_may_be_updated_again() {
        let mut story = Story::new(&["a"]);
        story.update("a");
        story.update("a");
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.reboots, 2);
    }

    #[test]
    fn a_reboot_after_the_release_is_caught() {
        let mut story = Story::new(&["a"]);
        story.until_permit("a");
        story.host_arms("a");
        story.activated("a");
        story.withdraw("a");
        story.release("a");
        story.host_reboots("a");
        story.assert_only(Property::S9);
    }

    #[test]
    fn a_release_during_the_shutdown_is_caught() {
        let mut story = Story::new(&["a"]);
        story.until_permit("a");
        story.host_arms("a");
        story.activated("a");
        story.host_asked_to_reboot("a");
        story.release("a");
        story.assert_only(Property::S9);
    }

    #[test]
    fn a_person_who_uncordons_does_not_release() {
        let mut story = Story::new(&["a"]);
        story.until_permit("a");
        story.uncordon_by_hand("a");
        story.host_arms("a");
        story.activated("a");
        story.host_reboots("a");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_node_that_another_client_reboots_after_its_release_is_fine() {
        let mut story = Story::new(&["a"]);
        story.until_claimed("a");
        story.release("a");
        story.host_reboots_by_hand("a");
        assert_eq!(story.judge().violations, []);
    }
}
