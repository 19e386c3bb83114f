//! Claims: the fields on a Node that the operator owns during an attempt, and how to distinguish them from values that
//! others have set. `phase/claim.rs` has what a phase claims.
//!
//! A claim is field ownership by server-side apply. A field that another client set to the same value is shared, and
//! stays when the claim is released; a label or annotation that a client set to another value is left unchanged.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use models::condition::true_condition;
use models::names::{self, BALANCER_LABEL, DO_NOT_DISRUPT_ANNOTATION, SCALE_DOWN_ANNOTATION};
use models::shadow::{BottlerocketShadowStatus, CORDONED};
use serde_json::{Value, json};

/// A field of a Node that can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimField {
    /// `spec.unschedulable`: no new pods.
    Cordon,
    /// The label that excludes the node from external load balancers.
    Balancer,
    /// The annotation that the cluster autoscaler obeys.
    ScaleDown,
    /// The annotation that Karpenter obeys.
    DoNotDisrupt,
}

impl ClaimField {
    /// All fields that can be claimed.
    pub const ALL: [Self; 4] = [Self::Cordon, Self::Balancer, Self::ScaleDown, Self::DoNotDisrupt];

    /// The name of the field, label or annotation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cordon => "spec.unschedulable",
            Self::Balancer => BALANCER_LABEL,
            Self::ScaleDown => SCALE_DOWN_ANNOTATION,
            Self::DoNotDisrupt => DO_NOT_DISRUPT_ANNOTATION,
        }
    }

    /// The value of a label or an annotation. The value of the label has no meaning, so it names the operator.
    const fn value(self) -> &'static str {
        match self {
            Self::Balancer => "brupop",
            Self::Cordon | Self::ScaleDown | Self::DoNotDisrupt => "true",
        }
    }

    /// The place in a Node: the field itself, or the map that has the label or annotation.
    pub const fn place(self) -> [&'static str; 2] {
        match self {
            Self::Cordon => ["spec", "unschedulable"],
            Self::Balancer => ["metadata", "labels"],
            Self::ScaleDown | Self::DoNotDisrupt => ["metadata", "annotations"],
        }
    }

    /// Sets it to a value in an object or a patch.
    fn set(self, object: &mut Value, value: Value) {
        let [section, field] = self.place();
        match self {
            Self::Cordon => object[section][field] = value,
            _ => object[section][field][self.name()] = value,
        }
    }

    /// Returns whether the fields of this entry name it.
    fn in_entry(self, entry: &ManagedFieldsEntry) -> bool {
        let [section, field] = self.place();
        let path = [section, field, self.name()];
        owns(entry, if self == Self::Cordon { &path[..2] } else { &path[..] })
    }

    /// The value that a Node has for it; none for a node that is not cordoned.
    fn found(self, meta: &ObjectMeta, unschedulable: bool) -> Option<&str> {
        match self {
            Self::Cordon => unschedulable.then_some("true"),
            Self::Balancer => meta.labels.as_ref()?.get(BALANCER_LABEL).map(String::as_str),
            Self::ScaleDown | Self::DoNotDisrupt => meta.annotations.as_ref()?.get(self.name()).map(String::as_str),
        }
    }
}

/// A set of fields of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimFields(u8);

impl ClaimFields {
    /// The cordon alone.
    pub const CORDON: Self = Self(1 << ClaimField::Cordon as u8);

    /// The fields that are claimed by default.
    #[cfg(test)]
    pub const USUAL: Self = Self(
        (1 << ClaimField::Cordon as u8) | (1 << ClaimField::ScaleDown as u8) | (1 << ClaimField::DoNotDisrupt as u8),
    );

    /// Returns whether the set contains this field.
    pub const fn has(self, field: ClaimField) -> bool {
        self.0 & (1 << field as u8) != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the fields that are not among the others.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns the fields that are among the others too.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Iterates over the fields.
    pub fn iter(self) -> impl Iterator<Item = ClaimField> {
        ClaimField::ALL.into_iter().filter(move |field| self.has(*field))
    }
}

impl FromIterator<ClaimField> for ClaimFields {
    fn from_iter<I: IntoIterator<Item = ClaimField>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |bits, field| bits | (1 << field as u8)))
    }
}

/// The claims of a node in one attempt, as far as one leader has made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimsMade {
    /// Fields of the last one; empty before the first.
    pub fields: ClaimFields,
    /// Number of claims before which another client had removed the cordon.
    pub uncordoned: u32,
    /// Number of claims before which another client had removed another field.
    pub stripped: u32,
}

