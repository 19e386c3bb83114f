//! The definition of a takeover on a real API server, over the earlier operator's definition and objects.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use deploy::takeover::{self, READ_ONLY_MESSAGE};
use futures::{StreamExt as _, TryStreamExt as _};
use integ::control_plane::{Behind, ControlPlane, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use models::{earlier, names};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::migration::is_stored_in;
use super::{MANY, expect, node_name, plugin, plugin_command, until};

pub(super) const DEFINITION: &str = "bottlerocketshadows.brupop.bottlerocket.aws";
pub(super) const EARLIER: &str = include_str!("../../testdata/earlier-operator.yaml");

/// While the definition changes, API servers disagree. None of them accepts a write that would be stored in an old
/// version, and an error is never an empty list.
#[tokio::test(flavor = "multi_thread")]
async fn takeover_definition_keeps_earlier_shadows_readable_and_refuses_writes_that_lose_data() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.client();
    let second = control_plane.second_apiserver().await?;
    let behind = second.client();
    earlier_operator(&client).await?;
    settled("the second server serves the shadows", async || shadows(&behind, "v2").get("brs-idle").await.map(|_| ()))
        .await?;
    second.hold(Behind::Definitions);

    definition_is_accepted_after_conversion_is_patched(&client).await?;
    earlier_versions_are_read_only(&client, &earlier::VERSIONS).await?;
    let unknown = shadows(&behind, "v3").get("brs-idle").await.map(|_| ());
    expect("v3 on the server that is behind", unknown, Some("404"))?;
    // At v1 it still calls the conversion webhook, which is dead.
    earlier_versions_are_read_only(&behind, &["v2"]).await.context("on the server that is behind")?;
    only_complete_rewrite_is_accepted(&client).await?;
    let list = shadows(&behind, "v2").list(&ListParams::default()).await.map(|list| list.items.len());
    ensure!(list.as_ref().is_err_and(|error| error.to_string().contains("500")), "{list:?}");

    second.hold(Behind::Nothing);
    settled("the second server has learnt of v3", async || {
        shadows(&behind, "v3").list(&ListParams::default()).await.map(|_| ())
    })
    .await?;
    let all = shadows(&behind, "v2").list(&ListParams::default()).await?;
    ensure!(all.items.len() == 1, "{all:?}");
    drop(second);
    earlier_definition_is_refused(&client).await?;
    control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-takeover runs it"]
async fn takeover_of_5000_nodes_keeps_every_back_off() -> anyhow::Result<()> {
    let options = Options { node_monitor_grace: Duration::from_secs(3600), ..Options::default() };
    let control_plane = ControlPlane::start(options).await?;
    let client = control_plane.client();
    earlier_operator(&client).await?;
    let (nodes, old): (Api<Node>, _) = (Api::all(client.clone()), shadows(&client, "v2"));
    let all = futures::stream::iter(0..MANY);
    all.map(anyhow::Ok)
        .try_for_each_concurrent(16, async |number| {
            let name = node_name(number);
            let labels = json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION});
            let node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
            nodes.create(&PostParams::default(), &node).await?;
            let name = names::shadow_name(&name);
            let mut shadow = object("v2", &name, &json!({"spec": {"state": "Idle", "version": "1.20.5"}}))?;
            // More ConfigMaps than the command tries any other step.
            shadow.annotations_mut().insert("example.com/note".to_owned(), "x".repeat(250));
            old.create(&PostParams::default(), &shadow).await?;
            let status = json!({"status": {
                "current_state": "Idle", "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": number % 2,
            }});
            old.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
            Ok(())
        })
        .await?;

    let output = plugin(&control_plane, &["takeover", "swap", "--yes"]).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(names::GROUP, "v3", "BottlerocketShadow"));
    let own = Api::<DynamicObject>::all_with(client.clone(), &kind).list(&ListParams::default()).await?.items;
    let elsewhere = own.iter().filter(|shadow| shadow.namespace().as_deref() != Some(names::SYSTEM_NAMESPACE)).count();
    let failures = own.iter().filter(|shadow| shadow.data["status"]["record"]["failures"] == 1).count();
    ensure!((own.len(), elsewhere, failures) == (MANY, 0, MANY / 2), "{} {elsewhere} {failures}", own.len());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let maps = maps.list(&ListParams::default().labels("app.kubernetes.io/name=brupop")).await?.items;
    let sizes: Vec<usize> = maps.iter().flat_map(|map| map.data.iter().flatten()).map(|(_, text)| text.len()).collect();
    ensure!(sizes.len() > 10 && sizes.iter().all(|size| *size <= 257 * 1024), "{sizes:?}");
    control_plane.stop().await
}

