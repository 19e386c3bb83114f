//! The course of a rollout: what the shadows and the operator's status show, from one watch of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use models::condition::{ConditionStatus, find_condition};
use models::names::SYSTEM_NAMESPACE;
use models::operator::{BottlerocketUpdateOperator, FROZEN};
use models::shadow::{BottlerocketShadow, HEALTHY, HostState, Step};
use parking_lot::{Mutex, MutexGuard};
use semver::Version;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Interval of looks at what was seen.
const POLL: Duration = Duration::from_millis(200);

/// A node as its shadow shows it.
#[derive(Clone, Debug, Default)]
struct NodeCourse {
    version: Option<Version>,
    /// True once its agent has reported which updates the host offers.
    reported: bool,
    idle: bool,
    step: Option<Step>,
    /// Status and reason of its condition `Healthy`.
    healthy: String,
    changes: Vec<(Instant, Option<Step>)>,
}

#[derive(Default)]
struct Seen {
    nodes: HashMap<String, NodeCourse>,
    /// Size of the operator's status in bytes, slots in use, and nodes that need no update, at each change.
    operator: Vec<(Instant, usize, usize, i64)>,
    freezes: usize,
}

/// The course of a rollout so far.
#[derive(Clone, Default)]
pub(super) struct Course {
    seen: Arc<Mutex<Seen>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Course {
    /// Begins to watch.
    pub(super) fn follow(client: &Client) -> Self {
        let course = Self::default();
        let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let mut tasks = course.tasks.lock();
        let of_shadows = course.seen.clone();
        tasks.spawn(async move {
            let mut shadows =
                Box::pin(watcher(shadows, watcher::Config::default()).default_backoff().applied_objects());
            while let Some(next) = shadows.next().await {
                if let Ok(shadow) = next {
                    of_shadows.lock().see_shadow(&shadow);
                }
            }
        });
        let of_operator = course.seen.clone();
        tasks.spawn(async move {
            let watch = watcher(operators, watcher::Config::default()).default_backoff();
            let mut operators = Box::pin(watch.applied_objects());
            while let Some(next) = operators.next().await {
                if let Ok(operator) = next {
                    of_operator.lock().see_operator(&operator);
                }
            }
        });
        drop(tasks);
        course
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    /// Waits until the agents of so many nodes have reported.
    pub(super) async fn reported(&self, agents: usize, limit: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let reported = self.lock().nodes.values().filter(|node| node.reported).count();
            if reported >= agents {
                return Ok(());
            }
            ensure!(began.elapsed() < limit, "{reported} of {agents} agents have reported");
            sleep(POLL).await;
        }
    }

    /// Waits until so many nodes run a version and are idle, and no slot is in use.
    pub(super) async fn updated(&self, nodes: usize, version: &Version, limit: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut shown = Instant::now();
        loop {
            let (done, slots, freezes) = {
                let seen = self.lock();
                let done = seen.nodes.values().filter(|node| node.idle && node.version.as_ref() == Some(version));
                (done.count(), seen.operator.last().map_or(0, |last| last.2), seen.freezes)
            };
            if done >= nodes && slots == 0 {
                return Ok(());
            }
            ensure!(freezes == 0, "the rollout is frozen: {}", self.steps());
            ensure!(
                began.elapsed() < limit,
                "{done} of {nodes} nodes are updated, {slots} slots in use: {}",
                self.steps()
            );
            if shown.elapsed() > Duration::from_secs(15) {
                eprintln!(
                    "  {:>4.0} s: {done} of {nodes} nodes updated, {}",
                    began.elapsed().as_secs_f64(),
                    self.steps()
                );
                shown = Instant::now();
            }
            sleep(POLL).await;
        }
    }

    /// Number of nodes in each step.
    pub(super) fn steps(&self) -> String {
        let mut steps = BTreeMap::<&str, usize>::new();
        for node in self.lock().nodes.values() {
            *steps.entry(node.step.map_or("Idle", Step::as_str)).or_default() += 1;
        }
        let all: Vec<_> = steps.iter().map(|(step, nodes)| format!("{step} {nodes}")).collect();
        all.join(", ")
    }

    /// Number of nodes with each status and reason of the condition `Healthy`.
    pub(super) fn healthy(&self) -> String {
        let mut found = BTreeMap::<String, usize>::new();
        for node in self.lock().nodes.values() {
            *found.entry(node.healthy.clone()).or_default() += 1;
        }
        let all: Vec<_> = found.iter().map(|(healthy, nodes)| format!("{healthy} {nodes}")).collect();
        all.join(", ")
    }

    /// Median and longest duration of each step that began after a time, in seconds.
    pub(super) fn durations(&self, from: Instant) -> Vec<(&'static str, f64, f64)> {
        let mut durations = BTreeMap::<Step, Vec<f64>>::new();
        for node in self.lock().nodes.values() {
            for pair in node.changes.windows(2) {
                if let [(began, Some(step)), (ended, _)] = pair
                    && *began >= from
                {
                    durations.entry(*step).or_default().push(ended.duration_since(*began).as_secs_f64());
                }
            }
        }
        durations
            .into_iter()
            .map(|(step, mut seconds)| {
                seconds.sort_by(f64::total_cmp);
                (step.as_str(), seconds[seconds.len() / 2], seconds[seconds.len() - 1])
            })
            .collect()
    }

    /// Largest size of the operator's status since a time, in bytes.
    pub(super) fn largest_status(&self, from: Instant) -> usize {
        let seen = self.lock();
        let since = seen.operator.iter().filter(|(at, ..)| *at >= from);
        since.map(|(_, size, ..)| *size).max().or(seen.operator.last().map(|last| last.1)).unwrap_or_default()
    }

    /// Slots in use in each second between two moments: the most of the second.
    pub(super) fn slots(&self, from: Instant, to: Instant) -> Vec<f64> {
        let mut slots = vec![0.0_f64; usize::try_from(to.duration_since(from).as_secs()).unwrap_or_default() + 1];
        let seen = self.lock();
        let last = slots.len();
        for pair in seen.operator.windows(2) {
            let [(began, _, used, _), (ended, ..)] = pair else { continue };
            let second = |at: &Instant| at.saturating_duration_since(from).as_secs() as usize;
            if *ended < from {
                continue;
            }
            for slot in slots.iter_mut().take((second(ended) + 1).min(last)).skip(second(began)) {
                *slot = slot.max(*used as f64);
            }
        }
        slots
    }
}

impl Seen {
    fn see_shadow(&mut self, shadow: &BottlerocketShadow) {
        let node = self.nodes.entry(shadow.name_any()).or_default();
        let status = shadow.status.as_ref();
        let agent = status.map(|status| &status.agent);
        node.version = agent.and_then(|agent| agent.current_version.clone());
        node.reported = agent.is_some_and(|agent| agent.updates.is_some());
        let step = status.and_then(|status| status.controller.progress.as_ref()).map(|progress| progress.step);
        node.idle = step.is_none() && shadow.spec.state == HostState::Idle;
        if node.step != step || node.changes.is_empty() {
            node.changes.push((Instant::now(), step));
        }
        node.step = step;
        let healthy = status.and_then(|status| find_condition(&status.conditions, HEALTHY));
        node.healthy = healthy.map_or_else(String::new, |it| format!("{:?} ({})", it.status, it.reason));
    }

    fn see_operator(&mut self, operator: &BottlerocketUpdateOperator) {
        let Some(status) = &operator.status else { return };
        let size = serde_json::to_vec(status).map_or(0, |text| text.len());
        let frozen = find_condition(&status.conditions, FROZEN);
        self.freezes += usize::from(frozen.is_some_and(|it| it.status == ConditionStatus::True));
        let current = status.counts.as_ref().map_or(0, |counts| counts.current);
        self.operator.push((Instant::now(), size, status.slots.len(), current));
    }
}
