//! Durations and processor times of end-to-end tests, so that `make test` can print the slowest ones and it can be seen what
//! they spend the processor on.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::control_plane;

/// Environment variable with the file to which durations are appended; without it, none are.
pub const DURATIONS: &str = "BRUPOP_DURATIONS";

/// Environment variable with the file to which the processor times of test clusters are appended; without it, none are.
pub const PROCESSOR_TIMES: &str = "BRUPOP_PROCESSOR_TIMES";

/// Ticks of a second in `/proc/PID/stat`: those of every architecture that the control plane is built for.
const TICKS: f64 = 100.0;

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
        if let Some(path) = std::env::var_os(DURATIONS) {
            append(&path, &format!("{:7.1} s  {}\n", self.started.elapsed().as_secs_f64(), self.name));
        }
    }
}

/// The processor time of one test cluster, by program, from its creation to its drop. The processes have to run until then:
/// those that ended earlier are one sum. That sum and the test's own time are right only for a test that runs alone.
pub struct ProcessorTimes {
    name: String,
    folder: PathBuf,
    began: Ticks,
}

/// Ticks of a process, and of those of its children that have ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ticks {
    pub(crate) own: u64,
    ended: u64,
}

impl ProcessorTimes {
    /// Starts to measure the cluster whose processes are marked with this folder, for the test that runs in this thread.
    pub fn start(folder: &Path) -> Self {
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        Self { name, folder: folder.to_owned(), began: ticks(std::process::id()).unwrap_or_default() }
    }

    fn row(&self) -> std::io::Result<String> {
        let mut programs: BTreeMap<String, u64> = BTreeMap::new();
        for process in control_plane::processes_of(&self.folder)? {
            // It may end meanwhile.
            let Ok(program) = std::fs::read_link(format!("/proc/{process}/exe")) else { continue };
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            *programs.entry(name).or_default() += ticks(process).unwrap_or_default().own;
        }
        let test = ticks(std::process::id()).unwrap_or_default();
        programs.insert("the test".to_owned(), test.own.saturating_sub(self.began.own));
        programs.insert("ended".to_owned(), test.ended.saturating_sub(self.began.ended));
        let mut programs: Vec<(u64, String)> = programs.into_iter().map(|(name, ticks)| (ticks, name)).collect();
        programs.sort_by(|one, other| other.cmp(one));
        let all: u64 = programs.iter().map(|(ticks, _)| ticks).sum();
        let parts: Vec<String> =
            programs.iter().map(|(ticks, name)| format!("{name} {:.1}", seconds(*ticks))).collect();
        Ok(format!("{:7.1} s  {}: {}\n", seconds(all), self.name, parts.join(", ")))
    }
}

impl Drop for ProcessorTimes {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os(PROCESSOR_TIMES) else { return };
        match self.row() {
            Ok(row) => append(&path, &row),
            Err(error) => eprintln!("no processor times of {}: {error}", self.name),
        }
    }
}

/// Ticks in seconds.
pub(crate) fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS
}

/// Reads the ticks of a running process.
pub(crate) fn ticks(process: u32) -> Option<Ticks> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Parses `/proc/PID/stat`: user and system time are its fields 14 to 17. The second one, the name, may have blanks.
fn parse(stat: &str) -> Option<Ticks> {
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<u64> = fields.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    let [user, system, ended_user, ended_system] = times[..] else { return None };
    Some(Ticks { own: user + system, ended: ended_user + ended_system })
}

fn append(path: &OsStr, line: &str) {
    let written = OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("cannot write to {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_read_behind_name_with_blanks() {
        let ticks = parse("7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 120 30 4 1 20 0 1 0 9 0 0").unwrap();
        assert_eq!((ticks.own, ticks.ended), (150, 5));
        assert!(parse("7 (a) S 1").is_none());
    }
}
