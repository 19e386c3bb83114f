//! The storage migration on a real API server: leaders that end at any write, the migrator inside Kubernetes beside it,
//! and API servers that are behind.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use integ::control_plane::{ALL_CONTROLLERS, Behind, ControlPlane, Options};
use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use models::names::{GROUP, MIGRATED_FROM_ANNOTATION, SYSTEM_NAMESPACE};
use models::{earlier, names};
use serde_json::{Value, json};

use crate::migrator::Replicas;
use crate::takeover::{self, DEFINITION, EARLIER, definitions, object, settled, shadows, take_over};
use crate::{MANY, node_name, until};

/// A shadow of the earlier operator, and what becomes of it.
struct Case {
    name: &'static str,
    version: &'static str,
    /// The reference to its node.
    owner: Value,
    spec: Value,
    status: Value,
    /// `status.record` after the migration.
    record: Value,
}

/// Returns the shadows of the earlier operator that are migrated: stored in both versions, and with content that is valid
/// there and nowhere else. The node that owns them is created.
async fn cases(client: &Client) -> anyhow::Result<Vec<Case>> {
    let node: Node = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}))?;
    let node = Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": node.uid()});
    let failed_at = Timestamp::now().round(jiff::Unit::Second)? - 1.minute();
    let status = |state: &str, version: &str| json!({"current_state": state, "current_version": version, "target_version": version});
    let failing = |crash_count: u32, time: &str| {
        let mut status = status("Idle", "1.20.0");
        status["crash_count"] = crash_count.into();
        status["state_transition_failure_timestamp"] = time.into();
        status
    };
    let huge = "99999999999999999999999.0.0";
    let spec =
        |state: &str, version: Value| json!({"state": state, "state_transition_timestamp": null, "version": version});
    let mut under_way = status("StagedAndPerformedUpdate", huge);
    under_way["crash_count"] = 0.into();
    let not_before = failed_at + 40.minutes();
    let recently = failing(3, &failed_at.to_string());
    let in_future = failing(2, "2999-01-01T00:00:00Z");
    let idle = || spec("Idle", Value::Null);
    let all = [
        ("brs-v1", "v1", spec("PerformedUpdate", "1.20.5".into()), status("StagedUpdate", "1.20.0"), Value::Null),
        ("brs-v1-no-status", "v1", idle(), Value::Null, Value::Null),
        ("brs-no-status", "v2", idle(), Value::Null, Value::Null),
        ("brs-failing", "v2", idle(), recently, json!({"failures": 3, "notBefore": not_before})),
        ("brs-most", "v2", idle(), failing(u32::MAX, "monday"), json!({"failures": 10})),
        ("brs-future", "v2", spec("ErrorReset", Value::Null), in_future, json!({"failures": 2})),
        ("brs-huge-version", "v2", spec("RebootedIntoUpdate", huge.into()), under_way, Value::Null),
    ];
    let case =
        |(name, version, spec, status, record)| Case { name, version, owner: owner.clone(), spec, status, record };
    Ok(all.map(case).into())
}

/// Installs the definition of the earlier operator, which stores objects in this version from now on.
async fn earlier_definition(client: &Client, storage: &str) -> anyhow::Result<()> {
    let mut definition: Value = serde_saphyr::from_str(EARLIER)?;
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        version["storage"] = (version["name"] == storage).into();
    }
    let forced = PatchParams::apply("helm").force();
    definitions(client).patch(DEFINITION, &forced, &Patch::Apply(definition)).await?;
    for name in [earlier::NAMESPACE, SYSTEM_NAMESPACE] {
        let namespace: Namespace = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
        }))?;
        Api::<Namespace>::all(client.clone()).patch(name, &forced, &Patch::Apply(&namespace)).await?;
    }
    Ok(())
}

async fn create(client: &Client, case: &Case) -> anyhow::Result<()> {
    let content = json!({"spec": case.spec, "status": case.status});
    takeover::create(client, earlier::NAMESPACE, (case.version, case.name), Some(&case.owner), &content).await
}

fn path(name: &str) -> String {
    format!("{GROUP}/bottlerocketshadows/{}/{name}", earlier::NAMESPACE)
}

pub(super) async fn is_stored_in(control_plane: &ControlPlane, name: &str, version: &str) -> anyhow::Result<()> {
    let stored = control_plane.stored(&path(name)).await?;
    ensure!(stored["apiVersion"] == format!("{GROUP}/{version}"), "{name}: {stored}");
    Ok(())
}

async fn stored_versions(client: &Client) -> anyhow::Result<Vec<String>> {
    let definition: CustomResourceDefinition = definitions(client).get(DEFINITION).await?;
    definition.status.and_then(|status| status.stored_versions).context("no stored versions")
}

