//! The loop: reads, decides, and carries out. Calls of AWS that change something run beside it, so that none waits for a call
//! that concerns another instance or group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use models::backoff::equal_jitter;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cloud::{CallError, Cloud};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::decide::{Action, Call, Snapshot, decide, instances_to_read};
use crate::facts::{Entry, Group, Instance, Node};
use crate::record::{Record, RecordError};

/// Time between two rounds while AWS is asked about an instance: it changes without notice.
const OPEN: Duration = Duration::from_secs(3);

/// Time between two rounds while nothing is open.
const IDLE: Duration = Duration::from_secs(60);

/// The first pause after a failed call, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Key of the pause after a failed read of AWS; no instance and no group has this name.
const READS: &str = "";

/// Reason of the Event about what is taken back.
const RESTORED: &str = "AutoScalingRestored";

/// The pause after failed calls.
struct Pause {
    failures: u32,
    until: Instant,
}

/// The state between two rounds, none of which has to outlive the process.
struct Runner<'a> {
    cluster: &'a Cluster,
    cloud: Cloud,
    maps: Api<ConfigMap>,
    settle: Duration,
    record: Option<Record>,
    /// Keys of the calls under way.
    busy: BTreeSet<String>,
    calls: JoinSet<(Call, Result<(), CallError>)>,
    pauses: BTreeMap<String, Pause>,
    /// Keys of successful calls, until AWS shows what they have changed.
    settling: BTreeMap<String, Instant>,
    /// Instances that AWS refuses to set healthy.
    refused: BTreeSet<String>,
    /// Groups whose process was resumed, with the time of that.
    resumed: BTreeMap<String, Instant>,
}

/// Works for as long as it is polled.
pub(crate) async fn run(config: &Config, cluster: &Cluster, cloud: Cloud) {
    let maps = Api::namespaced(cluster.client.clone(), &config.namespace);
    let (busy, calls, pauses, settling, refused, resumed) = Default::default();
    let settle = config.settle.0;
    let mut runner =
        Runner { cluster, cloud, maps, settle, record: None, busy, calls, pauses, settling, refused, resumed };
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = cluster.changed.notified() => {}
            Some(done) = runner.calls.join_next() => match done {
                Ok((call, result)) => runner.ended(call, result).await,
                // A panic, which is a defect: its key would stay busy.
                Err(error) => {
                    tracing::error!(%error, "a call ended without a result");
                    runner.busy.clear();
                }
            },
        }
        pause = match runner.round().await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the record cannot be read or written, retrying"
                );
                // Another process may have written it.
                runner.record = None;
                OPEN
            }
        };
    }
}

