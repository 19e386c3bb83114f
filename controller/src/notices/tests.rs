//! Notices over the wire, to receivers that answer, refuse, hang and ask for time.

use std::path::Path;

use jiff::Timestamp;
use kube::client::Body;
use models::operator::{NoticeEvent, NoticeFormat, NoticesStatus};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::clock::Clock;
use crate::leader::Leadership;
use crate::metrics::Metrics;

/// Longest wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

fn receiver(name: &str, format: NoticeFormat) -> NoticeReceiver {
    NoticeReceiver { name: name.into(), format, url_key: name.into(), token_key: None, events: Vec::new() }
}

fn notice(id: &str, receivers: &[&str]) -> Notice {
    Notice {
        id: id.into(),
        event: "NodesBlocked".into(),
        time: Timestamp::from_second(1_800_000_000).unwrap(),
        subject: "node/a".into(),
        nodes: vec!["a".into()],
        cause: "a is blocked (Held): by <me> & you".into(),
        deadline: Timestamp::from_second(1_800_000_600).ok(),
        command: "kubectl brupop explain a".into(),
        receivers: receivers.iter().map(|&name| name.into()).collect(),
    }
}

#[test]
fn cloud_event_has_required_attributes_name_of_its_receiver_and_command_for_namespace() {
    let receiver = receiver("prod-eu", NoticeFormat::CloudEvents);
    let (content_type, body) = format::body(&receiver, "other", &notice("uid/blocked/1", &[]));
    assert_eq!(content_type, "application/cloudevents+json");
    let expected = json!({
        "specversion": "1.0",
        "id": "uid/blocked/1",
        "source": "/apis/brupop.bottlerocket.aws/v1/namespaces/other/bottlerocketupdateoperators/default",
        "type": "aws.bottlerocket.brupop.NodesBlocked",
        "subject": "node/a",
        "time": "2027-01-15T08:00:00Z",
        "datacontenttype": "application/json",
        "data": {
            "receiver": "prod-eu",
            "nodes": ["a"],
            "cause": "a is blocked (Held): by <me> & you",
            "deadline": "2027-01-15T08:10:00Z",
            "command": "kubectl brupop explain a -n other",
        },
    });
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
}

#[test]
fn slack_message_begins_with_name_of_its_receiver_and_escapes_control_characters() {
    let receiver = receiver("prod-eu", NoticeFormat::Slack);
    let (content_type, body) = format::body(&receiver, "brupop-system", &notice("1", &[]));
    assert_eq!(content_type, "application/json");
    let text = "[prod-eu] *Nodes blocked* (node/a)\na is blocked (Held): by &lt;me&gt; &amp; you\nNodes: a\n\
                Deadline: 2027-01-15T08:10:00Z\n`kubectl brupop explain a`";
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), json!({"text": text}));
}

/// A receiver that answers with these replies in turn, and with the last one from then on; an empty one is none.
struct Server {
    url: String,
    seen: watch::Receiver<Vec<String>>,
    _task: JoinSet<()>,
}

impl Server {
    async fn start(replies: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
        let (sender, seen) = watch::channel(Vec::new());
        let replies = replies.to_vec();
        let task = async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read(&mut stream).await;
                let reply = replies.get(sender.borrow().len()).or(replies.last()).copied().unwrap_or_default();
                sender.send_modify(|seen| seen.push(request));
                if reply.is_empty() {
                    open.push(stream);
                    continue;
                }
                let reply = format!("HTTP/1.1 {reply}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        };
        Self { url, seen, _task: JoinSet::from_iter([task]) }
    }

    async fn until(&mut self, count: usize) -> Vec<String> {
        let seen = tokio::time::timeout(PATIENCE, self.seen.wait_for(|seen| seen.len() >= count)).await;
        seen.expect("it has to come").unwrap().clone()
    }
}

async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return String::new();
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}

