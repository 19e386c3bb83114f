//! Command line of the agent: each path and address is a flag or an environment variable.

use std::path::PathBuf;

use clap::Parser;
use models::log::LogFormat;

use crate::alive::Check;

/// Drives the update API of one Bottlerocket host to the desired state of its BottlerocketShadow.
///
/// HTTPS_PROXY, NO_PROXY and their lower-case forms are honoured for the web API, never for the host's socket.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-agent", version)]
pub struct Config {
    /// Name of the Node that this agent runs on.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,

    /// Unix socket of the host API.
    #[arg(long, env = "BRUPOP_HOST_SOCKET", default_value = "/run/api.sock")]
    pub host_socket: PathBuf,

    /// File that holds the id of the running boot.
    #[arg(long, env = "BRUPOP_BOOT_ID_FILE", default_value = "/proc/sys/kernel/random/boot_id")]
    pub boot_id_file: PathBuf,

    /// Base address of the operator's web API.
    #[arg(long, env = "BRUPOP_SERVER_URL", default_value = "https://brupop-apiserver.brupop-system.svc")]
    pub server_url: String,

    /// File with this pod's token for the web API, read at each request.
    #[arg(long, env = "BRUPOP_TOKEN_FILE", default_value = "/var/run/secrets/brupop/token")]
    pub token_file: PathBuf,

    /// Directory with the trusted ca.crt (PEM bundle) and permit-keys.json (JWKS). It may be empty at first.
    #[arg(long, env = "BRUPOP_TRUST_DIR", default_value = "/etc/brupop/trust")]
    pub trust_dir: PathBuf,

    /// File for the probes that the agent rewrites every few seconds. Its directory has to exist.
    #[arg(long, env = "BRUPOP_ALIVE_FILE", default_value = "/run/brupop/alive")]
    pub alive_file: PathBuf,

    /// Checks the agent that writes the file for the probes, and exits.
    #[arg(long, value_enum)]
    pub check: Option<Check>,

    /// Log filter: a level, or a list such as `info,agent=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,

    /// Log format: `text` or `json`.
    #[arg(long, env = "BRUPOP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}
