//! Location of the operator's programs: those of the build that runs the test cluster.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::kubelet::Images;

/// Folder with the operator's programs, if it is not that of the running program.
const DIRECTORY: &str = "BRUPOP_BIN_DIR";
/// Folder with the programs of the next version's stand-in (`make next`), if it is not beside that one.
const NEXT: &str = "BRUPOP_NEXT_DIR";
/// Programs that are from another build.
const AGENT: &str = "BRUPOP_AGENT_BIN";
const APISERVER: &str = "BRUPOP_APISERVER_BIN";
const CONTROLLER: &str = "BRUPOP_CONTROLLER_BIN";
const AWS: &str = "BRUPOP_AWS_BIN";

/// The operator's programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The agent.
    pub agent: PathBuf,
    /// The web API.
    pub apiserver: PathBuf,
    /// The controller.
    pub controller: PathBuf,
    /// The hook for AWS, which only some scenarios install.
    pub aws: PathBuf,
    /// The plugin for kubectl.
    pub plugin: PathBuf,
}

fn existing(path: PathBuf) -> anyhow::Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    anyhow::bail!(
        "the program {} is missing: run `make build` first, or set {DIRECTORY} to the folder with the operator's programs",
        path.display()
    )
}

impl Programs {
    fn folder() -> anyhow::Result<PathBuf> {
        Ok(match std::env::var_os(DIRECTORY) {
            Some(folder) => PathBuf::from(folder),
            None => {
                let own = std::env::current_exe().context("where is this program?")?;
                let folder = own.parent().unwrap_or(Path::new(".")).to_owned();
                // Test programs and examples are built one folder further down.
                if folder.ends_with("deps") || folder.ends_with("examples") {
                    folder.parent().map_or(folder.clone(), Path::to_path_buf)
                } else {
                    folder
                }
            }
        })
    }

    /// Finds the programs that have a variable of their own, and the others in `BRUPOP_BIN_DIR`, or beside the running
    /// program.
    pub fn find() -> anyhow::Result<Self> {
        let folder = Self::folder()?;
        let program = |variable: &str, name: &str| {
            existing(std::env::var_os(variable).map_or_else(|| folder.join(name), PathBuf::from))
        };
        Ok(Self {
            agent: program(AGENT, "brupop-agent")?,
            apiserver: program(APISERVER, "brupop-apiserver")?,
            controller: program(CONTROLLER, "brupop-controller")?,
            aws: std::env::var_os(AWS).map_or_else(|| folder.join("brupop-aws"), PathBuf::from),
            plugin: existing(folder.join("kubectl-brupop"))?,
        })
    }

    /// Finds the programs of the next version's stand-in, which has no plugin and no hook.
    pub fn next() -> anyhow::Result<Self> {
        let beside = Self::folder()?.with_file_name("next");
        let folder = std::env::var_os(NEXT).map_or(beside, PathBuf::from);
        let program = |name: &str| {
            let path = folder.join(name);
            anyhow::ensure!(path.is_file(), "the program {} is missing: run `make next` first", path.display());
            Ok(path)
        };
        let Self { aws, plugin, .. } = Self::find()?;
        Ok(Self {
            agent: program("brupop-agent")?,
            apiserver: program("brupop-apiserver")?,
            controller: program("brupop-controller")?,
            aws,
            plugin,
        })
    }

    /// Returns the kubelets' table from images to programs.
    pub fn images(&self, options: &deploy::Options) -> Images {
        let reference = |component| deploy::image(component, options);
        Images::new()
            .map(reference(deploy::Component::Agent), &self.agent)
            .map(reference(deploy::Component::Apiserver), &self.apiserver)
            .map(reference(deploy::Component::Controller), &self.controller)
            .map(reference(deploy::Component::Aws), &self.aws)
    }
}
