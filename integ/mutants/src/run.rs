//! Runs the test program with one mutant at a time.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::switches::Number;

/// Of the tests, in KiB.
const MEMORY: usize = 4 << 20;

/// The time that a quick test takes at most, in milliseconds.
const QUICK: u64 = 100;

/// The ways in which the tests end with a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Caught,
    Missed,
    /// The tests took too long, and were ended: that a mutant loops, is noticed.
    Timeout,
}

/// A program of tests with mutants in it.
pub struct Tests {
    program: PathBuf,
    /// The folder of the package.
    folder: PathBuf,
    /// As in `cargo test -- …`.
    arguments: Vec<String>,
    /// The longest time of a run.
    pub limit: Duration,
    /// The tests that reach each place, by the first mutant at it: milliseconds and name, the quickest first.
    reaching: BTreeMap<Number, Vec<(u64, String)>>,
}

impl Tests {
    /// The tests of this program, of which nothing is known.
    pub fn new(program: PathBuf, folder: PathBuf, arguments: Vec<String>) -> Self {
        Self { program, folder, arguments, limit: Duration::MAX, reaching: BTreeMap::new() }
    }

    /// Runs the tests without a mutant, and notes the places that each of them reaches. Returns the seconds that they take.
    pub fn without(&mut self, record: &Path) -> Result<f64> {
        let _ = std::fs::remove_file(record);
        let began = Instant::now();
        let mut command = self.command();
        // With a single thread, tests run in the main one, which has not the name of a test.
        command.args(&self.arguments).env("MUTANTS_REACHED", record).env("RUST_TEST_THREADS", "2");
        let output = command.stdout(Stdio::piped()).output().context("the tests cannot be started")?;
        if !output.status.success() {
            bail!("the tests fail without a mutant:\n{}", String::from_utf8_lossy(&output.stdout));
        }
        let recorded = std::fs::read_to_string(record).unwrap_or_default();
        for line in recorded.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [test, took, places] = fields[..] else { bail!("the record of reached places cannot be read: {line}") };
            ensure!(!test.is_empty(), "a test has threads of its own: it is not known which one");
            for place in places.split(' ') {
                self.reaching.entry(place.parse()?).or_default().push((took.parse()?, test.to_owned()));
            }
        }
        ensure!(!self.reaching.is_empty(), "the tests reach no mutant");
        self.reaching.values_mut().for_each(|tests| tests.sort());
        Ok(began.elapsed().as_secs_f64())
    }

    /// Runs the tests with each of these mutants, and the place of each, several at a time. Calls back with each outcome.
    pub fn with_each(
        &self,
        mutants: &[(Number, Number)],
        jobs: usize,
        done: impl Fn(Number, Outcome) + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let error = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some((number, place)) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match self.with(*number, *place) {
                            Ok(outcome) => done(*number, outcome),
                            Err(found) => drop(error.lock().map(|mut error| error.replace(found))),
                        }
                    }
                });
            }
        });
        error.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// Runs the tests that reach a mutant: first the quick ones, then each of the others, the quickest first.
    fn with(&self, number: Number, place: Number) -> Result<Outcome> {
        let Some(tests) = self.reaching.get(&place) else { return Ok(Outcome::Missed) };
        let (quick, slow) = tests.split_at(tests.partition_point(|(took, _)| *took < QUICK));
        for tests in [quick].into_iter().chain(slow.chunks(1)).filter(|tests| !tests.is_empty()) {
            let names = tests.iter().map(|(_, name)| name.as_str());
            let outcome = self.run(number, names)?;
            if outcome != Outcome::Missed {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Missed)
    }

    fn run<'a>(&self, number: Number, names: impl Iterator<Item = &'a str>) -> Result<Outcome> {
        let mut command = self.command();
        command.arg("--exact").args(names).env("MUTANT", number.to_string()).env("RUST_TEST_THREADS", "1");
        let mut child = command.stdout(Stdio::piped()).spawn().context("the tests cannot be started")?;
        let output = child.stdout.take().context("the tests have no output")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // With one thread at a time, the result is in the line of the test.
            let is_failure = |line: String| line.starts_with("test ") && line.ends_with("... FAILED");
            let _ = sender.send(BufReader::new(output).lines().map_while(Result::ok).any(is_failure));
        });
        let outcome = match receiver.recv_timeout(self.limit) {
            // A program that ends before its last test has failed, too.
            Ok(failed) if failed || !child.wait()?.success() => Outcome::Caught,
            Ok(_) => Outcome::Missed,
            Err(_) => Outcome::Timeout,
        };
        let _ = child.kill();
        child.wait()?;
        Ok(outcome)
    }

    /// The tests within a limit of memory: a mutant that loops may take all.
    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"")]).arg(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).env("RUST_BACKTRACE", "0");
        command.env_remove("MUTANT").env_remove("MUTANTS_REACHED").stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}
