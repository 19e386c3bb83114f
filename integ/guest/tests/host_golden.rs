//! Replays the exchanges recorded from a real Bottlerocket API server against the simulated host, and against the host
//! that `brupop-guest` serves.
//!
//! The recording was made with a stand-in for updog: the repository holds 1.20.5, 1.20.4 and 1.20.0, updog prints
//! `Starting update` without the version, and some commands were made to fail. This test injects the same faults.

#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest::host::guest::{Guest, GuestOptions, flags};
use guest::host::{
    BootFault, Command, Disk, Fault, Host, HostOptions, RebootFault, Releases, UpdatesSettings, Updog, Worker, client,
};
use semver::Version;
use serde::Deserialize;
use serde_json::Value;

const RECORDING: &str = include_str!("../../testdata/host-api-golden.jsonl");

#[derive(Debug, Deserialize)]
struct Exchange {
    note: String,
    method: String,
    path: String,
    req: Option<String>,
    status_line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

fn patch(number: u64) -> Version {
    Version::new(1, 20, number)
}

/// The host that the recording is replayed against.
enum Subject {
    Simulated(Host),
    Guest(Box<Machine>),
}

/// A real machine as far as its disk and boots go.
struct Machine {
    options: GuestOptions,
    guest: Option<Guest>,
    boots: u32,
    new_image_fails: bool,
}

impl Machine {
    /// Installs version 1.20.0, and boots it.
    async fn install(mut host: HostOptions, folder: &Path) -> Self {
        let path = |name: &str| folder.join(name);
        std::fs::create_dir(path("releases")).unwrap();
        for number in [5, 4, 0] {
            std::fs::write(path("releases").join(format!("{}.img", patch(number))), format!("image {number}")).unwrap();
        }
        for device in ["root-a", "root-b"] {
            std::fs::write(path(device), "").unwrap();
        }
        flags::create(&path("flags"), &Disk::installed(patch(0))).unwrap();
        host.socket = path("api.sock");
        host.version = patch(9);
        let options = GuestOptions {
            host,
            flags: path("flags"),
            releases: path("releases"),
            root_a: path("root-a"),
            root_b: path("root-b"),
            state: path("state"),
            boot_id: path("boot_id"),
            reboot: vec!["true".to_owned()],
            socket_group: std::fs::metadata(folder).unwrap().gid(),
        };
        let mut machine = Self { options, guest: None, boots: 0, new_image_fails: false };
        machine.boot().await;
        machine
    }

    fn guest(&self) -> &Guest {
        self.guest.as_ref().unwrap()
    }

    /// Boots the set that the flags select; one that fails is not marked successful.
    async fn boot(&mut self) {
        if let Some(guest) = self.guest.take() {
            guest.stop().await;
        }
        let set = flags::boot(&self.options.flags).unwrap();
        if !flags::read(&self.options.flags).unwrap().set(set).successful && std::mem::take(&mut self.new_image_fails) {
            flags::boot(&self.options.flags).unwrap();
        }
        flags::mark_successful(&self.options.flags).unwrap();
        self.boots += 1;
        std::fs::write(&self.options.boot_id, format!("boot-{}\n", self.boots)).unwrap();
        self.guest = Some(Guest::start(self.options.clone()).unwrap());
    }
}

impl Subject {
    fn script(&self, fault: Fault) {
        match self {
            Self::Simulated(host) => host.script(fault),
            Self::Guest(machine) => machine.guest().script(fault),
        }
    }

    fn socket(&self) -> PathBuf {
        match self {
            Self::Simulated(host) => host.socket(),
            Self::Guest(machine) => machine.options.host.socket.clone(),
        }
    }

    fn release_command(&self) {
        match self {
            Self::Simulated(host) => host.release_command(),
            Self::Guest(machine) => machine.guest().release_command(),
        }
    }

    /// Lets the next new image fail to boot.
    fn fail_new_image(&mut self) {
        match self {
            Self::Simulated(host) => host.script(Fault::boot(BootFault::NewImageFails)),
            Self::Guest(machine) => machine.new_image_fails = true,
        }
    }

    fn boot_id(&self) -> String {
        match self {
            Self::Simulated(host) => host.snapshot().boot_id,
            Self::Guest(machine) => machine.guest().snapshot().boot_id,
        }
    }

    async fn booted_after(&mut self, boot: &str) {
        match self {
            Self::Simulated(host) => {
                tokio::time::timeout(Duration::from_secs(30), host.booted_after(boot)).await.unwrap();
            }
            Self::Guest(machine) => machine.boot().await,
        }
    }

