//! Client of the web API: one stream, and one kind of write.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use models::names::{TRUST_CA_KEY, TRUST_PERMIT_KEYS};
use models::wire::{AgentStatus, PROCESS_HEADER, Problem, ShadowView};
use models::{limits, pem, resource_version};
use reqwest::header::{CONNECTION, CONTENT_TYPE, IF_MATCH};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use crate::config::Config;
use crate::process::OwnProcess;
use crate::statement::node_uid;

/// Time-out of connecting, including proxy and TLS.
const CONNECT: Duration = Duration::from_secs(10);

/// Time-out from a request to the head of its answer: the review of the token, which admission webhooks may delay like any
/// write, and 15 s for the rest.
const ANSWER: Duration = limits::WRITE.saturating_add(Duration::from_secs(15));

/// Time-out from a report to its whole answer: the web API's own write comes after the review of the token. The stream and
/// the signs of life go on meanwhile; the host is not called.
const REPORT: Duration = limits::WRITE.saturating_add(ANSWER);

/// Maximum length of a stream's line and of an answer, in bytes. A shadow in its agent's view is below 100 KiB by its
/// schema.
const LONGEST: usize = 1024 * 1024;

/// Time that an idle connection is kept: steps of an update follow each other within seconds, or hours later.
const KEEP_IDLE: Duration = Duration::from_secs(20);

const UNREACHABLE: &str = "the web API cannot be reached";
const NO_CLIENT: &str = "cannot make a client";
const NOT_UNDERSTOOD: &str = "the web API's answer is not understood";
pub(crate) const NOT_IN_TIME: &str = "the web API did not answer in time";

#[derive(Debug)]
pub(crate) enum Written {
    /// Stored; this is the shadow now.
    Stored(Box<ShadowView>),
    /// Not stored: the agent status or the desired state has changed. This is the shadow now.
    Stale(Box<ShadowView>),
}

#[derive(Debug)]
pub(crate) struct Server {
    address: String,
    token_file: PathBuf,
    trust_dir: PathBuf,
    /// The client, and the CA bundle that it was made with.
    client: RefCell<Option<(Vec<u8>, Client)>>,
    process: OwnProcess,
}

