//! All objects of an installation.

use serde_json::Value;

use crate::options::Options;
use crate::{admission, agent, apiserver, aws, controller, crds, namespaces, network, policy, rights, takeover};

/// Everything that is installed, each a full object, in the order of installation. The custom resource definitions come
/// first and have to be established before the last one, the default policy, is accepted.
///
/// # Errors
/// If an object cannot be written as JSON, which would be a defect.
pub fn objects(options: &Options) -> anyhow::Result<Vec<Value>> {
    let mut objects = crds::all()?;
    objects.extend(namespaces::all());
    objects.extend(rights::all());
    objects.extend(admission::all()?);
    objects.extend(network::all());
    objects.extend(apiserver::all(options));
    objects.extend(controller::all(options));
    objects.extend([agent::daemon_set(options), policy::default()]);
    Ok(objects)
}

/// The role with which the controller may delete pods past their budgets, and its binding: what a policy with
/// `drain.atDeadline: Force` requires.
pub fn force() -> Vec<Value> {
    rights::force()
}

/// The admission policies for Jobs of hooks, with their bindings: what stays for as long as a right to Jobs does.
pub fn jobs() -> Vec<Value> {
    admission::jobs().to_vec()
}

/// Everything that an installation may have in a cluster: [`objects`], what is optional (the right to delete pods, the hook
/// for AWS, the policies for Jobs of hooks), and the admission policy of a takeover that has not ended.
///
/// # Errors
/// If an object cannot be written as JSON, which would be a defect.
pub fn everything() -> anyhow::Result<Vec<Value>> {
    let mut objects = objects(&Options::default())?;
    objects.extend(rights::force());
    objects.extend(aws::all(&Options::default()));
    objects.extend(admission::jobs());
    objects.extend(takeover::read_only_policy());
    Ok(objects)
}
