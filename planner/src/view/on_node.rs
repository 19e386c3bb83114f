//! The CSI drivers of nodes, and the DaemonSets that want them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::storage::v1::CSINode;

use super::projection::Projection;

/// The CSI drivers of a node, as its kubelet has registered them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiNodeFacts {
    pub resource_version: String,
    pub drivers: Arc<[String]>,
}

/// A DaemonSet, as far as it chooses nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonSetFacts {
    pub uid: String,
    pub resource_version: String,
    /// The labels that its nodes have.
    pub node_selector: BTreeMap<String, String>,
    /// The terms of its node affinity, of which its nodes match one; `None` if it has none.
    pub terms: Option<Vec<NodeSelectorTerm>>,
}

impl DaemonSetFacts {
    /// Returns whether its node selector and its node affinity choose the node of this name with these labels.
    pub fn wants(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let selected = self.node_selector.iter().all(|(name, value)| labels.get(name) == Some(value));
        selected && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| matches(term, node, labels)))
    }
}

/// Returns whether a term matches a node; an empty one matches none.
fn matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let by_label = |required: &NodeSelectorRequirement| holds(required, labels.get(&required.key).map(String::as_str));
    let by_field = |required: &NodeSelectorRequirement| required.key == "metadata.name" && holds(required, Some(node));
    let is_empty = expressions.is_empty() && fields.is_empty();
    !is_empty && expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_one_of = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => is_one_of(),
        "NotIn" => !is_one_of(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, than)| value > than),
        "Lt" => numbers().is_some_and(|(value, than)| value < than),
        _ => false,
    }
}

impl Projection for CsiNodeFacts {
    type Object = CSINode;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    fn matters(&self, old: &Self) -> bool {
        self.drivers != old.drivers
    }

    fn project(object: &CSINode) -> Option<Self> {
        Some(Self {
            resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
            drivers: object.spec.drivers.iter().map(|driver| driver.name.clone()).collect(),
        })
    }
}

impl Projection for DaemonSetFacts {
    type Object = DaemonSet;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// A status changes with each pod, and says nothing about one node.
    fn matters(&self, old: &Self) -> bool {
        Self { resource_version: old.resource_version.clone(), ..self.clone() } != *old
    }

    fn project(object: &DaemonSet) -> Option<Self> {
        let meta = &object.metadata;
        let pod = object.spec.template.spec.as_ref();
        let affinity = pod.and_then(|pod| pod.affinity.as_ref()?.node_affinity.as_ref());
        let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        Some(Self {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            node_selector: pod.and_then(|pod| pod.node_selector.clone()).unwrap_or_default(),
            terms: required.map(|selector| selector.node_selector_terms.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn daemon_set_wants_the_nodes_that_its_selector_and_its_affinity_choose() {
        let labels = [("kubernetes.io/os", "linux"), ("gpus", "8")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let by = |key: &str, operator: &str, values: serde_json::Value| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let by_name =
            |name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        let linux = json!({"kubernetes.io/os": "linux"});
        for (sentence, selector, terms, expected) in [
            ("all nodes", json!({}), json!(null), true),
            ("by label", linux.clone(), json!(null), true),
            ("of another system", json!({"kubernetes.io/os": "windows"}), json!(null), false),
            ("without a term", linux.clone(), json!([]), false),
            ("an empty term", json!({}), json!([{}]), false),
            (
                "one of two terms",
                json!({}),
                json!([{}, {"matchExpressions": [{"key": "gpus", "operator": "Exists"}]}]),
                true,
            ),
            ("In", json!({}), by("gpus", "In", json!(["4", "8"])), true),
            ("NotIn", json!({}), by("gpus", "NotIn", json!(["8"])), false),
            ("DoesNotExist", json!({}), by("gpus", "DoesNotExist", json!(null)), false),
            ("Gt", json!({}), by("gpus", "Gt", json!(["7"])), true),
            ("Lt", json!({}), by("gpus", "Lt", json!(["8"])), false),
            ("another operator", json!({}), by("gpus", "Like", json!(["8"])), false),
            ("its name", json!({}), by_name("a"), true),
            ("another name", json!({}), by_name("b"), false),
            ("its name, of another system", json!({"kubernetes.io/os": "windows"}), by_name("a"), false),
        ] {
            let affinity = match terms {
                serde_json::Value::Null => json!(null),
                terms => json!({"nodeAffinity":
                    {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}),
            };
            let set = json!({
                "metadata": {"name": "driver", "namespace": "gpu", "uid": "d"},
                "spec": {"selector": {}, "template": {"spec":
                    {"containers": [], "nodeSelector": selector, "affinity": affinity}}},
            });
            let facts = DaemonSetFacts::project(&serde_json::from_value(set).unwrap()).unwrap();
            assert_eq!(facts.wants("a", &labels), expected, "{sentence}");
        }
    }

    #[test]
    fn csi_node_has_the_drivers_that_its_kubelet_has_registered() {
        let object =
            json!({"metadata": {"name": "a"}, "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "i-1"}]}});
        let facts = CsiNodeFacts::project(&serde_json::from_value(object).unwrap()).unwrap();
        assert_eq!(&*facts.drivers, ["ebs.csi.aws.com".to_owned()]);
    }
}
