//! Facts about the earlier operator in a cluster, each read from one object. Nothing is decided here.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt as _;
use models::earlier::{self, EarlierShadow};
use models::names;
use serde_json::Value;

use crate::uninstall::is_marked;

/// Everything that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The reason why the cluster's version is too old, if it is.
    pub(super) outdated: Option<String>,
    pub(super) definition: Option<Definition>,
    pub(super) workloads: Vec<Workload>,
    pub(super) pods: Vec<OperatorPod>,
    pub(super) shadows: Vec<Shadow>,
    /// Shadows that the API server returns in no version, as `namespace/name`.
    pub(super) unreadable: Vec<String>,
    pub(super) nodes: Vec<NodeState>,
    pub(super) releases: Vec<HelmRelease>,
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

    /// Returns the namespaces of the earlier operator, without repetition.
    pub(super) fn namespaces(&self) -> Vec<String> {
        let all = self.workloads.iter().map(|workload| &workload.namespace);
        let all = all.chain(self.pods.iter().map(|pod| &pod.namespace));
        let mut all: Vec<String> = all.chain(self.shadows.iter().map(|shadow| &shadow.namespace)).cloned().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The result of reading one shadow at the version that is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// The definition has no conversion webhook.
    NoWebhook,
    /// There was no shadow to try it with.
    Untested,
    Answers,
    /// It does not answer, for this reason.
    Fails(String),
}

/// The definition of the shadows.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) versions: Vec<String>,
    pub(super) served: Vec<String>,
    pub(super) storage: String,
    pub(super) stored: Vec<String>,
    /// Versions of the conversion reviews, in their order: it changed with release 1.1.0.
    pub(super) reviews: Vec<String>,
    pub(super) conversion: Conversion,
    pub(super) tools: Vec<Tool>,
    /// True if it has the label of this operator's installation.
    pub(super) ours: bool,
    pub(super) deleting: bool,
}

impl Definition {
    /// Reads a definition; the webhook is not tried here.
    pub(super) fn of(definition: &CustomResourceDefinition) -> Self {
        let spec = &definition.spec;
        let webhook = spec.conversion.as_ref().filter(|conversion| conversion.strategy == "Webhook");
        let stored = definition.status.as_ref().and_then(|status| status.stored_versions.clone());
        Self {
            versions: spec.versions.iter().map(|version| version.name.clone()).collect(),
            served: spec.versions.iter().filter(|v| v.served).map(|version| version.name.clone()).collect(),
            storage: spec.versions.iter().find(|v| v.storage).map(|version| version.name.clone()).unwrap_or_default(),
            stored: stored.unwrap_or_default(),
            reviews: webhook
                .and_then(|conversion| conversion.webhook.as_ref())
                .map(|webhook| webhook.conversion_review_versions.clone())
                .unwrap_or_default(),
            conversion: if webhook.is_some() { Conversion::Untested } else { Conversion::NoWebhook },
            tools: Tool::all_of(&definition.metadata),
            ours: is_marked(&definition.metadata),
            deleting: definition.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// A tool that applies an object, and may apply or delete it again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tool {
    Helm {
        /// The release; `None` if the object does not name it.
        release: Option<String>,
        namespace: String,
    },
    ArgoCd {
        application: String,
    },
    Flux {
        /// `kustomization` or `helmrelease`.
        kind: &'static str,
        name: String,
        namespace: String,
    },
}

impl Tool {
    /// Returns the tools that have left their labels and annotations on an object.
    pub(super) fn all_of(meta: &ObjectMeta) -> Vec<Self> {
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let namespace = |found: Option<String>| found.or_else(|| meta.namespace.clone()).unwrap_or_default();
        let mut found = Vec::new();
        let release = annotation("meta.helm.sh/release-name");
        if release.is_some() || label("app.kubernetes.io/managed-by").is_some_and(|value| value == "Helm") {
            found.push(Self::Helm { release, namespace: namespace(annotation("meta.helm.sh/release-namespace")) });
        }
        // The id is application:group/kind:namespace/name.
        let tracked = || annotation("argocd.argoproj.io/tracking-id");
        let tracked = || tracked()?.split(':').next().map(str::to_owned);
        if let Some(application) = label("argocd.argoproj.io/instance").or_else(tracked) {
            found.push(Self::ArgoCd { application });
        }
        for (kind, prefix) in
            [("kustomization", "kustomize.toolkit.fluxcd.io"), ("helmrelease", "helm.toolkit.fluxcd.io")]
        {
            if let Some(name) = label(&format!("{prefix}/name")) {
                found.push(Self::Flux { kind, name, namespace: namespace(label(&format!("{prefix}/namespace"))) });
            }
        }
        found
    }
}

/// The record of a Helm release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HelmRelease {
    pub(super) namespace: String,
    pub(super) release: String,
    /// Names of its record Secrets.
    pub(super) records: Vec<String>,
}

/// A workload whose pods are the earlier operator's.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    /// True for the releases 0.1.
    pub(super) first_releases: bool,
    pub(super) images: Vec<String>,
    pub(super) selector: BTreeMap<String, String>,
    /// Environment variables of its containers; `None` for a value that another object holds.
    pub(super) environment: BTreeMap<String, Option<String>>,
    pub(super) tools: Vec<Tool>,
}

