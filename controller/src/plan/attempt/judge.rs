//! The node in another boot: did it work, and does it hold?

use jiff::Timestamp;
use models::condition::set_condition;
use models::reason::FailureReason;
use models::shadow::{CORDONED, ControllerStatus, DRAINED, HEALTHY, HostState, Progress, Step, UPDATED};

use super::{Case, after, unblock};
use crate::plan::{Action, Decision, Note, Wait, gates};

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
            if self.to_release() {
                return Decision::act(Action::Release);
            }
            let watched = self.watched();
            if self.group().after.pods_ready && watched.is_none() {
                return Decision::wait(Wait::ReadingPods);
            }
            let monitored = Progress {
                restarts: watched.map(|watched| watched.restarts),
                watched_since: progress.watched_since.or(Some(self.now)),
                ..progress.clone()
            };
            return Decision::act(self.step(&monitored, Step::Monitoring, |status| {
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
                // Once is nothing: the soak begins anew when the node is Ready. Twice is a node that does not hold.
                if progress.soak_restarted {
                    return self.fail(progress, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
                }
                let anew = Progress { soak_restarted: true, ..progress.clone() };
                return Decision::act(self.step(&anew, Step::Returning, |_| {}));
            }
            return self.soaking(progress, until);
        }
        let lonely = self.watched().is_some_and(|watched| watched.workload == 0);
        let nobody = if lonely { ", and no pods of workloads were scheduled to it" } else { "" };
        let message = format!("Ready on {} for the soak time{nobody}", progress.version);
        let mut status = self.half();
        let mut record = status.report.record.take().unwrap_or_default();
        record.failures = 0;
        record.not_before = None;
        record.last = Some(self.result(progress, UPDATED, &message));
        status.report.record = Some(record);
        status.report.progress = None;
        status.report.drain = None;
        set_condition(&mut status.conditions, self.condition(HEALTHY, true, "Soaked", &message));
        unblock(&mut status);
        let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let note =
            Note { warning: false, reason: "Updated", message: format!("updated from {from} to {}", progress.version) };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }

    /// The node is watched: it is done when the soak is over, its pods are Ready, none of their containers was restarted
    /// meanwhile, and the expressions are quiet.
    fn soaking(&self, progress: &Progress, until: Timestamp) -> Decision {
        let after_policy = &self.group().after;
        let deadline = self.deadline(progress.watched_since.unwrap_or(progress.since), after_policy.timeout);
        let queries = gates::queries(&after_policy.expressions, &self.facts().name).map(|(_, query)| query);
        let looking = |decision: Decision| decision.asking(queries);
        let Some(watched) = self.watched().or_else(|| (!after_policy.pods_ready).then(Watched::default)) else {
            return looking(self.unknown_until(progress, deadline, Wait::ReadingPods));
        };
        if after_policy.pods_ready && progress.restarts.is_some_and(|before| watched.restarts > before) {
            if self.now >= deadline {
                let message = format!("containers keep restarting on {}", progress.version);
                return self.fail(progress, FailureReason::SoakFailed, &message);
            }
            // The soak begins anew with what has been restarted by now.
            let anew = Progress { restarts: Some(watched.restarts), ..progress.clone() };
            return looking(Decision::act(self.step(&anew, Step::Monitoring, |_| {})));
        }
        if self.now < until {
            return looking(Decision::wait(Wait::Soaking { until }).waking_at(until));
        }
        if after_policy.pods_ready
            && let Some((pod, count)) = watched.not_ready
        {
            if self.now >= deadline {
                let message = format!("{count} pod(s) are not Ready on {}, {pod} first", progress.version);
                return self.fail(progress, FailureReason::SoakFailed, &message);
            }
            return looking(Decision::wait(Wait::Settling { pod, count }).waking_at(deadline));
        }
        match gates::quiet_since(&after_policy.expressions, &self.facts().name, &self.view.expressions) {
            Err(Wait::ExpressionFires { name, series, .. }) if self.now >= deadline => {
                let message = format!("the expression {name} returned {series} on {}", progress.version);
                self.fail(progress, FailureReason::SoakFailed, &message)
            }
            Err(wait) => looking(self.unknown_until(progress, deadline, wait)),
            // Quiet at last: also past the deadline it has the soak to stay so, and fails at once if it does not.
            Ok(Some(since)) if self.now < after(since, after_policy.soak) => {
                let until = after(since, after_policy.soak);
                looking(Decision::wait(Wait::Soaking { until }).waking_at(until))
            }
            Ok(_) => Decision::act(self.withdraw()),
        }
    }

    /// Waits for what is not known, and gives up when it takes too long: nobody can call the version bad for that.
    fn unknown_until(&self, progress: &Progress, deadline: Timestamp, wait: Wait) -> Decision {
        if self.now >= deadline {
            let message = format!("whether the node is healthy could not be found out: {wait}");
            return self.fail(progress, FailureReason::HealthUnknown, &message);
        }
        Decision::wait(wait).waking_at(deadline)
    }

    /// What the pods on the node come to; `None` while they are not known.
    fn watched(&self) -> Option<Watched> {
        let excused = self.drain().map(|drain| drain.unhealthy_before.as_slice()).unwrap_or_default();
        let pods = self.node.pods.as_ref()?.iter().filter(|pod| {
            let sick_before = pod.controller_uid.as_ref().is_some_and(|owner| excused.contains(owner));
            !pod.finished && !pod.terminating && !sick_before
        });
        let mut watched = Watched::default();
        for pod in pods {
            watched.restarts = watched.restarts.saturating_add(pod.restarts);
            watched.workload += usize::from(!pod.mirror && pod.daemon_set.is_none());
            if !pod.ready {
                let (_, count) = watched.not_ready.get_or_insert_with(|| (pod.title(), 0));
                *count += 1;
            }
        }
        Some(watched)
    }
}

/// What the pods on a node come to after its update. Pods of owners that were not healthy before the drain are left out.
#[derive(Default)]
struct Watched {
    /// How often their containers have been restarted.
    restarts: i64,
    /// How many are not a DaemonSet's, or static.
    workload: usize,
    /// The first that is not Ready, and how many are not.
    not_ready: Option<(String, usize)>,
}
