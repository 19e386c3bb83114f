//! The API server's history: every change of every relevant object, in etcd's order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use models::shadow::{HostState, Step, UPDATED};
use semver::Version;

use super::facts::Object;
use super::world::ClusterState;

/// One write to one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the change.
    pub revision: u64,
    /// Time at which the oracle saw it, which is shortly after it was made.
    pub at: Timestamp,
    /// True if the object was deleted.
    pub gone: bool,
    /// The object after the change; for a deletion, its last state.
    pub object: Object,
}

/// Changes in the order of their revisions. A copy is cheap: scenarios look at the history after every change.
#[derive(Clone, Debug, Default)]
pub struct History {
    changes: Arc<Vec<Change>>,
    end: ClusterState,
}

/// A line of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// Revision.
    pub revision: u64,
    /// Time at which it was seen.
    pub at: Timestamp,
    /// Node.
    pub node: String,
    /// Description.
    pub text: String,
}

/// One attempt on one node, as recorded in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Node.
    pub node: String,
    /// Number of the attempt.
    pub attempt: i64,
    /// The version that ran before, if it was known.
    pub from: Option<Version>,
    /// The target version.
    pub to: Version,
    /// Time at which its first step was seen.
    pub started: Timestamp,
    /// Time at which it had ended and released its slot; `None` while it is under way.
    pub ended: Option<Timestamp>,
    /// From the start of the drain until the desired state to reboot, or until the end of the attempt.
    pub drained: SignedDuration,
    /// Number of pods that had to leave.
    pub pods_moved: usize,
    /// `Updated`, or the reason of the failure; `None` while it is under way.
    pub result: Option<String>,
}

impl Attempt {
    /// Returns true if it ended with the update.
    pub fn updated(&self) -> bool {
        self.result.as_deref() == Some(UPDATED)
    }
}

/// A PodDisruptionBudget with fewer healthy pods than it requires, after it had been satisfied once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Namespace and name of the budget.
    pub budget: String,
    /// The revision at which it fell below.
    pub revision: u64,
    /// Number of healthy pods.
    pub healthy: i32,
    /// Number of healthy pods required.
    pub desired: i32,
}

impl History {
    /// A history of these changes; those of one object have to be in order.
    pub fn new(changes: Vec<Change>) -> Self {
        let mut history = Self::default();
        for change in changes {
            history.add(change);
        }
        history
    }

    /// The history that begins with the objects at the end of this one.
    pub fn at_end(&self) -> Self {
        let mut last = BTreeMap::new();
        for change in self.changes.iter() {
            if change.gone {
                last.remove(&change.object.key());
            } else {
                last.insert(change.object.key(), change);
            }
        }
        let mut changes: Vec<Change> = last.into_values().cloned().collect();
        changes.sort_by_key(|change| change.revision);
        Self::new(changes)
    }

    /// Adds a change. Those of one object have to come in order, and those of several may be a little out of order.
    pub fn add(&mut self, change: Change) {
        self.end.apply(&change);
        let changes = Arc::make_mut(&mut self.changes);
        let later = changes.iter().rev().take_while(|known| known.revision > change.revision).count();
        changes.insert(changes.len() - later, change);
    }

