//! The web API itself is somebody else's. It sees every token and every word, and tells agents and cluster what it likes. It
//! can keep the fleet from being updated; it cannot make a host reboot that still has pods, or that was given back.

mod server;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use deploy::Component;
use integ::host::{Event, EventKind};
use integ::oracle::{Expectations, Property};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use models::go::GO_LIFETIME;
use models::shadow::{Armed, ArmedPhase, Go, HostPolicy, HostState};
use models::wire::{AgentStatus, ShadowView};
use serde_json::{Value, json};

use self::server::{Fate, Hostile, Lies, locked};
use crate::interfere::{blocked_drain, go_of, is_activate, is_call, poll, unblock};
use crate::support::{NEW, Scene, is_given_back, is_updated, nodes, other, run, run_but_for, shadow_of};

/// Whether a host was asked for anything that takes it down.
fn disrupts(event: &Event) -> bool {
    is_activate(event) || is_call(event, "/actions/reboot")
}

fn untouched(scene: &Scene, node: &str) -> anyhow::Result<()> {
    let log = scene.bed.member(node)?.host.log();
    let acts: Vec<_> = log.iter().filter(|event| disrupts(event)).collect();
    ensure!(acts.is_empty(), "{node} was touched: {acts:?}");
    Ok(())
}

/// Gives the agents back to the real web API, and waits until every node is updated.
async fn honest_again(scene: &Scene, hostile: Hostile) -> anyhow::Result<()> {
    scene.bed.divert(None);
    drop(hostile);
    scene.restart(Component::Agent).await?;
    scene.updated().await?;
    Ok(())
}

/// What an agent has written to its log about a go.
async fn refused(scene: &Scene, node: &str, why: &str) -> anyhow::Result<()> {
    poll(&format!("the agent of {node} refuses the go: {why}"), async || {
        let member = scene.bed.member(node)?;
        let agent = scene.bed.processes_of(Component::Agent);
        let agent = member.kubelet.processes().into_iter().find(|p| agent.contains(p));
        let file = agent.and_then(|a| member.kubelet.log_file(&a.namespace, &a.pod, &a.container));
        let text = file.map(std::fs::read_to_string).transpose()?.unwrap_or_default();
        Ok(text.lines().any(|line| line.contains("the go is refused") && line.contains(why)).then_some(()))
    })
    .await
}

/// What a liar knows and does, shared with the scenario.
type Shared<T> = Arc<Mutex<T>>;

/// Withholds gos, and keeps them.
#[derive(Clone, Default)]
struct Gos {
    withheld_from: Shared<Option<String>>,
    seen: Shared<Vec<(String, ShadowView)>>,
}

impl Gos {
    fn withhold_from(&self, node: Option<&str>) {
        *locked(&self.withheld_from) = node.map(str::to_owned);
    }

    /// The views with different gos that a node was to be shown.
    fn of(&self, node: &str) -> Vec<ShadowView> {
        let mut views: Vec<ShadowView> = Vec::new();
        for (of, view) in locked(&self.seen).iter() {
            if of == node && !views.iter().any(|seen| seen.spec.go == view.spec.go) {
                views.push(view.clone());
            }
        }
        views
    }

    async fn until(&self, node: &str, count: usize) -> anyhow::Result<Vec<ShadowView>> {
        poll(&format!("{node} is given {count} gos"), async || {
            let views = self.of(node);
            Ok((views.len() >= count).then_some(views))
        })
        .await
    }
}

impl Lies for Gos {
    fn view(&mut self, node: &str, view: ShadowView) -> Option<ShadowView> {
        if view.spec.go.is_some() {
            locked(&self.seen).push((node.to_owned(), view.clone()));
        }
        let withheld = view.spec.go.is_some() && locked(&self.withheld_from).as_deref() == Some(node);
        (!withheld).then_some(view)
    }
}

/// The parts of a JWS.
fn parts(jws: &str) -> anyhow::Result<(Header, Value)> {
    let payload = jws.split('.').nth(1).context("no payload")?;
    Ok((jsonwebtoken::decode_header(jws)?, serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?))
}

