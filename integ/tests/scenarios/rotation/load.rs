//! Load on the web API during a rotation, by clients that act as agents.

use super::*;

pub(super) fn host() -> String {
    format!("{APISERVER}.{SYSTEM_NAMESPACE}.svc")
}

/// The content of an agent's volumes.
#[derive(Clone, Debug)]
pub(super) struct Volumes {
    pub(super) trust: PathBuf,
    pub(super) token: PathBuf,
}

impl Volumes {
    pub(super) async fn of(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Self> {
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
    pub(super) fn client(&self, proxy: &str) -> anyhow::Result<(Vec<u8>, Client)> {
        let bundle = self.bundle()?;
        let client = trusting(&bundle, proxy)?;
        Ok((bundle, client))
    }

    pub(super) fn bundle(&self) -> anyhow::Result<Vec<u8>> {
        Ok(std::fs::read(self.trust.join(TRUST_CA_KEY))?)
    }

    pub(super) fn token(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.token)?)
    }

    /// Reads the node's shadow as the agent does, on a new connection.
    pub(super) async fn ask(&self, proxy: &str, node: &str) -> anyhow::Result<ShadowView> {
        let (_, client) = self.client(proxy)?;
        let request = client.get(url(&host(), node, "")).timeout(PATIENCE).bearer_auth(self.token()?);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }
}

/// A client of the web API that trusts these authorities alone.
pub(super) fn trusting(bundle: &[u8], proxy: &str) -> anyhow::Result<Client> {
    let client = Client::builder().tls_certs_only(Certificate::from_pem_bundle(bundle)?).proxy(Proxy::https(proxy)?);
    Ok(client.connect_timeout(PATIENCE).build()?)
}

/// Longest wait for a response. An agent has less, but this machine may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Longest wait for a heartbeat of a stream. An agent has less: three missing ones.
pub(super) const SILENCE: Duration = Duration::from_secs(120);

/// Between two reads of one node. Trust that comes too late is missing for [`LAG`].
pub(super) const BETWEEN_READS: Duration = Duration::from_millis(100);

/// Between two reports of one node, which the web API limits to one a second on average, the agent's own included.
pub(super) const BETWEEN_REPORTS: Duration = Duration::from_millis(1_500);

pub(super) fn url(host: &str, node: &str, rest: &str) -> String {
    format!("https://{host}/v1/nodes/{node}/shadow{rest}")
}

/// A client of the web API that acts as a node's agent.
pub(super) struct AgentClient {
    volumes: Volumes,
    proxy: String,
    node: String,
    /// Created again when the trust bundle has changed, as an agent does, and kept with its connection until then.
    kept: Option<(Vec<u8>, Client)>,
}

impl AgentClient {
    pub(super) fn client(&mut self) -> anyhow::Result<Client> {
        let now = self.volumes.bundle()?;
        match &self.kept {
            Some((bundle, client)) if *bundle == now => Ok(client.clone()),
            _ => Ok(self.kept.insert(self.volumes.client(&self.proxy)?).1.clone()),
        }
    }

    pub(super) async fn ask(&self) -> anyhow::Result<ShadowView> {
        self.volumes.ask(&self.proxy, &self.node).await
    }

    /// Reports the current state, which changes nothing. Returns the shadow after it.
    pub(super) async fn report(&mut self, view: &ShadowView) -> anyhow::Result<ShadowView> {
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
    pub(super) async fn hold(&mut self, opened: impl FnOnce()) -> anyhow::Result<()> {
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
pub(super) struct LoadCounts {
    pub(super) asked: AtomicUsize,
    pub(super) reported: AtomicUsize,
    pub(super) streams: AtomicUsize,
    refused: Mutex<Vec<String>>,
}

impl LoadCounts {
    pub(super) fn refused(&self, node: &str, error: &anyhow::Error) {
        let text = format!("{} {node}: {error:?}", Timestamp::now());
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// Load on the web API as the agents of some nodes: reads, reports and streams, until it is dropped.
pub(super) struct Load {
    nodes: usize,
    tally: Arc<LoadCounts>,
    _tasks: JoinSet<()>,
}

impl Load {
    pub(super) async fn of(ctx: &ScenarioContext, nodes: &[&str]) -> anyhow::Result<Self> {
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

    /// Waits until there were some requests, ends the load, and fails if any request or stream has failed.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        // The last volumes that change do so within the lag.
        tokio::time::sleep(LAG).await;
        poll("40 requests, and a report and a stream of each node", async || {
            let [asked, reported, streams] = [&self.tally.asked, &self.tally.reported, &self.tally.streams]
                .map(|count| count.load(Ordering::Relaxed));
            Ok((asked > 40 && reported >= self.nodes && streams >= self.nodes).then_some(()))
        })
        .await?;
        let refused = self.tally.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        anyhow::ensure!(
            refused.is_empty(),
            "{} requests failed: {:#?}",
            refused.len(),
            &refused[..refused.len().min(5)]
        );
        Ok(())
    }
}

/// Reads in a loop, with a new connection each time.
pub(super) async fn read_in_loop(client: AgentClient, tally: Arc<LoadCounts>) {
    loop {
        if let Err(error) = client.ask().await {
            tally.refused(&client.node, &error);
        }
        tally.asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(BETWEEN_READS).await;
    }
}

/// Reports in a loop, with a connection that is kept.
pub(super) async fn report_in_loop(mut client: AgentClient, tally: Arc<LoadCounts>) {
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
pub(super) async fn stream_in_loop(mut client: AgentClient, tally: Arc<LoadCounts>) {
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
