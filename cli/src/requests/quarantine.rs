//! `kubectl brupop quarantine`: the versions that no node takes, `spec.version.exclude`.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use clap::Args;
use kube::Client;
use kube::api::ListParams;
use models::names;
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec};
use models::shadow::{BottlerocketShadow, Mode, Place, Progress};
use planner::policy::{Exclusion, NodeKind, Policy, Target};
use serde_json::json;

use super::attempt::{is_permitted, progress};
use super::nodes::node_of;
use super::operator::{carry_out, new_errors, not_in_force, policy, status};
use super::stopped::nothing_moves;
use super::texts::{command, some};
use crate::call::list_in;
use crate::failures::unresolved;
use crate::page::print_line;
use crate::write::{Decision, State, WriteOptions};

#[derive(Debug, Args)]
pub(crate) struct QuarantineOptions {
    /// Version such as 1.20.5, all versions that begin alike such as 1.20, or a range such as '>=1.20, <1.23'.
    version: String,
    /// Exclude it for nodes of this variant and architecture alone, such as aws-k8s-1.37/x86_64.
    #[arg(long, value_name = "VARIANT/ARCH")]
    kind: Option<String>,
    /// Remove this entry from the excluded versions.
    #[arg(long)]
    lift: bool,
    #[command(flatten)]
    write: WriteOptions,
}

/// Returns the entries of `spec.version.exclude`.
fn entries(operator: &BottlerocketUpdateOperator) -> Vec<String> {
    operator.spec.version.as_ref().map(|version| version.exclude.clone()).unwrap_or_default()
}

fn with_entries(operator: &BottlerocketUpdateOperator, entries: &[String]) -> BottlerocketUpdateOperator {
    let mut changed = operator.clone();
    changed.spec.version.get_or_insert_default().exclude = entries.to_vec();
    changed
}

/// Returns what one entry excludes, if it is valid.
fn meaning(entry: &str) -> Option<Exclusion> {
    let mut operator = BottlerocketUpdateOperator::new(names::OPERATOR_NAME, BottlerocketUpdateOperatorSpec::default());
    operator.spec.version.get_or_insert_default().exclude = vec![entry.to_owned()];
    Policy::from_spec(&operator.spec).ok()?.exclude.pop()
}

/// Returns the version of an entry that excludes one alone, and the entry among these that covers it, if there are such ones.
fn covering<'a>(entries: &'a [String], wanted: Option<&Exclusion>) -> Option<&'a String> {
    let wanted = wanted?;
    let Target::Exact(exact) = &wanted.versions else { return None };
    let covers = |of: Exclusion| (of.kind.is_none() || of.kind == wanted.kind) && of.versions.covers(exact);
    entries.iter().find(|entry| meaning(entry).is_some_and(covers))
}

fn entry(options: &QuarantineOptions) -> String {
    let version = options.version.trim();
    options.kind.as_ref().map_or_else(|| version.to_owned(), |kind| format!("{version} on {}", kind.trim()))
}

/// Returns an error if an entry is for a kind of which the cluster has no node.
fn check_kind(entry: &str, shadows: &[BottlerocketShadow]) -> anyhow::Result<()> {
    let Some(kind) = meaning(entry).and_then(|entry| entry.kind) else { return Ok(()) };
    let kinds: BTreeSet<NodeKind> = shadows.iter().filter_map(NodeKind::of_node).collect();
    if kinds.contains(&kind) {
        return Ok(());
    }
    let kinds: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    let there = if kinds.is_empty() {
        "no node has reported its own".to_owned()
    } else {
        format!("there are {}", kinds.join(", "))
    };
    bail!("there is no node of {kind}; {there}. Nothing was written")
}

fn write(entries: &[String], what: String) -> Decision {
    let exclude = if entries.is_empty() { serde_json::Value::Null } else { json!(entries) };
    Decision::write(json!({"spec": {"version": {"exclude": exclude}}}), what)
}

fn decide_add(operator: &BottlerocketUpdateOperator, version: &str) -> anyhow::Result<Decision> {
    let version = version.trim();
    let mut entries = entries(operator);
    let wanted = meaning(version);
    let same = |entry: &&String| **entry == version || wanted.is_some() && meaning(entry) == wanted;
    if let Some(entry) = entries.iter().find(same) {
        return Ok(Decision::Nothing(format!(
            "{version} is excluded already (entry '{entry}' of spec.version.exclude)"
        )));
    }
    if let Some(entry) = covering(&entries, wanted.as_ref()) {
        return Ok(Decision::Nothing(format!(
            "{version} is excluded already by the entry '{entry}' of spec.version.exclude"
        )));
    }
    entries.push(version.to_owned());
    let errors = new_errors(operator, &with_entries(operator, &entries));
    if let Some(error) = errors.first() {
        bail!("{}; nothing was written", error.message);
    }
    Ok(write(&entries, format!("{version} excluded from updates")))
}

