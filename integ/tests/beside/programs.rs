//! The programs that `integ/beside/build.sh` builds, as processes of a test cluster.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use integ::control_plane::{ControlPlane, marked};
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// Longest wait until a program is ready.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of lines of a log in an error.
const TAIL: usize = 30;

/// The folder with what was built of a program.
pub(crate) async fn folder(program: &str) -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("beside/build.sh");
    let output = Command::new(&script).args(["--where", program]).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    ensure!(
        folder.join(program).is_file(),
        "{program} is not built: run `make test-beside`, or integ/beside/build.sh {program}"
    );
    Ok(folder)
}

/// A port of this machine that nothing uses now.
pub(crate) fn port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A program that runs beside the operator, as the cluster's administrator. Dropping it ends it.
pub(crate) struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a program in an environment of its own.
    pub(crate) async fn start(
        control_plane: &ControlPlane,
        name: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let program = folder(name).await?.join(name);
        Self::start_as(control_plane, name, &program, arguments, environment)
    }

    /// The same of another program, whose output has this name.
    pub(crate) fn start_as(
        control_plane: &ControlPlane,
        name: &str,
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let bed = control_plane.dir();
        let log = bed.join(format!("{name}.log"));
        let output = std::fs::File::create(&log)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", bed)
            .env("TMPDIR", bed)
            .env("KUBECONFIG", control_plane.kubeconfig())
            .envs(environment.iter().copied())
            .current_dir(bed)
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = marked(&mut command, bed).spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Waits until it answers at this address.
    pub(crate) async fn ready(&mut self, url: &str) -> anyhow::Result<()> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = client.get(url).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}):\n{}", self.name, self.tail());
            }
            ensure!(Instant::now() < deadline, "{} is not ready:\n{}", self.name, self.tail());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The end of its output.
    pub(crate) fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Ends it after a test with this result: the end of its output tells more about a failure.
    pub(crate) async fn end<T>(mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let result =
            result.map_err(|error| anyhow::anyhow!("{error:#}\nthe last lines of {}:\n{}", self.name, self.tail()));
        self.child.kill().await?;
        result
    }
}
