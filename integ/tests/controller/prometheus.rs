//! A stand-in for Prometheus: it answers instant queries in Prometheus' format, and nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::bed::read_request;

/// The server's data, and its queries.
#[derive(Default)]
struct PrometheusState {
    /// The labels of the one series that a query returns; other queries return nothing.
    firing: BTreeMap<String, Value>,
    asked: Vec<String>,
    /// The header `Authorization` without which it answers 401.
    authorization: Option<String>,
}

/// A server that can be stopped and started again under the same address.
pub(crate) struct Prometheus {
    address: SocketAddr,
    known: Arc<Mutex<PrometheusState>>,
    /// The bound socket until it listens: connections are refused, and no other program gets the port.
    socket: Option<TcpSocket>,
    serving: Option<JoinHandle<()>>,
}

impl Prometheus {
    /// A stopped server with its own address.
    pub(crate) fn down() -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { address: socket.local_addr()?, known: Arc::default(), socket: Some(socket), serving: None })
    }

    /// The URL of the server, for the policy.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts it.
    pub(crate) fn start_serving(&mut self) -> anyhow::Result<()> {
        let listener = self.socket.take().context("it serves already")?.listen(64)?;
        let known = self.known.clone();
        self.serving = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let known = known.clone();
                tokio::spawn(async move {
                    let _ = serve(stream, &known).await;
                });
            }
        }));
        Ok(())
    }

    /// Lets the query return a series with these labels.
    pub(crate) fn fire(&self, query: &str, labels: Value) {
        lock(&self.known).firing.insert(query.to_owned(), labels);
    }

    /// Lets the query return nothing.
    pub(crate) fn stop_firing(&self, query: &str) {
        lock(&self.known).firing.remove(query);
    }

    /// Refuses queries without these credentials.
    pub(crate) fn require(&self, authorization: &str) {
        lock(&self.known).authorization = Some(authorization.to_owned());
    }

    /// Returns true if this query was ever received.
    pub(crate) fn was_queried(&self, query: &str) -> bool {
        lock(&self.known).asked.iter().any(|asked| asked == query)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

fn lock(known: &Mutex<PrometheusState>) -> MutexGuard<'_, PrometheusState> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one request on its own connection.
async fn serve(mut stream: TcpStream, known: &Mutex<PrometheusState>) -> anyhow::Result<()> {
    let Some((head, body)) = read_request(&mut stream).await else { return Ok(()) };
    let required = lock(known).authorization.as_ref().map(|value| format!("authorization: {value}"));
    let (status, answer) = if required.is_some_and(|required| head.lines().all(|line| line != required)) {
        ("401 Unauthorized", "Unauthorized\n".to_owned())
    } else if head.starts_with("POST /api/v1/query HTTP/1.1\r\n") {
        let form = reqwest::Url::parse(&format!("http://form/?{body}"))?;
        match form.query_pairs().find(|(key, _)| key == "query") {
            Some((_, query)) => ("200 OK", answer(&query, known)),
            None => (
                "400 Bad Request",
                failure("invalid parameter \"query\": unknown position: parse error: no expression found in input"),
            ),
        }
    } else {
        ("404 Not Found", "404 page not found\n".to_owned())
    };
    let length = answer.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}"
    );
    stream.write_all(reply.as_bytes()).await?;
    Ok(())
}

fn answer(query: &str, known: &Mutex<PrometheusState>) -> String {
    let mut known = lock(known);
    known.asked.push(query.to_owned());
    let now = Timestamp::now().as_millisecond() as f64 / 1000.0;
    let series = known.firing.get(query).map(|labels| json!({"metric": labels, "value": [now, "1"]}));
    let result: Vec<Value> = series.into_iter().collect();
    json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string()
}

fn failure(error: &str) -> String {
    json!({"status": "error", "errorType": "bad_data", "error": error}).to_string()
}
