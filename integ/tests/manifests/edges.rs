//! Every field of the custom resources, with values at the edges of what its schema lets pass: what the API server accepts, every program
//! of the operator can read, and decide on. An object that it cannot read is left out of all decisions.
//!
//! All writes of such values are dry runs. The values of many fields go into one object; those that are refused are taken out of it by the answer's
//! causes.

mod values;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, PostParams, Request};
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource as _};
use models::history::BottlerocketRolloutHistory;
use models::names;
use planner::plan::plan;
use planner::policy::Policy;
use planner::view::{
    ClusterView, HistoryObject, NodeFacts, NodeView, OperatorFacts, Projection, RecordFacts, ShadowFacts,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::values::{MOMENTS, json_of, of_container, of_leaf};
use super::on_shared;
use super::samples::{self, Extent};

const NAMESPACE: &str = "edges";

/// The number of requests at a time.
const AT_A_TIME: usize = 16;

/// Fields whose values are tried alone: a rule binds them to the name of the object, and names no field.
const BOUND_TO_NAME: [&str; 1] = ["spec.record"];

/// Reads the JSON of an object as the programs do.
type Reader = fn(&str) -> anyhow::Result<()>;

/// The `spec` or the `status` of a resource.
struct Part {
    client: Client,
    url: String,
    name: &'static str,
    /// `spec` or `status`.
    field: &'static str,
    /// An object with all fields of the part.
    whole: Value,
    read: Reader,
}

/// A field of a part.
struct Field<'a> {
    /// The field as the API server names it, such as `status.conditions[0].type`.
    name: String,
    /// The same as a JSON pointer.
    pointer: String,
    schema: &'a Value,
}

/// A value of a field.
type Edge<'a> = (&'a Field<'a>, Value);

/// The answer to a value of a field.
enum Answer {
    Refused,
    Read,
    /// Accepted, and not read: the error.
    Unreadable(anyhow::Error),
}

#[test]
fn every_accepted_value_can_be_read() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let client = control_plane.client();
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
        let mut found = Vec::new();
        for definition in deploy::crds::all()? {
            for version in definition["spec"]["versions"].as_array().context("a definition without versions")? {
                found.extend(check(&client, &definition, version).await?);
            }
        }
        ensure!(found.is_empty(), "{}", found.join("\n"));
        Ok(())
    })
}

/// Tries a version of a resource. Returns what is wrong, a line for each field.
async fn check(client: &Client, definition: &Value, version: &Value) -> anyhow::Result<Vec<String>> {
    let kind = definition["spec"]["names"]["kind"].as_str().context("a definition without a kind")?;
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    let name = version["name"].as_str().context("a version without a name")?;
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(names::GROUP, name, kind));
    resource.plural = definition["spec"]["names"]["plural"].as_str().context("a definition without a plural")?.into();
    let read = reader(kind)?;
    let part = |name, field, whole| Part {
        client: client.clone(),
        url: DynamicObject::url_path(&resource, Some(NAMESPACE)),
        name,
        field,
        whole,
        read,
    };
    let spec = |name: &str, left_out: &str, extent| {
        let mut object = json!({"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}});
        object["spec"] = samples::object(&schema["spec"], extent);
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove(left_out);
            // A permit belongs to one desired state, which names its boot.
            if spec.contains_key("bootId") {
                spec.insert("state".to_owned(), "RebootedIntoUpdate".into());
            } else {
                spec.remove("permit");
            }
            // Jobs give the answers that are awaited.
            if let Some(job) = spec.get_mut("hooks").and_then(|hooks| hooks.pointer_mut("/0/job")) {
                (job["before"], job["after"]) = ("name-0".into(), "name-0".into());
            }
        }
        object
    };
    let mut found = Vec::new();
    for (name, left_out) in variants(kind) {
        let object = |extent| spec(name, left_out, extent);
        let part = part(name, "spec", object(Extent::Whole));
        found.extend(part.check(&schema["spec"], &object(Extent::Containers)).await?);
    }
    let (name, left_out) = variants(kind)[0];
    let stored = serde_json::from_value(spec(name, left_out, Extent::Containers))?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let stored = serde_json::to_value(api.create(&PostParams::default(), &stored).await?)?;
    let status = |extent| {
        let mut object = stored.clone();
        object["status"] = samples::object(&schema["status"], extent);
        object
    };
    let part = part(name, "status", status(Extent::Whole));
    found.extend(part.check(&schema["status"], &status(Extent::Containers)).await?);
    Ok(found.into_iter().map(|line| format!("{kind} {line}")).collect())
}

