//! The plain port: liveness, readiness, metrics.

use std::net::SocketAddr;
use std::time::Duration;

use actix_web::http::KeepAlive;
use actix_web::{App, HttpResponse, HttpServer, web};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::calls::Calls;
use crate::metrics::{Metrics, about_process};

/// Maximum number of connections at a time: the kubelet's probes, and Prometheus. Each can hold 128 KiB of a head that never ends.
const CONNECTIONS: usize = 128;

/// Longest time until the head of a request has come, and until a closed connection has ended.
const CLIENT_DEADLINE: Duration = Duration::from_secs(5);

/// Serves until `stop` turns true. `ready` returns whether the caches are warm: a standby is ready too, since it can
/// take over at once.
pub async fn serve(
    listen: SocketAddr,
    metrics: Metrics,
    calls: Calls,
    ready: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(metrics.clone()))
            .app_data(web::Data::new(calls.clone()))
            .app_data(web::Data::new(ready.clone()))
            .route("/healthz", web::get().to(healthz))
            .route("/readyz", web::get().to(readyz))
            .route("/metrics", web::get().to(text))
    })
    .workers(1)
    .max_connections(CONNECTIONS)
    // On a kept connection, heads have no time limit.
    .keep_alive(KeepAlive::Disabled)
    .client_request_timeout(CLIENT_DEADLINE)
    .client_disconnect_timeout(CLIENT_DEADLINE)
    .shutdown_timeout(1)
    .disable_signals()
    .bind(listen)?
    .run();
    let handle = server.handle();
    tokio::spawn(async move {
        let _ = stop.wait_for(|stop| *stop).await;
        handle.stop(true).await;
    });
    server.await
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
