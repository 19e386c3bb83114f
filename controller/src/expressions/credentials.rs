//! The credentials for Prometheus: the Secret `brupop-prometheus` as the kubelet mounts it, read for each query. No message has
//! any of its content.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use models::names::PROMETHEUS_SECRET;
use reqwest::RequestBuilder;
use reqwest::header::HeaderValue;

const TOKEN: &str = "token";
const USERNAME: &str = "username";
const PASSWORD: &str = "password";

/// The Secret.
#[derive(Default)]
pub struct Secret {
    /// The folder with its keys; `None`: the manifests of an earlier version mount none.
    pub folder: Option<PathBuf>,
    /// Namespace of the Secret.
    pub namespace: String,
}

/// The credentials of one query.
pub(super) enum Credentials {
    Absent,
    Bearer(String),
    Basic { username: String, password: String },
}

impl Secret {
    /// Returns the credentials, or the reason why the Secret has none that can be used, with what to do.
    pub(super) async fn read(&self) -> Result<Credentials, String> {
        let Some(folder) = &self.folder else { return Ok(Credentials::Absent) };
        let unreadable = |error: io::Error| format!("{self} cannot be read: {}", error.kind());
        let keys = keys(folder).await.map_err(unreadable)?;
        let has = |key: &str| keys.contains(key);
        match (has(TOKEN), has(USERNAME), has(PASSWORD)) {
            (false, false, false) if keys.is_empty() => Ok(Credentials::Absent),
            (false, false, false) => {
                Err(format!("{self} has no key {TOKEN}, and no {USERNAME} and {PASSWORD}: add the one or the others"))
            }
            (true, false, false) => {
                let token = self.text(folder, TOKEN).await?.trim().to_owned();
                match HeaderValue::try_from(&token) {
                    Ok(_) => Ok(Credentials::Bearer(token)),
                    Err(_) => Err(format!("key {TOKEN} of {self} holds no token that a header can have: correct it")),
                }
            }
            (true, ..) => Err(format!(
                "{self} has a {TOKEN}, and a {USERNAME} or {PASSWORD} besides: remove what Prometheus does not ask for"
            )),
            (false, true, true) => {
                let username = self.text(folder, USERNAME).await?;
                if username.contains(':') {
                    return Err(format!("key {USERNAME} of {self} has a colon, which ends a user name: correct it"));
                }
                Ok(Credentials::Basic { username, password: self.text(folder, PASSWORD).await? })
            }
            (false, true, false) => Err(format!("{self} has a {USERNAME} and no {PASSWORD}: add it")),
            (false, false, true) => Err(format!("{self} has a {PASSWORD} and no {USERNAME}: add it")),
        }
    }

    /// Returns the text of a key, without the end of the line that editors and `echo` add.
    async fn text(&self, folder: &Path, key: &str) -> Result<String, String> {
        let bytes = tokio::fs::read(folder.join(key))
            .await
            .map_err(|error| format!("key {key} of {self} cannot be read: {}", error.kind()))?;
        let text = String::from_utf8(bytes).unwrap_or_default();
        let text = text.trim_end_matches(['\r', '\n']);
        if text.trim().is_empty() {
            return Err(format!("key {key} of {self} is empty, or no text: correct it"));
        }
        Ok(text.to_owned())
    }

    /// Returns advice for a server that refuses a query with 401 or 403.
    pub(super) fn advice(&self, credentials: &Credentials) -> String {
        match credentials {
            Credentials::Bearer(_) => {
                format!("it refuses the {TOKEN} of {self}; correct it, or give it the right to query")
            }
            Credentials::Basic { .. } => {
                format!("it refuses the {USERNAME} and {PASSWORD} of {self}; correct them, or give them the right to query")
            }
            Credentials::Absent if self.folder.is_none() => {
                "it asks for credentials, and the controller has no --prometheus-credentials-dir; apply the manifests of this \
                 version"
                    .to_owned()
            }
            Credentials::Absent => format!(
                "it asks for credentials; write a {TOKEN}, or a {USERNAME} and {PASSWORD}, into {self}: they arrive within \
                 two minutes"
            ),
        }
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the Secret {PROMETHEUS_SECRET} in {}", self.namespace)
    }
}

impl Credentials {
    /// Adds them to a request. The headers count as sensitive, so that no library logs them.
    pub(super) fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::Absent => request,
            Self::Bearer(token) => request.bearer_auth(token),
            Self::Basic { username, password } => request.basic_auth(username, Some(password)),
        }
    }
}

/// Returns the keys of a mounted Secret: its files, without those that the kubelet keeps for itself.
async fn keys(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut files = tokio::fs::read_dir(folder).await?;
    let mut keys = BTreeSet::new();
    while let Some(file) = files.next_entry().await? {
        keys.insert(file.file_name().to_string_lossy().into_owned());
    }
    keys.retain(|key| !key.starts_with(".."));
    Ok(keys)
}