/// Checks that each shadow is migrated, in place and without a loss, and that no other version may be stored.
async fn all_are_migrated(control_plane: &ControlPlane, cases: &[Case]) -> anyhow::Result<()> {
    let client = control_plane.client();
    for case in cases {
        is_stored_in(control_plane, case.name, "v3").await?;
        let now = serde_json::to_value(shadows(&client, "v3").get(case.name).await?)?;
        let meta = &now["metadata"];
        ensure!(now["spec"] == json!({"state": "Idle", "attempt": 0}), "{now}");
        ensure!(now["status"]["record"] == case.record, "{}: {now}", case.record);
        ensure!(meta["annotations"][MIGRATED_FROM_ANNOTATION].is_null(), "{now}");
        ensure!(meta["ownerReferences"] == json!([case.owner]), "{now}");
        for entry in meta["managedFields"].as_array().context("nothing is owned")? {
            let owner = (&entry["manager"], &entry["operation"], &entry["apiVersion"]);
            ensure!(
                owner == (&json!("brupop-controller"), &json!("Apply"), &json!("brupop.bottlerocket.aws/v3")),
                "{now}"
            );
        }
    }
    let stored = stored_versions(&client).await?;
    ensure!(stored == ["v3"], "{stored:?}");
    Ok(())
}

/// Number of writes that a shadow takes: a status is applied only to carry failures over.
fn writes_of(case: &Case) -> usize {
    if case.record.is_null() { 3 } else { 4 }
}

#[tokio::test(flavor = "multi_thread")]
async fn migration_that_ends_at_each_write_or_beside_another_migrator_loses_nothing() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options { controllers: ALL_CONTROLLERS, ..Options::default() }).await?;
    let client = control_plane.client();
    let cases = cases(&client).await?;
    for version in earlier::VERSIONS {
        earlier_definition(&client, version).await?;
        for case in cases.iter().filter(|case| case.version == version) {
            create(&client, case).await?;
            is_stored_in(&control_plane, case.name, version).await?;
        }
    }
    let versions = take_over(&client).await?;
    ensure!(versions == ["v1", "v2", "v3"], "{versions:?}");
    let mut before = Vec::new();
    for case in &cases {
        before.push(control_plane.stored(&path(case.name)).await?);
    }
    let mut replicas = Replicas::new(&client).await?;
    each_leader_ends_after_one_write(&mut replicas, &cases).await?;
    all_are_migrated(&control_plane, &cases).await?;

    for (case, stored) in cases.iter().zip(&before) {
        control_plane.store(&path(case.name), stored).await?;
    }
    migrator_of_kubernetes_does_no_harm(&control_plane, &mut replicas, &cases).await?;
    control_plane.stop().await
}

/// The first leader gets as far as its first write, the second one write further, and so on.
async fn each_leader_ends_after_one_write(replicas: &mut Replicas, cases: &[Case]) -> anyhow::Result<()> {
    let mut leaders = 1;
    while !replicas.lead(1).await?.reports("Migrated").await? {
        leaders += 1;
    }
    for case in cases {
        let writes = replicas.writes_to(case.name);
        ensure!(writes == writes_of(case), "{}: {writes} writes: {:?}", case.name, replicas.written());
    }
    let writes = cases.iter().map(writes_of).sum::<usize>() + 1;
    ensure!((replicas.writes_to(DEFINITION), leaders) == (1, writes + 1), "{leaders}: {:?}", replicas.written());
    ensure!(replicas.written().last().is_some_and(|path| path.contains(DEFINITION)), "pruned at the end");
    Ok(())
}

/// An administrator requests a migration of Kubernetes' own before, during and after the operator's. Shadows are stored in
/// old versions at first, although `status.storedVersions` names none.
async fn migrator_of_kubernetes_does_no_harm(
    control_plane: &ControlPlane,
    replicas: &mut Replicas,
    cases: &[Case],
) -> anyhow::Result<()> {
    let client = control_plane.client();
    ensure!(migrate_by_kubernetes(&client, "before").await? == "Failed", "it cannot write a shadow of v2");
    for case in cases {
        is_stored_in(control_plane, case.name, case.version).await?;
    }
    let mut leader = replicas.lead(5).await?;
    ensure!(!leader.reports("Migrated").await?, "it ends before");
    drop(leader);
    ensure!(migrate_by_kubernetes(&client, "during").await? == "Failed", "shadows are left");
    ensure!(replicas.lead(usize::MAX).await?.reports("Migrated").await?);
    all_are_migrated(control_plane, cases).await?;

    let look = async || {
        let mut all = shadows(&client, "v3").list(&ListParams::default()).await?.items;
        all.retain(|shadow| shadow.name_any() != LIVE);
        anyhow::Ok(all)
    };
    let migrated = look().await?;
    ensure!(migrate_by_kubernetes(&client, "after").await? == "Succeeded", "nothing is left to do");
    ensure!(look().await? == migrated, "nothing is written");
    Ok(())
}

/// A shadow of this operator, which is written again and again.
const LIVE: &str = "brs-live";

