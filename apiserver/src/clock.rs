//! The only place that reads the wall clock. Everything else gets a time.

use jiff::Timestamp;

/// Returns the current time of this machine's clock.
#[expect(clippy::disallowed_methods, reason = "the clock module")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
