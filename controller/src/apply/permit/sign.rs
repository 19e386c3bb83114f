//! The signature of a permit, for one request of the agent in one boot of one node.

use models::permit::PermitClaims;
use models::shadow::Permit;

use super::check::Checked;
use super::{Applier, ApplyError};
use planner::view::ShadowFacts;

impl Applier {
    pub(super) fn sign_permit(
        &self,
        Checked { node_uid, boot_id, version }: Checked,
        shadow: &ShadowFacts,
        nonce: &str,
    ) -> Result<Permit, ApplyError> {
        let claims = PermitClaims {
            node_uid,
            boot_id,
            attempt: shadow.spec.attempt,
            version,
            nonce: nonce.to_owned(),
            host: shadow.spec.host.clone(),
        };
        Ok(Permit { nonce: nonce.to_owned(), jws: self.sign(&claims)? })
    }
}
