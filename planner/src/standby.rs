//! The readiness of another replica of the controller to lead.

use std::collections::BTreeMap;

use crate::view::{NodeFacts, PodFacts, Standby};

/// Returns the readiness of another pod of the controller to take over and continue while this one's node is out of
/// service. It has to be Ready and to stay, on another node that is Ready and schedulable. Where the own node is not
/// known, no node is another one.
pub fn standby(
    own_identity: &str,
    own_node: Option<&str>,
    pods: &BTreeMap<String, PodFacts>,
    nodes: &BTreeMap<String, NodeFacts>,
) -> Standby {
    let Some(own_node) = own_node else { return Standby::None };
    let in_service = |node: &NodeFacts| node.ready && !node.unschedulable && !node.deleting;
    let able = |pod: &PodFacts| pod.ready && pod.node != own_node && nodes.get(&pod.node).is_some_and(in_service);
    let others: Vec<_> =
        pods.values().filter(|pod| pod.name != own_identity && !pod.terminating && !pod.finished).collect();
    match others.iter().any(|pod| able(pod)) {
        true => Standby::Ready,
        false if others.is_empty() => Standby::None,
        false => Standby::NotReady,
    }
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
    fn standby_is_ready_pod_on_another_node_in_service() {
        use Standby::{NotReady, Ready};
        for (sentence, pod, node, expected) in [
            ("a Ready one on another node", pod(), node(), Ready),
            ("this very pod", PodFacts { name: "controller-1".into(), ..pod() }, node(), Standby::None),
            ("one on the same node", PodFacts { node: "a".into(), ..pod() }, node(), NotReady),
            ("one that is not on any node yet", PodFacts { node: String::new(), ..pod() }, node(), NotReady),
            ("one that is not Ready", PodFacts { ready: false, ..pod() }, node(), NotReady),
            ("one that ends", PodFacts { terminating: true, ..pod() }, node(), Standby::None),
            ("one that has ended", PodFacts { finished: true, ..pod() }, node(), Standby::None),
            ("one on a cordoned node", pod(), NodeFacts { unschedulable: true, ..node() }, NotReady),
            ("one on a node that is NotReady", pod(), NodeFacts { ready: false, ..node() }, NotReady),
            ("one on a node that goes", pod(), NodeFacts { deleting: true, ..node() }, NotReady),
            ("one on a node that is not known", pod(), NodeFacts { name: "c".into(), ..node() }, NotReady),
        ] {
            let own = NodeFacts { name: "a".into(), ready: true, ..NodeFacts::default() };
            let nodes = [own, node].into_iter().map(|node| (node.name.clone(), node)).collect();
            let pods = BTreeMap::from([(pod.name.clone(), pod)]);
            assert_eq!(standby("controller-1", Some("a"), &pods, &nodes), expected, "{sentence}");
            assert_eq!(standby("controller-1", None, &pods, &nodes), Standby::None, "{sentence}, own node unknown");
        }
    }

    #[test]
    fn one_ready_standby_among_pods_suffices() {
        let nodes = BTreeMap::from([("b".to_owned(), node())]);
        let pods = [PodFacts { name: "controller-0".into(), ready: false, ..pod() }, pod()];
        let pods = pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
        assert_eq!(standby("controller-1", Some("a"), &pods, &nodes), Standby::Ready);
        assert_eq!(standby("controller-1", Some("a"), &BTreeMap::new(), &nodes), Standby::None);
    }
}