impl Server {
    /// Creates a client from the configuration. Nothing is read or opened yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            address: format!("{}/v1/nodes/{}/shadow", config.server_url.trim_end_matches('/'), config.node_name),
            token_file: config.token_file.clone(),
            trust_dir: config.trust_dir.clone(),
            client: RefCell::new(None),
            process: OwnProcess::new(),
        }
    }

    /// Opens the stream, from the newest state seen, if any.
    pub(crate) async fn watch(&self, from: Option<&str>) -> anyhow::Result<Lines> {
        // A version invented by a compromised web API must not keep an honest one from answering.
        let from = from.filter(|version| resource_version::is_valid(version));
        let query = from.map(|version| format!("?resourceVersion={version}")).unwrap_or_default();
        let mut request = self.client()?.get(format!("{}/watch{query}", self.address)).bearer_auth(self.token()?);
        // A kept connection would lead the next stream to the same replica, also while that shuts down, and TLS
        // authenticates a server only when a connection begins.
        request = request.header(CONNECTION, "close");
        if let Some(process) = self.process.describe() {
            request = request.header(PROCESS_HEADER, process.to_string());
        }
        let bundle = self.client.borrow().as_ref().map(|(bundle, _)| bundle.clone());
        let response = in_time(ANSWER, send(request, &[StatusCode::OK])).await?;
        Ok(Lines { response, buffer: Buffer::default(), bundle })
    }

    /// Returns whether the authorities that are trusted now are others than when a stream was opened.
    pub(crate) fn trusts_others_than(&self, lines: &Lines) -> bool {
        self.client().is_ok() && self.client.borrow().as_ref().map(|(bundle, _)| bundle) != lines.bundle.as_ref()
    }

    /// Writes the agent status, if the shadow still has this etag.
    pub(crate) async fn put_status(&self, etag: &str, status: &AgentStatus) -> anyhow::Result<Written> {
        let body = serde_json::to_vec(status).context(NOT_UNDERSTOOD)?;
        let request = self
            .client()?
            .put(format!("{}/status", self.address))
            .bearer_auth(self.token()?)
            .header(IF_MATCH, format!("\"{etag}\""))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        in_time(REPORT, async {
            let mut response = send(request, &[StatusCode::OK, StatusCode::PRECONDITION_FAILED]).await?;
            let view = serde_json::from_slice(&read(&mut response).await?).context(NOT_UNDERSTOOD)?;
            Ok(if response.status() == StatusCode::OK { Written::Stored(view) } else { Written::Stale(view) })
        })
        .await
    }

    /// Reads the agent's own token from its file, which the kubelet renews.
    fn token(&self) -> anyhow::Result<String> {
        let token = std::fs::read_to_string(&self.token_file);
        let token = token.with_context(|| format!("cannot read the token {}", self.token_file.display()))?;
        Ok(token.trim().to_owned())
    }

    /// Returns the uid of the node that the agent's token is bound to, if it names one.
    pub(crate) fn node_uid(&self) -> Option<String> {
        node_uid(&self.token().ok()?)
    }

    /// Reads the public keys of the controller's statements; empty while there are none.
    pub(crate) fn permit_keys(&self) -> String {
        std::fs::read_to_string(self.trust_dir.join(TRUST_PERMIT_KEYS)).unwrap_or_default()
    }

    /// Returns the client for the current CA bundle. A missing or entirely invalid bundle does not replace the previous
    /// one.
    fn client(&self) -> anyhow::Result<Client> {
        let mut kept = self.client.borrow_mut();
        match (self.make_client(kept.as_ref()), kept.as_ref()) {
            (Ok(made), _) => Ok(kept.insert(made).1.clone()),
            (Err(_), Some((_, client))) => Ok(client.clone()),
            (Err(error), None) => Err(error),
        }
    }

    fn make_client(&self, kept: Option<&(Vec<u8>, Client)>) -> anyhow::Result<(Vec<u8>, Client)> {
        let file = self.trust_dir.join(TRUST_CA_KEY);
        let bundle = std::fs::read(&file).with_context(|| format!("cannot read the CA bundle {}", file.display()))?;
        if let Some((of, client)) = kept
            && *of == bundle
        {
            return Ok((bundle, client.clone()));
        }
        let authorities = usable(&bundle);
        ensure!(!authorities.is_empty(), "the CA bundle holds no usable certificate");
        let client = Client::builder()
            .https_only(true)
            .http1_only()
            .tls_backend_preconfigured(tls(authorities).context(NO_CLIENT)?)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_IDLE)
            .build()
            .context(NO_CLIENT)?;
        Ok((bundle, client))
    }
}

/// Returns the authorities of a bundle. Unreadable or untrustworthy ones are left out without affecting others.
pub fn usable(bundle: &[u8]) -> Vec<CertificateDer<'static>> {
    let text = String::from_utf8_lossy(bundle);
    let usable = |block: &str| {
        let certificate = CertificateDer::from_pem_slice(block.as_bytes()).ok()?;
        RootCertStore::empty().add(certificate.clone()).ok()?;
        Some(certificate)
    };
    pem::certificates(&text).0.into_iter().filter_map(usable).collect()
}

/// Returns the client side of TLS 1.2 and 1.3 that trusts these authorities alone. It resumes no session: on a resumed one,
/// the server's certificate is not verified again, and may have expired.
fn tls(authorities: Vec<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    let mut tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

/// Waits for an answer up to its time-out.
async fn in_time<T>(limit: Duration, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(anyhow!(NOT_IN_TIME)))
}

/// Sends a request; returns the head of its answer if it has one of these statuses.
async fn send(request: RequestBuilder, expected: &[StatusCode]) -> anyhow::Result<Response> {
    let mut response = request.send().await.context(UNREACHABLE)?;
    let status = response.status();
    if expected.contains(&status) {
        return Ok(response);
    }
    let body = read(&mut response).await?;
    bail!("the web API answered {}: {}", status.as_u16(), problem_text(status, &body))
}

async fn read(response: &mut Response) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.context(UNREACHABLE)? {
        check_length(body.len() + chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn check_length(length: usize) -> anyhow::Result<()> {
    ensure!(length <= LONGEST, "the web API sent more than {LONGEST} bytes at once");
    Ok(())
}

/// Returns the text of a refusal, for the log.
pub(crate) fn problem_text(status: StatusCode, body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => format!("{} {}", problem.title, problem.detail.unwrap_or_default()).trim().to_owned(),
        Err(_) => status.canonical_reason().unwrap_or("no reason given").to_owned(),
    };
    text.chars().take(512).collect()
}

#[derive(Debug)]
pub(crate) struct Lines {
    response: Response,
    buffer: Buffer,
    /// The CA bundle of the client that opened the stream.
    bundle: Option<Vec<u8>>,
}

impl Lines {
    /// Returns the next line, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.buffer.line() {
                return Ok(Some(line));
            }
            match self.response.chunk().await.context(UNREACHABLE)? {
                Some(chunk) => self.buffer.push(&chunk)?,
                None => return Ok(None),
            }
        }
    }
}

