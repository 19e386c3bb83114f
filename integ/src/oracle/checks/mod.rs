//! The properties, one file each. Every check processes each revision in order, and then the hosts' logs.

mod budgets;
mod l3_blocked;
mod leftovers;
mod s11_hooks;
mod s12_places;
mod s1_budget;
mod s2_reboots;
mod s3_drained;
mod s4_field_owners;
mod s5_status_owners;
mod s6_evictions;
mod s7_versions;
mod s8_freeze;
mod s9_released;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use models::permit::PERMIT_LIFETIME;

use crate::control_plane::audit::Record;

use super::facts::{Node, Object, Shadow};
use super::history::{Change, History};
use super::hosts::HostLog;
use super::report::{Property, Verdict};
use super::world::ClusterState;
use super::writers::{OperatorComponent, Removal, Writer, Writers, removals};

/// Time between an agent's last check of its clock and the host's log of its request.
const REACTION: SignedDuration = SignedDuration::from_secs(1);

/// Expectations of a run, besides being safe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectations {
    /// Limit for the nodes out of service, below that of the policy.
    pub max_unavailable: Option<usize>,
    /// Require that every node is released at the end.
    pub nothing_left: bool,
}

/// Judges a run.
pub fn judge(history: &History, hosts: &[HostLog], audit: &[Record], expectations: &Expectations) -> Verdict {
    let observations = Observations::gather(history, hosts, audit, expectations);
    let mut verdict = Verdict::default();
    let mut checks: [Box<dyn Check>; 14] = [
        Box::<s1_budget::Check>::default(),
        Box::<s2_reboots::Check>::default(),
        Box::<s3_drained::Check>::default(),
        Box::<s4_field_owners::Check>::default(),
        Box::<s5_status_owners::Check>::default(),
        Box::<s6_evictions::Check>::default(),
        Box::<s7_versions::Check>::default(),
        Box::<s8_freeze::Check>::default(),
        Box::<s9_released::Check>::default(),
        Box::<s11_hooks::Check>::default(),
        Box::<s12_places::Check>::default(),
        Box::<l3_blocked::Check>::default(),
        Box::<budgets::Check>::default(),
        Box::<leftovers::Check>::default(),
    ];
    let end = history.replay(|change, before, world| {
        let writer = observations.writers.of(change.revision);
        let moment = RevisionContext { change, before, world, writer };
        verdict.stats.changes += 1;
        if !change.gone && writer.is_none() && matches!(change.object, Object::Node(_) | Object::Shadow(_)) {
            verdict.stats.unattributed += 1;
        }
        for check in &mut checks {
            check.at(&moment, &observations, &mut verdict);
        }
    });
    for check in &mut checks {
        check.end(&end, &observations, &mut verdict);
    }
    verdict.violations.sort_by_key(|violation| (violation.revision.unwrap_or(u64::MAX), violation.property));
    verdict
}

/// One revision: the change, and the cluster state with it.
struct RevisionContext<'a> {
    change: &'a Change,
    before: Option<&'a Object>,
    world: &'a ClusterState,
    writer: Option<&'a Writer>,
}

impl<'a> RevisionContext<'a> {
    fn revision(&self) -> u64 {
        self.change.revision
    }

    /// The component of the operator that wrote it.
    fn part(&self) -> Option<OperatorComponent> {
        OperatorComponent::of(&self.writer?.user)
    }

    /// A shadow of the operator's namespace that still exists, and its state before.
    fn shadow(&self) -> Option<(&'a Shadow, Option<&'a Shadow>)> {
        let new = match &self.change.object {
            Object::Shadow(new) if !self.change.gone && self.world.shadows.contains_key(&new.name) => new,
            _ => return None,
        };
        let old = match self.before {
            Some(Object::Shadow(old)) if old.uid == new.uid => Some(&**old),
            _ => None,
        };
        Some((new, old))
    }

    /// A Node that existed before and still does: before and after.
    fn node(&self) -> Option<(&'a Node, &'a Node)> {
        match (self.before, &self.change.object) {
            (Some(Object::Node(old)), Object::Node(new)) if !self.change.gone && old.uid == new.uid => Some((old, new)),
            _ => None,
        }
    }
}

