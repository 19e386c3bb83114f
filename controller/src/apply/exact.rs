//! Applies after which a part of an object is as written, also where other clients own fields of it.
//!
//! A field that another field manager owns too stays when an apply leaves it out: a tool that has restored a shadow owns all of its
//! `spec`, so that a permit could never be withdrawn. Some of the fields that stay make the object invalid, and the API server
//! refuses the apply. A merge patch removes a field from all of its owners.

use kube::Api;
use kube::api::{Patch, PatchParams};
use models::names;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{ApplyError, patch_params};

/// The part of an object that the controller writes.
pub(super) struct Part<'a, K> {
    pub(super) api: Api<K>,
    pub(super) name: &'a str,
    /// `spec` or `status`.
    pub(super) section: &'static str,
    /// The operation as its word in metrics and errors.
    pub(super) what: &'static str,
    /// Reads the part from an object: the controller's fields, and lists that others write in as a whole.
    pub(super) read: fn(&K) -> serde_json::Result<Value>,
}

impl<K> Part<'_, K>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    /// Applies `body`, and removes what the part then has beside `wanted`. `before` is the part at the version of the object
    /// that the body names.
    pub(super) async fn apply(
        &self,
        body: Value,
        wanted: serde_json::Result<Value>,
        before: impl FnOnce() -> serde_json::Result<Value>,
    ) -> Result<K, ApplyError> {
        let wanted = self.value(wanted)?;
        let apply = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let applied = self.send(&apply, &Patch::Apply(&body)).await;
        let mut metadata = body["metadata"].clone();
        let patch = match &applied {
            Ok(written) => {
                metadata["resourceVersion"] = json!(written.meta().resource_version);
                removals(&wanted, &self.value((self.read)(written))?)
            }
            Err(kube::Error::Api(status)) if status.code == 422 => {
                removals(&wanted, &self.value(before())?).map(|removals| with(wanted.clone(), removals))
            }
            Err(_) => None,
        };
        let Some(patch) = patch else { return applied.map_err(ApplyError::api(self.what)) };
        // A null, which an apply ignores, would remove what is there.
        metadata.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
        let patch = Patch::Merge(json!({"metadata": metadata, self.section: patch}));
        let written = self.send(&patch_params(), &patch).await.map_err(ApplyError::api(self.what))?;
        match removals(&wanted, &self.value((self.read)(&written))?) {
            Some(_) => Err(ApplyError::NoEffect("a field of the operator")),
            None => Ok(written),
        }
    }

    async fn send<P: Serialize + std::fmt::Debug>(&self, params: &PatchParams, patch: &Patch<P>) -> kube::Result<K> {
        match self.section {
            "status" => self.api.patch_status(self.name, params, patch).await,
            _ => self.api.patch(self.name, params, patch).await,
        }
    }

    fn value(&self, part: serde_json::Result<Value>) -> Result<Value, ApplyError> {
        part.map_err(|error| ApplyError::api(self.what)(kube::Error::SerdeError(error)))
    }
}

/// Returns the merge patch that removes from `found` what `wanted` does not have; `None` if there is nothing to remove.
fn removals(wanted: &Value, found: &Value) -> Option<Value> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let of_key = |(key, found): (&String, &Value)| {
                let removal = match wanted.get(key) {
                    None => Some(Value::Null),
                    Some(wanted) => removals(wanted, found),
                };
                Some((key.clone(), removal?))
            };
            let all: Map<String, Value> = found.iter().filter_map(of_key).collect();
            (!all.is_empty()).then_some(Value::Object(all))
        }
        // A merge patch has lists as a whole. An element that was changed on its way is not one that is left.
        (Value::Array(elements), Value::Array(found)) => (found.len() > elements.len()).then(|| wanted.clone()),
        _ => None,
    }
}

/// Adds removals to a value, which makes it a merge patch of the whole.
fn with(mut whole: Value, removals: Value) -> Value {
    match (&mut whole, removals) {
        (Value::Object(members), Value::Object(removals)) => {
            for (key, removal) in removals {
                let below = members.remove(&key).unwrap_or_default();
                members.insert(key, with(below, removal));
            }
            whole
        }
        (_, removals) => removals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_is_removed() {
        for (sentence, wanted, found, expected) in [
            ("nothing is left", json!({"a": 1, "b": {"c": 2}}), json!({"a": 1, "b": {"c": 2}}), None),
            ("what was changed on its way is left alone", json!({"a": 1}), json!({"a": 2}), None),
            ("what is not there is not removed", json!({"a": 1}), json!({}), None),
            ("a field", json!({"a": 1}), json!({"a": 1, "b": 2}), Some(json!({"b": null}))),
            ("in an object", json!({"a": {"b": 1}}), json!({"a": {"b": 1, "c": 2}}), Some(json!({"a": {"c": null}}))),
            ("an element", json!({"a": [1]}), json!({"a": [2, 1]}), Some(json!({"a": [1]}))),
            ("an element that was changed on its way", json!({"a": [1, 2]}), json!({"a": [2, 3]}), None),
        ] {
            assert_eq!(removals(&wanted, &found), expected, "{sentence}");
        }
    }

    #[test]
    fn whole_patch_sets_fields_and_removes_what_is_left() {
        let wanted = json!({"a": {"b": 1}, "c": [1]});
        let found = json!({"a": {"d": {"e": 2}}, "c": [2], "f": 3});
        let removals = removals(&wanted, &found).unwrap();
        assert_eq!(with(wanted, removals), json!({"a": {"b": 1, "d": null}, "c": [1], "f": null}));
    }
}
