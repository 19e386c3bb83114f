//! The checks of objects of a node, evaluated on what the caller may read.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::pinned_kind;
use planner::expressions::{Question, Subject};
use planner::objects::{self, Objects, Source, Unread, size, within_bounds};
use planner::predicate::Fields;
use planner::view::Answer;
use serde::Serialize;
use serde_json::Value;

use crate::call::call;
use crate::cluster::Cluster;

/// One more object than a check reads.
const LIMIT: u32 = 501;

/// A check of objects, and what it returned.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ObjectReport {
    pub(crate) name: String,
    /// `before` or `after` an update.
    pub(crate) when: &'static str,
    /// `True`, `False` or `NotKnown`.
    pub(crate) result: &'static str,
    /// The object for which it is false, or why it is not known.
    pub(crate) message: Option<String>,
}

/// Evaluates the checks of objects that the policy has for a node.
pub(super) async fn evaluate(client: &Client, cluster: &Cluster, node: &str, now: Timestamp) -> Vec<ObjectReport> {
    let policy = cluster.policy();
    let kept = objects::sources(&policy);
    let facts = cluster.nodes.as_ref().and_then(|nodes| nodes.get(node));
    let policy = facts.map_or(&policy.all, |facts| policy.for_node(facts));
    let progress = cluster.shadows.get(node).and_then(|shadow| shadow.status.controller.progress.as_ref());
    let subject = Subject { node, version: progress.map(|progress| &progress.version) };
    let before = policy.before.checks.iter().map(|check| ("before", check));
    let mut read: BTreeMap<Source, Objects> = BTreeMap::new();
    let mut reports = Vec::new();
    for (when, check) in before.chain(policy.after.checks.iter().map(|check| ("after", check))) {
        let Ok((Question::Objects(question), _)) = check.question(subject) else { continue };
        let source = Source::of(&question.check);
        let objects = match read.get(&source) {
            Some(objects) => objects.clone(),
            None => {
                let fields = kept.get(&source).cloned().unwrap_or_default();
                let list = list(client, &source, &fields).await;
                read.entry(source).or_insert(list).clone()
            }
        };
        reports.push(report(check.name(), when, objects::answer(&question, &objects, now)));
    }
    reports
}

fn report(name: &str, when: &'static str, answer: Answer) -> ObjectReport {
    let (result, message) = match answer {
        Answer::Quiet { .. } => ("True", None),
        Answer::Firing { series, .. } => ("False", Some(series)),
        Answer::Failed { message } => ("NotKnown", Some(message)),
    };
    ObjectReport { name: name.to_owned(), when, result, message }
}

/// Reads objects with the rights of the caller, which may be others than those of the controller. As there, these fields are kept.
async fn list(client: &Client, source: &Source, fields: &Fields) -> Objects {
    match read(client, source, fields).await {
        Ok(objects) => Objects::Read(Arc::new(objects)),
        Err(error) => Objects::Unread(error.downcast().unwrap_or_else(|error| Unread::Fails(format!("{error:#}")))),
    }
}

async fn read(client: &Client, source: &Source, fields: &Fields) -> anyhow::Result<BTreeMap<String, Value>> {
    let (resource, capabilities) = call("get the kind", pinned_kind(client, &source.group_version_kind())).await?;
    let namespace = source.namespace_in(&capabilities)?;
    let api: Api<DynamicObject> = Api::dynamic(client.clone(), &resource, &capabilities.scope).constrain(namespace);
    let (field_selector, label_selector) = source.selectors();
    let params = ListParams { field_selector, label_selector, ..ListParams::default().limit(LIMIT) };
    let found = call(&format!("list {}", resource.plural), api.list(&params)).await?.items;
    let objects: BTreeMap<_, _> = found.into_iter().map(|object| source.kept(object, fields)).collect();
    within_bounds(objects.len(), objects.values().map(size).sum())?;
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use planner::objects::MOST_OBJECTS;

    use super::*;

    #[test]
    fn check_of_objects_is_shown_with_what_it_returned() {
        let now = Timestamp::UNIX_EPOCH;
        for (answer, result, message) in [
            (Answer::Quiet { since: now, asked: now }, "True", None),
            (
                Answer::Firing { series: "false for Pod a/b".into(), since: now, asked: now },
                "False",
                Some("false for Pod a/b"),
            ),
            (Answer::Failed { message: "no right".into() }, "NotKnown", Some("no right")),
        ] {
            let shown = report("storage", "before", answer);
            assert_eq!((shown.result, shown.message.as_deref()), (result, message));
        }
        assert_eq!(LIMIT as usize, MOST_OBJECTS + 1, "one more shows that there are too many");
    }
}
