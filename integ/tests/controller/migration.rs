//! The migration of stored shadows to a later version of their definition: what it waits for, and what hinders it.

use anyhow::Context as _;
use integ::bed::workload;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use models::condition::{Condition, ConditionStatus};
use models::names::{CONTROLLER, MIGRATE_STORAGE_ANNOTATION, SHADOW_DEFINITION, SYSTEM_NAMESPACE};
use models::operator::{DEGRADED, STORAGE_MIGRATED};
use models::shadow::BottlerocketShadow;
use serde_json::{Value, json};

use crate::bed::{SHOP, ScriptedCluster, poll};

crate::cases![later_version_waits_for_request_and_what_hinders_its_migration_is_named];

const VERSION: &str = "brupop.bottlerocket.aws/v3";
const KIND: &str = "BottlerocketShadow";

/// A shadow that no node has, and that may not be changed.
const KEPT: &str = "brs-kept";

fn shadows(cluster: &ScriptedCluster, namespace: &str) -> Api<BottlerocketShadow> {
    Api::namespaced(cluster.client.clone(), namespace)
}

/// Waits until the condition has this reason, and returns it.
async fn until_reason(cluster: &ScriptedCluster, reason: &str) -> anyhow::Result<Condition> {
    let is = |condition: &&Condition| condition.reason == reason;
    let what = format!("the storage migration is {reason}");
    let world =
        cluster.until(&what, |world| world.operator_condition(STORAGE_MIGRATED).as_ref().is_some_and(is)).await?;
    world.operator_condition(STORAGE_MIGRATED).cloned().context("just seen")
}

/// Checks that the condition names a field that another manager owns too, and its manager, until that gives it up.
async fn other_owner_is_named(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let (api, name) = (shadows(cluster, SYSTEM_NAMESPACE), "brs-node-1");
    let spec = api.get(name).await?.spec;
    let none = json!({"apiVersion": VERSION, "kind": KIND});
    let mut same = none.clone();
    same["spec"] = json!({"state": spec.state, "attempt": spec.attempt});
    let other = PatchParams::apply("example-tool");
    api.patch(name, &other, &Patch::Apply(same)).await?;
    let degraded = cluster.until_operator(DEGRADED, ConditionStatus::True).await?;
    assert_eq!(degraded.reason, "FieldManagerConflict", "{degraded:?}");
    for part in ["spec.attempt", "example-tool"] {
        assert!(degraded.message.contains(part), "{degraded:?}");
    }
    api.patch(name, &other, &Patch::Apply(none)).await?;
    cluster.until_operator(DEGRADED, ConditionStatus::False).await.map(drop)
}

/// Adds v4 to the definition, and stores objects in it from now on.
async fn store_v4(definitions: &Api<CustomResourceDefinition>) -> anyhow::Result<()> {
    let definition = definitions.get(SHADOW_DEFINITION).await?;
    let mut versions = definition.spec.versions;
    let mut later = versions.last().context("no versions")?.clone();
    later.name = "v4".to_owned();
    versions.iter_mut().for_each(|version| version.storage = false);
    later.storage = true;
    versions.push(later);
    let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
    definitions.patch(SHADOW_DEFINITION, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn stored_versions(definitions: &Api<CustomResourceDefinition>) -> anyhow::Result<Vec<String>> {
    let status = definitions.get(SHADOW_DEFINITION).await?.status;
    Ok(status.and_then(|status| status.stored_versions).unwrap_or_default())
}

/// Denies every change of one shadow.
fn denial() -> Vec<Value> {
    let version = "admissionregistration.k8s.io/v1";
    vec![
        json!({
            "apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "keep-one"},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": ["brupop.bottlerocket.aws"], "apiVersions": ["*"],
                    "resources": ["bottlerocketshadows"], "operations": ["UPDATE"],
                }]},
                "validations": [{"expression": format!("request.name != '{KEPT}'"), "message": "it is kept"}],
            },
        }),
        json!({
            "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "keep-one"},
            "spec": {"policyName": "keep-one", "validationActions": ["Deny"]},
        }),
    ]
}

async fn later_version_waits_for_request_and_what_hinders_its_migration_is_named(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.uses_up_stage = true;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    cluster.start(1, json!({"storageMigration": "Manual"})).await?;
    until_reason(cluster, "Migrated").await?;
    other_owner_is_named(cluster).await?;
    let (api, spec) = (shadows(cluster, SHOP), json!({"state": "Idle", "attempt": 0}));
    let kept = json!({"apiVersion": VERSION, "kind": KIND, "metadata": {"name": KEPT}, "spec": spec});
    cluster.create(api.clone(), kept).await?;
    store_v4(&definitions).await?;
    let waits = until_reason(cluster, "AwaitingRequest").await?;
    assert!(waits.message.contains(MIGRATE_STORAGE_ANNOTATION), "{waits:?}");
    assert_eq!(stored_versions(&definitions).await?, ["v3", "v4"]);

    workload::apply(&cluster.client, denial()).await?;
    let changed = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    poll("the denial is in force", async || Ok(api.patch(KEPT, &dry_run, &changed).await.is_err().then_some(())))
        .await?;
    cluster.request(MIGRATE_STORAGE_ANNOTATION, "1").await?;
    let refused = until_reason(cluster, "ObjectsRefused").await?;
    for part in ["1 shadows", "shop/brs-kept", "it is kept"] {
        assert!(refused.message.contains(part), "{refused:?}");
    }
    assert_eq!(stored_versions(&definitions).await?, ["v3", "v4"], "nothing is pruned");

    let user = integ::oracle::service_account(SYSTEM_NAMESPACE, CONTROLLER);
    let own = Api::<CustomResourceDefinition>::all(cluster.stage.control_plane.client_as(&user, &[])?);
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
    let name = "brupop-controller-migration";
    let saved = bindings.get(name).await?;
    bindings.delete(name, &DeleteParams::default()).await?;
    poll("the right is gone", async || Ok(own.get(SHADOW_DEFINITION).await.is_err().then_some(()))).await?;
    cluster.request(MIGRATE_STORAGE_ANNOTATION, "2").await?;
    let missing = until_reason(cluster, "MissingRight").await?;
    assert!(missing.message.contains("customresourcedefinitions"), "{missing:?}");
    let again = json!({"metadata": {"name": name}, "roleRef": saved.role_ref, "subjects": saved.subjects});
    cluster.create(bindings, again).await?;
    poll("the right is back", async || Ok(own.get(SHADOW_DEFINITION).await.ok())).await?;
    cluster.request(MIGRATE_STORAGE_ANNOTATION, "3").await?;
    until_reason(cluster, "ObjectsRefused").await?;
    Ok(())
}
