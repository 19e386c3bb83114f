//! The result of a simulation.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use models::shadow::{Place, Step, UPDATED};
use semver::Version;

use crate::lint::Finding;
use crate::wait::Wait;

/// The attempts of one node. Times are seconds since the beginning of the simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCourse {
    /// The beginning of the first attempt.
    pub began: Option<u32>,
    /// The time at which it was taken out of service in the last attempt.
    pub drained_from: Option<u32>,
    /// The end of its drain.
    pub drained: Option<u32>,
    /// The time at which it was back on the new version.
    pub back: Option<u32>,
    /// The end of the last attempt.
    pub ended: Option<u32>,
    pub attempts: u32,
    /// The number of attempts that failed.
    pub failures: u32,
    pub evicted: u32,
    /// True if the last attempt has updated it.
    pub updated: bool,
}

/// The version that froze the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    pub version: Version,
    /// Seconds since the beginning.
    pub at: u32,
    /// The number of nodes that ran the version by then.
    pub updated: usize,
}

/// The course of a simulated rollout.
#[derive(Clone, Debug, Default)]
pub struct Course {
    pub start: Timestamp,
    /// The end of the last attempt.
    pub end: Timestamp,
    /// In the order of the scenario's members.
    pub nodes: Vec<NodeCourse>,
    /// The order in which nodes were taken out of service, by their indices.
    pub order: Vec<u32>,
    /// The highest number of nodes that were out of service at a time.
    pub peak: usize,
    pub evictions: u64,
    /// The number of evictions that a budget refused, by its namespace and name.
    pub refusals: BTreeMap<String, u64>,
    pub freeze: Option<Freeze>,
    /// The number of nodes on the version that the policy wants, at the end: those that were on it at the beginning included.
    pub current: usize,
    /// The nodes that were not updated at the end and the reason of each, as far as they were planned at the end.
    pub waits: BTreeMap<String, Wait>,
    /// The number of further nodes that were not updated.
    pub behind: usize,
    /// True if it ended at the horizon.
    pub cut: bool,
    /// The findings of the validator: bugs of the planner.
    pub findings: Vec<Finding>,
    /// The number of plans.
    pub plans: u64,
}

impl Course {
    /// Returns a time as seconds since the beginning.
    pub(super) fn second(&self, at: Timestamp) -> u32 {
        u32::try_from(at.duration_since(self.start).as_secs()).unwrap_or(u32::MAX)
    }

    /// Returns the time of a second.
    pub fn time(&self, second: u32) -> Timestamp {
        self.start + SignedDuration::from_secs(i64::from(second))
    }

    /// Returns the number of updated nodes.
    pub fn updated(&self) -> usize {
        self.nodes.iter().filter(|node| node.updated).count()
    }

    /// Returns the time from the beginning to the end of the last attempt.
    pub fn makespan(&self) -> SignedDuration {
        self.end.duration_since(self.start)
    }

    /// Follows the attempt of a node from one step to the next, `None` while it is idle.
    pub(super) fn step(
        &mut self,
        index: usize,
        from: Option<Step>,
        to: Option<Step>,
        last: Option<&str>,
        at: Timestamp,
    ) {
        let second = self.second(at);
        let node = &mut self.nodes[index];
        let out = |step: Option<Step>| step.is_some_and(|step| step.place() != Place::Waiting);
        if from.is_none() && to.is_some() {
            node.attempts += 1;
            node.began.get_or_insert(second);
        }
        if !out(from) && out(to) && to != Some(Step::Releasing) {
            node.drained_from = Some(second);
            (node.drained, node.back) = (None, None);
            self.order.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        match (from, to) {
            (Some(Step::Draining), Some(Step::Rebooting)) => node.drained = Some(second),
            (Some(_), Some(Step::Verifying)) => {
                node.back.get_or_insert(second);
            }
            (Some(from), None) => {
                node.ended = Some(second);
                node.updated = from.place() == Place::Back && last == Some(UPDATED);
                node.failures += u32::from(!node.updated);
                self.end = self.end.max(at);
            }
            _ => {}
        }
    }
}
