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
mod stopped;
mod switch;
mod texts;

use std::process::ExitCode;

use clap::Subcommand;
use kube::Client;

use self::nodes::NodesOptions;
use crate::write::WriteOptions;

/// Commands that change what the operator does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Approve the canary step that waits for approval.
    Approve(approve::ApproveOptions),
    /// Stop new updates from starting; those under way are finished.
    Pause(WriteOptions),
    /// Let updates start again, resolve the failures that have frozen the rollout, or go on with other nodes than those that failed.
    Resume(switch::ResumeOptions),
    /// Keep nodes as they are: no update starts there, and one without a reboot permit ends.
    Hold(hold::HoldOptions),
    /// End the hold of nodes.
    Unhold(NodesOptions),
    /// End the back-off of nodes whose last update failed, and verify nodes again that have not proven their version.
    Retry(NodesOptions),
    /// End the update under way on nodes and return them to service; it does not count as a failure.
    Release(NodesOptions),
    /// Rehearse an update of a node: everything but arming an image and rebooting, and by default without an eviction.
    Drill(drill::DrillOptions),
    /// Exclude a version, or a range of versions, from updates.
    Quarantine(quarantine::QuarantineOptions),
    /// Set the version that nodes update to, up or down.
    Pin(pin::PinOptions),
    /// Send a notice to every receiver of the policy, and show whether each has taken it.
    TestNotices(WriteOptions),
}

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
