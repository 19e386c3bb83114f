//! Verifies the permit in the shadow.

use std::time::Duration;

use models::failures::with_causes;
use models::permit::PermitClaims;
use models::wire::ShadowView;
use tokio::time::Instant;

use crate::drive::next::Next;
use crate::drive::permit_request::PermitRequest;
use crate::drive::turn::Turn;
use crate::statement::StatementError;

/// Interval of re-checks of a permit whose key is not trusted yet: the keys arrive as a file.
const KEYS_POLL: Duration = Duration::from_secs(2);

/// Verification of the signed text of a permit, by the trusted keys, against the expected claims.
type Verify = fn(&str, &str, &PermitClaims) -> Result<(), StatementError>;

/// Verifies the permit in `view` for this boot and request; if it is refused, returns what to wait for. `verify` is that of a
/// permit for a reboot, or of a rehearsal permit: neither accepts the other.
pub(super) fn verify_permit(
    turn: &mut Turn<'_>,
    view: &ShadowView,
    request: &PermitRequest,
    verify: Verify,
) -> Result<(), Next> {
    let Err(error) = check(turn, view, request, verify) else { return Ok(()) };
    let permit = view.spec.permit.as_ref().map_or("", |permit| permit.jws.as_str());
    if let Some(request) = &mut turn.boot.permit_request
        && request.refused != permit
    {
        tracing::warn!(error = with_causes(&error), attempt = view.spec.attempt, "the permit is refused");
        permit.clone_into(&mut request.refused);
    }
    let expiry = request.expiry();
    Err(Next::At(if error.may_pass() { expiry.min(Instant::now() + KEYS_POLL) } else { expiry }))
}

fn check(turn: &Turn<'_>, view: &ShadowView, request: &PermitRequest, verify: Verify) -> Result<(), StatementError> {
    let permit = view.spec.permit.as_ref().ok_or(StatementError::Missing)?;
    // Without a node in the agent's own token there is nothing to compare the permit with.
    let node_uid = turn.clients.server.node_uid().ok_or(StatementError::Other("node"))?;
    let expected = PermitClaims {
        node_uid,
        boot_id: turn.boot.id.clone(),
        attempt: view.spec.attempt,
        version: view.spec.version.clone().ok_or(StatementError::Other("version"))?,
        nonce: request.nonce.clone(),
        host: view.spec.host.clone(),
    };
    verify(&permit.jws, &turn.clients.server.permit_keys(), &expected)
}
