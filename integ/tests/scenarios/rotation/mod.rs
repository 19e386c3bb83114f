//! Rotation of certificates and keys under load, without refused requests.

mod load;
pub(crate) mod provided;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::TestClusterOptions;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::DeleteParams;
use models::condition::ConditionStatus;
use models::names::{
    AGENT_NAMESPACE, APISERVER, CA_SECRET, OPERATOR_NAME, PERMIT_KEY_SECRET, ROTATE_CERTIFICATES_ANNOTATION,
    ROTATE_SIGNING_KEY_ANNOTATION, SERVING_SECRET, SYSTEM_NAMESPACE, TRUST_CA_KEY, TRUST_CONFIG_MAP, TRUST_PERMIT_KEYS,
};
use models::wire::ShadowView;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use reqwest::header::IF_MATCH;
use reqwest::{Certificate, Client, Proxy, StatusCode};
use semver::Version;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::load::Load;
use crate::interfere::{agent_on, poll};
use crate::support::{LIMIT, ScenarioContext, nodes, run, status};

/// Wait of the controllers, and longest delay of the kubelets: far apart, for a kubelet on a busy machine is late.
const WAIT: &str = "--trust-wait=20s";
const LAG: Duration = Duration::from_secs(2);

/// The taint of nodes with agents alone.
const AGENTS_ONLY: &str = "example.com/agents-only";

fn options(count: usize) -> TestClusterOptions {
    let mut options = TestClusterOptions { volume_lag: LAG, ..nodes(count) };
    options.deploy.controller_args = vec![WAIT.to_owned()];
    options
}

async fn secret(ctx: &ScenarioContext, name: &str) -> anyhow::Result<Option<Secret>> {
    Ok(Api::<Secret>::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE).get_opt(name).await?)
}

fn field(secret: &Secret, field: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(field)?;
    String::from_utf8(bytes.0.clone()).ok()
}

async fn text_of(ctx: &ScenarioContext, name: &str, of: &str) -> anyhow::Result<String> {
    let secret = secret(ctx, name).await?.with_context(|| format!("no {name}"))?;
    field(&secret, of).with_context(|| format!("no {of} in {name}"))
}

async fn trust(ctx: &ScenarioContext) -> anyhow::Result<BTreeMap<String, String>> {
    let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), AGENT_NAMESPACE);
    Ok(maps.get(TRUST_CONFIG_MAP).await?.data.unwrap_or_default())
}

async fn delete(ctx: &ScenarioContext, name: &str) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    secrets.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

pub(crate) async fn ask_for(ctx: &ScenarioContext, annotation: &str, value: &str) -> anyhow::Result<()> {
    let annotation = format!("{annotation}={value}");
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, "--overwrite", &annotation]).await?;
    Ok(())
}

/// The content of the three Secrets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Material {
    authority: String,
    leaf: String,
    pub(crate) key: String,
}

pub(crate) async fn material(ctx: &ScenarioContext) -> anyhow::Result<Material> {
    Ok(Material {
        authority: text_of(ctx, CA_SECRET, "tls.crt").await?,
        leaf: text_of(ctx, SERVING_SECRET, "tls.crt").await?,
        key: text_of(ctx, PERMIT_KEY_SECRET, "key.pem").await?,
    })
}

/// Waits until a new authority has issued the certificate and the previous one has no key any more.
pub(crate) async fn certificates_rotated(ctx: &ScenarioContext, before: &Material) -> anyhow::Result<()> {
    poll("the certificates are rotated", async || {
        let (Some(ca), Some(serving)) = (secret(ctx, CA_SECRET).await?, secret(ctx, SERVING_SECRET).await?) else {
            return Ok(None);
        };
        let (Some(authority), Some(leaf)) = (field(&ca, "tls.crt"), field(&serving, "tls.crt")) else {
            return Ok(None);
        };
        let done = authority != before.authority && leaf != before.leaf && field(&ca, "previous.key").is_none();
        Ok(done.then_some(()))
    })
    .await
}

/// Waits until only a new key signs.
async fn key_rotated(ctx: &ScenarioContext, before: &Material) -> anyhow::Result<()> {
    poll("the signing key is rotated", async || {
        let Some(ring) = secret(ctx, PERMIT_KEY_SECRET).await? else { return Ok(None) };
        let alone = field(&ring, "previous.pem").is_none();
        let keys: Value = serde_json::from_str(&trust(ctx).await?[TRUST_PERMIT_KEYS])?;
        let one = keys["keys"].as_array().is_some_and(|keys| keys.len() == 1);
        Ok((field(&ring, "key.pem").is_some_and(|key| key != before.key) && alone && one).then_some(()))
    })
    .await
}

