//! `kubectl brupop install`.

use models::condition::ConditionStatus;

use crate::plugin::{output_text, plugin};
use crate::support::{nodes, run};
use crate::uninstall::everything;

#[tokio::test(flavor = "multi_thread")]
async fn plugin_installs_operator_and_leaves_existing_policy_alone() -> anyhow::Result<()> {
    run(nodes(1), async |ctx| {
        let before = everything(ctx).await?;
        let listed = plugin(ctx, &["install", "--dry-run"]).await?;
        let text = output_text(&listed);
        anyhow::ensure!(listed.status.success() && text.contains("DaemonSet") && text.contains("(dry run)"), "{text}");
        let after = everything(ctx).await?;
        anyhow::ensure!(before == after, "{:?}", before.symmetric_difference(&after).collect::<Vec<_>>());

        let installed = plugin(ctx, &["install"]).await?;
        let text = output_text(&installed);
        anyhow::ensure!(installed.status.success() && text.contains("The operator is installed, on 1 nodes"), "{text}");
        anyhow::ensure!(text.contains("No update starts before updates are enabled"), "{text}");
        ctx.reported().await?;
        ctx.until_operator("Enabled", ConditionStatus::False).await?;

        let again = plugin(ctx, &["install", "--enable"]).await?;
        let text = output_text(&again);
        anyhow::ensure!(again.status.success() && text.contains("exists and stays as it is"), "{text}");
        ctx.until_operator("Enabled", ConditionStatus::False).await?;
        Ok(())
    })
    .await?;
    Ok(())
}
