//! Prometheus' standard metrics of a process: its memory, time and files, and its build.

use prometheus::{Registry, TextEncoder};

/// Returns the series about this process, in Prometheus' text format.
pub fn about_process() -> String {
    let (registry, mut text) = (Registry::new(), String::new());
    let written = ports::process::register(&registry, models::names::CONTROLLER)
        .and_then(|()| TextEncoder::new().encode_utf8(&registry.gather(), &mut text));
    if let Err(error) = written {
        tracing::error!(error = &error as &dyn std::error::Error, "metrics of the process cannot be written down");
    }
    text
}
