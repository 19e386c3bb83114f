//! The revisions of the policy, and the way back to one of them (`undo`).

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use clap::Args;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Client;
use kube::api::{Api, ListParams};
use models::history::BottlerocketRolloutHistorySpec;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BottlerocketShadow, UPDATED};
use planner::policy::Policy;
use planner::revisions::{NO_HISTORY, PolicyRevision, RevisionContent, Undo, history as own, undo as back};
use planner::view::{OperatorFacts, Projection as _, RevisionFacts};
use serde_json::{Value, json};

use super::read::Source;
use crate::call::{call, if_there, list};
use crate::page::{Page, print_line};
use crate::write::{Decision, DryRunOption, Object, Outcome};

/// Field manager of what `undo` writes: it owns the fields that it has changed until another client applies them.
const MANAGER: &str = "kubectl-brupop-undo";

/// Options of `undo`.
#[derive(Debug, Args)]
pub(crate) struct UndoOptions {
    /// Number of the revision to return to. Default: the last one that differs from the present policy.
    #[arg(long)]
    to_revision: Option<i64>,
    #[command(flatten)]
    dry: DryRunOption,
}

/// The operator's resource and its revisions.
pub(super) struct Revisions {
    resource: BottlerocketUpdateOperator,
    operator: OperatorFacts,
    all: Vec<PolicyRevision>,
}

