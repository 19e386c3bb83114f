//! Nodes of the control plane are out of service one at a time, and only while all others of them are Ready: also after one of them
//! has got its slot.

use models::operator::Slot;
use models::shadow::HostState;

use crate::view::{ClusterView, NodeFacts, NodeView};

/// Returns whether a reboot of the node is permitted, at any time from now on while it is Ready.
fn is_permitted(node: &NodeView) -> bool {
    let spec = node.shadow.as_ref().map(|shadow| &shadow.spec);
    spec.is_some_and(|spec| spec.permit.is_some() && spec.state == HostState::RebootedIntoUpdate)
}

/// Returns the node of the control plane for which this one, if it is another, has to stay in service: it is not Ready, may
/// reboot by its permit, or got its slot before.
pub(crate) fn in_the_way<'a>(view: &'a ClusterView, node: &NodeFacts) -> Option<&'a str> {
    let is_recorded = |slot: &Slot| slot.update.as_ref().is_some_and(|update| update.control_plane);
    let own = view.slots().find(|slot| slot.uid == node.uid);
    if !node.control_plane() && !own.is_some_and(is_recorded) {
        return None;
    }
    let is_other = |facts: &NodeFacts| facts.control_plane() && facts.name != node.name;
    let is_out = |other: &&NodeView| {
        is_other(&other.facts) && (!other.facts.ready || other.may_still_reboot() || is_permitted(other))
    };
    let out = view.nodes.values().find(is_out).map(|other| &other.facts);
    let out = out.or_else(|| view.unmanaged.values().find(|facts| is_other(facts) && !facts.ready));
    if let Some(facts) = out {
        return Some(&facts.name);
    }
    // Of two that have slots, such as those of an earlier version of the operator, one goes on.
    let is_before = |slot: &Slot| own.is_none_or(|own| (slot.since, &slot.uid) < (own.since, &own.uid));
    let is_labelled = |slot: &Slot| view.nodes.get(&slot.node).is_some_and(|other| other.facts.control_plane());
    let is_of = |slot: &Slot| is_recorded(slot) || is_labelled(slot);
    let before = view.slots().find(|slot| slot.node != node.name && is_before(slot) && is_of(slot))?;
    Some(&before.node)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use models::names::CONTROL_PLANE_LABEL;
    use models::shadow::Permit;

    use super::*;
    use crate::fixtures::{cluster, node};

    fn of_control_plane(name: &str) -> NodeView {
        let mut node = node(name);
        node.facts.labels = Arc::new([(CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
        node
    }

    /// Has the other node be in this desired state, with or without a permit.
    fn desires(view: &mut ClusterView, state: HostState, has_permit: bool) {
        let spec = &mut view.nodes.get_mut("z").unwrap().shadow.as_mut().unwrap().spec;
        spec.state = state;
        spec.permit = has_permit.then(|| Permit { nonce: "n".into(), jws: "j".into() });
    }

    /// Has the other node be none of the operator's.
    fn leaves(view: &mut ClusterView, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = view.nodes.remove("z").unwrap().facts;
        facts.labelled = false;
        change(&mut facts);
        view.unmanaged.insert("z".into(), facts);
    }

    #[test]
    fn control_plane_node_stays_in_service_while_another_one_is_not_ready_or_permitted_to_reboot() {
        type Change = fn(&mut ClusterView);
        let case = |sentence: &str, expected: Option<&str>, change: Change| {
            let (mut view, _) = cluster(vec![of_control_plane("a"), of_control_plane("z")], &[]);
            change(&mut view);
            assert_eq!(in_the_way(&view, &view.nodes["a"].facts), expected, "{sentence}");
        };
        case("the other is Ready", None, |_| {});
        case("it is to reboot, and has no permit", None, |view| desires(view, HostState::RebootedIntoUpdate, false));
        case("it has the permit of a rehearsal", None, |view| desires(view, HostState::RehearsedUpdate, true));
        case("its reboot is permitted", Some("z"), |view| desires(view, HostState::RebootedIntoUpdate, true));
        case("one without the operator is Ready", None, |view| leaves(view, |_| {}));
        case("one without the operator is not Ready", Some("z"), |view| leaves(view, |facts| facts.ready = false));
        case("a worker without the operator is not Ready", None, |view| {
            leaves(view, |facts| (facts.labels, facts.ready) = (Arc::default(), false));
        });
    }
}
