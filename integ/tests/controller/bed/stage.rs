//! A control plane with the operator's definitions and rights, on which cases take turns.

use std::time::Duration;

use anyhow::Context as _;
use integ::bed::workload;
use integ::control_plane::{self, ControlPlane};
use integ::oracle::service_account;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PropagationPolicy};
use kube::{Api, Client, ResourceExt as _};
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use super::SHOP;

/// The controllers whose effects cases see. The script is the kubelets and their monitoring, and creates the operator's own pods.
const CONTROLLERS: &str = "serviceaccount-controller,root-ca-certificate-publisher-controller,replicaset-controller,\
                           deployment-controller,job-controller,disruption-controller,garbage-collector-controller";

/// Longest wait until a stage is empty.
const LIMIT: Duration = Duration::from_secs(300);

/// The kinds of objects that a case may leave, in the order in which they are deleted: no controller brings back what is deleted later.
const KINDS: &[(&str, &str, &str)] = &[
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("batch/v1", "Job", "jobs"),
    ("v1", "Pod", "pods"),
    ("v1", "Service", "services"),
    ("storage.k8s.io/v1", "CSINode", "csinodes"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("v1", "Node", "nodes"),
    ("brupop.bottlerocket.aws/v3", "BottlerocketShadow", "bottlerocketshadows"),
    ("brupop.bottlerocket.aws/v1", "BottlerocketUpdateOperator", "bottlerocketupdateoperators"),
    ("brupop.bottlerocket.aws/v1", "BottlerocketRolloutHistory", "bottlerocketrollouthistories"),
    ("v1", "ResourceQuota", "resourcequotas"),
    ("apps/v1", "ControllerRevision", "controllerrevisions"),
    ("coordination.k8s.io/v1", "Lease", "leases"),
    ("v1", "Secret", "secrets"),
    ("v1", "ConfigMap", "configmaps"),
    ("events.k8s.io/v1", "Event", "events"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
];

/// Namespaces of cases' objects, and of objects that controllers write about them.
const NAMESPACES: [&str; 5] = [SHOP, SYSTEM_NAMESPACE, AGENT_NAMESPACE, "default", "kube-node-lease"];

/// A control plane that one case at a time uses.
pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    /// An administrator's client.
    pub(crate) client: Client,
    /// The templates of the operator's own pods.
    pub(super) templates: Templates,
}

/// The objects whose pods the script creates.
pub(super) struct Templates {
    /// The DaemonSet of the agents, as it is stored.
    pub(super) agent: Value,
    /// The Deployment of the web API.
    pub(super) apiserver: Value,
}

impl Stage {
    /// Starts a control plane and installs what the controller needs. Where it does not keep its revisions, etcd stays small.
    pub(crate) async fn start(keep_revisions: bool) -> anyhow::Result<Self> {
        let options =
            control_plane::Options { controllers: CONTROLLERS, keep_revisions, ..control_plane::Options::default() };
        let control_plane = ControlPlane::start(options).await?;
        let client = control_plane.client();
        let is = |object: &Value, kind: &str| object["kind"] == kind;
        let objects = deploy::objects(&deploy::Options::default())?;
        let apiserver = objects
            .iter()
            .find(|object| is(object, "Deployment") && object["metadata"]["name"] == models::names::APISERVER)
            .context("no Deployment of the web API")?
            .clone();
        let agent =
            objects.iter().find(|object| is(object, "DaemonSet")).context("no DaemonSet of the agents")?.clone();
        // The case is the administrator who creates the policy; the script creates pods, so that no budget counts them.
        let left_out = ["Deployment", "PodDisruptionBudget", "BottlerocketUpdateOperator"];
        let installed = objects.into_iter().filter(|object| !left_out.iter().any(|kind| is(object, kind)));
        workload::apply(&client, installed.collect()).await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}});
        workload::apply(&client, vec![namespace]).await?;
        let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::DaemonSet>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), AGENT_NAMESPACE, &resource);
        let agent = api.get(agent["metadata"]["name"].as_str().unwrap_or_default()).await?;
        let templates = Templates { agent: serde_json::to_value(&agent)?, apiserver };
        let stage = Self { control_plane, client, templates };
        stage.accounts_exist().await?;
        Ok(stage)
    }

    /// Configuration of a client that is a service account of the operator's namespace.
    pub(super) fn config_of(&self, account: &str) -> anyhow::Result<kube::Config> {
        let user = service_account(SYSTEM_NAMESPACE, account);
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{SYSTEM_NAMESPACE}")];
        self.control_plane.config_as(&user, &groups)
    }

    /// Waits until pods can be created in the namespaces of workloads.
    async fn accounts_exist(&self) -> anyhow::Result<()> {
        let api: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(self.client.clone(), SHOP);
        let created = async {
            while api.get_opt("default").await?.is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, created).await.context("no ServiceAccount `default` is created")?
    }

    fn apis(&self) -> impl Iterator<Item = (&'static str, &'static str, Api<DynamicObject>)> {
        KINDS.iter().flat_map(|(version, kind, plural)| {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let resource = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
                kind: (*kind).to_owned(),
                plural: (*plural).to_owned(),
            };
            let cluster_wide = matches!(*kind, "Node" | "CSINode") || group == "admissionregistration.k8s.io";
            let namespaces: &[&'static str] = if cluster_wide { &[""] } else { &NAMESPACES };
            let client = self.client.clone();
            namespaces.iter().map(move |namespace| {
                let api = match *namespace {
                    "" => Api::all_with(client.clone(), &resource),
                    namespace => Api::namespaced_with(client.clone(), namespace, &resource),
                };
                (*kind, *namespace, api)
            })
        })
    }

    /// Objects that a stage without a case has.
    fn stays(kind: &str, object: &DynamicObject) -> bool {
        let name = object.name_any();
        kind == "ConfigMap" && name == "kube-root-ca.crt"
            || ["Service", "DaemonSet"].contains(&kind) && installed(object)
    }

    /// Deletes everything that a case has left, and checks that nothing is left.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let clear = async {
            loop {
                let mut left = Vec::new();
                for (kind, namespace, api) in self.apis() {
                    for object in api.list(&ListParams::default()).await?.items {
                        if Self::stays(kind, &object) {
                            continue;
                        }
                        let name = object.name_any();
                        match api.delete(&name, &at_once).await {
                            Ok(_) => {}
                            Err(kube::Error::Api(status)) if status.code == 404 => {}
                            Err(error) => return Err(error).with_context(|| format!("{kind} {namespace}/{name}")),
                        }
                        left.push(format!("{kind} {namespace}/{name}"));
                    }
                }
                if left.is_empty() {
                    return Ok(());
                }
            }
        };
        tokio::time::timeout(LIMIT, clear).await.context("the control plane is not empty again")?
    }
}

/// True for an object of the installation.
fn installed(object: &DynamicObject) -> bool {
    let managers = object.metadata.managed_fields.iter().flatten();
    managers.into_iter().any(|entry| entry.manager.as_deref() == Some("brupop-install"))
        || object.name_any() == "kubernetes"
}
