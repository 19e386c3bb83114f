//! Common parts of all objects: metadata, labels and selectors.

use models::names::{APPLICATION, APPLICATION_LABEL, COMPONENT_LABEL};
use serde_json::{Value, json};

use crate::options::Component;

/// Metadata of a cluster-scoped object.
pub(crate) fn cluster(name: &str) -> Value {
    json!({"name": name, "labels": {APPLICATION_LABEL: APPLICATION}})
}

/// Metadata of an object in a namespace.
pub(crate) fn namespaced(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "labels": {APPLICATION_LABEL: APPLICATION}})
}

/// Labels of a component's pods, which also select them.
pub(crate) fn labels(component: Component) -> Value {
    json!({APPLICATION_LABEL: APPLICATION, COMPONENT_LABEL: component.name()})
}

/// Selector of a component's pods. A workload's selector is immutable, so nothing that varies is in it.
pub(crate) fn selector(component: Component) -> Value {
    json!({"matchLabels": labels(component)})
}
