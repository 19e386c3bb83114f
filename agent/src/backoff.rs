//! The back-off that all programs share, with the agent's random numbers.

pub use models::backoff::{exponential, full_jitter};

/// A random number in [0, 1).
pub fn random() -> f64 {
    rand::random()
}