impl ClaimsMade {
    /// Returns these with one more claim, of a node on which `in_effect` was left of the last one.
    #[must_use]
    pub fn and(self, in_effect: ClaimFields, fields: ClaimFields) -> Self {
        let removed = self.fields.and(fields).without(in_effect);
        let others = !removed.without(ClaimFields::CORDON).is_empty();
        Self {
            fields,
            uncordoned: self.uncordoned.saturating_add(u32::from(removed.has(ClaimField::Cordon))),
            stripped: self.stripped.saturating_add(u32::from(others)),
        }
    }
}

/// Returns whether the fields of this entry have the one at this path.
pub fn owns(entry: &ManagedFieldsEntry, path: &[impl AsRef<str>]) -> bool {
    let Some(fields) = &entry.fields_v1 else { return false };
    path.iter().try_fold(&fields.0, |fields, name| fields.get(format!("f:{}", name.as_ref()))).is_some()
}

/// Returns the field manager that wrote the field at this path last, as the API server recorded it.
pub fn last_owner<'a>(
    entries: impl IntoIterator<Item = &'a ManagedFieldsEntry>,
    path: &[impl AsRef<str>],
) -> Option<&'a str> {
    let owners = entries.into_iter().filter(|entry| owns(entry, path));
    owners.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?.manager.as_deref()
}

/// Returns the time of the last write by a field manager with such an entry, by the API server's clock; whole seconds.
pub(crate) fn last_write(meta: &ObjectMeta, is_such: impl Fn(&ManagedFieldsEntry) -> bool) -> Option<Timestamp> {
    let entries = meta.managed_fields.iter().flatten().filter(|entry| is_such(entry));
    entries.filter_map(|entry| entry.time.as_ref().map(|time| time.0)).max()
}

/// Returns whether `entry` holds the fields that the controller's applies to the main resource own.
fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(names::CONTROLLER_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().is_none_or(str::is_empty)
}

/// The fields of a Node that the operator owns, perhaps together with others.
pub fn owned(meta: &ObjectMeta) -> ClaimFields {
    let entries = || meta.managed_fields.iter().flatten().filter(|entry| is_ours(entry));
    ClaimField::ALL.into_iter().filter(|field| entries().any(|entry| field.in_entry(entry))).collect()
}

/// The time at which the claim was made, or last changed.
pub fn since(meta: &ObjectMeta) -> Option<Timestamp> {
    last_write(meta, is_ours)
}

/// The time of the last write by another field manager that owns the cordon.
pub fn cordoned_by_others_since(meta: &ObjectMeta) -> Option<Timestamp> {
    last_write(meta, |entry| !is_ours(entry) && ClaimField::Cordon.in_entry(entry))
}

/// The fields that are set and not owned by the operator.
pub fn set_by_others(meta: &ObjectMeta, unschedulable: bool) -> ClaimFields {
    let owned = owned(meta);
    ClaimField::ALL
        .into_iter()
        .filter(|field| !owned.has(*field) && field.found(meta, unschedulable).is_some())
        .collect()
}

/// The fields that a client has set to another value than the operator's.
pub fn set_otherwise(meta: &ObjectMeta) -> ClaimFields {
    let otherwise = |field: &ClaimField| field.found(meta, false).is_some_and(|value| value != field.value());
    ClaimField::ALL.into_iter().filter(otherwise).collect()
}

/// The body of the apply that claims these fields: owned fields that it does not name are removed.
pub fn body(name: &str, uid: &str, resource_version: &str, fields: ClaimFields) -> Value {
    let mut body = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": uid, "resourceVersion": resource_version},
    });
    for field in fields.iter() {
        field.set(&mut body, if field == ClaimField::Cordon { json!(true) } else { json!(field.value()) });
    }
    body
}

/// The claimed fields by the record: those not set before, while the node is claimed according to the record.
pub fn recorded(status: &BottlerocketShadowStatus) -> ClaimFields {
    if true_condition(&status.conditions, CORDONED).is_none() {
        return ClaimFields::default();
    }
    let before = status.controller.drain.as_ref().map(|drain| drain.preexisting.as_slice()).unwrap_or_default();
    ClaimField::ALL.into_iter().filter(|field| !before.iter().any(|name| name == field.name())).collect()
}

