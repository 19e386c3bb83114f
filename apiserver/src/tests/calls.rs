//! Answers of each call.

use std::time::Duration;

use http::{Method, StatusCode};
use models::wire::{ShadowView, WatchLine};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::*;

#[tokio::test]
async fn agent_reads_watches_and_reports_its_shadow() {
    let cluster = cluster();
    let server = Server::start(&cluster).await;

    let read = server.get("/v1/nodes/a/shadow", "agent-a").await;
    assert_eq!(read.status(), StatusCode::OK);
    let tag = read.headers()["etag"].to_str().unwrap().to_owned();
    let view: ShadowView = read.json().await.unwrap();
    assert_eq!(tag, format!("\"{}\"", view.etag));
    let mut lines = Lines::open(&server, "agent-a").await;
    assert_eq!(lines.shadow().await, view);

    let report = json!({"state": "StagedUpdate", "observedGeneration": 1, "novelty": 1});
    let written = server.put("agent-a", &tag, report.clone()).await;
    assert_eq!(written.status(), StatusCode::OK);
    let written: ShadowView = written.json().await.unwrap();
    assert_ne!(written.etag, view.etag);
    assert_eq!(lines.shadow().await, written);
    let fresh = server.get("/v1/nodes/a/shadow?fresh=true", "agent-a").await;
    assert_eq!(fresh.json::<ShadowView>().await.unwrap(), written);

    let stale = server.put("agent-a", &view.etag, report).await;
    assert_eq!(stale.status(), StatusCode::PRECONDITION_FAILED);
    assert_eq!(stale.headers()["content-type"], "application/json");
    assert_eq!(stale.json::<ShadowView>().await.unwrap(), written);

    cluster.change(|object| {
        let object = object.as_mut().unwrap();
        object["metadata"]["generation"] = json!(2);
        object["spec"] = json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"});
    });
    assert_eq!(lines.shadow().await.metadata.generation, 2);
    cluster.change(|object| *object = None);
    assert_eq!(lines.next().await, Some(WatchLine::Absent));
    assert_eq!(problem(server.get("/v1/nodes/a/shadow", "agent-a").await).await, (404, "no-shadow".into()));

    assert_eq!(cluster.reviews(), 1, "one burst, one review");
    let (_, metrics) = server.plain("/metrics").await;
    assert!(metrics.contains("brupop_apiserver_dropped_fields_total 2"), "{metrics}");
    assert!(metrics.contains(r#"brupop_apiserver_status_writes_total{result="applied"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"brupop_apiserver_status_writes_total{result="stale"} 1"#), "{metrics}");
    assert!(metrics.contains("brupop_apiserver_streams 1"), "{metrics}");
    let route = r#"brupop_apiserver_requests_total{code="412",route="/v1/nodes/{node}/shadow/status"} 1"#;
    assert!(metrics.contains(route), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn other_clients_are_denied_access_to_shadow() {
    let server = Server::start(&cluster()).await;
    let shadow = "/v1/nodes/a/shadow";
    for path in [shadow, "/v1/nodes/a/shadow/watch"] {
        assert_eq!(problem(server.get(path, "garbage").await).await, (401, "unauthorized".into()));
        assert_eq!(problem(server.get(path, "agent-b").await).await, (403, "forbidden".into()));
        assert_eq!(problem(server.get(path, "controller").await).await, (403, "forbidden".into()));
    }
    let bare = format!("https://localhost:{}{shadow}", server.api.port());
    assert_eq!(problem(server.client.get(&bare).send().await.unwrap()).await, (401, "unauthorized".into()));
    let old = (403, "agent-token-for-old-node".to_owned());
    assert_eq!(problem(server.get(shadow, "agent-of-older-a").await).await, old);
    let report = json!({"state": "Idle"});
    assert_eq!(problem(server.put("agent-of-older-a", "x", report.clone()).await).await, old);
    assert_eq!(problem(server.put("agent-b", "x", report).await).await, (403, "forbidden".into()));
    let mut lines = Lines::open(&server, "agent-of-older-a").await;
    assert_eq!(lines.next().await, Some(WatchLine::Heartbeat), "it is not reported");
    for path in
        ["/v1/nodes/b/../a/shadow", "/v1/nodes/a%2F..%2Fa/shadow", "/v1/nodes//shadow", "/v1/nodes/brs-a/shadow"]
    {
        let (status, _) = problem(server.get(path, "agent-b").await).await;
        assert!(status == 403 || status == 404, "{path}: {status}");
    }
    let (_, metrics) = server.plain("/metrics").await;
    for (reason, count) in [("NoToken", 1), ("NotAuthenticated", 2), ("AgentTokenForOldNode", 3)] {
        let line = format!("brupop_apiserver_refusals_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn server_requires_certificate_and_renewal_keeps_streams() {
    let cluster = cluster();
    let mut server = Server::bare(&cluster).await;
    assert_eq!(server.plain("/healthz").await.0, StatusCode::OK);
    let (status, reason) = server.plain("/readyz").await;
    assert_eq!((status, reason.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "there is no certificate yet\n"));
    let (other, _) = pair();
    let url = format!("https://localhost:{}/v1/nodes/a/shadow", server.api.port());
    assert!(server.trusting(&other).get(url).send().await.is_err(), "handshakes fail");

    server.certify();
    server.until_ready().await;
    let mut lines = Lines::open(&server, "agent-a").await;
    let first = lines.shadow().await;

    server.certify();
    let deadline = Instant::now() + DEADLINE;
    let request = || server.request(Method::GET, "/v1/nodes/a/shadow", "agent-a").send();
    while request().await.is_err() {
        assert!(Instant::now() < deadline, "the new certificate is not served");
        sleep(Duration::from_millis(20)).await;
    }
    cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(2));
    let second = lines.shadow().await;
    assert_eq!((first.metadata.generation, second.metadata.generation), (1, 2));
    server.stop().await;
}

#[tokio::test]
async fn server_is_not_ready_with_expired_certificate() {
    let mut server = Server::bare(&cluster()).await;
    server.certify_with(pair_for(2020, 2021));
    server.until_readyz_says(StatusCode::SERVICE_UNAVAILABLE, "the certificate has expired\n").await;
    assert_eq!(server.plain("/healthz").await.0, StatusCode::OK, "a restart would not help");
    server.certify();
    server.until_ready().await;
    server.stop().await;
}

#[tokio::test]
async fn shutdown_ends_streams_cleanly_and_rejects_new_ones() {
    let server = Server::start(&cluster()).await;
    let mut lines = Lines::open(&server, "agent-a").await;
    lines.shadow().await;
    let (url, client) = (format!("https://localhost:{}/v1/nodes/a/shadow", server.api.port()), server.client.clone());
    let ready = format!("http://{}/readyz", server.plain);
    let stop = tokio::spawn(server.stop());
    let ask = async |path: &str| client.get(format!("{url}{path}")).bearer_auth("agent-a").send().await.unwrap();
    // The signal takes a moment.
    let refused = loop {
        let answer = ask("/watch").await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
    };
    assert_eq!(refused.headers()["connection"], "close", "or the client would come back by the same connection");
    assert_eq!(problem(refused).await, (503, "unavailable".into()));
    let served = ask("").await;
    assert_eq!((served.status(), &served.headers()["connection"]), (StatusCode::OK, &"close".parse().unwrap()));
    let ready = client.get(ready).send().await.unwrap();
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ready.text().await.unwrap(), "the server is ending\n");
    assert_eq!(lines.next().await, None);
    stop.await.unwrap();
}

#[tokio::test]
async fn source_of_unsigned_tokens_is_rate_limited_while_its_agent_is_served() {
    let cluster = cluster().publishing();
    let server = Server::start(&cluster).await;
    let (shadow, agent) = ("/v1/nodes/a/shadow", cluster.token("agent-a"));
    let forged = Issuer::new("k").sign(&claims("agent-a", i64::from(i32::MAX)));
    let first = problem(server.get(shadow, &forged).await).await;
    assert_eq!(first, (401, "unauthorized".into()));
    for _ in 0..BURST * 3 / 4 {
        assert_eq!(problem(server.get(shadow, "garbage").await).await, first);
    }
    // Late, so that it is still cached at the end.
    assert_eq!(server.get(shadow, &agent).await.status(), StatusCode::OK);
    let mut waits = None;
    for _ in 0..1_000 {
        let answer = server.get(shadow, "garbage").await;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            waits = answer.headers().get("retry-after").cloned();
            assert_eq!(problem(answer).await, (429, "too-many-requests".into()));
            break;
        }
        assert_eq!(problem(answer).await, first);
    }
    assert_eq!(waits.unwrap(), "1");
    assert_eq!(server.get(shadow, &agent).await.status(), StatusCode::OK, "what is known to be good passes");
    assert_eq!(cluster.reviews(), 1, "nothing else reached the API server");
    let (_, metrics) = server.plain("/metrics").await;
    assert!(metrics.contains(r#"brupop_apiserver_refusals_total{reason="Forged"} 1"#), "{metrics}");
    assert!(!metrics.contains(r#"brupop_apiserver_refusals_total{reason="TooManyRefusals"} 0"#), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn excessive_reports_of_agent_are_rate_limited() {
    let server = Server::start(&cluster()).await;
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(problem(server.put("agent-a", "*", json!({})).await).await);
        if answers.last().unwrap().0 == 429 {
            break;
        }
    }
    assert_eq!(answers.first().unwrap(), &(428, "precondition-required".into()));
    assert_eq!(answers.last().unwrap(), &(429, "too-many-requests".into()));
    assert_eq!(server.get("/v1/nodes/a/shadow", "agent-a").await.status(), StatusCode::OK, "reading continues");
    server.stop().await;
}

#[tokio::test]
async fn oversized_request_head_is_rejected_before_authentication() {
    let cluster = cluster();
    let server = Server::start(&cluster).await;
    let request = || server.request(Method::GET, "/v1/nodes/a/shadow", "agent-a");
    let large = request().header("X-Padding", "x".repeat(17 * 1024)).send().await.unwrap();
    assert_eq!(problem(large).await, (431, "headers-too-large".into()));
    let path = format!("/v1/nodes/{}/shadow", "a".repeat(17 * 1024));
    assert_eq!(problem(server.get(&path, "agent-a").await).await, (431, "headers-too-large".into()));
    assert_eq!(cluster.reviews(), 0);
    assert_eq!(request().send().await.unwrap().status(), StatusCode::OK);
    let (_, metrics) = server.plain("/metrics").await;
    assert!(metrics.contains(r#"brupop_apiserver_requests_total{code="431",route="#), "it is counted: {metrics}");
    server.stop().await;
}

#[tokio::test]
async fn stream_resumes_from_resource_version() {
    let cluster = cluster();
    let server = Server::start(&cluster).await;
    let first = Lines::open(&server, "agent-a").await.shadow().await;
    let resume = |from: &str| format!("/v1/nodes/a/shadow/watch?resourceVersion={from}");
    let open = async |from: &str| Lines::of(server.get(&resume(from), "agent-a").await);

    let mut same = open(&first.metadata.resource_version).await;
    assert_eq!(same.shadow().await, first, "also if nothing has happened since: this version may show more of it");
    cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(2));
    let second = same.shadow().await;
    assert_eq!(second.metadata.generation, 2);
    assert_eq!(open(&first.metadata.resource_version).await.shadow().await, second, "something has");

    // The cluster is older than the state that this agent claims to have seen, and the cluster counts.
    assert_eq!(open("999999").await.shadow().await, second);
    for from in ["", "0", "-1", "x", "1%202"] {
        let answer = server.get(&resume(from), "agent-a").await;
        assert_eq!(problem(answer).await, (400, "malformed-request".into()), "{from:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn connections_per_source_are_limited() {
    let server = Server::start(&cluster()).await;
    // A separate client for each, so that none shares a connection.
    let certificate = std::fs::read_to_string(server.directory.0.join("tls.crt")).unwrap();
    let url = format!("https://localhost:{}/v1/nodes/a/shadow", server.api.port());
    let call = async |client: &reqwest::Client| client.get(&url).bearer_auth("agent-a").send().await;
    let clients: Vec<_> = (0..8).map(|_| server.trusting(&certificate)).collect();
    for client in &clients {
        assert_eq!(call(client).await.unwrap().status(), StatusCode::OK);
    }
    let late = server.trusting(&certificate);
    assert!(call(&late).await.is_err(), "it is closed");
    assert_eq!(call(&clients[0]).await.unwrap().status(), StatusCode::OK, "the others continue");
    let (_, metrics) = server.plain("/metrics").await;
    assert!(!metrics.contains("brupop_apiserver_connections_refused_total 0"), "{metrics}");
    drop(clients);
    let deadline = Instant::now() + DEADLINE;
    while call(&late).await.is_err() {
        assert!(Instant::now() < deadline, "those that ended still count");
        sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn concurrent_unsigned_tokens_do_not_bypass_rate_limit() {
    let cluster = cluster().publishing();
    let server = Server::start(&cluster).await;
    let foreign = |number: usize| {
        let mut claims = claims("x", i64::from(i32::MAX));
        (claims["iss"], claims["jti"]) = (json!("https://elsewhere"), json!(number.to_string()));
        Issuer::new("x").sign(&claims)
    };
    let calls = (0..BURST as usize * 2)
        .map(|number| server.request(Method::GET, "/v1/nodes/a/shadow", &foreign(number)).send());
    // Each needs a separate connection, and one source has at most eight here, counting those that are just ending.
    let answers: Vec<_> =
        futures::StreamExt::collect(futures::StreamExt::buffer_unordered(futures::stream::iter(calls), 4)).await;
    let refused =
        |status: u16| answers.iter().filter(|answer| answer.as_ref().is_ok_and(|a| a.status() == status)).count();
    assert!(refused(429) > 0 && refused(401) > 0, "{} {}", refused(429), refused(401));
    assert_eq!(cluster.reviews(), 0, "the issuer that a token names is no way past the keys");
    server.stop().await;
}

#[tokio::test]
async fn token_of_other_account_is_rejected_without_review_and_rate_limited() {
    let cluster = cluster().publishing();
    let server = Server::start(&cluster).await;
    let mut claims = claims("controller", crate::clock::now().as_second() + 600);
    claims["sub"] = json!("system:serviceaccount:brupop-system:brupop-controller");
    let other = cluster.issuer.as_ref().as_ref().unwrap().sign(&claims);
    let mut last = (0, String::new());
    for number in 0..1_000 {
        last = problem(server.get("/v1/nodes/a/shadow", &other).await).await;
        if last.0 == 429 {
            break;
        }
        assert_eq!(last, (403, "forbidden".into()), "{number}");
    }
    assert_eq!(last.0, 429);
    assert_eq!(cluster.reviews(), 0);
    server.stop().await;
}

#[tokio::test]
async fn stream_ends_when_its_token_expires() {
    let cluster = cluster().publishing();
    let server = Server::start(&cluster).await;
    let soon = claims("agent-a", crate::clock::now().as_second() + 3);
    let mut lines = Lines::open(&server, &cluster.issuer.as_ref().as_ref().unwrap().sign(&soon)).await;
    lines.shadow().await;
    // Without the token's end, it would go on for minutes, and say so every 15 s.
    assert_eq!(lines.next().await, None);
    assert_eq!(cluster.reviews(), 1, "a token is checked when a stream is opened");
    server.stop().await;
}

#[tokio::test]
async fn excessive_reads_of_agent_are_rate_limited_but_reports_are_not() {
    let server = Server::start(&cluster()).await;
    let view: ShadowView = server.get("/v1/nodes/a/shadow", "agent-a").await.json().await.unwrap();
    let mut last = 0;
    for _ in 0..100 {
        last = server.get("/v1/nodes/a/shadow?fresh=true", "agent-a").await.status().as_u16();
        if last == 429 {
            break;
        }
    }
    assert_eq!(last, 429);
    let stream = server.get("/v1/nodes/a/shadow/watch", "agent-a").await;
    assert_eq!(problem(stream).await, (429, "too-many-requests".into()));
    assert_eq!(server.put("agent-a", &view.etag, json!({"state": "Idle"})).await.status(), StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn valid_tokens_of_other_nodes_count_against_source_limit() {
    let server = Server::start(&cluster()).await;
    for _ in 0..BURST * 3 {
        let answer = problem(server.get("/v1/nodes/a/shadow", "agent-b").await).await;
        // It is cached, and so passes until it expires from the cache and counts as any other does.
        if answer.0 == 429 {
            break;
        }
        assert_eq!(answer, (403, "forbidden".into()));
    }
    let answer = server.get("/v1/nodes/a/shadow", "never-seen").await;
    assert_eq!(problem(answer).await, (429, "too-many-requests".into()));
    server.stop().await;
}

#[tokio::test]
async fn many_tokens_of_one_node_are_rate_limited_without_affecting_other_nodes() {
    let cluster = cluster().publishing();
    let server = Server::start(&cluster).await;
    let mut last = (0, String::new());
    for number in 0..100 {
        let mut claims = claims("agent-b", crate::clock::now().as_second() + 600);
        claims["number"] = json!(number);
        let token = cluster.issuer.as_ref().as_ref().unwrap().sign(&claims);
        last = problem(server.get("/v1/nodes/a/shadow", &token).await).await;
        if last.0 == 429 {
            break;
        }
        assert_eq!(last, (403, "forbidden".into()));
    }
    assert_eq!(last, (429, "too-many-requests".into()));
    assert_eq!(server.get("/v1/nodes/a/shadow", &cluster.token("agent-a")).await.status(), StatusCode::OK);
    let (_, metrics) = server.plain("/metrics").await;
    let counted = r#"brupop_apiserver_refusals_total{reason="TooManyTokens"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
    server.stop().await;
}
