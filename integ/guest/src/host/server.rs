//! HTTP/1.1 over the Unix socket, as the host's API server implements it.
//!
//! Written on the bare socket, because it has to do what a regular server never does: truncated responses, connections
//! dropped at a chosen moment, heads without a content type.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::machine::Power;

use super::api::{self, Request, Response, Then};
use super::core::Core;
use super::faults::Transport;
use super::log::{EventKind, ShutdownBy};
use super::power::Order;

/// Longest request head accepted, in bytes.
const HEAD_LIMIT: usize = 128 * 1024;

/// The listening server. Dropping it does not end it: call [`Server::stop`].
#[derive(Debug)]
pub(super) struct Server(JoinHandle<()>);

/// End of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The socket is removed.
    Clean,
    /// A socket without a listener is left behind.
    Killed,
}

impl Server {
    /// Binds the socket, always as a new inode, and serves.
    pub(super) fn start(core: Arc<Core>) -> anyhow::Result<Self> {
        let socket = &core.options.socket;
        // Bound under another name and renamed over the old one: a file system may reuse a removed file's inode number.
        let fresh = socket.with_file_name(".api.new");
        remove(&fresh)?;
        let listener = UnixListener::bind(&fresh).with_context(|| format!("binding {}", fresh.display()))?;
        if let Some(hardware) = &core.hardware {
            hardware.admit_group(&fresh)?;
        }
        std::fs::rename(&fresh, socket).with_context(|| format!("moving the socket to {}", socket.display()))?;
        remove(&socket.with_file_name(".api.old"))?;
        Ok(Self(tokio::spawn(serve(listener, core))))
    }

    /// Ends the server and all its connections.
    pub(super) async fn stop(self, core: &Core, how: Stop) {
        if how == Stop::Clean {
            let socket = &core.options.socket;
            // Kept under another name until there is a new one, so that the new one cannot have the same inode number.
            if let Err(error) = std::fs::rename(socket, socket.with_file_name(".api.old")) {
                tracing::warn!(%error, host = core.options.name, "the API socket could not be removed");
            }
        }
        self.0.abort();
        // Only the end of the task is awaited; it was aborted.
        let _ = self.0.await;
    }

