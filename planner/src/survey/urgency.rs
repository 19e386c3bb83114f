//! Urgency: a version that windows and the soaks of canary steps do not delay, until it expires.
//!
//! Kept in the operator's status with the time at which it was first read, so that no value of the policy makes it last
//! longer than [`LONGEST`].

use jiff::{SignedDuration, Timestamp};
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorStatus, UrgencyRecord};
use models::time::after;
use semver::Version;

use crate::decision::Note;
use crate::policy::Policy;
use crate::survey::key::key_of;
use crate::view::{ClusterView, NodeView};

/// The longest time for which a version is urgent.
const LONGEST: SignedDuration = SignedDuration::from_hours(14 * 24);

/// The urgency that the policy in force requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Urgency {
    /// The record for the operator's status.
    pub(crate) record: Option<UrgencyRecord>,
    now: Option<Timestamp>,
}

impl Urgency {
    pub(crate) fn of(view: &ClusterView, policy: &Policy, now: Timestamp) -> Self {
        let requested = policy.urgent.as_ref().map(|urgent| {
            let until = |since| urgent.until.min(after(since, LONGEST));
            let stored = view.operator.as_ref().and_then(|operator| operator.status.urgent.as_ref());
            let same = stored.filter(|stored| {
                (&stored.from, &stored.reason) == (&urgent.from, &urgent.reason) && stored.until == until(stored.since)
            });
            // Also one that has expired stays as it is: it does not begin again.
            same.cloned().unwrap_or_else(|| UrgencyRecord {
                from: urgent.from.clone(),
                reason: urgent.reason.clone(),
                since: now,
                until: until(now),
            })
        });
        Self { record: requested, now: Some(now) }
    }

    /// Returns the record while it has not expired.
    fn in_force(&self) -> Option<&UrgencyRecord> {
        self.record.as_ref().filter(|record| self.now.is_some_and(|now| now < record.until))
    }

    /// Returns the end of the urgency, unless it is over.
    pub(crate) fn until(&self) -> Option<Timestamp> {
        self.in_force().map(|record| record.until)
    }

    /// Returns whether a version is urgent, for nodes that run an earlier one than the first that is urgent.
    pub(crate) fn includes(&self, version: &Version) -> bool {
        self.in_force().is_some_and(|record| *version >= record.from)
    }

    /// Returns whether an update of this node to this version is urgent.
    pub(crate) fn applies(&self, node: &NodeView, version: &Version) -> bool {
        self.includes(version)
            && self.in_force().is_some_and(|record| node.running().is_some_and(|runs| runs < record.from))
    }
}

/// Returns the Events for users about rollouts that are urgent from now on.
pub fn urgent_news(old: &BottlerocketUpdateOperatorStatus, new: &BottlerocketUpdateOperatorStatus) -> Vec<Note> {
    let Some(record) = &new.urgent else { return Vec::new() };
    let was = |rollout: &ActiveRollout| {
        let same = |stored: &&ActiveRollout| key_of(stored) == key_of(rollout);
        old.active_rollouts.iter().filter(same).any(|stored| stored.urgent_until == rollout.urgent_until)
    };
    let begun = new.active_rollouts.iter().filter(|rollout| rollout.urgent_until.is_some() && !was(rollout));
    let note = |rollout: &ActiveRollout| Note {
        warning: true,
        reason: "UrgentVersion",
        message: format!("{} for {} {} {}", rollout.version, rollout.variant, rollout.arch, record.effect()),
    };
    begun.map(note).collect()
}

#[cfg(test)]
mod tests;
