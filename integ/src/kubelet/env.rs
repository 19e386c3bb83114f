//! The pod as seen by a container's process: environment, downward API, `$(VAR)` references, and paths of its mounts.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::address::to_process;

/// A variable with a source that is not supported (`CreateContainerConfigError`).
#[derive(Debug, thiserror::Error)]
#[error("the source of the variable {0:?} is not supported")]
pub(crate) struct EnvError(String);

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

/// The value of a pod's field for its processes; `None` if it is none of those that pods here need. Addresses are those that
/// processes can listen on.
pub(crate) fn field(pod: &Pod, path: &str, pod_ip: Ipv4Addr) -> Option<String> {
    let meta = &pod.metadata;
    match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "spec.nodeName" => pod.spec.as_ref()?.node_name.clone(),
        "status.podIP" => Some(to_process(pod_ip).to_string()),
        _ => None,
    }
}

/// The variables of a container's spec, in its order; a later one of the same name wins.
pub(crate) fn variables(pod: &Pod, container: &Container, pod_ip: Ipv4Addr) -> Result<Vec<(String, String)>, EnvError> {
    let mut vars: Vec<(String, String)> = Vec::new();
    for EnvVar { name, value, value_from } in container.env.iter().flatten() {
        let value = match value_from {
            None => {
                let raw = value.as_deref().unwrap_or_default();
                Some(expand(raw, |name| vars.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.clone())))
            }
            Some(source) => source.field_ref.as_ref().and_then(|of| field(pod, &of.field_path, pod_ip)),
        };
        vars.push((name.clone(), value.ok_or_else(|| EnvError(name.clone()))?));
    }
    Ok(vars)
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
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {"nodeName": "node-1", "containers": []},
        }))
        .unwrap();
        let get = |path| field(&pod, path, Ipv4Addr::new(10, 2, 3, 4));
        assert_eq!(get("status.podIP").as_deref(), Some("127.2.3.4"));
        assert_eq!(get("spec.nodeName").as_deref(), Some("node-1"));
        assert_eq!(get("spec.unknown"), None);
    }
}
