//! The writes: one function for each step, each guarded by the uid or the resourceVersion that was decided on.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource};
use models::names::{self, GROUP, SHADOW_DEFINITION, SYSTEM_NAMESPACE};
use models::shadow::{BottlerocketShadow, Record as ShadowRecord};
use serde_json::{Value, json};

use super::facts::untyped;
use super::steps::{Facts, Step};
use crate::call::{call, code, get_metadata, if_there};
use crate::page::print_line;
use crate::preflight::KUBECTL;
use crate::uninstall::api;

/// Field manager of what is there for the takeover alone.
const MANAGER: &str = "brupop-takeover";

const SHADOWS: &str = "bottlerocketshadows";

impl Step {
    /// The step as a verb, the same as a past participle, and the object.
    fn words(&self) -> (&'static str, &'static str, String) {
        let named = |count: usize, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
        let definition = |rest: &str| format!("CustomResourceDefinition {SHADOW_DEFINITION}: {rest}");
        match self {
            Self::CreateNamespace => ("create", "created", format!("Namespace {SYSTEM_NAMESPACE}")),
            Self::Keep(objects) => {
                let ids: Vec<String> = objects.iter().map(deploy::yaml::id).collect();
                let list = if ids.len() > 4 { named(ids.len(), "object") } else { ids.join(", ") };
                ("record", "recorded", format!("{list} in a ConfigMap in {SYSTEM_NAMESPACE}"))
            }
            Self::Create(object) => ("create", "created", deploy::yaml::id(object)),
            Self::Delete(object) => ("delete", "deleted", object.id()),
            Self::SetConversion(conversion) => {
                let strategy = conversion["strategy"].as_str().unwrap_or_default();
                ("set", "set", definition(&format!("conversion strategy {strategy}")))
            }
            Self::ServeAllVersions => ("apply", "applied", definition("v1 and v2 for reading, v3 stored")),
            Self::CreateShadows(nodes) => {
                ("create", "created", format!("{} of this operator", named(nodes.len(), "shadow")))
            }
            Self::WriteRecords(nodes) => {
                ("carry over", "carried over", format!("the back-off of {}", named(nodes.len(), "node")))
            }
            Self::DeleteShadows(shadows) => {
                ("delete", "deleted", format!("{} of the earlier operator", named(shadows.len(), "recorded shadow")))
            }
            Self::PruneStoredVersions(versions) => {
                ("set", "set", definition(&format!("stored versions {} alone", versions.join(", "))))
            }
            Self::ServeOwnVersion => ("apply", "applied", definition("v3 alone")),
            Self::DeleteOwnShadows(shadows) => {
                ("delete", "deleted", format!("{} of this operator", named(shadows.len(), "shadow")))
            }
            Self::StoreEarlierVersion(_) => ("set", "set", definition("the earlier operator's version stored")),
            Self::RestoreShadows(shadows) => {
                ("restore", "restored", format!("{} of the earlier operator", named(shadows.len(), "shadow")))
            }
            Self::RestoreDefinition(_) => ("restore", "restored", definition("as it was recorded")),
        }
    }

    /// The step as something to be done.
    pub(super) fn planned(&self) -> String {
        let (verb, _, object) = self.words();
        format!("{verb} {object}")
    }

    /// The step as something that was done.
    pub(super) fn done(&self) -> String {
        let (_, past, object) = self.words();
        format!("{past} {object}")
    }
}

