//! Queries over the wire, to a server with scripted answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::client::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::*;
use crate::metrics::Metrics;

/// Maximum time that a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A timeout that no answer of these tests reaches.
const AMPLE: Duration = Duration::from_secs(60);

const QUIET: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
const FIRING: &str =
    r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1,"7"]}]}}"#;

/// The server's reaction to a query.
#[derive(Clone)]
enum Reply {
    /// Writes these bytes and closes.
    Raw(Vec<u8>),
    /// Sends nothing and keeps the connection.
    Silence,
    /// Waits for a permit, then replies.
    Permitted(Arc<Semaphore>, Box<Reply>),
}

fn reply(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Raw(
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
            .into_bytes(),
    )
}

fn ok(body: &str) -> Reply {
    reply("200 OK", "", body)
}

/// The queries that the server has received, with their headers, and the highest number at the same time.
#[derive(Clone, Default)]
struct Seen {
    questions: Vec<String>,
    heads: Vec<String>,
    open: usize,
    most_open: usize,
}

struct Server {
    url: String,
    seen: watch::Receiver<Seen>,
    _task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts the server. `script` returns the reaction to a query, given its text and the number of queries before it.
    async fn start(script: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base", listener.local_addr().unwrap());
        let (sender, seen) = watch::channel(Seen::default());
        let (sender, script) = (Arc::new(sender), Arc::new(script));
        let _task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (sender, script) = (sender.clone(), script.clone());
                tokio::spawn(async move { serve(stream, &sender, &*script).await });
            }
        });
        Self { url, seen, _task }
    }

    fn settings(&self) -> Prometheus {
        Prometheus { url: self.url.clone(), timeout: AMPLE, interval: Duration::from_millis(20) }
    }

    async fn until(&mut self, holds: impl Fn(&Seen) -> bool) -> Seen {
        tokio::time::timeout(PATIENCE, self.seen.wait_for(holds)).await.expect("it has to come").unwrap().clone()
    }

    /// Returns the header `Authorization` of each query, in lower case.
    fn authorization(&self) -> Vec<Option<String>> {
        let of = |head: &String| {
            head.to_lowercase().lines().find_map(|l| Some(l.strip_prefix("authorization: ")?.to_owned()))
        };
        self.seen.borrow().heads.iter().map(of).collect()
    }

    fn count(&self, question: &str) -> usize {
        self.seen.borrow().questions.iter().filter(|q| *q == question).count()
    }
}

async fn serve(
    mut stream: TcpStream,
    sender: &watch::Sender<Seen>,
    script: &(dyn Fn(&str, usize) -> Reply + Send + Sync),
) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("POST /base/api/v1/query HTTP/1.1\r\n"), "{head}");
        assert!(head.to_lowercase().contains("content-type: application/x-www-form-urlencoded"), "{head}");
        let length = head.to_lowercase().lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let form = reqwest::Url::parse(&format!("http://form/?{body}")).unwrap();
    let question = form.query_pairs().find(|(key, _)| key == "query").unwrap().1.into_owned();
    let mut before = 0;
    sender.send_modify(|seen| {
        before = seen.questions.len();
        seen.questions.push(question.clone());
        seen.heads.push(head.clone());
        seen.open += 1;
        seen.most_open = seen.most_open.max(seen.open);
    });
    let mut reply = script(&question, before);
    if let Reply::Permitted(permits, then) = reply {
        permits.acquire().await.unwrap().forget();
        reply = *then;
    }
    sender.send_modify(|seen| seen.open -= 1);
    match reply {
        // The client may have closed the connection already.
        Reply::Raw(bytes) => drop(stream.write_all(&bytes).await),
        _ => std::future::pending().await,
    }
}

/// Sends one query without credentials.
async fn send_to(settings: &Prometheus) -> Answer {
    send_with(settings, &Secret::default()).await
}

/// Sends one query with the credentials of a Secret.
async fn send_with(settings: &Prometheus, secret: &Secret) -> Answer {
    let client = query::client(settings, None).await.unwrap();
    query::send(&client, settings, secret, "up == 0", Timestamp::UNIX_EPOCH).await
}

async fn answer_to(reply: Reply) -> Answer {
    let server = Server::start(move |_, _| reply.clone()).await;
    send_to(&server.settings()).await
}

fn quiet() -> Answer {
    Answer::Quiet { since: Timestamp::UNIX_EPOCH, asked: Timestamp::UNIX_EPOCH }
}

fn why(answer: Answer) -> String {
    match answer {
        Answer::Failed { message } => message,
        other => panic!("{other:?} is an answer"),
    }
}

