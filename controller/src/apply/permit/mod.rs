//! The permit of a reboot, from the agent's request to the desired state that holds it: checked live, signed, written.

mod check;
mod sign;
mod write;

#[cfg(test)]
mod tests;

use super::{Applier, ApplyError};
use planner::rules::Rules;
use planner::view::NodeView;

impl Applier {
    /// Issues the permit for this agent's nonce, if the node as it is now still allows the reboot.
    pub(super) async fn issue_permit(&self, view: &NodeView, nonce: &str, rules: Rules) -> Result<(), ApplyError> {
        let shadow = view.shadow.as_ref().ok_or(ApplyError::Changed("the shadow"))?;
        let checked = self.check_live(&view.facts, shadow, rules).await?;
        let permit = self.sign_permit(checked, shadow, nonce)?;
        self.write_permit(shadow, permit).await
    }
}
