//! The proxy on the way to the API server, as kubectl chooses it.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use http::Uri;
use ipnet::IpNet;

/// Returns the proxy for a server. A proxy of the kubeconfig is used for every server. One of the environment is used
/// for servers with TLS that NO_PROXY does not exempt: without TLS, the proxy would get requests, and not connections.
pub(super) fn proxy(
    server: &Uri,
    of_kubeconfig: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<Uri>> {
    let set = |name: &str| {
        let names = [name.to_owned(), name.to_lowercase()];
        names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
    };
    let has_tls = server.scheme_str() != Some("http");
    let of_environment =
        || set("HTTPS_PROXY").filter(|_| has_tls && !is_exempt(server, &set("NO_PROXY").unwrap_or_default()));
    let Some(proxy) = of_kubeconfig.map(str::to_owned).or_else(of_environment) else { return Ok(None) };
    let url = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    // Names are resolved by the proxy in any case.
    let url = url.replacen("socks5h://", "socks5://", 1);
    let source = if of_kubeconfig.is_some() { "the proxy-url of the kubeconfig" } else { "HTTPS_PROXY" };
    // The URL may have a password, so it is not shown.
    let url = url.parse::<Uri>().with_context(|| format!("{source} is no URL of a proxy"))?;
    ensure!(
        matches!(url.scheme_str(), Some("http" | "https" | "socks5")),
        "{source} is no proxy for HTTP or SOCKS 5: its URL has to begin with http://, https:// or socks5://"
    );
    Ok(Some(url))
}

/// Returns true if NO_PROXY exempts a server. The local host is exempt in any case.
fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let port = server.port_u16().unwrap_or(443);
    no_proxy.split(',').any(|entry| covers(&entry.trim().to_lowercase(), &host, address, port))
}

