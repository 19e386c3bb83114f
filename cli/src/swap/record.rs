//! Objects of the earlier operator as they were, kept in ConfigMaps in the operator's namespace.
//!
//! The record only grows: an object that has changed since it was kept is kept again, and the later entry counts. So a
//! command that was interrupted at any point finds what is still to keep by comparing the record with the cluster.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use deploy::yaml::id;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use models::earlier::{EarlierShadow, MOST_FAILURES};
use models::names::{APPLICATION, APPLICATION_LABEL, SYSTEM_NAMESPACE};
use planner::policy::Policy;
use serde_json::{Value, json};

use crate::marks::Tool;

/// Prefix of the names of the ConfigMaps; a number follows.
pub(super) const PREFIX: &str = "brupop-takeover-";

/// Key of the objects in a ConfigMap, a JSON array.
const KEY: &str = "objects.json";

/// Bytes of objects that a ConfigMap is filled up to.
const FULL: usize = 256 * 1024;

/// Bytes of one object, alone in its ConfigMap, that the API server still takes: 1 MiB with everything around them.
const LARGEST: usize = 1_000_000;

/// The content of all ConfigMaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// By kind, namespace and name.
    objects: BTreeMap<String, Value>,
    /// The ConfigMaps: name and uid.
    pub(super) maps: Vec<(String, String)>,
    last: u32,
}

/// Returns the part of an object that is kept. Of a workload and the definition: what is needed to create it again. Of a
/// shadow: everything, with its uid.
pub(super) fn kept(object: &Value) -> Value {
    let is_shadow = object["kind"] == "BottlerocketShadow";
    let mut kept = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {}});
    for field in ["name", "namespace", "labels", "annotations", "ownerReferences", "finalizers"] {
        if let Some(value) = object["metadata"].get(field) {
            kept["metadata"][field] = value.clone();
        }
    }
    kept["spec"] = object["spec"].clone();
    if is_shadow {
        kept["metadata"]["uid"] = object["metadata"]["uid"].clone();
        kept["status"] = object["status"].clone();
    }
    kept
}

/// Returns the number in the name of a ConfigMap of the record.
fn number(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

impl Record {
    /// Reads the record from ConfigMaps of the operator's namespace; others among them are left out.
    pub(super) fn read(maps: &[ConfigMap]) -> anyhow::Result<Self> {
        let mut record = Self::default();
        let mut numbered: Vec<_> = maps.iter().filter_map(|map| Some((number(&map.name_any())?, map))).collect();
        numbered.sort_by_key(|(number, _)| *number);
        for (number, map) in numbered {
            let name = map.name_any();
            let objects = map.data.as_ref().and_then(|data| data.get(KEY));
            let objects: Vec<Value> = objects
                .context("it has no objects")
                .and_then(|text| serde_json::from_str(text).context("its objects are no JSON array"))
                .with_context(|| {
                    format!(
                        "the ConfigMap {SYSTEM_NAMESPACE}/{name} is not readable as a record of the earlier operator: \
                         restore it, or delete it if it is not one"
                    )
                })?;
            record.add(&objects);
            record.maps.push((name, map.uid().unwrap_or_default()));
            record.last = number;
        }
        Ok(record)
    }

    pub(super) fn add(&mut self, objects: &[Value]) {
        self.objects.extend(objects.iter().map(|object| (id(object), object.clone())));
    }

    /// Adds objects as if their ConfigMap had been created.
    pub(super) fn assume_map(&mut self, objects: &[Value]) {
        self.add(objects);
        self.last += 1;
        self.maps.push((format!("{PREFIX}{}", self.last), String::new()));
    }

    /// Returns true if the object is kept as it is, or more of it. The version that it was read at does not matter.
    pub(super) fn holds(&self, object: &Value) -> bool {
        self.objects.get(&id(object)).is_some_and(|kept| {
            // `undo` was interrupted before it restored the status.
            let incomplete =
                object["kind"] == "BottlerocketShadow" && object["status"].is_null() && !kept["status"].is_null();
            incomplete || ["metadata", "spec", "status"].iter().all(|part| kept[part] == object[part])
        })
    }

    pub(crate) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.values().filter(move |object| object["kind"] == kind)
    }

    /// Returns the tools that applied the kept objects other than shadows.
    pub(super) fn tools(&self) -> Vec<Tool> {
        let others = self.objects.values().filter(|object| object["kind"] != "BottlerocketShadow");
        others.flat_map(Tool::all_of_kept).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Returns the next ConfigMap: with as many of the objects, from the first one on, as it takes.
    pub(super) fn next_map(&self, objects: &[Value]) -> anyhow::Result<Value> {
        let name = format!("{PREFIX}{}", self.last + 1);
        Ok(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {APPLICATION_LABEL: APPLICATION}},
            "data": {KEY: serde_json::to_string(objects)?},
        }))
    }
}

