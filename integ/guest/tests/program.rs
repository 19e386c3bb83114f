//! `brupop-guest` as processes: on files in place of devices, with a command in place of a reboot.

#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use guest::host::client;
use guest::host::disk::PartitionSet;
use guest::host::guest::flags;
use guest::host::{Event, EventKind, ShutdownBy};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine; used in full only by a failing test.
const LIMIT: Duration = Duration::from_secs(240);

/// An image larger than a pipe and one write.
const IMAGE: usize = 5_000_001;

fn image() -> Vec<u8> {
    (0..IMAGE).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// A machine with 1.20.0 on set A and 1.20.5 in the repository.
struct Machine {
    folder: TempDir,
    server: Option<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brupop-guest")).args(arguments).output().unwrap()
}

impl Machine {
    async fn up() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self { folder, server: None };
        std::fs::create_dir(machine.path("releases")).unwrap();
        std::fs::create_dir(machine.path("releases/lost+found")).unwrap();
        std::fs::write(machine.path("releases/1.20.0.img"), "old").unwrap();
        std::fs::write(machine.path("releases/1.20.5.img"), image()).unwrap();
        std::fs::write(machine.path("root-a"), "running").unwrap();
        std::fs::write(machine.path("root-b"), vec![7; 6_000_000]).unwrap();
        std::fs::write(machine.path("reboot.sh"), "echo called >>\"$1\"\n").unwrap();
        assert!(run(&["init", "--flags", &machine.text("flags"), "--version", "1.20.0"]).status.success());
        machine.booted("first").await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn set_b(&self) -> PartitionSet {
        flags::read(&self.path("flags")).unwrap().b
    }

    /// Boots as the machine does, until the API answers.
    async fn booted(mut self, boot_id: &str) -> Self {
        self.kill();
        self.boot();
        std::fs::write(self.path("boot_id"), format!("{boot_id}\n")).unwrap();
        self.serve().await;
        self
    }

    /// Returns the log of events once it contains a word.
    fn log(&self, word: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path("events")).unwrap();
        text.contains(word).then_some(text)
    }

    fn boot(&self) -> String {
        let output = run(&["boot", "--flags", &self.text("flags")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn mark_successful(&self) {
        assert!(run(&["mark-successful", "--flags", &self.text("flags")]).status.success());
    }

    async fn serve(&mut self) {
        let reboot = format!("sh {} {}", self.text("reboot.sh"), self.text("reboots"));
        let gid = std::fs::metadata(self.folder.path()).unwrap().gid().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_brupop-guest"));
        command.args(["serve", "--name", "node-1", "--seed", "7", "--socket-gid", &gid, "--reboot-command", &reboot]);
        let files = ["flags", "releases", "socket", "root-a", "root-b", "state", "boot-id", "events"];
        for option in files {
            command.arg(format!("--{option}")).arg(self.path(&option.replace("boot-id", "boot_id")));
        }
        self.server = Some(command.stderr(Stdio::null()).spawn().unwrap());
        self.wait("the API answers", async || {
            client::call(&self.path("socket"), "GET", "/os", None).await.is_ok().then_some(())
        })
        .await;
    }

    /// Ends the server as a power cut does.
    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Waits until `check` has a value.
    async fn wait<T>(&self, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = check().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("timed out until {what}"))
    }

    async fn call(&self, method: &str, target: &str, body: Option<&str>) -> client::Reply {
        client::call(&self.path("socket"), method, target, body).await.unwrap()
    }

    async fn get(&self, target: &str) -> Value {
        let reply = self.call("GET", target, None).await;
        assert_eq!(reply.status, 200, "{target}: {}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    async fn status(&self) -> Value {
        let reply = self
            .wait("the update lock is free", async || {
                let reply = self.call("GET", "/updates/status", None).await;
                (reply.status != 423).then_some(reply)
            })
            .await;
        serde_json::from_str(&reply.body).unwrap()
    }

    /// Runs a command that has to be accepted, and returns the status after it.
    async fn command(&self, command: &str) -> Value {
        let reply = self.call("POST", &format!("/actions/{command}-update"), None).await;
        assert_eq!(reply.status, 204, "{command}: {}", reply.body);
        self.status().await
    }

    async fn refresh(&self) {
        assert_eq!(self.call("POST", "/actions/refresh-updates", None).await.status, 204);
        assert_eq!(self.status().await["update_state"], "Available");
    }

    async fn stage(&self) {
        self.refresh().await;
        assert_eq!(self.command("prepare").await["update_state"], "Staged");
    }

    async fn set(&self, settings: &str) {
        assert_eq!(self.call("PATCH", "/settings?tx=t", Some(settings)).await.status, 204);
        assert_eq!(self.call("POST", "/tx/commit_and_apply?tx=t", None).await.status, 200);
    }

    fn reboots(&self) -> usize {
        std::fs::read_to_string(self.path("reboots")).map_or(0, |calls| calls.lines().count())
    }

    /// Starts a prepare, and cuts the power when a part of the image is written.
    async fn killed_while_it_prepares(&mut self) {
        let device = self.path("root-b");
        std::fs::remove_file(&device).unwrap();
        assert!(Command::new("mkfifo").arg(&device).status().unwrap().success());
        assert_eq!(self.call("POST", "/actions/prepare-update", None).await.status, 204);
        // The pipe holds back the writer: this is the middle of it.
        let mut read = vec![0; 1_000_000];
        let mut pipe = std::fs::File::open(&device).unwrap();
        pipe.read_exact(&mut read).unwrap();
        assert_eq!(read, image()[..1_000_000]);
        assert_eq!(self.call("GET", "/updates/status", None).await.status, 423);
        self.kill();
        std::fs::remove_file(&device).unwrap();
        std::fs::write(&device, "").unwrap();
    }
}

#[tokio::test]
async fn update_writes_and_boots_the_inactive_device_and_next_update_takes_the_other_one() {
    let machine = Machine::up().await;
    machine.stage().await;
    assert_eq!(std::fs::read(machine.path("root-b")).unwrap()[..IMAGE], image());
    assert_eq!(std::fs::read_to_string(machine.path("root-a")).unwrap(), "running");
    assert_eq!((machine.set_b().priority, machine.set_b().tries_left), (0, 1));
    assert_eq!(machine.boot(), "A\n");
    assert_eq!(machine.command("activate").await["update_state"], "Ready");
    assert_eq!(machine.command("deactivate").await["update_state"], "Staged");
    assert_eq!(machine.set_b().priority, 0);
    machine.command("activate").await;
    let machine = machine.booted("second").await;
    machine.mark_successful();
    assert_eq!(machine.get("/os").await["version_id"], "1.20.5");
    machine.set(r#"{"updates":{"version-lock":"1.20.0"}}"#).await;
    machine.stage().await;
    // The change of the flags by another program is kept.
    assert!(machine.set_b().successful);
    assert_eq!(std::fs::read_to_string(machine.path("root-a")).unwrap(), "oldning");
    assert_eq!(machine.boot(), "B\n");
}

#[tokio::test]
async fn image_that_appears_in_the_repository_is_offered() {
    let machine = Machine::up().await;
    std::fs::write(machine.path("releases/1.20.6.img"), image()).unwrap();
    machine
        .wait("it is offered", async || {
            machine.refresh().await;
            let offered = machine.status().await["available_updates"].to_string();
            offered.contains("1.20.6").then_some(())
        })
        .await;
}

#[tokio::test]
async fn events_of_all_boots_are_lines_of_json() {
    let machine = Machine::up().await;
    machine.stage().await;
    machine.command("activate").await;
    assert_eq!(machine.call("POST", "/actions/reboot", None).await.status, 204);
    // An event is logged after the answer. The machine of this test goes down at once, a real one with the program last.
    machine.wait("the order is logged", async || machine.log("ShutdownOrdered")).await;
    let machine = machine.booted("second").await;
    let log = machine.wait("the second boot is logged", async || machine.log("second")).await;
    let events: Vec<Event> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = events.into_iter().filter_map(|event| match event.kind {
        EventKind::Booted { boot_id, version, .. } => Some(format!("{boot_id} runs {version}")),
        EventKind::Armed { version } => Some(format!("armed {version}")),
        EventKind::ShutdownOrdered { by: ShutdownBy::Api } => Some("reboot".to_owned()),
        _ => None,
    });
    let told: Vec<String> = told.collect();
    assert_eq!(told, ["first runs 1.20.0", "armed 1.20.5", "reboot", "second runs 1.20.5"]);
}

#[tokio::test]
async fn set_is_unbootable_after_power_cut_in_mid_write() {
    let mut machine = Machine::up().await;
    machine.stage().await;
    machine.killed_while_it_prepares().await;
    let cleared = PartitionSet { version: None, priority: 0, tries_left: 0, successful: false };
    assert_eq!(machine.set_b(), cleared);
    assert_eq!(machine.boot(), "A\n");
    // In the same boot the status still shows the earlier image as staged; the disk refuses it.
    machine.serve().await;
    assert_eq!(machine.status().await["update_state"], "Staged");
    let status = machine.command("activate").await;
    assert_eq!(status["most_recent_command"]["cmd_status"], "Failed");
    let stderr = status["most_recent_command"]["stderr"].as_str().unwrap();
    assert!(stderr.ends_with("has not been marked valid for upgrade\n"), "{stderr}");
    assert_eq!(machine.boot(), "A\n");
    assert_eq!(machine.command("prepare").await["most_recent_command"]["cmd_status"], "Success");
    assert_eq!(std::fs::read(machine.path("root-b")).unwrap(), image());
}

#[tokio::test]
async fn command_that_cannot_read_an_image_or_the_flags_fails() {
    let machine = Machine::up().await;
    machine.refresh().await;
    std::fs::remove_file(machine.path("releases/1.20.5.img")).unwrap();
    let status = machine.command("prepare").await;
    assert_eq!(status["update_state"], "Available");
    assert_eq!(status["most_recent_command"]["cmd_status"], "Failed");
    assert_eq!(machine.set_b().tries_left, 0);

    std::fs::write(machine.path("releases/1.20.5.img"), image()).unwrap();
    assert_eq!(machine.command("prepare").await["update_state"], "Staged");
    std::fs::write(machine.path("flags"), vec![0; 65536]).unwrap();
    let status = machine.command("activate").await;
    assert_eq!(status["update_state"], "Staged");
    let stderr = status["most_recent_command"]["stderr"].as_str().unwrap();
    assert!(stderr.contains("has no boot flags"), "{stderr}");
}

#[tokio::test]
async fn restart_of_process_keeps_settings_status_and_transactions_and_reboot_settings_alone() {
    let mut machine = Machine::up().await;
    assert_eq!(machine.get("/settings?prefix=updates.seed").await, json!({"updates": {"seed": 7}}));
    machine.set(r#"{"updates":{"version-lock":"v1.20.5","ignore-waves":true,"seed":99}}"#).await;
    machine.call("PATCH", "/settings?tx=open", Some(r#"{"updates":{"seed":3}}"#)).await;
    machine.stage().await;
    let (settings, status) = (machine.get("/settings").await, machine.status().await);
    machine.kill();
    machine.serve().await;
    assert_eq!(machine.get("/settings").await, settings);
    assert_eq!(settings["updates"]["seed"], 99);
    assert_eq!(machine.status().await, status);
    assert_eq!(machine.get("/tx/list").await, json!(["open"]));
    assert_eq!(machine.command("activate").await["update_state"], "Ready");

    let machine = machine.booted("second").await;
    assert_eq!(machine.get("/settings").await, settings);
    assert_eq!(machine.get("/tx/list").await, json!([]));
    assert_eq!(machine.call("GET", "/updates/status", None).await.status, 404);
}

#[tokio::test]
async fn failed_reboot_command_is_reported_and_can_be_repeated_and_another_one_runs_once() {
    let machine = Machine::up().await;
    let script = std::fs::read_to_string(machine.path("reboot.sh")).unwrap();
    for (failing, body) in [
        ("echo inhibited >&2; exit 3", "Failed to reboot, exit code: 3, stderr: inhibited\n"),
        ("kill -TERM $$", "Failed to reboot, exit code: 15, stderr: "),
    ] {
        std::fs::write(machine.path("reboot.sh"), failing).unwrap();
        let reply = machine.call("POST", "/actions/reboot", None).await;
        assert_eq!((reply.status, reply.body.as_str()), (500, body));
    }
    std::fs::write(machine.path("reboot.sh"), script).unwrap();
    for status in [204, 500] {
        assert_eq!(machine.call("POST", "/actions/reboot", None).await.status, status);
        assert_eq!(machine.reboots(), 1);
    }
}

#[tokio::test]
async fn socket_is_open_to_its_group_and_removed_by_sigterm() {
    let mut machine = Machine::up().await;
    let (socket, folder) = (machine.path("socket").metadata().unwrap(), machine.folder.path().metadata().unwrap());
    assert!(socket.file_type().is_socket());
    assert_eq!((socket.permissions().mode() & 0o777, socket.gid()), (0o660, folder.gid()));
    let mut server = machine.server.take().unwrap();
    assert!(Command::new("kill").arg(server.id().to_string()).status().unwrap().success());
    assert!(server.wait().unwrap().success());
    assert!(!machine.path("socket").exists());
}

#[tokio::test]
async fn errors_name_the_argument_or_the_device() {
    let machine = Machine::up().await;
    let empty = machine.text("empty");
    std::fs::write(&empty, "").unwrap();
    let unbootable = machine.text("unbootable");
    let mut disk = guest::host::Disk::installed(semver::Version::new(1, 20, 0));
    disk.a.successful = false;
    flags::create(&machine.path("unbootable"), &disk).unwrap();
    for (arguments, code, text) in [
        (vec!["boot"], 2, "--flags <DEVICE>"),
        (vec!["init", "--flags", &empty, "--version", "new"], 2, "--version <VERSION>"),
        (vec!["serve", "--flags", &empty], 2, "--releases <FOLDER>"),
        (vec!["boot", "--flags", &empty], 1, "brupop-guest: "),
        (vec!["boot", "--flags", &unbootable], 1, "brupop-guest: no partition set boots"),
        (vec!["mark-successful", "--flags", "/nowhere"], 1, "brupop-guest: opening /nowhere: "),
    ] {
        let output = run(&arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(text), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty() && (code == 2 || stderr.lines().count() == 1), "{arguments:?}: {stderr}");
    }
}
