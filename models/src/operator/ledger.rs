//! The ledger of a rollout: the places that its nodes have used up, and what they have proven about its version.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::MAX_FAILURES;
use crate::reason::Proof;
use crate::schema::{Moment, StatusWord, VersionText};
use crate::time::after;

/// The most nodes that a ledger names. Only named nodes can prove the version later; further nodes wait for a name. Names of nodes that are gone
/// are reused first.
pub const LEDGER_NODES: usize = 64;

/// The end that a ledger names for a node that had proven the version and was not Ready any more.
pub const NOT_READY: &str = "NotReady";
/// The end that it names for one that was under pressure.
pub const UNDER_PRESSURE: &str = "NodePressure";

/// The length to which the name of a machine is cut.
pub const PROVIDER_ID_LENGTH: usize = 512;

/// Places of a rollout. It changes only in writes that carry the resourceVersion that was read.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutLedger {
    /// Number of the first record of the rollout, of which its nodes count here; 0 until it is known. A rollout that is resumed has
    /// further records.
    #[serde(default)]
    pub first: i64,
    /// Number of nodes that the rollout has to update, of which canary steps are shares; 0 until its first slot is given. It
    /// rises once there are more than twice as many, and falls to those that were taken or are left where a step is passed with fewer places than `share`.
    #[serde(default)]
    pub base: i64,
    /// Number of places of the canary steps that are passed.
    #[serde(default)]
    pub passed: i64,
    /// Number of places of the canary step due, with those of the steps before it; 0 where none is due. Where fewer nodes are left than
    /// `base`, it may be fewer than `share`, until the places are used up.
    #[serde(default)]
    pub due: i64,
    /// Number of places that the canary step due has among as many nodes as `base`; 0 where none is due.
    #[serde(default)]
    pub share: i64,
    /// Number of nodes that were updated and have stayed healthy for their soak.
    #[serde(default)]
    pub proven: i64,
    /// Number of nodes that run, or may run, the version and have not proven it, or that had proven it and were no longer Ready, or under pressure.
    #[serde(default)]
    pub unproven: i64,
    /// Number of these that a user has accepted.
    #[serde(default)]
    pub accepted: i64,
    /// Number of nodes that have failed on the version since the last `resume`.
    #[serde(default)]
    pub failed: i64,
    /// Nodes that have not proven the version or have failed on it. Beyond the most that are named, others follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = LEDGER_NODES), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<LedgerNode>,
    /// Nodes that count for the brake, each once: those whose updates have ended without a proof since the last proven one; those from before
    /// it that run, or may run, the version without a proof; and those that had proven it and were no longer Ready, or under
    /// pressure, whatever version they run since. `spec.failurePolicy.maxConsecutiveFailures` is the number that brakes the rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES), extend("x-kubernetes-list-type" = "atomic"))]
    pub row: Vec<LedgerNode>,
    /// Number of nodes that were tried while the rollout has been braked, and ended without a proof.
    #[serde(default)]
    pub tried: i64,
    /// Time at which the next node may be tried; absent while the rollout is not braked.
    #[schemars(with = "Option<Moment>")]
    pub braked_until: Option<Timestamp>,
    /// Number of nodes that there were when the rollout was braked; absent while it is not. More nodes do not end the brake.
    pub braked_among: Option<i64>,
}

/// The number of ends that brake a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakeLimit {
    /// Number of ends.
    pub ends: usize,
    /// Number of nodes that there are. Of nodes that come and go, ever more were taken than there are.
    pub nodes: usize,
}

/// All nodes that were taken are there.
impl From<usize> for BrakeLimit {
    fn from(ends: usize) -> Self {
        Self { ends, nodes: usize::MAX }
    }
}

/// One in so many nodes of a rollout, which brake it where they run the version without a proof.
const UNPROVEN_SHARE: u8 = 20;

/// The first pause of a brake. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(10 * 60);

/// The longest pause of a brake.
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 60 * 60);

impl RolloutLedger {
    /// Returns the number of places that are used up by nodes whose attempt has ended.
    pub fn used(&self) -> i64 {
        self.proven.saturating_add(self.unproven).saturating_add(self.failed)
    }

    /// Returns the number of places that count as proven for a canary step.
    pub fn good(&self) -> i64 {
        self.proven.saturating_add(self.accepted)
    }

    /// Returns the same as [`Self::good`]; if the version is urgent, with the nodes that had proven it and were no
    /// longer Ready, which hold no step then.
    pub fn good_for(&self, is_urgent: bool) -> i64 {
        let fallen = self.nodes.iter().filter(|node| is_urgent && node.has_fallen() && !node.accepted).count();
        self.good().saturating_add(i64::try_from(fallen).unwrap_or(i64::MAX))
    }

