//! The situation of the step table: the desired state as this agent understands it, and the host's answers.

use models::agent_step::{self, ArmedBy, Boot, Desired, Image, Mark, Running, Situation};
use models::shadow::{AgentReport, Armed, HostState};
use models::wire::{AgentStatus, ShadowView};
use semver::Version;

use crate::desired_state::{AttemptId, DesiredState};
use crate::host::types::{Command, OsInfo, UpdateState, UpdateStatus};
use crate::memory::Memory;

/// Facts about the host, all of the running boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) os: OsInfo,
    pub(crate) boot_id: String,
    /// The update status; absent while the host has run no command in this boot.
    pub(crate) status: Option<UpdateStatus>,
}

/// Returns the situation under the desired state in `view`. The host's update state must be a known one.
pub(crate) fn situation(view: &ShadowView, facts: &Facts, memory: &Memory) -> Situation {
    let desired = DesiredState::of(view);
    let report = &view.status.report;
    let desired_boot = desired.boot_id.as_deref().unwrap_or(&facts.boot_id);
    Situation {
        desired: classify(&desired),
        failed: report.failure.as_ref().is_some_and(|failure| failure.attempt == desired.attempt.attempt),
        boot: if desired_boot == facts.boot_id { Boot::Same } else { Boot::Other },
        image: image(facts, &desired, memory, report),
        // In any other update state the host has a record of it, or could not have begun it.
        perhaps_armed: memory.unconfirmed.is_some()
            && facts.status.as_ref().is_some_and(|status| status.state == UpdateState::Staged),
        armed_by: armed_by(report.armed.as_ref(), &facts.boot_id, &desired.attempt, memory),
        may_disarm: view.spec.host.as_ref().and_then(|host| host.disarm_in_boot.as_deref()) == Some(&facts.boot_id),
        mark: if memory.activated.as_ref() == Some(&desired.attempt) && desired_boot == facts.boot_id {
            Mark::Activated
        } else {
            agent_step::mark(report.armed.as_ref(), desired_boot, desired.attempt.attempt)
        },
        running: running(&facts.os.version, desired.version.as_ref(), &view.status, desired_boot),
    }
}

/// Classifies the desired state. Without its version or boot, it cannot be carried out.
fn classify(desired: &DesiredState) -> Desired {
    let complete = desired.version.is_some() && desired.boot_id.is_some();
    match desired.state {
        HostState::Idle => Desired::Idle,
        HostState::StagedUpdate if complete => Desired::Stage,
        HostState::RebootedIntoUpdate if complete => Desired::Reboot,
        HostState::RehearsedUpdate if complete => Desired::Rehearse,
        // Answered before any host call.
        HostState::StagedUpdate | HostState::RebootedIntoUpdate | HostState::RehearsedUpdate | HostState::Unknown => {
            Desired::Unknown
        }
    }
}

/// Returns the state of the inactive partition set. A staged image is trusted if this process saw it written whole, for this
/// attempt or for an earlier one whose image it keeps: the memory learns both from the status. A process started later, after a
/// refresh, finds no prepare: it trusts the previous one's report in this boot. A refresh that fails leaves the image as it
/// is, too.
fn image(facts: &Facts, desired: &DesiredState, memory: &Memory, report: &AgentReport) -> Image {
    let Some(status) = &facts.status else { return Image::Nothing };
    match status.state {
        UpdateState::Idle | UpdateState::Available | UpdateState::Unknown(_) => Image::Nothing,
        UpdateState::Ready => Image::Ready,
        UpdateState::Staged => {
            let wanted = desired.version.is_some() && status.staged_version() == desired.version.as_ref();
            let refreshed = status.last.as_ref().is_some_and(|last| last.is(Command::Refresh));
            let reported = report.state == Some(HostState::StagedUpdate)
                && report.boot_id.as_deref() == Some(facts.boot_id.as_str());
            let reported_before = !memory.saw_prepare && refreshed && reported;
            let trusted = reported_before || memory.prepared.as_ref() == Some(&desired.attempt);
            if wanted && trusted { Image::Staged } else { Image::Doubtful }
        }
    }
}

