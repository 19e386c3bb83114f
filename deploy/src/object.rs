//! Common parts of all objects: labels, metadata, and the conversion of a typed object to data.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::{Metadata, Resource};
use models::names::{APPLICATION, APPLICATION_LABEL, COMPONENT_LABEL};
use serde::Serialize;
use serde_json::Value;

use crate::options::Component;

/// Metadata of a cluster-scoped object.
pub(crate) fn cluster(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(APPLICATION_LABEL.to_owned(), APPLICATION.to_owned())])),
        ..ObjectMeta::default()
    }
}

/// Metadata of an object in a namespace.
pub(crate) fn namespaced(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(namespace.to_owned()), ..cluster(name) }
}

/// Labels of a component's pods, which also select them.
pub(crate) fn labels(component: Component) -> BTreeMap<String, String> {
    BTreeMap::from([
        (APPLICATION_LABEL.to_owned(), APPLICATION.to_owned()),
        (COMPONENT_LABEL.to_owned(), component.name().to_owned()),
    ])
}

/// Selector of a component's pods. A workload's selector is immutable, so nothing that varies is in it.
pub(crate) fn selector(component: Component) -> LabelSelector {
    LabelSelector { match_labels: Some(labels(component)), ..LabelSelector::default() }
}

/// The object as data, with its apiVersion and kind.
pub(crate) fn value<K>(object: K) -> anyhow::Result<Value>
where
    K: Resource + Metadata<Ty = ObjectMeta> + Serialize,
{
    let mut value = serde_json::to_value(object)?;
    // Status is never part of an installation.
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    Ok(value)
}
