//! The causes that keep nodes from moving to any version: failures, the switch, and what is the same for all nodes.

use models::operator::BottlerocketUpdateOperator;
use semver::Version;

use super::operator::{blocked, policy, status};
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

/// Returns the sentences to add where nodes are to move, and something keeps all of them from that; none if nothing does. A brake is that of one
/// rollout: it counts where `is_moved` is true of its version.
pub(super) fn nothing_moves(operator: &BottlerocketUpdateOperator, is_moved: impl Fn(&Version) -> bool) -> String {
    let unresolved = unresolved(&status(operator));
    let of = |stops: &dyn Fn(&Version, &Unresolved) -> bool| {
        let of = unresolved.iter().filter(|(version, failed)| stops(version, failed));
        describe_all(of)
    };
    let frozen = of(&|_, failed| failed.frozen);
    let braked = of(&|version, failed| !failed.frozen && failed.braked && is_moved(version));
    let again = try_again(operator);
    let failures = match (frozen.is_empty(), braked.is_empty()) {
        (false, _) => format!(". Nothing moves before the failures of {frozen} are resolved: {again}"),
        (true, false) => format!(". One node at a time is tried, after pauses, because of {braked}; to go on: {again}"),
        (true, true) => String::new(),
    };
    format!("{failures}{}{}", but_paused(operator), blocked(operator))
}

#[cfg(test)]
mod tests {
    use models::operator::BLOCKED;
    use serde_json::{Value, json};

    use super::super::operator::testing::{condition, operator};
    use super::*;

    #[test]
    fn outcome_of_a_move_says_what_keeps_all_nodes_from_it() {
        let failed = |contained: bool| {
            json!({"versions": [{
                "version": "1.20.5", "variant": "v", "arch": "a", "firstSeen": "2026-01-01T00:00:00Z", "failed": ["node-1"],
                "quarantined": {"reason": "BootFellBack", "nodes": ["node-1"], "since": "2026-01-01T00:00:00Z", "contained": contained},
            }]})
        };
        let braked = |version: &str| {
            let end = json!({"node": "node-1", "proof": "Unproven", "reason": "HealthUnknown"});
            json!({"activeRollouts": [{
                "version": version, "variant": "v", "arch": "a", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0,
                "ledger": {"base": 6, "due": 1, "row": [end], "brakedUntil": "2026-01-01T01:00:00Z"},
            }]})
        };
        let fires = json!({"conditions": [condition(BLOCKED, "ExpressionFires", "the expression load has a result")]});
        let frozen = ". Nothing moves before the failures of 1.20.5 (BootFellBack on node-1) are resolved: \
             kubectl brupop resume --failures 1.20.5";
        let tried = ". One node at a time is tried, after pauses, because of 1.20.4 (on node-1, which has braked the rollout); to go on: \
             kubectl brupop resume --failures 1.20.4";
        let paused = ". Updates are paused, however: kubectl brupop resume";
        type Case<'a> = (&'a str, Value, Value, String);
        let cases: [Case<'_>; 8] = [
            ("nothing", json!({}), json!({}), String::new()),
            ("a freeze, by whatever version", json!({}), failed(false), frozen.to_owned()),
            ("a failure that holds its own kind of nodes", json!({}), failed(true), String::new()),
            ("the brake of the rollout", json!({}), braked("1.20.4"), tried.to_owned()),
            ("the brake of another one", json!({}), braked("1.20.5"), String::new()),
            ("the switch", json!({"enabled": false}), json!({}), paused.to_owned()),
            ("the switch and a freeze", json!({"enabled": false}), failed(false), format!("{frozen}{paused}")),
            ("an expression", json!({}), fires, ". Nodes wait: the expression load has a result".to_owned()),
        ];
        for (sentence, spec, status, expected) in cases {
            let found = nothing_moves(&operator(&spec, &status), |version| version.to_string() == "1.20.4");
            assert_eq!(found, expected, "{sentence}");
        }
    }
}
