//! What the scenarios of the policy share.

use integ::host::{EventKind, Host, VersionLock};
use integ::oracle::{History, World};
use models::condition::{Condition, ConditionStatus};
use models::shadow::BLOCKED;
use semver::Version;

use crate::support::{condition_of, shadow_of};

/// How many nodes wait for a reason, as the operator's status has it.
pub(super) fn waiting(world: &World, reason: &str) -> i64 {
    let counts = world.operator.iter().flat_map(|operator| &operator.status.waiting);
    counts.filter(|count| count.reason == reason).map(|count| count.nodes).sum()
}

/// The `Blocked` condition of a node, while it holds.
pub(super) fn blocked<'a>(world: &'a World, node: &str) -> Option<&'a Condition> {
    condition_of(world, node, BLOCKED).filter(|condition| condition.status == ConditionStatus::True)
}

/// Whether a node is blocked for this reason.
pub(super) fn blocked_for(world: &World, node: &str, reason: &str) -> bool {
    blocked(world, node).is_some_and(|condition| condition.reason == reason)
}

/// Whether a node runs this version, has no attempt under way and nothing of ours on it.
pub(super) fn is_on(world: &World, node: &str, version: &Version) -> bool {
    world.nodes.get(node).is_some_and(|node| !node.claimed())
        && shadow_of(world, node).is_some_and(|shadow| {
            shadow.status.agent.current_version.as_ref() == Some(version) && shadow.step().is_none()
        })
}

/// The calls about its settings that a host was asked for, as `METHOD path`, without the query.
pub(super) fn settings_calls(host: &Host) -> Vec<String> {
    let about_settings = |path: &str| path.starts_with("/settings") || path.starts_with("/tx");
    host.log()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Call { method, path, .. } if about_settings(&path) => {
                Some(format!("{method} {}", path.split('?').next().unwrap_or_default()))
            }
            _ => None,
        })
        .collect()
}

/// The calls among [`settings_calls`] that change something.
pub(super) fn settings_changes(host: &Host) -> Vec<String> {
    settings_calls(host).into_iter().filter(|call| !call.starts_with("GET ")).collect()
}

/// The version lock that a host has.
pub(super) fn lock_of(host: &Host) -> Option<VersionLock> {
    host.snapshot().settings.version_lock
}

/// How the attempts of a node ended, each as the version and the result.
pub(super) fn results(history: &History, node: &str) -> Vec<(Version, String)> {
    let attempts = history.attempts().into_iter().filter(|attempt| attempt.node == node);
    attempts.map(|attempt| (attempt.to, attempt.result.unwrap_or_default())).collect()
}

/// Asserts that nothing was ever asked of a host's settings without the controller's signature.
pub(super) fn assert_signed(history: &History) {
    history.replay(|change, _, world| {
        for shadow in world.shadows.values() {
            let asked = shadow.spec.host.as_ref().filter(|host| host.asks_settings());
            let signed = asked.is_none_or(|host| host.signature.is_some());
            assert!(signed, "revision {}: {} asks for settings unsigned", change.revision, shadow.name);
        }
    });
}
