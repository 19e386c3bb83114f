//! The state of a course.

use std::cmp::Reverse;
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::{Backoff, Delays};

use super::classes::Classes;
use super::event::Event;
use crate::policy::Policy;
use crate::simulation::course::Course;
use crate::simulation::host::Host;
use crate::simulation::pods::Pods;
use crate::simulation::scenario::{Fault, Member, Scenario};
use crate::view::ClusterView;

/// The shortest times between two turns, and between two plans of all awake nodes, in seconds, by the number of nodes up to
/// which they hold. The larger the fleet, the less a few seconds count.
pub(super) const PAUSES: [(usize, i64, i64); 4] = [(250, 1, 1), (2000, 2, 2), (20_000, 5, 10), (usize::MAX, 10, 30)];

/// The number of plans after which a simulation ends if no node has gone on to another step: nothing will.
pub(super) const FRUITLESS: u64 = 20_000;

/// Times after which a staged node whose pods prevented its drain is checked again: at first as the controller does it, and
/// then ever less often, since nothing but the events of the simulation changes its pods.
pub(super) const CHECK_AGAIN: Delays = (Duration::from_secs(60), Duration::from_hours(12));

/// The subject of a random draw.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    Host,
    Pod,
}

/// A node.
pub(super) struct RunState {
    pub(super) host: Host,
    /// True if it takes pods.
    pub(super) schedulable: bool,
    /// True if its pods are in the view.
    pub(super) watched: bool,
    pub(super) up: bool,
    /// The version breaks its pods.
    pub(super) sick: bool,
    /// The request to hooks that they have seen.
    pub(super) hook_request: Option<String>,
    /// The end of the download under way.
    pub(super) downloads_until: Option<Timestamp>,
    /// Checks that ruled out its drain.
    pub(super) refused: Backoff,
    /// The numbers of draws so far: for its host, and for its pods.
    pub(super) draws: [u32; 2],
}

impl RunState {
    pub(super) fn of(member: &Member) -> Self {
        let facts = &member.node.facts;
        Self {
            host: member.host.clone(),
            schedulable: facts.ready && !facts.unschedulable,
            watched: false,
            up: facts.ready,
            sick: false,
            hook_request: None,
            downloads_until: None,
            refused: Backoff::default(),
            draws: [0, 0],
        }
    }
}

pub(crate) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    /// The policy for plans of the nodes that are awake.
    pub(super) policy: Policy,
    pub(super) seed: u64,
    pub(super) now: Timestamp,
    /// The cluster as plans see it, with the nodes that are awake.
    pub(super) view: ClusterView,
    pub(super) states: Vec<RunState>,
    pub(super) classes: Classes<'a>,
    pub(super) index: HashMap<&'a str, usize>,
    pub(super) pods: Pods<'a>,
    pub(super) faults: Vec<Fault>,
    pub(super) events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    pub(super) sent: u64,
    /// Nodes that have changed since they were planned.
    pub(super) touched: BTreeSet<usize>,
    /// Nodes about which something was written, until they fall asleep.
    pub(super) acted: BTreeSet<usize>,
    /// Nodes with a slot.
    pub(super) slots: BTreeSet<usize>,
    /// Nodes with pods whose eviction a budget has refused.
    pub(super) refused: BTreeSet<usize>,
    /// Nodes with a failure that counts.
    pub(super) failed: BTreeSet<usize>,
    pub(super) wake: Option<Timestamp>,
    /// The number of plans up to the last step of a node.
    pub(super) fruitful: u64,
    /// Time of the last plan of all awake nodes.
    pub(super) planned: Option<Timestamp>,
    pub(super) budgets_changed: bool,
    pub(super) course: Course,
    /// The nodes whose Node object is deleted until their machine is back; `None` in a cluster where it stays.
    #[cfg(test)]
    pub(super) away: Option<BTreeMap<usize, crate::view::NodeView>>,
    /// The checks of each plan in a test.
    #[cfg(test)]
    pub(super) watch: Option<Box<super::clusters::Watch>>,
}