/// All evidence besides the history itself.
struct Observations<'a> {
    hosts: BTreeMap<&'a str, Vec<&'a HostLog>>,
    writers: Writers,
    removals: Vec<Removal>,
    /// Pods, by uid, that the operator had removed, and the time of its first request.
    removed_by_operator: BTreeMap<String, Timestamp>,
    /// Time at which a revision was seen.
    seen: BTreeMap<u64, Timestamp>,
    /// End of validity of the permit for a nonce: counted from when the agent's report of the nonce was certainly sent.
    nonce_ends: BTreeMap<String, Timestamp>,
    expectations: &'a Expectations,
}

impl<'a> Observations<'a> {
    fn gather(history: &History, logs: &'a [HostLog], audit: &[Record], expectations: &'a Expectations) -> Self {
        let mut hosts: BTreeMap<&str, Vec<&HostLog>> = BTreeMap::new();
        for log in logs {
            hosts.entry(&log.node).or_default().push(log);
        }
        let removals = removals(audit);
        let mut removed_by_operator: BTreeMap<String, Timestamp> = BTreeMap::new();
        for removal in removals.iter().filter(|removal| removal.part.is_some() && removal.succeeded) {
            if let Some(uid) = &removal.uid {
                let first = removed_by_operator.entry(uid.clone()).or_insert(removal.received);
                *first = removal.received.min(*first);
            }
        }
        let seen = history.changes().iter().map(|change| (change.revision, change.at)).collect();
        let mut observations = Self {
            hosts,
            writers: Writers::read(audit),
            removals,
            removed_by_operator,
            seen,
            nonce_ends: BTreeMap::new(),
            expectations,
        };
        for change in history.changes() {
            if let Object::Shadow(shadow) = &change.object
                && let Some(armed) = &shadow.status.agent.armed
                && !observations.nonce_ends.contains_key(&armed.nonce)
                && let Some(sent) = observations.at_latest(change.revision)
            {
                let lifetime = SignedDuration::try_from(PERMIT_LIFETIME).unwrap_or(SignedDuration::MAX);
                observations.nonce_ends.insert(armed.nonce.clone(), sent + lifetime + REACTION);
            }
        }
        observations
    }

    /// The earliest time at which a revision can have been made, if the audit log shows it.
    fn at_earliest(&self, revision: u64) -> Option<Timestamp> {
        self.writers.of(revision).map(|writer| writer.received)
    }

    /// The time by which a revision had been made.
    fn at_latest(&self, revision: u64) -> Option<Timestamp> {
        let answered = self.writers.of(revision).map(|writer| writer.reached);
        let seen = self.seen.get(&revision).copied();
        match (answered, seen) {
            (Some(answered), Some(seen)) => Some(answered.min(seen)),
            (answered, seen) => answered.or(seen),
        }
    }

    /// Returns true if a revision can have been made before this time.
    fn may_precede(&self, revision: u64, time: Timestamp) -> bool {
        self.at_earliest(revision).is_none_or(|earliest| earliest <= time)
    }

    /// Returns true if the operator terminated a pod with this revision. A deletion is answered with the revision that
    /// it made, an eviction is not.
    fn terminated_by_operator(&self, uid: &str, revision: u64) -> bool {
        if self.writers.of(revision).is_some_and(|writer| OperatorComponent::of(&writer.user).is_none()) {
            return false;
        }
        self.removed_by_operator
            .get(uid)
            .is_some_and(|asked| self.at_latest(revision).is_none_or(|latest| *asked <= latest))
    }

    /// Returns true if a boot was one of the node's own hosts; `None` if there is no log of a host of that node.
    fn is_boot_of(&self, node: &str, boot: &str) -> Option<bool> {
        let logs = self.hosts.get(node)?;
        Some(logs.iter().any(|log| log.boots().contains(boot)))
    }
}

/// A property.
trait Check {
    /// Checks one revision.
    fn at(&mut self, moment: &RevisionContext, observations: &Observations, verdict: &mut Verdict);

    /// Checks all the rest.
    fn end(&mut self, _end: &ClusterState, _observations: &Observations, _verdict: &mut Verdict) {}
}
