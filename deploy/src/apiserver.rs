//! The web API's Deployment, its budget and its Service.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{
    Container, PodSpec, PodTemplateSpec, SecretVolumeSource, Service, ServicePort, ServiceSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use models::names::{AGENT_NAMESPACE, APISERVER, SERVING_SECRET, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::object::{labels, namespaced, selector, value};
use crate::options::{Component, Options, image};
use crate::{budget, pod};

const COMPONENT: Component = Component::Apiserver;
/// Port of the API.
pub(crate) const TLS_PORT: i32 = 8443;
const TLS_DIRECTORY: &str = "/etc/brupop/tls";

pub(crate) fn all(options: &Options) -> anyhow::Result<Vec<Value>> {
    Ok(vec![value(service())?, value(budget::one_at_a_time(COMPONENT))?, value(deployment(options))?])
}

fn service() -> Service {
    Service {
        metadata: namespaced(SYSTEM_NAMESPACE, APISERVER),
        spec: Some(ServiceSpec {
            selector: Some(labels(COMPONENT)),
            ports: Some(vec![ServicePort {
                name: Some("https".to_owned()),
                port: 443,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String("https".to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn deployment(options: &Options) -> Deployment {
    let container = Container {
        name: "apiserver".to_owned(),
        image: Some(image(COMPONENT, options)),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: pod::args(
            [
                format!("--listen=$(POD_IP):{TLS_PORT}"),
                format!("--plain-listen=$(POD_IP):{}", pod::PLAIN_PORT),
                format!("--tls-dir={TLS_DIRECTORY}"),
                format!("--namespace={SYSTEM_NAMESPACE}"),
                format!("--agent-namespace={AGENT_NAMESPACE}"),
            ],
            options,
        ),
        env: Some(vec![pod::field("POD_IP", "status.podIP")]),
        ports: Some(vec![pod::port("https", TLS_PORT), pod::port("metrics", pod::PLAIN_PORT)]),
        readiness_probe: Some(pod::probe("/readyz", 5)),
        liveness_probe: Some(pod::probe("/healthz", 10)),
        resources: Some(pod::resources("50m", "64Mi", "256Mi")),
        security_context: Some(pod::restricted_container()),
        volume_mounts: Some(vec![VolumeMount {
            name: "tls".to_owned(),
            mount_path: TLS_DIRECTORY.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    };
    let template = PodSpec {
        service_account_name: Some(APISERVER.to_owned()),
        automount_service_account_token: Some(true),
        security_context: Some(pod::restricted_pod()),
        priority_class_name: Some("system-cluster-critical".to_owned()),
        tolerations: Some(pod::tolerations()),
        affinity: Some(pod::apart(COMPONENT)),
        termination_grace_period_seconds: Some(30),
        containers: vec![container],
        volumes: Some(vec![Volume {
            name: "tls".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(SERVING_SECRET.to_owned()),
                // The leader creates it, perhaps after these pods have started; they are not ready until it exists.
                optional: Some(true),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    };
    Deployment {
        metadata: namespaced(SYSTEM_NAMESPACE, APISERVER),
        spec: DeploymentSpec {
            replicas: Some(options.apiserver_replicas.into()),
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