pub(super) async fn carry_out(client: &Client, facts: &Facts, step: &Step) -> anyhow::Result<()> {
    match step {
        Step::CreateNamespace => create_namespace(client).await,
        Step::Keep(objects) => create(client, facts.record.next_map(objects)?).await,
        Step::Create(object) => create(client, object.clone()).await,
        Step::Delete(object) => delete(client, &object.kept, &object.uid, None).await,
        Step::SetConversion(conversion) => set(client, facts, &[("/spec/conversion", conversion)]).await,
        Step::ServeAllVersions => apply_definition(client, facts, deploy::takeover::definition()?).await,
        Step::CreateShadows(nodes) => {
            for (node, uid) in nodes {
                create_shadow(client, node, uid).await?;
            }
            Ok(())
        }
        Step::WriteRecords(nodes) => {
            for (node, version, record) in nodes {
                write_record(client, node, version, record).await?;
            }
            Ok(())
        }
        Step::DeleteShadows(shadows) | Step::DeleteOwnShadows(shadows) => {
            let note = if matches!(step, Step::DeleteShadows(_)) { ", which is recorded" } else { "" };
            for shadow in shadows {
                delete(client, &shadow.kept, &shadow.uid, Some(&shadow.version)).await?;
                print_line(format_args!("deleted {}{note}", shadow.id()));
            }
            Ok(())
        }
        Step::StoreEarlierVersion(versions) => set(client, facts, &[("/spec/versions", versions)]).await,
        Step::RestoreShadows(shadows) => {
            for shadow in shadows {
                restore_shadow(client, shadow).await?;
            }
            Ok(())
        }
        Step::RestoreDefinition(kept) => {
            let [labels, annotations] = ["labels", "annotations"].map(|field| match &kept["metadata"][field] {
                Value::Null => json!({}),
                all => all.clone(),
            });
            let all =
                [("/spec", &kept["spec"]), ("/metadata/labels", &labels), ("/metadata/annotations", &annotations)];
            set(client, facts, &all).await
        }
        Step::PruneStoredVersions(versions) => prune(client, facts, versions).await,
        Step::ServeOwnVersion => {
            let definition = deploy::crds::of_kind(&BottlerocketShadow::kind(&()))?;
            apply_definition(client, facts, definition).await
        }
    }
}

/// Creates an object: nothing is overwritten.
async fn create(client: &Client, object: Value) -> anyhow::Result<()> {
    let (api, resource, _) = api(client, &object)?;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let object: DynamicObject = serde_json::from_value(object)?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    match call(&format!("create {resource}"), api.create(&params, &object)).await {
        Err(error) if code(&error) == Some(404) => Err(error.context(format!(
            "the namespace {namespace} is gone: create it, and in it what the earlier operator had besides its workloads \
             (service accounts, certificates), then run the command again"
        ))),
        answer => answer.map(drop),
    }
}

/// Deletes this very object, with its pods if it is a workload. One that is gone is done.
async fn delete(client: &Client, object: &Value, uid: &str, version: Option<&str>) -> anyhow::Result<()> {
    let (api, resource, name) = api(client, object)?;
    let only = Preconditions { uid: Some(uid.to_owned()), resource_version: version.map(str::to_owned) };
    let params = DeleteParams::background().preconditions(only);
    if_there(call(&format!("delete {resource}"), api.delete(&name, &params)).await)?;
    Ok(())
}

/// Creates the operator's namespace as the manifest has it.
async fn create_namespace(client: &Client) -> anyhow::Result<()> {
    let manifest = deploy::everything()?;
    let namespace = manifest
        .iter()
        .find(|object| object["kind"] == "Namespace" && object["metadata"]["name"] == SYSTEM_NAMESPACE)
        .context("the manifest has no namespace")?;
    let api: Api<Namespace> = Api::all(client.clone());
    let (params, patch) = (PatchParams::apply(KUBECTL), Patch::Apply(namespace));
    call("patch namespaces", api.patch(SYSTEM_NAMESPACE, &params, &patch)).await?;
    Ok(())
}

/// Sets parts of the definition that was checked, each by its path.
async fn set(client: &Client, facts: &Facts, parts: &[(&str, &Value)]) -> anyhow::Result<()> {
    let definition = facts.definition.as_ref().context("there is no definition")?;
    let guard = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": definition.live.version});
    // It also replaces what is there.
    let parts = parts.iter().map(|(path, value)| json!({"op": "add", "path": path, "value": value}));
    let patch = serde_json::from_value(std::iter::once(guard).chain(parts).collect())?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = untyped::<CustomResourceDefinition>(client);
    let patch = Patch::<()>::Json(patch);
    call("patch customresourcedefinitions", api.patch(SHADOW_DEFINITION, &params, &patch)).await?;
    Ok(())
}

/// Applies a definition over the one that was checked.
async fn apply_definition(client: &Client, facts: &Facts, mut wanted: Value) -> anyhow::Result<()> {
    let definition = facts.definition.as_ref().context("there is no definition")?;
    wanted["metadata"]["uid"] = json!(definition.live.uid);
    wanted["metadata"]["resourceVersion"] = json!(definition.live.version);
    let api = untyped::<CustomResourceDefinition>(client);
    let (params, patch) = (PatchParams::apply(KUBECTL).force(), Patch::Apply(&wanted));
    call("patch customresourcedefinitions", api.patch(SHADOW_DEFINITION, &params, &patch)).await?;
    Ok(())
}

