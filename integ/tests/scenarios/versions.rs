//! Two versions side by side: the components of the operator replaced one after the other during a rollout, in every
//! order.
//!
//! The next version is a stand-in (`make next`): it adds a field to each part of a shadow, a line to the stream, and a
//! step to each update, in which the agent gets a desired state that only it knows.

use anyhow::Context as _;
use deploy::Component;
use integ::bed::BedOptions;
use integ::oracle::{History, Object};
use models::condition::find_condition;
use models::names::{AGENT_NAMESPACE, APISERVER, SYSTEM_NAMESPACE};
use models::shadow::{HOST_REACHABLE, HostState, Step, UPDATED};
use nix::sys::signal::Signal;
use rand::Rng as _;
use semver::Version;
use serde_json::{Value, json};

use crate::crashes::{PATIENCE, after_changes};
use crate::interfere::{agent_on, poll, signal};
use crate::support::{Scene, last_reason, nodes, results, run, shadow_of};

/// The tag of the next version's images.
const NEXT: &str = "next";

/// Every order in which the components can be replaced.
const ORDERS: [[Component; 3]; 6] = {
    use Component::{Agent, Apiserver, Controller};
    [
        [Agent, Apiserver, Controller],
        [Controller, Agent, Apiserver],
        [Apiserver, Controller, Agent],
        [Apiserver, Agent, Controller],
        [Agent, Controller, Apiserver],
        [Controller, Apiserver, Agent],
    ]
};

/// Adds the next version's fields to the definition of a shadow, and to what its web API may write of it. Both come
/// first and are removed last: fields that they do not have are refused.
async fn add_to_the_definitions(scene: &Scene) -> anyhow::Result<()> {
    let crd = "bottlerocketshadows.brupop.bottlerocket.aws";
    let text = scene.kubectl(&["get", "crd", crd, "-o", "json"]).await?;
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
    scene.kubectl(&["patch", "crd", crd, "--type=json", "-p", &patch.to_string()]).await?;

    let policy = format!("validatingadmissionpolicy/{APISERVER}");
    let text = scene.kubectl(&["get", &policy, "-o", "json"]).await?;
    let held: Value = serde_json::from_str(&text)?;
    let (known, more) = ("'f:currentVersion'", "'f:currentVersion', 'f:agentNovelty'");
    let validations = held["spec"]["validations"].to_string();
    anyhow::ensure!(validations.contains(known), "{validations}");
    let validations: Value = serde_json::from_str(&validations.replace(known, more))?;
    let patch = json!([{"op": "replace", "path": "/spec/validations", "value": validations}]);
    scene.kubectl(&["patch", &policy, "--type=json", "-p", &patch.to_string()]).await?;
    Ok(())
}

/// Switches a component to another version's image, and waits until all its pods run it.
async fn replace(scene: &Scene, part: Component, tag: &str) -> anyhow::Result<()> {
    let (namespace, kind) =
        if part == Component::Agent { (AGENT_NAMESPACE, "daemonset") } else { (SYSTEM_NAMESPACE, "deployment") };
    let workload = format!("{kind}/{}", part.name());
    let options = deploy::Options { tag: tag.to_owned(), ..scene.bed.options.deploy.clone() };
    let image = format!("*={}", deploy::image(part, &options));
    scene.kubectl(&["-n", namespace, "set", "image", &workload, &image]).await?;
    scene.kubectl(&["-n", namespace, "rollout", "status", &workload, "--timeout=240s"]).await?;
    Ok(())
}

/// Rolls a release out, and replaces the components in this order meanwhile.
async fn roll_out(scene: &mut Scene, version: &Version, order: [Component; 3], tag: &str) -> anyhow::Result<()> {
    scene.bed.releases.publish(version.clone());
    for part in order {
        let changes = scene.chance.random_range(1..30);
        after_changes(scene, changes, version).await?;
        replace(scene, part, tag).await?;
    }
    let what = || format!("the rollout of {version}, with {order:?} replaced by {tag}");
    scene.bed.wait_updated(version, PATIENCE).await.with_context(what)?;
    for part in order {
        let options = deploy::Options { tag: tag.to_owned(), ..scene.bed.options.deploy.clone() };
        let image = deploy::image(part, &options);
        anyhow::ensure!(scene.bed.processes().iter().any(|process| process.image == image), "{image} does not run");
    }
    Ok(())
}

