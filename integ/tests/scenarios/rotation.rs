//! Rotation of certificates and keys under load, without refused requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use deploy::Component;
use integ::bed::{TestClusterOptions, TestNode, merge};
use integ::host::{Command, Fault, Worker};
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
use nix::sys::signal::Signal;
use rand::Rng as _;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use reqwest::header::IF_MATCH;
use reqwest::{Certificate, Client, Proxy, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::interfere::{agent_on, finish_command, is_call, poll, signal, until_host};
use crate::leaders::leader;
use crate::support::{NEW, ScenarioContext, nodes, run, shadow_of, status};

/// Wait of the controllers, and longest delay of the kubelets.
const WAIT: &str = "--trust-wait=4s";
const LAG: Duration = Duration::from_secs(3);

fn options(count: usize) -> TestClusterOptions {
    let mut options = TestClusterOptions { volume_lag: LAG, ..nodes(count) };
    options.deploy.controller_args = vec![WAIT.to_owned()];
    options
}

fn host() -> String {
    format!("{APISERVER}.{SYSTEM_NAMESPACE}.svc")
}

/// The content of an agent's volumes.
#[derive(Clone, Debug)]
struct Volumes {
    trust: PathBuf,
    token: PathBuf,
}

impl Volumes {
    async fn of(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Self> {
        let agent = agent_on(ctx, node).await?;
        // The kernel knows the agent's arguments, and so the path of its volumes.
        let line = std::fs::read(format!("/proc/{}/cmdline", agent.pid))?;
        let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let path = |flag: &str| {
            let path = arguments.iter().find_map(|a| a.strip_prefix(flag)).with_context(|| format!("no {flag}"))?;
            anyhow::Ok(PathBuf::from(path))
        };
        Ok(Self { trust: path("--trust-dir=")?, token: path("--token-file=")? })
    }

    /// A client that trusts the current bundle, and the bundle.
    fn client(&self, proxy: &str) -> anyhow::Result<(Vec<u8>, Client)> {
        let bundle = self.bundle()?;
        let client = Client::builder()
            .tls_certs_only(Certificate::from_pem_bundle(&bundle)?)
            .proxy(Proxy::https(proxy)?)
            .connect_timeout(PATIENCE)
            .build()?;
        Ok((bundle, client))
    }

    fn bundle(&self) -> anyhow::Result<Vec<u8>> {
        Ok(std::fs::read(self.trust.join(TRUST_CA_KEY))?)
    }

    fn token(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.token)?)
    }

    /// Reads the node's shadow as the agent does, on a new connection.
    async fn ask(&self, proxy: &str, node: &str, host: &str) -> anyhow::Result<ShadowView> {
        let (_, client) = self.client(proxy)?;
        let request = client.get(url(host, node, "")).timeout(PATIENCE).bearer_auth(self.token()?);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }
}

/// Longest wait for a response. An agent has less, but this machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Three missing heartbeats, after which an agent takes a stream for dead.
const SILENCE: Duration = Duration::from_secs(45);

/// Between two reports of one node, which the web API limits to one a second on average, the agent's own included.
const BETWEEN_REPORTS: Duration = Duration::from_millis(1_500);

fn url(host: &str, node: &str, rest: &str) -> String {
    format!("https://{host}/v1/nodes/{node}/shadow{rest}")
}

/// A client of the web API that acts as a node's agent.
struct AgentClient {
    volumes: Volumes,
    proxy: String,
    node: String,
    /// Created again when the trust bundle has changed, as an agent does, and kept with its connection until then.
    kept: Option<(Vec<u8>, Client)>,
}

impl AgentClient {
    fn client(&mut self) -> anyhow::Result<Client> {
        let now = self.volumes.bundle()?;
        match &self.kept {
            Some((bundle, client)) if *bundle == now => Ok(client.clone()),
            _ => Ok(self.kept.insert(self.volumes.client(&self.proxy)?).1.clone()),
        }
    }