impl Runner<'_> {
    /// Does what is to be done now, and returns the time until the next round.
    async fn round(&mut self) -> Result<Duration, RecordError> {
        let Some((nodes, mode)) = self.cluster.read() else { return Ok(OPEN) };
        if self.record.is_none() {
            self.record = Some(Record::read(&self.maps).await?);
        }
        let Some(record) = &self.record else { return Ok(OPEN) };
        let ids = instances_to_read(mode, &nodes, record.entries());
        let (instances, groups) = if self.is_paused(READS) {
            Default::default()
        } else {
            match self.look(&ids, record.entries()).await {
                Ok(found) => {
                    self.pauses.remove(READS);
                    found
                }
                Err(error) => {
                    tracing::warn!(%error, "AWS cannot be asked");
                    let concerned = |node: &&Node| node.instance.as_ref().is_ok_and(|id| ids.contains(id));
                    for node in nodes.values().filter(concerned) {
                        self.failed(node, &error, true).await;
                    }
                    self.pause(READS);
                    Default::default()
                }
            }
        };
        self.settling.retain(|_, until| *until > Instant::now());
        let paused = self.pauses.keys().filter(|key| self.is_paused(key));
        let held = self.busy.iter().chain(paused).chain(self.settling.keys()).cloned().collect();
        self.resumed.retain(|_, at| at.elapsed() < self.settle);
        let resumed = self.resumed.keys().cloned().collect();
        let Some(record) = &mut self.record else { return Ok(OPEN) };
        let actions = decide(&Snapshot {
            mode,
            nodes: &nodes,
            record: record.entries(),
            instances: &instances,
            groups: &groups,
            held: &held,
            refused: &self.refused,
            resumed: &resumed,
            settle: self.settle,
            now: Timestamp::now(),
        });
        let (mut changes, mut answers) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                Action::Record { instance, entry } => changes.push((instance, entry)),
                Action::Answer { node, text, note } => answers.push((node, text, note)),
                Action::Call(call) => {
                    if self.busy.insert(call.key().to_owned()) {
                        let cloud = self.cloud.clone();
                        self.calls.spawn(async move {
                            let result = cloud.call(&call).await;
                            (call, result)
                        });
                    }
                }
            }
        }
        let recorded = !changes.is_empty();
        if recorded {
            for (instance, entry) in &changes {
                tracing::info!(instance, ?entry, "record changed");
            }
            record.write(&self.maps, changes).await?;
        }
        let answers =
            answers.into_iter().filter_map(|(node, text, note)| Some(self.answer(nodes.get(&node)?, text, note)));
        let answered = join_all(answers).await;
        Ok(match recorded {
            true => Duration::ZERO,
            false if ids.is_empty() && answered.iter().all(|written| *written) => IDLE,
            false => OPEN,
        })
    }

    /// Asks AWS about instances, their groups, and those of the record.
    async fn look(
        &self,
        ids: &[String],
        record: &BTreeMap<String, Entry>,
    ) -> Result<(BTreeMap<String, Option<Instance>>, BTreeMap<String, Option<Group>>), CallError> {
        let instances = self.cloud.instances(ids).await?;
        let recorded = ids.iter().filter_map(|id| record.get(id)).map(|entry| &entry.group);
        let names: BTreeSet<_> = instances.values().flatten().map(|found| &found.group).chain(recorded).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        Ok((instances, self.cloud.groups(&names).await?))
    }

    /// Takes in the end of a call.
    async fn ended(&mut self, call: Call, result: Result<(), CallError>) {
        let key = call.key().to_owned();
        self.busy.remove(&key);
        let Some((nodes, _)) = self.cluster.read() else { return };
        if let Err(error) = result {
            tracing::warn!(?call, %error, "the call of AWS failed");
            self.pause(&key);
            let concerned = |node: &&Node| match &call {
                Call::EnterStandby { node: name, .. } | Call::Suspend { node: name, .. } => *name == node.name,
                Call::ExitStandby { instance, .. } | Call::SetHealthy { instance, .. } => {
                    node.instance.as_ref() == Ok(instance)
                }
                Call::Resume { instances, .. } => node.instance.as_ref().is_ok_and(|id| instances.contains(id)),
            };
            let repeated = self.pauses.get(&key).is_some_and(|pause| pause.failures > 1);
            if let Some(node) = nodes.values().find(concerned) {
                self.failed(node, &error, repeated).await;
            }
            if let Call::SetHealthy { instance, .. } = call
                && error.is_final(repeated)
            {
                // The process is resumed all the same: the rest of the group needs it.
                self.refused.insert(instance);
            }
            return;
        }
        self.pauses.remove(&key);
        let settles = match &call {
            // AWS may still show the state before the call: repeating the call would fail, and the health check of the group has
            // to see the instance healthy before the process is resumed.
            Call::EnterStandby { .. } | Call::SetHealthy { .. } => self.settle,
            Call::Suspend { .. } => self.settle.min(OPEN),
            Call::ExitStandby { .. } | Call::Resume { .. } => Duration::ZERO,
        };
        self.settling.insert(key, Instant::now() + settles);
        tracing::info!(?call, "called AWS");
        match call {
            Call::Suspend { group, node } => {
                let node = nodes.get(&node).filter(|node| !node.is_answered());
                if let Some((node, request)) = node.and_then(|node| Some((node, node.prepares()?))) {
                    let note =
                        format!("ReplaceUnhealthy of Auto Scaling group {group} is suspended until the update ends");
                    self.answer(node, Some(request.to_owned()), Some(note)).await;
                }
            }
            Call::Resume { group, instances } => {
                let text = format!("ReplaceUnhealthy of Auto Scaling group {group} is resumed");
                for node in nodes.values().filter(|node| node.instance.as_ref().is_ok_and(|id| instances.contains(id)))
                {
                    self.cluster.notice(node, RESTORED, &text, false).await;
                }
                // In its next update an instance can be set healthy again, once that is permitted.
                self.refused.retain(|instance| !instances.contains(instance));
                self.resumed.insert(group, Instant::now());
                if let Some(record) = &mut self.record {
                    let forget = instances.into_iter().map(|instance| (instance, None));
                    if let Err(error) = record.write(&self.maps, forget).await {
                        tracing::warn!(%error, "the record cannot be written, retrying");
                        self.record = None;
                    }
                }
            }
            Call::ExitStandby { group, instance } => {
                let text = format!("instance {instance} of Auto Scaling group {group} leaves Standby");
                if let Some(node) = nodes.values().find(|node| node.instance.as_ref() == Ok(&instance)) {
                    self.cluster.notice(node, RESTORED, &text, false).await;
                }
            }
            Call::EnterStandby { .. } | Call::SetHealthy { .. } => {}
        }
    }

    /// Shows the failure of a call for a node, and refuses its request where a repetition would fail, too.
    async fn failed(&self, node: &Node, error: &CallError, repeated: bool) {
        match node.prepares() {
            Some(request) if error.is_final(repeated) && !node.is_answered() => {
                self.answer(node, Some(format!("{request} Refused: {error}")), Some(error.to_string())).await;
            }
            _ => self.cluster.notice(node, "AutoScalingCallFailed", &format!("{error}; retrying"), true).await,
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

    fn is_paused(&self, key: &str) -> bool {
        self.pauses.get(key).is_some_and(|pause| pause.until > Instant::now())
    }

    fn pause(&mut self, key: &str) {
        let failures = self.pauses.get(key).map_or(0, |pause| pause.failures);
        // Jitter from the clock: many processes of many clusters do not retry in step.
        let random = f64::from(Timestamp::now().subsec_nanosecond().unsigned_abs()) / 1e9;
        let until = Instant::now() + equal_jitter(PAUSE.0, PAUSE.1, failures, random);
        self.pauses.insert(key.to_owned(), Pause { failures: failures.saturating_add(1), until });
    }
}
