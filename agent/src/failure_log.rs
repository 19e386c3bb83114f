//! Failures that repeat, in the log: while a fleet has lost the web API, no agent writes a line for each of its tries.

use models::failures::LoggedFailures;
use tokio::time::Instant;

/// Failures of what is repeated until it succeeds.
#[derive(Debug, Default)]
pub(crate) struct FailureLog(LoggedFailures);

impl FailureLog {
    /// Logs a failure: as a warning at first, with each other text, and every 10 minutes, and for debugging in between.
    pub(crate) fn failed(&mut self, what: &'static str, error: &str) {
        let is_news = self.0.is_news(error, Instant::now());
        let times = self.0.times();
        if is_news {
            tracing::warn!(error, times, "{what}");
        } else {
            tracing::debug!(error, times, "{what}");
        }
    }

    /// Begins again after a success.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}
