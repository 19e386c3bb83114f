//! The revisions of the policy, and the way back to one of them (`undo`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Client;
use kube::api::ListParams;
use models::condition::true_condition;
use models::history::{BottlerocketRolloutHistorySpec, RecordedRollout, VersionCount};
use models::names;
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec, DEGRADED};
use models::shadow::{BottlerocketShadow, UPDATED};
use planner::plan::INVALID_POLICY;
use planner::policy::{Exclusion, NodeKind, Policy};
use planner::revisions::{NO_HISTORY, PolicyRevision, RevisionContent, Undo, history as own, undo as back};
use planner::view::{Projection as _, RevisionFacts};
use semver::Version;
use serde_json::{Value, json};

use super::read::Source;
use crate::call::{get, list_in};
use crate::page::{Page, print_line, warn};
use crate::shell::for_cluster;
use crate::write::{Decision, DryRunOption, Object, Outcome, UNDO_MANAGER};

#[derive(Debug, Args)]
pub(crate) struct UndoOptions {
    /// Number of the revision to return to. Default: the last one that differs from the present policy.
    #[arg(long)]
    to_revision: Option<i64>,
    #[command(flatten)]
    dry: DryRunOption,
}

pub(super) struct Revisions {
    resource: BottlerocketUpdateOperator,
    all: Vec<PolicyRevision>,
}

impl Revisions {
    pub(super) async fn read(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let found: Option<BottlerocketUpdateOperator> = get(client, namespace, names::OPERATOR_NAME).await?;
        let found = found.filter(|resource| resource.metadata.deletion_timestamp.is_none());
        let resource = found.with_context(|| {
            format!(
                "there is no operator's resource {} in {namespace}. To see whether another namespace has the operator: {}",
                names::OPERATOR_NAME,
                for_cluster("kubectl brupop doctor")
            )
        })?;
        let all: Vec<ControllerRevision> = list_in(client, namespace, ListParams::default()).await?;
        Ok(Self { resource, all: all.iter().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect() })
    }

    fn history(&self) -> Vec<&PolicyRevision> {
        own(self.resource.metadata.uid.as_deref().unwrap_or_default(), &self.all)
    }

    /// Adds the revisions as a table, or one of them.
    pub(super) fn add(&self, page: &mut Page, only: Option<i64>) -> anyhow::Result<()> {
        add(page, &self.history(), only)
    }

    /// Returns the revisions for programs, or one of them.
    pub(super) fn for_programs(&self, only: Option<i64>) -> anyhow::Result<Value> {
        let history = self.history();
        let all = match only {
            Some(number) => vec![find(&history, number)?],
            None => history,
        };
        let row = |revision: &PolicyRevision| {
            json!({
                "revision": revision.number, "name": revision.name, "changeCause": revision.change_cause,
                "version": content(revision),
            })
        };
        Ok(all.into_iter().map(row).collect())
    }
}

/// Returns one revision as text: the fields of `spec.version` that it has.
fn content(revision: &PolicyRevision) -> Value {
    match &revision.content {
        Ok(content) => content.version_patch(),
        Err(cause) => json!({"unreadable": cause}),
    }
}

fn find<'a>(history: &[&'a PolicyRevision], number: i64) -> anyhow::Result<&'a PolicyRevision> {
    let found = history.iter().rev().find(|revision| revision.number == number);
    found.copied().context("unable to find the specified revision")
}

/// Adds one revision, with what it has changed in the one before it.
fn add_one(page: &mut Page, history: &[&PolicyRevision], number: i64) -> anyhow::Result<()> {
    let revision = find(history, number)?;
    page.line(format_args!("revision {number} ({})", revision.name));
    for (field, value) in content(revision).as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        page.line(format_args!("  {field}: {value}"));
    }
    let Some(before) = history.iter().rev().skip_while(|other| other.number != number).nth(1) else { return Ok(()) };
    let (Ok(own), Ok(earlier)) = (&revision.content, &before.content) else { return Ok(()) };
    page.line(format_args!("changed since revision {}", before.number));
    own.changes_from(earlier).iter().for_each(|change| page.line(format_args!("  {change}")));
    Ok(())
}

