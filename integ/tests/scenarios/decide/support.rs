//! Settings of hosts, as the scenarios about versions ask for them.

use integ::host::{EventKind, Host};
use integ::oracle::History;

/// The calls about its settings that a host received, as `METHOD path`, without the query.
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

/// Asserts that no settings were ever requested of a host without the controller's signature.
pub(super) fn assert_signed(history: &History) {
    history.replay(|change, _, world| {
        for shadow in world.shadows.values() {
            let asked = shadow.spec.host.as_ref().filter(|host| host.asks_settings());
            let signed = asked.is_none_or(|host| host.signature.is_some());
            assert!(signed, "revision {}: {} asks for settings unsigned", change.revision, shadow.name);
        }
    });
}
