//! The one place that reads the clock. Everything else is told what time it is.

use jiff::Timestamp;

/// The time now, in whole milliseconds: finer ones only make resources harder to read.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
