//! A minimal client of the host's API, for tests and for all clients on a host except the agent.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// A response, as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status line without its end.
    pub status_line: String,
    /// The status.
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

/// Sends one request on a new connection. A body is sent as JSON.
///
/// # Errors
/// The socket cannot be reached, or the connection ends before the response is complete.
pub async fn call(socket: &Path, method: &str, target: &str, body: Option<&str>) -> anyhow::Result<Reply> {
    let mut stream =
        UnixStream::connect(socket).await.with_context(|| format!("connecting to {}", socket.display()))?;
    send(&mut stream, method, target, body).await
}

/// Sends one request on an open connection.
///
/// # Errors
/// The connection ends before the response is complete.
pub async fn send(stream: &mut UnixStream, method: &str, target: &str, body: Option<&str>) -> anyhow::Result<Reply> {
    let mut request = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    if let Some(body) = body {
        request += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    }
    request += "\r\n";
    request += body.unwrap_or_default();
    stream.write_all(request.as_bytes()).await.context("sending the request")?;
    read(stream).await
}

/// Reads one response from a connection.
///
/// # Errors
/// The connection ends before the response is complete, or it is not HTTP.
pub async fn read(stream: &mut UnixStream) -> anyhow::Result<Reply> {
    let mut received = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        if let httparse::Status::Complete(start) = head.parse(&received).context("reading the head")? {
            let status_line = received.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let headers: BTreeMap<String, String> = head
                .headers
                .iter()
                .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
                .collect();
            let length: usize = headers.get("content-length").map_or(Ok(0), |length| length.parse())?;
            if let Some(body) = received.get(start..start + length) {
                return Ok(Reply {
                    status_line: String::from_utf8_lossy(status_line).into_owned(),
                    status: head.code.context("an answer without a status")?,
                    headers,
                    body: String::from_utf8_lossy(body).into_owned(),
                });
            }
        }
        if stream.read_buf(&mut received).await.context("reading the answer")? == 0 {
            bail!("the connection ended after {} bytes of the answer", received.len());
        }
    }
}