    pub(super) fn abort(&self) {
        self.0.abort();
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

async fn serve(listener: UnixListener, core: Arc<Core>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                match accepted {
                    Ok((stream, _)) if core.lock().script.connection() => drop(stream),
                    Ok((stream, _)) => {
                        connections.spawn(connection(stream, core.clone()));
                    }
                    Err(error) => tracing::warn!(%error, host = core.options.name, "accepting a connection"),
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one client's connection until either side ends it.
async fn connection(mut stream: UnixStream, core: Arc<Core>) {
    let mut buffer = Vec::new();
    let mut first = true;
    loop {
        match read_request(&mut stream, &mut buffer, core.options.head_timeout, first).await {
            Ok(Some(head)) => {
                first = false;
                if !exchange(&mut stream, &core, head).await {
                    return;
                }
            }
            Ok(None) => return,
            Err(status) => {
                let reply = encode(&Response::error(status, ""), false, true);
                // The client may be gone.
                let _ = stream.write_all(&reply).await;
                return;
            }
        }
    }
}

struct Incoming {
    request: Request,
    keep_alive: bool,
    http_1_1: bool,
}

/// Answers one request. Returns true if the connection stays open.
async fn exchange(stream: &mut UnixStream, core: &Arc<Core>, incoming: Incoming) -> bool {
    let Incoming { request, keep_alive, http_1_1 } = incoming;
    let turn = core.turn.lock().await;
    if core.machine.borrow().power == Power::Down {
        return false;
    }
    let fault = core.lock().script.request(&request.method, &request.target);
    if let Some(Transport::Slow(delay)) = fault {
        tokio::time::sleep(delay).await;
    }
    let (mut response, then) = match &fault {
        Some(Transport::LostBefore | Transport::HeldBefore) => (None, Then::Nothing),
        Some(Transport::Status(status, body)) => (Some(Response::error(*status, body.as_str())), Then::Nothing),
        _ => {
            let (response, then) = api::answer(core, &request);
            let kept = core.keep(&core.lock());
            (Some(kept.map_or_else(|error| Response::error(500, error), |()| response)), then)
        }
    };
    match &fault {
        Some(Transport::LostAfter | Transport::HeldAfter) => response = None,
        Some(Transport::StatusAfter(status, body)) => response = Some(Response::error(*status, body.as_str())),
        Some(Transport::Garbage) => {
            response = Some(Response {
                status: 200,
                content_type: Some("application/json"),
                body: b"{\"update_state\":\"Rea\xff\x00<html>".to_vec(),
            });
        }
        _ => {}
    }
    if matches!(then, Then::Reboot { reply_cut: true }) {
        response = None;
    }
    let mut reply = response.as_ref().map(|response| encode(response, keep_alive, http_1_1));
    let mut status = response.as_ref().map(|response| response.status);
    if let (Some(Transport::CutReply), Some(reply)) = (&fault, &mut reply) {
        // Within the status line when there is no body: the caller learns nothing either way.
        let body = response.as_ref().map_or(0, |response| response.body.len());
        reply.truncate(if body > 1 { reply.len() - body / 2 } else { 10 });
        status = None;
    }
    core.note(EventKind::Call {
        method: request.method,
        path: request.target,
        status,
        body: String::from_utf8_lossy(&request.body).into_owned(),
    });
    let reboot = match then {
        Then::Nothing => false,
        Then::CarryOut(job) => {
            core.carry_out(job);
            false
        }
        Then::Reboot { .. } => true,
    };
    let written = match reply {
        Some(reply) => stream.write_all(&reply).await.is_ok(),
        None => false,
    };
    if reboot {
        if core.hardware.is_some() {
            // The machine's power is not in this process, which notes what it knows of it.
            core.note(EventKind::ShutdownOrdered { by: ShutdownBy::Api });
        }
        // After the response, so that an instant machine does not always lose it.
        let _ = core.orders.send(Order::Reboot(ShutdownBy::Api));
    } else if fault == Some(Transport::RestartAfter) {
        let (done, _) = oneshot::channel();
        let _ = core.orders.send(Order::RestartApi(Stop::Killed, done));
    }
    drop(turn);
    if matches!(fault, Some(Transport::HeldBefore | Transport::HeldAfter)) {
        // Only the end of the connection is awaited.
        let _ = stream.read_u8().await;
        return false;
    }
    written && status.is_some() && keep_alive
}

/// Reads one request. `None`: the client is gone, or was silent for too long after its `first` one. An error is the
/// status to end with.
async fn read_request(
    stream: &mut UnixStream,
    buffer: &mut Vec<u8>,
    head_timeout: Duration,
    first: bool,
) -> Result<Option<Incoming>, u16> {
    let deadline = Instant::now() + head_timeout;
    let (mut incoming, framing, length) = loop {
        if let Some(parsed) = parse_head(buffer)? {
            break parsed;
        }
        match tokio::time::timeout_at(deadline, stream.read_buf(buffer)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Ok(None),
            Err(_) if buffer.is_empty() && !first => return Ok(None),
            Err(_) => return Err(408),
        }
    };
    buffer.drain(..length);
    if let Framing::Length(length) = framing {
        incoming.request.announced = Some(length);
    }
    loop {
        if let Some((body, taken)) = framing.body(buffer)? {
            buffer.drain(..taken);
            incoming.request.body = body;
            return Ok(Some(incoming));
        }
        if incoming.request.needs_no_body() {
            // The rest of the connection is not a request.
            incoming.keep_alive = false;
            return Ok(Some(incoming));
        }
        match stream.read_buf(buffer).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Ok(None),
        }
    }
}

/// Framing of a body.
enum Framing {
    Length(usize),
    Chunked,
}

impl Framing {
    /// Returns the body and the number of bytes that it took of the buffer; `None` while it is incomplete.
    fn body(&self, buffer: &[u8]) -> Result<Option<(Vec<u8>, usize)>, u16> {
        match self {
            Self::Length(length) => Ok(buffer.get(..*length).map(|body| (body.to_vec(), *length))),
            Self::Chunked => {
                let (mut body, mut at) = (Vec::new(), 0);
                loop {
                    let rest = buffer.get(at..).unwrap_or_default();
                    let Ok(httparse::Status::Complete((head, size))) = httparse::parse_chunk_size(rest) else {
                        return if httparse::parse_chunk_size(rest).is_err() { Err(400) } else { Ok(None) };
                    };
                    let size = usize::try_from(size).map_err(|_| 413_u16)?;
                    // Clients of this API send no trailers.
                    let Some(chunk) = rest.get(head..head + size + 2) else { return Ok(None) };
                    body.extend_from_slice(chunk.get(..size).unwrap_or_default());
                    at += head + size + 2;
                    if size == 0 {
                        return Ok(Some((body, at)));
                    }
                }
            }
        }
    }
}

/// Returns the head, the framing of its body, and its length in bytes; `None` while it is incomplete.
fn parse_head(buffer: &[u8]) -> Result<Option<(Incoming, Framing, usize)>, u16> {
    let mut headers = [httparse::EMPTY_HEADER; 96];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if buffer.len() > HEAD_LIMIT => return Err(431),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(400),
    };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok().map(str::trim)
    };
    let framing = if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        Framing::Chunked
    } else {
        Framing::Length(header("content-length").map_or(Ok(0), str::parse).map_err(|_| 400_u16)?)
    };
    let http_1_1 = head.version == Some(1);
    let keep_alive = match header("connection").map(str::to_ascii_lowercase) {
        Some(value) if value.contains("close") => false,
        Some(value) if value.contains("keep-alive") => true,
        _ => http_1_1,
    };
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        content_type: header("content-type").map(str::to_owned),
        body: Vec::new(),
        announced: None,
    };
    Ok(Some((Incoming { request, keep_alive, http_1_1 }, framing, length)))
}

fn encode(response: &Response, keep_alive: bool, http_1_1: bool) -> Vec<u8> {
    let reason = match response.status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        404 => "Not Found",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Payload Too Large",
        422 => "Unprocessable Entity",
        423 => "Locked",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "",
    };
    let mut head = format!("HTTP/1.{} {} {reason}\r\n", u8::from(http_1_1), response.status);
    if response.status != 204 {
        head += &format!("content-length: {}\r\n", response.body.len());
    }
    match (keep_alive, http_1_1) {
        (false, true) => head += "connection: close\r\n",
        (true, false) => head += "connection: keep-alive\r\n",
        _ => {}
    }
    if let Some(content_type) = response.content_type {
        head += &format!("content-type: {content_type}\r\n");
    }
    head += &format!("date: {}\r\n\r\n", Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT"));
    let mut reply = head.into_bytes();
    reply.extend_from_slice(&response.body);
    reply
}
