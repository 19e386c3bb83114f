//! `kubectl-brupop`: checks before an installation, shows the state of each node with reasons, carries out requests about
//! the rollout and about nodes, shows and undoes changes of the policy, takes over from the earlier operator, and uninstalls.
//! Installed on the PATH, kubectl runs it as `kubectl brupop`.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod call;
mod connect;
mod forecast;
mod history;
mod marks;
mod page;
mod preflight;
mod requests;
mod rights;
mod simulate;
mod status;
mod swap;
mod takeover;
mod timeline;
mod uninstall;
mod write;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use models::names;

/// Exit codes, for `--help` and docs/plugin.md.
const EXIT_CODES: &str = "\
Exit codes:
  0  the command did what it says, or nothing had to be done
  1  it failed: the error says why, and what was written
  2  the command line is not understood
  3  it was written, and it is not known that the operator has acknowledged it (--timeout)";

/// Exit code of a write that the operator has not acknowledged.
const UNACKNOWLEDGED: u8 = 3;

/// Command line of the Bottlerocket update operator: status, history, requests about the rollout and about nodes, install and
/// uninstall.
#[derive(Debug, Parser)]
#[command(name = "kubectl-brupop", bin_name = "kubectl brupop", version, after_help = EXIT_CODES)]
struct Arguments {
    /// Namespace of the operator.
    #[arg(long, short, env = "BRUPOP_NAMESPACE", default_value = names::SYSTEM_NAMESPACE, global = true)]
    namespace: String,
    #[command(flatten)]
    connect: connect::ConnectOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check whether the operator can be installed in the cluster; changes nothing.
    Preflight,
    /// Show the rollout and each node: the step of its update, and the reason why it waits.
    Status(status::Options),
    /// Show the revisions of the policy and the rollouts, one rollout with its nodes and pods, or verify the records.
    History(history::HistoryOptions),
    /// Return to an earlier revision of the policy.
    Undo(history::UndoOptions),
    /// Simulate the rollout of a described fleet in virtual time; needs no cluster.
    Simulate(simulate::SimulateOptions),
    #[command(flatten)]
    Request(requests::Command),
    /// Move from the earlier bottlerocket-update-operator to this one.
    #[command(subcommand)]
    Takeover(takeover::Command),
    /// End updates in progress, release every node, and remove the operator from the cluster.
    Uninstall(uninstall::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            page::complain(&error);
            if error.is::<write::Unacknowledged>() { ExitCode::from(UNACKNOWLEDGED) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Command::History(options) = &arguments.command
        && options.is_offline()
    {
        return history::history(None, &arguments.namespace, options).await;
    }
    if let Command::Simulate(options) = &arguments.command {
        return simulate::run(options)?.print().context("the standard output cannot be written");
    }
    let client = arguments.connect.client().await?;
    match arguments.command {
        Command::Preflight => preflight::preflight(client).await?,
        Command::Status(options) => {
            let page = status::status(client, &arguments.namespace, &options).await?;
            page.print().context("the standard output cannot be written")?;
        }
        Command::History(options) => history::history(Some(&client), &arguments.namespace, &options).await?,
        Command::Undo(options) => history::undo(&client, &arguments.namespace, &options).await?,
        Command::Simulate(_) => {}
        Command::Request(command) => requests::run(&client, &arguments.namespace, &command).await?,
        Command::Takeover(command) => takeover::takeover(client, &arguments.namespace, &command).await?,
        Command::Uninstall(options) => {
            swap::check_ended(&client).await?;
            uninstall::uninstall(client, &arguments.namespace, &options).await?;
        }
    }
    Ok(())
}
