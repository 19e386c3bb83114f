//! Compiles the copy, and reads which mutants the compiler refuses.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// The program, or the errors of the compiler.
pub enum Compiled {
    Program(PathBuf),
    Refused(Vec<Diagnostic>),
}

/// An error, with the places in each file that it names.
#[derive(Debug)]
pub struct Diagnostic {
    pub text: String,
    /// The places that are wrong.
    pub primary: HashMap<String, Vec<Range<usize>>>,
    /// Those and others that it mentions.
    pub all: HashMap<String, Vec<Range<usize>>>,
}

#[derive(Deserialize)]
struct Line {
    reason: String,
    message: Option<Message>,
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: Option<String>,
    spans: Vec<Place>,
    children: Vec<Message>,
}

#[derive(Deserialize)]
struct Place {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: Place,
}

/// The folders that cargo writes to: programs, and what they are made of.
pub struct Folders<'a> {
    pub out: &'a Path,
    pub build: &'a Path,
}

/// Compiles the unit tests of the library of this package.
pub fn compile(source: &Path, package: &str, folders: &Folders<'_>) -> Result<Compiled> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["rustc", "--quiet", "--locked", "--lib", "--profile", "test", "--message-format", "json"]);
    command.args(["--package", package]);
    // Nearly every mutant has a warning, and lints that are errors are no reason to leave one out.
    command.args(["--", "--cap-lints", "allow"]);
    command.current_dir(source).env("CARGO_TARGET_DIR", folders.out).env("CARGO_BUILD_BUILD_DIR", folders.build);
    command.env_remove("RUSTC_WORKSPACE_WRAPPER").stderr(Stdio::inherit());
    let output = command.output().context("cargo cannot be started")?;
    let (mut program, mut errors) = (None, Vec::new());
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Line = serde_json::from_slice(line).context("a line of cargo cannot be read")?;
        let is_library = line.target.is_some_and(|target| target.kind == ["lib"]);
        match (line.reason.as_str(), line.message) {
            ("compiler-artifact", _) if is_library => program = line.executable.or(program),
            ("compiler-message", Some(message)) if message.level == "error" => errors.push(diagnostic(&message)),
            _ => {}
        }
    }
    match program {
        Some(program) if output.status.success() => Ok(Compiled::Program(program)),
        _ if errors.is_empty() => bail!("the copy of the sources cannot be compiled (cargo: {})", output.status),
        // The last one counts the others.
        _ => Ok(Compiled::Refused(errors.into_iter().filter(|error| !error.all.is_empty()).collect())),
    }
}

fn diagnostic(message: &Message) -> Diagnostic {
    let mut found =
        Diagnostic { text: message.rendered.clone().unwrap_or_default(), primary: HashMap::new(), all: HashMap::new() };
    for place in message.spans.iter().chain(message.children.iter().flat_map(|child| &child.spans)) {
        let mut next = Some(place);
        // The text of a macro is in another file than its use.
        while let Some(at) = next {
            let range = at.byte_start..at.byte_end;
            if place.is_primary {
                found.primary.entry(at.file_name.clone()).or_default().push(range.clone());
            }
            found.all.entry(at.file_name.clone()).or_default().push(range);
            next = at.expansion.as_ref().map(|expansion| &expansion.span);
        }
    }
    found
}
