use clap::CommandFactory as _;

use super::*;
use crate::Arguments;

/// Returns what kubectl gets for the words after `kubectl brupop`, in the folder of this crate.
fn completed(line: &str) -> String {
    let nodes = ArgValueCandidates::new(|| Vec::from(["ip-1", "other"].map(CompletionCandidate::new)));
    let mut command = with_nodes(Arguments::command(), &nodes);
    let words = std::iter::once(PROGRAM).chain(line.split(' ')).map(OsString::from).collect();
    let mut out = Vec::new();
    Kubectl.write_complete(&mut command, words, Some(Path::new(env!("CARGO_MANIFEST_DIR"))), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn commands_options_values_nodes_and_files_are_completed_where_they_belong() {
    for (line, expected) in [
        ("stat", vec!["status"]),
        ("expl", vec!["explain"]),
        ("status --al", vec!["--all"]),
        ("status -o j", vec!["json"]),
        ("status --output ya", vec!["yaml"]),
        ("status --output=ya", vec!["--output=yaml"]),
        ("status --color n", vec!["never"]),
        ("--context x watch --until ", vec!["completed"]),
        ("-n other watch --until ", vec!["completed"]),
        ("takeover pre", vec!["preflight"]),
        ("completion z", vec!["zsh"]),
        ("explain a --namesp", vec!["--namespace"]),
        ("explain a b", vec![]),
        ("explain ", vec!["ip-1", "other"]),
        ("explain ip-", vec!["ip-1"]),
        ("explain -o wide ", vec!["ip-1", "other"]),
        ("explain a ", vec![]),
        ("hold a o", vec!["other"]),
        ("status ", vec![]),
        ("history --bundle Cargo.t", vec!["Cargo.toml"]),
    ] {
        let text = completed(line);
        let words = text.lines().filter(|line| !line.starts_with(':'));
        let words: Vec<&str> = words.map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(words, expected, "{line}");
    }
}

#[test]
fn kubectl_gets_words_with_their_descriptions_and_a_directive() {
    assert_eq!(completed("explain ip-"), "ip-1\n:4\n");
    assert_eq!(completed("history --bundle sr"), "src/\n:6\n", "the path goes on after the folder");
    let text = completed("explain a --namesp");
    assert!(text.starts_with("--namespace\tNamespace of the operator") && text.ends_with("\n:4\n"), "{text:?}");
}

#[test]
fn each_shell_has_a_script() {
    for shell in SHELLS.names() {
        let script = script(&CompletionOptions { shell: shell.to_owned() }).unwrap().to_string();
        assert!(script.contains(VARIABLE) && script.contains(PROGRAM), "{shell}: {script}");
    }
}

/// Words that the script in the shell offers are those that the program prints.
#[test]
fn bash_script_offers_the_words_of_the_program() {
    let folder = std::env::temp_dir().join(format!("brupop-completion-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (fake, file) = (folder.join(PROGRAM), folder.join("completion"));
    let asked = format!("bash -- {PROGRAM} explain no");
    std::fs::write(&fake, format!("#!/bin/sh\n[ \"${VARIABLE} $*\" = '{asked}' ] && printf 'node-1\\013node-2'\n"))
        .unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&file, script(&CompletionOptions { shell: "bash".to_owned() }).unwrap().to_string()).unwrap();
    let run = format!(
        "PATH={}:$PATH; source {}; COMP_WORDS=({PROGRAM} explain no); COMP_CWORD=2; \
         _clap_complete_kubectl_brupop {PROGRAM} no explain; echo \"${{COMPREPLY[@]}}\"",
        folder.display(),
        file.display()
    );
    let output = std::process::Command::new("bash").args(["-c", &run]).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "node-1 node-2\n", "{output:?}");
}
