//! Effects of an outage of the cluster on agents.

use futures::future::join_all;

use super::*;

#[tokio::test]
async fn api_server_denial_returns_500_and_outage_503_that_closes_its_connection() {
    let answers = [
        (401, 500, "internal"),
        (403, 500, "internal"),
        (429, 503, "unavailable"),
        (500, 503, "unavailable"),
        (504, 503, "unavailable"),
    ];
    join_all(answers.map(async |(code, status, word)| {
        let cluster = cluster();
        let server = Server::start(&cluster).await;
        let view: ShadowView = server.get("/v1/nodes/a/shadow", "agent-a").await.json().await.unwrap();
        *cluster.outage.lock().unwrap() = Some(code);
        for answer in [
            server.get("/v1/nodes/a/shadow?fresh=true", "agent-a").await,
            // Newer than the copy, so the server reads live.
            server.get("/v1/nodes/a/shadow/watch?resourceVersion=999999", "agent-a").await,
        ] {
            assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{code}");
            assert_eq!(answer.headers().contains_key("connection"), status == 503, "{code}: the retry goes elsewhere");
            assert_eq!(problem(answer).await, (status, word.to_owned()), "{code}");
        }
        let answer = server.put("agent-a", &view.etag, json!({"state": "StagedUpdate"})).await;
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{code}");
        // The API server timed out during the write.
        let word = if code == 504 { "outcome-unknown" } else { word };
        assert_eq!(problem(answer).await, (status, word.to_owned()), "{code}");
        assert_eq!(server.get("/v1/nodes/a/shadow", "agent-a").await.status(), StatusCode::OK, "the copy is there");
        server.stop().await;
    }))
    .await;
}

#[tokio::test]
async fn unreadable_shadow_returns_500_instead_of_absent() {
    let cluster = cluster();
    let server = Server::start(&cluster).await;
    cluster.change(|object| object.as_mut().unwrap()["spec"] = json!({"attempt": "many"}));
    let fresh = server.get("/v1/nodes/a/shadow?fresh=true", "agent-a").await;
    assert_eq!(problem(fresh).await, (500, "internal".into()));
    let deadline = Instant::now() + DEADLINE;
    while server.get("/v1/nodes/a/shadow", "agent-a").await.status() == StatusCode::OK {
        assert!(Instant::now() < deadline, "the copy stays as it was");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(problem(server.get("/v1/nodes/a/shadow", "agent-a").await).await, (500, "internal".into()));
    let mut lines = Lines::open(&server, "agent-a").await;
    assert_eq!(lines.next().await, Some(WatchLine::Heartbeat));
    server.stop().await;
}

#[tokio::test]
async fn broken_watch_keeps_streams_and_missed_changes_are_sent() {
    join_all([Fault::Refused, Fault::Gone, Fault::Reset, Fault::CutOff].map(async |fault| {
        let cluster = cluster();
        let server = Server::start(&cluster).await;
        let mut lines = Lines::open(&server, "agent-a").await;
        assert_eq!(lines.shadow().await.metadata.generation, 1);
        let metric = "brupop_apiserver_shadow_watch_errors_total";
        assert!(server.plain("/metrics").await.1.contains(&format!("\n{metric} 0\n")), "{fault:?}");

        cluster.faults.send_modify(|faults| faults.push_back(fault));
        cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(2));
        assert_eq!(lines.shadow().await.metadata.generation, 2, "{fault:?}");
        let (_, metrics) = server.plain("/metrics").await;
        // An unterminated line counts as an ordinary end of the watch.
        let errors = u8::from(!matches!(fault, Fault::CutOff));
        assert!(metrics.contains(&format!("\n{metric} {errors}\n")), "{fault:?}: {metrics}");
        let lists = if matches!(fault, Fault::Gone) { 2 } else { 1 };
        assert_eq!(cluster.count("GET bottlerocketshadows"), lists, "{fault:?}");

        cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(3));
        assert_eq!(lines.shadow().await.metadata.generation, 3, "{fault:?}: the watch is there again");
        server.stop().await;
    }))
    .await;
}

#[tokio::test]
async fn many_streams_share_one_watch() {
    let cluster = cluster();
    let server = Server::start(&cluster).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        streams.push(Lines::open(&server, "agent-a").await);
    }
    let mut neighbour = Lines::of(server.get("/v1/nodes/b/shadow/watch", "agent-b").await);
    assert_eq!(neighbour.next().await, Some(WatchLine::Absent));
    for generation in [1, 2, 3] {
        if generation > 1 {
            cluster.change(|object| object.as_mut().unwrap()["metadata"]["generation"] = json!(generation));
        }
        for lines in &mut streams {
            assert_eq!(lines.shadow().await.metadata.generation, generation);
        }
        // Each event here ends its watch.
        let (watches, deadline) = (usize::try_from(generation).unwrap(), Instant::now() + DEADLINE);
        while cluster.count("GET bottlerocketshadows watch") < watches {
            assert!(Instant::now() < deadline, "there is no watch");
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(cluster.count("GET bottlerocketshadows watch"), watches);
    }
    assert_eq!(cluster.count("GET bottlerocketshadows"), 1, "and one list");
    server.stop().await;
}
