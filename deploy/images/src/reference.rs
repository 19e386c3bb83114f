//! The full names of images.

use anyhow::ensure;

/// Returns the name of an image as containerd and the kubelet complete it, if registries accept it.
///
/// ```
/// let qualified = |registry, name, tag| images::qualified(registry, name, tag).unwrap();
/// assert_eq!(qualified(None, "a", "v1"), "docker.io/library/a:v1");
/// assert_eq!(qualified(Some("registry.example/b/"), "a", "v1"), "registry.example/b/a:v1");
/// assert_eq!(qualified(Some("me"), "a", "v1"), "docker.io/me/a:v1");
/// ```
pub fn qualified(registry: Option<&str>, name: &str, tag: &str) -> anyhow::Result<String> {
    let given = registry.unwrap_or_default();
    let registry = given.strip_suffix('/').unwrap_or(given);
    let (host, path) = registry.split_once('/').unwrap_or((registry, ""));
    let repository = match registry {
        "" if given.is_empty() => format!("docker.io/library/{name}"),
        _ if host == "localhost" || host.contains(['.', ':']) => {
            ensure!(is_host(host), "REGISTRY {given:?}: {host:?} is not a host's name with or without a port");
            ensure!(path.is_empty() || path.split('/').all(is_component), "REGISTRY {given:?}: {path:?} {COMPONENTS}");
            format!("{registry}/{name}")
        }
        _ => {
            ensure!(registry.split('/').all(is_component), "REGISTRY {given:?} {COMPONENTS}");
            format!("docker.io/{registry}/{name}")
        }
    };
    ensure!(repository.len() <= 255, "REGISTRY {given:?} makes the image's name longer than 255 characters");
    ensure!(is_tag(tag), "TAG {tag:?} is not 1 to 128 letters, digits, _, . and -, the first no . and no -");
    Ok(format!("{repository}:{tag}"))
}

const COMPONENTS: &str =
    "is not lower-case letters and digits, separated by one of . _ __ - and /, such as registry.example/brupop";

/// Letters, digits and hyphens between dots, and a port.
fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "443"));
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    name.split('.').all(label) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Part of the path of a repository between slashes.
fn is_component(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    // Between neighbouring letters there is an empty separator.
    let separator = |between: &str| matches!(between, "." | "_" | "__") || between.chars().all(|c| c == '-');
    text.starts_with(alphanumeric) && text.ends_with(alphanumeric) && text.split(alphanumeric).all(separator)
}

fn is_tag(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(word) && text.len() <= 128 && text.chars().all(|c| word(c) || c == '.' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_registries_accept_are_accepted() {
        for registry in
            ["localhost", "localhost:5000", "10.0.0.1:5000/a", "R.example/a-b/c__d/e--f", "me", "me/a.b", "x.example/"]
        {
            assert!(qualified(Some(registry), "a", "v1").is_ok(), "{registry}");
        }
        for tag in ["v1", "_", "V1.0-rc.1_x", &"1".repeat(128)] {
            assert!(qualified(None, "a", tag).is_ok(), "{tag}");
        }
    }

    #[test]
    fn names_that_registries_refuse_are_errors() {
        let refused = "/ // Me me: x.example/Brupop x.example//a x.example/a// x.example:port/a x.example:0/a \
                       x.example:5000:1/a -x.example/a x..example/a x.example/-a x.example/a_ x.example/a___b \
                       x.example/a._b x.example/a:v1 x.example/a@sha256:00 https://x.example/a é x.example/\" \
                       x.example/$(id)";
        for registry in refused.split(' ').chain(["a b", " ", &"a".repeat(255)]) {
            let error = qualified(Some(registry), "a", "v1").unwrap_err().to_string();
            assert!(error.starts_with("REGISTRY \""), "{registry}: {error}");
        }
        for tag in ["", "v 1", ":v1", "v1:", ".v1", "-v1", "v1/a", "é", "v1\n", &"1".repeat(129)] {
            let error = qualified(None, "a", tag).unwrap_err().to_string();
            assert!(error.starts_with("TAG "), "{tag}: {error}");
        }
    }
}
