//! The drain: claims the node, evicts its pods, and ends when they have left.

use std::collections::BTreeSet;

use models::condition::set_condition;
use models::operator::AtDeadline;
use models::reason::FailureReason;
use models::shadow::{Blocker, CORDONED, DRAINED, DrainStatus, DrainedPod, Progress, ReturnedOwner, Step};

use super::blockers::BLOCKED_AFTER;
use super::{Case, LISTED_PODS, UNHEALTHY_OWNERS, after, claim, refusal};
use crate::claims::Part;
use crate::drain::{self, Sorted};
use crate::plan::{Action, Decision, Eviction, Evictions, Note, Wait, gates};
use crate::view::PodFacts;

/// The number of owners of pods that tolerate the cordon that a shadow lists.
const EVICTED_OWNERS: usize = 256;

/// The number of owners of pods that return without tolerating the cordon that a shadow lists.
const RETURNED_OWNERS: usize = 256;

/// The number of times that new pods of one owner that do not tolerate the cordon are evicted. The scheduler may have
/// placed some before it observed the cordon; those that come after that bypass it.
const RETURNS: i64 = 2;

/// The number of pods that a message names.
const NAMED_PODS: usize = 3;

/// The number of times that a claim that a client removed during the update is repeated.
const RECLAIMS: u32 = 3;

fn listed(pod: &PodFacts) -> DrainedPod {
    DrainedPod { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
}

/// Returns the owners of those pods that may come back to the cordoned node after their eviction.
fn tolerating_owners<'a>(pods: impl Iterator<Item = &'a PodFacts>) -> impl Iterator<Item = String> {
    pods.filter(|pod| pod.tolerates_cordon).filter_map(|pod| pod.controller_uid.clone())
}

