//! The facts about a ControllerRevision, which may be a revision of the policy.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use models::names;
use models::plain::cut;
use serde_json::Value;

use super::Projection;

/// Length to which the cause of a change is cut.
pub(super) const CAUSE_LENGTH: usize = 1024;

/// A ControllerRevision in the operator's namespace, perhaps another owner's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionFacts {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The number. The API server lets it fall and repeat.
    pub number: i64,
    /// True if its labels make it one of the operator's resource.
    pub labelled: bool,
    pub owners: Vec<OwnerReference>,
    /// The content as it is stored; null if it is not labelled.
    pub data: Value,
    pub change_cause: Option<String>,
    pub deleting: bool,
}

impl Projection for RevisionFacts {
    type Object = ControllerRevision;
    const BY_NAME: bool = true;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    fn project(revision: &ControllerRevision) -> Option<Self> {
        let meta = &revision.metadata;
        let label = meta.labels.as_ref().and_then(|labels| labels.get(names::OPERATOR_LABEL));
        let cause = meta.annotations.as_ref().and_then(|all| all.get(names::CHANGE_CAUSE_ANNOTATION));
        let labelled = label.is_some_and(|operator| operator == names::OPERATOR_NAME);
        Some(Self {
            name: meta.name.clone()?,
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            number: revision.revision.unwrap_or_default(),
            labelled,
            owners: meta.owner_references.clone().unwrap_or_default(),
            data: if labelled { revision.data.0.clone() } else { Value::Null },
            change_cause: cause.map(|cause| cut(cause, CAUSE_LENGTH)),
            deleting: meta.deletion_timestamp.is_some(),
        })
    }
}
