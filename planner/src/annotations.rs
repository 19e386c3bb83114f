//! Requests of users as annotations: those that are not understood, because the annotation or its value is misspelt, or because it
//! is on the wrong object; and the values by which they are recorded. The label of a Node's priority is read with them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use models::names;
use models::shadow::{DOWNLOAD, Drill, EVICT};

use crate::fnv::fnv1;
use crate::hold::Hold;

/// The object that carries an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The operator's resource.
    Operator,
    /// A shadow.
    Shadow,
    /// A Node.
    Node,
}

impl Place {
    const ALL: [Self; 3] = [Self::Operator, Self::Shadow, Self::Node];

    /// Returns the annotations that are valid on this object.
    const fn known(self) -> &'static [&'static str] {
        match self {
            Self::Operator => &[
                names::RESUME_ANNOTATION,
                names::CONTINUE_OTHERS_ANNOTATION,
                names::APPROVE_STEP_ANNOTATION,
                names::ROTATE_CERTIFICATES_ANNOTATION,
                names::ROTATE_SIGNING_KEY_ANNOTATION,
                names::MIGRATE_STORAGE_ANNOTATION,
                names::TEST_NOTICES_ANNOTATION,
            ],
            Self::Shadow => &[
                names::RETRY_ANNOTATION,
                names::RELEASE_ANNOTATION,
                names::DRILL_ANNOTATION,
                names::MIGRATED_FROM_ANNOTATION,
            ],
            Self::Node => &[names::HOLD_ANNOTATION, names::HOOKS_ANNOTATION],
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "the BottlerocketUpdateOperator default",
            Self::Shadow => "a shadow (brs-<node>)",
            Self::Node => "a Node",
        }
    }
}

/// Reason of a request that is not understood, in Events and conditions.
pub const UNKNOWN_REQUEST: &str = "UnknownRequest";

/// Reason of the Event about a hold that is refused.
pub const HOLD_REFUSED: &str = "HoldRefused";

/// A request that is not understood as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misunderstood {
    /// Reason of its Event, a fixed word.
    pub reason: &'static str,
    /// The annotation with the correction, as a sentence.
    pub message: String,
}

/// Returns the annotations of this operator that have no meaning on this object, and those whose values are not read as they are
/// meant; of a Node also its priority.
pub fn misunderstood(place: Place, meta: &ObjectMeta) -> Vec<Misunderstood> {
    let ours = |name: &str| name.strip_prefix(names::GROUP).is_some_and(|rest| rest.starts_with('/'));
    let annotations = meta.annotations.iter().flatten().filter(|(name, _)| ours(name));
    let priority = meta.labels.as_ref().filter(|_| place == Place::Node).and_then(misread_priority);
    annotations.filter_map(|(name, value)| misread(place, name, value)).chain(priority).collect()
}

/// Returns the priority of a Node if it is not a number.
fn misread_priority(labels: &BTreeMap<String, String>) -> Option<Misunderstood> {
    let name = names::PRIORITY_LABEL;
    let value = labels.get(name).filter(|value| value.parse::<i64>().is_err())?;
    let message = format!("the label {name} is read as 0, since '{value}' is not a whole number");
    Some(Misunderstood { reason: UNKNOWN_REQUEST, message })
}

fn misread(place: Place, name: &str, value: &str) -> Option<Misunderstood> {
    let unknown = |message| Some(Misunderstood { reason: UNKNOWN_REQUEST, message });
    if !place.known().contains(&name) {
        return match Place::ALL.into_iter().find(|other| other.known().contains(&name)) {
            Some(other) => {
                unknown(format!("the annotation {name} has no effect here: it belongs on {}", other.as_str()))
            }
            None => unknown(format!("the annotation {name} is not known; here there are {}", place.known().join(", "))),
        };
    }
    match name {
        names::HOLD_ANNOTATION => {
            let error = Hold::parse(value).err()?;
            let message = format!("the annotation {name} is refused and does not hold the node: {error}");
            Some(Misunderstood { reason: HOLD_REFUSED, message })
        }
        names::DRILL_ANNOTATION => {
            let read = Drill::of(&recorded_value(value));
            let words = || value.split(|c: char| !c.is_ascii_alphabetic());
            let has = |option: &str| words().any(|word| word.eq_ignore_ascii_case(option));
            let (option, _) =
                [(EVICT, read.evict), (DOWNLOAD, read.download)].into_iter().find(|(o, read)| !read && has(o))?;
            unknown(format!(
                "the annotation {name} is carried out without '{option}': write this option in lower case, between blanks or \
                 commas, among the first {LONG_START} characters"
            ))
        }
        _ => None,
    }
}

/// The length of the longest value of a request that is recorded as it is: that of an acknowledgement's field.
pub const REQUEST_LENGTH: usize = 64;

/// The number of characters of a longer value that its record begins with. A hash of the whole value follows.
const LONG_START: usize = 55;

