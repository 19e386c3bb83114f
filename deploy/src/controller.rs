//! The controller's Deployment, of which one pod leads and the others are on standby, and its budget.

use models::names::{AGENT_NAMESPACE, NOTICES_SECRET, PROMETHEUS_SECRET, SYSTEM_NAMESPACE};
use serde_json::{Value, json};

use crate::options::{Component, Options};
use crate::{budget, pod};

const COMPONENT: Component = Component::Controller;
const NOTICES_DIRECTORY: &str = "/etc/brupop/notices";
const PROMETHEUS_DIRECTORY: &str = "/etc/brupop/prometheus-credentials";

pub(crate) fn all(options: &Options) -> [Value; 2] {
    let mut args = vec![
        format!("--namespace={SYSTEM_NAMESPACE}"),
        format!("--agent-namespace={AGENT_NAMESPACE}"),
        "--identity=$(POD_NAME)".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
        format!("--notices-dir={NOTICES_DIRECTORY}"),
        format!("--prometheus-credentials-dir={PROMETHEUS_DIRECTORY}"),
    ];
    args.extend(options.cluster_domain.iter().map(|domain| format!("--cluster-domain={domain}")));
    args.extend(options.controller_args.iter().cloned());
    let mut container = pod::container("controller", COMPONENT, options, args, ["50m", "64Mi", "256Mi"]);
    container["env"] = json!([
        pod::field("POD_NAME", "metadata.name"),
        pod::field("NODE_NAME", "spec.nodeName"),
        pod::field("POD_IP", "status.podIP"),
    ]);
    container["ports"] = json!([pod::port(pod::METRICS_PORT, pod::PLAIN_PORT)]);
    container["readinessProbe"] = pod::probe("/readyz", 5);
    container["livenessProbe"] = pod::probe("/healthz", 10);
    container["volumeMounts"] = json!([
        {"name": "notices", "mountPath": NOTICES_DIRECTORY, "readOnly": true},
        {"name": "prometheus-credentials", "mountPath": PROMETHEUS_DIRECTORY, "readOnly": true},
    ]);
    let mut deployment = pod::deployment(SYSTEM_NAMESPACE, COMPONENT, options.controller_replicas, &container);
    // Mounted, so that the controller needs no right to read them. A user creates them, perhaps long after the pod has started.
    deployment["spec"]["template"]["spec"]["volumes"] = json!([
        {"name": "notices", "secret": {"secretName": NOTICES_SECRET, "optional": true}},
        {"name": "prometheus-credentials", "secret": {"secretName": PROMETHEUS_SECRET, "optional": true}},
    ]);
    [budget::one_at_a_time(COMPONENT), deployment]
}
