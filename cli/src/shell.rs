//! Commands for users to copy. Each reaches the cluster that this command line has chosen, as the same user.

use std::cell::RefCell;
use std::fmt::Write as _;

/// The options of this command line that choose the cluster and the user, and the namespace of the operator, each with a space before
/// it.
#[derive(Debug, Default)]
struct Chosen {
    kubectl: String,
    helm: String,
    /// For commands of this plugin alone.
    namespace: String,
}

thread_local! {
    // All commands run on one thread, and each unit test has its own.
    static CHOSEN: RefCell<Chosen> =
        const { RefCell::new(Chosen { kubectl: String::new(), helm: String::new(), namespace: String::new() }) };
}

/// An option as kubectl and Helm name it, with its value.
pub(crate) type Given = (&'static str, &'static str, String);

/// Keeps the options for the commands that are printed, and the namespace, where commands without it may be for another one.
pub(crate) fn keep(options: impl IntoIterator<Item = Given>, namespace: Option<&str>) {
    let namespace = namespace.map_or_else(String::new, |namespace| format!(" -n {}", word(namespace)));
    let mut chosen = Chosen { namespace, ..Chosen::default() };
    for (kubectl, helm, value) in options {
        let value = word(&value);
        let _ = write!(chosen.kubectl, " {kubectl} {value}");
        let _ = write!(chosen.helm, " {helm} {value}");
    }
    CHOSEN.set(chosen);
}

/// Returns a command with the options that choose the cluster and the user, before its comment; one of this plugin also with the namespace of
/// the operator. One that has them already, or is of a program that does not know them, stays as it is.
pub(crate) fn for_cluster(command: &str) -> String {
    let end = command.find("  #").map_or(command.len(), |at| command[..at].trim_end().len());
    let (typed, comment) = command.split_at(end);
    CHOSEN.with_borrow(|chosen| {
        let options = match typed.split(' ').next() {
            Some("kubectl" | "flux") => chosen.kubectl.as_str(),
            Some("helm") => chosen.helm.as_str(),
            _ => "",
        };
        let options = if typed.contains(options) { "" } else { options };
        let lacks_namespace = typed.starts_with("kubectl brupop ") && !typed.contains(" -n ");
        let namespace = if lacks_namespace { chosen.namespace.as_str() } else { "" };
        format!("{typed}{namespace}{options}{comment}")
    })
}

/// Returns whether commands of this plugin without a namespace get one, which may be another than that of the default installation.
pub(crate) fn names_namespace() -> bool {
    CHOSEN.with_borrow(|chosen| !chosen.namespace.is_empty())
}

