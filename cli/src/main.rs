//! `kubectl-brupop`: checks before an installation, shows the state of each node with reasons, shows and
//! undoes changes of the policy, takes over from the earlier operator, and uninstalls. Installed on the PATH, kubectl runs it as `kubectl brupop`.

#![warn(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod advice;
mod browser;
mod bundle;
mod call;
mod clock;
mod cluster;
mod completion;
mod connect;
mod doctor;
mod explain;
mod failures;
mod files;
#[cfg(test)]
mod fixtures;
mod forecast;
mod helm;
mod history;
mod images;
mod install;
mod marks;
mod near;
mod page;
mod plan;
mod preflight;
mod requests;
mod rights;
mod shell;
mod simulate;
mod status;
mod swap;
mod takeover;
mod terminal;
mod timeline;
mod uninstall;
mod watch;
mod write;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use models::names;

/// Exit codes, for `--help` and docs/plugin.md.
const EXIT_CODES: &str = "\
Exit codes:
  0  the command did what it says, or nothing had to be done
  1  it failed: the error says why, and what was written
  2  the command line is not understood
  3  it was written, and it is not known that the operator has acknowledged it (--timeout)
  4  watch --until=completed: failures have frozen the rollout, or are all that is left
  5  watch --until=completed: the rollout has not ended within --timeout
  6  plan, simulate: not every node is updated, or not by the time of --by
  7  drill: it did not pass, for the reason that is shown
130  watch --until=completed: Ctrl-C came first, or the output was closed";

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
    /// Colours of the output: `auto` uses them on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, default_value_t = clap::ColorChoice::Auto)]
    color: clap::ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check whether the operator can be installed in the cluster; changes nothing.
    Preflight,
    /// Install the operator: the same objects as the manifests.
    Install(install::InstallOptions),
    /// Show the rollout and each node: the step of its update, and the reason why it waits.
    Status(status::StatusOptions),
    /// Show every check of one node in the order in which the controller makes them, and what changes its state next.
    Explain(explain::ExplainOptions),
    /// Show the rollout and the nodes live, until Ctrl-C or, with --until=completed, until the rollout has ended.
    Watch(watch::WatchOptions),
    /// Check the installation from end to end: objects, rights, certificates, agents, labels, clocks, budgets.
    Doctor(doctor::DoctorOptions),
    /// Write the state of the operator into one archive, for those who are to help. Secrets are left out.
    SupportBundle(bundle::BundleOptions),
    /// Show the revisions of the policy and the rollouts, one rollout with its nodes and pods, or verify the records.
    History(history::HistoryOptions),
    /// Return to an earlier revision of the policy.
    Undo(history::UndoOptions),
    /// Show the rollout before it begins: order and times of nodes, windows, budgets, and what prevents it.
    Plan(plan::PlanOptions),
    /// Simulate the rollout of a described fleet in virtual time; needs no cluster.
    Simulate(simulate::SimulateOptions),
    #[command(flatten)]
    Request(requests::Command),
    /// Move from the earlier bottlerocket-update-operator to this one.
    #[command(subcommand)]
    Takeover(takeover::Command),
    /// Print the completion script for a shell, or for kubectl.
    Completion(completion::CompletionOptions),
    /// End updates in progress, release every node, and remove the operator from the cluster.
    Uninstall(uninstall::UninstallOptions),
}

/// Returns the namespace of the operator for the commands that are printed; `None` where commands without it are for the same one, here and in
/// other terminals.
fn named_namespace<'a>(namespace: &'a str, of_environment: Option<&str>) -> Option<&'a str> {
    let is_default = namespace == names::SYSTEM_NAMESPACE && of_environment.is_none_or(|of| of == namespace);
    (!is_default).then_some(namespace)
}

fn main() -> ExitCode {
    // Before the runtime starts: the names of nodes are listed in one of their own.
    completion::complete(Arguments::command);
    run_command()
}

