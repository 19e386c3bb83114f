//! The signed go: the controller's word that a host may arm and reboot, once, now.
//!
//! A go is a JWS in compact form (ES256). The agent acts only on a go whose claims match its own node, boot, attempt,
//! version and the nonce that it made itself, within [`GO_LIFETIME`] of *sending* that nonce by its own monotonic clock.
//! So whoever takes over the web API can withhold a go, but neither forge nor replay one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shadow::HostPolicy;

/// How long after sending its nonce an agent acts on the go for it, by its own monotonic clock.
pub const GO_LIFETIME: Duration = Duration::from_secs(30);

/// The longest time between an agent's last possible act on a go and the end of the host: systemd's limit for a shutdown
/// (90 s for stopping units) with room to spare. Counted on top of [`GO_LIFETIME`] before a node whose agent fell silent
/// is believed not to reboot any more.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(150);

/// What a go says. All of it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GoClaims {
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
    /// The host settings that go with the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPolicy>,
}
