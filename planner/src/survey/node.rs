//! The facts about one node that the gates and the phases of an update read.

use std::iter;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, set_condition};
use models::operator::Slot;
use models::reason::FailureReason;
use models::shadow::{
    ControllerStatus, DrainStatus, Drill, HOST_REACHABLE, HistoryPosition, HostState, Mode, NodeBefore, Progress, Step,
};
use models::time::after;
use semver::Version;

use crate::claims::{ClaimField, recorded};
use crate::drain::{self, Sorted};
use crate::expressions::Subject;
use crate::policy::{GroupPolicy, Policy};
use crate::survey::unwell::LONGEST;
use crate::survey::{Survey, SurveyedNode, want};
use crate::view::{ClusterView, DaemonSetState, NodeFacts, ShadowFacts};
use crate::wait::Wait;

/// The least time that a new leader gives a step of an earlier one: long enough to observe its result.
const GRACE: Duration = Duration::from_secs(30);

/// The most time that a new leader gives a step of an earlier one: after an outage of the control plane, agents, hooks and nodes first do what
/// they could not do in it. A change of the policy gives no more: it may be about something else.
const LONGEST_GRACE: Duration = Duration::from_secs(10 * 60);

/// A condition that changes now.
pub(crate) fn condition(
    now: Timestamp,
    type_: &str,
    holds: impl Into<ConditionStatus>,
    reason: &str,
    message: &str,
) -> Condition {
    let (type_, reason, message) = (type_.to_owned(), reason.to_owned(), message.to_owned());
    Condition { type_, status: holds.into(), reason, message, last_transition_time: now, observed_generation: None }
}

/// The facts that the rules for one node read.
pub(crate) struct NodeContext<'a> {
    pub(crate) view: &'a ClusterView,
    pub(crate) node: &'a SurveyedNode<'a>,
    pub(crate) shadow: &'a ShadowFacts,
    pub(crate) policy: &'a Policy,
    pub(crate) survey: &'a Survey<'a>,
    pub(crate) now: Timestamp,
    /// True if the node has a slot.
    pub(crate) slot: bool,
    /// The slot of the node, where it records that the reboot may be permitted.
    pub(crate) permitted: Option<&'a Slot>,
}

impl<'a> NodeContext<'a> {
    /// Returns the context of a node; `None` without a shadow.
    pub(crate) fn of(
        view: &'a ClusterView,
        survey: &'a Survey<'a>,
        node: &'a SurveyedNode<'a>,
        now: Timestamp,
    ) -> Option<Self> {
        let shadow = node.node.shadow.as_ref()?;
        Some(Self { view, node, shadow, policy: survey.policy, survey, now, slot: false, permitted: None })
    }

