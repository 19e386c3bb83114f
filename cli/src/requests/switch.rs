//! `kubectl brupop pause` and `resume`: the switch `spec.enabled`, and the failures that have frozen the rollout.
//!
//! The two are apart: to let updates start again does not resolve failures, and to resolve failures does not let updates start.
//! A version that has failed is tried again only if its name is given.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use clap::Args;
use kube::Client;
use models::condition::{ConditionStatus, find_condition};
use models::names::{CONTINUE_OTHERS_ANNOTATION, RESUME_ANNOTATION};
use models::operator::{BottlerocketUpdateOperator, CONTAINED, ENABLED, FROZEN, WINDOW_OPEN, frozen_since};
use planner::wait::without_command;
use semver::Version;
use serde_json::json;

use super::operator::{carry_out, not_in_force, policy, status, stopped_otherwise};
use super::stopped::{but_paused, describe_all, frozen, try_again};
use super::texts::{command, nonce};
use crate::failures::{Unresolved, list, unresolved};
use crate::write::{Change, Decision, State, WriteOptions};

#[derive(Debug, Args)]
pub(crate) struct ResumeOptions {
    /// Resolve the failures of this version instead, so that it is tried again; to be repeated, or separated by commas, for
    /// each version that has failed. To skip a version, quarantine it first.
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    failures: Vec<Version>,
    /// Go on with the other nodes instead: this version, which has frozen the rollout, stays held for nodes of the variant and architecture that
    /// failed; to be repeated, or separated by commas, for each version that has frozen it.
    #[arg(long, value_name = "VERSION", value_delimiter = ',', conflicts_with = "failures")]
    others: Vec<Version>,
    #[command(flatten)]
    write: WriteOptions,
}

fn decide_pause(operator: &BottlerocketUpdateOperator) -> Decision {
    if operator.spec.enabled == Some(false) {
        return Decision::Nothing("updates are paused already (spec.enabled is false)".to_owned());
    }
    Decision::write(json!({"spec": {"enabled": false}}), "paused")
}

/// Decides about `resume` without versions.
fn decide_resume(operator: &BottlerocketUpdateOperator) -> anyhow::Result<Decision> {
    if operator.spec.enabled == Some(false) {
        return Ok(Decision::write(json!({"spec": {"enabled": true}}), "resumed"));
    }
    let otherwise = stopped_otherwise(operator);
    if let Some(frozen) = frozen(operator) {
        bail!("updates are not paused, but {frozen}{otherwise}");
    }
    let unresolved = unresolved(&status(operator));
    let left = if unresolved.is_empty() {
        otherwise
    } else {
        format!(
            ". To resolve the failures of {} all the same, so that their places are free: {}{otherwise}",
            list(unresolved.keys()),
            try_again(operator)
        )
    };
    Ok(Decision::Nothing(format!("updates are not paused, and no failure has frozen or braked the rollout{left}")))
}

/// Decides about `resume` with versions: the operator resolves all failures at once, so that each has to be named.
fn decide_failures(operator: &BottlerocketUpdateOperator, named: &[Version], nonce: &str) -> anyhow::Result<Decision> {
    let unresolved = unresolved(&status(operator));
    if let Some(unknown) = named.iter().find(|version| !unresolved.contains_key(version)) {
        let others = if unresolved.is_empty() {
            "no version has any".to_owned()
        } else {
            format!("there are failures of {}", describe_all(&unresolved))
        };
        bail!("{unknown} has no failures to resolve; {others}. Nothing was written");
    }
    let left: Vec<_> = unresolved.iter().filter(|(version, _)| !named.contains(version)).collect();
    if !left.is_empty() {
        bail!(
            "the failures of all versions are resolved at once, and there are some of {} too. Nothing was written; if those are \
             to be resolved as well: {}",
            describe_all(left),
            try_again(operator),
        );
    }
    let what = format!("failures of {} resolved", list(unresolved.keys()));
    Ok(Decision::annotate(RESUME_ANNOTATION, nonce, what))
}

