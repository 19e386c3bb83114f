//! Time limits of calls that more than one part makes.

use std::time::Duration;

/// Time limit of a write to the API server. Longer than the API server waits for an admission webhook (30 s), after which it
/// may continue without it: a client that leaves earlier ends its request without a write, as often as it repeats it.
pub const WRITE: Duration = Duration::from_secs(35);
