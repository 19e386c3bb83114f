//! Rate limits, one for each key, such as an address or a node.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of separate keys. When so many are busy, further ones share one limit.
const KEYS: usize = 20_000;

/// A rate limit.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Maximum at once.
    pub burst: u32,
    /// Time after which one more is allowed.
    pub every: Duration,
}

/// Rate limits by key. Each is kept as the time at which it will be whole again (the generic cell rate algorithm).
pub struct Limiter<K> {
    allowance: Allowance,
    state: Mutex<State<K>>,
}

struct State<K> {
    /// Time at which each limit is whole again. A whole one needs no entry.
    whole_at: HashMap<K, Instant>,
    others_whole_at: Option<Instant>,
}

impl<K: Hash + Eq> Limiter<K> {
    /// Creates limits that are all whole.
    pub fn new(allowance: Allowance) -> Self {
        Self { allowance, state: Mutex::new(State { whole_at: HashMap::new(), others_whole_at: None }) }
    }

    /// Takes one, also if none is left.
    pub fn charge(&self, key: K, now: Instant) {
        let mut state = self.state.lock();
        let whole_at = self.allowance.charged(state.get(&key), now);
        state.put(key, whole_at, now);
    }

    /// Releases one that was taken.
    pub fn refund(&self, key: K, now: Instant) {
        let mut state = self.state.lock();
        if let Some(whole_at) = state.get(&key).and_then(|at| at.checked_sub(self.allowance.every)) {
            state.put(key, whole_at, now);
        }
    }

    /// Takes one, if any is left.
    ///
    /// # Errors
    ///
    /// Returns the time after which one is left.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut state = self.state.lock();
        let before = state.get(&key);
        self.allowance.check(before, now)?;
        state.put(key, self.allowance.charged(before, now), now);
        Ok(())
    }
}

impl Allowance {
    fn check(self, whole_at: Option<Instant>, now: Instant) -> Result<(), Duration> {
        let missing = whole_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let most = self.every * self.burst.saturating_sub(1);
        if missing > most { Err(missing - most) } else { Ok(()) }
    }

    /// Never more than twice the burst in debt, so that continued refusals do not refuse for ever.
    fn charged(self, whole_at: Option<Instant>, now: Instant) -> Instant {
        let from = whole_at.map_or(now, |at| at.max(now));
        (from + self.every).min(now + self.every * self.burst * 2)
    }
}

impl<K: Hash + Eq> State<K> {
    fn get(&self, key: &K) -> Option<Instant> {
        match self.whole_at.get(key) {
            Some(at) => Some(*at),
            None if self.whole_at.len() >= KEYS => self.others_whole_at,
            None => None,
        }
    }

    fn put(&mut self, key: K, whole_at: Instant, now: Instant) {
        if self.whole_at.len() >= KEYS && !self.whole_at.contains_key(&key) {
            self.whole_at.retain(|_, at| *at > now);
        }
        if self.whole_at.len() >= KEYS && !self.whole_at.contains_key(&key) {
            self.others_whole_at = Some(whole_at);
        } else {
            self.whole_at.insert(key, whole_at);
        }
    }
}

/// The source of a request, as far as it can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

/// Rule that maps addresses to sources.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Number of significant leading bits of an IPv6 address, 128 at most: the length of the network that a single node
    /// may choose from. All of an IPv4 address counts.
    pub ipv6_prefix: u8,
}

impl Sources {
    /// Returns the source of an address.
    pub fn of(self, address: IpAddr) -> Source {
        Source(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let rest = 128_u32.saturating_sub(self.ipv6_prefix.into());
                IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(rest).unwrap_or(0)).into())
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_AND_ONE_A_SECOND: Allowance = Allowance { burst: 2, every: Duration::from_secs(1) };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn limiter_allows_burst_and_then_steady_rate() {
        let (limiter, t) = (Limiter::new(TWO_AND_ONE_A_SECOND), Instant::now());
        assert_eq!(limiter.take("a", t), Ok(()));
        assert_eq!(limiter.take("a", t), Ok(()));
        assert_eq!(limiter.take("a", t), Err(seconds(1)));
        assert_eq!(limiter.take("b", t), Ok(()), "another key has its own");
        assert_eq!(limiter.take("a", t + seconds(1)), Ok(()));
        assert_eq!(limiter.take("a", t + seconds(1)), Err(seconds(1)));
        assert_eq!(limiter.take("a", t + seconds(9)), Ok(()));
        assert_eq!(limiter.take("a", t + seconds(9)), Ok(()), "it is whole again, and no more than that");
        assert!(limiter.take("a", t + seconds(9)).is_err());
    }

    #[test]
    fn limiter_refunds_returned_calls_and_bounds_debt() {
        let (limiter, t) = (Limiter::new(TWO_AND_ONE_A_SECOND), Instant::now());
        for _ in 0..10 {
            assert_eq!(limiter.take("a", t), Ok(()));
            limiter.refund("a", t);
        }
        for _ in 0..100 {
            limiter.refund("a", t);
            limiter.refund("b", t);
        }
        assert_eq!((limiter.take("a", t), limiter.take("a", t)), (Ok(()), Ok(())));
        assert!(limiter.take("a", t).is_err(), "no more than what is whole is returned");
        for _ in 0..100 {
            limiter.charge("a", t);
        }
        assert_eq!(limiter.take("a", t), Err(seconds(3)));
        assert_eq!(limiter.take("a", t + seconds(3)), Ok(()));
    }

    #[test]
    fn keys_beyond_capacity_share_one_separate_limit() {
        let (limiter, t) = (Limiter::new(TWO_AND_ONE_A_SECOND), Instant::now());
        for key in 0..KEYS {
            limiter.take(key, t).unwrap();
        }
        assert_eq!(limiter.take(KEYS, t), Ok(()));
        assert_eq!(limiter.take(KEYS + 1, t), Ok(()));
        assert!(limiter.take(KEYS + 2, t).is_err(), "they share");
        assert_eq!(limiter.take(0, t), Ok(()), "this one came before");
        assert_eq!(limiter.take(KEYS + 3, t + seconds(2)), Ok(()), "those that are whole again make room");
        assert!(limiter.state.lock().whole_at.len() < 3);
    }

    #[test]
    fn ipv6_addresses_are_grouped_by_configured_prefix() {
        let source = |prefix, text: &str| Sources { ipv6_prefix: prefix }.of(text.parse::<IpAddr>().unwrap());
        assert_eq!(source(64, "2001:db8:0:1::1"), source(64, "2001:db8:0:1:ffff::2"));
        assert_ne!(source(64, "2001:db8:0:1::1"), source(64, "2001:db8:0:2::1"));
        assert_ne!(source(128, "2001:db8:0:1::1"), source(128, "2001:db8:0:1::2"));
        assert_eq!(source(0, "2001:db8:0:1::1"), source(0, "::2"));
        for prefix in [0, 64, 128] {
            assert_ne!(source(prefix, "10.0.0.1"), source(prefix, "10.0.0.2"));
            assert_eq!(source(prefix, "::ffff:10.0.0.1"), source(prefix, "10.0.0.1"));
        }
    }
}