/// The sender, with the folder of its Secret.
struct Sending {
    notices: Notices,
    metrics: Metrics,
    changes: watch::Receiver<u64>,
    folder: tempfile::TempDir,
}

impl Sending {
    fn start(keys: &[(&str, &str)]) -> Self {
        Self::led(Leadership::forever(), keys)
    }

    fn led(leadership: Leadership, keys: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (key, value) in keys {
            std::fs::write(folder.path().join(key), value).unwrap();
        }
        let (service, _) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let mut applier = Applier::of_leader(kube::Client::new(service, "default"));
        applier.leadership = leadership;
        let (metrics, changes) = (applier.metrics.clone(), applier.caches.changed.subscribe());
        let notices = Notices::start(applier, Some(folder.path().to_owned()));
        Self { notices, metrics, changes, folder }
    }

    fn want(&self, receivers: &[NoticeReceiver], recorded: &[Notice]) {
        let policy = policy::Notices { receivers: receivers.to_vec(), blocked_after: PATIENCE };
        let notices = NoticesStatus { pending: recorded.to_vec(), ..NoticesStatus::default() };
        let status =
            BottlerocketUpdateOperatorStatus { notices: Some(notices), ..BottlerocketUpdateOperatorStatus::default() };
        self.notices.want(Some(&policy), Some(&status));
    }

    /// Waits until the facts have this property.
    async fn until(&mut self, holds: impl Fn(&NoticeFacts) -> bool) -> NoticeFacts {
        let found = async {
            loop {
                let facts = self.notices.facts();
                if holds(&facts) {
                    return facts;
                }
                self.changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("it has to come")
    }

    fn count(&self, receiver: &str, result: &str) -> String {
        let series = format!("brupop_controller_notices_total{{receiver=\"{receiver}\",result=\"{result}\"}} ");
        self.metrics.text().lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned)).unwrap_or_default()
    }
}

fn done(facts: &NoticeFacts) -> Vec<&str> {
    facts.done.iter().map(|(_, id)| id.as_str()).collect()
}

#[tokio::test]
async fn hanging_receiver_delays_no_other_and_token_is_sent() {
    let (mut good, hanging) = (Server::start(&["204 No Content"]).await, Server::start(&[""]).await);
    let mut sending = Sending::start(&[("good", &good.url), ("hanging", &hanging.url)]);
    let receivers = [receiver("good", NoticeFormat::CloudEvents), receiver("hanging", NoticeFormat::CloudEvents)];
    sending.want(&receivers, &[notice("1", &["good", "hanging"]), notice("2", &["good"])]);
    let facts = sending.until(|facts| facts.done.len() == 2).await;
    assert!(facts.done.iter().all(|(receiver, _)| receiver == "good"), "{facts:?}");
    let seen = good.until(2).await;
    let head = seen[0].to_lowercase();
    assert!(head.starts_with("post /secret-path http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/cloudevents+json") && !head.contains("authorization"), "{head}");
    assert_eq!((sending.count("good", "Sent"), sending.count("hanging", "Sent")), ("2".into(), "0".into()));
    // A notice that was sent is not sent again while it is recorded, and is forgotten afterwards.
    sending.want(&receivers, &[notice("1", &["good", "hanging"])]);
    assert_eq!(done(&sending.notices.facts()), ["1"]);
    sending.want(&receivers, &[notice("1", &["hanging"])]);
    assert_eq!(done(&sending.notices.facts()), Vec::<&str>::new());
    assert_eq!(good.until(2).await.len(), 2);
}