/// Returns true if an entry of NO_PROXY is for a host: `*`, a network, an address, a domain with its subdomains, or `.domain` and `*.domain`
/// for the subdomains alone. An address and a domain may have a port.
fn covers(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let (name, of_port) = match entry.rsplit_once(':') {
        // An IPv6 address has colons without a port.
        Some((name, of_port)) if entry.parse::<IpAddr>().is_err() && !entry.ends_with(']') => (name, of_port),
        _ => (entry, ""),
    };
    if !of_port.is_empty() && of_port.parse::<u16>() != Ok(port) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    if let Ok(named) = name.parse::<IpAddr>() {
        return address == Some(named);
    }
    let subdomains_of = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
    let domain = subdomains_of.unwrap_or(name);
    let before = host.strip_suffix(domain).filter(|_| !domain.is_empty());
    before.is_some_and(|before| before.ends_with('.') || (before.is_empty() && subdomains_of.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EKS: &str = "https://abc.gr7.eu-west-1.eks.amazonaws.com";

    fn chosen(server: &str, of_kubeconfig: Option<&str>, environment: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| environment.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        proxy(&server.parse().unwrap(), of_kubeconfig, variable).unwrap().map(|proxy| proxy.to_string())
    }

    #[test]
    fn proxy_of_the_kubeconfig_holds_and_one_of_the_environment_yields_to_no_proxy() {
        let (https, socks) = (("HTTPS_PROXY", "http://proxy:3128"), "socks5://localhost:1080");
        let (used, exempt) = (Some("http://proxy:3128/"), ("NO_PROXY", ".eks.amazonaws.com"));
        for (sentence, server, of_kubeconfig, environment, expected) in [
            ("no proxy", EKS, None, vec![], None),
            ("of the environment", EKS, None, vec![https], used),
            ("in lower case", EKS, None, vec![("https_proxy", "http://proxy:3128")], used),
            ("an empty one", EKS, None, vec![("HTTPS_PROXY", ""), ("https_proxy", "http://proxy:3128")], used),
            ("without a scheme", EKS, None, vec![("HTTPS_PROXY", "proxy:3128")], used),
            ("NO_PROXY exempts the server", EKS, None, vec![https, exempt], None),
            ("so does no_proxy", EKS, None, vec![https, ("no_proxy", "eks.amazonaws.com")], None),
            ("NO_PROXY exempts the proxy alone", EKS, None, vec![https, ("NO_PROXY", "proxy")], used),
            ("of the kubeconfig", EKS, Some(socks), vec![], Some("socks5://localhost:1080/")),
            ("before one of the environment", EKS, Some(socks), vec![https], Some("socks5://localhost:1080/")),
            ("NO_PROXY does not concern it", EKS, Some(socks), vec![exempt], Some("socks5://localhost:1080/")),
            ("nor if it exempts all", EKS, Some(socks), vec![("NO_PROXY", "*")], Some("socks5://localhost:1080/")),
            ("the local host", "https://127.0.0.1:6443", None, vec![https], None),
            ("by its name", "https://localhost:6443", None, vec![https], None),
            ("by IPv6", "https://[::1]:6443", None, vec![https], None),
            ("a server without TLS", "http://api:8080", None, vec![https, ("HTTP_PROXY", "http://proxy:3128")], None),
            (
                "one that resolves names",
                EKS,
                Some("socks5h://localhost:1080"),
                vec![],
                Some("socks5://localhost:1080/"),
            ),
        ] {
            assert_eq!(chosen(server, of_kubeconfig, &environment).as_deref(), expected, "{sentence}");
        }
    }

    #[test]
    fn no_proxy_has_the_forms_that_kubectl_knows() {
        for (no_proxy, server, expected) in [
            ("", EKS, false),
            ("*", EKS, true),
            ("a.example, *", EKS, true),
            ("amazonaws.com", EKS, true),
            (".amazonaws.com", EKS, true),
            ("*.amazonaws.com", EKS, true),
            ("AmazonAWS.com", EKS, true),
            ("a.example,, eks.amazonaws.com ,", EKS, true),
            ("aws.com", EKS, false),
            ("abc.gr7.eu-west-1.eks.amazonaws.com", EKS, true),
            (".abc.gr7.eu-west-1.eks.amazonaws.com", EKS, false),
            ("amazonaws.com:443", EKS, true),
            ("amazonaws.com:6443", EKS, false),
            ("amazonaws.com:https", EKS, false),
            ("api.corp:6443", "https://api.corp:6443", true),
            ("api.corp", "https://api.corp:6443", true),
            ("10.0.0.7", "https://10.0.0.7:6443", true),
            ("10.0.0.7:6443", "https://10.0.0.7:6443", true),
            ("10.0.0.7:443", "https://10.0.0.7:6443", false),
            ("10.0.0.8", "https://10.0.0.7:6443", false),
            ("10.0.0.0/8", "https://10.0.0.7:6443", true),
            ("10.1.0.0/16", "https://10.0.0.7:6443", false),
            ("10.0.0.0/8", EKS, false),
            ("fd00::/8", "https://[fd00::7]:6443", true),
            ("fd00::7", "https://[fd00::7]:6443", true),
            ("[fd00::7]", "https://[fd00::7]:6443", true),
            ("[fd00::8]", "https://[fd00::7]:6443", false),
            ("[fd00::7]:6443", "https://[fd00::7]:6443", true),
            ("[fd00::7]:443", "https://[fd00::7]:6443", false),
            (".", EKS, false),
        ] {
            let environment = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", no_proxy)];
            assert_eq!(chosen(server, None, &environment).is_none(), expected, "{no_proxy}: {server}");
        }
    }

    #[test]
    fn proxy_that_cannot_be_used_is_refused_without_its_password() {
        for url in ["http://me:pass word@proxy", "socks4://me:pass@proxy:1080", "ftp://me:pass@proxy"] {
            let error = proxy(&EKS.parse().unwrap(), Some(url), |_| None).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains("proxy-url of the kubeconfig") && !text.contains("pass"), "{text}");
        }
    }
}
