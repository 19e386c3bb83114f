//! `build.sh`, with stand-ins for cargo and for parts of the toolchain: its flags, and its errors before anything is built.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Machine that the script runs on.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// Prepares a machine whose C compiler is a script, before that of this machine.
    fn new(cc: &str) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        machine.program("cc", &format!("{cc}\nPATH=${{PATH#*:}} exec cc \"$@\""));
        machine.program("cargo", "printf '%s\\n' \"target $CARGO_TARGET_DIR\"; tr '\\037' '\\n' <<END\n$CARGO_ENCODED_RUSTFLAGS\nEND\nexit 3");
        machine
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn build(&self, variables: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.path().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command
            .arg(Path::new(ROOT).canonicalize().unwrap().join("deploy/images/build.sh"))
            .args(["out", "brupop-agent"]);
        command.current_dir(self.path()).env_remove("ARCH").env_remove("CARGO_TARGET_DIR").env_remove("RUSTC");
        command
            .env("PATH", path)
            .env("LC_ALL", "C")
            .env("CARGO", self.path().join("cargo"))
            .envs(variables.iter().copied());
        command.output().unwrap()
    }

    /// Returns the one line of an error.
    fn error(&self, variables: &[(&str, &str)]) -> String {
        let output = self.build(variables);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len(), error.lines().count()), (Some(1), 0, 1), "{error}");
        error
    }

    /// Returns what cargo got: its target folder and the flags.
    fn flags(&self, variables: &[(&str, &str)]) -> Vec<String> {
        let output = self.build(variables);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn other_c_libraries_and_old_linkers_are_one_error() {
    for (cc, variables, expected) in [
        ("case \"$*\" in *-E*) echo glibc __GLIBC__.__GLIBC_MINOR__; exit;; esac", &[][..], "another C library"),
        ("case \"$*\" in *-E*) exit 1;; esac", &[], "another C library or no headers"),
        ("case \"$*\" in *-E*) echo 'glibc 2.35'; exit;; esac", &[], "glibc 2.36 or later"),
        ("case \"$*\" in *libc.a*) echo libc.a; exit;; esac", &[], "static C library"),
        ("case \"$*\" in *=bfd*) exit 1;; esac", &[], "install binutils"),
        (
            "case \"$*\" in *--help*) exit;; *--version*) echo GNU ld 2.37; exit;; esac",
            &[("ARCH", "amd64")],
            "binutils 2.38 or later is needed, and this is GNU ld 2.37",
        ),
        ("", &[("ARCH", "sparc")], "ARCH is amd64 or arm64, and not 'sparc'"),
    ] {
        if cfg!(target_arch = "x86_64") || variables.is_empty() {
            let error = Machine::new(cc).error(variables);
            assert!(error.starts_with("make: ") && error.contains(expected), "{expected}: {error}");
        }
    }
}

#[test]
fn missing_standard_library_is_one_error() {
    let machine = Machine::new("");
    machine.program("rustc", "case $* in -vV) echo host: x86_64-unknown-linux-gnu;; *) echo /no/such/folder;; esac");
    let error = machine.error(&[("RUSTC", machine.path().join("rustc").to_str().unwrap())]);
    assert!(
        error.contains("rustup target add x86_64-unknown-linux-gnu") || cfg!(not(target_arch = "x86_64")),
        "{error}"
    );
}

#[test]
fn relative_folders_are_those_of_the_caller() {
    let machine = Machine::new("");
    let here = machine.path().canonicalize().unwrap();
    let flags = machine.flags(&[("CARGO_HOME", "home"), ("CARGO_TARGET_DIR", "made")]);
    assert_eq!(flags[0], format!("target {}/made", here.display()));
    for expected in [format!("{}/home=/cargo", here.display()), format!("{}/made=/target", here.display())] {
        assert!(flags.contains(&format!("--remap-path-prefix={expected}")), "{expected}: {flags:#?}");
    }
}

#[test]
fn folder_inside_another_is_named_after_it() {
    let root = Path::new(ROOT).canonicalize().unwrap();
    let root = root.to_str().unwrap();
    let home = format!("{root}/home");
    let flags = Machine::new("").flags(&[("CARGO_HOME", &home)]);
    let place = |folder: &str| flags.iter().position(|flag| flag.contains(&format!("={folder}="))).unwrap();
    // rustc takes the last that fits.
    assert!(place(&home) > place(root) && place(&format!("{root}/target")) > place(root), "{flags:#?}");
}

#[test]
fn sources_of_the_standard_library_have_the_names_of_its_distribution() {
    let machine = Machine::new("");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let asked = Command::new(&rustc).arg("-vV").current_dir(ROOT).output().unwrap();
    let asked = String::from_utf8(asked.stdout).unwrap();
    let hash = asked.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap();
    let here = machine.path().display();
    // A distribution has a link in place of the folder.
    std::fs::create_dir_all(machine.path().join("lib/rustlib/src")).unwrap();
    machine.program(
        "rustc",
        &format!("case $* in '--print sysroot') echo {here};; *) PATH=${{PATH#*:}} exec {rustc} \"$@\";; esac"),
    );
    let stand_in = machine.path().join("rustc");
    let variables = [("RUSTC", stand_in.to_str().unwrap())];
    let name = |folder: &str| format!("--remap-path-prefix={folder}=/rustc/{hash}");
    let flags = machine.flags(&variables);
    assert!(flags.contains(&name(&format!("{here}/lib/rustlib/src/rust"))), "{flags:#?}");
    std::os::unix::fs::symlink("/usr/src/rustc", machine.path().join("lib/rustlib/src/rust")).unwrap();
    let flags = machine.flags(&variables);
    assert!(flags.contains(&name("/usr/src/rustc")), "{flags:#?}");
}
