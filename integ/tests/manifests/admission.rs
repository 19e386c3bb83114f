//! Admission: the API server refuses the web API's service account everything in a shadow but the agent status, and the
//! accounts of the controller and of the hook for AWS all but their own fields of Nodes and Secrets. Tested with tokens of
//! these accounts, as a compromised part has them.

mod jobs;
mod nodes;
mod secrets;

use anyhow::{Context as _, ensure};
use integ::control_plane::ControlPlane;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config, ResourceExt as _};
use models::names::{AGENT_MANAGER, APISERVER, CONTROLLER, CONTROLLER_MANAGER, GROUP, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use super::{expect, kubectl, manifest, shadow, until};
pub(super) use jobs::jobs_of_hooks_have_the_spec_of_templates_that_are_named;
pub(super) use nodes::node_writes_are_limited_to_own_fields;
pub(super) use secrets::controller_may_write_only_its_secrets;

const NAME: &str = "brs-n3";

/// The refusals, by a part of their messages.
const PROGRESS: &str = "status.progress, which is the controller's";
const DRAIN: &str = "status.drain, which is the controller's";
const RECORD: &str = "status.record, which is the controller's";
const CONDITIONS: &str = "the controller's conditions";
const OWNED: &str = "what the controller owns";
const OWNER: &str = "the owner of anything but the agent status";
const STATUS_ALONE: &str = "nothing but the status of shadows";

/// A write that an account must not make, and a part of its refusal.
type Forgery<T> = (&'static str, T, &'static str);

/// A patch of the status, by a field manager or by none.
type StatusPatch = (Option<&'static str>, Patch<Value>);

pub(super) async fn web_api_may_write_only_agent_status(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let admin = shadows(control_plane.client(), "v3");
    let web = shadows(client_of(control_plane, APISERVER).await?, "v3");
    let controller = shadows(client_of(control_plane, CONTROLLER).await?, "v3");
    admin.patch(NAME, &applied_by(CONTROLLER_MANAGER), &Patch::Apply(&desired_state())).await?;

    // The first report, on an empty status; then both parts of the status side by side, each changed by its owner.
    apply_agent_status(&web, "the first", agent_status(&json!({"state": "Idle", "currentVersion": "1.20.0"}))).await?;
    let controller_status = json!({"progress": progress("Draining"), "drain": {"removed": 1}, "record": {"failures": 2},
        "conditions": [condition("Blocked", "True"), condition("Drained", "False")]});
    apply_controller_status(&controller, "the first controller status", controller_status.clone()).await?;
    let whole = json!({"state": "StagedUpdate", "currentVersion": "1.20.0", "bootId": "b",
        "updates": {"chosenVersion": "1.20.5"},
        "armed": {"attempt": 1, "bootId": "b", "version": "1.20.5", "phase": "Arming", "nonce": "n"},
        "conditions": [condition("HostReachable", "True")]});
    apply_agent_status(&web, "a report beside the controller status", agent_status(&whole)).await?;
    apply_agent_status(&web, "a report with fewer fields", agent_status(&json!({"state": "Idle"}))).await?;
    apply_agent_status(&web, "an empty report", agent_status(&json!({}))).await?;
    apply_agent_status(&web, "a report after it", agent_status(&whole)).await?;
    // A user writes to agent status and controller status at once, and each is restored by its owner.
    let user_write = Patch::Merge(json!({"status": {"state": "Idle", "variant": "other", "record": {"failures": 5}}}));
    let user = PatchParams { field_manager: Some("a-user".into()), ..PatchParams::default() };
    admin.patch_status(NAME, &user, &user_write).await.context("write of a user")?;
    apply_agent_status(&web, "a report over what a user wrote", agent_status(&whole)).await?;
    let mut changed = controller_status;
    changed["progress"] = progress("Rebooting");
    changed["conditions"] = json!([condition("Drained", "True")]);
    apply_controller_status(&controller, "the next controller status", changed.clone()).await?;

    let held = admin.get(NAME).await?;
    let attempt = async |patch: &StatusPatch| try_patch(&web, patch).await;
    tried(control_plane, (APISERVER, "brupop.yaml"), &forgeries(&held)?, attempt).await?;
    status_subresource_changes_only_status(&web, &held).await?;
    apply_agent_status(&web, "a report after all that", agent_status(&whole)).await?;
    apply_controller_status(&controller, "the end of the attempt", json!({"record": {"failures": 2}})).await?;
    let end = admin.get(NAME).await?.data["status"].take();
    ensure!(end["progress"].is_null() && end["drain"].is_null() && end["state"] == "StagedUpdate", "{end}");

    // A client removes managedFields. The API server creates a new entry for all fields, and the agent reports again.
    let unowned = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
    admin.patch(NAME, &PatchParams::default(), &unowned).await.context("owners taken away")?;
    ensure!(admin.get(NAME).await?.managed_fields().is_empty(), "there are owners left");
    apply_agent_status(&web, "a report on fields without an owner", agent_status(&json!({"state": "Idle"}))).await?;
    apply_agent_status(&web, "a report after it", agent_status(&whole)).await?;
    admin.patch(NAME, &applied_by(CONTROLLER_MANAGER), &Patch::Apply(&desired_state())).await?;
    apply_controller_status(&controller, "the controller status after it", json!({"record": {"failures": 3}})).await?;

    admission_policy_limits_web_api_with_wider_role_to_status(control_plane, &web).await?;
    admission_policy_rejects_writes_through_other_api_version(control_plane, &admin).await
}

/// Writes that the web API's right to patch the status permits and the policy does not.
fn forgeries(held: &DynamicObject) -> anyhow::Result<Vec<Forgery<StatusPatch>>> {
    let status = &held.data["status"];
    let merge = |body: Value| Patch::Merge(body);
    let json = |operations: Value| anyhow::Ok(Patch::Json(serde_json::from_value(operations)?));
    let apply = |status: Value| Patch::Apply(shadow(NAME, &json!({"status": status})));
    let with_conditions = |conditions: Value| merge(json!({"status": {"conditions": conditions}}));
    let reachable = || condition("HostReachable", "True");
    let drained = || status["conditions"].as_array().and_then(|all| all.iter().find(|c| c["type"] == "Drained"));
    let drained = drained().context("the controller's condition stands")?.clone();
    let one = |what, manager, patch, refusal| (what, (manager, patch), refusal);
    Ok(vec![
        one("progress changed", None, merge(json!({"status": {"progress": {"step": "Verifying"}}})), PROGRESS),
        one("progress removed", None, merge(json!({"status": {"progress": null}})), PROGRESS),
        one("progress back in time", None, merge(json!({"status": {"progress": {"attempt": 0}}})), PROGRESS),
        one("drain changed", None, merge(json!({"status": {"drain": {"removed": 7}}})), DRAIN),
        one("drain removed", None, merge(json!({"status": {"drain": null}})), DRAIN),
        one("record changed", None, merge(json!({"status": {"record": {"failures": 0}}})), RECORD),
        one("record removed", None, merge(json!({"status": {"record": null}})), RECORD),
        one("the status emptied", None, json(json!([{"op": "replace", "path": "/status", "value": {}}]))?, DRAIN),
        one("the status removed", None, json(json!([{"op": "remove", "path": "/status"}]))?, DRAIN),
        one("progress applied", Some(AGENT_MANAGER), apply(json!({"progress": progress("Staged")})), PROGRESS),
        one(
            "progress applied in the controller's name",
            Some(CONTROLLER_MANAGER),
            apply(json!({"progress": progress("Staged")})),
            DRAIN,
        ),
        one("nothing applied in the controller's name", Some(CONTROLLER_MANAGER), apply(json!({})), DRAIN),
        one(
            "a condition changed",
            None,
            with_conditions(json!([reachable(), condition("Drained", "False")])),
            CONDITIONS,
        ),
        one("a condition removed", None, with_conditions(json!([reachable()])), CONDITIONS),
        one("all conditions removed", None, merge(json!({"status": {"conditions": null}})), CONDITIONS),
        one(
            "a condition added",
            None,
            with_conditions(json!([reachable(), drained, condition("Cordoned", "True")])),
            CONDITIONS,
        ),
        one(
            "one in the place of another",
            None,
            with_conditions(json!([reachable(), condition("Cordoned", "True")])),
            CONDITIONS,
        ),
        one(
            "a type that looks like the agent's",
            None,
            with_conditions(json!([drained, condition("hostReachable", "True")])),
            CONDITIONS,
        ),
        one(
            "a condition of the controller's type applied",
            Some(AGENT_MANAGER),
            apply(json!({"conditions": [condition("Healthy", "True")]})),
            CONDITIONS,
        ),
        // From here on no field changes, but its owner: a field with two owners stays when one of them releases it.
        one(
            "the agent's fields made the controller's",
            Some(CONTROLLER_MANAGER),
            merge(json!({"status": {"state": "RebootedIntoUpdate"}})),
            OWNED,
        ),
        one("a share in progress", Some(AGENT_MANAGER), apply(json!({"progress": status["progress"]})), OWNER),
        one("a share in progress by another name", Some("me"), apply(json!({"progress": status["progress"]})), OWNER),
        one("a share in a condition", Some("me"), apply(json!({"conditions": [drained]})), OWNER),
        one("a share in the agent status", Some("me"), apply(json!({"state": status["state"]})), OWNER),
    ])
}

/// Tries a patch as a dry run.
async fn try_patch(web: &Api<DynamicObject>, (manager, patch): &StatusPatch) -> kube::Result<DynamicObject> {
    let (force, field_manager) = (matches!(patch, Patch::Apply(_)), manager.map(str::to_owned));
    let params = PatchParams { dry_run: true, force, field_manager, ..PatchParams::default() };
    web.patch_status(NAME, &params, patch).await
}

/// Tries each forgery without the policy of a manifest, where it has to succeed, so that nothing else refuses it, and with it.
async fn tried<T, K>(
    control_plane: &ControlPlane,
    (policy, file): (&str, &str),
    forgeries: &[Forgery<T>],
    attempt: impl AsyncFn(&T) -> kube::Result<K>,
) -> anyhow::Result<()> {
    admission_policy_has_no_expression_warnings(control_plane, policy).await?;
    let mut wrong = Vec::new();
    for bound in [false, true] {
        let is_refused = async || attempt(&forgeries[0].1).await.is_err();
        set_policy_binding(control_plane, (policy, file), bound, is_refused).await?;
        for (what, forgery, refusal) in forgeries {
            let done = expect(what, attempt(forgery).await, bound.then_some(*refusal));
            wrong.extend(done.err().map(|error| format!("{policy} in force: {bound}: {error:#}")));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Binds a policy by its manifest, or removes its binding, and waits until that takes effect.
async fn set_policy_binding(
    control_plane: &ControlPlane,
    (policy, file): (&str, &str),
    bind: bool,
    is_refused: impl AsyncFn() -> bool,
) -> anyhow::Result<()> {
    if bind {
        kubectl(control_plane, &["apply", "--server-side", "-f", &manifest(file)]).await?;
    } else {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(control_plane.client());
        bindings.delete(policy, &DeleteParams::default()).await?;
    }
    until("the policy is in force, or no longer", async || Ok(is_refused().await == bind)).await
}

/// Checks that `/status` changes nothing else of an object.
async fn status_subresource_changes_only_status(web: &Api<DynamicObject>, held: &DynamicObject) -> anyhow::Result<()> {
    let content = |object: &DynamicObject| {
        let mut metadata = object.metadata.clone();
        metadata.resource_version = None;
        (metadata, object.data.clone())
    };
    let owners = serde_json::to_value(held.managed_fields())?;
    let owners = owners.as_array().context("owners")?;
    let is_controller_entry = |entry: &Value| entry["manager"] == CONTROLLER_MANAGER;
    let share = json!({"manager": "me", "operation": "Apply", "apiVersion": format!("{GROUP}/v3"),
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:permit": {}}}});
    let wider = owners.iter().cloned().map(|mut entry| {
        if entry["manager"] == AGENT_MANAGER {
            entry["fieldsV1"]["f:spec"] = json!({"f:state": {}});
        }
        entry
    });
    for rest in [
        json!({"spec": {"state": "RebootedIntoUpdate", "attempt": 9, "version": "1.20.5", "bootId": "b"}}),
        json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/stay"]}}),
        json!({"metadata": {"ownerReferences": [], "generation": 99, "creationTimestamp": "2020-01-01T00:00:00Z"}}),
        json!({"metadata": {"managedFields": [{}]}}),
        json!({"metadata": {"managedFields": owners.iter().filter(|entry| !is_controller_entry(entry)).collect::<Vec<_>>()}}),
        json!({"metadata": {"managedFields": owners.iter().chain([&share]).collect::<Vec<_>>()}}),
        json!({"metadata": {"managedFields": wider.collect::<Vec<_>>()}}),
    ] {
        let after = web.patch_status(NAME, &PatchParams::default(), &Patch::Merge(&rest)).await?;
        ensure!(content(&after) == content(held), "{rest} changed something: {after:#?}");
    }
    Ok(())
}

/// Tests the policy with a wider role of the web API.
async fn admission_policy_limits_web_api_with_wider_role_to_status(
    control_plane: &ControlPlane,
    web: &Api<DynamicObject>,
) -> anyhow::Result<()> {
    let spec = Patch::Merge(json!({"spec": {"state": "Idle"}}));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let account = format!("--serviceaccount={SYSTEM_NAMESPACE}:{APISERVER}");
    expect("the spec without the right to", web.patch(NAME, &dry, &spec).await, Some("cannot patch resource"))?;
    let verbs = "--verb=create,patch,delete,deletecollection";
    kubectl(control_plane, &["create", "role", "wide", verbs, "--resource=bottlerocketshadows"]).await?;
    kubectl(control_plane, &["create", "rolebinding", "wide", "--role=wide", &account]).await?;
    until("the role counts", async || {
        let error = web.patch(NAME, &dry, &spec).await.err().map(|error| error.to_string()).unwrap_or_default();
        Ok(!error.contains("cannot patch resource"))
    })
    .await?;
    expect("the spec", web.patch(NAME, &dry, &spec).await, Some(STATUS_ALONE))?;
    let labels = Patch::Merge(json!({"metadata": {"annotations": {"brupop.bottlerocket.aws/release": "x"}}}));
    expect("an annotation", web.patch(NAME, &dry, &labels).await, Some(STATUS_ALONE))?;
    let new = serde_json::from_value(shadow("brs-new", &json!({"spec": {"attempt": 0}})))?;
    let post = PostParams { dry_run: true, ..PostParams::default() };
    expect("another shadow", web.create(&post, &new).await, Some(STATUS_ALONE))?;
    let delete = DeleteParams { dry_run: true, ..DeleteParams::default() };
    expect("the shadow deleted", web.delete(NAME, &delete).await, Some(STATUS_ALONE))?;
    expect("all deleted", web.delete_collection(&delete, &Default::default()).await, Some(STATUS_ALONE))?;
    kubectl(control_plane, &["delete", "role/wide", "rolebinding/wide"]).await?;
    Ok(())
}

/// Tests a version without the controller's fields: a write through it removes them, and neither the old nor the new
/// object shows them to a policy that compares the two.
async fn admission_policy_rejects_writes_through_other_api_version(
    control_plane: &ControlPlane,
    admin: &Api<DynamicObject>,
) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(control_plane.client());
    let name = format!("bottlerocketshadows.{GROUP}");
    let mut other = serde_json::to_value(&definitions.get(&name).await?.spec.versions[0])?;
    (other["name"], other["storage"]) = (json!("v2"), json!(false));
    let status = other.pointer_mut("/schema/openAPIV3Schema/properties/status/properties").context("a schema")?;
    status.as_object_mut().context("properties")?.retain(|field, _| field == "state");
    let add = json!([{"op": "add", "path": "/spec/versions/-", "value": other}]);
    let add = Patch::Json::<()>(serde_json::from_value(add)?);
    definitions.patch(&name, &PatchParams::default(), &add).await?;

    let web = shadows(client_of(control_plane, APISERVER).await?, "v2");
    until("the other version is served", async || Ok(web.get(NAME).await.is_ok())).await?;
    let patch = Patch::Merge(json!({"status": {"state": "StagedUpdate"}}));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    expect("a report by another version", web.patch_status(NAME, &dry, &patch).await, Some(STATUS_ALONE))?;
    // The effect that it would have.
    let record = async || anyhow::Ok(admin.get(NAME).await?.data["status"]["record"].clone());
    ensure!(record().await?.is_object(), "there is something to lose");
    let other_version_client = shadows(control_plane.client(), "v2");
    other_version_client
        .patch_status(NAME, &PatchParams::default(), &Patch::Merge(json!({"status": {"state": "Idle"}})))
        .await?;
    ensure!(record().await?.is_null(), "a write by another version loses nothing: this test tests nothing");
    kubectl(control_plane, &["apply", "--server-side", "--force-conflicts", "-f", &manifest("crds.yaml")]).await?;
    Ok(())
}

/// Checks that the API server's type check of the expressions has no findings.
async fn admission_policy_has_no_expression_warnings(control_plane: &ControlPlane, policy: &str) -> anyhow::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(control_plane.client());
    let mut found = None;
    until("the policy is looked through", async || {
        let policy = policies.get(policy).await?;
        let status = policy.status.unwrap_or_default();
        found = status.type_checking;
        Ok(status.observed_generation == policy.metadata.generation)
    })
    .await?;
    let warnings = found.and_then(|checking| checking.expression_warnings).unwrap_or_default();
    ensure!(warnings.is_empty(), "{warnings:#?}");
    Ok(())
}

/// A client with a token of a service account, as a pod has one.
async fn client_of(control_plane: &ControlPlane, account: &str) -> anyhow::Result<Client> {
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.client(), SYSTEM_NAMESPACE);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    let token = answer.status.and_then(|status| status.token).context("no token")?;
    let admin = control_plane.client_config();
    let mut config = Config::new(admin.cluster_url);
    config.root_cert = admin.root_cert;
    config.auth_info.token = Some(token.into());
    Ok(Client::try_from(config)?)
}

/// The shadows as raw objects: no type of the operator omits anything.
fn shadows(client: Client, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, version, "BottlerocketShadow");
    Api::namespaced_with(client, SYSTEM_NAMESPACE, &ApiResource::from_gvk_with_plural(&kind, "bottlerocketshadows"))
}

fn applied_by(manager: &str) -> PatchParams {
    PatchParams::apply(manager).force()
}

fn desired_state() -> Value {
    shadow(NAME, &json!({"spec": {"state": "StagedUpdate", "attempt": 1, "bootId": "b", "version": "1.20.5"}}))
}

fn agent_status(status: &Value) -> Value {
    shadow(NAME, &json!({"status": status}))
}

/// Applies the whole agent status, as the web API does.
async fn apply_agent_status(web: &Api<DynamicObject>, what: &str, body: Value) -> anyhow::Result<()> {
    let written = web.patch_status(NAME, &applied_by(AGENT_MANAGER), &Patch::Apply(body)).await;
    written.with_context(|| what.to_owned()).map(|_| ())
}

/// Applies the whole controller status, as the controller does.
async fn apply_controller_status(
    controller: &Api<DynamicObject>,
    what: &str,
    controller_status: Value,
) -> anyhow::Result<()> {
    let body = shadow(NAME, &json!({"status": controller_status}));
    let written = controller.patch_status(NAME, &applied_by(CONTROLLER_MANAGER), &Patch::Apply(body)).await;
    written.with_context(|| what.to_owned()).map(|_| ())
}

fn condition(type_: &str, status: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    json!({"type": type_, "status": status, "reason": "Because", "message": "", "lastTransitionTime": at})
}

fn progress(step: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    json!({"step": step, "since": at, "attempt": 1, "bootId": "b", "version": "1.20.5", "started": at})
}
