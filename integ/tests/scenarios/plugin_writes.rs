//! The commands of the plugin that change something: about the rollout, about nodes, and about versions.

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::host::{BootFault, Fault};
use integ::oracle::{ClusterState, Expectations};
use models::condition::ConditionStatus;
use models::names::{HOLD_ANNOTATION, OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::FROZEN;
use models::shadow::Step;
use nix::sys::signal::Signal;
use semver::Version;
use serde_json::{Value, json};

use crate::interfere::{blocked_drain, resume_controllers, signal, unblock};
use crate::plugin::{FAILED, OK, UNACKNOWLEDGED, brupop, output_text, plugin};
use crate::policy::wait_for;
use crate::support::{
    LIMIT, NEW, ScenarioContext, is_released, is_updated, last_reason, nodes, other, record, run, run_expecting,
    status, step_of,
};

/// A version between the one that nodes run at first and [`NEW`].
const BETWEEN: Version = Version::new(1, 20, 1);

/// The same as the user with the documented roles.
async fn operate(ctx: &ScenarioContext, line: &str, code: i32, parts: &[&str]) -> anyhow::Result<String> {
    brupop(ctx, &format!("{line} --as operator@example.com"), code, parts).await
}

/// The operator's resource.
async fn resource(ctx: &ScenarioContext) -> anyhow::Result<Value> {
    let text = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "bruo", OPERATOR_NAME, "-o", "json"]).await?;
    Ok(serde_json::from_str(&text)?)
}

/// The parts of the operator's resource that users write: spec and its annotations.
async fn written(ctx: &ScenarioContext) -> anyhow::Result<[Value; 2]> {
    let resource = resource(ctx).await?;
    Ok([resource["spec"].clone(), resource["metadata"]["annotations"].clone()])
}

/// The first YAML block of docs/plugin.md that contains a text.
fn example(of: &str) -> anyhow::Result<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/plugin.md"))?;
    let block =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).find(|block| block.contains(of));
    Ok(block.with_context(|| format!("docs/plugin.md has no YAML with {of}"))?.to_owned())
}

/// Applies the documented roles of users, and a binding for a user who may only read.
pub(crate) async fn grant_documented_rights(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let roles = example("kind: ClusterRole")?;
    let binding = "\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: viewer}\n\
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: brupop-view}\n\
        subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]\n";
    std::fs::write(file.path(), format!("{roles}{binding}"))?;
    ctx.kubectl(&["apply", "-f", &file.path().display().to_string()]).await?;
    Ok(())
}