/// An API server that knows neither v3 nor the policy stores a shadow in v2 after the definition has changed.
#[tokio::test(flavor = "multi_thread")]
async fn shadow_that_api_server_behind_stores_during_takeover_is_recorded_before_versions_are_pruned()
-> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.client();
    let second = control_plane.second_apiserver().await?;
    let behind = second.client();
    earlier_operator(&client).await?;
    settled("the second server serves the shadows", async || shadows(&behind, "v2").get("brs-idle").await.map(|_| ()))
        .await?;
    second.hold(Behind::Policies);

    let mut swap = plugin_command(control_plane.kubeconfig())?;
    swap.args(["takeover", "swap", "--yes", "--settle", "1s"]).stdout(Stdio::piped());
    let mut swap = swap.spawn()?;
    let mut lines = BufReader::new(swap.stdout.take().context("no output")?).lines();
    let mut printed = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if line.contains("v3 stored") {
            let process = Pid::from_raw(swap.id().context("it has ended")?.try_into()?);
            kill(process, Signal::SIGSTOP)?;
            let late = object("v2", "brs-late", &json!({"spec": {"state": "Idle", "version": "1.20.5"}}))?;
            shadows(&behind, "v2").create(&PostParams::default(), &late).await?;
            is_stored_in(&control_plane, "brs-late", "v2").await?;
            kill(process, Signal::SIGCONT)?;
        }
        printed.push(line);
    }
    ensure!(swap.wait().await?.success(), "{printed:#?}");
    ensure!(printed.iter().any(|line| line.contains("brs-late, which is recorded")), "{printed:#?}");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let maps = maps.list(&ListParams::default()).await?.items;
    let recorded = maps.iter().flat_map(|map| map.data.iter().flatten()).any(|(_, text)| text.contains("brs-late"));
    ensure!(recorded, "the late shadow is not recorded");
    let left = shadows(&client, "v3").list(&ListParams::default()).await?.items;
    ensure!(left.is_empty(), "{left:?}");
    drop(second);
    control_plane.stop().await
}

pub(super) fn definitions(client: &Client) -> Api<CustomResourceDefinition> {
    Api::all(client.clone())
}

pub(super) fn shadows(client: &Client, version: &str) -> Api<DynamicObject> {
    shadows_in(client, earlier::NAMESPACE, version)
}

pub(super) fn shadows_in(client: &Client, namespace: &str, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(models::names::GROUP, version, "BottlerocketShadow");
    let resource = ApiResource::from_gvk_with_plural(&kind, "bottlerocketshadows");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Retries while a change of the definition or of a policy reaches the server's handlers.
pub(super) async fn settled(what: &str, call: impl AsyncFn() -> kube::Result<()>) -> anyhow::Result<()> {
    until(what, async || Ok(call().await.is_ok())).await
}

/// The definition of the earlier operator, and two shadows as it writes them.
async fn earlier_operator(client: &Client) -> anyhow::Result<()> {
    let definition: CustomResourceDefinition = serde_saphyr::from_str(EARLIER)?;
    definitions(client).create(&PostParams::default(), &definition).await?;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": earlier::NAMESPACE}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    for name in ["brs-idle", "brs-migrated"] {
        let spec = json!({"state": "Idle", "state_transition_timestamp": null, "version": null});
        let status = json!({
            "current_state": "Idle", "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": 3,
            "state_transition_failure_timestamp": "2024-05-01T10:00:00+00:00",
        });
        create(client, earlier::NAMESPACE, ("v2", name), None, &json!({"spec": spec, "status": status})).await?;
    }
    Ok(())
}

/// Creates a shadow as the earlier operator does, of a node if one is referred to, and with its status if there is one.
pub(super) async fn create(
    client: &Client,
    namespace: &str,
    (version, name): (&str, &str),
    owner: Option<&Value>,
    content: &Value,
) -> anyhow::Result<()> {
    let api = shadows_in(client, namespace, version);
    let mut shadow = object(version, name, &json!({"spec": content["spec"]}))?;
    shadow.metadata.namespace = Some(namespace.to_owned());
    shadow.metadata.owner_references = owner.map(|owner| serde_json::from_value(json!([owner]))).transpose()?;
    let manager = || Some(earlier::MANAGER.to_owned());
    let params = PostParams { field_manager: manager(), ..PostParams::default() };
    settled(name, async || api.create(&params, &shadow).await.map(|_| ())).await?;
    if !content["status"].is_null() {
        let params = PatchParams { field_manager: manager(), ..PatchParams::default() };
        api.patch_status(name, &params, &Patch::Merge(json!({"status": content["status"]}))).await?;
    }
    Ok(())
}

pub(super) fn object(version: &str, name: &str, content: &Value) -> anyhow::Result<DynamicObject> {
    let mut object = content.clone();
    object["apiVersion"] = format!("{}/{version}", models::names::GROUP).into();
    object["kind"] = "BottlerocketShadow".into();
    object["metadata"] = json!({"name": name, "namespace": earlier::NAMESPACE});
    Ok(serde_json::from_value(object)?)
}

