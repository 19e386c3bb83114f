//! The desired state in the spec of a shadow, and the settings of its host.

use models::shadow::{BottlerocketShadowSpec, HostPolicy, HostState, Place, Step};

use super::row::Attempt;

use crate::decision::Action;
use crate::survey::NodeContext;

fn host_settings(ctx: &NodeContext<'_>) -> HostPolicy {
    // A host that leaves the operator gets its settings back.
    let labelled = ctx.facts().labelled;
    HostPolicy {
        version_lock: ctx.version_lock().map(ToString::to_string),
        ignore_waves: (labelled && ctx.policy.ignore_waves).then_some(true),
        refresh_interval: Some(ctx.policy.refresh_interval),
        disarm_in_boot: disarm_in_boot(ctx),
        // Each client that writes it signs it.
        signature: None,
    }
}

/// Returns whether the shadow has the host settings of the policy, signed by the current key or the next one.
pub(super) fn has_host_settings(ctx: &NodeContext<'_>) -> bool {
    let Some(host) = &ctx.shadow.spec.host else { return false };
    let keys = &ctx.view.signing;
    let signed = || {
        let by = host.signature.as_deref().and_then(crate::signature::signed_by);
        by.is_some() && (by == keys.signing_key || by == keys.newest_key)
    };
    host.asks_as(&host_settings(ctx)) && (keys.signing_key.is_none() || !host.asks_settings() || signed())
}

/// Returns the desired state of the attempt.
pub(super) fn desired_state(ctx: &Attempt<'_>, state: HostState) -> Action {
    let progress = ctx.progress;
    Action::Spec {
        spec: Box::new(BottlerocketShadowSpec {
            state,
            version: Some(progress.version.clone()),
            attempt: progress.attempt,
            boot_id: Some(ctx.facts().boot_id.clone()),
            // An attempt keeps the settings that it began with: the image was chosen under them.
            host: ctx.shadow.spec.host.clone(),
            permit: None,
        }),
    }
}

/// Withdraws the desired state. The attempt number stays, since it never decreases.
pub(super) fn withdraw(ctx: &NodeContext<'_>) -> Action {
    idle_state(ctx, host_settings(ctx))
}

/// Withdraws the desired state, and permits disarming in this boot an armed image that the agent has no record of.
pub(super) fn withdraw_and_disarm(ctx: &NodeContext<'_>) -> Action {
    idle_state(ctx, HostPolicy { disarm_in_boot: Some(ctx.facts().boot_id.clone()), ..host_settings(ctx) })
}

fn idle_state(ctx: &NodeContext<'_>, host: HostPolicy) -> Action {
    Action::Spec {
        spec: Box::new(BottlerocketShadowSpec {
            state: HostState::Idle,
            attempt: ctx.shadow.spec.attempt,
            host: Some(host),
            ..BottlerocketShadowSpec::default()
        }),
    }
}

/// The permission to disarm the host, which is valid for one boot.
pub(super) fn disarm_in_boot(ctx: &NodeContext<'_>) -> Option<String> {
    let boot = ctx.shadow.spec.host.as_ref()?.disarm_in_boot.clone();
    boot.filter(|boot| *boot == ctx.facts().boot_id)
}

/// The desired state of an attempt without a permit, to be signed again because the key that signed its host
/// settings was revoked: its agent would wait for that key until a deadline. A key being replaced is still
/// accepted.
pub(super) fn signed_again(ctx: &Attempt<'_>) -> Option<Action> {
    let (spec, keys) = (&ctx.shadow.spec, &ctx.view.signing);
    let host = spec.host.as_ref()?;
    let key = crate::signature::signed_by(host.signature.as_deref()?)?;
    // A desired state that is being withdrawn does not count: its withdrawal is signed by the key that there is.
    // While a drain goes on again, the reboot is not required again: the validator refuses that.
    let reboot =
        spec.state != HostState::RebootedIntoUpdate || (ctx.phase.step == Step::Rebooting && !ctx.mode().is_drill());
    let under_way =
        ctx.phase.step.place() <= Place::Away && !matches!(spec.state, HostState::Idle | HostState::Unknown) && reboot;
    let of_attempt = spec.attempt == ctx.progress.attempt && ctx.desired_in_this_boot() && spec.permit.is_none();
    let revoked = keys.signing_key.is_some() && !keys.signing_keys.contains(&key);
    (under_way && of_attempt && revoked).then(|| {
        let host = Some(HostPolicy { signature: None, ..host.clone() });
        Action::Spec { spec: Box::new(BottlerocketShadowSpec { host, ..spec.clone() }) }
    })
}
