//! The agents of a fleet: tasks of one thread, as an agent is not to be moved between threads.

use std::path::PathBuf;

use anyhow::Context as _;
use futures::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

/// Files and name of one agent.
#[derive(Clone, Debug)]
pub struct AgentFiles {
    /// The node's name.
    pub node: String,
    /// The host API's socket.
    pub host_socket: PathBuf,
    /// The file with the id of the running boot.
    pub boot_id_file: PathBuf,
    /// The file with the token.
    pub token_file: PathBuf,
    /// The folder with the trusted authorities and keys.
    pub trust_dir: PathBuf,
    /// The file for the probes.
    pub alive_file: PathBuf,
}

/// The program of the agents, which this package does not depend on.
#[derive(Clone, Copy)]
pub struct AgentProgram {
    /// Runs an agent until the sender is dropped.
    pub run: fn(AgentFiles, oneshot::Receiver<()>) -> LocalBoxFuture<'static, anyhow::Result<()>>,
    /// Returns true if the agent with this file is connected to the web API, as its readiness probe does.
    pub is_connected: fn(&std::path::Path) -> bool,
}

/// Starts agents in their thread, which ends with this.
#[derive(Debug)]
pub(super) struct Agents(mpsc::UnboundedSender<Start>);

#[derive(Debug)]
struct Start {
    files: AgentFiles,
    stop: oneshot::Receiver<()>,
    ended: oneshot::Sender<()>,
}

/// A running agent. Dropping it stops it.
#[derive(Debug)]
pub(super) struct RunningAgent {
    _stop: oneshot::Sender<()>,
    /// Resolves when the agent has ended.
    pub(super) ended: oneshot::Receiver<()>,
}

impl Agents {
    /// Starts the thread.
    pub(super) fn new(program: AgentProgram) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || LocalSet::new().block_on(&runtime, run(program, receiver));
        std::thread::Builder::new().name("agents".to_owned()).spawn(work)?;
        Ok(Self(sender))
    }

    /// Starts an agent.
    pub(super) fn start(&self, files: AgentFiles) -> anyhow::Result<RunningAgent> {
        let (stop, stopped) = oneshot::channel();
        let (sender, ended) = oneshot::channel();
        self.0
            .send(Start { files, stop: stopped, ended: sender })
            .ok()
            .context("the thread of the agents has ended")?;
        Ok(RunningAgent { _stop: stop, ended })
    }
}

async fn run(program: AgentProgram, mut starts: mpsc::UnboundedReceiver<Start>) {
    while let Some(Start { files, stop, ended }) = starts.recv().await {
        spawn_local(async move {
            let node = files.node.clone();
            if let Err(error) = (program.run)(files, stop).await {
                tracing::warn!(node, error = format!("{error:#}"), "agent ended");
            }
            // The node may be gone.
            let _ = ended.send(());
        });
    }
}
