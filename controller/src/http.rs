//! The plain port: liveness, readiness, metrics.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::web::ServiceConfig;
use actix_web::{HttpResponse, web};
use ports::connections::Connections;
use ports::limit::Sources;
use ports::plain;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::calls::Calls;
use crate::metrics::{Metrics, about_process};

/// Time in seconds that requests may take once the process has to stop.
const GRACE_SECONDS: u64 = 1;

/// Serves until `stop` turns true. `ready` returns whether the caches are warm: a standby is ready too, since it can
/// take over at once.
pub async fn serve(
    listen: SocketAddr,
    metrics: Metrics,
    calls: Calls,
    ready: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let server = start(TcpListener::bind(listen)?, plain::MAX_AGE, metrics, calls, ready)?;
    let handle = server.handle();
    tokio::spawn(async move {
        let _ = stop.wait_for(|stop| *stop).await;
        handle.stop(true).await;
    });
    server.await
}

/// Starts a server whose connections live no longer than `age`.
fn start(
    listener: TcpListener,
    age: Duration,
    metrics: Metrics,
    calls: Calls,
    ready: watch::Receiver<bool>,
) -> io::Result<Server> {
    let sources = Sources { ipv6_prefix: 128 };
    let connections = Connections::new(sources, plain::CONNECTIONS_PER_SOURCE, age, metrics.of_connections());
    plain::serve(listener, connections, GRACE_SECONDS, move |services: &mut ServiceConfig| {
        services
            .app_data(web::Data::new(metrics.clone()))
            .app_data(web::Data::new(calls.clone()))
            .app_data(web::Data::new(ready.clone()))
            .route("/healthz", web::get().to(healthz))
            .route("/readyz", web::get().to(readyz))
            .route("/metrics", web::get().to(text));
    })
}

async fn readyz(ready: web::Data<watch::Receiver<bool>>) -> HttpResponse {
    if *ready.borrow() {
        HttpResponse::Ok().body("ok\n")
    } else {
        HttpResponse::ServiceUnavailable().body("the caches are not filled yet\n")
    }
}

async fn healthz(calls: web::Data<Calls>) -> HttpResponse {
    match calls.ages(Instant::now()).stuck() {
        None => HttpResponse::Ok().body("ok\n"),
        Some(stuck) => HttpResponse::ServiceUnavailable().body(format!("{stuck}\n")),
    }
}

async fn text(metrics: web::Data<Metrics>, calls: web::Data<Calls>) -> HttpResponse {
    metrics.ages(&calls.ages(Instant::now()));
    HttpResponse::Ok().content_type("text/plain; version=0.0.4").body(metrics.text() + &about_process())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::timeout;

    use super::*;

    /// Time-out of a test. Nothing is expected to take long.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Starts a server whose connections live so long. Returns its address.
    fn started(age: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (_, ready) = watch::channel(true);
        let server = start(listener, age, Metrics::new().unwrap(), Calls::default(), ready).unwrap();
        tokio::spawn(server);
        address
    }

    /// A request that is answered at once, but not the end of its body.
    const ENDLESS: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbod";

    /// Opens a connection from an address of the loopback network, which is a source of its own, and sends this.
    async fn open(from: &str, to: SocketAddr, text: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        let mut connection = timeout(DEADLINE, socket.connect(to)).await.unwrap().unwrap();
        // One that was refused may be closed already.
        let _ = connection.write_all(text.as_bytes()).await;
        connection
    }

    /// Sends this and returns all that is sent until the end of the connection.
    async fn answer(from: &str, to: SocketAddr, text: &str) -> String {
        let (mut connection, mut bytes) = (open(from, to, text).await, Vec::new());
        // A connection that is closed before all that was sent has been read is reset.
        let _ = timeout(DEADLINE, connection.read_to_end(&mut bytes)).await.expect("the connection ends");
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn source_that_holds_connections_stops_neither_probes_nor_scrapes() {
        let address = started(DEADLINE);
        let mut held = Vec::new();
        for _ in 0..200 {
            held.push(open("127.0.0.1", address, ENDLESS).await);
        }
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for path in ["/healthz", "/readyz"] {
            let probe = answer("127.0.0.2", address, &get(path)).await;
            assert!(probe.starts_with("HTTP/1.1 200") && probe.ends_with("ok\n"), "{path}: {probe}");
        }
        answer("127.0.0.3", address, "nonsense\r\n\r\n").await;
        let scrape = answer("127.0.0.3", address, &get("/metrics")).await;
        for counted in ["connections_refused_total 184", "malformed_requests_total 1"] {
            assert!(scrape.contains(&format!("\nbrupop_controller_{counted}\n")), "{counted}: {scrape}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connection_ends_although_the_body_of_its_request_does_not() {
        let probe = answer("127.0.0.1", started(Duration::from_secs(1)), ENDLESS).await;
        assert!(probe.starts_with("HTTP/1.1 200") && probe.ends_with("ok\n"), "{probe}");
    }
}
