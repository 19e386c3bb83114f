//! The switch that stops anything new.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    let policy = ctx.survey.policy;
    match (policy.present, policy.enabled, policy.unusable) {
        (false, _, _) => Some(Wait::NoOperatorResource),
        (true, false, _) => Some(Wait::Disabled),
        (true, true, true) => Some(Wait::PolicyUnusable),
        (true, true, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::asked;
    use super::*;

    #[test]
    fn starts_require_enabled_valid_policy() {
        for (sentence, present, enabled, unusable, expected) in [
            ("switched on", true, true, false, None),
            ("switched off", true, false, false, Some(Wait::Disabled)),
            ("no resource", false, true, false, Some(Wait::NoOperatorResource)),
            ("a resource that was never good", true, true, true, Some(Wait::PolicyUnusable)),
            ("switched off and never good", true, false, true, Some(Wait::Disabled)),
        ] {
            let wait = asked(gate, |_, policy| {
                (policy.present, policy.enabled, policy.unusable) = (present, enabled, unusable);
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }
}
