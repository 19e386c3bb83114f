//! Forged desired states and settings.

use super::*;

fn changes_settings(event: &Event) -> bool {
    matches!(&event.kind, EventKind::Call { method, path, .. }
        if method != "GET" && (path.starts_with("/settings") || path.starts_with("/tx")))
}

fn has_settings_changes(ctx: &ScenarioContext, node: &str) -> anyhow::Result<bool> {
    Ok(ctx.bed.member(node)?.host.log().iter().any(changes_settings))
}

/// Waits until the agent of a node logs why it does not change the settings.
async fn until_settings_refused(ctx: &ScenarioContext, node: &str, log: &AgentLog, why: &str) -> anyhow::Result<()> {
    poll(&format!("the agent of {node} leaves the settings alone: {why}"), async || {
        ensure!(!has_settings_changes(ctx, node)?, "{node}: settings were changed where one should read: {why}");
        Ok(log.contains(&["the host's settings are left unchanged", why])?.then_some(()))
    })
    .await
}

pub(super) async fn forged_desired_states_and_settings_are_refused(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let (target, bystander) = ("node-1", "node-2");
    // The fleet is idle, its hosts have an update, and policy has settings, which no agent gets.
    ctx.policy(&json!({"enabled": false})).await?;
    ctx.release();
    let statements = WithheldSettings::default();
    let hostile = CompromisedWebApi::start(ctx, statements.clone()).await?;
    ctx.policy(&json!({"version": {"target": NEW.to_string()}})).await?;
    let (own, others) = (statements.of(target).await?, statements.of(bystander).await?);
    let (own_jws, others_jws) = (own.signature.clone().context("signed")?, others.signature.clone().context("signed")?);
    let (header, claims) = parts(&own_jws)?;
    let kid = header.kid.context("a key id")?;
    let node_uid = claims["nodeUid"].as_str().context("a node")?;

    // Settings. Under Idle an agent would set them at once.
    let idle = BottlerocketShadowSpec { host: None, ..hostile.true_view(target).context("no view")?.spec };
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
        let log = AgentLog::from_now(ctx, target).await?;
        hostile.forge_shadow(target, BottlerocketShadowSpec { host: Some(host), ..idle.clone() })?;
        until_settings_refused(ctx, target, &log, why).await?;
    }
    // The same before the download of their version, which waits.
    let order = |state, host| BottlerocketShadowSpec {
        state,
        version: Some(NEW),
        attempt: idle.attempt + 1,
        boot_id: ctx.bed.member(target).ok().map(|member| member.host.snapshot().boot_id),
        host,
        ..idle.clone()
    };
    let log = AgentLog::from_now(ctx, target).await?;
    hostile.forge_shadow(target, order(HostState::StagedUpdate, Some(asks)))?;
    until_settings_refused(ctx, target, &log, "there is no signed statement").await?;
    let member = ctx.bed.member(target)?;
    ensure!(!member.host.log().iter().any(|event| is_call(event, "/actions/prepare-update")), "it did not wait");

    // Desired states. Staging an image is harmless, and needs no signature; a reboot does.
    hostile.forge_shadow(target, order(HostState::StagedUpdate, None))?;
    until_version_staged(&hostile, target).await?;
    let reboot = order(HostState::RebootedIntoUpdate, None);
    hostile.forge_shadow(target, reboot.clone())?;
    let permit = |nonce: &str| PermitClaims {
        node_uid: node_uid.to_owned(),
        boot_id: reboot.boot_id.clone().unwrap_or_default(),
        attempt: reboot.attempt,
        version: NEW,
        nonce: nonce.to_owned(),
        host: None,
    };
    until_permit_refused(
        ctx,
        &hostile,
        target,
        &reboot,
        |nonce| forged(&kid, &permit(nonce)),
        "its signature is wrong",
    )
    .await?;
    until_permit_refused(ctx, &hostile, target, &reboot, |_| Ok(own_jws.clone()), "it is for another purpose").await?;
    until_permit_refused(
        ctx,
        &hostile,
        target,
        &reboot,
        |nonce| altered(&own_jws, &permit(nonce)),
        "its signature is wrong",
    )
    .await?;
    for node in [target, bystander] {
        ensure_not_disrupted(ctx, &hostile, node)?;
        ensure!(!has_settings_changes(ctx, node)?, "{node}: settings were changed");
    }
    // From the controller the same is carried out.
    ctx.policy(&json!({"enabled": true})).await?;
    restore_web_api(ctx, hostile, &NEW).await?;
    for node in [target, bystander] {
        poll("each host is locked", async || Ok(has_settings_changes(ctx, node)?.then_some(()))).await?;
    }
    ctx.bed.recorder.so_far()?.ensure_updates(2)?;
    // The hosts are unlocked.
    ctx.policy(&json!({"version": {"target": "latest"}})).await
}
