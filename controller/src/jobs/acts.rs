//! The acts about the Jobs of hooks, each of a few calls.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch};
use kube::core::DeserializeGuard;
use serde_json::json;

use super::decide::{Act, NewRun, Run};
use super::object::{KEPT, job, reason};
use crate::apply::{Applier, ApplyError, create_params, patch_params};

/// Carries out an act.
pub(super) async fn carry_out(applier: &Applier, act: &Act) -> Result<(), ApplyError> {
    applier.leadership.check()?;
    match act {
        Act::Create(new) => create(applier, new).await,
        Act::Answer { hook, node, request } => answer(applier, node, hook, request.as_deref()).await,
        Act::Refuse { run, request } => {
            let text = format!("{request} Refused: {}", why_failed(applier, run).await);
            answer(applier, &run.node, &run.hook, Some(&text)).await
        }
        Act::Close(run) => close(applier, run).await,
    }
}

async fn answer(applier: &Applier, node: &str, hook: &str, answer: Option<&str>) -> Result<(), ApplyError> {
    applier.answer_hook(node, hook, answer).await?;
    match answer {
        Some(answer) => tracing::info!(node, hook, answer, "hook answered by its Job"),
        None => tracing::info!(node, hook, "answer of hook removed"),
    }
    Ok(())
}

pub(super) async fn create(applier: &Applier, new: &NewRun) -> Result<(), ApplyError> {
    let client = &applier.client;
    // As they are stored: fields that this version does not know are part of the spec too.
    let kinds = [ApiResource::erase::<PodTemplate>(&()), ApiResource::erase::<Job>(&())];
    let [templates, jobs] =
        kinds.map(|kind| Api::<DynamicObject>::namespaced_with(client.clone(), &new.namespace, &kind));
    let template = templates.get(&new.template).await.map_err(ApplyError::api("pod_template"))?;
    let shadow = applier.caches.shadows.get(&new.node);
    let target = shadow.and_then(|shadow| shadow.spec.version).map(|version| version.to_string());
    let version = new.version.clone().or(target).unwrap_or_default();
    let object = serde_json::from_value(job(new, &version, &template.data["template"]));
    let object: DynamicObject = object.map_err(|error| ApplyError::api("hook_job")(kube::Error::SerdeError(error)))?;
    match jobs.create(&create_params(), &object).await {
        // An earlier leader, or a call without an answer, has created it. Another conflict, as of a quota, is not about it.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => drop(created.map_err(ApplyError::api("hook_job"))?),
    }
    let (node, hook, job) = (&new.node, &new.hook, object.metadata.name);
    tracing::info!(node, hook, job, namespace = new.namespace, "Job of hook created");
    Ok(())
}

/// Has the Job deleted once its time is over.
async fn close(applier: &Applier, run: &Run) -> Result<(), ApplyError> {
    let api: Api<Job> = Api::namespaced(applier.client.clone(), &run.namespace);
    let patch = json!({
        "metadata": {"uid": run.uid, "resourceVersion": run.resource_version},
        "spec": {"ttlSecondsAfterFinished": KEPT},
    });
    api.patch(&run.name, &patch_params(), &Patch::Merge(patch)).await.map_err(ApplyError::api("hook_job"))?;
    tracing::info!(node = run.node, hook = run.hook, job = run.name, "preparation of hook taken back");
    Ok(())
}

/// Returns the reason why a Job has failed.
pub(super) async fn why_failed(applier: &Applier, run: &Run) -> String {
    let api: Api<DeserializeGuard<Pod>> = Api::namespaced(applier.client.clone(), &run.namespace);
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", run.name));
    let found = api.list(&of_job).await.map(|found| found.items).unwrap_or_default();
    let pods: Vec<Pod> = found.into_iter().filter_map(|found| found.0.ok()).collect();
    reason(&run.message, &pods)
}
