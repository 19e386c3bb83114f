//! A response of the API server that is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use integ::control_plane::ControlPlane;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::logs::lines;
use crate::support::{nodes, run};

/// A proxy in front of the API server that can lose responses.
pub(crate) struct LossyProxy {
    pub(crate) url: String,
    rule: Arc<Rule>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Rule {
    /// Prefix of the request whose response is lost, once.
    next: Mutex<Option<String>>,
    /// True if every response is lost.
    all: AtomicBool,
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LossyProxy {
    pub(crate) async fn start(control_plane: &ControlPlane) -> anyhow::Result<Self> {
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
        let rule = Arc::<Rule>::default();
        let of_task = rule.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, connector) = (acceptor.clone(), connector.clone());
                let (rule, upstream) = (of_task.clone(), upstream.clone());
                tokio::spawn(async move { serve(stream, acceptor, connector, &upstream, &rule).await });
            }
        });
        Ok(Self { url, rule, task })
    }

    /// Loses the response to the next request with this prefix.
    fn drop_next_response(&self, request: &str) {
        *self.rule.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.to_owned());
    }

    fn has_dropped_response(&self) -> bool {
        self.rule.next.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Loses every response, or none any more.
    pub(crate) fn drop_responses(&self, all: bool) {
        self.rule.all.store(all, Ordering::Relaxed);
    }
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    upstream: &str,
    rule: &Rule,
) -> anyhow::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(acceptor.accept(stream).await?);
    let name = ServerName::try_from("127.0.0.1")?;
    let server = connector.connect(name, TcpStream::connect(upstream).await?).await?;
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let lost = Mutex::new(false);
    let requests = async {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from_client.read(&mut chunk).await?;
            if length == 0 {
                return to_server.shutdown().await;
            }
            {
                let mut rule = rule.next.lock().unwrap_or_else(PoisonError::into_inner);
                if rule.as_ref().is_some_and(|start| chunk[..length].starts_with(start.as_bytes())) {
                    *rule = None;
                    *lost.lock().unwrap_or_else(PoisonError::into_inner) = true;
                }
            }
            to_server.write_all(&chunk[..length]).await?;
            to_server.flush().await?;
        }
    };
    let answers = async {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from_server.read(&mut chunk).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            if !*lost.lock().unwrap_or_else(PoisonError::into_inner) && !rule.all.load(Ordering::Relaxed) {
                to_client.write_all(&chunk[..length]).await?;
                to_client.flush().await?;
            }
        }
    };
    tokio::try_join!(requests, answers)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of the controller's writes"]
async fn update_continues_after_lost_api_response() -> anyhow::Result<()> {
    run(nodes(0), async |ctx| {
        let proxy = LossyProxy::start(&ctx.bed.control_plane).await?;
        ctx.bed.options.pods_api_server = Some(proxy.url.clone());
        ctx.bed.add_node("node-1").await?;
        ctx.install().await?;
        // The check before the reboot permit.
        proxy.drop_next_response("GET /api/v1/nodes/node-1");
        ctx.release();
        ctx.updated().await?;
        anyhow::ensure!(proxy.has_dropped_response(), "no answer was lost");
        let lines = lines(ctx)?;
        let lost: Vec<_> = lines.iter().filter(|line| line.contains("WARN") && line.contains("within 15s")).collect();
        anyhow::ensure!(lost.len() == 1 && lost[0].contains("node=\"node-1\""), "{lost:#?}");
        let refused = lines.iter().find(|line| line.contains("could not be read again"));
        anyhow::ensure!(refused.is_none(), "{refused:?}");
        Ok(())
    })
    .await?
    .assert_updates(1);
    Ok(())
}
