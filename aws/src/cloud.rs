//! The calls of EC2 Auto Scaling. Each has a time limit, and an error that names its cause.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::tls;
use base64::Engine as _;

use crate::decide::Call;
use crate::facts::{Group, Instance};

/// Deadline of a call with that for its credentials, and of its connection.
const CALL: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(3);

/// Deadline for finding the region, which may take requests to the instance's metadata.
const REGION: Duration = Duration::from_secs(20);

/// Number of instances that one call may ask about, and of groups.
const INSTANCES: usize = 50;
const GROUPS: usize = 50;

/// The process that replaces unhealthy instances, and the one that keeps the zones of a group equal.
const PROCESS: &str = "ReplaceUnhealthy";
const BALANCE: &str = "AZRebalance";

/// The failure of a call.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("IAM denies {action}: see docs/aws.md for the policy that the role of brupop-aws needs ({message})")]
    Denied { action: &'static str, message: String },
    #[error("AWS refuses {action}: {message}")]
    Refused { action: &'static str, message: String },
    #[error("AWS limits the rate of {action}: {message}")]
    Throttled { action: &'static str, message: String },
    #[error("{action} failed: {message}")]
    Failed { action: &'static str, message: String },
}

impl CallError {
    /// Returns true if a repetition would have the same result. A call that AWS refuses is repeated once: what was decided
    /// on may have been old. `refused_before`: it was refused before, and did not only fail.
    pub(crate) fn is_final(&self, refused_before: bool) -> bool {
        matches!(self, Self::Denied { .. }) || refused_before && self.refused().is_some()
    }

    /// Returns the action, if AWS refuses it.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        match self {
            Self::Refused { action, .. } => Some(*action),
            Self::Denied { .. } | Self::Throttled { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Awaits a call of this action.
async fn ended<T, E, R>(
    action: &'static str,
    call: impl Future<Output = Result<T, SdkError<E, R>>>,
) -> Result<T, CallError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    call.await.map_err(|error| {
        let Some(answer) = error.as_service_error() else {
            return CallError::Failed { action, message: DisplayErrorContext(&error).to_string() };
        };
        let code = answer.code().unwrap_or("no code");
        let message = format!("{code}: {}", answer.message().unwrap_or("no message"));
        of_code(action, code, message)
    })
}

/// Returns the failure of a call that AWS answered with a code.
fn of_code(action: &'static str, code: &str, message: String) -> CallError {
    match code {
        "AccessDenied" | "AccessDeniedException" | "UnauthorizedOperation" => CallError::Denied { action, message },
        "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "RequestLimitExceeded"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "TooManyRequestsException"
        | "SlowDown" => CallError::Throttled { action, message },
        "ValidationError" => CallError::Refused { action, message },
        // Among them ResourceContention and ScalingActivityInProgress, which pass.
        _ => CallError::Failed { action, message },
    }
}

/// The client. It tries each call once: the loop repeats what fails, and a second try of one that was carried out without
/// an answer would be refused.
#[derive(Clone, Debug)]
pub(crate) struct Cloud(Client);

impl Cloud {
    /// Sets the client up by the SDK's own rules: environment, web identity (IRSA), container credentials (Pod Identity),
    /// metadata of the instance.
    ///
    /// # Errors
    /// If there is no region.
    pub(crate) async fn connect() -> anyhow::Result<Self> {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
            .tls_context(tls::TlsContext::builder().with_trust_store(authorities()).build()?)
            .build_https();
        let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).operation_timeout(CALL).build();
        let loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(http)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::disabled());
        let config: SdkConfig = tokio::time::timeout(REGION, loader.load())
            .await
            .context("the configuration of the AWS SDK cannot be read in time")?;
        config.region().context("no AWS region: set AWS_REGION, as IRSA and Pod Identity do (docs/aws.md)")?;
        Ok(Self(Client::new(&config)))
    }

    /// Returns the instances, `None` for one that is in no group.
    pub(crate) async fn instances(&self, ids: &[String]) -> Result<BTreeMap<String, Option<Instance>>, CallError> {
        let mut found: BTreeMap<_, _> = ids.iter().map(|id| (id.clone(), None)).collect();
        for ids in ids.chunks(INSTANCES) {
            let call = self.0.describe_auto_scaling_instances().set_instance_ids(Some(ids.to_vec()));
            let pages = call.into_paginator().items().send();
            for instance in ended("autoscaling:DescribeAutoScalingInstances", pages.try_collect()).await? {
                let Some(id) = instance.instance_id() else { continue };
                let read = Instance {
                    group: instance.auto_scaling_group_name().unwrap_or_default().to_owned(),
                    state: instance.lifecycle_state().unwrap_or_default().to_owned(),
                    unhealthy: instance.health_status().is_some_and(|health| health.eq_ignore_ascii_case("unhealthy")),
                };
                found.insert(id.to_owned(), Some(read));
            }
        }
        Ok(found)
    }

    /// Returns the groups, `None` for one that does not exist.
    pub(crate) async fn groups(&self, names: &[String]) -> Result<BTreeMap<String, Option<Group>>, CallError> {
        let mut found: BTreeMap<_, _> = names.iter().map(|name| (name.clone(), None)).collect();
        for names in names.chunks(GROUPS) {
            let call = self.0.describe_auto_scaling_groups().set_auto_scaling_group_names(Some(names.to_vec()));
            // A group has up to thousands of them.
            let pages = call.include_instances(false).into_paginator().items().send();
            for group in ended("autoscaling:DescribeAutoScalingGroups", pages.try_collect()).await? {
                let Some(name) = group.auto_scaling_group_name() else { continue };
                let suspended = |name| group.suspended_processes().iter().any(|p| p.process_name() == Some(name));
                let read = Group {
                    min: group.min_size().unwrap_or_default(),
                    desired: group.desired_capacity().unwrap_or_default(),
                    suspended: suspended(PROCESS),
                    balanced_zones: if suspended(BALANCE) { 0 } else { group.availability_zones().len() },
                };
                found.insert(name.to_owned(), Some(read));
            }
        }
        Ok(found)
    }

    /// Makes a call that changes something. It may be carried out although it fails.
    pub(crate) async fn call(&self, call: &Call) -> Result<(), CallError> {
        let client = &self.0;
        match call {
            Call::EnterStandby { group, instance, .. } => {
                let call = client.enter_standby().auto_scaling_group_name(group).instance_ids(instance);
                // Or the group would launch another instance in its place.
                ended("autoscaling:EnterStandby", call.should_decrement_desired_capacity(true).send()).await?;
            }
            Call::ExitStandby { group, instance } => {
                let call = client.exit_standby().auto_scaling_group_name(group).instance_ids(instance);
                ended("autoscaling:ExitStandby", call.send()).await?;
            }
            Call::Suspend { group, .. } => {
                let call = client.suspend_processes().auto_scaling_group_name(group).scaling_processes(PROCESS);
                ended("autoscaling:SuspendProcesses", call.send()).await?;
            }
            Call::Resume { group, .. } => {
                // Without a name all processes would be resumed, the group's own ones too.
                let call = client.resume_processes().auto_scaling_group_name(group).scaling_processes(PROCESS);
                ended("autoscaling:ResumeProcesses", call.send()).await?;
            }
            Call::SetHealthy { instance } => {
                let call = client.set_instance_health().instance_id(instance).health_status("Healthy");
                ended("autoscaling:SetInstanceHealth", call.send()).await?;
            }
        }
        Ok(())
    }
}

/// Returns the authorities that AWS' certificates are verified with: Mozilla's, as they were when this program was built.
fn authorities() -> tls::TrustStore {
    let encode = |der: &[u8]| {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    };
    let all: String = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|certificate| encode(certificate)).collect();
    tls::TrustStore::empty().with_pem_certificate(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_final_and_limits_are_not() {
        for (code, is_final, text) in [
            ("AccessDenied", [true, true], "IAM denies autoscaling:EnterStandby"),
            ("ValidationError", [false, true], "AWS refuses autoscaling:EnterStandby"),
            ("Throttling", [false, false], "limits the rate of autoscaling:EnterStandby"),
            ("ScalingActivityInProgress", [false, false], "autoscaling:EnterStandby failed"),
            ("InternalFailure", [false, false], "autoscaling:EnterStandby failed"),
        ] {
            let error = of_code("autoscaling:EnterStandby", code, format!("{code}: text"));
            assert_eq!([false, true].map(|refused_before| error.is_final(refused_before)), is_final, "{error}");
            assert!(error.to_string().contains(text) && error.to_string().contains(code), "{error}");
        }
    }
}
