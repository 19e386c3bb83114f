//! Failures of what is tried again and again, in a log: each is there once, and again after a while.

use std::error::Error;
use std::time::{Duration, Instant};

use crate::plain::is_alike;

/// Time after which a failure that stays the same is in the log again.
const LOGGED_AGAIN: Duration = Duration::from_mins(10);

/// Returns an error with its causes, as one text. Many errors have their cause in their own text.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    let add = |text: String, cause: String| if text.contains(&cause) { text } else { format!("{text}: {cause}") };
    causes.map(ToString::to_string).fold(error.to_string(), add)
}

/// The failures of one thing that a log has.
#[derive(Clone, Debug, Default)]
pub struct LoggedFailures {
    times: u32,
    last: Option<String>,
    /// Texts and times of the latest ones in the log: failures alternate where replicas fail in different ways.
    logged: Vec<(String, Instant)>,
}

impl LoggedFailures {
    /// Counts a failure. Returns whether it is to be logged: the first one, each with another text, and the same one after 10 minutes. Another
    /// number makes no other text.
    pub fn is_news(&mut self, text: &str, now: impl Into<Instant>) -> bool {
        let now = now.into();
        self.times = self.times.saturating_add(1);
        self.last = Some(text.to_owned());
        self.logged.retain(|(_, logged)| now.saturating_duration_since(*logged) < LOGGED_AGAIN);
        let is_news = !self.logged.iter().any(|(known, _)| is_alike(known, text));
        if is_news {
            self.logged.push((text.to_owned(), now));
        }
        is_news
    }

    /// Returns the number of failures.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Returns the text of the last failure.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_news_at_first_with_each_other_text_and_every_ten_minutes() {
        let (start, mut failures) = (Instant::now(), LoggedFailures::default());
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
            assert_eq!(failures.is_news(error, start + Duration::from_secs(seconds)), is_news, "{sentence}");
        }
        assert_eq!((failures.times(), failures.last()), (9, Some("refused")));
        failures = LoggedFailures::default();
        assert!(failures.is_news("refused", start + Duration::from_secs(625)), "the first one after a success");
    }

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("the list failed")]
        List(#[source] std::io::Error),
        #[error("the watch failed, by {0}")]
        Watch(#[source] std::io::Error),
    }

    #[test]
    fn causes_that_an_error_does_not_name_follow_it() {
        let cause = || std::io::Error::other("connection reset");
        assert_eq!(with_causes(&Failed::List(cause())), "the list failed: connection reset");
        assert_eq!(with_causes(&Failed::Watch(cause())), "the watch failed, by connection reset");
    }
}
