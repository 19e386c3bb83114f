//! The loop of the leader: gather a view, plan, validate, apply; again after a change.
//!
//! It is woken by a change of a cache, by the end of an action, by the time that the last plan set, or
//! [`TURN_PERIOD`] after the last turn. No turn reads the API server by itself.

mod answers;
mod memory;
mod retry;
mod send;
mod snapshot;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jiff::Timestamp;
use planner::plan::plan_reporting;
use planner::policy::Policy;
use planner::simulation::estimate_due;
use planner::view::{Failing, Standings, WebApiOutage};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::memory::{Changed, Ended, NodeMemory, PodWatch, Retracting};
use self::retry::WriteStates;
use crate::apply::{Applier, Pace};
use crate::cache::Reading;
use crate::caches::Caches;
use crate::calls::{Calls, TURN_PERIOD};
use crate::clock::Clock;
use crate::earlier::EarlierPods;
use crate::estimates::Estimates;
use crate::expressions::Expressions;
use crate::history::{History, Pages};
use crate::jobs::{Awaited, awaited};
use crate::leader::Peers;
use crate::metrics::Snapshot;
use crate::migrate::Progress;
use crate::notices::Notices;
use crate::owners::Owners;

/// Time for which changes are collected after a turn, at least and at most. A turn takes half a second with 100,000 nodes, and longer where the
/// process was stopped meanwhile.
const SHORTEST_REST: Duration = Duration::from_millis(5);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Time for actions under way to end when the process has to stop, including an eviction that a webhook delays, since
/// one that is cut off may use its budget up for two minutes. The pod's grace period is 30 s.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The reason for the end of a leader's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process has to stop.
    Stopped,
    /// Another replica takes over.
    HandedOver,
}

/// The parts that a leader works with, besides what makes its writes.
pub struct Parts {
    pub peers: Peers,
    pub earlier: EarlierPods,
    /// The read of every cache since the lead was taken. Nothing is decided before its end.
    pub reading: Reading,
    pub expressions: Expressions,
    /// The state of the migration of stored shadows.
    pub migration: Progress,
    /// The state of the history of rollouts.
    pub history: History,
    /// The waits for hooks, for those that Jobs answer.
    pub awaited: Awaited,
    pub notices: Notices,
    /// The node that this replica runs on.
    pub own_node: Option<String>,
    /// The time at which the lead was taken.
    pub leader_since: Timestamp,
}

/// The next turn if nothing changes: at a time of the cluster or at a moment of this process, whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wake {
    time: Option<Timestamp>,
    moment: Option<Instant>,
}

