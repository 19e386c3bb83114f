//! The operator's label of a node: set by the operator itself if policy says so, and removed in every state of an
//! update.

use std::collections::BTreeSet;
use std::time::Duration;

use integ::bed::TestClusterOptions;
use integ::host::{Command, EventKind, Fault, UpdatesSettings, VersionLock, Worker};
use integ::oracle::{Attempt, ClusterState, Field};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION, LABEL_MANAGER};
use models::shadow::Step;
use semver::Version;
use serde_json::json;

use crate::interfere::{
    finish_command, is_activate, is_armed, is_call, release_into_blocked_drain, unblock, until_host, withdraw,
};
use crate::support::{
    LIMIT, NEW, OLD, ScenarioContext, is_on, is_released, is_updated, nodes, run, shadow_of, step_of,
};

fn label() -> Field {
    Field::Label(INTERFACE_LABEL.to_owned())
}

/// The value of the label on a node.
fn labelled<'a>(world: &'a ClusterState, node: &str) -> Option<&'a str> {
    world.nodes.get(node)?.fields.get(&label()).map(String::as_str)
}

/// The fields of a node that the manager of the label owns.
fn owned(world: &ClusterState, node: &str) -> BTreeSet<Field> {
    let owners = world.nodes.get(node).map(|node| node.owners.clone()).unwrap_or_default();
    owners.into_iter().filter(|(_, managers)| managers.contains(LABEL_MANAGER)).map(|(field, _)| field).collect()
}

