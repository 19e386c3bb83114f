//! Prometheus' standard metrics of a process: its memory, time and files, and its build.

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry, TextEncoder};

/// The program, as in `brupop_build_info`.
const PROGRAM: &str = models::names::CONTROLLER;

fn registry() -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let build = IntGauge::with_opts(
        Opts::new("brupop_build_info", "The build that runs (1)")
            .const_label("program", PROGRAM)
            .const_label("version", env!("CARGO_PKG_VERSION")),
    )?;
    build.set(1);
    registry.register(Box::new(build))?;
    Ok(registry)
}

/// Returns the series about this process, in Prometheus' text format.
pub fn about_process() -> String {
    let mut text = String::new();
    let written = registry().and_then(|registry| TextEncoder::new().encode_utf8(&registry.gather(), &mut text));
    if let Err(error) = written {
        tracing::error!(error = &error as &dyn std::error::Error, "metrics of the process cannot be written down");
    }
    text
}
