//! Facts made from the objects of one kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

/// Returns whether resourceVersion `a` is newer than `b`. Versions of one resource compare by length, then as text
/// (KEP-5504).
pub fn newer(a: &str, b: &str) -> bool {
    (a.len(), a) > (b.len(), b)
}

/// The facts about an object of one kind.
pub trait Projection: Clone + PartialEq + Send + Sync + 'static {
    /// The kind of the source object.
    type Object: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static;
    /// Returns the key: the name, with the namespace before it where the kind has one.
    fn key(&self) -> String;
    /// Returns the version of the object.
    fn resource_version(&self) -> &str;
    /// Returns whether a change from `old` to `self` is relevant to decisions.
    fn matters(&self, old: &Self) -> bool {
        self != old
    }
    /// Makes the projection; `None` for an object that the operator ignores.
    fn project(object: &Self::Object) -> Option<Self>;
    /// Returns the key of an object, without projecting it.
    fn key_of(object: &Self::Object) -> String;
}

/// Returns a key of the same form for all kinds.
pub(super) fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Returns the key of an object with this metadata.
pub(super) fn key_of(meta: &ObjectMeta) -> String {
    key(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_versions_compare_by_length_and_then_as_text() {
        assert!(newer("10", "9") && newer("12", "11") && newer("1", ""));
        assert!(!newer("9", "10") && !newer("11", "11"));
    }
}
