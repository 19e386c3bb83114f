//! Notices for other systems: which events are new, and which notices are still to be sent. Both are part of the operator's
//! status. So they are recorded by the write that records the event, and another leader continues with what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::condition::{false_condition, true_condition};
use models::history::RolloutPhase;
use models::operator::{
    ActiveRollout, BottlerocketUpdateOperatorStatus, CAUSE_LENGTH, ENABLED, KnownVersion, MOST_NODES, MOST_PENDING,
    Notice, NoticeEvent, NoticesStatus, UnwellSpan,
};
use models::plain::cut;
use models::time::after;
use models::{names, shadow};

use super::{Plan, report};
use crate::history::end_of;
use crate::phase;
use crate::policy::Notices;
use crate::survey::brake::Brake;
use crate::survey::key::{is_member, key_of};
use crate::survey::quarantine::Cause;
use crate::survey::{NodeContext, Survey};
use crate::view::{ClusterView, NodeView, ReportedFacts};
use crate::wait::{StepRequest, Wait, without_command};

/// The number of blocked nodes whose causes a notice names.
const CAUSES: usize = 3;

/// The longest id of a notice, in characters.
const ID_LENGTH: usize = 253;

/// The longest time for which nodes that become due are gathered in one notice.
const GATHERED: Duration = Duration::from_secs(60);