/// Returns which client armed the image: by the report, or by this process if its report may not have arrived.
fn armed_by(armed: Option<&Armed>, boot_id: &str, attempt: &AttemptId, memory: &Memory) -> ArmedBy {
    let reported = agent_step::armed_by(armed, boot_id, attempt.attempt);
    match (&memory.armed, reported) {
        (Some(own), _) if own == attempt => ArmedBy::ThisAttempt,
        (_, ArmedBy::ThisAttempt) => ArmedBy::ThisAttempt,
        (Some(_), _) | (None, ArmedBy::OlderAttempt) => ArmedBy::OlderAttempt,
        (None, ArmedBy::Other) => ArmedBy::Other,
    }
}

/// Classifies the running version. The old one is the one reported in the boot that the desired state names.
fn running(version: &Version, wanted: Option<&Version>, stored: &AgentStatus, desired_boot: &str) -> Running {
    let report = &stored.report;
    if Some(version) == wanted {
        Running::Wanted
    } else if report.boot_id.as_deref() == Some(desired_boot) && report.current_version.as_ref() == Some(version) {
        Running::Old
    } else {
        Running::Third
    }
}

/// Returns the host's own state, for reports that do not complete the desired state.
pub(crate) fn host_state(situation: &Situation) -> HostState {
    match (situation.desired, situation.running, situation.image) {
        (Desired::Stage | Desired::Reboot, Running::Wanted, _) => HostState::RebootedIntoUpdate,
        (Desired::Stage | Desired::Reboot | Desired::Rehearse, _, Image::Staged) => HostState::StagedUpdate,
        (Desired::Stage | Desired::Reboot, _, Image::Ready) if situation.armed_by == ArmedBy::ThisAttempt => {
            HostState::StagedUpdate
        }
        _ => HostState::Idle,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use models::agent_step::{Step, step};
    use models::reason::FailureReason;
    use models::shadow::{ArmedPhase, BottlerocketShadowSpec, Failure};
    use models::wire::ShadowMetadata;
    use serde_json::json;

    use super::*;

    pub(crate) const OLD: Version = Version::new(1, 20, 0);
    pub(crate) const NEW: Version = Version::new(1, 20, 5);

    pub(crate) fn facts(boot: &str, version: Version, state: Option<&str>, last: (&str, &str)) -> Facts {
        let os = OsInfo { version, variant: "aws-k8s-1.30".into(), arch: "x86_64".into() };
        let staged = matches!(state, Some("Staged" | "Ready"));
        let status = state.and_then(|state| {
            UpdateStatus::read(&json!({
                "update_state": state, "available_updates": ["1.20.5", "1.20.0"], "chosen_update": {"version": "1.20.5"},
                "staging_partition": staged.then(|| json!({"image": {"version": "1.20.5"}, "next_to_boot": state == "Ready"})),
                "most_recent_command": {"cmd_type": last.0, "cmd_status": last.1, "timestamp": "2026-11-21T01:51:32Z", "exit_status": 0, "stderr": ""}
            }))
        });
        Facts { os, boot_id: boot.into(), status }
    }

    pub(crate) fn view(state: HostState) -> ShadowView {
        let mut view = ShadowView {
            metadata: ShadowMetadata { uid: "s".into(), generation: 7, resource_version: "1".into() },
            etag: "e".into(),
            spec: BottlerocketShadowSpec { state, attempt: 3, ..BottlerocketShadowSpec::default() },
            status: AgentStatus::default(),
        };
        if state != HostState::Idle {
            view.spec.version = Some(NEW);
            view.spec.boot_id = Some("b1".into());
        }
        view.status.report.boot_id = Some("b1".into());
        view.status.report.current_version = Some(OLD);
        view
    }

    pub(crate) fn armed(attempt: i64, boot: &str, phase: ArmedPhase) -> Armed {
        Armed { attempt, boot_id: boot.into(), version: NEW, phase, nonce: "n".into() }
    }

    fn learned(view: &ShadowView, facts: &Facts) -> Memory {
        let mut memory = Memory::default();
        if let Some(status) = &facts.status {
            memory.learn(status, &DesiredState::of(view));
        }
        memory
    }

    fn next(view: &ShadowView, facts: &Facts) -> Step {
        step(&situation(view, facts, &learned(view, facts)))
    }

    #[test]
    fn restarted_agent_keeps_image_reported_staged_in_current_boot() {
        let states = [HostState::StagedUpdate, HostState::RebootedIntoUpdate];
        for (state, refresh) in states.into_iter().flat_map(|state| [(state, "Success"), (state, "Failed")]) {
            let facts = facts("b1", OLD, Some("Staged"), ("refresh", refresh));
            let image = |change: fn(&mut ShadowView, &mut Memory)| {
                let mut view = view(state);
                view.status.report.state = Some(HostState::StagedUpdate);
                let mut memory = learned(&view, &facts);
                change(&mut view, &mut memory);
                situation(&view, &facts, &memory).image
            };
            assert_eq!(image(|_, _| {}), Image::Staged, "the refresh: {refresh}");
            assert_eq!(
                image(|view, _| view.status.report.state = Some(HostState::Idle)),
                Image::Doubtful,
                "not staged"
            );
            assert_eq!(
                image(|view, _| view.status.report.boot_id = Some("b0".into())),
                Image::Doubtful,
                "another boot"
            );
            assert_eq!(image(|view, _| view.spec.version = Some(OLD)), Image::Doubtful, "another version");
            assert_eq!(image(|_, memory| memory.saw_prepare = true), Image::Doubtful, "a prepare has followed");
        }
    }

    #[test]
    fn desired_state_without_version_or_boot_is_unsupported() {
        let facts = facts("b1", OLD, None, ("", ""));
        for strip in [0, 1] {
            let mut view = view(HostState::StagedUpdate);
            if strip == 0 {
                view.spec.version = None;
            } else {
                view.spec.boot_id = None;
            }
            assert_eq!(next(&view, &facts), Step::Unsupported);
        }
        assert_eq!(next(&view(HostState::Unknown), &facts), Step::Unsupported);
    }

    #[test]
    fn restarted_agent_trusts_staged_image_only_after_successful_prepare() {
        let view = view(HostState::StagedUpdate);
        let reached = Step::Reached(HostState::StagedUpdate);
        assert_eq!(next(&view, &facts("b1", OLD, Some("Staged"), ("prepare", "Success"))), reached);
        assert_eq!(next(&view, &facts("b1", OLD, Some("Staged"), ("prepare", "Failed"))), Step::Stage);
        assert_eq!(next(&view, &facts("b1", OLD, Some("Staged"), ("refresh", "Success"))), Step::Stage);
        // The same process continues to trust what it saw written.
        let mut memory = Memory { prepared: Some(DesiredState::of(&view).attempt), ..Memory::default() };
        let refreshed = facts("b1", OLD, Some("Staged"), ("refresh", "Success"));
        assert_eq!(step(&situation(&view, &refreshed, &memory)), reached);
        memory.prepared = Some(AttemptId { uid: "s".into(), attempt: 2 });
        assert_eq!(step(&situation(&view, &refreshed, &memory)), Step::Stage);
        memory.prepared = Some(AttemptId { uid: "another".into(), attempt: 3 });
        assert_eq!(step(&situation(&view, &refreshed, &memory)), Step::Stage);
    }

    #[test]
    fn own_activation_is_recognized_from_report_or_memory() {
        let ready = facts("b1", OLD, Some("Ready"), ("activate", "Success"));
        let mut view = view(HostState::Idle);
        assert_eq!(next(&view, &ready), Step::LeaveArmed);
        view.status.report.armed = Some(armed(3, "b1", ArmedPhase::Arming));
        assert_eq!(next(&view, &ready), Step::Deactivate);
        view.status.report.armed = Some(armed(2, "b1", ArmedPhase::Activated));
        assert_eq!(next(&view, &ready), Step::Deactivate);
        view.status.report.armed = Some(armed(3, "b0", ArmedPhase::Activated));
        assert_eq!(next(&view, &ready), Step::LeaveArmed);
        let memory = Memory { armed: Some(AttemptId { uid: "older".into(), attempt: 9 }), ..Memory::default() };
        assert_eq!(step(&situation(&view, &ready, &memory)), Step::Deactivate);
    }

    #[test]
    fn disarm_permission_is_valid_only_in_its_boot() {
        let ready = facts("b1", OLD, Some("Ready"), ("activate", "Success"));
        let permits = |boot: &str| {
            let mut view = view(HostState::Idle);
            let disarm_in_boot = Some(boot.to_owned());
            view.spec.host = Some(models::shadow::HostPolicy { disarm_in_boot, ..Default::default() });
            view
        };
        assert_eq!(next(&permits("b1"), &ready), Step::Deactivate);
        assert_eq!(next(&permits("b0"), &ready), Step::LeaveArmed);
        let mut staging = permits("b1");
        staging.spec = BottlerocketShadowSpec { host: staging.spec.host, ..view(HostState::StagedUpdate).spec };
        assert_eq!(next(&staging, &ready), Step::Fail(FailureReason::HostArmedByOther));
    }

    #[test]
    fn new_boot_outcome_depends_on_version_and_armed_record() {
        let fail = |reason| Step::Fail(reason);
        let mut view = view(HostState::RebootedIntoUpdate);
        let back = |version| facts("b2", version, None, ("", ""));
        assert_eq!(next(&view, &back(NEW)), Step::Reached(HostState::RebootedIntoUpdate));
        assert_eq!(next(&view, &back(OLD)), fail(FailureReason::RebootedByOther));
        view.status.report.armed = Some(armed(3, "b1", ArmedPhase::Arming));
        assert_eq!(next(&view, &back(OLD)), fail(FailureReason::RebootedByOther));
        view.status.report.armed = Some(armed(2, "b1", ArmedPhase::Activated));
        assert_eq!(next(&view, &back(OLD)), fail(FailureReason::RebootedByOther));
        view.status.report.armed = Some(armed(3, "b1", ArmedPhase::Activated));
        assert_eq!(next(&view, &back(OLD)), fail(FailureReason::BootFellBack));
        assert_eq!(next(&view, &back(Version::new(1, 19, 0))), fail(FailureReason::BootedOtherVersion));
    }

    #[test]
    fn drill_requests_its_permit_with_and_without_an_image_and_in_its_boot_alone() {
        let view = view(HostState::RehearsedUpdate);
        for state in [None, Some("Idle"), Some("Available"), Some("Staged")] {
            assert_eq!(next(&view, &facts("b1", OLD, state, ("prepare", "Success"))), Step::Rehearse, "{state:?}");
        }
        let rebooted = facts("b2", OLD, None, ("", ""));
        assert_eq!(next(&view, &rebooted), Step::Fail(FailureReason::RebootedByOther));
        // In a drill the agent arms nothing, so an armed image is another client's.
        let ready = facts("b1", OLD, Some("Ready"), ("activate", "Success"));
        assert_eq!(next(&view, &ready), Step::Fail(FailureReason::HostArmedByOther));
    }

    #[test]
    fn failed_attempt_does_nothing_until_next_attempt() {
        let mut view = view(HostState::RebootedIntoUpdate);
        view.status.report.failure = Some(Failure {
            attempt: 3,
            step: HostState::StagedUpdate,
            reason: FailureReason::PrepareFailed,
            message: String::new(),
            time: jiff::Timestamp::UNIX_EPOCH,
        });
        let staged = facts("b1", OLD, Some("Staged"), ("prepare", "Success"));
        assert_eq!(next(&view, &staged), Step::Rest);
        view.spec.attempt = 4;
        assert_eq!(next(&view, &staged), Step::Arm);
        let found = situation(&view, &staged, &learned(&view, &staged));
        assert_eq!((found.mark, host_state(&found)), (Mark::Not, HostState::StagedUpdate));
    }
}