/// The fields that are set to the operator's values and have no owner, as after a reset of managedFields.
pub fn unowned(meta: &ObjectMeta, unschedulable: bool) -> ClaimFields {
    let owned = |field: ClaimField| {
        let mut entries = meta.managed_fields.iter().flatten();
        // That manager is from the reset itself: it represents all earlier clients.
        entries.any(|entry| entry.manager.as_deref() != Some("before-first-apply") && field.in_entry(entry))
    };
    let left = |field: &ClaimField| field.found(meta, unschedulable) == Some(field.value()) && !owned(*field);
    ClaimField::ALL.into_iter().filter(left).collect()
}

/// The merge patch that removes fields, refused if anything was written since.
pub fn removal(resource_version: &str, fields: ClaimFields) -> Value {
    let mut patch = json!({"metadata": {"resourceVersion": resource_version}});
    for field in fields.iter() {
        field.set(&mut patch, Value::Null);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn entry(manager: &str, operation: &str, subresource: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": fields})
    }

    fn all_fields() -> Value {
        json!({
            "f:spec": {"f:unschedulable": {}},
            "f:metadata": {
                "f:labels": {(format!("f:{BALANCER_LABEL}")): {}},
                "f:annotations": {(format!("f:{SCALE_DOWN_ANNOTATION}")): {}, (format!("f:{DO_NOT_DISRUPT_ANNOTATION}")): {}},
            },
        })
    }

    fn fields(fields: &[ClaimField]) -> ClaimFields {
        fields.iter().copied().collect()
    }

    #[test]
    fn claim_time_is_last_apply_by_controller() {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let applied = |manager: &str, operation: &str, second: u32| {
            let mut entry = entry(manager, operation, "", &all_fields());
            entry["time"] = json!(at(second));
            entry
        };
        let entries = [
            applied(names::CONTROLLER_MANAGER, "Apply", 5),
            applied(names::CONTROLLER_MANAGER, "Apply", 3),
            applied(names::CONTROLLER_MANAGER, "Update", 8),
            applied("platform-team", "Apply", 9),
        ];
        assert_eq!(since(&meta(json!({"managedFields": entries}))), Some(at(5).parse().unwrap()));
        assert_eq!(since(&meta(json!({"managedFields": [applied("platform-team", "Apply", 9)]}))), None);
    }

    #[test]
    fn cordon_of_others_is_since_their_last_write_of_it() {
        let written = |manager: &str, fields: Value, second: u32| {
            let mut entry = entry(manager, "Apply", "", &fields);
            entry["time"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
            entry
        };
        let cordon = || json!({"f:spec": {"f:unschedulable": {}}});
        let entries = [
            written("platform-team", cordon(), 3),
            written("platform-team", json!({"f:metadata": {"f:labels": {"f:team": {}}}}), 5),
            written(names::CONTROLLER_MANAGER, cordon(), 8),
        ];
        let since = cordoned_by_others_since(&meta(json!({"managedFields": entries})));
        assert_eq!(since, Some("2026-01-01T00:00:03Z".parse().unwrap()));
    }

    #[test]
    fn claim_field_is_owned_only_through_apply_by_controller_to_main_resource() {
        for (sentence, manager, operation, subresource, ours) in [
            ("an apply of the controller", names::CONTROLLER_MANAGER, "Apply", "", true),
            ("another client's update", "kubectl-cordon", "Update", "", false),
            ("another client's apply", "platform-team", "Apply", "", false),
            ("an update under the controller's name", names::CONTROLLER_MANAGER, "Update", "", false),
            ("an apply of the controller to the status", names::CONTROLLER_MANAGER, "Apply", "status", false),
        ] {
            let meta = meta(json!({"managedFields": [entry(manager, operation, subresource, &all_fields())]}));
            let expected = if ours { fields(&ClaimField::ALL) } else { ClaimFields::default() };
            assert_eq!(owned(&meta), expected, "{sentence}");
        }
        assert_eq!(owned(&ObjectMeta::default()), ClaimFields::default());
        let label = json!({"f:metadata": {"f:labels": {(format!("f:{BALANCER_LABEL}")): {}}}});
        let only = meta(json!({"managedFields": [entry(names::CONTROLLER_MANAGER, "Apply", "", &label)]}));
        assert_eq!(owned(&only), fields(&[ClaimField::Balancer]));
    }

    #[test]
    fn claims_are_counted_by_what_others_had_removed() {
        let all = fields(&ClaimField::ALL);
        let usual = ClaimFields::USUAL;
        for (sentence, before, in_effect, claimed, expected) in [
            ("the first one", ClaimFields::default(), ClaimFields::default(), usual, (0, 0)),
            ("with the label, after the hooks", usual, usual, all, (0, 0)),
            ("policy has come to protect the node", ClaimFields::CORDON, ClaimFields::CORDON, usual, (0, 0)),
            ("back in service, protected", all, all, usual.without(ClaimFields::CORDON), (0, 0)),
            ("a user has uncordoned the node", all, all.without(ClaimFields::CORDON), all, (1, 0)),
            ("the label was removed", all, usual, all, (0, 1)),
            ("all were removed", all, ClaimFields::default(), all, (1, 1)),
        ] {
            let made = ClaimsMade { fields: before, ..ClaimsMade::default() }.and(in_effect, claimed);
            assert_eq!((made.fields, (made.uncordoned, made.stripped)), (claimed, expected), "{sentence}");
        }
    }

    #[test]
    fn fields_of_other_managers_are_distinguished_by_value() {
        let meta = meta(json!({
            "labels": {BALANCER_LABEL: "true"},
            "annotations": {SCALE_DOWN_ANNOTATION: "true", DO_NOT_DISRUPT_ANNOTATION: "false"},
        }));
        assert_eq!(set_by_others(&meta, true), fields(&ClaimField::ALL));
        let found = set_by_others(&meta, false);
        assert_eq!(found, fields(&[ClaimField::Balancer, ClaimField::ScaleDown, ClaimField::DoNotDisrupt]));
        assert_eq!(set_otherwise(&meta), fields(&[ClaimField::Balancer, ClaimField::DoNotDisrupt]));
        assert_eq!(set_by_others(&ObjectMeta::default(), false), ClaimFields::default());
    }

    #[test]
    fn claim_fields_left_by_managed_fields_reset_are_removed_only_if_unowned() {
        let as_we_set_it = json!({
            "labels": {BALANCER_LABEL: "brupop"},
            "annotations": {SCALE_DOWN_ANNOTATION: "true", DO_NOT_DISRUPT_ANNOTATION: "true"},
        });
        let with = |entries: Value| {
            let mut value = as_we_set_it.clone();
            value["managedFields"] = entries;
            meta(value)
        };
        let cordon = json!({"f:spec": {"f:unschedulable": {}}});
        let reset = entry("before-first-apply", "Update", "", &all_fields());
        for (sentence, meta, before, left) in [
            ("nothing has an owner", with(json!([])), vec![], fields(&ClaimField::ALL)),
            ("the reset's own manager is no owner", with(json!([reset])), vec![], fields(&ClaimField::ALL)),
            (
                "a user cordoned it since",
                with(json!([entry("kubectl-cordon", "Update", "", &cordon)])),
                vec![],
                fields(&[ClaimField::Balancer, ClaimField::ScaleDown, ClaimField::DoNotDisrupt]),
            ),
            (
                "it was cordoned, and kept from Karpenter, before the claim",
                with(json!([])),
                vec![ClaimField::Cordon, ClaimField::DoNotDisrupt],
                fields(&[ClaimField::Balancer, ClaimField::ScaleDown]),
            ),
        ] {
            assert_eq!(unowned(&meta, true).without(fields(&before)), left, "{sentence}");
        }
        let changed =
            meta(json!({"labels": {BALANCER_LABEL: "true"}, "annotations": {SCALE_DOWN_ANNOTATION: "false"}}));
        assert_eq!(unowned(&changed, false), ClaimFields::default(), "another client changed it since");
    }

    #[test]
    fn claim_and_removal_patches_contain_claimed_fields() {
        let body = body("a", "uid", "7", fields(&ClaimField::ALL));
        let expected = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "a", "uid": "uid", "resourceVersion": "7",
                "labels": {BALANCER_LABEL: "brupop"},
                "annotations": {SCALE_DOWN_ANNOTATION: "true", DO_NOT_DISRUPT_ANNOTATION: "true"},
            },
            "spec": {"unschedulable": true},
        });
        assert_eq!(body, expected);
        let patch = removal("8", fields(&[ClaimField::Cordon, ClaimField::ScaleDown]));
        let expected = json!({
            "metadata": {"resourceVersion": "8", "annotations": {SCALE_DOWN_ANNOTATION: null}},
            "spec": {"unschedulable": null},
        });
        assert_eq!(patch, expected);
    }
}
