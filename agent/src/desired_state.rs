//! The desired state of a shadow, as far as it determines host commands.

use models::shadow::{BottlerocketShadowSpec, HostState};
use models::wire::ShadowView;
use semver::Version;

/// One attempt on one shadow. A re-created shadow counts its attempts from the start, hence the uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttemptId {
    pub(crate) uid: String,
    pub(crate) attempt: i64,
}

/// A desired state. A changed permit or policy makes no other desired state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DesiredState {
    pub(crate) attempt: AttemptId,
    pub(crate) state: HostState,
    pub(crate) version: Option<Version>,
    /// The boot that it applies to.
    pub(crate) boot_id: Option<String>,
}

impl DesiredState {
    pub(crate) fn of(view: &ShadowView) -> Self {
        let BottlerocketShadowSpec { state, version, attempt, boot_id, host: _, permit: _ } = &view.spec;
        Self {
            attempt: AttemptId { uid: view.metadata.uid.clone(), attempt: *attempt },
            state: *state,
            version: version.clone(),
            boot_id: boot_id.clone(),
        }
    }
}