    async fn ask(&self) -> anyhow::Result<ShadowView> {
        self.volumes.ask(&self.proxy, &self.node, &host()).await
    }

    /// Reports the current state, which changes nothing. Returns the shadow after it.
    async fn report(&mut self, view: &ShadowView) -> anyhow::Result<ShadowView> {
        let request = self.client()?.put(url(&host(), &self.node, "/status")).timeout(PATIENCE);
        let request = request.bearer_auth(self.volumes.token()?).header(IF_MATCH, format!("\"{}\"", view.etag));
        let answer = request.json(&view.status).send().await?;
        // The node's own agent has reported meanwhile, or its desired state has changed.
        if answer.status() == StatusCode::PRECONDITION_FAILED {
            return Ok(answer.json().await?);
        }
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Holds a stream until the server ends it. Any other end is an error.
    async fn hold(&mut self, opened: impl FnOnce()) -> anyhow::Result<()> {
        let request = self.client()?.get(url(&host(), &self.node, "/watch")).bearer_auth(self.volumes.token()?);
        let answer = timeout(PATIENCE, request.send()).await.context("no stream in time")?;
        let mut stream = answer?.error_for_status()?;
        opened();
        while timeout(SILENCE, stream.chunk()).await.context("a silent stream")?.context("a stream broke")?.is_some() {}
        Ok(())
    }
}

/// Results of a load.
#[derive(Debug, Default)]
struct LoadCounts {
    asked: AtomicUsize,
    reported: AtomicUsize,
    streams: AtomicUsize,
    refused: Mutex<Vec<String>>,
}

impl LoadCounts {
    fn refused(&self, node: &str, error: &anyhow::Error) {
        let text = format!("{} {node}: {error:?}", Timestamp::now());
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// Load on the web API as the agents of some nodes: reads, reports and streams, until it is dropped.
struct Load {
    nodes: usize,
    tally: Arc<LoadCounts>,
    _tasks: JoinSet<()>,
}

impl Load {
    async fn of(ctx: &ScenarioContext, nodes: &[&str]) -> anyhow::Result<Self> {
        let tally = Arc::new(LoadCounts::default());
        let mut tasks = JoinSet::new();
        for node in nodes {
            let (volumes, proxy) = (Volumes::of(ctx, node).await?, ctx.bed.proxy_url());
            let client =
                || AgentClient { volumes: volumes.clone(), proxy: proxy.clone(), node: (*node).to_owned(), kept: None };
            tasks.spawn(read_in_loop(client(), tally.clone()));
            tasks.spawn(report_in_loop(client(), tally.clone()));
            tasks.spawn(stream_in_loop(client(), tally.clone()));
        }
        Ok(Self { nodes: nodes.len(), tally, _tasks: tasks })
    }

    /// Ends the load, and fails if any request or stream has failed, or if there were hardly any.
    async fn end(self) -> anyhow::Result<()> {
        // The last volumes that change do so within the lag.
        tokio::time::sleep(LAG).await;
        let refused = self.tally.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        anyhow::ensure!(
            refused.is_empty(),
            "{} requests failed: {:#?}",
            refused.len(),
            &refused[..refused.len().min(5)]
        );
        let [asked, reported, streams] =
            [&self.tally.asked, &self.tally.reported, &self.tally.streams].map(|count| count.load(Ordering::Relaxed));
        let enough = asked > 40 && reported >= self.nodes && streams >= self.nodes;
        anyhow::ensure!(enough, "only {asked} requests, {reported} reports and {streams} streams");
        Ok(())
    }
}

/// Reads in a loop, with a new connection each time.
async fn read_in_loop(client: AgentClient, tally: Arc<LoadCounts>) {
    loop {
        if let Err(error) = client.ask().await {
            tally.refused(&client.node, &error);
        }
        tally.asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reports in a loop, with a connection that is kept.
async fn report_in_loop(mut client: AgentClient, tally: Arc<LoadCounts>) {
    let mut view = None;
    loop {
        let answer = match &view {
            None => client.ask().await,
            Some(view) => {
                tally.reported.fetch_add(1, Ordering::Relaxed);
                client.report(view).await.context("a report")
            }
        };
        view = answer.inspect_err(|error| tally.refused(&client.node, error)).ok();
        tokio::time::sleep(BETWEEN_REPORTS).await;
    }
}

/// Holds a stream, and opens the next one at once when the server has ended it.
async fn stream_in_loop(mut client: AgentClient, tally: Arc<LoadCounts>) {
    loop {
        let opened = || {
            tally.streams.fetch_add(1, Ordering::Relaxed);
        };
        if let Err(error) = client.hold(opened).await {
            tally.refused(&client.node, &error.context("a stream"));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
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
async fn certificate_ca_and_signing_key_rotation_fails_no_request() -> anyhow::Result<()> {
    let mut options = options(2);
    // Each has its own volumes, which its own kubelet updates at its own time.
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=60s"]).await?;
        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        let first = material(ctx).await?;
        // A certificate alone is replaced at once: its authority is known everywhere.
        delete(ctx, SERVING_SECRET).await?;
        poll("there is another certificate", async || {
            let serving = secret(ctx, SERVING_SECRET).await?;
            Ok(serving.and_then(|s| field(&s, "tls.crt")).filter(|leaf| *leaf != first.leaf))
        })
        .await?;
        anyhow::ensure!(material(ctx).await?.authority == first.authority);

        let before = material(ctx).await?;
        ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, "1").await?;
        ask_for(ctx, ROTATE_SIGNING_KEY_ANNOTATION, "1").await?;
        acknowledged(ctx, "1").await?;
        certificates_rotated(ctx, &before).await?;
        let bundle = trust(ctx).await?[TRUST_CA_KEY].clone();
        anyhow::ensure!(bundle.contains(before.authority.trim()), "what it issued is good for a long time: {bundle}");
        key_rotated(ctx, &before).await?;
        load.end().await?;

        // The new key signs.
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_completes_during_repeated_rotations() -> anyhow::Result<()> {
    let mut rotations = 0;
    let mut options = options(3);
    // A requested version is signed, and set on the hosts.
    merge(&mut options.policy, &json!({"version": {"target": NEW.to_string(), "refreshInterval": "1s"}}));
    let ending = run(options, async |ctx| {
        ctx.shop(3).await?;
        ctx.install().await?;
        let before = material(ctx).await?;
        ctx.release();
        let updated = ctx.updated();
        tokio::pin!(updated);
        loop {
            let value = format!("{}", rotations + 1);
            let rotate = async {
                ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, &value).await?;
                ask_for(ctx, ROTATE_SIGNING_KEY_ANNOTATION, &value).await?;
                acknowledged(ctx, &value).await
            };
            tokio::select! {
                done = &mut updated => { done?; break }
                done = rotate => { done?; rotations += 1 }
            }
        }
        // Attempts under way end, and with them the signed statements in the shadows.
        certificates_rotated(ctx, &before).await?;
        key_rotated(ctx, &before).await?;
        let keys: Value = serde_json::from_str(&trust(ctx).await?[TRUST_PERMIT_KEYS])?;
        let kid = keys["keys"][0]["kid"].as_str().context("no key id")?.to_owned();
        let world = ctx.bed.recorder.so_far()?.end();
        for node in world.nodes.keys() {
            let host = shadow_of(&world, node).and_then(|shadow| shadow.spec.host.clone()).context("no policy")?;
            let by = host.signature.as_deref().and_then(key_of);
            anyhow::ensure!(by.as_ref() == Some(&kid), "{node} has a statement by {by:?} and not by {kid}");
        }
        Ok(())
    })
    .await?;
    assert!(rotations > 0, "nothing was rotated meanwhile");
    ending.assert_updates(3);
    Ok(())
}

/// The id of the key of a signature.
fn key_of(jws: &str) -> Option<String> {
    let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(jws.split('.').next()?).ok()?;
    serde_json::from_slice::<Value>(&header).ok()?["kid"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_offline_during_rotation_reconnect() -> anyhow::Result<()> {
    // Two of the four run nothing of the operator but their agents.
    let ending = run(options(4), async |ctx| {
        ctx.install().await?;
        let before = material(ctx).await?;
        let operator: Vec<_> = [Component::Controller, Component::Apiserver]
            .into_iter()
            .flat_map(|component| ctx.bed.processes_of(component))
            .map(|process| process.pid)
            .collect();
        let runs_it = |member: &&TestNode| member.kubelet.processes().iter().any(|p| operator.contains(&p.pid));
        let mut others = ctx.bed.members.iter().filter(|member| !runs_it(member));
        // One machine is off; on the other the kubelet hangs and the agent continues with its old volumes.
        let (off, hung) = (others.next().context("no node to spare")?, others.next().context("no node to spare")?);
        let boot = off.host.snapshot().boot_id;
        off.host.power_off();
        hung.kubelet.pause();
        ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, "1").await?;
        ask_for(ctx, ROTATE_SIGNING_KEY_ANNOTATION, "1").await?;
        certificates_rotated(ctx, &before).await?;
        key_rotated(ctx, &before).await?;
        off.host.power_on();
        off.host.booted_after(&boot).await;
        hung.kubelet.resume();
        ctx.reported().await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_completes_when_leader_is_killed() -> anyhow::Result<()> {
    run(
        {
            let mut options = options(2);
            options.deploy.controller_replicas = 2;
            options
        },
        async |ctx| {
            ctx.install().await?;
            let load = Load::of(ctx, &["node-1", "node-2"]).await?;
            for round in 1..=3 {
                let before = material(ctx).await?;
                ask_for(ctx, ROTATE_CERTIFICATES_ANNOTATION, &round.to_string()).await?;
                // Anywhere from before the first write to after the last.
                let later = Duration::from_millis(ctx.rng.random_range(0..7000));
                tokio::time::sleep(later).await;
                let leads = leader(ctx).await?;
                signal(&[leads], Signal::SIGKILL);
                certificates_rotated(ctx, &before).await.with_context(|| format!("killed after {later:?}"))?;
            }
            load.end().await
        },
    )
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_secrets_are_recreated_without_failed_requests() -> anyhow::Result<()> {
    let ending = run(options(2), async |ctx| {
        ctx.install().await?;
        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        let before = material(ctx).await?;
        delete(ctx, CA_SECRET).await?;
        certificates_rotated(ctx, &before).await?;

        // Both at once: the certificates in use stay trusted until they are replaced.
        let before = material(ctx).await?;
        delete(ctx, CA_SECRET).await?;
        delete(ctx, SERVING_SECRET).await?;
        certificates_rotated(ctx, &before).await?;
        load.end().await?;
        poll("the authorities that a person has thrown away are not trusted any more", async || {
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
    })
    .await?;
    ending.assert_updates(2);
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

#[tokio::test(flavor = "multi_thread")]
async fn signing_key_revocation_does_not_end_attempt() -> anyhow::Result<()> {
    let mut options = options(1);
    merge(&mut options.policy, &json!({"version": {"target": NEW.to_string(), "refreshInterval": "1s"}}));
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        let host = &ctx.bed.member("node-1")?.host;
        host.script(Fault::command(Command::Prepare, Worker::Waits));
        ctx.release();
        until_host(host, "the host is asked to stage", |event| is_call(event, "/actions/prepare-update")).await?;
        let before = published_keys(ctx).await?;
        delete(ctx, PERMIT_KEY_SECRET).await?;
        revoked(ctx, &before).await?;
        // The agent that starts now verifies the signature of its host's settings first.
        signal(&[agent_on(ctx, "node-1").await?], Signal::SIGKILL);
        finish_command(host).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 1 && attempts[0].updated(), "{attempts:#?}");
    Ok(())
}

fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// An external authority.
struct ExternalCa {
    certificate: String,
    key: KeyPair,
    params: CertificateParams,
}

impl ExternalCa {
    fn new(name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key, params })
    }

    /// A Secret as cert-manager creates it, with this bundle.
    fn secret(&self, bundle: &str) -> anyhow::Result<Value> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![host()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key))?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": SERVING_SECRET, "namespace": SYSTEM_NAMESPACE},
            "data": {"tls.crt": base64(&leaf.pem()), "tls.key": base64(&key.serialize_pem()), "ca.crt": base64(bundle)},
        }))
    }
}

async fn provide(ctx: &ScenarioContext, secret: Value) -> anyhow::Result<()> {
    integ::bed::workload::apply(&ctx.bed.client, vec![secret]).await
}

/// Waits until an authority is published.
async fn published(ctx: &ScenarioContext, authority: &str) -> anyhow::Result<()> {
    poll("the authority is published", async || {
        let maps: Api<ConfigMap> = Api::namespaced(ctx.bed.client.clone(), AGENT_NAMESPACE);
        let bundle = maps.get_opt(TRUST_CONFIG_MAP).await?.and_then(|map| map.data?.remove(TRUST_CA_KEY));
        Ok(bundle.is_some_and(|bundle| bundle.contains(authority.trim())).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn provided_certificate_is_replaced_live_and_invalid_one_is_rejected() -> anyhow::Result<()> {
    let mut options = options(2);
    options.deploy.controller_args.push("--serving-certificate=provided".to_owned());
    let ending = run(options, async |ctx| {
        let (one, other, third) = (ExternalCa::new("one")?, ExternalCa::new("other")?, ExternalCa::new("third")?);
        ctx.bed.install().await?;
        ctx.until_operator("Degraded", ConditionStatus::True).await?;
        provide(ctx, one.secret(&one.certificate)?).await?;
        ctx.reported().await?;
        ctx.until_operator("Degraded", ConditionStatus::False).await?;
        anyhow::ensure!(secret(ctx, CA_SECRET).await?.and_then(|s| field(&s, "tls.crt")).is_none(), "none of ours");

        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        // First the next authority beside the current one, then its certificate.
        let both = format!("{}{}", one.certificate, other.certificate);
        provide(ctx, one.secret(&both)?).await?;
        published(ctx, &other.certificate).await?;
        tokio::time::sleep(LAG + Duration::from_secs(1)).await;
        provide(ctx, other.secret(&other.certificate)?).await?;
        published(ctx, &one.certificate).await?;
        tokio::time::sleep(LAG + Duration::from_secs(1)).await;
        load.end().await?;

        // The web API would serve with this one, too, so the controller gets it with a key that does not match.
        let mut bad = third.secret(&third.certificate)?;
        bad["data"]["tls.key"] = base64(&one.key.serialize_pem()).into();
        let load = Load::of(ctx, &["node-1", "node-2"]).await?;
        provide(ctx, bad).await?;
        let condition = ctx.until_operator("Degraded", ConditionStatus::True).await?;
        anyhow::ensure!(
            condition.reason == "CertificatesInvalid" && condition.message.contains("tls.key"),
            "{condition:?}"
        );
        anyhow::ensure!(!trust(ctx).await?[TRUST_CA_KEY].contains(third.certificate.trim()), "no one could use it");
        load.end().await?;
        provide(ctx, other.secret(&other.certificate)?).await?;
        ctx.until_operator("Degraded", ConditionStatus::False).await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn web_api_certificate_covers_service_names_of_custom_cluster_domain() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.deploy.cluster_domain = Some("corp.example".to_owned());
    run(options, async |ctx| {
        ctx.install().await?;
        let volumes = Volumes::of(ctx, "node-1").await?;
        let proxy = ctx.bed.proxy_url();
        for host in [host(), format!("{}.corp.example", host())] {
            volumes.ask(&proxy, "node-1", &host).await.context(host)?;
        }
        let elsewhere = volumes.ask(&proxy, "node-1", &format!("{}.cluster.local", host())).await;
        anyhow::ensure!(elsewhere.is_err(), "that is not what this cluster is called");
        Ok(())
    })
    .await?;
    Ok(())
}
