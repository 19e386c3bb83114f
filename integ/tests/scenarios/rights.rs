//! Least privilege: a run in which the operator does everything that it can do uses each of its rights, and no others;
//! and each of its writes has a precondition.

use std::time::Duration;

use integ::oracle::{Expectations, settled_audit};
use integ::rights;
use models::condition::ConditionStatus;
use models::names::{
    INTERFACE_LABEL, RETRY_ANNOTATION, ROTATE_CERTIFICATES_ANNOTATION, ROTATE_SIGNING_KEY_ANNOTATION, SYSTEM_NAMESPACE,
    shadow_name,
};
use models::operator::DEGRADED;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::interfere::{agent_on, ask_unheard, blocked_drain, continue_controllers, permit_of, poll, signal, withdraw};
use crate::rotation;
use crate::support::{
    EVENTS_OF_NODES, SHOP, Scene, is_released, is_updated, nodes, other, run_expecting, shadow_of, until_event,
};
use crate::tokens::{agents_token, url, web_api};

/// Time after a permit at which a node with a silent agent is released: the permit's life and the longest shutdown, and
/// some.
const CERTAIN: Duration = Duration::from_secs(300);

const EXPECTED: Expectations = Expectations { max_unavailable: Some(2), nothing_left: true };

#[tokio::test(flavor = "multi_thread")]
async fn each_right_is_used_none_is_missing_and_each_write_is_guarded() -> anyhow::Result<()> {
    let mut options = nodes(2);
    // A standby reads the lease of the leader.
    options.deploy.controller_replicas = 2;
    options.deploy.controller_args = vec!["--trust-wait=2s".to_owned()];
    run_expecting(options, EXPECTED, async |scene| {
        let silent = blocked_drain(scene).await?;
        let other = other(&silent);
        let force = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
        scene.kubectl(&["apply", "--server-side", "-f", force]).await?;
        // A permit is issued and its desired state withdrawn, and the agent is silent: its node's own Lease decides.
        ask_unheard(scene, &silent).await?;
        let agent = agent_on(scene, &silent).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        continue_controllers(scene);
        scene.until("the permit is issued", |world| permit_of(world, &silent).is_some()).await?;
        withdraw(scene, &silent).await?;

        // Meanwhile the other one: pods that its budget keeps are deleted at the deadline.
        let patch = r#"{"spec":{"minAvailable":4}}"#;
        scene.kubectl(&["-n", SHOP, "patch", "pdb", "web", "--type=merge", "-p", patch]).await?;
        scene.policy(&json!({"maxUnavailable": 2, "drain": {"timeout": "3s", "atDeadline": "Force"}})).await?;
        until_event(scene, EVENTS_OF_NODES, "DrainForced", &[]).await?;
        scene.until("the other node is updated", |world| is_updated(world, other)).await?;

        the_same_news_twice(scene, other).await?;
        a_look_past_all_copies(scene, other).await?;
        scene.bed.wait("the silent node is released", CERTAIN, |history| is_released(&history.end(), &silent)).await?;
        signal(&[agent], Signal::SIGCONT);
        scene.until("the silent node is updated", |world| is_updated(world, &silent)).await?;

        a_rotation(scene).await?;
        scene.kubectl(&["label", "node", other, &format!("{INTERFACE_LABEL}-")]).await?;
        scene.until("its shadow goes", |world| shadow_of(world, other).is_none()).await?;

        let audit = settled_audit(&mut scene.bed.control_plane.audit(), &scene.bed.client).await?;
        let findings = rights::findings(&rights::granted(&deploy::everything()?)?, &audit);
        let mut wrong: Vec<String> = findings.iter().map(ToString::to_string).collect();
        wrong.extend(rights::writes::unlisted(&audit));
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
    .await?;
    Ok(())
}

/// Repeats an Event, which is counted on the first one: about a Node and about the operator's resource.
async fn the_same_news_twice(scene: &Scene, node: &str) -> anyhow::Result<()> {
    let shadow = shadow_name(node);
    for nonce in ["first", "second"] {
        let request = format!("{RETRY_ANNOTATION}={nonce}");
        scene.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite", "brs", &shadow, &request]).await?;
        scene
            .until("the retry is acknowledged", |world| {
                let record = shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.as_ref());
                record.and_then(|r| r.requests.as_ref()).and_then(|r| r.retry.as_deref()) == Some(nonce)
            })
            .await?;
    }
    // A day that does not exist.
    let broken = json!({"schedule": {"blackouts": [{"from": "2026-02-30"}]}});
    for _ in 0..2 {
        scene.policy(&broken).await?;
        scene.until_operator(DEGRADED, ConditionStatus::True).await?;
        scene.policy(&json!({"schedule": null})).await?;
        scene.until_operator(DEGRADED, ConditionStatus::False).await?;
    }
    for namespace in [EVENTS_OF_NODES, SYSTEM_NAMESPACE] {
        poll("an Event is counted twice", async || {
            let counts = "jsonpath={.items[*].series.count}";
            let counts = scene.kubectl(&["-n", namespace, "get", "events.events.k8s.io", "-o", counts]).await?;
            Ok(counts.split_whitespace().any(|count| count == "2").then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Reads past all caches, as the documentation of the web API shows it, for diagnosis.
async fn a_look_past_all_copies(scene: &Scene, node: &str) -> anyhow::Result<()> {
    let web = web_api(scene).await?;
    let answer = web.get(url(node, "?fresh=true")).bearer_auth(agents_token(scene, node)?).send().await?;
    answer.error_for_status()?;
    Ok(())
}

/// Rotates the authority and the signing key, so that each of the Secrets is written again.
async fn a_rotation(scene: &Scene) -> anyhow::Result<()> {
    let before = rotation::material(scene).await?;
    rotation::ask_for(scene, ROTATE_CERTIFICATES_ANNOTATION, "1").await?;
    rotation::ask_for(scene, ROTATE_SIGNING_KEY_ANNOTATION, "1").await?;
    rotation::certificates_rotated(scene, &before).await?;
    poll("there is another key", async || Ok((rotation::material(scene).await?.key != before.key).then_some(()))).await
}