    /// Returns the number of places that are neither proven nor accepted by a user, and whose nodes have not failed.
    pub fn open(&self) -> i64 {
        self.unproven.saturating_sub(self.accepted).max(0)
    }

    /// Counts as proven what has passed its steps and cannot be told any more, as in a ledger that is made again from its nodes.
    pub fn keep_passed(&mut self) {
        let known = self.unproven.saturating_add(self.failed);
        self.proven = self.proven.max(self.passed.saturating_sub(known));
    }

    /// Accepts the places that are not proven, as a user requests.
    pub fn accept(&mut self) {
        self.accepted = self.unproven;
        for node in self.nodes.iter_mut().filter(|node| node.proof != Proof::Failed) {
            node.accepted = true;
        }
        self.end_row();
    }

    /// Frees the places of failures, as a `resume` requests: a step that was passed with one of them is due again.
    pub fn forgive(&mut self) {
        let without_them = self.passed.saturating_sub(self.failed);
        self.passed = self.passed.min(self.good().max(without_them));
        self.failed = 0;
        self.nodes.retain(|node| node.proof != Proof::Failed);
        self.end_row();
    }

    /// Ends the row of ends without a proof, and the brake.
    pub fn end_row(&mut self) {
        self.row.clear();
        self.release();
    }

    /// Ends the brake, and leaves the row.
    fn release(&mut self) {
        (self.tried, self.braked_until, self.braked_among) = (0, None, None);
    }

    /// Returns the number of nodes by which the brake is judged where there are so many: nodes that join do not end it, nor do those that
    /// leave one node alone.
    pub fn judged_among(&self, nodes: usize) -> usize {
        let braked = self.braked_among.filter(|_| self.braked_until.is_some());
        braked.and_then(|braked| usize::try_from(braked).ok()).map_or(nodes, |braked| braked.min(nodes.max(2)))
    }

    /// Notes that a node has proven the version: ends of others count from here on only where they run it without a proof.
    pub fn proven_by(&mut self, node: &str) {
        self.row.retain(|end| end.node != node && end.is_unproven());
        self.row.iter_mut().for_each(|end| end.before_proof = true);
        self.release();
    }

    /// Adds an end without a proof to the row. As many as `limit` brake the rollout from `now` on.
    pub fn add_to_row(
        &mut self,
        end: (&str, Proof, &str),
        slot_since: Timestamp,
        limit: impl Into<BrakeLimit>,
        now: Timestamp,
    ) {
        self.count_end(end, slot_since, now);
        self.brake(limit, now);
    }

