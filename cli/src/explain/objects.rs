//! The checks of objects of a node, evaluated on what the caller may read.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::{Scope, pinned_kind};
use models::operator::NodeSelector;
use planner::expressions::{Question, Subject};
use planner::objects::{self, Objects, Source, Unread, key, size, within_bounds};
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
    let found = read(client, source, fields).await;
    found.unwrap_or_else(|error| Objects::Unread(Unread::Fails(format!("{error:#}"))))
}

async fn read(client: &Client, source: &Source, fields: &Fields) -> anyhow::Result<Objects> {
    let (group, version) = source.api_version.split_once('/').unwrap_or(("", &source.api_version));
    let kind = GroupVersionKind::gvk(group, version, &source.kind);
    let (resource, capabilities) = call("get the kind", pinned_kind(client, &kind)).await?;
    let api: Api<DynamicObject> = match (capabilities.scope, &source.namespace, &source.object_name) {
        (Scope::Namespaced, None, Some(name)) => return Ok(Objects::Unread(Unread::NoNamespace(name.clone()))),
        (Scope::Cluster, Some(_), _) => return Ok(Objects::Unread(Unread::Namespace)),
        (Scope::Namespaced, Some(namespace), _) => Api::namespaced_with(client.clone(), namespace, &resource),
        (_, None, _) => Api::all_with(client.clone(), &resource),
    };
    let mut params = ListParams::default().limit(LIMIT);
    if let Some(name) = &source.object_name {
        params = params.fields(&format!("metadata.name={name}"));
    }
    if let Some(selector) = source.selector.as_ref().map(NodeSelector::to_parameter) {
        params = params.labels(&selector);
    }
    let found = call(&format!("list {}", resource.plural), api.list(&params)).await?.items;
    let object = |mut object: DynamicObject| -> anyhow::Result<(String, Value)> {
        object.metadata.managed_fields = None;
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let mut value = serde_json::to_value(&object).context("an object cannot be written as JSON")?;
        // Absent from the items of a list.
        value["apiVersion"] = source.api_version.clone().into();
        value["kind"] = source.kind.clone().into();
        Ok((key(object.metadata.namespace.as_deref(), name), fields.kept_of(&value)))
    };
    let objects = found.into_iter().map(object).collect::<anyhow::Result<BTreeMap<_, _>>>()?;
    let within = within_bounds(objects.len(), objects.values().map(size).sum());
    Ok(within.map_or_else(Objects::Unread, |()| Objects::Read(Arc::new(objects))))
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