/// The fields that only the next version writes.
async fn novelties(scene: &Scene) -> anyhow::Result<Vec<Value>> {
    let shadows = scene.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brs", "-o", "json"]).await?;
    let shadows: Value = serde_json::from_str(&shadows)?;
    let items = shadows["items"].as_array().context("items")?;
    Ok(items.iter().map(|shadow| shadow["status"]["agentNovelty"].clone()).collect())
}

/// Returns true if a node went through the step that only the next version has.
fn was_planned(history: &History) -> bool {
    ["node-1", "node-2"].iter().flat_map(|node| history.transitions(node)).any(|(_, step)| step == Some(Step::Unknown))
}

/// Returns true if an agent reported a desired state that it does not know.
fn was_not_understood(history: &History) -> bool {
    let mut seen = false;
    history.replay(|change, _, _| {
        if let Object::Shadow(shadow) = &change.object {
            let said = find_condition(&shadow.status.conditions, HOST_REACHABLE);
            seen |= shadow.spec.state == HostState::Unknown && said.is_some_and(|c| c.reason == "UnsupportedState");
        }
    });
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_goes_on_while_its_parts_are_replaced_by_the_next_version_and_back_in_every_order()
-> anyhow::Result<()> {
    const NODES: usize = 2;
    let mut updates = 0;
    let ending = run(BedOptions { next: Some(NEXT.to_owned()), ..nodes(NODES) }, async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        add_to_the_definitions(scene).await?;
        let present = scene.bed.options.deploy.tag.clone();
        for (number, order) in (0_u64..).zip(ORDERS) {
            roll_out(scene, &Version::new(1, 20, 5 + 2 * number), order, NEXT).await?;
            // Fields that an older web API did not accept are reported again to the newer one.
            poll("the next version has said what is new", async || {
                Ok((novelties(scene).await? == vec![json!("next"); NODES]).then_some(()))
            })
            .await?;
            roll_out(scene, &Version::new(1, 20, 6 + 2 * number), order, &present).await?;
            updates += 2 * NODES;
        }
        Ok(())
    })
    .await?;
    assert!(was_planned(&ending.history), "the step that only the next version has was seen");
    // An older agent may or may not get a desired state here that it does not know; the scenario below forces it. A
    // component that is replaced may cost an attempt its time, never a node a second reboot.
    let updated = ending.history.attempts().iter().filter(|attempt| attempt.updated()).count();
    assert_eq!((updated, ending.verdict.stats.reboots), (updates, updates));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_of_the_next_version_is_nothing_to_older_parts_and_what_it_began_an_older_controller_takes_back()
-> anyhow::Result<()> {
    let newer = Version::new(1, 20, 6);
    let ending = run(BedOptions { next: Some(NEXT.to_owned()), ..nodes(1) }, async |scene| {
        scene.install().await?;
        add_to_the_definitions(scene).await?;
        let present = scene.bed.options.deploy.tag.clone();
        // Agent and web API do not know the desired state of this controller: the update continues without it.
        replace(scene, Component::Controller, NEXT).await?;
        scene.release();
        let so_far = scene.updated().await?;
        anyhow::ensure!(was_planned(&so_far) && was_not_understood(&so_far), "nothing was asked for that is not known");

        // The next attempt is in that step, since its agent is silent, when the older controller comes back.
        scene.policy(&json!({"enabled": false})).await?;
        scene.bed.releases.publish(newer.clone());
        scene
            .until("the agent offers the newer release", |world| {
                shadow_of(world, "node-1")
                    .and_then(|shadow| shadow.status.agent.updates.as_ref()?.chosen_version.as_ref())
                    == Some(&newer)
            })
            .await?;
        let agent = agent_on(scene, "node-1").await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        scene.policy(&json!({"enabled": true})).await?;
        scene.until_step("node-1", Step::Unknown).await?;
        replace(scene, Component::Controller, &present).await?;
        scene
            .until("the older controller has ended what it does not know, before anything was disrupted", |world| {
                let taken_back = shadow_of(world, "node-1").is_some_and(|s| s.spec.state == HostState::Idle);
                let untouched = world.nodes.values().all(|node| !node.claimed() && node.ready);
                last_reason(world, "node-1").as_deref() == Some("ProgressLost") && taken_back && untouched
            })
            .await?;
        signal(&[agent], Signal::SIGCONT);
        scene.bed.wait_updated(&newer, PATIENCE).await?;
        Ok(())
    })
    .await?;
    let results = results(&ending.history, "node-1");
    let (old, new) = (Version::new(1, 20, 5), newer);
    let expected = [(old, UPDATED), (new.clone(), "ProgressLost"), (new, UPDATED)];
    assert_eq!(results, expected.map(|(version, result)| (version, result.to_owned())));
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}
