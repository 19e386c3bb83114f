//! The installation as data: custom resource definitions, rights, workloads and the default policy.
//!
//! The manifests that users apply, the reference of the resources and all other installations use this data, so that a
//! test of one is a test of all.

mod admission;
mod agent;
mod apiserver;
mod budget;
mod controller;
pub mod crds;
pub mod files;
mod namespaces;
mod network;
mod object;
pub mod openapi;
mod pod;
mod policy;
pub mod reference;
mod rights;
pub mod waiting;
pub mod yaml;

use serde_json::Value;

/// The command that generates the files; it is in each of them and in the message about a stale one.
pub const COMMAND: &str = "cargo run -p deploy -- --write";

/// Options of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Registry and path in front of the images' names, such as `registry.example/brupop`; absent: bare names.
    pub registry: Option<String>,
    /// Tag of all images.
    pub tag: String,
    /// Replicas of the controller. One leads, the others are on standby with warm caches.
    pub controller_replicas: u16,
    /// Replicas of the web API.
    pub apiserver_replicas: u16,
    /// The cluster's domain, if it is not `cluster.local`: for the names in the web API's certificate. Agents use
    /// `SERVICE.NAMESPACE.svc`, which is valid in any.
    pub cluster_domain: Option<String>,
    /// Format of the programs' logs; absent: their default, text.
    pub log_format: Option<models::log::LogFormat>,
    /// Further arguments of the controller.
    pub controller_args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            registry: None,
            tag: concat!("v", env!("CARGO_PKG_VERSION")).into(),
            controller_replicas: 2,
            apiserver_replicas: 3,
            cluster_domain: None,
            log_format: None,
            controller_args: Vec::new(),
        }
    }
}

/// The components of the operator that run in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The agent on every Bottlerocket node, which uses the host API.
    Agent,
    /// The web API between the agents and the cluster.
    Apiserver,
    /// The controller, which decides on the order, time and version of updates.
    Controller,
}

impl Component {
    /// All components.
    pub const ALL: [Self; 3] = [Self::Agent, Self::Apiserver, Self::Controller];

    /// Name of the component's workload, service account, image and program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => models::names::AGENT,
            Self::Apiserver => models::names::APISERVER,
            Self::Controller => models::names::CONTROLLER,
        }
    }
}

/// Reference of a component's image, as used in the pods.
///
/// ```
/// use deploy::{Component, Options, image};
/// let options = Options { registry: Some("registry.example/brupop".into()), ..Options::default() };
/// assert_eq!(image(Component::Agent, &options), "registry.example/brupop/brupop-agent:v0.1.0");
/// ```
pub fn image(component: Component, options: &Options) -> String {
    let name = component.name();
    let tag = &options.tag;
    match options.registry.as_deref().map(|registry| registry.trim_end_matches('/')) {
        Some(registry) if !registry.is_empty() => format!("{registry}/{name}:{tag}"),
        _ => format!("{name}:{tag}"),
    }
}

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

    #[test]
    fn every_object_says_what_it_is_and_none_is_there_twice() {
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
    fn an_object_comes_after_its_namespace() {
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

    #[test]
    fn a_registry_with_and_without_a_slash_at_its_end_is_the_same() {
        for registry in ["registry.example/b", "registry.example/b/"] {
            let options = Options { registry: Some(registry.into()), tag: "v9".into(), ..Options::default() };
            assert_eq!(image(Component::Controller, &options), "registry.example/b/brupop-controller:v9");
        }
        let options = Options { registry: Some(String::new()), ..Options::default() };
        assert_eq!(image(Component::Controller, &options), "brupop-controller:v0.1.0");
    }
}
