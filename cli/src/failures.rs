//! The failures that a user has to name to resolve them, and the nodes without a proof.

use std::collections::{BTreeMap, BTreeSet};

use models::condition::{Condition, true_condition};
use models::names;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorStatus, FROZEN, LedgerNode};
use models::reason::FailureReason;
use semver::Version;

/// Failures of a version that no user has resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unresolved {
    /// True if they have frozen the rollout.
    pub(crate) frozen: bool,
    /// The kinds of nodes that it is held for alone, as `VARIANT/ARCH`: a user has gone on with the others.
    pub(crate) held_for: BTreeSet<String>,
    /// True if the rollout of the version is braked.
    pub(crate) braked: bool,
    pub(crate) reason: Option<FailureReason>,
    pub(crate) nodes: BTreeSet<String>,
}

/// Returns those of these versions that have frozen the rollout.
pub(crate) fn freezing(failed: &BTreeMap<Version, Unresolved>) -> impl Iterator<Item = &Version> {
    failed.iter().filter(|(_, failed)| failed.frozen).map(|(version, _)| version)
}

/// Returns the versions with failures that no user has resolved.
pub(crate) fn unresolved(status: &BottlerocketUpdateOperatorStatus) -> BTreeMap<Version, Unresolved> {
    let mut all: BTreeMap<Version, Unresolved> = BTreeMap::new();
    for known in status.versions.iter().filter(|known| known.quarantined.is_some() || !known.failed.is_empty()) {
        let failed = all.entry(known.version.clone()).or_default();
        failed.nodes.extend(known.failed.iter().cloned());
        if let Some(quarantined) = &known.quarantined {
            if quarantined.contained {
                failed.held_for.insert(format!("{}/{}", known.variant, known.arch));
            } else {
                failed.frozen = true;
            }
            failed.reason = Some(quarantined.reason);
            failed.nodes.extend(quarantined.nodes.iter().cloned());
        }
    }
    for rollout in status.active_rollouts.iter().filter(|rollout| rollout.is_braked()) {
        let failed = all.entry(rollout.version.clone()).or_default();
        failed.braked = true;
        failed.nodes.extend(rollout.ledger.iter().flat_map(|ledger| &ledger.row).map(|end| end.node.clone()));
    }
    all
}

/// Returns the nodes that a rollout that goes on names without a proof. A node's own record may be of an earlier rollout.
pub(crate) fn unproven(rollout: &ActiveRollout) -> impl Iterator<Item = &LedgerNode> {
    let ledger = rollout.ledger.as_ref().filter(|_| rollout.ended.is_none());
    ledger.into_iter().flat_map(|ledger| &ledger.nodes).filter(|named| named.is_unproven())
}

/// Returns whether the operator offers to go on with the nodes of other kinds than those that have frozen the rollout: there are some.
pub(crate) fn has_others(status: &BottlerocketUpdateOperatorStatus) -> bool {
    true_condition(&status.conditions, FROZEN).is_some_and(offers_others)
}

/// Returns whether this condition does.
pub(crate) fn offers_others(frozen: &Condition) -> bool {
    frozen.message.contains(names::CONTINUE_OTHERS_ANNOTATION)
}

/// Returns versions as options name them, separated by commas.
pub(crate) fn list<'a>(versions: impl Iterator<Item = &'a Version>) -> String {
    versions.map(ToString::to_string).collect::<Vec<_>>().join(",")
}
