//! The one place that reads the wall clock. Everything else is handed a time.

use jiff::Timestamp;

/// Now, by this machine's clock.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
