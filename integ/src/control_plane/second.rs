//! A second API server over the same etcd that can be kept behind: it does not learn of changes of definitions, or of
//! admission policies either, while it is held. So several API servers of a cluster disagree for a moment during every
//! change of a definition.

use std::path::Path;
use std::sync::Arc;

use kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::process::Process;
use super::settings::{self, Ports};
use super::{ControlPlane, PATIENCE, start_apiserver};

/// Texts in the requests of the connections on which an API server watches the definitions, and the policies. Each
/// resource has a connection of its own.
const DEFINITIONS: &[u8] = b"apiextensions.k8s.io/customresourcedefinitions";
const POLICIES: &[u8] = b"/registry/validatingadmissionpolicies";

/// The changes that an API server does not learn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behind {
    /// None: it is not behind.
    Nothing,
    /// Changes of definitions.
    Definitions,
    /// Changes of definitions and of admission policies.
    Policies,
}

/// Socket of the proxy in front of etcd.
const SOCKET: &str = "etcd-second.sock";

/// A second API server. Dropping it ends it.
pub struct SecondApiServer {
    _process: Process,
    client: Client,
    held: watch::Sender<Behind>,
    _proxy: JoinSet<()>,
}

impl SecondApiServer {
    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Keeps it behind, or ends that.
    pub fn hold(&self, behind: Behind) {
        self.held.send_replace(behind);
    }
}

impl ControlPlane {
    /// Starts a second API server and returns when it is ready.
    pub async fn second_apiserver(&self) -> anyhow::Result<SecondApiServer> {
        let socket = self.dir().join(SOCKET);
        let (held, _) = watch::channel(Behind::Nothing);
        let listener = UnixListener::bind(&socket)?;
        let etcd = self.dir().join(settings::ETCD_SOCKET);
        let mut proxy = JoinSet::new();
        proxy.spawn(serve(listener, etcd, held.subscribe()));

        let ports = Ports::choose()?;
        let arguments: Vec<String> = self.apiserver_arguments.iter().map(|a| of_second(a, &socket, ports)).collect();
        let folder = self.dir().join("second");
        std::fs::create_dir(&folder)?;
        let mut process = start_apiserver(&self.binaries, &arguments, &folder)?;
        let probes = super::Probes::new(self.dir(), &self.pki, ports)?;
        process.ready(PATIENCE, async || probes.apiserver().await).await?;
        // It accepts the same certificates and tokens as the first one.
        let mut config = self.client_config();
        config.cluster_url = format!("https://127.0.0.1:{}", ports.apiserver).parse()?;
        Ok(SecondApiServer { _process: process, client: Client::try_from(config)?, held, _proxy: proxy })
    }
}

/// An argument of the first API server, changed for the second.
fn of_second(argument: &str, socket: &Path, ports: Ports) -> String {
    match argument.split_once('=') {
        Some((name @ "--etcd-servers", _)) => format!("{name}=unix://{}", socket.display()),
        Some((name @ "--secure-port", _)) => format!("{name}={}", ports.apiserver),
        // One file has one writer.
        Some((name @ "--audit-log-path", path)) => format!("{name}={path}-second"),
        _ => argument.to_owned(),
    }
}

async fn serve(listener: UnixListener, etcd: std::path::PathBuf, held: watch::Receiver<Behind>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = UnixStream::connect(&etcd).await else { continue };
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        let concerned = Arc::new(watch::Sender::new(None));
        let mut held = held.clone();
        let sees = Arc::clone(&concerned);
        connections.spawn(async move {
            let requests = requests(from_client, to_server, &sees);
            let responses = responses(from_server, to_client, concerned.subscribe(), &mut held);
            tokio::select! { () = requests => {}, () = responses => {} }
        });
    }
}

/// Forwards requests, and notices those about definitions and policies.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, concerned: &watch::Sender<Option<Behind>>) {
    let (mut buffer, mut seen) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let sent = &buffer[..length];
        seen.extend_from_slice(sent);
        for (text, kept_from) in [(DEFINITIONS, Behind::Definitions), (POLICIES, Behind::Policies)] {
            if seen.windows(text.len()).any(|window| window == text) {
                concerned.send_replace(Some(kept_from));
            }
        }
        let kept = seen.len().min(DEFINITIONS.len() - 1);
        seen.drain(..seen.len() - kept);
        if to.write_all(sent).await.is_err() {
            return;
        }
    }
}

/// Forwards responses; those about definitions and policies only while they are not held.
async fn responses(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    concerned: watch::Receiver<Option<Behind>>,
    held: &mut watch::Receiver<Behind>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let kept_from = *concerned.borrow();
        if let Some(kept_from) = kept_from
            && held.wait_for(|held| *held < kept_from).await.is_err()
        {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
