//! The two namespaces. They are separate because of their pods' rights: the agents' pods mount the host's socket.

use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::object::cluster;

pub(crate) fn all() -> [Value; 2] {
    [namespace(SYSTEM_NAMESPACE, "restricted"), namespace(AGENT_NAMESPACE, "privileged")]
}

fn namespace(name: &str, enforce: &str) -> Value {
    let mut metadata = cluster(name);
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = enforce.into();
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}
