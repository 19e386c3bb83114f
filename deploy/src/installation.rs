//! All objects of an installation.

use serde_json::Value;

use crate::options::Options;
use crate::{admission, agent, apiserver, controller, crds, namespaces, network, policy, rights};

/// Everything that is installed, each a full object, in the order of installation. The custom resource definitions come
/// first and have to be established before the last one, the default policy, is accepted.
///
/// # Errors
/// If an object cannot be written as JSON, which would be a defect.
pub fn objects(options: &Options) -> anyhow::Result<Vec<Value>> {
    let mut objects = crds::all()?;
    objects.extend(namespaces::all()?);
    objects.extend(rights::all()?);
    objects.extend(admission::all()?);
    objects.extend(network::all()?);
    objects.extend(apiserver::all(options)?);
    objects.extend(controller::all(options)?);
    objects.extend(agent::all(options)?);
    objects.extend(policy::all()?);
    Ok(objects)
}

/// Everything that an installation may have in a cluster: [`objects`], and the right to delete pods, which is optional.
///
/// # Errors
/// If an object cannot be written as JSON, which would be a defect.
pub fn everything() -> anyhow::Result<Vec<Value>> {
    let mut objects = objects(&Options::default())?;
    objects.extend(rights::force()?);
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

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