    /// Waits for the end of a command that writes a real disk.
    async fn finished(&self) {
        if let Self::Guest(machine) = self {
            tokio::time::timeout(Duration::from_secs(30), machine.guest().lock_free()).await.unwrap();
        }
    }
}

/// Injects the faults of the recording before this exchange.
fn script(subject: &mut Subject, exchange: &Exchange) {
    let exits = |command, stderr: &str| {
        Fault::command(command, Worker::Exits { status: 1, stderr: stderr.to_owned(), overwrote: false })
    };
    match exchange.note.as_str() {
        "refresh (slow)" => subject.script(Fault::command(Command::Refresh, Worker::Waits)),
        "Available" => subject.release_command(),
        "prepare fails" => subject.script(exits(Command::Prepare, "Metadata error: boom\n")),
        "prepare killed by signal 9" => {
            subject.script(Fault::command(Command::Prepare, Worker::Killed { signal: 9 }));
        }
        "activate fails" => subject.script(exits(Command::Activate, "")),
        "refresh fails in Available" => subject.script(exits(Command::Refresh, "")),
        "reboot refused" => {
            let stderr = "Operation inhibited by test\n".to_owned();
            subject.script(Fault::reboot(RebootFault::Refused { stderr }));
            subject.fail_new_image();
        }
        _ => {}
    }
}

/// A body with the timestamp of its command blanked, and that timestamp's length.
fn without_timestamp(body: &str) -> (String, usize) {
    let Ok(json) = serde_json::from_str::<Value>(body) else { return (body.to_owned(), 0) };
    match json.pointer("/most_recent_command/timestamp").and_then(Value::as_str) {
        Some(timestamp) => (body.replace(timestamp, "…"), timestamp.len()),
        None => (body.to_owned(), 0),
    }
}

fn comparable_headers(headers: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        // The recording omits the date; the length is compared apart from the timestamp's.
        .filter(|(name, _)| !matches!(*name, "date" | "content-length"))
        .collect()
}

fn options(folder: &Path) -> HostOptions {
    let mut options = HostOptions::new("golden", folder, patch(0), Releases::of([5, 4, 0].map(patch)));
    options.variant = "aws-k8s-1.30".to_owned();
    options.settings = UpdatesSettings::default();
    options.updog = Updog::Terse;
    options
}

#[tokio::test]
async fn simulated_host_replays_recorded_exchanges() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::start(options(folder.path())).await.unwrap();
    replay(Subject::Simulated(host)).await;
}

#[tokio::test]
async fn guest_replays_recorded_exchanges() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::install(options(folder.path()), folder.path()).await;
    replay(Subject::Guest(Box::new(machine))).await;
    // The image that was booted at last is really on the second set, and the first is as it was installed.
    assert_eq!(std::fs::read_to_string(folder.path().join("root-b")).unwrap(), "image 5");
    assert_eq!(std::fs::read_to_string(folder.path().join("root-a")).unwrap(), "");
}

async fn replay(mut subject: Subject) {
    let mut replayed = 0;
    for line in RECORDING.lines() {
        let exchange: Exchange = serde_json::from_str(line).unwrap();
        let at = format!("exchange {}, {}", replayed + 1, exchange.note);
        script(&mut subject, &exchange);
        let boot = subject.boot_id();
        let reply = client::call(&subject.socket(), &exchange.method, &exchange.path, exchange.req.as_deref())
            .await
            .unwrap_or_else(|error| panic!("{at}: {error:#}"));

        assert_eq!(reply.status_line, exchange.status_line, "{at}");
        assert_eq!(comparable_headers(&reply.headers), comparable_headers(&exchange.headers), "{at}");
        let (body, stamp) = without_timestamp(&reply.body);
        let (recorded, recorded_stamp) = without_timestamp(&exchange.body);
        assert_eq!(body, recorded, "{at}");
        let length = |headers: &BTreeMap<String, String>| {
            headers.get("content-length").map(|length| length.parse::<usize>().unwrap())
        };
        assert_eq!(length(&reply.headers).unwrap_or(0), reply.body.len(), "{at}");
        assert_eq!(
            length(&reply.headers).map(|length| length - stamp),
            length(&exchange.headers).map(|length| length - recorded_stamp),
            "{at}"
        );

        if exchange.path == "/actions/reboot" && reply.status == 204 {
            subject.booted_after(&boot).await;
        }
        if exchange.path == "/actions/prepare-update" && reply.status == 204 {
            subject.finished().await;
        }
        replayed += 1;
    }
    assert_eq!(replayed, 71);
}
