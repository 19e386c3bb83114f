//! The two listeners and the tasks beside them, from start to shutdown.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use actix_http::error::{DispatchError, ParseError};
use actix_http::{HttpService, TlsAcceptorConfig};
use actix_server::Server;
use actix_service::{IntoServiceFactory as _, ServiceFactoryExt as _, map_config};
use actix_tls::accept::{TlsError, max_concurrent_tls_connect};
use actix_web::dev::AppConfig;
use actix_web::middleware::from_fn;
use actix_web::web::ServiceConfig;
use actix_web::{App as WebApp, web};
use anyhow::{Context as _, anyhow};
use kube::Client;
use ports::connections::Connections;
use ports::limit::{Allowance, Limiter, Sources};
use ports::plain;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::access_log::access_log;
use crate::app::{App, Limits};
use crate::auth::identity::agent_username;
use crate::auth::review::Reviewer;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::heads::limited;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::streams::Streams;
use crate::tls::{CertificateSlot, CertificateWatch, server_config};
use crate::{clock, routes};

/// Workers of the agents' API. Work per request is small; streams take the memory, however many workers serve them.
const WORKERS: usize = 2;
/// Connections of one worker. An agent has two: its stream, and one for its reports.
const CONNECTIONS: usize = 8_192;
/// Concurrent handshakes of one worker. More have to wait: many more than one source may have connections.
const HANDSHAKES: usize = 1_024;
/// Time that requests may take after the last stream has ended.
const GRACE_SECONDS: u64 = 5;
/// Number of streams ended per second at shutdown, so that their agents do not all reach another replica at once.
/// Together with [`GRACE_SECONDS`] the longest time stays below the 30 s that a pod has by default.
const STREAMS_ENDED_PER_SECOND: u32 = 200;
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(15);
/// Minimum time that requests are served after a shutdown request: for a moment some are still sent here. A terminating
/// pod is no longer an endpoint before it gets the signal, and an agent whose connection is refused tries again
/// elsewhere; every drained node waits this long.
const SHORTEST_SHUTDOWN: Duration = Duration::from_millis(200);
/// Time that an agent's idle connection is kept. An update is a few reports within minutes, and each new connection may
/// reach another replica, which is one TokenReview more.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Time-out for a client's part of a handshake, and for the head of a connection's first request.
const CLIENT_DEADLINE: Duration = Duration::from_secs(5);
/// Time-out for a client to close its side of a connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Rate limit of log lines about refusals of one source. What is left out is counted.
const LOG_LINES: Allowance = Allowance { burst: 100, every: Duration::from_secs(1) };
/// Rate limit of a node's reads of this replica's copy. They cost the cluster nothing, and an agent makes none.
const COPY_READS: Allowance = Allowance { burst: 200, every: Duration::from_millis(20) };
/// Rate limit of a node's opened streams and live reads of shadows. An agent opens one stream, backs off each time that
/// it ends early, and reads nothing else.
const READS: Allowance = Allowance { burst: 30, every: Duration::from_secs(1) };
/// Rate limit of reviews of a node's new tokens. The kubelet issues one every few minutes, which is reviewed again for
/// each burst of requests, as is another's after a restart.
const REVIEWS: Allowance = Allowance { burst: 30, every: Duration::from_secs(1) };
/// Rate limit of a node's reports. An update is about five, within seconds on an instant host; each that meets a change
/// of the shadow is sent again.
const REPORTS: Allowance = Allowance { burst: 30, every: Duration::from_secs(1) };

const LISTENER_ENDED: &str = "a listener ended";
/// Of one that runs for ever.
const TASK_ENDED: &str = "a task ended before the server did";

/// Runs the web API until `shutdown` is done, then ends streams one after the other and requests within seconds.
///
/// # Errors
///
/// Returns an error if it cannot start, or if one of its parts ends by itself.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    // A second server in one process finds it installed.
    let _ = crate::tls::provider().install_default();
    let mut kubernetes = kube::Config::infer().await.context("no way to reach Kubernetes was found")?;
    // Otherwise the client would retry writes and TokenReviews by itself.
    kubernetes.default_retry = false;
    // Without a limit, a watch with a dead connection would never end, and streams would show old states.
    kubernetes.read_timeout = Some(watches::SILENCE);
    let client = Client::try_from(kubernetes).context("the Kubernetes client could not be made")?;
    let running = Running::start(&config, Limits::USUAL, client).await?;
    tracing::info!(api = %running.api, plain = %running.plain, "listening");
    running.until(shutdown).await
}

/// A server that has started.
pub(crate) struct Running {
    /// Address of the agents' API.
    pub(crate) api: SocketAddr,
    /// Address of health and metrics.
    pub(crate) plain: SocketAddr,
    ending: watch::Sender<Option<Instant>>,
    streams: Arc<Streams>,
    servers: [Server; 2],
    tasks: JoinSet<()>,
}

