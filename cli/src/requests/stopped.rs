//! Texts about what keeps nodes where they are: failures that have frozen or braked the rollout, and the switch.

use models::operator::BottlerocketUpdateOperator;
use semver::Version;

use super::operator::{not_in_force, policy, status};
use super::texts::{command, some};
use crate::failures::{Unresolved, freezing, has_others, list, unresolved};

fn describe(version: &Version, failed: &Unresolved) -> String {
    let nodes = some(&failed.nodes);
    let reason = failed.reason.map_or_else(String::new, |reason| format!("{reason} "));
    let frozen = match (failed.frozen, failed.braked) {
        (true, _) => String::new(),
        (false, true) => ", which has braked the rollout".to_owned(),
        (false, false) if !failed.held_for.is_empty() => {
            let kinds: Vec<&str> = failed.held_for.iter().map(String::as_str).collect();
            format!(", held for nodes of {} alone", kinds.join(" and "))
        }
        (false, false) => ", which has not frozen the rollout".to_owned(),
    };
    format!("{version} ({reason}on {nodes}{frozen})")
}

pub(super) fn describe_all<'a>(of: impl IntoIterator<Item = (&'a Version, &'a Unresolved)>) -> String {
    of.into_iter().map(|(version, failed)| describe(version, failed)).collect::<Vec<_>>().join(", ")
}

/// Returns the versions that have frozen the rollout with what a user can do, as sentences; `None` if none has.
pub(super) fn frozen(operator: &BottlerocketUpdateOperator) -> Option<String> {
    let status = status(operator);
    let unresolved = unresolved(&status);
    let stops = |(_, failed): &(&Version, &Unresolved)| failed.frozen || failed.braked;
    let of: Vec<(&Version, &Unresolved)> = unresolved.iter().filter(stops).collect();
    let first = of.first()?.0;
    let frozen: Vec<String> = of.iter().map(|(version, failed)| describe(version, failed)).collect();
    let freezing: Vec<&Version> = freezing(&unresolved).collect();
    let others = if freezing.is_empty() || !has_others(&status) {
        String::new()
    } else {
        let others = command(operator, &format!("resume --others {}", list(freezing.iter().copied())));
        format!("to go on with nodes of another variant or architecture: {others}; ")
    };
    Some(format!(
        "the rollout is {} by failures of {}. To try again: {}; {others}to skip a version, first: {}",
        if freezing.is_empty() { "braked" } else { "frozen" },
        frozen.join(", "),
        try_again(operator),
        command(operator, &format!("quarantine {first}")),
    ))
}

/// Returns the command that resolves all failures.
pub(super) fn try_again(operator: &BottlerocketUpdateOperator) -> String {
    command(operator, &format!("resume --failures {}", list(unresolved(&status(operator)).keys())))
}

/// Returns the sentence to add if updates are paused.
pub(super) fn but_paused(operator: &BottlerocketUpdateOperator) -> String {
    if policy(operator).enabled {
        return String::new();
    }
    format!(". Updates are paused, however: {}", command(operator, "resume"))
}

/// Returns the sentences to add to what moves nodes, where they stay as they are for now: any version has frozen the rollout, one of those that
/// they move to has braked it, or updates are paused.
pub(super) fn but_stopped(operator: &BottlerocketUpdateOperator, moves_to: impl Fn(&Version) -> bool) -> String {
    let status = status(operator);
    let unresolved = unresolved(&status);
    let stops = |(version, failed): &(&Version, &Unresolved)| failed.frozen || (failed.braked && moves_to(version));
    let stopping: Vec<_> = unresolved.iter().filter(stops).collect();
    let frozen = if stopping.is_empty() {
        String::new()
    } else {
        let (of, resolve) = (describe_all(stopping), try_again(operator));
        format!(". No node starts before failures are resolved, however, which stop the rollout: {of}: {resolve}")
    };
    format!("{frozen}{}{}", but_paused(operator), not_in_force(&status))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::operator::testing::operator;
    use super::*;

    #[test]
    fn nodes_that_a_freeze_or_a_pause_keeps_are_said_to_stay() {
        let known = |quarantined: bool| {
            let quarantined = quarantined
                .then(|| json!({"reason": "BootFellBack", "nodes": ["node-1"], "since": "2026-01-01T00:00:00Z"}));
            json!({
                "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
                "failed": ["node-1"], "quarantined": quarantined,
            })
        };
        let text = |enabled: bool, quarantined: bool| {
            let operator = operator(&json!({"enabled": enabled}), &json!({"versions": [known(quarantined)]}));
            but_stopped(&operator, |_| false)
        };
        assert_eq!(text(true, false), "");
        let frozen = text(true, true);
        assert!(frozen.contains("1.20.5 (BootFellBack on node-1)"), "{frozen}");
        assert!(frozen.ends_with(": kubectl brupop resume --failures 1.20.5"), "{frozen}");
        let paused = text(false, true);
        assert!(paused.starts_with(&frozen) && paused.contains("Updates are paused, however"), "{paused}");
    }
}
