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
use models::log::{self, exit_code};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let config = config::Config::parse();
    log::begin(&config.log_filter, config.log_format).map_err(anyhow::Error::msg)?;
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