/// Waits until that time; forever without one.
async fn until(clock: &Clock, time: Option<Timestamp>) {
    match time {
        Some(time) => clock.sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The leader's loop and its state.
pub struct Driver {
    applier: Applier,
    parts: Parts,
    earlier_seen: Option<Timestamp>,
    /// The read of the policy's revisions since the lead was taken. Nothing but the history waits for it.
    revisions_read: Reading,
    renumberings: Pace,
    revisions_failing: Option<Failing>,
    status_failing: Option<Failing>,
    estimates: Estimates,
    web_api_missing: Option<Timestamp>,
    web_api_outage: Option<WebApiOutage>,
    /// True if this leader's work ends after the present turn, so that another replica takes over.
    handing_over: bool,
    handed_over: bool,
    memory: HashMap<String, NodeMemory>,
    standings: Standings,
    pods: HashMap<String, PodWatch>,
    /// True once the API server has refused to bring pods with the watch of them.
    lists_pods: Arc<AtomicBool>,
    owners: Owners,
    writes: WriteStates,
    retracting: Option<Retracting>,
    operator_written: Option<Instant>,
    operator_changed: Changed,
    /// The version of each budget before its last refusal, by the budget's key. A budget that refuses one pod refuses
    /// others too.
    refused_at: BTreeMap<String, String>,
    /// Number of evictions sent.
    requests: u64,
    ended: (mpsc::UnboundedSender<Ended>, mpsc::UnboundedReceiver<Ended>),
}

impl Driver {
    /// Returns a driver that has not had a turn yet.
    pub fn new(applier: Applier, parts: Parts) -> Self {
        let Caches { daemon_sets, revisions, changed, .. } = &applier.caches;
        Self {
            owners: Owners::new(applier.client.clone(), daemon_sets.clone(), changed.clone()),
            estimates: Estimates::new(Pages::new(&applier), changed.clone()),
            handed_over: applier.leadership.handed_over(),
            revisions_read: Reading::default().of(revisions),
            applier,
            parts,
            earlier_seen: None,
            renumberings: Pace::default(),
            revisions_failing: None,
            status_failing: None,
            web_api_missing: None,
            web_api_outage: None,
            handing_over: false,
            memory: HashMap::new(),
            standings: Standings::default(),
            pods: HashMap::new(),
            lists_pods: Arc::default(),
            writes: WriteStates::default(),
            retracting: None,
            operator_written: None,
            operator_changed: Changed::default(),
            refused_at: BTreeMap::new(),
            requests: 0,
            ended: mpsc::unbounded_channel(),
        }
    }

    /// Runs until `stop` turns true or the work is handed over, then waits for the actions under way.
    pub async fn run(mut self, calls: &Calls, mut stop: watch::Receiver<bool>) -> End {
        let mut changes = self.applier.caches.changed.subscribe();
        changes.mark_changed();
        calls.turned(Instant::now(), true);
        let mut wake = Wake::default();
        let clock = self.clock().clone();
        let mut rested = Instant::now();
        loop {
            let idle_until = Instant::now() + TURN_PERIOD;
            let timer = tokio::time::sleep_until(wake.moment.map_or(idle_until, |at| at.min(idle_until)));
            tokio::select! {
                // First: a process that has to stop begins nothing more.
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                _ = changes.changed() => {}
                Some(ended) = self.ended.1.recv() => self.record(ended),
                () = timer => {}
                () = until(&clock, wake.time) => {}
            }
            // Changes that come close together are handled together, and planning takes half of the time at most: after a
            // turn that took long, changes are collected for as long.
            tokio::time::sleep_until(rested).await;
            if *stop.borrow() {
                break;
            }
            changes.mark_unchanged();
            while let Ok(ended) = self.ended.1.try_recv() {
                self.record(ended);
            }
            let began = Instant::now();
            let planned = self.turn();
            let ended = Instant::now();
            rested = ended + (ended - began).clamp(SHORTEST_REST, LONGEST_REST);
            calls.turned(ended, planned.is_some());
            wake = planned.unwrap_or_default();
            self.applier.metrics.turned(ended - began);
            if self.handing_over {
                break;
            }
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while self.writing() {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                Some(ended) = self.ended.1.recv() => self.record(ended),
            }
        }
        if self.handing_over && !*stop.borrow() { End::HandedOver } else { End::Stopped }
    }

    fn clock(&self) -> &Clock {
        self.applier.leadership.clock()
    }

    /// Returns whether any write of the operator is under way.
    fn writing(&self) -> bool {
        self.writes.is_writing() || self.memory.values().any(|memory| !memory.in_flight.is_empty())
    }

    /// Runs one turn: view, plan, lint, apply. Returns when the next turn is due if nothing changes; `None` if no plan was made, since
    /// caches are not filled.
    fn turn(&mut self) -> Option<Wake> {
        if !self.applier.caches.synced() {
            return None;
        }
        let now = self.clock().now();
        let view = self.view(now);
        let policy = Policy::in_force(view.operator.as_ref());
        let reported = self.reported();
        let mut plan = plan_reporting(&view, &reported, &policy, now);
        for finding in planner::lint::lint(&view, &policy, &mut plan) {
            tracing::error!(
                property = finding.property,
                node = finding.node,
                text = finding.text,
                "the plan violates a safety property: unsafe actions are dropped"
            );
            self.applier.metrics.finding(finding.property);
        }
        if view.stale {
            return None;
        }
        self.applier.metrics.observe(&Snapshot::of(&view, &plan, &policy, !policy.errors.is_empty(), now));
        self.applier.metrics.clock_offset(self.clock().offset());
        if view.unreadable.operator.is_some() {
            // Pods stay watched, and what is asked of others stays asked, until it can be read again.
            return Some(Wake::default());
        }
        self.parts.awaited.change(|waits| *waits = awaited(&plan.waits));
        self.parts.expressions.want(&plan.expressions, &plan.asked_again, &policy);
        self.parts.notices.want(policy.notices.as_ref(), view.operator.as_ref().map(|operator| &operator.status));
        if plan.hand_over {
            tracing::info!(node = self.parts.own_node, "lease handed over: the node of this replica is next");
            self.handing_over = true;
        }
        self.change_shadows(std::mem::take(&mut plan.shadows));
        self.label_nodes(std::mem::take(&mut plan.labels));
        self.watch_pods(&plan.pods);
        self.remember_refused(&view, std::mem::take(&mut plan.refused), now);
        let status_due = self.write_operator(&view, &plan);
        self.act(&view, &mut plan);
        let history_due = self.write_history(&view, std::mem::take(&mut plan.revisions));
        self.label_shadows(&view, std::mem::take(&mut plan.relabelled));
        self.record_silence(&view, std::mem::take(&mut plan.silent), now);
        self.evict(std::mem::take(&mut plan.evictions), now);
        let estimate = estimate_due(&view, reported.estimates.as_ref());
        if estimate.is_some_and(|at| at <= now) {
            self.estimates.make(view, &policy, now);
        }
        Some(Wake {
            time: plan.wake.into_iter().chain(estimate.filter(|at| *at > now)).min(),
            moment: [status_due, history_due, self.writes.wake()].into_iter().flatten().min(),
        })
    }
}

#[cfg(test)]
mod tests;
