//! The loop: reads, decides, and carries out. Calls of AWS that change something run beside it, so that none waits for a call
//! that concerns another instance or group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use models::failures::{LoggedFailures, with_causes};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cloud::{CallError, Cloud};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::decide::{Action, Call, Snapshot, decide, instances_to_read};
use crate::facts::{Entry, Group, Instance, Node, Policy};
use crate::holds::{Before, Holds};
use crate::record::{Record, RecordError};

/// Time between two rounds while AWS is asked about an instance: it changes without notice.
const OPEN: Duration = Duration::from_secs(3);

/// Time between two rounds while nothing is recorded.
const IDLE: Duration = Duration::from_secs(60);

/// Shortest time between two reads of AWS, which limits their rate for the account. What was read counts for so long.
const READ: Duration = Duration::from_secs(1);

/// Key of the hold after a read of AWS; no instance and no group has this name.
const READS: &str = "";

/// Highest number of calls under way, for the same reason.
const CALLS: usize = 10;

/// Number of times that an instance is set healthy. One that is unhealthy after them stays so.
const HEALED: u32 = 3;

/// Reason of the Event about what is taken back.
const RESTORED: &str = "AutoScalingRestored";

/// Reason of the Event about an instance that its group may replace after the update.
const UNHEALTHY: &str = "AutoScalingUnhealthy";

/// Instances and groups, as AWS shows them.
type Seen = (BTreeMap<String, Option<Instance>>, BTreeMap<String, Option<Group>>);

/// The state between two rounds, none of which has to outlive the process.
struct Runner<'a> {
    cluster: &'a Cluster,
    cloud: Cloud,
    maps: Api<ConfigMap>,
    settle: Duration,
    record: Option<Record>,
    calls: JoinSet<(Call, Result<(), CallError>)>,
    holds: Holds,
    /// The last read.
    seen: Seen,
    /// Number of times that an instance of the record was set healthy; `u32::MAX` for one that AWS refuses to.
    healed: BTreeMap<String, u32>,
}

/// Logs a change of the record.
fn log_change(instance: &str, entry: Option<&Entry>) {
    match entry {
        Some(Entry { group, mode, node, .. }) => {
            tracing::info!(instance, node, group, ?mode, "recorded what is to be taken back at AWS");
        }
        None => tracing::info!(instance, "nothing is to be taken back at AWS any more"),
    }
}

/// Works for as long as it is polled.
pub(crate) async fn run(config: &Config, cluster: &Cluster, cloud: Cloud) {
    let maps = Api::namespaced(cluster.client.clone(), &config.namespace);
    let (record, calls, holds, seen, healed) = Default::default();
    let settle = config.settle.0;
    let mut runner = Runner { cluster, cloud, maps, settle, record, calls, holds, seen, healed };
    let (mut pause, mut failures) = (Duration::ZERO, LoggedFailures::default());
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = cluster.changed.notified() => {}
            Some(done) = runner.calls.join_next() => match done {
                Ok((call, result)) => runner.ended(call, result).await,
                // A panic, which is a defect: its key would stay held.
                Err(error) => {
                    tracing::error!(%error, "a call ended without a result");
                    runner.holds.abandon();
                }
            },
        }
        pause = match runner.round().await {
            Ok(pause) => {
                failures = LoggedFailures::default();
                pause
            }
            Err(error) => {
                let error = with_causes(&error);
                if failures.is_news(&error, Instant::now()) {
                    tracing::warn!(error, "the record cannot be read or written, retrying");
                }
                OPEN
            }
        };
    }
}

