//! The history of rollouts on a real API server: what the definition refuses, and `kubectl brupop history` over objects there.

use std::path::Path;

use anyhow::{Context as _, ensure};
use integ::bed::Programs;
use integ::control_plane::ControlPlane;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use models::history::{
    BottlerocketRolloutHistory, RECORD_AUDIENCE, RecordClaims, page_digest, page_name, record_digest, record_name,
};
use models::names::{HISTORY_KEYS, HISTORY_LABEL, PAGE, RECORD, RECORD_LABEL, SYSTEM_NAMESPACE};
use planner::revisions::NO_HISTORY;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::expect;

fn objects(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<BottlerocketRolloutHistory>(&());
    Api::namespaced_with(client.clone(), SYSTEM_NAMESPACE, &resource)
}

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
        "from": [{"version": "1.20.0", "nodes": 2}], "begun": "2026-01-01T10:00:00Z",
        "steps": [{"nodes": 1, "soak": "10m", "approval": "Manual"}], "policy": "{}",
    })
}

fn row(node: &str) -> Value {
    let pod = json!({
        "namespace": "shop", "name": format!("web-{node}"), "uid": "p", "owner": "Deployment/web", "budgets": ["web"],
        "services": ["web"], "moved": "Evicted",
    });
    json!({
        "node": node, "uid": "n", "rollout": 7, "step": 1, "attempt": 1, "from": "1.20.0", "to": "1.21.0", "result": "Updated",
        "started": "2026-01-01T10:00:00Z", "drainStarted": "2026-01-01T10:01:00Z", "drainEnded": "2026-01-01T10:02:00Z",
        "soakStarted": "2026-01-01T10:03:00Z", "ended": "2026-01-01T10:04:00Z", "bootBefore": "b1", "bootAfter": "b2",
        "pods": [pod], "running": ["shop/web-2"],
    })
}

/// A key that signs records, with its id.
struct Signer {
    id: String,
    key: EncodingKey,
}

impl Signer {
    fn new() -> anyhow::Result<Self> {
        let pair = rcgen::KeyPair::generate()?;
        let id = Sha256::digest(pair.public_key_raw()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id, key: EncodingKey::from_ec_der(&pair.serialize_der()) })
    }

    async fn publish(&self, client: &Client) -> anyhow::Result<()> {
        let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256)?;
        jwk.common.key_id = Some(self.id.clone());
        let map = json!({"metadata": {"name": HISTORY_KEYS}, "data": {&self.id: serde_json::to_string(&jwk)?}});
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
        maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        Ok(())
    }

    /// Creates a record with its pages; ended and signed, if it is.
    async fn record(&self, client: &Client, number: i64, nodes: &[&str], ended: bool) -> anyhow::Result<String> {
        let api = objects(client);
        let name = record_name(&serde_json::from_value(rollout(number))?);
        let head = object(&name, &name, RECORD, &json!({"rollout": rollout(number)}))?;
        let spec = api.create(&PostParams::default(), &head).await?.data["spec"].clone();
        let mut pages = Vec::new();
        for (number, node) in (1..).zip(nodes) {
            let content = json!({"page": {"number": number, "rows": [row(node)]}});
            let page = object(&page_name(&name, number), &name, PAGE, &content)?;
            let page = api.create(&PostParams::default(), &page).await?;
            pages.push(json!({"digest": page_digest(&page.data["spec"])?, "nodes": 1, "pods": 1, "bytes": 500}));
        }
        let mut status = json!({
            "phase": "Running", "nodes": nodes.len(), "pods": nodes.len(), "pages": pages,
            "entries": [{"time": "2026-01-01T10:00:00Z", "kind": "Begun"},
                {"time": "2026-01-01T10:05:00Z", "kind": "Approved", "step": 1, "fieldManager": "kubectl-edit"}],
        });
        if ended {
            (status["phase"], status["ended"]) = (json!("Completed"), json!("2026-01-01T11:00:00Z"));
            let claims = RecordClaims {
                aud: RECORD_AUDIENCE.to_owned(),
                record: name.clone(),
                digest: record_digest(&spec, &status)?,
            };
            let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
            status["signature"] = json!(encode(&header, &claims, &self.key)?);
        }
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
        Ok(name)
    }
}

