//! Migration of stored shadows: those of the earlier operator in place, and those of a later version of the definition.

use anyhow::Context as _;
use deploy::takeover;
use integ::bed::{TestClusterOptions, workload};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use models::condition::Condition;
use models::earlier;
use models::names::{MIGRATE_STORAGE_ANNOTATION, MIGRATED_FROM_ANNOTATION, SYSTEM_NAMESPACE};
use models::operator::STORAGE_MIGRATED;
use serde_json::{Value, json};

use crate::interfere::poll;
use crate::rotation;
use crate::support::{ScenarioContext, nodes, run, status};

const EARLIER: &str = include_str!("../../testdata/earlier-operator.yaml");
const DEFINITION: &str = "bottlerocketshadows.brupop.bottlerocket.aws";

/// A namespace of the earlier operator that is not its default.
const OTHER: &str = "updates";

fn takeover_of(count: usize) -> TestClusterOptions {
    TestClusterOptions { takeover: true, ..nodes(count) }
}

fn shadows(ctx: &ScenarioContext, namespace: &str, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("brupop.bottlerocket.aws", version, "BottlerocketShadow");
    let resource = ApiResource::from_gvk_with_plural(&kind, "bottlerocketshadows");
    Api::namespaced_with(ctx.bed.client.clone(), namespace, &resource)
}

/// Returns a shadow as it is read at v3.
async fn shadow(ctx: &ScenarioContext, namespace: &str, name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(shadows(ctx, namespace, "v3").get(name).await?)?)
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// Installs the definition of the earlier operator.
async fn earlier_definition(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(EARLIER)?;
    workload::apply(&ctx.bed.client, objects).await?;
    workload::apply(&ctx.bed.client, vec![namespace(earlier::NAMESPACE), namespace(OTHER)]).await
}

/// Creates a shadow of the earlier operator, with its status if there is one.
async fn earlier_shadow(ctx: &ScenarioContext, at: (&str, &str), spec: Value, status: Value) -> anyhow::Result<Value> {
    let (namespace, name) = at;
    let node = ctx.kubectl(&["get", "node", "node-1", "-o", "jsonpath={.metadata.uid}"]).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node});
    let object = json!({
        "apiVersion": "brupop.bottlerocket.aws/v2", "kind": "BottlerocketShadow",
        "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec,
    });
    let object: DynamicObject = serde_json::from_value(object)?;
    let api = shadows(ctx, namespace, "v2");
    let manager = PostParams { field_manager: Some(earlier::MANAGER.to_owned()), ..PostParams::default() };
    // A definition that was just applied takes a moment.
    let mut made =
        poll("a shadow of the earlier operator", async || Ok(api.create(&manager, &object).await.ok())).await?;
    if !status.is_null() {
        let manager = PatchParams { field_manager: Some(earlier::MANAGER.to_owned()), ..PatchParams::default() };
        made = api.patch_status(name, &manager, &Patch::Merge(json!({"status": status}))).await?;
    }
    Ok(serde_json::to_value(made)?)
}

