//! Changes the sources one by one, and lists the changes that no test notices.
//!
//! The changes ("mutants") are those of cargo-mutants, which compiles the sources for each. Here all of them are in one copy of the
//! sources, each behind a switch, so that everything is compiled once, and the tests run once for each.

mod compile;
mod copy;
mod list;
mod places;
mod report;
mod run;
mod settings;
mod switches;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use crate::compile::{Compiled, Diagnostic, Folders, compile};
use crate::copy::Copy;
use crate::list::Mutant;
use crate::places::Places;
use crate::report::{Fate, Report};
use crate::run::Tests;
use crate::settings::Settings;
use crate::switches::{Number, Refusal, Switched};

/// Changes the rules one by one, and lists the changes that no test notices.
#[derive(Parser)]
#[command(name = "make mutants")]
struct Options {
    /// Try a tenth of the mutants, chosen by this number
    #[arg(long, value_name = "SEED")]
    tenth: Option<u64>,
    /// Try the mutants whose name matches a regular expression
    #[arg(long, value_name = "REGEX")]
    re: Vec<String>,
    /// Try the mutants of these files
    #[arg(long, value_name = "GLOB")]
    file: Vec<String>,
    /// Try the mutants in the lines that a diff adds
    #[arg(long, value_name = "FILE")]
    in_diff: Option<String>,
    /// Try the mutants that the last run has missed
    #[arg(long)]
    missed: bool,
    /// Programs of tests that run at a time; the number of cores by default
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Root of the workspace
    #[arg(long, hide = true)]
    root: Option<PathBuf>,
}

impl Options {
    /// The arguments of cargo-mutants.
    fn of_list(&self) -> Vec<String> {
        let with = |name: &str, values: &[String]| -> Vec<String> {
            values.iter().map(|value| format!("{name}={value}")).collect()
        };
        let diff: Vec<String> = self.in_diff.iter().cloned().collect();
        [with("--re", &self.re), with("--file", &self.file), with("--in-diff", &diff)].concat()
    }
}

