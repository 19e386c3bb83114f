//! The plain port of the servers, for health and metrics, and the limits on the connections to a port.

pub mod connections;
pub mod limit;
pub mod plain;