impl Workload {
    /// Reads a Deployment; `None` if it is not the earlier operator's.
    pub(super) fn of_deployment(deployment: &Deployment) -> Option<Self> {
        let spec = &deployment.spec;
        Self::of("Deployment", &deployment.metadata, &spec.selector, &spec.template)
    }

    /// Reads a DaemonSet; `None` if it is not the earlier operator's.
    pub(super) fn of_daemon_set(set: &DaemonSet) -> Option<Self> {
        let spec = &set.spec;
        Self::of("DaemonSet", &set.metadata, &spec.selector, &spec.template)
    }

    fn of(kind: &'static str, meta: &ObjectMeta, selector: &LabelSelector, template: &PodTemplateSpec) -> Option<Self> {
        let labels = template.metadata.as_ref()?.labels.as_ref().filter(|labels| earlier::is_pod_of(labels))?;
        let containers = || template.spec.iter().flat_map(|spec| &spec.containers);
        let variables = containers().flat_map(|container| container.env.iter().flatten());
        Some(Self {
            kind,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            first_releases: labels.contains_key(earlier::FIRST_RELEASES_LABEL),
            images: containers().filter_map(|container| container.image.clone()).collect(),
            selector: selector.match_labels.clone().unwrap_or_default(),
            environment: variables
                .map(|variable| {
                    // A variable without both is empty.
                    let value = variable.value.clone().or_else(|| variable.value_from.is_none().then(String::new));
                    (variable.name.clone(), value)
                })
                .collect(),
            tools: Tool::all_of(meta),
        })
    }

    /// Returns kind, namespace and name, for messages.
    pub(super) fn id(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    /// Returns whether it makes this pod.
    pub(super) fn makes(&self, pod: &OperatorPod) -> bool {
        self.namespace == pod.namespace && self.selector.iter().all(|(name, value)| pod.labels.get(name) == Some(value))
    }

    /// Returns the tags of its images.
    pub(super) fn tags(&self) -> impl Iterator<Item = &str> {
        self.images.iter().filter_map(|image| {
            let name = image.rsplit('/').next()?.split('@').next()?;
            name.split_once(':').map(|(_, tag)| tag)
        })
    }
}

/// A pod of the earlier operator.
#[derive(Clone, Debug)]
pub(super) struct OperatorPod {
    pub(super) namespace: String,
    pub(super) name: String,
    labels: BTreeMap<String, String>,
}

impl OperatorPod {
    /// Reads a pod; `None` if it is not the earlier operator's.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.metadata.labels.clone().filter(earlier::is_pod_of)?;
        Some(Self { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any(), labels })
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

/// The owners of a field that is set on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    /// Field managers, without the operation.
    pub(super) managers: Vec<String>,
    /// True if all of them wrote as the earlier operator does. Other clients without a name do so too.
    as_earlier: bool,
}

impl Owners {
    /// Returns the owners of a field, by its path in `managedFields`.
    fn of(meta: &ObjectMeta, path: &[&str]) -> Self {
        let owns = |fields: &Value| path.iter().try_fold(fields, |value, part| value.get(part)).is_some();
        let entries = meta.managed_fields.iter().flatten();
        let entries = entries.filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)));
        let mut owners = Self { managers: Vec::new(), as_earlier: true };
        for entry in entries {
            let manager = entry.manager.clone().unwrap_or_default();
            owners.as_earlier &= manager == earlier::MANAGER && entry.operation.as_deref() == Some("Update");
            owners.managers.push(manager);
        }
        owners
    }

    /// Returns whether the field was most likely set by the earlier operator, given that the node has a shadow of it.
    pub(super) fn are_earlier(&self) -> bool {
        self.as_earlier && !self.managers.is_empty()
    }
}