/// Received bytes that are not yet a line.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        check_length(self.0.len() + bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes the next complete line that is not empty.
    pub(crate) fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.0.iter().position(|byte| *byte == b'\n')?;
            let rest = self.0.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.0, rest);
            line.truncate(end);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_entries_in_ca_bundle_do_not_affect_others() {
        let made = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem();
        let (one, other) = (made(), made());
        let (begin, end) = (pem::BEGIN, pem::END);
        let broken = format!("{begin}\n!!\n{end}\n");
        let no_certificate = format!("{begin}\nAAAA\n{end}\n");
        let cut = one[..one.len() / 2].to_owned();
        for (bundle, found) in [
            (format!("{one}{other}"), 2),
            (format!("{broken}{one}{no_certificate}{other}"), 2),
            (format!("# a note\n{one}{cut}\n{other}"), 2),
            (format!("{other}{cut}"), 1),
            (broken, 0),
            (String::new(), 0),
        ] {
            assert_eq!(usable(bundle.as_bytes()).len(), found, "{bundle}");
        }
    }

    /// A client that trusts what is in this folder.
    fn trusting(folder: &std::path::Path) -> Server {
        Server::new(&Config {
            node_name: "a".into(),
            host_socket: PathBuf::new(),
            boot_id_file: PathBuf::new(),
            server_url: "https://127.0.0.1".into(),
            token_file: PathBuf::new(),
            trust_dir: folder.to_owned(),
            alive_file: folder.join("alive"),
            check: None,
            log_filter: String::new(),
            log_format: models::log::LogFormat::Text,
        })
    }

    #[test]
    fn replaced_permit_keys_are_used_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let server = trusting(folder.path());
        assert_eq!(server.permit_keys(), "");
        for keys in ["{\"keys\": []}", "{\"keys\": [{}]}"] {
            std::fs::write(folder.path().join(TRUST_PERMIT_KEYS), keys).unwrap();
            assert_eq!(server.permit_keys(), keys);
        }
    }

    #[test]
    fn missing_or_corrupt_ca_bundle_keeps_previous_until_valid_one_appears() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(TRUST_CA_KEY);
        let server = trusting(folder.path());
        let trusted = || server.client.borrow().as_ref().map(|(bundle, _)| String::from_utf8(bundle.clone()).unwrap());
        let refusal = || server.client().unwrap_err().to_string();
        assert!(refusal().starts_with("cannot read the CA bundle"), "there is no bundle yet");
        std::fs::write(&file, "not yet").unwrap();
        assert_eq!(refusal(), "the CA bundle holds no usable certificate");
        let made = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem();
        let (one, other) = (made(), made());
        std::fs::write(&file, &one).unwrap();
        assert!(server.client().is_ok());
        std::fs::write(&file, "invalid").unwrap();
        assert!(server.client().is_ok() && trusted().as_ref() == Some(&one));
        std::fs::remove_file(&file).unwrap();
        assert!(server.client().is_ok() && trusted().as_ref() == Some(&one));
        std::fs::write(&file, &other).unwrap();
        assert!(server.client().is_ok() && trusted().as_ref() == Some(&other));
    }

    #[test]
    fn stream_buffer_returns_whole_lines_and_limits_length() {
        let mut buffer = Buffer::default();
        buffer.push(b"{\"a\":1}\n\n{\"b\"").unwrap();
        assert_eq!(buffer.line().as_deref(), Some(&b"{\"a\":1}"[..]));
        assert_eq!(buffer.line(), None);
        buffer.push(b":2}\r\n").unwrap();
        assert_eq!(buffer.line().as_deref(), Some(&b"{\"b\":2}\r"[..]));
        assert_eq!(buffer.line(), None);
        let error = buffer.push(&vec![b'x'; LONGEST + 1]).unwrap_err();
        assert_eq!(error.to_string(), "the web API sent more than 1048576 bytes at once");
    }
}
