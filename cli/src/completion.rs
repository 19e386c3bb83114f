//! Completion of command lines: the scripts for shells, and the words that they ask for. The words come from the command
//! line's own definition, the names of nodes from the cluster.

use std::time::Duration;

use clap::{Arg, Args, Command, ValueHint};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use models::names;

use crate::call::call;
use crate::page::Page;

/// Name of the hidden command that the scripts run. It is kubectl's own name for it.
pub(crate) const COMPLETE: &str = "__complete";

/// Time for names of nodes: a user waits for each completion.
const LIMIT: Duration = Duration::from_secs(2);

/// Name of values that are names of nodes.
const NODE: &str = "NODE";

/// A shell, or kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    /// The program with which kubectl completes `kubectl brupop`, in any shell.
    Kubectl,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionOptions {
    /// Shell that the script is for; `kubectl`: the program kubectl_complete-brupop, for kubectl's own completion.
    #[arg(value_enum)]
    shell: Shell,
}

/// Options of the hidden command.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// Words of the command line up to the one to complete.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

pub(crate) fn completion(options: &CompletionOptions) -> Page {
    let script = match options.shell {
        Shell::Bash => include_str!("completion/bash"),
        Shell::Zsh => include_str!("completion/zsh"),
        Shell::Fish => include_str!("completion/fish"),
        Shell::Kubectl => include_str!("completion/kubectl_complete-brupop"),
    };
    let mut page = Page::default();
    page.text(script);
    page
}

/// The words that may come next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Each with a description.
    words: Vec<(String, String)>,
    /// True if it is the name of a node.
    pub(crate) nodes: bool,
    /// True if it is the name of a file.
    files: bool,
}

impl Candidates {
    pub(crate) fn add_nodes(&mut self, names: Vec<String>) {
        self.words.extend(names.into_iter().map(|name| (name, String::new())));
    }

    /// Returns the words that begin like the last one, as kubectl's completion reads them.
    pub(crate) fn page(&self, words: &[String]) -> Page {
        let mut page = Page::default();
        let current = words.last().map(|word| if word == "=" { "" } else { word }).unwrap_or_default();
        for (word, about) in self.words.iter().filter(|(word, _)| word.starts_with(current)) {
            let about = about.split(['.', ':']).next().unwrap_or_default();
            page.tabbed(word, about);
        }
        // Directives of kubectl: no names of files, or the shell's own completion.
        page.line(if self.files { ":0" } else { ":4" });
        page
    }
}

/// Returns the words that may come next. The last of `words` is the one to complete, and may be empty.
pub(crate) fn candidates(root: &Command, words: &[String]) -> Candidates {
    let mut root = root.clone();
    root.build();
    let Some((current, before)) = words.split_last() else { return Candidates::default() };
    let (mut command, mut position, mut value_of) = (&root, 0, None::<&Arg>);
    for word in before {
        if word == "=" {
            // Some shells split --name=value at the sign.
        } else if value_of.take().is_some() {
            // The value of the option before it.
        } else if let Some(option) = option(command, word) {
            value_of = Some(option).filter(|option| option.get_action().takes_values() && !word.contains('='));
        } else if word.starts_with('-') {
            // Not known here.
        } else if let Some(inner) = command.find_subcommand(word) {
            (command, position) = (inner, 0);
        } else {
            position += 1;
        }
    }
    if let Some(option) = value_of {
        return values(option, "");
    }
    if let Some((name, _)) = current.split_once('=').filter(|(name, _)| name.starts_with("--")) {
        return option(command, name).map(|option| values(option, &format!("{name}="))).unwrap_or_default();
    }
    if current.starts_with('-') {
        return Candidates { words: options(command), ..Candidates::default() };
    }
    let commands = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    let commands = commands.map(|inner| (inner.get_name().to_owned(), about(inner.get_about())));
    let positional = command.get_positionals().nth(position);
    let repeated = || command.get_positionals().last().filter(|last| is_repeated(last));
    let mut found = positional.or_else(repeated).map(|argument| values(argument, "")).unwrap_or_default();
    found.words.extend(commands);
    found
}

fn about(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

fn is_repeated(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|count| count.max_values() > 1)
        || matches!(argument.get_action(), clap::ArgAction::Append)
}

/// Returns the option that a word names.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or_default();
    command.get_arguments().find(|option| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => !long.is_empty() && option.get_long() == Some(long),
        (None, Some(short)) => option.get_short().is_some_and(|letter| short == letter.to_string()),
        (None, None) => false,
    })
}

fn options(command: &Command) -> Vec<(String, String)> {
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    options.filter_map(|option| Some((format!("--{}", option.get_long()?), about(option.get_help())))).collect()
}

fn values(argument: &Arg, prefix: &str) -> Candidates {
    let possible = argument.get_possible_values();
    let named = |name: &str| argument.get_value_names().is_some_and(|names| names.iter().any(|other| other == name));
    let files = matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
    let words = possible.iter().filter(|value| !value.is_hide_set());
    Candidates {
        words: words.map(|value| (format!("{prefix}{}", value.get_name()), about(value.get_help()))).collect(),
        nodes: named(NODE),
        files: files || named("FILE"),
    }
}

/// Returns the names of the nodes under the operator; none if the cluster does not answer in time.
pub(crate) async fn nodes(client: &Client) -> Vec<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default().labels(names::INTERFACE_LABEL);
    let listed = tokio::time::timeout(LIMIT, call("list nodes", nodes.list_metadata(&params))).await;
    let Ok(Ok(listed)) = listed else { return Vec::new() };
    listed.iter().map(kube::ResourceExt::name_any).collect()
}

#[cfg(test)]
mod tests;