/// Returns the excluded versions of a revision for the table.
fn excluded(revision: &PolicyRevision) -> String {
    let content = content(revision);
    let entries: Vec<&str> = content["exclude"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match (revision.content.is_ok(), entries.is_empty()) {
        (false, _) => "<unknown>".to_owned(),
        (true, true) => "<none>".to_owned(),
        (true, false) => entries.join("; "),
    }
}

fn add(page: &mut Page, history: &[&PolicyRevision], only: Option<i64>) -> anyhow::Result<()> {
    if let Some(number) = only {
        return add_one(page, history, number);
    }
    if history.is_empty() {
        page.line(NO_HISTORY);
        return Ok(());
    }
    let rows = history.iter().map(|revision| {
        let target = match content(revision) {
            Value::Object(fields) => fields.get("target").or(fields.get("unreadable")).cloned().unwrap_or_default(),
            other => other,
        };
        let cause = revision.change_cause.clone().unwrap_or_else(|| "<none>".to_owned());
        let target = target.as_str().unwrap_or_default().to_owned();
        [revision.number.to_string(), revision.name.clone(), target, excluded(revision), cause]
    });
    page.table(["REVISION", "NAME", "TARGET", "EXCLUDED", "CHANGE-CAUSE"], rows);
    Ok(())
}

/// Returns the policy after a return to an earlier revision.
///
/// # Errors
/// Fields that no revision has make it invalid, or this plugin does not know them.
fn policy_after(spec: &BottlerocketUpdateOperatorSpec, patch: &Value) -> anyhow::Result<Policy> {
    let mut version = serde_json::to_value(spec.version.clone().unwrap_or_default())?;
    for (field, value) in patch["spec"]["version"].as_object().into_iter().flatten() {
        version[field] = value.clone();
    }
    if let Some(fields) = version.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let after = BottlerocketUpdateOperatorSpec { version: serde_json::from_value(version)?, ..spec.clone() };
    Policy::from_spec(&after).map_err(|errors| {
        let cause = errors.first().map(ToString::to_string).unwrap_or_default();
        anyhow!("{cause}")
    })
}

/// Returns the policy after a return; `None` where this plugin cannot read it, and warns of that.
///
/// # Errors
/// The controller rejects the present policy, too: an invalid one changes nothing.
fn accepted(resource: &BottlerocketUpdateOperator, after: anyhow::Result<Policy>) -> anyhow::Result<Option<Policy>> {
    let cause = match after {
        Ok(policy) => return Ok(Some(policy)),
        Err(cause) => cause,
    };
    let status = resource.status.as_ref().filter(|status| status.observed_generation == resource.metadata.generation);
    let degraded = status.and_then(|status| true_condition(&status.conditions, DEGRADED));
    ensure!(
        degraded.is_none_or(|condition| condition.reason != INVALID_POLICY),
        "nothing was written: the policy is invalid, and would be so with the fields of that revision: {cause:#}. Correct that field, \
         which no revision has"
    );
    warn(format_args!(
        "this plugin finds the policy invalid also with the fields of that revision: {cause:#}. The controller has not rejected it; \
         {} shows whether it does",
        for_cluster("kubectl brupop status")
    ));
    Ok(None)
}

/// A move of nodes of one kind to a version.
struct Moved {
    kind: NodeKind,
    from: Version,
    to: Version,
    nodes: i64,
}

/// Returns the last rollout of each of these kinds, as its record has it.
fn moved_by_rollouts(records: &[Value], kinds: &BTreeSet<NodeKind>) -> Vec<Moved> {
    let rollout = |record: &Value| {
        let spec: BottlerocketRolloutHistorySpec = serde_json::from_value(record.get("spec")?.clone()).ok()?;
        spec.rollout
    };
    let kind = |rollout: &RecordedRollout| NodeKind { variant: rollout.variant.clone(), arch: rollout.arch.clone() };
    // A follow-up is about nodes that came late, and a drill moves none.
    let rollouts = records.iter().filter_map(rollout).filter(|rollout| rollout.first.is_none() && !rollout.drill);
    let mut last: BTreeMap<NodeKind, RecordedRollout> = rollouts.map(|rollout| (kind(&rollout), rollout)).collect();
    last.retain(|kind, _| kinds.contains(kind));
    let moved = |(kind, rollout): (NodeKind, RecordedRollout)| {
        let to = rollout.version;
        let of = move |from: VersionCount| Moved {
            kind: kind.clone(),
            from: from.version,
            to: to.clone(),
            nodes: from.nodes,
        };
        rollout.from.into_iter().map(of)
    };
    last.into_iter().flat_map(moved).collect()
}

/// Returns the last update of each node, where no rollout is recorded.
fn moved_by_updates(shadows: &[BottlerocketShadow]) -> Vec<Moved> {
    let moved = |shadow: &BottlerocketShadow| {
        let status = shadow.status.as_ref()?;
        let last = status.controller.record.as_ref()?.last.as_ref()?;
        let runs = last.reason == UPDATED && Some(&last.version) == status.agent.current_version.as_ref();
        let from = last.from.clone().filter(|_| runs)?;
        Some(Moved { kind: NodeKind::of_node(shadow)?, from, to: last.version.clone(), nodes: 1 })
    };
    shadows.iter().filter_map(moved).collect()
}

/// Returns the earlier version that most nodes ran, for a pin, which is for all nodes: `None` where these kinds of nodes ran different
/// ones, or it is not known what one of them ran. Versions that policy excludes are left out.
fn version_before(moved: &[Moved], kinds: &BTreeSet<NodeKind>, exclude: &[Exclusion]) -> Option<Version> {
    let mut counts: BTreeMap<&NodeKind, BTreeMap<&Version, i64>> = BTreeMap::new();
    for Moved { kind, from, to, nodes } in moved {
        let of_kind = counts.entry(kind).or_default();
        if from < to && !exclude.iter().any(|excluded| excluded.covers(&kind.variant, &kind.arch, from)) {
            *of_kind.entry(from).or_default() += nodes;
        }
    }
    if kinds.iter().any(|kind| !counts.contains_key(kind)) {
        return None;
    }
    let most = |counts: &BTreeMap<&Version, i64>| Some((*counts.iter().max_by_key(|(_, nodes)| **nodes)?.0).clone());
    let mut versions = counts.values().map(most);
    let first = versions.next()??;
    versions.all(|version| version.as_ref() == Some(&first)).then_some(first)
}

/// The line about what no revision has.
const NO_OTHER_FIELDS: &str =
    "a revision has spec.version.target, exclude and ignoreWaves; changes of other fields are not taken back";

/// Returns the versions that a policy excludes, and those that it excluded before a return: a user had a reason to exclude them.
fn excluded_then_or_now(before: Option<Policy>, after: Policy) -> Vec<Exclusion> {
    after.exclude.into_iter().chain(before.into_iter().flat_map(|policy| policy.exclude)).collect()
}

pub(crate) async fn undo(client: &Client, namespace: &str, options: &UndoOptions) -> anyhow::Result<()> {
    let revisions = Revisions::read(client, namespace).await?;
    let policy_before = Policy::from_spec(&revisions.resource.spec).ok();
    let present = policy_before.as_ref().map(RevisionContent::of);
    let undo = back(&revisions.history(), present.as_ref(), options.to_revision).with_context(|| {
        let history = for_cluster(&format!("kubectl brupop history -n {namespace}"));
        format!("nothing was written; {history} lists the revisions; {NO_OTHER_FIELDS}")
    })?;
    let Undo::Write { number, patch, keeps_versions, changes } = &undo else {
        print_line(&undo);
        return Ok(());
    };
    let policy = accepted(&revisions.resource, policy_after(&revisions.resource.spec, patch))?;
    let operator = Object::operator(client, namespace).written_by(UNDO_MANAGER);
    let (read, dry_run) = (revisions.resource, options.dry.dry_run);
    let generation = read.metadata.generation;
    let decide = |now: &BottlerocketUpdateOperator| {
        // The controller writes the status of the same object, each second while nodes update.
        ensure!(
            now.metadata.generation == generation,
            "the policy was changed at the same time; nothing was written. Run the command again"
        );
        Ok(Decision::write(patch.clone(), undo.to_string()))
    };
    match operator.write(read, dry_run, decide).await? {
        Outcome::Nothing(reason) => print_line(reason),
        Outcome::Written(..) => print_line(&undo),
        Outcome::Dry(_) => {
            let name = names::OPERATOR_NAME;
            print_line(format_args!("would write to {name}, as revision {number} has it{}: {patch}", dry_run.note()));
        }
    }
    changes.iter().for_each(print_line);
    print_line(NO_OTHER_FIELDS);
    if let Some(policy) = policy.filter(|_| *keeps_versions) {
        // The policy is written: without a right, the advice alone is missing.
        let shadows: Vec<BottlerocketShadow> =
            list_in(client, namespace, ListParams::default()).await.unwrap_or_default();
        // Without the right to read the history, the shadows have as much.
        let records = Source::Cluster { client, namespace }.records().await.unwrap_or_default();
        let kinds: BTreeSet<NodeKind> = shadows.iter().filter_map(NodeKind::of_node).collect();
        let mut moved = moved_by_rollouts(&records, &kinds);
        if moved.is_empty() {
            moved = moved_by_updates(&shadows);
        }
        if let Some(version) = version_before(&moved, &kinds, &excluded_then_or_now(policy_before, policy)) {
            print_line(format_args!(
                "most nodes ran {version} before; to move them back to it: {}",
                for_cluster(&format!("kubectl brupop pin {version} -n {namespace}"))
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing;

    fn revision(number: i64, target: &str) -> PolicyRevision {
        let data = json!({"form": 1, "target": target});
        let object = json!({
            "metadata": {"name": format!("default-{number}"), "uid": "u", "resourceVersion": "1",
                "labels": {names::OPERATOR_LABEL: names::OPERATOR_NAME}, "annotations": {names::CHANGE_CAUSE_ANNOTATION: "ticket 7"}},
            "revision": number, "data": data,
        });
        RevisionFacts::project(&serde_json::from_value(object).unwrap()).unwrap().into()
    }

    #[test]
    fn revisions_are_listed_with_target_and_cause_and_shown_one_by_one() {
        let (first, newer) = (revision(1, "latest"), revision(2, "ge 1.20, lt 1.23"));
        let mut unreadable = revision(3, "latest");
        unreadable.content = Err("its form 9 is not known".to_owned());
        let all = [&first, &newer, &unreadable];
        let text = |history: &[&PolicyRevision], only| {
            let mut page = Page::default();
            add(&mut page, history, only).map(|()| page.to_string())
        };
        let listed = text(&all, None).unwrap();
        for part in ["REVISION", "default-1", "latest", "<1.23", "its form 9 is not known", "ticket 7"] {
            assert!(listed.contains(part), "{part}: {listed}");
        }
        let one = text(&all, Some(2)).unwrap();
        assert!(one.contains("target:") && one.contains(">=1.20") && !one.contains("exclude"), "{one}");
        assert!(one.contains("changed since revision 1\n  target: >=1.20, <1.23, before latest"), "{one}");
        assert!(!text(&all, Some(1)).unwrap().contains("changed since") && listed.contains("<unknown>"), "{listed}");
        assert_eq!(text(&all, Some(9)).unwrap_err().to_string(), "unable to find the specified revision");
        assert!(text(&[], None).unwrap().contains(NO_HISTORY));
    }

    #[test]
    fn return_that_leaves_the_policy_invalid_is_refused_where_the_controller_rejects_it_too() {
        let patch = revision(2, "1.20.5").content.unwrap().version_patch();
        let patch = json!({"spec": {"version": patch}});
        let after = |spec: Value| policy_after(&serde_json::from_value(spec).unwrap(), &patch);
        let policy =
            after(json!({"version": {"target": "newest", "exclude": ["never"], "ignoreWaves": true}})).unwrap();
        assert_eq!((policy.target.to_string(), policy.exclude.len(), policy.ignore_waves), ("1.20.5".into(), 0, false));
        let window = json!({"cron": "0 2 * * *", "duration": "4h", "timeZone": "Mars/Base"});
        for (sentence, reason, observed, is_refused) in [
            ("the controller rejects it", Some("InvalidPolicy"), 2, true),
            ("the controller has rejected an earlier one", Some("InvalidPolicy"), 1, false),
            ("the controller understands it", None, 2, false),
            ("another problem", Some("CertificatesInvalid"), 2, false),
        ] {
            let degraded = reason.map(|reason| testing::condition(DEGRADED, reason, ""));
            let resource = serde_json::from_value(json!({
                "apiVersion": "brupop.bottlerocket.aws/v1alpha1", "kind": "BottlerocketUpdateOperator",
                "metadata": {"name": "default", "generation": 2}, "spec": {},
                "status": {"observedGeneration": observed, "conditions": degraded.into_iter().collect::<Vec<_>>()},
            }));
            let spec = json!({"schedule": {"windows": [window]}, "version": {"target": "1.20"}});
            match accepted(&resource.unwrap(), after(spec)) {
                Ok(policy) => assert!(!is_refused && policy.is_none(), "{sentence}"),
                Err(refused) => {
                    let refused = refused.to_string();
                    assert!(is_refused && refused.contains("nothing was written"), "{sentence}: {refused}");
                    assert!(refused.contains("timeZone"), "{refused}");
                }
            }
        }
    }

    /// The record of a rollout of a variant to a version, from these versions on so many nodes.
    fn record(variant: &str, to: &str, from: &[(&str, i64)]) -> Value {
        let from: Vec<Value> =
            from.iter().map(|(version, nodes)| json!({"version": version, "nodes": nodes})).collect();
        json!({"spec": {"record": "r", "rollout": {
            "number": 1, "operator": {"namespace": "n", "name": "default", "uid": "u"}, "revision": {}, "variant": variant,
            "arch": "a", "version": to, "begun": "2026-01-01T00:00:00Z", "policy": "", "from": from,
        }}})
    }

    fn with(mut record: Value, field: &str, value: Value) -> Value {
        record["spec"]["rollout"][field] = value;
        record
    }

    fn shadow(variant: &str, from: &str, runs: &str, reason: &str) -> BottlerocketShadow {
        let last = json!({
            "attempt": 1, "from": from, "version": "1.21.0", "reason": reason, "message": "",
            "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z",
        });
        let record = json!({"failures": 0, "last": last});
        let status = json!({"currentVersion": runs, "variant": variant, "arch": "a", "record": record});
        serde_json::from_value(testing::shadow("a", status)).unwrap()
    }

    fn before(moved: &[Moved], kinds: &BTreeSet<NodeKind>, exclude: &[&str]) -> Option<String> {
        let spec = json!({"version": {"exclude": exclude}});
        let policy = Policy::from_spec(&serde_json::from_value(spec).unwrap()).unwrap();
        version_before(moved, kinds, &policy.exclude).map(|version| version.to_string())
    }

    #[test]
    fn version_for_a_pin_is_the_earlier_one_of_most_nodes_when_the_last_rollout_of_each_kind_began() {
        let first = record("x86", "1.18.0", &[("1.17.0", 90)]);
        let last = record("x86", "1.21.0", &[("1.19.0", 2), ("1.20.0", 3), ("1.21.0", 50)]);
        let follow_up = with(record("x86", "1.21.0", &[("1.16.0", 1)]), "first", json!(1));
        let drill = with(record("x86", "1.21.0", &[]), "drill", json!(true));
        let back = record("x86", "1.20.0", &[("1.21.0", 55)]);
        let joined = record("gpu", "1.21.0", &[("1.15.0", 2)]);
        let alike = record("gpu", "1.21.0", &[("1.20.0", 2)]);
        let gone = record("old", "1.21.0", &[("1.14.0", 9)]);
        type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a Value], &'a [&'a str], Option<&'a str>);
        let cases: [Case<'_>; 10] = [
            ("the last rollout", &["x86"], &[&first, &last], &[], Some("1.20.0")),
            ("a follow-up and a drill come later", &["x86"], &[&first, &last, &follow_up, &drill], &[], Some("1.20.0")),
            ("most ran an excluded version", &["x86"], &[&last], &["1.20"], Some("1.19.0")),
            ("all ran an excluded version", &["x86"], &[&first], &["1.17.0"], None),
            ("the last one led back", &["x86"], &[&last, &back], &[], None),
            ("a small kind ran another version", &["x86", "gpu"], &[&last, &joined], &[], None),
            ("each kind ran the same", &["x86", "gpu"], &[&last, &alike], &[], Some("1.20.0")),
            ("a kind has no record", &["x86", "gpu"], &[&last], &[], None),
            ("no node is left of a kind", &["x86"], &[&last, &gone], &[], Some("1.20.0")),
            ("a follow-up alone", &["x86"], &[&follow_up], &[], None),
        ];
        for (sentence, variants, records, exclude, expected) in cases {
            let kinds: BTreeSet<NodeKind> = variants
                .iter()
                .map(|variant| NodeKind { variant: (*variant).to_owned(), arch: "a".to_owned() })
                .collect();
            let mut records: Vec<Value> = records.iter().map(|record| (*record).clone()).collect();
            records.push(json!({"spec": {}}));
            let moved = moved_by_rollouts(&records, &kinds);
            assert_eq!(before(&moved, &kinds, exclude).as_deref(), expected, "{sentence}");
        }
    }

    #[test]
    fn version_that_was_excluded_until_the_return_is_none_for_a_pin() {
        let policy = |exclude: Value| {
            Policy::from_spec(&serde_json::from_value(json!({"version": {"exclude": exclude}})).unwrap()).unwrap()
        };
        let kinds = BTreeSet::from([NodeKind { variant: "x86".to_owned(), arch: "a".to_owned() }]);
        let moved = moved_by_rollouts(&[record("x86", "1.21.0", &[("1.19.0", 2), ("1.20.0", 3)])], &kinds);
        for (before, expected) in [(json!([]), "1.20.0"), (json!(["1.20.0"]), "1.19.0")] {
            let exclude = excluded_then_or_now(Some(policy(before)), policy(json!([])));
            assert_eq!(version_before(&moved, &kinds, &exclude).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn version_for_a_pin_is_that_of_most_nodes_before_their_update() {
        let mut all = vec![
            shadow("x86", "1.20.0", "1.21.0", UPDATED),
            shadow("x86", "1.20.0", "1.21.0", UPDATED),
            shadow("x86", "1.19.0", "1.21.0", UPDATED),
            shadow("x86", "1.18.0", "1.21.0", "DrainTimeout"),
            shadow("x86", "1.17.0", "1.17.0", UPDATED),
        ];
        let before = |shadows: &[BottlerocketShadow], exclude: &[&str]| {
            before(&moved_by_updates(shadows), &shadows.iter().filter_map(NodeKind::of_node).collect(), exclude)
        };
        assert_eq!(before(&all, &[]).as_deref(), Some("1.20.0"));
        assert_eq!(before(&all, &["1.20"]).as_deref(), Some("1.19.0"));
        all.push(shadow("gpu", "1.15.0", "1.21.0", UPDATED));
        assert_eq!(before(&all, &[]), None, "kinds differ");
        let back = [shadow("x86", "1.22.0", "1.21.0", UPDATED)];
        assert_eq!(before(&back, &[]), None, "they were led back");
        assert_eq!(before(&[], &[]), None);
    }
}