/// A Node, as far as the earlier operator may have left something on it.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) uid: String,
    /// The value of the label that selects it.
    pub(super) interface: Option<String>,
    /// The owners of its cordon, if it is cordoned.
    pub(super) cordon: Option<Owners>,
    /// The owners of the balancer label, if it has the value that the earlier operator sets.
    pub(super) balancer: Option<Owners>,
    /// Annotations of the releases 0.1.
    pub(super) old_annotations: Vec<String>,
    /// The label of the releases 0.1, if it has it.
    pub(super) old_label: Option<String>,
}

impl NodeState {
    /// Reads a Node.
    pub(super) fn of(node: &Node) -> Self {
        let meta = &node.metadata;
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let label = |name: &str| node.labels().get(name).cloned();
        let balancer = label(names::BALANCER_LABEL).filter(|value| value == earlier::BALANCER_VALUE);
        let of_first = |name: &&str| format!("{}{name}", earlier::FIRST_RELEASES_PREFIX);
        let annotations = earlier::FIRST_RELEASES_ANNOTATIONS.iter().map(of_first);
        Self {
            name: node.name_any(),
            uid: meta.uid.clone().unwrap_or_default(),
            interface: label(names::INTERFACE_LABEL),
            cordon: cordoned.then(|| Owners::of(meta, &["f:spec", "f:unschedulable"])),
            balancer: balancer
                .map(|_| Owners::of(meta, &["f:metadata", "f:labels", &format!("f:{}", names::BALANCER_LABEL)])),
            old_annotations: annotations.filter(|name| node.annotations().contains_key(name)).collect(),
            old_label: Some(of_first(&earlier::FIRST_RELEASES_NODE_LABEL)).filter(|name| label(name).is_some()),
        }
    }

    /// Returns whether the releases 0.1 have left anything on it.
    pub(super) fn is_marked(&self) -> bool {
        !self.old_annotations.is_empty() || self.old_label.is_some()
    }

