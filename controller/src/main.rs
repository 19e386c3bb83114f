//! `brupop-controller`: arguments, log, signals, and then [`controller::run`].

use std::process::ExitCode;

use clap::Parser;
use controller::config::Config;
use models::log::{LogFormat, exit_code, without_malformed_requests};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let config = Config::parse();
    let filter = tracing_subscriber::EnvFilter::try_new(without_malformed_requests(&config.log_filter))
        .map_err(|e| anyhow::anyhow!("--log-filter (RUST_LOG): {e}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // Where the standard error has no reader, the message about that would end the program.
    let log = log.log_internal_errors(false);
    match config.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
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
