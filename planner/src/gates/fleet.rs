//! Gates that keep all nodes, or many, from an update: the switch, failures, canary steps, the schedule.

use models::operator::UnwellSpan;

use crate::policy::WindowState;
use crate::survey::NodeContext;
use crate::survey::brake::Brake;
use crate::wait::Wait;

pub(crate) fn is_enabled(ctx: &NodeContext<'_>) -> Option<Wait> {
    let is_off = ctx.policy.present && !ctx.policy.enabled;
    if is_off { Some(Wait::Disabled) } else { has_valid_policy(ctx) }
}

/// There is a policy, and it can be applied. Updates need not be enabled.
pub(crate) fn has_valid_policy(ctx: &NodeContext<'_>) -> Option<Wait> {
    match (ctx.policy.present, ctx.policy.errors.is_empty()) {
        (false, _) => Some(Wait::NoOperatorResource),
        (true, false) => Some(Wait::PolicyInvalid),
        (true, true) => None,
    }
}

/// The version has not failed too often on hosts like this one.
pub(crate) fn is_not_quarantined(ctx: &NodeContext<'_>) -> Option<Wait> {
    let version = ctx.version().ok()?;
    let agent = &ctx.shadow.status.agent;
    let held = ctx.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), version);
    held.then(|| Wait::Quarantined { version: version.clone() })
}

/// No version has failed too often, on any kind of host.
pub(crate) fn is_not_frozen(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.survey.quarantine.frozen_by().map(|version| Wait::Frozen { version: version.clone() })
}

/// Returns the brake of a node's rollout, unless the node is the one that is tried. The first node of a rollout goes alone, but others may
/// have their images.
pub(crate) fn brake_of<'a>(ctx: &NodeContext<'a>) -> Option<&'a Brake> {
    let brake = ctx.survey.rollouts.of(ctx.node, ctx.version().ok()?)?.brake.as_ref()?;
    (matches!(brake.wait, Wait::Braked { .. }) && !brake.is_of(&ctx.facts().name)).then_some(brake)
}

/// The rollout is not braked, or a node is tried all the same.
pub(crate) fn is_not_braked(ctx: &NodeContext<'_>) -> Option<Wait> {
    let brake = brake_of(ctx)?;
    let rollout = ctx.survey.rollouts.of(ctx.node, ctx.version().ok()?)?;
    if rollout.wait.as_ref().is_some_and(|wait| matches!(wait, Wait::StepUnproven { .. } | Wait::StepFailed { .. })) {
        // The step waits for the same nodes, and what ends that ends the brake, too.
        return None;
    }
    (brake.room == 0).then(|| brake.wait.clone())
}

/// Nodes have not fallen ill at once, or the rollout takes ill ones off their version.
pub(crate) fn cluster_is_well(ctx: &NodeContext<'_>) -> Option<Wait> {
    not_cured(ctx, ctx.survey.unwell.of_starts()?)
}

/// Returns the same trouble where it also ends what has begun: it has begun since.
pub(crate) fn cluster_unwell(ctx: &NodeContext<'_>) -> Option<Wait> {
    not_cured(ctx, ctx.survey.unwell.open()?)
}

/// Returns the wait for trouble of the cluster, unless the rollout takes ill ones off their version. A drill takes none.
fn not_cured(ctx: &NodeContext<'_>, span: &UnwellSpan) -> Option<Wait> {
    let takes_off = |version| {
        let urgent = ctx.survey.urgency.applies(ctx.node, version);
        ctx.survey.unwell.is_cured_by(&ctx.policy.target, ctx.node, version, urgent)
    };
    let cures = !ctx.mode().is_drill() && ctx.version().is_ok_and(takes_off);
    (!cures).then(|| Wait::of_unwell(span))
}

pub(crate) fn has_canary_place(ctx: &NodeContext<'_>) -> Option<Wait> {
    if ctx.policy.pre_stage.is_some() {
        // Images are downloaded ahead of a step, and no more nodes are drained than it has.
        return None;
    }
    let rollout = ctx.survey.rollouts.limiting(ctx.node, ctx.version().ok()?)?;
    (rollout.room_to_begin() == Some(0)).then(|| rollout.wait.clone()).flatten()
}