    /// Returns whether it has the label with the value that this operator selects.
    pub(super) fn is_labelled(&self) -> bool {
        self.interface.as_deref() == Some(names::INTERFACE_VERSION)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn tools_are_recognized_by_their_labels_and_annotations() {
        let helm =
            |release: Option<&str>| Tool::Helm { release: release.map(str::to_owned), namespace: "n".to_owned() };
        let argo = || vec![Tool::ArgoCd { application: "app".to_owned() }];
        let flux = |kind| vec![Tool::Flux { kind, name: "x".to_owned(), namespace: "flux-system".to_owned() }];
        for (sentence, object, expected) in [
            ("no tool", json!({"labels": {"app.kubernetes.io/managed-by": "brupop"}}), vec![]),
            (
                "a release",
                json!({"annotations": {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"}}),
                vec![helm(Some("r"))],
            ),
            (
                "Helm without a release",
                json!({"namespace": "n", "labels": {"app.kubernetes.io/managed-by": "Helm"}}),
                vec![helm(None)],
            ),
            ("an application by label", json!({"labels": {"argocd.argoproj.io/instance": "app"}}), argo()),
            (
                "an application by annotation",
                json!({"annotations": {"argocd.argoproj.io/tracking-id": "app:apps/Deployment:n/x"}}),
                argo(),
            ),
            (
                "a Kustomization",
                json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "x", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}),
                flux("kustomization"),
            ),
            (
                "a HelmRelease",
                json!({"labels": {"helm.toolkit.fluxcd.io/name": "x", "helm.toolkit.fluxcd.io/namespace": "flux-system"}}),
                flux("helmrelease"),
            ),
        ] {
            assert_eq!(Tool::all_of(&meta(object)), expected, "{sentence}");
        }
    }

    #[test]
    fn cordon_is_attributed_only_if_no_other_manager_owns_it() {
        let entry = |manager: &str, operation: &str, fields: &Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
        let cordon = json!({"f:spec": {"f:unschedulable": {}}});
        let other = json!({"f:spec": {"f:taints": {}}});
        for (sentence, entries, expected) in [
            ("as the earlier operator writes", json!([entry("unknown", "Update", &cordon)]), true),
            (
                "another client owns other fields",
                json!([entry("unknown", "Update", &cordon), entry("kubelet", "Update", &other)]),
                true,
            ),
            ("kubectl", json!([entry("kubectl", "Update", &cordon)]), false),
            ("both", json!([entry("unknown", "Update", &cordon), entry("kubectl", "Update", &cordon)]), false),
            ("an apply", json!([entry("unknown", "Apply", &cordon)]), false),
            ("no owner", json!([entry("kubelet", "Update", &other)]), false),
        ] {
            let node = json!({"metadata": {"name": "a", "managedFields": entries}, "spec": {"unschedulable": true}});
            let node = NodeState::of(&serde_json::from_value(node).unwrap());
            assert_eq!(node.cordon.map(|owners| owners.are_earlier()), Some(expected), "{sentence}");
        }
        let free = json!({"metadata": {"name": "a", "labels": {names::BALANCER_LABEL: "brupop"}}, "spec": {}});
        let free = NodeState::of(&serde_json::from_value(free).unwrap());
        assert_eq!((free.cordon, free.balancer), (None, None));
    }

    #[test]
    fn workload_is_recognized_by_its_pod_template() {
        let deployment = |labels: Value, image: &str| -> Deployment {
            let env = json!([
                {"name": "MAX_CONCURRENT_UPDATE", "value": "2"}, {"name": "EMPTY"},
                {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
            ]);
            serde_json::from_value(json!({
                "metadata": {"namespace": "n", "name": "d"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [{"name": "c", "image": image, "env": env}]},
                    },
                },
            }))
            .unwrap()
        };
        let labels = json!({"brupop.bottlerocket.aws/component": "brupop-controller"});
        for (image, tag) in [
            ("registry.example:5000/brupop:v1.4.0", Some("v1.4.0")),
            ("registry.example/brupop:v1.4.0@sha256:0", Some("v1.4.0")),
            ("registry.example:5000/brupop", None),
        ] {
            let found = Workload::of_deployment(&deployment(labels.clone(), image)).unwrap();
            assert_eq!(found.tags().next(), tag, "{image}");
            let value = |name: &str| found.environment[name].as_deref();
            assert_eq!((value("MAX_CONCURRENT_UPDATE"), value("EMPTY"), value("FROM")), (Some("2"), Some(""), None));
            let pod = |namespace: &str| {
                let pod = json!({"metadata": {"namespace": namespace, "name": "p", "labels": labels}});
                OperatorPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
            };
            assert!(found.makes(&pod("n")) && !found.makes(&pod("other")));
        }
        let ours = json!({"app.kubernetes.io/name": "brupop", "app.kubernetes.io/component": "brupop-controller"});
        assert!(Workload::of_deployment(&deployment(ours, "x")).is_none());
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
