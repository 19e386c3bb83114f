//! Location of the control plane's binaries, as `control-plane/build.sh` reports it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Binaries that a start needs.
const NEEDED: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

#[derive(Clone, Debug)]
pub(super) struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Finds the folder, once for all control planes of this process, and checks that each binary is in it.
    pub(super) async fn locate() -> anyhow::Result<Self> {
        static FOUND: OnceCell<Binaries> = OnceCell::const_new();
        FOUND.get_or_try_init(Self::find).await.cloned()
    }

    async fn find() -> anyhow::Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build.sh");
        let output = Command::new(&script).arg("--where").kill_on_drop(true).output().await.with_context(|| {
            format!("cannot run {}; run this program from the checkout that built it", script.display())
        })?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Self::in_folder(folder)
    }

    fn in_folder(folder: PathBuf) -> anyhow::Result<Self> {
        let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !is_executable(&folder.join(name))).collect();
        if !missing.is_empty() {
            bail!(
                "the control plane is not built: {} lacks {}. Run `make control-plane` once (it needs Go 1.26 or later \
                 and takes some minutes), or set KUBEBUILDER_ASSETS to a folder that has {}.",
                folder.display(),
                missing.join(", "),
                NEEDED.join(", ")
            );
        }
        Ok(Self { folder })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_binaries_error_names_make_target() {
        let empty = tempfile::tempdir().unwrap();
        let error = Binaries::in_folder(empty.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("make control-plane"), "{error}");
        assert!(error.contains("kube-apiserver"), "{error}");
        assert!(error.contains("KUBEBUILDER_ASSETS"), "{error}");
        assert!(error.contains(&empty.path().display().to_string()), "{error}");
    }
}
