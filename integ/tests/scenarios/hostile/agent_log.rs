//! The log of an agent: the only evidence of what it was shown and refused.

use std::path::PathBuf;

use crate::interfere::{agent_on, poll};
use crate::support::ScenarioContext;

/// The log lines of a node's agent from some moment on.
pub(super) struct AgentLog {
    node: String,
    file: PathBuf,
    from: usize,
}

impl AgentLog {
    /// All lines since its start.
    pub(super) async fn from_start(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Self> {
        let agent = agent_on(ctx, node).await?;
        Ok(Self { node: node.to_owned(), file: ctx.bed.log_file(&agent)?, from: 0 })
    }

    /// All lines from now on.
    pub(super) async fn from_now(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Self> {
        let log = Self::from_start(ctx, node).await?;
        Ok(Self { from: log.text()?.len(), ..log })
    }

    fn text(&self) -> anyhow::Result<String> {
        let text = String::from_utf8_lossy(&std::fs::read(&self.file)?).into_owned();
        Ok(text.get(self.from..).unwrap_or_default().to_owned())
    }

    /// Returns true if one line contains all of these.
    pub(super) fn contains(&self, parts: &[&str]) -> anyhow::Result<bool> {
        Ok(self.text()?.lines().any(|line| parts.iter().all(|part| line.contains(part))))
    }

    /// Waits for such a line.
    pub(super) async fn until(&self, parts: &[&str]) -> anyhow::Result<()> {
        poll(&format!("the agent of {} says {parts:?}", self.node), async || Ok(self.contains(parts)?.then_some(())))
            .await
    }
}