/// Decides about `quarantine --lift`: the entry itself is removed, and no version is taken out of another one.
fn decide_lift(operator: &BottlerocketUpdateOperator, version: &str) -> anyhow::Result<Decision> {
    let version = version.trim();
    let mut entries = entries(operator);
    let wanted = meaning(version);
    let Some(at) = entries.iter().position(|entry| entry == version || wanted.is_some() && meaning(entry) == wanted)
    else {
        if let Some(entry) = covering(&entries, wanted.as_ref()) {
            bail!(
                "{version} is excluded by the entry '{entry}' of spec.version.exclude, which excludes others too; nothing was \
                 written. To remove that entry: {}",
                command(operator, &format!("quarantine '{entry}' --lift"))
            );
        }
        let others = if entries.is_empty() {
            "it is empty".to_owned()
        } else {
            format!("its entries are '{}'", entries.join("', '"))
        };
        let failures = failures(operator, wanted.as_ref());
        let reason = format!("{version} is no entry of spec.version.exclude ({others}){failures}");
        ensure!(failures.is_empty(), "{reason}; nothing was written");
        return Ok(Decision::Nothing(reason));
    };
    let entry = entries.remove(at);
    Ok(write(&entries, format!("{entry} not excluded any more")))
}

/// Returns the sentence about failures of the versions of an entry, which the entry has nothing to do with.
fn failures(operator: &BottlerocketUpdateOperator, wanted: Option<&Exclusion>) -> String {
    let status = status(operator);
    let failed = unresolved(&status);
    let concerned: Vec<String> = failed
        .keys()
        .filter(|version| wanted.is_some_and(|of| of.versions.covers(version)))
        .map(ToString::to_string)
        .collect();
    if concerned.is_empty() {
        return String::new();
    }
    let all: Vec<String> = failed.keys().map(ToString::to_string).collect();
    format!(
        ". Its failures are another matter: {} failed on nodes and is not tried again until that is resolved: {}",
        concerned.join(", "),
        command(operator, &format!("resume --failures {}", all.join(",")))
    )
}

/// Returns what came of `quarantine`.
fn added(operator: &BottlerocketUpdateOperator, version: &str, shadows: &[BottlerocketShadow]) -> String {
    let wanted = meaning(version);
    let excluded = |shadow: &&BottlerocketShadow| {
        let runs = shadow.status.as_ref().and_then(|status| status.agent.current_version.as_ref());
        let NodeKind { variant, arch } = NodeKind::of_node(shadow).unwrap_or_default();
        runs.is_some_and(|runs| wanted.as_ref().is_some_and(|of| of.covers(&variant, &arch, runs)))
    };
    let of_kind = wanted.as_ref().is_some_and(|of| of.kind.is_some());
    let no_node = if of_kind { "no node of that variant and architecture" } else { "no node" };
    let running: Vec<String> = shadows.iter().filter(excluded).map(node_of).collect();
    let running = match running.len() {
        0 => String::new(),
        // The brake of a rollout stops no other one.
        count => format!(
            "; {count} node(s) run it and stay on it ({}). To move them to another version: {}{}",
            some(&running),
            command(operator, "pin VERSION"),
            nothing_moves(operator, |_| false)
        ),
    };
    let wanted_by = |shadow: &&BottlerocketShadow| wanted.as_ref().and_then(|of| taking(of, shadow)).is_some();
    let permitted: Vec<String> =
        shadows.iter().filter(|shadow| is_permitted(shadow)).filter(wanted_by).map(node_of).collect();
    let permitted = match permitted.len() {
        0 => String::new(),
        count => format!(", but {count} node(s) whose reboot is permitted already ({})", some(&permitted)),
    };
    let target = policy(operator).target;
    let pinned = match (&target, &wanted) {
        (Target::Exact(pinned), Some(of)) if of.versions.covers(pinned) => {
            format!(". spec.version.target is {pinned}, so that {no_node} is updated until that is changed")
        }
        _ => String::new(),
    };
    format!("{version} is excluded: {no_node} takes it{permitted}{running}{pinned}{}", not_in_force(&status(operator)))
}

