//! The answer of a gate that does not let a node pass.

use crate::rules::Refusal;
use crate::wait::Wait;

/// The reason why a gate does not let a node pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Obstacle {
    /// The facts that the gate reads are not known yet. A node loses nothing by that.
    Unknown(Wait),
    /// The facts rule it out.
    Refused(Wait),
}

impl Obstacle {
    /// Returns whether it may end by itself within minutes: another node's drain may have moved pods of a budget, whose replacements are about
    /// to be Ready; a host, the web API, Prometheus or the API server may not answer for some seconds, as where they run on a node that is drained
    /// too.
    pub(crate) const fn may_end(&self) -> bool {
        let Self::Refused(wait) = self else { return true };
        matches!(
            wait,
            Wait::BudgetUnhealthy { .. }
                | Wait::HostNotUsable { .. }
                | Wait::HostBusy { .. }
                | Wait::AgentNotReady
                | Wait::WebApiNotReady
                | Wait::ExpressionFails { .. }
                | Wait::PodsNotReady { .. }
                | Wait::DrainRefused { why: Refusal::Unread, .. }
        )
    }

    /// Returns the reason that users read.
    pub(crate) fn into_wait(self) -> Wait {
        match self {
            Self::Unknown(wait) | Self::Refused(wait) => wait,
        }
    }
}
