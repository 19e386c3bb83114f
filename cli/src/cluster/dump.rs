//! The part of a cluster that a plan needs, in one file, so that it can be made elsewhere (`plan --dump`, `plan --from-dump`).
//!
//! It has no Secret, no password and no environment variable: of a pod, what decides about its eviction is kept.

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::{Api, ListParams};
use models::names;
use models::operator::{BottlerocketUpdateOperator, without_user_information};
use models::shadow::BottlerocketShadow;
use planner::simulation::UpdateDurations;
use planner::view::{BudgetFacts, DaemonSetState, EarlierPod, PodFacts, Projection as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::lease::ControllerLease;
use super::{AgentPod, Cluster};
use crate::call::{get, if_there, list_each, list_everywhere, list_in, nodes};

/// Form of a dump that this version writes and reads.
const FORM: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Dump {
    form: u32,
    /// The time at which it was made.
    pub(crate) time: Timestamp,
    namespace: String,
    operator: Option<Value>,
    shadows: Vec<Value>,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    budgets: Vec<Value>,
    lease: Option<Value>,
    /// Durations of the last updates.
    pub(crate) updates: Vec<UpdateDurations>,
}

/// Removes what no plan needs, and what may be secret.
fn trimmed(object: impl Serialize) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(object).context("an object of the cluster is no JSON")?;
    if let Some(annotations) = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| name.starts_with(names::GROUP) || name == "kubernetes.io/config.mirror");
    }
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
    Ok(value)
}

/// The same for the operator's resource, without the credentials that an earlier schema accepted.
fn trimmed_operator(operator: impl Serialize) -> anyhow::Result<Value> {
    let text = without_user_information(&trimmed(operator)?.to_string());
    serde_json::from_str(&text).context("the operator's resource is no JSON")
}

/// The same for a pod: its containers keep their names alone, and its volumes what holds up a drain.
fn trimmed_pod(pod: &Pod) -> anyhow::Result<Value> {
    let mut value = trimmed(pod)?;
    if let Some(meta) = value["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(value) };
    const KEPT: [&str; 6] =
        ["nodeName", "tolerations", "priority", "terminationGracePeriodSeconds", "volumes", "containers"];
    spec.retain(|field, _| KEPT.contains(&field.as_str()));
    for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
        *container = json!({"name": container["name"]});
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        let kept = ["name", "emptyDir", "persistentVolumeClaim"];
        if let Some(fields) = volume.as_object_mut() {
            let ephemeral = fields.contains_key("ephemeral");
            fields.retain(|field, _| kept.contains(&field.as_str()));
            if ephemeral {
                fields.insert("ephemeral".to_owned(), json!({}));
            }
        }
    }
    Ok(value)
}

impl Dump {
    /// Reads the cluster. Unlike a status, a plan is not made without any of these.
    pub(crate) async fn read(client: &Client, namespace: &str, updates: Vec<UpdateDurations>) -> anyhow::Result<Self> {
        let operator: Option<BottlerocketUpdateOperator> = get(client, namespace, names::OPERATOR_NAME).await?;
        let shadows = list_in::<BottlerocketShadow>(client, namespace, ListParams::default()).await;
        let shadows = if_there(shadows)?.with_context(|| {
            format!("the cluster has no definition {}: the operator is not installed", names::SHADOW_DEFINITION)
        })?;
        let nodes = nodes(client).await?;
        let mut pods = Vec::new();
        let all: Api<Pod> = Api::all(client.clone());
        list_each(&all, ListParams::default(), |pod| pods.push(trimmed_pod(&pod))).await?;
        let budgets: Vec<PodDisruptionBudget> = list_everywhere(client, ListParams::default()).await?;
        let lease: Option<Lease> = get(client, namespace, names::CONTROLLER).await?;
        Ok(Self {
            form: FORM,
            time: crate::clock::now(),
            namespace: namespace.to_owned(),
            operator: operator.map(trimmed_operator).transpose()?,
            shadows: shadows.into_iter().map(trimmed).collect::<Result<_, _>>()?,
            nodes: nodes.into_iter().map(trimmed).collect::<Result<_, _>>()?,
            pods: pods.into_iter().collect::<Result<_, _>>()?,
            budgets: budgets.into_iter().map(trimmed).collect::<Result<_, _>>()?,
            lease: lease.map(trimmed).transpose()?,
            updates,
        })
    }

