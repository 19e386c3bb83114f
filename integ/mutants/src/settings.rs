//! The part of `.cargo/mutants.toml` that is about tests; cargo-mutants reads the rest.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use regex::RegexSet;
use serde::Deserialize;

/// The settings, under the names of cargo-mutants.
#[derive(Deserialize)]
pub struct Settings {
    additional_cargo_test_args: Vec<String>,
    timeout_multiplier: f64,
    minimum_test_timeout: f64,
    #[serde(default)]
    exclude_re: Vec<String>,
}

impl Settings {
    /// Reads the settings of the workspace at this root.
    pub fn read(root: &Path) -> Result<Self> {
        let path = root.join(".cargo/mutants.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} lacks a setting of the tests", path.display()))
    }

    /// The package whose unit tests are run.
    pub fn package(&self) -> Result<&str> {
        let mut arguments = self.additional_cargo_test_args.iter().skip_while(|argument| *argument != "--package");
        arguments.nth(1).map(String::as_str).context("additional_cargo_test_args names no --package")
    }

    /// The arguments of the test program.
    pub fn arguments(&self) -> Vec<String> {
        self.additional_cargo_test_args.iter().skip_while(|argument| *argument != "--").skip(1).cloned().collect()
    }

    /// The longest time of a run, of tests that take this many seconds without a mutant.
    pub fn limit(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(self.minimum_test_timeout.max(self.timeout_multiplier * seconds))
    }

    /// The mutants that are left out by name. cargo-mutants leaves them out itself, but for deleted fields.
    pub fn excluded(&self) -> Result<RegexSet> {
        RegexSet::new(&self.exclude_re).context("exclude_re cannot be read")
    }
}