/// Ends the conversion by a webhook, which a takeover does before it applies the new definition.
async fn end_conversion(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let patch = json!([{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]).to_string();
    ctx.kubectl(&["patch", "crd", DEFINITION, "--type=json", "-p", &patch]).await?;
    Ok(())
}

/// Puts the cluster into the state before the installation of a takeover, with one shadow of the earlier operator.
pub(crate) async fn takeover_is_due(ctx: &ScenarioContext) -> anyhow::Result<()> {
    earlier_definition(ctx).await?;
    earlier_shadow(ctx, (OTHER, "brs-node-1"), idle(), failing(1, "monday")).await?;
    end_conversion(ctx).await?;
    workload::apply(&ctx.bed.client, takeover::read_only_policy().to_vec()).await
}

async fn stored_versions(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let versions = ctx.kubectl(&["get", "crd", DEFINITION, "-o", "jsonpath={.status.storedVersions}"]).await?;
    Ok(serde_json::from_str(&versions)?)
}

/// Waits until the condition has this reason, and returns it.
async fn until_reason(ctx: &ScenarioContext, reason: &str) -> anyhow::Result<Condition> {
    let is = |condition: &&Condition| condition.reason == reason;
    let world = ctx
        .until(&format!("the storage migration is {reason}"), |world| {
            world.operator_condition(STORAGE_MIGRATED).as_ref().is_some_and(is)
        })
        .await?;
    world.operator_condition(STORAGE_MIGRATED).cloned().context("just seen")
}

fn idle() -> Value {
    json!({"state": "Idle", "state_transition_timestamp": null, "version": null})
}

fn failing(crash_count: u32, failed_at: &str) -> Value {
    json!({
        "current_state": "Idle", "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": crash_count,
        "state_transition_failure_timestamp": failed_at,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_shadows_are_migrated_in_place_and_nothing_is_lost() -> anyhow::Result<()> {
    run(takeover_of(1), async |ctx| {
        earlier_definition(ctx).await?;
        let failed_at = jiff::Timestamp::now();
        let under_way = json!({"state": "RebootedIntoUpdate", "version": "99999999999999999999999.0.0"});
        let of_under_way = json!({
            "current_state": "StagedAndPerformedUpdate", "current_version": "1.20.0",
            "target_version": "99999999999999999999999.0.0", "crash_count": 0,
        });
        let mut before = Vec::new();
        for (at, spec, status, failures, back_off) in [
            ((earlier::NAMESPACE, "brs-node-1"), idle(), Value::Null, 0, false),
            ((earlier::NAMESPACE, "brs-node-2"), idle(), failing(3, &failed_at.to_string()), 3, true),
            ((OTHER, "brs-node-3"), idle(), failing(u32::MAX, "monday"), 10, false),
            ((OTHER, "brs-node-4"), under_way, of_under_way, 0, false),
        ] {
            let made = earlier_shadow(ctx, at, spec, status).await?;
            before.push((at, made, failures, back_off));
        }
        // A pod that no node takes.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "brupop-agent-x", "namespace": OTHER, "labels": {earlier::COMPONENT_LABEL: "agent"},
            },
            "spec": {
                "nodeSelector": {"example.com/no-node": "has-this"},
                "containers": [{"name": "agent", "image": "example.invalid/brupop:1.4.0"}],
            },
        });
        workload::apply(&ctx.bed.client, vec![pod]).await?;
        end_conversion(ctx).await?;
        ctx.bed.install().await?;

        // It waits until the earlier operator is gone, and until its versions are read-only.
        let waits = until_reason(ctx, "EarlierOperatorRunning").await?;
        assert!(waits.message.contains("updates/brupop-agent-x"), "{waits:?}");
        ctx.kubectl(&["-n", OTHER, "delete", "pod", "brupop-agent-x", "--grace-period=0"]).await?;
        ctx.reported().await?;
        let waits = until_reason(ctx, "EarlierVersionsWritable").await?;
        assert!(waits.message.contains(earlier::READ_ONLY_POLICY), "{waits:?}");
        for ((namespace, name), made, ..) in &before {
            let read = serde_json::to_value(shadows(ctx, namespace, "v2").get(name).await?)?;
            assert_eq!(read["status"], made["status"], "nothing is written meanwhile");
        }
        workload::apply(&ctx.bed.client, takeover::read_only_policy().to_vec()).await?;
        until_reason(ctx, "Migrated").await?;

        assert_eq!(stored_versions(ctx).await?, ["v3"]);
        for ((namespace, name), made, failures, back_off) in before {
            let now = shadow(ctx, namespace, name).await?;
            let meta = &now["metadata"];
            assert_eq!(meta["uid"], made["metadata"]["uid"], "in place");
            assert_eq!(meta["ownerReferences"], made["metadata"]["ownerReferences"], "{now}");
            assert_eq!(meta["annotations"][MIGRATED_FROM_ANNOTATION], Value::Null, "{now}");
            assert_eq!(now["spec"], json!({"state": "Idle", "attempt": 0}), "{now}");
            let record = &now["status"]["record"];
            assert_eq!(record["failures"].as_i64().unwrap_or_default(), failures, "{now}");
            assert_eq!(record["notBefore"].is_string(), back_off, "{now}");
            for entry in meta["managedFields"].as_array().into_iter().flatten() {
                assert_eq!(entry["apiVersion"], "brupop.bottlerocket.aws/v3", "{now}");
                assert_eq!((&entry["manager"], &entry["operation"]), (&json!("brupop-controller"), &json!("Apply")));
            }
        }
        let recorded = status(&ctx.bed.recorder.so_far()?.end()).storage_migration.context("nothing is recorded")?;
        assert_eq!(recorded.storage_version, "v3");
        removable(ctx).await
    })
    .await?;
    Ok(())
}

/// A field that the controller applies to a migrated shadow goes when it is left out.
async fn removable(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let (api, name) = (shadows(ctx, earlier::NAMESPACE, "v3"), "brs-node-2");
    let applied = async |spec: Value| {
        let body = json!({
            "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "metadata": {"name": name},
            "spec": spec,
        });
        let applied = api.patch(name, &PatchParams::apply("brupop-controller"), &Patch::Apply(body)).await?;
        anyhow::Ok(serde_json::to_value(applied)?)
    };
    let host = json!({"versionLock": "1.20.5"});
    let with = applied(json!({"state": "Idle", "attempt": 0, "host": host})).await?;
    assert_eq!(with["spec"]["host"], host);
    let without = applied(json!({"state": "Idle", "attempt": 0})).await?;
    assert_eq!(without["spec"], json!({"state": "Idle", "attempt": 0}));
    assert!(without["metadata"]["ownerReferences"].is_array(), "{without}");
    Ok(())
}

/// Changes the versions of the definition.
async fn change_versions(ctx: &ScenarioContext, change: impl Fn(&mut Vec<Value>)) -> anyhow::Result<()> {
    let mut definition: Value = serde_json::from_str(&ctx.kubectl(&["get", "crd", DEFINITION, "-o", "json"]).await?)?;
    let versions = definition["spec"]["versions"].as_array_mut().context("no versions")?;
    change(versions);
    let patch = json!({"spec": {"versions": versions}}).to_string();
    ctx.kubectl(&["patch", "crd", DEFINITION, "--type=merge", "-p", &patch]).await?;
    Ok(())
}

/// Stores objects in this version from now on.
fn store_in(versions: &mut [Value], name: &str) {
    versions.iter_mut().for_each(|version| version["storage"] = (version["name"] == name).into());
}

/// Adds v4 to the definition, which has one more field than v3, and stores objects in it from now on.
fn store_v4(versions: &mut Vec<Value>) {
    let mut later = versions[versions.len() - 1].clone();
    later["name"] = "v4".into();
    let note = json!({"type": "string", "maxLength": 20, "description": "A note."});
    later["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["note"] = note;
    versions.push(later);
    store_in(versions, "v4");
}

/// Goes back from v4 to v3: of a shadow that both have written, all that v3 has is kept.
async fn back_to_v3(ctx: &ScenarioContext, request: &str) -> anyhow::Result<()> {
    let (namespace, name) = (SYSTEM_NAMESPACE, "brs-node-1");
    let note = json!({"spec": {"note": "of v4"}, "metadata": {"labels": {"example.com/a": "b"}}});
    let api = shadows(ctx, namespace, "v4");
    let noted = api.patch(name, &PatchParams::default(), &Patch::Merge(note)).await?;
    assert_eq!(noted.data["spec"]["note"], "of v4", "v4 has it");
    let kept = |shadow: &Value| {
        (shadow["spec"].clone(), shadow["status"]["record"].clone(), shadow["metadata"]["labels"].clone())
    };
    let before = kept(&shadow(ctx, namespace, name).await?);

    change_versions(ctx, |versions| store_in(versions, "v3")).await?;
    until_reason(ctx, "AwaitingRequest").await?;
    assert_eq!(stored_versions(ctx).await?, ["v4", "v3"]);
    rotation::ask_for(ctx, MIGRATE_STORAGE_ANNOTATION, request).await?;
    until_reason(ctx, "Migrated").await?;
    assert_eq!(stored_versions(ctx).await?, ["v3"]);
    assert_eq!(kept(&shadow(ctx, namespace, name).await?), before, "nothing that v3 has is lost");
    // Of a version that is not declared nothing could be read.
    change_versions(ctx, |versions| versions.retain(|version| version["name"] != "v4")).await?;
    until_reason(ctx, "Migrated").await?;
    assert_eq!(kept(&shadow(ctx, namespace, name).await?), before);
    Ok(())
}

#[ignore = "make test-all: it waits twice for the API servers to see a change of the definition"]
#[tokio::test(flavor = "multi_thread")]
async fn later_version_and_way_back_are_migrated_by_hand() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.policy["storageMigration"] = json!("Manual");
    run(options, async |ctx| {
        ctx.install().await?;
        until_reason(ctx, "Migrated").await?;
        change_versions(ctx, store_v4).await?;
        let waits = until_reason(ctx, "AwaitingRequest").await?;
        assert!(waits.message.contains(MIGRATE_STORAGE_ANNOTATION), "{waits:?}");
        assert_eq!(stored_versions(ctx).await?, ["v3", "v4"]);

        let acknowledged = async |value: &str| {
            ctx.until("the request is acknowledged", |world| {
                status(world).requests.is_some_and(|requests| requests.migrate_storage.as_deref() == Some(value))
            })
            .await
        };
        rotation::ask_for(ctx, MIGRATE_STORAGE_ANNOTATION, "1").await?;
        acknowledged("1").await?;
        until_reason(ctx, "Migrated").await?;
        assert_eq!(stored_versions(ctx).await?, ["v4"]);
        back_to_v3(ctx, "2").await
    })
    .await?;
    Ok(())
}
