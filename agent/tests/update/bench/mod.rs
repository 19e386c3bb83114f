//! Test bench: a simulated host, a stand-in for the web API, and the real agent as a process between them.

pub(crate) mod web;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use integ::host::{EventKind, Host, HostOptions, Releases};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use models::permit::{PermitClaims, SettingsClaims};
use models::shadow::{ArmedPhase, HostPolicy, HostState, Permit};
use models::wire::ShadowView;
use semver::Version;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use web::Web;

/// Longer than anything here takes on a busy machine; reached only by failing tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const OLD: Version = Version::new(1, 20, 0);
pub(crate) const NEW: Version = Version::new(1, 20, 5);

/// A token of this node's agent, with the claims that the agent reads.
fn token(signature: &str) -> String {
    let claims = json!({"kubernetes.io": {"node": {"name": "a", "uid": "node-uid"}}}).to_string();
    format!("h.{}.{signature}\n", URL_SAFE_NO_PAD.encode(claims))
}

pub(crate) struct Bench {
    pub(crate) host: Host,
    pub(crate) web: Web,
    pub(crate) releases: Releases,
    key: EncodingKey,
    agent: Option<Child>,
    folder: TempDir,
}

impl Bench {
    /// A host on the old version, an idle desired state, and an agent that has reported.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// The same with other options of the host.
    pub(crate) async fn with(change: impl FnOnce(&mut HostOptions)) -> Self {
        let mut bench = Self::stopped(change).await;
        bench.web.create();
        bench.start_agent();
        bench.web.until("the agent has reported", |v| v.status.report.observed_generation == Some(1)).await;
        bench
    }

    pub(crate) async fn without_agent() -> Self {
        Self::stopped(|_| {}).await
    }

    pub(crate) async fn stopped(change: impl FnOnce(&mut HostOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let releases = Releases::of([OLD, NEW]);
        let mut options = HostOptions::new("a", folder.path(), OLD, releases.clone());
        change(&mut options);
        let host = Host::start(options).await.unwrap();
        let web = Web::start().await;
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let bench = Self { host, web, releases, key, agent: None, folder };
        std::fs::create_dir(bench.path("trust")).unwrap();
        std::fs::write(bench.path("token"), token("s")).unwrap();
        std::fs::write(bench.path("trust/ca.crt"), &bench.web.ca).unwrap();
        let mut jwk = Jwk::from_encoding_key(&bench.key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some("k1".into());
        std::fs::write(bench.path("trust/permit-keys.json"), json!({"keys": [jwk]}).to_string()).unwrap();
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Renews the agent's token, as the kubelet does: in a new directory, to which a link is then swapped. Returns the
    /// expected header of the agent's later requests.
    pub(crate) fn renew_token(&self, signature: &str) -> String {
        let (directory, link) = (format!("..{signature}"), self.path("link"));
        std::fs::create_dir(self.path(&directory)).unwrap();
        std::fs::write(self.path(&directory).join("token"), token(signature)).unwrap();
        for (to, name) in [(directory.as_str(), "..data"), ("..data/token", "token")] {
            std::os::unix::fs::symlink(to, &link).unwrap();
            std::fs::rename(&link, self.path(name)).unwrap();
        }
        format!("Bearer {}", token(signature).trim())
    }

    pub(crate) fn start_agent(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("agent.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_brupop-agent"))
            .arg("--node-name=a")
            .arg(format!("--host-socket={}", self.host.socket().display()))
            .arg(format!("--boot-id-file={}", self.path("proc/sys/kernel/random/boot_id").display()))
            .arg(format!("--server-url={}", self.web.url))
            .arg(format!("--token-file={}", self.path("token").display()))
            .arg(format!("--trust-dir={}", self.path("trust").display()))
            .arg("--log-filter=debug,hyper_util=info,reqwest=info,rustls=info")
            .env_clear()
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.agent = Some(child);
    }

    pub(crate) fn agent(&mut self) -> &mut Child {
        self.agent.as_mut().unwrap()
    }

    pub(crate) async fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().await.unwrap();
        }
    }

    pub(crate) fn boot(&self) -> String {
        self.host.snapshot().boot_id
    }

    pub(crate) fn stage(&self, attempt: i64) {
        self.stage_version(attempt, NEW);
    }

    pub(crate) fn stage_version(&self, attempt: i64, version: Version) {
        let boot = self.boot();
        self.web.change_spec(|spec| {
            spec.state = HostState::StagedUpdate;
            spec.version = Some(version);
            spec.attempt = attempt;
            spec.boot_id = Some(boot);
        });
    }

    pub(crate) fn request_reboot(&self) {
        self.web.change_spec(|spec| spec.state = HostState::RebootedIntoUpdate);
    }

