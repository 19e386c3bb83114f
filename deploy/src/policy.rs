//! The policy of a new installation: no update starts until a user enables it. The other values are the defaults, written
//! out so that users see what they can change.

use kube::Resource as _;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};

use crate::object::namespaced;

pub(crate) fn default() -> Value {
    json!({
        "apiVersion": BottlerocketUpdateOperator::api_version(&()),
        "kind": BottlerocketUpdateOperator::kind(&()),
        "metadata": namespaced(SYSTEM_NAMESPACE, OPERATOR_NAME),
        "spec": {
            "enabled": false,
            "version": {"target": "latest", "refreshInterval": "1h"},
            "maxUnavailable": 1,
            "drain": {"timeout": "30m"},
            "health": {"after": {"soak": "1m"}},
            "failurePolicy": {"maxFailures": 1},
        },
    })
}
