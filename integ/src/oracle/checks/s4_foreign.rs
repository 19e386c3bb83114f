//! S4: the operator removes or changes no cordon, label, annotation or taint that another client recorded on a Node,
//! and no component but the controller writes Nodes at all.

use std::collections::{BTreeMap, BTreeSet};

use super::{Evidence, Moment, Part, Property, Verdict};
use crate::oracle::facts::{BEFORE_FIRST_APPLY, Field, is_ours};

#[derive(Default)]
pub(super) struct Check {
    /// Fields of a Node (uid) that the operator owned at some time.
    once_ours: BTreeMap<String, BTreeSet<Field>>,
}

impl super::Check for Check {
    fn at(&mut self, moment: &Moment, _: &Evidence, verdict: &mut Verdict) {
        let Some((old, new)) = moment.node() else { return };
        let once_ours = self.once_ours.entry(new.uid.clone()).or_default();
        for (field, owners) in &new.owners {
            if owners.iter().any(|owner| is_ours(owner)) {
                once_ours.insert(field.clone());
            }
        }
        // A write that changed the status was a kubelet's or the node controller's; one of the operator that changed
        // nothing found it there.
        let Some(part) = moment.part().filter(|_| old.status == new.status) else { return };
        verdict.stats.node_writes += 1;
        if part != Part::Controller {
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
                .filter(|owner| *owner != BEFORE_FIRST_APPLY || !once_ours.contains(field))
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

    use super::super::super::story::{APISERVER, CONTROLLER, Story};
    use super::{Field, Property};

    fn zone() -> Field {
        Field::Label("zone".into())
    }

    #[test]
    fn what_others_wrote_may_be_changed_by_others() {
        let mut story = Story::new(&["a"]);
        story.set_field("a", "admin", "kubectl", zone(), Some("1"));
        story.set_field("a", "admin", "kubectl", zone(), Some("2"));
        story.set_field("a", "admin", "kubectl", zone(), None);
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_persons_label_that_we_remove_or_change_is_caught() {
        for value in [None, Some("2")] {
            let mut story = Story::new(&["a"]);
            story.set_field("a", "admin", "kubectl", zone(), Some("1"));
            story.set_field("a", CONTROLLER, "brupop-controller", zone(), value);
            story.assert_only(Property::S4);
        }
    }

    #[test]
    fn a_persons_cordon_stays_when_we_release_ours() {
        let mut story = Story::new(&["a"]);
        story.set_field("a", "admin", "kubectl-cordon", Field::Unschedulable, Some("true"));
        story.take_slot("a");
        story.claim("a");
        story.node("a", CONTROLLER, |node| {
            node.owners.insert(Field::Unschedulable, BTreeSet::from(["kubectl-cordon".into()]));
        });
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_persons_cordon_that_goes_with_ours_is_caught() {
        let mut story = Story::new(&["a"]);
        story.set_field("a", "admin", "kubectl-cordon", Field::Unschedulable, Some("true"));
        story.take_slot("a");
        story.claim("a");
        story.release("a");
        story.assert_only(Property::S4);
    }

    #[test]
    fn what_was_ours_before_managed_fields_were_reset_may_go() {
        for ours in [true, false] {
            let mut story = Story::new(&["a"]);
            story.take_slot("a");
            if ours {
                story.claim("a");
            }
            story.set_field("a", "admin", "before-first-apply", Field::Unschedulable, Some("true"));
            story.node("a", "admin", |node| {
                node.owners.insert(Field::Unschedulable, BTreeSet::from(["before-first-apply".into()]));
            });
            story.set_field("a", CONTROLLER, "brupop-controller", Field::Unschedulable, None);
            assert_eq!(story.judge().violates(Property::S4), !ours);
        }
    }

    #[test]
    fn a_kubelets_report_that_our_empty_write_found_is_not_ours() {
        let mut story = Story::new(&["a"]);
        story.set_field("a", "admin", "kubectl", zone(), Some("1"));
        story.node("a", CONTROLLER, |node| {
            node.status += 1;
            node.fields.remove(&zone());
        });
        assert_eq!(story.judge().violations, []);
    }

    #[test]
    fn a_web_api_that_writes_a_node_is_caught() {
        let mut story = Story::new(&["a"]);
        story.set_field("a", APISERVER, "brupop-agent", zone(), Some("1"));
        story.assert_only(Property::S4);
    }
}
