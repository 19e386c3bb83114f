//! Applies after which a part of an object is as written, also where other clients own fields of it.
//!
//! A field that another field manager owns too stays when an apply leaves it out: a tool that has restored a shadow owns all of its
//! `spec`, so that a permit could never be withdrawn. Some rests make the object invalid, and the API server refuses the
//! apply. A merge patch removes a field from all of its owners.

use kube::Api;
use kube::api::{Patch, PatchParams};
use models::names;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::ApplyError;

/// The part of an object that the controller alone writes.
pub(super) struct Part<'a, K, T> {
    pub(super) api: Api<K>,
    pub(super) name: &'a str,
    /// `spec` or `status`.
    pub(super) section: &'static str,
    /// The operation as its word in metrics and errors.
    pub(super) what: &'static str,
    /// Reads the part from an object, without what others write beside it.
    pub(super) read: fn(&K) -> T,
}

impl<K, T> Part<'_, K, T>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
    T: Serialize,
{
    /// Applies `body`, in which the part is `wanted`, and removes what is left of an earlier one. `before` is the part at
    /// the version of the object that the body names.
    pub(super) async fn apply(&self, body: Value, wanted: &T, before: &T) -> Result<K, ApplyError> {
        let apply = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let applied = self.send(&apply, &Patch::Apply(&body)).await;
        let wanted = self.value(wanted)?;
        let (patch, version) = match &applied {
            Ok(written) => {
                let left = removals(&wanted, &self.value(&(self.read)(written))?);
                (left, json!(written.meta().resource_version))
            }
            Err(kube::Error::Api(status)) if status.code == 422 => {
                let whole = removals(&wanted, &self.value(before)?).map(|removals| with(wanted.clone(), removals));
                (whole, body["metadata"]["resourceVersion"].clone())
            }
            Err(_) => (None, Value::Null),
        };
        let Some(patch) = patch else { return applied.map_err(ApplyError::api(self.what)) };
        let mut metadata = body["metadata"].clone();
        metadata["resourceVersion"] = version;
        let update =
            PatchParams { field_manager: Some(names::CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": metadata, self.section: patch}));
        let written = self.send(&update, &patch).await.map_err(ApplyError::api(self.what))?;
        match removals(&wanted, &self.value(&(self.read)(&written))?) {
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

    fn value(&self, part: &T) -> Result<Value, ApplyError> {
        serde_json::to_value(part).map_err(|error| ApplyError::api(self.what)(kube::Error::SerdeError(error)))
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
        // A merge patch has lists as a whole.
        (Value::Array(elements), Value::Array(found)) => {
            found.iter().any(|element| !elements.contains(element)).then(|| wanted.clone())
        }
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
            (
                "one of an object",
                json!({"a": {"b": 1}}),
                json!({"a": {"b": 1, "c": 2}}),
                Some(json!({"a": {"c": null}})),
            ),
            ("an element", json!({"a": [1]}), json!({"a": [2, 1]}), Some(json!({"a": [1]}))),
            ("the order of elements", json!({"a": [1, 2]}), json!({"a": [2, 1]}), None),
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
