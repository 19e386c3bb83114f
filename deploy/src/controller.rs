//! The controller's Deployment, of which one pod leads and the others are on standby, and its budget.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use models::names::{AGENT_NAMESPACE, CONTROLLER, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::object::{labels, namespaced, selector, value};
use crate::options::{Component, Options, image};
use crate::{budget, pod};

const COMPONENT: Component = Component::Controller;

pub(crate) fn all(options: &Options) -> anyhow::Result<Vec<Value>> {
    Ok(vec![value(budget::one_at_a_time(COMPONENT))?, value(deployment(options))?])
}

fn deployment(options: &Options) -> Deployment {
    let mut args = vec![
        format!("--namespace={SYSTEM_NAMESPACE}"),
        format!("--agent-namespace={AGENT_NAMESPACE}"),
        "--identity=$(POD_NAME)".to_owned(),
        "--node-name=$(NODE_NAME)".to_owned(),
        format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
    ];
    args.extend(options.cluster_domain.iter().map(|domain| format!("--cluster-domain={domain}")));
    args.extend(options.controller_args.iter().cloned());
    let container = Container {
        name: "controller".to_owned(),
        image: Some(image(COMPONENT, options)),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: pod::args(args, options),
        env: Some(vec![
            pod::field("POD_NAME", "metadata.name"),
            pod::field("NODE_NAME", "spec.nodeName"),
            pod::field("POD_IP", "status.podIP"),
        ]),
        ports: Some(vec![pod::port("metrics", pod::PLAIN_PORT)]),
        readiness_probe: Some(pod::probe("/readyz", 5)),
        liveness_probe: Some(pod::probe("/healthz", 10)),
        resources: Some(pod::resources("50m", "64Mi", "256Mi")),
        security_context: Some(pod::restricted_container()),
        ..Container::default()
    };
    let template = PodSpec {
        service_account_name: Some(CONTROLLER.to_owned()),
        automount_service_account_token: Some(true),
        security_context: Some(pod::restricted_pod()),
        priority_class_name: Some("system-cluster-critical".to_owned()),
        tolerations: Some(pod::tolerations()),
        affinity: Some(pod::apart(COMPONENT)),
        // Long enough to finish the writes that are under way and to release the Lease.
        termination_grace_period_seconds: Some(30),
        containers: vec![container],
        ..PodSpec::default()
    };
    Deployment {
        metadata: namespaced(SYSTEM_NAMESPACE, CONTROLLER),
        spec: DeploymentSpec {
            replicas: Some(options.controller_replicas.into()),
            revision_history_limit: Some(pod::REVISIONS),
            selector: selector(COMPONENT),
            strategy: Some(pod::one_at_a_time()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(COMPONENT)), ..ObjectMeta::default() }),
                spec: Some(template),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    }
}
