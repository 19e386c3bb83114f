//! Values of gauges.

use jiff::Timestamp;

/// No label: a gauge that can be left out altogether.
pub(super) const ALONE: [&str; 0] = [];

/// Counts of nodes are far below what a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "counts of nodes are far below 2^52")]
pub(super) fn float(count: usize) -> f64 {
    count as f64
}

pub(super) fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

pub(super) fn seconds(at: Timestamp) -> f64 {
    at.duration_since(Timestamp::UNIX_EPOCH).as_secs_f64()
}
