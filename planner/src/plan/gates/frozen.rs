//! The freeze after failures, of any version and kind of host.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.survey.quarantine.frozen_by().map(|version| Wait::Frozen { version: version.clone() })
}

#[cfg(test)]
mod tests {
    use models::operator::{KnownVersion, Quarantined};
    use models::reason::FailureReason;

    use super::super::testing::asked;
    use super::*;
    use crate::fixtures::{OLD, failure, t};

    #[test]
    fn any_quarantined_version_freezes_all_starts() {
        let frozen = Some(Wait::Frozen { version: OLD });
        let in_a_record = asked(gate, |view, _| {
            let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
            shadow.status.controller.record.get_or_insert_default().version_failures.push(failure(OLD));
        });
        assert_eq!(in_a_record, frozen);
        let in_the_operators_status = asked(gate, |view, _| {
            view.operator.as_mut().unwrap().status.versions.push(KnownVersion {
                version: OLD,
                variant: "another".into(),
                arch: "x86_64".into(),
                first_seen: t(0),
                failed: vec![],
                quarantined: Some(Quarantined { reason: FailureReason::BootFellBack, nodes: vec![], since: t(0) }),
            });
        });
        assert_eq!(in_the_operators_status, frozen, "also when the node that failed is deleted");
    }
}
