//! The live table of the rollout.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use comfy_table::{Table, presets};
use models::condition::true_condition;
use models::shadow::{BLOCKED, HostState, Step, UPDATED};
use semver::Version;
use tokio::time::Instant;

use crate::oracle::{ClusterState, Recorder, Shadow};

/// End of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Every node runs the new version.
    Updated,
    /// Failures froze it, and all attempts under way have ended.
    Frozen,
    /// Not ended in time.
    TimedOut,
}

/// Interval of redrawing the table.
const FRAME: Duration = Duration::from_millis(100);

struct Row {
    node: String,
    step: String,
    version: String,
    pods: usize,
    waits: String,
}

fn rows(world: &ClusterState, target: &Version) -> Vec<Row> {
    let mut rows = Vec::new();
    let turn = if world.frozen_by().is_empty() { "its turn" } else { "the rollout is frozen" };
    for (name, node) in &world.nodes {
        let Some(shadow) = world.shadow_of(node) else { continue };
        let status = &shadow.status;
        let step = shadow.step();
        let current = status.agent.current_version.as_ref();
        let blocked = true_condition(&status.conditions, BLOCKED);
        let waits = match (blocked, step) {
            (Some(condition), _) => condition.message.clone(),
            (None, None) if !node.ready => "the node is not Ready".to_owned(),
            (None, None) if current == Some(target) => String::new(),
            (None, None) => turn.to_owned(),
            (None, Some(Step::Staged)) => turn.to_owned(),
            (None, Some(Step::Staging)) if status.agent.state == Some(HostState::StagedUpdate) => turn.to_owned(),
            (None, Some(step)) => describe(step, shadow).to_owned(),
        };
        rows.push(Row {
            node: name.clone(),
            step: step.map_or("Idle", Step::as_str).to_owned(),
            version: current.map_or_else(|| "?".to_owned(), ToString::to_string),
            pods: world
                .pods
                .values()
                .filter(|p| p.namespace == super::SHOP && p.node.as_deref() == Some(name) && !p.finished)
                .count(),
            waits,
        });
    }
    rows
}

fn describe(step: Step, shadow: &Shadow) -> &'static str {
    match step {
        Step::Staging => "the host downloads the image",
        Step::Staged => "its slot",
        Step::BeforeDrain | Step::AfterUpdate => "the answers of hooks",
        Step::LeavingLoadBalancer => "leaving the load balancer",
        Step::Draining => "its pods leave, within their budget",
        Step::Rebooting if shadow.spec.permit.is_some() => "the host arms the image and reboots",
        Step::Rebooting => "the agent requests its permit",
        Step::Returning => "the node becomes Ready",
        Step::Verifying => "the end of its verification",
        Step::Releasing => "the node is released",
        Step::Unknown => "Unknown",
    }
}

fn draw(rows: &[Row], seconds: f64, lines_before: usize) -> usize {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(["NODE", "STEP", "VERSION", "PODS", "WAITS FOR"]);
    for row in rows {
        table.add_row([&row.node, &row.step, &row.version, &row.pods.to_string(), &row.waits]);
    }
    let text = format!("{table}\n{seconds:5.1} s\n");
    let mut out = std::io::stdout().lock();
    if lines_before > 0 {
        let _ = write!(out, "\x1b[{lines_before}A\x1b[J");
    }
    let _ = write!(out, "{text}");
    let _ = out.flush();
    text.lines().count()
}

fn ended(world: &ClusterState, target: &Version, nodes: usize) -> bool {
    let done = world.nodes.values().filter(|node| {
        world.shadow_of(node).is_some_and(|shadow| {
            let last = shadow.status.controller.record.as_ref().and_then(|r| r.last.as_ref());
            shadow.step().is_none()
                && node.ready
                && !node.claimed()
                && shadow.status.agent.current_version.as_ref() == Some(target)
                && last.is_some_and(|l| l.reason == UPDATED)
        })
    });
    done.count() == nodes && world.operator.as_ref().is_none_or(|o| o.status.slots.is_empty())
}

fn frozen(world: &ClusterState) -> bool {
    !world.frozen_by().is_empty()
        && world.shadows.values().all(|s| s.step().is_none())
        && world.operator.as_ref().is_none_or(|o| o.status.slots.is_empty())
}

/// Shows the rollout of so many nodes until it ends: on a terminal as a table that is redrawn, elsewhere as a line per
/// change. `sample` is called once for each frame.
pub(super) async fn follow(
    recorder: &Recorder,
    nodes: usize,
    target: &Version,
    expects_freeze: bool,
    limit: Duration,
    mut sample: impl FnMut(),
) -> anyhow::Result<End> {
    let terminal = std::io::stdout().is_terminal();
    let began = Instant::now();
    let mut lines = 0;
    let mut printed = std::collections::BTreeMap::new();
    loop {
        sample();
        let world = recorder.so_far()?.end();
        let rows = rows(&world, target);
        let seconds = began.elapsed().as_secs_f64();
        if terminal {
            lines = draw(&rows, seconds, lines);
        } else {
            for row in &rows {
                let line =
                    format!("{:<8} {:<10} {:<8} {} pods  {}", row.node, row.step, row.version, row.pods, row.waits);
                let key = (row.step.clone(), row.version.clone(), row.waits.clone());
                if printed.get(&row.node) != Some(&key) {
                    super::say(&format!("{seconds:6.2} s  {line}"));
                    printed.insert(row.node.clone(), key);
                }
            }
        }
        if ended(&world, target, nodes) {
            return Ok(End::Updated);
        }
        if expects_freeze && frozen(&world) {
            return Ok(End::Frozen);
        }
        if began.elapsed() > limit {
            return Ok(End::TimedOut);
        }
        tokio::time::sleep(FRAME).await;
    }
}
