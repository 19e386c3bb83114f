//! Facts about the earlier operator in a cluster, each read from one object. Nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use models::earlier::{self, EarlierShadow};
use models::names;
use serde_json::Value;

use crate::helm::Releases;
use crate::marks::{NodeState, Tool};
use crate::swap::Definition;

#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The reason why the cluster's version is too old, if it is.
    pub(super) outdated: Option<String>,
    pub(super) definition: Option<Definition>,
    pub(super) conversion: Conversion,
    pub(super) workloads: Vec<Workload>,
    pub(super) pods: Vec<Pod>,
    pub(super) shadows: Vec<Shadow>,
    /// Shadows that `takeover swap` has recorded: most of them are deleted.
    pub(super) recorded: Vec<Shadow>,
    /// Shadows that the API server returns in no version, as `namespace/name`.
    pub(super) unreadable: Vec<String>,
    pub(super) nodes: Vec<NodeState>,
    /// The tools of the definition that `takeover swap` has recorded.
    pub(super) recorded_tools: Vec<Tool>,
    pub(super) releases: Releases,
    /// The rights of a takeover that the user lacks, as verb and resource.
    pub(super) missing_rights: Vec<String>,
    /// Sentences about what could not be read.
    pub(super) unread: Vec<String>,
    /// True if there was no time to read all shadows.
    pub(super) incomplete: bool,
}

impl Facts {
    /// Returns the shadow of a node that still exists under the same uid.
    pub(super) fn shadow_of(&self, node: &NodeState) -> Option<&Shadow> {
        self.shadows.iter().find(|shadow| shadow.belongs_to(node))
    }

    /// Returns whether the shadow of a node is among those that cannot be read.
    pub(super) fn is_unreadable(&self, node: &NodeState) -> bool {
        let name = format!("/{}", names::shadow_name(&node.name));
        self.unreadable.iter().any(|id| id.ends_with(&name))
    }

    /// Returns whether the earlier operator has, or had before the swap, a shadow of this Node. Without the definition there is none, and
    /// the label counts.
    pub(super) fn is_of_earlier(&self, node: &NodeState) -> bool {
        let had_shadow = self.shadows.iter().chain(&self.recorded).any(|shadow| shadow.belongs_to(node));
        had_shadow || (self.definition.is_none() && node.is_labelled())
    }

    /// Returns the tools that applied the earlier operator's definition.
    pub(super) fn tools_of_definition(&self) -> &[Tool] {
        match &self.definition {
            // It may have another owner since, such as a chart of this operator.
            Some(definition) if definition.ours => &self.recorded_tools,
            Some(definition) => &definition.tools,
            None => &[],
        }
    }

    /// Returns the namespaces of the earlier operator, without repetition.
    pub(super) fn namespaces(&self) -> Vec<String> {
        let all = self.workloads.iter().map(|workload| &workload.namespace);
        let all = all.chain(self.pods.iter().filter_map(|pod| pod.metadata.namespace.as_ref()));
        let all: BTreeSet<&String> = all.chain(self.shadows.iter().map(|shadow| &shadow.namespace)).collect();
        all.into_iter().cloned().collect()
    }
}

/// The result of reading one shadow at the version that is not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Conversion {
    /// The definition has no conversion webhook.
    #[default]
    NoWebhook,
    /// There was no shadow to try it with.
    Untested,
    Answers,
    /// It does not answer, for this reason.
    Fails(String),
}

/// A workload whose pods are the earlier operator's.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// True for the releases 0.1.
    pub(super) first_releases: bool,
    pub(super) images: Vec<String>,
    pub(super) selector: BTreeMap<String, String>,
    /// Environment variables of its containers; `None` for a value that another object holds.
    pub(super) environment: BTreeMap<String, Option<String>>,
    pub(super) tools: Vec<Tool>,
    /// True if it is known from the record of `takeover swap`, which has deleted it.
    pub(super) recorded: bool,
}

