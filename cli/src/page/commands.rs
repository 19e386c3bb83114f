//! Commands in texts. Each is shown whole and on a line of its own, so that it can be copied.

/// The words after `kubectl` by which a command in a text is known: `kubectl` is also the name of a field manager.
const VERBS: [&str; 12] = [
    "annotate", "apply", "brupop", "delete", "describe", "edit", "explain", "get", "label", "logs", "scale", "uncordon",
];

/// Returns the words of a text in parts: each is a command (`true`), or a text between commands. The punctuation after a command is left
/// out.
pub(super) fn parts(text: &str) -> Vec<(Vec<&str>, bool)> {
    let (mut parts, mut is_command, mut is_quoted) = (vec![(Vec::new(), false)], false, false);
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let begins = !is_command && word == "kubectl" && words.peek().is_some_and(|next| VERBS.contains(next));
        // A word in brackets is about the command.
        if begins || (is_command && !is_quoted && word.starts_with('(')) {
            (is_command, is_quoted) = (begins, false);
            parts.push((Vec::new(), begins));
        }
        is_quoted ^= is_command && word.matches('\'').count() % 2 == 1;
        let bare = if is_command && !is_quoted { word.trim_end_matches(['.', ',', ';', ':']) } else { word };
        if let Some((words, _)) = parts.last_mut() {
            words.push(bare);
        }
        if bare.len() < word.len() {
            is_command = false;
            parts.push((Vec::new(), false));
        }
    }
    parts.retain(|(words, _)| !words.is_empty());
    parts
}

/// Returns a text with each command in it as `change` makes it.
pub(crate) fn with_commands(text: &str, change: impl Fn(&str) -> String) -> String {
    let (mut changed, mut rest) = (String::new(), text);
    for (words, _) in parts(text).into_iter().filter(|(_, is_command)| *is_command) {
        let command = words.join(" ");
        if let Some((before, after)) = rest.split_once(command.as_str()) {
            changed.push_str(before);
            changed.push_str(&change(&command));
            rest = after;
        }
    }
    changed + rest
}

/// Returns the lines that show a command. Its note, which follows `  #`, is the first of them: zsh takes no comment on a line that is
/// typed or pasted.
pub(crate) fn lines_of(command: &str) -> impl Iterator<Item = String> {
    let at = command.find("  #").filter(|at| !command[..*at].trim().is_empty());
    let (typed, note) = command.split_at(at.unwrap_or(command.len()));
    let note = Some(note.trim()).filter(|note| !note.is_empty()).map(str::to_owned);
    note.into_iter().chain([typed.trim_end().to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_a_text_are_changed_and_the_text_stays() {
        let changed = |text: &str| with_commands(text, |command| format!("<{command}>"));
        for (text, expected) in [
            ("see the log", "see the log"),
            (
                "first: kubectl get nodes. Then, kubectl logs x (docs); done",
                "first: <kubectl get nodes>. Then, <kubectl logs x> (docs); done",
            ),
            ("kubectl get pods, kubectl get pods", "<kubectl get pods>, <kubectl get pods>"),
            ("the field manager kubectl owns it", "the field manager kubectl owns it"),
        ] {
            assert_eq!(changed(text), expected);
        }
    }

    #[test]
    fn note_of_a_command_is_a_line_before_it() {
        for (command, expected) in [
            ("kubectl get nodes", &["kubectl get nodes"][..]),
            (
                "kubectl brupop retry a  # once the cause is removed",
                &["# once the cause is removed", "kubectl brupop retry a"],
            ),
            (
                "helm uninstall r -n NAMESPACE   # that of its record",
                &["# that of its record", "helm uninstall r -n NAMESPACE"],
            ),
            ("# apply its manifests again", &["# apply its manifests again"]),
        ] {
            assert_eq!(lines_of(command).collect::<Vec<_>>(), expected);
        }
    }

    /// zsh takes what follows a `#` for words of the command.
    #[test]
    fn no_line_with_a_command_has_a_note() {
        let programs = ["kubectl ", "helm ", "flux ", "argocd ", "aws "];
        let is_noted = |line: &&str| {
            let command = line.trim_start_matches("To do:").trim_start();
            programs.iter().any(|program| command.starts_with(program)) && command.contains(" # ")
        };
        for folder in ["cli/snapshots", "integ/tests/snapshots"] {
            let folder = format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR"));
            for file in std::fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                // Without the styles of terminals.
                let text = std::fs::read_to_string(&path).unwrap().replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
                assert_eq!(text.lines().find(is_noted), None, "{}", path.display());
            }
        }
    }
}
