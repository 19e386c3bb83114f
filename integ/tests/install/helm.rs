//! Runs of helm and kubectl.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use integ::control_plane::ControlPlane;
use models::names::SYSTEM_NAMESPACE;
use serde_json::Value;
use tokio::process::Command;

/// The root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The chart of the operator, and that of its definitions.
pub(crate) const OPERATOR: &str = "deploy/chart";
pub(crate) const DEFINITIONS: &str = "deploy/chart-crds";

/// Objects by kind, namespace and name.
pub(crate) type Objects = BTreeMap<String, Value>;

/// Helm, with a configuration of its own.
pub(crate) struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Finds helm. Without a control plane it only renders.
    pub(crate) async fn find(control_plane: Option<&ControlPlane>) -> anyhow::Result<Self> {
        let program = integ::tools::helm().await?;
        let kubeconfig = control_plane.map(|control_plane| control_plane.kubeconfig().to_owned());
        Ok(Self { program, home: tempfile::tempdir()?, kubeconfig })
    }

    /// Gives a command helm's configuration, and the cluster: never the user's own.
    pub(crate) fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), self.home.path().join(kind));
        }
        let nowhere = self.home.path().join("no-kubeconfig");
        command.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&nowhere))
    }

    /// The folder that helm is in.
    pub(crate) fn folder(&self) -> anyhow::Result<&str> {
        self.program.parent().and_then(Path::to_str).context("helm has a folder")
    }

    /// Runs helm from the root of the repository, and returns its exit status and all that it prints.
    async fn run(&self, arguments: &[&str]) -> anyhow::Result<(bool, String, String)> {
        let began = std::time::Instant::now();
        let mut command = Command::new(&self.program);
        let output = self
            .configure(&mut command)
            .args(arguments)
            .current_dir(ROOT)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        // Shown with a failure.
        println!("{:5.1} s  helm {}", began.elapsed().as_secs_f64(), arguments.join(" "));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((output.status.success(), text(output.stdout), text(output.stderr)))
    }

    /// The same with the words of a line; a failure is an error.
    pub(crate) async fn line(&self, line: &str) -> anyhow::Result<String> {
        let (success, stdout, stderr) = self.run(&line.split(' ').collect::<Vec<_>>()).await?;
        ensure!(success, "helm {line}: {stdout}{stderr}");
        Ok(stdout)
    }

    /// The same, refused; returns the error.
    pub(crate) async fn refused(&self, line: &str) -> anyhow::Result<String> {
        let (success, stdout, stderr) = self.run(&line.split(' ').collect::<Vec<_>>()).await?;
        ensure!(!success, "helm {line}: not refused: {stdout}");
        Ok(stderr)
    }

    /// A file with values.
    pub(crate) fn values(&self, values: &Value) -> anyhow::Result<String> {
        let (_, path) = tempfile::Builder::new().suffix(".json").tempfile_in(self.home.path())?.keep()?;
        std::fs::write(&path, values.to_string())?;
        path.to_str().map(str::to_owned).context("a path of text")
    }

    /// Renders a chart with values.
    pub(crate) async fn render(&self, chart: &str, values: &Value) -> anyhow::Result<Objects> {
        let file = self.values(values)?;
        objects(&self.line(&format!("template brupop {chart} -n {SYSTEM_NAMESPACE} -f {file}")).await?)
    }
}

/// Reads YAML documents.
pub(crate) fn objects(text: &str) -> anyhow::Result<Objects> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let mut objects = Objects::new();
    for object in documents.into_iter().filter(|object| !object.is_null()) {
        let id = deploy::yaml::id(&object);
        ensure!(objects.insert(id.clone(), object).is_none(), "{id} is there twice");
    }
    Ok(objects)
}

/// The objects of a checked-in manifest.
pub(crate) fn manifest(name: &str) -> anyhow::Result<Objects> {
    let path = Path::new(ROOT).join("deploy/manifests").join(name);
    objects(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?)
}

/// Runs kubectl from the root of the repository, and returns what it prints; a failure is an error.
pub(crate) async fn kubectl(control_plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = control_plane.kubectl_command();
    let output = command.args(arguments).current_dir(ROOT).stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {}: {stderr}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}
