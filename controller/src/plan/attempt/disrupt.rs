//! The part that disrupts: the drain, the order to reboot, the go.

use models::condition::{find_condition, set_condition};
use models::reason::FailureReason;
use models::shadow::{BLOCKED, CORDONED, DRAINED, DrainStatus, DrainedPod, HostState, Progress, Step};

use super::{BLOCKERS, Case, LISTED_PODS, UNHEALTHY_OWNERS, refusal};
use crate::apply::CORDONED_BEFORE;
use crate::drain::filter::Sorted;
use crate::plan::{Action, Decision, Eviction, Note, Wait, gates};

impl Case<'_> {
    /// The slot is ours: record what has to go before anything is touched.
    pub(super) fn start_drain(&self, progress: &Progress) -> Decision {
        let before = &self.group().before;
        let queries = || gates::queries(&before.expressions, &self.facts().name).map(|(_, query)| query);
        let (Some(on_node), Some(sorted)) = (&self.node.pods, self.sorted_pods()) else {
            return Decision::wait(Wait::ReadingPods).watching_pods().asking(queries());
        };
        match gates::before_drain(self.view, self.node, before) {
            None => {}
            // Its slot is kept while it is only being looked at.
            Some(Wait::ReadingPods | Wait::AskingExpressions { .. }) => {
                return Decision::wait(Wait::ReadingPods).watching_pods().asking(queries());
            }
            Some(refused) => return self.waiting_staged(progress, refused).watching_pods().asking(queries()),
        }
        let drained = |pod: &&crate::view::PodFacts| DrainedPod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        };
        let pods: Vec<_> = sorted.go.iter().chain(&sorted.leaving).take(LISTED_PODS).map(drained).collect();
        let mut own: Vec<String> = sorted
            .go
            .iter()
            .filter(|pod| pod.namespace == self.view.own_namespace)
            .filter_map(|pod| pod.controller_uid.clone())
            .collect();
        own.sort();
        own.dedup();
        own.truncate(16);
        let mut unhealthy_before: Vec<String> = on_node
            .iter()
            .filter(|pod| !pod.ready && !pod.finished && !pod.terminating)
            .filter_map(|pod| pod.controller_uid.clone())
            .collect();
        unhealthy_before.sort();
        unhealthy_before.dedup();
        unhealthy_before.truncate(UNHEALTHY_OWNERS);
        let mut action = self.step(&Progress { disruptive: true, ..progress.clone() }, Step::Draining, |status| {
            let message = format!("cordoned for the update to {}", progress.version);
            let reason = if self.facts().unschedulable && !self.facts().claimed { CORDONED_BEFORE } else { "Updating" };
            set_condition(&mut status.conditions, self.condition(CORDONED, true, reason, &message));
            set_condition(&mut status.conditions, self.condition(DRAINED, false, "Draining", "pods are being evicted"));
            status.report.drain =
                Some(DrainStatus { pods, own_evicted: own, unhealthy_before, ..DrainStatus::default() });
        });
        if let Action::Status { note, .. } = &mut action {
            *note = Some(Note {
                warning: false,
                reason: "UpdateStarted",
                message: format!("draining for the update to {} (attempt {})", progress.version, progress.attempt),
            });
        }
        Decision::act(action).watching_pods()
    }

    pub(super) fn draining(&self, progress: &Progress) -> Decision {
        self.draining_pods(progress).watching_pods()
    }

    pub(super) fn draining_pods(&self, progress: &Progress) -> Decision {
        if let Some(decision) = self.ended_from_outside(progress) {
            return decision;
        }
        if self.facts().boot_id != progress.boot_id {
            return self.fail(progress, FailureReason::RebootedByOther, "the node was rebooted during the drain");
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if !self.staged() && self.caught_up() {
            return self.fail(progress, FailureReason::NotStaged, "the staged image is gone");
        }
        if !self.slot && self.view.operator.is_some() {
            // The resource is new and its slots are being rebuilt; nothing is disrupted without one.
            return Decision::wait(Wait::Queued { position: 0 });
        }
        let cordoned = self.facts().claimed && self.facts().unschedulable;
        let sorted = self.sorted_pods();
        let deadline = self.deadline(progress.since, self.group().drain);
        if self.now >= deadline && !(cordoned && self.staged() && sorted.as_ref().is_some_and(Sorted::empty)) {
            return self.drain_timed_out(progress, cordoned, sorted.as_ref());
        }
        if !cordoned {
            return Decision::act(Action::Claim).waking_at(deadline);
        }
        let Some(sorted) = sorted else { return Decision::wait(Wait::ReadingPods).waking_at(deadline) };
        if sorted.empty() {
            if !self.staged() {
                return Decision::wait(Wait::AgentBehind).waking_at(deadline);
            }
            return Decision::act(self.step(progress, Step::Rebooting, |status| {
                set_condition(
                    &mut status.conditions,
                    self.condition(DRAINED, true, "Drained", "every pod that had to go is gone"),
                );
                if let Some(drain) = &mut status.report.drain {
                    drain.gone = i64::try_from(drain.pods.len()).unwrap_or(i64::MAX);
                    drain.blockers = Vec::new();
                }
            }));
        }
        if let Some(Wait::DrainRefused { pod, count }) = refusal(&sorted) {
            let message = format!("{count} pod(s) without a controller came to the node, {pod} first");
            return self.fail(progress, FailureReason::DrainRefused, &message);
        }
        let blocked = |uid: &str| self.node.blocked.get(uid);
        if let Some((pod, fatal)) = sorted.go.iter().find_map(|p| Some((p, blocked(&p.uid).filter(|b| b.fatal)?))) {
            let message = format!("{}/{} cannot be evicted: {}", pod.namespace, pod.name, fatal.message);
            return self.fail(progress, FailureReason::DrainRefused, &message);
        }
        let due: Vec<_> = sorted
            .go
            .iter()
            .filter(|pod| blocked(&pod.uid).is_none_or(|b| b.retry_at <= self.now))
            .map(|pod| Eviction { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() })
            .collect();
        if !due.is_empty() {
            return Decision::act(Action::Evict { pods: due });
        }
        let left = sorted.go.len() + sorted.leaving.len();
        let blockers: Vec<_> = sorted
            .go
            .iter()
            .filter_map(|pod| Some((pod, blocked(&pod.uid).filter(|b| !b.accepted)?)))
            .take(BLOCKERS)
            .collect();
        let retry = sorted.go.iter().filter_map(|p| blocked(&p.uid)).map(|b| b.retry_at).min();
        let wait = match blockers.first() {
            Some((pod, blocked)) => Wait::DrainBlocked {
                pod: format!("{}/{}", pod.namespace, pod.name),
                budget: blocked.budget.clone(),
                left,
            },
            None => Wait::Draining { left },
        };
        if let Some(action) = self.blockers_changed(&blockers, &wait) {
            return Decision::act(action);
        }
        let decision = Decision::wait(wait).waking_at(deadline);
        retry.map_or(decision.clone(), |at| decision.waking_at(at))
    }

    fn drain_timed_out(&self, progress: &Progress, cordoned: bool, sorted: Option<&Sorted<'_>>) -> Decision {
        let left: Vec<_> = sorted
            .iter()
            .flat_map(|s| s.go.iter().chain(&s.leaving).chain(&s.refused))
            .take(3)
            .map(|p| format!("{}/{}", p.namespace, p.name))
            .collect();
        let (reason, message) = match (cordoned, sorted) {
            (false, _) => (FailureReason::DrainTimedOut, "the node could not be cordoned".to_owned()),
            (true, None) => (FailureReason::DrainTimedOut, "the pods on the node could not be read".to_owned()),
            (true, Some(_)) if left.is_empty() => {
                (FailureReason::AgentSilent, "the agent has not confirmed the last order".to_owned())
            }
            (true, Some(_)) => (FailureReason::DrainTimedOut, format!("still on the node: {}", left.join(", "))),
        };
        self.fail(progress, reason, &message)
    }

    /// Writes who blocks the drain when that has changed. A `Blocked` condition that named one who is gone names the next.
    pub(super) fn blockers_changed(
        &self,
        blockers: &[(&&crate::view::PodFacts, &crate::view::Blocked)],
        wait: &Wait,
    ) -> Option<Action> {
        let wanted: Vec<_> = blockers
            .iter()
            .map(|(pod, blocked)| models::shadow::Blocker {
                pod: format!("{}/{}", pod.namespace, pod.name),
                budget: blocked.budget.clone(),
                message: blocked.message.chars().take(512).collect(),
                since: blocked.since,
            })
            .collect();
        let stored = self.shadow.status.controller.drain.as_ref().map(|d| d.blockers.as_slice()).unwrap_or_default();
        let same = stored.len() == wanted.len()
            && stored.iter().zip(&wanted).all(|(a, b)| (&a.pod, &a.budget) == (&b.pod, &b.budget));
        if same {
            return None;
        }
        let mut status = self.half();
        status.report.drain.get_or_insert_default().blockers = wanted;
        let told = find_condition(&status.conditions, BLOCKED).is_some_and(|c| c.reason == wait.as_str());
        if told {
            set_condition(&mut status.conditions, self.condition(BLOCKED, true, wait.as_str(), &wait.to_string()));
        }
        Some(Action::Status { status: Box::new(status), note: None })
    }

    pub(super) fn rebooting(&self, progress: &Progress) -> Decision {
        let spec = &self.shadow.spec;
        if self.facts().boot_id != progress.boot_id {
            return self.in_another_boot(progress);
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if spec.go.is_none()
            && let Some(decision) = self.ended_from_outside(progress)
        {
            return decision;
        }
        if spec.attempt != progress.attempt || spec.state == HostState::Idle {
            return self.fail(progress, FailureReason::ProgressLost, "the order does not belong to this attempt");
        }
        let deadline = self.deadline(progress.since, self.policy.reboot);
        if self.now >= deadline {
            if self.activated(progress) && !self.facts().ready {
                // Armed, gone, and not seen since: an image that kills the host's network looks just like this.
                let message = "the node has not been seen since its image was armed";
                return self.fail(progress, FailureReason::NotReadyAfterBoot, message);
            }
            let reason = if spec.go.is_some() { FailureReason::RebootTimedOut } else { FailureReason::AgentSilent };
            return self.fail(progress, reason, "the host did not reboot in time");
        }
        // An agent that was restarted after it had armed the host asks as well, for the reboot alone.
        if !self.facts().claimed {
            // Uncordoned under our hands: what the scheduler put here since would be lost.
            return Decision::act(Action::Claim).watching_pods().waking_at(deadline);
        }
        if spec.state == HostState::StagedUpdate {
            return Decision::act(self.order(HostState::RebootedIntoUpdate, progress)).watching_pods();
        }
        let asks = self.shadow.status.agent.armed.as_ref().filter(|armed| {
            armed.attempt == spec.attempt
                && spec.boot_id.as_ref() == Some(&armed.boot_id)
                && armed.boot_id == self.facts().boot_id
                && spec.version.as_ref() == Some(&armed.version)
        });
        let decision = match asks {
            Some(armed) if spec.go.as_ref().is_none_or(|go| go.nonce != armed.nonce) => {
                self.answer(progress, &armed.nonce)
            }
            _ if spec.go.is_some() => Decision::wait(Wait::AwaitingReboot),
            _ => Decision::wait(Wait::AwaitingAgent),
        };
        decision.watching_pods().waking_at(deadline)
    }

    /// The agent asks: a go, if nothing came to the node since it was drained.
    pub(super) fn answer(&self, progress: &Progress, nonce: &str) -> Decision {
        let Some(sorted) = self.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
        if let Some(pod) = sorted.go.first().or(sorted.refused.first()) {
            let message = format!("{}/{} came to the drained node", pod.namespace, pod.name);
            return self.fail(progress, FailureReason::PodsReturn, &message);
        }
        if !sorted.leaving.is_empty() {
            return Decision::wait(Wait::Draining { left: sorted.leaving.len() });
        }
        Decision::act(Action::Go { nonce: nonce.to_owned() })
    }

    /// What ends an attempt that has not been given a go, whatever its step.
    pub(super) fn ended_from_outside(&self, progress: &Progress) -> Option<Decision> {
        let fail = |reason, message| Some(self.fail(progress, reason, message));
        let agent = &self.shadow.status.agent;
        if self.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), &progress.version) {
            return fail(FailureReason::Quarantined, "the version has failed on other nodes");
        }
        if !self.policy.present {
            return fail(FailureReason::Disabled, "the operator's resource is gone");
        }
        if !self.facts().labelled {
            return fail(FailureReason::LabelRemoved, "the node lost the label that puts it under the operator");
        }
        if self.facts().held {
            return fail(FailureReason::Held, "the node is held");
        }
        None
    }
}