fn with_go(view: &ShadowView, jws: String) -> ShadowView {
    let mut view = view.clone();
    view.spec.go = view.spec.go.map(|go| Go { jws, ..go });
    // To an agent this is news, and no echo of what it knows.
    view.etag = format!("{:032x}", rand::random::<u128>());
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_that_is_forged_altered_replayed_or_another_nodes_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let gos = Gos::default();
        let hostile = Hostile::take(scene, gos.clone()).await?;
        scene.reported().await?;
        // The first node's go passes, and is kept. It is not known yet which node is the first.
        scene.release();
        let world = scene.until("a node is updated", |w| w.nodes.keys().any(|node| is_updated(w, node))).await?;
        let first = world.nodes.keys().find(|node| is_updated(&world, node)).context("just seen")?.clone();
        let target = other(&first);
        gos.withhold_from(Some(target));
        let others = gos.of(&first).pop().and_then(|view| view.spec.go).context("the first node's go was not seen")?;

        let given = gos.until(target, 1).await?.remove(0);
        let go = given.spec.go.clone().context("a go")?;
        let (header, claims) = parts(&go.jws)?;
        let own = EncodingKey::from_ec_der(&rcgen::KeyPair::generate()?.serialize_der());
        let sign = |header: &Header| jsonwebtoken::encode(header, &claims, &own);
        let mut altered: Vec<&str> = go.jws.split('.').collect();
        let mut changed = claims.clone();
        changed["attempt"] = json!(99);
        let changed = URL_SAFE_NO_PAD.encode(changed.to_string());
        altered[1] = &changed;
        let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "kid": header.kid}).to_string());
        let stranger = Header { kid: Some("stranger".into()), ..Header::new(Algorithm::ES256) };
        for (forged, why) in [
            (sign(&header)?, "its signature is wrong"),
            (altered.join("."), "its signature is wrong"),
            (format!("{unsigned}.{}.", URL_SAFE_NO_PAD.encode(claims.to_string())), "it is no signed statement"),
            (others.jws, "it is for another node"),
            (sign(&stranger)?, "is not trusted here"),
        ] {
            hostile.show(target, with_go(&given, forged));
            refused(scene, target, why).await?;
        }
        untouched(scene, target)?;

        // Delayed until the agent has asked anew: its nonce is another one.
        tokio::time::sleep(GO_LIFETIME).await;
        let second = gos.until(target, 2).await?.remove(1);
        hostile.show(target, with_go(&second, go.jws));
        refused(scene, target, "it is for another nonce").await?;
        untouched(scene, target)?;
        gos.withhold_from(None);
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_that_is_withheld_past_the_end_of_its_attempt_moves_no_host_that_was_given_back() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |scene| {
        let target = blocked_drain(scene).await?;
        let gos = Gos::default();
        gos.withhold_from(Some(&target));
        let hostile = Hostile::take(scene, gos.clone()).await?;
        unblock(scene).await?;
        let given = gos.until(&target, 1).await?.remove(0);
        crate::interfere::withdraw(scene, &target).await?;
        // The order that stood, with its go, again and again: while the node is held for it, and after it was given back.
        hostile.show(&target, with_go(&given, given.spec.go.clone().context("a go")?.jws));
        scene.until("the node is given back", |world| is_given_back(world, &target)).await?;
        for _ in 0..5 {
            let mut old = with_go(&given, given.spec.go.clone().context("a go")?.jws);
            // Of a later generation than any that the agent has seen.
            old.metadata.generation = hostile.truth(&target).context("no view")?.metadata.generation + 1;
            hostile.show(&target, old);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        honest_again(scene, hostile).await
    })
    .await?;
    assert!(ending.verdict.stats.reboots >= 2);
    Ok(())
}

/// Tells agents that their word that they are about to arm stands in the cluster, where it does not.
struct Acknowledges;

