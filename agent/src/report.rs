//! The agent status, built whole from the stored one and the current facts. A single function, so that no two writes
//! can remove each other's fields, and a restarted agent drops neither `failure` nor `armed`.

use jiff::Timestamp;
use models::condition::{Condition, set_condition};
use models::plain::{cut, is_alike};
use models::shadow::{
    Armed, Failure, FoundSettings, HOST_ANSWERED, HOST_BUSY, HOST_REACHABLE, HostState, OfferedUpdates, Rehearsal,
    UNSUPPORTED_STATE,
};
use models::wire::AgentStatus;

use crate::host::client::HostError;
use crate::host::types::{Command, CommandRecord, UpdateState, UpdateStatus};
use crate::memory::Memory;
use crate::situation::Facts;

/// Length limits of the shadow's schema, in characters.
const LONGEST_MESSAGE: usize = 1024;
const LONGEST_VARIANT: usize = 64;
const LONGEST_ARCH: usize = 32;
const MOST_VERSIONS: usize = 64;

/// Message about an armed image of which there is no record, as also where the shadow that had it was deleted.
pub(crate) const ARMED_BY_OTHER: &str = "an image is armed that this agent has no record of (another client, or this \
     operator before the node's shadow was deleted); it is left alone";

/// Content of a report beside the facts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finding {
    /// The desired state was carried out, and this state reached.
    Reached(HostState),
    /// Nothing is to be done for the desired state; the host is in this state.
    AtRest(HostState),
    /// The desired state is being carried out, or cannot be; the host is in this state.
    InProgress(HostState),
    /// The image that is about to be armed, or is armed.
    Armed(Armed),
    /// The request for a rehearsal permit, or its outcome; the host is in this state.
    Rehearsal(Rehearsal, HostState),
    Failed {
        failure: Failure,
        state: HostState,
        /// True if the failure judges the outcome of a new boot, so that nothing of the operator is armed any more.
        judges_boot: bool,
    },
}

/// Content of the condition `HostReachable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCondition {
    answers: bool,
    reason: &'static str,
    message: String,
}

impl HostCondition {
    /// Creates the condition of a host that answers, without any problem.
    pub(crate) const fn answered() -> Self {
        Self { answers: true, reason: HOST_ANSWERED, message: String::new() }
    }

    /// Creates the condition of a host that answers, with a problem.
    pub(crate) fn problem(reason: &'static str, message: impl Into<String>) -> Self {
        Self { answers: true, reason, message: message.into() }
    }

    /// Creates the condition of a host that answers, while the desired state or its update state is not supported.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::problem(UNSUPPORTED_STATE, message)
    }

    /// Creates the condition of a host on which a command has been running for long.
    pub(crate) fn busy(since: Timestamp) -> Self {
        let message = format!(
            "a command has been running on the host since {since:.0} or before: see the journal of its apiserver.service; \
             updates wait for its end"
        );
        Self::problem(HOST_BUSY, message)
    }

    /// Creates the condition of a host that does not answer.
    pub(crate) fn unreachable(error: &HostError) -> Self {
        Self { answers: false, reason: error.reason(), message: error.to_string() }
    }

    pub(crate) fn reason(&self) -> (&'static str, &str) {
        (self.reason, &self.message)
    }
}

/// Builds the report that acknowledges `generation`.
pub(crate) fn build(
    stored: &AgentStatus,
    generation: i64,
    facts: &Facts,
    memory: &Memory,
    finding: &Finding,
    condition: &HostCondition,
    now: Timestamp,
) -> AgentStatus {
    let mut new = stored.clone();
    let report = &mut new.report;
    report.updates = offer(stored, facts, memory);
    report.current_version = Some(facts.os.version.clone());
    report.variant = Some(cut(&facts.os.variant, LONGEST_VARIANT));
    report.arch = Some(cut(&facts.os.arch, LONGEST_ARCH));
    report.boot_id = Some(facts.boot_id.clone());
    if let Some(found) = &memory.settings {
        report.host = Some(found.clone()).filter(|found| *found != FoundSettings::default());
    }
    let ready = facts.status.as_ref().is_some_and(|status| status.state == UpdateState::Ready);
    if memory.disarmed && !ready {
        report.armed = None;
    }
    let (state, acknowledges) = match finding {
        Finding::Reached(state) | Finding::AtRest(state) | Finding::Failed { state, .. } => (*state, true),
        Finding::InProgress(state) => (*state, false),
        Finding::Armed(_) => (HostState::StagedUpdate, false),
        Finding::Rehearsal(rehearsal, _) if rehearsal.verified => (HostState::RehearsedUpdate, true),
        Finding::Rehearsal(_, state) => (*state, false),
    };
    report.state = Some(state);
    if acknowledges {
        report.observed_generation = Some(generation);
    }
    match finding {
        Finding::Reached(HostState::Idle) => (report.armed, report.rehearsal) = (None, None),
        Finding::Reached(HostState::RebootedIntoUpdate) => (report.armed, report.failure) = (None, None),
        Finding::Armed(armed) => report.armed = Some(armed.clone()),
        Finding::Rehearsal(rehearsal, _) => report.rehearsal = Some(rehearsal.clone()),
        Finding::Failed { failure, judges_boot, state: _ } => {
            report.failure = Some(Failure { message: cut(&failure.message, LONGEST_MESSAGE), ..failure.clone() });
            report.armed.take_if(|_| *judges_boot);
        }
        Finding::Reached(_) | Finding::AtRest(_) | Finding::InProgress(_) => {}
    }
    set_condition(&mut new.conditions, condition_of(condition, now));
    new
}