async fn clear(client: &Client) -> anyhow::Result<()> {
    objects(client).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

pub(super) async fn records_and_pages_never_change(client: Client) -> anyhow::Result<()> {
    const NEVER: &str = "a record never changes";
    const ENDED: &str = "the record of an ended rollout never changes";
    let api = objects(&client);
    let signer = Signer::new()?;
    let name = signer.record(&client, 7, &["a"], false).await?;
    let page = page_name(&name, 1);

    for (what, object, patch, refusal) in [
        ("a changed page", &page, json!({"spec": {"page": {"rows": []}}}), NEVER),
        ("a page of another record", &page, json!({"spec": {"record": "rollout-8-x"}}), NEVER),
        ("a changed record", &name, json!({"spec": {"rollout": {"policy": "{\"enabled\":false}"}}}), NEVER),
        ("a record without its rollout", &name, json!({"spec": {"rollout": null}}), NEVER),
        ("a page without its rows", &page, json!({"spec": {"page": null}}), NEVER),
        ("a record as a page", &name, json!({"spec": {"rollout": null, "page": {"number": 1, "rows": []}}}), NEVER),
        ("no spec", &name, json!({"spec": null}), "spec: Required value"),
        ("no spec of a page", &page, json!({"spec": null}), "spec: Required value"),
    ] {
        expect(what, api.patch(object, &PatchParams::default(), &Patch::Merge(&patch)).await, Some(refusal))?;
    }
    let replaced = |value: Value| -> anyhow::Result<Patch<()>> {
        Ok(Patch::Json(serde_json::from_value(json!([{"op": "replace", "path": "/spec", "value": value}]))?))
    };
    for object in [&name, &page] {
        let result = api.patch(object, &PatchParams::default(), &replaced(json!({}))?).await;
        expect("an emptied spec", result, Some("spec.record: Required value"))?;
    }
    for (what, object) in [
        ("another name", object("rollout-8-x", "rollout-9-x", RECORD, &json!({"rollout": rollout(8)}))?),
        ("a page of another name", object("x-p001", "rollout-9-x", PAGE, &json!({"page": {"number": 1, "rows": []}}))?),
    ] {
        let result = api.create(&PostParams::default(), &object).await;
        expect(what, result, Some("the name of a record is that in spec.record"))?;
    }
    let both = object(
        "rollout-8-x",
        "rollout-8-x",
        RECORD,
        &json!({"rollout": rollout(8), "page": {"number": 1, "rows": []}}),
    )?;
    expect("a record and page", api.create(&PostParams::default(), &both).await, Some("either a record or a page"))?;
    let neither = object("rollout-8-x", "rollout-8-x", RECORD, &json!({}))?;
    expect("neither", api.create(&PostParams::default(), &neither).await, Some("either a record or a page"))?;

    // A running record changes until it has ended.
    let status = async |value: Value| {
        let patch = serde_json::from_value(json!([{"op": "replace", "path": "/status", "value": value}]));
        let patch: Patch<()> = Patch::Json(patch.map_err(kube::Error::SerdeError)?);
        api.patch_status(&name, &PatchParams::default(), &patch).await
    };
    expect("a running record", status(json!({"phase": "Running", "nodes": 2, "pods": 0})).await, None)?;
    expect("its end", status(json!({"phase": "Completed", "nodes": 2, "pods": 0})).await, None)?;
    for (what, value) in [
        ("a changed count", json!({"phase": "Completed", "nodes": 3, "pods": 0})),
        ("a running phase", json!({"phase": "Running", "nodes": 2, "pods": 0})),
        ("a later signature", json!({"phase": "Completed", "nodes": 2, "pods": 0, "signature": "x"})),
        ("an empty status", json!({})),
    ] {
        expect(what, status(value).await, Some(ENDED))?;
    }
    let removed = serde_json::from_value(json!([{"op": "remove", "path": "/status"}]))?;
    let result = api.patch_status(&name, &PatchParams::default(), &Patch::<()>::Json(removed)).await;
    expect("a removed status", result, Some(ENDED))?;
    let null = json!({"status": null});
    let result = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&null)).await;
    expect("a null as status", result, Some(ENDED))?;
    let mut bare = api.get(&name).await?;
    bare.data.as_object_mut().context("an object")?.remove("status");
    let result = api.replace_status(&name, &PostParams::default(), &bare).await;
    expect("a PUT without status", result, Some(ENDED))?;
    clear(&client).await
}

