//! A compromised web API: a client that has the serving key, sees every token and every message, and sends both sides
//! what it likes. Everything else it forwards to the real web API.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use integ::kubelet::to_process;
use integ::oracle::service_account;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource as _};
use models::names::{
    AGENT_MANAGER, AGENT_NAMESPACE, APISERVER, COMPONENT_LABEL, SERVING_SECRET, SYSTEM_NAMESPACE, TRUST_CA_KEY,
    TRUST_CONFIG_MAP, shadow_name,
};
use models::shadow::{BottlerocketShadow, BottlerocketShadowSpec};
use models::wire::{AgentStatus, NDJSON, ShadowView, WatchLine};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::ScenarioContext;

/// Treatment of a report.
pub(crate) enum ReportHandling {
    /// Forwarded unchanged.
    Forward,
    /// Acknowledged to the agent, and not written.
    Discard,
}

/// Changes to forwarded messages.
pub(crate) trait Tampering: Send {
    /// The view shown to an agent in place of its shadow; `None` withholds it.
    fn view(&mut self, _node: &str, view: ShadowView) -> Option<ShadowView> {
        Some(view)
    }

    /// The treatment of an agent's report.
    fn report(&mut self, _node: &str, _report: &AgentStatus) -> ReportHandling {
        ReportHandling::Forward
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct State {
    tampering: Mutex<Box<dyn Tampering>>,
    /// Additional lines for agents, by node.
    extra_lines: broadcast::Sender<(String, WatchLine)>,
    /// The last true view of each node.
    true_views: Mutex<BTreeMap<String, ShadowView>>,
    /// Forged shadows that replace the true ones.
    forged_shadows: Mutex<BTreeMap<String, ShadowView>>,
    cluster: kube::Client,
    ca: String,
}

/// The compromised web API, until it is dropped.
pub(crate) struct CompromisedWebApi {
    state: Arc<State>,
    /// The number of events in the log of each host before.
    before: BTreeMap<String, usize>,
    _tasks: JoinSet<()>,
}

pub(super) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CompromisedWebApi {
    /// Replaces the web API for all agents. They do not notice: the key is the real one.
    pub(crate) async fn start(ctx: &ScenarioContext, tampering: impl Tampering + 'static) -> anyhow::Result<Self> {
        let client = &ctx.bed.client;
        let secret = Api::<Secret>::namespaced(client.clone(), SYSTEM_NAMESPACE).get(SERVING_SECRET).await?;
        let field = |name: &str| secret.data.as_ref().and_then(|d| d.get(name)).map(|b| b.0.clone()).context("a field");
        let chain = CertificateDer::pem_slice_iter(&field("tls.crt")?).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&field("tls.key")?)?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            tampering: Mutex::new(Box::new(tampering)),
            extra_lines: broadcast::Sender::new(64),
            true_views: Mutex::default(),
            forged_shadows: Mutex::default(),
            cluster: client.clone(),
            ca: published_ca(client).await?,
        });
        let (acceptor, shared) = (TlsAcceptor::from(Arc::new(config)), state.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), shared.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        let state = state.clone();
                        async move {
                            let answer = state.serve(request).await;
                            Ok::<_, Infallible>(
                                answer
                                    .unwrap_or_else(|error| full(StatusCode::BAD_GATEWAY, format!("{error:#}").into())),
                            )
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let before = ctx.bed.members.iter().map(|member| (member.name.clone(), member.host.log().len())).collect();
        ctx.bed.divert(Some(address));
        // Streams to the real web API that are open already would continue.
        ctx.restart(deploy::Component::Agent).await?;
        Ok(Self { state, before, _tasks: tasks })
    }

    /// The number of events in the log of a host before the web API was replaced.
    pub(super) fn events_before(&self, node: &str) -> usize {
        self.before.get(node).copied().unwrap_or_default()
    }

