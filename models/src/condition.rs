//! Conditions as Kubernetes has them, and the one rule for merging them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use crate::schema::Moment;

/// Values of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// One condition of a resource: Kubernetes' `metav1.Condition`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition; unique in its list.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub type_: String,
    /// Status of the condition.
    pub status: ConditionStatus,
    /// Reason for its status, as one fixed word.
    #[cfg_attr(feature = "crd", schemars(length(max = 128)))]
    pub reason: String,
    /// Explanation for users.
    #[serde(default)]
    #[cfg_attr(feature = "crd", schemars(length(max = 2048)))]
    pub message: String,
    /// Time at which `status` last changed.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub last_transition_time: Timestamp,
    /// Generation of the resource that the condition refers to.
    pub observed_generation: Option<i64>,
}

/// Sets a condition in a list: its time of transition moves only when its status does.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// Finds a condition by its type.
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Finds a condition by its type, while it holds.
pub fn true_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    find_condition(conditions, type_).filter(|condition| condition.status == ConditionStatus::True)
}

/// Finds a condition by its type, while it does not hold.
pub fn false_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    find_condition(conditions, type_).filter(|condition| condition.status == ConditionStatus::False)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(status: ConditionStatus, second: i64, message: &str) -> Condition {
        Condition {
            type_: "Cordoned".into(),
            status,
            reason: "Draining".into(),
            message: message.into(),
            last_transition_time: Timestamp::from_second(second).unwrap(),
            observed_generation: None,
        }
    }

    #[test]
    fn transition_time_changes_only_with_status() {
        let mut list = vec![condition(ConditionStatus::True, 1, "a")];
        set_condition(&mut list, condition(ConditionStatus::True, 2, "b"));
        assert_eq!(list, [condition(ConditionStatus::True, 1, "b")]);
        set_condition(&mut list, condition(ConditionStatus::False, 3, "c"));
        assert_eq!(list, [condition(ConditionStatus::False, 3, "c")]);
    }
}
