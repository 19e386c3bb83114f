//! The figures, and the lists of mutants by their ends.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

use crate::list::Mutant;
use crate::run::Outcome;
use crate::switches::Number;

/// The least share of the viable mutants that the tests have to catch, in percent.
const LEAST: f64 = 95.0;
/// The number of mutants after which the progress is shown.
const EACH: usize = 200;

/// The ends of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Ran(Outcome),
    /// The compiler refuses it.
    Unviable,
    /// With the reason.
    NotTried(&'static str),
}

/// The ends of all mutants that are known so far.
pub struct Report<'a> {
    mutants: &'a [Mutant],
    fates: Mutex<HashMap<Number, Fate>>,
}

impl<'a> Report<'a> {
    /// A report in which those that are not run are known.
    pub fn new(mutants: &'a [Mutant], fates: HashMap<Number, Fate>) -> Self {
        Self { mutants, fates: Mutex::new(fates) }
    }

    /// Notes an end, and shows it if no test has noticed.
    pub fn ran(&self, number: Number, outcome: Outcome) {
        if let (Outcome::Missed, Some(mutant)) = (outcome, self.mutants.get(number - 1)) {
            println!("MISSED {}", mutant.name);
        }
        let Ok(mut fates) = self.fates.lock() else { return };
        fates.insert(number, Fate::Ran(outcome));
        if fates.len() % EACH == 0 {
            let missed = fates.values().filter(|fate| **fate == Fate::Ran(Outcome::Missed)).count();
            println!("{} of {}: {missed} missed", fates.len(), self.mutants.len());
        }
    }

    /// Prints the figures, and writes the lists. A share below the least one is a failure.
    pub fn write(self, folder: &Path, took: Duration) -> Result<ExitCode> {
        let fates = self.fates.into_inner().unwrap_or_default();
        let list = |chosen: fn(Fate) -> Option<&'static str>| {
            let mut text = String::new();
            let mut total = 0_u32;
            for (number, mutant) in (1..).zip(self.mutants) {
                let Some(reason) = fates.get(&number).and_then(|fate| chosen(*fate)) else { continue };
                total += 1;
                let _ = writeln!(text, "{}{}{reason}", mutant.name, if reason.is_empty() { "" } else { ": " });
            }
            (total, text)
        };
        let caught = list(|fate| (fate == Fate::Ran(Outcome::Caught)).then_some(""));
        let missed = list(|fate| (fate == Fate::Ran(Outcome::Missed)).then_some(""));
        let timeout = list(|fate| (fate == Fate::Ran(Outcome::Timeout)).then_some(""));
        let unviable = list(|fate| (fate == Fate::Unviable).then_some(""));
        let not_tried = list(|fate| if let Fate::NotTried(reason) = fate { Some(reason) } else { None });
        let lists = [
            ("caught", caught),
            ("missed", missed),
            ("timeout", timeout),
            ("unviable", unviable),
            ("not tried", not_tried),
        ];
        for (name, (_, text)) in &lists {
            std::fs::write(folder.join(format!("{}.txt", name.replace(' ', "-"))), text)?;
        }
        let [caught, missed, timeout, ..] = lists.each_ref().map(|(_, (total, _))| f64::from(*total));
        let share = 100.0 * (caught + timeout) / (caught + timeout + missed).max(1.0);
        let figures: Vec<String> = lists.iter().map(|(name, (total, _))| format!("{total} {name}")).collect();
        println!(
            "{} mutants: {}; {share:.1} % of the viable ones caught, in {} s; the lists are in {}",
            self.mutants.len(),
            figures.join(", "),
            took.as_secs(),
            folder.display()
        );
        if share < LEAST {
            eprintln!(
                "make: fewer than {LEAST} % are caught: each line of {} is a missing test",
                folder.join("missed.txt").display()
            );
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}
