//! Programs and files of other projects that tests use, as the scripts beside this crate print them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::control_plane::ControlPlane;

/// Helm, as `helm/build.sh` has built it.
///
/// # Errors
/// It is not built.
pub async fn helm() -> anyhow::Result<PathBuf> {
    let program = printed_by("helm/build.sh", &["--where"]).await?;
    ensure!(program.is_file(), "helm is not built: run `make helm` once, or set BRUPOP_HELM to a helm");
    Ok(program)
}

/// Installs the definitions of other projects, so that the API server knows the objects of them that the documentation
/// and the charts have: those of cert-manager, the Prometheus operator, Karpenter, Argo CD and Flux. `definitions/get.sh`
/// gets them once.
///
/// # Errors
/// They cannot be downloaded, or are refused.
pub async fn install_definitions(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let folder = printed_by("definitions/get.sh", &[]).await?;
    for arguments in [&["apply", "--server-side"][..], &["wait", "--for=condition=Established", "--timeout=60s"][..]] {
        let output = control_plane.kubectl_command().args(arguments).arg("-f").arg(&folder).output().await?;
        ensure!(output.status.success(), "definitions: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The path that a script prints, given by its path in this crate.
async fn printed_by(script: &str, arguments: &[&str]) -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(&script).args(arguments).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
