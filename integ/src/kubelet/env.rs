//! The pod as seen by a container's process: environment, downward API, `$(VAR)` references, and paths of its mounts.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapKeySelector, Container, EnvVarSource, ObjectFieldSelector, Pod, Secret, SecretKeySelector,
};
use kube::{Api, Client};

use super::address::to_process;

/// Reason why a container's environment cannot be created yet (`CreateContainerConfigError`).
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("{kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error("field {0:?} is not supported")]
    Field(String),
    #[error("cannot read {kind} {name:?}")]
    Api { kind: &'static str, name: String, source: kube::Error },
}

/// Replaces `$(VAR)` by Kubernetes' rules: `$$` is a dollar sign, and an unresolved reference stays as it is.
pub(crate) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// The real paths of a container's mounts, longest mount path first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounts(Vec<(String, PathBuf)>);

impl Mounts {
    pub(crate) fn new(mut mounts: Vec<(String, PathBuf)>) -> Self {
        for (path, _) in &mut mounts {
            while path.len() > 1 && path.ends_with('/') {
                path.pop();
            }
        }
        mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self(mounts)
    }

    /// The real path of the container's `path`, if it is in a mount.
    pub(crate) fn real(&self, path: &str) -> Option<PathBuf> {
        self.0.iter().find_map(|(mount, real)| {
            let below = path.strip_prefix(mount.as_str())?;
            match below.strip_prefix('/') {
                Some(below) => Some(real.join(below)),
                None if below.is_empty() => Some(real.clone()),
                None => None,
            }
        })
    }

    /// Replaces the path that `text` is, or that its `--flag=` has as value, by the real one.
    pub(crate) fn rewrite(&self, text: &str) -> String {
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) if text.starts_with('-') => (Some(flag), value),
            _ => (None, text),
        };
        match (self.real(value), flag) {
            (Some(path), Some(flag)) => format!("{flag}={}", path.display()),
            (Some(path), None) => path.display().to_string(),
            (None, _) => text.to_owned(),
        }
    }
}

/// The value of a pod's field for its processes. Addresses are those on which processes can really listen.
pub(crate) fn field(pod: &Pod, path: &str, pod_ip: Ipv4Addr, host_ip: Ipv4Addr) -> Option<String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    Some(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => key_values(meta.labels.as_ref()),
        "metadata.annotations" => key_values(meta.annotations.as_ref()),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.podIP" | "status.podIPs" => to_process(pod_ip).to_string(),
        "status.hostIP" | "status.hostIPs" => to_process(host_ip).to_string(),
        _ => {
            let (map, rest) = if let Some(rest) = path.strip_prefix("metadata.labels[") {
                (meta.labels.as_ref(), rest)
            } else {
                (meta.annotations.as_ref(), path.strip_prefix("metadata.annotations[")?)
            };
            let key = rest.strip_suffix(']')?.trim_matches(['\'', '"']);
            map.and_then(|m| m.get(key)).cloned().unwrap_or_default()
        }
    })
}

fn key_values(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter().flatten().map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>().join("\n")
}

/// Input of an environment.
pub(crate) struct EnvInput<'a> {
    pub(crate) client: &'a Client,
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) host_ip: Ipv4Addr,
}

