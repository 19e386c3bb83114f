//! The checks right before an act.

use semver::Version;

use crate::boot;
use crate::drive::facts::read_status;
use crate::drive::moment::Moment;
use crate::drive::next::{Next, Stop};
use crate::drive::permit_request::PermitRequest;
use crate::drive::turn::Turn;
use crate::host::types::UpdateStatus;

/// Reads the host again and ends the turn if it is not armed any more. Another client may have disarmed it since: a
/// drained node is not rebooted into the version that it runs.
pub(super) async fn recheck_host(turn: &mut Turn<'_>, version: &Version) -> Result<(), Stop> {
    read_status(turn).await?;
    if is_armed_with(turn.boot.status.get(), version) { Ok(()) } else { Err(Next::Again.into()) }
}

/// Ends the turn if the desired state was withdrawn, another boot runs, or the nonce has expired: the last check before
/// an act. The reads before it take time, and a process that was stopped meanwhile, or a machine that was suspended, finds any
/// of these.
pub(super) fn check_still_valid(turn: &Turn<'_>, request: &PermitRequest) -> Result<(), Next> {
    let same_boot = boot::read(&turn.clients.config.boot_id_file).is_ok_and(|running| running == turn.boot.id);
    if turn.is_current() && same_boot && request.is_fresh(Moment::now()) { Ok(()) } else { Err(Next::Again) }
}

/// Returns true if the host's next boot uses this version.
pub(super) fn is_armed_with(status: Option<&UpdateStatus>, version: &Version) -> bool {
    let staging = status.and_then(|status| status.staging.as_ref());
    staging.is_some_and(|staging| staging.next_to_boot && staging.version.as_ref() == Some(version))
}
