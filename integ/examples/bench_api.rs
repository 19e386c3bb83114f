//! The cost of the web API with many agents: `make bench-api`.
//!
//! A real control plane, the web API as it ships, and for each agent a Node, a shadow, a pod and a token, a stream that
//! stays open, and reports. Nothing is asserted: it prints figures, and ratios where the machine's own speed would
//! count.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use agent::stream::pause;
use anyhow::{Context as _, ensure};
use clap::Parser;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use integ::bed::{Programs, TestCluster, TestClusterOptions};
use integ::control_plane::audit::requests;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use models::backoff::Backoff;
use models::names::{AGENT, AGENT_MANAGER, AGENT_NAMESPACE, APISERVER, SYSTEM_NAMESPACE, TOKEN_AUDIENCE, shadow_name};
use models::shadow::BottlerocketShadow;
use models::wire::ShadowView;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// Measures the web API with many connected agents, on its own control plane.
#[derive(Parser)]
struct Options {
    /// Number of connected agents.
    #[arg(long, default_value_t = 1_000)]
    agents: usize,
    /// Number of reports that are measured, through the web API and past it.
    #[arg(long, default_value_t = 2_000)]
    reports: usize,
    /// Number of reports under way at a time.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Length of the windows in which idle requests and those after the roll-out are counted, in seconds. The idle one does not count
    /// the TokenReviews of streams that agents open again, as they do after 5 to 10 minutes: those of this measurement are opened once.
    #[arg(long, default_value_t = 60)]
    window: u64,
}

/// Concurrency of the preparation.
const PREPARED_AT_ONCE: usize = 32;

struct Agent {
    node: String,
    token: String,
    client: Client,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let deploy = deploy::Options::default();
    let bed = TestCluster::start(TestClusterOptions { nodes: 0, deploy, ..TestClusterOptions::default() }).await?;
    bed.install().await?;
    let began = Instant::now();
    let server = Arc::new(Server::new(&bed).await?);
    let agents: Vec<Arc<Agent>> = stream::iter(0..options.agents)
        .map(|number| agent(&bed, &server, number))
        .buffer_unordered(PREPARED_AT_ONCE)
        .map_ok(Arc::new)
        .try_collect()
        .await?;
    println!("{} agents made in {:.0} s", agents.len(), began.elapsed().as_secs_f64());

    let mut process = server.start().await?;
    server.lead_to(&process);
    println!("memory without agents        {:>8.1} MiB resident", resident(&process)?);
    let began = Instant::now();
    let streams = connect(&server, &agents).await?;
    println!("all connected after          {:>8.2} s", began.elapsed().as_secs_f64());
    sleep(Duration::from_secs(2)).await;
    println!("memory with {:>5} streams    {:>8.1} MiB resident", streams.len(), resident(&process)?);

    let own = measure(&options, &agents, |agent, turn| past(&bed, agent, turn)).await?;
    let through = measure(&options, &agents, |agent, turn| report(&server, agent, turn)).await?;
    println!("a status write past it       {own}");
    println!("a status write through it    {through}");
    println!(
        "ratio                        {:>8.2} at the median, {:.2} at p99",
        through.median / own.median,
        through.p99 / own.p99
    );
    println!("memory after the reports     {:>8.1} MiB resident", resident(&process)?);

    let window = Duration::from_secs(options.window);
    let from = Timestamp::now();
    sleep(window).await;
    let idle = asked(&bed, from)?;
    println!(
        "idle for {} s                {:>8} requests to the API server, no stream being opened again",
        options.window,
        idle.len()
    );

    // As in a roll-out, the next process is ready and takes new connections before this one is terminated.
    let next = server.start().await?;
    server.lead_to(&next);
    let (from, began) = (Timestamp::now(), Instant::now());
    let moving: Vec<_> = streams
        .into_iter()
        .zip(&agents)
        .map(|(stream, agent)| tokio::spawn(moved(server.clone(), agent.clone(), stream)))
        .collect();
    process.end().await?;
    let mut moves = Vec::new();
    for agent in moving {
        moves.push(agent.await??);
    }
    let all = moves.iter().map(|moved| moved.connected.duration_since(began)).max().unwrap_or_default();
    let clean = moves.iter().filter(|moved| moved.clean).count();
    println!("all connected again after    {:>8.2} s", all.as_secs_f64());
    println!("streams that ended cleanly   {clean:>8} of {}", agents.len());
    let without = moves.iter().map(|moved| moved.connected.duration_since(moved.ended)).collect();
    println!("an agent without a stream    {}", Times::of(without));
    sleep(window.saturating_sub(began.elapsed())).await;
    let reviews = asked(&bed, from)?.into_iter().filter(|resource| resource == "tokenreviews").count();
    println!("TokenReviews in {} s after it  {reviews:>8}, for {} agents", options.window, agents.len());
    drop((moves, next));
    Ok(())
}

/// The web API's program and its arguments.
struct Server {
    program: PathBuf,
    directory: PathBuf,
    ca: String,
    /// The port of the process that takes new connections, as a Service knows it.
    port: AtomicU16,
}