/// Waits until requests are acknowledged.
async fn acknowledged(ctx: &ScenarioContext, value: &str) -> anyhow::Result<()> {
    ctx.until("the requests are acknowledged", |world| {
        let requests = status(world).requests.unwrap_or_default();
        requests.rotate_certificates.as_deref() == Some(value) && requests.rotate_signing_key.as_deref() == Some(value)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_and_deleted_secrets_fail_no_request_and_offline_nodes_reconnect() -> anyhow::Result<()> {
    let mut options = options(4);
    // Each has its own volumes, which its own kubelet updates at its own time.
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |ctx| {
        // They run nothing of the operator but their agents.
        let taint = format!("{AGENTS_ONLY}=:NoSchedule");
        ctx.kubectl(&["taint", "nodes", "node-3", "node-4", &taint]).await?;
        ctx.install().await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=240s"]).await?;
        deleted_secrets_are_recreated_without_failed_requests(ctx).await.context("Secrets are deleted")?;
        rotation_fails_no_request_and_offline_nodes_reconnect(ctx).await.context("a user asks for a rotation")
    })
    .await?;
    ending.assert_updates(8);
    Ok(())
}

async fn deleted_secrets_are_recreated_without_failed_requests(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let load = Load::of(ctx, &["node-1", "node-2"]).await?;
    // A certificate alone is replaced at once: its authority is known everywhere.
    let before = material(ctx).await?;
    delete(ctx, SERVING_SECRET).await?;
    poll("there is another certificate", async || {
        let serving = secret(ctx, SERVING_SECRET).await?;
        Ok(serving.and_then(|s| field(&s, "tls.crt")).filter(|leaf| *leaf != before.leaf))
    })
    .await?;
    ensure!(material(ctx).await?.authority == before.authority);

    let before = material(ctx).await?;
    delete(ctx, CA_SECRET).await?;
    certificates_rotated(ctx, &before).await?;

    // Both at once: the certificates in use stay trusted until they are replaced.
    let before = material(ctx).await?;
    delete(ctx, CA_SECRET).await?;
    delete(ctx, SERVING_SECRET).await?;
    certificates_rotated(ctx, &before).await?;
    load.end().await?;
    poll("the authorities that a user has deleted are not trusted any more", async || {
        let bundle = trust(ctx).await?[TRUST_CA_KEY].clone();
        Ok((bundle.matches("BEGIN").count() == 1).then_some(()))
    })
    .await?;

    // Authority and key together: agents would be disconnected for a wait, and so would any client that starts
    // meanwhile.
    let before = material(ctx).await?;
    delete(ctx, CA_SECRET).await?;
    let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), AGENT_NAMESPACE);
    maps.delete(TRUST_CONFIG_MAP, &DeleteParams::default()).await?;
    poll("what is in service and what is trusted are of one authority", async || {
        let Ok(now) = material(ctx).await else { return Ok(None) };
        Ok((now.authority != before.authority && now.leaf != before.leaf).then_some(()))
    })
    .await?;

    // A deleted key is revoked at once, and the next one signs.
    let before = published_keys(ctx).await?;
    delete(ctx, PERMIT_KEY_SECRET).await?;
    revoked(ctx, &before).await?;
    ctx.release();
    ctx.updated().await?;
    Ok(())
}

async fn rotation_fails_no_request_and_offline_nodes_reconnect(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let load = Load::of(ctx, &["node-1", "node-2"]).await?;
    // One machine is off; on the other the kubelet hangs and the agent continues with its old volumes.
    let (off, hung) = (ctx.bed.member("node-3")?, ctx.bed.member("node-4")?);
    let boot = off.host.snapshot().boot_id;
    off.host.power_off();
    hung.kubelet.pause();
    let before = material(ctx).await?;
    ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, "1").await?;
    ask_for(ctx, ROTATE_SIGNING_KEY_ANNOTATION, "1").await?;
    acknowledged(ctx, "1").await?;
    certificates_rotated(ctx, &before).await?;
    let bundle = trust(ctx).await?[TRUST_CA_KEY].clone();
    ensure!(bundle.contains(before.authority.trim()), "what it issued is good for a long time: {bundle}");
    key_rotated(ctx, &before).await?;
    load.end().await?;
    off.host.power_on();
    off.host.booted_after(&boot).await;
    hung.kubelet.resume();
    ctx.reported().await?;

    // The new key signs.
    let version = Version::new(1, 20, 6);
    ctx.bed.releases.publish(version.clone());
    ctx.bed.wait_updated(&version, LIMIT).await?;
    Ok(())
}

/// The ids of the keys that agents are to trust.
async fn published_keys(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let list: Value = serde_json::from_str(&trust(ctx).await?[TRUST_PERMIT_KEYS])?;
    let keys = list["keys"].as_array().context("no list of keys")?;
    keys.iter().map(|key| key["kid"].as_str().map(str::to_owned).context("a key without its id")).collect()
}

/// Waits until one other key is trusted, and none of these any more.
async fn revoked(ctx: &ScenarioContext, before: &[String]) -> anyhow::Result<()> {
    poll("another key is trusted, and none that was revoked", async || {
        let keys = published_keys(ctx).await?;
        Ok((keys.len() == 1 && !before.contains(&keys[0])).then_some(()))
    })
    .await
}
