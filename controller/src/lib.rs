//! The controller: carries out the plan for each Bottlerocket node: cordons, drains, issues the permit, releases.
//!
//! ```text
//! view ──► plan ──► lint ──► apply
//! (gather)  (the planner)    (I/O; no choices but the live check before a permit)
//! ```

#![expect(missing_docs, reason = "the library of one program: comments do not repeat names")]
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "a test begins at the present time"))]

pub mod apply;
pub mod cache;
pub mod caches;
pub mod calls;
pub mod client;
pub mod clock;
pub mod config;
pub mod decisions;
pub mod definitions;
pub mod driver;
pub mod earlier;
pub mod estimates;
pub mod eviction;
pub mod expressions;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod history;
pub mod http;
pub mod jobs;
pub mod leader;
pub mod metrics;
pub mod migrate;
pub mod notices;
mod outgoing;
pub mod owners;
mod replica;
pub mod surroundings;
pub mod tls;
pub mod writes;

use anyhow::Context as _;
use planner::predicate::Predicate;
use tokio::sync::watch;

use crate::config::Config;
use crate::replica::Replica;
use crate::surroundings::Surroundings;

/// Runs the controller until `stop` turns true. That the lease is lost, or the cluster restored to an earlier state, is an
/// error: the process has to end, since another replica may lead already, or its caches show no changes.
pub async fn run(config: Config, surroundings: Surroundings, stop: watch::Receiver<bool>) -> anyhow::Result<()> {
    Predicate::log_with(|expression| tracing::info!(expression, "parsing expression of a check of objects"));
    let listen = config.plain_listen;
    let replica = Replica::start(config, surroundings, stop.clone())?;
    let plain = tokio::spawn(replica.serve(listen));
    let result = replica.run().await;
    if *stop.borrow() {
        match plain.await {
            Ok(served) => served.context("the plain port")?,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the metrics and health server failed");
            }
        }
    }
    result
}