#[tokio::test]
async fn replica_that_lost_lease_sends_nothing() {
    let server = Server::start(&["200 OK"]).await;
    let mut sending = Sending::led(Leadership::over(), &[("a", &server.url)]);
    sending.want(&[receiver("a", NoticeFormat::CloudEvents)], &[notice("1", &["a"])]);
    let ended = async {
        while sending.count("a", "Failed") == "0" {
            sending.changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("an attempt has to end");
    assert_eq!((sending.count("a", "Sent"), server.seen.borrow().len()), ("0".into(), 0));
}

#[tokio::test(start_paused = true)]
async fn request_to_hanging_receiver_has_time_limit() {
    let server = Server::start(&[""]).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), &server.url).unwrap();
    let secret = Secret { folder: Some(folder.path()), namespace: "n" };
    let (receiver, notice) = (receiver("a", NoticeFormat::CloudEvents), notice("1", &["a"]));
    let outcome = tokio::time::timeout(PATIENCE, send::send(&secret, &receiver, &notice, &Clock::default()))
        .await
        .expect("a limit");
    assert!(outcome.message().unwrap().starts_with("no answer within 10s"), "{outcome:?}");
}

#[tokio::test]
async fn receiver_that_fails_gets_notice_again() {
    let mut server = Server::start(&["429 Too Many Requests", "200 OK"]).await;
    let mut sending = Sending::start(&[("a", &server.url)]);
    sending.want(&[receiver("a", NoticeFormat::CloudEvents)], &[notice("1", &["a"])]);
    sending.until(|facts| facts.done.len() == 1).await;
    let seen = server.until(2).await;
    assert!(seen.len() == 2 && seen[0] == seen[1], "{seen:?}");
    assert_eq!((sending.count("a", "Failed"), sending.count("a", "Dropped")), ("1".into(), "0".into()));
}

#[test]
fn each_answer_of_receiver_has_its_outcome() {
    let answer = |code: u16, after: Option<&str>| {
        let headers = after.map(|after| (reqwest::header::RETRY_AFTER, after.parse().unwrap())).into_iter().collect();
        send::outcome(&receiver("a", NoticeFormat::Slack), code.try_into().unwrap(), &headers, Timestamp::now())
    };
    let after = |outcome: Outcome| match outcome {
        Outcome::Retry { after, unusable: false, .. } => after,
        other => panic!("{other:?}"),
    };
    assert_eq!((answer(200, None), answer(202, None)), (Outcome::Sent, Outcome::Sent));
    assert_eq!(after(answer(429, Some("7"))), Some(Duration::from_secs(7)));
    assert!(after(answer(503, Some("Wed, 01 Jan 2200 00:00:00 GMT"))) > Some(Duration::from_secs(3600)));
    assert_eq!(
        (after(answer(429, None)), after(answer(500, Some("soon"))), after(answer(408, None))),
        (None, None, None)
    );
    assert_eq!((after(answer(401, None)), after(answer(403, None))), (None, None), "a token that is replaced");
    for (code, text) in [(301, "it redirects"), (400, "it refuses with 400"), (410, "it refuses with 410")] {
        let Outcome::Refused { message } = answer(code, Some("7")) else { panic!("{code} is retried") };
        assert!(message.starts_with(text) && message.contains("key a of the Secret brupop-notices"), "{message}");
    }
}

#[tokio::test]
async fn refusal_ends_attempts_and_shows_receiver_and_next_step_without_address() {
    let mut server = Server::start(&["404 Not Found"]).await;
    let mut sending = Sending::start(&[("a", &server.url)]);
    sending.want(&[receiver("a", NoticeFormat::CloudEvents)], &[notice("1", &["a"])]);
    let facts = sending.until(|facts| facts.done.len() == 1).await;
    let (holds, reason, message) = facts.state.unwrap();
    assert!(!holds && reason == "ReceiverFails" && message.starts_with("a: it refuses with 404: check"), "{message}");
    assert!(!message.contains("secret-path"), "{message}");
    assert_eq!((server.until(1).await.len(), sending.count("a", "Dropped")), (1, "1".into()));
}

