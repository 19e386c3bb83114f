//! The agent: drives one host's update API to the desired state of the node's shadow, and reports progress.
//!
//! ```text
//!  web API ──stream──► views ──► drive: situation ──► step ──► host commands ──► report ──► web API
//!                                  (pure)             (pure)                     (pure)
//! ```
//!
//! Nothing is kept on disk: a new process needs only the shadow's status, the host and the boot id.

pub mod alive;
mod boot;
pub mod config;
mod desired_state;
pub mod drive;
mod failure_log;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod host;
mod memory;
mod permit;
mod process;
mod refreshes;
mod report;
pub mod server;
mod settings;
mod situation;
mod staging;
mod statement;
mod stream;
mod views;

use std::future::Future;

use alive::Alive;
use config::Config;
use drive::{AgentError, Driver};
use host::client::HostClient;
use server::Server;
use views::Views;

/// Runs the agent until `shutdown` resolves or the host's socket is lost.
///
/// Shutting down drops all work in progress and makes no more host calls: every reboot begins with a SIGTERM to this
/// process, and a call in the middle of it would be hardest to judge.
///
/// # Errors
///
/// Returns an error if a client cannot be built from the configuration, or if the host's socket has been dead for so
/// long that only a restart can help.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let host = HostClient::new(&config.host_socket).map_err(AgentError::Client)?;
    let server = Server::new(&config);
    let views = Views::default();
    let alive = Alive::new(config.alive_file.clone());
    tracing::info!(node = config.node_name, server = config.server_url, "agent started");
    let driver = Driver::new(&config, host, &server, &views);
    tokio::select! {
        // In this order: after the shutdown request, nothing else continues.
        biased;
        () = shutdown => {
            tracing::info!("shutdown requested");
            Ok(())
        }
        never = alive.beat() => match never {},
        never = stream::follow(&server, &views, &alive) => match never {},
        ended = driver.run() => match ended {
            Ok(never) => match never {},
            Err(error) => Err(error),
        },
    }
}