/// Requests a migration by Kubernetes, and returns the condition in which it ends. It waits for a write of any shadow
/// that comes after its beginning.
async fn migrate_by_kubernetes(client: &Client, name: &str) -> anyhow::Result<String> {
    let kind =
        ApiResource::from_gvk(&GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration"));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let migration = json!({
        "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration", "metadata": {"name": name},
        "spec": {"resource": {"group": GROUP, "resource": "bottlerocketshadows"}},
    });
    api.create(&PostParams::default(), &serde_json::from_value(migration)?).await?;
    let (mut ended, mut refresh) = (None, 60);
    until(&format!("the migration {name}"), async || {
        refresh += 1;
        let spec = json!({"state": "Idle", "attempt": 0, "host": {"refreshInterval": format!("{refresh}s")}});
        let live = object("v3", LIVE, &json!({"spec": spec}))?;
        shadows(client, "v3").patch(LIVE, &PatchParams::apply("test").force(), &Patch::Apply(&live)).await?;
        let found = api.get(name).await?;
        let conditions = found.data["status"]["conditions"].as_array().into_iter().flatten();
        let mut ends = conditions.filter(|condition| condition["type"] != "Running" && condition["status"] == "True");
        ended = ends.next().and_then(|condition| condition["type"].as_str()).map(str::to_owned);
        Ok(ended.is_some())
    })
    .await?;
    ended.context("just seen")
}

/// A rolling change of API servers: one of them knows neither v3 nor the policy that makes the earlier versions read-only.
#[tokio::test(flavor = "multi_thread")]
async fn shadow_that_api_server_behind_stores_during_migration_is_migrated_before_prune() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.client();
    let second = control_plane.second_apiserver().await?;
    let behind = second.client();
    let mut cases = cases(&client).await?;
    cases.retain(|case| ["brs-failing", "brs-most"].contains(&case.name));
    earlier_definition(&client, "v2").await?;
    create(&client, &cases[0]).await?;
    settled("the second server serves the shadows", async || {
        shadows(&behind, "v2").get(cases[0].name).await.map(|_| ())
    })
    .await?;
    second.hold(Behind::Policies);
    let versions = take_over(&client).await?;
    ensure!(versions == ["v2", "v3"], "{versions:?}");

    let mut replicas = Replicas::new(&client).await?;
    let mut leader = replicas.lead(usize::MAX).await?;
    ensure!(leader.reports("no shadow is left").await?);
    create(&behind, &cases[1]).await?;
    is_stored_in(&control_plane, cases[1].name, "v2").await?;
    ensure!(stored_versions(&client).await? == ["v2", "v3"], "not pruned yet");
    // While two API servers disagree, they take a whole processor.
    drop(second);
    ensure!(leader.reports("Migrated").await?);
    all_are_migrated(&control_plane, &cases).await?;
    let written = replicas.written();
    let prune = written.iter().position(|path| path.contains(DEFINITION)).context("not pruned")?;
    ensure!(written[..prune].iter().filter(|path| path.contains(cases[1].name)).count() == 4, "{written:?}");
    control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-takeover runs it"]
async fn migration_of_5000_shadows_takes_four_writes_for_each() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.client();
    earlier_definition(&client, "v2").await?;
    let name = |number: usize| names::shadow_name(&node_name(number));
    let failing = cases(&client).await?.into_iter().find(|case| case.name == "brs-failing").context("no such case")?;
    create(&client, &failing).await?;
    let api = shadows(&client, "v2");
    futures::stream::iter(0..MANY - 1)
        .map(anyhow::Ok)
        .try_for_each_concurrent(16, async |number| {
            let shadow = object("v2", &name(number), &json!({"spec": failing.spec}))?;
            api.create(&PostParams::default(), &shadow).await?;
            let status = json!({"status": failing.status});
            api.patch_status(&name(number), &PatchParams::default(), &Patch::Merge(status)).await?;
            Ok(())
        })
        .await?;
    take_over(&client).await?;
    let mut replicas = Replicas::new(&client).await?;
    let mut leader = replicas.lead(usize::MAX).await?;
    ensure!(leader.reports_in_time("Migrated", Duration::from_secs(1800)).await?);

    ensure!(replicas.written().len() == 4 * MANY + 1, "{} writes", replicas.written().len());
    let all = shadows(&client, "v3").list(&ListParams::default()).await?.items;
    let carried = all.iter().filter(|shadow| shadow.data["status"]["record"] == failing.record).count();
    ensure!((all.len(), carried) == (MANY, MANY), "{} {carried}", all.len());
    for number in (0..MANY - 1).step_by(100) {
        ensure!(replicas.writes_to(&name(number)) == 4, "{number}");
        is_stored_in(&control_plane, &name(number), "v3").await?;
    }
    ensure!(stored_versions(&client).await? == ["v3"]);
    control_plane.stop().await
}
