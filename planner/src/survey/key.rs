//! The keys of rollouts.

use models::operator::{ActiveRollout, KnownVersion};
use semver::Version;

use crate::view::NodeView;

/// A version for one kind of host: variant, architecture, version.
pub(crate) type Key = (String, String, Version);

pub(crate) fn of_known(known: &KnownVersion) -> Key {
    (known.variant.clone(), known.arch.clone(), known.version.clone())
}

/// The key of a rollout, as a node and its version name it.
pub(crate) type KeyRef<'a> = (&'a str, &'a str, &'a Version);

/// The rollout that takes a node to a version: each variant and architecture has its own.
pub(crate) fn key<'a>(node: &'a NodeView, version: &'a Version) -> KeyRef<'a> {
    let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
    let part = |part: Option<&'a Option<String>>| part.and_then(|part| part.as_deref()).unwrap_or_default();
    (part(agent.map(|agent| &agent.variant)), part(agent.map(|agent| &agent.arch)), version)
}

/// Returns the same key, for comparisons with those of nodes.
pub(crate) fn borrowed((variant, arch, version): &Key) -> KeyRef<'_> {
    (variant, arch, version)
}

/// Returns the key of a rollout: its variant, architecture and version.
pub fn key_of(rollout: &ActiveRollout) -> Key {
    (rollout.variant.clone(), rollout.arch.clone(), rollout.version.clone())
}