    pub(crate) fn parse(value: Value) -> anyhow::Result<Self> {
        let form = value.get("form").and_then(Value::as_u64).context("the file is no dump: it has no form")?;
        ensure!(form == u64::from(FORM), "the dump has the form {form}, and this version reads the form {FORM}");
        serde_json::from_value(value).context("the dump is incomplete")
    }

    pub(crate) fn cluster(&self) -> anyhow::Result<Cluster> {
        fn typed<K: serde::de::DeserializeOwned>(object: &Value) -> anyhow::Result<K> {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            serde_json::from_value(object.clone()).with_context(|| format!("{name} in the dump cannot be read"))
        }
        let mut cluster = Cluster {
            namespace: self.namespace.clone(),
            nodes: Some(Default::default()),
            own: Some(Default::default()),
            agents: Some(Vec::new()),
            ..Cluster::default()
        };
        if let Some(operator) = &self.operator {
            cluster.add_operator(&typed(operator)?);
        }
        for shadow in &self.shadows {
            cluster.add_shadow(&typed(shadow)?);
        }
        for node in &self.nodes {
            cluster.add_node(&typed(node)?);
        }
        for pod in &self.pods {
            let pod: Pod = typed(pod)?;
            cluster.earlier_pods.extend(EarlierPod::project(&pod).map(|pod| pod.title));
            // The controller reads each DaemonSet. Its findings are in its `Blocked` condition.
            let facts = PodFacts { daemon_set_state: DaemonSetState::There, ..PodFacts::of(&pod) };
            if facts.namespace == self.namespace && [names::CONTROLLER, names::APISERVER].iter().any(|c| facts.is_of(c))
            {
                cluster.own.get_or_insert_default().insert(facts.name.clone(), facts.clone());
            }
            if facts.namespace == names::AGENT_NAMESPACE && facts.is_of(names::AGENT) {
                cluster.agents.get_or_insert_default().push(AgentPod::of(&pod));
            }
            if !facts.node.is_empty() {
                cluster.pods.entry(facts.node.clone()).or_default().push(facts);
            }
        }
        cluster.earlier_pods.sort();
        cluster.lease = Some(ControllerLease::of(self.lease.as_ref().map(typed).transpose()?, self.time));
        for budget in &self.budgets {
            cluster.budgets.extend(BudgetFacts::project(&typed(budget)?));
        }
        Ok(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_of_operator_has_no_password_of_a_stored_url() {
        let spec = json!({"prometheus": {"url": "http://me:hunter2@p:9090"}});
        let object =
            json!({"metadata": {"name": "default"}, "spec": spec, "status": {"policyInForce": spec.to_string()}});
        let kept = trimmed_operator(&object).unwrap();
        let spec = json!({"prometheus": {"url": "http://p:9090"}});
        assert_eq!(kept["spec"], spec);
        assert_eq!(kept["status"]["policyInForce"], spec.to_string());
    }

    #[test]
    fn dump_of_pod_has_what_decides_about_its_eviction_and_no_secret() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"},
                "managedFields": [{"manager": "hunter2"}],
            },
            "spec": {
                "nodeName": "a", "terminationGracePeriodSeconds": 45,
                "containers": [{"name": "web", "image": "i", "env": [{"name": "PASSWORD", "value": "hunter2"}],
                    "args": ["--password=hunter2"]}],
                "volumes": [{"name": "data", "emptyDir": {}}, {"name": "key", "secret": {"secretName": "hunter2"}}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let kept = trimmed_pod(&pod).unwrap();
        assert!(!kept.to_string().contains("hunter2"), "{kept}");
        let again: Pod = serde_json::from_value(kept).unwrap();
        assert_eq!(PodFacts::of(&again), PodFacts::of(&pod));
    }
}
