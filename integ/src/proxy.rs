//! Service names without a cluster network: a CONNECT proxy that resolves `name.namespace.svc` as kube-proxy does, from
//! the EndpointSlices of the real controllers, and dials the loopback address of the chosen pod's process. TLS passes
//! through unchanged.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use rand::seq::IndexedRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};

use crate::kubelet::Addresses;

/// Longest head of a CONNECT request, in bytes.
const HEAD_LIMIT: usize = 8 * 1024;

/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The addresses that the connections to Services come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The system's choice: one for all of them, as behind a real proxy.
    One,
    /// Another one for each client of the proxy, by its port: a Service that limits each source takes them for clients on many
    /// nodes.
    Each,
}

impl Sources {
    fn of(self, client: SocketAddr) -> Option<Ipv4Addr> {
        let [high, low] = client.port().to_be_bytes();
        (self == Self::Each).then_some(Ipv4Addr::new(127, 255, high, low))
    }
}

/// The running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct ConnectProxy {
    address: SocketAddr,
    diverted: Diverted,
    _tasks: JoinSet<()>,
}

/// Target of all connections while a scenario diverts them, whatever Service they ask for.
type Diverted = Arc<Mutex<Option<SocketAddr>>>;

impl ConnectProxy {
    /// Starts a proxy on a free loopback port. `client` must be able to list and watch Services and EndpointSlices.
    pub async fn start(client: Client, addresses: Addresses, sources: Sources) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the proxy finds no free port")?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        let names = Names {
            services: follow(&mut tasks, Api::all(client.clone())),
            slices: follow(&mut tasks, Api::all(client)),
            addresses,
            diverted: Diverted::default(),
            sources,
        };
        let diverted = names.diverted.clone();
        tasks.spawn(accept(listener, names));
        Ok(Self { address, diverted, _tasks: tasks })
    }

    /// Diverts each new connection to an address of the scenario, as a client that impersonates a Service does; with
    /// `None`, back to the Service.
    pub fn divert(&self, to: Option<SocketAddr>) {
        *self.diverted.lock() = to;
    }

    /// The proxy's URL, for `HTTPS_PROXY`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Keeps a cache of all objects of one kind.
fn follow<K>(tasks: &mut JoinSet<()>, api: Api<K>) -> Store<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: serde::de::DeserializeOwned,
{
    let (store, writer) = reflector::store();
    tasks.spawn(async move {
        let mut events = std::pin::pin!(reflector::reflector(writer, watcher(api, watcher::Config::default())));
        loop {
            match events.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "the proxy lost its view of Services and lists again");
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    });
    store
}

async fn accept(listener: TcpListener, names: Names) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let names = names.clone();
                connections.spawn(async move {
                    if let Err(error) = serve(stream, &names).await {
                        tracing::debug!(error = format!("{error:#}"), "a proxied connection ended");
                    }
                });
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(mut client: TcpStream, names: &Names) -> Result<()> {
    let (target, early) = match timeout(Duration::from_secs(10), read_head(&mut client)).await {
        Ok(Ok(head)) => head,
        Ok(Err(error)) => return refuse(&mut client, "400 Bad Request", &format!("{error:#}")).await,
        Err(_) => return refuse(&mut client, "408 Request Timeout", "no request").await,
    };
    let address = match names.resolve(&target) {
        Ok(address) => address,
        Err(error) => return refuse(&mut client, "502 Bad Gateway", &error.to_string()).await,
    };
    let source = names.sources.of(client.peer_addr()?);
    let mut server = match timeout(Duration::from_secs(10), connect(source, address)).await {
        Ok(Ok(server)) => server,
        Ok(Err(error)) => return refuse(&mut client, "502 Bad Gateway", &format!("{target}: {error}")).await,
        Err(_) => return refuse(&mut client, "504 Gateway Timeout", &target).await,
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    server.write_all(&early).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

async fn connect(source: Option<Ipv4Addr>, target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(source) = source {
        socket.bind(SocketAddr::from((source, 0)))?;
    }
    socket.connect(target).await
}

async fn refuse(client: &mut TcpStream, status: &str, why: &str) -> Result<()> {
    let length = why.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{why}"
    );
    client.write_all(reply.as_bytes()).await?;
    client.shutdown().await?;
    anyhow::bail!("{status}: {why}")
}

/// Reads a request's head; returns its target and the bytes received after it.
async fn read_head(client: &mut TcpStream) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        anyhow::ensure!(bytes.len() < HEAD_LIMIT, "the request's head is too long");
        anyhow::ensure!(client.read_buf(&mut bytes).await? > 0, "the connection was closed");
    };
    let early = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes);
    let target = connect_target(&head).context("only CONNECT is served")?;
    Ok((target, early))
}

fn connect_target(head: &str) -> Option<String> {
    let mut words = head.lines().next()?.split(' ');
    (words.next()? == "CONNECT").then_some(())?;
    words.next().map(str::to_owned)
}

/// Reasons why a name cannot be resolved.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum ResolveError {
    #[error("{0} is not name.namespace.svc:port")]
    NotAService(String),
    #[error("Service {0}/{1} does not exist")]
    NoService(String, String),
    #[error("Service {0}/{1} has no port {2}")]
    NoPort(String, String, u16),
    #[error("Service {0}/{1} has no ready endpoint for port {2}")]
    NoEndpoint(String, String, u16),
}

