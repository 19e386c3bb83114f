//! A stand-in for the web API: one shadow, its stream, and status writes with `If-Match`. TLS is real.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use models::wire::{AgentStatus, ShadowMetadata, ShadowView, WatchLine};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A fault of the next status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFault {
    /// It is stored and its answer is lost.
    ResponseLost,
    /// It is refused.
    Refused,
}

/// Condition of the web API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WebFault {
    /// No fault.
    #[default]
    None,
    /// Each connection is closed as soon as it is accepted.
    Down,
    /// Connections are accepted, and requests never answered.
    Unresponsive,
    /// Each request is refused with this status.
    Rejects(&'static str),
    /// Answers and the stream's lines are not JSON.
    InvalidJson,
    /// Each stream sends the shadow once and ends properly.
    ShortStreams,
    /// Each stream ends properly after two seconds, as when the replicas move from node to node.
    PeriodicStreamEnds,
    /// Reports are stored and their answers lost.
    ResponsesLost,
    /// The review of a token and the write of a report take 31 s each, unless the client has left: an admission webhook of the
    /// cluster hangs.
    SlowWrites,
    /// Reports are not answered. Streams go on.
    ReportsHang,
    /// Conditions are dropped from what is stored, as by a version that does not know them.
    DropsConditions,
    /// The stream has lines of types that the agent does not know.
    UnknownLines,
}