fn main() -> ExitCode {
    run(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("make: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(options: &Options) -> Result<ExitCode> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = options.root.clone().unwrap_or_else(|| own.join("../..")).canonicalize()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = std::path::absolute(target)?.join("mutants");
    let settings = Settings::read(&root)?;
    let began = Instant::now();

    let excluded = settings.excluded()?;
    let mut mutants = list::mutants(&root, &options.of_list())?;
    mutants.retain(|mutant| !excluded.is_match(&mutant.name));
    if options.missed {
        let missed = std::fs::read_to_string(folder.join("missed.txt")).context("no run has missed a mutant")?;
        let missed: HashSet<&str> = missed.lines().collect();
        mutants.retain(|mutant| missed.contains(mutant.name.as_str()));
    }
    if let Some(seed) = options.tenth {
        mutants = list::tenth(&mutants, seed);
    }
    ensure!(!mutants.is_empty(), "there is no such mutant");

    println!("{} mutants are compiled, which takes some minutes", mutants.len());
    let mut work = Work::new(&root, &folder, &mutants)?;
    let program = work.compile(&settings, &folder)?;
    println!("compiled after {} s", began.elapsed().as_secs());

    let mut tests = Tests::new(program, work.copy.source.join(&work.package), settings.arguments());
    let seconds = tests.without(&folder.join("reached.txt"))?;
    tests.limit = settings.limit(seconds);
    println!("the tests take {seconds:.0} s without a mutant");
    let report = Report::new(&mutants, work.fates);
    let jobs = options.jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    list::shuffle(&mut work.compiled);
    tests.with_each(&work.compiled, jobs, |number, outcome| report.ran(number, outcome))?;
    report.write(&folder, began.elapsed())
}

/// The sources with the mutants in them.
struct Work<'a> {
    mutants: &'a [Mutant],
    copy: Copy,
    /// The folder of the package, relative to the root.
    package: String,
    crate_root: String,
    /// The text and the places of the crate's root and of each file with mutants.
    files: BTreeMap<String, (String, Places)>,
    /// The mutants that are not run.
    fates: HashMap<Number, Fate>,
    /// Those that are, each with its place.
    compiled: Vec<(Number, Number)>,
}

impl<'a> Work<'a> {
    fn new(root: &Path, folder: &Path, mutants: &'a [Mutant]) -> Result<Self> {
        let names: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
        let packages: BTreeSet<&str> =
            names.iter().filter_map(|file| Some(file.split_at(file.find("src/")?).0)).collect();
        ensure!(packages.len() == 1, "the mutants are not of one package: {packages:?}");
        let package: String = packages.into_iter().collect();
        let crate_root = format!("{package}src/lib.rs");
        let mut files = BTreeMap::new();
        for file in names.into_iter().map(str::to_owned).chain([crate_root.clone()]) {
            let text = std::fs::read_to_string(root.join(&file))?;
            let places = places::find(&text).with_context(|| format!("{file} cannot be read"))?;
            files.insert(file, (text, places));
        }
        let mut fates = HashMap::new();
        for (number, mutant) in (1..).zip(mutants) {
            let fate = match switches::refusal(mutant, &files[&mutant.file].1)? {
                Some(Refusal::Unviable) => Fate::Unviable,
                Some(Refusal::NotTried(reason)) => Fate::NotTried(reason),
                None => continue,
            };
            fates.insert(number, fate);
        }
        let copy = Copy::of(root, folder.join("source"), &files.keys().map(PathBuf::from).collect())?;
        Ok(Self { mutants, copy, package, crate_root, files, fates, compiled: Vec::new() })
    }

    /// Compiles the copy, and leaves out mutants until it can be compiled.
    fn compile(&mut self, settings: &Settings, folder: &Path) -> Result<PathBuf> {
        let build = folder.parent().unwrap_or(folder);
        let folders = Folders { out: &folder.join("out"), build };
        loop {
            let written = self.write()?;
            match compile(&self.copy.source, settings.package()?, &folders)? {
                Compiled::Program(program) => {
                    let places = written.values().flat_map(|switched| &switched.by_place);
                    self.compiled =
                        places.flat_map(|(place, all)| all.iter().map(|number| (*number, *place))).collect();
                    self.compiled.sort_unstable();
                    return Ok(program);
                }
                Compiled::Refused(errors) => {
                    let before = self.fates.len();
                    self.leave_out(&written, &errors);
                    ensure!(self.fates.len() > before, "the copy cannot be compiled:\n{}", texts(&errors));
                    println!("{} of them cannot be compiled: once more without these", self.fates.len());
                }
            }
        }
    }

    /// Writes the files with all mutants that are not left out.
    fn write(&self) -> Result<BTreeMap<String, Switched>> {
        let mut written = BTreeMap::new();
        for (file, (text, places)) in &self.files {
            let of_file =
                |(number, mutant): &(Number, &Mutant)| mutant.file == *file && !self.fates.contains_key(number);
            let mutants: Vec<(Number, &Mutant)> = (1..).zip(self.mutants).filter(of_file).collect();
            let mut switched = switches::write(text, places, &mutants);
            if *file == self.crate_root {
                switched.text.push_str(switches::DEFINITION);
            }
            self.copy.write(Path::new(file), switched.text.as_bytes())?;
            written.insert(file.clone(), switched);
        }
        Ok(written)
    }

    /// Leaves out the mutants that these errors are about.
    fn leave_out(&mut self, written: &BTreeMap<String, Switched>, errors: &[Diagnostic]) {
        for error in errors {
            let in_text = |places: &HashMap<String, Vec<_>>| -> HashSet<Number> {
                let files = places.iter().filter_map(|(file, at)| Some((written.get(file)?, at)));
                files.flat_map(|(switched, at)| switched.blamed(at)).collect()
            };
            let blamed = Some(in_text(&error.primary)).filter(|found| !found.is_empty());
            let blamed = blamed.unwrap_or_else(|| in_text(&error.all));
            if !blamed.is_empty() {
                self.fates.extend(blamed.into_iter().map(|number| (number, Fate::Unviable)));
                continue;
            }
            // No mutant is wrong by itself, but the switch of one.
            let files = error.primary.iter().filter_map(|(file, at)| Some((written.get(file)?, at)));
            for number in files.flat_map(|(switched, at)| switched.near(at)) {
                self.fates.insert(number, Fate::NotTried("the function cannot be compiled with its switches"));
            }
        }
    }
}

/// Returns the first of these errors.
fn texts(errors: &[Diagnostic]) -> String {
    errors.iter().take(5).map(|error| error.text.as_str()).collect::<Vec<_>>().join("\n")
}
