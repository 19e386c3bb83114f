//! An admission webhook that refuses every request, or does not answer.

use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The running webhook.
pub(crate) struct Webhook {
    /// URL of the webhook.
    pub(crate) url: String,
    /// Certificate for `caBundle`.
    pub(crate) ca_bundle: String,
    task: JoinHandle<()>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Webhook {
    /// Starts a webhook that refuses with this message.
    pub(crate) async fn refusing(message: &'static str) -> anyhow::Result<Self> {
        Self::start(Some(message)).await
    }

    /// Starts a webhook that accepts requests and does not answer.
    pub(crate) async fn hanging() -> anyhow::Result<Self> {
        Self::start(None).await
    }

    async fn start(message: Option<&'static str>) -> anyhow::Result<Self> {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/evictions", listener.local_addr()?);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let Some(message) = message else {
                        let _open = stream;
                        return std::future::pending().await;
                    };
                    if let Err(error) = answer(stream, message).await {
                        eprintln!("the webhook was not asked as it should be: {error:#}");
                    }
                });
            }
        });
        Ok(Self { url, ca_bundle: STANDARD.encode(own.cert.pem()), task })
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, message: &str) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body).context("no AdmissionReview")?;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": false, "status": {"code": 403, "message": message}},
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