/// The running program. Dropping this ends it.
struct Process {
    child: Child,
    port: u16,
}

impl Server {
    async fn new(bed: &TestCluster) -> anyhow::Result<Self> {
        let directory = bed.control_plane.dir().join("web-api");
        std::fs::create_dir_all(&directory)?;
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        std::fs::write(directory.join("tls.crt"), own.cert.pem())?;
        std::fs::write(directory.join("tls.key"), own.signing_key.serialize_pem())?;
        let issuer_token = token(bed, SYSTEM_NAMESPACE, APISERVER, None, None).await?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": bed.control_plane.url(), "certificate-authority": bed.control_plane.ca_file(),
            }}],
            "users": [{"name": "it", "user": {"token": issuer_token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": SYSTEM_NAMESPACE}}],
        });
        std::fs::write(directory.join("kubeconfig"), kubeconfig.to_string())?;
        Ok(Self { program: Programs::find()?.apiserver, directory, ca: own.cert.pem(), port: AtomicU16::new(0) })
    }

    /// Starts a process, and waits until it is ready.
    async fn start(&self) -> anyhow::Result<Process> {
        let free = || -> anyhow::Result<_> { Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?) };
        let (api, plain) = (free()?, free()?);
        let log = self.directory.join(format!("log-{}", api.port()));
        let child = Command::new(&self.program)
            .args(["--listen", &api.to_string(), "--plain-listen", &plain.to_string()])
            // All agents of this machine come from one address.
            .args(["--connections-per-source", "0"])
            .arg("--tls-dir")
            .arg(&self.directory)
            .env("KUBECONFIG", self.directory.join("kubeconfig"))
            .stderr(Stdio::from(std::fs::File::create(&log)?))
            .kill_on_drop(true)
            .spawn()
            .with_context(|| self.program.display().to_string())?;
        let client = Client::builder().no_proxy().build()?;
        for _ in 0..200 {
            let answer = client.get(format!("http://{plain}/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(Process { child, port: api.port() });
            }
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("the web API is not ready: {}", log_end(&log))
    }

    /// Directs new connections to this process.
    fn lead_to(&self, process: &Process) {
        self.port.store(process.port, Ordering::Relaxed);
    }

    fn client(&self) -> anyhow::Result<Client> {
        let ca = reqwest::Certificate::from_pem(self.ca.as_bytes())?;
        let here = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(Client::builder().no_proxy().http1_only().tls_certs_only([ca]).resolve("localhost", here).build()?)
    }

    fn url(&self, node: &str, rest: &str) -> String {
        format!("https://localhost:{}/v1/nodes/{node}/shadow{rest}", self.port.load(Ordering::Relaxed))
    }
}

impl Process {
    /// Terminates it, and waits for its end.
    async fn end(&mut self) -> anyhow::Result<()> {
        let id = i32::try_from(self.child.id().context("it has ended")?)?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGTERM)?;
        self.child.wait().await?;
        Ok(())
    }
}

fn log_end(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}

/// The resident memory of a process, in MiB.
fn resident(process: &Process) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id().context("it has ended")?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

async fn token(
    bed: &TestCluster,
    namespace: &str,
    account: &str,
    audience: Option<&str>,
    pod: Option<&Pod>,
) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.client.clone(), namespace);
    let bound = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
    });
    let audiences = audience.map(|audience| vec![audience.to_owned()]);
    let spec = TokenRequestSpec { audiences, bound_object_ref: bound, ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let granted = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    granted.status.and_then(|status| status.token).context("no token")
}

async fn put<K>(api: &Api<K>, value: Value) -> anyhow::Result<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let name = value["metadata"]["name"].as_str().context("no name")?.to_owned();
    Ok(api.patch(&name, &PatchParams::apply("bench").force(), &Patch::Apply(value)).await?)
}

/// Creates everything that an agent needs.
async fn agent(bed: &TestCluster, server: &Server, number: usize) -> anyhow::Result<Agent> {
    let name = format!("node-{number}");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let node = put(&Api::<Node>::all(bed.client.clone()), node).await?;
    let shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {
            "name": shadow_name(&name), "namespace": SYSTEM_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid()}],
        },
        "spec": {"state": "Idle", "attempt": 0},
    });
    put(&Api::<BottlerocketShadow>::namespaced(bed.client.clone(), SYSTEM_NAMESPACE), shadow).await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("agent-{number}"), "namespace": AGENT_NAMESPACE},
        "spec": {
            "nodeName": name, "serviceAccountName": AGENT, "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "example.invalid/c:1"}],
        },
    });
    let pod = put(&Api::<Pod>::namespaced(bed.client.clone(), AGENT_NAMESPACE), pod).await?;
    let token = token(bed, AGENT_NAMESPACE, AGENT, Some(TOKEN_AUDIENCE), Some(&pod)).await?;
    Ok(Agent { node: name, token, client: server.client()? })
}

