//! The controller with scripted nodes (`integ/tests/controller`), beside a program.

#[expect(dead_code, unused_imports, reason = "the cases of `integ/tests/controller` use the rest")]
#[path = "../controller/bed/mod.rs"]
pub(crate) mod bed;

use std::sync::Once;

use integ::durations::Stopwatch;

use bed::{ScriptedCluster, Stage, note_panics};

static PANICS: Once = Once::new();

/// Runs a case on a control plane of its own, and judges it.
pub(crate) async fn on_stage(case: impl AsyncFnOnce(&mut ScriptedCluster) -> anyhow::Result<()>) -> anyhow::Result<()> {
    PANICS.call_once(note_panics);
    let _stopwatch = Stopwatch::start(std::thread::current().name().unwrap_or("a case"));
    let mut cluster = ScriptedCluster::new(Stage::start(true).await?).await?;
    // The program leaves objects that no other case expects.
    cluster.uses_up_stage = true;
    let outcome = case(&mut cluster).await;
    let (result, _) = cluster.finish(outcome).await;
    result
}
