//! The two namespaces. They are separate because of their pods' rights: the agents' pods mount the host's socket.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::object::{cluster, value};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    Ok(vec![namespace(SYSTEM_NAMESPACE, "restricted")?, namespace(AGENT_NAMESPACE, "privileged")?])
}

fn namespace(name: &str, enforce: &str) -> anyhow::Result<Value> {
    let mut metadata = cluster(name);
    metadata.labels.get_or_insert_with(BTreeMap::new).insert(ENFORCE.to_owned(), enforce.to_owned());
    value(Namespace { metadata, ..Namespace::default() })
}
