//! The hook that keeps EC2 Auto Scaling groups from replacing nodes. Not part of the installation: `docs/aws.md`.

use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::options::{Component, Options};
use crate::{admission, network, pod, rights};

const COMPONENT: Component = Component::Aws;

/// Everything of it.
pub(crate) fn all(options: &Options) -> Vec<Value> {
    let mut objects = rights::aws();
    objects.extend(admission::aws());
    objects.extend([network::aws(), deployment(options)]);
    objects
}

pub(crate) fn deployment(options: &Options) -> Value {
    let args = vec![format!("--namespace={SYSTEM_NAMESPACE}")];
    let container = pod::container("aws", COMPONENT, options, args, ["10m", "32Mi", "128Mi"]);
    let mut deployment = pod::deployment(SYSTEM_NAMESPACE, COMPONENT, 1, &container);
    // It serves nothing.
    if let Some(metadata) = deployment["spec"]["template"]["metadata"].as_object_mut() {
        metadata.remove("annotations");
    }
    // Two at a time would do the same twice.
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    deployment
}