    /// Replaces a node's true shadow by a forged one from now on, with this desired state. It behaves as a true one
    /// does: it keeps the agent's reports, and the agent is shown each desired state, however often it connects.
    /// Nothing of it reaches the cluster.
    pub(crate) fn forge_shadow(&self, node: &str, spec: BottlerocketShadowSpec) -> anyhow::Result<()> {
        let true_view = self.true_view(node).context("nothing is known of the node yet")?;
        let mut forged_shadows = locked(&self.state.forged_shadows);
        let mut view = forged_shadows.remove(node).unwrap_or_else(|| true_view.clone());
        view.metadata.generation = view.metadata.generation.max(true_view.metadata.generation) + 1;
        view.etag = new_etag();
        view.spec = spec;
        forged_shadows.insert(node.to_owned(), view.clone());
        // There may be no subscriber; then it is sent as the first line.
        let _ = self.state.extra_lines.send((node.to_owned(), WatchLine::Shadow { object: Box::new(view) }));
        Ok(())
    }

    /// The forged shadow of a node, with the agent's reports.
    pub(crate) fn forged_shadow(&self, node: &str) -> anyhow::Result<ShadowView> {
        locked(&self.state.forged_shadows).get(node).cloned().context("there is no such shadow")
    }

    /// The last true view of a node.
    pub(crate) fn true_view(&self, node: &str) -> Option<ShadowView> {
        locked(&self.state.true_views).get(node).cloned()
    }
}

/// Writes an agent's report with the rights of the web API: that the last desired state is carried out.
pub(crate) async fn report(ctx: &ScenarioContext, node: &str, mut status: AgentStatus) -> anyhow::Result<()> {
    let client = ctx.bed.control_plane.client_as(&service_account(SYSTEM_NAMESPACE, APISERVER), &[])?;
    let (shadows, name) = (Api::<BottlerocketShadow>::namespaced(client, SYSTEM_NAMESPACE), shadow_name(node));
    status.report.observed_generation = shadows.get(&name).await?.metadata.generation;
    let (api, kind) = (BottlerocketShadow::api_version(&()), BottlerocketShadow::kind(&()));
    let report = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "status": status});
    shadows.patch_status(&name, &PatchParams::apply(AGENT_MANAGER).force(), &Patch::Apply(report)).await?;
    Ok(())
}

async fn published_ca(client: &kube::Client) -> anyhow::Result<String> {
    let map = Api::<ConfigMap>::namespaced(client.clone(), AGENT_NAMESPACE).get(TRUST_CONFIG_MAP).await?;
    map.data.and_then(|mut data| data.remove(TRUST_CA_KEY)).context("no CA is published")
}

fn new_etag() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn host() -> String {
    format!("{APISERVER}.{SYSTEM_NAMESPACE}.svc")
}

fn full(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response
}

