//! Hooks that Jobs answer. The Jobs and their pods are those of Kubernetes; the script is the kubelet that ends the pods.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::workload;
use integ::oracle::{ClusterState, Field};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use models::names::{
    HOLD_ANNOTATION, HOOK_ANSWER_PREFIX, HOOK_LABEL, JOB_NODE_ANNOTATION, JOB_PHASE_ANNOTATION, JOB_VERSION_ANNOTATION,
};
use serde_json::{Value, json};

use crate::bed::{NEW, SHOP, ScriptedCluster, poll};

crate::cases![jobs_answer_for_a_hook_and_take_back_what_they_have_prepared_also_where_a_hold_ends_the_attempt];

const NODE: &str = "node-1";

/// Grants the controller Jobs in the namespace of workloads, as the example does in its own.
async fn grant(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let is_of_jobs = |object: &Value| {
        object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("brupop-controller-job"))
    };
    let mut objects = deploy::everything()?;
    objects.retain(is_of_jobs);
    ensure!(!objects.is_empty(), "no policy for Jobs");
    let rights = include_str!("../../../examples/hooks/jobs-rights.yaml").replace("brupop-hooks", SHOP);
    objects.extend(serde_saphyr::from_multiple::<Value>(&rights)?);
    workload::apply(&cluster.client, objects).await
}

async fn create_template(cluster: &ScriptedCluster, name: &str) -> anyhow::Result<()> {
    let templates: Api<PodTemplate> = Api::namespaced(cluster.client.clone(), SHOP);
    let container = json!({"name": "hook", "image": "hook"});
    // No scheduler puts the pods on a node: the case alone ends them.
    let spec = json!({"restartPolicy": "Never", "schedulerName": "none", "containers": [container]});
    let template = json!({"metadata": {"name": name}, "template": {"spec": spec}});
    cluster.create(templates, template).await.map(drop)
}

/// Waits for a pod of a Job that has not ended.
async fn pod(cluster: &ScriptedCluster, phase: &str) -> anyhow::Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    poll(&format!("a pod runs {phase}"), async || {
        let all = pods.list(&ListParams::default().labels(HOOK_LABEL)).await?;
        Ok(all.items.into_iter().find(|pod| {
            let waits = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
            waits && pod.annotations().get(JOB_PHASE_ANNOTATION).is_some_and(|of| of == phase)
        }))
    })
    .await
}

/// Waits for the pod of a Job, and has it succeed.
async fn succeed(cluster: &ScriptedCluster, phase: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    let pod = pod(cluster, phase).await?;
    let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await?;
    Ok(())
}

/// Waits until nothing is left to take back: every Job is to be deleted after a time, and the Node has no answer.
async fn taken_back(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), SHOP);
    poll("everything is taken back", async || {
        let all = jobs.list(&ListParams::default().labels(HOOK_LABEL)).await?.items;
        let closes = |job: &Job| job.spec.as_ref().is_some_and(|spec| spec.ttl_seconds_after_finished.is_some());
        Ok(all.iter().all(closes).then_some(()))
    })
    .await?;
    let answer = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}ceph"));
    let answered = |world: &ClusterState| world.nodes.get(NODE).is_some_and(|node| node.fields.contains_key(&answer));
    cluster.until("the answer is removed", |world| !answered(world)).await.map(drop)
}

async fn hold(cluster: &ScriptedCluster, value: Value) -> anyhow::Result<()> {
    cluster.patch_node(NODE, json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}})).await
}

async fn jobs_answer_for_a_hook_and_take_back_what_they_have_prepared_also_where_a_hold_ends_the_attempt(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    // Role, bindings and templates are left.
    cluster.uses_up_stage = true;
    grant(cluster).await?;
    let job = json!({"namespace": SHOP, "before": "noout-set", "after": "noout-unset"});
    let wait = json!({"timeout": "30m"});
    let policy = json!({"hooks": [{"name": "ceph", "before": wait, "after": wait, "job": job}]});
    cluster.start(1, policy.clone()).await?;
    cluster.fleet.release(NEW);
    cluster.until_event("HookJobFailed", &["ceph", "noout-set"]).await?;
    for template in ["noout-set", "noout-unset"] {
        create_template(cluster, template).await?;
    }
    let before = pod(cluster, "before").await?;
    let annotation = |name: &str| before.annotations().get(name).cloned().unwrap_or_default();
    assert_eq!((annotation(JOB_NODE_ANNOTATION), annotation(JOB_VERSION_ANNOTATION)), (NODE.into(), NEW.to_string()));

    // The attempt ends while its Job runs, the policy drops the hook, and the leader ends too.
    hold(cluster, "audit".into()).await?;
    cluster
        .until("the attempt ends", |world| {
            world.step(NODE).is_none() && world.nodes.get(NODE).is_some_and(|node| node.hook_request().is_none())
        })
        .await?;
    cluster.policy(&json!({"hooks": null})).await?;
    cluster.replace_controller().await?;
    succeed(cluster, "before").await?;
    succeed(cluster, "after").await?;
    taken_back(cluster).await?;

    cluster.policy(&policy).await?;
    cluster.planned().await?;
    hold(cluster, Value::Null).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    succeed(cluster, "before").await.context("in the next attempt")?;
    succeed(cluster, "after").await.context("after the update")?;
    cluster.updated().await?;
    taken_back(cluster).await
}
