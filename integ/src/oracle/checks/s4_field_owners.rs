//! S4: the operator removes or changes no cordon, label, annotation or taint that another client recorded on a Node,
//! and no component but the controller writes Nodes at all.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observations, OperatorComponent, Property, RevisionContext, Verdict};
use crate::oracle::facts::{BEFORE_FIRST_APPLY, Field, is_ours};

#[derive(Default)]
pub(super) struct Check {
    /// Fields of a Node (uid) that the operator owned at some time.
    once_owned_by_operator: BTreeMap<String, BTreeSet<Field>>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &RevisionContext, _: &Observations, verdict: &mut Verdict) {
        let Some((old, new)) = moment.node() else { return };
        let once_owned_by_operator = self.once_owned_by_operator.entry(new.uid.clone()).or_default();
        for (field, owners) in &new.owners {
            if owners.iter().any(|owner| is_ours(owner)) {
                once_owned_by_operator.insert(field.clone());
            }
        }
        // A write that changed the status was a kubelet's or the node controller's; one of the operator that changed
        // nothing found it there.
        let Some(part) = moment.part().filter(|_| old.status == new.status) else { return };
        verdict.stats.node_writes += 1;
        if part != OperatorComponent::Controller {
            let text = format!("{part:?} wrote the Node");
            verdict.report(Property::S4, Some(moment.revision()), Some(&new.name), text);
        }
        for (field, value) in &old.fields {
            if new.fields.get(field) == Some(value) {
                continue;
            }
            let foreign: Vec<&str> = old
                .owners
                .get(field)
                .into_iter()
                .flatten()
                .map(String::as_str)
                .filter(|owner| !is_ours(owner))
                // After a reset of managedFields, fields of the operator have no owner.
                .filter(|owner| *owner != BEFORE_FIRST_APPLY || !once_owned_by_operator.contains(field))
                .collect();
            if !foreign.is_empty() {
                let what = if new.fields.contains_key(field) { "changed" } else { "removed" };
                let text = format!("{field:?} = '{value}' of {} was {what}", foreign.join(", "));
                verdict.report(Property::S4, Some(moment.revision()), Some(&new.name), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use models::names::PLUGIN_MANAGER;

    use super::super::super::scenario::{APISERVER, CONTROLLER, Scenario};
    use super::{Field, Property};

    fn zone() -> Field {
        Field::Label("zone".into())
    }

    #[test]
    fn field_of_other_manager_may_be_changed_by_other_manager() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.set_field("a", "admin", "kubectl", zone(), Some("1"));
        scenario.set_field("a", "admin", "kubectl", zone(), Some("2"));
        scenario.set_field("a", "admin", "kubectl", zone(), None);
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn operator_removal_or_change_of_user_label_is_detected() {
        for manager in ["kubectl", PLUGIN_MANAGER] {
            for value in [None, Some("2")] {
                let mut scenario = Scenario::new(&["a"]);
                scenario.set_field("a", "admin", manager, zone(), Some("1"));
                scenario.set_field("a", CONTROLLER, "brupop-controller", zone(), value);
                scenario.assert_only(Property::S4);
            }
        }
    }

    #[test]
    fn release_that_keeps_user_cordon_is_accepted() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.set_field("a", "admin", "kubectl-cordon", Field::Unschedulable, Some("true"));
        scenario.take_slot("a");
        scenario.claim("a");
        scenario.node("a", CONTROLLER, |node| {
            node.owners.insert(Field::Unschedulable, BTreeSet::from(["kubectl-cordon".into()]));
        });
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn release_that_removes_user_cordon_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.set_field("a", "admin", "kubectl-cordon", Field::Unschedulable, Some("true"));
        scenario.take_slot("a");
        scenario.claim("a");
        scenario.release("a");
        scenario.assert_only(Property::S4);
    }

    #[test]
    fn only_operator_cordon_may_be_removed_after_managed_fields_reset() {
        for ours in [true, false] {
            let mut scenario = Scenario::new(&["a"]);
            scenario.take_slot("a");
            if ours {
                scenario.claim("a");
            }
            scenario.set_field("a", "admin", "before-first-apply", Field::Unschedulable, Some("true"));
            scenario.node("a", "admin", |node| {
                node.owners.insert(Field::Unschedulable, BTreeSet::from(["before-first-apply".into()]));
            });
            scenario.set_field("a", CONTROLLER, "brupop-controller", Field::Unschedulable, None);
            assert_eq!(scenario.judge().violates(Property::S4), !ours);
        }
    }

    #[test]
    fn revision_with_node_status_change_is_not_attributed_to_operator() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.set_field("a", "admin", "kubectl", zone(), Some("1"));
        scenario.node("a", CONTROLLER, |node| {
            node.status += 1;
            node.fields.remove(&zone());
        });
        assert_eq!(scenario.judge().violations, []);
    }

    #[test]
    fn node_write_by_web_api_is_detected() {
        let mut scenario = Scenario::new(&["a"]);
        scenario.set_field("a", APISERVER, "brupop-agent", zone(), Some("1"));
        scenario.assert_only(Property::S4);
    }
}
