//! Flags of the controller. Each is also an environment variable.

use std::net::SocketAddr;

use clap::Parser;
use models::log::LogFormat;
use models::names;

/// Carries out the plan for each Bottlerocket node: cordons, drains, issues the permit, releases.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-controller", version)]
pub struct Config {
    /// Namespace of the operator: its shadows, its own resource, its Lease and its Secrets.
    #[arg(long, env = "BRUPOP_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Namespace of the agents, where the certificate authority and the public keys of permits are published.
    #[arg(long, env = "BRUPOP_AGENT_NAMESPACE", default_value = names::AGENT_NAMESPACE)]
    pub agent_namespace: String,
    /// Identity of this replica in the Lease that elects the leader: the name of its pod.
    #[arg(long, env = "BRUPOP_IDENTITY")]
    pub identity: String,
    /// The node that this replica runs on; it is updated last.
    #[arg(long, env = "BRUPOP_NODE_NAME")]
    pub node_name: Option<String>,
    /// Address of /healthz, /readyz and /metrics, plain HTTP.
    #[arg(long, env = "BRUPOP_PLAIN_LISTEN", default_value = "0.0.0.0:8080", value_parser = models::listen::address)]
    pub plain_listen: SocketAddr,
    /// The cluster's domain in lower case, for the names in the web API's certificate.
    #[arg(long, env = "BRUPOP_CLUSTER_DOMAIN", default_value = "cluster.local", value_parser = models::domain::parse)]
    pub cluster_domain: String,
    /// Source of the web API's certificate: `managed` is issued and renewed by the controller; `provided` is put into
    /// the Secret `brupop-apiserver-tls` (tls.crt, tls.key, and ca.crt for the agents) by another client, such as
    /// cert-manager.
    #[arg(long, env = "BRUPOP_SERVING_CERTIFICATE", value_enum, default_value_t = ServingCertificate::Managed)]
    pub serving_certificate: ServingCertificate,
    /// Time for every kubelet to pick up a change of the ConfigMap `brupop-trust`. A new authority or key is published
    /// for this long before it is used. A kubelet refreshes a pod's volumes within 90 s (its --sync-frequency of 1m,
    /// and up to half as much again), and its copy may be 5 minutes old where it does not watch (its
    /// configMapAndSecretChangeDetectionStrategy is Cache, in a cluster of thousands of nodes); the rest allows for
    /// failed attempts.
    #[arg(long, env = "BRUPOP_TRUST_WAIT", default_value = "10m")]
    pub trust_wait: models::duration::Duration,
    /// A file with the PEM certificates of the authorities that the certificate of Prometheus is verified with, where
    /// the policy queries one over https. No others are trusted. Without it the system's authorities are, and the
    /// operator's own image has none.
    #[arg(long, env = "BRUPOP_PROMETHEUS_CA_FILE")]
    pub prometheus_ca_file: Option<std::path::PathBuf>,
    /// Folder with the keys of the Secret `brupop-prometheus`: `token`, or `username` and `password`, which are sent to the
    /// Prometheus of the policy. It is read for each query.
    #[arg(long, env = "BRUPOP_PROMETHEUS_CREDENTIALS_DIR")]
    pub prometheus_credentials_dir: Option<std::path::PathBuf>,
    /// Folder with the keys of the Secret `brupop-notices`, for notices. It is read at each sending.
    #[arg(long, env = "BRUPOP_NOTICES_DIR")]
    pub notices_dir: Option<std::path::PathBuf>,
    /// Log filter, e.g. `info` or `controller=debug,kube=warn`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,
    /// Log format: `text` or `json`.
    #[arg(long, env = "BRUPOP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// The issuer of the web API's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServingCertificate {
    /// The leader.
    Managed,
    /// Another client.
    Provided,
}
