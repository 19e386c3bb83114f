//! Requests that cannot be carried out because their annotation is misspelt or is on the wrong object.

use models::names;

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

/// Returns the annotations of this operator that have no meaning on this object, each as a sentence with the
/// correction.
pub fn misunderstood<'a>(place: Place, annotations: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let ours = |name: &&String| name.strip_prefix(names::GROUP).is_some_and(|rest| rest.starts_with('/'));
    let unknown = annotations.into_iter().filter(ours).filter(|name| !place.known().contains(&name.as_str()));
    unknown
        .map(|name| match Place::ALL.into_iter().find(|other| other.known().contains(&name.as_str())) {
            Some(other) => format!("the annotation {name} has no effect here: it belongs on {}", other.as_str()),
            None => format!("the annotation {name} is not known; here there are {}", place.known().join(", ")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = misunderstood(place, [&name.to_owned()]);
            match sentence {
                None => assert!(found.is_empty(), "{place:?} {name}: {found:?}"),
                Some(sentence) => {
                    assert!(found.len() == 1 && found[0].contains(sentence), "{place:?} {name}: {found:?}");
                }
            }
        }
    }
}
