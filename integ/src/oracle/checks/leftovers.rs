//! At the end no node carries a claim of the operator and no slot is taken, where the scenario expects it. A node with
//! a user's hold may keep the operator's cordon.

use super::{ClusterState, Observations, Property, RevisionContext, Verdict};

#[derive(Default)]
pub(super) struct Check;

impl super::Check for Check {
    fn at(&mut self, _: &RevisionContext, _: &Observations, _: &mut Verdict) {}

    fn end(&mut self, end: &ClusterState, observations: &Observations, verdict: &mut Verdict) {
        if !observations.expectations.nothing_left {
            return;
        }
        for node in end.nodes.values() {
            let claims: Vec<String> = node.claims().map(|field| format!("{field:?}")).collect();
            if !claims.is_empty() && !node.held() {
                let text = format!("it still has the operator's {}", claims.join(" and "));
                verdict.report(Property::NoClaimLeft, Some(end.revision), Some(&node.name), text);
            }
            if node.hook_request().is_some() {
                let text = "it still has the request to hooks".to_owned();
                verdict.report(Property::NoClaimLeft, Some(end.revision), Some(&node.name), text);
            }
            if let Some(step) =
                end.shadow_of(node).filter(|shadow| shadow.disruptive()).and_then(|shadow| shadow.step())
            {
                let text = format!("it is still {}", step.as_str());
                verdict.report(Property::NoClaimLeft, Some(end.revision), Some(&node.name), text);
            }
        }
        for slot in end.operator.iter().flat_map(|operator| &operator.status.slots) {
            let text = "it still has a slot".to_owned();
            verdict.report(Property::NoClaimLeft, Some(end.revision), Some(&slot.node), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scenario::{CONTROLLER, Scenario};
    use super::Property;
    use crate::oracle::facts::Field;

    #[test]
    fn completed_update_leaves_no_claim_or_slot() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.update("a");
        scenario.expectations.nothing_left = true;
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn remaining_request_to_hooks_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.update("a");
        scenario.expectations.nothing_left = true;
        let field = Field::Annotation(models::names::HOOKS_ANNOTATION.to_owned());
        scenario.set_field("a", CONTROLLER, "", field, Some("AfterUpdate/1/1"));
        scenario.assert_only(Property::NoClaimLeft);
    }

    #[test]
    fn remaining_claim_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.until_claimed("a");
        scenario.free_slot("a");
        scenario.done("a");
        assert_eq!(scenario.judge().violations, []);
        scenario.expectations.nothing_left = true;
        scenario.assert_only(Property::NoClaimLeft);
    }

    #[test]
    fn remaining_slot_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.take_slot("a");
        scenario.expectations.nothing_left = true;
        scenario.assert_only(Property::NoClaimLeft);
    }
}
