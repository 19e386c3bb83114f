//! Objects that the earlier operator and the tools that installed it have left their marks on.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use models::{earlier, names};
use planner::claims::owns;
use serde::Serialize;
use serde_json::Value;

/// A tool that applies an object, and may apply or delete it again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "tool")]
pub(crate) enum Tool {
    Helm {
        /// The release; `None` if the object does not name it.
        #[serde(rename = "name")]
        release: Option<String>,
        namespace: String,
    },
    #[serde(rename = "ArgoCD")]
    ArgoCd {
        #[serde(rename = "name")]
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
    /// The same for an object as JSON; none if its metadata cannot be read.
    pub(crate) fn all_of_kept(object: &Value) -> Vec<Self> {
        serde_json::from_value(object["metadata"].clone()).map(|meta| Self::all_of(&meta)).unwrap_or_default()
    }

    /// Returns the tools that have left their labels and annotations on an object.
    pub(crate) fn all_of(meta: &ObjectMeta) -> Vec<Self> {
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
        // The label by which Argo CD tracks objects unless it is told otherwise, up to 2.x. Charts set it too.
        let instance =
            || label("app.kubernetes.io/instance").filter(|_| annotation("meta.helm.sh/release-name").is_none());
        if let Some(application) = label("argocd.argoproj.io/instance").or_else(tracked).or_else(instance) {
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

    /// Returns the named release of Helm that it is, and the namespace of that release.
    pub(crate) fn release(self) -> Option<(String, String)> {
        let Self::Helm { release, namespace } = self else { return None };
        Some((release?, namespace))
    }
}

/// Returns the advice about the way of removal that no label shows: the manifest that the earlier operator was released with.
pub(crate) fn not_by_manifest() -> String {
    format!(
        "do not delete the earlier operator by its manifest or a kustomization, with kubectl delete -f or -k: the definition {} is in it, \
         and every shadow of this operator would be deleted with it. Terraform and Pulumi delete it too once it is taken out of their \
         configuration: have them forget the definition first (Terraform: terraform state rm ADDRESS)",
        names::SHADOW_DEFINITION
    )
}

/// The owners of a field that is set on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    /// Field managers, without the operation.
    pub(crate) managers: Vec<String>,
    /// True if all of them wrote as the earlier operator does. Other clients without a name do so too.
    as_earlier: bool,
    /// True if all of them wrote as the controller of this operator does.
    as_controller: bool,
}

impl Owners {
    /// Returns the owners of a field, by its path.
    fn of(meta: &ObjectMeta, path: &[&str]) -> Self {
        let entries = meta.managed_fields.iter().flatten().filter(|entry| owns(entry, path));
        let mut owners = Self { managers: Vec::new(), as_earlier: true, as_controller: true };
        for entry in entries {
            let manager = entry.manager.clone().unwrap_or_default();
            let operation = entry.operation.as_deref();
            owners.as_earlier &= manager == earlier::MANAGER && operation == Some("Update");
            owners.as_controller &= manager == names::CONTROLLER_MANAGER && operation == Some("Apply");
            owners.managers.push(manager);
        }
        owners
    }

    /// Returns whether the field was most likely set by the earlier operator, given that the node has a shadow of it.
    pub(crate) fn are_earlier(&self) -> bool {
        self.as_earlier && !self.managers.is_empty()
    }

    /// Returns whether this operator alone has set the field, and so removes it.
    fn are_own(&self) -> bool {
        self.as_controller && !self.managers.is_empty()
    }
}

/// A Node, as far as the earlier operator may have left something on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The value of the label that selects it.
    pub(crate) interface: Option<String>,
    pub(crate) ready: bool,
    /// The owners of its cordon, if it is cordoned, unless the cordon is this operator's alone.
    pub(crate) cordon: Option<Owners>,
    /// The owners of the balancer label, if it has the value that the earlier operator sets.
    pub(crate) balancer: Option<Owners>,
}

impl NodeState {
    pub(crate) fn of(node: &Node) -> Self {
        let meta = &node.metadata;
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let conditions = node.status.iter().map(|status| status.conditions.iter().flatten());
        let label = |name: &str| node.labels().get(name).cloned();
        let balancer = label(names::BALANCER_LABEL).filter(|value| value == earlier::BALANCER_VALUE);
        Self {
            name: node.name_any(),
            uid: meta.uid.clone().unwrap_or_default(),
            interface: label(names::INTERFACE_LABEL),
            ready: conditions.flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            cordon: cordoned.then(|| Owners::of(meta, &["spec", "unschedulable"])).filter(|owners| !owners.are_own()),
            balancer: balancer.map(|_| Owners::of(meta, &["metadata", "labels", names::BALANCER_LABEL])),
        }
    }

