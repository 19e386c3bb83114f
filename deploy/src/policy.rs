//! The policy of a new installation. Its values are the defaults, written out so that users see what they can change.

use anyhow::Context;
use models::duration::Duration;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::{
    AfterUpdatePolicy, BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec, CountOrPercent, DrainPolicy,
    FailurePolicy, HealthPolicy, VersionPolicy,
};
use serde_json::Value;

use crate::object::namespaced;

pub(crate) fn all() -> anyhow::Result<Vec<Value>> {
    let spec = BottlerocketUpdateOperatorSpec {
        enabled: Some(true),
        version: Some(VersionPolicy {
            target: Some("latest".to_owned()),
            refresh_interval: Some(Duration::from_mins(60)),
            ..VersionPolicy::default()
        }),
        max_unavailable: Some(CountOrPercent::Count(1)),
        drain: Some(DrainPolicy { timeout: Some(Duration::from_mins(30)), ..DrainPolicy::default() }),
        health: Some(HealthPolicy {
            after: Some(AfterUpdatePolicy { soak: Some(Duration::from_mins(1)), ..AfterUpdatePolicy::default() }),
            ..HealthPolicy::default()
        }),
        failure_policy: Some(FailurePolicy { max_failures: Some(1), ..FailurePolicy::default() }),
        ..BottlerocketUpdateOperatorSpec::default()
    };
    let mut operator = BottlerocketUpdateOperator::new(OPERATOR_NAME, spec);
    operator.metadata = namespaced(SYSTEM_NAMESPACE, OPERATOR_NAME);
    let mut value = serde_json::to_value(operator)?;
    value.as_object_mut().context("the default policy is no object")?.remove("status");
    Ok(vec![value])
}
