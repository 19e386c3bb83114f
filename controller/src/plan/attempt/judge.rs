//! The node in another boot: did it work, and does it hold?

use models::condition::set_condition;
use models::reason::FailureReason;
use models::shadow::{CORDONED, ControllerStatus, DRAINED, HEALTHY, HostState, Progress, Step, UPDATED};

use super::{Case, after, unblock};
use crate::plan::{Action, Decision, Note, Wait};

impl Case<'_> {
    /// Whether the Node itself, or else its agent, says that the wanted version runs in its present boot.
    pub(super) fn runs_wanted(&self, progress: &Progress) -> bool {
        let agent = &self.shadow.status.agent;
        self.facts().os_version().as_ref() == Some(&progress.version)
            || (agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
                && agent.current_version.as_ref() == Some(&progress.version))
    }

    /// The node is in another boot than the one that the order was for.
    pub(super) fn in_another_boot(&self, progress: &Progress) -> Decision {
        if self.runs_wanted(progress) {
            if !self.facts().ready {
                return self.not_ready_yet(progress);
            }
            if self.facts().claimed {
                return Decision::act(Action::Release);
            }
            return Decision::act(self.step(progress, Step::Monitoring, |status| {
                let message = format!("back on {}", progress.version);
                set_condition(&mut status.conditions, self.condition(CORDONED, false, "Updated", &message));
                set_condition(&mut status.conditions, self.condition(DRAINED, false, "Updated", &message));
            }));
        }
        // Not the wanted version: the agent knows how far it had come.
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        self.not_ready_yet(progress)
    }

    pub(super) fn not_ready_yet(&self, progress: &Progress) -> Decision {
        if progress.step != Step::Returning {
            // Keeps the boot that the order was for: it is what tells that the node is in another one.
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
        if self.facts().claimed {
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
                // Once is nothing: the soak begins anew when the node is Ready. Twice is a node that does not hold.
                if progress.soak_restarted {
                    return self.fail(progress, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
                }
                let anew = Progress { soak_restarted: true, ..progress.clone() };
                return Decision::act(self.step(&anew, Step::Returning, |_| {}));
            }
            if self.now < until {
                return Decision::wait(Wait::Soaking { until }).waking_at(until);
            }
            return Decision::act(self.withdraw());
        }
        let mut status = self.half();
        let mut record = status.report.record.take().unwrap_or_default();
        record.failures = 0;
        record.not_before = None;
        record.last = Some(self.result(progress, UPDATED, ""));
        status.report.record = Some(record);
        status.report.progress = None;
        status.report.drain = None;
        let message = format!("Ready on {} for the soak time", progress.version);
        set_condition(&mut status.conditions, self.condition(HEALTHY, true, "Soaked", &message));
        unblock(&mut status);
        let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let note =
            Note { warning: false, reason: "Updated", message: format!("updated from {from} to {}", progress.version) };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }
}
