//! Entry point: arguments, telemetry, and the web API until a signal ends it.

use std::process::ExitCode;

use apiserver::Config;
use clap::Parser as _;
use models::log::{self, exit_code};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<ExitCode> {
    let config = Config::parse();
    log::begin(&config.log_filter, config.log_format).map_err(anyhow::Error::msg)?;
    Ok(exit_code(run(config), |error| tracing::error!(error, "the web API has ended")))
}

/// Runs the web API until a signal ends it.
fn run(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        apiserver::run(config, shutdown).await
    })
}
