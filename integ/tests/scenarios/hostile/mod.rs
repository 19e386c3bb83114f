//! A compromised web API. It sees every token and every message, and sends agents and cluster what it likes. It can
//! keep the fleet from being updated; it cannot make a host reboot that still has pods, or that was released.

mod liars;
mod server;
mod words;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use deploy::Component;
use integ::host::{Event, EventKind};
use integ::oracle::{Expectations, Property};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use models::names::SYSTEM_NAMESPACE;
use models::permit::{PERMIT_LIFETIME, PermitClaims, SettingsClaims};
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, BottlerocketShadow, BottlerocketShadowSpec, HostPolicy, HostState, Permit};
use serde::Serialize;
use serde_json::{Value, json};

use self::liars::{Acknowledges, FromTheEnd, HidesTheAct, OWN_NONCE, OwnNonce, Permits, Stages, Statements};
use self::server::{Hostile, locked};
use self::words::Words;
use crate::interfere::{blocked_drain, is_activate, is_call, permit_of, poll, unblock};
use crate::support::{
    NEW, OLD, Scene, is_released, is_updated, last_reason, nodes, other, run, run_but_for, shadow_of,
};

/// Returns true for a request to a host that takes it down.
fn disrupts(event: &Event) -> bool {
    is_activate(event) || is_call(event, "/actions/reboot")
}

fn untouched(scene: &Scene, node: &str) -> anyhow::Result<()> {
    let log = scene.bed.member(node)?.host.log();
    let acts: Vec<_> = log.iter().filter(|event| disrupts(event)).collect();
    ensure!(acts.is_empty(), "{node} was touched: {acts:?}");
    Ok(())
}

/// Switches the agents back to the real web API, and waits until every node is updated. The agents continue to run: the
/// views of a compromised web API must have no lasting effect.
async fn honest_again(scene: &Scene, hostile: Hostile) -> anyhow::Result<()> {
    scene.bed.divert(None);
    drop(hostile);
    scene.updated().await?;
    Ok(())
}

/// The header and the claims of a JWS.
fn parts(jws: &str) -> anyhow::Result<(Header, Value)> {
    let payload = jws.split('.').nth(1).context("no payload")?;
    Ok((jsonwebtoken::decode_header(jws)?, serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?))
}

/// The same JWS, signature included, with other claims.
fn altered<T: Serialize>(jws: &str, claims: &T) -> anyhow::Result<String> {
    let mut parts: Vec<&str> = jws.split('.').collect();
    let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims)?);
    *parts.get_mut(1).context("no payload")? = &claims;
    Ok(parts.join("."))
}

/// Signs with another key, under any key id.
fn forged<T: Serialize>(kid: &str, claims: &T) -> anyhow::Result<String> {
    let own = EncodingKey::from_ec_der(&rcgen::KeyPair::generate()?.serialize_der());
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
    Ok(jsonwebtoken::encode(&header, claims, &own)?)
}

/// The nonce with which the agent requests a permit under the forged desired state.
fn asked(hostile: &Hostile, node: &str) -> anyhow::Result<Option<String>> {
    let armed = hostile.invented(node)?.status.report.armed;
    Ok(armed.filter(|armed| armed.phase == ArmedPhase::Arming).map(|armed| armed.nonce))
}

/// Waits until the agent has staged the version of the forged desired state.
async fn staged_as_told(hostile: &Hostile, node: &str) -> anyhow::Result<()> {
    poll(&format!("{node} has staged the image"), async || {
        let view = hostile.invented(node)?;
        let reached = view.status.report.observed_generation == Some(view.metadata.generation);
        Ok((reached && view.status.report.state == Some(HostState::StagedUpdate)).then_some(()))
    })
    .await
}

