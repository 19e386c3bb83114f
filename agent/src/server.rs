//! Client of the web API: one stream, and one kind of write.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use models::names::{TRUST_CA_KEY, TRUST_PERMIT_KEYS};
use models::wire::{AgentStatus, Problem, ShadowView};
use models::{pem, resource_version};
use reqwest::header::{CONTENT_TYPE, IF_MATCH};
use reqwest::{Certificate, Client, Response, StatusCode};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::timeout;

use crate::config::Config;
use crate::statement::node_uid;

/// Time-out of connecting, including proxy and TLS.
const CONNECT: Duration = Duration::from_secs(10);

/// Time-out from a request to the head of its answer, or to the whole answer of a write.
const ANSWER: Duration = Duration::from_secs(15);

/// Maximum length of a stream's line and of an answer, in bytes. A shadow in its agent's view is below 100 KiB by its
/// schema.
const LONGEST: usize = 1024 * 1024;

/// Time that an idle connection is kept: steps of an update follow each other within seconds, or hours later.
const KEEP_IDLE: Duration = Duration::from_secs(20);

/// An error of a request to the web API.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The CA bundle cannot be read (yet).
    #[error("cannot read the CA bundle {0}")]
    NoTrust(PathBuf, #[source] std::io::Error),
    /// The CA bundle holds no usable certificate.
    #[error("the CA bundle holds no usable certificate")]
    BadTrust,
    /// The CA bundle or the client's configuration is rejected.
    #[error("cannot make a client")]
    Client(#[source] reqwest::Error),
    /// The agent's own token cannot be read.
    #[error("cannot read the token {0}")]
    NoToken(PathBuf, #[source] std::io::Error),
    /// The request failed in transport.
    #[error("the web API cannot be reached")]
    Transport(#[source] reqwest::Error),
    /// Time-out.
    #[error("the web API did not answer in time")]
    Timeout,
    /// The stream fell silent.
    #[error("the stream fell silent")]
    Silent,
    /// The web API refused the request.
    #[error("the web API answered {status}: {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The problem as text.
        text: String,
    },
    /// An answer or a line that is too long.
    #[error("the web API sent more than {LONGEST} bytes at once")]
    TooLong,
    /// An answer that is no shadow.
    #[error("the web API's answer is not understood")]
    NotUnderstood(#[source] serde_json::Error),
}

/// The answer to a write.
#[derive(Debug)]
pub enum Written {
    /// Stored; this is the shadow now.
    Stored(Box<ShadowView>),
    /// Not stored: the agent status or the desired state has changed. This is the shadow now.
    Stale(Box<ShadowView>),
}

/// Client of the web API.
#[derive(Debug)]
pub struct Server {
    address: String,
    token_file: PathBuf,
    trust_dir: PathBuf,
    /// The client, and the CA bundle that it was made with.
    client: RefCell<Option<(Vec<u8>, Client)>>,
}

impl Server {
    /// Creates a client from the configuration. Nothing is read or opened yet.
    pub fn new(config: &Config) -> Self {
        Self {
            address: format!("{}/v1/nodes/{}/shadow", config.server_url.trim_end_matches('/'), config.node_name),
            token_file: config.token_file.clone(),
            trust_dir: config.trust_dir.clone(),
            client: RefCell::new(None),
        }
    }

    /// Opens the stream, from the newest state seen, if any.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be opened.
    pub async fn watch(&self, from: Option<&str>) -> Result<Lines, ServerError> {
        // A version invented by a compromised web API must not keep an honest one from answering.
        let from = from.filter(|version| resource_version::is_valid(version));
        let query = from.map(|version| format!("?resourceVersion={version}")).unwrap_or_default();
        let request = self.client()?.get(format!("{}/watch{query}", self.address)).bearer_auth(self.token()?);
        let answer = timeout(ANSWER, request.send()).await.map_err(|_| ServerError::Timeout)?;
        let mut response = answer.map_err(ServerError::Transport)?;
        if response.status() != StatusCode::OK {
            return Err(refusal(&mut response).await);
        }
        Ok(Lines { response, buffer: Buffer::default() })
    }

    /// Writes the agent status, if the shadow still has this etag.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer, or a refusal: the write may then have happened or not.
    pub async fn put_status(&self, etag: &str, status: &AgentStatus) -> Result<Written, ServerError> {
        let body = serde_json::to_vec(status).map_err(ServerError::NotUnderstood)?;
        let request = self
            .client()?
            .put(format!("{}/status", self.address))
            .bearer_auth(self.token()?)
            .header(IF_MATCH, format!("\"{etag}\""))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let answer = async {
            let mut response = request.send().await.map_err(ServerError::Transport)?;
            let status = response.status();
            if status != StatusCode::OK && status != StatusCode::PRECONDITION_FAILED {
                return Err(refusal(&mut response).await);
            }
            let body = read(&mut response).await?;
            let view = serde_json::from_slice(&body).map_err(ServerError::NotUnderstood)?;
            Ok(if status == StatusCode::OK { Written::Stored(view) } else { Written::Stale(view) })
        };
        timeout(ANSWER, answer).await.map_err(|_| ServerError::Timeout)?
    }

    /// Reads the agent's own token from its file, which the kubelet renews.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be read.
    pub fn token(&self) -> Result<String, ServerError> {
        match std::fs::read_to_string(&self.token_file) {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(error) => Err(ServerError::NoToken(self.token_file.clone(), error)),
        }
    }

    /// Returns the uid of the node that the agent's token is bound to, if it names one.
    pub fn node_uid(&self) -> Option<String> {
        node_uid(&self.token().ok()?)
    }

    /// Reads the public keys of the controller's statements; empty while there are none.
    pub fn permit_keys(&self) -> String {
        std::fs::read_to_string(self.trust_dir.join(TRUST_PERMIT_KEYS)).unwrap_or_default()
    }

    /// Returns the client for the current CA bundle. A missing or entirely invalid bundle does not replace the previous
    /// one.
    fn client(&self) -> Result<Client, ServerError> {
        let mut kept = self.client.borrow_mut();
        match (self.make_client(kept.as_ref()), kept.as_ref()) {
            (Ok(made), _) => Ok(kept.insert(made).1.clone()),
            (Err(_), Some((_, client))) => Ok(client.clone()),
            (Err(error), None) => Err(error),
        }
    }

    fn make_client(&self, kept: Option<&(Vec<u8>, Client)>) -> Result<(Vec<u8>, Client), ServerError> {
        let bundle = read_bundle(&self.trust_dir)?;
        if let Some((of, client)) = kept
            && *of == bundle
        {
            return Ok((bundle, client.clone()));
        }
        let authorities: Vec<_> =
            usable(&bundle).iter().filter_map(|found| Certificate::from_der(found).ok()).collect();
        if authorities.is_empty() {
            return Err(ServerError::BadTrust);
        }
        let client = Client::builder()
            .https_only(true)
            .http1_only()
            .tls_certs_only(authorities)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(KEEP_IDLE)
            .build()
            .map_err(ServerError::Client)?;
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

fn read_bundle(trust_dir: &Path) -> Result<Vec<u8>, ServerError> {
    let file = trust_dir.join(TRUST_CA_KEY);
    std::fs::read(&file).map_err(|error| ServerError::NoTrust(file, error))
}

async fn read(response: &mut Response) -> Result<Vec<u8>, ServerError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ServerError::Transport)? {
        if body.len() + chunk.len() > LONGEST {
            return Err(ServerError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn refusal(response: &mut Response) -> ServerError {
    let status = response.status();
    let body = match timeout(ANSWER, read(response)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => return error,
        Err(_) => return ServerError::Timeout,
    };
    ServerError::Refused { status: status.as_u16(), text: problem_text(status, &body) }
}

/// Returns the text of a refusal, for the log.
pub(crate) fn problem_text(status: StatusCode, body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => format!("{} {}", problem.title, problem.detail.unwrap_or_default()).trim().to_owned(),
        Err(_) => status.canonical_reason().unwrap_or("no reason given").to_owned(),
    };
    text.chars().take(512).collect()
}

/// The lines of the stream.
#[derive(Debug)]
pub struct Lines {
    response: Response,
    buffer: Buffer,
}

impl Lines {
    /// Returns the next line, or `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection breaks, or a line is too long.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ServerError> {
        loop {
            if let Some(line) = self.buffer.line() {
                return Ok(Some(line));
            }
            match self.response.chunk().await.map_err(ServerError::Transport)? {
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
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), ServerError> {
        if self.0.len() + bytes.len() > LONGEST {
            return Err(ServerError::TooLong);
        }
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

    #[test]
    fn missing_or_corrupt_ca_bundle_keeps_previous_until_valid_one_appears() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(TRUST_CA_KEY);
        let config = Config {
            node_name: "a".into(),
            host_socket: PathBuf::new(),
            boot_id_file: PathBuf::new(),
            server_url: "https://127.0.0.1".into(),
            token_file: PathBuf::new(),
            trust_dir: folder.path().to_owned(),
            log_filter: String::new(),
            log_format: models::log::LogFormat::Text,
        };
        let server = Server::new(&config);
        let trusted = || server.client.borrow().as_ref().map(|(bundle, _)| String::from_utf8(bundle.clone()).unwrap());
        assert!(matches!(server.client(), Err(ServerError::NoTrust(..))), "there is no bundle yet");
        std::fs::write(&file, "not yet").unwrap();
        assert!(matches!(server.client(), Err(ServerError::BadTrust)), "there is nothing in it yet");
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
        assert!(matches!(buffer.push(&vec![b'x'; LONGEST + 1]), Err(ServerError::TooLong)));
    }
}
