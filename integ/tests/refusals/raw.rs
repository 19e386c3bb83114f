//! Requests to the web API, byte by byte: no client library corrects malformed ones.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use models::wire::Problem;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsConnector;

/// Longest wait for a response.
const LIMIT: Duration = Duration::from_secs(180);

/// A request as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// Names and values; values are bytes, since a client may send anything.
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("Authorization", format!("Bearer {token}"))
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    fn bytes(&self, host: &str) -> Vec<u8> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(format!("{name}: ").as_bytes());
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if !self.body.is_empty() {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A response, complete, or the beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) media_type: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Status and kind of a refusal.
    pub(crate) fn refusal(&self) -> anyhow::Result<(u16, String)> {
        let text = String::from_utf8_lossy(&self.body);
        ensure!(self.status >= 400, "not refused, but answered with {}: {text}", self.status);
        ensure!(self.media_type == "application/problem+json", "{}: {}: {text}", self.status, self.media_type);
        let problem: Problem = serde_json::from_slice(&self.body).with_context(|| text.into_owned())?;
        ensure!(problem.status == self.status, "{problem:?}");
        Ok((self.status, problem.type_.rsplit(':').next().unwrap_or_default().to_owned()))
    }
}

/// The agents' way to the web API: the proxy of the test cluster, and TLS with the published CA.
pub(crate) struct WebApiConnector {
    proxy: String,
    host: String,
    tls: TlsConnector,
}

impl WebApiConnector {
    pub(crate) fn new(proxy_url: &str, host: String, ca: &str) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let proxy = proxy_url.strip_prefix("http://").context("the proxy speaks HTTP")?.to_owned();
        Ok(Self { proxy, host, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// A connection to the web API's port, before TLS.
    pub(crate) async fn connect(&self) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.proxy).await.context("the proxy")?;
        stream.write_all(format!("CONNECT {0}:443 HTTP/1.1\r\nHost: {0}:443\r\n\r\n", self.host).as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            ensure!(stream.read(&mut byte).await? == 1, "the proxy hangs up: {}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        ensure!(head.starts_with(b"HTTP/1.1 200"), "the proxy: {}", String::from_utf8_lossy(&head));
        Ok(stream)
    }

    /// The protocol that the server chooses from those offered, or the reason why there is no connection.
    pub(crate) async fn negotiate(&self, offered: &[&str]) -> anyhow::Result<Option<Vec<u8>>> {
        let mut config = ClientConfig::clone(self.tls.config());
        config.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(ServerName::try_from(self.host.clone())?, self.connect().await?).await?;
        Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    }

    /// Sends a request and reads the response: all of it, or the first line of a stream.
    pub(crate) async fn send(&self, request: &Request) -> anyhow::Result<Answer> {
        timeout(LIMIT, self.exchange(request)).await.with_context(|| format!("no answer to {request:?}"))?
    }

    async fn exchange(&self, request: &Request) -> anyhow::Result<Answer> {
        let name = ServerName::try_from(self.host.clone())?;
        let mut stream = self.tls.connect(name, self.connect().await?).await.context("TLS")?;
        // A server that refuses a large body may close before it has read it all.
        let _ = stream.write_all(&request.bytes(&self.host)).await;
        let mut bytes = Vec::new();
        loop {
            if let Some(answer) = read(&bytes)? {
                return Ok(answer);
            }
            let mut chunk = [0; 4096];
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return complete_answer(&bytes),
                Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            }
        }
    }
}

fn head(bytes: &[u8]) -> anyhow::Result<Option<(Answer, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes)? else { return Ok(None) };
    let media_type = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-type"));
    let media_type = media_type.map(|header| String::from_utf8_lossy(header.value).into_owned()).unwrap_or_default();
    let status = response.code.context("no status")?;
    Ok(Some((Answer { status, media_type, body: Vec::new() }, length)))
}

/// Parses a response that is complete without a close: for a stream the head is enough.
fn read(bytes: &[u8]) -> anyhow::Result<Option<Answer>> {
    Ok(head(bytes)?.filter(|(answer, _)| answer.media_type == models::wire::NDJSON).map(|(answer, _)| answer))
}

/// Parses a response after which the connection was closed.
fn complete_answer(bytes: &[u8]) -> anyhow::Result<Answer> {
    let (answer, length) = head(bytes)?.context("the connection was closed without an answer")?;
    Ok(Answer { body: bytes[length..].to_vec(), ..answer })
}
