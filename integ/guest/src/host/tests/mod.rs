//! Tests of a simulated host through its API and its machine.

mod boots;
mod settings;
mod transport;
mod updates;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::*;

/// Longer than anything here takes on a busy machine; used in full only by a failing test.
const LIMIT: Duration = Duration::from_secs(240);

struct Bench {
    host: Host,
    releases: Releases,
    _folder: TempDir,
}

fn v(text: &str) -> Version {
    Version::parse(text).unwrap()
}

async fn bench() -> Bench {
    bench_with(|_| {}).await
}

async fn bench_with(change: impl FnOnce(&mut HostOptions)) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let releases = Releases::of([v("1.20.0"), v("1.20.5")]);
    let mut options = HostOptions::new("a", folder.path(), v("1.20.0"), releases.clone());
    change(&mut options);
    Bench { host: Host::start(options).await.unwrap(), releases, _folder: folder }
}

impl Bench {
    async fn call(&self, method: &str, target: &str, body: Option<&str>) -> client::Reply {
        client::call(&self.host.socket(), method, target, body).await.unwrap()
    }

    async fn post(&self, command: Command) -> u16 {
        self.call("POST", command.path(), None).await.status
    }

    async fn get(&self, target: &str) -> Value {
        let reply = self.call("GET", target, None).await;
        assert_eq!(reply.status, 200, "{target}: {}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    async fn status(&self) -> Value {
        self.get("/updates/status").await
    }

    async fn running_version(&self) -> String {
        self.get("/os").await["version_id"].as_str().unwrap().to_owned()
    }

    /// Runs commands that have to be accepted and to succeed.
    async fn run(&self, commands: &[Command]) {
        for command in commands {
            assert_eq!(self.post(*command).await, 204, "{command}");
            let status = self.status().await;
            assert_eq!(status["most_recent_command"]["cmd_type"], json!(command.to_string()));
            assert_eq!(status["most_recent_command"]["cmd_status"], "Success");
        }
    }

    async fn stage(&self) {
        self.run(&[Command::Refresh, Command::Prepare]).await;
    }

    async fn arm(&self) {
        self.stage().await;
        self.run(&[Command::Activate]).await;
    }

    async fn reboot(&self) {
        let boot = self.host.snapshot().boot_id;
        assert_eq!(self.call("POST", "/actions/reboot", None).await.status, 204);
        self.back(&boot).await;
    }

    async fn back(&self, boot: &str) {
        tokio::time::timeout(LIMIT, self.host.booted_after(boot)).await.unwrap();
    }

    async fn power(&self, power: Power) {
        let mut machine = self.host.core().machine.subscribe();
        tokio::time::timeout(LIMIT, machine.wait_for(|machine| machine.power == power)).await.unwrap().unwrap();
    }

    async fn wait(&self, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !holds(self) {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
    }

    async fn set(&self, settings: &str) {
        assert_eq!(self.call("PATCH", "/settings?tx=t", Some(settings)).await.status, 204);
        assert_eq!(self.call("POST", "/tx/commit_and_apply?tx=t", None).await.status, 200);
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.host.log().into_iter().map(|event| event.kind).collect()
    }

    fn fell_back(&self) -> bool {
        matches!(self.kinds().last(), Some(EventKind::Booted { fell_back: true, .. }))
    }
}

fn inode(socket: &Path) -> u64 {
    std::fs::metadata(socket).unwrap().ino()
}
