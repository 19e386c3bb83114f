//! The host's update API: HTTP over a Unix socket.

pub(crate) mod client;
pub(crate) mod command;
pub(crate) mod rhythm;
pub(crate) mod settings;
pub(crate) mod types;
