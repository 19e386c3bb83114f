//! The verdict on a node in another boot: the version that runs, and the health of the node.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::condition::set_condition;
use models::reason::FailureReason;
use models::shadow::{CORDONED, ControllerStatus, DRAINED, HEALTHY, HostState, Progress, Step, UPDATED};

use super::{Case, after, unblock};
use crate::plan::{Action, Decision, Note, Wait, gates};
use crate::view::{Compared, NodeView, PodFacts};

/// The number of unhealthy pods that a record names.
const NAMED: usize = 4;

/// The number of owners of unhealthy pods that are compared with their pods on other nodes.
const JUDGED_OWNERS: usize = 8;

/// Labels that controllers give to one pod alone, so that they select no other pod of the same owner.
const OF_ONE_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

impl Case<'_> {
    /// Returns whether the target version runs in the node's current boot. The Node reports it; the agent status is
    /// used only where the Node names no version.
    pub(super) fn runs_wanted(&self, progress: &Progress) -> bool {
        let agent = &self.shadow.status.agent;
        let reported = || {
            let present = agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str());
            agent.current_version.clone().filter(|_| present)
        };
        self.facts().os_version().or_else(reported).as_ref() == Some(&progress.version)
    }

    /// Continues an attempt whose node is in another boot than the one that the desired state was for.
    pub(super) fn in_another_boot(&self, progress: &Progress) -> Decision {
        if self.runs_wanted(progress) {
            if !self.facts().ready {
                return self.not_ready_yet(progress);
            }
            if self.to_release() {
                return Decision::act(Action::Release);
            }
            let monitored = Progress { watched_since: progress.watched_since.or(Some(self.now)), ..progress.clone() };
            return Decision::act(self.step(&monitored, Step::Monitoring, |status| {
                let message = format!("back on {}", progress.version);
                set_condition(&mut status.conditions, self.condition(CORDONED, false, "Updated", &message));
                set_condition(&mut status.conditions, self.condition(DRAINED, false, "Updated", &message));
            }));
        }
        // Not the target version: the agent knows how far it had come.
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        self.not_ready_yet(progress)
    }

    pub(super) fn not_ready_yet(&self, progress: &Progress) -> Decision {
        if progress.step != Step::Returning {
            // Keeps the boot that the desired state was for: it shows that the node is in another one.
            let returning = |status: &mut ControllerStatus| {
                if let Some(p) = &mut status.report.progress {
                    p.boot_id.clone_from(&progress.boot_id);
                }
            };
            return Decision::act(self.step(progress, Step::Returning, returning));
        }
        let deadline = self.deadline(progress.since, self.policy.returning);
        if self.now < deadline {
            return Decision::wait(Wait::AwaitingReady).waking_at(deadline);
        }
        if self.runs_wanted(progress) {
            return self.fail(progress, FailureReason::NotReadyAfterBoot, "the node is not Ready on the new version");
        }
        let (reason, message) = if self.activated(progress) {
            (FailureReason::BootFellBack, "the node came back on another version and its agent is silent")
        } else {
            (FailureReason::RebootedByOther, "the node was rebooted before it was armed and its agent is silent")
        };
        self.fail(progress, reason, message)
    }

    pub(super) fn returning(&self, progress: &Progress) -> Decision {
        self.in_another_boot(progress)
    }

    pub(super) fn monitoring(&self, progress: &Progress) -> Decision {
        if self.to_release() {
            return Decision::act(Action::Release);
        }
        let until = after(progress.since, self.group().after.soak);
        if self.shadow.spec.state != HostState::Idle {
            let another_boot = self.facts().boot_id != progress.boot_id;
            if another_boot && !self.runs_wanted(progress) {
                let message = "the node was rebooted into another version";
                return self.fail(progress, FailureReason::BootedOtherVersion, message);
            }
            if another_boot || !self.facts().ready {
                // Once is nothing: the soak begins again when the node is Ready. A second time is a failure.
                if progress.soak_restarted {
                    return self.fail(progress, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
                }
                let again = Progress { soak_restarted: true, ..progress.clone() };
                return Decision::act(self.step(&again, Step::Returning, |_| {}));
            }
            return self.soaking(progress, until);
        }
        self.updated(progress)
    }

    /// Records the node as updated after the soak, with the desired state withdrawn. Pods that are still unhealthy are
    /// named, and count against nothing.
    fn updated(&self, progress: &Progress) -> Decision {
        let watched = self.watched();
        let lonely = watched.as_ref().is_some_and(|watched| !watched.iter().any(|pod| is_workload(pod)));
        let no_workloads = if lonely { ", and no pods of workloads were scheduled to it" } else { "" };
        let sick = self.sick(&watched.unwrap_or_default());
        let mut status = self.half();
        let mut record = status.report.record.take().unwrap_or_default();
        record.failures = 0;
        record.not_before = None;
        let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let mut text = format!("updated from {from} to {}", progress.version);
        let message = if sick.is_empty() {
            let message = format!("Ready on {} for the soak time{no_workloads}", progress.version);
            set_condition(&mut status.conditions, self.condition(HEALTHY, true, "Soaked", &message));
            message
        } else {
            let names: Vec<_> =
                sick.iter().take(NAMED).map(|sick| format!("{} ({})", sick.pod.title(), sick.why)).collect();
            let message = format!(
                "Ready on {}, but {} pod(s) are not healthy, which does not count against the version: {}",
                progress.version,
                sick.len(),
                names.join(", ")
            );
            text = format!("{text}; {message}");
            set_condition(&mut status.conditions, self.condition(HEALTHY, false, "PodsUnhealthy", &message));
            message
        };
        record.last = Some(self.result(progress, UPDATED, &message));
        status.report.record = Some(record);
        status.report.progress = None;
        status.report.drain = None;
        unblock(&mut status);
        let note = Note { warning: !sick.is_empty(), reason: "Updated", message: text };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }

    /// Monitors the node: it is done when the soak is over, its pods are Ready, none of their containers was restarted
    /// meanwhile, and the expressions return nothing.
    fn soaking(&self, progress: &Progress, until: Timestamp) -> Decision {
        let after_policy = &self.group().after;
        let deadline = self.deadline(progress.watched_since.unwrap_or(progress.since), after_policy.timeout);
        let queries = gates::queries(&after_policy.expressions, &self.facts().name).map(|(_, query)| query);
        let looking = |decision: Decision| decision.asking(queries);
        let Some(watched) = self.watched() else {
            return looking(self.unknown_until(progress, deadline, Wait::ReadingPods));
        };
        // None was there before: a node under pressure is not taken out of service.
        if let Some(condition) = self.facts().pressure.clone() {
            if self.now >= deadline {
                let message = format!("the node has had {condition} since its update to {}", progress.version);
                return self.fail(progress, FailureReason::SoakFailed, &message);
            }
            return looking(Decision::wait(Wait::NodePressure { condition }).waking_at(deadline));
        }
        if self.now < until {
            return looking(Decision::wait(Wait::Soaking { until }).waking_at(until));
        }
        let sick = self.sick(&watched);
        if let Some(first) = sick.first() {
            if self.now < deadline {
                let settled = sick.iter().filter_map(|sick| sick.until).min().unwrap_or(deadline).min(deadline);
                let (pod, why) = (first.pod.title(), first.why.clone());
                return looking(Decision::wait(Wait::Settling { pod, why, count: sick.len() }).waking_at(settled));
            }
            if let Some(decision) = self.blame(progress, &sick) {
                return looking(decision);
            }
        }
        match gates::quiet_since(&after_policy.expressions, &self.facts().name, &self.view.expressions) {
            // One that is the same for all nodes is no evidence against this node's version.
            Err(Wait::ExpressionFires { name, series, shared: false }) if self.now >= deadline => {
                let message = format!("the expression {name} returned {series} on {}", progress.version);
                self.fail(progress, FailureReason::SoakFailed, &message)
            }
            Err(wait) => looking(self.unknown_until(progress, deadline, wait)),
            // Empty at last: also past the deadline it has the soak to stay so, and fails at once if it does not.
            Ok(Some(since)) if self.now < after(since, after_policy.soak) => {
                let until = after(since, after_policy.soak);
                looking(Decision::wait(Wait::Soaking { until }).waking_at(until))
            }
            Ok(_) => Decision::act(self.withdraw()),
        }
    }

    /// Reads how the other pods of the owners are if pods are still unhealthy at the deadline, and fails the attempt
    /// where that is evidence against the version. `None` if nothing is.
    fn blame(&self, progress: &Progress, sick: &[Sick<'_>]) -> Option<Decision> {
        let mut seen = BTreeSet::new();
        let owned = sick.iter().filter_map(|sick| Some((sick, sick.pod.controller_uid.as_ref()?)));
        let candidates = owned
            .filter(|(sick, owner)| !sick.pod.mirror && seen.insert(*owner) && !self.was_unhealthy(progress, owner));
        for (Sick { pod, why, .. }, owner) in candidates.take(JUDGED_OWNERS) {
            let Some(health) = self.node.owners.get(owner) else {
                let labels = pod.labels.iter().filter(|(name, _)| !OF_ONE_POD.contains(&name.as_str()));
                return Some(Decision::act(Action::ReadOwner {
                    owner: owner.clone(),
                    namespace: pod.namespace.clone(),
                    labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
                    nodes: self.compared(progress),
                }));
            };
            if health.is_evidence() {
                let message = format!(
                    "{} is not healthy ({why}): pods of its owner fail on {} other node(s) with {}, and are healthy on {} without it",
                    pod.title(),
                    health.updated_failing,
                    progress.version,
                    health.others_healthy
                );
                return Some(self.fail(progress, FailureReason::SoakFailed, &message));
            }
        }
        None
    }

    /// Returns whether this owner's pods were unhealthy before a node was drained for the same version.
    fn was_unhealthy(&self, progress: &Progress, owner: &String) -> bool {
        self.view.nodes.values().any(|node| {
            let Some(record) = node.record() else { return false };
            let now = node.progress().map(|progress| &progress.version);
            let version = now.or(record.last.as_ref().map(|last| &last.version));
            version == Some(&progress.version) && record.unhealthy_before.contains(owner)
        })
    }

    /// The nodes on which an owner's other pods are evidence about the version: those in service. A pod on an updated
    /// one has had enough time when it has had as much again as an update waits for pods.
    fn compared(&self, progress: &Progress) -> BTreeMap<String, Compared> {
        let others = self.view.nodes.values().filter(|node| node.facts.name != self.facts().name);
        let in_service = others.filter(|node| node.facts.ready && !node.disrupted());
        let class = |node: &NodeView| {
            if node.facts.os_version().as_ref() != Some(&progress.version) {
                return Compared::NotUpdated;
            }
            let last = node.record().and_then(|record| record.last.as_ref());
            let by = last
                .filter(|last| last.version == progress.version)
                .map(|last| after(last.ended, self.group().after.timeout));
            if by.is_some_and(|by| by <= self.now) { Compared::Updated } else { Compared::JustUpdated }
        };
        in_service.map(|node| (node.facts.name.clone(), class(node))).collect()
    }

    /// Waits for what is not known, and ends the wait after the deadline: it is no evidence against the version.
    fn unknown_until(&self, progress: &Progress, deadline: Timestamp, wait: Wait) -> Decision {
        if self.now >= deadline {
            let message = format!("whether the node is healthy could not be found out: {wait}");
            return self.fail(progress, FailureReason::HealthUnknown, &message);
        }
        Decision::wait(wait).waking_at(deadline)
    }

    /// The pods on the node that have to be healthy after its update; `None` while they are not known. Pods of owners
    /// that were not healthy before the drain are left out.
    fn watched(&self) -> Option<Vec<&PodFacts>> {
        if !self.group().after.pods_ready {
            return Some(Vec::new());
        }
        let record = self.node.record();
        let excused = record.map(|record| record.unhealthy_before.as_slice()).unwrap_or_default();
        let watched = |pod: &&PodFacts| {
            let unhealthy_before = pod.controller_uid.as_ref().is_some_and(|owner| excused.contains(owner));
            !pod.finished && !pod.terminating && !unhealthy_before
        };
        Some(self.node.pods.as_ref()?.iter().filter(watched).collect())
    }

    /// The watched pods that are not Ready, or had a container restarted less than the soak ago.
    fn sick<'b>(&self, watched: &[&'b PodFacts]) -> Vec<Sick<'b>> {
        let soak = self.group().after.soak;
        let sick = |pod: &&'b PodFacts| {
            let restarted = pod.restarted_at.filter(|at| after(*at, soak) > self.now);
            match (pod.ready, restarted) {
                (false, _) => Some(Sick { pod, why: pod.trouble.clone().unwrap_or_default(), until: None }),
                (true, Some(at)) => {
                    Some(Sick { pod, why: format!("a container was restarted at {at}"), until: Some(after(at, soak)) })
                }
                (true, None) => None,
            }
        };
        watched.iter().filter_map(sick).collect()
    }
}

/// A pod that is not healthy on an updated node.
struct Sick<'a> {
    pod: &'a PodFacts,
    why: String,
    /// The time at which it counts as healthy again if nothing happens to it.
    until: Option<Timestamp>,
}

fn is_workload(pod: &PodFacts) -> bool {
    !pod.mirror && pod.daemon_set.is_none()
}