#[tokio::test]
async fn problem_of_secret_is_found_before_first_notice_and_ends_when_corrected() {
    let server = Server::start(&["200 OK"]).await;
    let mut sending = Sending::start(&[]);
    let with_token = NoticeReceiver { token_key: Some("t".into()), ..receiver("a", NoticeFormat::CloudEvents) };
    sending.want(std::slice::from_ref(&with_token), &[]);
    let facts = sending.until(|facts| facts.state.as_ref().is_some_and(|state| !state.0)).await;
    let (_, reason, message) = facts.state.unwrap();
    assert_eq!(reason, "ReceiverUnusable");
    assert_eq!(
        message,
        "a cannot be used: the Secret brupop-notices in brupop-system has no key a: add it; it arrives within two minutes"
    );
    std::fs::write(sending.folder.path().join("a"), &server.url).unwrap();
    sending.want(&[receiver("a", NoticeFormat::CloudEvents)], &[]);
    let facts = sending.until(|facts| facts.state.as_ref().is_some_and(|state| state.0)).await;
    assert_eq!(facts.state.unwrap().1, "AsExpected");
}

#[tokio::test]
async fn unusable_settings_are_named_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let write = |key: &str, value: &str| std::fs::write(folder.path().join(key), value).unwrap();
    let secret = Secret { folder: Some(folder.path()), namespace: "n" };
    let (cloud, slack) = (receiver("u", NoticeFormat::CloudEvents), receiver("u", NoticeFormat::Slack));
    let with_token = NoticeReceiver { token_key: Some("t".into()), ..cloud.clone() };
    write("t", "secret\ntoken");
    for (url, receiver, expected) in [
        (" ", &cloud, "key u of the Secret brupop-notices is empty"),
        ("hooks/secret", &cloud, "key u of the Secret brupop-notices holds no URL that begins with https:// or"),
        ("http://h/secret", &slack, "key u of the Secret brupop-notices holds no URL that begins with https://:"),
        ("http://h/secret", &with_token, "key u of the Secret brupop-notices holds no URL that begins with https://:"),
        ("ftp://h/secret", &cloud, "key u of the Secret brupop-notices holds no URL"),
        ("https://h/secret", &with_token, "key t of the Secret brupop-notices holds no token that a header can have"),
    ] {
        write("u", url);
        let Err(problem) = secret.target(receiver).await else { panic!("{url} is usable") };
        assert!(problem.starts_with(expected) && !problem.contains("secret"), "{url}: {problem}");
    }
    write("u", "https://h/secret");
    write("ca.crt", "no certificate");
    let Err(problem) = secret.target(&cloud).await else { panic!("usable") };
    assert!(problem.starts_with("key ca.crt of the Secret brupop-notices holds no certificate in PEM"), "{problem}");
    let nowhere = Secret { folder: Some(Path::new("/nowhere")), namespace: "n" };
    assert!(nowhere.target(&cloud).await.err().unwrap().contains("has no key u"));
}

#[tokio::test]
async fn unreachable_receiver_is_named_without_its_address() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), "http://127.0.0.1:1/secret-path").unwrap();
    let secret = Secret { folder: Some(folder.path()), namespace: "n" };
    let outcome =
        send::send(&secret, &receiver("a", NoticeFormat::CloudEvents), &notice("1", &["a"]), &Clock::default()).await;
    let message = outcome.message().unwrap();
    assert!(message.starts_with("no answer: ") && !message.contains("secret"), "{message}");
}

#[tokio::test]
async fn certificate_of_receiver_is_verified_with_authority_in_secret() {
    let (url, certificate) = crate::expressions::tests::secure().await;
    let (_, other) = crate::expressions::tests::secure().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), format!("{url}/api/v1/query")).unwrap();
    let secret = Secret { folder: Some(folder.path()), namespace: "n" };
    let sent = async |authority: &str| {
        std::fs::write(folder.path().join("ca.crt"), authority).unwrap();
        send::send(&secret, &receiver("a", NoticeFormat::Slack), &notice("1", &["a"]), &Clock::default()).await
    };
    assert_eq!(sent(&certificate).await, Outcome::Sent);
    let outcome = sent(&other).await;
    let message = outcome.message().unwrap();
    assert!(message.contains("invalid peer certificate") && !message.contains("/api/v1"), "{message}");
}