impl Runner<'_> {
    /// Does what is to be done now, and returns the time until the next round.
    async fn round(&mut self) -> Result<Duration, RecordError> {
        let Some((nodes, unreadable, policy)) = self.cluster.read() else { return Ok(OPEN) };
        // After an error it is read again: another process may have written it.
        let mut record = match self.record.take() {
            Some(record) => record,
            None => Record::read(&self.maps).await?,
        };
        let now = now();
        let ids = instances_to_read(policy, (&nodes, &unreadable), record.entries(), now);
        let reads = !ids.is_empty() && self.holds.left(READS, Instant::now()).is_zero();
        if reads {
            self.read(&ids, &nodes, record.entries()).await;
        }
        let (held, leaving) = self.holds.keys(Instant::now());
        self.healed.retain(|instance, _| record.entries().contains_key(instance));
        let given_up = self.healed.iter().filter(|(_, times)| **times >= HEALED).map(|(id, _)| id.clone()).collect();
        let actions = decide(&Snapshot {
            policy,
            nodes: &nodes,
            unreadable: &unreadable,
            record: record.entries(),
            instances: &self.seen.0,
            groups: &self.seen.1,
            held: &held,
            leaving: &leaving,
            free: CALLS.saturating_sub(self.calls.len()),
            given_up: &given_up,
            settle: self.settle,
            now,
        });
        let (mut changes, mut answers) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Record { instance, entry } => changes.push((instance, entry)),
                Action::Answer { node, text, note } => answers.push((node, text, note)),
                Action::Call(call) => self.begin(call),
            }
        }
        let recorded = !changes.is_empty();
        // Before the entry is removed, and with it what is known of the instance: once more if the removal fails.
        for (id, _) in changes.iter().filter(|(id, entry)| entry.is_none() && self.healed.get(id) == Some(&HEALED)) {
            let why = match self.seen.0.get(id) {
                Some(Some(found)) if !found.unhealthy => continue,
                Some(None) => "it is in no group any more",
                _ => "a health check of its group fails",
            };
            self.unhealthy(&nodes, id, &format!("it was set healthy {HEALED} times, and {why}")).await;
        }
        if recorded {
            changes.iter().for_each(|(instance, entry)| log_change(instance, entry.as_ref()));
            record.write(&self.maps, changes).await?;
        }
        // While something is recorded, the time alone may change what is to be done.
        let is_idle = ids.is_empty() && record.entries().is_empty();
        self.record = Some(record);
        let answers =
            answers.into_iter().filter_map(|(node, text, note)| Some(self.answer(nodes.get(&node)?, text, note)));
        let answered = join_all(answers).await;
        Ok(if recorded {
            Duration::ZERO
        } else if is_idle && answered.iter().all(|written| *written) {
            IDLE
        } else if reads || ids.is_empty() {
            OPEN
        } else {
            self.holds.left(READS, Instant::now()).min(OPEN)
        })
    }

    /// Reads AWS, and holds further reads. After a failure nothing is known.
    async fn read(&mut self, ids: &[String], nodes: &BTreeMap<String, Node>, record: &BTreeMap<String, Entry>) {
        let read = self.look(ids, record).await;
        let at = Instant::now();
        self.seen = match read {
            Ok(seen) => {
                self.holds.succeeded(READS, READ, at);
                seen
            }
            Err(error) => {
                tracing::warn!(%error, "AWS cannot be asked");
                let before = self.holds.failed(READS, error.refused(), jitter(), at);
                let concerned = |node: &&Node| node.instance.as_ref().is_ok_and(|id| ids.contains(id));
                let failed = nodes.values().filter(concerned).map(|node| self.failed(node, &error, before));
                join_all(failed).await;
                Default::default()
            }
        };
    }

    /// Begins a call beside the loop, unless its instance or group is held.
    fn begin(&mut self, call: Call) {
        let leaving = matches!(call, Call::ExitStandby { .. });
        if self.holds.begin(call.key(), leaving, Instant::now()) {
            let cloud = self.cloud.clone();
            self.calls.spawn(async move {
                let result = cloud.call(&call).await;
                (call, result)
            });
        }
    }

    /// Asks AWS about instances, their groups, and those of the record.
    async fn look(&self, ids: &[String], record: &BTreeMap<String, Entry>) -> Result<Seen, CallError> {
        let instances = self.cloud.instances(ids).await?;
        let recorded = ids.iter().filter_map(|id| record.get(id)).map(|entry| &entry.group);
        let names: BTreeSet<_> = instances.values().flatten().map(|found| &found.group).chain(recorded).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        Ok((instances, self.cloud.groups(&names).await?))
    }

    /// Records the end of a call.
    async fn ended(&mut self, call: Call, result: Result<(), CallError>) {
        let (key, at) = (call.key().to_owned(), Instant::now());
        let Some((nodes, _, policy)) = self.cluster.read() else { return };
        let of = |instance: &str| node_of(&nodes, instance);
        if let Err(error) = result {
            tracing::warn!(%call, %error, "the call of AWS failed");
            let before = self.holds.failed(&key, error.refused(), jitter(), at);
            if let Call::SetHealthy { instance } = &call
                && error.is_final(before.refused)
            {
                // The process is resumed all the same: the rest of the group needs it.
                self.unhealthy(&nodes, instance, &error.to_string()).await;
                self.healed.insert(instance.clone(), u32::MAX);
                return;
            }
            let concerned: Vec<&Node> = match &call {
                Call::EnterStandby { node, .. } => nodes.get(node).into_iter().collect(),
                Call::Suspend { nodes: names, .. } => names.iter().filter_map(|name| nodes.get(name)).collect(),
                Call::ExitStandby { instance, .. } | Call::SetHealthy { instance } => {
                    of(instance).into_iter().collect()
                }
                Call::Resume { instances, .. } => instances.iter().find_map(|id| of(id)).into_iter().collect(),
            };
            join_all(concerned.into_iter().map(|node| self.failed(node, &error, before))).await;
            return;
        }
        let settles = match &call {
            // AWS may still show the state before the call: repeating the call would fail, and the health check of the group has
            // to see the instance healthy before the process is resumed.
            Call::EnterStandby { .. } | Call::ExitStandby { .. } | Call::SetHealthy { .. } => self.settle,
            Call::Suspend { .. } | Call::Resume { .. } => self.settle.min(OPEN),
        };
        self.holds.succeeded(&key, settles, at);
        tracing::info!(%call, "called AWS");
        match call {
            Call::Suspend { group, nodes: names } => {
                let note = format!("ReplaceUnhealthy of Auto Scaling group {group} is suspended until the update ends");
                let open = names.iter().filter_map(|name| nodes.get(name)).filter(|node| !node.is_answered());
                let answers = open
                    .filter_map(|node| Some(self.answer(node, Some(node.prepares()?.to_owned()), Some(note.clone()))));
                join_all(answers).await;
            }
            Call::Resume { group, instances } => {
                let text = format!("ReplaceUnhealthy of Auto Scaling group {group} is resumed");
                let restored = instances.iter().filter_map(|id| of(id)).map(|node| self.restored(node, &text, policy));
                join_all(restored).await;
            }
            Call::ExitStandby { group, instance } => {
                let text = format!("instance {instance} of Auto Scaling group {group} leaves Standby");
                if let Some(node) = of(&instance) {
                    self.restored(node, &text, policy).await;
                }
            }
            Call::SetHealthy { instance } => *self.healed.entry(instance).or_default() += 1,
            Call::EnterStandby { .. } => {}
        }
    }

    /// Shows for a node what is taken back.
    async fn restored(&self, node: &Node, text: &str, policy: Policy) {
        let lost = node.prepared().is_some() && node.is_lost(policy, now());
        let why =
            if lost { ": the node has not returned from its reboot in time, and its group may replace it" } else { "" };
        self.cluster.notice(node, RESTORED, &format!("{text}{why}"), lost).await;
    }

    /// Shows for a node that its instance cannot be set healthy.
    async fn unhealthy(&self, nodes: &BTreeMap<String, Node>, instance: &str, why: &str) {
        let text = format!("instance {instance} is not healthy after the update, and its group may replace it: {why}");
        tracing::warn!(instance, why, "the instance cannot be set healthy");
        if let Some(node) = node_of(nodes, instance) {
            self.cluster.notice(node, UNHEALTHY, &text, true).await;
        }
    }

    /// Refuses the request of a node for which a call has failed, where a repetition would fail, too. Shows any other failure
    /// if it is not the first: most pass.
    async fn failed(&self, node: &Node, error: &CallError, before: Before) {
        match node.prepares() {
            Some(request) if error.is_final(before.refused) && !node.is_answered() => {
                self.answer(node, Some(format!("{request} Refused: {error}")), Some(error.to_string())).await;
            }
            _ if before.failed => {
                self.cluster.notice(node, "AutoScalingCallFailed", &format!("{error}; retrying"), true).await;
            }
            _ => {}
        }
    }

    /// Answers a request, or removes the answer; returns false if that failed.
    async fn answer(&self, node: &Node, text: Option<String>, note: Option<String>) -> bool {
        let name = &node.name;
        if let Err(error) = self.cluster.answer(node, text.as_deref()).await {
            tracing::warn!(node = name, error = format!("{error:#}"), "the answer cannot be written, retrying");
            return false;
        }
        tracing::info!(node = name, answer = text, note, "answered");
        let Some(note) = note else { return true };
        let refused = text.is_some_and(|text| text.contains(" Refused: "));
        let reason = if refused { "AutoScalingRefused" } else { "AutoScalingPrepared" };
        self.cluster.notice(node, reason, &note, refused).await;
        true
    }
}

fn node_of<'a>(nodes: &'a BTreeMap<String, Node>, instance: &str) -> Option<&'a Node> {
    nodes.values().find(|node| node.instance.as_deref() == Ok(instance))
}

#[expect(clippy::disallowed_methods, reason = "decisions get the time as an argument")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns a number for jitter, from the clock: many processes of many clusters do not retry in step.
fn jitter() -> f64 {
    f64::from(now().subsec_nanosecond().unsigned_abs()) / 1e9
}
