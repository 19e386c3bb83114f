//! Two versions side by side: the components of the operator replaced one after the other during a rollout, in every
//! order.
//!
//! The next version is a stand-in (`make next`): it adds a field to each part of a shadow, a line to the stream, and a
//! step to each update, in which the agent gets a desired state that only it knows.

use anyhow::Context as _;
use deploy::Component;
use integ::bed::TestClusterOptions;
use integ::oracle::{History, Object};
use models::condition::find_condition;
use models::names::{AGENT_NAMESPACE, APISERVER, HOLD_ANNOTATION, SYSTEM_NAMESPACE};
use models::shadow::{HOST_REACHABLE, HostState, Step, UPDATED};
use nix::sys::signal::Signal;
use rand::Rng as _;
use semver::Version;
use serde_json::{Value, json};

use crate::crashes::after_changes;
use crate::interfere::{PATIENCE, agent_on, poll, signal};
use crate::support::{NEW, ScenarioContext, last_reason, nodes, run, shadow_of};

/// The tag of the next version's images.
const NEXT: &str = "next";

/// Every order in which the components can be replaced. In each half, every mixture of both versions occurs.
const ORDERS: [[[Component; 3]; 3]; 2] = {
    use Component::{Agent, Apiserver, Controller};
    [
        [[Agent, Apiserver, Controller], [Controller, Agent, Apiserver], [Apiserver, Controller, Agent]],
        [[Apiserver, Agent, Controller], [Agent, Controller, Apiserver], [Controller, Apiserver, Agent]],
    ]
};

/// Adds the next version's fields to the definition of a shadow, and to what its web API may write of it. Both come
/// first and are removed last: fields that they do not have are refused.
async fn add_to_the_definitions(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let crd = "bottlerocketshadows.brupop.bottlerocket.aws";
    let text = ctx.kubectl(&["get", "crd", crd, "-o", "json"]).await?;
    let definition: Value = serde_json::from_str(&text)?;
    let versions = definition["spec"]["versions"].as_array().context("versions")?;
    let index = versions.iter().position(|version| version["name"] == "v3").context("v3")?;
    let field = json!({"type": "string", "maxLength": 64});
    let add = |path: &str| json!({"op": "add", "path": format!("/spec/versions/{index}/schema/openAPIV3Schema/properties/{path}"), "value": field});
    let patch = json!([
        add("spec/properties/novelty"),
        add("status/properties/agentNovelty"),
        add("status/properties/controllerNovelty"),
        {"op": "add", "value": "PlannedUpdate",
            "path": format!("/spec/versions/{index}/schema/openAPIV3Schema/properties/spec/properties/state/enum/-")},
    ]);
    ctx.kubectl(&["patch", "crd", crd, "--type=json", "-p", &patch.to_string()]).await?;

    let policy = format!("validatingadmissionpolicy/{APISERVER}");
    let text = ctx.kubectl(&["get", &policy, "-o", "json"]).await?;
    let held: Value = serde_json::from_str(&text)?;
    let (known, more) = ("'f:currentVersion'", "'f:currentVersion', 'f:agentNovelty'");
    let validations = held["spec"]["validations"].to_string();
    anyhow::ensure!(validations.contains(known), "{validations}");
    let validations: Value = serde_json::from_str(&validations.replace(known, more))?;
    let patch = json!([{"op": "replace", "path": "/spec/validations", "value": validations}]);
    ctx.kubectl(&["patch", &policy, "--type=json", "-p", &patch.to_string()]).await?;
    Ok(())
}

/// Switches a component to another version's image, and waits until all its pods run it.
async fn replace(ctx: &ScenarioContext, part: Component, tag: &str) -> anyhow::Result<()> {
    let (namespace, kind) =
        if part == Component::Agent { (AGENT_NAMESPACE, "daemonset") } else { (SYSTEM_NAMESPACE, "deployment") };
    let workload = format!("{kind}/{}", part.name());
    let options = deploy::Options { tag: tag.to_owned(), ..ctx.bed.options.deploy.clone() };
    let image = format!("*={}", deploy::image(part, &options));
    ctx.kubectl(&["-n", namespace, "set", "image", &workload, &image]).await?;
    ctx.kubectl(&["-n", namespace, "rollout", "status", &workload, "--timeout=240s"]).await?;
    Ok(())
}

/// Rolls a release out, and replaces the components in this order meanwhile.
async fn roll_out(
    ctx: &mut ScenarioContext,
    version: &Version,
    order: [Component; 3],
    tag: &str,
) -> anyhow::Result<()> {
    ctx.bed.releases.publish(version.clone());
    for part in order {
        let changes = ctx.rng.random_range(1..30);
        after_changes(ctx, changes, version).await?;
        replace(ctx, part, tag).await?;
    }
    let what = || format!("the rollout of {version}, with {order:?} replaced by {tag}");
    ctx.bed.wait_updated(version, PATIENCE).await.with_context(what)?;
    for part in order {
        let options = deploy::Options { tag: tag.to_owned(), ..ctx.bed.options.deploy.clone() };
        let image = deploy::image(part, &options);
        anyhow::ensure!(ctx.bed.processes().iter().any(|process| process.image == image), "{image} does not run");
    }
    Ok(())
}