#[tokio::test]
async fn empty_result_is_quiet_and_any_series_is_firing() {
    assert_eq!(answer_to(ok(QUIET)).await, quiet());
    let firing =
        Answer::Firing { series: r#"{a="b"} 7"#.into(), since: Timestamp::UNIX_EPOCH, asked: Timestamp::UNIX_EPOCH };
    assert_eq!(answer_to(ok(FIRING)).await, firing);
}

#[tokio::test]
async fn invalid_prometheus_response_fails_with_advice() {
    let giant = "x".repeat(2 << 20);
    // Declares no length: only reading shows the size.
    let endless = Reply::Raw(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{giant}").into_bytes());
    let bad = r#"{"status":"error","errorType":"bad_data","error":"1:4: parse error"}"#;
    for (what, reply, message) in [
        ("a mistake", reply("400 Bad Request", "", bad), "could not evaluate the expression: 1:4: parse error"),
        ("its error", reply("503 Service Unavailable", "", "down"), "answered 503: is spec.prometheus.url the base"),
        ("nothing, from a server that fails", reply("500 Internal Server Error", "", QUIET), "answered 500"),
        ("another server", reply("404 Not Found", "", "<html>"), "answered 404: is spec.prometheus.url the base"),
        ("a page", ok("<html>"), "not Prometheus' JSON: is spec.prometheus.url the base"),
        (
            "half an answer",
            Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"status\"".to_vec()),
            "is the address right",
        ),
        ("no HTTP", Reply::Raw(b"garbage\r\n\r\n".to_vec()), "is the address right"),
        ("a connection that closes", Reply::Raw(Vec::new()), "is the address right"),
        ("more than anybody wants", ok(&giant), "larger than 1 MiB: let the expression return less"),
        ("more than it says", endless, "larger than 1 MiB"),
        ("a login page", reply("401 Unauthorized", "", QUIET), "answered 401: it asks for credentials"),
        (
            "a redirect",
            reply("302 Found", "location: http://me:secret@other/login?token=secret\r\n", QUIET),
            "redirects to http://other/login, and redirects are not followed",
        ),
        ("a number", ok(r#"{"status":"success","data":{"resultType":"scalar","result":[1,"0"]}}"#), "a comparison"),
    ] {
        let shown = why(answer_to(reply).await);
        assert!(shown.contains(message) && !shown.contains("secret"), "{what}: {shown}");
        assert!(shown.chars().count() < 600, "{what}: {shown}");
    }
}

#[tokio::test]
async fn credentials_in_url_are_not_sent() {
    let server = Server::start(|_, _| ok(QUIET)).await;
    let url = server.url.replace("http://", "http://me:secret@");
    let answer = send_to(&Prometheus { url, ..server.settings() }).await;
    assert_eq!(answer, quiet());
    assert_eq!(server.authorization(), [None]);
}

/// The folder of a Secret, mounted as the kubelet does it.
fn mounted(name: &str, keys: &[(&str, &[u8])]) -> (Directory, Secret) {
    let directory = Directory::new(name);
    std::fs::create_dir(directory.0.join("..2027_01_15")).unwrap();
    std::os::unix::fs::symlink("..2027_01_15", directory.0.join("..data")).unwrap();
    for (key, value) in keys {
        std::fs::write(directory.0.join("..data").join(key), value).unwrap();
        std::os::unix::fs::symlink(std::path::Path::new("..data").join(key), directory.0.join(key)).unwrap();
    }
    let secret = Secret { folder: Some(directory.0.clone()), namespace: "brupop-system".into() };
    (directory, secret)
}

#[tokio::test]
async fn credentials_of_secret_are_sent() {
    let basic = "basic bwu6c2vjcmv0icm="; // me:secret #
    for (name, keys, expected) in [
        ("no Secret", &[][..], None),
        ("token", &[("token", &b"Secret\n"[..])], Some("bearer secret")),
        ("basic", &[("username", &b"me"[..]), ("password", b"secret #\r\n")], Some(basic)),
        ("more keys", &[("token", &b"Secret"[..]), ("ca.crt", b"")], Some("bearer secret")),
    ] {
        let server = Server::start(|_, _| ok(QUIET)).await;
        let (_directory, secret) = mounted(name, keys);
        let answer = send_with(&server.settings(), &secret).await;
        assert_eq!(answer, quiet(), "{name}");
        assert_eq!(server.authorization(), [expected.map(str::to_owned)], "{name}");
    }
}

#[tokio::test]
async fn unusable_secret_fails_query_with_advice_and_nothing_is_sent() {
    let server = Server::start(|_, _| ok(QUIET)).await;
    for (name, keys, message) in [
        (
            "empty token",
            &[("token", &b" \n"[..])][..],
            "key token of the Secret brupop-prometheus in brupop-system is empty",
        ),
        ("binary", &[("token", &b"secret\xff"[..])], "is empty, or no text: correct it"),
        ("two lines", &[("token", &b"secret\nsecret"[..])], "no token that a header can have: correct it"),
        ("only user", &[("username", &b"secret"[..])], "brupop-system has a username and no password: add it"),
        ("only password", &[("password", &b"secret"[..])], "brupop-system has a password and no username: add it"),
        ("empty password", &[("username", &b"secret"[..]), ("password", b"")], "key password of the Secret"),
        ("colon", &[("username", &b"secret:a"[..]), ("password", b"secret")], "has a colon"),
        ("both", &[("token", &b"secret"[..]), ("password", b"secret")], "remove what Prometheus does not ask for"),
        ("misspelled", &[("Token", &b"secret"[..])], "has no key token, and no username and password"),
    ] {
        let (_directory, secret) = mounted(name, keys);
        let shown = why(send_with(&server.settings(), &secret).await);
        assert!(shown.contains(message) && !shown.contains("secret"), "{name}: {shown}");
    }
    let (directory, secret) = mounted("folder as key", &[]);
    std::fs::create_dir(directory.0.join("token")).unwrap();
    let shown = why(send_with(&server.settings(), &secret).await);
    assert!(shown.contains("key token of the Secret brupop-prometheus in brupop-system cannot be read"), "{shown}");
    drop(directory);
    let shown = why(send_with(&server.settings(), &secret).await);
    assert!(shown.starts_with("the Secret brupop-prometheus in brupop-system cannot be read"), "{shown}");
    assert_eq!(server.authorization(), [], "nothing was sent");
}

#[tokio::test]
async fn refused_query_names_credentials_to_correct_and_never_shows_them() {
    let login = "www-authenticate: Basic\r\n";
    let write = "write a token, or a username and password, into the Secret brupop-prometheus in brupop-system";
    let refuses = "it refuses the token of the Secret brupop-prometheus in brupop-system";
    for (name, keys, message) in [
        ("without", &[][..], write),
        ("with token", &[("token", &b"secret"[..])], refuses),
        ("password", &[("username", &b"me"[..]), ("password", b"secret")], "it refuses the username and password of"),
    ] {
        for status in ["401 Unauthorized", "403 Forbidden"] {
            let server = Server::start(move |_, _| reply(status, login, "no")).await;
            let (_directory, secret) = mounted(name, keys);
            let shown = why(send_with(&server.settings(), &secret).await);
            assert!(shown.contains(message) && shown.contains(&status[..3]) && !shown.contains("secret"), "{shown}");
        }
    }
    let shown = why(answer_to(reply("401 Unauthorized", login, "no")).await);
    assert!(shown.contains("no --prometheus-credentials-dir; apply the manifests of this version"), "{shown}");
}

#[tokio::test]
async fn rotated_token_is_sent_without_restart() {
    let mut server = Server::start(|_, _| ok(FIRING)).await;
    let (directory, secret) = mounted("rotation", &[("token", b"one")]);
    let running = Running::start(Options { secret, ..Options::default() });
    running.want(&["a"], &server.settings());
    let sends = |seen: &Seen, token: &str| seen.heads.iter().any(|head| head.contains(token));
    server.until(|seen| sends(seen, "Bearer one")).await;
    std::fs::write(directory.0.join("token"), "two").unwrap();
    server.until(|seen| sends(seen, "Bearer two")).await;
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let elsewhere = Server::start(|_, _| ok(QUIET)).await;
    let to = format!("location: {}/api/v1/query\r\n", elsewhere.url);
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        why(answer_to(reply(status, &to, "")).await);
    }
    assert_eq!(elsewhere.seen.borrow().questions.len(), 0);
}

#[tokio::test]
async fn query_without_response_fails_at_timeout() {
    let server = Server::start(|_, _| Reply::Silence).await;
    let settings = Prometheus { timeout: Duration::from_millis(50), ..server.settings() };
    let shown = why(send_to(&settings).await);
    assert_eq!(
        shown,
        format!(
            "no answer from {}/api/v1/query within 50ms: is the address right, and does a NetworkPolicy let the \
             controller through?",
            server.url
        )
    );
}

#[tokio::test]
async fn unreachable_prometheus_fails_with_cause() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let settings = Prometheus { url: format!("http://me:secret@{address}"), timeout: AMPLE, interval: AMPLE };
    let shown = why(send_to(&settings).await);
    assert!(shown.starts_with(&format!("no answer from http://{address}/api/v1/query: Connection refused")), "{shown}");
    assert!(shown.contains("does a NetworkPolicy let the controller through?"), "{shown}");
    let settings = Prometheus { url: "prometheus:9090".into(), ..settings };
    let shown = why(send_to(&settings).await);
    assert!(shown.contains("write one such as http://prometheus.monitoring.svc:9090"), "{shown}");
}

/// A directory of its own, removed with the test.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brupop-expressions-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a TLS server whose answers are empty; returns its address and its certificate.
pub(crate) async fn secure() -> (String, String) {
    use rustls::pki_types::PrivateKeyDer;
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let server = actix_web::HttpServer::new(|| {
        actix_web::App::new()
            .route("/api/v1/query", actix_web::web::post().to(async || actix_web::HttpResponse::Ok().body(QUIET)))
    })
    .workers(1)
    .disable_signals()
    .bind_rustls_0_23("127.0.0.1:0", config)
    .unwrap();
    let port = server.addrs()[0].port();
    tokio::spawn(server.run());
    (format!("https://localhost:{port}"), certificate.pem())
}

#[tokio::test]
async fn server_certificate_is_verified_only_with_configured_ca_file() {
    let directory = Directory::new("ca");
    let (url, certificate) = secure().await;
    let settings = Prometheus { url, timeout: AMPLE, interval: AMPLE };
    let file = directory.0.join("ca.crt");
    let sent = async |pem: &str| {
        std::fs::write(&file, pem).unwrap();
        let client = query::client(&settings, Some(&file)).await?;
        Ok::<_, String>(query::send(&client, &settings, &Secret::default(), "up == 0", Timestamp::UNIX_EPOCH).await)
    };
    assert_eq!(sent(&certificate).await, Ok(quiet()));
    let (_, other) = secure().await;
    let shown = why(sent(&other).await.unwrap());
    assert!(shown.contains("invalid peer certificate"), "{shown}");
    assert!(shown.contains("did the authority of --prometheus-ca-file issue its certificate?"), "{shown}");
    for empty in ["", "not a certificate"] {
        let error = sent(empty).await.unwrap_err();
        assert!(error.ends_with("ca.crt, holds no certificate in PEM"), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
    let error = query::client(&settings, Some(&file)).await.unwrap_err();
    assert!(error.contains("ca.crt, cannot be read: No such file"), "{error}");
}

/// Set for the run of a test in a process of its own without authorities, as in the controller's image.
const BARE: &str = "BRUPOP_TEST_WITHOUT_AUTHORITIES";

#[test]
fn plain_http_works_without_ca_certificates_and_tls_error_gives_advice() {
    if std::env::var_os(BARE).is_none() {
        let name = "expressions::tests::plain_http_works_without_ca_certificates_and_tls_error_gives_advice";
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(BARE, "1")
            .env("SSL_CERT_FILE", "/nonexistent")
            .env("SSL_CERT_DIR", "/nonexistent")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(answer_to(ok(QUIET)).await, quiet());
        let settings = Prometheus { url: "https://p".into(), timeout: AMPLE, interval: AMPLE };
        let error = query::client(&settings, None).await.unwrap_err();
        assert!(error.contains("mount a file with the CA and name it in --prometheus-ca-file"), "{error}");
    });
}

/// Expressions, and the number of wake-ups of the driver.
struct Running {
    expressions: Expressions,
    metrics: Metrics,
    woken: watch::Receiver<u64>,
}

impl Running {
    fn start(options: Options) -> Self {
        let (service, _) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let applier = Applier::of_leader(kube::Client::new(service, "default"));
        let (metrics, woken) = (applier.metrics.clone(), applier.caches.changed.subscribe());
        let expressions = Expressions::start(applier, options);
        Self { expressions, metrics, woken }
    }

    fn want(&self, wanted: &[&str], settings: &Prometheus) {
        let wanted = wanted.iter().map(|query| Question::Query((*query).to_owned())).collect();
        let policy = Policy { prometheus: Some(settings.clone()), ..Policy::default() };
        self.expressions.want(&wanted, &BTreeMap::new(), &policy);
    }

    fn kinds(&self) -> BTreeMap<String, &'static str> {
        let answers = self.expressions.answers(Timestamp::now());
        let kind = |(question, answer)| Some((query_of(question)?, crate::metrics::answer_kind(answer)));
        answers.iter().filter_map(kind).collect()
    }

    /// Waits, woken as the driver is, until an answer is of this kind.
    async fn until(&mut self, query: &str, expected: &str) {
        let wait = async {
            while self.kinds().get(query).copied() != Some(expected) {
                self.woken.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{query} has to become {expected}"));
    }
}

#[tokio::test]
async fn repeated_firing_or_failed_answer_does_not_wake_driver() {
    let mut server = Server::start(|_, before| match before {
        0..3 => ok(FIRING),
        3 => ok("garbage"),
        4 => ok("other garbage"),
        5 => ok(FIRING),
        _ => Reply::Silence,
    })
    .await;
    let running = Running::start(Options::default());
    running.want(&["a"], &server.settings());
    server.until(|seen| seen.questions.len() == 7).await;
    assert_eq!(*running.woken.borrow(), 3, "something, no answer, something");
    let text = running.metrics.text();
    assert!(text.contains(r#"brupop_controller_expressions_total{result="Firing"} 4"#), "{text}");
    assert!(text.contains(r#"brupop_controller_expressions_total{result="Failed"} 2"#), "{text}");
}

#[tokio::test]
async fn unneeded_query_is_not_sent_again() {
    let mut server = Server::start(|_, _| ok(FIRING)).await;
    let mut running = Running::start(Options::default());
    running.want(&["a", "b"], &server.settings());
    running.until("a", "Firing").await;
    running.until("b", "Firing").await;
    running.want(&["b"], &server.settings());
    let sent = server.count("a");
    let b = server.count("b");
    server.until(|seen| seen.questions.iter().filter(|q| *q == "b").count() >= b + 10).await;
    assert!(server.count("a") <= sent + 1, "one may have been under way");
    drop(running.expressions);
    server.until(|seen| seen.open == 0).await;
}

#[tokio::test]
async fn at_most_four_queries_run_concurrently() {
    let permits = Arc::new(Semaphore::new(0));
    let mut server = {
        let permits = permits.clone();
        Server::start(move |_, _| Reply::Permitted(permits.clone(), Box::new(ok(FIRING)))).await
    };
    let running = Running::start(Options::default());
    let queries: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let wanted: Vec<&str> = queries.iter().map(String::as_str).collect();
    running.want(&wanted, &Prometheus { interval: AMPLE, ..server.settings() });
    for answered in 0..=8 {
        server.until(|seen| seen.questions.len() == answered + 4).await;
        permits.add_permits(1);
    }
    let seen = server.until(|seen| seen.questions.len() == 12).await;
    assert_eq!(seen.most_open, 4);
    assert_eq!(seen.questions.iter().collect::<BTreeSet<_>>().len(), 12, "each once");
}

#[tokio::test]
async fn new_url_is_queried_at_once_despite_pending_queries() {
    let mut silent = Server::start(|_, _| Reply::Silence).await;
    let good = Server::start(|_, _| ok(FIRING)).await;
    let mut running = Running::start(Options::default());
    let wanted = ["a", "b", "c", "d", "e"];
    running.want(&wanted, &silent.settings());
    silent.until(|seen| seen.questions.len() == 4).await;
    running.want(&wanted, &good.settings());
    for query in wanted {
        running.until(query, "Firing").await;
    }
}

#[tokio::test]
async fn missing_url_fails_all_expressions_and_wakes_driver() {
    let running = Running::start(Options::default());
    running.expressions.want(&[Question::Query("a".to_owned())].into(), &BTreeMap::new(), &Policy::default());
    assert_eq!(running.kinds(), BTreeMap::from([("a".to_owned(), "Failed")]));
    assert_eq!(*running.woken.borrow(), 1);
}

#[tokio::test]
async fn ca_file_mounted_later_is_loaded() {
    let directory = Directory::new("later");
    let (url, certificate) = secure().await;
    let file = directory.0.join("ca.crt");
    let mut running = Running::start(Options { ca_file: Some(file.clone()), ..Options::default() });
    running.want(&["a"], &Prometheus { url, timeout: AMPLE, interval: Duration::from_millis(20) });
    running.until("a", "Failed").await;
    std::fs::write(&file, certificate).unwrap();
    // Returned as quiet for twice the interval only, which is short here: the counted time does not pass.
    let counted = async {
        while !running.metrics.text().contains(r#"expressions_total{result="Quiet"}"#) {
            running.woken.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("the authority is there now");
}
