//! S8: once the failures of a version have spent the failure budget, no further node goes out of service, for any
//! version, until a user resolves them. A node that had its slot before may continue.

use std::collections::BTreeMap;

use super::{Evidence, Moment, Object, Property, Verdict};

#[derive(Default)]
pub(super) struct Check {
    out: BTreeMap<String, String>,
    frozen_by: Option<String>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, _: &Evidence, verdict: &mut Verdict) {
        if matches!(moment.change.object, Object::Pod(_) | Object::Budget(_)) {
            return;
        }
        let out = moment.world.out_of_service();
        if let Some(version) = &self.frozen_by {
            for (_, node) in out.iter().filter(|(uid, _)| !self.out.contains_key(*uid)) {
                let text = format!("it was started while the failures of {version} are unresolved");
                verdict.report(Property::S8, Some(moment.revision()), Some(node), text);
            }
        }
        // Removing a hold takes no node out of service.
        self.out = moment.world.out_of_service_or_held();
        self.frozen_by = moment.world.frozen_by().first().map(ToString::to_string);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::Story;
    use super::Property;
    use models::operator::{CountOrPercent, FailurePolicy};
    use models::shadow::Step;

    #[test]
    fn a_resolved_failure_lets_the_next_node_start() {
        let mut story = Story::new(&["a", "b"]);
        story.version_failed("a");
        story.resolve_failures("a");
        story.take_slot("b");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_start_after_a_failure_is_caught() {
        let mut story = Story::new(&["a", "b"]);
        story.version_failed("a");
        story.take_slot("b");
        story.assert_only(Property::S8);
    }

    #[test]
    fn the_node_that_failed_may_not_start_again_either() {
        let mut story = Story::new(&["a"]);
        story.version_failed("a");
        story.take_slot("a");
        story.assert_only(Property::S8);
    }

    #[test]
    fn a_node_that_had_its_slot_before_the_failure_goes_on() {
        let mut story = Story::new(&["a", "b"]);
        story.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        story.take_slot("b");
        story.version_failed("a");
        story.step("b", Step::LeavingBalancer);
        story.claim("b");
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_failure_within_the_budget_stops_no_one_and_a_node_counts_once() {
        let mut story = Story::new(&["a", "b", "c"]);
        let policy = FailurePolicy { max_failures: Some(2), back_off: None };
        story.operator(|operator| operator.spec.failure_policy = Some(policy));
        story.version_failed("a");
        story.version_failed("a");
        story.take_slot("c");
        story.free_slot("c");
        assert_eq!(story.judge().violations, []);
        story.version_failed("b");
        story.take_slot("c");
        story.assert_only(Property::S8);
    }
}
