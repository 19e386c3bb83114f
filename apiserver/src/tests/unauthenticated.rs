//! Connections with and without an authenticated agent, byte by byte, as a regular client would never use them.

use std::io::{Read as _, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tracing_subscriber::EnvFilter;

use super::*;

/// A connection. Its calls block, so these tests give the other parts separate threads.
struct Wire(StreamOwned<ClientConnection, TcpStream>);

impl Wire {
    fn open(server: &Server) -> Self {
        let certificate = std::fs::read(server.directory.0.join("tls.crt")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&certificate).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        let tcp = TcpStream::connect(server.api).unwrap();
        tcp.set_read_timeout(Some(DEADLINE)).unwrap();
        Self(StreamOwned::new(tls, tcp))
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Sends a whole request without a body.
    fn ask(&mut self, line: &str, token: &str) {
        self.send(&format!("{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"));
    }

    /// The same; returns the status of its answer.
    fn answered(&mut self, line: &str, token: &str) -> u16 {
        self.ask(line, token);
        self.answer().0
    }

    /// Returns the status and the body of the next answer with a length.
    fn answer(&mut self) -> (u16, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (head[9..12].parse().unwrap(), String::from_utf8(body).unwrap())
    }

    /// Waits for the end of the connection, with or without TLS's close_notify.
    fn until_closed(mut self) {
        let mut rest = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut rest) {
            use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
            assert!([ConnectionReset, UnexpectedEof].contains(&error.kind()), "it stays: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closes_after_rejected_client_and_stays_open_for_agent() {
    let server = Server::start(&cluster()).await;
    for (line, token, status) in [
        ("GET /v1/nodes/a/shadow", "garbage", 401),
        ("GET /v1/nodes/a/shadow", "agent-b", 403),
        ("GET /v1/nodes/a/shadow/watch", "controller", 403),
        ("PUT /v1/nodes/a/shadow/status", "garbage", 401),
        ("GET /", "agent-a", 404),
        ("DELETE /v1/nodes/a/shadow", "agent-a", 405),
    ] {
        let mut wire = Wire::open(&server);
        assert_eq!(wire.answered(line, token), status, "{line}");
        // It may not be open any more.
        let _ = wire.0.write_all(b"GET /v1/nodes/a/sha");
        wire.until_closed();
    }

    let mut wire = Wire::open(&server);
    assert_eq!(wire.answered("PUT /v1/nodes/a/shadow/status", "agent-a"), 428);
    assert_eq!(wire.answered("GET /v1/nodes/a/shadow?fresh=maybe", "agent-a"), 400);
    while wire.answered("GET /v1/nodes/a/shadow?fresh=true", "agent-a") != 429 {}
    assert_eq!(wire.answered("GET /v1/nodes/a/shadow", "agent-a"), 200, "all on one connection");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_http_is_counted_and_ends_its_connection() {
    let server = Server::start(&cluster()).await;
    for text in ["nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let mut wire = Wire::open(&server);
        wire.send(text);
        wire.until_closed();
    }
    plain_answer(&server, "nonsense\r\n\r\n");
    let counted = "\nbrupop_apiserver_malformed_requests_total 3\n";
    server.until_plain("/metrics", |(_, metrics)| metrics.contains(counted)).await;
    server.stop().await;
}

/// A log that is kept.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn library_logs_no_line_about_what_is_not_http() {
    let log = Log::default();
    let writer = log.clone();
    let filter = EnvFilter::new(models::log::without_malformed_requests("info,actix_server=warn"));
    // That of all tests: the server has threads of its own.
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    subscriber.with_writer(move || writer.clone()).try_init().unwrap();

    let server = Server::start(&cluster()).await;
    let mut wire = Wire::open(&server);
    wire.send("nonsense\r\n\r\n");
    wire.until_closed();
    plain_answer(&server, "nonsense\r\n\r\n");
    server.stop().await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("malformed request") && !log.contains("actix_http::h1::dispatcher"), "{log}");
}

/// Sends this to the plain port. Returns all that is sent until the end of the connection.
fn plain_answer(server: &Server, text: &str) -> String {
    let mut tcp = TcpStream::connect(server.plain).unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    tcp.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_port_ends_each_connection_after_its_answer() {
    let server = Server::start(&cluster()).await;
    let answer = plain_answer(&server, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.to_lowercase().contains("connection: close"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_port_ends_a_connection_although_the_body_of_its_request_does_not_end() {
    let server = Server::limited(&cluster(), Limits { plain: Duration::from_secs(2), ..limits() }).await;
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = plain_answer(&server, &format!("{head}5\r\nbod"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_connection_times_out_and_agent_connection_stays_open() {
    let cluster = cluster();
    let server = Server::limited(&cluster, Limits { unauthenticated: Duration::from_secs(2), ..limits() }).await;
    let mut lines = Lines::open(&server, "agent-a").await;
    lines.shadow().await;
    let mut agent = Wire::open(&server);
    assert_eq!(agent.answered("GET /v1/nodes/a/shadow", "agent-a"), 200);

    // The answer closes the connection, but not before all of the body has come.
    let mut other = Wire::open(&server);
    other.send(
        "PUT /v1/nodes/a/shadow/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer garbage\r\n\
         Transfer-Encoding: chunked\r\n\r\n5\r\n{\"sta",
    );
    assert_eq!(other.answer().0, 401);
    other.until_closed();

    assert_eq!(agent.answered("GET /v1/nodes/a/shadow", "agent-a"), 200);
    cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(2));
    assert_eq!(lines.shadow().await.metadata.generation, 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_report_body_times_out() {
    let server = Server::limited(&cluster(), Limits { body: Duration::from_millis(100), ..limits() }).await;
    let mut wire = Wire::open(&server);
    wire.send(
        "PUT /v1/nodes/a/shadow/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer agent-a\r\n\
         If-Match: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"state\":",
    );
    let (status, body) = wire.answer();
    assert_eq!(status, 408);
    assert!(body.contains("urn:brupop:problem:slow-request"), "{body}");
    wire.until_closed();
    server.stop().await;
}
