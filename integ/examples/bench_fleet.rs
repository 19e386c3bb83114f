//! A fleet that is idle, updates, and survives outages, measured: `make bench-fleet`.
//!
//! A real control plane, the operator from its manifests, and for each node an agent on a simulated host. No time is asserted: it
//! prints figures, and fails only if nodes do not end on the new version, or are left cordoned.

use std::path::{Path, PathBuf};

use agent::alive::Check;
use agent::config::Config;
use anyhow::ensure;
use clap::Parser;
use futures::FutureExt as _;
use integ::fleet::{AgentFiles, AgentProgram, Bench, FleetSpec, Options, Page, run};
use models::log::LogFormat;
use tokio::sync::oneshot;

/// Address of the web API, as in the manifest of the agents.
const WEB_API: &str = "https://brupop-apiserver.brupop-system.svc";

/// Measures a fleet on its own control plane.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Page that the figures are written to.
    #[arg(long)]
    page: Option<PathBuf>,
    /// Runs the process of the fleet that this file describes, as the bench itself does.
    #[arg(long, hide = true)]
    fleet: Option<PathBuf>,
}

/// The agents' program.
const PROGRAM: AgentProgram = AgentProgram {
    run: |files, stop| run_agent(files, stop).boxed_local(),
    is_connected: |file| agent::alive::check(Check::Connected, file).is_ok(),
};

async fn run_agent(files: AgentFiles, stop: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let config = Config {
        node_name: files.node,
        host_socket: files.host_socket,
        boot_id_file: files.boot_id_file,
        server_url: WEB_API.to_owned(),
        token_file: files.token_file,
        trust_dir: files.trust_dir,
        alive_file: files.alive_file,
        check: None,
        log_filter: String::new(),
        log_format: LogFormat::Text,
    };
    // The sender is dropped.
    Ok(agent::run(config, stop.map(drop)).await?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // An outage is part of a run.
    let filter = "warn,kube_client=off,kube_runtime=off";
    tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter).with_writer(std::io::stderr).init();
    if let Some(fleet) = &arguments.fleet {
        return run(FleetSpec::read(fleet)?, PROGRAM).await;
    }
    let needed = arguments.options.open_files();
    let allowed = open_files(Path::new("/proc/self/limits"))?;
    ensure!(allowed >= needed, "{needed} open files are needed, {allowed} are allowed: raise the limit (`ulimit -n`)");
    let section = Bench::start(arguments.options).await?.measure().await?;
    println!("{section}");
    match &arguments.page {
        Some(page) => Page::new(page).write(&section),
        None => Ok(()),
    }
}

/// Reads how many files this process may open.
fn open_files(limits: &Path) -> anyhow::Result<usize> {
    let text = std::fs::read_to_string(limits)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    Ok(soft.parse().unwrap_or(usize::MAX))
}
