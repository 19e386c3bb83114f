//! One turn of the loop: what the phases of an update work with.

use std::sync::Arc;
use std::time::Duration;

use models::agent_step::{ArmedBy, Image, Situation};
use models::shadow::{FoundSettings, HOST_ARMED_BY_OTHER};
use models::wire::ShadowView;

use super::boot_state::BootState;
use super::report_state::ReportState;
use crate::config::Config;
use crate::desired_state::DesiredState;
use crate::host::client::HostClient;
use crate::report::{ARMED_BY_OTHER, HostCondition};
use crate::server::Server;
use crate::situation::Facts;
use crate::views::Views;

/// Refresh interval if policy sets none.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// Configuration and clients, the same in all turns.
#[derive(Debug)]
pub(super) struct Clients<'a> {
    pub(super) config: &'a Config,
    pub(super) host: HostClient,
    pub(super) server: &'a Server,
    pub(super) views: &'a Views,
}

/// Context of one turn.
pub(super) struct Turn<'a> {
    pub(super) clients: &'a Clients<'a>,
    pub(super) boot: &'a mut BootState,
    pub(super) reports: &'a mut ReportState,
    /// The newest shadow at the beginning of the turn.
    pub(super) view: Arc<ShadowView>,
    /// Desired state of the view.
    pub(super) desired: DesiredState,
}

/// Facts at the beginning of a turn, and the situation under its desired state.
pub(super) struct Observed {
    pub(super) facts: Facts,
    pub(super) situation: Situation,
}

impl Turn<'_> {
    /// Returns true if the newest shadow still has this turn's desired state.
    pub(super) fn is_current(&self) -> bool {
        self.is_desired_in(self.clients.views.newest().as_deref())
    }

    /// Returns when the newest shadow has another desired state.
    pub(super) async fn withdrawn(&self) {
        let mut changed = self.clients.views.subscribe();
        let _ = changed.wait_for(|known| !self.is_desired_in(known.view.as_deref())).await;
    }

    fn is_desired_in(&self, view: Option<&ShadowView>) -> bool {
        view.is_some_and(|view| DesiredState::of(view) == self.desired)
    }

    /// Returns the refresh interval by the newest policy.
    pub(super) fn refresh_interval(&self) -> Duration {
        let view = self.clients.views.newest();
        let policy = view.as_ref().and_then(|view| view.spec.host.as_ref()?.refresh_interval);
        policy.map_or(REFRESH_INTERVAL, |interval| interval.0)
    }

    /// Returns the record of the host's settings, as this process or the previous one reported it.
    pub(super) fn settings_record(&self) -> FoundSettings {
        self.boot.memory.settings.clone().or_else(|| self.view.status.report.host.clone()).unwrap_or_default()
    }

    /// Returns the content of `HostReachable` for a host that answers.
    pub(super) fn condition(&self, situation: &Situation) -> HostCondition {
        if situation.image == Image::Ready && situation.armed_by == ArmedBy::Other {
            return HostCondition::problem(HOST_ARMED_BY_OTHER, ARMED_BY_OTHER);
        }
        self.boot.settings.condition()
    }
}
