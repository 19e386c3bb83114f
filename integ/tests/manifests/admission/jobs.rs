//! Jobs of hooks: the controller creates those of the templates that were named for it, and changes nothing of them but the time
//! after which they are deleted.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::control_plane::ControlPlane;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodTemplate;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use models::names::{CONTROLLER, HOOK_LABEL, JOB_NODE_ANNOTATION, JOB_PHASE_ANNOTATION, POD_TEMPLATE_LABEL};
use serde_json::{Value, json};

use super::{admission_policy_has_no_expression_warnings, client_of, expect, kubectl, manifest, until};

const NAMESPACE: &str = "brupop-hooks";
const TEMPLATE: &str = "noout-set";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hooks");

/// The refusals, by a part of their messages.
const NAMED: &str = "by the PodTemplates alone that were named for it";
const SPEC: &str = "may not change the spec of a PodTemplate";
const LABELS: &str = "may not change labels of a PodTemplate";
const ANNOTATIONS: &str = "may not change annotations of a PodTemplate";
const OWNERS: &str = "may not give a Job owners or finalizers";
const TIME_ALONE: Option<&str> = Some("changes nothing of a Job but ttlSecondsAfterFinished");
const OTHER_PODS: &str = "creates no Job that takes over other pods";
const RECORD: &str = "creates no Job before a drain with ttlSecondsAfterFinished";

/// A change of the Job that the controller creates, with its place in it.
type Forgery = (&'static str, &'static str, Value, Option<&'static str>);

pub(crate) async fn jobs_of_hooks_have_the_spec_of_templates_that_are_named(
    control_plane: &ControlPlane,
) -> anyhow::Result<()> {
    for file in [manifest("jobs.yaml"), format!("{EXAMPLES}/jobs.yaml"), format!("{EXAMPLES}/jobs-rights.yaml")] {
        kubectl(control_plane, &["apply", "--server-side", "-f", &file]).await?;
    }
    for policy in ["brupop-controller-jobs", "brupop-controller-job-changes"] {
        admission_policy_has_no_expression_warnings(control_plane, policy).await?;
    }
    let [admin, controller] =
        [control_plane.client(), client_of(control_plane, CONTROLLER).await?].map(|client| -> Api<DynamicObject> {
            Api::namespaced_with(client, NAMESPACE, &ApiResource::erase::<Job>(&()))
        });
    let templates: Api<DynamicObject> = Api::namespaced_with(
        client_of(control_plane, CONTROLLER).await?,
        NAMESPACE,
        &ApiResource::erase::<PodTemplate>(&()),
    );
    let mut template = None;
    until("the controller reads the template", async || {
        template = templates.get(TEMPLATE).await.ok();
        Ok(template.is_some())
    })
    .await?;
    let job = job(&template.context("no template")?.data["template"]);
    // The binding that refuses it is the last.
    let unnamed = forged(&job, "/metadata/labels", json!({HOOK_LABEL: "ceph", POD_TEMPLATE_LABEL: "other"}));
    until("the policies and the rights are in force", async || {
        let created = create(&controller, &unnamed).await;
        let is_refused = created.is_err_and(|error| error.to_string().contains(NAMED));
        Ok(is_refused && create(&controller, &job).await.is_ok())
    })
    .await?;
    for (what, place, value, refusal) in forgeries() {
        expect(what, create(&controller, &forged(&job, place, value)).await, refusal)?;
    }
    changes_are_limited(&admin, &controller, &job).await?;
    templates_are_read_after_the_right_was_taken_back(control_plane, &controller, &job).await?;

    let all: Api<PodTemplate> = Api::namespaced(control_plane.client(), NAMESPACE);
    all.delete(TEMPLATE, &DeleteParams::default()).await?;
    until("no Job is created without its template", async || {
        let created = create(&controller, &job).await;
        Ok(created.is_err_and(|error| error.to_string().contains("no params found")))
    })
    .await?;
    kubectl(control_plane, &["delete", "-f", &format!("{EXAMPLES}/jobs-rights.yaml")]).await?;
    kubectl(control_plane, &["delete", "namespace", NAMESPACE, "--wait=false"]).await?;
    kubectl(control_plane, &["delete", "-f", &manifest("jobs.yaml")]).await.map(drop)
}

/// The Job that the controller makes by a template, before a drain.
fn job(template: &Value) -> Value {
    let mut pod = template.clone();
    pod["metadata"]["labels"][HOOK_LABEL] = "ceph".into();
    pod["metadata"]["annotations"][JOB_NODE_ANNOTATION] = "node-1".into();
    let labels = json!({HOOK_LABEL: "ceph", POD_TEMPLATE_LABEL: TEMPLATE});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "ceph-1", "labels": labels, "annotations": {JOB_PHASE_ANNOTATION: "before"}},
        "spec": {"backoffLimit": 2, "activeDeadlineSeconds": 60, "template": pod},
    })
}

