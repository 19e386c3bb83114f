//! Writes that are refused to the operator's own parts: admission policies of the cluster's API server, each for one
//! service account and one kind of object, where RBAC is not fine enough.

mod jobs;
mod limits;
mod nodes;
mod secrets;
mod web_api;

pub(crate) use jobs::JOBS;
use serde_json::Value;

/// The policies of the installed parts, each with its binding.
pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    Ok([web_api::status_alone()?, nodes::of_controller(), secrets::of_controller()].concat())
}

/// The policies for Jobs of hooks. Not part of the installation.
pub(crate) fn jobs() -> [Value; 4] {
    jobs::of_controller()
}

/// The policy of the hook for AWS, with its binding. Not part of the installation.
pub(crate) fn aws() -> [Value; 2] {
    nodes::of_aws()
}