    /// The agent's reports about a node in the course of the history, each in a few words, without times and generated names:
    /// state, what runs in which boot, what is offered, armed, and failed. Equal ones in a row are one.
    pub fn agent_reports(&self, node: &str) -> Vec<String> {
        let (mut reports, mut boots): (Vec<String>, Vec<String>) = Default::default();
        for change in self.changes.iter().filter(|change| !change.gone) {
            let Object::Shadow(shadow) = &change.object else { continue };
            let agent = &shadow.status.agent;
            let (Some(state), Some(version), Some(boot)) = (agent.state, &agent.current_version, &agent.boot_id) else {
                continue;
            };
            if shadow.node() != node {
                continue;
            }
            let boot = boots.iter().position(|known| known == boot).unwrap_or_else(|| {
                boots.push(boot.clone());
                boots.len() - 1
            });
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "nothing".to_owned());
            let offered = agent.updates.as_ref().and_then(|updates| updates.chosen_version.as_ref());
            let armed =
                agent.armed.as_ref().map(|armed| format!("{:?} {} for {}", armed.phase, armed.version, armed.attempt));
            let failure = agent.failure.as_ref().map(|failure| failure.reason.as_str().to_owned());
            let report = format!(
                "{state:?}; {version} in boot {}; offered {}; armed {}; failed {}",
                boot + 1,
                or_none(offered.map(ToString::to_string)),
                or_none(armed),
                or_none(failure)
            );
            if reports.last() != Some(&report) {
                reports.push(report);
            }
        }
        reports
    }

    /// All changes in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Replays all revisions: calls `visit` with each change, the object before it, and the cluster state after it.
    /// Returns the final state.
    pub fn replay<'a>(&'a self, mut visit: impl FnMut(&'a Change, Option<&Object>, &ClusterState)) -> ClusterState {
        let mut world = ClusterState::default();
        for change in self.changes.iter() {
            let before = world.apply(change);
            visit(change, before.as_ref(), &world);
        }
        world
    }

    /// The cluster state at the end.
    pub fn end(&self) -> ClusterState {
        self.end.clone()
    }

    /// The steps of a node, each with the revision at which it began.
    pub fn transitions(&self, node: &str) -> Vec<(u64, Option<Step>)> {
        let mut all: Vec<(u64, Option<Step>)> = Vec::new();
        self.replay(|change, _, _| {
            if let Object::Shadow(shadow) = &change.object
                && shadow.node() == node
            {
                let step = if change.gone { None } else { shadow.step() };
                if all.last().map_or(step.is_some(), |(_, last)| *last != step) {
                    all.push((change.revision, step));
                }
            }
        });
        all
    }

    /// Largest number of nodes that the operator had out of service at one time.
    pub fn max_out_of_service(&self) -> usize {
        let mut most = 0;
        self.replay(|change, _, world| {
            if !matches!(change.object, Object::Pod(_) | Object::Budget(_)) {
                most = most.max(world.out_of_service().len());
            }
        });
        most
    }

    /// Each time that a PodDisruptionBudget of a namespace had fewer healthy pods than it requires, whatever the cause,
    /// after it had been satisfied once. Of limited use for the operator's own namespace: pods that return to the node
    /// they were evicted from go down with its reboot, all at once.
    pub fn shortfalls(&self, namespace: &str) -> Vec<Shortfall> {
        let mut satisfied: BTreeSet<String> = BTreeSet::new();
        let mut all = Vec::new();
        for change in self.changes.iter() {
            let Object::Budget(budget) = &change.object else { continue };
            if budget.namespace != namespace {
                continue;
            }
            let name = format!("{}/{}", budget.namespace, budget.name);
            if change.gone {
                satisfied.remove(&name);
            } else if budget.current_healthy >= budget.desired_healthy {
                // A budget whose status has not been computed yet requires nothing and has nothing.
                if budget.desired_healthy > 0 {
                    satisfied.insert(name);
                }
            } else if satisfied.remove(&name) {
                all.push(Shortfall {
                    budget: name,
                    revision: change.revision,
                    healthy: budget.current_healthy,
                    desired: budget.desired_healthy,
                });
            }
        }
        all
    }

    /// The results of a node's attempts, in order: each as the version and the result.
    pub fn results(&self, node: &str) -> Vec<(Version, String)> {
        let attempts = self.attempts().into_iter().filter(|attempt| attempt.node == node);
        attempts.map(|attempt| (attempt.to, attempt.result.unwrap_or_default())).collect()
    }

    /// Ensures that so many attempts were made, all of which ended with an update.
    ///
    /// # Errors
    /// Fails with all attempts if there were others.
    pub fn ensure_updates(&self, updates: usize) -> anyhow::Result<()> {
        let attempts = self.attempts();
        anyhow::ensure!(attempts.len() == updates && attempts.iter().all(Attempt::updated), "{attempts:#?}");
        Ok(())
    }

    /// The attempts of all nodes, in the order in which they began.
    pub fn attempts(&self) -> Vec<Attempt> {
        let mut all: Vec<Attempt> = Vec::new();
        let mut open: BTreeMap<String, (usize, Option<Timestamp>)> = BTreeMap::new();
        for change in self.changes.iter() {
            let Object::Shadow(shadow) = &change.object else { continue };
            let progress = if change.gone { None } else { shadow.status.controller.progress.as_ref() };
            let stale = |index: usize| progress.is_none_or(|progress| progress.attempt != all[index].attempt);
            let ended = open.get(&shadow.name).copied().filter(|(index, _)| stale(*index));
            if let Some((index, draining)) = ended {
                open.remove(&shadow.name);
                let attempt = &mut all[index];
                attempt.ended = Some(change.at);
                if let Some(since) = draining {
                    attempt.drained += change.at.duration_since(since);
                }
                let record = shadow.status.controller.record.as_ref();
                let last =
                    record.and_then(|record| record.last.as_ref()).filter(|last| last.attempt == attempt.attempt);
                attempt.result = last.map(|last| last.reason.clone());
            }
            let Some(progress) = progress else { continue };
            let (index, draining) = open.entry(shadow.name.clone()).or_insert_with(|| {
                all.push(Attempt {
                    node: shadow.node().to_owned(),
                    attempt: progress.attempt,
                    from: progress.from.clone(),
                    to: progress.version.clone(),
                    started: change.at,
                    ended: None,
                    drained: SignedDuration::ZERO,
                    pods_moved: 0,
                    result: None,
                });
                (all.len() - 1, None)
            });
            let attempt = &mut all[*index];
            match (*draining, progress.step == Step::Draining) {
                (None, true) => *draining = Some(change.at),
                (Some(since), false) => {
                    attempt.drained += change.at.duration_since(since);
                    *draining = None;
                }
                _ => {}
            }
            if let Some(drain) = &shadow.status.controller.drain {
                attempt.pods_moved = attempt.pods_moved.max(drain.pods.len());
            }
        }
        all
    }

    /// The timeline of the nodes, for users.
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        let mut all = Vec::new();
        let mut record = |change: &Change, node: &str, text: String| {
            all.push(TimelineEntry { revision: change.revision, at: change.at, node: node.to_owned(), text });
        };
        self.replay(|change, before, _| match (&change.object, before) {
            (Object::Shadow(new), old) => {
                let old = match old {
                    Some(Object::Shadow(old)) if old.uid == new.uid => Some(old),
                    _ => None,
                };
                if change.gone {
                    return record(change, new.node(), "shadow deleted".to_owned());
                }
                let order = |shadow: &super::facts::Shadow| (shadow.spec.state, shadow.spec.attempt);
                if old.map(|old| order(old)).unwrap_or_default() != order(new) {
                    let text = match (&new.spec.state, &new.spec.version) {
                        (HostState::Idle, _) => "desired state withdrawn".to_owned(),
                        (state, Some(version)) => {
                            format!("desired state {state:?} {version}, attempt {}", new.spec.attempt)
                        }
                        (state, None) => format!("desired state {state:?}, attempt {}", new.spec.attempt),
                    };
                    record(change, new.node(), text);
                }
                if old.and_then(|old| old.step()) != new.step() {
                    record(change, new.node(), new.step().map_or("done", Step::as_str).to_owned());
                }
                let armed = |shadow: &super::facts::Shadow| shadow.status.agent.armed.as_ref().map(|armed| armed.phase);
                if let (was, Some(phase)) = (old.and_then(|old| armed(old)), armed(new))
                    && was != Some(phase)
                {
                    record(change, new.node(), format!("agent: {phase:?}"));
                }
                if new.permit_nonce().is_some() && old.and_then(|old| old.permit_nonce()) != new.permit_nonce() {
                    record(change, new.node(), "permit".to_owned());
                }
                if let Some(failure) = &new.status.agent.failure
                    && old.is_none_or(|old| old.status.agent.failure.as_ref() != Some(failure))
                {
                    record(change, new.node(), format!("failed: {}", failure.reason));
                }
            }
            (Object::Node(new), Some(Object::Node(old))) if !change.gone => {
                match (old.claimed(), new.claimed()) {
                    (false, true) => record(change, &new.name, "claimed".to_owned()),
                    (true, false) => record(change, &new.name, "released".to_owned()),
                    _ => {}
                }
                if old.boot_id != new.boot_id {
                    record(change, &new.name, format!("boot {}", new.boot_id));
                }
                if old.ready != new.ready {
                    record(change, &new.name, if new.ready { "Ready" } else { "not Ready" }.to_owned());
                }
            }
            _ => {}
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Scenario;

    #[test]
    fn history_that_begins_at_the_end_has_the_same_objects() {
        let mut scenario = Scenario::new(&["a", "b"]);
        scenario.delete_node("b");
        scenario.update("a");
        let history = scenario.history();
        let next = history.at_end();
        assert!(next.changes().len() < history.changes().len());
        assert_eq!(format!("{:?}", next.end()), format!("{:?}", history.end()));
    }
}
