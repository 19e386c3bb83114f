//! Exponential back-off with jitter, so that many clients do not retry in step.

use std::time::Duration;

/// Returns `base`, doubled once per failure, at most `cap`.
pub fn exponential(base: Duration, cap: Duration, failures: u32) -> Duration {
    base.saturating_mul(1 << failures.min(20)).min(cap)
}

/// Full jitter: returns a random time below that limit. `random` is in [0, 1).
pub fn full_jitter(base: Duration, cap: Duration, failures: u32, random: f64) -> Duration {
    exponential(base, cap, failures).mul_f64(random.clamp(0.0, 1.0))
}

/// Equal jitter: returns a random time between 50 % and 100 % of that limit. `random` is in [0, 1).
pub fn equal_jitter(base: Duration, cap: Duration, failures: u32, random: f64) -> Duration {
    exponential(base, cap, failures).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_cap_with_full_jitter() {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(10));
        for (failures, limit) in
            [(0, 100), (1, 200), (3, 800), (6, 6_400), (7, 10_000), (40, 10_000), (u32::MAX, 10_000)]
        {
            let limit = Duration::from_millis(limit);
            assert_eq!(exponential(base, cap, failures), limit, "{failures}");
            for (random, full, equal) in [(0.0, 0.0, 0.5), (0.5, 0.5, 0.75), (1.0, 1.0, 1.0), (7.0, 1.0, 1.0)] {
                assert_eq!(full_jitter(base, cap, failures, random), limit.mul_f64(full), "{failures}, {random}");
                assert_eq!(equal_jitter(base, cap, failures, random), limit.mul_f64(equal), "{failures}, {random}");
            }
        }
        assert_eq!(exponential(Duration::MAX, Duration::MAX, 2), Duration::MAX);
        assert_eq!(exponential(cap, base, 0), base, "never above the cap");
    }
}
