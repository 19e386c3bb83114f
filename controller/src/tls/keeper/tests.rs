//! The keeper with an API server that refuses some of its writes.

use std::io;
use std::sync::Mutex;

use clap::Parser as _;
use http::{Request, Response};
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use watches::Sink as _;

use super::*;
use crate::cache::uncounted;

/// An API server that accepts what it is sent, except for writes to the object of one name, which it answers with this
/// code: with 200 as if a client emptied the object at once.
#[derive(Clone, Default)]
struct Server {
    refuses: Arc<Mutex<Option<(&'static str, u16)>>>,
    /// The names of the written objects.
    written: Arc<Mutex<BTreeSet<String>>>,
}

impl Server {
    fn answer(&self, method: &http::Method, name: &str, mut sent: Value) -> (u16, Value) {
        let name = sent["metadata"]["name"].as_str().unwrap_or(name).to_owned();
        if let Some((_, code)) = self.refuses.lock().unwrap().filter(|(refused, _)| *refused == name) {
            if code == 200 {
                sent["data"] = json!({});
                sent["metadata"]["resourceVersion"] = json!("1");
                return (200, sent);
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Invalid",
                "message": format!("{name} is immutable, says {method}"), "metadata": {},
            });
            return (code, status);
        }
        let mut written = self.written.lock().unwrap();
        sent["metadata"]["resourceVersion"] = json!((10 + written.len()).to_string());
        written.insert(name);
        (200, sent)
    }

    fn keeper(&self) -> Keeper {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = self.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let sent = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                let name = parts.uri.path().rsplit('/').next().unwrap().to_owned();
                let (code, answer) = server.answer(&parts.method, &name, sent);
                let answer = Body::from(answer.to_string().into_bytes());
                reply.send_response(Response::builder().status(code).body(answer).unwrap());
            }
        });
        let caches = Caches::new(&uncounted());
        list(&caches.shadows);
        list(&caches.operator);
        let keeper = Keeper::new(
            kube::Client::new(service, "default"),
            Config::parse_from(["controller", "--identity=me"]),
            Leadership::forever(),
            Signer::default(),
            Metrics::new().unwrap(),
            caches,
        );
        for cache in [&keeper.authorities, &keeper.serving, &keeper.keys] {
            list(cache);
        }
        list(&keeper.trust);
        keeper
    }
}

fn list<P: planner::view::Projection>(cache: &Cache<P>) {
    cache.take(0, Event::Init);
    cache.take(0, Event::InitDone);
}

#[tokio::test]
async fn rejected_write_is_reported_and_does_not_block_independent_objects() {
    let (ca, serving, key, trust) =
        (names::CA_SECRET, names::SERVING_SECRET, names::PERMIT_KEY_SECRET, names::TRUST_CONFIG_MAP);
    for (refused, written) in [
        (ca, vec![key, trust]),
        (serving, vec![ca, key, trust]),
        (key, vec![ca, serving, trust]),
        (trust, vec![ca, key]),
    ] {
        let server = Server::default();
        *server.refuses.lock().unwrap() = Some((refused, 422));
        let mut keeper = server.keeper();
        for _ in 0..2 {
            // Further failures are not reported again: the operator's status would be written each time.
            let failed = keeper.keep(Timestamp::now()).await.failed;
            assert!(
                matches!(failed.values().next(), Some(TlsError::Api { name, .. }) if *name == refused),
                "{refused}"
            );
            let expected: BTreeSet<String> = written.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(*server.written.lock().unwrap(), expected, "{refused}");
            let problem = keeper.signer.facts().problem.unwrap_or_default();
            assert!(problem.contains(refused) && problem.contains("is immutable"), "{problem}");
        }
        let reported = *keeper.caches.changed.borrow();
        assert!(!keeper.keep(Timestamp::now()).await.failed.is_empty());
        assert_eq!(*keeper.caches.changed.borrow(), reported, "{refused}");

        *server.refuses.lock().unwrap() = None;
        assert!(keeper.keep(Timestamp::now()).await.failed.is_empty());
        assert_eq!(server.written.lock().unwrap().len(), 4, "{refused}");
        assert_eq!(keeper.signer.facts().problem, None, "{refused}");
    }
}

/// The text of a log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn refused_write_is_logged_as_failure_every_ten_minutes_and_as_done_only_once_it_is() {
    let log = Log::default();
    let count = |text: &str| String::from_utf8_lossy(&log.0.lock().unwrap()).matches(text).count();
    let writer = log.clone();
    // With one subscriber alone, a line of the log that another test reaches first is disabled for this one too.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::default();
    *server.refuses.lock().unwrap() = Some((names::SERVING_SECRET, 422));
    let mut keeper = server.keeper();
    let start = Instant::now();
    for (second, failures) in [(0, 1), (30, 1), (599, 1), (600, 2)] {
        let failed = keeper.keep(Timestamp::now()).await.failed;
        let differs = keeper.log_failures(&failed, start + Duration::from_secs(second));
        assert_eq!(differs, second == 0, "a pause after {second} s");
        assert_eq!(count("could not be written, trying again"), failures, "after {second} s");
    }
    assert_eq!(count("a new authority for certificates was made"), 1);
    assert_eq!(count("a serving certificate was issued"), 0);
    *server.refuses.lock().unwrap() = None;
    assert!(keeper.keep(Timestamp::now()).await.failed.is_empty());
    assert_eq!(count("a serving certificate was issued"), 1);
}

