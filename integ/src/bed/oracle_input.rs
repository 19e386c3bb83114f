//! Input of the oracle from a test cluster.

use std::fmt::Write as _;

use super::TestCluster;
use crate::oracle::{Expectations, History, HostLog, Verdict, judge, settled_audit};

/// Converts a host's log for the oracle.
pub fn host_log(name: &str, host: &crate::host::Host) -> HostLog {
    HostLog::of(name, &host.log())
}

/// Log lines that are always defects.
const DEFECTS: [&str; 2] = ["the plan violates a safety property", "panicked at"];

impl TestCluster {
    /// Lines in the output of any process of a pod, past or present, that report a defect: a panic, or a plan that the
    /// plan validator rejected.
    pub fn defect_log_lines(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        let Ok(pods) = std::fs::read_dir(self.control_plane.dir().join("log")) else { return Ok(text) };
        for pod in pods {
            for log in std::fs::read_dir(pod?.path())? {
                let path = log?.path();
                let content = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
                let shows_defect = |line: &&str| DEFECTS.iter().any(|defect| line.contains(defect));
                for line in content.lines().filter(shows_defect) {
                    let _ = writeln!(text, "{}: {line}", path.display());
                }
            }
        }
        Ok(text)
    }

    /// Judges the run so far; the run continues.
    pub async fn judge_so_far(&self, expectations: &Expectations) -> anyhow::Result<(Verdict, History)> {
        let hosts = self.host_logs();
        let history = self.recorder.so_far()?;
        let audit = settled_audit(&mut self.control_plane.audit(), &self.client).await?;
        Ok((judge(&history, &hosts, &audit, expectations), history))
    }

    fn host_logs(&self) -> Vec<HostLog> {
        self.members.iter().map(|m| host_log(&m.name, &m.host)).collect()
    }

    /// Waits for the recorder to catch up and judges the whole run.
    pub async fn judge(self, expectations: &Expectations) -> anyhow::Result<(Verdict, History)> {
        let hosts = self.host_logs();
        let history = self.recorder.finish().await?;
        let audit = settled_audit(&mut self.control_plane.audit(), &self.client).await?;
        drop(self.times);
        for member in self.members {
            member.kubelet.stop().await;
        }
        self.control_plane.stop().await?;
        Ok((judge(&history, &hosts, &audit, expectations), history))
    }
}
