//! One command from start to end. A POST that was accepted says nothing about the outcome: that stands in the status, once
//! the host stops answering that it is busy.

use std::time::Duration;

use tokio::time::sleep;

use super::client::{HostClient, HostError, Posted, StatusAnswer};
use super::types::{Command, UpdateStatus};
use crate::backoff::exponential;

/// The first look is at once, which is all that a fast host needs; the next ones follow at times from here ...
const FIRST_POLL: Duration = Duration::from_millis(50);
/// ... to here, which is as late as a withdrawn order may be noticed.
const SLOWEST_POLL: Duration = Duration::from_millis(500);

/// A host that fails to tell how a command goes this often in a row is left to the caller's back-off.
const POLL_FAILURES: u32 = 5;

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// The host recorded success. Whether the state is the expected one is for the caller to see.
    Done(UpdateStatus),
    /// The host recorded failure.
    Failed(UpdateStatus, String),
    /// The command ended without a trace: its worker could not start, or was killed.
    Vanished(StatusAnswer),
    /// The host's state did not allow it; nothing was started.
    Refused(String),
    /// Another command runs; nothing was started.
    Busy,
    /// The host failed to start it.
    NotStarted(String),
    /// The order no longer stands. If the command was started, it runs on.
    Interrupted,
    /// The host did not answer.
    Host(HostError),
}

/// Starts `command` and follows it to its end. `before` is the time of the last command that the caller saw recorded;
/// `stands` says before each call whether the order still stands. There is no time limit: while the host answers that it
/// is busy it works, and how long an order may take is the controller's to say.
pub async fn carry_out(
    host: &HostClient,
    command: Command,
    before: Option<&str>,
    stands: impl Fn() -> bool,
) -> Outcome {
    if !stands() {
        return Outcome::Interrupted;
    }
    match host.start(command).await {
        Ok(Posted::Accepted) => {}
        Ok(Posted::Busy) => return Outcome::Busy,
        Ok(Posted::Refused(text)) => return Outcome::Refused(text),
        Ok(Posted::Failed(text)) => return Outcome::NotStarted(text),
        // It answers, and not that it took the command.
        Err(error @ HostError::BadAnswer { .. }) => return Outcome::NotStarted(error.to_string()),
        Err(error) => return Outcome::Host(error),
    }
    let mut polls = 0;
    let mut failures = 0;
    loop {
        if !stands() {
            return Outcome::Interrupted;
        }
        match host.update_status().await {
            Ok(StatusAnswer::Busy) => failures = 0,
            Ok(answer) => return judge(command, before, answer),
            Err(error) => {
                failures += 1;
                if failures >= POLL_FAILURES {
                    return Outcome::Host(error);
                }
            }
        }
        sleep(exponential(FIRST_POLL, SLOWEST_POLL, polls)).await;
        polls += 1;
    }
}

/// What the first status after a command says about it.
fn judge(command: Command, before: Option<&str>, answer: StatusAnswer) -> Outcome {
    let StatusAnswer::Known(status) = answer else {
        return Outcome::Vanished(answer);
    };
    match status.last.clone() {
        Some(last) if last.is(command) && Some(last.timestamp.as_str()) != before => {
            if last.succeeded() {
                Outcome::Done(*status)
            } else {
                let message = last.message();
                Outcome::Failed(*status, message)
            }
        }
        _ => Outcome::Vanished(StatusAnswer::Known(status)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(kind: &str, outcome: &str, time: &str) -> StatusAnswer {
        StatusAnswer::Known(Box::new(
            UpdateStatus::read(&json!({"update_state": "Staged", "most_recent_command":
                {"cmd_type": kind, "cmd_status": outcome, "timestamp": time, "exit_status": 1, "stderr": "out of space"}}))
            .unwrap(),
        ))
    }

    #[test]
    fn a_command_has_ended_when_its_own_record_is_new() {
        use Command::Prepare;
        assert!(matches!(judge(Prepare, None, status("prepare", "Success", "t1")), Outcome::Done(_)));
        assert!(matches!(judge(Prepare, Some("t0"), status("prepare", "Success", "t1")), Outcome::Done(_)));
        let failed = judge(Prepare, Some("t0"), status("prepare", "Failed", "t1"));
        assert!(matches!(failed, Outcome::Failed(_, message) if message == "out of space"));
        assert!(matches!(judge(Prepare, Some("t1"), status("prepare", "Success", "t1")), Outcome::Vanished(_)));
        assert!(matches!(judge(Prepare, Some("t0"), status("refresh", "Success", "t1")), Outcome::Vanished(_)));
        assert!(matches!(judge(Prepare, None, StatusAnswer::Uninitialized), Outcome::Vanished(_)));
    }

    #[test]
    fn a_record_is_new_also_where_the_hosts_clock_was_set_back() {
        let judged = |before, after| judge(Command::Prepare, Some(before), status("prepare", "Success", after));
        let (earlier, later) = ("2026-11-21T01:51:32.4Z", "2036-11-21T01:51:32.4Z");
        assert!(matches!(judged(earlier, later), Outcome::Done(_)));
        assert!(matches!(judged(later, earlier), Outcome::Done(_)));
    }
}
