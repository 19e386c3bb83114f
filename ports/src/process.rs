//! Prometheus' standard metrics of a process: its memory, time and files, and its build.

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry, Result};

/// Registers the series about this process, which is one of `program`.
///
/// # Errors
///
/// Returns an error if the registry has them already.
pub fn register(registry: &Registry, program: &str) -> Result<()> {
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let build = Opts::new("brupop_build_info", "The build that runs (1)")
        .const_label("program", program)
        .const_label("version", env!("CARGO_PKG_VERSION"));
    let build = IntGauge::with_opts(build)?;
    build.set(1);
    registry.register(Box::new(build))
}