/// A node with another operating system, without a kubelet stand-in.
async fn other_system(ctx: &ScenarioContext, name: &str) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(ctx.bed.client.clone());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    api.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let info = json!({
        "osImage": "Debian GNU/Linux 12 (bookworm)", "bootID": "boot", "machineID": "id", "systemUUID": "id",
        "architecture": "amd64", "operatingSystem": "linux", "kernelVersion": "6.1", "kubeletVersion": "v1.37.0",
        "kubeProxyVersion": "", "containerRuntimeVersion": "containerd://2.1.5",
    });
    let patch = Patch::Merge(json!({"status": {"nodeInfo": info}}));
    api.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn label_nodes_labels_bottlerocket_nodes_unless_label_is_set() -> anyhow::Result<()> {
    let mut options = TestClusterOptions { labelled: false, ..nodes(3) };
    options.policy["labelNodes"] = json!(true);
    let no = format!("{INTERFACE_LABEL}=none");
    let ending = run(options, async |ctx| {
        ctx.kubectl(&["label", "node", "node-3", &no]).await?;
        other_system(ctx, "debian").await?;
        ctx.release();
        ctx.bed.install().await?;
        let both = ["node-1", "node-2"];
        let world = ctx
            .until("the two others are updated", |world| {
                both.iter().all(|node| is_updated(world, node))
                    && world.operator.as_ref().is_some_and(|operator| operator.status.slots.is_empty())
            })
            .await?;
        for node in both {
            assert_eq!(labelled(&world, node), Some(INTERFACE_VERSION));
            assert_eq!(owned(&world, node), BTreeSet::from([label()]), "and nothing else");
        }
        assert_eq!((labelled(&world, "node-3"), labelled(&world, "debian")), (Some("none"), None));
        assert!(owned(&world, "node-3").is_empty() && owned(&world, "debian").is_empty());
        assert_eq!(world.shadows.len(), 2);

        // Disabled, it removes nothing, and sets nothing again.
        let seen =
            |world: &ClusterState| world.operator.as_ref().and_then(|operator| operator.status.observed_generation);
        let before = seen(&world);
        ctx.policy(&json!({"labelNodes": false})).await?;
        let world = ctx.until("the change of policy is seen", |world| seen(world) > before).await?;
        assert!(both.iter().all(|node| labelled(&world, node) == Some(INTERFACE_VERSION)));
        ctx.kubectl(&["label", "node", "node-1", &format!("{INTERFACE_LABEL}-")]).await?;
        ctx.until("its shadow goes", |world| shadow_of(world, "node-1").is_none()).await?;
        ctx.renewals(2).await?;
        assert_eq!(labelled(&ctx.bed.recorder.so_far()?.end(), "node-1"), None);

        // Switched on, a removed label comes back; another value excludes a node.
        ctx.policy(&json!({"labelNodes": true})).await?;
        ctx.until("the label is back", |world| labelled(world, "node-1") == Some(INTERFACE_VERSION)).await?;
        ctx.until("so is its shadow", |world| shadow_of(world, "node-1").is_some()).await?;
        ctx.kubectl(&["label", "--overwrite", "node", "node-2", &no]).await?;
        let world = ctx.until("the shadow of the other goes", |world| shadow_of(world, "node-2").is_none()).await?;
        assert_eq!(labelled(&world, "node-2"), Some("none"));
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert_eq!((labelled(&world, "node-2"), owned(&world, "node-2")), (Some("none"), BTreeSet::new()));
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 2 && attempts.iter().all(Attempt::updated), "{attempts:#?}");
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

/// Time after a permit at which a node with a silent agent is released: the permit's life and the longest shutdown.
const CERTAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// The node whose label is set and removed; another one never has it.
const NODE: &str = "node-1";

/// Options of a test cluster without labelled nodes.
fn unlabelled() -> TestClusterOptions {
    TestClusterOptions { labelled: false, ..nodes(2) }
}

/// Labels the node and waits until its agent has reported.
async fn join(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.kubectl(&["label", "node", NODE, &format!("{INTERFACE_LABEL}={INTERFACE_VERSION}")]).await?;
    ctx.until("the agent of the node has reported", |world| {
        shadow_of(world, NODE).is_some_and(|shadow| {
            let agent = &shadow.status.agent;
            agent.boot_id.as_deref() == Some(world.nodes[NODE].boot_id.as_str()) && agent.updates.is_some()
        })
    })
    .await?;
    Ok(())
}

/// Removes the label, and checks the step of the node at that time.
async fn leave(ctx: &ScenarioContext, step: Option<Step>) -> anyhow::Result<()> {
    ctx.kubectl(&["label", "node", NODE, &format!("{INTERFACE_LABEL}-")]).await?;
    ctx.until("the node has no label", |world| labelled(world, NODE).is_none()).await?;
    let (mut had, mut at) = (false, None);
    ctx.bed.recorder.so_far()?.replay(|_, _, world| {
        let has = labelled(world, NODE).is_some();
        if had && !has {
            at = Some(step_of(world, NODE));
        }
        had = has;
    });
    anyhow::ensure!(at == Some(step), "the label went in {at:?}, not in {step:?}");
    Ok(())
}

/// Returns true if nothing of the operator is left of the node.
fn has_left(world: &ClusterState) -> bool {
    let agent = |pod: &integ::oracle::Pod| pod.name.starts_with("brupop-agent") && pod.node.as_deref() == Some(NODE);
    world.shadows.is_empty()
        && !world.nodes[NODE].claimed()
        && world.operator.as_ref().is_some_and(|operator| operator.status.slots.is_empty())
        && !world.pods.values().any(|pod| agent(pod))
}

/// Waits until nothing of the operator is left of the node.
async fn left(ctx: &ScenarioContext, limit: Duration) -> anyhow::Result<()> {
    ctx.bed.wait_state("nothing is left of the node", limit, has_left).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_unlabelled_before_permit_is_released_and_its_shadow_deleted() -> anyhow::Result<()> {
    let ending = run(unlabelled(), async |ctx| {
        ctx.guarded_shop(4).await?;
        ctx.bed.install().await?;
        let host = &ctx.bed.member(NODE)?.host;
        join(ctx).await?;
        leave(ctx, None).await?;
        left(ctx, LIMIT).await?;

        host.script(Fault::command(Command::Prepare, Worker::Waits));
        ctx.release();
        join(ctx).await?;
        ctx.until_step(NODE, Step::Staging).await?;
        until_host(host, "the host downloads", |event| is_call(event, "/actions/prepare-update")).await?;
        leave(ctx, Some(Step::Staging)).await?;
        left(ctx, LIMIT).await?;
        finish_command(host).await?;

        join(ctx).await?;
        release_into_blocked_drain(ctx).await?;
        leave(ctx, Some(Step::Draining)).await?;
        left(ctx, LIMIT).await?;
        anyhow::ensure!(host.snapshot().running_version == OLD && !is_armed(host), "the host is as it was");

        unblock(ctx).await?;
        join(ctx).await?;
        ctx.until("the node is updated after all", |world| is_updated(world, NODE)).await?;
        Ok(())
    })
    .await?;
    let results: Vec<_> = ending.history.attempts().into_iter().map(|attempt| attempt.updated()).collect();
    assert_eq!(results.iter().filter(|updated| **updated).count(), 1, "{results:?}");
    assert_eq!(ending.verdict.stats.reboots, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_unlabelled_after_permit_completes_update_before_shadow_deletion() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let mut options = unlabelled();
    options.timings.boot = Duration::from_secs(6);
    let soak = |time: &str| json!({"health": {"after": {"soak": time}}});
    let ending = run(options, async |ctx| {
        ctx.bed.install().await?;
        let host = &ctx.bed.member(NODE)?.host;
        join(ctx).await?;
        ctx.release();
        until_host(host, "the host goes down", |event| event.kind == EventKind::Down).await?;
        leave(ctx, Some(Step::Rebooting)).await?;
        left(ctx, LIMIT).await?;
        anyhow::ensure!(host.snapshot().running_version == NEW, "the update that was under way is done");

        ctx.policy(&soak("10m")).await?;
        join(ctx).await?;
        ctx.bed.releases.publish(NEWER);
        ctx.until_step(NODE, Step::Verifying).await?;
        leave(ctx, Some(Step::Verifying)).await?;
        ctx.policy(&soak("1s")).await?;
        left(ctx, LIMIT).await?;
        anyhow::ensure!(host.snapshot().running_version == NEWER && !is_armed(host));
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.attempts().len(), 2);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

/// Checks that the settings are restored when the node has its label again, since the agent's pod is removed with it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: it waits for several rollouts"]
async fn unlabelled_pinned_node_keeps_settings_record_until_relabelled() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let mut options = unlabelled();
    options.policy["version"]["target"] = json!(NEW.to_string());
    let ending = run(options, async |ctx| {
        ctx.bed.install().await?;
        let host = &ctx.bed.member(NODE)?.host;
        join(ctx).await?;
        ctx.release();
        ctx.until("the node is updated", |world| is_updated(world, NODE)).await?;
        anyhow::ensure!(host.snapshot().settings.version_lock == Some(VersionLock::to(&NEW)));
        leave(ctx, None).await?;
        ctx.until("the settings are withdrawn", |world| {
            shadow_of(world, NODE).is_some_and(|s| s.spec.host.as_ref().is_some_and(|host| !host.asks_settings()))
        })
        .await?;
        ctx.policy(&json!({"version": {"target": null}})).await?;
        ctx.bed.releases.publish(NEWER);
        ctx.renewals(2).await?;
        join(ctx).await?;
        ctx.until("it is updated to the newest release", |world| is_on(world, NODE, &NEWER)).await?;
        anyhow::ensure!(host.snapshot().settings == UpdatesSettings::defaults(42), "{:?}", host.snapshot().settings);
        // No settings are left to restore.
        leave(ctx, None).await?;
        left(ctx, LIMIT).await
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

/// Checks an agent that is removed with the label, and so cannot disarm the host.
#[tokio::test(flavor = "multi_thread")]
async fn node_unlabelled_during_arming_keeps_shadow_while_host_is_armed() -> anyhow::Result<()> {
    let ending = run(unlabelled(), async |ctx| {
        ctx.bed.install().await?;
        let host = &ctx.bed.member(NODE)?.host;
        join(ctx).await?;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        ctx.release();
        until_host(host, "the host is asked to arm", is_activate).await?;
        leave(ctx, Some(Step::Rebooting)).await?;
        withdraw(ctx, NODE).await?;
        finish_command(host).await?;
        let boot = host.snapshot().boot_id;
        ctx.bed.wait_state("the node is released", CERTAIN_TIMEOUT, |world| is_released(world, NODE)).await?;
        let snapshot = host.snapshot();
        anyhow::ensure!(is_armed(host) && snapshot.boot_id == boot, "the host is armed and was not rebooted");
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        anyhow::ensure!(shadow_of(&world, NODE).is_some(), "nothing would record any more who armed the host");

        // After any reboot nothing of the operator is armed.
        host.foreign_reboot().await;
        left(ctx, LIMIT).await
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 0, "none that the operator requested");
    Ok(())
}
