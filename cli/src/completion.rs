//! Completion of command lines, in shells by `clap_complete` and by kubectl: the words come from the command line's own
//! definition, the names of nodes from the cluster.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, Command, FromArgMatches as _};
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate, engine};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::config::ExecInteractiveMode;
use models::names;
use models::plain::plain;

use crate::call::call;
use crate::connect::{self, ConnectOptions};
use crate::page::Page;

/// Time for names of nodes: a user waits for each completion.
const LIMIT: Duration = Duration::from_secs(2);

/// Name of values that are names of nodes.
const NODE: &str = "NODE";

/// Name of this program.
const PROGRAM: &str = "kubectl-brupop";

/// Environment variable by which shells ask for words. Another program's `COMPLETE`, the crate's own, does not change a command.
const VARIABLE: &str = "BRUPOP_COMPLETE";

/// The shells, and kubectl.
const SHELLS: Shells<'static> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh, &Kubectl]);

/// The program with which kubectl completes `kubectl brupop`, in any shell.
struct Kubectl;

#[derive(Debug, Args)]
pub(crate) struct CompletionOptions {
    /// Shell that the script is for; `kubectl`: the program kubectl_complete-brupop, for kubectl's own completion.
    #[arg(value_parser = PossibleValuesParser::new(SHELLS.names()))]
    shell: String,
}

pub(crate) fn script(options: &CompletionOptions) -> anyhow::Result<Page> {
    let (shells, mut script) = (SHELLS, Vec::new());
    let shell = shells.completer(&options.shell).with_context(|| format!("{} is no shell", options.shell))?;
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    let mut page = Page::default();
    page.text(&String::from_utf8(script)?);
    Ok(page)
}

/// Prints the words that may come next on a line and ends the program, if a shell asks for them.
pub(crate) fn complete(line: fn() -> Command) {
    let names = ArgValueCandidates::new(move || nodes(line));
    CompleteEnv::with_factory(|| with_nodes(line(), &names)).var(VARIABLE).shells(SHELLS).complete();
}

/// Adds the names of nodes to a command.
fn with_nodes(command: Command, nodes: &ArgValueCandidates) -> Command {
    command
        .mut_args(|argument| {
            let is_node = argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == NODE));
            if is_node { argument.add(nodes.clone()) } else { argument }
        })
        .mut_subcommands(|inner| with_nodes(inner, nodes))
}

/// Returns the names of the nodes under the operator; none if the cluster does not answer in time.
fn nodes(line: fn() -> Command) -> Vec<CompletionCandidate> {
    // The options of the connection, however incomplete the rest of the line is.
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let matches = line().ignore_errors(true).try_get_matches_from(words).ok();
    let options = matches.and_then(|matches| ConnectOptions::from_arg_matches(&matches).ok()).unwrap_or_default();
    let (sender, receiver) = mpsc::channel();
    // A plugin for credentials and the resolver of names block their thread, which ends with the program.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        sender.send(runtime.map(|runtime| runtime.block_on(names_of_nodes(&options))))
    });
    let Ok(Ok(Ok(names))) = receiver.recv_timeout(LIMIT) else { return Vec::new() };
    names.iter().map(|name| CompletionCandidate::new(plain(name))).collect()
}

async fn names_of_nodes(options: &ConnectOptions) -> anyhow::Result<Vec<String>> {
    let mut config = options.config().await?;
    // A plugin for credentials must not ask, or write on the terminal, while a line is typed.
    if let Some(plugin) = &mut config.auth_info.exec {
        plugin.interactive_mode = Some(ExecInteractiveMode::Never);
    }
    let nodes: Api<Node> = Api::all(connect::client(config)?);
    let params = ListParams::default().labels(names::INTERFACE_LABEL);
    let listed = call("list nodes", nodes.list_metadata(&params)).await?;
    Ok(listed.iter().map(kube::ResourceExt::name_any).collect())
}

impl EnvCompleter for Kubectl {
    fn name(&self) -> &'static str {
        "kubectl"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        _variable: &str,
        _name: &str,
        _program: &str,
        _completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        out.write_all(include_bytes!("completion/kubectl_complete-brupop"))
    }

    /// Writes words as kubectl's completion reads them. Options are among them only where one is begun, as for commands of kubectl.
    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let is_option = |word: &OsStr| word.as_encoded_bytes().starts_with(b"-");
        let wants_options = words.last().is_some_and(|word| is_option(word));
        let last = words.len().saturating_sub(1);
        let mut found = engine::complete(command, words, last, folder)?;
        found.retain(|candidate| wants_options || !is_option(candidate.get_value()));
        for candidate in &found {
            let word = plain(&candidate.get_value().to_string_lossy());
            match candidate.get_help() {
                Some(help) => writeln!(out, "{word}\t{}", plain(&help.to_string()))?,
                None => writeln!(out, "{word}")?,
            }
        }
        // Directives of kubectl: no names of files but these, and no space after that of a folder.
        let is_folder = |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().ends_with(b"/");
        writeln!(out, "{}", if found.iter().any(is_folder) { ":6" } else { ":4" })
    }
}

#[cfg(test)]
mod tests;
