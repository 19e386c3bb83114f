//! The shell in which commands of the documentation are tried: its programs, and what they stand for.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::Programs;
use integ::control_plane::ControlPlane;
use parking_lot::Mutex;

use super::{fields, root};

const STAND_IN: &str = include_str!("stand-in.sh");

/// Longest run of a block.
const LIMIT: Duration = Duration::from_secs(300);

/// Words for what readers fill in, and what the test fills in.
const PLACEHOLDERS: [(&str, &str); 14] = [
    ("NODE", "n1"),
    ("OTHER", "n2"),
    ("OTHER-NODE", "n2"),
    ("NAMESPACE", "default"),
    ("MONITORING", "monitoring"),
    ("OVERLAY", "deploy/manifests"),
    ("POD-OF-THE-AGENT", "agent"),
    ("POD", "web-0"),
    ("RELEASE", "release"),
    ("REGISTRY", "registry.example"),
    ("TAG", "v1"),
    ("FILE", "file"),
    ("ROLLOUT", "1"),
    ("VERSION", "1.20.5"),
];

/// Programs that are real, and change nothing outside of the folder of their block.
const TOOLS: [&str; 13] =
    ["awk", "base64", "bash", "cat", "chmod", "cp", "date", "mkdir", "mktemp", "sed", "sort", "tr", "true"];

/// Programs with a stand-in that tries the command.
const TRIED: [&str; 6] = ["kubectl", "kubectl-brupop", "helm", "make", "cargo", "grep"];

/// Programs whose commands are not tried, each with the reason.
const NOT_TRIED: [(&str, &str); 11] = [
    ("aws", "needs an account of AWS"),
    ("crane", "needs a registry"),
    ("skopeo", "needs a registry"),
    ("tar", "unpacks what the commands before it would have downloaded or built"),
    ("apt-get", "needs root"),
    ("rustup", "installs toolchains"),
    ("apiclient", "runs on a Bottlerocket host"),
    ("cosign", "checks a release in a registry, and there is none yet"),
    ("gh", "checks a release on GitHub, and there is none yet"),
    ("openssl", "shows a certificate, and the Secret has none here"),
    ("sha256sum", "checks the files of a release, and there is none yet"),
];

/// The file in a block's folder with the arguments of each kubectl that it has started.
const CALLS: &str = "kubectl-calls";

/// A program's name, if a line begins with a command of it.
pub(super) fn program_of(line: &str) -> Option<&'static str> {
    let mut programs = TRIED.into_iter().chain(NOT_TRIED.map(|(name, _)| name));
    programs.find(|name| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))
}

/// A shell in which commands of the documentation are tried.
pub(super) struct Shell<'a> {
    control_plane: &'a ControlPlane,
    folder: &'a Path,
    plugin: PathBuf,
    helm: PathBuf,
    /// The fields that exist, in the form that `kubectl explain` takes.
    fields: Mutex<BTreeSet<String>>,
}

impl<'a> Shell<'a> {
    pub(super) async fn new(control_plane: &'a ControlPlane, folder: &'a Path) -> anyhow::Result<Self> {
        let programs = folder.join("programs");
        std::fs::create_dir(&programs)?;
        let stand_in = folder.join("stand-in");
        std::fs::write(&stand_in, STAND_IN)?;
        std::fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for name in TRIED.into_iter().chain(NOT_TRIED.map(|(name, _)| name)) {
            symlink(&stand_in, programs.join(name))?;
        }
        for name in TOOLS {
            symlink(tool(name)?, programs.join(name))?;
        }
        let (plugin, helm) = (Programs::find()?.plugin, integ::tools::helm().await?);
        Ok(Self { control_plane, folder, plugin, helm, fields: Mutex::default() })
    }

    /// Runs commands in a folder of their own, and checks that the fields exist that they read.
    pub(super) async fn run(&self, number: usize, commands: &str) -> anyhow::Result<()> {
        let folder = self.folder.join(number.to_string());
        std::fs::create_dir_all(folder.join(".local/bin"))?;
        for name in ["deploy", "examples"] {
            symlink(root().canonicalize()?.join(name), folder.join(name))?;
        }
        // Scripts of other shells are not read as those of bash.
        let source = "source() { cat \"${1:-/dev/stdin}\" >/dev/null; }";
        let commands = filled_in(commands);
        let mut command = tokio::process::Command::new(tool("bash")?);
        command
            .args(["-euo", "pipefail", "-c", &format!("{source}\n{commands}")])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .env_clear();
        command.env("PATH", self.folder.join("programs")).env("HOME", &folder).env("ROOT", root().canonicalize()?);
        command.env("KUBECTL", self.control_plane.kubectl_command().as_std().get_program());
        command.env("CALLS", folder.join(CALLS)).env("HELM", &self.helm);
        command.env("KUBECONFIG", self.control_plane.kubeconfig()).env("KUBERC", "off");
        command.env("KUBECACHEDIR", self.folder.join("cache")).env("REAL_GREP", tool("grep")?);
        command.env("PLUGIN", &self.plugin).env("DEPLOY", self.plugin.with_file_name("brupop-deploy"));
        let run = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let output = run.with_context(|| format!("not over in {LIMIT:?}: {commands}"))??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{commands}\n{}\n{errors}", output.status);
        self.fields_exist(&folder.join(CALLS)).await.with_context(|| commands)
    }

    /// Checks the fields that the commands of kubectl in this file have read.
    async fn fields_exist(&self, calls: &Path) -> anyhow::Result<()> {
        if !calls.exists() {
            return Ok(());
        }
        for call in std::fs::read_to_string(calls)?.split_terminator('\x1e') {
            let arguments: Vec<&str> = call.split_terminator('\x1f').collect();
            for field in fields::read_by(&arguments)? {
                if !self.fields.lock().contains(&field) {
                    crate::kubectl(self.control_plane, &["explain", &field]).await?;
                    self.fields.lock().insert(field);
                }
            }
        }
        Ok(())
    }
}

/// Commands with what a reader fills in.
fn filled_in(commands: &str) -> String {
    let is_word = |c: char| c.is_ascii_uppercase() || c == '-' || c == '_';
    let mut filled = String::new();
    let mut rest = commands;
    while let Some(start) = rest.find(|c: char| c.is_ascii_uppercase()) {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
        let (bare, dash) = word.strip_suffix('-').map_or((word, ""), |bare| (bare, "-"));
        // `brs-NODE` is filled in, `--from-FILE` is; `updater-NODES` and `xNODE` are other words.
        let is_whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric())
            && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '=');
        let value = PLACEHOLDERS.iter().find(|(name, _)| *name == bare && is_whole).map_or(bare, |(_, value)| value);
        filled += &format!("{before}{value}{dash}");
        rest = after;
    }
    filled + rest
}

/// Path of a program of the machine.
fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let folders = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
    folders.into_iter().find(|path| path.exists()).with_context(|| format!("the program {name} is missing"))
}