    pub(crate) fn facts(&self) -> &'a NodeFacts {
        &self.node.facts
    }

    /// Returns what expressions are evaluated for.
    pub(crate) fn subject(&self) -> Subject<'a> {
        self.node.subject()
    }

    /// The policy for nodes like this one.
    pub(crate) fn group(&self) -> &'a GroupPolicy {
        self.survey.group(self.node)
    }

    /// Returns the controller status, to be written with changes. Results that the page of an ended rollout holds go with any write.
    pub(crate) fn controller_status(&self) -> ControllerStatus {
        let mut status = self.shadow.status.controller_status();
        let ended = &self.view.history.ended;
        status.report.results.retain(|result| result.drill.is_some() || !ended.contains(&result.rollout));
        status
    }

    /// Sets a condition in a status that is about to be written.
    pub(crate) fn set_condition(
        &self,
        status: &mut ControllerStatus,
        type_: &str,
        holds: impl Into<ConditionStatus>,
        reason: &str,
        message: &str,
    ) {
        set_condition(&mut status.conditions, condition(self.now, type_, holds, reason, message));
    }

    /// Returns when a step that began at `since` and may take `limit` is given up. A leader gives a step of an earlier one some of that time again,
    /// and so does a change of the policy, which may have made the limit shorter, or more severe what happens then. A day after its deadline they
    /// give it little: it ends then also where the leader, or the policy, changes all the time.
    pub(crate) fn deadline(&self, since: Timestamp, limit: Duration) -> Timestamp {
        let at = self.time_over(since, limit);
        let late = after(at, LONGEST);
        let led = (self.view.leader_since, limit.clamp(GRACE, LONGEST_GRACE));
        let changed = self.policy_changed().map(|changed| (changed, limit.min(LONGEST_GRACE)));
        let later = iter::once(led).chain(changed).filter(|(from, _)| *from > since);
        let again = later.map(|(from, grace)| after(from, if from >= late { grace.min(GRACE) } else { grace }));
        again.fold(at, Timestamp::max)
    }

    /// Returns the time of the last change of the policy. The API server's clock may be ahead.
    pub(crate) fn policy_changed(&self) -> Option<Timestamp> {
        let operator = self.view.operator.as_ref()?;
        operator.spec_changed.map(|changed| changed.min(self.now))
    }

    /// Returns whether a leader finds a step of an earlier one a day or more after its deadline.
    pub(crate) fn is_found_late(&self, since: Timestamp, limit: Duration) -> bool {
        self.view.leader_since >= after(self.time_over(since, limit), LONGEST)
    }

    /// Returns when the time of a step is over under one leader. Trouble of the cluster stops its clock.
    fn time_over(&self, since: Timestamp, limit: Duration) -> Timestamp {
        let begun = self.survey.pause.resumed.map_or(since, |resumed| resumed.max(since));
        self.survey.unwell.deadline(begun, limit)
    }

    pub(crate) fn sorted_pods(&self) -> Option<Sorted<'a>> {
        let pods = self.node.pods.as_ref()?;
        if pods.iter().any(|pod| pod.daemon_set.is_some() && pod.daemon_set_state == DaemonSetState::Unknown) {
            // Requested, and as good as known.
            return None;
        }
        Some(drain::sort(pods, self.group().drain.rules_at(self.now), self.drain_status()))
    }

    /// The record of the drain, from before its first eviction.
    pub(crate) fn drain_status(&self) -> Option<&'a DrainStatus> {
        self.shadow.status.controller.drain.as_ref()
    }

    /// The facts of the node from before the drain of its last update.
    pub(crate) fn before(&self) -> Option<&'a NodeBefore> {
        self.node.record()?.before.as_ref()
    }

    /// Returns the end of an attempt that its agent reports. A boot that fell back is one once the Node is in another boot after a permit:
    /// until then the report is not judged, since it may come before that of the kubelet. Any other word that is not for an agent to
    /// report counts against the node.
    pub(crate) fn agent_failure(&self, progress: &Progress) -> Option<(FailureReason, String)> {
        let failure = self.shadow.status.agent.failure.as_ref().filter(|f| f.attempt == progress.attempt)?;
        let (reason, message) = (failure.reason, &failure.message);
        let fell_back = reason == FailureReason::BootFellBack;
        let permitted = self.permit_issued(progress);
        if fell_back && permitted && self.facts().boot_id == progress.boot_id {
            return None;
        }
        let accepted = reason.end().by_agent && (permitted || !fell_back);
        if accepted || reason == FailureReason::Unknown {
            return Some((reason, message.clone()));
        }
        Some((FailureReason::Unknown, format!("the agent reports {reason}, which is not accepted from it: {message}")))
    }

    /// Returns whether a permit to reboot was issued in an attempt. That of a rehearsal is none.
    pub(crate) fn permit_issued(&self, progress: &Progress) -> bool {
        let spec = &self.shadow.spec;
        progress.permit_issued || (spec.permit.is_some() && spec.state != HostState::RehearsedUpdate)
    }

    /// Returns whether the agent has reported in the node's current boot.
    pub(crate) fn has_reported(&self) -> bool {
        self.shadow.status.agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
    }

    /// Returns whether the desired state is for the node's current boot.
    pub(crate) fn desired_in_this_boot(&self) -> bool {
        self.shadow.spec.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
    }

    /// Returns whether the agent has confirmed, in the node's current boot, that the last desired state is reached.
    pub(crate) fn caught_up(&self) -> bool {
        self.shadow.status.agent.observed_generation == Some(self.shadow.generation) && self.has_reported()
    }

    pub(crate) fn is_staged(&self) -> bool {
        let state = self.shadow.status.agent.state;
        self.caught_up() && state == Some(HostState::StagedUpdate) && self.desired_in_this_boot()
    }

    /// Returns whether anything of the operator has to be released on the node: owned fields, or, after a reset of
    /// managedFields, fields that the record names and no client owns. A held node stays as it is while these cordon it; in service,
    /// it keeps nothing.
    pub(crate) fn needs_release(&self) -> bool {
        let left = self.facts().unowned.and(recorded(&self.shadow.status));
        !self.is_held_cordoned() && (self.facts().claimed() || !left.is_empty())
    }

    /// Returns whether a user holds the node with the operator's cordon.
    pub(crate) fn is_held_cordoned(&self) -> bool {
        let facts = self.facts();
        let left = facts.unowned.and(recorded(&self.shadow.status));
        facts.held() && (facts.claims.has(ClaimField::Cordon) || left.has(ClaimField::Cordon))
    }

    /// Returns the condition `HostReachable`, if the agent has reported.
    pub(crate) fn host_condition(&self) -> Option<&'a Condition> {
        models::condition::find_condition(&self.shadow.status.conditions, HOST_REACHABLE)
    }

    /// Returns the condition of a host whose update API its agent cannot use. `Unknown` is the controller's own word, for an agent that is
    /// not heard.
    pub(crate) fn unusable_host(&self) -> Option<&'a Condition> {
        let is_unusable = |condition: &&Condition| {
            condition.status == ConditionStatus::False || condition.reason == models::shadow::UNSUPPORTED_STATE
        };
        self.host_condition().filter(is_unusable)
    }

    /// Returns whether an image is armed on the host that its agent has no record of.
    pub(crate) fn is_armed_by_other(&self) -> bool {
        self.host_condition().is_some_and(|condition| condition.reason == models::shadow::HOST_ARMED_BY_OTHER)
    }

    /// Returns the highest number of an attempt of this shadow.
    pub(crate) fn last_attempt(&self) -> i64 {
        let record = self.shadow.status.controller.record.as_ref();
        let last = record.and_then(|record| record.last.as_ref()).map_or(0, |last| last.attempt);
        let drill = record.and_then(|record| record.drill.as_ref()?.attempt).unwrap_or(0);
        self.shadow.spec.attempt.max(last).max(drill)
    }

    /// Returns whether the target version runs in the node's current boot. The Node reports it; the agent status is
    /// used only where the Node names no version.
    pub(crate) fn runs_target(&self, progress: &Progress) -> bool {
        self.runs(&progress.version)
    }

    /// The same for another version than that of the attempt.
    pub(crate) fn runs(&self, version: &Version) -> bool {
        let reported = || self.shadow.status.agent.current_version.clone().filter(|_| self.has_reported());
        self.facts().os_version().or_else(reported).as_ref() == Some(version)
    }

    /// The record of an attempt at its beginning, or of one whose record is gone.
    pub(crate) fn new_progress(&self, step: Step, attempt: i64, version: &Version) -> Progress {
        Progress {
            step,
            since: self.now,
            attempt,
            boot_id: self.facts().boot_id.clone(),
            version: version.clone(),
            from: self.shadow.status.agent.current_version.clone(),
            started: self.now,
            permit_issued: false,
            soak_restarted: false,
            interrupted: None,
            verifying_since: None,
            rollout: Some(self.place(version)),
            disruptive: false,
            drill: None,
            verification: false,
        }
    }

    /// Returns the place in the history of an attempt to this version that begins now.
    pub(crate) fn place(&self, version: &Version) -> HistoryPosition {
        let rollout = self.survey.rollouts.of(self.node, version);
        let (rollout, step) = rollout.map_or((0, 0), |rollout| (rollout.number, rollout.step));
        let boot_id = self.facts().boot_id.clone();
        HistoryPosition { rollout, step, boot_id, drain_started: None, drain_ended: None }
    }

    /// Returns the kind of the attempt under way, or of the one that would begin on the idle node: a drill, if one is requested.
    pub(crate) fn mode(&self) -> Mode {
        match (self.node.progress(), self.shadow.pending_drill()) {
            (Some(progress), _) => progress.mode(),
            (None, Some(request)) => Drill::of(request).mode(),
            (None, None) => Mode::Update,
        }
    }

    /// Returns the version of the attempt under way, or of the one that policy would begin.
    pub(crate) fn version(&self) -> Result<&'a Version, Wait> {
        match self.node.progress() {
            Some(progress) => Ok(&progress.version),
            None => self.node.wanted(),
        }
    }

    /// The host, as its agent reports it, under the policy.
    pub(crate) fn host(&self) -> want::Host<'a> {
        want::Host { policy: self.policy, known: &self.survey.known, agent: &self.shadow.status.agent, now: self.now }
    }

    /// Returns the version lock that policy requires of the host.
    pub(crate) fn version_lock(&self) -> Option<&'a Version> {
        let want = self.node.want.as_ref().filter(|_| self.facts().labelled)?;
        want.pin.as_ref()
    }
}