fn forgeries() -> Vec<Forgery> {
    let named = |value: &str| json!({HOOK_LABEL: "ceph", POD_TEMPLATE_LABEL: value});
    let more = json!([{"name": "more", "image": "more", "command": ["sh"]}]);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u"}]);
    let taken = json!({"backoffLimit": 2, "manualSelector": true, "selector": {"matchLabels": {HOOK_LABEL: "ceph"}}});
    vec![
        ("the node itself", "/spec/template/spec/nodeName", json!("node-1"), None),
        ("another image", "/spec/template/spec/containers/0/image", json!("other"), Some(SPEC)),
        ("another account", "/spec/template/spec/serviceAccountName", json!("admin"), Some(SPEC)),
        ("a token", "/spec/template/spec/automountServiceAccountToken", json!(true), Some(SPEC)),
        ("no word about a token", "/spec/template/spec/automountServiceAccountToken", Value::Null, Some(SPEC)),
        ("another container", "/spec/template/spec/initContainers", more, Some(SPEC)),
        ("the host's network", "/spec/template/spec/hostNetwork", json!(true), Some(SPEC)),
        ("the label of a Service", "/spec/template/metadata/labels/app", json!("shop"), Some(LABELS)),
        ("an annotation", "/spec/template/metadata/annotations/example.com~1inject", json!("x"), Some(ANNOTATIONS)),
        ("a finalizer of pods", "/spec/template/metadata/finalizers", json!(["example.com/stay"]), Some(OWNERS)),
        ("a finalizer", "/metadata/finalizers", json!(["example.com/stay"]), Some(OWNERS)),
        ("an owner", "/metadata/ownerReferences", owner, Some(OWNERS)),
        ("another template", "/metadata/labels", named("silence-start"), Some(SPEC)),
        ("a template that is not named", "/metadata/labels", named("other"), Some(NAMED)),
        ("no template", "/metadata/labels", json!({HOOK_LABEL: "ceph"}), Some(NAMED)),
        ("a Job that is suspended", "/spec/suspend", json!(true), Some(OTHER_PODS)),
        ("a selector of its own", "/spec", taken, Some(OTHER_PODS)),
        ("a time after which the record is deleted", "/spec/ttlSecondsAfterFinished", json!(900), Some(RECORD)),
    ]
}

/// Returns the Job with another value at a place; of an object, these fields are set beside the others.
fn forged(job: &Value, place: &str, value: Value) -> Value {
    let mut job = job.clone();
    let (parent, field) = place.rsplit_once('/').unwrap_or_default();
    let field = field.replace("~1", "/");
    if let Some(parent) = job.pointer_mut(parent) {
        match (parent, value) {
            (parent, Value::Object(fields)) if field == "spec" => {
                for (name, value) in fields {
                    parent[&field][name] = value;
                }
            }
            (parent, Value::Null) => {
                if let Some(parent) = parent.as_object_mut() {
                    parent.remove(&field);
                }
            }
            (parent, value) => parent[field] = value,
        }
    }
    job
}

/// Creates a Job, as a dry run.
async fn create(jobs: &Api<DynamicObject>, job: &Value) -> kube::Result<DynamicObject> {
    let job = serde_json::from_value(job.clone()).map_err(kube::Error::SerdeError)?;
    jobs.create(&PostParams { dry_run: true, ..PostParams::default() }, &job).await
}

/// An API server that has stopped to watch templates would go on with the one that it has read.
async fn templates_are_read_after_the_right_was_taken_back(
    control_plane: &ControlPlane,
    controller: &Api<DynamicObject>,
    job: &Value,
) -> anyhow::Result<()> {
    let rights = format!("{EXAMPLES}/jobs-rights.yaml");
    kubectl(control_plane, &["delete", "-f", &rights]).await?;
    // The API server reads policies each second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let templates: Api<PodTemplate> = Api::namespaced(control_plane.client(), NAMESPACE);
    let image = json!([{"op": "replace", "path": "/template/spec/containers/0/image", "value": "new"}]);
    let image = Patch::Json::<()>(serde_json::from_value(image)?);
    templates.patch(TEMPLATE, &PatchParams::default(), &image).await?;
    kubectl(control_plane, &["apply", "--server-side", "-f", &rights]).await?;
    let mut new = forged(job, "/spec/template/spec/containers/0/image", json!("new"));
    new["metadata"]["name"] = "ceph-2".into();
    until("the changed template counts", async || {
        let by_old_template = create(controller, job).await;
        let is_refused = by_old_template.is_err_and(|error| error.to_string().contains(SPEC));
        Ok(is_refused && create(controller, &new).await.is_ok())
    })
    .await
}

async fn changes_are_limited(
    admin: &Api<DynamicObject>,
    controller: &Api<DynamicObject>,
    job: &Value,
) -> anyhow::Result<()> {
    let mut other = job.clone();
    // Without a label, it would get those of its pods.
    other["metadata"] = json!({"name": "other", "labels": {"app": "other"}});
    for (api, job) in [(controller, job), (admin, &other)] {
        api.create(&PostParams::default(), &serde_json::from_value(job.clone())?).await.context("a Job")?;
    }
    let time = json!({"spec": {"ttlSecondsAfterFinished": 3600}});
    for (what, name, patch, refusal) in [
        ("the time", "ceph-1", time.clone(), None),
        ("the time of another Job", "other", time, Some("changes no other Jobs than those of hooks")),
        ("more pods", "ceph-1", json!({"spec": {"parallelism": 9}}), TIME_ALONE),
        ("a label", "ceph-1", json!({"metadata": {"labels": {"a": "b"}}}), TIME_ALONE),
        ("an annotation", "ceph-1", json!({"metadata": {"annotations": {"a": "b"}}}), TIME_ALONE),
    ] {
        let written = controller.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        expect(what, written, refusal)?;
    }
    let left = admin.list(&ListParams::default()).await?.items.len();
    ensure!(left == 2, "{left} Jobs: forgeries were no dry runs");
    Ok(())
}
