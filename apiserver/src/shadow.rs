//! The web API's representation of a shadow: the agent's view, and the fields needed for checks and writes.

use anyhow::Context as _;
use models::shadow::BottlerocketShadow;
use models::wire::{ShadowMetadata, ShadowView};

use crate::etag::etag;

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
    /// Absent if the object does not name exactly one Node: such a shadow belongs to no agent.
    pub(crate) owner: Option<NodeOwner>,
    /// The agent's view, with its etag.
    pub(crate) view: ShadowView,
}

impl Shadow {
    pub(crate) fn uid(&self) -> &str {
        &self.view.metadata.uid
    }

    pub(crate) fn resource_version(&self) -> &str {
        &self.view.metadata.resource_version
    }
}

impl TryFrom<BottlerocketShadow> for Shadow {
    type Error = anyhow::Error;

    fn try_from(object: BottlerocketShadow) -> anyhow::Result<Self> {
        let BottlerocketShadow { metadata, spec, status } = object;
        let name = metadata.name.context("the object has no name")?;
        let uid = metadata.uid.context("the object has no uid")?;
        let generation = metadata.generation.context("the object has no generation")?;
        let resource_version = metadata.resource_version.context("the object has no resourceVersion")?;
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
        let status = status.unwrap_or_default().agent_status();
        let etag = etag(&uid, generation, &status).context("its status cannot be written as JSON")?;
        let metadata = ShadowMetadata { uid, generation, resource_version };
        Ok(Self { name, owner, view: ShadowView { metadata, etag, spec, status } })
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
    fn shadow_view_contains_only_agent_status() {
        let shadow = shadow("u", 1, 2, json!({"state": "Idle", "record": {"failures": 7}}));
        let view = serde_json::to_value(&shadow.view).unwrap();
        assert_eq!(view["status"], json!({"state": "Idle"}));
        assert_eq!(view["metadata"], json!({"uid": "u", "generation": 2, "resourceVersion": "1"}));
    }

    #[test]
    fn controller_status_does_not_affect_etag() {
        let a = shadow("u", 1, 2, json!({"state": "Idle"}));
        let b = shadow("u", 2, 2, json!({"state": "Idle", "record": {"failures": 7}}));
        assert_eq!(a.view.etag, b.view.etag);
    }

    #[test]
    fn shadow_owner_requires_exactly_one_node_reference() {
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
