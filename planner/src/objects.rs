//! Checks of objects: which objects are watched for them, and their answers by what is known of these.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::discovery::{ApiCapabilities, Scope, verbs};
use kube::core::{DynamicObject, GroupVersionKind};
use models::names::CONTROLLER;
use models::operator::{NodeSelector, ObjectCheck};
use models::plain::cut;
use serde_json::{Map, Value};

use crate::expressions::{Check, ObjectQuestion};
use crate::policy::Policy;
use crate::predicate::{Fields, Predicate};
use crate::view::Answer;

/// Maximum number of objects that a check reads.
pub const MOST_OBJECTS: usize = 500;

/// Maximum memory of what is kept of the objects of a source, in bytes.
pub const MOST_KEPT: usize = 8 << 20;

/// Maximum length of an error of the API server in messages.
const ERROR_LENGTH: usize = 300;

/// The objects that checks read, which are watched once for all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    pub api_version: String,
    pub kind: String,
    /// The namespace of the objects; `None`: all namespaces, or none.
    pub namespace: Option<String>,
    /// The name of the only one.
    pub object_name: Option<String>,
    pub selector: Option<NodeSelector>,
}

/// The objects of a source, as far as they are known.
#[derive(Clone, Debug, PartialEq)]
pub enum Objects {
    /// All of them, with the fields that checks read, by namespace and name.
    Read(Arc<BTreeMap<String, Value>>),
    Unread(Unread),
}

/// The reason why objects are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    #[error("the API server does not serve this kind: its definition is missing, or has another version")]
    NoKind,
    #[error(
        "the controller may not list and watch {resource}: apply {}",
        grant(.group, .resource, .namespace.as_deref(), .controller)
    )]
    NoRight {
        group: String,
        resource: String,
        /// The namespace of the objects; `None`: all namespaces, or none.
        namespace: Option<String>,
        /// The namespace of the controller.
        controller: String,
    },
    #[error("there are more than {}: write a namespace, an objectName or a selector", MOST_OBJECTS)]
    TooMany,
    #[error("what checks read of them takes more than {} MiB: let them read fewer fields or objects", MOST_KEPT >> 20)]
    TooLarge,
    #[error("objects of this kind have a namespace: write that of {0}")]
    NoNamespace(String),
    #[error("objects of this kind have no namespace")]
    Namespace,
    #[error("the API of this kind serves no list or no watch, and checks need both: ask Prometheus for these")]
    NoWatch,
    #[error("they cannot be read: {}", cut(.0, ERROR_LENGTH))]
    Fails(String),
}

impl Source {
    /// Returns the objects that a check reads.
    pub fn of(check: &ObjectCheck) -> Self {
        Self {
            api_version: check.api_version.clone(),
            kind: check.kind.clone(),
            namespace: check.namespace.clone(),
            object_name: check.object_name.clone(),
            selector: check.selector.clone(),
        }
    }

    /// Returns the kind of the objects, as discovery names it.
    pub fn group_version_kind(&self) -> GroupVersionKind {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        GroupVersionKind::gvk(group, version, &self.kind)
    }

    /// Returns the namespace to read the objects in, by the capabilities of their kind; empty for all of them, or none.
    ///
    /// # Errors
    /// The kind cannot be watched, the namespace is missing, or objects of the kind have none.
    pub fn namespace_in(&self, of: &ApiCapabilities) -> Result<&str, Unread> {
        // A watch that is refused each time would pass for an outage.
        if ![verbs::LIST, verbs::WATCH].into_iter().all(|verb| of.supports_operation(verb)) {
            return Err(Unread::NoWatch);
        }
        match (&of.scope, &self.namespace, &self.object_name) {
            (Scope::Namespaced, None, Some(name)) => Err(Unread::NoNamespace(name.clone())),
            (Scope::Cluster, Some(_), _) => Err(Unread::Namespace),
            (_, namespace, _) => Ok(namespace.as_deref().unwrap_or_default()),
        }
    }

    /// Returns the selectors of the objects by their fields and by their labels.
    pub fn selectors(&self) -> (Option<String>, Option<String>) {
        let labels = self.selector.as_ref().map(NodeSelector::to_parameter).filter(|labels| !labels.is_empty());
        (self.object_name.as_ref().map(|name| format!("metadata.name={name}")), labels)
    }

