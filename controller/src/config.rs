//! Flags of the controller. Each is also an environment variable.

use std::net::SocketAddr;

use clap::Parser;
use models::names;

/// Decides which Bottlerocket node updates, when and to what; cordons, drains, issues the permit, and judges the result.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-controller", version)]
pub struct Config {
    /// Namespace of the operator: its shadows, its own resource, its Lease and its Secrets.
    #[arg(long, env = "BRUPOP_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Namespace of the agents, where the certificate authority and the public keys of permits are published.
    #[arg(long, env = "BRUPOP_AGENT_NAMESPACE", default_value = names::AGENT_NAMESPACE)]
    pub agent_namespace: String,
    /// Who this replica is, in the Lease that elects the leader: the name of its pod.
    #[arg(long, env = "BRUPOP_IDENTITY")]
    pub identity: String,
    /// The node that this replica runs on; it is updated last.
    #[arg(long, env = "BRUPOP_NODE_NAME")]
    pub node_name: Option<String>,
    /// Where /healthz, /readyz and /metrics are served, plain HTTP.
    #[arg(long, env = "BRUPOP_PLAIN_LISTEN", default_value = "0.0.0.0:8080", value_parser = models::listen::address)]
    pub plain_listen: SocketAddr,
    /// The cluster's domain, for the names in the web API's certificate.
    #[arg(long, env = "BRUPOP_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Where the web API's certificate comes from: `managed` is made and renewed here; `provided` is what another client puts into
    /// the Secret `brupop-apiserver-tls` (tls.crt, tls.key, and ca.crt for the agents), such as cert-manager.
    #[arg(long, env = "BRUPOP_SERVING_CERTIFICATE", value_enum, default_value_t = ServingCertificate::Managed)]
    pub serving_certificate: ServingCertificate,
    /// How long every kubelet has to have taken a change of the ConfigMap `brupop-trust`. A new authority or key is published
    /// for so long before it is used. A kubelet looks at a pod's volumes within 90 s (its --sync-frequency of 1m, and up to half as
    /// much again), and its copy may be 5 minutes old where it does not watch (its configMapAndSecretChangeDetectionStrategy
    /// is Cache, in a cluster of thousands of nodes); the rest is room for tries that fail.
    #[arg(long, env = "BRUPOP_TRUST_WAIT", default_value = "10m")]
    pub trust_wait: models::duration::Duration,
    /// For tests of the operator: the local clock is wrong by so many seconds.
    #[arg(long, hide = true, allow_negative_numbers = true, default_value_t = 0)]
    pub clock_skew: i32,
    /// A file with the certificates, in PEM, of the authorities that the certificate of Prometheus is checked with, where
    /// the policy asks one over https. They alone are trusted. Without it those of the system are, of which the operator's
    /// own image has none.
    #[arg(long, env = "BRUPOP_PROMETHEUS_CA_FILE")]
    pub prometheus_ca_file: Option<std::path::PathBuf>,
    /// What is logged, e.g. `info` or `controller=debug,kube=warn`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,
}

/// Who makes the web API's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServingCertificate {
    /// The leader.
    Managed,
    /// Another client.
    Provided,
}
