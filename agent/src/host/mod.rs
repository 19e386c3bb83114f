//! The host's update API: HTTP over a Unix socket.

pub mod client;
pub mod command;
pub mod types;
