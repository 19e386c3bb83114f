//! The nodes that the operator labels automatically.

use crate::policy::Policy;
use crate::view::{ClusterView, NodeFacts};

/// Returns the nodes that get the label.
pub(super) fn labels(view: &ClusterView, policy: &Policy) -> Vec<NodeFacts> {
    if !policy.label_nodes {
        return Vec::new();
    }
    let all = view.nodes.values().map(|node| &node.facts).chain(view.unmanaged.values());
    all.filter(|node| node.lacks_label()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use models::names::{INTERFACE_LABEL, INTERFACE_VERSION};

    use super::*;
    use crate::claims::ClaimFields;
    use crate::fixtures::t;
    use crate::plan::plan;

    fn node() -> NodeFacts {
        NodeFacts {
            name: "a".into(),
            os_image: "Bottlerocket OS 1.20.5 (aws-k8s-1.37)".into(),
            labels: Arc::new(BTreeMap::from([("kubernetes.io/os".into(), "linux".into())])),
            ..NodeFacts::default()
        }
    }

    fn with(value: &str) -> NodeFacts {
        NodeFacts { labels: Arc::new(BTreeMap::from([(INTERFACE_LABEL.into(), value.into())])), ..node() }
    }

    #[test]
    fn only_unlabelled_bottlerocket_nodes_are_labelled_if_policy_enables_it() {
        let debian = NodeFacts { os_image: "Debian GNU/Linux 12 (bookworm)".into(), ..node() };
        for (sentence, node, label_nodes, expected) in [
            ("a Bottlerocket node without the label", node(), true, true),
            ("the same while policy does not want it", node(), false, false),
            ("one that has it", with(INTERFACE_VERSION), true, false),
            ("one that a user has excluded", with("none"), true, false),
            ("also by an empty value", with(""), true, false),
            ("one with an older agent's version", with("1.0.0"), true, false),
            ("a node with another system", debian, true, false),
            ("one whose system is not known yet", NodeFacts { os_image: String::new(), ..node() }, true, false),
            ("one that goes", NodeFacts { deleting: true, ..node() }, true, false),
        ] {
            let policy = Policy { label_nodes, ..Policy::default() };
            let claimed = NodeFacts { claims: ClaimFields::CORDON, ..node.clone() };
            for facts in [node, claimed] {
                let mut view = ClusterView::default();
                view.insert(facts.clone(), None, t(0));
                let labels = plan(&view, &policy, t(0)).labels;
                assert_eq!(labels, if expected { vec![facts] } else { vec![] }, "{sentence}");
            }
        }
    }
}