#[test]
fn corrected_secret_ends_its_problem_and_no_other() {
    let mut outboxes = Outboxes::default();
    outboxes.want(&[receiver("a", NoticeFormat::Slack)], &[notice("1", &["a"])], "", Instant::now());
    let reason = |outboxes: &Outboxes| outboxes.facts().state.unwrap().1;
    assert_eq!((outboxes.checked("a", Some("no key".into())), reason(&outboxes)), (true, "ReceiverUnusable"));
    assert!(!outboxes.checked("a", Some("no key".into())));
    assert_eq!((outboxes.checked("a", None), reason(&outboxes)), (true, "AsExpected"));
    outboxes.due(Instant::now());
    outboxes.record("a", "1", Outcome::Refused { message: "404".into() }, Instant::now(), 0.0);
    assert_eq!((outboxes.checked("a", None), reason(&outboxes)), (false, "ReceiverFails"));

    // The Secret is deleted and created again, as a check sees it, or an attempt to send: the receiver has taken nothing meanwhile.
    assert_eq!((outboxes.checked("a", Some("no key".into())), reason(&outboxes)), (true, "ReceiverFails"));
    assert_eq!((outboxes.checked("a", None), reason(&outboxes)), (true, "ReceiverFails"));
    outboxes.want(&[receiver("a", NoticeFormat::Slack)], &[notice("2", &["a"])], "", Instant::now());
    outboxes.due(Instant::now() + PATIENCE);
    let no_key = Outcome::Retry { message: "no key".into(), after: None, unusable: true };
    outboxes.record("a", "2", no_key, Instant::now(), 0.0);
    let both = (false, "ReceiverFails", "a: 404; and a cannot be used: no key".to_owned());
    assert_eq!(outboxes.facts().state, Some(both));
    assert_eq!((outboxes.checked("a", None), reason(&outboxes)), (true, "ReceiverFails"));
    outboxes.due(Instant::now() + PATIENCE);
    outboxes.record("a", "2", Outcome::Sent, Instant::now(), 0.0);
    assert_eq!(reason(&outboxes), "AsExpected");
}

#[test]
fn receiver_that_failed_under_an_earlier_leader_fails_until_it_takes_a_notice() {
    let now = Instant::now();
    let all = ["a", "b", "c"].map(|name| receiver(name, NoticeFormat::Slack));
    let state = |outboxes: &Outboxes| outboxes.facts().state.unwrap();
    let send = |outboxes: &mut Outboxes, name: &str, outcome: Outcome| {
        outboxes.due(now + PATIENCE);
        outboxes.record(name, "1", outcome, now, 0.0);
    };
    let refused = |text: &str| Outcome::Refused { message: text.into() };
    let mut first = Outboxes::default();
    first.want(&all, &[notice("1", &["a", "b"])], "", now);
    first.checked("c", Some("no key".into()));
    send(&mut first, "a", refused("it refuses with 404: check the webhook; it is gone"));
    send(&mut first, "b", refused("it refuses with 410"));
    let failing = "a: it refuses with 404: check the webhook; it is gone; and b: it refuses with 410";
    let (_, reason, message) = state(&first);
    assert_eq!((reason, &message), ("ReceiverFails", &format!("{failing}; and c cannot be used: no key")));

    // The next leader has sent nothing yet. The key has been added in the meantime, which it finds by itself.
    let mut next = Outboxes::default();
    next.want(&all, &[notice("1", &["b"])], &message, now);
    for name in ["a", "b", "c"] {
        next.checked(name, None);
    }
    assert_eq!(state(&next), (false, "ReceiverFails", failing.to_owned()));
    send(&mut next, "b", Outcome::Sent);
    let left = "a: it refuses with 404: check the webhook; it is gone";
    assert_eq!(state(&next), (false, "ReceiverFails", left.to_owned()), "a has taken none");

    // Another change of its settings is no success either; another name is another receiver.
    let mut edited = all.clone();
    edited[0].events = vec![NoticeEvent::Frozen];
    next.want(&edited, &[notice("2", &["a"])], left, now);
    assert_eq!(state(&next), (false, "ReceiverFails", left.to_owned()));
    edited[0].name = "d".into();
    let (_, dropped) = next.want(&edited, &[], left, now);
    assert_eq!((state(&next).0, dropped), (true, vec![("a".to_owned(), 1)]), "its notices are dropped, and counted");
}

