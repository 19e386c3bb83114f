//! The maintenance windows and blackouts.

use crate::plan::context::NodeContext;
use crate::policy::WindowState;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    match ctx.survey.window(ctx.node) {
        WindowState::Open { .. } => None,
        WindowState::Closed { opens, blackout: false } => Some(Wait::WindowClosed { opens: *opens }),
        WindowState::Closed { opens, blackout: true } => Some(Wait::Blackout { ends: *opens }),
    }
}

#[cfg(test)]
mod tests {
    use models::operator::BottlerocketUpdateOperatorSpec;

    use super::super::testing::asked;
    use super::*;
    use crate::policy::Policy;

    /// Checks at 08:00 UTC on Friday, 2027-01-15.
    fn at(spec: &str) -> Option<Wait> {
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_str(spec).unwrap();
        asked(gate, |_, policy| *policy = Policy::from_spec(&spec).unwrap())
    }

    #[test]
    fn node_uses_window_of_its_group_or_of_all_nodes() {
        let opens = |text: &str| Some(Wait::WindowClosed { opens: Some(text.parse().unwrap()) });
        for (sentence, spec, expected) in [
            ("no windows", r#"{}"#, None),
            ("an open one", r#"{"schedule": {"windows": [{"cron": "0 7 * * *", "duration": "2h"}]}}"#, None),
            (
                "a closed one",
                r#"{"schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]}}"#,
                opens("2027-01-15T09:00:00Z"),
            ),
            (
                "too close to the end of an open one",
                r#"{"schedule": {"windows": [{"cron": "0 7 * * *", "duration": "2h"}], "stopStartingBefore": "90m"}}"#,
                opens("2027-01-16T07:00:00Z"),
            ),
            (
                "a blackout in an open one",
                r#"{"schedule": {"windows": [{"cron": "0 * * * *", "duration": "1h"}], "blackouts": [{"from": "2027-01-15"}]}}"#,
                Some(Wait::Blackout { ends: Some("2027-01-16T00:00:00Z".parse().unwrap()) }),
            ),
            (
                "the group's window, which is open",
                r#"{"schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]},
                    "nodeGroups": [{"name": "g", "selector": {}, "schedule": {"windows": [{"cron": "0 7 * * *", "duration": "2h"}]}}]}"#,
                None,
            ),
            (
                "the group's window, which is closed",
                r#"{"nodeGroups": [{"name": "g", "selector": {}, "schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]}}]}"#,
                opens("2027-01-15T09:00:00Z"),
            ),
            (
                "a blackout of all nodes in the group's window",
                r#"{"schedule": {"blackouts": [{"from": "2027-01-15"}]},
                    "nodeGroups": [{"name": "g", "selector": {}, "schedule": {"windows": [{"cron": "0 * * * *", "duration": "1h"}]}}]}"#,
                Some(Wait::Blackout { ends: Some("2027-01-16T00:00:00Z".parse().unwrap()) }),
            ),
            (
                "the group's own blackout beside one of all nodes",
                r#"{"schedule": {"blackouts": [{"from": "2027-01-16"}]},
                    "nodeGroups": [{"name": "g", "selector": {}, "schedule": {"blackouts": [{"from": "2027-01-15"}]}}]}"#,
                Some(Wait::Blackout { ends: Some("2027-01-17T00:00:00Z".parse().unwrap()) }),
            ),
            (
                "the windows of all nodes where the group has a blackout alone",
                r#"{"schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]},
                    "nodeGroups": [{"name": "g", "selector": {}, "schedule": {"blackouts": [{"from": "2027-02-01"}]}}]}"#,
                opens("2027-01-15T09:00:00Z"),
            ),
            (
                "the group's window, with the time before its end of all nodes",
                r#"{"schedule": {"stopStartingBefore": "90m"},
                    "nodeGroups": [{"name": "g", "selector": {}, "schedule": {"windows": [{"cron": "0 7 * * *", "duration": "2h"}]}}]}"#,
                opens("2027-01-16T07:00:00Z"),
            ),
            (
                "another group's window is none of its business",
                r#"{"nodeGroups": [{"name": "g", "selector": {"matchLabels": {"tier": "db"}}, "schedule": {"windows": [{"cron": "0 9 * * *", "duration": "2h"}]}}]}"#,
                None,
            ),
        ] {
            assert_eq!(at(spec), expected, "{sentence}");
        }
    }
}
