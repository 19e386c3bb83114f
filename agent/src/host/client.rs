//! The closed list of host calls. Each has its own connection: the host closes idle ones after seconds, and a POST must
//! never be repeated because a kept connection turned out to be dead.

use std::path::{Path, PathBuf};
use std::time::Duration;

use models::permit::CALL_LIMIT;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::settings::{HostSettings, SettingsChange};
use super::types::{Command, OsInfo, UpdateStatus};

/// Time-out of a call. The host answers one request at a time and each within milliseconds; a time-out this long means
/// that it hangs.
const TIMEOUT: Duration = CALL_LIMIT;

/// Maximum length of an answer after its long strings were cut, in bytes.
const LONGEST_BODY: usize = 1024 * 1024;

/// Maximum length of an answer as read, in bytes. A status has all output of the host's updater, which has no limit.
const LONGEST_ANSWER: usize = 256 * 1024 * 1024;

/// Maximum length of a string kept from an answer, in bytes. Longer ones are output of a program.
const LONGEST_STRING: usize = 256 * 1024;

/// Path that reads these two settings. Without the prefix `settings.` the host finds nothing and reports no error.
const SETTINGS: &str = "/settings?keys=settings.updates.version-lock,settings.updates.ignore-waves";

/// A host call without a usable answer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("the host's socket does not exist")]
    SocketMissing(#[source] reqwest::Error),
    /// Nothing listens on the socket.
    #[error("no process listens on the host's socket")]
    ConnectionRefused(#[source] reqwest::Error),
    /// A directory is where the socket should be.
    #[error(
        "a directory is in the place of the host's socket, made by the container runtime while there was no socket; delete \
         the agent's pod, and on the host run rmdir /run/api.sock and systemctl restart apiserver"
    )]
    SocketIsDirectory(#[source] reqwest::Error),
    /// The socket may not be opened: file permission, or SELinux.
    #[error("the host's socket may not be opened")]
    PermissionDenied(#[source] reqwest::Error),
    /// Another failure before the request was sent.
    #[error("cannot connect to the host's socket")]
    Connect(#[source] reqwest::Error),
    #[error("the host did not answer in time")]
    Timeout(#[source] reqwest::Error),
    /// The connection ended before the answer did.
    #[error("the host cut the connection")]
    Cut(#[source] reqwest::Error),
    /// An answer with an unusable status or body.
    #[error("the host answered {status}: {text}")]
    BadAnswer {
        status: u16,
        /// The beginning of the body.
        text: String,
    },
}

impl HostError {
    /// Returns the reason for the condition `HostReachable`.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::SocketMissing(_) => "SocketMissing",
            Self::ConnectionRefused(_) => "ConnectionRefused",
            Self::SocketIsDirectory(_) => "SocketIsDirectory",
            Self::PermissionDenied(_) => "PermissionDenied",
            Self::Timeout(_) => "Timeout",
            Self::Connect(_) | Self::Cut(_) | Self::BadAnswer { .. } => "BadAnswer",
        }
    }

    /// Returns true if the socket itself is dead, so that a new mount of its path (another container) can help.
    pub(crate) const fn socket_is_dead(&self) -> bool {
        matches!(self, Self::SocketMissing(_) | Self::ConnectionRefused(_) | Self::SocketIsDirectory(_))
    }

    /// Returns true if the request may have reached the host.
    pub(crate) const fn may_have_arrived(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Cut(_) | Self::BadAnswer { .. })
    }
}

/// The answer of `GET /updates/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatusAnswer {
    /// The host has not run a command in this boot.
    Uninitialized,
    /// A command runs, of this agent or another client.
    Busy,
    Known(Box<UpdateStatus>),
}

/// The answer to a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Accepted; the outcome appears in the status later.
    Accepted,
    /// Another command runs; nothing was started.
    Busy,
    /// The host's update state does not allow it, or it lacks what the command works on; nothing was started.
    Refused(String),
    /// The host failed to start it.
    Failed(String),
}

#[derive(Clone, Debug)]
pub(crate) struct HostClient {
    http: reqwest::Client,
    socket: PathBuf,
}

