//! One real node: a virtual machine with its disks, its power cord, a root shell on a serial port, and the log of its host.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use parking_lot::Mutex;
use semver::Version;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Files;
use crate::control_plane::marked;
use crate::host::Event;

/// Longest wait for a command in a guest.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval of looking at the host's log.
const LOOK: Duration = Duration::from_millis(10);

/// File with the host's log.
const EVENTS: &str = "events.log";

/// Lines of the console in a failure.
const TAIL: usize = 25;

/// A virtual machine. Dropping it ends it.
pub struct Guest {
    /// Name of the machine and of its Node.
    pub name: String,
    number: u8,
    folder: PathBuf,
    /// The folder of the test cluster.
    bed: PathBuf,
    script: PathBuf,
    qemu: Option<Child>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    /// The task that notes them; it ends with the set.
    _watch: JoinSet<()>,
}

/// Length of the file with the host's log, in bytes, and the time since which it has it.
struct Arrival {
    length: u64,
    at: Timestamp,
}

/// Notes when the file with the host's log grows: a machine's clock is up to a second behind that of the control plane.
async fn watch(path: PathBuf, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    let mut seen = 0;
    loop {
        let length = tokio::fs::metadata(&path).await.map_or(0, |metadata| metadata.len());
        if length > seen {
            seen = length;
            arrivals.lock().push(Arrival { length, at: Timestamp::now() });
        }
        sleep(LOOK).await;
    }
}

impl Guest {
    /// Makes the machine's disks in `folder`, which has its seed already. It is off.
    pub(super) async fn make(
        files: &Files,
        bed: &Path,
        name: &str,
        number: u8,
        folder: PathBuf,
    ) -> anyhow::Result<Self> {
        let copies = [(&files.data, "data"), (&files.initrd, "initrd")];
        for (from, to) in copies {
            let copy = Command::new("cp").arg("--sparse=always").arg(from).arg(folder.join(to)).status().await?;
            ensure!(copy.success(), "cannot copy {}", from.display());
        }
        let flags = Command::new(&files.guest)
            .args(["init", "--version", &super::FIRST.to_string(), "--flags"])
            .arg(folder.join("flags"))
            .output()
            .await
            .with_context(|| format!("cannot start {}", files.guest.display()))?;
        ensure!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
        let (script, arrivals) = (files.scripts.join("run.sh"), Arc::default());
        let mut task = JoinSet::new();
        task.spawn(watch(folder.join(EVENTS), Arc::clone(&arrivals)));
        let (name, bed) = (name.to_owned(), bed.to_owned());
        Ok(Self { name, number, folder, bed, script, qemu: None, arrivals, _watch: task })
    }

    /// Switches the machine on.
    pub fn power_on(&mut self) -> anyhow::Result<()> {
        ensure!(self.qemu.is_none(), "{} is on", self.name);
        let log = std::fs::File::options().append(true).create(true).open(self.folder.join("qemu.log"))?;
        let mut command = Command::new(&self.script);
        command
            .arg(self.number.to_string())
            .arg(&self.folder)
            // The second serial port is a root shell, the third one takes the host's log.
            .args(["-chardev", "socket,id=shell,path=shell,server=on,wait=off", "-serial", "chardev:shell"])
            .args(["-chardev", &format!("file,id=events,path={EVENTS},append=on"), "-serial", "chardev:events"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        marked(&mut command, &self.bed);
        self.qemu = Some(command.kill_on_drop(true).spawn().context("cannot start the virtual machine")?);
        Ok(())
    }

    /// Pulls the power cord.
    pub async fn cut_power(&mut self) -> anyhow::Result<()> {
        let mut qemu = self.qemu.take().context("the machine is off")?;
        qemu.kill().await?;
        Ok(())
    }

    /// Runs a command line as root in the guest, and returns what it prints.
    ///
    /// # Errors
    /// There is no shell: the guest is not up. Or the command fails.
    pub async fn shell(&self, line: &str) -> anyhow::Result<String> {
        const END: &str = "end-of-command";
        let run = async {
            let mut stream = UnixStream::connect(self.folder.join("shell")).await?;
            // The terminal echoes the line; the mark is only whole in the answer.
            let request = format!("\n( {line} ) 2>&1; printf '%s-%s %s\\n' end of-command $?\n");
            stream.write_all(request.as_bytes()).await?;
            let (mut seen, mut buffer) = (String::new(), [0; 4096]);
            loop {
                let read = stream.read(&mut buffer).await?;
                ensure!(read > 0, "the machine has ended");
                seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
                let Some((before, after)) = seen.split_once(END) else { continue };
                let Some((code, _)) = after.trim_start().split_once('\n') else { continue };
                let output: Vec<&str> = before.lines().filter(|line| !line.contains("printf '%s-%s")).collect();
                let output = output.join("\n").trim().to_owned();
                ensure!(code.trim() == "0", "exit code {}: {output}", code.trim());
                return Ok(output);
            }
        };
        match timeout(PATIENCE, run).await {
            Ok(result) => result.with_context(|| format!("{}: {line}", self.name)),
            Err(_) => {
                bail!("{}: {line}: no answer in {} s; its console:\n{}", self.name, PATIENCE.as_secs(), self.console())
            }
        }
    }

    /// Makes a version appear in the update repository.
    pub async fn publish(&self, version: &Version) -> anyhow::Result<()> {
        self.shell(&format!("ln -s /run/repository/{version}.img /var/lib/releases/")).await?;
        Ok(())
    }

    /// The last lines of the console, and what QEMU says.
    pub fn console(&self) -> String {
        let text = self.text("console.log");
        let lines: Vec<&str> = text.lines().collect();
        let qemu = self.text("qemu.log");
        [&lines[lines.len().saturating_sub(TAIL)..], &[qemu.trim()]].concat().join("\n")
    }

    /// The root sets that were tried, one for each boot.
    pub fn booted(&self) -> Vec<String> {
        let sets = self.text("console.log");
        sets.lines().filter_map(|line| Some(line.trim().strip_prefix("guest: booting ")?.to_owned())).collect()
    }

    fn text(&self, file: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join(file)).unwrap_or_default()).into_owned()
    }

    /// Fails if QEMU has ended although the power was not cut.
    pub(super) fn runs(&mut self) -> anyhow::Result<()> {
        if let Some(ended) = self.qemu.as_mut().and_then(|qemu| qemu.try_wait().transpose()).transpose()? {
            bail!("{}: QEMU has ended ({ended}): {}", self.name, self.text("qemu.log").trim());
        }
        Ok(())
    }

    /// The log of the host, over all boots, by the clock of this machine.
    ///
    /// # Errors
    /// A line is no event.
    pub fn events(&self) -> anyhow::Result<Vec<Event>> {
        let text = match std::fs::read_to_string(self.folder.join(EVENTS)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let arrivals = self.arrivals.lock();
        let (mut events, mut end) = (Vec::new(), 0);
        for line in text.split_inclusive('\n') {
            end += line.len() as u64;
            let line = line.trim();
            // A power cut may leave a part of a line, and a terminal ends lines by two characters.
            if !line.starts_with('{') || !line.ends_with('}') {
                continue;
            }
            let mut event: Event = serde_json::from_str(line).with_context(|| format!("{}: {line}", self.name))?;
            if let Some(arrival) = arrivals.iter().find(|arrival| arrival.length >= end) {
                event.at = arrival.at;
            }
            events.push(event);
        }
        Ok(events)
    }
}
