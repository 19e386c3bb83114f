//! One command from start to end. An accepted POST implies no outcome: the status has it once the host is no longer
//! busy.

use std::time::Duration;

use models::backoff::{Backoff, Delays};
use tokio::time::{Instant, sleep};

use super::client::{HostClient, HostError, Posted, StatusAnswer};
use super::rhythm::{LONG_COMMAND, wait_for};
use super::types::{Command, UpdateStatus};

/// Delay after a status read without an answer.
const FAILED_READ: Delays = (Duration::from_millis(50), Duration::from_millis(500));

/// Consecutive failed status reads after which the caller's back-off takes over.
const READ_FAILURES: u32 = 5;

/// Outcome of a command.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The host recorded success. The caller checks whether the state is the expected one.
    Done(UpdateStatus),
    /// The host recorded failure.
    Failed(UpdateStatus, String),
    /// The command ended without a record: its worker could not start, or was killed.
    Vanished(Option<UpdateStatus>),
    /// The host's state did not allow it; nothing was started.
    Refused(String),
    /// Another command runs; nothing was started.
    Busy,
    /// The host failed to start it.
    NotStarted(String),
    /// The desired state has changed. If the command was started, it continues.
    Interrupted,
    /// The command has been running for long. It continues, and later turns wait for its end.
    StillRuns,
    /// The host did not answer the request.
    Host(HostError),
    /// The host accepted the command, and did not say how it ended.
    Unread(HostError),
}

/// Starts `command` and follows it to its end. `before` is the time of the last recorded command that the caller saw;
/// `is_current` returns, before each call, whether the desired state is unchanged; `withdrawn` ends when it is not, and cuts
/// a wait short. A command that no attempt needs, and that has been running for [`LONG_COMMAND`], is not followed any more. It has not
/// failed: a host that reports itself busy is working. The deadline of an attempt is the controller's.
pub(crate) async fn carry_out(
    host: &HostClient,
    command: Command,
    before: Option<&str>,
    is_current: impl Fn() -> bool,
    withdrawn: impl AsyncFn(),
) -> Outcome {
    if !is_current() {
        return Outcome::Interrupted;
    }
    match host.start(command).await {
        Ok(Posted::Accepted) => {}
        Ok(Posted::Busy) => return Outcome::Busy,
        Ok(Posted::Refused(text)) => return Outcome::Refused(text),
        Ok(Posted::Failed(text)) => return Outcome::NotStarted(text),
        // The host answered, but not that it accepted the command.
        Err(error @ HostError::BadAnswer { .. }) => return Outcome::NotStarted(error.to_string()),
        Err(error) => return Outcome::Host(error),
    }
    let started = Instant::now();
    let mut reads = 0;
    let mut failures = Backoff::default();
    let mut wait = wait_for(command, reads);
    loop {
        tokio::select! {
            () = sleep(wait) => {}
            () = withdrawn() => {}
        }
        if !is_current() {
            return Outcome::Interrupted;
        }
        wait = match host.update_status().await {
            Ok(StatusAnswer::Busy)
                if matches!(command, Command::Refresh | Command::Deactivate) && started.elapsed() >= LONG_COMMAND =>
            {
                return Outcome::StillRuns;
            }
            Ok(StatusAnswer::Busy) => {
                failures.reset();
                reads += 1;
                wait_for(command, reads)
            }
            Ok(answer) => return judge(command, before, answer),
            Err(error) => {
                let wait = failures.next_delay(FAILED_READ);
                if failures.failures() >= READ_FAILURES {
                    return Outcome::Unread(error);
                }
                wait
            }
        };
    }
}

/// Determines the outcome of a command from the first status after it.
fn judge(command: Command, before: Option<&str>, answer: StatusAnswer) -> Outcome {
    let StatusAnswer::Known(status) = answer else {
        return Outcome::Vanished(None);
    };
    match status.last.clone() {
        Some(last) if last.is(command) && Some(last.timestamp.as_str()) != before => {
            if last.succeeded {
                Outcome::Done(*status)
            } else {
                let message = last.message();
                Outcome::Failed(*status, message)
            }
        }
        _ => Outcome::Vanished(Some(*status)),
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
    fn command_is_done_when_its_record_is_new() {
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
    fn command_record_is_new_after_clock_set_back() {
        let judged = |before, after| judge(Command::Prepare, Some(before), status("prepare", "Success", after));
        let (earlier, later) = ("2026-11-21T01:51:32.4Z", "2036-11-21T01:51:32.4Z");
        assert!(matches!(judged(earlier, later), Outcome::Done(_)));
        assert!(matches!(judged(later, earlier), Outcome::Done(_)));
    }
}
