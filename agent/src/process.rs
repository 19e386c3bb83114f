//! Description of this process for the metrics of the web API.

use jiff::Timestamp;
use models::wire::AgentProcess;

/// Size in bytes of a page on every architecture that Bottlerocket has.
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct OwnProcess {
    started: u64,
}

impl OwnProcess {
    #[expect(clippy::disallowed_methods, reason = "the start of the process decides nothing")]
    pub(crate) fn new() -> Self {
        Self { started: u64::try_from(Timestamp::now().as_second()).unwrap_or_default() }
    }

    /// Returns its description; `None` where the system does not show its memory.
    pub(crate) fn describe(&self) -> Option<AgentProcess> {
        let memory = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = memory.split(' ').nth(1)?.parse().ok()?;
        Some(AgentProcess {
            version: env!("CARGO_PKG_VERSION").parse().ok()?,
            resident: pages.saturating_mul(PAGE),
            started: self.started,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_is_read_back_by_the_web_api() {
        let process = OwnProcess::new().describe().unwrap();
        assert!(process.resident > 100_000 && process.started > 1_700_000_000, "{process}");
        assert_eq!(process.to_string().parse(), Ok(process.clone()));
        assert_eq!(format!("novel=1 {process} later=2").parse(), Ok(process), "of a later version");
        for unreadable in ["", "version=1 resident=1 started=1", "version=1.0.0 resident=x started=1"] {
            assert!(unreadable.parse::<AgentProcess>().is_err(), "{unreadable}");
        }
    }
}