/// An event that follows from the operator's status.
enum Fact<'a> {
    Started(&'a ActiveRollout),
    Passed(&'a ActiveRollout, i64),
    Frozen(&'a KnownVersion),
    Ended(&'a ActiveRollout),
    Unwell(&'a UnwellSpan),
    Tested,
}

/// Returns the name of a rollout in a sentence.
fn named(rollout: &ActiveRollout) -> String {
    format!("the rollout of {} for {} {}", rollout.version, rollout.variant, rollout.arch)
}

/// Returns the part of an id that tells a rollout apart. Its number in the history does not: a rollout may have several.
fn part(rollout: &ActiveRollout) -> String {
    let ActiveRollout { version, variant, arch, started, .. } = rollout;
    format!("{variant}/{arch}/{version}/{}", started.as_millisecond())
}

/// Returns the id of the notice that a user requests with this value.
pub fn test_notice_id(uid: &str, value: &str) -> String {
    format!("{uid}/test/{value}")
}

/// Returns whether the rollout of a record that was stopped goes on in another one, as where the record was full.
fn is_continued(status: &BottlerocketUpdateOperatorStatus, rollout: &ActiveRollout) -> bool {
    let continues = |other: &ActiveRollout| {
        let first = other.record.as_ref().and_then(|record| record.first);
        other.ended.is_none() && first.is_some() && part(other) == part(rollout)
    };
    let is_stopped = rollout.record.as_ref().is_some_and(|record| record.phase == RolloutPhase::Stopped);
    is_stopped && rollout.ended.is_some() && status.active_rollouts.iter().any(continues)
}

/// Returns the events that a status shows, by their ids, or by what these begin with.
fn facts<'a>(uid: &str, status: &'a BottlerocketUpdateOperatorStatus) -> BTreeMap<String, Fact<'a>> {
    let mut facts = BTreeMap::new();
    for rollout in &status.active_rollouts {
        if let Some(record) = &rollout.record {
            facts.insert(format!("{uid}/rollout/{}/started", record.number), Fact::Started(rollout));
            if record.ended.is_some() && !is_continued(status, rollout) {
                facts.insert(format!("{uid}/rollout/{}/ended", record.number), Fact::Ended(rollout));
            }
        }
        for step in 1..=rollout.steps_passed.min(MOST_STEPS) {
            facts.insert(format!("{uid}/{}/step/{step}/passed", part(rollout)), Fact::Passed(rollout, step));
        }
    }
    for known in &status.versions {
        let KnownVersion { version, variant, arch, .. } = known;
        if let Some(quarantined) = &known.quarantined {
            let since = quarantined.since.as_millisecond();
            facts.insert(format!("{uid}/{variant}/{arch}/{version}/frozen/{since}"), Fact::Frozen(known));
        }
    }
    for span in &status.unwell {
        facts.insert(format!("{uid}/unwell/{}", span.since.as_millisecond()), Fact::Unwell(span));
    }
    if let Some(value) = status.requests.as_ref().and_then(|requests| requests.test_notices.as_ref()) {
        facts.insert(test_notice_id(uid, value), Fact::Tested);
    }
    facts
}

/// The highest number of a canary step that there is.
const MOST_STEPS: i64 = 16;

/// The command that shows the cause of what has stopped, and all ways to go on. One that tries a version again, or accepts it, without
/// evidence is not the first to type, and a notice has no other.
const STATUS: &str = "kubectl brupop status";

/// The event of a notice that a user requests, which every receiver gets.
pub const TEST_NOTICE: &str = "Test";

/// Returns a notice for no receiver yet.
fn notice(id: &str, event: &str, time: Timestamp, subject: &str, cause: &str, command: &str) -> Notice {
    Notice {
        id: cut(id, ID_LENGTH),
        event: event.to_owned(),
        time,
        subject: cut(subject, 253),
        nodes: Vec::new(),
        cause: cut(cause, CAUSE_LENGTH),
        deadline: None,
        command: cut(command, 512),
        receivers: Vec::new(),
    }
}

/// The source of notices.
struct Source<'a> {
    view: &'a ClusterView,
    survey: &'a Survey<'a>,
    plan: &'a Plan,
    status: &'a BottlerocketUpdateOperatorStatus,
    uid: &'a str,
    now: Timestamp,
}

impl Source<'_> {
    /// Returns the id of the notice of an event that may come again, as a step that is passed a second time: receivers discard an id
    /// that they have had.
    fn dated(&self, prefix: &str) -> String {
        let time = format!("/{}", self.now.as_millisecond());
        format!("{}{time}", cut(prefix, ID_LENGTH.saturating_sub(time.len())))
    }

    /// Returns the notice of an event of a rollout, with the first few nodes that run its version, or that do not as it starts.
    fn of_rollout(
        &self,
        rollout: &ActiveRollout,
        id: &str,
        event: NoticeEvent,
        time: Timestamp,
        cause: &str,
        command: &str,
    ) -> Notice {
        let updated = event != NoticeEvent::RolloutStarted;
        let runs = |node: &NodeView| {
            let version = node.shadow.as_ref().and_then(|shadow| shadow.status.agent.current_version.as_ref());
            version == Some(&rollout.version)
        };
        let is_such = |node: &&NodeView| node.facts.labelled && is_member(node, rollout) && runs(node) == updated;
        let of = self.view.nodes.values().filter(is_such).take(MOST_NODES);
        let subject = format!("rollout/{}", rollout.number());
        Notice {
            nodes: of.map(|node| node.facts.name.clone()).collect(),
            ..notice(id, event.as_str(), time, &subject, cause, command)
        }
    }

    /// Returns the notice of an event that follows from the status.
    fn of_fact(&self, id: &str, fact: &Fact<'_>) -> Notice {
        match fact {
            Fact::Started(rollout) => {
                // A rollout begins in the history when nodes are to be updated, also while nothing may start.
                let disabled = false_condition(&self.status.conditions, ENABLED);
                let disabled = disabled.map_or_else(String::new, |condition| format!("; {}", condition.message));
                let cause = format!("{} began{disabled}", named(rollout));
                let begun = rollout.record.as_ref().map_or(self.now, |record| record.begun);
                self.of_rollout(rollout, id, NoticeEvent::RolloutStarted, begun, &cause, STATUS)
            }
            Fact::Passed(rollout, step) => {
                let cause = format!("canary step {step} of {} is passed", named(rollout));
                self.of_rollout(rollout, &self.dated(id), NoticeEvent::StepPassed, self.now, &cause, STATUS)
            }
            Fact::Ended(rollout) => {
                let record = rollout.record.as_ref();
                let phase = record.map_or(RolloutPhase::Stopped, |record| record.phase);
                let ended = record.and_then(|record| record.ended).unwrap_or(self.now);
                let cause = format!("{} ended ({phase:?}): {}", named(rollout), end_of(phase));
                let command = format!("kubectl brupop history {}", record.map_or(0, |record| record.number));
                self.of_rollout(rollout, id, NoticeEvent::RolloutEnded, ended, &cause, &command)
            }
            Fact::Frozen(known) => self.of_freeze(id, known),
            Fact::Unwell(span) => {
                let (UnwellSpan { since, nodes, .. }, wait) = (span, Wait::of_unwell(span));
                let cause = format!("only rollouts that take ill nodes off their version go on: {wait}");
                Notice {
                    nodes: nodes.clone(),
                    ..notice(id, NoticeEvent::ClusterUnwell.as_str(), *since, "nodes", &cause, "kubectl get nodes")
                }
            }
            Fact::Tested => {
                let cause = "a user has requested this notice, to try its way: there is nothing to do";
                let subject = format!("bottlerocketupdateoperator/{}", names::OPERATOR_NAME);
                notice(id, TEST_NOTICE, self.now, &subject, cause, STATUS)
            }
        }
    }

    fn of_freeze(&self, id: &str, known: &KnownVersion) -> Notice {
        let quarantined = known.quarantined.as_ref();
        let nodes = quarantined.map(|quarantined| quarantined.nodes.clone()).unwrap_or_default();
        let cause =
            Cause { reason: quarantined.map(|quarantined| quarantined.reason), nodes: nodes.clone(), contained: false };
        let failed = report::failed_too_often([(&crate::survey::key::of_known(known), &cause)]);
        let since = quarantined.map_or(self.now, |quarantined| quarantined.since);
        let subject = match nodes.first() {
            Some(node) => format!("node/{node}"),
            None => "nodes".to_owned(),
        };
        Notice { nodes, ..notice(id, NoticeEvent::Frozen.as_str(), since, &subject, &failed, STATUS) }
    }

    /// Returns the requests of users that are awaited, by what the ids of their notices begin with.
    fn approvals(&self) -> BTreeMap<String, Notice> {
        let rollouts = self.status.active_rollouts.iter().filter(|rollout| rollout.ended.is_none());
        let awaited = rollouts.filter_map(|rollout| {
            let key = key_of(rollout);
            let state = self.survey.rollouts.by_key(&key)?;
            let is_frozen = self.survey.quarantine.spent.contains_key(&key);
            let stopped = state.wait.as_ref().and_then(Wait::step).is_some();
            let is_braked = |brake: &&Brake| matches!(brake.wait, Wait::Braked { .. }) && !stopped && !is_frozen;
            if let Some(brake) = state.brake.as_ref().filter(is_braked) {
                let (number, tried) = (rollout.number(), rollout.ledger.as_ref().map_or(0, |ledger| ledger.tried));
                let prefix = format!("{}/{}/braked/{number}/{tried}", self.uid, part(rollout));
                let id = self.dated(&prefix);
                let cause = format!("{}: {}", named(rollout), without_command(&brake.wait.to_string()));
                return Some((prefix, self.of_rollout(rollout, &id, NoticeEvent::Braked, self.now, &cause, STATUS)));
            }
            let wait = state.wait.as_ref()?;
            let (step, request) = wait.step()?;
            // Nodes that join can have the step begin again, and its approval is then awaited again.
            let since = rollout.step_done.map_or(0, Timestamp::as_millisecond);
            let places = rollout.ledger.as_ref().map_or(0, |ledger| ledger.due);
            let why = match wait {
                Wait::StepUnproven { .. } => format!("unproven/{}", rollout.step_name(places)),
                Wait::StepFailed { .. } => format!("failed/{}", rollout.step_name(places)),
                _ => format!("approval/{since}"),
            };
            let prefix = format!("{}/{}/step/{step}/{why}", self.uid, part(rollout));
            let id = self.dated(&prefix);
            // The command of kubectl alone is replaced by the plugin's.
            let cause = format!("{}: {}", named(rollout), without_command(&wait.to_string()));
            let command = match request {
                StepRequest::Approve(_) => {
                    // Another record may begin in this plan, after the reason was found.
                    let request = StepRequest::Approve(rollout.number());
                    format!("kubectl brupop {}", request.arguments(step, ""))
                }
                StepRequest::ApproveUnproven(_) | StepRequest::Resume => STATUS.to_owned(),
            };
            let event = NoticeEvent::AwaitingApproval;
            Some((prefix, self.of_rollout(rollout, &id, event, self.now, &cause, &command)))
        });
        awaited.collect()
    }

    /// Returns the notice of nodes that are blocked, each since a time, with the causes of the first few.
    fn of_blocked(&self, id: &str, blocked: &[(Timestamp, &str)]) -> Option<Notice> {
        let cause = |(since, name): &(Timestamp, &str)| {
            let shadow = self.view.nodes.get(*name)?.shadow.as_ref()?;
            let condition = true_condition(&shadow.status.conditions, shadow::BLOCKED)?;
            let message = without_command(&condition.message);
            Some(format!("{name} has been blocked since {since:.0} ({}): {message}", condition.reason))
        };
        let mut causes: Vec<String> = blocked.iter().take(CAUSES).filter_map(cause).collect();
        if let more @ 1.. = blocked.len().saturating_sub(CAUSES) {
            causes.push(format!("and {more} more nodes"));
        }
        let (_, first) = blocked.first()?;
        let subject = if blocked.len() == 1 { format!("node/{first}") } else { "nodes".to_owned() };
        let command = format!("kubectl brupop explain {first}");
        let node = self.survey.find(first);
        let step = node.and_then(|node| {
            let ctx = NodeContext::of(self.view, self.survey, node, self.now)?;
            phase::deadline(&ctx, node.progress()?)
        });
        let nodes = blocked.iter().take(MOST_NODES).map(|(_, name)| (*name).to_owned()).collect();
        let deadline = step.or_else(|| self.plan.waits.get(*first)?.ends_at());
        let notice = notice(id, NoticeEvent::NodesBlocked.as_str(), self.now, &subject, &causes.join("; "), &command);
        Some(Notice { nodes, deadline, ..notice })
    }
}