/// The fields that only the next version writes.
async fn next_version_fields(ctx: &ScenarioContext) -> anyhow::Result<Vec<Value>> {
    let shadows = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brs", "-o", "json"]).await?;
    let shadows: Value = serde_json::from_str(&shadows)?;
    let items = shadows["items"].as_array().context("items")?;
    Ok(items.iter().map(|shadow| shadow["status"]["agentNovelty"].clone()).collect())
}

/// Returns true if a node went through the step that only the next version has.
fn entered_unknown_step(history: &History) -> bool {
    ["node-1", "node-2"].iter().flat_map(|node| history.transitions(node)).any(|(_, step)| step == Some(Step::Unknown))
}

/// Returns true if an agent reported a desired state that it does not know.
fn reported_unknown_state(history: &History) -> bool {
    let mut seen = false;
    history.replay(|change, _, _| {
        if let Object::Shadow(shadow) = &change.object {
            let condition = find_condition(&shadow.status.conditions, HOST_REACHABLE);
            seen |=
                shadow.spec.state == HostState::Unknown && condition.is_some_and(|c| c.reason == "UnsupportedState");
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_continues_during_component_upgrades_and_rollbacks_in_any_order() -> anyhow::Result<()> {
    const NODES: usize = 2;
    let mut updates = 0;
    let ending = run(TestClusterOptions { next: Some(NEXT.to_owned()), ..nodes(NODES) }, async |ctx| {
        ctx.shop(4).await?;
        ctx.install().await?;
        add_to_the_definitions(ctx).await?;
        let present = ctx.bed.options.deploy.tag.clone();
        unknown_desired_state_is_ignored_and_unknown_step_ended(ctx, &present)
            .await
            .context("a controller of the next version beside older components")?;
        updates += 2 * NODES;
        let [mut upgrades, mut rollbacks] = ORDERS;
        if ctx.rng.random_bool(0.5) {
            std::mem::swap(&mut upgrades, &mut rollbacks);
        }
        for (number, (upgrade, rollback)) in (0_u64..).zip(upgrades.into_iter().zip(rollbacks)) {
            roll_out(ctx, &Version::new(1, 20, 7 + 2 * number), upgrade, NEXT).await?;
            // Fields that an older web API did not accept are reported again to the newer one.
            poll("the next version has said what is new", async || {
                Ok((next_version_fields(ctx).await? == vec![json!("next"); NODES]).then_some(()))
            })
            .await?;
            roll_out(ctx, &Version::new(1, 20, 8 + 2 * number), rollback, &present).await?;
            updates += 2 * NODES;
        }
        // The definitions go back last. The patch above owns the list of versions.
        let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/crds.yaml");
        ctx.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", definitions]).await?;
        let served = ctx.kubectl(&["get", "-f", definitions, "-o", "json"]).await?;
        anyhow::ensure!(!served.contains("ovelty"), "fields of the next version are left in the definitions");
        let last = Version::new(1, 20, 20);
        ctx.bed.releases.publish(last.clone());
        ctx.bed.wait_updated(&last, PATIENCE).await?;
        updates += NODES;
        Ok(())
    })
    .await?;
    // A component that is replaced may cost an attempt its time, never a node a second reboot.
    let updated = ending.history.attempts().iter().filter(|attempt| attempt.updated()).count();
    assert_eq!((updated, ending.verdict.stats.reboots), (updates, updates));
    Ok(())
}

/// Agent and web API do not know the desired state of the next version's controller: the update continues without it. An older
/// controller ends the step that it does not know.
async fn unknown_desired_state_is_ignored_and_unknown_step_ended(
    ctx: &ScenarioContext,
    present: &str,
) -> anyhow::Result<()> {
    replace(ctx, Component::Controller, NEXT).await?;
    ctx.release();
    let so_far = ctx.updated().await?;
    anyhow::ensure!(entered_unknown_step(&so_far) && reported_unknown_state(&so_far), "nothing unknown was desired");

    // The next attempt is in that step, since its agent is silent, when the older controller comes back.
    let newer = Version::new(1, 20, 6);
    ctx.policy(&json!({"enabled": false})).await?;
    ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}=")]).await?;
    ctx.bed.releases.publish(newer.clone());
    ctx.until("the agent offers the newer release", |world| {
        shadow_of(world, "node-1").and_then(|shadow| shadow.status.agent.updates.as_ref()?.chosen_version.as_ref())
            == Some(&newer)
    })
    .await?;
    let agent = agent_on(ctx, "node-1").await?;
    signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
    ctx.policy(&json!({"enabled": true})).await?;
    ctx.until_step("node-1", Step::Unknown).await?;
    replace(ctx, Component::Controller, present).await?;
    ctx.until("the older controller has ended what it does not know, before anything was disrupted", |world| {
        let taken_back = shadow_of(world, "node-1").is_some_and(|s| s.spec.state == HostState::Idle);
        let untouched = world.nodes.values().all(|node| !node.claimed() && node.ready);
        last_reason(world, "node-1").as_deref() == Some("ProgressLost") && taken_back && untouched
    })
    .await?;
    signal(&[agent], Signal::SIGCONT);
    ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}-")]).await?;
    let results = ctx.bed.wait_updated(&newer, PATIENCE).await?.results("node-1");
    let expected = [(NEW, UPDATED), (newer.clone(), "ProgressLost"), (newer, UPDATED)];
    let expected = expected.map(|(version, result)| (version, result.to_owned()));
    anyhow::ensure!(results == expected, "{results:?}");
    Ok(())
}