/// Waits until one node is on a version and the canary step waits for its approval.
async fn until_step_waits(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<()> {
    let waits = |world: &ClusterState| {
        let mut rollouts = status(world).active_rollouts.into_iter();
        rollouts.any(|r| r.version == *version && r.step_done.is_some() && !r.approved && r.steps_passed == 0)
            && wait_for(world, "CanaryStep", 1)
    };
    ctx.until(&format!("the canary step of {version} waits for approval"), waits).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_pauses_resumes_approves_and_pins() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"canary": [{"nodes": 1, "approval": "Manual"}]});
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    let ending = run_expecting(options, expectations, async |ctx| {
        ctx.install().await?;
        grant_documented_rights(ctx).await?;

        // Nothing is written by a dry run, nor without the right, which is named.
        let before = written(ctx).await?;
        brupop(ctx, "pause --dry-run=client", OK, &["paused (dry run): ", r#"{"spec":{"enabled":false}}"#]).await?;
        brupop(ctx, "pause --dry-run=server", OK, &["paused (server dry run): "]).await?;
        brupop(ctx, "pin 1.99 --dry-run", OK, &["no node is offered a version for it"]).await?;
        brupop(ctx, "pin newest", FAILED, &["'newest' is not understood", "nothing was written"]).await?;
        for line in ["pause --as viewer", "quarantine 1.20.5 --as viewer --as-group people"] {
            let right = "you need the right to patch bottlerocketupdateoperators in brupop-system";
            brupop(ctx, line, FAILED, &[right]).await?;
        }
        brupop(ctx, "status --as viewer", OK, &["node-1", "node-2"]).await?;
        brupop(ctx, "history --as viewer", OK, &["REVISION"]).await?;
        brupop(ctx, "hold node-1 --as viewer", FAILED, &["you need the right to patch nodes"]).await?;
        ensure!(written(ctx).await? == before, "something was written: {before:?}");

        // The documented role is enough for all that follows.
        operate(ctx, "pause", OK, &["paused: no update starts, and none is under way"]).await?;
        brupop(ctx, "pause", OK, &["paused already"]).await?;
        ctx.bed.releases.publish(BETWEEN);
        ctx.release();
        ctx.until("both nodes wait", |world| wait_for(world, "Disabled", 2)).await?;
        let source = json!({
            "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
            "metadata": {"name": OPERATOR_NAME, "namespace": SYSTEM_NAMESPACE}, "spec": {"enabled": false},
        });
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), source.to_string())?;
        let path = file.path().display().to_string();
        ctx.kubectl(&["apply", "--server-side", "--field-manager=argocd-controller", "-f", &path]).await?;
        let tool = "the field manager argocd-controller applies spec.enabled";
        operate(ctx, "resume", OK, &["resumed: updates start", tool]).await?;

        until_step_waits(ctx, &NEW).await?;
        brupop(ctx, "approve 2", FAILED, &["step 2 does not wait for approval, canary step 1 of 1.20.5 does"]).await?;
        let approved = "canary step 1 of 1.20.5 is approved and passed: the rollout continues";
        operate(ctx, "approve 1", OK, &[approved]).await?;
        brupop(ctx, "approve", OK, &["no canary step waits for approval"]).await?;
        ctx.updated().await?;

        ctx.until("both hosts offer the version between", |world| {
            let offers = world.shadows.values().filter_map(|shadow| shadow.status.agent.updates.as_ref());
            offers.filter(|updates| updates.available_versions.contains(&BETWEEN)).count() == 2
        })
        .await?;
        let down = "2 node(s) move to an earlier version: node-1 (1.20.5 to 1.20.1), node-2 (1.20.5 to 1.20.1)";
        operate(ctx, "pin 1.20.1", OK, &[down, "the target is 1.20.1: 2 node(s) move"]).await?;
        until_step_waits(ctx, &BETWEEN).await?;
        let named = brupop(ctx, "approve -o name", OK, &[]).await?;
        ensure!(named.trim() == "bottlerocketupdateoperator.brupop.bottlerocket.aws/default", "{named}");
        ctx.bed.wait_updated(&BETWEEN, LIMIT).await?;
        brupop(ctx, "pin v1.20.1", OK, &["the target is 1.20.1 already"]).await?;
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2"] {
        let versions: Vec<Version> = ending.history.results(node).into_iter().map(|(version, _)| version).collect();
        assert_eq!(versions, [NEW, BETWEEN], "{node}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_releases_and_holds_nodes_and_hold_ends_at_its_time() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["failurePolicy"] = json!({"backOff": "1h"});
    let (mut first, mut held) = (String::new(), String::new());
    let ending = run(options, async |ctx| {
        first = blocked_drain(ctx).await?;
        grant_documented_rights(ctx).await?;
        let unknown = "there is no node nod-1; did you mean node-1 or node-2?";
        operate(ctx, &format!("release {first} nod-1"), FAILED, &[unknown, "nothing was written"]).await?;
        ensure!(step_of(&ctx.bed.recorder.so_far()?.end(), &first) == Some(Step::Draining), "it was released");

        operate(ctx, &format!("release node/{first}"), OK, &[&format!("{first}: released; ")]).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        ensure!(last_reason(&world, &first).as_deref() == Some("ReleaseRequested"), "{:?}", record(&world, &first));
        // The other one goes first, though it has yet to download the image.
        let draining = |world: &ClusterState| {
            let drains = |node: &&String| step_of(world, node) == Some(Step::Draining);
            world.nodes.keys().find(drains).cloned()
        };
        let world = ctx.until("a node is drained again", |world| draining(world).is_some()).await?;
        held = draining(&world).context("just seen")?;
        let free = other(&held);
        ensure!(free == first, "the released node is drained again before the other one");

        // A node that is held during its drain keeps its cordon.
        let line = format!("hold {held} --for 1h --reason audit");
        let kept = "its update has ended, and it stays cordoned";
        operate(ctx, &line, OK, &[&format!("{held}: held until "), "(audit)", kept]).await?;
        let world = ctx.until("it waits for its hold", |world| wait_for(world, "Held", 1)).await?;
        ensure!(world.nodes[&held].claimed() && last_reason(&world, &held).as_deref() == Some("Held"), "not held");
        let shown = output_text(&plugin(ctx, &["status", "--wide"]).await?);
        ensure!(shown.contains("(audit); it ends at "), "{shown}");

        // A hold of another client is not replaced by accident.
        ctx.kubectl(&["annotate", "node", free, &format!("{HOLD_ANNOTATION}=mine")]).await?;
        let by = format!("the annotation {HOLD_ANNOTATION} was set by the field manager kubectl-annotate");
        let line = format!("hold {free} {held} --for 2h");
        operate(ctx, &line, FAILED, &["2 of 2 nodes failed", &by, "held until the hold is removed (mine)"]).await?;
        ctx.until("both wait", |world| wait_for(world, "Held", 2)).await?;
        operate(ctx, &format!("retry {free}"), OK, &["it is not in back-off"]).await?;

        unblock(ctx).await?;
        let ended = format!("{free}: not held any more; it is updated when its turn comes");
        operate(ctx, &format!("unhold {free}"), OK, &[&ended]).await?;
        ctx.until("it is updated", |world| is_updated(world, free)).await?;
        ensure!(wait_for(&ctx.bed.recorder.so_far()?.end(), "Held", 1), "the other one waits");

        // The hold ends by itself, and its annotation stays until it is removed.
        let line = format!("hold {held} --for 1s --reason audit --overwrite --wait=false");
        operate(ctx, &line, OK, &[&format!("node/{held} held until ")]).await?;
        ctx.updated().await?;
        operate(ctx, &format!("unhold {held}"), OK, &["not held any more"]).await?;
        operate(ctx, &format!("unhold {held}"), OK, &["it is not held"]).await?;
        Ok(())
    })
    .await?;
    for (node, result) in [(&first, "ReleaseRequested"), (&held, "Held")] {
        let results = ending.history.results(node);
        assert!(results.contains(&(NEW, result.to_owned())), "{node}: {results:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_quarantines_failed_version_and_settles_its_failures_by_name() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.policy["failurePolicy"] = json!({"backOff": "1h"});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        grant_documented_rights(ctx).await?;
        ctx.bed.member("node-1")?.host.script(Fault::boot(BootFault::NewImageFails));
        ctx.release();
        ctx.until("the rollout is frozen and the node is released", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && is_released(world, "node-1")
                && status(world).slots.is_empty()
        })
        .await?;

        let before = written(ctx).await?;
        let failed = "1.20.5 (BootFellBack on node-1)";
        operate(ctx, "resume", FAILED, &[failed, "kubectl brupop resume --failures 1.20.5"]).await?;
        operate(ctx, "resume --failures 1.20.4", FAILED, &["1.20.4 has no failures to settle", failed]).await?;
        ensure!(written(ctx).await? == before, "something was written: {before:?}");

        operate(ctx, "quarantine 1.20.5", OK, &["1.20.5 is excluded: no node takes it"]).await?;
        operate(ctx, "quarantine v1.20.5", OK, &["1.20.5 is excluded already"]).await?;
        let skipped = "the failures of 1.20.5 are settled: no node takes 1.20.5, since the policy excludes it";
        operate(ctx, "resume --failures 1.20.5", OK, &[skipped]).await?;
        ctx.until_operator(FROZEN, ConditionStatus::False).await?;
        ctx.until("the node waits for another version", |world| wait_for(world, "Excluded", 1)).await?;

        operate(ctx, "quarantine 1.20 --lift", OK, &["1.20 is no entry", "its entries are '1.20.5'"]).await?;
        operate(ctx, "quarantine 1.20.5 --lift", OK, &["1.20.5 is not excluded any more"]).await?;
        ensure!(resource(ctx).await?["spec"]["version"]["exclude"].is_null(), "the entry is still there");
        ctx.until("the node waits for its back-off", |world| wait_for(world, "BackOff", 1)).await?;

        // Without a controller, it is written and not acknowledged.
        signal(&ctx.bed.processes_of(Component::Controller), Signal::SIGSTOP);
        let late = ["waiting: node-1: for the controller to end its back-off", "after 2 s it still waits"];
        operate(ctx, "retry node-1 --timeout 2s", UNACKNOWLEDGED, &late).await?;
        resume_controllers(ctx);
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let results: Vec<String> = ending.history.results("node-1").into_iter().map(|(_, result)| result).collect();
    assert_eq!(results, ["BootFellBack", "Updated"]);
    Ok(())
}
