//! The shadows to create and to delete, independent of the plan.

use std::collections::BTreeMap;

use models::shadow::HostState;

use crate::view::{NodeFacts, ShadowFacts};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create the shadow of this node.
    Create {
        /// The node.
        node: String,
        /// The Node's uid: the shadow is owned by it.
        uid: String,
    },
    /// Delete this very shadow.
    Delete {
        /// The node that it is named after.
        node: String,
        /// The shadow's uid.
        uid: String,
    },
}

/// Returns the changes.
pub fn changes(nodes: &BTreeMap<String, NodeFacts>, shadows: &BTreeMap<String, ShadowFacts>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, node) in nodes.iter().filter(|(_, node)| !node.deleting) {
        match shadows.get(name) {
            // A claim of the operator without a shadow is released through one.
            None if node.labelled || node.claimed() => {
                changes.push(Change::Create { node: name.clone(), uid: node.uid.clone() });
            }
            Some(shadow) if !shadow.deleting && goes(node, shadow) => {
                changes.push(Change::Delete { node: name.clone(), uid: shadow.uid.clone() });
            }
            _ => {}
        }
    }
    changes
}

/// Returns whether a shadow is to be deleted: it belongs to a node that was deleted and re-created under its name, or
/// its node left the operator and nothing of the operator's is under way, armed or set there. The settings that were
/// set are recorded nowhere else: without them the version lock would be taken for another client's when the node comes
/// back. (The shadow of a node that is gone is the garbage collector's.)
fn goes(node: &NodeFacts, shadow: &ShadowFacts) -> bool {
    if shadow.owner_uid.as_deref() != Some(node.uid.as_str()) {
        return true;
    }
    let armed = shadow.status.agent.armed.as_ref().is_some_and(|armed| armed.boot_id == node.boot_id);
    // The write that withdraws the settings includes all that the agent has reported until then, and refuses its
    // reports for the earlier desired state.
    let settings = shadow.spec.host.as_ref().is_some_and(models::shadow::HostPolicy::asks_settings)
        || shadow.status.agent.host.as_ref().is_some_and(|host| host.applied.is_some());
    let under_way = shadow.status.controller.progress.is_some() || shadow.spec.state != HostState::Idle;
    !node.labelled && !armed && !settings && !under_way && !node.claimed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeFacts {
        NodeFacts { name: "a".into(), uid: "node-1".into(), labelled: true, ..NodeFacts::default() }
    }

    fn shadow() -> ShadowFacts {
        ShadowFacts {
            node: "a".into(),
            uid: "shadow-1".into(),
            owner_uid: Some("node-1".into()),
            ..ShadowFacts::default()
        }
    }

    fn changes_of(node: NodeFacts, shadow: Option<ShadowFacts>) -> Vec<Change> {
        changes(&[("a".to_owned(), node)].into(), &shadow.map(|s| ("a".to_owned(), s)).into_iter().collect())
    }

    #[test]
    fn a_labelled_node_gets_a_shadow_once() {
        assert_eq!(changes_of(node(), None), [Change::Create { node: "a".into(), uid: "node-1".into() }]);
        assert_eq!(changes_of(node(), Some(shadow())), []);
        assert_eq!(changes_of(NodeFacts { labelled: false, ..node() }, None), []);
    }

    #[test]
    fn the_shadow_of_a_re_created_node_goes() {
        let recreated = NodeFacts { uid: "node-2".into(), ..node() };
        assert_eq!(
            changes_of(recreated, Some(shadow())),
            [Change::Delete { node: "a".into(), uid: "shadow-1".into() }]
        );
    }

    #[test]
    fn a_node_that_loses_its_label_keeps_its_shadow_until_nothing_of_ours_is_left() {
        let unlabelled = NodeFacts { labelled: false, boot_id: "b".into(), ..node() };
        assert_eq!(changes_of(unlabelled.clone(), Some(shadow())).len(), 1);
        let mut armed = shadow();
        armed.status.agent.armed = Some(models::shadow::Armed {
            attempt: 1,
            boot_id: "b".into(),
            version: semver::Version::new(1, 0, 0),
            phase: models::shadow::ArmedPhase::Arming,
            nonce: "n".into(),
        });
        assert_eq!(changes_of(unlabelled.clone(), Some(armed)), []);
        let mut asked = shadow();
        asked.spec.host.get_or_insert_default().version_lock = Some("1.20.5".into());
        assert_eq!(changes_of(unlabelled.clone(), Some(asked)), []);
        let mut set = shadow();
        set.status.agent.host.get_or_insert_default().applied = Some(models::shadow::AppliedSettings::default());
        assert_eq!(changes_of(unlabelled.clone(), Some(set.clone())), []);
        set.status.agent.host.as_mut().unwrap().applied = None;
        assert_eq!(changes_of(unlabelled.clone(), Some(set)).len(), 1);
        let mut ordered = shadow();
        ordered.spec.state = HostState::StagedUpdate;
        assert_eq!(changes_of(unlabelled.clone(), Some(ordered)), []);
        assert_eq!(changes_of(NodeFacts { claims: crate::claims::Parts::CORDON, ..unlabelled }, Some(shadow())), []);
    }
}
