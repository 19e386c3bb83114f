//! The demo on virtual machines.

use serde_json::json;
use tokio::time::Instant;

use super::table::{End, follow};
use super::{SHOP, say};
use crate::bed::workload;
use crate::oracle::Expectations;
use crate::vm::{BOOT, SOON, UPDATED, VmCluster};

/// Number of machines.
const MACHINES: u8 = 2;

/// Number of pods of the workload.
const PODS: usize = 4;

/// Runs it; returns true if every machine is updated and the safety properties held.
pub(super) async fn run() -> anyhow::Result<bool> {
    say(&format!("Starting a control plane and {MACHINES} virtual machines ..."));
    let began = Instant::now();
    let cluster = VmCluster::start(MACHINES).await?;
    say(&format!("  every node is Ready after {:.0} s", began.elapsed().as_secs_f64()));
    workload::apply(&cluster.client, workload::web(SHOP, PODS, json!(1))).await?;
    cluster.recorder.wait_until_state("the workload is Ready", SOON, |world| world.ready_pods(SHOP) == PODS).await?;
    say(&format!("Deployment {SHOP}/web: {PODS} pods, a PodDisruptionBudget lets 1 be disrupted at a time"));
    say("Installing the operator by the commands of the README ...");
    cluster.install_by_readme().await?;
    say("  every agent has reported\n");
    cluster.publish(&UPDATED).await?;
    say(&format!("Release {UPDATED} appears in the update repository."));
    let nodes = cluster.guests.len();
    let end = follow(&cluster.recorder, nodes, &UPDATED, false, 2 * BOOT, || {}).await?;
    say(&format!("\n{}", cluster.kubectl("get nodes -o wide").await?));
    let boots = cluster.kubectl("get events --field-selector reason=Rebooted").await?;
    say(&boots);
    let (verdict, history) = cluster.judge(&Expectations { max_unavailable: Some(1), nothing_left: true }).await?;
    let kept = history.shortfalls(SHOP).is_empty();
    let held = |ok: bool, what: &str| say(&format!("  {}  {what}", if ok { "ok  " } else { "FAILED" }));
    held(end == End::Updated, &format!("every node is on {UPDATED}"));
    held(kept, "the workload's budget was kept at every revision of the server's history");
    held(verdict.violations.is_empty(), &format!("the safety properties held: {verdict}"));
    Ok(end == End::Updated && kept && verdict.violations.is_empty())
}
