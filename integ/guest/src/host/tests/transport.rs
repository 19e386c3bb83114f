//! The transport.

use super::*;

#[tokio::test]
async fn unknown_paths_and_methods_return_404_with_empty_body() {
    let bench = bench().await;
    for (method, target) in [
        ("GET", "/settings/"),
        ("POST", "/settings"),
        ("GET", "/actions/refresh-updates"),
        ("POST", "/actions/nonsense"),
        ("POST", "/updates/status"),
        ("HEAD", "/os"),
    ] {
        let reply = bench.call(method, target, None).await;
        assert_eq!((reply.status, reply.body.as_str()), (404, ""), "{method} {target}");
        assert_eq!(reply.headers["content-length"], "0");
    }
}

#[tokio::test]
async fn connection_supports_keep_alive_and_chunked_bodies() {
    let bench = bench().await;
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(client::send(&mut stream, "GET", "/os", None).await.unwrap().status, 200);
    }
    stream
        .write_all(
            b"PATCH /settings HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
              5\r\n{\"upd\r\nf\r\nates\":{\"seed\":9\r\n2\r\n}}\r\n0\r\n\r\n",
        )
        .await
        .unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status, 204);
    let reply = client::send(&mut stream, "POST", "/tx/commit", None).await.unwrap();
    assert_eq!(reply.body, r#"["settings.updates.seed"]"#);
}

#[tokio::test]
async fn http_1_0_is_accepted_and_http_2_is_rejected() {
    let bench = bench().await;
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"GET /os HTTP/1.0\r\n\r\n").await.unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status_line, "HTTP/1.0 200 OK");
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert_eq!(client::read(&mut stream).await.unwrap().status, 400);
}

#[tokio::test]
async fn incomplete_request_head_returns_408_and_idle_connection_is_closed() {
    let bench = bench_with(|options| options.head_timeout = Duration::from_millis(100)).await;
    let mut half = UnixStream::connect(bench.host.socket()).await.unwrap();
    half.write_all(b"GET /os HTTP/1.1\r\n").await.unwrap();
    let reply = client::read(&mut half).await.unwrap();
    assert_eq!((reply.status, reply.headers["connection"].as_str()), (408, "close"));
    let mut silent = UnixStream::connect(bench.host.socket()).await.unwrap();
    assert_eq!(client::read(&mut silent).await.unwrap().status, 408);
    let mut idle = UnixStream::connect(bench.host.socket()).await.unwrap();
    client::send(&mut idle, "GET", "/os", None).await.unwrap();
    assert!(client::read(&mut idle).await.is_err());
}

#[tokio::test]
async fn transport_faults_occur_as_often_as_scripted() {
    let bench = bench().await;
    let status = |transport| Fault::request("GET", "/updates/status", transport);
    bench.run(&[Command::Refresh]).await;
    bench.host.script(status(Transport::Status(500, "Update dispatcher failed".to_owned())).times(2));
    bench.host.script(status(Transport::Garbage));
    bench.host.script(status(Transport::CutReply));
    bench.host.script(status(Transport::LostBefore));
    for _ in 0..2 {
        assert_eq!(bench.call("GET", "/updates/status", None).await.status, 500);
    }
    let garbage = bench.call("GET", "/updates/status", None).await;
    assert_eq!(garbage.status, 200);
    assert!(serde_json::from_str::<Value>(&garbage.body).is_err());
    for _ in 0..2 {
        assert!(client::call(&bench.host.socket(), "GET", "/updates/status", None).await.is_err());
    }
    assert_eq!(bench.status().await["update_state"], "Available");
    bench.host.script(Fault::connection());
    assert!(client::call(&bench.host.socket(), "GET", "/os", None).await.is_err());
    assert_eq!(bench.running_version().await, "1.20.0");
}

#[tokio::test]
async fn request_that_is_not_answered_or_answered_otherwise_is_carried_out_or_not() {
    use Transport::{HeldAfter, HeldBefore, LostAfter, LostBefore};
    let bench = bench().await;
    let refresh = |transport| bench.host.script(Fault::request("POST", "/actions/refresh", transport));
    let mut before = bench.call("GET", "/updates/status", None).await.body;
    for (fault, is_held, is_carried_out) in
        [(LostBefore, false, false), (HeldBefore, true, false), (LostAfter, false, true), (HeldAfter, true, true)]
    {
        refresh(fault);
        let socket = bench.host.socket();
        let call = client::call(&socket, "POST", Command::Refresh.path(), None);
        if is_held {
            assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
        } else {
            assert!(call.await.is_err());
        }
        let after = bench.call("GET", "/updates/status", None).await.body;
        assert_eq!(after != before, is_carried_out, "{after}");
        before = after;
    }
    let before = bench.status().await;
    assert_eq!(before["update_state"], "Available");
    refresh(Transport::StatusAfter(500, "no".to_owned()));
    let reply = bench.call("POST", Command::Refresh.path(), None).await;
    assert_eq!((reply.status, reply.body.as_str()), (500, "no"));
    assert_ne!(bench.status().await["most_recent_command"], before["most_recent_command"]);
}

#[tokio::test]
async fn host_api_restart_kills_running_command_and_creates_new_socket() {
    for clean in [true, false] {
        let bench = bench().await;
        bench.run(&[Command::Refresh]).await;
        let before = bench.status().await;
        let socket = inode(&bench.host.socket());
        let boot = bench.host.snapshot().boot_id;
        bench.host.script(Fault::command(Command::Prepare, Worker::NeverEnds));
        assert_eq!(bench.post(Command::Prepare).await, 204);
        bench.host.restart_api(clean).await;
        assert_ne!(inode(&bench.host.socket()), socket);
        assert_eq!(bench.status().await, before);
        assert_eq!(bench.host.snapshot().boot_id, boot);
    }
}

#[tokio::test]
async fn stopped_host_api_removes_socket_or_refuses_connections() {
    let expected = [(true, std::io::ErrorKind::NotFound), (false, std::io::ErrorKind::ConnectionRefused)];
    for (clean, kind) in expected {
        let bench = bench_with(|options| options.timings.api_restart = Duration::from_secs(3600)).await;
        let host = bench.host.clone();
        let restart = tokio::spawn(async move { host.restart_api(clean).await });
        let deadline = tokio::time::Instant::now() + LIMIT;
        // A connection that was made but not accepted yet is reset.
        while UnixStream::connect(bench.host.socket()).await.map_err(|error| error.kind()).err() != Some(kind) {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        restart.abort();
    }
}

#[tokio::test]
async fn host_stops_when_last_handle_is_dropped() {
    let bench = bench().await;
    let socket = bench.host.socket();
    let second = bench.host.clone();
    drop(bench.host);
    assert_eq!(client::call(&socket, "GET", "/os", None).await.unwrap().status, 200);
    drop(second);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while client::call(&socket, "GET", "/os", None).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline);
    }
}

#[tokio::test]
async fn too_long_socket_path_is_rejected() {
    let options = HostOptions::new("a", format!("/tmp/{}", "x".repeat(120)), v("1.20.0"), Releases::default());
    let error = Host::start(options).await.unwrap_err();
    assert!(error.to_string().contains("too long for a socket"), "{error}");
}