/// Creates the shadow of a node as the controller does. One that exists is done.
async fn create_shadow(client: &Client, node: &str, uid: &str) -> anyhow::Result<()> {
    let api: Api<BottlerocketShadow> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let shadow = BottlerocketShadow::of_node(SYSTEM_NAMESPACE, node, uid, None);
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
    call(&format!("create {SHADOWS} in {SYSTEM_NAMESPACE}"), api.create(&params, &shadow)).await?;
    print_line(format_args!("created BottlerocketShadow {SYSTEM_NAMESPACE}/{}", names::shadow_name(node)));
    Ok(())
}

/// Creates a shadow as it was, or writes the rest of it if it exists.
async fn restore_shadow(client: &Client, shadow: &Value) -> anyhow::Result<()> {
    let (api, resource, name) = api(client, shadow)?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    // A merge patch would leave out what is null.
    let whole = |part: &str| -> anyhow::Result<Patch<()>> {
        let value = &shadow[part];
        Ok(Patch::Json(serde_json::from_value(json!([{"op": "add", "path": format!("/{part}"), "value": value}]))?))
    };
    if get_metadata(&api, &name).await?.is_some() {
        call(&format!("patch {resource}"), api.patch(&name, &params, &whole("spec")?)).await?;
    } else {
        create(client, shadow.clone()).await?;
    }
    // With a status subresource the creation leaves it out.
    if !shadow["status"].is_null() {
        let right = resource.replacen(SHADOWS, &format!("{SHADOWS}/status"), 1);
        call(&format!("patch {right}"), api.patch_status(&name, &params, &whole("status")?)).await?;
    }
    print_line(format_args!("restored {}", deploy::yaml::id(shadow)));
    Ok(())
}

/// Writes the record of a shadow, as the controller does.
async fn write_record(client: &Client, node: &str, version: &str, record: &ShadowRecord) -> anyhow::Result<()> {
    let api: Api<BottlerocketShadow> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let name = names::shadow_name(node);
    let body = json!({
        "apiVersion": format!("{GROUP}/v3"), "kind": "BottlerocketShadow",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE, "resourceVersion": version},
        "status": {"record": record},
    });
    let (params, patch) = (PatchParams::apply(names::CONTROLLER_MANAGER).force(), Patch::Apply(body));
    let right = format!("patch {SHADOWS}/status in {SYSTEM_NAMESPACE}");
    call(&right, api.patch_status(&name, &params, &patch)).await?;
    let until = record.not_before.map(|time| format!(", back-off until {time}")).unwrap_or_default();
    print_line(format_args!("carried over to {SYSTEM_NAMESPACE}/{name}: failures {}{until}", record.failures));
    Ok(())
}

/// Sets the stored versions, in the definition that was checked.
async fn prune(client: &Client, facts: &Facts, versions: &[String]) -> anyhow::Result<()> {
    let definition = facts.definition.as_ref().context("there is no definition")?;
    let body = json!({
        "metadata": {"uid": definition.live.uid, "resourceVersion": definition.live.version},
        "status": {"storedVersions": versions},
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = untyped::<CustomResourceDefinition>(client);
    let patch = Patch::Merge(body);
    call("patch customresourcedefinitions/status", api.patch_status(SHADOW_DEFINITION, &params, &patch)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ApiResource;

    use super::super::facts::shadow_resource;
    use super::*;

    /// Those that are in no manifest: the plural of each is regular, as of those that are deployed.
    #[tokio::test]
    async fn api_of_each_written_object_has_its_path() {
        let client = Client::try_from(kube::Config::new("http://localhost".parse().unwrap())).unwrap();
        let namespaced = |resource: ApiResource| {
            let meta = json!({"name": "a", "namespace": "n"});
            json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta})
        };
        for (object, path) in [
            (namespaced(ApiResource::erase::<ConfigMap>(&())), "/api/v1/namespaces/n/configmaps"),
            (namespaced(shadow_resource("v2")), "/apis/brupop.bottlerocket.aws/v2/namespaces/n/bottlerocketshadows"),
        ] {
            assert_eq!(api(&client, &object).unwrap().0.resource_url(), path);
        }
    }
}