impl HostClient {
    pub(crate) fn new(socket: &Path) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .no_proxy()
            .http1_only()
            .pool_max_idle_per_host(0)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(TIMEOUT)
            // No TLS is used on the socket; an empty list of roots keeps the system's out of memory.
            .tls_certs_only([])
            .build()?;
        Ok(Self { http, socket: socket.to_owned() })
    }

    /// Reads the running system (`GET /os`).
    pub(crate) async fn os(&self) -> Result<OsInfo, HostError> {
        let (status, body) = self.send(Method::GET, "/os", None).await?;
        read(status, &body, OsInfo::read)
    }

    /// Reads the update state and the outcome of the last command (`GET /updates/status`).
    pub(crate) async fn update_status(&self) -> Result<StatusAnswer, HostError> {
        let (status, body) = self.send(Method::GET, "/updates/status", None).await?;
        match status {
            StatusCode::NOT_FOUND => Ok(StatusAnswer::Uninitialized),
            StatusCode::LOCKED => Ok(StatusAnswer::Busy),
            _ => Ok(StatusAnswer::Known(Box::new(read(status, &body, UpdateStatus::read)?))),
        }
    }

    /// Starts a command. Without an answer, it may have been started.
    pub(crate) async fn start(&self, command: Command) -> Result<Posted, HostError> {
        self.post(command.path()).await
    }

    /// Requests a reboot (`POST /actions/reboot`). The host checks nothing: it reboots in any update state. A missing
    /// answer may be due to the reboot.
    pub(crate) async fn reboot(&self) -> Result<Posted, HostError> {
        self.post("/actions/reboot").await
    }

    /// Reads the two settings that determine the chosen version, and no others (`GET /settings`).
    pub(crate) async fn settings(&self) -> Result<HostSettings, HostError> {
        let (status, body) = self.send(Method::GET, SETTINGS, None).await?;
        read(status, &body, HostSettings::read)
    }

    /// Makes a change pending in the transaction of this name (`PATCH /settings`). Without an answer, it may be pending.
    pub(crate) async fn stage_settings(&self, transaction: &str, change: &SettingsChange) -> Result<Posted, HostError> {
        let path = format!("/settings?tx={transaction}");
        let (status, body) = self.send(Method::PATCH, &path, Some(change.body().to_string())).await?;
        match status {
            status if status.is_success() => Ok(Posted::Accepted),
            status if status.is_client_error() => Ok(Posted::Refused(text(&body))),
            _ => Ok(Posted::Failed(text(&body))),
        }
    }

    /// Commits the transaction of this name (`POST /tx/commit_and_apply`); refused if nothing is pending under it. The
    /// files of the settings are written some time after a commit. After a failure or without an answer, they may be
    /// committed, and their files not written.
    pub(crate) async fn commit_settings(&self, transaction: &str) -> Result<Posted, HostError> {
        let path = format!("/tx/commit_and_apply?tx={transaction}");
        let (status, body) = self.send(Method::POST, &path, None).await?;
        match status {
            status if status.is_success() => Ok(Posted::Accepted),
            StatusCode::UNPROCESSABLE_ENTITY => Ok(Posted::Refused(text(&body))),
            _ => Ok(Posted::Failed(text(&body))),
        }
    }

    async fn post(&self, path: &str) -> Result<Posted, HostError> {
        let (status, body) = self.send(Method::POST, path, None).await?;
        match status {
            status if status.is_success() => Ok(Posted::Accepted),
            StatusCode::LOCKED => Ok(Posted::Busy),
            StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(Posted::Refused(text(&body))),
            StatusCode::INTERNAL_SERVER_ERROR => Ok(Posted::Failed(text(&body))),
            _ => Err(bad(status, &body)),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: Option<String>,
    ) -> Result<(StatusCode, Vec<u8>), HostError> {
        tracing::debug!(%method, path, "calling the host");
        let mut request = self.http.request(method, format!("http://localhost{path}"));
        if let Some(content) = content {
            request = request.header(CONTENT_TYPE, "application/json").body(content);
        }
        let mut response = request.send().await.map_err(|error| self.classify(error))?;
        let status = response.status();
        let mut body = CutJson::new(LONGEST_STRING);
        let mut read = 0;
        while let Some(chunk) = response.chunk().await.map_err(|error| self.classify(error))? {
            chunk.iter().for_each(|byte| body.push(*byte));
            read += chunk.len();
            if body.kept.len() > LONGEST_BODY || read > LONGEST_ANSWER {
                return Err(bad(status, format!("an answer of more than {read} bytes").as_bytes()));
            }
        }
        Ok((status, body.kept))
    }

    fn classify(&self, error: reqwest::Error) -> HostError {
        use std::io::ErrorKind;
        if error.is_timeout() {
            return HostError::Timeout(error);
        }
        if !error.is_connect() {
            return HostError::Cut(error);
        }
        // Which error a directory yields depends on its permissions.
        if self.socket.is_dir() {
            return HostError::SocketIsDirectory(error);
        }
        match io_kind(&error) {
            Some(ErrorKind::NotFound) => HostError::SocketMissing(error),
            Some(ErrorKind::ConnectionRefused) => HostError::ConnectionRefused(error),
            Some(ErrorKind::PermissionDenied) => HostError::PermissionDenied(error),
            _ => HostError::Connect(error),
        }
    }
}

