//! The options of an installation, and the components that it installs.

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
    /// The hook that keeps EC2 Auto Scaling groups from replacing nodes, which is optional.
    Aws,
}

impl Component {
    /// The components of every installation.
    pub const ALL: [Self; 3] = [Self::Agent, Self::Apiserver, Self::Controller];

    /// Name of the component's workload, service account, image and program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => models::names::AGENT,
            Self::Apiserver => models::names::APISERVER,
            Self::Controller => models::names::CONTROLLER,
            Self::Aws => models::names::AWS,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_slash_of_registry_is_ignored() {
        for registry in ["registry.example/b", "registry.example/b/"] {
            let options = Options { registry: Some(registry.into()), tag: "v9".into(), ..Options::default() };
            assert_eq!(image(Component::Controller, &options), "registry.example/b/brupop-controller:v9");
        }
        let options = Options { registry: Some(String::new()), ..Options::default() };
        assert_eq!(image(Component::Controller, &options), "brupop-controller:v0.1.0");
    }

    #[test]
    fn cluster_domain_is_an_argument_of_the_controller() {
        for (domain, expected) in [(None, 0), (Some("corp.example".to_owned()), 1)] {
            let options = Options { cluster_domain: domain, ..Options::default() };
            let text = serde_json::json!(crate::controller::all(&options)).to_string();
            assert_eq!(text.matches("--cluster-domain").count(), expected, "{text}");
            assert_eq!(text.matches("\"--cluster-domain=corp.example\"").count(), expected, "{text}");
        }
    }
}