async fn definition_is_accepted_after_conversion_is_patched(client: &Client) -> anyhow::Result<()> {
    let definitions = definitions(client);
    let forced = PatchParams::apply("brupop-install").force();
    let definition = takeover::definition()?;
    let webhook = definitions.patch(DEFINITION, &forced, &Patch::Apply(&definition)).await;
    expect(
        "the definition beside the webhook",
        webhook,
        Some("should not be set when strategy is not set to Webhook"),
    )?;

    let stored = take_over(client).await?;
    ensure!(stored == ["v2", "v3"], "{stored:?}");
    Ok(())
}

/// Puts the definition of a takeover over the earlier operator's, and returns `status.storedVersions`.
pub(super) async fn take_over(client: &Client) -> anyhow::Result<Vec<String>> {
    let (definitions, forced) = (definitions(client), PatchParams::apply("brupop-install").force());
    let found = definitions.get(DEFINITION).await?;
    let patch = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": found.resource_version()},
        {"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}},
    ]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch)?);
    definitions.patch(DEFINITION, &PatchParams::default(), &patch).await?;
    let policies = takeover::read_only_policy();
    for policy in &policies {
        let object: DynamicObject = serde_json::from_value(policy.clone())?;
        let types = object.types.clone().context("a policy without a kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.patch(&object.name_any(), &forced, &Patch::Apply(policy)).await?;
    }
    let found = definitions.patch(DEFINITION, &forced, &Patch::Apply(&takeover::definition()?)).await?;
    let list = async || shadows(client, "v3").list(&ListParams::default()).await.map(|_| ());
    settled("shadows are served in v3", list).await?;
    Ok(found.status.and_then(|status| status.stored_versions).unwrap_or_default())
}

async fn earlier_versions_are_read_only(client: &Client, versions: &[&str]) -> anyhow::Result<()> {
    for version in versions {
        let api = shadows(client, version);
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        // The policy is in force a moment after its creation.
        until("the policy is in force", async || {
            let try_out = PatchParams { dry_run: true, ..PatchParams::default() };
            let result = api.patch("brs-idle", &try_out, &Patch::Merge(&label)).await;
            Ok(result.is_err_and(|error| error.to_string().contains(READ_ONLY_MESSAGE)))
        })
        .await?;
        let status = json!({"status": {"current_version": "1.20.1"}});
        let written = api.patch_status("brs-idle", &PatchParams::default(), &Patch::Merge(&status)).await;
        expect("a report of an agent of the earlier operator", written, Some(READ_ONLY_MESSAGE))?;
    }
    let read = shadows(client, "v2").get("brs-idle").await?;
    let read = earlier::EarlierShadow::read(&serde_json::to_value(read)?);
    ensure!((read.crash_count, read.current_version.as_deref()) == (3, Some("1.20.0")), "{read:?}");
    Ok(())
}

async fn only_complete_rewrite_is_accepted(client: &Client) -> anyhow::Result<()> {
    let api = shadows(client, "v3");
    let plain = PatchParams::default();
    for (what, patch) in [
        ("a write that changes nothing", json!({})),
        ("a label", json!({"metadata": {"labels": {"a": "b"}}})),
        ("another state", json!({"spec": {"state": "Idle"}})),
    ] {
        let written = api.patch("brs-migrated", &plain, &Patch::Merge(&patch)).await;
        expect(what, written, Some("attempt"))?;
    }
    let written = api.patch_status("brs-migrated", &plain, &Patch::Merge(json!({"status": {"state": "Idle"}}))).await;
    expect("a status", written, Some("attempt"))?;
    let kept = shadows(client, "v2").get("brs-migrated").await?;
    ensure!(kept.data["status"]["crash_count"] == 3, "the status was lost: {kept:?}");

    let complete =
        json!({"metadata": {"managedFields": [{}]}, "spec": {"state": "Idle", "version": null, "attempt": 0}});
    let written = api.patch("brs-migrated", &plain, &Patch::Merge(complete)).await?;
    ensure!(written.data["spec"]["attempt"] == 0, "{written:?}");
    shadows(client, "v2").delete("brs-idle", &DeleteParams::default()).await?;
    Ok(())
}

/// A Helm upgrade or a GitOps tool cannot put the earlier definition back.
async fn earlier_definition_is_refused(client: &Client) -> anyhow::Result<()> {
    let definition: Value = serde_saphyr::from_str(EARLIER)?;
    let forced = PatchParams::apply("helm").force();
    let applied = definitions(client).patch(DEFINITION, &forced, &Patch::Apply(definition)).await;
    expect("the earlier definition", applied, Some("status.storedVersions"))
}