/// The nodes with the condition `Blocked`, and the times at which they are reported.
struct Blocked<'a> {
    /// Each since a time, the earliest first.
    nodes: Vec<(Timestamp, &'a str)>,
    /// The time since which a node has to be blocked to be reported.
    limit: Timestamp,
    after: Duration,
    period: i64,
}

impl<'a> Blocked<'a> {
    fn of(view: &'a ClusterView, notices: &Notices, now: Timestamp) -> Self {
        let since = |node: &'a crate::view::NodeView| {
            let condition = true_condition(&node.shadow.as_ref()?.status.conditions, shadow::BLOCKED)?;
            Some((condition.last_transition_time, node.facts.name.as_str()))
        };
        let mut nodes: Vec<_> = view.nodes.values().filter_map(since).collect();
        nodes.sort();
        // Nodes that become due in the same period are reported together, by any leader.
        let period = i64::try_from(notices.blocked_after.min(GATHERED).as_millis()).unwrap_or(1).max(1);
        let tick = now.as_millisecond().div_euclid(period) * period;
        let tick = Timestamp::from_millisecond(tick).unwrap_or(now);
        let after = notices.blocked_after;
        Self { nodes, limit: tick.saturating_sub(models::time::signed(after)).unwrap_or(Timestamp::MIN), after, period }
    }

    /// Returns the nodes that are to be reported now.
    fn due(&self, reported: Timestamp) -> &[(Timestamp, &'a str)] {
        let from = self.nodes.partition_point(|(since, _)| *since <= reported);
        let to = self.nodes.partition_point(|(since, _)| *since <= self.limit);
        self.nodes.get(from..to).unwrap_or_default()
    }

    /// Returns when further nodes are to be reported.
    fn wake(&self) -> Option<Timestamp> {
        let next = self.nodes.iter().find(|(since, _)| *since > self.limit)?;
        let due = after(next.0, self.after).as_millisecond();
        Timestamp::from_millisecond(due.saturating_add(self.period - 1).div_euclid(self.period) * self.period).ok()
    }
}

