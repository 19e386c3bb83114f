//! What the controller decides by policy: who updates next, to which version, and why everybody else waits.

mod deleted;
mod expressions;
mod metrics;
mod others;
mod pinning;
mod prometheus;
mod succession;
mod support;
mod waves;
