//! The course of a rollout: paused and resumed, blocked, its canary step approved, a version that does not boot, another one
//! that is pinned, and nodes that are released and held.

use deploy::Component;
use integ::host::{BootFault, Fault};
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::operator::FROZEN as FROZEN_CONDITION;
use models::shadow::Step;
use nix::sys::signal::Signal;
use semver::Version;

use super::*;
use crate::interfere::{release_into_blocked_drain, resume_controllers, signal};
use crate::support::{OLD, last_reason, other, record, step_of};

/// A version between the one that nodes run at first and [`NEW`].
const BETWEEN: Version = Version::new(1, 20, 1);

/// Waits until one node is on a version and the canary step waits for its approval.
async fn until_step_waits(w: &Walk<'_>, version: &Version) -> Result<()> {
    let waits = |world: &ClusterState| {
        let mut rollouts = status(world).active_rollouts.into_iter();
        rollouts.any(|r| r.version == *version && r.step_done.is_some() && !r.approved && r.steps_passed == 0)
            && world.waiting("CanaryStep") == 1
    };
    w.until(&format!("the canary step of {version} waits for approval"), waits).await?;
    Ok(())
}

/// The documented role is enough for this and all that follows.
pub(super) async fn pause_and_resume_beside_another_field_manager(w: &mut Walk<'_>) -> Result<()> {
    w.ok("pause", &["paused: no update starts, and none is under way"]).await?;
    w.ok("pause", &["paused already"]).await?;
    w.bed.releases.publish(BETWEEN);
    w.release();
    w.until("both nodes wait", |world| world.waiting("Disabled") == 2).await?;
    // Each node has pods that may not be evicted.
    w.guarded_shop(4).await?;
    w.hold("node-2", "=").await?;
    let source = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": OPERATOR_NAME, "namespace": SYSTEM_NAMESPACE}, "spec": {"enabled": false},
    });
    let path = w.file("source.json", &source.to_string())?;
    w.kubectl(&["apply", "--server-side", "--field-manager=argocd-controller", "-f", &path]).await?;
    let tool = "the field manager argocd-controller applies spec.enabled";
    w.ok("resume", &["resumed: updates start", tool]).await.map(drop)
}

pub(super) async fn blocked_node_is_released_and_canary_step_approved(w: &mut Walk<'_>) -> Result<()> {
    until_reason(w, "node-1", json!("DrainBlocked")).await?;
    w.rehearse("release", &["release node-1 --wait=false"]).await?;
    until_reason(w, "node-1", json!("DrainBlocked")).await?;
    unblock(w).await?;
    w.until("the first node is updated", |world| is_updated(world, "node-1")).await?;
    w.hold("node-2", "-").await?;
    until_step_waits(w, &NEW).await?;

    // The image does not boot on the other node.
    w.bed.member("node-2")?.host.script(Fault::boot(BootFault::NewImageFails));
    w.rehearse("approve", &["approve 2", "approve 1", "approve"]).await
}

async fn until_frozen(w: &Walk<'_>) -> Result<()> {
    w.until("the rollout is frozen and the node is released", |world| {
        world.operator_condition(FROZEN_CONDITION).is_some_and(|c| c.status == ConditionStatus::True)
            && is_released(world, "node-2")
            && status(world).slots.is_empty()
    })
    .await?;
    Ok(())
}

pub(super) async fn failures_are_resolved_by_name(w: &mut Walk<'_>) -> Result<()> {
    until_frozen(w).await?;
    let lines = ["resume", "resume --failures 1.20.4", "resume --failures 1.20.5", "resume --failures 1.20.5"];
    w.rehearse("resume-failures", &lines).await?;
    until_reason(w, "node-2", json!("BackOff")).await?;
    w.bed.member("node-2")?.host.script(Fault::boot(BootFault::NewImageFails));
    w.rehearse("retry", &["retry node-2"]).await
}