/// Builds the report of a host that does not answer, or shows no status: all stored fields remain, and the condition changes.
pub(crate) fn build_condition(stored: &AgentStatus, condition: &HostCondition, now: Timestamp) -> AgentStatus {
    let mut new = stored.clone();
    set_condition(&mut new.conditions, condition_of(condition, now));
    new
}

/// Returns true if a report is worth a write. A changed refresh time alone is not, nor a changed transition time of a
/// condition, which changes with its status alone.
pub(crate) fn differs(stored: &AgentStatus, new: &AgentStatus) -> bool {
    fn without_times(status: &AgentStatus) -> AgentStatus {
        let mut status = status.clone();
        if let Some(updates) = &mut status.report.updates {
            updates.last_refresh = None;
        }
        for condition in &mut status.conditions {
            condition.last_transition_time = Timestamp::UNIX_EPOCH;
        }
        status
    }
    stored != new && without_times(stored) != without_times(new)
}

/// Returns the host's offer, as far as it can be trusted.
fn offer(stored: &AgentStatus, facts: &Facts, memory: &Memory) -> Option<OfferedUpdates> {
    // An offer from another boot does not count in this one.
    let same_boot = stored.report.boot_id.as_deref() == Some(facts.boot_id.as_str());
    let reported = stored.report.updates.clone().filter(|_| same_boot);
    let status = facts.status.as_ref();
    let last = status.and_then(|status| status.last.as_ref());
    let unsuccessful = last.filter(|last| last.is(Command::Refresh) && !last.succeeded);
    let unrecorded = memory.refresh_failure.as_ref().map(|failure| failure.message.clone());
    if let Some(failure) = unsuccessful.map(CommandRecord::message).or(unrecorded) {
        // An offer that cannot be confirmed stays as reported, if the host has run a command in this boot. The message
        // stays too where the next one differs in numbers alone, such as a time.
        let reported = reported.filter(|reported| last.is_some() || reported.refresh_failure.is_some());
        let mut reported = reported.unwrap_or_default();
        let failure = cut(&failure, LONGEST_MESSAGE);
        if reported.refresh_failure.as_deref().is_none_or(|before| !is_alike(before, &failure)) {
            reported.refresh_failure = Some(failure);
        }
        return Some(reported);
    }
    let (status, last) = (status?, last?);
    let refreshed = last.is(Command::Refresh);
    let known = reported.unwrap_or_default();
    Some(OfferedUpdates {
        chosen_version: chosen(status),
        available_versions: status.available.iter().take(MOST_VERSIONS).cloned().collect(),
        last_refresh: if refreshed { last.timestamp.parse().ok() } else { known.last_refresh },
        refresh_failure: if refreshed { None } else { known.refresh_failure },
    })
}

/// Returns the choice of a successful refresh. In the state Idle it is left over from an earlier one.
fn chosen(status: &UpdateStatus) -> Option<semver::Version> {
    match status.state {
        UpdateState::Available | UpdateState::Staged | UpdateState::Ready => status.chosen.clone(),
        UpdateState::Idle | UpdateState::Unknown(_) => None,
    }
}