impl EnvInput<'_> {
    /// The variables of the pod spec, in its order; a later one of the same name wins.
    pub(crate) async fn resolve(&self) -> Result<Vec<(String, String)>, EnvError> {
        let mut vars: Vec<(String, String)> = Vec::new();
        for from in self.container.env_from.iter().flatten() {
            let prefix = from.prefix.clone().unwrap_or_default();
            if let Some(source) = &from.config_map_ref {
                let found = self.config_map(&source.name).await?;
                if found.is_none() && source.optional != Some(true) {
                    return Err(EnvError::Missing { kind: "configmap", name: source.name.clone() });
                }
                vars.extend(text(found.unwrap_or_default()).map(|(k, v)| (format!("{prefix}{k}"), v)));
            }
            if let Some(source) = &from.secret_ref {
                let found = self.secret(&source.name).await?;
                if found.is_none() && source.optional != Some(true) {
                    return Err(EnvError::Missing { kind: "secret", name: source.name.clone() });
                }
                vars.extend(text(found.unwrap_or_default()).map(|(k, v)| (format!("{prefix}{k}"), v)));
            }
        }
        for var in self.container.env.iter().flatten() {
            let value = match &var.value_from {
                None => {
                    let raw = var.value.clone().unwrap_or_default();
                    Some(expand(&raw, |name| vars.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.clone())))
                }
                Some(source) => self.value_from(source).await?,
            };
            if let Some(value) = value {
                vars.push((var.name.clone(), value));
            }
        }
        Ok(vars)
    }

    async fn value_from(&self, source: &EnvVarSource) -> Result<Option<String>, EnvError> {
        if let Some(ObjectFieldSelector { field_path, .. }) = &source.field_ref {
            return field(self.pod, field_path, self.pod_ip, self.host_ip)
                .map(Some)
                .ok_or_else(|| EnvError::Field(field_path.clone()));
        }
        if let Some(ConfigMapKeySelector { key, name, optional }) = &source.config_map_key_ref {
            let found = self.config_map(name).await?;
            return self.pick("configmap", name, key, *optional, found);
        }
        if let Some(SecretKeySelector { key, name, optional }) = &source.secret_key_ref {
            let found = self.secret(name).await?;
            return self.pick("secret", name, key, *optional, found);
        }
        if let Some(reference) = &source.resource_field_ref {
            return Err(EnvError::Field(reference.resource.clone()));
        }
        Ok(None)
    }

    fn pick(
        &self,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
        found: Option<Data>,
    ) -> Result<Option<String>, EnvError> {
        let value = match found {
            Some(data) => match data.get(key) {
                Some(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
                None => Err(EnvError::MissingKey {
                    kind,
                    namespace: self.namespace(),
                    name: name.to_owned(),
                    key: key.to_owned(),
                }),
            },
            None => Err(EnvError::Missing { kind, name: name.to_owned() }),
        };
        if optional == Some(true) { Ok(value.ok()) } else { value.map(Some) }
    }

    fn namespace(&self) -> String {
        self.pod.metadata.namespace.clone().unwrap_or_default()
    }

    async fn config_map(&self, name: &str) -> Result<Option<Data>, EnvError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace());
        let found = api.get_opt(name).await;
        found.map(|o| o.map(|o| config_map_data(&o))).map_err(|source| EnvError::Api {
            kind: "configmap",
            name: name.to_owned(),
            source,
        })
    }

    async fn secret(&self, name: &str) -> Result<Option<Data>, EnvError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace());
        let found = api.get_opt(name).await;
        found.map(|o| o.map(|o| secret_data(&o))).map_err(|source| EnvError::Api {
            kind: "secret",
            name: name.to_owned(),
            source,
        })
    }
}

/// The contents of a ConfigMap or a Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

pub(crate) fn config_map_data(object: &ConfigMap) -> Data {
    let text = object.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}

pub(crate) fn secret_data(object: &Secret) -> Data {
    object.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

fn text(data: Data) -> impl Iterator<Item = (String, String)> {
    data.into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned()))
}

/// A kubeconfig with the API server and the path of the pod's token, and nothing else.
pub(crate) fn kubeconfig(server: &str, ca_file: &Path, token_file: &Path, namespace: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": server, "certificate-authority": ca_file}}],
        "users": [{"name": "pod", "user": {"tokenFile": token_file}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "pod", "namespace": namespace}}],
        "current-context": "bed",
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_references_expand_as_in_kubernetes() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("a$", "a$"),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }

    #[test]
    fn only_values_that_are_mount_paths_are_rewritten() {
        let mounts = Mounts::new(vec![
            ("/etc/brupop/".into(), "/bed/v/config".into()),
            ("/etc/brupop/ca".into(), "/bed/v/ca".into()),
            ("/run/api.sock".into(), "/bed/v/sock".into()),
        ]);
        for (text, expected) in [
            ("/etc/brupop/a.yaml", "/bed/v/config/a.yaml"),
            ("/etc/brupop", "/bed/v/config"),
            ("/etc/brupop/ca/ca.crt", "/bed/v/ca/ca.crt"),
            ("--host-socket=/run/api.sock", "--host-socket=/bed/v/sock"),
            ("/run/api.sock2", "/run/api.sock2"),
            ("/etc/brupopper", "/etc/brupopper"),
            ("a=/run/api.sock", "a=/run/api.sock"),
            ("--x=y=/run/api.sock", "--x=y=/run/api.sock"),
            ("see /run/api.sock", "see /run/api.sock"),
        ] {
            assert_eq!(mounts.rewrite(text), expected, "{text}");
        }
    }

    #[test]
    fn downward_api_returns_loopback_addresses() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"a/b": "c"}},
            "spec": {"nodeName": "node-1", "containers": []},
        }))
        .unwrap();
        let get = |path| field(&pod, path, Ipv4Addr::new(10, 2, 3, 4), Ipv4Addr::new(10, 2, 3, 1));
        assert_eq!(get("status.podIP").as_deref(), Some("127.2.3.4"));
        assert_eq!(get("status.hostIP").as_deref(), Some("127.2.3.1"));
        assert_eq!(get("metadata.labels['a/b']").as_deref(), Some("c"));
        assert_eq!(get("spec.nodeName").as_deref(), Some("node-1"));
        assert_eq!(get("spec.unknown"), None);
    }
}
