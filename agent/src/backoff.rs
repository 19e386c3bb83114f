//! Exponential back-off with jitter, so that the agents of a fleet do not retry in step.

use std::time::Duration;

/// Full jitter: a random time below a limit that doubles with each failure. `random` is in [0, 1).
pub fn full_jitter(base: Duration, cap: Duration, failures: u32, random: f64) -> Duration {
    exponential(base, cap, failures).mul_f64(random.clamp(0.0, 1.0))
}

/// Exponential back-off: `base` doubled once per failure, at most `cap`.
pub fn exponential(base: Duration, cap: Duration, failures: u32) -> Duration {
    base.checked_mul(1_u32 << failures.min(20)).map_or(cap, |limit| limit.min(cap))
}

/// A random number in [0, 1).
pub fn random() -> f64 {
    rand::random::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_doubles_up_to_its_cap_and_jitter_stays_below_it() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(10));
        assert_eq!(exponential(base, cap, 0), base);
        assert_eq!(exponential(base, cap, 3), Duration::from_millis(800));
        assert_eq!(exponential(base, cap, 40), cap);
        assert_eq!(full_jitter(base, cap, 40, 0.5), Duration::from_secs(5));
        assert_eq!(full_jitter(base, cap, 40, 0.0), Duration::ZERO);
    }
}