#[tokio::test]
async fn issued_certificate_is_usable_under_each_domain_that_the_flag_takes() {
    for (domain, taken) in
        [("cluster.local", true), ("k8s-1.corp.example", true), ("Corp.Example", false), ("corp.example.", false)]
    {
        let flag = format!("--cluster-domain={domain}");
        let config = Config::try_parse_from(["controller", "--identity=me", flag.as_str()]);
        assert_eq!(config.is_ok(), taken, "{domain}");
        let Ok(config) = config else { continue };
        let mut keeper = Server::default().keeper();
        keeper.config = config;
        let now = Timestamp::now();
        assert!(keeper.keep(now).await.failed.is_empty(), "{domain}");
        let leaf = keeper.gather(now, Instant::now()).facts.certificates.and_then(|certificates| certificates.leaf);
        assert!(leaf.is_some_and(|leaf| leaf.usable), "{domain}");
        let service = format!("{}.{}.svc", names::APISERVER, names::SYSTEM_NAMESPACE);
        assert_eq!(keeper.hosts(), [service.clone(), format!("{service}.{domain}")]);
    }
}

#[tokio::test]
async fn write_conflict_is_not_reported_as_problem() {
    let server = Server::default();
    *server.refuses.lock().unwrap() = Some((names::CA_SECRET, 409));
    let mut keeper = server.keeper();
    assert!(!keeper.keep(Timestamp::now()).await.failed.is_empty());
    assert_eq!(keeper.signer.facts().problem, None);
}

#[tokio::test]
async fn contention_on_ca_secret_is_reported_and_does_not_block_signing_key() {
    let server = Server::default();
    *server.refuses.lock().unwrap() = Some((names::CA_SECRET, 200));
    let mut keeper = server.keeper();
    let failed = keeper.keep(Timestamp::now()).await.failed;
    assert!(matches!(failed.values().collect::<Vec<_>>()[..], [TlsError::Contended]), "{failed:?}");
    let expected = [names::PERMIT_KEY_SECRET, names::TRUST_CONFIG_MAP].map(str::to_owned);
    assert_eq!(*server.written.lock().unwrap(), BTreeSet::from(expected));
    let problem = keeper.signer.facts().problem.unwrap_or_default();
    assert!(problem.contains("another client writes"), "{problem}");
}

/// As a tool that restores its own contents: it comes after each write, and not with it.
#[tokio::test(start_paused = true)]
async fn repeatedly_undone_writes_are_reported_and_rate_limited() {
    const LIMIT: usize = 10;
    // Often, and so rarely that no write is held back.
    for (period, held_back) in [(2, true), (20, false)] {
        let server = Server::default();
        let mut keeper = server.keeper();
        let wait = Duration::try_from(keeper.config.trust_wait.signed()).unwrap();
        let mut writes = 0;
        for undone in 0..100 {
            let failed = keeper.keep(Timestamp::now()).await.failed;
            let written = keeper.serving.get(names::SERVING_SECRET).is_some();
            assert_eq!(written, failed.is_empty(), "{failed:?}");
            writes += usize::from(written);
            // The authority was one more write.
            let reported = keeper.signer.facts().problem.is_some();
            assert_eq!(reported, writes + 1 >= LIMIT, "undone {undone} times: {writes} writes");
            list(&keeper.serving);
            tokio::time::advance(Duration::from_secs(period)).await;
        }
        assert_eq!(writes < 40, held_back, "{writes}");
        // The conflict is over.
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(keeper.keep(Timestamp::now()).await.failed.is_empty());
        assert!(keeper.signer.facts().problem.is_some(), "it may continue");
        tokio::time::advance(wait).await;
        assert!(keeper.keep(Timestamp::now()).await.failed.is_empty());
        assert_eq!(keeper.signer.facts().problem, None);
    }
}

/// Waits end by both clocks: the rules receive the time since which this process has seen a thing.
#[tokio::test]
async fn observed_duration_of_published_keys_restarts_after_removal() {
    let server = Server::default();
    let mut keeper = server.keeper();
    assert!(keeper.keep(Timestamp::now()).await.failed.is_empty());
    let now = Timestamp::now();
    let start = Instant::now() + Duration::from_secs(10);
    let observed_for = |keeper: &mut Keeper, second| {
        let found = keeper.gather(now, start + Duration::from_secs(second)).facts;
        let leaf = found.certificates.and_then(|certificates| certificates.leaf).map(|leaf| leaf.id);
        let ids = found.published.authorities.iter().chain(&found.published.keys).chain(&leaf);
        let observed_for = ids.map(|id| found.observed_for.get(id).map(|observed_for| observed_for.as_secs() >= 60));
        observed_for.collect::<Option<Vec<_>>>().unwrap()
    };
    keeper.seen.clear();
    assert_eq!(observed_for(&mut keeper, 0), [false; 3], "an authority, a key, and a certificate");
    assert_eq!(observed_for(&mut keeper, 60), [true; 3]);
    let map = keeper.trust.get(names::TRUST_CONFIG_MAP).unwrap();
    list(&keeper.trust);
    assert_eq!(observed_for(&mut keeper, 70), [true]);
    keeper.trust.written(&map.0);
    assert_eq!(observed_for(&mut keeper, 80), [false, false, true]);
}