/// Runs the plugin; returns true if it succeeded, and its output. Without a kubeconfig it can reach no cluster.
async fn plugin(kubeconfig: Option<&Path>, arguments: &[&str]) -> anyhow::Result<(bool, String)> {
    let mut command = tokio::process::Command::new(Programs::find()?.plugin);
    command.arg("history").args(arguments).env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/nonexistent")));
    let output = command.output().await?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

fn contains(text: &str, parts: &[&str]) -> anyhow::Result<()> {
    parts.iter().try_for_each(|part| {
        ensure!(text.contains(part), "no '{part}' in {text}");
        Ok(())
    })
}

pub(super) async fn plugin_lists_shows_and_verifies_rollouts(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let client = control_plane.client();
    let kubeconfig = control_plane.kubeconfig();
    let run = async |arguments: &[&str], succeeds: bool, parts: &[&str]| -> anyhow::Result<String> {
        let (success, text) = plugin(Some(kubeconfig), arguments).await?;
        ensure!(success == succeeds, "{arguments:?}: {text}");
        contains(&text, parts)?;
        Ok(text)
    };
    run(&[], true, &[NO_HISTORY, "No rollouts are recorded."]).await?;
    let signer = Signer::new()?;
    signer.publish(&client).await?;
    let ended = signer.record(&client, 7, &["a", "b", "c"], true).await?;
    let running = signer.record(&client, 8, &["a"], false).await?;

    run(&[], true, &[NO_HISTORY, "ROLLOUT", "aws-k8s-1.37/x86_64", "Completed", "Running"]).await?;
    run(&["--revision", "1"], false, &["unable to find the specified revision"]).await?;
    run(&["9"], false, &["there is no rollout 9", &ended, &running]).await?;
    run(&["7"], true, &[&ended, "kubectl-edit", "Deployment/web", "shop/web-c", "Canary step 1"]).await?;
    let list: Value = serde_json::from_str(&run(&[&ended, "-o", "json"], true, &[]).await?)?;
    ensure!(list["kind"] == "List" && list["items"].as_array().map(Vec::len) == Some(4), "{list}");
    run(&["7", "-o", "yaml"], true, &["kind: List", "digest:"]).await?;

    let signed = format!("ok {ended} (Completed): signed with the key {}; pages checked: 3, removed: 0", signer.id);
    let unsigned = format!("unsigned {running} (Running): not signed yet (running); pages checked: 1, removed: 0");
    run(&["--verify"], true, &[&signed, &unsigned]).await?;
    run(&["7", "--verify"], true, &[&signed]).await?;

    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (bundle, html) = (path("bundle.json"), path("rollout.html"));
    run(&["--export", &bundle], true, &["records: 2, pages: 4, keys: 1"]).await?;
    let (success, text) = plugin(None, &["--verify", "--bundle", &bundle]).await?;
    ensure!(success, "{text}");
    contains(&text, &[&signed, &unsigned])?;
    let (success, text) = plugin(None, &["7", "--bundle", &bundle, "--html", &html]).await?;
    ensure!(success && std::fs::read_to_string(&html)?.contains("shop"), "{text}");
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&bundle)?)?;
    changed["records"][0]["status"]["entries"][1]["fieldManager"] = json!("another");
    std::fs::write(&bundle, changed.to_string())?;
    let (success, text) = plugin(None, &["--verify", "--bundle", &bundle]).await?;
    ensure!(!success, "{text}");
    contains(&text, &["its spec or status was changed after it had ended"])?;

    let api = objects(&client);
    api.delete(&page_name(&ended, 1), &DeleteParams::default()).await?;
    run(&["--verify"], true, &["pages checked: 2, removed: 1"]).await?;
    run(&["7"], true, &["Removed pages:   1 of 3"]).await?;
    let added = object(&page_name(&ended, 4), &ended, PAGE, &json!({"page": {"number": 4, "rows": []}}))?;
    api.create(&PostParams::default(), &added).await?;
    run(&["7", "--verify"], false, &["names 3 pages, and not this one"]).await?;
    let unlabelled = json!({"metadata": {"labels": {HISTORY_LABEL: null}}});
    api.patch(&ended, &PatchParams::default(), &Patch::Merge(&unlabelled)).await?;
    run(&["--verify"], false, &["it is a record without the label of one"]).await?;
    clear(&client).await
}
