use clap::CommandFactory as _;

use super::*;
use crate::Arguments;

fn complete(line: &str) -> (Vec<String>, bool, bool) {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let found = candidates(&Arguments::command(), &words);
    let text = found.page(&words).to_string();
    let words = text.lines().filter(|line| !line.starts_with(':'));
    (words.map(|line| line.split('\t').next().unwrap().to_owned()).collect(), found.nodes, found.files)
}

#[test]
fn commands_options_and_values_are_completed() {
    for (line, expected) in [
        ("stat", vec!["status"]),
        ("expl", vec!["explain"]),
        ("status --al", vec!["--all"]),
        ("status -o j", vec!["json"]),
        ("status --output ya", vec!["yaml"]),
        ("status --output=ya", vec!["--output=yaml"]),
        ("status --output = ya", vec!["yaml"]),
        ("status --color n", vec!["never"]),
        ("--context x watch --until ", vec!["completed"]),
        ("-n other watch --until ", vec!["completed"]),
        ("takeover pre", vec!["preflight"]),
        ("completion z", vec!["zsh"]),
        ("explain a --namesp", vec!["--namespace"]),
        ("explain a b", vec![]),
        ("__comp", vec![]),
    ] {
        assert_eq!(complete(line).0, expected, "{line}");
    }
}

#[test]
fn names_of_nodes_and_files_are_completed_where_they_belong() {
    for (line, nodes, files) in [
        ("explain ", true, false),
        ("explain -o wide ", true, false),
        ("explain a ", false, false),
        ("status ", false, false),
        ("history --bundle ", false, true),
    ] {
        let (_, found_nodes, found_files) = complete(line);
        assert_eq!((found_nodes, found_files), (nodes, files), "{line}");
    }
    let words = ["explain".to_owned(), "ip-".to_owned()];
    let mut found = candidates(&Arguments::command(), &words);
    found.add_nodes(vec!["ip-1".to_owned(), "other".to_owned()]);
    assert_eq!(found.page(&words).to_string(), "ip-1\n:4\n");
}

/// The words after `kubectl-brupop` for which the script in the shell offers what `fake` prints.
#[test]
fn bash_script_offers_the_words_of_the_program() {
    let folder = std::env::temp_dir().join(format!("brupop-completion-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fake = folder.join("kubectl-brupop");
    let script = folder.join("completion");
    std::fs::write(
        &fake,
        "#!/bin/sh\n[ \"$*\" = \"__complete -- explain no\" ] && printf 'node-1\\tx\\nnode-2\\n:4\\n'\n",
    )
    .unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&script, completion(&CompletionOptions { shell: Shell::Bash }).to_string()).unwrap();
    let run = format!(
        "source {}; COMP_WORDS=({} explain no); COMP_CWORD=2; _kubectl_brupop; echo \"${{COMPREPLY[@]}}\"",
        script.display(),
        fake.display()
    );
    let output = std::process::Command::new("bash").args(["-c", &run]).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "node-1 node-2\n", "{output:?}");
}
