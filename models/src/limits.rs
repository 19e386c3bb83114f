//! Time limits of calls and streams that more than one part knows.

use std::time::Duration;

/// Time limit of a write to the API server. Longer than the API server waits for an admission webhook (30 s), after which it
/// may continue without it: a client that leaves earlier ends its request without a write, as often as it repeats it.
pub const WRITE: Duration = Duration::from_secs(35);

/// Maximum age of a stream of the web API, which ends it by then: the default lifetime of an agent's token.
pub const STREAM: Duration = Duration::from_mins(10);