impl Lies for Acknowledges {
    fn report(&mut self, _: &str, report: &AgentStatus) -> Fate {
        if report.report.armed.is_some() { Fate::Swallow } else { Fate::Pass }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_forged_brings_no_go() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let hostile = Hostile::take(scene, Acknowledges).await?;
        scene.reported().await?;
        scene.release();
        let ordered = |world: &integ::oracle::World, node: &str| {
            shadow_of(world, node).is_some_and(|shadow| shadow.spec.state == HostState::RebootedIntoUpdate)
        };
        let world = scene
            .until("a node is ordered to reboot", |world| world.nodes.keys().any(|node| ordered(world, node)))
            .await?;
        let target = world.nodes.keys().find(|node| ordered(&world, node)).context("just seen")?.clone();
        // It asks, and is told that it was heard.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let world = scene.bed.recorder.so_far()?.end();
        ensure!(go_of(&world, &target).is_none(), "the controller gave a go that nobody asked for");
        untouched(scene, &target)?;
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

/// Lets an agent act on its go, and tells nobody that it does.
#[derive(Clone, Default)]
struct HidesTheAct(Shared<bool>);

impl Lies for HidesTheAct {
    fn report(&mut self, _: &str, report: &AgentStatus) -> Fate {
        let acts = report.report.armed.as_ref().is_some_and(|armed| armed.phase == ArmedPhase::Activated);
        *locked(&self.0) |= acts;
        // From then on nothing passes but what it says itself.
        if *locked(&self.0) { Fate::Swallow } else { Fate::Pass }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_of_the_last_step_that_is_forged_gives_no_node_back_that_may_go_down() -> anyhow::Result<()>
{
    // Longer than a go is good for.
    let shutdown = GO_LIFETIME + Duration::from_secs(15);
    let mut options = nodes(2);
    options.timings.shutdown = shutdown;
    options.policy["deadlines"]["shutdown"] = json!(format!("{}s", shutdown.as_secs() + 5));
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    // The word that S2 asks for is the very one that is swallowed. What counts is that no pod is on the node when it goes down (S3),
    // and that it had not been given back (S9).
    let ending = run_but_for(Some(Property::S2), options, expectations, async |scene| {
        let target = blocked_drain(scene).await?;
        let hides = HidesTheAct::default();
        let hostile = Hostile::take(scene, hides.clone()).await?;
        unblock(scene).await?;
        poll("the agent acts on its go", async || Ok(locked(&hides.0).then_some(()))).await?;
        crate::interfere::withdraw(scene, &target).await?;
        let view = hostile.truth(&target).context("no view")?;
        let mut denial = view.status.clone();
        denial.report.state = Some(HostState::Idle);
        denial.report.armed = None;
        hostile.report(&target, denial).await?;
        let boot = scene.bed.member(&target)?.host.snapshot().boot_id;
        scene.until("the node is given back", |world| is_given_back(world, &target)).await?;
        ensure!(scene.bed.member(&target)?.host.snapshot().boot_id != boot, "it was given back before it went down");
        honest_again(scene, hostile).await
    })
    .await?;
    assert!(ending.verdict.stats.reboots >= 2);
    Ok(())
}

/// Puts a nonce of its own in the place of the agent's.
struct OwnNonce;

/// It.
const OWN_NONCE: &str = "AAAAAAAAAAAAAAAAAAAAAA";

impl Lies for OwnNonce {
    fn report(&mut self, _: &str, report: &AgentStatus) -> Fate {
        let Some(armed) = &report.report.armed else { return Fate::Pass };
        let mut forged = report.clone();
        forged.report.armed = Some(Armed { nonce: OWN_NONCE.to_owned(), ..armed.clone() });
        Fate::Instead(Box::new(forged))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_for_a_nonce_that_the_agent_did_not_make_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let hostile = Hostile::take(scene, OwnNonce).await?;
        scene.reported().await?;
        scene.release();
        let given = |world: &integ::oracle::World, node: &str| go_of(world, node) == Some(OWN_NONCE);
        let world = scene
            .until("a go is given for the forged nonce", |world| world.nodes.keys().any(|node| given(world, node)))
            .await?;
        let target = world.nodes.keys().find(|node| given(&world, node)).context("just seen")?.clone();
        // The very go, shown under the nonce that the agent made: what is signed counts.
        let truth = poll("the go is on its way to the agent", async || {
            Ok(hostile.truth(&target).filter(|view| view.spec.go.is_some()))
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        untouched(scene, &target)?;
        ensure!(truth.spec.go.is_some_and(|go| go.nonce == OWN_NONCE));
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

/// Gives orders and settings that the controller never gave.
struct Commands {
    boots: Vec<(String, String)>,
}

impl Lies for Commands {
    fn view(&mut self, node: &str, mut view: ShadowView) -> Option<ShadowView> {
        let boot = self.boots.iter().find(|(of, _)| of == node).map(|(_, boot)| boot.clone());
        view.spec.host = Some(HostPolicy {
            version_lock: Some("9.9.9".to_owned()),
            ignore_waves: Some(true),
            signature: Some("e30.e30.e30".to_owned()),
            ..HostPolicy::default()
        });
        view.spec.version = Some(NEW);
        view.spec.attempt += 1;
        view.spec.boot_id = boot;
        // First that the image is fetched, which hurts nobody, then that the host goes down.
        let staged = view.status.report.state == Some(HostState::StagedUpdate);
        view.spec.state = if staged { HostState::RebootedIntoUpdate } else { HostState::StagedUpdate };
        view.metadata.generation += if staged { 2 } else { 1 };
        Some(view)
    }

    fn report(&mut self, _: &str, _: &AgentStatus) -> Fate {
        // The cluster hears nothing of it.
        Fate::Swallow
    }
}

fn touches_settings(event: &Event) -> bool {
    matches!(&event.kind, EventKind::Call { method, path, .. }
        if method != "GET" && (path.starts_with("/settings") || path.starts_with("/tx")))
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_and_settings_that_the_controller_never_gave_move_no_host_and_set_nothing() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        // The fleet is at rest, and its hosts have something to take.
        scene.policy(&json!({"enabled": false})).await?;
        scene.release();
        let boots =
            scene.bed.members.iter().map(|member| (member.name.clone(), member.host.snapshot().boot_id)).collect();
        let hostile = Hostile::take(scene, Commands { boots }).await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        for member in &scene.bed.members {
            untouched(scene, &member.name)?;
            let settings: Vec<_> = member.host.log().iter().filter(|event| touches_settings(event)).cloned().collect();
            ensure!(settings.is_empty(), "{settings:?}");
        }
        scene.policy(&json!({"enabled": true})).await?;
        honest_again(scene, hostile).await
    })
    .await?
    .assert_updates(2);
    Ok(())
}

/// Says that images are staged that are not.
#[derive(Default)]
struct Stages {
    /// The nodes that were told to stage, and know nothing of it.
    ordered: BTreeSet<String>,
}

impl Lies for Stages {
    fn view(&mut self, node: &str, mut view: ShadowView) -> Option<ShadowView> {
        // The agents are kept from staging: they are shown no order but the last one.
        if view.spec.state == HostState::StagedUpdate {
            self.ordered.insert(node.to_owned());
            view.spec.state = HostState::Idle;
            view.spec.version = None;
        }
        Some(view)
    }

    fn report(&mut self, node: &str, report: &AgentStatus) -> Fate {
        if !self.ordered.contains(node) || report.report.failure.is_some() {
            return Fate::Pass;
        }
        let mut forged = report.clone();
        forged.report.state = Some(HostState::StagedUpdate);
        Fate::Instead(Box::new(forged))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_staged_image_that_is_not_there_moves_no_host() -> anyhow::Result<()> {
    run(nodes(2), async |scene| {
        scene.shop(4).await?;
        scene.install().await?;
        let hostile = Hostile::take(scene, Stages::default()).await?;
        scene.release();
        // The order to reboot comes for a host that has nothing staged. Its agent says so, and the node is given back.
        scene
            .until("an attempt fails for want of an image", |world| {
                world.nodes.keys().any(|node| {
                    let ended = shadow_of(world, node).and_then(|s| s.status.controller.record.as_ref()?.last.clone());
                    ended.is_some_and(|last| last.reason != "Updated") && is_given_back(world, node)
                })
            })
            .await?;
        for member in &scene.bed.members {
            untouched(scene, &member.name)?;
        }
        // Nobody waits for the back-off: what matters is over.
        scene.policy(&json!({"enabled": false})).await?;
        scene.bed.divert(None);
        drop(hostile);
        scene.restart(Component::Agent).await?;
        scene
            .until("every node is given back", |world| world.nodes.keys().all(|node| is_given_back(world, node)))
            .await?;
        Ok(())
    })
    .await?;
    Ok(())
}
