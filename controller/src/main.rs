//! `brupop-controller`: arguments, log, signals, and then [`controller::run`].

use std::process::ExitCode;

use clap::Parser;
use controller::config::Config;
use models::log::{self, exit_code};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let config = Config::parse();
    log::begin(&config.log_filter, config.log_format).map_err(anyhow::Error::msg)?;
    Ok(exit_code(run(config).await, |error| tracing::error!(error, "the controller has ended")))
}

/// Runs the controller until a signal ends it.
async fn run(config: Config) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.send_replace(true);
        // Keeps the channel open for as long as there is a receiver.
        std::future::pending::<()>().await;
    });
    controller::run(config, controller::surroundings::Surroundings::infer().await?, stopped).await
}