pub(super) async fn failed_version_is_quarantined(w: &mut Walk<'_>) -> Result<()> {
    until_frozen(w).await?;
    w.ok("quarantine 1.20.5", &["1.20.5 is excluded: no node takes it"]).await?;
    w.ok("quarantine v1.20.5", &["1.20.5 is excluded already"]).await?;
    let skipped = "the failures of 1.20.5 are resolved: no node takes 1.20.5, since the policy excludes it";
    w.ok("resume --failures 1.20.5", &[skipped]).await?;
    w.until_operator(FROZEN_CONDITION, ConditionStatus::False).await?;
    w.until("the node waits for another version", |world| world.waiting("Excluded") == 1).await?;

    w.ok("quarantine 1.20 --lift", &["1.20 is no entry", "its entries are '1.20.5'"]).await?;
    w.ok("quarantine 1.20.5 --lift", &["1.20.5 is not excluded any more"]).await?;
    let [spec, _] = w.written().await?;
    ensure!(spec["version"]["exclude"].is_null(), "the entry is still there");
    w.until("the node waits for its back-off", |world| world.waiting("BackOff") == 1).await?;

    // Without a controller, it is written and not acknowledged.
    signal(&w.bed.processes_of(Component::Controller), Signal::SIGSTOP);
    let late = ["waiting: node-2: for the controller to end its back-off", "after 2 s it still waits"];
    w.exits("retry node-2 --timeout 2s", UNACKNOWLEDGED, &late).await?;
    resume_controllers(w);
    w.until("it is updated", |world| is_updated(world, "node-2") && status(world).slots.is_empty()).await?;
    Ok(())
}

pub(super) async fn earlier_version_is_pinned(w: &mut Walk<'_>) -> Result<()> {
    w.until("both hosts offer the version between", |world| {
        let offers = world.shadows.values().filter_map(|shadow| shadow.status.agent.updates.as_ref());
        offers.filter(|updates| updates.available_versions.contains(&BETWEEN)).count() == 2
    })
    .await?;
    let down = "2 node(s) move to an earlier version: node-1 (1.20.5 to 1.20.1), node-2 (1.20.5 to 1.20.1)";
    let preview = ["2 node(s) move to an earlier version", "moves to an earlier version: node-2 (1.20.5 to 1.20.1)"];
    w.ok("pin 1.20.1 --dry-run", &preview).await?;
    w.ok("pin 1.20.1", &[down, "the target is 1.20.1: 2 node(s) move"]).await?;
    until_step_waits(w, &BETWEEN).await?;
    let named = w.ok("approve -o name", &[]).await?;
    ensure!(named.trim() == "bottlerocketupdateoperator.brupop.bottlerocket.aws/default", "{named}");
    let history = w.bed.wait_updated(&BETWEEN, LIMIT).await?;
    w.ok("pin v1.20.1", &["the target is 1.20.1 already"]).await?;
    let results = |node| {
        // Without the drills.
        let updates = history.results(node).into_iter().filter(|(version, _)| *version != OLD);
        updates.map(|(version, result)| format!("{version} {result}"))
    };
    let first = ["1.20.5 ReleaseRequested", "1.20.5 Updated", "1.20.1 Updated"];
    ensure!(results("node-1").eq(first), "{:?}", history.results("node-1"));
    let second = ["1.20.5 BootFellBack", "1.20.5 BootFellBack", "1.20.5 Updated", "1.20.1 Updated"];
    ensure!(results("node-2").eq(second), "{:?}", history.results("node-2"));
    Ok(())
}

/// The node that is drained.
fn draining(world: &ClusterState) -> Option<String> {
    world.nodes.keys().find(|node| step_of(world, node) == Some(Step::Draining)).cloned()
}

