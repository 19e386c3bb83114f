//! Two versions side by side: the parts of the operator replaced one after the other in mid-rollout, in every order.
//!
//! The next version is a stand-in (`make next`): it adds a field to each part of a shadow, and a line to the stream.

use anyhow::Context as _;
use deploy::Component;
use integ::bed::BedOptions;
use models::names::{AGENT_NAMESPACE, APISERVER, SYSTEM_NAMESPACE};
use rand::Rng as _;
use semver::Version;
use serde_json::{Value, json};

use crate::crashes::{PATIENCE, after_changes};
use crate::interfere::poll;
use crate::support::{Scene, nodes, run};

/// The tag of the next version's images.
const NEXT: &str = "next";

/// Every order in which the parts can be replaced.
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

/// What the next version adds to the definition of a shadow, and to what its web API may write of it. Both come first and go
/// last: what they do not have is refused.
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

/// Has a part run by another version's image, and waits until all of it does.
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

/// Rolls a release out, and replaces the parts in this order while it goes on.
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

/// What the next version wrote where only it writes.
async fn novelties(scene: &Scene) -> anyhow::Result<Vec<Value>> {
    let shadows = scene.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brs", "-o", "json"]).await?;
    let shadows: Value = serde_json::from_str(&shadows)?;
    let items = shadows["items"].as_array().context("items")?;
    Ok(items.iter().map(|shadow| shadow["status"]["agentNovelty"].clone()).collect())
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
            // What an older web API did not take is said again to the newer one.
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
    // A part that is replaced may cost an attempt its time, never a node a second reboot.
    let updated = ending.history.attempts().iter().filter(|attempt| attempt.updated()).count();
    assert_eq!((updated, ending.verdict.stats.reboots), (updates, updates));
    Ok(())
}
