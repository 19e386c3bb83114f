//! Signatures of the controller: the permit, by which a host may arm and reboot, once, now; and the settings that policy
//! requests of a host.
//!
//! A permit is a JWS in compact form (ES256). The agent acts only on a permit whose claims match its own node, boot, attempt,
//! version and the nonce that it made itself, within [`PERMIT_LIFETIME`] of *sending* that nonce by its own clocks.
//! So any client that takes over the web API can withhold a permit, but neither forge nor replay one.
//!
//! A statement of settings is made with the same key and names its purpose, which a permit does not; and it lacks the boot, the
//! attempt and the nonce that a permit has. So neither can stand for the other. It is good for its node as long as its key is
//! trusted: an old one that is shown again can at most set what the controller once requested for this very node, and never
//! reboots anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shadow::HostPolicy;

/// Time after sending its nonce for which an agent acts on the permit, by its own monotonic clock and by its wall clock: whichever
/// shows more, so that the time in which the process was stopped or the machine paused counts.
pub const PERMIT_LIFETIME: Duration = Duration::from_secs(30);

/// The default of `deadlines.shutdown`, the longest time between the agent's call that reboots the host and the end of the
/// host: 90 s in which the host's API server may keep a call, also when its client has gone (68 s were seen, of a server
/// that had been stopped for as long), and systemd's 90 s for units that do not stop, with room. Counted on top of
/// [`PERMIT_LIFETIME`] before a node whose agent fell silent is believed not to reboot any more.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(240);

/// The longest that an agent waits for the answer of a call to the host.
pub const CALL_LIMIT: Duration = Duration::from_secs(20);

/// Claims of a permit. All of them are signed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermitClaims {
    /// The Node's uid.
    pub node_uid: String,
    /// The boot in which the host may arm and reboot.
    pub boot_id: String,
    /// The attempt.
    pub attempt: i64,
    /// The version that may be armed.
    pub version: semver::Version,
    /// The agent's nonce that is answered.
    pub nonce: String,
    /// Host settings of the desired state.
    pub host: Option<HostPolicy>,
}

/// The purpose that a rehearsal permit names, as its audience (`aud`).
pub const REHEARSAL_AUDIENCE: &str = "brupop-rehearsal";

/// Claims of a rehearsal permit: the answer to an agent's nonce in a drill, by which nothing is armed and nothing reboots. All
/// of them are signed.
///
/// It names its purpose and has no field `version`, so that no agent, of whatever version, can read it as a permit for a
/// reboot; and a permit for a reboot does not name this purpose.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RehearsalClaims {
    /// Purpose of the statement: [`REHEARSAL_AUDIENCE`].
    pub aud: String,
    /// The Node's uid.
    pub node_uid: String,
    /// The boot of the drill.
    pub boot_id: String,
    /// The attempt.
    pub attempt: i64,
    /// The version that the drill is for.
    pub rehearsed: semver::Version,
    /// The agent's nonce that is answered.
    pub nonce: String,
    /// Host settings of the desired state.
    pub host: Option<HostPolicy>,
}

impl RehearsalClaims {
    /// Returns the claims of a rehearsal of the reboot that these claims would permit.
    pub fn of(reboot: PermitClaims) -> Self {
        let PermitClaims { node_uid, boot_id, attempt, version, nonce, host } = reboot;
        let aud = REHEARSAL_AUDIENCE.to_owned();
        Self { aud, node_uid, boot_id, attempt, rehearsed: version, nonce, host }
    }
}

/// The purpose that a statement of settings names, as its audience (`aud`).
pub const SETTINGS_AUDIENCE: &str = "brupop-host-settings";

/// Claims of a statement of settings. All of them are signed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsClaims {
    /// Purpose of the statement: [`SETTINGS_AUDIENCE`].
    #[serde(default)]
    pub aud: String,
    /// The Node's uid.
    pub node_uid: String,
    /// Version to lock the host to, as in the desired state.
    pub version_lock: Option<String>,
    /// True if the host is to ignore waves, as in the desired state.
    pub ignore_waves: Option<bool>,
}

impl SettingsClaims {
    /// Returns the claims to sign for this policy on this node; `None` where no setting is requested.
    pub fn of(node_uid: &str, host: &HostPolicy) -> Option<Self> {
        host.asks_settings().then(|| Self {
            aud: SETTINGS_AUDIENCE.to_owned(),
            node_uid: node_uid.to_owned(),
            version_lock: host.version_lock.clone(),
            ignore_waves: host.ignore_waves,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(version_lock: Option<&str>, ignore_waves: Option<bool>) -> HostPolicy {
        HostPolicy { version_lock: version_lock.map(str::to_owned), ignore_waves, ..HostPolicy::default() }
    }

    fn reboot_permit() -> PermitClaims {
        PermitClaims {
            node_uid: "n".into(),
            boot_id: "b".into(),
            attempt: 1,
            version: semver::Version::new(1, 20, 5),
            nonce: "x".into(),
            host: Some(policy(Some("1.20.5"), Some(true))),
        }
    }

    #[test]
    fn only_policy_with_settings_is_signed() {
        for (policy, signed) in [
            (policy(None, None), false),
            (policy(None, Some(false)), false),
            (policy(None, Some(true)), true),
            (policy(Some("1.20.5"), None), true),
            (policy(Some("1.20.5"), Some(false)), true),
        ] {
            assert_eq!(SettingsClaims::of("n", &policy).is_some(), signed, "{policy:?}");
        }
    }

    #[test]
    fn permit_and_settings_statement_are_not_interchangeable() {
        let claims = SettingsClaims::of("n", &policy(Some("1.20.5"), Some(true))).unwrap();
        let text = serde_json::to_string(&claims).unwrap();
        assert_eq!(text, r#"{"aud":"brupop-host-settings","nodeUid":"n","versionLock":"1.20.5","ignoreWaves":true}"#);
        assert!(serde_json::from_str::<PermitClaims>(&text).is_err());
        let read: SettingsClaims = serde_json::from_str(&serde_json::to_string(&reboot_permit()).unwrap()).unwrap();
        assert_ne!(read.aud, SETTINGS_AUDIENCE);
    }

    #[test]
    fn rehearsal_permit_reads_as_no_other_statement() {
        let permit = reboot_permit();
        let rehearsal = serde_json::to_string(&RehearsalClaims::of(permit.clone())).unwrap();
        // An agent of an earlier version ignores fields that it does not know: the permit has to lack one that it needs.
        assert!(serde_json::from_str::<PermitClaims>(&rehearsal).is_err());
        let settings: SettingsClaims = serde_json::from_str(&rehearsal).unwrap();
        assert_ne!(settings.aud, SETTINGS_AUDIENCE);
        let permit = serde_json::to_string(&permit).unwrap();
        assert!(serde_json::from_str::<RehearsalClaims>(&permit).is_err());
    }

    #[test]
    fn host_policy_comparison_ignores_signature() {
        let one = HostPolicy { signature: Some("a".into()), ..policy(Some("1.20.5"), None) };
        assert!(one.asks_as(&HostPolicy { signature: Some("b".into()), ..one.clone() }));
        for other in [policy(Some("1.20.6"), None), policy(Some("1.20.5"), Some(true)), HostPolicy::default()] {
            assert!(!one.asks_as(&other), "{other:?}");
        }
    }
}