/// Puts the state of notices into a status that is about to be written. Returns when it changes without another event. An
/// event is one that the recorded status does not show; when notices are enabled, nothing about the past is sent.
pub(super) fn follow(
    view: &ClusterView,
    reported: &ReportedFacts,
    survey: &Survey<'_>,
    plan: &Plan,
    status: &mut BottlerocketUpdateOperatorStatus,
    now: Timestamp,
) -> Option<Timestamp> {
    let (Some(operator), Some(notices)) = (&view.operator, &survey.policy.notices) else { return None };
    let source = Source { view, survey, plan, status, uid: &operator.uid, now };
    let blocked = Blocked::of(view, notices, now);
    let approvals = source.approvals();
    let approvals_reported = approvals.keys().cloned().collect();
    let state = match &operator.status.notices {
        None => NoticesStatus { blocked_reported: blocked.limit, approvals_reported, pending: Vec::new() },
        Some(stored) => {
            let known = facts(&operator.uid, &operator.status);
            let new = facts(&operator.uid, source.status).into_iter().filter(|(id, _)| !known.contains_key(id));
            let mut events: Vec<Notice> = new.map(|(id, fact)| source.of_fact(&id, &fact)).collect();
            let is_reported = |prefix: &String| stored.approvals_reported.contains(prefix);
            events.extend(approvals.into_iter().filter(|(prefix, _)| !is_reported(prefix)).map(|a| a.1));
            let due = blocked.due(stored.blocked_reported);
            let last_reported = due.last().map_or(stored.blocked_reported, |(since, _)| *since);
            let id = format!("{}/blocked/{}", operator.uid, last_reported.as_millisecond());
            events.extend(source.of_blocked(&id, due));
            events.sort_by_key(|notice| notice.time);
            let pending = pending(&reported.notices.done, notices, &stored.pending, events);
            NoticesStatus { blocked_reported: last_reported, approvals_reported, pending }
        }
    };
    status.notices = Some(state);
    blocked.wake()
}

