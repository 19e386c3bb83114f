//! Failures that repeat, in the log: each is there once, and again after a while.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which a failure that stays the same is in the log again.
const LOGGED_AGAIN: Duration = Duration::from_secs(10 * 60);

/// The last failure of one thing that was logged, and its time.
#[derive(Debug, Default)]
pub struct LastLogged(Option<(String, Instant)>);

impl LastLogged {
    /// Returns the text of the failure that was logged last.
    pub fn text(&self) -> Option<&str> {
        self.0.as_ref().map(|(text, _)| text.as_str())
    }

    /// Returns whether a failure is to be logged: the first one, one with another text, or the same one after a while.
    pub fn is_news(&mut self, text: String, now: Instant) -> bool {
        let is_known = self.0.as_ref().is_some_and(|(known, at)| *known == text && now < *at + LOGGED_AGAIN);
        if !is_known {
            self.0 = Some((text, now));
        }
        !is_known
    }
}
