//! The web API's representation of a shadow: the agent's view, and the fields needed for checks and writes.

use std::cmp::Ordering;

use models::shadow::BottlerocketShadow;
use models::wire::{ShadowMetadata, ShadowView};

use crate::etag::etag;

/// A resource version. Those of one resource are ordered by length, then by their characters (KEP-5504).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceVersion(pub(crate) String);

/// Maximum number of digits, more than any cluster counts to.
const LONGEST: usize = 40;

impl ResourceVersion {
    /// Parses a resource version from an unauthenticated client: a positive integer.
    pub(crate) fn parse(text: String) -> Option<Self> {
        let digits = !text.is_empty() && text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_digit());
        (digits && !text.starts_with('0')).then_some(Self(text))
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ResourceVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

/// The Node that owns a shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeOwner {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// One shadow at one resource version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shadow {
    pub(crate) name: String,
    pub(crate) resource_version: ResourceVersion,
    /// Absent if the object does not name exactly one Node: such a shadow belongs to no agent.
    pub(crate) owner: Option<NodeOwner>,
    /// The agent's view, with its etag.
    pub(crate) view: ShadowView,
}

impl Shadow {
    pub(crate) fn uid(&self) -> &str {
        &self.view.metadata.uid
    }
}

/// An object of the API server that is no [`Shadow`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShadowError {
    #[error("the object has no {0}")]
    Missing(&'static str),
    #[error("its status cannot be written as JSON")]
    Etag(#[source] serde_json::Error),
}

impl TryFrom<BottlerocketShadow> for Shadow {
    type Error = ShadowError;

    fn try_from(object: BottlerocketShadow) -> Result<Self, ShadowError> {
        let BottlerocketShadow { metadata, spec, status } = object;
        let name = metadata.name.ok_or(ShadowError::Missing("name"))?;
        let uid = metadata.uid.ok_or(ShadowError::Missing("uid"))?;
        let generation = metadata.generation.ok_or(ShadowError::Missing("generation"))?;
        let resource_version = metadata.resource_version.ok_or(ShadowError::Missing("resourceVersion"))?;
        let mut nodes = metadata
            .owner_references
            .unwrap_or_default()
            .into_iter()
            .filter(|owner| owner.kind == "Node" && owner.api_version == "v1")
            .map(|owner| NodeOwner { name: owner.name, uid: owner.uid });
        let owner = match (nodes.next(), nodes.next()) {
            (Some(owner), None) => Some(owner),
            _ => None,
        };
        let status = status.unwrap_or_default().agent_half();
        let etag = etag(&uid, generation, &status).map_err(ShadowError::Etag)?;
        let metadata = ShadowMetadata { uid, generation, resource_version: resource_version.clone() };
        Ok(Self {
            name,
            resource_version: ResourceVersion(resource_version),
            owner,
            view: ShadowView { metadata, etag, spec, status },
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A shadow of the node `a` (uid `node-1`) as the API server stores it.
    pub(crate) fn stored(uid: &str, resource_version: u64, generation: i64, status: Value) -> Value {
        let mut object = json!({
            "apiVersion": "brupop.bottlerocket.aws/v3",
            "kind": "BottlerocketShadow",
            "metadata": {
                "name": "brs-a", "namespace": "brupop-system", "uid": uid, "generation": generation,
                "resourceVersion": resource_version.to_string(),
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node-1"}],
            },
            "spec": {"state": "Idle", "attempt": 0},
        });
        object["status"] = status;
        object
    }

    pub(crate) fn shadow(uid: &str, resource_version: u64, generation: i64, status: Value) -> Shadow {
        let object: BottlerocketShadow =
            serde_json::from_value(stored(uid, resource_version, generation, status)).unwrap();
        object.try_into().unwrap()
    }

    #[test]
    fn resource_versions_are_ordered_by_length_first() {
        let rv = |text: &str| ResourceVersion(text.into());
        assert!(rv("9") < rv("10"));
        assert!(rv("10") < rv("11"));
        assert!(rv("1000000000000000000000") > rv("999999999999999999999"));
    }

    #[test]
    fn a_resource_version_is_a_positive_whole_number() {
        assert_eq!(ResourceVersion::parse("120".into()), Some(ResourceVersion("120".into())));
        for text in ["", "0", "012", "-1", "1a", "٣", " 1", &"9".repeat(41)] {
            assert_eq!(ResourceVersion::parse(text.into()), None, "{text:?}");
        }
    }

    #[test]
    fn the_view_shows_the_agents_half_alone() {
        let shadow = shadow("u", 1, 2, json!({"state": "Idle", "record": {"failures": 7}}));
        let view = serde_json::to_value(&shadow.view).unwrap();
        assert_eq!(view["status"], json!({"state": "Idle"}));
        assert_eq!(view["metadata"], json!({"uid": "u", "generation": 2, "resourceVersion": "1"}));
    }

    #[test]
    fn a_change_of_the_controllers_half_leaves_the_etag_alone() {
        let a = shadow("u", 1, 2, json!({"state": "Idle"}));
        let b = shadow("u", 2, 2, json!({"state": "Idle", "record": {"failures": 7}}));
        assert_eq!(a.view.etag, b.view.etag);
    }

    #[test]
    fn a_shadow_of_two_nodes_or_of_something_else_is_no_ones() {
        for owners in [
            json!([]),
            json!([{"apiVersion": "apps/v1", "kind": "Node", "name": "a", "uid": "node-1"}]),
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "node-1"}]),
            json!([
                {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node-1"},
                {"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "node-2"}
            ]),
        ] {
            let mut object = stored("u", 1, 1, json!({}));
            object["metadata"]["ownerReferences"] = owners;
            let object: BottlerocketShadow = serde_json::from_value(object).unwrap();
            assert_eq!(Shadow::try_from(object).unwrap().owner, None);
        }
    }
}