impl State {
    /// A client that reaches the real web API, wherever it runs now, past the diversion.
    async fn real(&self) -> anyhow::Result<reqwest::Client> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.clone(), SYSTEM_NAMESPACE);
        let ours = ListParams::default().labels(&format!("{COMPONENT_LABEL}={APISERVER}"));
        let living = pods.list(&ours).await?.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let ip = living.filter_map(|pod| pod.status?.pod_ip).next_back().context("there is no web API")?;
        let address = SocketAddr::from((to_process(ip.parse()?), 8443));
        let ca = reqwest::Certificate::from_pem_bundle(self.ca.as_bytes())?;
        Ok(reqwest::Client::builder().no_proxy().tls_certs_only(ca).resolve(&host(), address).build()?)
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
        let path = request.uri().path_and_query().context("no path")?.to_string();
        let node = path.split('/').nth(3).context("no node")?.to_owned();
        let mut onward = self.real().await?.request(request.method().clone(), format!("https://{}:8443{path}", host()));
        for name in ["authorization", "if-match", "content-type"] {
            if let Some(value) = request.headers().get(name) {
                onward = onward.header(name, value);
            }
        }
        if request.method() == Method::PUT {
            let etag = request.headers().get("if-match").and_then(|value| value.to_str().ok()).map(str::to_owned);
            let body = request.into_body().collect().await?.to_bytes();
            let report = serde_json::from_slice(&body)?;
            return match self.keep(&node, etag, &report)? {
                Some(answer) => Ok(answer),
                None => self.report(&node, onward, report).await,
            };
        }
        let response = onward.send().await?;
        if response.status() != StatusCode::OK || !path.contains("/watch") {
            let status = response.status();
            return Ok(full(status, response.bytes().await?));
        }
        let (send, receive) = mpsc::channel(16);
        tokio::spawn(self.follow(node, response, send));
        let body = stream::unfold(receive, async |mut receive: mpsc::Receiver<WatchLine>| {
            let mut line = serde_json::to_vec(&receive.recv().await?).ok()?;
            line.push(b'\n');
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), receive))
        });
        let mut response = Response::new(StreamBody::new(body).boxed_unsync());
        response.headers_mut().insert("content-type", HeaderValue::from_static(NDJSON));
        Ok(response)
    }

    /// Forwards a stream, line by line, with the additional lines.
    async fn follow(self: Arc<Self>, node: String, mut real: reqwest::Response, send: mpsc::Sender<WatchLine>) {
        let (mut extra_lines, mut rest) = (self.extra_lines.subscribe(), Vec::new());
        loop {
            let lines = tokio::select! {
                chunk = real.chunk() => match chunk {
                    Ok(Some(chunk)) => self.pass(&node, &mut rest, &chunk),
                    Ok(None) | Err(_) => return,
                },
                line = extra_lines.recv() => match line {
                    Ok((of, line)) if of == node => vec![line],
                    Ok(_) => vec![],
                    Err(_) => return,
                },
            };
            for line in lines {
                if send.send(line).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Forwards bytes of a stream; an incomplete line stays in `rest`.
    fn pass(&self, node: &str, rest: &mut Vec<u8>, chunk: &[u8]) -> Vec<WatchLine> {
        rest.extend_from_slice(chunk);
        let mut lines = Vec::new();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(WatchLine::Shadow { object }) => {
                    locked(&self.true_views).insert(node.to_owned(), (*object).clone());
                    let shown = locked(&self.tampering).view(node, *object);
                    let shown = locked(&self.forged_shadows).get(node).cloned().or(shown);
                    lines.extend(shown.map(|view| WatchLine::Shadow { object: Box::new(view) }));
                }
                Ok(line) => lines.push(line),
                Err(_) => {}
            }
        }
        lines
    }

    /// Keeps a report in the forged shadow of the node, if there is one, by the rules of the real web API.
    fn keep(&self, node: &str, etag: Option<String>, report: &AgentStatus) -> anyhow::Result<Option<Response<Body>>> {
        let mut forged_shadows = locked(&self.forged_shadows);
        let Some(view) = forged_shadows.get_mut(node) else { return Ok(None) };
        let fits = etag.is_some_and(|etag| etag.trim_matches('"') == view.etag);
        if fits {
            view.status = report.clone();
            view.etag = new_etag();
        }
        let status = if fits { StatusCode::OK } else { StatusCode::PRECONDITION_FAILED };
        Ok(Some(full(status, serde_json::to_vec(view)?.into())))
    }

    async fn report(
        &self,
        node: &str,
        onward: reqwest::RequestBuilder,
        report: AgentStatus,
    ) -> anyhow::Result<Response<Body>> {
        let handling = locked(&self.tampering).report(node, &report);
        if matches!(handling, ReportHandling::Discard) {
            let mut view = locked(&self.true_views).get(node).cloned().context("nothing is known of the node yet")?;
            view.status = report;
            view.etag = new_etag();
            return Ok(full(StatusCode::OK, serde_json::to_vec(&view)?.into()));
        }
        let response = onward.body(serde_json::to_vec(&report)?).send().await?;
        let status = response.status();
        let bytes = response.bytes().await?;
        let Ok(view) = serde_json::from_slice::<ShadowView>(&bytes) else { return Ok(full(status, bytes)) };
        locked(&self.true_views).insert(node.to_owned(), view.clone());
        // A response cannot be withheld like a line, since the agent would retry; but the permit in it can.
        let mut without = view.clone();
        without.spec.permit = None;
        let shown = locked(&self.tampering).view(node, view).unwrap_or(without);
        Ok(full(status, serde_json::to_vec(&shown)?.into()))
    }
}
