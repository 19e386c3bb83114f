//! Whether there is somebody to hand over to.

use std::collections::BTreeMap;

use crate::view::{Cache, NodeFacts, PodFacts};

/// The pods of the controller, this one among them.
#[derive(Clone)]
pub struct Peers {
    /// The name of this process's own pod, which is its identity.
    pub identity: String,
    /// All of them.
    pub pods: Cache<PodFacts>,
}

impl Peers {
    /// See [`standby`]; false before the first list.
    pub fn standby(&self, own_node: Option<&str>, nodes: &BTreeMap<String, NodeFacts>) -> bool {
        self.pods.synced() && standby(&self.identity, own_node, &self.pods.items(), nodes)
    }
}

/// Whether another pod of the controller can take over and go on while this one's node is out of service: it is Ready and
/// stays, on another node that is Ready and takes pods. Where the own node is not known, no node is another one.
pub fn standby(
    own_identity: &str,
    own_node: Option<&str>,
    pods: &BTreeMap<String, PodFacts>,
    nodes: &BTreeMap<String, NodeFacts>,
) -> bool {
    let Some(own_node) = own_node else { return false };
    let stands = |node: &NodeFacts| node.ready && !node.unschedulable && !node.deleting;
    pods.values().any(|pod| {
        pod.name != own_identity
            && pod.ready
            && !pod.terminating
            && !pod.finished
            && pod.node != own_node
            && nodes.get(&pod.node).is_some_and(stands)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodFacts {
        PodFacts { name: "controller-2".into(), node: "b".into(), ready: true, ..PodFacts::default() }
    }

    fn node() -> NodeFacts {
        NodeFacts { name: "b".into(), ready: true, ..NodeFacts::default() }
    }

    #[test]
    fn a_standby_is_a_ready_pod_on_another_node_that_stays_in_service() {
        for (sentence, pod, node, expected) in [
            ("a Ready one on another node", pod(), node(), true),
            ("this very pod", PodFacts { name: "controller-1".into(), ..pod() }, node(), false),
            ("one on the same node", PodFacts { node: "a".into(), ..pod() }, node(), false),
            ("one that is not on any node yet", PodFacts { node: String::new(), ..pod() }, node(), false),
            ("one that is not Ready", PodFacts { ready: false, ..pod() }, node(), false),
            ("one that ends", PodFacts { terminating: true, ..pod() }, node(), false),
            ("one that has ended", PodFacts { finished: true, ..pod() }, node(), false),
            ("one on a cordoned node", pod(), NodeFacts { unschedulable: true, ..node() }, false),
            ("one on a node that is NotReady", pod(), NodeFacts { ready: false, ..node() }, false),
            ("one on a node that goes", pod(), NodeFacts { deleting: true, ..node() }, false),
            ("one on a node that is not known", pod(), NodeFacts { name: "c".into(), ..node() }, false),
        ] {
            let own = NodeFacts { name: "a".into(), ready: true, ..NodeFacts::default() };
            let nodes = [own, node].into_iter().map(|node| (node.name.clone(), node)).collect();
            let pods = BTreeMap::from([(pod.name.clone(), pod)]);
            assert_eq!(standby("controller-1", Some("a"), &pods, &nodes), expected, "{sentence}");
            assert!(!standby("controller-1", None, &pods, &nodes), "{sentence}, own node unknown");
        }
    }

    #[test]
    fn one_of_many_is_enough_and_none_is_not() {
        let nodes = BTreeMap::from([("b".to_owned(), node())]);
        let pods = [PodFacts { name: "controller-0".into(), ready: false, ..pod() }, pod()];
        let pods = pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
        assert!(standby("controller-1", Some("a"), &pods, &nodes));
        assert!(!standby("controller-1", Some("a"), &BTreeMap::new(), &nodes));
    }
}