/// Returns the update to an excluded version for which a node is taken out of service. After its reboot, an update goes on whatever policy says of
/// its version.
fn taking<'a>(excluded: &Exclusion, shadow: &'a BottlerocketShadow) -> Option<&'a Progress> {
    let NodeKind { variant, arch } = NodeKind::of_node(shadow).unwrap_or_default();
    let attempt = progress(shadow).filter(|attempt| attempt.disruptive && attempt.mode() == Mode::Update)?;
    let is_excluded = attempt.step.place() <= Place::Away && excluded.covers(&variant, &arch, &attempt.version);
    is_excluded.then_some(attempt)
}

/// The line of a dry run where it names no node.
const NO_NODE: &str = "no node runs it, or is out of service for an update to it";

/// Returns what a dry run shows: each node that runs a version of the entry, or that is taken out of service for one.
fn preview(entry: &str, shadows: &[BottlerocketShadow]) -> Vec<String> {
    let Some(wanted) = meaning(entry) else { return Vec::new() };
    let of_node = |shadow: &BottlerocketShadow| {
        let (node, NodeKind { variant, arch }) = (node_of(shadow), NodeKind::of_node(shadow).unwrap_or_default());
        let runs = shadow.status.as_ref().and_then(|status| status.agent.current_version.as_ref());
        let runs = runs.filter(|version| wanted.covers(&variant, &arch, version));
        let attempt = taking(&wanted, shadow);
        let what = if is_permitted(shadow) { "goes on, since its reboot is permitted" } else { "ends" };
        let stays = runs.map(|version| format!("stays on {version}: {node}"));
        [stays, attempt.map(|attempt| format!("its update to {} {what}: {node}", attempt.version))]
    };
    let lines: Vec<String> = shadows.iter().flat_map(of_node).flatten().collect();
    if lines.is_empty() { vec![NO_NODE.to_owned()] } else { lines }
}

/// Returns what came of `quarantine --lift`.
fn lifted(operator: &BottlerocketUpdateOperator, version: &str) -> String {
    let failures = failures(operator, meaning(version).as_ref());
    format!("{version} is not excluded any more{failures}{}", not_in_force(&status(operator)))
}

