//! Everything that this process knows of the running boot.

use std::time::Duration;

use jiff::Timestamp;
use models::backoff::{Backoff, Delays};
use models::shadow::HostState;
use models::wire::ShadowView;
use tokio::time::Instant;

use super::moment::Moment;
use super::next::Next;
use super::outage::Outage;
use super::permit_request::{PermitRequest, Rehearsed};
use super::settings_progress::SettingsProgress;
use crate::desired_state::DesiredState;
use crate::host::rhythm::{LONG_COMMAND, wait_for_others};
use crate::host::types::{OsInfo, UpdateStatus};
use crate::memory::Memory;
use crate::refreshes::Refreshes;
use crate::staging::Tries;

/// Time in which a host that accepted the reboot goes down (units are stopped, with systemd's limit of 90 s each way).
/// After it, the host did not reboot, and everything is checked again.
const REBOOT_LIMIT: Duration = Duration::from_secs(300);

/// Delay after the host refused a command because another one runs.
const LOCKED: Delays = (Duration::from_millis(200), Duration::from_secs(5));

/// State of the running boot. It is replaced whole when another boot begins.
#[derive(Debug, Default)]
pub(super) struct BootState {
    pub(super) id: String,
    pub(super) os: Option<OsInfo>,
    pub(super) status: LastStatus,
    pub(super) memory: Memory,
    pub(super) refreshes: Refreshes,
    pub(super) settings: SettingsProgress,
    pub(super) outage: Outage,
    /// Consecutive reads that found a command running, and refused commands.
    pub(super) busy: Backoff,
    /// Time since which the host may have been running a command; `None` once its status was read.
    pub(super) busy_since: Option<Moment>,
    /// True once the log has that the command has been running for long.
    pub(super) busy_is_logged: bool,
    pub(super) locked: Backoff,
    /// The desired state of the last turn, and the tries for it.
    pub(super) desired: Option<DesiredState>,
    pub(super) tries: Tries,
    pub(super) permit_request: Option<PermitRequest>,
    pub(super) rehearsed: Option<Rehearsed>,
    /// Time at which the host accepted this agent's reboot request.
    pub(super) reboot_requested: Option<Instant>,
}

impl BootState {
    /// Returns true while the host may still go down after a reboot request. After that, everything is read again.
    pub(super) fn is_rebooting(&mut self, now: Instant) -> bool {
        let Some(since) = self.reboot_requested else { return false };
        if now.saturating_duration_since(since) < REBOOT_LIMIT {
            return true;
        }
        tracing::warn!("the host accepted the reboot request and still runs");
        self.reboot_requested = None;
        self.status.expire();
        false
    }

    /// Begins a turn under this desired state. A new one starts with all its tries.
    pub(super) fn begin(&mut self, desired: &DesiredState) {
        if self.desired.as_ref() != Some(desired) {
            let DesiredState { attempt, state, version, boot_id: _ } = desired;
            let version = version.as_ref().map(tracing::field::display);
            tracing::info!(?state, version, attempt = attempt.attempt, "new desired state");
            self.tries = Tries::default();
            self.desired = Some(desired.clone());
        }
        if desired.state != HostState::Idle {
            self.refreshes.idle_since = None;
        }
    }

    /// Records a status that was just read.
    pub(super) fn record_status(&mut self, status: Option<UpdateStatus>, desired: &DesiredState) {
        self.outage.end();
        self.busy.reset();
        (self.busy_since, self.busy_is_logged) = (None, false);
        if let Some(status) = &status {
            self.memory.learn(status, desired);
        }
        self.status.store(status, desired);
    }

    /// Takes over an activation that the previous process may have requested in this boot. Returns true if that is
    /// news.
    pub(super) fn take_over_activation(&mut self, view: &ShadowView) -> bool {
        let Some(armed) = view.status.report.armed.as_ref().filter(|armed| armed.boot_id == self.id) else {
            return false;
        };
        let own = self.permit_request.as_ref().is_some_and(|request| request.nonce == armed.nonce);
        // Without a status there is no record to compare later ones with.
        !own && self.status.is_known() && self.memory.take_over(self.status.get())
    }

    /// Returns true if an image may be armed that this operator armed in this boot.
    pub(super) fn may_be_armed(&self, view: &ShadowView) -> bool {
        view.status.report.armed.as_ref().is_some_and(|armed| armed.boot_id == self.id)
            || self.memory.armed.is_some()
            || self.memory.unconfirmed.is_some()
    }

    /// Waits while the host runs a command, of this agent or another client.
    pub(super) fn wait_while_busy(&mut self) -> Next {
        self.outage.end();
        self.status.expire();
        self.busy_since.get_or_insert(Moment::now());
        let wait = wait_for_others(self.busy.failures());
        self.busy.count();
        Next::after(wait)
    }

    /// Returns the time since which a command has been running, if that is long enough to be reported.
    pub(super) fn busy_for_long(&mut self, now: Instant) -> Option<Timestamp> {
        let since = self.busy_since?;
        if now.saturating_duration_since(since.monotonic) < LONG_COMMAND {
            return None;
        }
        if !std::mem::replace(&mut self.busy_is_logged, true) {
            tracing::warn!(since = %since.wall, "a command has been running on the host for long");
        }
        Some(since.wall)
    }

