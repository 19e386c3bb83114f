//! The permit: the desired state to reboot, the agent's request, the answer, and the wait for the reboot.

use models::condition::set_condition;
use models::reason::FailureReason;
use models::shadow::{DRAINED, DrainStatus, HostState, Progress, Step};

use super::Case;
use crate::plan::{Action, Decision, Wait};

impl Case<'_> {
    pub(super) fn rebooting(&self, progress: &Progress) -> Decision {
        let spec = &self.shadow.spec;
        if self.facts().boot_id != progress.boot_id {
            return self.in_another_boot(progress);
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if spec.permit.is_none()
            && let Some(decision) = self.ended_from_outside(progress)
        {
            return decision;
        }
        if spec.attempt != progress.attempt || spec.state == HostState::Idle {
            return self.fail(
                progress,
                FailureReason::ProgressLost,
                "the desired state does not belong to this attempt",
            );
        }
        let deadline = self.deadline(progress.since, self.policy.reboot);
        if self.now >= deadline {
            if self.activated(progress) && !self.facts().ready {
                // Armed, rebooted, and not seen since: an image that breaks the host's network looks just like this.
                let message = "the node has not been seen since its image was armed";
                return self.fail(progress, FailureReason::NotReadyAfterBoot, message);
            }
            let reason = if spec.permit.is_some() { FailureReason::RebootTimedOut } else { FailureReason::AgentSilent };
            return self.fail(progress, reason, "the host did not reboot in time");
        }
        // An agent that was restarted after it had armed the host also requests a permit, for the reboot alone.
        if let Some(claim) = self.claim_due(progress) {
            // Uncordoned during the attempt: pods that the scheduler placed here since would be lost.
            return claim.watching_pods().waking_at(deadline);
        }
        if spec.state == HostState::StagedUpdate {
            return Decision::act(self.order(HostState::RebootedIntoUpdate, progress)).watching_pods();
        }
        let decision = match self.asks() {
            Some(armed) if spec.permit.as_ref().is_none_or(|permit| permit.nonce != armed.nonce) => {
                self.answer(progress, &armed.nonce)
            }
            _ if spec.permit.is_some() => Decision::wait(Wait::AwaitingReboot),
            _ => Decision::wait(Wait::AwaitingAgent),
        };
        decision.watching_pods().waking_at(deadline)
    }

    /// Answers the agent's request with a permit if no pod came to the node since it was drained.
    pub(super) fn answer(&self, progress: &Progress, nonce: &str) -> Decision {
        let Some(sorted) = self.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
        if let Some(pod) = sorted.left().find(|pod| !pod.terminating) {
            let drain = self.drain().cloned().unwrap_or_default();
            if self.shadow.spec.permit.is_none() && !drain.restarted {
                // The scheduler had not observed the cordon yet, or the pod tolerates it. No permit is issued, so there
                // is time to drain it too, once.
                return Decision::act(self.step(progress, Step::Draining, |status| {
                    set_condition(
                        &mut status.conditions,
                        self.condition(DRAINED, false, "Draining", "a pod was placed here during the cordon"),
                    );
                    status.report.drain = Some(DrainStatus { restarted: true, ..drain });
                }));
            }
            let message = format!("{} came to the drained node", pod.title());
            return self.fail(progress, FailureReason::PodsReturn, &message);
        }
        if !sorted.leaving.is_empty() {
            return Decision::wait(Wait::Draining { left: sorted.leaving.len() });
        }
        Decision::act(Action::Permit { nonce: nonce.to_owned(), rules: self.group().drain.rules_at(self.now) })
    }
}
