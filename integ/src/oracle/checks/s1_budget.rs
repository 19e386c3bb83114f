//! S1: never more nodes out of service because of us than the budget allows, also with two controllers alive.
//!
//! A node is out of service if its slot, its progress *or* our claim says so, so that a lost slot hides nothing. A budget that
//! is lowered while nodes are out cannot be met at once: until it is, no further node may go out.

use std::collections::BTreeMap;

use super::{Evidence, Moment, Object, Property, Verdict};

#[derive(Default)]
pub(super) struct Check {
    out: BTreeMap<String, String>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, evidence: &Evidence, verdict: &mut Verdict) {
        if matches!(moment.change.object, Object::Pod(_) | Object::Budget(_)) {
            return;
        }
        let out = moment.world.out_of_service();
        verdict.stats.out_of_service = verdict.stats.out_of_service.max(out.len());
        let policy = moment.world.max_unavailable();
        let budget = evidence.expectations.max_unavailable.map_or(policy, |ceiling| policy.min(ceiling));
        if out.len() > budget {
            for (_, node) in out.iter().filter(|(uid, _)| !self.out.contains_key(*uid)) {
                let all: Vec<&str> = out.values().map(String::as_str).collect();
                let text =
                    format!("it went out of service as one of {} ({}), {budget} allowed", out.len(), all.join(", "));
                verdict.report(Property::S1, Some(moment.revision()), Some(node), text);
            }
        }
        // A person who lets go of a node takes nothing out of service.
        self.out = moment.world.out_of_service_or_held();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::story::Story;
    use super::Property;
    use crate::oracle::facts::Field;
    use models::operator::CountOrPercent;
    use models::shadow::Step;

    #[test]
    fn one_node_after_the_other_is_within_the_budget() {
        let mut story = Story::new(&["a", "b"]);
        story.update("a");
        story.update("b");
        let verdict = story.judge();
        assert_eq!(verdict.violations, []);
        assert_eq!(verdict.stats.out_of_service, 1);
    }

    #[test]
    fn a_second_slot_is_one_too_many() {
        let mut story = Story::new(&["a", "b"]);
        story.take_slot("a");
        story.take_slot("b");
        story.assert_only(Property::S1);
    }

    #[test]
    fn two_controllers_that_overwrite_each_others_slots_are_seen() {
        let mut story = Story::new(&["a", "b"]);
        story.take_slot("a");
        story.claim("a");
        // The second controller knows nothing of the first one's slot.
        story.operator(|operator| operator.status.slots.clear());
        story.take_slot("b");
        story.assert_only(Property::S1);
    }

    #[test]
    fn progress_without_slot_and_claim_counts() {
        let mut story = Story::new(&["a", "b"]);
        story.take_slot("a");
        story.step("b", Step::LeavingBalancer);
        story.assert_only(Property::S1);
    }

    #[test]
    fn without_the_operators_resource_nothing_may_start() {
        let mut story = Story::new(&["a"]);
        story.delete_operator();
        story.claim("a");
        story.assert_only(Property::S1);
    }

    #[test]
    fn a_lowered_budget_is_met_by_starting_nothing_more() {
        let mut story = Story::new(&["a", "b", "c"]);
        story.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        story.take_slot("a");
        story.take_slot("b");
        story.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(1)));
        assert_eq!(story.judge().violations, []);
        story.free_slot("a");
        story.take_slot("c");
        story.assert_only(Property::S1);
    }

    #[test]
    fn a_percentage_is_one_of_the_nodes_under_the_operator() {
        let mut story = Story::new(&["a", "b", "c", "d"]);
        story.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Percent("50%".into())));
        story.take_slot("a");
        story.take_slot("b");
        assert_eq!(story.judge().violations, []);
        story.take_slot("c");
        story.assert_only(Property::S1);
    }

    #[test]
    fn a_scenario_can_set_a_ceiling_of_its_own() {
        let mut story = Story::new(&["a", "b"]);
        story.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        story.take_slot("a");
        story.take_slot("b");
        assert_eq!(story.judge().violations, []);
        story.expectations.max_unavailable = Some(1);
        story.assert_only(Property::S1);
    }

    #[test]
    fn a_cordon_that_stays_because_a_person_holds_the_node_takes_no_slot() {
        let mut story = Story::new(&["a", "b"]);
        story.take_slot("a");
        story.claim("a");
        story.hold("a");
        story.free_slot("a");
        story.take_slot("b");
        assert_eq!(story.judge().violations, []);
        // The person lets go, and the cordon is an orphan until it is released.
        let hold = Field::Annotation(models::names::HOLD_ANNOTATION.into());
        story.set_field("a", "admin", "kubectl", hold, None);
        assert_eq!(story.judge().violations, []);
    }
}
