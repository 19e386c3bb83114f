//! Leader election on a Lease, with client-go's rules.
//!
//! The time for which a record has been unchanged is measured by the observer's own monotonic clock, and never compared
//! with the clock that wrote the record: a leader whose clock is hours off does no harm.

mod date;
mod election;
mod lease;
mod peers;
#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use date::date;
pub use date::dated;
pub use election::Parameters;
pub use lease::{CampaignError, Leadership, LostLease, Release, campaign};
pub use peers::Peers;