/// Opens the streams of all agents, within a second at random as their pods start, and reads the first line of each.
async fn connect(server: &Server, agents: &[Arc<Agent>]) -> anyhow::Result<Vec<Response>> {
    let all = agents.iter().map(|agent| async move {
        sleep(Duration::from_secs(1).mul_f64(rand::random())).await;
        open(server, agent, Backoff::default()).await
    });
    futures::future::try_join_all(all).await
}

/// Opens the stream of an agent, retrying after the agents' own back-off, and reads its first line.
async fn open(server: &Server, agent: &Agent, mut backoff: Backoff) -> anyhow::Result<Response> {
    loop {
        let request = agent.client.get(server.url(&agent.node, "/watch")).bearer_auth(&agent.token);
        match request.send().await {
            Ok(mut answer) if answer.status().is_success() => {
                answer.chunk().await?.context("a stream without a line")?;
                return Ok(answer);
            }
            Ok(answer) => ensure!(answer.status().as_u16() == 503, "{}", answer.status()),
            Err(error) => eprintln!("{error}"),
        }
        sleep(pause(&mut backoff, false)).await;
    }
}

/// An agent that has lost its stream and has a new one.
struct Moved {
    /// True if the server ended the lost one.
    clean: bool,
    ended: Instant,
    connected: Instant,
    /// Open for as long as this is kept.
    _stream: Response,
}

/// Follows a stream to its end, and opens the next one as an agent does after a stable stream.
async fn moved(server: Arc<Server>, agent: Arc<Agent>, stream: Response) -> anyhow::Result<Moved> {
    let clean = until_end(stream).await;
    let ended = Instant::now();
    let mut backoff = Backoff::default();
    sleep(pause(&mut backoff, true)).await;
    let stream = open(&server, &agent, backoff).await?;
    Ok(Moved { clean, ended, connected: Instant::now(), _stream: stream })
}

/// Reads a stream to its end, and returns true if it was a regular one.
async fn until_end(mut stream: Response) -> bool {
    loop {
        match stream.chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Times, in milliseconds.
struct Times {
    median: f64,
    p99: f64,
    worst: f64,
}

impl Times {
    fn of(times: Vec<Duration>) -> Self {
        let mut times: Vec<f64> = times.into_iter().map(|time| time.as_secs_f64() * 1_000.0).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Self { median: at(0.5), p99: at(0.99), worst: at(1.0) }
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>8.2} ms at the median, {:.2} ms at p99, {:.2} ms at worst", self.median, self.p99, self.worst)
    }
}

async fn measure<'a, F>(
    options: &Options,
    agents: &'a [Arc<Agent>],
    write: impl Fn(&'a Agent, usize) -> F,
) -> anyhow::Result<Times>
where
    F: Future<Output = anyhow::Result<Duration>>,
{
    // The first round warms up connections and the cache of tokens.
    for measured in [false, true] {
        let times = stream::iter(0..options.reports)
            .map(|turn| write(&agents[turn % agents.len()], turn + usize::from(measured) * options.reports))
            .buffer_unordered(options.at_once)
            .try_collect::<Vec<Duration>>()
            .await?;
        if measured {
            return Ok(Times::of(times));
        }
    }
    unreachable!("two rounds")
}

fn status(turn: usize) -> Value {
    json!({"state": "Idle", "currentVersion": "1.20.0", "variant": "aws-k8s-1.37", "bootId": format!("boot-{turn}")})
}

/// Reports through the web API. The agent's current state is read first and not timed: an agent knows it from its
/// stream.
async fn report(server: &Server, agent: &Agent, turn: usize) -> anyhow::Result<Duration> {
    let read = agent.client.get(server.url(&agent.node, "")).bearer_auth(&agent.token).send().await?;
    let view: ShadowView = read.error_for_status()?.json().await?;
    let request = agent
        .client
        .put(server.url(&agent.node, "/status"))
        .bearer_auth(&agent.token)
        .header("If-Match", format!("\"{}\"", view.etag))
        .json(&status(turn));
    let began = Instant::now();
    let answer = request.send().await?.error_for_status()?;
    answer.bytes().await?;
    Ok(began.elapsed())
}

/// The same write by the cluster's administrator, past the web API.
async fn past(bed: &TestCluster, agent: &Agent, turn: usize) -> anyhow::Result<Duration> {
    let api: Api<BottlerocketShadow> = Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE);
    let name = shadow_name(&agent.node);
    let now = api.get(&name).await?;
    let patch = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {"name": name, "resourceVersion": now.resource_version()}, "status": status(turn),
    });
    let params = PatchParams::apply(AGENT_MANAGER).force();
    let began = Instant::now();
    api.patch_status(&name, &params, &Patch::Apply(patch)).await?;
    Ok(began.elapsed())
}

/// The resources that the web API has requested since a time.
fn asked(bed: &TestCluster, from: Timestamp) -> anyhow::Result<Vec<String>> {
    let user = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{APISERVER}");
    let records = bed.control_plane.audit().read()?;
    let ours = requests(&records).filter(|record| record.user == user && record.received >= from);
    Ok(ours.map(|record| record.resource.clone()).collect())
}
