//! The definition of the history of rollouts on a real API server: what it refuses.

use anyhow::Context as _;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use models::history::{BottlerocketRolloutHistory, page_name, record_name};
use models::names::{HISTORY_LABEL, PAGE, RECORD, RECORD_LABEL, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use super::expect;

fn object(name: &str, record: &str, label: &str, content: &Value) -> anyhow::Result<DynamicObject> {
    let labels = json!({HISTORY_LABEL: label, RECORD_LABEL: record});
    let mut object = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketRolloutHistory",
        "metadata": {"name": name, "labels": labels}, "spec": {"record": record},
    });
    for (field, value) in content.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    Ok(serde_json::from_value(object)?)
}

fn rollout(number: i64) -> Value {
    json!({
        "number": number, "operator": {"namespace": SYSTEM_NAMESPACE, "name": "default", "uid": "u"},
        "revision": {"name": "default-x", "number": 3}, "variant": "aws-k8s-1.37", "arch": "x86_64", "version": "1.21.0",
        "begun": "2026-01-01T10:00:00Z", "policy": "{}",
    })
}

pub(super) async fn records_and_pages_never_change(client: Client) -> anyhow::Result<()> {
    const NEVER: &str = "a record never changes";
    const ENDED: &str = "the record of an ended rollout never changes";
    const NAME: &str = "the name of a record is that in spec.record";
    const EITHER: &str = "either a record or a page";
    let resource = ApiResource::erase::<BottlerocketRolloutHistory>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, SYSTEM_NAMESPACE, &resource);
    let name = record_name(&serde_json::from_value(rollout(7))?);
    let page = page_name(&name, 1);
    let rows = json!({"number": 1, "rows": []});
    for new in [
        object(&name, &name, RECORD, &json!({"rollout": rollout(7)}))?,
        object(&page, &name, PAGE, &json!({"page": rows}))?,
    ] {
        api.create(&PostParams::default(), &new).await?;
    }
    let running = Patch::Merge(json!({"status": {"phase": "Running", "nodes": 1, "pods": 0}}));
    api.patch_status(&name, &PatchParams::default(), &running).await?;

    for (what, object, patch, refusal) in [
        ("a changed page", &page, json!({"spec": {"page": {"number": 2}}}), NEVER),
        ("a page of another record", &page, json!({"spec": {"record": "rollout-8-x"}}), NEVER),
        ("a changed record", &name, json!({"spec": {"rollout": {"policy": "{\"enabled\":false}"}}}), NEVER),
        ("a record without its rollout", &name, json!({"spec": {"rollout": null}}), NEVER),
        ("a page without its rows", &page, json!({"spec": {"page": null}}), NEVER),
        ("a record as a page", &name, json!({"spec": {"rollout": null, "page": rows}}), NEVER),
        ("no spec", &name, json!({"spec": null}), "spec: Required value"),
        ("no spec of a page", &page, json!({"spec": null}), "spec: Required value"),
    ] {
        expect(what, api.patch(object, &PatchParams::default(), &Patch::Merge(&patch)).await, Some(refusal))?;
    }
    let replaced = |place: &str, value: Value| -> anyhow::Result<Patch<()>> {
        Ok(Patch::Json(serde_json::from_value(json!([{"op": "replace", "path": place, "value": value}]))?))
    };
    for object in [&name, &page] {
        let result = api.patch(object, &PatchParams::default(), &replaced("/spec", json!({}))?).await;
        expect("an emptied spec", result, Some("spec.record: Required value"))?;
    }
    let new = "rollout-8-x";
    let both = json!({"rollout": rollout(8), "page": rows});
    for (what, object, refusal) in [
        ("another name", object(new, "rollout-9-x", RECORD, &json!({"rollout": rollout(8)}))?, NAME),
        ("a page of another name", object("x-p001", "rollout-9-x", PAGE, &json!({"page": rows}))?, NAME),
        ("a record and page", object(new, new, RECORD, &both)?, EITHER),
        ("neither", object(new, new, RECORD, &json!({}))?, EITHER),
    ] {
        expect(what, api.create(&PostParams::default(), &object).await, Some(refusal))?;
    }

    // A running record changes until it has ended.
    let removed = Patch::Json::<()>(serde_json::from_value(json!([{"op": "remove", "path": "/status"}]))?);
    for (what, patch, refusal) in [
        ("a running record", replaced("/status", json!({"phase": "Running", "nodes": 2, "pods": 0}))?, None),
        ("its end", replaced("/status", json!({"phase": "Completed", "nodes": 2, "pods": 0}))?, None),
        ("a changed count", replaced("/status/nodes", json!(3))?, Some(ENDED)),
        ("a running phase", replaced("/status/phase", json!("Running"))?, Some(ENDED)),
        (
            "a later signature",
            replaced("/status", json!({"phase": "Completed", "nodes": 2, "pods": 0, "signature": "x"}))?,
            Some(ENDED),
        ),
        ("an empty status", replaced("/status", json!({}))?, Some(ENDED)),
        ("a removed status", removed, Some(ENDED)),
    ] {
        expect(what, api.patch_status(&name, &PatchParams::default(), &patch).await, refusal)?;
    }
    let null = json!({"status": null});
    let result = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&null)).await;
    expect("a null as status", result, Some(ENDED))?;
    let mut bare = api.get(&name).await?;
    bare.data.as_object_mut().context("an object")?.remove("status");
    let result = api.replace_status(&name, &PostParams::default(), &bare).await;
    expect("a PUT without status", result, Some(ENDED))?;
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}