impl Workload {
    /// Reads a Deployment or DaemonSet, whatever is in it; `None` if it is not the earlier operator's.
    pub(super) fn of(workload: &Value) -> Option<Self> {
        let (meta, spec) = (&workload["metadata"], &workload["spec"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts =
            |value: &Value| -> BTreeMap<String, String> { serde_json::from_value(value.clone()).unwrap_or_default() };
        let labels = texts(&spec["template"]["metadata"]["labels"]);
        let containers = || spec["template"]["spec"]["containers"].as_array().into_iter().flatten();
        let variables = containers().flat_map(|container| container["env"].as_array().into_iter().flatten());
        earlier::is_pod_of(&labels).then(|| Self {
            kind: text(&workload["kind"]),
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]),
            first_releases: labels.contains_key(earlier::FIRST_RELEASES_LABEL),
            images: containers().filter_map(|container| Some(container["image"].as_str()?.to_owned())).collect(),
            selector: texts(&spec["selector"]["matchLabels"]),
            environment: variables
                .map(|variable| {
                    // A variable without both is empty.
                    let value = variable["value"].as_str().map(str::to_owned);
                    (text(&variable["name"]), value.or_else(|| variable["valueFrom"].is_null().then(String::new)))
                })
                .collect(),
            tools: Tool::all_of_kept(workload),
            recorded: false,
        })
    }

    /// Returns kind, namespace and name, for messages.
    pub(super) fn id(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    pub(super) fn makes(&self, pod: &Pod) -> bool {
        let selects = |(name, value): (&String, &String)| pod.labels().get(name) == Some(value);
        pod.metadata.namespace.as_ref() == Some(&self.namespace) && self.selector.iter().all(selects)
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = &str> {
        self.images.iter().filter_map(|image| {
            let name = image.rsplit('/').next()?.split('@').next()?;
            name.split_once(':').map(|(_, tag)| tag)
        })
    }
}

/// A shadow of the earlier operator.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    /// The uid of the Node that owns it.
    owner: Option<String>,
    pub(super) state: EarlierShadow,
    /// The version that its agent last reported as the one to update to, as text.
    pub(super) offered: Option<String>,
}

impl Shadow {
    /// Reads a shadow, whatever is in it.
    pub(super) fn of(shadow: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let meta = &shadow["metadata"];
        let name = text(&meta["name"]).unwrap_or_default();
        let owners = meta["ownerReferences"].as_array();
        Self {
            namespace: text(&meta["namespace"]).unwrap_or_default(),
            node: names::node_of_shadow(&name).to_owned(),
            name,
            owner: owners.into_iter().flatten().find(|o| o["kind"] == "Node").and_then(|o| text(&o["uid"])),
            state: EarlierShadow::read(shadow),
            offered: text(&shadow["status"]["target_version"]),
        }
    }

    /// Returns whether it is the shadow of this Node, and not of an earlier one of the same name.
    pub(super) fn belongs_to(&self, node: &NodeState) -> bool {
        self.node == node.name && self.owner.as_ref().is_none_or(|uid| *uid == node.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workload_is_recognized_by_its_pod_template() {
        let deployment = |labels: Value, image: &str| {
            let env = json!([
                {"name": "MAX_CONCURRENT_UPDATE", "value": "2"}, {"name": "EMPTY"},
                {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
            ]);
            json!({
                "metadata": {"namespace": "n", "name": "d"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [{"name": "c", "image": image, "env": env}]},
                    },
                },
            })
        };
        let labels = json!({"brupop.bottlerocket.aws/component": "brupop-controller"});
        for (image, tag) in [
            ("registry.example:5000/brupop:v1.4.0", Some("v1.4.0")),
            ("registry.example/brupop:v1.4.0@sha256:0", Some("v1.4.0")),
            ("registry.example:5000/brupop", None),
        ] {
            let found = Workload::of(&deployment(labels.clone(), image)).unwrap();
            assert_eq!(found.tags().next(), tag, "{image}");
            let value = |name: &str| found.environment[name].as_deref();
            assert_eq!((value("MAX_CONCURRENT_UPDATE"), value("EMPTY"), value("FROM")), (Some("2"), Some(""), None));
            let pod = |namespace: &str| -> Pod {
                let pod = json!({"metadata": {"namespace": namespace, "name": "p", "labels": labels}});
                serde_json::from_value(pod).unwrap()
            };
            assert!(found.makes(&pod("n")) && !found.makes(&pod("other")));
        }
        let ours = json!({"app.kubernetes.io/name": "brupop", "app.kubernetes.io/component": "brupop-controller"});
        assert!(Workload::of(&deployment(ours, "x")).is_none());
    }

    #[test]
    fn shadow_of_earlier_node_of_same_name_is_not_this_nodes() {
        let shadow = |uid: &str| {
            let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid}]);
            Shadow::of(&json!({"metadata": {"name": "brs-a", "namespace": "n", "ownerReferences": owner}}))
        };
        let node = NodeState { name: "a".to_owned(), uid: "1".to_owned(), ..NodeState::default() };
        assert!(shadow("1").belongs_to(&node) && !shadow("2").belongs_to(&node));
    }
}
