//! The plain port of the servers, for health and metrics, the series about their processes, and the limits on the connections to a port.

pub mod connections;
pub mod limit;
pub mod plain;
pub mod process;
