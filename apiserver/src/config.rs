//! Command line of the web API: one flag for each option, with an environment variable as its alternative.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use models::duration::Duration;
use models::log::LogFormat;
use models::{limits, names};

/// The web API between the agents and the cluster: each agent reads its own node's shadow and reports into its status.
///
/// It connects to Kubernetes with the kubeconfig that KUBECONFIG names, or else with its pod's own service account.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-apiserver", version)]
pub struct Config {
    /// Address and port of the web API (TLS only), such as $(POD_IP):8443.
    #[arg(long, env = "BRUPOP_LISTEN", default_value = "0.0.0.0:8443", value_parser = models::listen::address)]
    pub listen: SocketAddr,

    /// Address and port of /healthz, /readyz and /metrics (plain HTTP), such as $(POD_IP):8080.
    #[arg(long, env = "BRUPOP_PLAIN_LISTEN", default_value = "0.0.0.0:8080", value_parser = models::listen::address)]
    pub plain_listen: SocketAddr,

    /// Directory with tls.crt and tls.key (PEM). Read each second and replaced live; may be empty at first.
    #[arg(long, env = "BRUPOP_TLS_DIR", default_value = "/etc/brupop/tls")]
    pub tls_dir: PathBuf,

    /// Namespace of the shadows.
    #[arg(long, env = "BRUPOP_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub namespace: String,

    /// Namespace of the agents' service account.
    #[arg(long, env = "BRUPOP_AGENT_NAMESPACE", default_value = names::AGENT_NAMESPACE)]
    pub agent_namespace: String,

    /// Maximum age of a stream. Each ends at a random age between half of this and all of it, so that agents do not
    /// reconnect all at once.
    #[arg(long, env = "BRUPOP_STREAM_MAX_AGE", default_value = "10m", value_parser = parse_stream_age)]
    pub stream_max_age: Duration,

    /// Maximum number of connections from one address; 0 for no limit. An agent has two: raise it where many agents
    /// reach the web API from one address, as behind a proxy.
    #[arg(long, env = "BRUPOP_CONNECTIONS_PER_SOURCE", default_value_t = 64)]
    pub connections_per_source: usize,

    /// Number of leading bits of an IPv6 address that distinguish sources of connections and invalid tokens: the length
    /// of a single node's network, where it has one of its own.
    #[arg(long, env = "BRUPOP_IPV6_SOURCE_PREFIX", default_value_t = 128, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub ipv6_source_prefix: u8,

    /// Log filter, in the syntax of RUST_LOG, such as info,apiserver=debug.
    #[arg(long, env = "RUST_LOG", default_value = "info,actix_server=warn")]
    pub log_filter: String,

    /// Log format: `text` or `json`.
    #[arg(long, env = "BRUPOP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Maximum configurable age of a stream: a token lives this long by default, and an older stream would not have
/// presented a newer one.
const STREAM_AGE_LIMIT: Duration = Duration(limits::STREAM);

fn parse_stream_age(text: &str) -> Result<Duration, String> {
    let age: Duration = text.parse().map_err(|e: models::duration::ParseDurationError| e.to_string())?;
    if age < Duration::from_secs(1) || age > STREAM_AGE_LIMIT {
        return Err(format!("a stream's age is between 1s and {STREAM_AGE_LIMIT}"));
    }
    Ok(age)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Config::command().debug_assert();
    }

    #[test]
    fn stream_age_is_limited_to_ten_minutes() {
        assert!(parse_stream_age("10m").is_ok());
        assert!(parse_stream_age("11m").is_err());
        assert!(parse_stream_age("0s").is_err());
    }
}
