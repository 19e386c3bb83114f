//! Settings and waves.

use super::*;

#[tokio::test]
async fn ignore_waves_reveals_release_of_later_wave() {
    let bench = bench().await;
    let later = Timestamp::now() + Duration::from_secs(3600);
    bench.releases.publish_in_waves(v("1.20.6"), [(2048, later)]);
    bench.set(r#"{"updates":{"version-lock":"1.20.6"}}"#).await;
    bench.run(&[Command::Refresh]).await;
    let status = bench.status().await;
    assert_eq!((&status["update_state"], &status["available_updates"]), (&json!("Idle"), &json!(["1.20.5", "1.20.0"])));
    bench.set(r#"{"updates":{"ignore-waves":true}}"#).await;
    bench.run(&[Command::Refresh]).await;
    assert_eq!(bench.status().await["chosen_update"]["version"], "1.20.6");
}

#[tokio::test]
async fn committed_setting_takes_effect_after_applier_lag() {
    let bench = bench_with(|options| options.settings_lag = Duration::from_millis(200)).await;
    bench.set(r#"{"updates":{"version-lock":"9.9.9"}}"#).await;
    assert_eq!(bench.get("/settings").await["updates"]["version-lock"], "9.9.9");
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
    bench.run(&[Command::Refresh]).await;
    let lock = VersionLock::parse("9.9.9").ok();
    bench.wait(|bench| bench.host.snapshot().effective_settings.version_lock == lock).await;
    bench.run(&[Command::Refresh]).await;
    assert_eq!(bench.status().await["update_state"], "Idle");
}

#[tokio::test]
async fn applier_start_failure_leaves_settings_committed_but_not_effective() {
    let bench = bench().await;
    bench.host.script(Fault::applier("No such file or directory (os error 2)"));
    let lock = r#"{"updates":{"version-lock":"9.9.9"}}"#;
    assert_eq!(bench.call("PATCH", "/settings", Some(lock)).await.status, 204);
    let reply = bench.call("POST", "/tx/commit_and_apply", None).await;
    assert_eq!(reply.status, 500);
    assert!(reply.body.starts_with("Unable to start config applier: "), "{}", reply.body);
    assert_eq!(bench.get("/settings").await["updates"]["version-lock"], "9.9.9");
    assert_eq!(bench.host.snapshot().effective_settings.version_lock, Some(VersionLock::latest()));
}

#[tokio::test]
async fn transactions_are_separate_and_empty_commit_is_rejected() {
    let bench = bench().await;
    for nothing in ["{}", r#"{"updates":{}}"#, r#"{"updates":{"version-lock":null}}"#] {
        assert_eq!(bench.call("PATCH", "/settings?tx=mine", Some(nothing)).await.status, 204);
        assert_eq!(bench.call("POST", "/tx/commit_and_apply?tx=mine", None).await.status, 422);
    }
    assert_eq!(bench.call("PATCH", "/settings?tx=mine", Some(r#"{"updates":{"seed":1}}"#)).await.status, 204);
    assert_eq!(bench.call("POST", "/tx/commit_and_apply", None).await.status, 422);
    assert_eq!(bench.get("/tx?tx=mine").await, json!({"updates": {"seed": 1}}));
    assert_eq!(bench.call("DELETE", "/tx?tx=mine", None).await.body, r#"["settings.updates.seed"]"#);
    assert_eq!(bench.call("POST", "/tx/commit_and_apply?tx=mine", None).await.status, 422);
}

#[tokio::test]
async fn invalid_json_or_unknown_setting_returns_400_with_error_type() {
    let bench = bench().await;
    for bad in
        ["{", r#"{"updates":{"version-lock":"1.0"}}"#, r#"{"updates":{"versionLock":"latest"}}"#, r#"{"settings":{}}"#]
    {
        let reply = bench.call("PATCH", "/settings", Some(bad)).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
        assert!(reply.body.starts_with("Json deserialize error: "), "{}", reply.body);
    }
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"PATCH /settings HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    let reply = client::read(&mut stream).await.unwrap();
    assert_eq!((reply.status, reply.body.as_str()), (400, "Content type error"));
}

#[tokio::test]
async fn requests_are_validated_as_on_real_server() {
    let bench = bench().await;
    let pairs = r#"{"request_payload":["updates.version-lock=1.20.0"]}"#;
    let long = format!("/settings?tx={}", "t".repeat(300));
    let lock = Some(r#"{"updates":{"version-lock":"latest"}}"#);
    for (method, target, body, status) in [
        ("PATCH", "/settings/keypair?tx=t", Some(pairs), 404),
        ("GET", "/settings?keys=settings.updates", None, 500),
        ("GET", "/settings?keys=settings..updates", None, 400),
        ("GET", "/settings?keys=", None, 400),
        ("GET", "/os?prefix=", None, 400),
        ("PATCH", long.as_str(), lock, 500),
        ("PATCH", "/settings?tx=%C3%A4", lock, 400),
        ("PATCH", "/settings?tx=%22t%22", lock, 400),
        ("PATCH", "/settings?tx=t", Some(r#"{"updates":{"targets-base-url":"no url"}}"#), 400),
        ("PATCH", "/settings?tx=t", lock, 204),
    ] {
        assert_eq!(bench.call(method, target, body).await.status, status, "{method} {target}");
    }
}

#[tokio::test]
async fn action_and_oversized_body_are_answered_before_body_is_received() {
    let bench = bench().await;
    for (head, status) in [
        ("POST /actions/activate-update HTTP/1.1\r\ncontent-length: 9\r\n\r\n".to_owned(), 409),
        ("PATCH /settings HTTP/1.1\r\ncontent-type: text/json\r\ncontent-length: 9999999\r\n\r\n".to_owned(), 413),
    ] {
        let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(client::read(&mut stream).await.unwrap().status, status, "{head}");
    }
}

#[tokio::test]
async fn activation_with_lost_record_leaves_disk_armed_until_next_prepare() {
    let bench = bench().await;
    bench.stage().await;
    bench.host.script(Fault::command(Command::Activate, Worker::LosesRecord));
    assert_eq!(bench.post(Command::Activate).await, 204);
    let armed = || {
        let disk = bench.host.snapshot().disk;
        disk.next() == Some(disk.inactive())
    };
    assert_eq!((bench.status().await["update_state"].clone(), armed()), (json!("Staged"), true));
    assert_eq!(bench.post(Command::Activate).await, 204);
    let last = &bench.status().await["most_recent_command"];
    assert_eq!(last["cmd_status"], "Failed");
    assert!(last["stderr"].as_str().unwrap().contains("is already marked for upgrade"));
    assert_eq!(bench.post(Command::Deactivate).await, 409);
    assert!(armed());
    bench.run(&[Command::Prepare]).await;
    assert!(!armed());
}

#[tokio::test]
async fn request_is_executed_after_client_disconnects() {
    let bench = bench().await;
    bench.stage().await;
    let slow = Transport::Slow(Duration::from_millis(50));
    bench.host.script(Fault::request("POST", "/actions/activate", slow));
    let mut stream = UnixStream::connect(bench.host.socket()).await.unwrap();
    stream.write_all(b"POST /actions/activate-update HTTP/1.1\r\n\r\n").await.unwrap();
    drop(stream);
    let mut events = bench.host.subscribe();
    while !bench.kinds().iter().any(|kind| matches!(kind, EventKind::Armed { .. })) {
        let _ = events.recv().await;
    }
}

#[tokio::test]
async fn settings_and_os_support_keys_and_prefix_queries() {
    let bench = bench().await;
    assert_eq!(bench.get("/os?prefix=ver").await, json!({"version_id": "1.20.0"}));
    for nothing in ["/os?prefix=nothing", "/settings?prefix=motd", "/settings?keys=updates.seed"] {
        assert_eq!(bench.get(nothing).await, json!({}), "{nothing}");
    }
}
