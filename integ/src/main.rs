//! `brupop-demo`: a real control plane, simulated Bottlerocket nodes, and one update rolling through them.

use std::process::ExitCode;

use clap::Parser as _;
use integ::demo;

#[tokio::main]
async fn main() -> ExitCode {
    let options = demo::Options::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "warn,kube_client=off,kube_runtime=off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    tokio::select! {
        result = demo::run(options) => match result {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("demo: {error:#}");
                ExitCode::FAILURE
            }
        },
        // Dropping the run ends every process of the test cluster and removes its files.
        _ = tokio::signal::ctrl_c() => {
            eprintln!("demo: interrupted, cleaning up");
            ExitCode::from(130)
        }
    }
}
