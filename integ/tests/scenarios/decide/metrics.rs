//! The metrics that the controller exports after one update, compared literally.

use models::names::SYSTEM_NAMESPACE;

use super::support::is_on;
use crate::support::{NEW, controller_metrics, nodes, run};

/// The expected series. `*` replaces values that depend only on the speed of the machine.
const EXPECTED: &str = include_str!("one_update.txt");

/// The series of a text, without comments, with `*` for times. The number of conflicts is left out.
fn series(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        if name.starts_with("brupop_controller_rejected_writes_total{code=\"409\"") {
            continue;
        }
        let plain = name.split('{').next().unwrap_or(name);
        // Initialised to 0, and not touched by this update; or of the process and not of the update.
        let born = ["_updates_total", "_transitions_total", "_rejected_writes_total"];
        if (value == "0" && born.iter().any(|born| plain.ends_with(born)))
            || plain.starts_with("process_")
            || plain == "brupop_build_info"
        {
            continue;
        }
        let endless = name.contains("le=\"+Inf\"");
        let timed = (plain.ends_with("_bucket") && !endless) || plain.ends_with("_sum") || plain.ends_with("_seconds");
        lines.push_str(&format!("{name} {}\n", if timed { "*" } else { value }));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn one_update_exports_expected_metric_series() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.labelled = false;
    run(options, async |ctx| {
        // The operator itself runs on node-1, which has no label, so that the update does not restart the process that
        // counts it.
        ctx.bed.install().await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=240s"]).await?;
        ctx.bed.options.labelled = true;
        ctx.bed.add_node("node-2").await?;
        ctx.release();
        ctx.until("node-2 is updated, and its status counted", |world| {
            is_on(world, "node-2", &NEW)
                && world.operator.as_ref().is_some_and(|o| {
                    o.status.slots.is_empty() && o.status.counts.as_ref().is_some_and(|c| c.current == 1)
                })
        })
        .await?;
        // A renewal of the lease later it has seen all its writes.
        ctx.renewals(1).await?;
        let found = series(&controller_metrics(ctx).await?);
        assert!(found == EXPECTED, "decide/one_update.txt is not what the controller exports:\n{found}");
        Ok(())
    })
    .await?;
    Ok(())
}