/// Names the first pods, and counts the others.
fn named(pods: &[&PodFacts]) -> String {
    let names: Vec<_> = pods.iter().take(NAMED_PODS).map(|pod| pod.title()).collect();
    let more = match pods.len().saturating_sub(NAMED_PODS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

/// Returns each owner once, and no more of them than a shadow lists.
fn owners(uids: impl Iterator<Item = String>, limit: usize) -> Vec<String> {
    uids.collect::<BTreeSet<_>>().into_iter().take(limit).collect()
}

impl Case<'_> {
    /// Begins the drain of a node with a slot: records the pods to evict before anything is changed.
    pub(super) fn start_drain(&self, progress: &Progress) -> Decision {
        let policy = self.group();
        let queries = || gates::queries(&policy.before.expressions, &self.facts().name).map(|(_, query)| query);
        let (Some(on_node), Some(sorted)) = (&self.node.pods, self.sorted_pods()) else {
            return Decision::wait(Wait::ReadingPods).watching_pods().asking(queries());
        };
        match gates::before_drain(self.view, self.node, policy) {
            None => {}
            // The slot is kept while the node is only being checked.
            Some(Wait::ReadingPods | Wait::AskingExpressions { .. }) => {
                return Decision::wait(Wait::ReadingPods).watching_pods().asking(queries());
            }
            Some(refused) => return self.waiting_staged(progress, refused, true).watching_pods().asking(queries()),
        }
        let pods: Vec<_> =
            sorted.evictable.iter().chain(&sorted.leaving).take(LISTED_PODS).map(|pod| listed(pod)).collect();
        let unhealthy = on_node.iter().filter(|pod| pod.is_unhealthy(self.now) && !pod.finished && !pod.terminating);
        let unhealthy_before = owners(unhealthy.filter_map(|pod| pod.controller_uid.clone()), UNHEALTHY_OWNERS);
        let preexisting: Vec<String> = self.facts().set_by_others.iter().map(|part| part.name().to_owned()).collect();
        let first = if self.policy.leave_balancer.is_some() { Step::LeavingBalancer } else { Step::Draining };
        let mut action = self.step(&Progress { disruptive: true, ..progress.clone() }, first, |status| {
            let message = format!("cordoned for the update to {}", progress.version);
            let theirs = self.facts().set_by_others.has(Part::Cordon);
            let reason = if theirs { "CordonedBefore" } else { "Updating" };
            set_condition(&mut status.conditions, self.condition(CORDONED, true, reason, &message));
            set_condition(&mut status.conditions, self.condition(DRAINED, false, "Draining", "pods are being evicted"));
            status.report.drain = Some(DrainStatus { pods, preexisting, ..DrainStatus::default() });
            status.report.record.get_or_insert_default().unhealthy_before = unhealthy_before;
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

    /// Returns the end of an attempt whose node is out of service and not drained yet.
    fn ended_before_the_drain_did(&self, progress: &Progress) -> Option<Decision> {
        if let Some(decision) = self.ended_from_outside(progress) {
            return Some(decision);
        }
        if self.facts().boot_id != progress.boot_id {
            return Some(self.fail(progress, FailureReason::RebootedByOther, "the node was rebooted during the drain"));
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return Some(self.fail(progress, reason, message));
        }
        // A missing image is staged again meanwhile, as after a restart of the agent: the drain's end waits for it.
        if self.slot || self.view.operator.is_none() {
            return None;
        }
        // The resource is new and its slots are being rebuilt; nothing is disrupted without one.
        Some(Decision::wait(Wait::Queued { position: 0, behind: None }))
    }

    /// Returns the claim that is due, if the node does not have it.
    pub(super) fn claim_due(&self, progress: &Progress) -> Option<Decision> {
        let facts = self.facts();
        let parts = claim::wanted(Some(progress.step), self.policy).without(facts.set_otherwise);
        if parts.without(facts.claims).is_empty() && facts.unschedulable {
            return None;
        }
        let made = self.node.claims_made;
        let cordoned = facts.unschedulable && facts.claims.has(Part::Cordon);
        if made > RECLAIMS && cordoned {
            // A client removes the rest again and again: it is not worth an update.
            return None;
        }
        if made > RECLAIMS && self.shadow.spec.permit.is_none() {
            let message = format!("another client uncordoned the node {made} times; hold it to keep it out of updates");
            return Some(self.fail(progress, FailureReason::Uncordoned, &message));
        }
        let note = (made > 0 && !facts.unschedulable).then(|| Note {
            warning: true,
            reason: "Uncordoned",
            message: format!(
                "another client uncordoned a node whose update is under way; cordoned again ({made} of {RECLAIMS})"
            ),
        });
        Some(Decision::act(Action::Claim { parts, note }))
    }

    /// Waits before the drain of a cordoned node that has left the balancer: open connections may end by themselves.
    pub(super) fn leaving_balancer(&self, progress: &Progress) -> Decision {
        if let Some(decision) = self.ended_before_the_drain_did(progress) {
            return decision;
        }
        let deadline = self.deadline(progress.since, self.group().drain.timeout);
        if let Some(claim) = self.claim_due(progress) {
            if self.now >= deadline {
                return self.fail(progress, FailureReason::DrainTimedOut, "the node could not be cordoned");
            }
            return claim.waking_at(deadline);
        }
        // The claim may be later than the step: the Node records its time.
        let since = self.facts().claimed_since.map_or(progress.since, |claimed| claimed.max(progress.since));
        let until = after(since, self.policy.leave_balancer.unwrap_or_default());
        if self.now < until {
            return Decision::wait(Wait::LeavingBalancer { until }).waking_at(until);
        }
        Decision::act(self.step(progress, Step::Draining, |_| {}))
    }

    pub(super) fn draining(&self, progress: &Progress) -> Decision {
        self.draining_pods(progress).watching_pods()
    }

    fn draining_pods(&self, progress: &Progress) -> Decision {
        if let Some(decision) = self.ended_before_the_drain_did(progress) {
            return decision;
        }
        let policy = &self.group().drain;
        let claim = self.claim_due(progress);
        let sorted = self.sorted_pods();
        let deadline = self.deadline(progress.since, policy.timeout);
        let drained = claim.is_none() && self.still_staged() && sorted.as_ref().is_some_and(Sorted::empty);
        if self.now >= deadline && !drained {
            // A kubelet that is silent ends no pod: without its object a second one would run beside it.
            let forced =
                claim.is_none() && policy.at_deadline == AtDeadline::Force && self.policy.present && self.facts().ready;
            let refused = sorted.as_ref().is_some_and(|s| !s.refused.is_empty());
            return match &sorted {
                Some(sorted) if forced && !refused && !sorted.empty() => self.force(progress, sorted, deadline),
                sorted => self.drain_timed_out(progress, claim.is_none(), sorted.as_ref()),
            };
        }
        if let Some(claim) = claim {
            return claim.waking_at(deadline);
        }
        let Some(sorted) = sorted else { return Decision::wait(Wait::ReadingPods).waking_at(deadline) };
        if sorted.empty() {
            if !self.still_staged() {
                return Decision::wait(Wait::AgentBehind).waking_at(deadline);
            }
            let volumes = self.detaching_volumes();
            if policy.wait_for_volumes && volumes > 0 && self.now < deadline {
                return Decision::wait(Wait::DetachingVolumes { count: volumes }).waking_at(deadline);
            }
            return Decision::act(self.drained(progress, &sorted));
        }
        if let Some(refused) = refusal(&sorted) {
            return self.fail(progress, FailureReason::DrainRefused, &refused.to_string());
        }
        if let Some(pod) = self.returned(&sorted) {
            return self.pods_return(progress, pod);
        }
        if let Some(action) = self.record_new(&sorted) {
            return Decision::act(action).waking_at(deadline);
        }
        let blocked = |uid: &str| self.node.blocked.get(uid);
        if let Some((pod, fatal)) =
            sorted.evictable.iter().find_map(|p| Some((p, blocked(&p.uid).filter(|b| b.fatal)?)))
        {
            let message = format!("{} cannot be evicted: {}", pod.title(), fatal.message);
            return self.fail(progress, FailureReason::DrainRefused, &message);
        }
        let waits_for_answer = |pod: &PodFacts| self.node.in_flight.contains_key(&pod.uid);
        let due = sorted.first_to_go().filter(|pod| !waits_for_answer(pod));
        let due = due.filter(|pod| blocked(&pod.uid).is_none_or(|b| b.retry_at <= self.now));
        let evictions = Evictions { pods: due.map(Eviction::of).collect(), grace: policy.grace, delete: false };
        let left = sorted.evictable.len() + sorted.leaving.len();
        let (blockers, changes) = self.blockers(&sorted);
        let wait = match blockers.first() {
            Some(Blocker { pod, budget, message, .. }) => {
                Wait::DrainBlocked { pod: pod.clone(), budget: budget.clone(), message: message.clone(), left }
            }
            None => Wait::Draining { left },
        };
        let decision = match self.blockers_changed(blockers, &wait) {
            Some(action) => Decision::act(action),
            None => Decision::wait(wait),
        };
        let retries = sorted.first_to_go().filter(|pod| !waits_for_answer(pod)).filter_map(|p| blocked(&p.uid));
        let retry = retries.map(|b| b.retry_at).filter(|at| *at > self.now).min();
        // A pod that has ended is waited for no longer than its grace period, and others as policy says.
        let given_up = |pod: &&PodFacts| {
            let by = pod.ends_by?;
            let ended = pod.finished.then(|| by.checked_add(drain::ENDED).unwrap_or(by));
            [ended, policy.skip_terminating_after.map(|skip| after(by, skip))].into_iter().flatten().min()
        };
        let given_up = sorted.leaving.iter().filter_map(given_up).min();
        // An eviction that is sent now and not answered is named then.
        let unanswered = (!evictions.pods.is_empty()).then(|| after(self.now, BLOCKED_AFTER));
        let wakes = [retry, changes, unanswered, given_up].into_iter().flatten();
        wakes.fold(decision.evicting(evictions).waking_at(deadline), Decision::waking_at)
    }

    /// Records, before a pod is evicted, that it came after the drain began, and its owner if it tolerates the cordon:
    /// only from then on is such a pod of this owner one that has come back. For pods that do not tolerate it, and that
    /// the scheduler may have placed before it observed the cordon, the number of times per owner is counted.
    pub(super) fn record_new(&self, sorted: &Sorted<'_>) -> Option<Action> {
        let mut drain = self.drain()?.clone();
        let new: Vec<_> = sorted.evictable.iter().copied().filter(|pod| !drain::listed(pod, &drain)).collect();
        let new = if drain.pods.len() + new.len() > LISTED_PODS { Vec::new() } else { new };
        let evicted = tolerating_owners(sorted.evictable.iter().copied()).chain(drain.evicted_owners.iter().cloned());
        let evicted = owners(evicted, EVICTED_OWNERS);
        if new.is_empty() && evicted == drain.evicted_owners {
            return None;
        }
        drain.evicted_owners = evicted;
        drain.pods.extend(new.iter().map(|pod| listed(pod)));
        let returned = new.iter().filter(|pod| !pod.tolerates_cordon).filter_map(|pod| pod.controller_uid.clone());
        for uid in owners(returned, RETURNED_OWNERS) {
            if let Some(owner) = drain.returned_owners.iter_mut().find(|owner| owner.uid == uid) {
                owner.times += 1;
            } else if drain.returned_owners.len() < RETURNED_OWNERS {
                drain.returned_owners.push(ReturnedOwner { uid, times: 1 });
            }
        }
        let mut status = self.half();
        status.report.drain = Some(drain);
        Some(Action::Status { status: Box::new(status), note: None })
    }

    /// Returns a new pod of an owner that has put pods on the cordoned node too often for the scheduler to be the
    /// cause, and that would do so for ever.
    pub(super) fn returned<'b>(&self, sorted: &Sorted<'b>) -> Option<&'b PodFacts> {
        let drain = self.drain()?;
        let too_often =
            |uid: &String| drain.returned_owners.iter().any(|owner| owner.uid == *uid && owner.times >= RETURNS);
        let new = sorted.evictable.iter().copied().filter(|pod| !pod.tolerates_cordon && !drain::listed(pod, drain));
        new.into_iter().find(|pod| pod.controller_uid.as_ref().is_some_and(too_often))
    }

    pub(super) fn pods_return(&self, progress: &Progress, pod: &PodFacts) -> Decision {
        let owner = pod.controller.as_deref().unwrap_or("its owner");
        let message = format!(
            "{} was put on the cordoned node by {owner}, as others before it, although it does not tolerate the cordon; \
             remove nodeName from the template of its pods",
            pod.title()
        );
        self.fail(progress, FailureReason::PodsReturn, &message)
    }

    /// Returns how many volumes the node has beyond those that the pods on it claim: the pods of a drained node stay,
    /// and their volumes with them.
    fn detaching_volumes(&self) -> usize {
        let staying = self.node.pods.iter().flatten().filter(|pod| !pod.finished);
        let claims = staying.flat_map(|pod| pod.volume_claims.iter().map(|claim| (&pod.namespace, claim)));
        self.facts().volumes.saturating_sub(claims.collect::<BTreeSet<_>>().len())
    }

    /// The pods that the drain has listed and that are still on the node: the object, and not only its containers.
    fn still_here(&self) -> impl Iterator<Item = &PodFacts> {
        let listed = self.drain().map(|drain| drain.pods.as_slice()).unwrap_or_default();
        let listed: BTreeSet<&str> = listed.iter().map(|pod| pod.uid.as_str()).collect();
        self.node.pods.iter().flatten().filter(move |pod| listed.contains(pod.uid.as_str()))
    }

    /// The number of listed pods that have left.
    pub(super) fn gone(&self) -> i64 {
        let listed = self.drain().map_or(0, |drain| drain.pods.len());
        i64::try_from(listed.saturating_sub(self.still_here().count())).unwrap_or(i64::MAX)
    }

    /// Ends the drain. Pods that are left to the reboot are named: those that have been waited for long enough, with an
    /// Event, and those that tolerate the cordon and came back.
    fn drained(&self, progress: &Progress, sorted: &Sorted<'_>) -> Action {
        let stuck: Vec<_> = self.still_here().collect();
        let stuck = (!stuck.is_empty())
            .then(|| format!("left to the reboot because their deletion does not complete: {}", named(&stuck)));
        let returned = (!sorted.returned.is_empty()).then(|| {
            let pods = named(&sorted.returned);
            format!("left to the reboot because they tolerate the cordon and came back after their eviction: {pods}")
        });
        let left: Vec<_> = stuck.iter().chain(&returned).map(String::as_str).collect();
        let (reason, message) = match left[..] {
            [] => ("Drained", "every pod that had to go is gone".to_owned()),
            _ => ("PodsLeft", left.join("; ")),
        };
        let mut action = self.step(progress, Step::Rebooting, |status| {
            set_condition(&mut status.conditions, self.condition(DRAINED, true, reason, &message));
            if let Some(drain) = &mut status.report.drain {
                (drain.removed, drain.blockers) = (self.gone(), Vec::new());
            }
        });
        if let (Action::Status { note, .. }, Some(_)) = (&mut action, stuck) {
            *note = Some(Note { warning: true, reason: "PodsLeft", message });
        }
        action
    }
}
