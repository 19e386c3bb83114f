//! The web API's Deployment, its budget and its Service.

use models::names::{AGENT_NAMESPACE, SERVING_SECRET, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::object::{labels, namespaced};
use crate::options::{Component, Options};
use crate::{budget, pod};

const COMPONENT: Component = Component::Apiserver;
/// Port of the API.
pub(crate) const TLS_PORT: i32 = 8443;
const TLS_DIRECTORY: &str = "/etc/brupop/tls";

pub(crate) fn all(options: &Options) -> [Value; 3] {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": namespaced(SYSTEM_NAMESPACE, COMPONENT.name()),
        "spec": {
            "selector": labels(COMPONENT),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": "https"}],
        },
    });
    [service, budget::one_at_a_time(COMPONENT), deployment(options)]
}

fn deployment(options: &Options) -> Value {
    let args = vec![
        format!("--listen=$(POD_IP):{TLS_PORT}"),
        format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
        format!("--tls-dir={TLS_DIRECTORY}"),
        format!("--namespace={SYSTEM_NAMESPACE}"),
        format!("--agent-namespace={AGENT_NAMESPACE}"),
    ];
    let mut container = pod::container("apiserver", COMPONENT, options, args, ["50m", "64Mi", "256Mi"]);
    container["env"] = json!([pod::field("POD_IP", "status.podIP")]);
    container["ports"] = json!([pod::port("https", TLS_PORT), pod::port(pod::METRICS_PORT, pod::PLAIN_PORT)]);
    container["readinessProbe"] = pod::probe("/readyz", 5);
    container["livenessProbe"] = pod::probe("/healthz", 10);
    container["volumeMounts"] = json!([{"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": true}]);
    let mut deployment = pod::deployment(SYSTEM_NAMESPACE, COMPONENT, options.apiserver_replicas, &container);
    // The leader creates the Secret, perhaps after these pods have started; they are not ready until it exists.
    deployment["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "tls", "secret": {"secretName": SERVING_SECRET, "optional": true}}]);
    deployment
}