#[derive(Debug)]
struct State {
    view: Option<ShadowView>,
    stored: u32,
    writes: Vec<AgentStatus>,
    faults: Vec<WriteFault>,
    refuses: Option<fn(&AgentStatus) -> bool>,
    refused: u32,
    /// Each request, and its `Authorization`.
    tokens: Vec<(String, String)>,
    connections: u64,
    /// The number of connections that resumed the TLS session of an earlier one.
    resumed: u64,
    /// The number of the connection of each stream.
    streamed_on: Vec<u64>,
    web_fault: WebFault,
    traffic: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) url: String,
    pub(crate) ca: String,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Web {
    pub(crate) async fn start() -> Self {
        let ca_key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap();
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&leaf_key, &Issuer::new(params, ca_key)).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let tls = rustls::ServerConfig::builder().with_no_client_auth();
        let tls = tls.with_single_cert(vec![leaf.der().clone()], key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = Self {
            // No name: resolving one would take a thread, and with it time that is not simulated.
            url: format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port()),
            ca: ca.pem(),
            state: Arc::new(Mutex::new(State {
                view: None,
                stored: 0,
                writes: Vec::new(),
                faults: Vec::new(),
                refuses: None,
                refused: 0,
                tokens: Vec::new(),
                connections: 0,
                resumed: 0,
                streamed_on: Vec::new(),
                web_fault: WebFault::None,
                traffic: 0,
            })),
            changed: watch::Sender::new(0),
        };
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let serving = web.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (web, acceptor) = (serving.clone(), acceptor.clone());
                let connection = web.with(|state| {
                    state.traffic += 1;
                    state.connections += 1;
                    state.connections
                });
                // Otherwise the kernel holds small writes back, for real milliseconds.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move { web.serve(acceptor, stream, connection).await });
            }
        });
        web
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    /// Creates the shadow, with an idle desired state.
    pub(crate) fn create(&self) {
        self.with(|state| {
            state.view = Some(ShadowView {
                metadata: ShadowMetadata { uid: "shadow-1".into(), generation: 1, resource_version: "1".into() },
                etag: "0".into(),
                spec: models::shadow::BottlerocketShadowSpec::default(),
                status: AgentStatus::default(),
            });
        });
        self.wake();
    }

    /// Deletes the shadow.
    pub(crate) fn delete(&self) {
        self.with(|state| state.view = None);
        self.wake();
    }

    /// Writes the spec, as the controller does.
    pub(crate) fn change_spec(&self, change: impl FnOnce(&mut models::shadow::BottlerocketShadowSpec)) {
        self.with(|state| {
            let view = state.view.as_mut().unwrap();
            change(&mut view.spec);
            view.metadata.generation += 1;
            state.stored += 1;
            view.etag = state.stored.to_string();
        });
        self.wake();
    }

    /// Changes the agent status as another client, without an event on the stream.
    pub(crate) fn write_status_as_other_client(&self, change: impl FnOnce(&mut AgentStatus)) {
        self.with(|state| {
            let view = state.view.as_mut().unwrap();
            change(&mut view.status);
            state.stored += 1;
            view.etag = state.stored.to_string();
        });
    }

    pub(crate) fn fault(&self, fault: WriteFault) {
        self.with(|state| state.faults.push(fault));
    }

    /// Removes a scripted fault; returns true if there was any.
    pub(crate) fn remove_write_fault(&self) -> bool {
        self.with(|state| state.faults.pop().is_some())
    }

    /// Refuses matching reports from now on.
    pub(crate) fn refuse(&self, which: Option<fn(&AgentStatus) -> bool>) {
        self.with(|state| state.refuses = which);
    }

    /// Changes the condition of the web API; open streams end.
    pub(crate) fn web_fault(&self, web_fault: WebFault) {
        self.with(|state| state.web_fault = web_fault);
        self.wake();
    }

    fn now(&self) -> WebFault {
        self.with(|state| state.web_fault)
    }

    /// Returns the number of connections and requests.
    pub(crate) fn traffic(&self) -> u64 {
        self.with(|state| state.traffic)
    }

    /// Returns the number of the connection of each stream, in their order.
    pub(crate) fn stream_connections(&self) -> Vec<u64> {
        self.with(|state| state.streamed_on.clone())
    }

    /// Returns the number of connections that resumed the TLS session of an earlier one.
    pub(crate) fn resumed_sessions(&self) -> u64 {
        self.with(|state| state.resumed)
    }

    pub(crate) fn view(&self) -> ShadowView {
        self.with(|state| state.view.clone().unwrap())
    }

    /// Returns all stored reports.
    pub(crate) fn writes(&self) -> Vec<AgentStatus> {
        self.with(|state| state.writes.clone())
    }

    /// Returns the number of writes with another etag.
    pub(crate) fn stale(&self) -> u32 {
        self.with(|state| state.refused)
    }

    /// Returns the `Authorization` of each request.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.with(|state| state.tokens.iter().map(|(_, token)| token.clone()).collect())
    }

    /// The same for the reports alone, or for the streams.
    pub(crate) fn tokens_of(&self, method: &str) -> Vec<String> {
        let of = |(line, token): &(String, String)| line.starts_with(method).then(|| token.clone());
        self.with(|state| state.tokens.iter().filter_map(of).collect())
    }

    /// Waits until the shadow matches.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&ShadowView) -> bool) -> ShadowView {
        let mut changed = self.changed.subscribe();
        let wait = async {
            loop {
                if let Some(view) = self.with(|state| state.view.clone())
                    && holds(&view)
                {
                    return view;
                }
                let _ = changed.changed().await;
            }
        };
        match tokio::time::timeout(super::LIMIT, wait).await {
            Ok(view) => view,
            Err(_) => panic!("waited in vain until {what}: {:#?}", self.with(|state| state.view.clone())),
        }
    }

    fn wake(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    async fn serve(self, acceptor: TlsAcceptor, stream: TcpStream, connection: u64) {
        if self.now() == WebFault::Down {
            return;
        }
        let Ok(mut stream) = acceptor.accept(stream).await else { return };
        let is_resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        self.with(|state| state.resumed += u64::from(is_resumed));
        while let Some((head, body)) = request(&mut stream).await {
            let line = head.lines().next().unwrap_or_default().to_owned();
            self.with(|state| {
                state.traffic += 1;
                state.tokens.push((line.clone(), header(&head, "authorization").unwrap_or_default()));
            });
            let web_fault = self.now();
            match web_fault {
                WebFault::Down => return,
                WebFault::SlowWrites if has_left(&mut stream, Duration::from_secs(31)).await => return,
                WebFault::Unresponsive => {
                    let mut changed = self.changed.subscribe();
                    while self.now() == WebFault::Unresponsive {
                        let _ = changed.changed().await;
                    }
                    return;
                }
                WebFault::Rejects(status) => {
                    respond(&mut stream, status, r#"{"type":"urn:x","title":"No","status":400}"#).await;
                    continue;
                }
                WebFault::InvalidJson => {
                    respond(&mut stream, "200 OK", "{\"metadata\":\n}\u{1}\n[]\nnull\n{\"type\":7}\n").await;
                    continue;
                }
                _ => {}
            }
            if line.starts_with("GET /v1/nodes/a/shadow/watch") {
                let Ok(()) = self.stream(&mut stream, connection).await else { return };
                continue;
            }
            if !line.starts_with("PUT /v1/nodes/a/shadow/status ") {
                respond(&mut stream, "404 Not Found", "{}").await;
                continue;
            }
            let delay = Duration::from_secs(if web_fault == WebFault::ReportsHang { 3_600 } else { 31 });
            let is_slow = matches!(web_fault, WebFault::SlowWrites | WebFault::ReportsHang);
            if is_slow && has_left(&mut stream, delay).await {
                return;
            }
            let etag = header(&head, "if-match").unwrap_or_default().replace('"', "");
            let status: AgentStatus = serde_json::from_slice(&body).unwrap();
            let (answer, fault) = self.with(|state| {
                let fault = (!state.faults.is_empty()).then(|| state.faults.remove(0));
                let refused = state.refuses.is_some_and(|refuses| refuses(&status));
                if refused || fault == Some(WriteFault::Refused) {
                    let problem = json!({"type": "urn:x", "title": "Not now", "status": 503}).to_string();
                    return (("503 Service Unavailable", problem), fault);
                }
                let Some(view) = state.view.as_mut() else { return (("404 Not Found", "{}".to_owned()), fault) };
                if view.etag != etag {
                    state.refused += 1;
                    return (("412 Precondition Failed", serde_json::to_string(view).unwrap()), fault);
                }
                state.stored += 1;
                view.etag = state.stored.to_string();
                view.status = status.clone();
                if web_fault == WebFault::DropsConditions {
                    view.status.conditions.clear();
                }
                state.writes.push(status);
                (("200 OK", serde_json::to_string(view).unwrap()), fault)
            });
            self.wake();
            if fault == Some(WriteFault::ResponseLost) || web_fault == WebFault::ResponsesLost {
                return;
            }
            respond(&mut stream, answer.0, &answer.1).await;
        }
    }

    /// Sends a stream, and keeps its connection after its proper end, as the web API does unless the agent asks otherwise.
    async fn stream(&self, stream: &mut TlsStream<TcpStream>, connection: u64) -> std::io::Result<()> {
        self.with(|state| state.streamed_on.push(connection));
        let mut changed = self.changed.subscribe();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        let began = self.now();
        let moves = tokio::time::Instant::now() + Duration::from_secs(2);
        while self.now() == began {
            if began == WebFault::UnknownLines {
                let novel = "{\"type\":\"web_fault\",\"object\":{\"metadata\":7}}\n{\"type\":\"novel\"}\n";
                chunk(stream, novel).await?;
            }
            let line = match self.with(|state| state.view.clone()) {
                Some(view) => WatchLine::Shadow { object: Box::new(view) },
                None => WatchLine::Absent,
            };
            chunk(stream, &format!("{}\n", serde_json::to_string(&line).unwrap())).await?;
            if began == WebFault::ShortStreams {
                break;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep(Duration::from_secs(15)) => {}
                () = tokio::time::sleep_until(moves), if began == WebFault::PeriodicStreamEnds => break,
            }
        }
        chunk(stream, "").await
    }
}

/// Sends a part of a stream. An empty one is its proper end.
async fn chunk(stream: &mut TlsStream<TcpStream>, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}

async fn request(stream: &mut TlsStream<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|v| v.trim().parse().unwrap()));
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// Waits this long for the client to leave; returns true if it did.
async fn has_left(stream: &mut TlsStream<TcpStream>, span: Duration) -> bool {
    tokio::time::timeout(span, stream.read_u8()).await.is_ok()
}

async fn respond(stream: &mut TlsStream<TcpStream>, status: &str, body: &str) {
    let text =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.flush().await;
}