/// Returns the objects of a kind whose spec is tried: their names, each with the field that its spec does not have. The status of the
/// first one is tried.
fn variants(kind: &str) -> &'static [(&'static str, &'static str)] {
    match kind {
        "BottlerocketShadow" => &[("brs-edges", "")],
        "BottlerocketRolloutHistory" => &[(names::OPERATOR_NAME, "page"), ("default-p001", "rollout")],
        _ => &[(names::OPERATOR_NAME, "")],
    }
}

/// Returns the reader of a kind: the types and functions of the programs.
fn reader(kind: &str) -> anyhow::Result<Reader> {
    Ok(match kind {
        "BottlerocketShadow" => |text| {
            let shadow = ShadowFacts::project(&read(text)?).context("no facts")?;
            decide(OperatorFacts::default(), shadow);
            Ok(())
        },
        "BottlerocketUpdateOperator" => |text| {
            decide(OperatorFacts::project(&read(text)?).context("no facts")?, ShadowFacts::default());
            Ok(())
        },
        "BottlerocketRolloutHistory" => |text| {
            let object: BottlerocketRolloutHistory = read(text)?;
            ensure!(RecordFacts::of(&object, &Value::Null).is_some() == object.spec.rollout.is_some(), "no facts");
            let object: PartialObjectMeta<BottlerocketRolloutHistory> = serde_json::from_str(text)?;
            HistoryObject::project(&object).context("no facts about its metadata")?;
            Ok(())
        },
        other => bail!("no reader of {other}"),
    })
}

/// Decides about a node with a shadow.
fn decide(operator: OperatorFacts, shadow: ShadowFacts) {
    // Many policies are invalid, and say why.
    let policy = Policy::from_spec(&operator.spec.within_bounds().0).unwrap_or_default();
    let facts = NodeFacts {
        name: "edges".to_owned(),
        uid: "edges".to_owned(),
        boot_id: "name-0".to_owned(),
        labelled: true,
        ready: true,
        ..NodeFacts::default()
    };
    let node = NodeView { facts, shadow: Some(Box::new(shadow)), pods: Some(Vec::new()), ..NodeView::default() };
    let mut view = ClusterView { operator: Some(operator), ..ClusterView::default() };
    view.nodes.insert("edges".to_owned(), node);
    view.history.highest = Some(0);
    for now in [Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        let _ = plan(&view, &policy, now);
    }
}

/// Reads an object, and what it is written as.
fn read<K: DeserializeOwned + Serialize + PartialEq>(text: &str) -> anyhow::Result<K> {
    let object: K = serde_json::from_str(text)?;
    let again: K = serde_json::from_value(serde_json::to_value(&object)?).context("written again")?;
    ensure!(again == object, "it is read otherwise once it is written again");
    Ok(object)
}

