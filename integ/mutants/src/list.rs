//! The list of mutants, as cargo-mutants makes it by `.cargo/mutants.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::switches::Number;

/// One change of the sources. Its number among all is the switch that turns it on, from 1.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// `FILE:LINE:COLUMN: CHANGE`.
    pub name: String,
    /// Relative to the root of the workspace.
    pub file: String,
    pub genre: Genre,
    /// The text that is replaced.
    pub span: Span,
    pub replacement: String,
}

/// The kinds of changes that cargo-mutants makes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// A place in a file: the end is the first character after it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub struct Span {
    pub start: LineColumn,
    pub end: LineColumn,
}

/// Both from 1, the column in characters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub struct LineColumn {
    pub line: usize,
    pub column: usize,
}

impl From<proc_macro2::Span> for Span {
    fn from(span: proc_macro2::Span) -> Self {
        let place = |at: proc_macro2::LineColumn| LineColumn { line: at.line, column: at.column + 1 };
        Self { start: place(span.start()), end: place(span.end()) }
    }
}

/// Returns the mutants of the workspace at this root, in the order of the sources; these arguments choose some.
pub fn mutants(root: &Path, arguments: &[String]) -> Result<Vec<Mutant>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["mutants", "--list", "--json", "--no-shuffle"]).args(arguments).current_dir(root);
    let listed = command.stderr(std::process::Stdio::inherit()).output().context("cargo mutants cannot be started")?;
    ensure!(listed.status.success(), "cargo mutants --list failed");
    serde_json::from_slice(&listed.stdout).context("the list of cargo mutants cannot be read")
}

/// Returns a tenth of the mutants: the same for the same seed, and with ten seeds not all.
pub fn tenth(mutants: &[Mutant], seed: u64) -> Vec<Mutant> {
    let mut order: Vec<(u64, usize)> =
        mutants.iter().enumerate().map(|(at, mutant)| (hash(seed, &mutant.name), at)).collect();
    order.sort_unstable();
    let mut chosen: Vec<usize> = order.into_iter().take(mutants.len().div_ceil(10)).map(|(_, at)| at).collect();
    chosen.sort_unstable();
    chosen.into_iter().filter_map(|at| mutants.get(at).cloned()).collect()
}

/// Brings numbers into an order in which those of one file are far apart, so that what is known so far is a fair share.
pub fn shuffle<T>(numbers: &mut [(Number, T)]) {
    numbers.sort_by_key(|(number, _)| hash(0, &number.to_string()));
}

/// FNV-1a, which is the same in every version of Rust, and mixed once more: texts that begin alike would be close together.
fn hash(seed: u64, text: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(text.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
