//! The volumes of a pod that runs as processes: ConfigMaps, Secrets, projected tokens, empty directories and host
//! paths.
//!
//! Content from the API is written as the real kubelet writes it: into a new directory with a time in its name, to
//! which the link `..data` is then swapped, so that a reader sees all of the old or all of the new.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIProjection, HostPathVolumeSource, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume,
};
use kube::api::PostParams;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::env::{Mounts, field};
use super::pods::PauseGate;

/// Timeout of the API calls of one attempt to mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a volume cannot be mounted yet (`FailedMount`).
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("MountVolume.SetUp failed for volume {volume:?}: {kind} {name:?} not found")]
    Missing { volume: String, kind: &'static str, name: String },
    #[error("MountVolume.SetUp failed for volume {volume:?}: references non-existent {kind} key: {key}")]
    MissingKey { volume: String, kind: &'static str, key: String },
    #[error("MountVolume.SetUp failed for volume {volume:?}: the source of {path:?} is not supported")]
    Field { volume: String, path: String },
    #[error("MountVolume.SetUp failed for volume {volume:?}: timed out waiting for {kind} {name:?}")]
    Waiting { volume: String, kind: &'static str, name: String },
    #[error("MountVolume.SetUp failed for volume {volume:?}: hostPath type check failed: {path} is not {wanted}")]
    HostPath { volume: String, path: String, wanted: String },
    #[error("MountVolume.SetUp failed for volume {volume:?}: failed to fetch token: {source}")]
    Token { volume: String, source: kube::Error },
    #[error("MountVolume.SetUp failed for volume {volume:?}: {source}")]
    Io { volume: String, source: io::Error },
}

/// Content of a volume: each file's path, bytes and mode.
type Payload = BTreeMap<String, (Vec<u8>, u32)>;

/// The contents of a ConfigMap or a Secret.
type Data = BTreeMap<String, Vec<u8>>;

/// One ConfigMap or Secret as last seen.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    NotYet,
    Absent,
    Present(Data),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

/// A token and the time of its renewal.
#[derive(Clone, Debug)]
struct Token {
    value: String,
    renew_at: Timestamp,
}

/// The volumes of one pod.
pub(crate) struct Volumes {
    client: Client,
    pod: Pod,
    directory: PathBuf,
    machine_root: PathBuf,
    pod_ip: Ipv4Addr,
    seen: Mutex<BTreeMap<(Kind, String), watch::Receiver<Seen>>>,
    watches: Mutex<JoinSet<()>>,
    changed: Arc<Notify>,
    written: Mutex<BTreeMap<String, Payload>>,
    tokens: Mutex<BTreeMap<(String, String), Token>>,
}

impl Volumes {
    pub(crate) fn new(client: Client, pod: Pod, directory: PathBuf, machine_root: PathBuf, pod_ip: Ipv4Addr) -> Self {
        Self {
            client,
            pod,
            directory,
            machine_root,
            pod_ip,
            seen: Mutex::default(),
            watches: Mutex::default(),
            changed: Arc::default(),
            written: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Volume> {
        self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
    }

    fn path(&self, volume: &str) -> PathBuf {
        self.directory.join(volume)
    }

    /// The real paths of the mounts of `container`, in addition to those that every container has.
    pub(crate) fn mounts(&self, container: &Container, implicit: &[(String, PathBuf)]) -> Mounts {
        let mounts = container.volume_mounts.iter().flatten();
        let own = mounts.map(|mount| (mount.mount_path.clone(), self.path(&mount.name)));
        Mounts::new(own.chain(implicit.iter().cloned()).collect())
    }

    /// Creates all volumes. May be called again until it succeeds.
    pub(crate) async fn mount(&self) -> Result<(), MountError> {
        for volume in self.all() {
            let failed = |source| MountError::Io { volume: volume.name.clone(), source };
            let path = self.path(&volume.name);
            if let Some(host) = &volume.host_path {
                self.mount_host_path(&volume.name, host, &path)?;
            } else {
                fs::create_dir_all(&path).map_err(failed)?;
                self.write(volume).await?;
            }
        }
        Ok(())
    }

    /// Links the host's files again: a container that starts gets the current file at each path, also where an earlier
    /// container of the pod held on to an inode that is gone.
    pub(crate) fn bind_host_paths(&self) -> Result<(), MountError> {
        for volume in self.all() {
            if let Some(host) = &volume.host_path {
                self.mount_host_path(&volume.name, host, &self.path(&volume.name))?;
            }
        }
        Ok(())
    }

    /// Updates the volumes for as long as the pod lives. Like the real kubelet, it does so with a delay, at most `lag`
    /// and different each time, and does nothing while it is paused.
    pub(crate) async fn keep_current(&self, lag: Duration, gate: &PauseGate) {
        loop {
            let due = self.tokens.lock().values().map(|t| t.renew_at).min();
            let wait = due.map_or(Duration::from_secs(3600), |due| {
                Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default()
            });
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep(wait) => {}
            }
            sleep(lag.mul_f64(rand::random())).await;
            gate.open().await;
            for volume in self.all() {
                if volume.host_path.is_some() {
                    continue;
                }
                if let Err(error) = self.write(volume).await {
                    // As with the real kubelet, the old contents stay until the new ones are complete.
                    tracing::debug!(error = %error, "a volume keeps its old contents");
                    self.changed.notify_one();
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    fn mount_host_path(&self, volume: &str, host: &HostPathVolumeSource, path: &Path) -> Result<(), MountError> {
        let wanted = host.type_.as_deref().unwrap_or_default();
        let real = self.machine_root.join(host.path.trim_start_matches('/'));
        let failed = |source| MountError::Io { volume: volume.to_owned(), source };
        match wanted {
            "DirectoryOrCreate" => fs::create_dir_all(&real).map_err(failed)?,
            "FileOrCreate" if !real.exists() => {
                fs::write(&real, "").map_err(failed)?;
            }
            _ => {}
        }
        let found = fs::metadata(&real).ok();
        let is_directory = found.as_ref().is_some_and(fs::Metadata::is_dir);
        let fits = match wanted {
            "" => true,
            "Directory" | "DirectoryOrCreate" => is_directory,
            "File" | "FileOrCreate" => found.as_ref().is_some_and(fs::Metadata::is_file),
            "Socket" => found.as_ref().is_some_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type())),
            _ => found.is_some(),
        };
        if !fits {
            let wanted = wanted.to_owned();
            return Err(MountError::HostPath { volume: volume.to_owned(), path: host.path.clone(), wanted });
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        if found.is_some() && !is_directory {
            // A bind mount of a file holds on to its inode. So does a hard link: a socket that is created again on the
            // host is not seen here.
            fs::hard_link(&real, path).map_err(failed)
        } else {
            symlink(&real, path).map_err(failed)
        }
    }

    async fn write(&self, volume: &Volume) -> Result<(), MountError> {
        let Some(payload) = self.payload(volume).await? else { return Ok(()) };
        if self.written.lock().get(&volume.name) == Some(&payload) {
            return Ok(());
        }
        write_atomically(&self.path(&volume.name), &payload)
            .map_err(|source| MountError::Io { volume: volume.name.clone(), source })?;
        self.written.lock().insert(volume.name.clone(), payload);
        Ok(())
    }

    /// The content of `volume`; `None` if it is an ordinary directory.
    async fn payload(&self, volume: &Volume) -> Result<Option<Payload>, MountError> {
        let name = volume.name.as_str();
        let mut payload = Payload::new();
        if let Some(source) = &volume.config_map {
            let object = Object { volume: name, kind: Kind::ConfigMap, name: &source.name, optional: source.optional };
            let data = self.read(&object).await?;
            place(&mut payload, &object, data, source.items.as_deref(), source.default_mode)?;
        } else if let Some(source) = &volume.secret {
            let secret = source.secret_name.as_deref().unwrap_or_default();
            let object = Object { volume: name, kind: Kind::Secret, name: secret, optional: source.optional };
            let data = self.read(&object).await?;
            place(&mut payload, &object, data, source.items.as_deref(), source.default_mode)?;
        } else if let Some(source) = &volume.projected {
            for part in source.sources.iter().flatten() {
                if let Some(from) = &part.config_map {
                    let object =
                        Object { volume: name, kind: Kind::ConfigMap, name: &from.name, optional: from.optional };
                    let data = self.read(&object).await?;
                    place(&mut payload, &object, data, from.items.as_deref(), source.default_mode)?;
                }
                if let Some(from) = &part.secret {
                    let object = Object { volume: name, kind: Kind::Secret, name: &from.name, optional: from.optional };
                    let data = self.read(&object).await?;
                    place(&mut payload, &object, data, from.items.as_deref(), source.default_mode)?;
                }
                if let Some(from) = &part.downward_api {
                    payload.extend(self.fields(name, from, source.default_mode)?);
                }
                if let Some(from) = &part.service_account_token {
                    let token = self.token(name, from).await?;
                    payload.insert(from.path.clone(), (token.into_bytes(), 0o600));
                }
            }
        } else {
            return Ok(None);
        }
        Ok(Some(payload))
    }

    fn fields(&self, volume: &str, from: &DownwardAPIProjection, mode: Option<i32>) -> Result<Payload, MountError> {
        let mut payload = Payload::new();
        for item in from.items.iter().flatten() {
            let value = item.field_ref.as_ref().and_then(|of| field(&self.pod, &of.field_path, self.pod_ip));
            let unsupported = || MountError::Field { volume: volume.to_owned(), path: item.path.clone() };
            let value = value.ok_or_else(unsupported)?;
            payload.insert(item.path.clone(), (value.into_bytes(), mode_of(item.mode.or(mode))));
        }
        Ok(payload)
    }

    /// A token for the pod, requested as the node, and renewed after four fifths of its life.
    async fn token(&self, volume: &str, source: &ServiceAccountTokenProjection) -> Result<String, MountError> {
        let key = (volume.to_owned(), source.path.clone());
        let now = Timestamp::now();
        let known = self.tokens.lock().get(&key).cloned();
        match known {
            Some(known) if now < known.renew_at => return Ok(known.value),
            _ => {}
        }
        let meta = &self.pod.metadata;
        let account = self.pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
        let account = account.unwrap_or_else(|| "default".to_owned());
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: source.audience.clone().filter(|a| !a.is_empty()).map(|a| vec![a]),
                expiration_seconds: source.expiration_seconds.or(Some(3600)),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: meta.name.clone(),
                    uid: meta.uid.clone(),
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> =
            Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default());
        let answer = api
            .create_token_request(&account, &PostParams::default(), &request)
            .await
            .map_err(|source| MountError::Token { volume: volume.to_owned(), source })?;
        let status = answer.status.unwrap_or_default();
        let expires = status.expiration_timestamp.map_or(now, |t| t.0);
        let life = expires.as_second() - now.as_second();
        let renew_at = now + jiff::SignedDuration::from_secs((life * 4 / 5).max(1));
        let value = status.token.unwrap_or_default();
        self.tokens.lock().insert(key, Token { value: value.clone(), renew_at });
        Ok(value)
    }

    /// The contents of a ConfigMap or Secret; `None` if it is optional and absent.
    async fn read(&self, object: &Object<'_>) -> Result<Option<Data>, MountError> {
        let mut seen = self.follow(object.kind, object.name);
        let (volume, kind, name) = (object.volume.to_owned(), object.kind.name(), object.name.to_owned());
        let Ok(Ok(seen)) = timeout(MOUNT_TIMEOUT, seen.wait_for(|s| *s != Seen::NotYet)).await else {
            return Err(MountError::Waiting { volume, kind, name });
        };
        match &*seen {
            Seen::Present(data) => Ok(Some(data.clone())),
            Seen::Absent | Seen::NotYet if object.optional == Some(true) => Ok(None),
            Seen::Absent | Seen::NotYet => Err(MountError::Missing { volume, kind, name }),
        }
    }

    fn follow(&self, kind: Kind, name: &str) -> watch::Receiver<Seen> {
        let mut seen = self.seen.lock();
        let entry = seen.entry((kind, name.to_owned())).or_insert_with(|| {
            let (sender, receiver) = watch::channel(Seen::NotYet);
            let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
            let (client, name, changed) = (self.client.clone(), name.to_owned(), self.changed.clone());
            let mut watches = self.watches.lock();
            match kind {
                Kind::ConfigMap => {
                    let api = Api::<ConfigMap>::namespaced(client, &namespace);
                    watches.spawn(watch_one(api, name, config_map_data, sender, changed));
                }
                Kind::Secret => {
                    let api = Api::<Secret>::namespaced(client, &namespace);
                    watches.spawn(watch_one(api, name, secret_data, sender, changed));
                }
            }
            receiver
        });
        entry.clone()
    }
}

/// A ConfigMap or Secret that a volume names.
struct Object<'a> {
    volume: &'a str,
    kind: Kind,
    name: &'a str,
    optional: Option<bool>,
}

/// Watches one object by name, which is all that the node authoriser permits a node.
async fn watch_one<K>(api: Api<K>, name: String, data: fn(&K) -> Data, seen: watch::Sender<Seen>, changed: Arc<Notify>)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api, config));
    let mut listed = Seen::Absent;
    let publish = |value: Seen| {
        let differs = seen.send_if_modified(|old| {
            let differs = *old != value;
            *old = value;
            differs
        });
        if differs {
            changed.notify_one();
        }
    };
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => listed = Seen::Absent,
            Ok(Some(watcher::Event::InitApply(object))) => listed = Seen::Present(data(&object)),
            Ok(Some(watcher::Event::InitDone)) => publish(listed.clone()),
            Ok(Some(watcher::Event::Apply(object))) => publish(Seen::Present(data(&object))),
            Ok(Some(watcher::Event::Delete(_))) => publish(Seen::Absent),
            Ok(None) => return,
            Err(error) => {
                // Right after a pod was bound the authoriser may not know yet that the node may read this.
                tracing::debug!(%error, name, "cannot follow an object yet");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

fn config_map_data(object: &ConfigMap) -> Data {
    let text = object.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}

fn secret_data(object: &Secret) -> Data {
    object.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

fn mode_of(mode: Option<i32>) -> u32 {
    mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644)
}

fn place(
    payload: &mut Payload,
    object: &Object<'_>,
    data: Option<Data>,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
) -> Result<(), MountError> {
    let Some(data) = data else { return Ok(()) };
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        payload.extend(data.into_iter().map(|(key, bytes)| (key, (bytes, mode_of(mode)))));
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => {
                payload.insert(item.path.clone(), (bytes.clone(), mode_of(item.mode.or(mode))));
            }
            None if object.optional == Some(true) => {}
            None => {
                let (volume, kind) = (object.volume.to_owned(), object.kind.name());
                return Err(MountError::MissingKey { volume, kind, key: item.key.clone() });
            }
        }
    }
    Ok(())
}

/// Writes `payload` below `directory` so that a reader sees all of the old or all of the new.
fn write_atomically(directory: &Path, payload: &Payload) -> io::Result<()> {
    const DATA: &str = "..data";
    let old = fs::read_link(directory.join(DATA)).ok();
    let name = format!("..{}", Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S.%9f"));
    let fresh = directory.join(&name);
    fs::create_dir(&fresh)?;
    for (path, (bytes, mode)) in payload {
        let file = fresh.join(path.trim_start_matches('/'));
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&file, bytes)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(*mode))?;
    }
    let next = directory.join("..data_tmp");
    let _ = fs::remove_file(&next);
    symlink(&name, &next)?;
    fs::rename(&next, directory.join(DATA))?;
    let tops: std::collections::BTreeSet<&str> =
        payload.keys().filter_map(|p| p.trim_start_matches('/').split('/').next()).collect();
    for top in &tops {
        let link = directory.join(top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(top), link)?;
        }
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let stale = name.to_str().is_some_and(|n| !n.starts_with("..") && !tops.contains(n));
        if stale {
            fs::remove_file(entry.path())?;
        }
    }
    if let Some(old) = old {
        fs::remove_dir_all(directory.join(old))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