/// Returns a word for a shell, which may be any text.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Runs a part of a test as if `--context` had been given.
    pub(crate) fn with_context<T>(context: &str, run: impl FnOnce() -> T) -> T {
        keep([("--context", "--kube-context", context.to_owned())], None);
        let result = run();
        keep([], None);
        result
    }

    /// Returns the first line with a command that would go to the current context.
    pub(crate) fn without_context(text: &str) -> Option<&str> {
        text.lines().find(|line| line.contains("kubectl ") && !line.contains(" --context "))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// Returns the files in a folder and in those in it.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn command_in_a_sentence_is_for_the_chosen_cluster() {
        // One that needs no cluster, and one on a page that is read elsewhere.
        let others = ["kubectl brupop plan --from-dump", "kubectl brupop history --verify"];
        let is_program = |word: &str| matches!(word, "kubectl" | "helm" | "flux");
        let is_bare = |words: &&[&str]| {
            let in_sentence = words[0].ends_with(':') && is_program(words[1]);
            let in_brackets = words[1].strip_prefix('(').is_some_and(is_program);
            let text = words.join(" ");
            (in_sentence || in_brackets) && !others.iter().any(|other| text.contains(other))
        };
        for path in files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))) {
            if path.extension().is_none_or(|end| end != "rs") || path.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("mod tests {").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let words: Vec<&str> = lines.flat_map(str::split_whitespace).filter(|word| *word != "\\").collect();
            assert_eq!(words.windows(5).find(is_bare), None, "{}: no shell::for_cluster", path.display());
        }
    }

    /// zsh runs what follows a `;` in a note that is pasted, and takes the lines up to the next quote for one word.
    #[test]
    fn note_of_a_command_ends_no_command_and_opens_no_quote() {
        let paths = files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
            let source = std::fs::read_to_string(path).unwrap();
            let code = source.split("mod tests {").next().unwrap_or_default();
            let notes = code.lines().filter_map(|line| line.split_once("  # ")).map(|(_, note)| note);
            let mut notes = notes.filter_map(|note| note.split('"').next());
            assert_eq!(notes.find(|note| note.contains([';', '\''])), None, "{}", path.display());
        }
    }

    #[test]
    fn copied_command_reaches_the_chosen_cluster_as_the_same_user() {
        let (context, file) = ("--context", "--kubeconfig");
        let of_context = || vec![(context, "--kube-context", "prod-eu".to_owned())];
        let of_file = || vec![(file, file, "a file".to_owned())];
        let of_user = || vec![("--as", "--kube-as-user", "me".to_owned()), (context, "--kube-context", "c".to_owned())];
        for (sentence, options, command, expected) in [
            ("no option", vec![], "kubectl uncordon a", "kubectl uncordon a"),
            ("of kubectl", of_context(), "kubectl uncordon a", "kubectl uncordon a --context prod-eu"),
            ("own", of_context(), "kubectl brupop retry a -n ops", "kubectl brupop retry a -n ops --context prod-eu"),
            ("own, of the default namespace", vec![], "kubectl brupop doctor", "kubectl brupop doctor"),
            ("note", of_file(), "kubectl delete node a  # gone", "kubectl delete node a --kubeconfig 'a file'  # gone"),
            ("of several options", of_user(), "kubectl get nodes", "kubectl get nodes --as me --context c"),
            ("of Helm", of_user(), "helm list -A", "helm list -A --kube-as-user me --kube-context c"),
            ("of Flux", of_context(), "flux suspend kustomization a", "flux suspend kustomization a --context prod-eu"),
            (
                "whose comment is a command too",
                of_file(),
                "helm uninstall r -n NAMESPACE   # find it: kubectl get secret -A --kubeconfig 'a file'",
                "helm uninstall r -n NAMESPACE --kubeconfig 'a file'   # find it: kubectl get secret -A --kubeconfig 'a file'",
            ),
            ("of another program", of_context(), "date -u", "date -u"),
        ] {
            keep(options, None);
            assert_eq!(for_cluster(command), expected, "{sentence}");
            assert_eq!(for_cluster(expected), expected, "{sentence}: only once");
        }
        for (sentence, options, command, expected) in [
            ("own", vec![], "kubectl brupop doctor", "kubectl brupop doctor -n ops"),
            ("with a context", of_context(), "kubectl brupop doctor", "kubectl brupop doctor -n ops --context prod-eu"),
            ("of another namespace", vec![], "kubectl brupop doctor -n other", "kubectl brupop doctor -n other"),
            ("note", vec![], "kubectl brupop retry a  # of a node", "kubectl brupop retry a -n ops  # of a node"),
            ("of kubectl", vec![], "kubectl get nodes", "kubectl get nodes"),
        ] {
            keep(options, Some("ops"));
            assert_eq!(for_cluster(command), expected, "{sentence}");
            assert_eq!(for_cluster(expected), expected, "{sentence}: only once");
        }
        keep([], None);
    }

    #[test]
    fn word_for_a_shell_is_quoted_where_it_has_to_be() {
        for (text, expected) in [("prod-eu", "prod-eu"), ("me@prod", "'me@prod'"), ("it's", r"'it'\''s'"), ("", "''")] {
            assert_eq!(word(text), expected);
        }
    }
}
