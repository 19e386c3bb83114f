//! `brupop-aws`: keeps EC2 Auto Scaling groups from replacing nodes that are updated, as a hook of the operator. A program
//! of its own, so that no other one has the AWS SDK, or rights in AWS.

mod cloud;
mod cluster;
mod config;
mod decide;
mod facts;
mod holds;
mod record;
mod run;

use std::process::ExitCode;

use clap::Parser as _;
use models::log::{LogFormat, exit_code};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let config = config::Config::parse();
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log_filter)
        .map_err(|error| anyhow::anyhow!("--log-filter (RUST_LOG): {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // Where the standard error has no reader, the message about that would end the program.
    let log = log.log_internal_errors(false);
    match config.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(exit_code(work(&config).await, |error| tracing::error!(error, "brupop-aws has ended")))
}

/// Works until a signal ends it.
async fn work(config: &config::Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let cloud = cloud::Cloud::connect().await?;
    let cluster = cluster::Cluster::connect(&config.namespace).await?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
    // Nothing has to be finished before the end: what is under way is recorded, and the next process goes on with it.
    tokio::select! {
        () = cluster.watch() => anyhow::bail!("a watch has ended"),
        () = run::run(config, &cluster, cloud) => {}
        _ = terminate.recv() => tracing::info!("stopping"),
    }
    Ok(())
}
