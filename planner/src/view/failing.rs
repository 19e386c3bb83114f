//! Actions that fail each time.

use std::time::Duration;

use jiff::Timestamp;
use models::time::after;

use crate::wait::Wait;

/// The time for which an action has to fail before that is reported: an API server that restarts is no news.
const FAILS_FOR: Duration = Duration::from_secs(60);

/// An action that has failed, each time since; kept in memory only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    pub since: Timestamp,
    /// The last error, with its causes.
    pub error: String,
}

impl Failing {
    /// Returns whether it has failed for so long that this is reported.
    pub(crate) fn is_lasting(&self, now: Timestamp) -> bool {
        after(self.since, FAILS_FOR) <= now
    }

    /// Returns the wait for it, once it is reported.
    pub(crate) fn wait(&self, now: Timestamp) -> Option<Wait> {
        let wait = || Wait::ActionFails { since: self.since, error: self.error.chars().take(1000).collect() };
        self.is_lasting(now).then(wait)
    }
}
