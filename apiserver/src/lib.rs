//! The web API between agents and the cluster: each agent reads and writes its own node's shadow and nothing else.
//!
//! ```text
//!  agent ──TLS──► routes ──► auth (token → TokenReview → identity) ──► store (one watch for all) ──► stream
//!                                                                 └──► write (If-Match, server-side apply)
//! ```

mod access_log;
mod agents;
mod app;
mod auth;
mod body;
mod clock;
mod cluster;
pub mod config;
mod etag;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod heads;
mod metrics;
mod problem;
mod refusal;
mod resume;
mod routes;
mod server;
mod shadow;
mod store;
mod streams;
mod tls;
mod write;

pub use config::Config;
pub use server::run;

#[cfg(test)]
mod tests;