/// Returns the notices that are still to be sent: those recorded that are not done, and those of the new events.
fn pending(
    done: &BTreeSet<(String, String)>,
    notices: &Notices,
    recorded: &[Notice],
    events: Vec<Notice>,
) -> Vec<Notice> {
    let recorded = recorded.iter().cloned().map(|mut notice| {
        let is_done = |receiver: &String| done.contains(&(receiver.clone(), notice.id.clone()));
        let is_receiver = |name: &String| notices.receivers.iter().any(|receiver| receiver.name == *name);
        notice.receivers =
            notice.receivers.iter().filter(|name| is_receiver(name) && !is_done(name)).cloned().collect();
        notice
    });
    let events = events.into_iter().map(|notice| {
        let wants = notices.receivers.iter().filter(|receiver| {
            notice.event == TEST_NOTICE
                || receiver.events.is_empty()
                || receiver.events.iter().any(|event| event.as_str() == notice.event)
        });
        let receivers = wants.map(|receiver| receiver.name.clone()).collect();
        Notice { receivers, ..notice }
    });
    let mut pending: Vec<Notice> = recorded.chain(events).filter(|notice| !notice.receivers.is_empty()).collect();
    pending.drain(..pending.len().saturating_sub(MOST_PENDING));
    pending
}

#[cfg(test)]
mod tests;