    pub(crate) fn withdraw(&self) {
        self.web.change_spec(|spec| {
            spec.state = HostState::Idle;
            spec.version = None;
            spec.boot_id = None;
            spec.permit = None;
        });
    }

    pub(crate) fn claims(&self, view: &ShadowView) -> PermitClaims {
        self.claims_with(view, &view.status.report.armed.as_ref().unwrap().nonce)
    }

    /// The claims of a permit for the reboot of the desired state, with this nonce.
    pub(crate) fn claims_with(&self, view: &ShadowView, nonce: &str) -> PermitClaims {
        PermitClaims {
            node_uid: "node-uid".into(),
            boot_id: view.spec.boot_id.clone().unwrap(),
            attempt: view.spec.attempt,
            version: view.spec.version.clone().unwrap(),
            nonce: nonce.to_owned(),
            host: view.spec.host.clone(),
        }
    }

    /// Signs with the key that the agent trusts.
    pub(crate) fn sign<T: serde::Serialize>(&self, claims: &T) -> String {
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.key).unwrap()
    }

    /// A policy with a statement of its settings, and a refresh each second.
    pub(crate) fn policy(&self, version_lock: Option<&str>, ignore_waves: Option<bool>) -> HostPolicy {
        let refresh_interval = Some("1s".parse().unwrap());
        let version_lock = version_lock.map(str::to_owned);
        let policy = HostPolicy { version_lock, ignore_waves, refresh_interval, ..HostPolicy::default() };
        let signature = SettingsClaims::of("node-uid", &policy).map(|claims| self.sign(&claims));
        HostPolicy { signature, ..policy }
    }

    /// Requests the settings, with the controller's signature.
    pub(crate) fn request_settings(&self, version_lock: Option<&str>, ignore_waves: Option<bool>) {
        let policy = self.policy(version_lock, ignore_waves);
        self.web.change_spec(|spec| spec.host = Some(policy));
    }

    pub(crate) fn issue_permit(&self, claims: &PermitClaims) {
        self.issue(&claims.nonce, claims);
    }

    /// Answers a nonce with these claims.
    pub(crate) fn issue<T: serde::Serialize>(&self, nonce: &str, claims: &T) {
        let (nonce, jws) = (nonce.to_owned(), self.sign(claims));
        self.web.change_spec(|spec| spec.permit = Some(Permit { nonce, jws }));
    }

    pub(crate) async fn stage_and_wait(&self, attempt: i64) {
        self.stage(attempt);
        self.web.until("the image is staged", |v| v.status.report.state == Some(HostState::StagedUpdate)).await;
    }

    /// Requests the reboot and waits for the agent's nonce.
    pub(crate) async fn permit_requested(&self) -> ShadowView {
        self.request_reboot();
        let asks = |v: &ShadowView| v.status.report.armed.as_ref().is_some_and(|a| a.phase == ArmedPhase::Arming);
        self.web.until("the agent requests a permit", asks).await
    }

    /// Waits until the host has gone down and come back; the agent ends with its boot and starts in the next one.
    pub(crate) async fn rebooted(&mut self, boot: &str) {
        let went_down = |host: &Host| host.log().iter().any(|e| e.boot_id == boot && e.kind == EventKind::Down);
        let mut events = self.host.subscribe();
        let down = async {
            while !went_down(&self.host) {
                let _ = events.recv().await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, down).await;
        assert!(waited.is_ok(), "the host did not go down: {}", self.log());
        self.kill_agent().await;
        tokio::time::timeout(LIMIT, self.host.booted_after(boot)).await.expect("the host did not come back");
        self.start_agent();
    }

    /// Waits until the host runs a command.
    pub(crate) async fn until_running(&self, command: integ::host::Command) {
        let wait = async {
            while self.host.snapshot().running_command != Some(command) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "{command} does not run: {}", self.log());
    }

    /// Releases a command that was scripted to wait, and returns when it has ended.
    pub(crate) async fn finish_command(&self) {
        let wait = async {
            // A command runs for a moment before it begins to wait, and only then it can be released.
            while self.host.snapshot().running_command.is_some() {
                self.host.release_command();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "the command does not end: {}", self.log());
    }

    /// Returns the calls to the host, as `METHOD path`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let call = |kind| match kind {
            EventKind::Call { method, path, .. } => Some(format!("{method} {path}")),
            _ => None,
        };
        self.host.log().into_iter().filter_map(|event| call(event.kind)).collect()
    }

    /// Waits until the agent has logged this.
    pub(crate) async fn logged(&self, text: &str) {
        self.logged_times(text, 1).await;
    }

    pub(crate) async fn logged_times(&self, text: &str, times: usize) {
        let wait = async {
            while self.log().matches(text).count() < times {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "waited in vain for '{text}': {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }
}
