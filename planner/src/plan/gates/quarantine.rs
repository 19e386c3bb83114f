//! The quarantine of versions that failed too often on hosts like this one.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    let (agent, version) = (&ctx.shadow.status.agent, ctx.version().ok()?);
    let held = ctx.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), version);
    held.then(|| Wait::Quarantined { version: version.clone() })
}

#[cfg(test)]
mod tests {
    use models::shadow::VersionFailure;

    use super::super::testing::asked;
    use super::*;
    use crate::fixtures::{NEW, OLD, failure};

    #[test]
    fn version_is_quarantined_after_max_failures() {
        let quarantined = Some(Wait::Quarantined { version: NEW });
        let arm = VersionFailure { arch: "aarch64".into(), ..failure(NEW) };
        let resolved = VersionFailure { resolved_by: Some("r".into()), ..failure(NEW) };
        for (sentence, max_failures, failures, expected) in [
            ("one failure, one allowed", 1, vec![("b", failure(NEW))], quarantined.clone()),
            ("one failure of two", 2, vec![("b", failure(NEW))], None),
            ("two failures on one node count once", 2, vec![("b", failure(NEW)), ("b", failure(NEW))], None),
            ("two failures on two nodes", 2, vec![("b", failure(NEW)), ("c", failure(NEW))], quarantined),
            ("another version", 1, vec![("b", failure(OLD))], None),
            ("another kind of host", 1, vec![("b", arm)], None),
            ("a failure that was settled", 1, vec![("b", resolved)], None),
        ] {
            let wait = asked(gate, |view, policy| {
                policy.max_failures = max_failures;
                for (name, failure) in failures {
                    let shadow = view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap();
                    shadow.status.controller.record.get_or_insert_default().version_failures.push(failure);
                }
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }
}