pub(super) async fn quarantine(client: &Client, namespace: &str, options: &QuarantineOptions) -> anyhow::Result<()> {
    let version = &entry(options);
    if options.lift {
        let decide = |operator: &BottlerocketUpdateOperator| decide_lift(operator, version);
        let done = async |_: &_, now: &_| Ok(State::Done(lifted(now, version)));
        return carry_out(client, namespace, &options.write, decide, done).await;
    }
    let all = async || list_in::<BottlerocketShadow>(client, namespace, ListParams::default()).await;
    if meaning(version).is_some_and(|entry| entry.kind.is_some()) {
        check_kind(version, &all().await?)?;
    }
    let is_changed = std::cell::Cell::new(false);
    let decide = |operator: &BottlerocketUpdateOperator| {
        let decision = decide_add(operator, version)?;
        is_changed.set(matches!(decision, Decision::Write(_)));
        Ok(decision)
    };
    let done = async |_: &_, now: &_| {
        // Which nodes run it is only added.
        let shadows = all().await.unwrap_or_default();
        Ok(State::Done(added(now, version, &shadows)))
    };
    carry_out(client, namespace, &options.write, decide, done).await?;
    if is_changed.get() && options.write.is_preview() {
        preview(version, &all().await?).iter().for_each(print_line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::attempt::testing::{at, shadow};
    use super::super::operator::testing::{nothing, operator, patch};
    use super::*;

    fn with(exclude: &[&str]) -> BottlerocketUpdateOperator {
        operator(&json!({"version": {"exclude": exclude}}), &json!({}))
    }

    fn exclude(entries: &Value) -> Value {
        json!({"spec": {"version": {"exclude": entries}}})
    }

    #[test]
    fn quarantine_adds_one_entry_behind_the_others() {
        let add = |present: &[&str], version: &str| patch(decide_add(&with(present), version).unwrap());
        assert_eq!(add(&[], "1.20.5"), exclude(&json!(["1.20.5"])));
        assert_eq!(add(&["1.19"], " 1.20.5 "), exclude(&json!(["1.19", "1.20.5"])));
        assert_eq!(add(&["1.20.5"], ">=1.20, <1.23"), exclude(&json!(["1.20.5", ">=1.20, <1.23"])));
        assert_eq!(patch(decide_add(&operator(&json!({}), &json!({})), "1.20").unwrap()), exclude(&json!(["1.20"])));
    }

    #[test]
    fn version_that_is_excluded_already_is_not_written_again() {
        for (present, version, part) in [
            ("1.20.5", "1.20.5", "entry '1.20.5'"),
            ("1.20.5", "v1.20.5", "entry '1.20.5'"),
            ("1.20", "1.20.5", "by the entry '1.20'"),
        ] {
            let reason = nothing(decide_add(&with(&["1.1", present]), version).unwrap());
            assert!(reason.contains("excluded already") && reason.contains(part), "{part}: {reason}");
        }
    }

    #[test]
    fn version_is_excluded_for_one_kind_of_nodes_that_there_are() {
        let kind = "aws-k8s-1.37/x86_64";
        let entry = format!("1.20.5 on {kind}");
        let add = |present: &[&str]| decide_add(&with(present), &entry).unwrap();
        assert_eq!(patch(add(&["1.20.5 on aws-k8s-1.37/aarch64"]))["spec"]["version"]["exclude"][1], json!(entry));
        for present in [entry.as_str(), "1.20.5  on aws-k8s-1.37/x86_64", "1.20", "1.20 on aws-k8s-1.37/x86_64"] {
            assert!(nothing(add(&[present])).contains("excluded already"), "{present}");
        }
        patch(decide_add(&with(&[&entry]), "1.20.5").unwrap());
        assert_eq!(patch(decide_lift(&with(&[&entry, "1.19"]), &entry).unwrap()), exclude(&json!(["1.19"])));
        assert!(nothing(decide_lift(&with(&[&entry]), "1.20.5").unwrap()).contains("no entry"), "of all it is none");

        let of = |arch: &str| shadow(&json!({"currentVersion": "1.20.5", "variant": "aws-k8s-1.37", "arch": arch}));
        let shadows = [of("x86_64"), of("aarch64")];
        assert!(check_kind(&entry, &shadows).is_ok() && check_kind("1.20.5", &[]).is_ok());
        let error = check_kind("1.20.5 on aws-k8s-1.36/x86_64", &shadows).unwrap_err().to_string();
        let there = "there is no node of aws-k8s-1.36/x86_64; there are aws-k8s-1.37/aarch64, aws-k8s-1.37/x86_64. Nothing was written";
        assert_eq!(error, there);
        let error = decide_add(&with(&[]), "1.20.5 on x86_64").unwrap_err().to_string();
        assert!(error.contains("such as aws-k8s-1.37/x86_64") && error.contains("nothing was written"), "{error}");
        let text = added(&with(&[&entry]), &entry, &shadows);
        assert!(text.contains("no node of that variant and architecture takes it; 1 node(s) run it"), "{text}");
    }

    #[test]
    fn dry_run_names_the_nodes_that_stay_and_those_whose_update_ends() {
        let node = |runs: &str, progress: &Value| {
            shadow(&json!({"currentVersion": runs, "variant": "v", "arch": "a", "progress": progress}))
        };
        let permitted = |step: &str| {
            let mut progress = at(step);
            progress["permitIssued"] = json!(true);
            progress
        };
        let (no_node, stays) = ([NO_NODE], ["stays on 1.20.5: a"]);
        for (sentence, entry, runs, progress, expected) in [
            ("idle on another version", "1.20.5", "1.20.1", Value::Null, no_node),
            ("runs it", "1.20", "1.20.5", Value::Null, stays),
            ("of another kind", "1.20.5 on w/a", "1.20.5", Value::Null, no_node),
            ("has only downloaded it", "1.20.5", "1.20.1", at("Staged"), no_node),
            ("is drained for it", "1.20.5", "1.20.1", at("Draining"), ["its update to 1.20.5 ends: a"]),
            (
                "reboots into it",
                "1.20.5",
                "1.20.1",
                permitted("Rebooting"),
                ["its update to 1.20.5 goes on, since its reboot is permitted: a"],
            ),
            ("is verified after its reboot", "1.20.5", "1.20.5", permitted("Verifying"), stays),
            ("is back in service", "1.20.5", "1.20.5", at("AfterUpdate"), stays),
            ("is released on its earlier version", "1.20.5", "1.20.1", at("Releasing"), no_node),
        ] {
            assert_eq!(preview(entry, &[node(runs, &progress)]), expected, "{sentence}");
        }
        assert_eq!(preview("1.20.5", &[]), no_node);
    }

    #[test]
    fn version_that_policy_does_not_understand_is_refused_with_the_cause() {
        for version in ["latest", "newest", "", "1.20.5.1"] {
            let error = decide_add(&with(&[]), version).unwrap_err().to_string();
            assert!(error.contains("such as 1.20.5") && error.contains("nothing was written"), "{version}: {error}");
        }
    }

    #[test]
    fn lift_removes_exactly_the_entry() {
        let lift = |present: &[&str], version: &str| patch(decide_lift(&with(present), version).unwrap());
        assert_eq!(lift(&["1.19", "1.20.5", "1.20"], "1.20.5"), exclude(&json!(["1.19", "1.20"])));
        assert_eq!(lift(&["1.20.5"], "v1.20.5"), exclude(&Value::Null));
        assert_eq!(lift(&["not valid"], "not valid"), exclude(&Value::Null));
        let error = decide_lift(&with(&["1.20"]), "1.20.5").unwrap_err().to_string();
        assert!(error.contains("quarantine '1.20' --lift"), "{error}");
        let reason = nothing(decide_lift(&with(&["1.19"]), "1.20.5").unwrap());
        assert!(reason.contains("no entry") && reason.contains("'1.19'"), "{reason}");
    }

    #[test]
    fn lift_says_how_failures_of_the_version_are_resolved() {
        let failed = json!({"versions": [{
            "version": "1.20.5", "variant": "v", "arch": "a", "firstSeen": "2026-01-01T00:00:00Z", "failed": ["node-1"],
        }]});
        let operator = operator(&json!({}), &failed);
        for version in ["1.20.5", "1.20"] {
            let text = lifted(&operator, version);
            assert!(text.contains("resume --failures 1.20.5"), "{version}: {text}");
        }
        assert_eq!(lifted(&operator, "1.19"), "1.19 is not excluded any more");
        let error = decide_lift(&operator, "1.20.5").unwrap_err().to_string();
        assert!(error.ends_with("kubectl brupop resume --failures 1.20.5; nothing was written"), "{error}");
        assert!(nothing(decide_lift(&operator, "1.19").unwrap()).contains("no entry"));
    }

    #[test]
    fn commands_are_for_the_operator_of_the_namespace() {
        let failed = json!({"versions": [{
            "version": "1.20.5", "variant": "v", "arch": "a", "firstSeen": "2026-01-01T00:00:00Z", "failed": ["node-1"],
        }]});
        let mut operator = operator(&json!({"version": {"exclude": ["1.20"]}}), &failed);
        operator.metadata.namespace = Some("ops".to_owned());
        let runs = [shadow(&json!({"currentVersion": "1.20.5"}))];
        for (text, command) in [
            (decide_lift(&operator, "1.20.5").unwrap_err().to_string(), "quarantine '1.20' --lift -n ops"),
            (lifted(&operator, "1.20"), "resume --failures 1.20.5 -n ops"),
            (added(&operator, "1.20", &runs), "pin VERSION -n ops"),
        ] {
            assert!(text.contains(&format!("kubectl brupop {command}")), "{command}: {text}");
        }
    }

    #[test]
    fn outcome_names_nodes_that_still_come_to_the_version_and_what_keeps_others_from_leaving_it() {
        let rebooting = |permitted: bool| {
            let mut progress = at("Rebooting");
            progress["permitIssued"] = json!(permitted);
            shadow(&json!({"currentVersion": "1.20.1", "variant": "v", "arch": "a", "progress": progress}))
        };
        let text = added(&with(&["1.20.5"]), "1.20.5", &[rebooting(true), rebooting(false)]);
        let expected = "1.20.5 is excluded: no node takes it, but 1 node(s) whose reboot is permitted already (a)";
        assert_eq!(text, expected);
        let frozen = json!({"versions": [{
            "version": "1.20.5", "variant": "v", "arch": "a", "firstSeen": "2026-01-01T00:00:00Z", "failed": ["b"],
            "quarantined": {"reason": "BootFellBack", "nodes": ["b"], "since": "2026-01-01T00:00:00Z"},
        }]});
        let frozen = operator(&json!({"version": {"exclude": ["1.20.5"]}}), &frozen);
        let text = added(&frozen, "1.20.5", &[shadow(&json!({"currentVersion": "1.20.5"}))]);
        let end = "kubectl brupop pin VERSION. Nothing moves before the failures of 1.20.5 (BootFellBack on b) are resolved: \
                   kubectl brupop resume --failures 1.20.5";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn outcome_names_nodes_that_run_the_version_and_a_target_that_is_excluded() {
        let runs = [shadow(&json!({"currentVersion": "1.20.5"})), shadow(&json!({"currentVersion": "1.20.4"}))];
        let text = added(&with(&["1.20.5"]), "1.20.5", &runs);
        assert!(text.contains("1 node(s) run it and stay on it (a)"), "{text}");
        assert_eq!(added(&with(&["1.19"]), "1.19", &runs), "1.19 is excluded: no node takes it");
        let pinned = operator(&json!({"version": {"target": "1.20.5", "exclude": ["1.20"]}}), &json!({}));
        assert!(added(&pinned, "1.20", &[]).contains("spec.version.target is 1.20.5"));
    }
}
