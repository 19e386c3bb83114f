//! S8: once the failures of a version have spent the failure budget, no further node goes out of service, for any
//! version, until a user resolves them. A node that had its slot before may continue.

use std::collections::BTreeMap;

use super::{Object, Observations, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check {
    out: BTreeMap<String, String>,
    frozen_by: Option<String>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
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
    use super::super::super::scenario::Scenario;
    use super::Property;
    use models::operator::{CountOrPercent, FailurePolicy};
    use models::shadow::Step;

    #[test]
    fn resolved_failure_allows_next_node_to_start() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.version_failed("a");
        scenario.resolve_failures("a");
        scenario.take_slot("b");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn start_after_failure_is_detected() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.version_failed("a");
        scenario.take_slot("b");
        scenario.assert_only(Property::S8);
    }

    #[test]
    fn restart_of_failed_node_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.version_failed("a");
        scenario.take_slot("a");
        scenario.assert_only(Property::S8);
    }

    #[test]
    fn node_with_slot_before_failure_may_continue() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.operator(|operator| operator.spec.max_unavailable = Some(CountOrPercent::Count(2)));
        scenario.take_slot("b");
        scenario.version_failed("a");
        scenario.step("b", Step::LeavingLoadBalancer);
        scenario.claim("b");
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn max_failures_allows_starts_and_counts_each_node_once() {
        let mut scenario = Scenario::new(&["a", "b", "c"]);
        let policy = FailurePolicy { max_failures: Some(2), ..FailurePolicy::default() };
        scenario.operator(|operator| operator.spec.failure_policy = Some(policy));
        scenario.version_failed("a");
        scenario.version_failed("a");
        scenario.take_slot("c");
        scenario.free_slot("c");
        assert_eq!(scenario.judge().violations, []);
        scenario.version_failed("b");
        scenario.take_slot("c");
        scenario.assert_only(Property::S8);
    }
}