/// JSON as it arrives, with the ends of long strings left out, so that it stays JSON and needs little memory.
#[derive(Debug)]
struct CutJson {
    kept: Vec<u8>,
    longest: usize,
    /// Bytes kept of the string that contains the next byte.
    string: Option<usize>,
    /// True if the next byte belongs to an escape.
    escaped: bool,
    /// True if the rest of the string is left out.
    cut: bool,
}

impl CutJson {
    const fn new(longest: usize) -> Self {
        Self { kept: Vec::new(), longest, string: None, escaped: false, cut: false }
    }

    fn push(&mut self, byte: u8) {
        let Some(length) = self.string else {
            self.string = (byte == b'"').then_some(0);
            self.kept.push(byte);
            return;
        };
        let escape = self.escaped;
        self.escaped = byte == b'\\' && !escape;
        if byte == b'"' && !escape {
            (self.string, self.cut) = (None, false);
            self.kept.push(byte);
            return;
        }
        // Never within a character or an escape: neither continues with a space or a punctuation mark.
        let between = !escape && byte != b'\\' && (byte == b' ' || byte.is_ascii_punctuation());
        self.cut = self.cut || (length >= self.longest && between);
        if !self.cut {
            self.string = Some(length + 1);
            self.kept.push(byte);
        }
    }
}

/// Reads the answer to a GET.
fn read<T>(status: StatusCode, body: &[u8], read: fn(&Value) -> Option<T>) -> Result<T, HostError> {
    let value = serde_json::from_slice(body).ok().filter(|_| status == StatusCode::OK);
    value.and_then(|value| read(&value)).ok_or_else(|| bad(status, body))
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim().chars().take(512).collect()
}

fn bad(status: StatusCode, body: &[u8]) -> HostError {
    HostError::BadAnswer { status: status.as_u16(), text: text(body) }
}

fn io_kind(error: &reqwest::Error) -> Option<std::io::ErrorKind> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        source = inner.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_json(text: &str) -> String {
        let mut body = CutJson::new(4);
        text.bytes().for_each(|byte| body.push(byte));
        String::from_utf8(body.kept).unwrap()
    }

    #[tokio::test]
    async fn directory_in_place_of_socket_is_dead_with_a_reason_of_its_own() {
        let host = HostClient::new(&std::env::temp_dir()).unwrap();
        let error = host.os().await.unwrap_err();
        assert_eq!((error.reason(), error.socket_is_dead()), ("SocketIsDirectory", true), "{error:?}");
    }

    #[test]
    fn long_strings_in_response_are_truncated_to_valid_json() {
        for (text, short) in [
            (r#"{"a":"12 45 78","b":[1,null]}"#, r#"{"a":"12 45","b":[1,null]}"#),
            (r#"{"a":"1234 \" \\","b":"x"}"#, r#"{"a":"1234","b":"x"}"#),
            (r#"{"a":"12\"4\n\u00e4/x\"y"}"#, r#"{"a":"12\"4\n\u00e4"}"#),
            (r#"{"a":"\ud83d\ude00 more"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (r#"{"a":"äöü€ more"}"#, r#"{"a":"äöü€"}"#),
            (r#"{"a":"nowheretocut"}"#, r#"{"a":"nowheretocut"}"#),
            ("[]", "[]"),
            ("", ""),
        ] {
            assert_eq!(cut_json(text), short);
            assert!(text.is_empty() || serde_json::from_str::<Value>(short).is_ok(), "{short}");
        }
    }
}