    /// Returns whether the label that keeps it out of load balancers is most likely the earlier operator's; `had_shadow`: that has, or had,
    /// a shadow of this Node.
    pub(crate) fn has_earlier_balancer_label(&self, had_shadow: bool) -> bool {
        had_shadow && self.balancer.as_ref().is_some_and(Owners::are_earlier)
    }

    /// Returns whether it has the label with the value that this operator selects.
    pub(crate) fn is_labelled(&self) -> bool {
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
        let (managed_by, instance) = ("app.kubernetes.io/managed-by", "app.kubernetes.io/instance");
        let label = |key: &str, value: &str| json!({"labels": {key: value}});
        let of_flux = |tool: &str| {
            let key = |part: &str| format!("{tool}.toolkit.fluxcd.io/{part}");
            json!({"labels": {key("name"): "x", key("namespace"): "flux-system"}})
        };
        let release = json!({"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "n"});
        let of_chart = json!({"labels": {instance: "app", managed_by: "Helm"}, "annotations": release});
        let tracked = json!({"annotations": {"argocd.argoproj.io/tracking-id": "app:apps/Deployment:n/x"}});
        for (sentence, object, expected) in [
            ("no tool", label(managed_by, "brupop"), vec![]),
            ("a release", json!({"annotations": release}), vec![helm(Some("r"))]),
            ("Helm without a release", json!({"namespace": "n", "labels": {managed_by: "Helm"}}), vec![helm(None)]),
            ("an application by Kubernetes' label", label(instance, "app"), argo()),
            ("the same label of a chart", of_chart, vec![helm(Some("r"))]),
            ("an application by label", label("argocd.argoproj.io/instance", "app"), argo()),
            ("an application by annotation", tracked, argo()),
            ("a Kustomization", of_flux("kustomize"), flux("kustomization")),
            ("a HelmRelease", of_flux("helm"), flux("helmrelease")),
        ] {
            assert_eq!(Tool::all_of(&meta(object)), expected, "{sentence}");
        }
    }

    #[test]
    fn cordon_is_attributed_only_if_no_other_manager_owns_it_and_one_of_this_operator_is_not_left() {
        let entry = |manager: &str, operation: &str, fields: &Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
        let cordon = json!({"f:spec": {"f:unschedulable": {}}});
        let other = json!({"f:spec": {"f:taints": {}}});
        let own = || entry(names::CONTROLLER_MANAGER, "Apply", &cordon);
        for (sentence, entries, expected) in [
            ("as the earlier operator writes", json!([entry("unknown", "Update", &cordon)]), Some(true)),
            (
                "one owns others",
                json!([entry("unknown", "Update", &cordon), entry("kubelet", "Update", &other)]),
                Some(true),
            ),
            ("kubectl", json!([entry("kubectl", "Update", &cordon)]), Some(false)),
            ("both", json!([entry("unknown", "Update", &cordon), entry("kubectl", "Update", &cordon)]), Some(false)),
            ("an apply", json!([entry("unknown", "Apply", &cordon)]), Some(false)),
            ("no owner", json!([entry("kubelet", "Update", &other)]), Some(false)),
            ("this operator", json!([own()]), None),
            ("this operator and kubectl", json!([own(), entry("kubectl", "Update", &cordon)]), Some(false)),
        ] {
            let node = json!({"metadata": {"name": "a", "managedFields": entries}, "spec": {"unschedulable": true}});
            let node = NodeState::of(&serde_json::from_value(node).unwrap());
            assert_eq!(node.cordon.map(|owners| owners.are_earlier()), expected, "{sentence}");
        }
        let free = json!({"metadata": {"name": "a", "labels": {names::BALANCER_LABEL: "brupop"}}, "spec": {}});
        let free = NodeState::of(&serde_json::from_value(free).unwrap());
        assert_eq!((free.cordon, free.balancer), (None, None));
    }
}