    /// Waits after the host refused a command because another one runs. The status shows when that has ended; otherwise
    /// the command is retried with back-off.
    pub(super) fn wait_for_lock(&mut self) -> Next {
        let _ = self.wait_while_busy();
        Next::after(self.locked.next_delay(LOCKED))
    }
}

/// The host's update status as last read.
#[derive(Debug, Default)]
pub(super) struct LastStatus {
    status: Option<UpdateStatus>,
    /// The desired state that it was read under; `None` if it must be read before it is used.
    read_under: Option<DesiredState>,
}

impl LastStatus {
    /// Returns the status; absent while the host has run no command in this boot.
    pub(super) fn get(&self) -> Option<&UpdateStatus> {
        self.status.as_ref()
    }

    /// Returns true if it need not be read before it is used.
    pub(super) fn is_known(&self) -> bool {
        self.read_under.is_some()
    }

    /// Requires that it is read before it is used again.
    pub(super) fn expire(&mut self) {
        self.read_under = None;
    }

    /// Returns true if it is recent enough for this desired state. A new desired state needs a new read, except `Idle`
    /// where nothing of the operator may be armed: it requires no host call.
    pub(super) fn is_recent(&mut self, desired: &DesiredState, may_be_armed: bool) -> bool {
        if self.is_known() && desired.state == HostState::Idle && !may_be_armed {
            self.read_under = Some(desired.clone());
        }
        self.read_under.as_ref() == Some(desired)
    }

    fn store(&mut self, status: Option<UpdateStatus>, desired: &DesiredState) {
        self.status = status;
        self.read_under = Some(desired.clone());
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::ArmedPhase;

    use super::*;
    use crate::situation::tests::{armed, view};

    fn in_boot(id: &str) -> BootState {
        BootState { id: id.to_owned(), ..BootState::default() }
    }

    fn desired(state: HostState) -> DesiredState {
        DesiredState::of(&view(state))
    }

    #[test]
    fn new_desired_state_requires_new_status_unless_idle_and_disarmed() {
        let (idle, stage) = (desired(HostState::Idle), desired(HostState::StagedUpdate));
        let mut status = LastStatus::default();
        assert!(!status.is_recent(&idle, false), "it was never read");
        status.store(None, &stage);
        assert!(status.is_recent(&stage, true));
        assert!(!status.is_recent(&desired(HostState::RebootedIntoUpdate), false));
        assert!(!status.is_recent(&idle, true));
        assert!(status.is_recent(&idle, false));
        status.expire();
        assert!(!status.is_recent(&idle, false));
    }

    #[test]
    fn accepted_reboot_counts_as_pending_until_limit() {
        let mut boot = in_boot("b1");
        let now = Instant::now();
        assert!(!boot.is_rebooting(now));
        boot.reboot_requested = Some(now);
        boot.record_status(None, &desired(HostState::Idle));
        assert!(boot.is_rebooting(now + REBOOT_LIMIT - Duration::from_millis(1)));
        assert!(!boot.is_rebooting(now + REBOOT_LIMIT));
        assert!(!boot.status.is_known() && !boot.is_rebooting(now), "everything is read again");
    }

    #[test]
    fn host_is_busy_for_long_after_five_minutes_without_another_answer() {
        let mut boot = in_boot("b1");
        let start = Instant::now();
        boot.wait_while_busy();
        assert_eq!(boot.busy_for_long(start + LONG_COMMAND - Duration::from_millis(1)), None);
        boot.wait_while_busy();
        assert!(!boot.busy_is_logged);
        assert!(boot.busy_for_long(start + LONG_COMMAND + Duration::from_secs(60)).is_some());
        assert!(boot.busy_is_logged, "later reads log nothing");
        boot.record_status(None, &desired(HostState::Idle));
        assert!(!boot.busy_is_logged, "the next long command is in the log, too");
        boot.wait_while_busy();
        assert_eq!(boot.busy_for_long(start + LONG_COMMAND - Duration::from_millis(1)), None, "another command");
    }

    #[test]
    fn new_desired_state_resets_retry_counts() {
        let mut boot = in_boot("b1");
        boot.begin(&desired(HostState::StagedUpdate));
        boot.tries.prepare = Backoff::after(2);
        boot.begin(&desired(HostState::StagedUpdate));
        assert_eq!(boot.tries.prepare.failures(), 2);
        boot.begin(&desired(HostState::RebootedIntoUpdate));
        assert_eq!(boot.tries, Tries::default());
    }

    #[test]
    fn activation_of_previous_process_is_taken_over_once_in_its_boot() {
        let mut view = view(HostState::Idle);
        let mut boot = in_boot("b1");
        view.status.report.armed = Some(armed(3, "b1", ArmedPhase::Arming));
        assert!(!boot.take_over_activation(&view), "no status to compare with");
        boot.record_status(None, &desired(HostState::Idle));
        view.status.report.armed = Some(armed(3, "b0", ArmedPhase::Arming));
        assert!(!boot.take_over_activation(&view) && !boot.may_be_armed(&view), "another boot");
        view.status.report.armed = Some(armed(3, "b1", ArmedPhase::Arming));
        assert!(boot.take_over_activation(&view) && boot.may_be_armed(&view));
        assert!(!boot.take_over_activation(&view), "it is no news any more");
    }
}
