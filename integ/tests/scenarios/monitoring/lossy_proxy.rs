//! A proxy in front of the API server that can lose responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use integ::control_plane::ControlPlane;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The running proxy. Dropping it ends it.
pub(super) struct LossyProxy {
    pub(super) url: String,
    /// True while every response is lost.
    loses: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LossyProxy {
    pub(super) async fn start(control_plane: &ControlPlane) -> anyhow::Result<Self> {
        let file = |name: &str| control_plane.dir().join(name);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.crt"))?)?;
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let chain = vec![CertificateDer::from_pem_file(file("apiserver.crt"))?];
        let key = PrivateKeyDer::from_pem_file(file("apiserver.key"))?;
        let server = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        let (acceptor, connector) = (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        let upstream = control_plane.url().strip_prefix("https://").context("the API server has TLS")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let loses = Arc::<AtomicBool>::default();
        let of_task = loses.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, connector) = (acceptor.clone(), connector.clone());
                let (loses, upstream) = (of_task.clone(), upstream.clone());
                tokio::spawn(async move { serve(stream, acceptor, connector, &upstream, &loses).await });
            }
        });
        Ok(Self { url, loses, task })
    }

    /// Loses every response, or none any more.
    pub(super) fn drop_responses(&self, all: bool) {
        self.loses.store(all, Ordering::Relaxed);
    }
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    upstream: &str,
    loses: &AtomicBool,
) -> anyhow::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(acceptor.accept(stream).await?);
    let name = ServerName::try_from("127.0.0.1")?;
    let server = connector.connect(name, TcpStream::connect(upstream).await?).await?;
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let requests = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let answers = async {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from_server.read(&mut chunk).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            if !loses.load(Ordering::Relaxed) {
                to_client.write_all(&chunk[..length]).await?;
                to_client.flush().await?;
            }
        }
    };
    tokio::try_join!(requests, answers)?;
    Ok(())
}