/// Returns why a closed window does not delay the node, if that is so.
pub(crate) fn urgency(ctx: &NodeContext<'_>) -> Option<String> {
    // A drill is not urgent, whatever version the node is to have.
    if ctx.mode().is_drill() {
        return None;
    }
    let closed = matches!(ctx.survey.window(ctx.node), WindowState::Closed { blackout: false, .. });
    let version = ctx.version().ok().filter(|version| closed && ctx.survey.urgency.applies(ctx.node, version))?;
    let record = ctx.survey.urgency.record.as_ref()?;
    Some(format!("{version} {}", record.effect()))
}

/// A window is open for the node, or its update is urgent, and there is no blackout.
pub(crate) fn window_is_open(ctx: &NodeContext<'_>) -> Option<Wait> {
    match ctx.survey.window(ctx.node) {
        WindowState::Open { .. } => None,
        WindowState::Closed { blackout: false, .. } if urgency(ctx).is_some() => None,
        WindowState::Closed { opens, blackout: false } => Some(Wait::WindowClosed { opens: *opens }),
        WindowState::Closed { blackout: true, .. } => blackout(ctx),
    }
}

/// Returns the blackout of the node, if there is one now.
pub(crate) fn blackout(ctx: &NodeContext<'_>) -> Option<Wait> {
    match ctx.survey.window(ctx.node) {
        WindowState::Closed { opens, blackout: true } => Some(Wait::Blackout { ends: *opens }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use models::operator::{BottlerocketUpdateOperatorSpec, CountOrPercent, KnownVersion};
    use models::shadow::{HostState, Step, VersionFailure};
    use serde_json::{Value, json};

    use super::super::begin;
    use super::super::testing::refusal_of;
    use super::*;
    use crate::fixtures::{NEW, OLD, at, failure, fallen_back, seen};
    use crate::policy::{CanaryStep, Policy};

    #[test]
    fn starts_require_enabled_valid_policy() {
        for (sentence, present, enabled, valid, expected) in [
            ("enabled", true, true, true, None),
            ("disabled", true, false, true, Some(Wait::Disabled)),
            ("no resource", false, true, true, Some(Wait::NoOperatorResource)),
            ("invalid", true, true, false, Some(Wait::PolicyInvalid)),
            ("disabled and invalid", true, false, false, Some(Wait::Disabled)),
        ] {
            let wait = refusal_of(is_enabled, |_, policy| {
                (policy.present, policy.enabled) = (present, enabled);
                policy.errors = if valid { vec![] } else { crate::fixtures::invalid_policy() };
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }

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
            ("a failure that was resolved", 1, vec![("b", resolved)], None),
        ] {
            let wait = refusal_of(is_not_quarantined, |view, policy| {
                policy.max_failures = max_failures;
                for (name, failure) in failures {
                    let shadow = view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap();
                    shadow.status.controller.record.get_or_insert_default().version_failures.push(failure);
                }
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }

    #[test]
    fn any_quarantined_version_freezes_all_starts() {
        let frozen = Some(Wait::Frozen { version: OLD });
        let in_a_record = refusal_of(is_not_frozen, |view, _| {
            let shadow = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
            shadow.status.controller.record.get_or_insert_default().version_failures.push(failure(OLD));
        });
        assert_eq!(in_a_record, frozen);
        let in_the_operators_status = refusal_of(is_not_frozen, |view, _| {
            let quarantined = Some(fallen_back(&[]));
            let known = KnownVersion { variant: "another".into(), quarantined, ..seen(OLD, 0) };
            view.operator.as_mut().unwrap().status.versions.push(known);
        });
        assert_eq!(in_the_operators_status, frozen, "also when the node that failed is deleted");
    }

    #[test]
    fn node_beyond_canary_step_waits() {
        let canary = |nodes| {
            vec![CanaryStep { nodes: CountOrPercent::Count(nodes), soak: std::time::Duration::ZERO, manual: false }]
        };
        for (sentence, steps, moving, expected) in [
            ("no steps", vec![], true, None),
            ("the first node of a step", canary(1), false, None),
            (
                "another one is on its way",
                canary(1),
                true,
                Some(Wait::CanaryStep {
                    step: 1,
                    until: None,
                    approval: None,
                    nodes: vec!["b".into()],
                    none_runs: false,
                }),
            ),
            ("a step of two", canary(2), true, None),
        ] {
            for (ahead, expected) in [(None, expected), (Some(CountOrPercent::Count(2)), None)] {
                for gate in [has_canary_place, begin] {
                    let wait = refusal_of(gate, |view, policy| {
                        (policy.canary, policy.pre_stage) = (steps.clone(), ahead.clone());
                        if moving {
                            view.nodes.insert("b".into(), at("b", Step::Draining, 0, HostState::StagedUpdate));
                        }
                    });
                    assert_eq!(wait, expected, "{sentence}, images ahead of time: {ahead:?}");
                }
            }
        }
    }

    /// Checks at 08:00 UTC on Friday, 2027-01-15.
    fn refusal_at_eight(spec: Value) -> Option<Wait> {
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(spec).unwrap();
        refusal_of(window_is_open, |_, policy| *policy = Policy::from_spec(&spec).unwrap())
    }

    /// The schedule of all nodes, and that of the node's group.
    #[test]
    fn node_uses_window_of_its_group_or_of_all_nodes() {
        let windows =
            |hour: &str, hours: u32| json!([{"cron": format!("0 {hour} * * *"), "duration": format!("{hours}h")}]);
        let window = |hour: &str, hours: u32| Some(json!({"windows": windows(hour, hours)}));
        let blackout = |day: &str| Some(json!({"blackouts": [{"from": day}]}));
        let early = || Some(json!({"windows": windows("7", 2), "stopStartingBefore": "90m"}));
        let dark = || Some(json!({"windows": windows("*", 1), "blackouts": [{"from": "2027-01-15"}]}));
        let stop = || Some(json!({"stopStartingBefore": "90m"}));
        let opens = |text: &str| Some(Wait::WindowClosed { opens: Some(text.parse().unwrap()) });
        let ends = |text: &str| Some(Wait::Blackout { ends: Some(text.parse().unwrap()) });
        let (at_nine, tomorrow) = (|| opens("2027-01-15T09:00:00Z"), || opens("2027-01-16T07:00:00Z"));
        let midnight = || ends("2027-01-16T00:00:00Z");
        for (sentence, all, group, expected) in [
            ("no windows", None, None, None),
            ("an open one", window("7", 2), None, None),
            ("a closed one", window("9", 2), None, at_nine()),
            ("too close to the end of an open one", early(), None, tomorrow()),
            ("a blackout in an open one", dark(), None, midnight()),
            ("the group's window, which is open", window("9", 2), window("7", 2), None),
            ("the group's window, which is closed", None, window("9", 2), at_nine()),
            ("a blackout of all nodes in the group's window", blackout("2027-01-15"), window("*", 1), midnight()),
            (
                "the group's own blackout beside one of all nodes",
                blackout("2027-01-16"),
                blackout("2027-01-15"),
                ends("2027-01-17T00:00:00Z"),
            ),
            ("windows of all where the group has a blackout alone", window("9", 2), blackout("2027-02-01"), at_nine()),
            ("the group's window, with the time before its end of all", stop(), window("7", 2), tomorrow()),
        ] {
            let mut spec = json!({});
            if let Some(schedule) = all {
                spec["schedule"] = schedule;
            }
            if let Some(schedule) = group {
                spec["nodeGroups"] = json!([{"name": "g", "selector": {}, "schedule": schedule}]);
            }
            assert_eq!(refusal_at_eight(spec), expected, "{sentence}");
        }
        let selector = json!({"matchLabels": {"tier": "db"}});
        let other = json!({"nodeGroups": [{"name": "g", "selector": selector, "schedule": window("9", 2)}]});
        assert_eq!(refusal_at_eight(other), None, "another group's window is none of its business");
    }
}
