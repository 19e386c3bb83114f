//! Signs of life for the kubelet's probes: a small file that the agent rewrites, and the check of it.
//!
//! The agent serves no port. The kubelet runs its program a second time in the container (`--check`), which reads the file
//! and makes no call. Times are those of `/proc/uptime`, a clock that no one sets and that both processes share.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::sleep;

use crate::failure_log::FailureLog;

/// Interval of the signs of life.
const BEAT: Duration = Duration::from_secs(5);

/// Age in seconds from which the last sign of life means that the process is stopped or stuck.
const STUCK: u64 = 20;

/// The same for a check whose failure restarts the container: long enough for a node that hardly gets any CPU time.
const DEAD: u64 = 60;

/// Age in seconds from which the last line of the web API means that the agent has lost it. Longer than the silence after
/// which a stream is given up (45 s) and the delay before the next one: the loss of one replica's node is no outage.
const DISCONNECTED: u64 = 50;

const UPTIME: &str = "/proc/uptime";

/// A check of the agent, by a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Check {
    /// The process runs. It says nothing about the host API and the web API, for which a healthy agent may wait.
    Alive,
    /// The process runs and receives the web API's stream.
    Connected,
}

/// The signs of life of this process.
#[derive(Debug)]
pub(crate) struct Alive {
    file: PathBuf,
    /// Uptime in seconds at the last line of the web API.
    heard: Cell<Option<u64>>,
}

impl Alive {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self { file, heard: Cell::new(None) }
    }

    /// Records that the web API has been heard now.
    pub(crate) fn heard(&self) {
        if let Ok(now) = uptime() {
            self.heard.set(Some(now));
            // At once, so that a pod is Ready as soon as its agent is connected. The next sign of life reports errors.
            let _ = self.write();
        }
    }

    /// Writes the file at intervals. It shares the thread of all other work, so that it stops when anything blocks it.
    pub(crate) async fn beat(&self) -> Infallible {
        let mut log = FailureLog::default();
        loop {
            match self.write() {
                Ok(()) => log.succeeded(),
                Err(error) => log.failed("the file for the probes cannot be written", &format!("{error:#}")),
            }
            sleep(BEAT).await;
        }
    }

    fn write(&self) -> anyhow::Result<()> {
        let signs = Signs { beat: uptime()?, heard: self.heard.get() };
        let new = self.file.with_extension("new");
        std::fs::write(&new, signs.to_string()).with_context(|| format!("cannot write {}", new.display()))?;
        // A probe reads all of the old content, or all of the new.
        std::fs::rename(&new, &self.file).with_context(|| format!("cannot replace {}", self.file.display()))
    }
}

/// Content of the file: two times as uptimes in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signs {
    beat: u64,
    heard: Option<u64>,
}

impl fmt::Display for Signs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.heard {
            Some(heard) => writeln!(f, "{} {heard}", self.beat),
            None => writeln!(f, "{} -", self.beat),
        }
    }
}

impl FromStr for Signs {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (beat, heard) = text.trim().split_once(' ').context("it does not hold two times")?;
        let heard = if heard == "-" { None } else { Some(heard.parse()?) };
        Ok(Self { beat: beat.parse()?, heard })
    }
}

fn uptime() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(UPTIME).with_context(|| format!("cannot read {UPTIME}"))?;
    let seconds = text.split('.').next().unwrap_or_default();
    seconds.parse().with_context(|| format!("{UPTIME} holds no time"))
}

/// Checks the agent that writes this file.
///
/// # Errors
///
/// Returns an error that says since when the agent has been silent. A file that does not exist is an error only where the
/// agent has to be connected: an agent that cannot write it must not be restarted for that.
pub fn check(check: Check, file: &Path) -> anyhow::Result<()> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if check == Check::Alive && error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let signs = text.parse().with_context(|| format!("{} is not understood", file.display()))?;
    judge(check, signs, uptime()?)
}

fn judge(check: Check, signs: Signs, now: u64) -> anyhow::Result<()> {
    let silent = now.saturating_sub(signs.beat);
    let limit = if check == Check::Alive { DEAD } else { STUCK };
    if silent > limit {
        bail!("the agent has given no sign of life for {silent} s");
    }
    if check == Check::Alive {
        return Ok(());
    }
    let Some(heard) = signs.heard else { bail!("the web API has not been heard yet") };
    let lost = now.saturating_sub(heard);
    if lost > DISCONNECTED {
        bail!("the web API has not been heard for {lost} s");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_agent_is_not_ready_first_and_restarted_later() {
        let now = 10_000;
        let ago = |beat: u64, heard: Option<u64>| Signs { beat: now - beat, heard: heard.map(|ago| now - ago) };
        for (sentence, signs, alive, connected) in [
            ("a connected agent", ago(5, Some(15)), true, true),
            ("one whose stream is being opened again", ago(5, Some(50)), true, true),
            ("one that waits for the web API", ago(5, Some(51)), true, false),
            ("one that has waited for it for an hour", ago(5, Some(3600)), true, false),
            ("one that was started without it", ago(0, None), true, false),
            ("one on a node that hardly gives it any time", ago(20, Some(20)), true, true),
            ("one that has just been stopped", ago(21, Some(21)), true, false),
            ("one on the edge of a restart", ago(60, Some(60)), true, false),
            ("one that is stopped", ago(61, Some(61)), false, false),
        ] {
            assert_eq!(judge(Check::Alive, signs, now).is_ok(), alive, "{sentence}");
            assert_eq!(judge(Check::Connected, signs, now).is_ok(), connected, "{sentence}");
        }
        assert!(judge(Check::Connected, ago(0, Some(0)), 9_999).is_ok(), "the file is newer than the check's clock");
    }

    #[test]
    fn file_is_read_back_and_reasons_name_ages() {
        let folder = tempfile::tempdir().unwrap();
        let alive = Alive::new(folder.path().join("alive"));
        check(Check::Alive, &alive.file).unwrap();
        assert!(
            check(Check::Connected, &alive.file).is_err(),
            "an agent without its file is not known to be connected"
        );
        alive.write().unwrap();
        check(Check::Alive, &alive.file).unwrap();
        let error = check(Check::Connected, &alive.file).unwrap_err();
        assert_eq!(error.to_string(), "the web API has not been heard yet");
        alive.heard();
        check(Check::Connected, &alive.file).unwrap();
        let error = judge(Check::Alive, Signs { beat: 7, heard: None }, 100).unwrap_err();
        assert_eq!(error.to_string(), "the agent has given no sign of life for 93 s");
        std::fs::write(&alive.file, "soon").unwrap();
        assert!(check(Check::Alive, &alive.file).is_err());
    }

    #[test]
    fn check_has_the_word_that_probes_pass() {
        for (word, expected) in [("alive", Some(Check::Alive)), ("connected", Some(Check::Connected)), ("ready", None)]
        {
            assert_eq!(<Check as clap::ValueEnum>::from_str(word, false).ok(), expected, "{word}");
        }
    }
}
