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

/// Everything that an installation may have in a cluster: [`objects`], what is optional (the right to delete pods, the hook
/// for AWS), and the admission policy of a takeover that has not ended.
///
/// # Errors
/// If an object cannot be written as JSON, which would be a defect.
pub fn everything() -> anyhow::Result<Vec<Value>> {
    let mut objects = objects(&Options::default())?;
    objects.extend(rights::force());
    objects.extend(aws::all(&Options::default()));
    objects.extend(takeover::read_only_policy());
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
    use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
    use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
    use models::operator::BottlerocketUpdateOperator;
    use serde::{Serialize, de::DeserializeOwned};

    use super::*;
    use crate::yaml;

    /// Reads an object as its type, and writes it again.
    fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(object.clone()).unwrap()).unwrap()
    }

    /// A misspelt field would be lost.
    #[test]
    fn objects_have_only_fields_of_their_types() {
        for object in everything().unwrap() {
            let read = match object["kind"].as_str().unwrap() {
                "Namespace" => typed::<Namespace>(&object),
                "ServiceAccount" => typed::<ServiceAccount>(&object),
                "Service" => typed::<Service>(&object),
                "Role" => typed::<Role>(&object),
                "RoleBinding" => typed::<RoleBinding>(&object),
                "ClusterRole" => typed::<ClusterRole>(&object),
                "ClusterRoleBinding" => typed::<ClusterRoleBinding>(&object),
                "NetworkPolicy" => typed::<NetworkPolicy>(&object),
                "PodDisruptionBudget" => typed::<PodDisruptionBudget>(&object),
                "Deployment" => typed::<Deployment>(&object),
                "DaemonSet" => typed::<DaemonSet>(&object),
                "ValidatingAdmissionPolicy" => typed::<ValidatingAdmissionPolicy>(&object),
                "ValidatingAdmissionPolicyBinding" => typed::<ValidatingAdmissionPolicyBinding>(&object),
                "BottlerocketUpdateOperator" => typed::<BottlerocketUpdateOperator>(&object),
                "CustomResourceDefinition" => continue,
                kind => panic!("{kind} has no type here"),
            };
            assert_eq!(read, object, "{}", yaml::id(&object));
        }
    }

    #[test]
    fn objects_have_complete_and_unique_ids() {
        let objects = objects(&Options::default()).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for object in &objects {
            let id = yaml::id(object);
            assert!(!id.contains('?'), "{id}: {object}");
            assert!(seen.insert(id.clone()), "{id} is there twice");
        }
        assert_eq!(objects[0]["kind"], "CustomResourceDefinition");
        assert_eq!(objects[objects.len() - 1]["kind"], "BottlerocketUpdateOperator");
    }

    #[test]
    fn namespace_precedes_its_objects() {
        let objects = objects(&Options::default()).unwrap();
        let mut namespaces = vec!["kube-node-lease".to_owned(), "default".to_owned()];
        for object in &objects {
            if object["kind"] == "Namespace" {
                namespaces.push(object["metadata"]["name"].as_str().unwrap().to_owned());
            }
            if let Some(namespace) = object["metadata"]["namespace"].as_str() {
                assert!(namespaces.iter().any(|n| n == namespace), "{}", yaml::id(object));
            }
        }
    }
}
