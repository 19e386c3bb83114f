//! The plain port: health and metrics for the kubelet and Prometheus, without TLS and without tokens.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_http::HttpService;
use actix_http::error::{DispatchError, ParseError};
use actix_server::Server;
use actix_service::{IntoServiceFactory as _, ServiceFactoryExt as _, map_config};
use actix_web::App;
use actix_web::dev::AppConfig;
use actix_web::http::KeepAlive;
use actix_web::web::ServiceConfig;

use crate::connections::Connections;

/// Maximum number of connections from one source, each for one request. The kubelet's probes take three, and each
/// Prometheus one; behind a proxy, as in a service mesh, they are one source.
pub const CONNECTIONS_PER_SOURCE: usize = 16;
/// Maximum age of a connection, whatever is sent on it or read of it. A scrape takes milliseconds, and Prometheus waits 10 s for
/// it by default.
pub const MAX_AGE: Duration = Duration::from_secs(30);

/// Maximum number of connections at a time. Each can hold 128 KiB of a head that never ends.
const CONNECTIONS: usize = 128;
/// Time-out for the head of a request.
const CLIENT_DEADLINE: Duration = Duration::from_secs(5);
/// Time-out for a client to close its side of a connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Serves the routes, each connection for one request and within the limits of `connections`. Requests have `grace` seconds at
/// shutdown.
///
/// # Errors
///
/// Returns an error if nothing can be accepted on `listener`.
pub fn serve(
    listener: TcpListener,
    connections: Arc<Connections>,
    grace: u64,
    routes: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
) -> io::Result<Server> {
    let builder = Server::build().workers(1).max_concurrent_connections(CONNECTIONS);
    let ending = builder.graceful_shutdown_signal();
    let factory = move || {
        let app =
            App::new().configure(&routes).into_factory().map_err(|error: actix_web::Error| error.error_response());
        let ending = ending.clone();
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let ending = ending.clone();
                async move { ending.notified().await }
            })
            // On a kept connection, heads have no time limit.
            .keep_alive(KeepAlive::Disabled)
            .client_request_timeout(CLIENT_DEADLINE)
            .client_disconnect_timeout(CLOSE_LIMIT)
            .finish(map_config(app, |()| AppConfig::default()))
            .tcp();
        Arc::clone(&connections).limit(http, malformed)
    };
    Ok(builder.shutdown_timeout(grace).disable_signals().listen("plain", listener, factory)?.run())
}

fn malformed(error: &DispatchError) -> Option<&ParseError> {
    match error {
        DispatchError::Parse(error) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use actix_web::{HttpResponse, web};
    use prometheus::IntCounter;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::limit::Sources;

    /// Time-out of a test. Nothing is expected to take long.
    const DEADLINE: Duration = Duration::from_secs(60);
    const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    /// A request that is answered at once, but not the end of its body.
    const ENDLESS: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbod";
    /// Greater than what the kernel keeps of an answer that is not read.
    const LARGE: usize = 32 << 20;

    /// Starts a server. Returns its address and its count of refused connections.
    fn start(most: usize, limit: Duration) -> (SocketAddr, IntCounter) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let counter = || IntCounter::new("c", "c").unwrap();
        let refused = counter();
        let counters = (refused.clone(), counter());
        let connections = Connections::new(Sources { ipv6_prefix: 128 }, most, limit, counters);
        let server = serve(listener, connections, 0, |config: &mut ServiceConfig| {
            config
                .route("/healthz", web::get().to(|| async { "ok\n" }))
                .route("/large", web::get().to(|| async { HttpResponse::Ok().body(vec![b'x'; LARGE]) }));
        });
        tokio::spawn(server.unwrap());
        (address, refused)
    }

    /// Opens a connection from an address of the loopback network, which is a source of its own, and sends this.
    async fn open(from: &str, to: SocketAddr, text: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        let mut connection = timeout(DEADLINE, socket.connect(to)).await.unwrap().unwrap();
        // One that was refused may be closed already.
        let _ = connection.write_all(text.as_bytes()).await;
        connection
    }

    /// Returns all that is sent until the end of the connection.
    async fn answer(mut connection: TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection that is closed before all that was sent has been read is reset.
        let _ = timeout(DEADLINE, connection.read_to_end(&mut bytes)).await.expect("the connection ends");
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_connection_ends_whatever_is_sent_on_it_and_however_slowly_its_answer_is_read() {
        for (what, text) in [
            ("a body without an end", ENDLESS),
            ("a head without an end", "GET /healthz HT"),
            ("nothing", ""),
            ("an answer that is not read", "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ] {
            let (address, _) = start(1, Duration::from_secs(1));
            let held = open("127.0.0.1", address, text).await;
            // Another connection of this source is served once it has ended.
            let deadline = Instant::now() + DEADLINE;
            while !answer(open("127.0.0.1", address, HEALTH).await).await.starts_with("HTTP/1.1 200") {
                assert!(Instant::now() < deadline, "{what}");
                sleep(Duration::from_millis(50)).await;
            }
            drop(held);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connections_of_one_source_leave_room_for_the_probes_and_scrapes_of_others() {
        let (address, refused) = start(CONNECTIONS_PER_SOURCE, DEADLINE);
        let mut held = Vec::new();
        for _ in 0..=CONNECTIONS {
            held.push(open("127.0.0.1", address, ENDLESS).await);
        }
        let served = answer(open("127.0.0.2", address, HEALTH).await).await;
        assert!(served.starts_with("HTTP/1.1 200") && served.ends_with("ok\n"), "{served}");
        assert_eq!(usize::try_from(refused.get()).unwrap(), CONNECTIONS + 1 - CONNECTIONS_PER_SOURCE);
    }
}
