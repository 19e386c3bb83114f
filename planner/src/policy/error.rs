//! The error of a field that cannot be applied.

use serde::Serialize;

/// A field that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PolicyError {
    /// The field, as a path from the resource's root, such as `spec.schedule.windows[0].timeZone`.
    pub field: String,
    /// The error and its correction.
    pub message: String,
}