    /// Returns the key of an object, and these fields of it, which checks read.
    pub fn kept(&self, object: DynamicObject, fields: &Fields) -> (String, Value) {
        let key = key(&object);
        let DynamicObject { mut metadata, data, .. } = object;
        metadata.managed_fields = None;
        let mut whole = match data {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        // Absent from the items of a list.
        whole.insert("apiVersion".to_owned(), self.api_version.clone().into());
        whole.insert("kind".to_owned(), self.kind.clone().into());
        whole.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
        (key, fields.kept_of(&Value::Object(whole)))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind, self.api_version)?;
        match (&self.namespace, &self.object_name) {
            (Some(namespace), Some(name)) => write!(f, ", {namespace}/{name}"),
            (None, Some(name)) => write!(f, ", {name}"),
            (Some(namespace), None) => write!(f, " in {namespace}"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns the key of an object, by which messages name it too.
pub fn key(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    object.metadata.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// Returns the memory of a value, in bytes.
pub fn size(value: &Value) -> usize {
    const OF_EACH: usize = size_of::<Value>();
    let parts = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| OF_EACH + name.len() + size(value)).sum(),
    };
    OF_EACH + parts
}

/// Checks that a source has neither too many objects nor takes too much memory.
///
/// # Errors
/// The bound that is exceeded.
pub fn within_bounds(count: usize, size: usize) -> Result<(), Unread> {
    if count > MOST_OBJECTS {
        return Err(Unread::TooMany);
    }
    if size > MOST_KEPT {
        return Err(Unread::TooLarge);
    }
    Ok(())
}

/// Returns a role that lets the controller, which is in the namespace `controller`, read objects of a kind, in a namespace or in all of them,
/// and its binding, on one line of YAML.
pub fn grant(group: &str, resource: &str, namespace: Option<&str>, controller: &str) -> String {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let name = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let within = namespace.map(|namespace| format!(", namespace: \"{namespace}\"")).unwrap_or_default();
    let metadata = format!("metadata: {{name: brupop-reads-{name}{within}}}");
    let rule = format!("{{apiGroups: [\"{group}\"], resources: [{resource}], verbs: [get, list, watch]}}");
    let role = format!("{{apiVersion: {RBAC}/v1, kind: {kind}, {metadata}, rules: [{rule}]}}");
    let reference = format!("roleRef: {{apiGroup: {RBAC}, kind: {kind}, name: brupop-reads-{name}}}");
    let subject = format!("{{kind: ServiceAccount, name: {CONTROLLER}, namespace: \"{controller}\"}}");
    let binding =
        format!("{{apiVersion: {RBAC}/v1, kind: {kind}Binding, {metadata}, {reference}, subjects: [{subject}]}}");
    format!("{{apiVersion: v1, kind: List, items: [{role}, {binding}]}}")
}

/// Returns the objects that the checks of a policy read, each with the fields that all of these read together.
pub fn sources(policy: &Policy) -> BTreeMap<Source, Fields> {
    let mut sources: BTreeMap<Source, Fields> = BTreeMap::new();
    for check in policy.checks() {
        let Check::Objects(check) = check else { continue };
        let Ok(predicate) = Predicate::of(&check.expression) else { continue };
        if check.is_about_secrets() {
            continue;
        }
        sources.entry(Source::of(check)).or_default().extend(&predicate.fields);
    }
    sources
}

/// Returns the answer to a question, by what is known of its objects.
pub fn answer(question: &ObjectQuestion, objects: &Objects, now: Timestamp) -> Answer {
    match result(question, objects) {
        Ok(None) => Answer::Quiet { since: now, asked: now },
        Ok(Some(series)) => Answer::Firing { series, since: now, asked: now },
        Err(message) => Answer::Failed { message },
    }
}

/// Returns `None` if it is true, and otherwise what it returned.
fn result(question: &ObjectQuestion, objects: &Objects) -> Result<Option<String>, String> {
    let check = &question.check;
    let source = Source::of(check);
    let objects = match objects {
        Objects::Read(objects) => objects,
        Objects::Unread(why) => return Err(format!("{source}: {why}")),
    };
    let predicate = Predicate::of(&check.expression)?;
    if objects.is_empty() && (check.object_name.is_some() || !predicate.of_list) {
        return Err(format!("{source}: no such object exists"));
    }
    let (node, version) = (question.node.as_deref(), question.version.as_deref());
    let found = predicate.test(objects, node.unwrap_or_default(), version.unwrap_or_default());
    let colon = if predicate.of_list { ":" } else { "" };
    let found = found.map_err(|error| format!("{}{colon} {error}", check.kind))?;
    Ok(found.map(|name| match (name.is_empty(), objects.len()) {
        (true, count) => format!("false for {count} {}", check.kind),
        (false, _) => format!("false for {} {name}", check.kind),
    }))
}

#[cfg(test)]
mod tests;