    /// Adds an end without a proof to the row, and leaves it to [`Self::brake`] whether that brakes the rollout. `slot_since` is the time of
    /// the node's slot: one that was given after a pause was a trial, and the next pause is longer.
    pub fn count_end(&mut self, (node, proof, reason): (&str, Proof, &str), slot_since: Timestamp, now: Timestamp) {
        self.push_to_row(LedgerNode::new(node, proof, reason));
        if self.braked_until.is_some_and(|until| slot_since >= until) {
            self.tried = self.tried.saturating_add(1);
            let doublings = u32::try_from(self.tried).unwrap_or(u32::MAX);
            let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE);
            self.braked_until = Some(after(now, pause));
        }
    }

    /// Puts the end of a node into the row, in the place of an earlier one. In a full row, one from before a proof gives way: ends after it
    /// have to be counted. A proven node that is not well any more gives way to those alone. It counts as such until it is well or proves the
    /// version again, whatever else its next update ends with.
    fn push_to_row(&mut self, mut end: LedgerNode) {
        let earlier = self.row.iter().position(|named| named.node == end.node).map(|index| self.row.remove(index));
        if let Some(fallen) = earlier.filter(|earlier| earlier.has_fallen() && !end.has_fallen()) {
            (end.proof, end.reason) = (fallen.proof, fallen.reason);
        }
        let is_full = self.row.len() >= MAX_FAILURES as usize;
        let gives_way = |named: &LedgerNode| named.before_proof && !(end.before_proof && named.has_fallen());
        if let Some(before) = self.row.iter().position(|named| is_full && gives_way(named)) {
            self.row.remove(before);
        }
        if self.row.len() < MAX_FAILURES as usize {
            self.row.push(end);
        }
    }

    /// Brakes the rollout where `limit` ends have come since the last proof, or where as many nodes, and a share of all that were taken,
    /// run the version without one; releases it where policy allows more now, or where fewer lack a proof. Nodes that join do not release it.
    pub fn brake(&mut self, limit: impl Into<BrakeLimit>, now: Timestamp) {
        let limit = limit.into();
        let since_proof = self.row.iter().filter(|end| !end.before_proof).count();
        if since_proof >= limit.ends || self.is_braked_by_unproven(limit) {
            self.braked_until.get_or_insert(after(now, FIRST_PAUSE));
            self.braked_among = self.braked_among.or_else(|| i64::try_from(limit.nodes).ok());
        } else {
            self.release();
        }
    }

    /// Returns whether as many nodes as `limit`, and a share of all that were taken, run the version without a proof; or as many, and a share
    /// of those that are there, had proven it and are not well any more. Of nodes that come and go, some are always interrupted in their
    /// updates: they are a share of those that were taken alone.
    fn is_braked_by_unproven(&self, limit: BrakeLimit) -> bool {
        let unproven = self.row.iter().filter(|end| end.is_unproven()).count();
        let fallen = self.row.iter().filter(|end| end.has_fallen()).count();
        let is_share = self.open().saturating_mul(UNPROVEN_SHARE.into()) >= self.used();
        let is_share_of_those_there = fallen.saturating_mul(UNPROVEN_SHARE.into()) >= self.judged_among(limit.nodes);
        let many_fell = fallen >= limit.ends;
        (unproven >= limit.ends && (is_share || (many_fell && self.use_up_names(fallen))))
            || (many_fell && is_share_of_those_there)
    }

    /// Returns whether no name is free, and so many nodes that are not well any more have at least half of the names that failed nodes do
    /// not have. There may be more such nodes, which are not counted.
    fn use_up_names(&self, fallen: usize) -> bool {
        let failed = self.nodes.iter().filter(|named| named.proof == Proof::Failed).count();
        self.nodes.len() >= LEDGER_NODES && fallen * 2 >= LEDGER_NODES.saturating_sub(failed)
    }

    /// Returns whether an end of the row has a part in a brake: one from before a proof only where the nodes without a proof brake the
    /// rollout.
    pub fn brakes_by(&self, end: &LedgerNode, limit: BrakeLimit) -> bool {
        !end.before_proof || self.is_braked_by_unproven(limit)
    }

    /// Moves a node from one count to another, and names it where it has no proof.
    pub fn move_node(&mut self, from: Option<Proof>, (node, to, reason): (&str, Proof, &str)) {
        if let Some(count) = from.and_then(|from| self.count(from)) {
            *count = count.saturating_sub(1).max(0);
        }
        if let Some(count) = self.count(to) {
            *count = count.saturating_add(1);
        }
        if to == Proof::Proven {
            self.proven_by(node);
        }
        // A user accepts the end of one attempt of one node. Beyond the names that are kept, that is taken to be this node.
        let named = self.nodes.iter().position(|named| named.node == node).map(|index| self.nodes.remove(index));
        let was_unproven = matches!(from, Some(Proof::Unproven | Proof::Unknown));
        let was_accepted = was_unproven && named.is_none_or(|named| named.accepted);
        self.accepted = self.accepted.saturating_sub(i64::from(was_accepted)).clamp(0, self.unproven);
        if !matches!(to, Proof::Proven | Proof::Free) && self.nodes.len() < LEDGER_NODES {
            self.nodes.push(LedgerNode::new(node, to, reason));
        }
    }

    /// Counts a proven node that is not well any more as one without a proof, which counts for the brake, also once it is gone. Where no name is
    /// free, it takes that of a node that never had a proof and has not failed, first of one that is gone or accepted, whose count stays.
    pub fn fall(&mut self, (node, end): (&str, &str), is_gone: impl Fn(&str) -> bool) {
        if self.proven <= 0 || self.nodes.iter().any(|named| named.node == node) {
            return;
        }
        if self.nodes.len() >= LEDGER_NODES {
            let others = self.nodes.iter().enumerate().filter(|(_, named)| named.is_unproven() && !named.has_fallen());
            let is_needed = |named: &LedgerNode| !named.accepted && !is_gone(&named.node);
            let Some((other, _)) = others.min_by_key(|(_, named)| is_needed(named)) else { return };
            self.nodes.remove(other);
        }
        self.move_node(Some(Proof::Proven), (node, Proof::Unproven, end));
        self.push_to_row(LedgerNode { before_proof: true, ..LedgerNode::new(node, Proof::Unproven, end) });
    }

    /// Counts such a node as proven again. This is no new proof: the ends of other nodes in the row still count for the
    /// brake.
    pub fn recover(&mut self, node: &str) {
        let Self { mut row, tried, braked_until, braked_among, .. } = self.clone();
        row.retain(|end| end.node != node);
        self.move_node(Some(Proof::Unproven), (node, Proof::Proven, ""));
        (self.row, self.tried, self.braked_until, self.braked_among) = (row, tried, braked_until, braked_among);
    }

    /// Names a node that is counted without a proof, if one of those counted has no name yet. It takes a free name, or that of a node that is
    /// gone, whose count stays.
    pub fn name_unproven(&mut self, node: &str, reason: &str, is_gone: impl Fn(&str) -> bool) {
        let named = || self.nodes.iter().filter(|named| named.proof != Proof::Failed);
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        if count(named().count()) >= self.unproven {
            return;
        }
        // A user accepts all that there are.
        let accepted = self.accepted > count(named().filter(|named| named.accepted).count());
        if self.nodes.len() >= LEDGER_NODES {
            let gone = self.nodes.iter().enumerate().filter(|(_, named)| named.is_unproven() && is_gone(&named.node));
            let Some((gone, _)) = gone.min_by_key(|(_, named)| named.accepted) else { return };
            self.nodes.remove(gone);
        }
        self.nodes.push(LedgerNode { accepted, ..LedgerNode::new(node, Proof::Unproven, reason) });
    }

    fn count(&mut self, proof: Proof) -> Option<&mut i64> {
        match proof {
            Proof::Proven => Some(&mut self.proven),
            Proof::Unproven | Proof::Unknown => Some(&mut self.unproven),
            Proof::Failed => Some(&mut self.failed),
            Proof::Free => None,
        }
    }
}