#[derive(Clone)]
struct Names {
    services: Store<Service>,
    slices: Store<EndpointSlice>,
    addresses: Addresses,
    diverted: Diverted,
    sources: Sources,
}

impl Names {
    fn resolve(&self, target: &str) -> Result<SocketAddr, ResolveError> {
        if let Some(address) = *self.diverted.lock() {
            return Ok(address);
        }
        let (name, namespace, port) =
            parse_target(target).ok_or_else(|| ResolveError::NotAService(target.to_owned()))?;
        let service = self
            .services
            .get(&ObjectRef::new(&name).within(&namespace))
            .ok_or_else(|| ResolveError::NoService(namespace.clone(), name.clone()))?;
        let slices = self.slices.state();
        let slices = slices.iter().map(AsRef::as_ref).filter(|s: &&EndpointSlice| {
            let label = |labels: &BTreeMap<String, String>| labels.get(SERVICE_NAME) == Some(&name);
            s.metadata.namespace.as_deref() == Some(&namespace) && s.metadata.labels.as_ref().is_some_and(label)
        });
        let candidates = ready_endpoints(&service, slices, port)
            .ok_or_else(|| ResolveError::NoPort(namespace.clone(), name.clone(), port))?;
        let candidates: Vec<_> = candidates
            .into_iter()
            .filter_map(|(ip, port)| Some(SocketAddr::new(self.addresses.process_ip(ip)?, port)))
            .collect();
        candidates.choose(&mut rand::rng()).copied().ok_or(ResolveError::NoEndpoint(namespace, name, port))
    }
}

/// Returns name, namespace and port of `name.namespace.svc[.<cluster domain>][.]:port`.
fn parse_target(target: &str) -> Option<(String, String, u16)> {
    let (host, port) = target.rsplit_once(':')?;
    let host = host.trim_end_matches('.');
    let host = host.split_once(".svc.").map_or_else(|| host.strip_suffix(".svc"), |(name, _)| Some(name))?;
    let (name, namespace) = host.split_once('.')?;
    (!name.is_empty() && !namespace.is_empty() && !namespace.contains('.')).then_some(())?;
    Some((name.to_owned(), namespace.to_owned(), port.parse().ok()?))
}

/// Returns the ready endpoints of a Service's port; `None` if there is no such port.
fn ready_endpoints<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: u16,
) -> Option<Vec<(IpAddr, u16)>> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    let port_name = ports.iter().find(|p| p.port == i32::from(port))?.name.clone().unwrap_or_default();
    let mut found = Vec::new();
    for slice in slices {
        let target = slice
            .ports
            .iter()
            .flatten()
            .find(|p| p.name.as_deref().unwrap_or_default() == port_name)
            .and_then(|p| u16::try_from(p.port?).ok());
        let Some(target) = target else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            // Absent means ready, by the API reference.
            if endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(false) {
                continue;
            }
            found.extend(endpoint.addresses.iter().filter_map(|a| a.parse().ok()).map(|ip: IpAddr| (ip, target)));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_service_dns_names_are_resolved() {
        let expected = Some(("web".to_owned(), "brupop".to_owned(), 443));
        assert_eq!(parse_target("web.brupop.svc:443"), expected);
        assert_eq!(parse_target("web.brupop.svc.cluster.local:443"), expected);
        assert_eq!(parse_target("web.brupop.svc.cluster.local.:443"), expected);
        assert_eq!(parse_target("web.brupop.svc.corp.example:443"), expected);
        for other in ["web:443", "web.brupop:443", "a.b.c.svc:443", "example.org:443", "web.brupop.svc", "127.0.0.1:1"]
        {
            assert_eq!(parse_target(other), None, "{other}");
        }
    }

    #[test]
    fn service_port_resolves_to_target_port_of_ready_endpoints() {
        let service: Service = serde_json::from_value(json!({"metadata": {}, "spec": {"ports": [
            {"name": "https", "port": 443, "targetPort": "https"}, {"name": "metrics", "port": 80},
        ]}}))
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {}, "addressType": "IPv4",
            "ports": [{"name": "https", "port": 8443}, {"name": "metrics", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.1.1.2"], "conditions": {"ready": true}},
                {"addresses": ["10.1.1.3"], "conditions": {"ready": false}},
                {"addresses": ["10.1.1.4"]},
            ],
        }))
        .unwrap();
        let found = ready_endpoints(&service, [&slice].into_iter(), 443).unwrap();
        assert_eq!(found, [("10.1.1.2".parse().unwrap(), 8443), ("10.1.1.4".parse().unwrap(), 8443)]);
        assert_eq!(ready_endpoints(&service, [&slice].into_iter(), 444), None);
    }

    #[test]
    fn only_connect_requests_are_accepted() {
        assert_eq!(connect_target("CONNECT a.b.svc:1 HTTP/1.1\r\n\r\n").as_deref(), Some("a.b.svc:1"));
        assert_eq!(connect_target("GET http://a.b.svc/ HTTP/1.1\r\n\r\n"), None);
    }
}