/// Returns the value of a request as its acknowledgement records it. Two values that differ are recorded differently.
pub fn recorded_value(value: &str) -> String {
    if value.chars().count() <= REQUEST_LENGTH {
        return value.to_owned();
    }
    let start: String = value.chars().take(LONG_START).collect();
    format!("{start}~{:08x}", fnv1(value.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(name: &str, value: &str) -> ObjectMeta {
        let annotations = [(name.to_owned(), value.to_owned())].into();
        ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
    }

    #[test]
    fn priority_of_a_node_that_is_not_a_number_is_reported() {
        for (place, value, reported) in [
            (Place::Node, "10", false),
            (Place::Node, "-1", false),
            (Place::Node, "high", true),
            (Place::Node, "", true),
            (Place::Shadow, "high", false),
        ] {
            let labels = [(names::PRIORITY_LABEL.to_owned(), value.to_owned())].into();
            let found = misunderstood(place, &ObjectMeta { labels: Some(labels), ..ObjectMeta::default() });
            let text =
                format!("the label {} is read as 0, since '{value}' is not a whole number", names::PRIORITY_LABEL);
            let expected = Misunderstood { reason: UNKNOWN_REQUEST, message: text };
            assert_eq!(found, Vec::from_iter(reported.then_some(expected)), "{place:?} {value}");
        }
    }

    #[test]
    fn misspelled_and_misplaced_annotations_are_reported_with_correction() {
        for (place, name, sentence) in [
            (Place::Operator, "brupop.bottlerocket.aws/resume", None),
            (
                Place::Operator,
                "brupop.bottlerocket.aws/resum",
                Some("is not known; here there are brupop.bottlerocket.aws/resume"),
            ),
            (Place::Operator, "brupop.bottlerocket.aws/hold", Some("it belongs on a Node")),
            (
                Place::Node,
                "brupop.bottlerocket.aws/approve-step",
                Some("it belongs on the BottlerocketUpdateOperator default"),
            ),
            (Place::Node, "brupop.bottlerocket.aws/hold", None),
            (Place::Shadow, "brupop.bottlerocket.aws/Retry", Some("is not known")),
            (Place::Shadow, "brupop.bottlerocket.aws/release", None),
            (Place::Node, "brupop.bottlerocket.aws.example/hold", None),
            (Place::Node, "karpenter.sh/do-not-disrupt", None),
        ] {
            let found = misunderstood(place, &annotated(name, ""));
            match sentence {
                None => assert!(found.is_empty(), "{place:?} {name}: {found:?}"),
                Some(sentence) => {
                    assert!(found.len() == 1 && found[0].message.contains(sentence), "{place:?} {name}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn values_that_are_read_otherwise_than_they_are_meant_are_reported() {
        let long = format!("{} evict", "x".repeat(60));
        for (place, name, value, expected) in [
            (Place::Node, names::HOLD_ANNOTATION, "mine", None),
            (Place::Node, names::HOLD_ANNOTATION, "until=2026-01-31T18:00:00Z", None),
            (Place::Node, names::HOLD_ANNOTATION, "until=friday", Some((HOLD_REFUSED, "until=friday"))),
            (Place::Shadow, names::DRILL_ANNOTATION, "7 evict,download", None),
            (Place::Shadow, names::DRILL_ANNOTATION, "after the eviction", None),
            (Place::Shadow, names::DRILL_ANNOTATION, "7 Evict", Some((UNKNOWN_REQUEST, "without 'evict'"))),
            (Place::Shadow, names::DRILL_ANNOTATION, "7;download", Some((UNKNOWN_REQUEST, "without 'download'"))),
            (Place::Shadow, names::DRILL_ANNOTATION, &long, Some((UNKNOWN_REQUEST, "without 'evict'"))),
            (Place::Shadow, names::RETRY_ANNOTATION, "until=friday", None),
        ] {
            let found = misunderstood(place, &annotated(name, value));
            let found: Vec<_> = found.iter().map(|found| (found.reason, found.message.as_str())).collect();
            let fits = match (expected, found.as_slice()) {
                (None, []) => true,
                (Some((reason, part)), [(found, message)]) => reason == *found && message.contains(part),
                _ => false,
            };
            assert!(fits, "{name}={value}: {found:?}");
        }
    }

    #[test]
    fn long_values_that_differ_are_recorded_differently_and_fit() {
        let (a, b) = (format!("{}a", "ä".repeat(64)), format!("{}b", "ä".repeat(64)));
        assert_ne!(recorded_value(&a), recorded_value(&b), "they begin alike");
        for value in [a, b, "x".repeat(5000)] {
            let recorded = recorded_value(&value);
            assert!(recorded.chars().count() == REQUEST_LENGTH && recorded == recorded_value(&value), "{recorded}");
            assert_eq!(recorded_value(&recorded), recorded, "what is recorded stays as it is");
        }
        for short in ["", "monday", &"ä".repeat(64)] {
            assert_eq!(recorded_value(short), short);
        }
    }
}
