//! Flags. Each is also an environment variable. The AWS SDK reads its own: region, credentials, endpoint.

use clap::Parser;
use models::duration::Duration;
use models::log::LogFormat;
use models::names;

/// Keeps EC2 Auto Scaling groups from replacing nodes that are updated: the hook `aws-autoscaling`.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-aws", version)]
pub(crate) struct Config {
    /// Namespace of the operator: its resource, and the ConfigMap `brupop-aws` with what is to be taken back.
    #[arg(long, env = "BRUPOP_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub(crate) namespace: String,
    /// Time after which AWS shows what this program has changed there. Within it, an instance that seems to be in service
    /// may still enter Standby.
    #[arg(long, env = "BRUPOP_AWS_SETTLE", default_value = "1m")]
    pub(crate) settle: Duration,
    /// Log filter, e.g. `info` or `brupop_aws=debug,aws_smithy_runtime=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub(crate) log_filter: String,
    /// Log format: `text` or `json`.
    #[arg(long, env = "BRUPOP_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}
