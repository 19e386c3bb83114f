//! Entry point: arguments, telemetry, and [`agent::run`].

use std::process::ExitCode;

use agent::config::Config;
use clap::Parser;
use models::log::{LogFormat, exit_code};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> anyhow::Result<ExitCode> {
    let config = Config::parse();
    if let Some(check) = config.check {
        return agent::alive::check(check, &config.alive_file).map(|()| ExitCode::SUCCESS);
    }
    let filter: Targets = config.log_filter.parse()?;
    let log = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match config.log_format {
        LogFormat::Text => registry.with(log).init(),
        LogFormat::Json => registry.with(log.json().flatten_event(true)).init(),
    }
    Ok(exit_code(run(config), |error| tracing::error!(error, "the agent has ended")))
}

/// Runs the agent until a signal ends it.
fn run(config: Config) -> anyhow::Result<()> {
    // One thread does all the work; the only other one resolves names, and needs little.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .thread_stack_size(256 * 1024)
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .build()?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        };
        agent::run(config, shutdown).await?;
        anyhow::Ok(())
    });
    // A name resolution in progress must not delay the exit.
    runtime.shutdown_background();
    ended
}