impl Part {
    /// Tries all fields. Returns what is wrong, a line for each field.
    async fn check(&self, schema: &Value, least: &Value) -> anyhow::Result<Vec<String>> {
        for object in [&self.whole, least] {
            let text = self.send(object).await?.map_err(|fields| anyhow::anyhow!("{fields:?}: {object}"))?;
            (self.read)(&text).with_context(|| text.clone())?;
        }
        let mut fields = Vec::new();
        let (name, pointer) = (self.field.to_owned(), format!("/{}", self.field));
        collect(Field { name, pointer, schema }, &self.whole[self.field], &mut fields);
        let (mut batches, mut alone) = (Vec::<Vec<Edge<'_>>>::new(), Vec::new());
        for field in &fields {
            let leaf = of_leaf(field.schema).filter(|_| !is_bound_to_name(field));
            let Some(values) = leaf else {
                let values = of_leaf(field.schema).unwrap_or_else(|| of_container(field.schema));
                alone.extend(values.into_iter().map(|value| (field, value)));
                continue;
            };
            for (index, value) in values.into_iter().enumerate() {
                batches.resize_with(batches.len().max(index + 1), Vec::new);
                batches[index].push((field, value));
            }
        }
        let tried = stream::iter(batches).map(|batch| self.batch(batch)).buffer_unordered(AT_A_TIME);
        let (mut read, mut left) = (Vec::new(), Vec::new());
        for (accepted, single) in tried.try_collect::<Vec<_>>().await? {
            read.extend(accepted);
            left.extend(single);
        }
        alone.extend(left);
        let answers = stream::iter(alone).map(async |edge: Edge<'_>| Ok((self.alone(&edge).await?, edge)));
        let answers: anyhow::Result<Vec<_>> = answers.buffer_unordered(AT_A_TIME).try_collect().await;
        let mut unreadable = BTreeMap::<&str, Vec<String>>::new();
        for (answer, edge) in answers? {
            match answer {
                Answer::Refused => {}
                Answer::Read => read.push(edge),
                Answer::Unreadable(error) => {
                    let value: String = json_of(&edge.1).chars().take(100).collect();
                    unreadable.entry(&edge.0.name).or_default().push(format!("{value}: {error:#}"));
                }
            }
        }
        let unreadable = unreadable.into_iter().map(|(name, errors)| {
            format!("{name} accepts {} values that cannot be read, such as {}", errors.len(), errors[0])
        });
        Ok(unreadable.chain(refused(&fields, &read)).collect())
    }

    /// Tries values of many fields in one object. Returns those that were accepted and read, and those that have to be tried alone;
    /// the others were refused.
    async fn batch<'a>(&self, mut left: Vec<Edge<'a>>) -> anyhow::Result<(Vec<Edge<'a>>, Vec<Edge<'a>>)> {
        let mut alone = Vec::new();
        loop {
            match self.send(&self.with(&left)).await? {
                Ok(text) if (self.read)(&text).is_ok() => return Ok((left, alone)),
                Err(refused) => {
                    let before = left.len();
                    left.retain(|(field, _)| !refused.contains(&field.name));
                    if left.len() == before {
                        let above = |edge: &mut Edge<'_>| refused.iter().any(|name| edge.0.name.starts_with(name));
                        alone.extend(left.extract_if(.., above));
                    }
                    if left.len() < before {
                        continue;
                    }
                }
                Ok(_) => {}
            }
            alone.append(&mut left);
            return Ok((left, alone));
        }
    }

    async fn alone(&self, edge: &Edge<'_>) -> anyhow::Result<Answer> {
        let answer = self.send(&self.with(std::slice::from_ref(edge))).await?;
        Ok(answer.map_or(Answer::Refused, |text| (self.read)(&text).map_or_else(Answer::Unreadable, |()| Answer::Read)))
    }

    /// Returns the object with these values.
    fn with(&self, edges: &[Edge<'_>]) -> Value {
        let mut object = self.whole.clone();
        for (field, value) in edges {
            if let Some(place) = object.pointer_mut(&field.pointer) {
                *place = value.clone();
            }
        }
        object
    }

    /// Writes an object by a dry run. Returns it as it would be stored, or the fields that are refused.
    async fn send(&self, object: &Value) -> anyhow::Result<Result<String, Vec<String>>> {
        let (params, body) = (PostParams { dry_run: true, ..PostParams::default() }, json_of(object).into_bytes());
        let request = Request::new(&self.url);
        let request = match self.field {
            "status" => request.replace_subresource("status", self.name, &params, body)?,
            _ => request.create(&params, body)?,
        };
        match self.client.request_text(request).await {
            Ok(text) => Ok(Ok(text)),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 413 | 422) => {
                let causes = status.details.map(|details| details.causes).unwrap_or_default();
                Ok(Err(causes.into_iter().map(|cause| cause.field).collect()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the fields of which no value was accepted, since they are not tested, and the moments that were refused.
fn refused(fields: &[Field<'_>], read: &[Edge<'_>]) -> Vec<String> {
    let read: BTreeSet<_> = read.iter().map(|(field, value)| (&field.name, json_of(value))).collect();
    let mut found = Vec::new();
    for field in fields.iter().filter(|field| of_leaf(field.schema).is_some() && !is_bound_to_name(field)) {
        if !read.iter().any(|(name, _)| **name == field.name) {
            found.push(format!("{} accepts none of its values", field.name));
        }
        let moments = MOMENTS.iter().filter(|_| field.schema["format"] == "date-time");
        let moments = moments.filter(|moment| !read.contains(&(&field.name, json_of(&json!(moment)))));
        found.extend(moments.map(|moment| format!("{} refuses {moment}", field.name)));
    }
    found
}

fn is_bound_to_name(field: &Field<'_>) -> bool {
    BOUND_TO_NAME.contains(&field.name.as_str())
}

/// Lists a field and all below it, as far as the whole object has them.
fn collect<'a>(field: Field<'a>, whole: &Value, found: &mut Vec<Field<'a>>) {
    let Field { name, pointer, schema } = &field;
    for (key, child) in whole.as_object().into_iter().flatten() {
        let properties = &schema["properties"][key];
        let schema = if properties.is_object() { properties } else { &schema["additionalProperties"] };
        let (name, pointer) = (format!("{name}.{key}"), format!("{pointer}/{key}"));
        collect(Field { name, pointer, schema }, child, found);
    }
    for (index, child) in whole.as_array().into_iter().flatten().enumerate() {
        let (name, pointer) = (format!("{name}[{index}]"), format!("{pointer}/{index}"));
        collect(Field { name, pointer, schema: &schema["items"] }, child, found);
    }
    found.push(field);
}
