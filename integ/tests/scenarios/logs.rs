//! The leader's log alone is enough to follow a rollout.

use jiff::Timestamp;

use crate::support::{ScenarioContext, nodes, run};

/// All log lines of the operator's pods, also of those that have ended.
pub(crate) fn lines(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for pod in std::fs::read_dir(ctx.bed.control_plane.dir().join("log"))? {
        for log in std::fs::read_dir(pod?.path())? {
            let content = String::from_utf8_lossy(&std::fs::read(log?.path())?).into_owned();
            lines.extend(content.lines().map(str::to_owned));
        }
    }
    Ok(lines)
}

/// The leaders' decisions on a node, in the order of time.
fn decisions(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Vec<String>> {
    let mut decisions: Vec<(Timestamp, String)> = Vec::new();
    for line in lines(ctx)? {
        // Example:
        // `2026-01-01T00:00:00.000000Z  INFO controller::decisions: node drained node="a" attempt=1 version=1.20.5`.
        let Some((head, rest)) = line.split_once(" controller::decisions: ") else { continue };
        let Some((text, fields)) = rest.split_once(&format!(" node={node:?}")) else { continue };
        anyhow::ensure!(fields.contains("attempt=1") && fields.contains("version=1.20.5"), "{line}");
        let at = head.split_whitespace().next().unwrap_or_default().parse()?;
        decisions.push((at, text.to_owned()));
    }
    decisions.sort();
    Ok(decisions.into_iter().map(|(_, text)| text).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_logs_each_node_decision_once() -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        for node in ["node-1", "node-2"] {
            let mut lines = decisions(ctx, node)?;
            // Only where a node has to wait.
            lines.retain(|line| line != "image staged" && line != "node rebooted: waiting for it to be Ready");
            let expected = [
                "attempt started",
                "drain started",
                "node claimed",
                "node drained",
                "reboot permitted",
                "node rebooted: released",
                "verification started",
                "node verified",
            ];
            assert_eq!(lines, expected, "{node}");
        }
        Ok(())
    })
    .await?;
    Ok(())
}