#[tokio::main(flavor = "current_thread")]
async fn run_command() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            page::complain(&error);
            if error.is::<write::Unacknowledged>() { ExitCode::from(UNACKNOWLEDGED) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    page::use_colours(terminal::colour(arguments.color));
    let of_environment = std::env::var("BRUPOP_NAMESPACE").ok();
    shell::keep(arguments.connect.given(), named_namespace(&arguments.namespace, of_environment.as_deref()));
    let error = match carry_out(&arguments).await {
        Err(error) => error,
        code => return code,
    };
    match arguments.connect.config().await {
        Ok(config) => Err(call::name_server(error, &config.cluster_url)),
        Err(_) => Err(error),
    }
}

async fn carry_out(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (connect, namespace) = (&arguments.connect, arguments.namespace.as_str());
    match &arguments.command {
        Command::Preflight => preflight::preflight(connect.client().await?, namespace).await?,
        Command::Install(options) => {
            let client = connect.client().await?;
            swap::check_ended(&client).await?;
            install::install(client, namespace, options).await?;
        }
        Command::Status(options) => status::status(&connect.client().await?, namespace, options).await?.print()?,
        Command::Explain(options) => explain::explain(&connect.client().await?, namespace, options).await?.print()?,
        Command::Watch(options) => {
            return Ok(watch::watch(&connect.client().await?, namespace, options).await?.exit_code());
        }
        Command::Doctor(options) => return doctor::doctor(&connect.client().await?, namespace, options).await,
        Command::SupportBundle(options) => bundle::bundle(&connect.client().await?, namespace, options).await?,
        Command::History(options) => history::history(connect, namespace, options).await?,
        Command::Undo(options) => history::undo(&connect.client().await?, namespace, options).await?,
        Command::Plan(options) => return plan::plan(connect, namespace, options).await,
        Command::Simulate(options) => return simulate::run(options),
        Command::Request(command) => return requests::run(&connect.client().await?, namespace, command).await,
        Command::Takeover(command) => takeover::takeover(connect, namespace, command).await?,
        Command::Completion(options) => completion::script(options)?.print()?,
        Command::Uninstall(options) => {
            let client = connect.client().await?;
            swap::check_ended(&client).await?;
            uninstall::uninstall(client, namespace, options).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_commands_name_the_namespace_where_they_may_be_for_another_one_without_it() {
        for (namespace, of_environment, expected) in [
            ("brupop-system", None, None),
            ("brupop-system", Some("brupop-system"), None),
            ("brupop-system", Some("ops"), Some("brupop-system")),
            ("ops", None, Some("ops")),
            ("ops", Some("ops"), Some("ops")),
        ] {
            assert_eq!(named_namespace(namespace, of_environment), expected, "{namespace} {of_environment:?}");
        }
    }

    /// A sentence goes on after a command, whose options have to be there with their values.
    #[test]
    fn commands_in_alerts_are_those_of_the_plugin() {
        let rule = deploy::monitoring::prometheus_rule().unwrap();
        let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap().iter();
        let texts = rules.flat_map(|rule| ["summary", "description"].map(|part| rule["annotations"][part].as_str()));
        let mut found = 0;
        for text in texts.flat_map(|text| text.unwrap().split("kubectl brupop ").skip(1)) {
            let command = text.split([')', '.', ',', ';', ':']).next().unwrap_or_default();
            let words: Vec<&str> = command.split_whitespace().collect();
            let least = words.iter().rposition(|word| word.starts_with('-')).unwrap_or_default() + 1;
            let is_understood = |count: usize| {
                let line = std::iter::once("kubectl-brupop").chain(words.iter().take(count).copied());
                Arguments::try_parse_from(line).is_ok()
            };
            assert!((least..=words.len()).any(is_understood), "kubectl brupop {command}");
            found += 1;
        }
        assert!(found > 3, "{found}");
    }
}
