//! Times at which a busy host is read again.
//!
//! A host shows neither the progress nor the end of a command: it answers that it is busy. So each wait is four times the one
//! before: a quick command is known to have ended within a moment, and a long one costs few calls.

use std::time::Duration;

use models::backoff::Delays;

use super::types::Command;

/// Waits for a command that reads lists or sets flags of the disk.
const QUICK: Delays = (Duration::from_millis(250), Duration::from_secs(5));

/// Waits for a download, which lasts from seconds to minutes and keeps no node out of service.
const DOWNLOAD: Delays = (Duration::from_secs(1), Duration::from_secs(60));

/// Time after which a running command counts as one that may never end: the host is reported as busy, long before the
/// controller's deadlines, so that no node is drained in vain, and an attempt that waits for the host ends with that cause.
/// A refresh or a deactivation, which takes seconds, is not followed any more. A download is, however long it takes.
pub(crate) const LONG_COMMAND: Duration = Duration::from_mins(5);

/// Waits for a command that another client, or this agent earlier, has started: for a download as for any other.
const OTHERS: Delays = (Duration::from_millis(250), Duration::from_secs(15));

/// Returns the wait before the next read of a host that runs `command`, after this many reads.
pub(super) fn wait_for(command: Command, reads: u32) -> Duration {
    let delays = match command {
        Command::Prepare => DOWNLOAD,
        Command::Refresh | Command::Activate | Command::Deactivate => QUICK,
    };
    wait(delays, reads)
}

/// Returns the wait after this many reads of a host that runs a command which this agent does not follow.
pub(crate) fn wait_for_others(reads: u32) -> Duration {
    wait(OTHERS, reads)
}

fn wait((first, longest): Delays, reads: u32) -> Duration {
    first.saturating_mul(4_u32.saturating_pow(reads)).min(longest)
}

#[cfg(test)]
mod tests {
    use models::operator::Deadlines;

    use super::*;

    /// Returns the number of reads until a command that takes this many milliseconds is known to have ended, and how many
    /// milliseconds later that is.
    fn follow(command: Command, takes: u128) -> (u32, u128) {
        let (mut reads, mut now) = (0, Duration::ZERO);
        while reads == 0 || now.as_millis() < takes {
            now += wait_for(command, reads);
            reads += 1;
        }
        (reads, now.as_millis() - takes)
    }

    #[test]
    fn end_of_quick_command_is_seen_at_first_read() {
        for command in [Command::Refresh, Command::Activate, Command::Deactivate] {
            assert_eq!(follow(command, 0), (1, 250));
            assert_eq!(follow(command, 200), (1, 50));
        }
        assert_eq!(follow(Command::Prepare, 0), (1, 1_000));
    }

    #[test]
    fn long_command_costs_few_reads() {
        for (takes, reads) in [(1_000, 1), (5_000, 2), (20_000, 3), (80_000, 4), (300_000, 8)] {
            assert_eq!(follow(Command::Prepare, takes).0, reads, "a download of {takes} ms");
        }
        for (takes, reads) in [(1_000, 2), (5_000, 3)] {
            assert_eq!(follow(Command::Activate, takes).0, reads, "an activation of {takes} ms");
        }
    }

    #[test]
    fn end_of_command_is_seen_in_proportion_to_its_length_and_within_longest_wait() {
        for takes in (250..900_000).step_by(250) {
            for (command, least, longest) in [(Command::Prepare, 1_000, 60_000), (Command::Activate, 250, 5_000)] {
                let (_, late) = follow(command, takes);
                assert!(late < longest && late <= (4 * takes).max(least), "{command:?} of {takes} ms: {late} ms late");
            }
        }
    }

    #[test]
    fn busy_host_is_reported_in_the_first_half_of_the_default_deadlines() {
        for deadline in [Deadlines::STAGE.0, Deadlines::REBOOT.0] {
            assert!(LONG_COMMAND + OTHERS.1 < deadline / 2, "{deadline:?}");
        }
    }

    #[test]
    fn waits_have_no_overflow() {
        assert_eq!(wait_for(Command::Prepare, u32::MAX), DOWNLOAD.1);
        assert_eq!((wait_for_others(0), wait_for_others(u32::MAX)), OTHERS);
    }
}