/// Decides about `resume --others`: all versions that have frozen the rollout are held for their own nodes at once, so that each has to be
/// named.
fn decide_others(operator: &BottlerocketUpdateOperator, named: &[Version]) -> anyhow::Result<Decision> {
    let status = status(operator);
    let unresolved = unresolved(&status);
    let freezing: BTreeMap<&Version, &Unresolved> = unresolved.iter().filter(|(_, failed)| failed.frozen).collect();
    if freezing.is_empty()
        && named.iter().all(|version| unresolved.get(version).is_some_and(|f| !f.held_for.is_empty()))
    {
        return Ok(Decision::Nothing(format!("other nodes go on already: {}", describe_all(&unresolved))));
    }
    if let Some(unknown) = named.iter().find(|version| !freezing.contains_key(version)) {
        let others = if freezing.is_empty() {
            "no version has".to_owned()
        } else {
            format!("it is frozen by failures of {}", describe_all(freezing.iter().map(|(v, f)| (*v, *f))))
        };
        bail!("{unknown} has not frozen the rollout; {others}. Nothing was written");
    }
    let left: Vec<_> = freezing.iter().filter(|(version, _)| !named.contains(version)).collect();
    if !left.is_empty() {
        bail!(
            "the rollout is frozen by failures of {} too. Nothing was written; to go on without those nodes as well: {}",
            describe_all(left.into_iter().map(|(v, f)| (*v, *f))),
            command(operator, &format!("resume --others {}", list(freezing.keys().copied()))),
        );
    }
    let since = frozen_since(&status.versions).map(|since| since.to_string());
    let what = format!("{} held for the nodes of its kind alone", list(freezing.keys().copied()));
    Ok(Decision::annotate(CONTINUE_OTHERS_ANNOTATION, since, what))
}

/// Returns what came of `resume --others`. The condition says whether there are other nodes.
fn continued(operator: &BottlerocketUpdateOperator) -> anyhow::Result<State> {
    let status = status(operator);
    if let Some(frozen) = frozen(operator) {
        bail!("acknowledged, but {frozen}");
    }
    let condition = find_condition(&status.conditions, FROZEN).filter(|condition| condition.reason == CONTAINED);
    let message = condition.map_or("", |condition| without_command(&condition.message));
    Ok(State::Done(format!("{message}{}. To try again: {}", but_paused(operator), try_again(operator))))
}

/// Returns what came of `pause`.
fn paused(operator: &BottlerocketUpdateOperator) -> String {
    let updating = status(operator).counts.map_or(0, |counts| counts.updating);
    let rest = match updating {
        0 => "none is under way".to_owned(),
        1 => "the one under way is finished".to_owned(),
        more => format!("the {more} under way are finished"),
    };
    format!("paused: no update starts, and {rest}. To continue: {}", command(operator, "resume"))
}

/// Returns what came of `resume`.
fn resumed(operator: &BottlerocketUpdateOperator) -> String {
    let status = status(operator);
    let is_false = |type_| {
        let condition = find_condition(&status.conditions, type_);
        condition.filter(|condition| condition.status == ConditionStatus::False)
    };
    if is_false(ENABLED).is_some() {
        return format!("spec.enabled is true now, but updates stay paused{}", not_in_force(&status));
    }
    let otherwise = stopped_otherwise(operator);
    if let Some(frozen) = frozen(operator) {
        return format!("resumed, but {frozen}{otherwise}");
    }
    if !otherwise.is_empty() {
        return format!("resumed, but something else stops updates{otherwise}");
    }
    match is_false(WINDOW_OPEN) {
        Some(window) if window.message.is_empty() => "resumed: updates start when a window opens".to_owned(),
        Some(window) => format!("resumed: updates start when a window opens; {}", window.message),
        None => "resumed: updates start".to_owned(),
    }
}

/// Returns what came of `resume` with versions.
fn resolved(operator: &BottlerocketUpdateOperator, named: &[Version]) -> String {
    let policy = policy(operator);
    let excluding =
        |version: &Version| policy.exclude.iter().filter(|of| of.versions.covers(version)).collect::<Vec<_>>();
    let (skipped, tried): (Vec<_>, Vec<_>) =
        named.iter().partition(|version| excluding(version).iter().any(|exclusion| exclusion.kind.is_none()));
    let of_kinds: BTreeSet<String> =
        tried.iter().flat_map(|version| excluding(version)).map(|exclusion| format!("'{exclusion}'")).collect();
    let of_kinds = if of_kinds.is_empty() {
        String::new()
    } else {
        format!(", except as the policy excludes {}", Vec::from_iter(of_kinds).join(", "))
    };
    let tries = match (tried.is_empty(), skipped.is_empty()) {
        (false, true) => format!("nodes try {} again", list(tried.into_iter())),
        (true, _) => format!("no node takes {}, since the policy excludes it", list(skipped.into_iter())),
        (false, false) => format!(
            "nodes try {} again, and no node takes {}, since the policy excludes it",
            list(tried.into_iter()),
            list(skipped.into_iter())
        ),
    };
    format!("the failures of {} are resolved: {tries}{of_kinds}{}", list(named.iter()), but_paused(operator))
}

