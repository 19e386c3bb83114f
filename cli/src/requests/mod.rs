//! Requests of users about a rollout and about single nodes: approve, pause and resume, hold, retry, release and drill, quarantine
//! and pin.
//! Each command reads one kind of object, decides with a pure function what is to be written, and waits for what comes of it.

mod approve;
mod attempt;
mod drill;
mod hold;
mod nodes;
mod notices;
mod operator;
mod pin;
mod quarantine;
mod switch;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::Client;

use crate::write::WriteOptions;

/// Commands that change what the operator does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Approve the canary step that waits for approval.
    Approve(approve::Options),
    /// Stop new updates from starting; those under way are finished.
    Pause(WriteOptions),
    /// Let updates start again, or settle the failures that have frozen the rollout.
    Resume(switch::ResumeOptions),
    /// Keep nodes as they are: no update starts there, and one without a reboot permit ends.
    Hold(hold::Options),
    /// End the hold of nodes.
    Unhold(NodesOptions),
    /// End the back-off of nodes whose last update failed.
    Retry(NodesOptions),
    /// End the update under way on nodes and return them to service; it does not count as a failure.
    Release(NodesOptions),
    /// Rehearse an update of a node: everything but arming an image and rebooting, and by default without an eviction.
    Drill(drill::Options),
    /// Exclude a version, or a range of versions, from updates.
    Quarantine(quarantine::Options),
    /// Set the version that nodes update to, up or down.
    Pin(pin::Options),
    /// Send a notice to every receiver of the policy, and show whether each has taken it.
    TestNotices(WriteOptions),
}

/// Options of commands about nodes.
#[derive(Debug, Args)]
pub(crate) struct NodesOptions {
    /// Names of the nodes.
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    write: WriteOptions,
}

/// Runs a command.
pub(crate) async fn run(client: &Client, namespace: &str, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Drill(options) => return drill::drill(client, namespace, options).await,
        Command::Approve(options) => approve::approve(client, namespace, options).await?,
        Command::Pause(options) => switch::pause(client, namespace, options).await?,
        Command::Resume(options) => switch::resume(client, namespace, options).await?,
        Command::Hold(options) => hold::hold(client, namespace, options).await?,
        Command::Unhold(options) => hold::unhold(client, namespace, options).await?,
        Command::Retry(options) => attempt::retry(client, namespace, options).await?,
        Command::Release(options) => attempt::release(client, namespace, options).await?,
        Command::Quarantine(options) => quarantine::quarantine(client, namespace, options).await?,
        Command::Pin(options) => pin::pin(client, namespace, options).await?,
        Command::TestNotices(options) => notices::test(client, namespace, options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the value of a one-shot request that no other request has.
fn nonce(now: Timestamp) -> String {
    format!("kubectl-brupop {now:.9}")
}

/// Returns the first of some names, and the number of the others.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_value_fits_its_acknowledgement_and_differs_each_time() {
        let now = Timestamp::now();
        let later = now + jiff::SignedDuration::from_nanos(1);
        assert!(nonce(now).len() <= 64 && nonce(now) != nonce(later), "{}", nonce(now));
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(some(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(some(&names[..2]), "0, 1");
    }
}
