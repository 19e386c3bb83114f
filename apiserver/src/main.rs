//! Entry point: arguments, telemetry, and the web API until a signal ends it.

use std::process::ExitCode;

use anyhow::Context as _;
use apiserver::Config;
use clap::Parser as _;
use models::log::{LogFormat, exit_code, without_malformed_requests};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<ExitCode> {
    let config = Config::parse();
    let filter = EnvFilter::try_new(without_malformed_requests(&config.log_filter)).context("--log-filter")?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // Where the standard error has no reader, the message about that would end the program.
    let log = log.log_internal_errors(false);
    match config.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
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