/// A node whose update has ended without a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerNode {
    /// Name of the Node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// `Unproven`, `Failed`, or `Free` if it was not taken to the version.
    #[schemars(with = "StatusWord")]
    pub proof: Proof,
    /// End of its attempt, as one fixed word.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// True if a user has accepted it without a proof.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
    /// True, for an entry of `row`, if another node has proven the version since, or if the node itself had proven it before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_proof: bool,
}

impl LedgerNode {
    fn new(node: &str, proof: Proof, reason: &str) -> Self {
        Self { node: node.to_owned(), proof, reason: reason.to_owned(), accepted: false, before_proof: false }
    }

    /// Returns whether the node runs the version, or may run it, without a proof, and has not failed on it.
    pub fn is_unproven(&self) -> bool {
        matches!(self.proof, Proof::Unproven | Proof::Unknown)
    }

    /// Returns whether the node had proven the version, and was not Ready any more or under pressure.
    pub fn has_fallen(&self) -> bool {
        [NOT_READY, UNDER_PRESSURE].contains(&self.reason.as_str())
    }
}

impl fmt::Display for LedgerNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.node, self.reason)
    }
}

/// Update that a slot is held for: what decides about its place once the Node object is gone.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotUpdate {
    /// Version that the node is updated to.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// Variant of the node.
    #[schemars(length(max = 64))]
    pub variant: String,
    /// Architecture of the node.
    #[schemars(length(max = 32))]
    pub arch: String,
    /// Number of the attempt.
    pub attempt: i64,
    /// Boot of the node when the slot was given.
    #[schemars(length(max = 64))]
    pub boot_id: String,
    /// Machine of the node, as its cloud names it (`spec.providerID` of the Node); absent where nothing names it.
    #[serde(rename = "providerID")]
    #[schemars(length(max = PROVIDER_ID_LENGTH))]
    pub provider_id: Option<String>,
    /// Place that the node had in the rollout before: `Proven`, `Unproven` or `Failed`; absent if it had none.
    #[schemars(with = "Option<StatusWord>")]
    pub had: Option<Proof>,
    /// Time from which its reboot may be permitted: recorded before the permit is issued; absent until then.
    #[schemars(with = "Option<Moment>")]
    pub permitting_since: Option<Timestamp>,
    /// Zone of the node: its slot counts there also while its Node object is gone; absent without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub zone: String,
    /// Node group of the node, whose budget its slot counts against; absent if it is in none.
    #[schemars(length(max = 63))]
    pub group: Option<String>,
    /// True for a node of the control plane: its slot holds the others also once its Node is registered again, since a kubelet cannot set
    /// the label that says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control_plane: bool,
    /// Boot in which the node was last seen Ready while an autoscaler or a user was removing it, after its reboot may have been permitted;
    /// empty where it was not Ready, absent where none was removing it.
    #[schemars(length(max = 64))]
    pub removed_in: Option<String>,
}

#[cfg(test)]
mod tests;