fn condition_of(condition: &HostCondition, now: Timestamp) -> Condition {
    Condition {
        type_: HOST_REACHABLE.to_owned(),
        status: condition.answers.into(),
        reason: condition.reason.to_owned(),
        message: cut(&condition.message, LONGEST_MESSAGE),
        last_transition_time: now,
        observed_generation: None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use models::condition::{ConditionStatus, find_condition};
    use models::reason::FailureReason;
    use models::shadow::ArmedPhase;

    use super::*;
    use crate::situation::tests::{NEW, OLD, armed, facts, view};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn stored() -> AgentStatus {
        view(HostState::Idle).status
    }

    pub(crate) fn built(stored: &AgentStatus, facts: &Facts, finding: &Finding) -> AgentStatus {
        build(stored, 7, facts, &Memory::default(), finding, &HostCondition::answered(), NOW)
    }

    fn failure() -> Failure {
        Failure {
            attempt: 3,
            step: HostState::RebootedIntoUpdate,
            reason: FailureReason::BootFellBack,
            message: "x".repeat(5000),
            time: NOW,
        }
    }

    #[test]
    fn report_keeps_fields_it_does_not_change() {
        let mut stored = stored();
        stored.report.armed = Some(armed(3, "b1", ArmedPhase::Activated));
        stored.report.failure = Some(failure());
        let found = facts("b1", OLD, None, ("", ""));
        let new = built(&stored, &found, &Finding::InProgress(HostState::Idle));
        assert_eq!(new.report.armed, stored.report.armed);
        assert_eq!(new.report.failure, stored.report.failure);
        assert_eq!(new.report.observed_generation, None);
        let unreachable = HostCondition { answers: false, reason: "Timeout", message: String::new() };
        let new = build_condition(&stored, &unreachable, NOW);
        assert_eq!(new.report, stored.report);
        let condition = find_condition(&new.conditions, HOST_REACHABLE).unwrap();
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Timeout"));
    }

    #[test]
    fn reported_settings_are_kept_until_agent_has_read_them() {
        let mut stored = stored();
        let found = FoundSettings { version_lock: Some("latest".into()), ..FoundSettings::default() };
        stored.report.host = Some(found.clone());
        let facts = facts("b1", OLD, None, ("", ""));
        let with = |settings| {
            let memory = Memory { settings, ..Memory::default() };
            build(&stored, 7, &facts, &memory, &Finding::AtRest(HostState::Idle), &HostCondition::answered(), NOW)
                .report
                .host
        };
        let foreign = FoundSettings { conflicting_lock: Some("v1.19.0".into()), ..FoundSettings::default() };
        assert_eq!(with(None), Some(found));
        assert_eq!(with(Some(foreign.clone())), Some(foreign));
        assert_eq!(with(Some(FoundSettings::default())), None);
    }

    #[test]
    fn armed_record_is_removed_only_after_disarming_or_judged_boot() {
        let mut stored = stored();
        stored.report.armed = Some(armed(3, "b1", ArmedPhase::Activated));
        let ready = facts("b1", OLD, Some("Ready"), ("activate", "Success"));
        let back = facts("b2", OLD, None, ("", ""));
        let staged = facts("b1", OLD, Some("Staged"), ("deactivate", "Success"));
        let fail = |judges_boot| Finding::Failed { failure: failure(), state: HostState::Idle, judges_boot };
        for (finding, facts, goes) in [
            (Finding::Reached(HostState::Idle), &staged, true),
            (Finding::Reached(HostState::RebootedIntoUpdate), &back, true),
            (fail(true), &back, true),
            (fail(false), &ready, false),
            (Finding::Reached(HostState::StagedUpdate), &staged, false),
            (Finding::AtRest(HostState::Idle), &staged, false),
            (Finding::InProgress(HostState::Idle), &staged, false),
        ] {
            assert_eq!(built(&stored, facts, &finding).report.armed.is_none(), goes, "{finding:?}");
        }
        let memory = Memory { disarmed: true, ..Memory::default() };
        let finding = Finding::InProgress(HostState::Idle);
        assert_eq!(build(&stored, 7, &staged, &memory, &finding, &HostCondition::answered(), NOW).report.armed, None);
        assert!(build(&stored, 7, &ready, &memory, &finding, &HostCondition::answered(), NOW).report.armed.is_some());
    }

    #[test]
    fn desired_state_is_acknowledged_when_reached_failed_or_resting() {
        let found = facts("b1", OLD, None, ("", ""));
        let fail = Finding::Failed { failure: failure(), state: HostState::Idle, judges_boot: false };
        for (finding, acknowledges) in [
            (Finding::Reached(HostState::Idle), true),
            (Finding::AtRest(HostState::Idle), true),
            (fail, true),
            (Finding::InProgress(HostState::Idle), false),
            (Finding::Armed(armed(3, "b1", ArmedPhase::Arming)), false),
        ] {
            let new = built(&stored(), &found, &finding);
            assert_eq!(new.report.observed_generation == Some(7), acknowledges, "{finding:?}");
            let message = new.report.failure.map(|f| f.message.len());
            assert!(message.is_none_or(|length| length == LONGEST_MESSAGE));
        }
    }

    #[test]
    fn host_text_is_reported_without_control_characters() {
        const HOSTILE: &str = "\u{1b}[2J\r\nok\u{202e}";
        let mut found = facts("b1", OLD, Some("Idle"), ("refresh", "Failed"));
        (found.os.variant, found.os.arch) = (HOSTILE.into(), HOSTILE.into());
        found.status.as_mut().and_then(|status| status.last.as_mut()).unwrap().stderr = format!("x{HOSTILE}");
        let finding = Finding::Failed {
            failure: Failure { message: HOSTILE.into(), ..failure() },
            state: HostState::Idle,
            judges_boot: false,
        };
        let condition = HostCondition::problem("DeactivateFailed", HOSTILE);
        let new = build(&stored(), 7, &found, &Memory::default(), &finding, &condition, NOW);
        let unreachable = build_condition(&stored(), &condition, NOW);
        let message =
            |status: &AgentStatus| find_condition(&status.conditions, HOST_REACHABLE).unwrap().message.clone();
        let refused = new.report.updates.as_ref().and_then(|updates| updates.refresh_failure.clone());
        assert_eq!(new.report.failure.as_ref().unwrap().message, "\u{fffd}[2J  ok\u{fffd}");
        for text in [&new.report.variant, &new.report.arch, &refused] {
            assert!(text.as_ref().unwrap().ends_with("[2J  ok\u{fffd}"), "{text:?}");
        }
        assert_eq!(
            (message(&new), message(&unreachable)),
            (models::plain::plain(HOSTILE), models::plain::plain(HOSTILE))
        );
    }

    #[test]
    fn failed_refresh_keeps_reported_updates_and_is_reported_once() {
        let good = facts("b1", OLD, Some("Available"), ("refresh", "Success"));
        let first = built(&stored(), &good, &Finding::Reached(HostState::Idle));
        let offered = first.report.updates.clone().unwrap();
        assert_eq!(offered.chosen_version, Some(NEW));
        assert_eq!(offered.available_versions, [NEW, OLD]);
        assert!(offered.last_refresh.is_some());

        let failed = facts("b1", OLD, Some("Idle"), ("refresh", "Failed"));
        let second = built(&first, &failed, &Finding::Reached(HostState::Idle));
        let kept = second.report.updates.clone().unwrap();
        assert_eq!(kept.chosen_version, Some(NEW));
        assert!(kept.refresh_failure.is_some() && kept.last_refresh == offered.last_refresh);
        assert!(differs(&first, &second));
        assert!(!differs(&second, &built(&second, &failed, &Finding::Reached(HostState::Idle))));

        let mut after = second.clone();
        for (message, expected) in [
            ("no route; tried for 7 s", "no route; tried for 7 s"),
            ("no route; tried for 12 s", "no route; tried for 7 s"),
            ("certificate expired", "certificate expired"),
        ] {
            let mut failed = failed.clone();
            failed.status.as_mut().and_then(|status| status.last.as_mut()).unwrap().stderr = message.into();
            after = built(&after, &failed, &Finding::Reached(HostState::Idle));
            let reported = after.report.updates.as_ref().and_then(|updates| updates.refresh_failure.as_deref());
            assert!(reported.is_some_and(|reported| reported.contains(expected)), "{message}: {reported:?}");
        }

        let third = built(&second, &good, &Finding::Reached(HostState::Idle));
        assert_eq!(third.report.updates.unwrap().refresh_failure, None);
    }

    #[test]
    fn reported_updates_are_cleared_after_boot() {
        let good = facts("b1", OLD, Some("Available"), ("refresh", "Success"));
        let before = built(&stored(), &good, &Finding::Reached(HostState::Idle));
        let after = built(&before, &facts("b2", NEW, None, ("", "")), &Finding::Reached(HostState::RebootedIntoUpdate));
        assert_eq!(after.report.updates, None);
        assert_eq!(after.report.current_version, Some(NEW));
        let failed = facts("b2", NEW, Some("Idle"), ("refresh", "Failed"));
        let failed = built(&before, &failed, &Finding::AtRest(HostState::Idle)).report.updates.unwrap();
        assert!(failed.chosen_version.is_none() && failed.refresh_failure.is_some());
    }

    #[test]
    fn idle_host_reports_no_chosen_version() {
        let idle = facts("b1", OLD, Some("Idle"), ("refresh", "Success"));
        let new = built(&stored(), &idle, &Finding::Reached(HostState::Idle));
        assert_eq!(new.report.updates.unwrap().chosen_version, None);
    }

    #[test]
    fn refresh_with_same_outcome_sends_no_report() {
        let good = facts("b1", OLD, Some("Available"), ("refresh", "Success"));
        let first = built(&stored(), &good, &Finding::Reached(HostState::Idle));
        let mut later = good;
        if let Some(last) = later.status.as_mut().and_then(|s| s.last.as_mut()) {
            last.timestamp = "2026-11-22T01:51:32Z".into();
        }
        let second = built(&first, &later, &Finding::Reached(HostState::Idle));
        assert_ne!(first, second);
        assert!(!differs(&first, &second));
    }
}