/// Returns as many of the objects, from the first one on, as one ConfigMap takes.
///
/// # Errors
/// If the first one is larger than a ConfigMap may be.
pub(super) fn one_map(objects: &[Value]) -> anyhow::Result<Vec<Value>> {
    let (mut chosen, mut size) = (Vec::new(), 2);
    for object in objects {
        let length = object.to_string().len() + 1;
        if length > LARGEST {
            bail!("{} is larger than a ConfigMap may be, so it cannot be kept", id(object));
        }
        if !chosen.is_empty() && size + length > FULL {
            break;
        }
        size += length;
        chosen.push(object.clone());
    }
    Ok(chosen)
}

/// Returns the record of a shadow of this operator that continues the back-off of the earlier operator's; `None` without
/// failures. It blames no version: the earlier operator counted every failed call.
pub(super) fn back_off(shadow: &EarlierShadow, now: Timestamp) -> Option<models::shadow::Record> {
    let failures = i64::from(shadow.crash_count.min(MOST_FAILURES));
    (failures > 0).then(|| models::shadow::Record {
        failures,
        not_before: Policy::default().continued_back_off(failures, shadow.failed_at, now),
        ..models::shadow::Record::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, text: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": "u"}, "data": {KEY: text}})).unwrap()
    }

    fn shadow(name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "brupop.bottlerocket.aws/v2", "kind": "BottlerocketShadow",
            "metadata": {"name": name, "namespace": "old", "uid": "u", "resourceVersion": "7", "managedFields": []},
            "spec": spec, "status": {"crash_count": 1},
        })
    }

    #[test]
    fn workload_is_kept_without_what_the_server_fills_in_and_shadow_is_kept_whole() {
        let workload = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "a", "namespace": "n", "labels": {"x": "y"}, "annotations": {"k": "v"}, "uid": "u",
                "resourceVersion": "1", "generation": 2, "creationTimestamp": "t", "managedFields": [],
            },
            "spec": {"replicas": 1}, "status": {"replicas": 1},
        });
        assert_eq!(
            kept(&workload),
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "a", "namespace": "n", "labels": {"x": "y"}, "annotations": {"k": "v"}},
                "spec": {"replicas": 1},
            })
        );
        let kept = kept(&shadow("brs-a", &json!({"state": "Idle"})));
        assert_eq!(kept["status"]["crash_count"], 1);
        assert_eq!(kept["metadata"], json!({"name": "brs-a", "namespace": "old", "uid": "u"}));
    }

    #[test]
    fn record_of_many_shadows_is_split_and_its_later_entries_count() {
        let all: Vec<Value> = (0..5_000)
            .map(|n| kept(&shadow(&format!("brs-ip-10-0-{n}"), &json!({"state": "Idle", "version": null}))))
            .collect();
        let (mut rest, mut maps) = (&all[..], Vec::new());
        let mut record = Record::default();
        while !rest.is_empty() {
            let chosen = one_map(rest).unwrap();
            let next: ConfigMap = serde_json::from_value(record.next_map(&chosen).unwrap()).unwrap();
            assert!(next.data.as_ref().unwrap()[KEY].len() <= FULL && !chosen.is_empty());
            maps.push(next);
            record = Record::read(&maps).unwrap();
            rest = &rest[chosen.len()..];
        }
        assert!(maps.len() > 2 && maps.len() < 20, "{}", maps.len());
        maps.reverse();
        let record = Record::read(&maps).unwrap();
        assert!(all.iter().all(|object| record.holds(object)));

        let changed = kept(&shadow("brs-ip-10-0-0", &json!({"state": "Idle", "version": "1.2.3"})));
        assert!(!record.holds(&changed));
        maps.push(serde_json::from_value(record.next_map(std::slice::from_ref(&changed)).unwrap()).unwrap());
        // The API server lists by name, and 10 comes before 2.
        maps.rotate_right(1);
        let record = Record::read(&maps).unwrap();
        assert!(record.holds(&changed) && !record.holds(&all[0]));
        assert_eq!(record.of_kind("BottlerocketShadow").count(), 5_000);
    }

    #[test]
    fn version_that_a_shadow_was_read_at_does_not_matter() {
        let mut record = Record::default();
        let at_v2 = kept(&shadow("brs-a", &json!({"state": "Idle"})));
        let mut at_v1 = at_v2.clone();
        at_v1["apiVersion"] = json!("brupop.bottlerocket.aws/v1");
        record.add(&[at_v1]);
        assert!(record.holds(&at_v2));
    }

    #[test]
    fn shadow_that_is_restored_in_part_does_not_replace_its_record() {
        let mut record = Record::default();
        let whole = kept(&shadow("brs-a", &json!({"state": "Idle"})));
        record.add(std::slice::from_ref(&whole));
        let mut part = whole.clone();
        part["metadata"]["uid"] = json!("new");
        part["status"] = Value::Null;
        assert!(record.holds(&part));
        part["status"] = json!({"crash_count": 2});
        assert!(!record.holds(&part), "it was written to");
    }

    #[test]
    fn unreadable_record_is_an_error_and_other_config_maps_are_left_out() {
        let error = Record::read(&[map("brupop-takeover-1", "{")]).unwrap_err();
        assert!(format!("{error:#}").contains("brupop-takeover-1"), "{error:#}");
        assert!(Record::read(&[map("brupop-takeover-notes", "{"), map("brupop-trust", "{")]).unwrap().is_empty());
    }

    #[test]
    fn object_too_large_for_a_config_map_is_an_error() {
        let large = shadow("brs-a", &json!({"version": "1".repeat(300 * 1024)}));
        let small = shadow("brs-b", &json!({}));
        assert_eq!(one_map(&[large.clone(), small.clone()]).unwrap().len(), 1, "alone");
        assert_eq!(one_map(&[small, large]).unwrap().len(), 1);
        assert!(one_map(&[shadow("brs-a", &json!({"version": "1".repeat(LARGEST)}))]).is_err());
    }

    #[test]
    fn back_off_is_bounded_and_future_failures_have_no_time() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (crashes, time, expected) in [
            (0, "2026-01-01T23:00:00Z", None),
            (1, "2026-01-01T23:55:00Z", Some((1, Some("2026-01-02T00:05:00Z")))),
            (u32::MAX, "2026-01-01T23:00:00Z", Some((10, Some("2026-01-02T23:00:00Z")))),
            (2, "2027-01-01T00:00:00Z", Some((2, None))),
            (2, "monday", Some((2, None))),
        ] {
            let shadow = json!({
                "spec": {"state": "Idle"},
                "status": {"crash_count": crashes, "state_transition_failure_timestamp": time},
            });
            let record = back_off(&EarlierShadow::read(&shadow), now);
            let seen = record.as_ref().map(|record| (record.failures, record.not_before));
            let expected =
                expected.map(|(failures, until): (i64, Option<&str>)| (failures, until.map(|t| t.parse().unwrap())));
            assert_eq!(seen, expected, "{crashes} {time}");
            assert!(record.is_none_or(|record| record.version_failures.is_empty() && record.last.is_none()));
        }
    }
}
