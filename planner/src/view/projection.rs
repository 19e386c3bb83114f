//! Facts made from the objects of one kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;

/// The facts about an object of one kind.
pub trait Projection: Clone + PartialEq + Send + Sync + 'static {
    /// The kind of the source object.
    type Object: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static;
    /// True if the key of an object is its name alone: its kind has no namespaces, or is read in one.
    const BY_NAME: bool = false;
    /// Returns the version of the object.
    const VERSION: fn(&Self) -> &str;
    /// Returns whether a change from `old` to `self` is relevant to decisions.
    fn matters(&self, old: &Self) -> bool {
        self != old
    }
    /// Makes the projection; `None` for an object that the operator ignores.
    fn project(object: &Self::Object) -> Option<Self>;
    /// Returns the key of an object: the name, with the namespace before it.
    fn key_of(meta: &ObjectMeta) -> String {
        let name = meta.name.clone().unwrap_or_default();
        match &meta.namespace {
            Some(namespace) if !Self::BY_NAME => format!("{namespace}/{name}"),
            _ => name,
        }
    }
}
