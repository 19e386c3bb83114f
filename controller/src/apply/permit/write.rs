//! The write of a permit into the desired state.

use models::shadow::{BottlerocketShadowSpec, Permit};

use super::{Applier, ApplyError};
use planner::view::ShadowFacts;

impl Applier {
    /// Writes the permit at the version of the shadow that the decision was made on, if this process still leads.
    pub(super) async fn write_permit(&self, shadow: &ShadowFacts, permit: Permit) -> Result<(), ApplyError> {
        let spec = BottlerocketShadowSpec { permit: Some(permit), ..shadow.spec.clone() };
        self.leadership.check()?;
        self.write_spec(shadow, &spec).await
    }
}