pub(super) async fn released_node_is_drained_after_the_other_one(w: &mut Walk<'_>) -> Result<()> {
    w.policy(&json!({"strategy": {"canary": null}})).await?;
    w.spread_shop().await?;
    w.guarded_shop(4).await?;
    w.ok("pin latest", &["the target is latest"]).await?;
    let first = release_into_blocked_drain(w).await?;
    let waiting = [format!("1 DrainBlocked (the update): {first}"), format!("1 Queued (its turn): {}", other(&first))];
    poll("the status names both nodes", async || {
        let text = w.ok("status", &[]).await?;
        Ok(waiting.iter().all(|part| text.contains(part)).then_some(()))
    })
    .await?;
    let unknown = "there is no node nod-1; did you mean node-1 or node-2?";
    w.fails(&format!("release {first} nod-1"), &[unknown, "nothing was written"]).await?;
    ensure!(step_of(&w.bed.recorder.so_far()?.end(), &first) == Some(Step::Draining), "it was released");

    w.ok(&format!("release node/{first}"), &[&format!("{first}: released; ")]).await?;
    let history = w.bed.recorder.so_far()?;
    let world = history.end();
    ensure!(last_reason(&world, &first).as_deref() == Some("ReleaseRequested"), "{:?}", record(&world, &first));
    ensure!(history.results(&first).last() == Some(&(NEW, "ReleaseRequested".to_owned())), "{:?}", history.attempts());
    // The other one goes first, though it has yet to download the image.
    let world = w.until("a node is drained again", |world| draining(world).is_some()).await?;
    ensure!(
        draining(&world).as_deref() == Some(other(&first)),
        "the released node is drained again before the other one"
    );
    Ok(())
}

pub(super) async fn node_that_is_held_during_its_drain_stays_cordoned(w: &mut Walk<'_>) -> Result<()> {
    let held = draining(&w.bed.recorder.so_far()?.end()).context("no node is drained")?;
    let free = other(&held);
    let line = format!("hold {held} --for 1h --reason audit");
    let kept = "its update has ended, and it stays cordoned";
    w.ok(&line, &[&format!("{held}: held until "), "(audit)", kept]).await?;
    let world = w.until("it waits for its hold", |world| world.waiting("Held") == 1).await?;
    ensure!(world.nodes[&held].claimed() && last_reason(&world, &held).as_deref() == Some("Held"), "not held");
    ensure!(w.bed.recorder.so_far()?.results(&held).contains(&(NEW, "Held".to_owned())), "not held");
    w.ok("status --wide", &["(audit); it ends at "]).await?;

    // A hold of another client is not replaced by accident.
    w.hold(free, "=mine").await?;
    let by = format!("the annotation {HOLD_ANNOTATION} was set by the field manager kubectl-annotate");
    let line = format!("hold {free} {held} --for 2h");
    w.fails(&line, &["2 of 2 nodes failed", &by, "held until the hold is removed (mine)"]).await?;
    w.until("both wait", |world| world.waiting("Held") == 2).await?;
    let (line, parts) = (format!("retry {free}"), ["it is not in back-off", "It waits for another reason"]);
    poll("its shadow has the reason", async || Ok(w.fails(&line, &parts).await.ok())).await?;

    unblock(w).await?;
    let ended = format!("{free}: not held any more; it is updated when its turn comes");
    w.ok(&format!("unhold {free}"), &[&ended]).await?;
    w.until("it is updated", |world| is_updated(world, free)).await?;
    ensure!(w.bed.recorder.so_far()?.end().waiting("Held") == 1, "the other one waits");
    Ok(())
}

/// The annotation of a hold stays until it is removed.
pub(super) async fn hold_ends_at_its_time(w: &mut Walk<'_>) -> Result<()> {
    let nodes = w.bed.recorder.so_far()?.end().nodes;
    let held = nodes.into_iter().find(|(_, node)| node.held()).context("no node is held")?.0;
    let line = format!("hold {held} --for 1s --reason audit --overwrite --wait=false");
    w.ok(&line, &[&format!("node/{held} held until ")]).await?;
    w.updated().await?;
    w.ok(&format!("unhold {held}"), &["not held any more"]).await?;
    w.ok(&format!("unhold {held}"), &["it is not held"]).await.map(drop)
}