pub(super) async fn pause(client: &Client, namespace: &str, options: &WriteOptions) -> anyhow::Result<()> {
    let decide = |operator: &BottlerocketUpdateOperator| Ok(decide_pause(operator));
    carry_out(client, namespace, options, decide, async |_, now| Ok(State::Done(paused(now)))).await
}

pub(super) async fn resume(client: &Client, namespace: &str, options: &ResumeOptions) -> anyhow::Result<()> {
    let nonce = nonce(crate::clock::now());
    if !options.others.is_empty() {
        let decide = |operator: &BottlerocketUpdateOperator| decide_others(operator, &options.others);
        let acknowledged = async |change: &Change, now: &BottlerocketUpdateOperator| {
            let done = status(now).requests.and_then(|requests| requests.continue_others);
            if done.as_deref() == change.patch["metadata"]["annotations"][CONTINUE_OTHERS_ANNOTATION].as_str() {
                continued(now)
            } else {
                Ok(State::Pending("for the controller to carry the request out".to_owned()))
            }
        };
        return carry_out(client, namespace, &options.write, decide, acknowledged).await;
    }
    let named = &options.failures;
    if named.is_empty() {
        let done = async |_: &_, now: &_| Ok(State::Done(resumed(now)));
        return carry_out(client, namespace, &options.write, decide_resume, done).await;
    }
    let decide = |operator: &BottlerocketUpdateOperator| decide_failures(operator, named, &nonce);
    let acknowledged = async |_: &_, now: &BottlerocketUpdateOperator| {
        let done = status(now).requests.and_then(|requests| requests.resume);
        Ok(if done.as_ref() == Some(&nonce) {
            State::Done(resolved(now, named))
        } else {
            State::Pending("for the controller to resolve the failures".to_owned())
        })
    };
    carry_out(client, namespace, &options.write, decide, acknowledged).await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::operator::testing::{condition, nothing, operator, patch};
    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn known(version: &str, failed: &[&str], frozen: bool) -> Value {
        let mut known = json!({
            "version": version, "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
            "failed": failed,
        });
        if frozen {
            known["quarantined"] = json!({"reason": "BootFellBack", "nodes": failed, "since": "2026-01-01T00:00:00Z"});
        }
        known
    }

    fn with(enabled: bool, versions: &[Value]) -> BottlerocketUpdateOperator {
        operator(&json!({"enabled": enabled}), &json!({"versions": versions}))
    }

    /// Checks that each of these requests is refused with these words.
    fn assert_refused(decide: impl Fn(&[Version]) -> anyhow::Result<Decision>, cases: &[(&[&str], &[&str])]) {
        for (named, parts) in cases {
            let named: Vec<Version> = named.iter().map(|text| v(text)).collect();
            let error = decide(&named).unwrap_err().to_string();
            for part in parts.iter().chain(&["othing was written"]) {
                assert!(error.contains(part), "{named:?}, {part}: {error}");
            }
        }
    }

    #[test]
    fn pause_and_resume_write_the_switch_alone_and_only_if_it_changes() {
        assert_eq!(patch(decide_pause(&with(true, &[]))), json!({"spec": {"enabled": false}}));
        assert_eq!(patch(decide_pause(&operator(&json!({}), &json!({})))), json!({"spec": {"enabled": false}}));
        assert!(nothing(decide_pause(&with(false, &[]))).contains("paused already"));
        assert_eq!(patch(decide_resume(&with(false, &[])).unwrap()), json!({"spec": {"enabled": true}}));
        assert!(nothing(decide_resume(&with(true, &[])).unwrap()).contains("not paused"));
        let failed = [known("1.20.6", &["node-2"], false)];
        assert!(nothing(decide_resume(&with(true, &failed)).unwrap()).ends_with("resume --failures 1.20.6"));
    }

    #[test]
    fn resume_of_frozen_rollout_writes_nothing_and_names_what_failed() {
        let versions = [known("1.20.5", &["node-1"], true), known("1.20.6", &["node-2"], false)];
        let error = decide_resume(&with(true, &versions)).unwrap_err().to_string();
        for part in ["1.20.5 (BootFellBack on node-1)", "resume --failures 1.20.5,1.20.6", "quarantine 1.20.5"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("1.20.6 ("), "it has not frozen anything: {error}");
        assert!(!error.contains("--others"), "there are no other nodes: {error}");
        let offered = condition(FROZEN, "VersionFailed", CONTINUE_OTHERS_ANNOTATION);
        let status_with = json!({"versions": versions, "conditions": [offered]});
        let error = decide_resume(&operator(&json!({"enabled": true}), &status_with)).unwrap_err().to_string();
        assert!(error.contains("resume --others 1.20.5;"), "{error}");
        let paused = with(false, &versions);
        assert_eq!(patch(decide_resume(&paused).unwrap()), json!({"spec": {"enabled": true}}), "the switch alone");
        assert!(resumed(&paused).starts_with("resumed, but the rollout is frozen"), "and it says so");
    }

    #[test]
    fn failures_are_resolved_only_if_each_version_that_failed_is_named() {
        let versions = [known("1.20.5", &["node-1"], true), known("1.20.6", &["node-2"], false)];
        let decide = |named: &[Version]| decide_failures(&with(true, &versions), named, "nonce");
        let not_frozen = "1.20.6 (on node-2, which has not frozen the rollout)";
        let cases: [(&[&str], &[&str]); 3] = [
            (&["1.20.5"], &[not_frozen, "--failures 1.20.5,1.20.6"]),
            (&["1.20.6"], &["1.20.5 (BootFellBack on node-1)"]),
            (&["1.20.5", "1.20.6", "1.20.7"], &["1.20.7 has no failures", "1.20.5 ("]),
        ];
        assert_refused(decide, &cases);
        let expected = json!({"metadata": {"annotations": {RESUME_ANNOTATION: "nonce"}}});
        assert_eq!(patch(decide(&[v("1.20.6"), v("1.20.5")]).unwrap()), expected);
        let error = decide_failures(&with(true, &[]), &[v("1.20.5")], "nonce").unwrap_err().to_string();
        assert!(error.contains("no version has any"), "{error}");
    }

    #[test]
    fn others_go_on_only_if_each_version_that_has_frozen_the_rollout_is_named() {
        let versions =
            [known("1.20.5", &["node-1"], true), known("1.20.6", &["node-2"], true), known("1.20.7", &["n"], false)];
        let decide = |named: &[Version]| decide_others(&with(true, &versions), named);
        let cases: [(&[&str], &[&str]); 2] = [
            (&["1.20.5"], &["1.20.6 (BootFellBack on node-2)", "--others 1.20.5,1.20.6"]),
            (&["1.20.5", "1.20.6", "1.20.7"], &["1.20.7 has not frozen the rollout", "1.20.5 ("]),
        ];
        assert_refused(decide, &cases);
        let since = "2026-01-01T00:00:00Z";
        let expected = json!({"metadata": {"annotations": {CONTINUE_OTHERS_ANNOTATION: since}}});
        assert_eq!(patch(decide(&[v("1.20.6"), v("1.20.5")]).unwrap()), expected);
    }

    #[test]
    fn version_that_is_held_for_its_kind_freezes_nothing_and_is_resolved_like_others() {
        let mut held = known("1.20.5", &["node-1"], true);
        held["quarantined"]["contained"] = json!(true);
        let operator = with(true, &[held.clone()]);
        assert!(nothing(decide_resume(&operator).unwrap()).contains("no failure has frozen"));
        let reason = nothing(decide_others(&operator, &[v("1.20.5")]).unwrap());
        assert!(
            reason.contains("go on already") && reason.contains("held for nodes of aws-k8s-1.37/x86_64 alone"),
            "{reason}"
        );
        patch(decide_failures(&operator, &[v("1.20.5")], "nonce").unwrap());
        let error = decide_failures(&with(true, &[held, known("1.20.6", &["n"], true)]), &[v("1.20.6")], "nonce");
        assert!(error.unwrap_err().to_string().contains("--failures 1.20.5,1.20.6"), "each is named");
    }

    #[test]
    fn outcome_of_others_says_what_is_held_and_what_still_freezes() {
        let mut held = known("1.20.5", &["node-1"], true);
        held["quarantined"]["contained"] = json!(true);
        let contained = json!({"type": FROZEN, "status": "False", "reason": CONTAINED, "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "failed too often, and held: 1.20.5. Other nodes go on. To try again: kubectl annotate bruo default"});
        let status = json!({"versions": [held], "conditions": [contained]});
        let State::Done(text) = continued(&operator(&json!({}), &status)).unwrap() else { panic!("it is done") };
        let expected = "failed too often, and held: 1.20.5. Other nodes go on. To try again: kubectl brupop resume --failures 1.20.5";
        assert_eq!(text, expected);
        let error = continued(&with(true, &[known("1.20.6", &["n"], true)])).unwrap_err().to_string();
        assert!(error.contains("frozen by failures of 1.20.6"), "{error}");
    }

    #[test]
    fn commands_are_for_the_operator_of_the_namespace() {
        let in_ops = |enabled: bool, versions: &[Value]| {
            let mut operator = with(enabled, versions);
            operator.metadata.namespace = Some("ops".to_owned());
            operator
        };
        let (frozen, other) = (known("1.20.5", &["node-1"], true), known("1.20.6", &["node-2"], true));
        let both = in_ops(true, &[frozen, other]);
        let again = "resume --failures 1.20.5,1.20.6 -n ops";
        for (text, command) in [
            (decide_resume(&both).unwrap_err().to_string(), again),
            (decide_resume(&both).unwrap_err().to_string(), "quarantine 1.20.5 -n ops"),
            (decide_failures(&both, &[v("1.20.5")], "nonce").unwrap_err().to_string(), again),
            (decide_others(&both, &[v("1.20.5")]).unwrap_err().to_string(), "resume --others 1.20.5,1.20.6 -n ops"),
            (paused(&in_ops(false, &[])), "resume -n ops"),
            (resolved(&in_ops(false, &[]), &[v("1.20.5")]), "resume -n ops"),
        ] {
            assert!(text.contains(&format!("kubectl brupop {command}")), "{command}: {text}");
        }
    }

    #[test]
    fn outcome_of_pause_counts_updates_under_way() {
        for (updating, part) in [(0, "none is under way"), (1, "the one under way"), (3, "the 3 under way")] {
            let counts =
                json!({"total": 3, "current": 0, "staged": 0, "updating": updating, "blocked": 0, "failed": 0});
            let text = paused(&operator(&json!({}), &json!({"counts": counts})));
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn outcome_of_resume_says_what_still_stops_updates() {
        let off = |type_: &str, message: &str| {
            let mut condition = condition(type_, "X", message);
            condition["status"] = json!("False");
            condition
        };
        for (conditions, text) in [
            (json!([]), "resumed: updates start"),
            (
                json!([off(WINDOW_OPEN, "the next one opens at noon")]),
                "resumed: updates start when a window opens; the next one opens at noon",
            ),
            (
                json!([off(ENABLED, ""), condition("Degraded", "InvalidPolicy", "spec.x: no")]),
                "spec.enabled is true now, but updates stay paused. The policy is invalid and not in force until it is \
                 corrected: spec.x: no",
            ),
            (
                json!([condition("Degraded", "InvalidPolicy", "spec.x: no")]),
                "resumed, but something else stops updates. The policy is invalid and not in force until it is corrected: \
                 spec.x: no",
            ),
            (
                json!([condition("Blocked", "ExpressionFires", "the expression load has a result")]),
                "resumed, but something else stops updates. Nodes wait: the expression load has a result",
            ),
        ] {
            let operator = operator(&json!({}), &json!({"conditions": conditions}));
            assert_eq!(resumed(&operator), text);
            let (_, why) = text.split_once(". ").unwrap_or_default();
            assert!(nothing(decide_resume(&operator).unwrap()).ends_with(why), "{why}: also where nothing is written");
        }
    }

    #[test]
    fn outcome_of_resolved_failures_says_which_versions_are_skipped() {
        let all = [v("1.20.5"), v("1.20.6")];
        for (exclude, enabled, text) in [
            (json!([]), true, "nodes try 1.20.5,1.20.6 again"),
            (json!(["1.20.5"]), true, "nodes try 1.20.6 again, and no node takes 1.20.5, since the policy excludes it"),
            (json!(["1.20"]), true, "no node takes 1.20.5,1.20.6, since the policy excludes it"),
            (
                json!(["1.20.5 on aws-k8s-1.37/x86_64"]),
                true,
                "nodes try 1.20.5,1.20.6 again, except as the policy excludes '1.20.5 on aws-k8s-1.37/x86_64'",
            ),
            (json!([]), false, "nodes try 1.20.5,1.20.6 again. Updates are paused, however: kubectl brupop resume"),
        ] {
            let operator = operator(&json!({"enabled": enabled, "version": {"exclude": exclude}}), &json!({}));
            assert_eq!(resolved(&operator, &all), format!("the failures of 1.20.5,1.20.6 are resolved: {text}"));
        }
    }
}
