//! The back-off after a failed attempt.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    let record = ctx.shadow.status.controller.record.as_ref()?;
    let until = record.not_before.filter(|until| *until > ctx.now)?;
    let reason = record.last.as_ref().map(|last| last.reason.clone()).unwrap_or_default();
    Some(Wait::BackOff { until, reason })
}

#[cfg(test)]
mod tests {
    use models::shadow::Record;

    use super::super::testing::asked;
    use super::*;
    use crate::fixtures::t;

    #[test]
    fn failed_node_waits_for_its_back_off() {
        for (sentence, not_before, expected) in [
            ("never failed", None, None),
            ("failed lately", Some(1), Some(Wait::BackOff { until: t(1), reason: String::new() })),
            ("waited long enough", Some(0), None),
        ] {
            let wait = asked(gate, |view, _| {
                let shadow = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap();
                shadow.status.controller.record = Some(Record { not_before: not_before.map(t), ..Record::default() });
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }
}