/// Shows the agent of a node this permit under this desired state, for the agent's current nonce, until the agent
/// refuses it for this reason; again for each new nonce.
async fn refuses(
    scene: &Scene,
    hostile: &Hostile,
    node: &str,
    order: &BottlerocketShadowSpec,
    permit: impl Fn(&str) -> anyhow::Result<String>,
    why: &str,
) -> anyhow::Result<()> {
    let words = Words::from_now(scene, node).await?;
    let mut shown = None;
    poll(&format!("the agent of {node} refuses the permit: {why}"), async || {
        untouched(scene, node)?;
        let Some(nonce) = asked(hostile, node)? else { return Ok(None) };
        if shown.as_ref() != Some(&nonce) {
            let permit = Some(Permit { jws: permit(&nonce)?, nonce: nonce.clone() });
            hostile.invent(node, BottlerocketShadowSpec { permit, ..order.clone() })?;
            shown = Some(nonce);
        }
        Ok(words.say(&["the permit is refused", why])?.then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_forged_altered_replayed_or_another_nodes_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let permits = Permits::default();
        let hostile = Hostile::take(scene, permits.clone()).await?;
        scene.reported().await?;
        // The first node's permit passes, and is stored. It is not known yet which node is the first.
        scene.release();
        let world = scene.until("a node is updated", |w| w.nodes.keys().any(|node| is_updated(w, node))).await?;
        let first = world.nodes.keys().find(|node| is_updated(&world, node)).context("just seen")?.clone();
        let target = other(&first);
        permits.withhold_from(Some(target));
        let others = permits
            .of(&first)
            .pop()
            .and_then(|view| view.spec.permit)
            .context("the first node's permit was not seen")?;

        let given = permits.until(target, 1).await?.remove(0);
        let permit = given.spec.permit.clone().context("a permit")?;
        let (header, claims) = parts(&permit.jws)?;
        let kid = header.kid.context("a key id")?;
        let order = BottlerocketShadowSpec { permit: None, ..given.spec };
        hostile.invent(target, order.clone())?;
        // All that a permit has to contain for this node, this boot, this attempt: the forged one lacks only the
        // signature.
        let fits = |nonce: &str| {
            let mut claims = claims.clone();
            claims["nonce"] = json!(nonce);
            claims
        };
        let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "kid": kid}).to_string());
        let unsigned = |claims: Value| format!("{unsigned}.{}.", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let refuses = async |permit: &dyn Fn(&str) -> anyhow::Result<String>, why: &str| {
            refuses(scene, &hostile, target, &order, permit, why).await
        };
        refuses(&|nonce| forged(&kid, &fits(nonce)), "its signature is wrong").await?;
        refuses(&|nonce| forged("other", &fits(nonce)), "its key 'other' is not trusted here").await?;
        refuses(&|nonce| Ok(unsigned(fits(nonce))), "it is no signed statement").await?;
        // Another node's permit, unchanged and with matching fields.
        refuses(&|_| Ok(others.jws.clone()), "it is for another node").await?;
        refuses(&|nonce| altered(&others.jws, &fits(nonce)), "its signature is wrong").await?;
        // The node's own permit, but delayed until the agent has requested another; and then with the matching nonce.
        poll("the agent asks again", async || Ok(asked(&hostile, target)?.filter(|nonce| *nonce != permit.nonce)))
            .await?;
        refuses(&|_| Ok(permit.jws.clone()), "it is for another nonce").await?;
        refuses(&|nonce| altered(&permit.jws, &fits(nonce)), "its signature is wrong").await?;
        untouched(scene, target)?;
        permits.withhold_from(None);
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_withheld_past_the_end_of_its_attempt_moves_no_host_that_was_released() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        let target = blocked_drain(scene).await?;
        let permits = Permits::default();
        permits.withhold_from(Some(&target));
        let hostile = Hostile::take(scene, permits.clone()).await?;
        unblock(scene).await?;
        let given = permits.until(&target, 1).await?.remove(0);
        crate::interfere::withdraw(scene, &target).await?;
        // No other attempt comes between.
        scene.policy(&json!({"enabled": false})).await?;
        scene.until("the node is released", |world| is_released(world, &target)).await?;
        untouched(scene, &target)?;
        // The image is staged once more, which needs no signature. Then comes the earlier desired state, with its
        // permit: the agent accepts the desired state, and requests a permit with another nonce.
        let staged = BottlerocketShadowSpec { state: HostState::StagedUpdate, permit: None, ..given.spec.clone() };
        hostile.invent(&target, staged)?;
        staged_as_told(&hostile, &target).await?;
        let words = Words::from_now(scene, &target).await?;
        let permit = given.spec.permit.clone().context("a permit")?;
        hostile.invent(&target, given.spec.clone())?;
        words.until(&["desired state state=RebootedIntoUpdate"]).await?;
        poll("the agent asks again", async || {
            untouched(scene, &target)?;
            Ok(asked(&hostile, &target)?.filter(|nonce| *nonce != permit.nonce))
        })
        .await?;
        refuses(scene, &hostile, &target, &given.spec, |_| Ok(permit.jws.clone()), "it is for another nonce").await?;
        untouched(scene, &target)?;
        scene.policy(&json!({"enabled": true})).await?;
        honest_again(scene, hostile).await
    })
    .await?;
    assert!(ending.verdict.stats.reboots >= 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_forged_brings_no_permit() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let acknowledges = Acknowledges::default();
        let hostile = Hostile::take(scene, acknowledges.clone()).await?;
        scene.reported().await?;
        scene.release();
        let ordered = |world: &integ::oracle::World, node: &str| {
            shadow_of(world, node).is_some_and(|shadow| shadow.spec.state == HostState::RebootedIntoUpdate)
        };
        let world = scene
            .until("a node is ordered to reboot", |world| world.nodes.keys().any(|node| ordered(world, node)))
            .await?;
        let target = world.nodes.keys().find(|node| ordered(&world, node)).context("just seen")?.clone();
        acknowledges.until_told(&target).await?;
        // The controller has reconciled everything since.
        scene.renewals(2).await?;
        let world = scene.bed.recorder.so_far()?.end();
        ensure!(permit_of(&world, &target).is_none(), "the controller gave a permit that no one asked for");
        untouched(scene, &target)?;
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_of_the_last_step_that_is_forged_gives_no_node_back_that_may_go_down() -> anyhow::Result<()>
{
    // Longer than a permit is valid.
    let shutdown = PERMIT_LIFETIME + Duration::from_secs(15);
    let mut options = nodes(2);
    options.timings.shutdown = shutdown;
    options.policy["deadlines"]["shutdown"] = json!(format!("{}s", shutdown.as_secs() + 5));
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    // The report that S2 requires is the one that is dropped. What counts is that no pod is on the node when it goes
    // down (S3), and that it had not been released (S9).
    let ending = run_but_for(Some(Property::S2), options, expectations, async |scene| {
        let target = blocked_drain(scene).await?;
        let hides = HidesTheAct::default();
        let hostile = Hostile::take(scene, hides.clone()).await?;
        unblock(scene).await?;
        poll("the agent acts on its permit", async || Ok(locked(&hides.0).then_some(()))).await?;
        crate::interfere::withdraw(scene, &target).await?;
        let view = hostile.truth(&target).context("no view")?;
        let mut denial = view.status.clone();
        denial.report.state = Some(HostState::Idle);
        denial.report.armed = None;
        hostile.report(&target, denial).await?;
        let boot = scene.bed.member(&target)?.host.snapshot().boot_id;
        scene.until("the node is released", |world| is_released(world, &target)).await?;
        ensure!(scene.bed.member(&target)?.host.snapshot().boot_id != boot, "it was released before it went down");
        honest_again(scene, hostile).await
    })
    .await?;
    assert!(ending.verdict.stats.reboots >= 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_for_a_nonce_that_the_agent_did_not_make_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let hostile = Hostile::take(scene, OwnNonce::default()).await?;
        scene.reported().await?;
        scene.release();
        let given = |world: &integ::oracle::World, node: &str| permit_of(world, node) == Some(OWN_NONCE);
        let world = scene
            .until("a permit is issued for the forged nonce", |world| world.nodes.keys().any(|node| given(world, node)))
            .await?;
        let target = world.nodes.keys().find(|node| given(&world, node)).context("just seen")?.clone();
        // The same permit, shown under the agent's own nonce: the signed content counts.
        let words = Words::ever(scene, &target).await?;
        poll("the agent refuses the permit", async || {
            untouched(scene, &target)?;
            Ok(words.say(&["the permit is refused", "it is for another nonce"])?.then_some(()))
        })
        .await?;
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

fn touches_settings(event: &Event) -> bool {
    matches!(&event.kind, EventKind::Call { method, path, .. }
        if method != "GET" && (path.starts_with("/settings") || path.starts_with("/tx")))
}

fn are_settings_touched(scene: &Scene, node: &str) -> anyhow::Result<bool> {
    Ok(scene.bed.member(node)?.host.log().iter().any(touches_settings))
}

/// Waits until the agent of a node logs why it does not change the settings.
async fn leaves_settings(scene: &Scene, node: &str, words: &Words, why: &str) -> anyhow::Result<()> {
    poll(&format!("the agent of {node} leaves the settings alone: {why}"), async || {
        ensure!(!are_settings_touched(scene, node)?, "{node}: settings were changed where one should read: {why}");
        Ok(words.say(&["the host's settings are left unchanged", why])?.then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_and_settings_that_the_controller_never_gave_move_no_host_and_set_nothing() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        let (target, bystander) = ("node-1", "node-2");
        scene.shop(4).await?;
        scene.install().await?;
        // The fleet is idle, its hosts have an update, and policy has settings, which no agent gets.
        scene.policy(&json!({"enabled": false})).await?;
        scene.release();
        let statements = Statements::default();
        let hostile = Hostile::take(scene, statements.clone()).await?;
        scene.policy(&json!({"version": {"target": NEW.to_string()}})).await?;
        let (own, others) = (statements.of(target).await?, statements.of(bystander).await?);
        let (own_jws, others_jws) =
            (own.signature.clone().context("signed")?, others.signature.clone().context("signed")?);
        let (header, claims) = parts(&own_jws)?;
        let kid = header.kid.context("a key id")?;
        let node_uid = claims["nodeUid"].as_str().context("a node")?;

        // Settings. Under Idle an agent would set them at once.
        let idle = BottlerocketShadowSpec { host: None, ..hostile.truth(target).context("no view")?.spec };
        let asks = HostPolicy { ignore_waves: Some(true), signature: None, ..own.clone() };
        let fits = SettingsClaims::of(node_uid, &asks).context("it asks for settings")?;
        let signed = |jws: String| HostPolicy { signature: Some(jws), ..asks.clone() };
        for (host, why) in [
            (asks.clone(), "there is no signed statement"),
            (signed(forged(&kid, &fits)?), "its signature is wrong"),
            (signed(forged("other", &fits)?), "its key 'other' is not trusted here"),
            // Settings signed by the controller, for another node or with other values.
            (others.clone(), "it is for another node"),
            (HostPolicy { version_lock: Some(OLD.to_string()), ..own.clone() }, "it is for another version lock"),
            (signed(own_jws.clone()), "it is for another choice about waves"),
            (signed(altered(&others_jws, &fits)?), "its signature is wrong"),
        ] {
            let words = Words::from_now(scene, target).await?;
            hostile.invent(target, BottlerocketShadowSpec { host: Some(host), ..idle.clone() })?;
            leaves_settings(scene, target, &words, why).await?;
        }
        // The same before the download of their version, which waits.
        let order = |state, host| BottlerocketShadowSpec {
            state,
            version: Some(NEW),
            attempt: idle.attempt + 1,
            boot_id: scene.bed.member(target).ok().map(|member| member.host.snapshot().boot_id),
            host,
            ..idle.clone()
        };
        let words = Words::from_now(scene, target).await?;
        hostile.invent(target, order(HostState::StagedUpdate, Some(asks)))?;
        leaves_settings(scene, target, &words, "there is no signed statement").await?;
        let member = scene.bed.member(target)?;
        ensure!(!member.host.log().iter().any(|event| is_call(event, "/actions/prepare-update")), "it did not wait");

        // Desired states. Staging an image is harmless, and needs no signature; a reboot does.
        hostile.invent(target, order(HostState::StagedUpdate, None))?;
        staged_as_told(&hostile, target).await?;
        let reboot = order(HostState::RebootedIntoUpdate, None);
        hostile.invent(target, reboot.clone())?;
        let permit = |nonce: &str| PermitClaims {
            node_uid: node_uid.to_owned(),
            boot_id: reboot.boot_id.clone().unwrap_or_default(),
            attempt: reboot.attempt,
            version: NEW,
            nonce: nonce.to_owned(),
            host: None,
        };
        refuses(scene, &hostile, target, &reboot, |nonce| forged(&kid, &permit(nonce)), "its signature is wrong")
            .await?;
        refuses(scene, &hostile, target, &reboot, |_| Ok(own_jws.clone()), "it is for another purpose").await?;
        refuses(scene, &hostile, target, &reboot, |nonce| altered(&own_jws, &permit(nonce)), "its signature is wrong")
            .await?;
        for node in [target, bystander] {
            untouched(scene, node)?;
            ensure!(!are_settings_touched(scene, node)?, "{node}: settings were changed");
        }
        // From the controller the same is carried out.
        scene.policy(&json!({"enabled": true})).await?;
        honest_again(scene, hostile).await?;
        for node in [target, bystander] {
            poll("each host is locked", async || Ok(are_settings_touched(scene, node)?.then_some(()))).await?;
        }
        Ok(())
    })
    .await?
    .assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_generation_does_not_outlive_the_compromised_web_api() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        scene.policy(&json!({"enabled": false})).await?;
        scene.release();
        let hostile = Hostile::take(scene, FromTheEnd).await?;
        poll("both agents have been shown the made-up generation", async || {
            Ok(["node-1", "node-2"].iter().all(|node| hostile.truth(node).is_some()).then_some(()))
        })
        .await?;
        scene.policy(&json!({"enabled": true})).await?;
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_image_that_is_not_there_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let hostile = Hostile::take(scene, Stages::default()).await?;
        scene.release();
        // The desired state to reboot comes for a host with nothing staged. Its agent reports that, and the node is
        // released.
        scene
            .until("an attempt fails for want of an image", |world| {
                world.nodes.keys().any(|node| {
                    last_reason(world, node).as_deref() == Some(FailureReason::NotStaged.as_str())
                        && is_released(world, node)
                })
            })
            .await?;
        for member in &scene.bed.members {
            untouched(scene, &member.name)?;
        }
        // No wait for the back-off: the relevant part is over.
        scene.policy(&json!({"enabled": false})).await?;
        scene.bed.divert(None);
        drop(hostile);
        scene.restart(Component::Agent).await?;
        scene.until("every node is released", |world| world.nodes.keys().all(|node| is_released(world, node))).await?;
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_another_client_writes_into_shadows_cordon_nothing_and_end() -> anyhow::Result<()> {
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    // The oracle takes an attempt in a shadow for one of the controller's. That no node was cordoned is asserted below.
    let ending = run_but_for(Some(Property::S1), nodes(4), expectations, async |scene| {
        scene.install().await?;
        let shadows: Api<BottlerocketShadow> = Api::namespaced(scene.bed.client.clone(), SYSTEM_NAMESPACE);
        for (step, shadow) in ["Draining", "Rebooting", "Rebooting", "Monitoring"].into_iter().zip(shadows.list(&ListParams::default()).await?) {
            let now = jiff::Timestamp::now();
            let boot = shadow.status.as_ref().and_then(|status| status.agent.boot_id.clone());
            let status = json!({"progress": {
                "step": step, "since": now, "started": now, "attempt": 1, "bootId": boot, "version": NEW, "disruptive": true,
            }});
            let patch = Patch::Merge(json!({"status": status}));
            shadows.patch_status(&shadow.name_any(), &PatchParams::default(), &patch).await?;
        }
        scene
            .until("each of them has ended", |world| {
                world.nodes.keys().all(|node| {
                    last_reason(world, node).as_deref() == Some(FailureReason::ProgressLost.as_str())
                        && is_released(world, node)
                })
            })
            .await?;
        Ok(())
    })
    .await?;
    ending.history.replay(|change, _, world| {
        assert!(!world.nodes.values().any(|node| node.claimed()), "a cordon at {}", change.revision);
        let slots = world.operator.as_ref().map_or(0, |operator| operator.status.slots.len());
        assert_eq!(slots, 0, "at {}", change.revision);
    });
    Ok(())
}