#[test]
fn attempts_are_bounded_and_further_and_further_apart() {
    let mut outboxes = Outboxes::default();
    let (all, recorded) = ([receiver("a", NoticeFormat::Slack)], [notice("1", &["a"]), notice("2", &["a"])]);
    let mut now = Instant::now();
    assert_eq!(outboxes.want(&all, &recorded, "", now), (true, vec![]));
    assert!(outboxes.take_unchecked());
    let mut pauses = Vec::new();
    let failure = |after| Outcome::Retry { message: "it answers 503".into(), after, unusable: false };
    loop {
        let (due, next) = outboxes.due(now);
        let Some((_, notice)) = due.first() else {
            pauses.push(next.unwrap() - now);
            assert!(pauses.len() < 20, "{pauses:?}");
            now = next.unwrap();
            continue;
        };
        assert_eq!(notice.id, "1");
        assert_eq!(outboxes.due(now), (vec![], None), "one at a time");
        if outboxes.record("a", "1", failure(None), now, 0.999) == Ended::GivenUp {
            break;
        }
    }
    assert_eq!(pauses.len(), 15);
    assert!(pauses.is_sorted() && pauses[14] >= Duration::from_secs(250), "{pauses:?}");
    // The next notice gets attempts of its own.
    now += Duration::from_secs(3600);
    assert_eq!(outboxes.due(now).0[0].1.id, "2");
    assert_eq!(outboxes.record("a", "2", failure(Some(Duration::from_secs(900))), now, 0.0), Ended::Again);
    assert_eq!(outboxes.due(now), (vec![], Some(now + Duration::from_secs(900))));
    assert_eq!(outboxes.want(&all, &recorded[..1], "", now), (false, vec![("a".to_owned(), 1)]), "dropped by the plan");
}

#[test]
fn requested_notice_ends_the_pause_after_failures() {
    let mut outboxes = Outboxes::default();
    let all = [receiver("a", NoticeFormat::Slack)];
    let now = Instant::now();
    outboxes.want(&all, &[notice("1", &["a"])], "", now);
    outboxes.due(now);
    let refused = Outcome::Retry { message: "it refuses with 401".into(), after: None, unusable: false };
    assert_eq!(outboxes.record("a", "1", refused, now, 0.999), Ended::Again);
    assert_eq!(outboxes.due(now).0, []);
    let test = Notice { event: "Test".into(), ..notice("2", &["a"]) };
    assert!(outboxes.want(&all, &[notice("1", &["a"]), test], "", now).0);
    assert_eq!(outboxes.due(now).0[0].1.id, "1", "in their order");
}

#[test]
fn receiver_gets_one_notice_a_second_at_most() {
    let mut outboxes = Outboxes::default();
    let (all, recorded) = ([receiver("a", NoticeFormat::Slack)], [notice("1", &["a"]), notice("2", &["a"])]);
    let now = Instant::now();
    outboxes.want(&all, &recorded, "", now);
    assert_eq!(outboxes.due(now).0[0].1.id, "1");
    assert_eq!(outboxes.record("a", "1", Outcome::Sent, now, 0.0), Ended::Sent);
    let next = now + Duration::from_secs(1);
    assert_eq!(outboxes.due(now), (vec![], Some(next)));
    assert_eq!(outboxes.due(next).0[0].1.id, "2");
}