impl Revisions {
    pub(super) async fn read(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), namespace);
        let right = format!("get bottlerocketupdateoperators in {namespace}");
        let found = if_there(call(&right, operators.get(names::OPERATOR_NAME)).await)?;
        let projected = found.and_then(|resource| OperatorFacts::project(&resource).map(|facts| (resource, facts)));
        let (resource, operator) = projected.with_context(|| {
            format!(
                "there is no operator's resource {} in {namespace}: is the operator installed?",
                names::OPERATOR_NAME
            )
        })?;
        let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
        let right = format!("list controllerrevisions in {namespace}");
        let all = list(&revisions, ListParams::default(), &right).await?;
        Ok(Self {
            resource,
            operator,
            all: all.iter().filter_map(RevisionFacts::project).map(PolicyRevision::from).collect(),
        })
    }

    fn history(&self) -> Vec<&PolicyRevision> {
        own(&self.operator.uid, &self.all)
    }

    /// Adds the revisions as a table, or one of them. Returns true if a row was cut.
    pub(super) fn add(&self, page: &mut Page, only: Option<i64>, width: Option<usize>) -> anyhow::Result<bool> {
        add(page, &self.history(), only, width)
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

    /// Returns the content of the policy, if the policy is valid.
    fn present(&self) -> Option<RevisionContent> {
        Policy::from_spec(&self.operator.spec).ok().map(|policy| RevisionContent::of(&policy))
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

fn add(page: &mut Page, history: &[&PolicyRevision], only: Option<i64>, width: Option<usize>) -> anyhow::Result<bool> {
    if let Some(number) = only {
        let revision = find(history, number)?;
        page.line(format_args!("revision {number} ({})", revision.name));
        for (field, value) in content(revision).as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
        {
            page.line(format_args!("  {field}: {value}"));
        }
        return Ok(false);
    }
    if history.is_empty() {
        page.line(NO_HISTORY);
        return Ok(false);
    }
    let rows = history.iter().map(|revision| {
        let target = match content(revision) {
            Value::Object(fields) => fields.get("target").or(fields.get("unreadable")).cloned().unwrap_or_default(),
            other => other,
        };
        let cause = revision.change_cause.clone().unwrap_or_else(|| "<none>".to_owned());
        let target = target.as_str().unwrap_or_default().to_owned();
        [revision.number.to_string(), revision.name.clone(), target, cause]
    });
    Ok(page.table(["REVISION", "NAME", "TARGET", "CHANGE-CAUSE"], rows, width))
}

/// Returns the version that most nodes ran when the last rollout began, for a pin. `None` without one.
fn version_before_rollout(records: &[Value]) -> Option<String> {
    let rollout = |record: &Value| {
        let spec: BottlerocketRolloutHistorySpec = serde_json::from_value(record.get("spec")?.clone()).ok()?;
        spec.rollout
    };
    // A follow-up is about nodes that came late.
    let rollout = records.iter().rev().filter_map(rollout).find(|rollout| rollout.first.is_none())?;
    let from = rollout.from.into_iter().filter(|from| from.version != rollout.version);
    from.max_by_key(|from| from.nodes).map(|from| from.version.to_string())
}

/// Returns the version that most nodes ran before their last update, where no rollout is recorded. `None` if none was updated.
fn version_before(shadows: &[BottlerocketShadow]) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for shadow in shadows {
        let status = shadow.status.as_ref();
        let last = status.and_then(|s| s.controller.record.as_ref()).and_then(|record| record.last.as_ref());
        let runs = status.and_then(|s| s.agent.current_version.as_ref());
        if let Some(last) = last.filter(|last| last.reason == UPDATED && Some(&last.version) == runs)
            && let Some(from) = &last.from
        {
            *counts.entry(from.to_string()).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(version, _)| version)
}

/// Returns to an earlier revision of the policy.
pub(crate) async fn undo(client: &Client, namespace: &str, options: &UndoOptions) -> anyhow::Result<()> {
    let revisions = Revisions::read(client, namespace).await?;
    let undo = back(&revisions.history(), revisions.present().as_ref(), options.to_revision)
        .with_context(|| format!("nothing was written; kubectl brupop history -n {namespace} lists the revisions"))?;
    let Undo::Write { number, patch, keeps_versions } = &undo else {
        print_line(&undo);
        return Ok(());
    };
    let operator = Object::operator(client, namespace).written_by(MANAGER);
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
    if *keeps_versions {
        // Without the right to read the history, the shadows tell as much.
        let records = Source::Cluster { client, namespace }.records().await.unwrap_or_default();
        let version = match version_before_rollout(&records) {
            Some(version) => Some(version),
            None => {
                let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), namespace);
                let right = format!("list bottlerocketshadows in {namespace}");
                version_before(&list(&shadows, ListParams::default(), &right).await?)
            }
        };
        if let Some(version) = version {
            print_line(format_args!(
                "most nodes ran {version} before; to move them back to it: kubectl brupop pin {version} -n {namespace}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            add(&mut page, history, only, None).map(|_| page.to_string())
        };
        let listed = text(&all, None).unwrap();
        for part in ["REVISION", "default-1", "latest", "<1.23", "its form 9 is not known", "ticket 7"] {
            assert!(listed.contains(part), "{part}: {listed}");
        }
        let one = text(&all, Some(2)).unwrap();
        assert!(one.contains("target:") && one.contains(">=1.20") && !one.contains("exclude"), "{one}");
        assert_eq!(text(&all, Some(9)).unwrap_err().to_string(), "unable to find the specified revision");
        assert!(text(&[], None).unwrap().contains(NO_HISTORY));
    }

    #[test]
    fn version_for_a_pin_is_that_of_most_nodes_when_last_rollout_began() {
        let record = |from: Value| {
            json!({"spec": {"record": "r", "rollout": {
                "number": 1, "operator": {"namespace": "n", "name": "default", "uid": "u"}, "revision": {}, "variant": "v",
                "arch": "a", "version": "1.21.0", "begun": "2026-01-01T00:00:00Z", "policy": "", "from": from,
            }}})
        };
        let from = |version: &str, nodes: i64| json!({"version": version, "nodes": nodes});
        let first = record(json!([from("1.18.0", 90)]));
        let last = record(json!([from("1.19.0", 2), from("1.20.0", 3), from("1.21.0", 50)]));
        let mut follow_up = record(json!([from("1.17.0", 1)]));
        follow_up["spec"]["rollout"]["first"] = json!(1);
        let all = [first, last, follow_up.clone(), json!({"spec": {}})];
        assert_eq!(version_before_rollout(&all).as_deref(), Some("1.20.0"));
        assert_eq!(version_before_rollout(&[follow_up]), None);
        assert_eq!(version_before_rollout(&[]), None);
    }

    #[test]
    fn version_for_a_pin_is_that_of_most_nodes_before_their_update() {
        let shadow = |from: &str, runs: &str, reason: &str| -> BottlerocketShadow {
            let last = json!({
                "attempt": 1, "from": from, "version": "1.21.0", "reason": reason, "message": "",
                "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z",
            });
            serde_json::from_value(json!({
                "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "metadata": {"name": "brs-a"},
                "spec": {"state": "Idle", "attempt": 1},
                "status": {"currentVersion": runs, "record": {"failures": 0, "last": last}},
            }))
            .unwrap()
        };
        let all = [
            shadow("1.20.0", "1.21.0", UPDATED),
            shadow("1.20.0", "1.21.0", UPDATED),
            shadow("1.19.0", "1.21.0", UPDATED),
            shadow("1.18.0", "1.21.0", "DrainTimeout"),
            shadow("1.17.0", "1.17.0", UPDATED),
        ];
        assert_eq!(version_before(&all).as_deref(), Some("1.20.0"));
        assert_eq!(version_before(&[]), None);
    }
}
