//! Failures that repeat, in the log: while a fleet has lost the web API, no agent writes a line for each of its tries.

use std::time::Duration;

use models::plain::is_alike;
use tokio::time::Instant;

/// Time after which a failure that stays the same is a warning again.
const LOGGED_AGAIN: Duration = Duration::from_mins(10);

/// Failures of what is repeated until it succeeds.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    /// Number of failures since the last success.
    times: u32,
    /// Texts and times of the latest warnings: failures alternate where replicas fail in different ways.
    logged: Vec<(String, Instant)>,
}

impl FailureLog {
    /// Logs a failure: as a warning at first, with each other text, and every 10 minutes, and for debugging in between.
    pub(crate) fn failed(&mut self, what: &'static str, error: &str) {
        let is_news = self.is_news(error, Instant::now());
        let times = self.times;
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

    fn is_news(&mut self, error: &str, now: Instant) -> bool {
        self.times = self.times.saturating_add(1);
        self.logged.retain(|(_, logged)| now.saturating_duration_since(*logged) < LOGGED_AGAIN);
        let is_news = !self.logged.iter().any(|(text, _)| is_alike(text, error));
        if is_news {
            self.logged.push((error.to_owned(), now));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_news_at_first_with_each_other_text_and_every_ten_minutes() {
        let (start, mut log) = (Instant::now(), FailureLog::default());
        for (sentence, seconds, error, is_news) in [
            ("the first one", 0, "no answer in 3 s", true),
            ("the same one", 5, "no answer in 3 s", false),
            ("the same one with another number", 10, "no answer in 12 s", false),
            ("another one", 15, "refused", true),
            ("the first one in turn", 20, "no answer in 3 s", false),
            ("the other one in turn", 25, "refused", false),
            ("the same one before ten minutes are over", 614, "refused", false),
            ("the same one after ten minutes", 615, "refused", true),
            ("the same one once more", 620, "refused", false),
        ] {
            assert_eq!(log.is_news(error, start + Duration::from_secs(seconds)), is_news, "{sentence}");
        }
        assert_eq!(log.times, 9);
        log.succeeded();
        assert!(log.is_news("refused", start + Duration::from_secs(625)), "the first one after a success");
    }
}