impl Running {
    pub(crate) async fn start(config: &Config, limits: Limits, client: Client) -> anyhow::Result<Self> {
        let metrics = Metrics::new().context("the metrics could not be registered")?;
        let certificate = Arc::new(CertificateSlot::default());
        let ending = watch::Sender::new(None);
        let cluster = Cluster::new(client, config.namespace.clone(), metrics.clone());
        let app = web::Data::new(state(config, limits, cluster, &metrics, &certificate, ending.subscribe()));
        let counters = (metrics.connections_refused.clone(), metrics.malformed.clone());
        let (most, age) = (config.connections_per_source, limits.unauthenticated);
        let connections = Connections::new(app.sources, most, age, counters.clone());
        let plain_connections = Connections::new(app.sources, plain::CONNECTIONS_PER_SOURCE, limits.plain, counters);
        let mut certificates = CertificateWatch::new(config.tls_dir.clone(), Arc::clone(&certificate), metrics);
        certificates.check(clock::now()).await;
        let tls = server_config(certificate).context("TLS could not be set up")?;

        let (api_listener, api) = listen(config.listen)?;
        let (plain_listener, plain) = listen(config.plain_listen)?;
        let shared = app.clone();
        let plain_routes = move |services: &mut ServiceConfig| {
            services.app_data(shared.clone());
            routes::plain(services);
        };
        let servers = [
            serve_agents(api_listener, app.clone(), tls, connections).context(LISTENER_ENDED)?,
            plain::serve(plain_listener, plain_connections, GRACE_SECONDS, plain_routes).context(LISTENER_ENDED)?,
        ];
        let streams = Arc::clone(&app.streams);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // All agents may come at once, and then none has to wait for the keys.
            app.reviewer.warm().await;
            app.store.run(&app.cluster).await;
        });
        tasks.spawn(certificates.run(limits.certificate));
        Ok(Self { api, plain, ending, streams, servers, tasks })
    }

    pub(crate) async fn until(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { ending, streams, servers: [api, plain], mut tasks, .. } = self;
        let (api_handle, plain_handle) = (api.handle(), plain.handle());
        let (mut api, mut plain) = (tokio::spawn(api), tokio::spawn(plain));
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            result = &mut api => Err(ended(result)),
            result = &mut plain => Err(ended(result)),
            _ = tasks.join_next() => Err(anyhow!(TASK_ENDED)),
        };
        let (open, window) = (streams.count(), shutdown_window(streams.count()));
        tracing::info!(streams = open, milliseconds = window.as_millis(), "shutting down: streams are closed");
        let last = Instant::now() + window;
        ending.send_replace(Some(last));
        // Requests are served meanwhile: not every client knows yet that this replica is no longer ready.
        sleep_until(last).await;
        // The plain port stays until the agents' port has ended: kubelet and Prometheus see it end.
        api_handle.stop(true).await;
        plain_handle.stop(false).await;
        tasks.shutdown().await;
        ended
    }
}

/// Returns the state that the request handlers share.
fn state(
    config: &Config,
    limits: Limits,
    cluster: Cluster,
    metrics: &Metrics,
    certificate: &Arc<CertificateSlot>,
    shutdown: watch::Receiver<Option<Instant>>,
) -> App {
    let username = agent_username(&config.agent_namespace);
    App {
        reviewer: Reviewer::new(cluster.clone(), username.clone(), metrics.clone(), clock::now),
        cluster,
        refused: Limiter::new(limits.refused),
        reports: Limiter::new(REPORTS),
        reads: Limiter::new(READS),
        copy_reads: Limiter::new(COPY_READS),
        reviews: Limiter::new(REVIEWS),
        sources: Sources { ipv6_prefix: config.ipv6_source_prefix },
        log_lines: Limiter::new(LOG_LINES),
        omitted: AtomicU64::new(0),
        store: Store::new(metrics.clone()),
        metrics: metrics.clone(),
        certificate: Arc::clone(certificate),
        agent_username: username,
        stream_max_age: config.stream_max_age,
        limits,
        streams: Streams::new(metrics.streams.clone()),
        shutdown,
        now: clock::now,
    }
}

/// Serves the agents' API.
fn serve_agents(
    listener: TcpListener,
    app: web::Data<App>,
    tls: ServerConfig,
    connections: Arc<Connections>,
) -> io::Result<Server> {
    max_concurrent_tls_connect(HANDSHAKES);
    let builder = Server::build().workers(WORKERS).max_concurrent_connections(CONNECTIONS);
    let ending = builder.graceful_shutdown_signal();
    let factory = move || {
        let app = WebApp::new()
            .app_data(app.clone())
            .wrap(from_fn(limited))
            // Around everything else, so that it sees every answer.
            .wrap(from_fn(access_log))
            .configure(routes::api)
            .into_factory()
            .map_err(|error: actix_web::Error| error.error_response());
        let ending = ending.clone();
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let ending = ending.clone();
                async move { ending.notified().await }
            })
            .keep_alive(KEEP_ALIVE)
            .client_request_timeout(CLIENT_DEADLINE)
            .client_disconnect_timeout(CLOSE_LIMIT)
            .finish(map_config(app, |()| AppConfig::default()))
            .rustls_0_23_with_config(tls.clone(), TlsAcceptorConfig::default().handshake_timeout(CLIENT_DEADLINE));
        Arc::clone(&connections).limit(http, malformed)
    };
    Ok(builder.shutdown_timeout(GRACE_SECONDS).disable_signals().listen("api", listener, factory)?.run())
}

fn malformed(error: &TlsError<io::Error, DispatchError>) -> Option<&ParseError> {
    match error {
        TlsError::Service(DispatchError::Parse(error)) => Some(error),
        _ => None,
    }
}

/// Returns the time in which so many streams end.
fn shutdown_window(streams: u32) -> Duration {
    (Duration::from_secs(1) * streams / STREAMS_ENDED_PER_SECOND).clamp(SHORTEST_SHUTDOWN, LONGEST_SHUTDOWN)
}

fn ended(result: Result<io::Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    match result {
        Ok(Err(error)) => anyhow::Error::new(error).context(LISTENER_ENDED),
        Ok(Ok(())) | Err(_) => anyhow!(TASK_ENDED),
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        std::io::Result::Ok((listener, bound))
    };
    listen().with_context(|| format!("cannot listen on {address}"))
}
