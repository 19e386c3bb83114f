//! The shadows to create and to delete.

use models::shadow::{HostPolicy, HostState};

use crate::survey::{Survey, ended};
use crate::view::{ClusterView, NodeFacts, ShadowFacts};

/// The creation or the deletion of one shadow.
#[derive(Clone, Debug, PartialEq)]
pub enum ShadowChange {
    /// Create the shadow of this node.
    Create {
        node: String,
        /// The Node's uid: the shadow is owned by it.
        uid: String,
        /// The settings of its host to begin with.
        host: Box<HostPolicy>,
    },
    /// Delete this very shadow.
    Delete {
        /// The node that it is named after.
        node: String,
        uid: String,
    },
}

impl ShadowChange {
    /// Returns the name of the node.
    pub fn node(&self) -> &str {
        let (Self::Create { node, .. } | Self::Delete { node, .. }) = self;
        node
    }
}

/// Returns the changes. A node that is being deleted keeps what it has: the garbage collector deletes the shadow of a
/// node that is gone. A shadow stays until the slot of its node is taken away: without it, the slot would pass for that of a machine
/// that may still reboot.
pub(super) fn changes(view: &ClusterView, survey: &Survey<'_>) -> Vec<ShadowChange> {
    let policy = survey.policy;
    let create = |node: &NodeFacts| ShadowChange::Create {
        node: node.name.clone(),
        uid: node.uid.clone(),
        host: Box::new(HostPolicy { refresh_interval: Some(policy.refresh_interval), ..HostPolicy::default() }),
    };
    let delete = |shadow: &ShadowFacts| ShadowChange::Delete { node: shadow.node.clone(), uid: shadow.uid.clone() };
    // A node under the operator keeps its shadow.
    let others = survey.nodes.iter().filter(|node| !node.labelled || node.want.is_none());
    let all = others.map(|node| (&node.facts, node.shadow.as_ref()));
    all.chain(view.unmanaged.values().map(|facts| (facts, None)))
        .filter(|(node, _)| !node.deleting && !view.unreadable.shadows.contains_key(&node.name))
        .filter_map(|(node, own)| match (own, view.orphaned_shadows.get(&node.name)) {
            (Some(shadow), _) => {
                let held = || {
                    view.recorded_slots()
                        .any(|slot| slot.uid == node.uid && ended::kept_until(view, policy, slot).is_none())
                };
                let free = !shadow.deleting && !view.busy.contains(&node.name);
                (free && is_spent(node, shadow) && !held()).then(|| delete(shadow))
            }
            // It belongs to a node that was deleted and created again under its name.
            (None, Some(orphan)) => (!orphan.deleting).then(|| delete(orphan)),
            // A claim of the operator without a shadow is released through one.
            (None, None) => (node.labelled || node.claimed() || node.hook_request.is_some()).then(|| create(node)),
        })
        .collect()
}

/// Returns whether a shadow has no purpose left: its node has left the operator, and nothing of the operator is under
/// way, armed or set there. The settings that were set are recorded nowhere else: without them the version lock would
/// be taken for another client's when the node comes back.
fn is_spent(node: &NodeFacts, shadow: &ShadowFacts) -> bool {
    let armed = shadow.status.agent.armed.as_ref().is_some_and(|armed| armed.boot_id == node.boot_id);
    // The write that withdraws the settings includes all that the agent has reported until then, and refuses its
    // reports for the earlier desired state.
    let settings = shadow.spec.host.as_ref().is_some_and(HostPolicy::asks_settings)
        || shadow.status.agent.host.as_ref().is_some_and(|host| host.applied.is_some());
    let under_way = shadow.status.controller.progress.is_some() || shadow.spec.state != HostState::Idle;
    !node.labelled && !armed && !settings && !under_way && !node.claimed() && node.hook_request.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;
    use crate::policy::Policy;

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

    /// The plan for a node `a` and the shadow of that name, put into a view as the controller does it.
    fn changes_of(facts: NodeFacts, shadow: Option<ShadowFacts>) -> Vec<ShadowChange> {
        changes_in(facts, shadow, |_| {})
    }

    fn changes_in(
        facts: NodeFacts,
        shadow: Option<ShadowFacts>,
        change: impl FnOnce(&mut ClusterView),
    ) -> Vec<ShadowChange> {
        let mut view = ClusterView::default();
        view.insert(facts, shadow, crate::fixtures::t(0));
        change(&mut view);
        plan(&view, &Policy::default(), crate::fixtures::t(0)).shadows
    }

    fn creation() -> ShadowChange {
        let refresh_interval = Some(Policy::default().refresh_interval);
        let host = Box::new(HostPolicy { refresh_interval, ..HostPolicy::default() });
        ShadowChange::Create { node: "a".into(), uid: "node-1".into(), host }
    }

    #[test]
    fn labelled_node_gets_one_shadow() {
        assert_eq!(changes_of(node(), None), [creation()]);
        assert_eq!(changes_of(node(), Some(shadow())), []);
        assert_eq!(changes_of(NodeFacts { labelled: false, ..node() }, None), []);
    }

    #[test]
    fn shadow_of_recreated_node_is_deleted() {
        let recreated = NodeFacts { uid: "node-2".into(), ..node() };
        let found = changes_of(recreated, Some(shadow()));
        assert_eq!(found, [ShadowChange::Delete { node: "a".into(), uid: "shadow-1".into() }]);
    }

    #[test]
    fn shadow_of_unlabelled_node_is_kept_until_node_is_released() {
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
        let found = changes_of(NodeFacts { claims: crate::claims::ClaimFields::CORDON, ..unlabelled }, Some(shadow()));
        assert_eq!(found, []);
    }

    #[test]
    fn shadows_are_unchanged_for_busy_node_or_stale_view() {
        let unlabelled = || NodeFacts { labelled: false, boot_id: "b".into(), ..node() };
        let busy = |view: &mut ClusterView| _ = view.busy.insert("a".into());
        let stale = |view: &mut ClusterView| view.stale = true;
        assert_eq!(changes_in(unlabelled(), Some(shadow()), busy), []);
        assert_eq!(changes_in(unlabelled(), Some(shadow()), stale), []);
        assert_eq!(changes_in(node(), None, stale), []);
    }
}
