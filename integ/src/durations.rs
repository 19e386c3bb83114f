//! Durations of end-to-end tests, so that `make test` can print the slowest ones.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Instant;

/// Environment variable with the file to which durations are appended; without it, none are.
pub const DURATIONS: &str = "BRUPOP_DURATIONS";

/// Measures one test, from its creation to its drop.
pub struct Stopwatch {
    name: String,
    started: Instant,
}

impl Stopwatch {
    /// Starts to measure the test of that name.
    pub fn start(name: impl Into<String>) -> Self {
        Self { name: name.into(), started: Instant::now() }
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os(DURATIONS) else { return };
        let line = format!("{:7.1} s  {}\n", self.started.elapsed().as_secs_f64(), self.name);
        let written = OpenOptions::new().append(true).create(true).open(&path);
        if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("cannot write to {}: {error}", path.display());
        }
    }
}
